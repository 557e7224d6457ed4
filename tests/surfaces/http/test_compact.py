"""POST /v1/responses/compact: a long conversation is shortened and continued."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from openai.types.conversations import Message as ConversationMessage
from openai.types.responses import CompactedResponse

from doubles.judges import SdkJudge
from toolwire.conform.judge import Problem
from toolwire.core.events import Usage
from toolwire.core.turn import Call, Item, Message, Result, TextPart
from toolwire.gateway.compaction import ASKED, PREFIX, Seals, open_groups
from toolwire.gateway.records import ITEM_BYTES, Memory
from toolwire.observe.replay import replay
from toolwire.store.store import Store

Body = dict[str, Any]
PATH = "/v1/responses/compact"
NOTES = "say NOTES: launch on Tuesday.\nusage 40 9"
CALL = {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": '{"city": "Paris"}'}
OTHER = {**CALL, "call_id": "call_2", "arguments": '{"city": "Rome"}'}
RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}
HISTORY: list[Body] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "We launch on Tuesday."},
    {"role": "assistant", "content": "Noted: Tuesday."},
    CALL,
    RESULT,
    {"role": "assistant", "content": "It is sunny."},
    {
        "role": "user",
        "content": [
            {"type": "input_text", "text": "Look."},
            {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="},
        ],
    },
]


def texts(turn: Any) -> list[str]:
    return [
        part.text for item in turn.items for part in getattr(item, "parts", ()) if isinstance(part, TextPart)
    ]


def problems(compacted: Body) -> list[Problem]:
    """Validates by the SDK's types.

    Its compacted response has no user messages, unlike its conversations.
    """
    messages = [item for item in compacted["output"] if item["type"] == "message"]
    rest = [item for item in compacted["output"] if item["type"] != "message"]
    found = SdkJudge().validate({**compacted, "output": rest}, CompactedResponse)
    return found + [
        problem for item in messages for problem in SdkJudge().validate(item, ConversationMessage)
    ]


def kinds(output: list[Body]) -> list[str]:
    return [item.get("role") or item["type"] for item in output]


async def test_what_people_said_stays_and_the_rest_is_sealed(place: Callable[..., Any]) -> None:
    async with place(NOTES) as it:
        status, compacted = await it.post(PATH, {"model": "m", "input": HISTORY, "prompt_cache_key": "k"})
        assert (status, compacted["object"]) == (200, "response.compaction")
        assert problems(compacted) == []
        assert kinds(compacted["output"]) == ["developer", "user", "user", "compaction"]
        assert [part["type"] for part in compacted["output"][2]["content"]] == ["input_text", "input_image"]
        assert compacted["output"][1]["content"] == [{"type": "input_text", "text": "We launch on Tuesday."}]
        assert "Tuesday" not in compacted["output"][3]["encrypted_content"]
        assert (compacted["usage"]["input_tokens"], compacted["usage"]["output_tokens"]) == (40, 9)
        asked = it.backend.seen[-1]
        # the model saw everything and was asked for notes, and nothing of this turn is stored
        assert texts(asked)[-1] == ASKED and not asked.tools and not asked.store


async def test_the_next_turn_continues_from_the_notes(place: Callable[..., Any]) -> None:
    async with place(f"{NOTES}") as it:
        _, compacted = await it.post(PATH, {"model": "m", "input": HISTORY})
        status, _ = await it.post(
            "/v1/responses",
            {"model": "m", "input": [*compacted["output"], {"role": "user", "content": "When?"}]},
        )
        assert status == 200
        said = it.backend.seen[-1].items
        assert [item.role for item in said] == ["developer", "user", "user", "assistant", "user"]
        assert said[3].parts[0].text.endswith("NOTES: launch on Tuesday.")
        assert "It is sunny." not in texts(it.backend.seen[-1])


async def test_a_compacted_turn_can_be_stored_and_continued(place: Callable[..., Any]) -> None:
    async with place(NOTES) as it:
        _, compacted = await it.post(PATH, {"model": "m", "input": HISTORY})
        _, first = await it.post(
            "/v1/responses",
            {"model": "m", "input": [*compacted["output"], {"role": "user", "content": "When?"}]},
        )
        status, _ = await it.post(
            "/v1/responses", {"model": "m", "input": "And where?", "previous_response_id": first["id"]}
        )
        assert status == 200 and any("NOTES" in text for text in texts(it.backend.seen[-1]))


async def test_a_stored_conversation_is_compacted_by_its_last_response(place: Callable[..., Any]) -> None:
    async with place("say One\n---\n" + NOTES) as it:
        _, first = await it.post("/v1/responses", {"model": "m", "input": "We launch on Tuesday."})
        status, compacted = await it.post(PATH, {"model": "m", "previous_response_id": first["id"]})
        assert status == 200 and kinds(compacted["output"]) == ["user", "compaction"]
        assert compacted["output"][0]["content"][0]["text"] == "We launch on Tuesday."
        status, body = await it.post(PATH, {"model": "m", "previous_response_id": "resp_none"})
        assert (status, body["error"]["code"]) == (400, "previous_response_not_found")


async def test_a_compacted_conversation_is_compacted_again(place: Callable[..., Any]) -> None:
    async with place("say {user} NOTES") as it:
        _, first = await it.post(PATH, {"model": "m", "input": HISTORY})
        _, second = await it.post(
            PATH, {"model": "m", "input": [*first["output"], {"role": "user", "content": "More."}]}
        )
        assert kinds(second["output"]) == ["developer", "user", "user", "user", "compaction"]
        assert any(
            "NOTES" in text for text in texts(it.backend.seen[-1])
        )  # the old notes were read to write the new ones


@pytest.mark.parametrize("tools", ["native", "emulated"])
async def test_open_calls_stay_and_take_their_results_later(place: Callable[..., Any], tools: str) -> None:
    declared = [{"type": "function", "name": "get_weather"}]
    async with place("say NOTES of it", tools=tools) as it:
        history = [{"role": "user", "content": "Paris and Rome?"}, CALL, OTHER]
        _, compacted = await it.post(PATH, {"model": "m", "input": history, "tools": declared})
        assert kinds(compacted["output"]) == ["user", "compaction", "function_call", "function_call"]
        results = [RESULT, {**RESULT, "call_id": "call_2", "output": "rainy"}]
        status, body = await it.post(
            "/v1/responses", {"model": "m", "input": [*compacted["output"], *results], "tools": declared}
        )
        assert status == 200, body


async def test_a_group_that_is_half_answered_stays_whole(place: Callable[..., Any]) -> None:
    async with place(NOTES) as it:
        history = [{"role": "user", "content": "Paris and Rome?"}, CALL, OTHER, RESULT]
        _, compacted = await it.post(PATH, {"model": "m", "input": history})
        assert kinds(compacted["output"]) == [
            "user",
            "compaction",
            "function_call",
            "function_call",
            "function_call_output",
        ]
        assert compacted["output"][-1]["output"] == "sunny"
        more = [*compacted["output"], {**RESULT, "call_id": "call_2", "output": "rainy"}]
        status, _ = await it.post("/v1/responses", {"model": "m", "input": more})
        assert status == 200
        assert [item.parts for item in it.backend.seen[-1].items if isinstance(item, Result)] == [
            (TextPart("sunny"),),
            (TextPart("rainy"),),
        ]


def test_an_answered_group_before_an_open_one_is_summarized_in_the_notes() -> None:
    items: list[Item] = [
        Message("user", (TextPart("a"),)),
        Call("1", "f", "{}"),
        Result("1", (TextPart("x"),)),
        Call("2", "f", "{}"),
    ]
    assert open_groups(items) == [items[3]] and open_groups(items[:3]) == [] and open_groups(items[:1]) == []


SAID: Body = {"role": "assistant", "content": "One moment."}


@pytest.mark.parametrize(
    ("after", "stays"),
    [
        ([CALL, SAID], ["call_1"]),
        ([CALL, SAID, RESULT], []),
        ([CALL, OTHER, SAID, RESULT], ["call_1", "call_2", "call_1"]),
        ([SAID, CALL, SAID, OTHER], ["call_1", "call_2"]),
        ([SAID, CALL, SAID, OTHER, SAID], ["call_1", "call_2"]),
        ([CALL, {"role": "developer", "content": "Be quick."}], ["call_1"]),
        ([CALL, RESULT, SAID, OTHER, SAID], ["call_2"]),
        ([OTHER, SAID, CALL, RESULT, SAID], ["call_2"]),
        ([CALL, {"role": "user", "content": "Never mind."}, OTHER, SAID], ["call_2"]),
        ([CALL, OTHER, RESULT, SAID], ["call_1", "call_2", "call_1"]),
    ],
)
async def test_text_after_an_open_call_does_not_remove_the_call(
    place: Callable[..., Any], after: list[Body], stays: list[str]
) -> None:
    async with place(NOTES) as it:
        _, compacted = await it.post(
            PATH, {"model": "m", "input": [{"role": "user", "content": "Paris and Rome?"}, *after]}
        )
        notes = kinds(compacted["output"]).index("compaction")
        assert [item.get("call_id") for item in compacted["output"][notes + 1 :]] == stays
        results = [{**RESULT, "call_id": id} for id in dict.fromkeys(stays)]
        status, answer = await it.post(
            "/v1/responses", {"model": "m", "input": [*compacted["output"], *results]}
        )
        assert status == 200, answer


@pytest.mark.parametrize(
    ("more", "report"),
    [
        ({}, ""),
        ({"instructions": "Be brief.", "tools": None, "prompt_cache_key": "k"}, "prompt_cache_key=ignored"),
        ({"bogus": 1}, "bogus=ignored"),
        (
            {"other": 1, "stream": True, "tools": [], "toolChoice": "auto"},
            "other=ignored; stream=ignored; tool_choice=ignored; tools=ignored",
        ),
        (
            {"max_output_tokens": 5, "store": True, "text": {"verbosity": "low"}},
            "max_output_tokens=ignored; store=ignored; text=ignored",
        ),
        (
            {"bogus": 1, "input": [{"role": "user", "content": "a"}, CALL, {"role": "user", "content": "b"}]},
            "bogus=ignored; input=healed:missing_result",
        ),
    ],
)
async def test_no_field_is_ignored_in_silence(place: Callable[..., Any], more: Body, report: str) -> None:
    async with place(NOTES) as it:
        body = {"model": "m", "input": "a", **more}
        async with it.client.post(f"http://127.0.0.1:{it.port}{PATH}", json=body) as response:
            assert (response.status, response.headers["x-toolwire-report"]) == (200, report)


# --- refused requests ---


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"input": "a"}, "missing_required_parameter", "model"),
        ({"model": "m"}, "missing_required_parameter", "input"),
        ({"model": "m", "input": []}, "missing_required_parameter", "input"),
        ({"model": "m", "input": [RESULT]}, None, "input[0].call_id"),
        ({"model": "m", "input": 7}, "invalid_type", "input"),
    ],
)
async def test_a_wrong_request_is_refused_before_the_model_is_asked(
    place: Callable[..., Any], body: Body, code: str | None, param: str
) -> None:
    async with place(NOTES) as it:
        status, answer = await it.post(PATH, body)
        assert (status, answer["error"]["code"], answer["error"]["param"]) == (
            400,
            code,
            param,
        ) and not it.backend.seen


async def test_an_unknown_model_and_a_wrong_method_are_refused_as_elsewhere(
    place: Callable[..., Any],
) -> None:
    async with place(NOTES) as it:
        status, answer = await it.post("/responses/compact", {"model": "x", "input": "a"})
        assert (status, answer["error"]["code"]) == (404, "model_not_found")
        async with it.client.put(f"http://127.0.0.1:{it.port}{PATH}", json={}) as response:
            assert response.status == 405


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("say half of\nfinish length", "max_output_tokens"),
        ("say no\nfinish content_filter", "content_filter"),
    ],
)
async def test_a_summary_that_broke_off_is_an_error(place: Callable[..., Any], script: str, why: str) -> None:
    """The client discards the conversation once it has the result."""
    async with place(script) as it:
        status, answer = await it.post(PATH, {"model": "m", "input": HISTORY})
        assert status == 502 and f"broke off ({why})" in answer["error"]["message"]


async def test_a_model_that_counts_nothing_is_compacted_too(
    place: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place("say NOTES") as it:
        run = it.backend.run

        async def uncounted(turn: Any) -> Any:
            async for batch in run(turn):
                yield [event for event in batch if not isinstance(event, Usage)]

        monkeypatch.setattr(it.backend, "run", uncounted)
        status, compacted = await it.post(PATH, {"model": "m", "input": HISTORY})
        assert status == 200 and compacted["usage"]["total_tokens"] == 0
        assert problems(compacted) == []


async def test_a_model_that_writes_nothing_or_fails_is_an_error(place: Callable[..., Any]) -> None:
    async with place("finish stop\n---\nfail rate_limit Slow down.") as it:
        status, answer = await it.post(PATH, {"model": "m", "input": "a"})
        assert (status, answer["error"]["message"]) == (
            502,
            "The model wrote no summary of the conversation.",
        )
        status, answer = await it.post(
            PATH,
            {
                "model": "m",
                "input": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
            },
        )
        assert (status, answer["error"]["message"]) == (429, "Slow down.")


def forged(sealed: str) -> dict[str, str]:
    swapped = "A" if sealed[-10] != "A" else "B"
    return {
        "changed": sealed[:-10] + swapped + sealed[-9:],
        "cut": sealed[:40],
        "of another server": "gAAAAABpM0Yj-abc=",
        "empty": "",
        "only a prefix": PREFIX,
        "no text": PREFIX + "ü",
    }


async def test_a_forged_compaction_is_refused_and_never_read(place: Callable[..., Any]) -> None:
    async with place(NOTES) as it:
        _, compacted = await it.post(PATH, {"model": "m", "input": HISTORY})
        asked = len(it.backend.seen)
        for name, content in forged(compacted["output"][-1]["encrypted_content"]).items():
            item = {
                "type": "compaction",
                "encrypted_content": content,
                "text": "trust me",
                "content": "trust me",
            }
            status, answer = await it.post(
                "/v1/responses", {"model": "m", "input": [{"role": "user", "content": "a"}, item]}
            )
            assert (status, answer["error"]["code"]) == (400, "invalid_encrypted_content"), name
            assert answer["error"]["param"] == "input[1].encrypted_content"
        for wrong in (None, 7):
            status, answer = await it.post(
                "/v1/responses", {"model": "m", "input": [{"type": "compaction", "encrypted_content": wrong}]}
            )
            assert status == 400
        assert len(it.backend.seen) == asked


async def test_a_compaction_of_one_key_is_nothing_to_another(place: Callable[..., Any]) -> None:
    async with place(NOTES, keys=("one", "two")) as it:
        _, compacted = await it.post(PATH, {"model": "m", "input": HISTORY}, Authorization="Bearer one")
        body = {"model": "m", "input": compacted["output"]}
        assert (await it.post("/v1/responses", body, Authorization="Bearer one"))[0] == 200
        status, answer = await it.post("/v1/responses", body, Authorization="Bearer two")
        assert (status, answer["error"]["code"]) == (400, "invalid_encrypted_content")
        assert (await it.post(PATH, {"model": "m", "input": "a"}))[0] == 401


async def test_a_keys_limit_counts_a_compaction_once(place: Callable[..., Any]) -> None:
    async with place(NOTES, keys=("one",), requests_per_minute=2) as it:
        statuses = [
            (await it.post(PATH, {"model": "m", "input": "a"}, Authorization="Bearer one"))[0]
            for _ in range(3)
        ]
        assert statuses == [200, 200, 429]


# --- seals and memory ---


async def test_a_seal_outlives_the_process_and_is_shared_by_the_store(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    first, second = Store(url), Store(url)
    try:
        sealed = await Seals(first).seal("what was said, ü", "key")
        assert await Seals(second).open(sealed, "key") == "what was said, ü"
        assert await Seals(second).open(sealed, "other") is None
        assert await Seals(None).open(sealed, "key") is None
        assert await Seals(first).seal("a", "key") != await Seals(first).seal("a", "key")
    finally:
        await first.close()
        await second.close()


async def test_every_changed_character_breaks_a_seal() -> None:
    seals = Seals(None)
    sealed = await seals.seal("short", "key")
    for place_, character in enumerate(sealed.rstrip("=")):
        changed = sealed[:place_] + ("x" if character != "x" else "y") + sealed[place_ + 1 :]
        assert await seals.open(changed, "key") is None, place_
    assert await seals.open(await seals.seal("", "key"), "key") == ""


def test_a_memory_holds_one_conversation_and_forgets_it() -> None:
    memory = Memory(most=2 * ITEM_BYTES + 10)
    memory.begin((Message("user", (TextPart("before"),)),))
    memory.keep("a", (Message("user", (TextPart("now"),)),))
    recalled = memory.recall("a") or ()
    assert [item.parts[0].text for item in recalled] == ["before", "now"]  # type: ignore[union-attr]
    memory.forget("b")
    assert memory.recall("a") is not None
    memory.forget("a")
    assert memory.recall("a") is None
    memory.keep("c", (Message("user", (TextPart("x" * 2 * ITEM_BYTES),)),))
    assert memory.recall("c") is None
    for lane in ("one", "two"):
        memory.enter(lane)
        memory.keep(lane, (Message("user", (TextPart("x" * 60),)),))
    assert memory.recall("one") is None and memory.recall("two") is not None  # the older one was dropped
    for lane in ("three", "four"):
        memory.enter(lane)
        memory.keep(lane, (Message("user", (TextPart("x" * 5),)),))
    assert memory.recall("three") is not None and memory.recall("four") is not None  # exactly the limit


async def test_turns_with_compactions_and_remembered_ones_replay_from_the_journal(
    place: Callable[..., Any],
) -> None:
    async with place(NOTES) as it:
        _, compacted = await it.post(PATH, {"model": "m", "input": HISTORY})
        async with it.socket() as client:
            first = await client.turn(
                [*compacted["output"], {"role": "user", "content": "When?"}], store=False
            )
            await client.turn("And where?", store=False, previous_response_id=first[-1]["response"]["id"])
        ids = [record.id for record in it.gateway.journal.records()]
        assert len(ids) == 3
        for id in ids:
            recording = await it.gateway.journal.recording(id)
            assert (await asyncio.to_thread(replay, recording)).differences == []

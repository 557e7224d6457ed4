"""A parked run continues when its results arrive; otherwise the turn runs from its history."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from doubles.judges import Judge
from toolwire.access.keys import KeyGrant, KeyLimits
from toolwire.core.errors import ToolwireError
from toolwire.gateway.parked import Parking
from toolwire.gateway.pipeline import Caller, Gateway
from toolwire.settings.types import LimitSettings, ParkedSettings, ServerSettings, Settings
from toolwire.store.store import Store
from toolwire.testing import ScriptedBackend, ScriptedOptions

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "get_weather"}}
OTHER = {"type": "function", "function": {"name": "get_time"}}
SCRIPT = 'say Let me look.\ncall get_weather {"city": "Paris"}\n---\nsay It is {result}.'
TWO = 'call get_weather {"city": "Paris"}\ncall get_time\n---\nsay Done: {result}.'
USER = {"role": "user", "content": "Weather?"}


def request(**extra: Any) -> dict[str, Any]:
    return {"messages": [USER], "tools": [TOOL, OTHER], **extra}


def follow_up(body: dict[str, Any], *results: str, **extra: Any) -> dict[str, Any]:
    """Returns the request with the results, as clients send it.

    The arguments are serialized again, and each result has a name.
    """
    message = body["choices"][0]["message"]
    calls = [
        {
            **call,
            "function": {
                **call["function"],
                "arguments": json.dumps(json.loads(call["function"]["arguments"]), indent=1),
            },
        }
        for call in message["tool_calls"]
    ]
    answers = [
        {"role": "tool", "tool_call_id": call["id"], "content": text, "name": call["function"]["name"]}
        for call, text in zip(calls, results, strict=False)
    ]
    assistant = {"role": "assistant", "content": message["content"] or "", "tool_calls": calls}
    return {"messages": [USER, assistant, *answers], "tools": [TOOL, OTHER], **extra}


async def ask(table: Any, body: dict[str, Any], **caller: Any) -> tuple[dict[str, Any], str]:
    answer = await table.answer("chat", body, **caller)
    return json.loads(answer.body), dict(answer.headers)[b"x-toolwire-turn"].decode()


def text(body: dict[str, Any]) -> str:
    content: str = body["choices"][0]["message"]["content"]
    return content


@pytest.mark.parametrize("stream", [False, True])
async def test_the_same_run_continues_when_the_result_arrives(table: Any, judge: Judge, stream: bool) -> None:
    table.play(SCRIPT, tools="parked")
    first, kind = await ask(table, request())
    assert kind == "new" and len(table.gateway.parking) == 1
    if stream:
        answer = await table.answer("chat", follow_up(first, "sunny", stream=True))
        raw = b"".join([block async for block in answer.stream])
        judge.stream(raw, "chat")
        assert b"sunny" in raw and dict(answer.headers)[b"x-toolwire-turn"] == b"resumed"
    else:
        second, kind = await ask(table, follow_up(first, "sunny"))
        judge.body(second, "chat")
        assert (text(second), kind) == ("It is sunny.", "resumed")
    assert len(table.backend.live) == 1 and table.backend.live[0].segments == 2
    assert len(table.gateway.parking) == 0 and table.backend.live[0].cancelled


@pytest.mark.parametrize("stream", [False, True])
async def test_a_run_whose_continuation_is_never_admitted_is_cancelled(stream: bool) -> None:
    """A client that repeats its request is answered, even if the first stream had begun."""
    limits = LimitSettings(backend_concurrent=1, total_s=0.2)
    backend = ScriptedBackend("m", ScriptedOptions(script=SCRIPT, tools="parked"))
    gateway = Gateway(
        Settings(server=ServerSettings(commit_after_s=0.02), limits=limits), backends={"m": backend}
    )

    async def respond(body: dict[str, Any]) -> bytes:
        answer = await gateway.respond("chat", json.dumps({"model": "m", **body}).encode(), Caller())
        stream = answer.stream or ()
        return answer.body or b"".join([block async for block in stream])  # type: ignore[union-attr]

    first = json.loads(await respond(request()))
    busy = gateway.queues.join("m", "other")
    assert busy is not None
    if stream:
        assert b"total_s" in await respond(follow_up(first, "sunny", stream=True))
    else:
        with pytest.raises(ToolwireError):
            await respond(follow_up(first, "sunny"))
    busy.leave()
    assert len(gateway.parking) == 0
    async with asyncio.timeout(5):
        while not backend.live[0].cancelled:
            await asyncio.sleep(0.005)
    assert b"sunny" in await respond(follow_up(first, "sunny", stream=stream))
    await gateway.close()


async def test_a_run_continues_on_responses_by_items_and_by_previous_response_id(table: Any) -> None:
    table.play(SCRIPT, tools="parked")
    flat = [{"type": "function", "name": "get_weather"}]
    first = await table.body("responses", {"input": "Weather?", "tools": flat, "store": False})
    call = first["output"][-1]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    items = [{"role": "user", "content": "Weather?"}, *first["output"], output]
    answer = await table.answer("responses", {"input": items, "tools": flat, "store": False})
    assert dict(answer.headers)[b"x-toolwire-turn"] == b"resumed" and "It is sunny." in answer.body.decode()


BETWEEN = (
    'say One.\ncall get_weather {"city": "Paris"}\nsay Two.\ncall get_time\n---\nsay Three.\n'
    "call get_time\nsay Four.\n---\nsay Done: {result}."
)
BEHIND = (
    "call get_weather\nsay One.\ncall get_time\nsay Two.\n---\nsay Three.\ncall get_time\nsay Four.\n---\n"
    "say Done: {result}."
)
FLAT = [{"type": "function", "name": name} for name in ("get_weather", "get_time")]


def answered(body: dict[str, Any], how: str = "as it came") -> list[dict[str, Any]]:
    """Returns the items of an answer and the results of its calls. `how` names their order."""
    output = body["output"]
    calls = [item for item in output if item["type"] == "function_call"]
    results = {
        call["call_id"]: {"type": "function_call_output", "call_id": call["call_id"], "output": call["name"]}
        for call in calls
    }
    said = "".join(part["text"] for item in output if item["type"] == "message" for part in item["content"])
    if how == "each behind its call":
        return [
            one for item in output for one in ([item, results[item["call_id"]]] if item in calls else [item])
        ]
    if how == "words first":
        return [{"role": "assistant", "content": said}, *calls, *results.values()]
    if how == "edited":
        return [{"role": "assistant", "content": said.replace("Two", "2")}, *calls, *results.values()]
    return [*output, *results.values()]


@pytest.mark.parametrize("script", [BETWEEN, BEHIND])
@pytest.mark.parametrize("how", ["as it came", "each behind its call", "words first", "edited"])
async def test_text_between_and_after_calls_may_be_anywhere_in_the_replayed_answer(
    table: Any, script: str, how: str
) -> None:
    table.play(script, tools="parked")
    items: list[dict[str, Any]] = [{"role": "user", "content": "Weather?"}]
    kinds = []
    for _ in range(3):
        answer = await table.answer("responses", {"input": items, "tools": FLAT, "store": False})
        kinds.append(dict(answer.headers)[b"x-toolwire-turn"].decode())
        body = json.loads(answer.body)
        items += answered(body, how)
    if how == "edited":
        assert kinds[1] == "replayed" and len(table.backend.seen) == 2
    else:
        assert kinds == ["new", "resumed", "resumed"] and len(table.backend.seen) == 1
        assert body["output"][0]["content"][0]["text"] == "Done: get_time."


@pytest.mark.parametrize("script", [BETWEEN, BEHIND])
async def test_text_between_and_after_calls_matches_by_previous_response_id(
    table_with: Callable[..., Any], tmp_path: Path, script: str
) -> None:
    store = Store(f"sqlite:///{tmp_path / 'toolwire.db'}")
    table = table_with(store=store).play(script, tools="parked")
    asked: dict[str, Any] = {"input": "Weather?"}
    kinds = []
    for _ in range(3):
        answer = await table.answer("responses", {**asked, "tools": FLAT})
        kinds.append(dict(answer.headers)[b"x-toolwire-turn"].decode())
        body = json.loads(answer.body)
        asked = {"input": answered(body)[len(body["output"]) :], "previous_response_id": body["id"]}
    assert kinds == ["new", "resumed", "resumed"] and len(table.backend.seen) == 1
    await store.close()


MARK = {"cache_control": {"type": "ephemeral"}}
UNTIDY = (
    'say "\\n\\n"\ncall look\nsay After it.\ncall look\n---\nsay " "\ncall look\n---\nsay It said {result}.'
)


REMINDED = "It said rain\nA note.\n<system-reminder>\nAnother note.\n</system-reminder>."


async def test_a_client_of_the_messages_api_may_rewrite_its_history(table: Any) -> None:
    """As Claude Code does: markers, blank texts, the place of a text, system messages, and its own notes."""
    table.play(UNTIDY, tools="parked")
    news = "The date."
    history: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "Look."}]},
        {"role": "system", "content": [{"type": "text", "text": news, **MARK}]},
    ]
    kinds = []
    for _ in range(3):
        asked = {"max_tokens": 9, "messages": history, "tools": [{"name": "look", "input_schema": {}}]}
        answer = await table.answer("messages", asked)
        kinds.append(dict(answer.headers)[b"x-toolwire-turn"].decode())
        content = json.loads(answer.body)["content"]
        texts = [block for block in content if block["type"] == "text" and block["text"].strip()]
        calls = [block for block in content if block["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "rain"} for call in calls]
        history[1] = {"role": "system", "content": news}
        history += [
            {"role": "assistant", "content": [*texts, *calls]},
            {"role": "user", "content": [*results, {"type": "text", "text": "A note.", **MARK}]},
            {"role": "system", "content": [{"type": "text", "text": "Another note."}]},
        ]
    assert kinds == ["new", "resumed", "resumed"]
    assert content == [{"type": "text", "text": REMINDED}]


async def test_two_calls_wait_together(table: Any) -> None:
    table.play(TWO, tools="parked")
    first, _ = await ask(table, request())
    second, kind = await ask(table, follow_up(first, "sunny", "noon"))
    assert (text(second), kind) == ("Done: noon.", "resumed")


async def test_a_run_may_park_again_and_again(table: Any) -> None:
    table.play("call get_weather\n---\ncall get_time\n---\nsay Both.", tools="parked")
    first, _ = await ask(table, request())
    second, kind = await ask(table, follow_up(first, "a"))
    assert kind == "resumed" and second["choices"][0]["finish_reason"] == "tool_calls"
    history = follow_up(first, "a")["messages"]
    further = follow_up(second, "b")["messages"][1:]
    third, kind = await ask(table, {"messages": [*history, *further], "tools": [TOOL, OTHER]})
    assert (text(third), kind, table.backend.live[0].segments) == ("Both.", "resumed", 3)


def edited(body: dict[str, Any]) -> dict[str, Any]:
    changed = follow_up(body, "sunny", "noon")
    changed["messages"][0] = {"role": "user", "content": "Weather, please?"}
    return changed


NAMED = TOOL
ALLOWED = [
    {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": tools}}
    for tools in ([TOOL, OTHER], [OTHER, TOOL], [TOOL])
]

COLD: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], str]] = {
    "a result is missing": (
        lambda body: follow_up(body, "sunny"),
        "Done: No result was returned for this call..",
    ),
    "the history was edited": (edited, "Done: noon."),
    "the tools changed": (lambda body: {**follow_up(body, "sunny", "noon"), "tools": [TOOL]}, "Done: noon."),
    "another tool_choice": (
        lambda body: follow_up(body, "sunny", "noon", tool_choice=ALLOWED[2]),
        "Done: noon.",
    ),
    "no tools any more": (lambda body: follow_up(body, "sunny", "noon", tool_choice="none"), "Done: noon."),
    "another form of answer": (
        lambda body: follow_up(body, "sunny", "noon", response_format={"type": "json_object"}),
        "Done: noon.",
    ),
    "the person said more": (
        lambda body: {
            **follow_up(body, "sunny", "noon"),
            "messages": [*follow_up(body, "sunny", "noon")["messages"], USER],
        },
        "Done: noon.",
    ),
}


@pytest.mark.parametrize("why", COLD)
async def test_a_request_that_does_not_match_is_replayed_cold_and_the_run_is_cancelled(
    table: Any, why: str
) -> None:
    change, answer = COLD[why]
    table.play(TWO, tools="parked")
    first, _ = await ask(table, request())
    second, kind = await ask(table, change(first))
    assert text(second) == answer
    await asyncio.sleep(0)
    assert kind == "replayed"
    assert table.backend.live[0].cancelled and len(table.gateway.parking) == 0
    assert len(table.backend.seen) == 2


DESCRIBED = [
    {**TOOL, "function": {**TOOL["function"], "description": words}}
    for words in ("Looks outside.", "Looks it up.")
]


@pytest.mark.parametrize(
    ("begun", "continued", "kind"),
    [
        ({"tool_choice": NAMED}, {}, "replayed"),  # the Agents SDK continues like this after a forced call
        ({"tool_choice": "required"}, {}, "replayed"),
        ({"tool_choice": ALLOWED[0]}, {"tool_choice": ALLOWED[1]}, "resumed"),
        ({"tool_choice": ALLOWED[2]}, {"tool_choice": ALLOWED[0]}, "replayed"),
        ({"tool_choice": ALLOWED[2]}, {}, "replayed"),
        ({}, {"tool_choice": "auto", "parallel_tool_calls": True}, "resumed"),
        ({"parallel_tool_calls": False}, {"parallel_tool_calls": False}, "resumed"),
        ({"parallel_tool_calls": False}, {}, "replayed"),
        ({"tools": [DESCRIBED[0], OTHER]}, {"tools": [OTHER, DESCRIBED[0]]}, "resumed"),
        ({"tools": [DESCRIBED[0], OTHER]}, {"tools": [DESCRIBED[1], OTHER]}, "replayed"),
    ],
)
async def test_a_run_continues_only_with_the_tools_and_the_choice_it_began_with(
    table: Any, begun: dict[str, Any], continued: dict[str, Any], kind: str
) -> None:
    table.play(SCRIPT, tools="parked")
    first, _ = await ask(table, request(**begun))
    second, turn = await ask(table, {**follow_up(first, "sunny"), **continued})
    assert (text(second), turn) == ("It is sunny.", kind)
    await asyncio.sleep(0)
    assert table.backend.live[0].cancelled and len(table.gateway.parking) == 0
    assert len(table.backend.seen) == (1 if kind == "resumed" else 2)


@pytest.mark.parametrize("choice", ["required", NAMED])
async def test_a_request_that_requires_another_call_is_run_cold(table: Any, choice: Any) -> None:
    table.play("call get_weather\n---\ncall get_weather", tools="parked")
    first, _ = await ask(table, request(tool_choice=choice))
    second, kind = await ask(table, {**follow_up(first, "sunny"), "tool_choice": choice})
    assert (second["choices"][0]["finish_reason"], kind) == ("tool_calls", "replayed")
    await asyncio.sleep(0)
    assert table.backend.live[0].cancelled and len(table.backend.seen) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_an_agent_without_the_required_call_is_asked_once_more_and_then_fails(
    table: Any, stream: bool
) -> None:
    table.play("say I would rather not.\n---\ncall get_weather", tools="parked")
    answer, _ = await ask(table, request(tool_choice="required"))
    assert answer["choices"][0]["finish_reason"] == "tool_calls" and not text(answer)
    assert [live.cancelled for live in table.backend.live] == [True, False]
    table.play("say I would rather not.", tools="parked")
    with pytest.raises(ToolwireError, match="not even when asked again"):
        await ask(table, request(tool_choice="required", stream=stream))
    assert len(table.backend.seen) == 2


async def test_a_missing_park_is_replayed_cold(table: Any) -> None:
    table.play(SCRIPT, tools="parked")
    first, _ = await ask(table, request())
    await table.gateway.parking.close()
    table.gateway.parking = Parking(ParkedSettings())
    second, kind = await ask(table, follow_up(first, "sunny"))
    assert (text(second), kind) == ("It is sunny.", "replayed")


async def test_a_run_that_died_while_it_was_parked_is_replayed_cold(table: Any) -> None:
    table.play(SCRIPT, tools="parked")
    first, _ = await ask(table, request())
    await table.backend.live[0].cancel()  # as if the backend's process had been killed
    second, kind = await ask(table, follow_up(first, "sunny"))
    assert (text(second), kind) == ("It is sunny.", "replayed") and len(table.gateway.parking) == 0


async def test_results_sent_to_another_model_are_replayed_and_end_the_run() -> None:
    waits = ScriptedBackend("waits", ScriptedOptions(script=TWO, tools="parked"))
    gateway = Gateway(Settings(), backends={"waits": waits, "demo": ScriptedBackend("demo")})

    async def send(model: str, body: dict[str, Any], key_id: str = "alice") -> tuple[dict[str, Any], str]:
        answer = await gateway.respond(
            "chat", json.dumps({"model": model, **body}).encode(), Caller(key_id=key_id)
        )
        assert answer.body is not None
        return json.loads(answer.body), dict(answer.headers)[b"x-toolwire-turn"].decode()

    first, _ = await send("waits", request())
    assert (await send("demo", follow_up(first, "sunny", "noon"), "bob"))[1] == "new" and len(
        gateway.parking
    ) == 1
    assert (await send("demo", follow_up(first)))[1] == "new" and len(gateway.parking) == 1  # no results
    second, kind = await send("demo", follow_up(first, "sunny", "noon"))
    assert "noon" in text(second) and kind == "replayed"
    await asyncio.sleep(0)
    assert waits.live[0].cancelled and len(gateway.parking) == 0
    assert (await send("demo", follow_up(first, "sunny", "noon")))[1] == "new"  # no run waits any more
    await gateway.close()


async def test_another_model_may_get_the_results_that_a_run_continues_with() -> None:
    waits = ScriptedBackend(
        "waits", ScriptedOptions(script="call get_weather\n---\npause 100ms\nsay {result}", tools="parked")
    )
    gateway = Gateway(Settings(), backends={"waits": waits, "demo": ScriptedBackend("demo")})

    async def send(model: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = await gateway.respond("chat", json.dumps({"model": model, **body}).encode(), Caller())
        assert answer.body is not None
        read: dict[str, Any] = json.loads(answer.body)
        return read

    first = await send("waits", request())
    running = asyncio.ensure_future(send("waits", follow_up(first, "sunny")))
    await asyncio.sleep(0.01)
    assert "sunny" in text(await send("demo", follow_up(first, "sunny"))) and not waits.live[0].cancelled
    assert text(await running) == "sunny"
    await gateway.close()


PAST = [
    USER,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "a", "arguments": "{}"}}],
    },
]
SUNNY = {"role": "tool", "tool_call_id": "c1", "content": "sunny"}
SAID = {"role": "assistant", "content": "It is sunny."}


@pytest.mark.parametrize(
    ("messages", "kind"),
    [
        ([USER], "new"),
        ([*PAST, SUNNY], "replayed"),
        ([*PAST, SUNNY, USER], "replayed"),
        ([*PAST, USER], "new"),  # the call has no result
        ([*PAST, SUNNY, SAID, USER], "new"),
        ([*PAST, SUNNY, SAID], "replayed"),
    ],
)
async def test_the_kind_of_a_turn_if_no_run_waits(
    table: Any, messages: list[dict[str, Any]], kind: str
) -> None:
    table.play("say Hello.", tools="parked")
    assert (await ask(table, request(messages=messages)))[1] == kind


async def test_a_park_expires(table: Any) -> None:
    table.play(SCRIPT, tools="parked")
    table.gateway.parking = Parking(ParkedSettings(ttl_s=0.02))
    first, _ = await ask(table, request())
    async with asyncio.timeout(2):
        while not table.backend.live[0].cancelled:
            await asyncio.sleep(0.005)
    assert len(table.gateway.parking) == 0
    second, kind = await ask(table, follow_up(first, "sunny"))
    assert (text(second), kind) == ("It is sunny.", "replayed")


async def test_another_key_cannot_continue_a_park(table: Any) -> None:
    table.play(SCRIPT, tools="parked")
    first, _ = await ask(table, request(), key_id="alice")
    second, kind = await ask(table, follow_up(first, "sunny"), key_id="bob")
    assert (text(second), kind) == ("It is sunny.", "replayed")
    assert not table.backend.live[0].cancelled
    assert (await ask(table, follow_up(first, "sunny"), key_id="alice"))[1] == "resumed"


async def test_two_continuations_at_the_same_time_conflict(table: Any) -> None:
    table.play("call get_weather\n---\npause 100ms\nsay {result}", tools="parked")
    first, _ = await ask(table, request())
    running = asyncio.ensure_future(ask(table, follow_up(first, "sunny")))
    await asyncio.sleep(0)
    with pytest.raises(ToolwireError) as caught:
        await ask(table, follow_up(first, "sunny"))
    assert caught.value.failure.kind == "conflict"
    assert text((await running)[0]) == "sunny"
    assert (await ask(table, follow_up(first, "again")))[1] == "replayed"


async def test_a_continuation_sent_again_after_its_first_client_left_is_replayed(table: Any) -> None:
    table.play("call get_weather\n---\npause 200ms\nsay {result}", tools="parked")
    first, _ = await ask(table, request())
    lost = asyncio.ensure_future(ask(table, follow_up(first, "sunny")))
    await asyncio.sleep(0)
    again = asyncio.ensure_future(ask(table, follow_up(first, "sunny")))
    for _ in range(20):  # enough steps for a refusal, if there were one
        await asyncio.sleep(0)
    lost.cancel()
    body, kind = await again
    assert (text(body), kind) == ("sunny", "replayed")


async def test_a_key_has_a_limit_and_loses_its_oldest_park_first(table: Any) -> None:
    table.play(SCRIPT, tools="parked")
    table.gateway.parking = Parking(ParkedSettings(max_per_key=2))
    bodies = [(await ask(table, request(), key_id="alice"))[0] for _ in range(3)]
    await ask(table, request(), key_id="bob")
    await asyncio.sleep(0)
    assert [live.cancelled for live in table.backend.live] == [True, False, False, False]
    assert (await ask(table, follow_up(bodies[0], "x"), key_id="alice"))[1] == "replayed"
    assert (await ask(table, follow_up(bodies[2], "x"), key_id="alice"))[1] == "resumed"


async def test_a_limit_of_parked_runs_that_a_key_has_itself_applies_to_its_turns(table: Any) -> None:
    table.play(SCRIPT, tools="parked")
    alice = {"key_id": "alice", "grant": KeyGrant(limits=KeyLimits(parked=1))}
    first, second = [(await ask(table, request(), **alice))[0] for _ in range(2)]
    assert len(table.gateway.parking) == 1
    assert (await ask(table, follow_up(first, "x"), **alice))[1] == "replayed"
    assert (await ask(table, follow_up(second, "x"), **alice))[1] == "resumed"


async def test_continuing_one_choice_cancels_its_siblings(table: Any) -> None:
    table.play(SCRIPT, tools="parked")
    first, _ = await ask(table, request(n=3))
    assert len(table.gateway.parking) == 3
    first["choices"] = first["choices"][1:]
    second, kind = await ask(table, follow_up(first, "sunny"))
    assert (text(second), kind) == ("It is sunny.", "resumed")
    assert len(table.gateway.parking) == 0 and sum(live.segments for live in table.backend.live) == 4


async def test_a_client_that_leaves_cancels_the_run_unless_it_is_parked(table: Any) -> None:
    table.play("say a\nhang", tools="parked")
    answer = await table.answer("chat", request(stream=True))
    await anext(answer.stream)
    await answer.stream.aclose()
    assert table.backend.live[0].cancelled and len(table.gateway.parking) == 0
    table.play("call get_weather\n---\nsay {result}", tools="parked")
    answer = await table.answer("chat", request(stream=True))
    blocks = [await anext(answer.stream)]
    while b'finish_reason":"tool_calls' not in blocks[-1]:
        blocks.append(await anext(answer.stream))
    await answer.stream.aclose()
    assert not table.backend.live[0].cancelled and len(table.gateway.parking) == 1


async def test_calls_that_the_policy_drops_are_not_parked(table_with: Callable[..., Any]) -> None:
    table = table_with(max_calls=1).play(TWO, tools="parked")
    first, _ = await ask(table, request())
    assert len(first["choices"][0]["message"]["tool_calls"]) == 1
    assert table.backend.live[0].cancelled and len(table.gateway.parking) == 0


async def test_a_draining_gateway_drops_its_parks(table: Any) -> None:
    table.play(SCRIPT, tools="parked")
    await ask(table, request())
    table.gateway.drain()
    await asyncio.sleep(0)
    assert table.backend.live[0].cancelled and len(table.gateway.parking) == 0
    await ask(table, request())
    assert len(table.gateway.parking) == 0


async def test_ids_of_parked_calls_are_the_gateways_own(table: Any) -> None:
    table.play(SCRIPT, tools="parked")
    first, _ = await ask(table, request())
    assert first["choices"][0]["message"]["tool_calls"][0]["id"].startswith("call_")
    assert "native_" not in json.dumps(first)


async def test_nothing_is_parked_if_the_limit_is_zero(table: Any) -> None:
    table.play(SCRIPT, tools="parked")
    table.gateway.parking = Parking(ParkedSettings(max_per_key=0))
    first, _ = await ask(table, request())
    assert len(table.gateway.parking) == 0
    assert (await ask(table, follow_up(first, "sunny")))[1] == "replayed"


async def test_a_continuation_cancelled_before_it_runs_leaves_no_park(table: Any) -> None:
    table.play("call get_weather\n---\nhang", tools="parked")
    first, _ = await ask(table, request())
    running = asyncio.ensure_future(table.answer("chat", follow_up(first, "sunny", stream=True)))
    await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await asyncio.sleep(0)
    assert len(table.gateway.parking) == 0 and table.backend.live[0].cancelled

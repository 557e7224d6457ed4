"""The real Codex with native tools and a scripted provider: client output and provider requests."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from toolwire.backends.base import Batch, ParkingBackend
from toolwire.backends.codex import CodexBackend
from toolwire.backends.codex.protocol import RpcMessage
from toolwire.backends.codex.thread import Thread
from toolwire.backends.codex.worker import CodexWorker
from toolwire.core.errors import ToolwireError
from toolwire.core.events import CallArgs, CallBegin, Dropped, Event, Failure, Finish, Text, Thought, Usage
from toolwire.core.turn import (
    Call,
    ImagePart,
    Item,
    Message,
    OutputFormat,
    Reasoning,
    Result,
    Sampling,
    TextPart,
    ToolChoice,
    ToolSpec,
    Turn,
)
from toolwire.gateway.pipeline import Caller, Gateway
from toolwire.settings.types import Settings

Make = Callable[..., CodexBackend]
LOOK = ToolSpec(
    "look",
    "Looks something up",
    {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
)
TIME = ToolSpec("get-time", "Tells the time")
PIXEL = (
    "data:image/png;base64,"
    + base64.b64encode(
        bytes.fromhex(
            "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
            "1f15c4890000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
        )
    ).decode()
)


def user(words: str) -> Message:
    return Message("user", (TextPart(words),))


def turn(*items: Item, tools: tuple[ToolSpec, ...] = (LOOK, TIME), **fields: Any) -> Turn:
    choice = fields.pop("tool_choice", ToolChoice("auto" if tools else "none"))
    return Turn("chat", "codex", items or (user("hi"),), tools=tools, tool_choice=choice, **fields)


def result(id: str, words: str) -> Result:
    return Result(id, (TextPart(words),))


async def gather(batches: AsyncGenerator[Batch, None]) -> list[Event]:
    async with aclosing(batches):
        return [event async for batch in batches for event in batch]


def said(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))


def calls(events: list[Event]) -> list[tuple[str | None, str, str]]:
    begun = [event for event in events if isinstance(event, CallBegin)]
    assert [event.index for event in begun] == list(range(len(begun)))
    pieces = {
        begin.index: "".join(
            event.delta for event in events if isinstance(event, CallArgs) and event.index == begin.index
        )
        for begin in begun
    }
    return [(begin.id, begin.name, pieces[begin.index]) for begin in begun]


async def ready(make: Make, binary: str, **options: Any) -> CodexBackend:
    backend = make(binary, **options)
    await backend.prepare()
    return backend


async def test_text_arrives_in_the_providers_own_pieces(make: Make, new_codex: str, provider: Any) -> None:
    provider.play(provider.text("Hello, wörld 🌍!", size=3))
    backend = await ready(make, new_codex)
    assert backend.strategy == "parked" and isinstance(backend, ParkingBackend)
    events = await gather(backend.run(turn()))
    assert [event.text for event in events if isinstance(event, Text)] == ["Hel", "lo,", " wö", "rld", " 🌍!"]
    assert events[-2:] == [Usage(11, 7, 4, 2), Finish("stop")]


def without_deltas(events: list[dict[str, Any]], but: int = 0) -> list[dict[str, Any]]:
    """The events, with only the first few deltas."""
    first = [event for event in events if "delta" in event["type"]][:but]
    return [event for event in events if event in first or "item" in event]


@pytest.mark.parametrize("age", ["new_codex", "old_codex"])
async def test_text_without_deltas_is_sent_and_text_with_deltas_is_sent_once(
    make: Make, age: str, provider: Any, request: pytest.FixtureRequest
) -> None:
    backend = await ready(make, request.getfixturevalue(age))

    async def answer(*events: dict[str, Any]) -> tuple[str, str, str]:
        provider.play(list(events))
        run = await gather(backend.run(turn(tools=(), sampling=Sampling(summary="detailed"))))
        assert run[-1] == Finish("stop")
        thoughts = [event for event in run if isinstance(event, Thought)]
        return (
            said(run),
            "".join(one.text for one in thoughts if one.summary),
            "".join(one.text for one in thoughts if not one.summary),
        )

    words, other, thought = (
        provider.text("So it is."),
        provider.text("Else.", id="msg_2"),
        provider.thought(["First.", "Second."], raw="hmm"),
    )
    whole = ("So it is.", "First.\n\nSecond.", "hmm")
    assert await answer(*thought, *words) == whole
    assert await answer(*without_deltas(thought), *without_deltas(words)) == whole
    assert await answer(*without_deltas(thought, 1), *without_deltas(words, 1)) == whole
    assert (
        await answer(*without_deltas(words), *without_deltas(other))
        == await answer(*words, *other)
        == ("So it is.\n\nElse.", "", "")
    )
    assert (
        await answer(*without_deltas(words), *other)
        == await answer(*words, *without_deltas(other))
        == ("So it is.\n\nElse.", "", "")
    )
    contradicting = {**words[-1], "item": {**words[-1]["item"], "content": other[-1]["item"]["content"]}}
    assert await answer(*words[:-1], contradicting) == ("So it is.", "", "")


async def test_text_without_deltas_comes_before_its_calls_and_after_their_results(
    make: Make, new_codex: str, provider: Any
) -> None:
    words = without_deltas(provider.text("I look."))
    provider.play(
        [*words, *provider.call("look", '{"q":"a"}', "call_a")], without_deltas(provider.text("Found."))
    )
    run = (await ready(make, new_codex)).open(turn())
    events = await gather(run.segment())
    assert [type(event) for event in events[:2]] == [Text, CallBegin] and said(events) == "I look."
    await run.answer({"call_a": result("call_a", "x")})
    assert said(await gather(run.segment())) == "Found."


async def test_the_provider_sees_nothing_that_the_turn_does_not_hold(
    make: Make, new_codex: str, provider: Any
) -> None:
    provider.play(provider.text("ok"))
    backend = await ready(make, new_codex)
    await gather(backend.run(turn(user("hi"), instructions="Be brief.")))
    asked = provider.seen[0]
    assert asked.texts() == ["Be brief.", "hi"]
    assert asked.texts("developer") == ["Be brief."]
    assert not asked.body.get("instructions")
    assert asked.tool_names() == ["look", "get-time"]
    assert asked.body["tools"][0]["parameters"]["required"] == ["q"]
    assert "verbosity" not in asked.body.get("text", {})
    assert asked.request.headers["authorization"] == "Bearer sk-scripted"
    assert "a-secret-of-ours" not in json.dumps(asked.body)
    await gather(backend.run(turn(user("hi"), tools=())))
    assert provider.seen[1].tool_names() == []
    assert provider.seen[1].texts() == ["hi"]


async def test_a_model_that_codex_would_give_its_own_tools_gets_only_the_clients(
    make: Make, new_codex: str, provider: Any
) -> None:
    provider.play(provider.call("look", '{"q":"a"}', "call_a"))
    backend = await ready(make, new_codex, model="gpt-6.1-sol")
    events = await gather(backend.run(turn(user("hi"))))
    assert calls(events) == [("call_a", "look", '{"q":"a"}')]
    assert provider.seen[0].texts() == ["hi"]
    assert provider.seen[0].tool_names() == ["look", "get-time"]


async def test_calls_come_in_model_order_with_verbatim_arguments_and_go_on_with_their_results(
    make: Make, new_codex: str, provider: Any
) -> None:
    wanted = [
        ("call_a", "look", '{"q":  "ä\\u00e4",\n "k": 1.0}'),
        ("call_b", "get-time", "{}"),
        ("call_c", "look", '{"q":"c","q":"d"}'),
    ]
    first = provider.text("Let me look. ")
    for id, name, arguments in wanted:
        first += provider.call(name, arguments, id)
    provider.play(first, provider.text("It is noon."))
    backend = await ready(make, new_codex)
    live = backend.open(turn())
    events = await gather(live.segment())
    assert said(events) == "Let me look. "
    assert calls(events) == wanted
    assert events[-2:] == [Usage(11, 7, 4, 2), Finish("tool_calls")]
    assert live.pending == ("call_a", "call_b", "call_c")
    await live.answer(
        {
            "call_c": result("call_c", "third"),
            "call_a": result("call_a", "first"),
            "call_b": Result("call_b", ()),
        }
    )
    events = await gather(live.segment())
    assert said(events) == "It is noon."
    assert events[-2:] == [Usage(11, 7, 4, 2), Finish("stop")]
    assert not live.pending
    assert len(provider.seen) == 2
    assert provider.seen[1].outputs() == {"call_a": "first", "call_b": "", "call_c": "third"}
    assert provider.seen[1].body["prompt_cache_key"] == provider.seen[0].body["prompt_cache_key"]
    await live.cancel()
    await live.cancel()


async def test_a_run_may_park_again_and_again(make: Make, new_codex: str, provider: Any) -> None:
    provider.play(
        provider.call("look", '{"q":"1"}', "call_0"),
        provider.call("look", '{"q":"2"}', "call_0"),
        provider.text("Done."),
    )
    live = (await ready(make, new_codex)).open(turn())
    for words in ("one", "two"):
        events = await gather(live.segment())
        assert events[-1] == Finish("tool_calls") and live.pending == ("call_0",)
        await live.answer({"call_0": result("call_0", words)})
    assert said(await gather(live.segment())) == "Done."
    assert [item["output"] for item in provider.seen[2].input if item["type"] == "function_call_output"] == [
        "one",
        "two",
    ]


@pytest.mark.parametrize("model", ["gpt-5.5", "our-model", "team/our-model"])
async def test_a_parked_call_keeps_long_results_and_the_history_unchanged(
    make: Make, new_codex: str, provider: Any, model: str
) -> None:
    full = {
        "input_tokens": 271_000,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 900,
        "total_tokens": 271_900,
    }
    provider.play(
        [*provider.call("look", '{"q":"a"}', "call_a"), provider.completed(full)], provider.text("Done.")
    )
    live = (await ready(make, new_codex, model=model)).open(turn(user("long")))
    assert (await gather(live.segment()))[-2] == Usage(271_000, 900)
    await live.answer({"call_a": result("call_a", "x" * 1_300_000)})
    assert said(await gather(live.segment())) == "Done."
    assert len(provider.seen) == 2
    assert provider.seen[1].texts() == ["long"]
    assert provider.seen[1].outputs() == {"call_a": "x" * 1_300_000}


async def test_a_model_outside_of_the_catalog_gets_the_request_unchanged_and_reports_its_own_limit(
    make: Make, new_codex: str, provider: Any
) -> None:
    provider.play(provider.text("ok"), [provider.failed("context_length_exceeded")])
    backend = await ready(make, new_codex, model="our-model")
    await gather(backend.run(turn(user("hi"))))
    assert (
        provider.seen[0].body["model"] == "our-model" and "effort" not in provider.seen[0].body["reasoning"]
    )
    assert provider.seen[0].texts() == ["hi"] and provider.seen[0].tool_names() == ["look", "get-time"]
    [failure] = await gather(backend.run(turn(user("hi"))))
    assert isinstance(failure, Failure) and failure.kind == "context_length"


async def test_without_a_mark_of_the_responses_end_a_silence_ends_it(
    make: Make, new_codex: str, provider: Any
) -> None:
    provider.play(
        provider.call("look", '{"q":"a"}', "call_a") + provider.call("look", '{"q":"b"}', "call_b"),
        provider.text("Done."),
    )
    backend = await ready(make, new_codex, settle_ms=80)
    assert backend.home is not None
    backend.home = replace(backend.home, features=replace(backend.home.features, response_mark=False))
    live = backend.open(turn())
    events = await gather(live.segment())
    assert [call[0] for call in calls(events)] == ["call_a", "call_b"]
    assert events[-1] == Finish("tool_calls") and live.pending == ("call_a", "call_b")
    await live.answer({"call_a": result("call_a", "1"), "call_b": result("call_b", "2")})
    events = await gather(live.segment())
    assert said(events) == "Done." and events[-1] == Finish("stop")


async def test_with_replay_the_run_ends_at_its_calls_and_the_next_one_brings_the_history(
    make: Make, new_codex: str, provider: Any
) -> None:
    provider.play(provider.call("look", '{"q": "a"}', "call_a"), provider.text("Found."))
    backend = await ready(make, new_codex, tools="replay")
    assert backend.strategy == "native"
    events = await gather(backend.run(turn(user("find"))))
    assert calls(events) == [("call_a", "look", '{"q": "a"}')] and events[-1] == Finish("tool_calls")
    items = (user("find"), Call("call_a", "look", '{"q": "a"}'), result("call_a", "it"))
    assert said(await gather(backend.run(turn(*items)))) == "Found."
    assert len(provider.seen) == 2
    kinds = [(item["type"], item.get("call_id")) for item in provider.seen[1].input]
    assert kinds == [("message", None), ("function_call", "call_a"), ("function_call_output", "call_a")]
    assert provider.seen[1].input[1]["arguments"] == '{"q": "a"}'
    assert provider.seen[1].outputs() == {"call_a": "it"}


async def test_the_whole_history_reaches_the_provider_in_order(
    make: Make, new_codex: str, provider: Any
) -> None:
    provider.play(provider.text("ok"))
    backend = await ready(make, new_codex)
    items = (
        Message("system", (TextPart("sys"),)),
        Message("user", (TextPart("see"), ImagePart(PIXEL))),
        Reasoning(("short",), encrypted="sealed", id="rs_9"),
        Reasoning(("not sealed",)),
        Message("assistant", (TextPart("I saw."),)),
        Call("call_1", "look", "{}"),
        Call("call_2", "gone-tool", '{"a": 1}'),
        result("call_1", "r1"),
        Result("call_2", (TextPart("r2"), ImagePart(PIXEL))),
        Message("developer", (TextPart("dev"),)),
        user("next"),
    )
    await gather(backend.run(turn(*items)))
    got = provider.seen[0].input
    assert [(item["type"], item.get("role") or item.get("call_id")) for item in got] == [
        ("message", "developer"),
        ("message", "user"),
        ("reasoning", None),
        ("message", "assistant"),
        ("function_call", "call_1"),
        ("function_call", "call_2"),
        ("function_call_output", "call_1"),
        ("function_call_output", "call_2"),
        ("message", "developer"),
        ("message", "user"),
    ]
    assert got[1]["content"][1]["type"] == "input_image" and got[1]["content"][1]["image_url"] == PIXEL
    assert got[2]["encrypted_content"] == "sealed"
    assert got[3]["content"][0]["type"] == "output_text"
    assert [part["type"] for part in got[7]["output"]] == ["input_text", "input_image"]


async def test_an_image_in_a_parked_result_reaches_the_provider(
    make: Make, new_codex: str, provider: Any
) -> None:
    provider.play(provider.call("look", '{"q":"a"}', "call_a"), provider.text("A pixel."))
    live = (await ready(make, new_codex)).open(turn())
    await gather(live.segment())
    await live.answer({"call_a": Result("call_a", (TextPart("here"), ImagePart(PIXEL)))})
    assert said(await gather(live.segment())) == "A pixel."
    assert [part["type"] for part in provider.seen[1].outputs()["call_a"]] == ["input_text", "input_image"]


async def test_an_image_that_would_have_to_be_fetched_is_refused(
    make: Make, new_codex: str, provider: Any
) -> None:
    backend = await ready(make, new_codex)
    events = await gather(backend.run(turn(Message("user", (ImagePart("https://example.com/a.png"),)))))
    assert len(events) == 1 and isinstance(events[0], Failure) and events[0].kind == "unsupported_value"
    assert provider.seen == []


async def test_reasoning_comes_as_thoughts_and_effort_and_summary_are_passed_on(
    make: Make, new_codex: str, provider: Any
) -> None:
    provider.play(provider.thought(["First.", "Second."], raw="hmm") + provider.text("So."))
    backend = await ready(make, new_codex, effort="low")
    events = await gather(backend.run(turn(sampling=Sampling(effort="high", summary="detailed"))))
    assert (
        "".join(event.text for event in events if isinstance(event, Thought) and event.summary)
        == "First.\n\nSecond."
    )
    assert said(events) == "So."
    assert provider.seen[0].body["reasoning"] == {"effort": "high", "summary": "detailed"}
    await gather(backend.run(turn(sampling=Sampling(verbosity="high"))))
    assert provider.seen[1].body["reasoning"]["effort"] == "low"
    assert provider.seen[1].body["text"] == {"verbosity": "high"}


async def test_a_schema_is_passed_on_if_a_provider_takes_it_strictly_and_described_if_not(
    make: Make, new_codex: str, provider: Any
) -> None:
    provider.play(provider.text('{"a": 1}'))
    backend = await ready(make, new_codex)
    closed = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    await gather(backend.run(turn(output=OutputFormat("json_schema", "x", closed))))
    shape = provider.seen[0].body["text"]["format"]
    assert shape["type"] == "json_schema" and shape["schema"] == closed
    for output in (
        OutputFormat("json_schema", "x", {"type": "object", "properties": {"a": {}}}),
        OutputFormat("json_object"),
    ):
        await gather(backend.run(turn(output=output)))
        assert "format" not in provider.seen[-1].body.get("text", {})
        assert "JSON" in provider.seen[-1].texts("developer")[-1]


async def test_invalid_calls_are_dropped_and_the_model_continues(
    make: Make, new_codex: str, provider: Any
) -> None:
    backend = await ready(make, new_codex)
    for name, arguments, kind in (
        ("nope", "{}", "unknown"),
        ("look", '{"q":', "malformed"),
        ("look", "", "malformed"),
        ("look", '{"q": NaN}', "malformed"),
        ("look", "[1]", "malformed"),
        ("look", '{"a":' * 200 + "1" + "}" * 200, "malformed"),
    ):
        provider.play(provider.call(name, arguments, "call_x"), provider.text("Sorry."))
        live = backend.open(turn())
        events = await gather(live.segment())
        assert events[0] == Dropped(kind) and calls(events) == [] and said(events) == "Sorry."
        assert events[-2:] == [Usage(22, 14, 8, 4), Finish("stop")]
        assert len(provider.seen) == 2 and list(provider.seen[1].outputs()) == ["call_x"]


async def test_codexs_own_tools_run_nothing_on_this_machine(
    make: Make, new_codex: str, provider: Any, tmp_path: Path
) -> None:
    backend = await ready(make, new_codex)
    target = tmp_path / "written"
    for name, arguments in {
        "apply_patch": {"input": f"*** Begin Patch\n*** Add File: {target}\n+x\n*** End Patch"},
        "shell_command": {"command": f"touch {target}"},
        "exec_command": {"cmd": f"touch {target}"},
        "view_image": {"path": "/etc/hostname"},
    }.items():
        provider.play(provider.call(name, json.dumps(arguments), "call_x"), provider.text("Well."))
        assert said(await gather(backend.run(turn()))) == "Well."
        assert provider.seen[1].outputs()["call_x"] == f"unsupported call: {name}"
    assert not target.exists()


async def test_a_good_call_beside_a_bad_one_is_served(make: Make, new_codex: str, provider: Any) -> None:
    provider.play(
        provider.call("nope", "{}", "call_x") + provider.call("look", '{"q":"a"}', "call_a"),
        provider.text("Done."),
    )
    live = (await ready(make, new_codex)).open(turn())
    events = await gather(live.segment())
    assert calls(events) == [("call_a", "look", '{"q":"a"}')] and live.pending == ("call_a",)
    await live.answer({"call_a": result("call_a", "found")})
    assert said(await gather(live.segment())) == "Done."
    assert provider.seen[1].outputs()["call_a"] == "found"


async def test_a_second_call_is_refused_where_one_at_a_time_is_allowed(
    make: Make, new_codex: str, provider: Any
) -> None:
    provider.play(
        provider.call("look", '{"q":"a"}', "call_a") + provider.call("look", '{"q":"b"}', "call_b"),
        provider.text("Done."),
    )
    live = (await ready(make, new_codex)).open(turn(parallel=False))
    events = await gather(live.segment())
    assert calls(events) == [("call_a", "look", '{"q":"a"}')] and Dropped("parallel") in events
    await live.answer({"call_a": result("call_a", "found")})
    assert said(await gather(live.segment())) == "Done."
    assert "only one at a time" in provider.seen[1].outputs()["call_b"]


async def test_tool_choice_decides_which_tools_the_model_gets(
    make: Make, new_codex: str, provider: Any
) -> None:
    backend = await ready(make, new_codex)
    provider.play(provider.text("No tools."))
    assert said(await gather(backend.run(turn(tool_choice=ToolChoice("none"))))) == "No tools."
    assert provider.seen[0].tool_names() == []
    provider.play(provider.call("get-time", "{}", "call_t"))
    events = await gather(backend.run(turn(tool_choice=ToolChoice("required", "get-time"))))
    assert calls(events) == [("call_t", "get-time", "{}")]
    assert provider.seen[0].tool_names() == ["get-time"]
    assert provider.seen[0].texts("developer") == ["You must call the tool get-time now."]


async def test_a_required_call_is_asked_for_once_more_and_then_missed_clearly(
    make: Make, new_codex: str, provider: Any
) -> None:
    backend = await ready(make, new_codex)
    gateway = Gateway(Settings(), backends={backend.id: backend})
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    asked = {
        "model": backend.id,
        "messages": [{"role": "user", "content": "Look."}],
        "tools": tools,
        "tool_choice": "required",
    }
    provider.play(
        provider.text("I would rather talk."),
        provider.text("Well. ", id="msg_2") + provider.call("look", '{"q":"a"}', "call_a"),
    )
    answer = json.loads((await gateway.respond("chat", json.dumps(asked).encode(), Caller())).body or b"")
    message = answer["choices"][0]["message"]
    assert (message["content"], [call["function"]["name"] for call in message["tool_calls"]]) == (
        "Well. ",
        ["look"],
    )
    assert answer["usage"]["prompt_tokens"] == 22 and answer["usage"]["completion_tokens"] == 14
    assert provider.seen[1].texts("user")[-1].startswith("You did not make the tool call")
    provider.play(provider.text("I would rather talk."))
    with pytest.raises(ToolwireError) as failed:
        await gateway.respond("chat", json.dumps(asked).encode(), Caller())
    assert failed.value.failure.kind == "no_tool_call" and len(provider.seen) == 2
    gateway.drain()


async def test_eight_turns_at_once_are_not_mixed(make: Make, new_codex: str, provider: Any) -> None:
    async def echo(exchange: Any) -> Any:
        words = exchange.texts("user")[-1]
        results = [item for item in exchange.input if item["type"] == "function_call_output"]
        if results:
            return await provider.stream(
                exchange, provider.text(f"{words} got {results[-1]['output']}", size=1)
            )
        return await provider.stream(
            exchange,
            provider.text(f"{words}. ", size=1) + provider.call("look", json.dumps({"q": words}), "call_0"),
        )

    provider.play(echo)
    backend = await ready(make, new_codex)

    async def whole(number: int) -> None:
        live = backend.open(turn(user(f"turn {number}")))
        events = await gather(live.segment())
        assert said(events) == f"turn {number}. "
        assert calls(events) == [("call_0", "look", json.dumps({"q": f"turn {number}"}))]
        await live.answer({"call_0": result("call_0", f"result {number}")})
        assert said(await gather(live.segment())) == f"turn {number} got result {number}"

    await asyncio.gather(*(whole(number) for number in range(8)))
    assert backend.pool is not None and len(backend.pool.workers) == 1


async def test_closing_a_run_in_mid_stream_hangs_up_on_the_provider(
    make: Make, new_codex: str, provider: Any
) -> None:
    provider.play(provider.stalled(provider.text("Once upon")[:-1]))
    backend = await ready(make, new_codex)
    run = backend.run(turn())
    assert said(await anext(run)).startswith("Once")
    await run.aclose()
    async with asyncio.timeout(5):
        await provider.seen[0].gone.wait()
    provider.play(provider.text("Fine."))
    assert said(await gather(backend.run(turn()))) == "Fine."


@pytest.mark.parametrize("method", ["thread/start", "thread/inject_items", "turn/start"])
async def test_a_run_that_is_cancelled_while_it_starts_leaves_nothing_running(
    make: Make, new_codex: str, provider: Any, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    asked = asyncio.Event()
    write = CodexWorker._write

    def watched(self: CodexWorker, line: bytes) -> None:
        write(self, line)
        if json.loads(line).get("method") == method:
            asked.set()

    monkeypatch.setattr(CodexWorker, "_write", watched)
    provider.play(provider.stalled([]))
    backend = await ready(make, new_codex)
    task = asyncio.create_task(gather(backend.run(turn())))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(5):
        for exchange in provider.seen:
            await exchange.gone.wait()
    provider.play(provider.text("Fine."))
    assert said(await gather(backend.run(turn()))) == "Fine."
    assert len(provider.seen) == 1


async def test_a_parked_run_that_is_cancelled_is_over(make: Make, new_codex: str, provider: Any) -> None:
    provider.play(provider.call("look", '{"q":"a"}', "call_a"))
    live = (await ready(make, new_codex)).open(turn())
    await gather(live.segment())
    await live.cancel()
    assert live.pending == ()
    with pytest.raises(ToolwireError):
        await anext(live.segment())
    assert len(provider.seen) == 1


async def test_a_run_that_is_over_before_codex_asks_for_its_call_does_not_go_on(
    make: Make, new_codex: str, provider: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any answer to the call, even a refusal, would make Codex ask the model again before the interrupt."""
    held: list[tuple[Thread, RpcMessage]] = []
    deliver, interrupt = Thread.deliver, Thread._interrupt

    def late(self: Thread, message: RpcMessage) -> None:
        if message.id is not None:
            held.append((self, message))
        else:
            deliver(self, message)

    async def later(self: Thread) -> None:
        while not held:
            await asyncio.sleep(0.01)
        for thread, message in held:
            deliver(thread, message)
        await asyncio.sleep(0.5)
        await interrupt(self)

    monkeypatch.setattr(Thread, "deliver", late)
    monkeypatch.setattr(Thread, "_interrupt", later)
    provider.play(provider.call("look", '{"q":"a"}', "call_a"), provider.text("went on"))
    live = (await ready(make, new_codex)).open(turn())
    await gather(live.segment())
    await live.cancel()
    assert len(held) == len(provider.seen) == 1


ERRORS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "401": (lambda p: p.status(401), "backend_auth"),
    "403": (lambda p: p.status(403), "backend_auth"),
    "429": (lambda p: p.status(429), "rate_limit"),
    "usage limit": (
        lambda p: p.status(
            429, {"error": {"type": "usage_limit_reached", "message": "m", "resets_at": 2000000000}}
        ),
        "quota",
    ),
    "400": (
        lambda p: p.status(
            400, {"error": {"message": "Bad schema", "type": "invalid_request_error", "code": "bad_schema"}}
        ),
        "invalid_request",
    ),
    "404": (lambda p: p.status(404), "model_not_found"),
    "500": (lambda p: p.status(500), "backend"),
    "503": (lambda p: p.status(503), "overloaded"),
    "cut": (lambda p: [*p.text("Half")[:-1], {"type": "cut"}], "backend_cut"),
    "rate limit in the stream": (
        lambda p: [p.failed("rate_limit_exceeded", "Rate limit reached. Please try again in 1.5s.")],
        "rate_limit",
    ),
    "context": (lambda p: [p.failed("context_length_exceeded")], "context_length"),
    "quota": (lambda p: [p.failed("insufficient_quota")], "quota"),
    "overloaded": (lambda p: [p.failed("server_is_overloaded")], "overloaded"),
    "server error": (lambda p: [p.failed("server_error")], "backend_cut"),
    "invalid prompt": (lambda p: [p.failed("invalid_prompt")], "backend"),
}


async def test_every_failure_of_the_provider_has_its_kind(make: Make, new_codex: str, provider: Any) -> None:
    backend = await ready(make, new_codex)
    got = {}
    for name, (answer, _) in ERRORS.items():
        provider.play(answer(provider))
        events = await gather(backend.run(turn()))
        ends = [event for event in events if isinstance(event, Failure | Finish)]
        assert len(ends) == 1 and isinstance(ends[0], Failure), name
        assert "http://" not in ends[0].message and "sk-scripted" not in ends[0].message
        assert len(provider.seen) == 1, "retries are the gateway's"
        got[name] = ends[0]
    assert {name: failure.kind for name, failure in got.items()} == {
        name: kind for name, (_, kind) in ERRORS.items()
    }
    assert "SCRIPTED_KEY" in got["401"].message
    assert got["400"].message == "Bad schema" and got["400"].code == "bad_schema"
    assert got["rate limit in the stream"].retry_after_s == 1.5


@pytest.mark.parametrize(
    ("reason", "finish"), [("max_output_tokens", "length"), ("content_filter", "content_filter")]
)
async def test_an_incomplete_response_is_a_valid_end(
    make: Make, new_codex: str, provider: Any, reason: str, finish: str
) -> None:
    provider.play([*provider.text("Half"), provider.incomplete(reason)])
    events = await gather((await ready(make, new_codex)).run(turn()))
    assert said(events) == "Half"
    assert isinstance(events[-1], Finish) and events[-1].reason == finish


async def test_silence_of_the_provider_ends_in_a_timeout(make: Make, new_codex: str, provider: Any) -> None:
    provider.play(provider.stalled([]))
    events = await gather((await ready(make, new_codex, timeout_s=0.5)).run(turn()))
    assert isinstance(events[-1], Failure) and events[-1].kind == "timeout"
    async with asyncio.timeout(5):
        await provider.seen[0].gone.wait()

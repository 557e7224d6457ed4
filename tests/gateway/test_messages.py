"""The Messages API on every strategy: streamed and whole, judged, replayed, and parked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from toolwire.backends.openai.backend import OpenAIBackend
from toolwire.conform.judge import fold, judge_body, judge_sse
from toolwire.gateway.pipeline import Caller, Gateway
from toolwire.observe.fixture import read, write
from toolwire.observe.replay import replay
from toolwire.settings.types import Settings
from toolwire.testing import ScriptedBackend, ScriptedOptions
from toolwire.testing.upstream import FakeUpstream, Reply, chunk

Body = dict[str, Any]
TOOL = {
    "name": "look",
    "description": "Looks.",
    "input_schema": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
}
SCRIPT = """\
think Hm.
say Let me look.
call look {"q": "x"}
---
say It is {result}.
"""
THINKING = {"type": "adaptive"}


def body(**fields: Any) -> Body:
    return {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}], **fields}


class Served:
    """A gateway with one scripted model `m`."""

    def __init__(self, script: str, **options: Any) -> None:
        self.backend = ScriptedBackend("m", ScriptedOptions(script=script, **options))
        self.gateway = Gateway(Settings(), backends={"m": self.backend})
        self.kind = ""

    async def whole(self, asked: Body) -> Body:
        answer = await self.gateway.respond("messages", json.dumps(asked).encode(), Caller())
        self._see(answer.headers)
        assert answer.body is not None
        found: Body = json.loads(answer.body)
        assert judge_body(found, "messages") == []
        return found

    async def stream(self, asked: Body) -> bytes:
        raw = json.dumps({**asked, "stream": True}).encode()
        answer = await self.gateway.respond("messages", raw, Caller())
        self._see(answer.headers)
        assert answer.stream is not None
        stream = b"".join([block async for block in answer.stream])
        assert judge_sse(stream, "messages") == []
        return stream

    def _see(self, headers: list[tuple[bytes, bytes]]) -> None:
        self.kind = dict(headers)[b"x-toolwire-turn"].decode()
        self.report = dict(headers)[b"x-toolwire-report"].decode()


@pytest.fixture
async def opened() -> AsyncIterator[list[Served]]:
    places: list[Served] = []
    yield places
    for place in places:
        await place.gateway.close()


def serve(opened: list[Served], script: str = SCRIPT, **options: Any) -> Served:
    opened.append(Served(script, **options))
    return opened[-1]


@pytest.mark.parametrize("tools", ["native", "emulated", "constrained", "parked"])
async def test_a_tool_loop_on_every_strategy(opened: list[Served], tools: str) -> None:
    place = serve(opened, tools=tools)
    asked = body(tools=[TOOL], thinking=THINKING)
    first = fold(await place.stream(asked), "messages")
    assert first["stop_reason"] == "tool_use"
    call = next(block for block in first["content"] if block["type"] == "tool_use")
    assert (call["name"], call["input"]) == ("look", {"q": "x"})
    assert [block["type"] for block in first["content"]] == ["thinking", "text", "tool_use"]
    history = [
        *asked["messages"],
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": "blue"}]},
    ]
    second = await place.whole({**asked, "messages": history})
    assert [block["type"] for block in second["content"]] == ["text"]
    assert second["content"][0]["text"] == "It is blue."
    assert second["stop_reason"] == "end_turn"
    assert place.kind == ("resumed" if tools == "parked" else "new")


@pytest.mark.parametrize("tools", ["native", "emulated", "constrained"])
async def test_stream_and_body_say_the_same(opened: list[Served], tools: str) -> None:
    place = serve(opened, tools=tools)
    asked = body(tools=[TOOL], thinking=THINKING)
    streamed, whole = fold(await place.stream(asked), "messages"), await place.whole(asked)
    for message in (streamed, whole):
        del message["id"]
        for block in message["content"]:
            block.pop("id", None)
    assert streamed == whole


async def test_thoughts_are_sent_only_if_they_were_asked_for(opened: list[Served]) -> None:
    found = await serve(opened).whole(body(tools=[TOOL]))
    assert [block["type"] for block in found["content"]] == ["text", "tool_use"]


async def test_a_stop_sequence_is_named_where_the_gateway_looks_for_it() -> None:
    chunks = [chunk({"role": "assistant", "content": "one, t"}), chunk({"content": "wo, three"})]
    async with FakeUpstream(Reply.stream([*chunks, chunk({}, "stop")])) as upstream:
        backend = OpenAIBackend("m", {"base_url": upstream.base_url, "tools": "emulated"})
        gateway = Gateway(Settings(), backends={"m": backend})
        asked = body(tools=[TOOL], stop_sequences=["two"], stream=True)
        answer = await gateway.respond("messages", json.dumps(asked).encode(), Caller())
        assert answer.stream is not None
        stream = b"".join([block async for block in answer.stream])
        await gateway.close()
    assert judge_sse(stream, "messages") == []
    found = fold(stream)
    assert found["content"] == [{"type": "text", "text": "one, "}]
    assert (found["stop_reason"], found["stop_sequence"]) == ("stop_sequence", "two")


async def test_a_parked_run_resumes_although_the_client_rewrites_its_history(opened: list[Served]) -> None:
    """As Claude Code does: cache markers move, blocks become strings, and notes follow the results."""
    place = serve(opened, tools="parked")
    system = {
        "role": "system",
        "content": [{"type": "text", "text": "Now."}],
        "output_config": {"effort": "low"},
    }
    marked = {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}
    asked = body(tools=[TOOL], messages=[{"role": "user", "content": [marked]}, system])
    first = await place.whole(asked)
    call = first["content"][-1]
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "blue", "is_error": False}
    note = {"type": "text", "text": "<note>Be quick.</note>", "cache_control": {"type": "ephemeral"}}
    history = [
        {"role": "user", "content": "Hi"},
        {**system, "content": "Now."},
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": [result, note]},
        {"role": "system", "content": "And kind."},
    ]
    second = await place.whole({**asked, "messages": history})
    assert place.kind == "resumed"
    assert second["content"][0]["text"] == (
        "It is blue\n<note>Be quick.</note>\n<system-reminder>\nAnd kind.\n</system-reminder>."
    )
    assert place.gateway.parking.outcomes["resumed"] == 1


async def test_another_question_after_the_results_of_another_run_is_not_resumed(opened: list[Served]) -> None:
    place = serve(opened, tools="parked")
    asked = body(tools=[TOOL])
    first = await place.whole(asked)
    result = {"type": "tool_result", "tool_use_id": first["content"][-1]["id"], "content": "blue"}
    history = [
        {"role": "user", "content": "Something else"},
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": [result]},
    ]
    await place.whole({**asked, "messages": history})
    assert place.kind == "replayed"


@pytest.mark.parametrize("tools", ["native", "emulated"])
async def test_a_hidden_tool_may_be_called(opened: list[Served], tools: str) -> None:
    """Its name may be in the conversation: Claude Code lists the names of the tools that it hides."""
    place = serve(opened, 'call fetch {"q": "x"}', tools=tools)
    hidden = {**TOOL, "name": "fetch", "defer_loading": True}
    found = await place.whole(body(tools=[TOOL, hidden]))
    assert found["content"][0]["name"] == "fetch"
    assert [tool.name for tool in place.backend.seen[-1].tools] == (["look"] if tools == "native" else [])


async def test_a_recorded_turn_is_replayed(opened: list[Served]) -> None:
    place = serve(opened)
    await place.stream(body(tools=[TOOL], thinking=THINKING))
    journal = place.gateway.journal
    assert journal is not None
    recording = await journal.recording(journal.records()[0].id)
    assert recording is not None
    found = await asyncio.to_thread(replay, read("".join(write(recording)).splitlines()))
    assert found.same, found.differences

"""Custom tools on backends that only support functions: converted both ways, for any chunk size."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwire.backends.openai import OpenAIBackend, OpenAIOptions
from toolwire.core.events import CallArgs, CallBegin, CallEnd, Event
from toolwire.core.turn import ToolSpec
from toolwire.emulate.tools import InputDecoder, Unwrap, as_function, wrap
from toolwire.testing.upstream import FakeUpstream, Recorded, Reply, answer

PATCH = ToolSpec(
    "apply_patch",
    "Patches.",
    kind="custom",
    format={"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
)


def test_a_custom_tool_is_offered_as_a_function_with_one_string() -> None:
    function = as_function(PATCH)
    assert function.kind == "function" and list(function.parameters["properties"]) == ["input"]
    assert "start: /.+/" in function.description


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"patch":"abc"}', "abc"),
        ("*** Begin Patch", "*** Begin Patch"),
        ('{"a":1,"b":2}', '{"a":1,"b":2}'),
        ("{}", ""),
        ('{ "input" : "x" }', "x"),
    ],
)
def test_a_custom_call_in_another_shape_still_carries_its_input(arguments: str, text: str) -> None:
    events = Unwrap(["p"]).feed([CallBegin(0, "p"), CallArgs(0, arguments), CallEnd(0)])
    assert events[0] == CallBegin(0, "p", None, "custom")
    assert "".join(event.delta for event in events if isinstance(event, CallArgs)) == text


def test_other_calls_pass_as_they_are() -> None:
    events: list[Event] = [CallBegin(0, "f"), CallArgs(0, '{"input":"x"}'), CallEnd(0)]
    assert Unwrap(["p"]).feed(list(events)) == events


@given(st.text(), st.booleans(), st.lists(st.integers(0, 400), max_size=8))
def test_any_input_survives_wrapping_and_any_cut(text: str, ascii_only: bool, cuts: list[int]) -> None:
    wrapped = json.dumps({"input": text}, ensure_ascii=ascii_only)
    places = sorted({0, len(wrapped), *(min(cut, len(wrapped)) for cut in cuts)})
    decoder = InputDecoder()
    out = [decoder.feed(wrapped[start:end]) for start, end in pairwise(places)]
    assert "".join(out) + decoder.finish() == text


def test_lone_halves_of_a_pair_in_an_input_are_replaced() -> None:
    decoder = InputDecoder()
    assert (
        decoder.feed(r'{"input":"a\ud83d b\ude00 \ud83d\ude00 \ud83d"}') + decoder.finish()
        == "a\ufffd b\ufffd 😀 \ufffd"
    )


async def test_a_custom_tool_makes_the_round_trip_over_a_server_that_knows_only_functions(table: Any) -> None:
    text = '*** "Begin"\n\tPatch\\ 👋 é'
    asked: list[Recorded] = []

    def reply(request: Recorded) -> Reply:
        asked.append(request)
        return Reply.stream(answer("", [("c1", "apply_patch", json.dumps({"input": text}))], size=1))

    async with FakeUpstream(reply) as upstream:
        backend = OpenAIBackend("m", OpenAIOptions(base_url=upstream.base_url, model="m"))
        tool = {"type": "custom", "name": "apply_patch", "format": PATCH.format}
        history = [
            {"role": "user", "content": "q"},
            {"type": "custom_tool_call", "call_id": "c0", "name": "apply_patch", "input": "earlier\n"},
            {"type": "custom_tool_call_output", "call_id": "c0", "output": "done"},
        ]
        raw = await table.serve(backend).stream("responses", {"input": history, "tools": [tool]})
        await backend.close()
    call = asked[0].body["messages"][1]["tool_calls"][0]["function"]
    assert call == {"name": "apply_patch", "arguments": wrap("earlier\n")}
    assert asked[0].body["tools"][0]["function"]["parameters"]["required"] == ["input"]
    done = json.loads(raw.decode().split("data: ")[-1])["response"]["output"][0]
    assert (done["type"], done["input"]) == ("custom_tool_call", text)


FUNCTION = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


@pytest.mark.parametrize("way", ["native", "emulated", "constrained"])
@pytest.mark.parametrize(
    "tools",
    [[], [FUNCTION], [{"type": "custom", "name": "apply_patch"}]],
    ids=["none", "another", "the same"],
)
async def test_a_custom_call_in_the_history_is_the_same_call_whatever_the_request_offers(
    table: Any, tools: list[Any], way: Any
) -> None:
    history = [
        {"role": "user", "content": "q"},
        {"type": "custom_tool_call", "call_id": "c0", "name": "apply_patch", "input": '*** "Begin" Patch\n'},
        {"type": "custom_tool_call_output", "call_id": "c0", "output": "done"},
        {"role": "user", "content": "Make a title."},
    ]
    async with FakeUpstream(Reply.stream(answer("A title"))) as upstream:
        backend = OpenAIBackend("m", OpenAIOptions(base_url=upstream.base_url, model="m", tools=way))
        await table.serve(backend).body("responses", {"input": history, "tools": tools})
        await backend.close()
    said = upstream.requests[-1].body["messages"]
    if way == "native":
        assert next(one for one in said if "tool_calls" in one)["tool_calls"][0]["function"][
            "arguments"
        ] == wrap('*** "Begin" Patch\n')
    else:
        assert (
            wrap('*** "Begin" Patch\n') in next(one for one in said if one["role"] == "assistant")["content"]
        )

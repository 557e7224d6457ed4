"""Deviations of native upstreams from OpenAI, streamed and whole, which must give the same answer."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from toolwire.backends.openai.read import AnswerReader
from toolwire.core.events import CallArgs, CallBegin, CallEnd, Event, Failure, Finish, Text, Thought
from toolwire.core.turn import Message, TextPart, ToolSpec, Turn
from toolwire.testing.upstream import Reply, chunk

TOOLS = (ToolSpec("get_weather"), ToolSpec("clock"))
PARIS = '{"city": "Paris"}'


def turn(stream: bool) -> Turn:
    return Turn("chat", "m", (Message("user", (TextPart("hi"),)),), tools=TOOLS, stream=stream)


def streamed(*chunks: Any) -> list[Event]:
    reader = AnswerReader(turn(True))
    out = [event for frame in Reply.stream(chunks).frames for event in reader.feed(frame)]
    return out if reader.ended else out + reader.finish()


def whole(message: dict[str, Any], finish: str) -> list[Event]:
    body = {"choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}]}
    return AnswerReader(turn(False)).read_body(json.dumps(body).encode())


def part(arguments: Any, index: int = 0, **opener: Any) -> dict[str, Any]:
    name = opener.pop("name", None)
    function = {"arguments": arguments, **({"name": name} if name else {})}
    return chunk({"tool_calls": [{"index": index, **opener, "function": function}]})


def calls(run: list[Event]) -> list[tuple[str, str, str]]:
    begun = [event for event in run if isinstance(event, CallBegin)]
    ends = {event.index: event.status for event in run if isinstance(event, CallEnd)}
    text = {
        one.index: "".join(
            event.delta for event in run if isinstance(event, CallArgs) and event.index == one.index
        )
        for one in begun
    }
    return [(one.name, text[one.index], ends[one.index]) for one in begun]


def said(run: list[Event], kind: type[Text | Thought]) -> str:
    return "".join(event.text for event in run if isinstance(event, kind))


ARGUMENTS = {
    "null": ("null", "{}", "repaired"),
    "nothing": ("", "", "ok"),
    "encoded twice": (json.dumps(PARIS), PARIS, "repaired"),
    "trailing comma": ('{"city": "Paris",}', PARIS, "repaired"),
    "single quotes": ("{'city': 'Paris'}", PARIS, "repaired"),
    "line break in a string": ('{"city": "New\nYork"}', '{"city": "New\\nYork"}', "repaired"),
    "empty object first": ("{}" + PARIS, PARIS, "repaired"),
    "as they should be": (' {"city" :  "Paris"}\n', ' {"city" :  "Paris"}\n', "ok"),
    "no JSON": ("Paris", "Paris", "invalid"),
    "no object": ("[1]", "[1]", "invalid"),
    "no object in a string": ('"Paris"', '"Paris"', "invalid"),
    "two objects": (PARIS + PARIS, PARIS + PARIS, "invalid"),
}


@pytest.mark.parametrize("kind", ARGUMENTS)
@settings(max_examples=25)
@given(data=some.data())
def test_arguments_are_repaired_alike_in_a_body_and_in_any_stream(kind: str, data: Any) -> None:
    sent, out, status = ARGUMENTS[kind]
    body = whole(
        {
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": sent}}
            ]
        },
        "tool_calls",
    )
    places = data.draw(some.lists(some.integers(0, len(sent)), max_size=6).map(sorted))
    marks = [0, *places, len(sent)]
    pieces = [sent[start:end] for start, end in itertools.pairwise(marks)]
    stream = streamed(part("", id="c", name="get_weather"), *map(part, pieces), chunk({}, "tool_calls"))
    assert calls(body) == calls(stream) == [("get_weather", out, status)]
    assert body[-1] == stream[-1] == Finish("tool_calls")


def test_null_beside_a_name_is_no_arguments() -> None:
    assert calls(streamed(part(None, id="c", name="clock"), chunk({}, "tool_calls"))) == [("clock", "", "ok")]


def test_calls_with_deviations_do_not_disturb_each_other() -> None:
    run = streamed(
        part("{}", id="a", name="get_weather"),
        part(PARIS),
        part("null", 1, id="b", name="clock"),
        part("{'zone':", 2, id="c", name="clock"),
        part(" 'CET',}", 2),
        chunk({}, "tool_calls"),
    )
    assert [call[1] for call in calls(run)] == [PARIS, "{}", '{"zone": "CET"}']


# --- the finish reason, and what comes after it ---


@pytest.mark.parametrize("reason", ["tool_calls", "stop"])
def test_arguments_that_go_on_after_the_finish_reason_are_all_there(reason: str) -> None:
    run = streamed(part('{"city": ', id="c", name="get_weather"), chunk({}, reason), part('"Paris"}'))
    assert calls(run) == [("get_weather", PARIS, "ok")]
    assert run[-1] == Finish(reason)  # type: ignore[arg-type]


@pytest.mark.parametrize("reason", ["tool_calls", "stop", "length"])
@pytest.mark.parametrize("cut", ['{"city": ', "{", '{"city": "Paris",', '"{\\"city'])
def test_a_call_that_stays_incomplete_ends_with_length(cut: str, reason: str) -> None:
    entry = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": cut}}
    for run in (
        streamed(part(cut, id="c", name="get_weather"), chunk({}, reason)),
        whole({"tool_calls": [entry]}, reason),
    ):
        assert calls(run) == [("get_weather", cut, "truncated")] and run[-1] == Finish("length")


def test_arguments_that_come_after_their_call_was_sent_without_any_are_a_failure() -> None:
    """Call 0 ended as `{}` when call 1 began. Later arguments cannot be sent and must not be lost."""
    run = streamed(
        part("{}", id="a", name="clock"),
        part("{}", 1, id="b", name="clock"),
        part('{"zone": "CET"}'),
        chunk({}, "tool_calls"),
    )
    assert (
        isinstance(run[-1], Failure)
        and run[-1].kind == "backend"
        and "after the call had ended" in run[-1].message
    )


# --- names ---


@pytest.mark.parametrize(
    "name",
    [
        "get_weather<|channel|>commentary",
        "functions.get_weather<|channel|>commentary json",
        "get_weather<|constrain|>json",
        "get_weather <|end|>",
    ],
)
def test_special_tokens_are_no_part_of_a_name(name: str) -> None:
    entry = {"id": "c", "type": "function", "function": {"name": name, "arguments": PARIS}}
    for run in (
        streamed(part(PARIS, id="c", name=name), chunk({}, "tool_calls")),
        whole({"tool_calls": [entry]}, "tool_calls"),
    ):
        assert calls(run) == [("get_weather", PARIS, "ok")]


def test_a_special_token_in_a_chunk_of_its_own_is_no_call() -> None:
    run = streamed(
        part(None, id="c", name="get_weather"),
        part(None, name="<|channel|>commentary"),
        part(PARIS),
        chunk({}, "tool_calls"),
    )
    assert calls(run) == [("get_weather", PARIS, "ok")]


# --- thoughts ---


def thinking(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": [{"type": "text", "text": text}]}


def test_thinking_parts_are_thoughts_in_their_place() -> None:
    parts = [
        thinking("Hmm."),
        {"type": "text", "text": "Hi"},
        thinking("Now?"),
        {"type": "text", "text": " there"},
    ]
    body = whole({"content": parts}, "stop")
    stream = streamed(*(chunk({"content": [one]}) for one in parts), chunk({}, "stop"))
    mixed = streamed(
        chunk({"content": parts[:1]}),
        chunk({"content": "Hi"}),
        chunk({"content": parts[2:]}),
        chunk({}, "stop"),
    )
    assert (
        body
        == stream
        == mixed
        == [Thought("Hmm."), Text("Hi"), Thought("Now?"), Text(" there"), Finish("stop")]
    )


def test_a_thinking_part_may_be_a_text() -> None:
    assert whole(
        {"content": [{"type": "thinking", "thinking": "Hmm."}, {"type": "text", "text": "Hi"}]}, "stop"
    )[:2] == [Thought("Hmm."), Text("Hi")]


DETAILS = [
    {"type": "reasoning.summary", "summary": "In short. ", "format": "openai-responses-v1", "index": 0},
    {"type": "reasoning.text", "text": "At length.", "signature": None, "index": 1},
    {"type": "reasoning.encrypted", "data": "c2VjcmV0", "index": 2},
]


def test_reasoning_details_alone_are_thoughts() -> None:
    body = whole({"content": "Hi", "reasoning_details": DETAILS}, "stop")
    stream = streamed(
        *(chunk({"content": "", "reasoning_details": [one]}) for one in DETAILS),
        chunk({"content": "Hi"}),
        chunk({}, "stop"),
    )
    for run in (body, stream):
        assert (said(run, Thought), said(run, Text)) == ("In short. At length.", "Hi")


def test_reasoning_details_beside_reasoning_are_not_said_twice_and_text_beside_them_is_not_lost() -> None:
    run = streamed(
        chunk({"reasoning": "At length.", "reasoning_details": DETAILS[1:]}),
        chunk({"content": "Hi"}),
        chunk({}, "stop"),
    )
    assert (said(run, Thought), said(run, Text)) == ("At length.", "Hi")
    late = [
        chunk({"content": "a"}),
        chunk({"content": "b"}),
        chunk({"content": "c", "reasoning_details": DETAILS[1:2]}),
        chunk({"content": "d"}),
    ]
    run = streamed(*late, chunk({}, "stop"))
    assert (said(run, Thought), said(run, Text)) == ("At length.", "abcd")


@pytest.mark.parametrize(("named", "found"), [("END", "END"), (128009, None), (None, None)])
def test_the_stop_sequence_that_a_server_names_is_kept(named: Any, found: str | None) -> None:
    """vLLM and SGLang name it in `stop_reason`; a number there is a token."""
    last = chunk({}, "stop")
    last["choices"][0]["stop_reason"] = named
    assert streamed(chunk({"content": "one, "}), last)[-1] == Finish("stop", found)
    body = {"index": 0, "message": {"content": "one, "}, "finish_reason": "stop", "stop_reason": named}
    assert AnswerReader(turn(False)).read_body(json.dumps({"choices": [body]}).encode())[-1] == Finish(
        "stop", found
    )

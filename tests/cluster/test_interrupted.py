"""A stream whose node is lost ends correctly and does not contradict what was sent before."""

from __future__ import annotations

import json

import pytest

from toolwire.cluster.forward import call_ids
from toolwire.cluster.relay import Passing
from toolwire.conform.judge import fold, frames_of, judge_sse
from toolwire.core.events import (
    CallArgs,
    CallBegin,
    CallEnd,
    Event,
    Failure,
    Finish,
    Refusal,
    Text,
    Thought,
    Usage,
)
from toolwire.core.ids import counting_ids
from toolwire.core.turn import ToolSpec, Turn
from toolwire.wire.chat.encode import ChatEncoder
from toolwire.wire.messages.encode import MessagesEncoder
from toolwire.wire.responses.encode import ResponsesEncoder

LOST = Failure("backend_cut", "The server was lost.")
TOOLS = (ToolSpec("look", "", {}), ToolSpec("write", "", {}, kind="custom"))
ANSWERS: dict[str, list[Event]] = {
    "thought, text and calls": [
        Thought("Hm, "),
        Thought("well."),
        Text("Let me "),
        Text('see: "ü☃\n".'),
        CallBegin(0, "look", "call_1"),
        CallArgs(0, '{"at":'),
        CallArgs(0, '"the pond"}'),
        CallEnd(0),
        CallBegin(1, "write", "call_2", "custom"),
        CallArgs(1, "some words"),
        CallEnd(1),
    ],
    "summary and refusal": [Thought("In short.", summary=True), Refusal("I will "), Refusal("not.")],
    "nothing": [],
}


def written(events: list[Event]) -> bytes:
    encoder = ResponsesEncoder(
        Turn("responses", "m", (), tools=TOOLS, store=True),
        id="resp_1",
        created=1,
        ids=counting_ids(),
        clock=lambda: 2.9,
    )
    return b"".join(
        [encoder.feed([event]) for event in (*events, Usage(3, 4), Finish("stop"))]
    ) + encoder.finish("{}")


def blocks(raw: bytes) -> list[bytes]:
    return [block + b"\n\n" for block in raw.split(b"\n\n") if block]


@pytest.mark.parametrize("name", ANSWERS)
def test_a_responses_stream_can_be_interrupted_after_any_event(name: str) -> None:
    sent = blocks(written(ANSWERS[name]))
    for place in range(1, len(sent)):
        passing, passed = Passing("responses"), b"".join(sent[:place])
        for block in sent[:place]:
            passing.feed(block)
        whole = passed + passing.end(LOST)
        assert judge_sse(whole, "responses", tools=["look", "write"]) == [], place
        folded = fold(whole, "responses")
        assert folded["status"] == "failed" and folded["error"]["message"] == LOST.message
        assert passing.end(LOST) == b""


def test_blocks_may_contain_any_number_of_whole_events() -> None:
    sent = blocks(written(ANSWERS["thought, text and calls"]))[:-4]
    one, many = Passing("responses"), Passing("responses")
    one.feed(b"".join(sent))
    for block in sent:
        many.feed(block)
    assert one.end(LOST) == many.end(LOST) != b""


def test_a_stream_that_has_ended_gets_no_second_end() -> None:
    passing = Passing("responses")
    passing.feed(written(ANSWERS["nothing"]))
    assert passing.end(LOST) == b""
    passing = Passing("chat")
    passing.feed(b"data: {}\n\ndata: [DONE]\n\n")
    assert passing.end(LOST) == b""


def test_a_chat_stream_ends_in_an_error_object() -> None:
    encoder = ChatEncoder("m", id="chatcmpl-1", created=1, ids=counting_ids())
    begun = encoder.feed([Text("Hello")])
    passing = Passing("chat")
    passing.feed(begun)
    whole = begun + passing.end(LOST)
    assert judge_sse(whole, "chat") == [] and frames_of(whole)[-1]["error"]["code"] == "stream_interrupted"


def test_a_messages_stream_ends_in_an_error_event_once() -> None:
    encoder = MessagesEncoder("m", id="msg_1", ids=counting_ids())
    begun = encoder.feed([Text("half")])
    passing = Passing("messages")
    passing.feed(begun)
    rest = passing.end(LOST)
    assert judge_sse(begun + rest, "messages") == []
    assert fold(begun + rest)["error"]["message"] == LOST.message
    assert passing.end(LOST) == b""
    whole = Passing("messages")
    whole.feed(begun + encoder.feed([Finish()]) + encoder.finish(None))
    assert whole.end(LOST) == b""


def test_the_calls_that_a_body_answers_are_found_on_every_api() -> None:
    body = {
        "messages": [
            {"role": "tool", "tool_call_id": "a", "content": '"call_id": "x"'},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "b"}]},
        ],
        "input": [{"type": "function_call_output", "call_id": "c", "output": "y"}],
    }
    assert call_ids(json.dumps(body).encode()) == ["a", "b", "c"]

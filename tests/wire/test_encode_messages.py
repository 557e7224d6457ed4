"""Events become Messages streams and bodies, and both say the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwire.core.errors import ToolwireError
from toolwire.core.events import (
    CallArgs,
    CallBegin,
    CallEnd,
    Event,
    Failure,
    Finish,
    Refusal,
    Signature,
    Text,
    Thought,
    Usage,
)
from toolwire.core.ids import counting_ids
from toolwire.core.partial_call import partial_object
from toolwire.core.turn import Thoughts
from toolwire.wire.messages.encode import MessagesBody, MessagesEncoder, error_object

CALL: list[Event] = [CallBegin(0, "read", "a"), CallArgs(0, '{"path":'), CallArgs(0, ' "x"}'), CallEnd(0)]


def frames(events: list[Event], thoughts: Thoughts = "shown") -> list[dict[str, Any]]:
    encoder = MessagesEncoder("m", id="msg_1", ids=counting_ids(), thoughts=thoughts)
    raw = b"".join([*(encoder.feed([event]) for event in events), encoder.finish(None)])
    out = []
    for block in raw.decode().split("\n\n")[:-1]:
        event, data = block.split("\n")
        frame = json.loads(data.removeprefix("data: "))
        assert event == f"event: {frame['type']}"
        out.append(frame)
    return out


def body(events: list[Event], thoughts: Thoughts = "shown") -> dict[str, Any]:
    answer = MessagesBody("m", id="msg_1", ids=counting_ids(), thoughts=thoughts)
    answer.feed(events)
    whole: dict[str, Any] = json.loads(answer.finish())
    return whole


def folded(stream: list[dict[str, Any]]) -> dict[str, Any]:
    """What the SDKs' accumulators make of a stream."""
    message: dict[str, Any] = stream[0]["message"]
    arguments: dict[int, str] = {}
    for frame in stream[1:]:
        kind = frame["type"]
        if kind == "content_block_start":
            assert frame["index"] == len(message["content"])
            message["content"].append(frame["content_block"])
        elif kind == "content_block_delta":
            block, delta = message["content"][frame["index"]], frame["delta"]
            if delta["type"] == "input_json_delta":
                arguments[frame["index"]] = arguments.get(frame["index"], "") + delta["partial_json"]
            elif delta["type"] == "signature_delta":
                block["signature"] = delta["signature"]
            else:
                member = delta["type"].removesuffix("_delta")
                block[member] += delta[member]
        elif kind == "content_block_stop" and frame["index"] in arguments:
            text = arguments[frame["index"]]
            try:
                message["content"][frame["index"]]["input"] = json.loads(text)
            except ValueError:
                message["content"][frame["index"]]["input"] = partial_object(text)
        elif kind == "message_delta":
            message.update(frame["delta"])
            message["usage"].update(frame["usage"])
    return message


@pytest.mark.parametrize(
    ("events", "blocks", "reason"),
    [
        ([Text("Hel"), Text("lo"), Finish()], ["text"], "end_turn"),
        ([Text("Look."), *CALL, Finish("tool_calls")], ["text", "tool_use"], "tool_use"),
        ([*CALL, Finish("stop")], ["tool_use"], "tool_use"),
        ([Thought("hm"), Signature("s"), Text("yes"), Finish()], ["thinking", "text"], "end_turn"),
        ([Signature("s"), Text("yes"), Finish()], ["thinking", "text"], "end_turn"),
        ([Signature("x", redacted=True), *CALL, Finish()], ["redacted_thinking", "tool_use"], "tool_use"),
        ([Text("cut"), Finish("length")], ["text"], "max_tokens"),
        ([Text("cut"), Finish("length", window=True)], ["text"], "model_context_window_exceeded"),
        ([Text("one, "), Finish("stop", stop="two")], ["text"], "stop_sequence"),
        ([Refusal("No."), Finish()], ["text"], "refusal"),
        ([Finish("content_filter")], [], "refusal"),
        ([Finish()], [], "end_turn"),
        ([CallBegin(0, "now", "a"), CallEnd(0), Finish()], ["tool_use"], "tool_use"),
        ([CallBegin(0, "f", "a"), CallArgs(0, '{"a": "b'), Finish("length")], ["tool_use"], "max_tokens"),
    ],
)
def test_a_stream_folds_to_its_body(events: list[Event], blocks: list[str], reason: str) -> None:
    events = [*events[:-1], Usage(10, 5, cached_tokens=3, cache_write_tokens=2), events[-1]]
    whole = body(events)
    assert folded(frames(events)) == whole
    assert [block["type"] for block in whole["content"]] == blocks
    assert whole["stop_reason"] == reason
    assert whole["usage"] == {
        "input_tokens": 5,
        "cache_creation_input_tokens": 2,
        "cache_read_input_tokens": 3,
        "output_tokens": 5,
    }


def test_one_message_start_and_one_open_block_at_a_time() -> None:
    stream = frames([Thought("a"), Text("b"), *CALL, Text("c"), Finish()])
    kinds = [frame["type"] for frame in stream]
    assert kinds.count("message_start") == 1
    assert kinds[-2:] == ["message_delta", "message_stop"]
    opened: list[int] = []
    for frame in stream:
        if frame["type"] == "content_block_start":
            assert not opened
            opened.append(frame["index"])
        elif frame["type"] == "content_block_stop":
            assert opened.pop() == frame["index"]


def test_the_stop_sequence_is_named() -> None:
    assert body([Text("one, "), Finish("stop", stop="two")])["stop_sequence"] == "two"


def test_thoughts_that_were_not_asked_for_are_not_sent() -> None:
    events: list[Event] = [Thought("hm"), Signature("s"), Text("yes"), Finish()]
    assert [block["type"] for block in body(events, thoughts="hidden")["content"]] == ["text"]
    assert folded(frames(events, thoughts="hidden")) == body(events, thoughts="hidden")


def test_a_client_that_omits_thoughts_gets_their_signatures_to_send_them_back() -> None:
    events: list[Event] = [Thought("hm"), Signature("s"), Signature("x", redacted=True), *CALL, Finish()]
    whole = body(events, thoughts="signed")
    assert whole["content"][:2] == [
        {"type": "thinking", "thinking": "", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
    ]
    assert folded(frames(events, thoughts="signed")) == whole


def test_arguments_that_are_no_object_end_the_answer_with_an_error() -> None:
    events: list[Event] = [CallBegin(0, "f", "a"), CallArgs(0, "[1]"), CallEnd(0, "invalid"), Finish()]
    stream = frames(events)
    assert stream[-1]["type"] == "error"
    assert "message_stop" not in [frame["type"] for frame in stream]
    with pytest.raises(ToolwireError, match="not a JSON object"):
        body(events)


def test_a_failure_in_the_stream_is_an_error_event_and_the_last_one() -> None:
    stream = frames([Text("a"), Failure("overloaded", "Busy.")])
    assert stream[-1] == {"type": "error", "error": {"type": "overloaded_error", "message": "Busy."}}
    assert [frame["type"] for frame in stream].count("error") == 1


@pytest.mark.parametrize(
    "events",
    [[Text("a")], [Thought("a")], [CallBegin(0, "f", "a"), CallArgs(0, '{"a": 1}')], [Text("b"), *CALL[:2]]],
)
def test_a_block_that_a_failure_breaks_off_stays_open(events: list[Event]) -> None:
    """Clients take a closed block as whole: Claude Code would run the call."""
    stream = frames([*events, Failure("server", "Lost.")])
    kinds = [frame["type"] for frame in stream]
    assert kinds.count("content_block_stop") == kinds.count("content_block_start") - 1
    assert kinds[-1] == "error"


@pytest.mark.parametrize(
    ("kind", "type"),
    [
        ("authentication", "authentication_error"),
        ("permission", "permission_error"),
        ("model_not_found", "not_found_error"),
        ("requests_limit", "rate_limit_error"),
        ("body_too_large", "request_too_large"),
        ("overloaded", "overloaded_error"),
        ("timeout", "timeout_error"),
        ("backend", "api_error"),
        ("invalid_value", "invalid_request_error"),
    ],
)
def test_errors_have_anthropic_types(kind: str, type: str) -> None:
    assert error_object(Failure(kind, "x"))["error"]["type"] == type


def test_a_full_context_is_said_in_words_that_make_claude_code_shorten_it() -> None:
    message = error_object(Failure("context_length", "9 tokens > 5 maximum"))["error"]["message"]
    assert message == "prompt is too long: 9 tokens > 5 maximum"
    assert error_object(Failure("context_length", message))["error"]["message"] == message


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), json_values, max_size=4), st.data())
def test_cut_arguments_keep_only_what_is_complete(whole: dict[str, Any], data: st.DataObject) -> None:
    text = json.dumps(whole)
    cut = text[: data.draw(st.integers(0, len(text)))]
    found = partial_object(cut)
    assert set(found) <= set(whole)
    assert partial_object(text) == whole
    for key in list(found)[:-1]:
        assert found[key] == whole[key]


def test_a_body_has_the_arguments_exactly_as_the_model_wrote_them() -> None:
    written = '{"a": 1.10, "b": 12345678901234567890123, "c": "\\ude00"}'
    answer = MessagesBody("m", id="msg_1", ids=counting_ids())
    answer.feed(
        [CallBegin(0, "f", "x"), CallArgs(0, written[:9]), CallArgs(0, written[9:]), CallEnd(0), Finish()]
    )
    assert written.encode() in answer.finish()


@pytest.mark.parametrize("arguments", ['{"a": NaN}', '{"a": Infinity}', "7", ""])
def test_only_json_objects_are_arguments(arguments: str) -> None:
    events: list[Event] = [CallBegin(0, "f", "x", "custom"), CallArgs(0, arguments), CallEnd(0), Finish()]
    with pytest.raises(ToolwireError, match="not a JSON object"):
        body(events)
    assert frames(events)[-1]["type"] == "error"

"""The judge accepts correct Messages streams and reports what is wrong with others."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from toolwire.conform.judge import fold, judge_body, judge_error, judge_sse

Frames = list[dict[str, Any]]
USAGE = {"input_tokens": 7, "output_tokens": 1}


def start() -> dict[str, Any]:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
    return {
        "type": "message_start",
        "message": {**message, "stop_reason": None, "stop_sequence": None, "usage": dict(USAGE)},
    }


def block(index: int, content: dict[str, Any], *deltas: dict[str, Any]) -> Frames:
    return [
        {"type": "content_block_start", "index": index, "content_block": content},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def text(index: int, *pieces: str) -> Frames:
    return block(
        index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": one} for one in pieces)
    )


def call(index: int, id: str, *pieces: str) -> Frames:
    content = {"type": "tool_use", "id": id, "name": "look", "input": {}}
    return block(index, content, *({"type": "input_json_delta", "partial_json": one} for one in pieces))


def thought(index: int, words: str, signature: str = "") -> Frames:
    deltas = [{"type": "thinking_delta", "thinking": words}] if words else []
    if signature:
        deltas.append({"type": "signature_delta", "signature": signature})
    return block(index, {"type": "thinking", "thinking": "", "signature": ""}, *deltas)


def ended(reason: str, sequence: str | None = None) -> Frames:
    delta = {"stop_reason": reason, "stop_sequence": sequence}
    return [
        {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 9}},
        {"type": "message_stop"},
    ]


def render(frames: Frames) -> bytes:
    return "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in frames).encode()


def codes(frames: Frames) -> list[str]:
    return [problem.code for problem in judge_sse(render(frames), "messages", tools=["look"])]


SEALED = {"type": "redacted_thinking", "data": "xyz"}
RIGHT: dict[str, Frames] = {
    "text": [start(), *text(0, "Hel", "lo ü"), *ended("end_turn")],
    "empty": [start(), *ended("end_turn")],
    "tool": [start(), *text(0, "Look."), *call(1, "a", "", '{"x":', " 1}"), *ended("tool_use")],
    "no-arguments": [start(), *call(0, "a"), *ended("tool_use")],
    "two-tools": [start(), *call(0, "a", "{}"), *call(1, "b", "{}"), *ended("tool_use")],
    "thinking": [start(), *thought(0, "hm", "sig"), *text(1, "Yes."), *ended("end_turn")],
    "unsigned": [start(), *thought(0, "hm"), *call(1, "a", "{}"), *ended("tool_use")],
    "omitted": [start(), *thought(0, "", "sig"), *text(1, "Yes."), *ended("end_turn")],
    "redacted": [start(), *block(0, SEALED), *text(1, "Yes."), *ended("end_turn")],
    "cut-call": [start(), *call(0, "a", '{"x": "Pa'), *ended("max_tokens")],
    "stop-sequence": [start(), *text(0, "one, "), *ended("stop_sequence", "two")],
    "pings": [{"type": "ping"}, start(), *text(0, "x"), {"type": "ping"}, *ended("end_turn")],
    "server-tool": [
        start(),
        *block(0, {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}),
        *text(1, "x"),
        *ended("end_turn"),
    ],
    "error": [
        start(),
        *text(0, "x")[:2],
        {"type": "error", "error": {"type": "api_error", "message": "Cut."}},
    ],
}


@pytest.mark.parametrize("name", RIGHT)
def test_correct_streams_and_their_folds_are_accepted(name: str) -> None:
    assert codes(RIGHT[name]) == []
    body = fold(render(RIGHT[name]))
    if "error" not in body:
        assert judge_body(body, "messages", tools=["look"]) == []


def without(kind: str) -> Callable[[Frames], Frames]:
    return lambda frames: [one for one in frames if one["type"] != kind]


def changed(place: int, **fields: Any) -> Callable[[Frames], Frames]:
    return lambda frames: [{**one, **fields} if i == place else one for i, one in enumerate(frames)]


def _input_in_start(frames: Frames) -> Frames:
    frames[4]["content_block"]["input"] = {"x": 1}
    return frames


def _no_usage(frames: Frames) -> Frames:
    del frames[0]["message"]["usage"]
    return frames


DAMAGE: dict[str, tuple[str, Callable[[Frames], Frames], str]] = {
    "no start": ("tool", without("message_start"), "start_missing"),
    "two starts": ("tool", lambda frames: [start(), *frames], "start_repeated"),
    "no block start": ("tool", without("content_block_start"), "block_index"),
    "no block stop": ("tool", without("content_block_stop"), "block_open"),
    "no message_delta": ("tool", without("message_delta"), "finish_missing"),
    "no message_stop": ("tool", without("message_stop"), "done_missing"),
    "cut": ("tool", lambda frames: frames[:6], "done_missing"),
    "end_turn beside a call": (
        "tool",
        lambda frames: [*frames[:-2], *ended("end_turn")],
        "untruthful_finish",
    ),
    "tool_use without a call": (
        "text",
        lambda frames: [*frames[:-2], *ended("tool_use")],
        "untruthful_finish",
    ),
    "unnamed stop sequence": (
        "stop-sequence",
        lambda frames: [*frames[:-2], *ended("stop_sequence")],
        "stop_sequence",
    ),
    "index gap": ("text", lambda frames: [frames[0], *text(1, "x"), *ended("end_turn")], "block_index"),
    "index reused": (
        "tool",
        lambda frames: [frames[0], *text(0, "x"), *call(0, "a"), *ended("tool_use")],
        "block_index",
    ),
    "input in the start": ("tool", _input_in_start, "block_content"),
    "arguments repeated": (
        "tool",
        changed(7, delta={"type": "input_json_delta", "partial_json": '{"x": 1}'}),
        "cumulative_arguments",
    ),
    "arguments no object": (
        "no-arguments",
        lambda frames: [start(), *call(0, "a", "[1]"), *ended("tool_use")],
        "invalid_arguments",
    ),
    "arguments no JSON": (
        "no-arguments",
        lambda frames: [start(), *call(0, "a", "{x"), *ended("tool_use")],
        "invalid_arguments",
    ),
    "thought in a text block": (
        "text",
        changed(2, delta={"type": "thinking_delta", "thinking": "x"}),
        "delta_type",
    ),
    "id twice": (
        "two-tools",
        lambda frames: [start(), *call(0, "a"), *call(1, "a"), *ended("tool_use")],
        "call_id_repeated",
    ),
    "no usage": ("text", _no_usage, "missing_key"),
    "after the end": ("text", lambda frames: [*frames, {"type": "ping"}], "after_done"),
    "after an error": ("error", lambda frames: [*frames, {"type": "message_stop"}], "after_error"),
    "unknown event": (
        "text",
        lambda frames: [frames[0], {"type": "message_begin"}, *frames[1:]],
        "unknown_event",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_reported(name: str) -> None:
    right, damage, code = DAMAGE[name]
    found = codes(damage(copy.deepcopy(RIGHT[right])))
    assert code in found


def test_a_thought_that_continues_after_its_signature_is_reported() -> None:
    frames = copy.deepcopy(RIGHT["thinking"])
    frames.insert(4, frames[2])
    assert codes(frames) == ["after_signature"]


def test_events_need_their_names() -> None:
    raw = render(RIGHT["text"]).replace(b"event: message_stop\n", b"")
    assert [problem.code for problem in judge_sse(raw, "messages")] == ["event_name"]


def test_error_bodies() -> None:
    error = {"type": "error", "error": {"type": "not_found_error", "message": "No."}, "request_id": "r"}
    assert judge_error(404, error, "messages") == []
    assert [one.code for one in judge_error(404, {"error": {"message": "No."}}, "messages")] == [
        "missing_key"
    ]

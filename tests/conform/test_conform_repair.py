"""One fault is one failure: a small deviation is reported once and hides nothing after it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from doubles.damage import render
from toolwire.conform.exchange import ProbeExchange, ProbeRequest
from toolwire.conform.judge import DONE
from toolwire.conform.problems import problems_of
from toolwire.testing.upstream import answer, completion, with_quirk

TWO = answer(
    "Let me look.",
    [("call_1", "get_weather", '{"city": "Paris"}'), ("call_2", "get_time", '{"city": "Tokyo"}')],
)


def streamed(raw: bytes, question: str = "chat.parallel.stream", **asked: Any) -> ProbeExchange:
    return ProbeExchange(
        question,
        ProbeRequest("/chat/completions", {"stream": True, **asked}),
        200,
        {"content-type": "text/event-stream"},
        raw,
    )


def topics(frames: list[Any], question: str = "chat.parallel.stream", **asked: Any) -> set[str]:
    return {topic for topic, _ in problems_of(streamed(render(frames), question, **asked))}


@pytest.mark.check(
    "chat.stream.index",
    "chat.stream.ids",
    "chat.stream.names-once",
    "chat.stream.increments",
    "chat.stream.no-extras",
)
@pytest.mark.parametrize(
    ("quirk", "said"),
    [
        ("missing_index", {"call_index"}),
        ("missing_ids", {"call_id", "null_key"}),
        ("repeated_names", {"call_repeated"}),
        ("empty_strings", {"null_key"}),
        ("interleaved", {"calls_mixed"}),
        ("cumulative_arguments", {"cumulative_arguments"}),
        ("whole_calls", set()),
        ("stop_with_calls", {"untruthful_finish"}),
        ("index_from_one", {"call_index"}),
        ("every_index_zero", {"call_index"}),
        ("object_arguments", {"invalid_arguments"}),
    ],
)
def test_quirks_of_real_servers_are_reported_and_nothing_else(quirk: str, said: set[str]) -> None:
    assert topics([*with_quirk(quirk, TWO), DONE]) == said


@pytest.mark.check("chat.stream-is-body", "chat.stream.opener", "chat.stream.ids", "chat.stream.finish")
@pytest.mark.parametrize("nothing", [None, ""])
def test_an_empty_name_in_a_later_delta_replaces_nothing_and_hides_nothing(nothing: str | None) -> None:
    """Many servers send an empty or null name with later deltas. A name that is never sent is one fault."""
    later, opener = copy.deepcopy(TWO), copy.deepcopy(TWO)
    deltas = [
        call
        for chunk in later
        for choice in chunk["choices"]
        for call in choice["delta"].get("tool_calls", [])
    ]
    for call in deltas:
        call["function"].setdefault("name", nothing)
        call.setdefault("id", nothing)
    exchange = streamed(render([*later, DONE]))
    assert {topic for topic, _ in problems_of(exchange)} == {"null_key"}
    assert [(call.id, call.name) for call in exchange.answer.calls] == [
        (call["id"], call["function"]["name"])
        for call in completion(TWO)["choices"][0]["message"]["tool_calls"]
    ]
    first = next(
        call
        for chunk in opener
        for choice in chunk["choices"]
        for call in choice["delta"].get("tool_calls", [])
    )
    first["function"]["name"] = None
    assert topics([*opener, DONE]) == {"call_shape", "null_key"}


def test_a_right_stream_and_a_right_body_are_right() -> None:
    assert topics([*TWO, DONE]) == set()
    exchange = ProbeExchange(
        "chat.call.body", ProbeRequest("/chat/completions", {}), 200, {}, json.dumps(completion(TWO)).encode()
    )
    assert problems_of(exchange) == ()


@pytest.mark.check("chat.stream.index", "chat.stream.ids", "chat.stream-is-body")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda index: index + 1,
            ["a call has the index 1 where 0 was expected", "a call has the index 2 where 1 was expected"],
        ),
        (
            lambda index: index + 10**9,
            [
                "a call has the index 1000000000 where 0 was expected",
                "a call has the index 1000000001 where 1 was expected",
            ],
        ),
        (
            lambda index: -1,
            ["a call has the index -1 where 0 was expected", "the index -1 is given to two calls"],
        ),
        (
            str,
            [
                'the index of a call is "0", not a whole number',
                'the index of a call is "1", not a whole number',
            ],
        ),
        (
            float,
            [
                "the index of a call is 0.0, not a whole number",
                "the index of a call is 1.0, not a whole number",
            ],
        ),
        (
            lambda index: [index],
            [
                "the index of a call is [0], not a whole number",
                "the index of a call is [1], not a whole number",
            ],
        ),
        (lambda index: None, ["a call delta has no index"]),
    ],
    ids=["from one", "huge", "negative", "texts", "fractions", "lists", "null"],
)
def test_a_wrong_index_is_reported_once_per_call_and_correctly(
    change: Callable[[int], Any], said: list[str]
) -> None:
    frames = json.loads(json.dumps(TWO))
    for frame in frames:
        for made in frame["choices"][0]["delta"].get("tool_calls", ()):
            made["index"] = change(made["index"])
    exchange = streamed(render([*frames, DONE]))
    assert [(topic, problem.message) for topic, problem in problems_of(exchange)] == [
        ("call_index", sentence) for sentence in said
    ]
    if change(0) != change(1):
        assert [(made.name, made.object) for made in exchange.answer.calls] == [
            ("get_weather", {"city": "Paris"}),
            ("get_time", {"city": "Tokyo"}),
        ]


@pytest.mark.check("chat.stream.sse", "responses.stream.sse")
def test_a_frame_that_is_too_deep_is_reported_once_and_hides_nothing() -> None:
    deep = b"data: " + b"[" * 20_000 + b"]" * 20_000 + b"\n\n"
    exchange = streamed(deep + render([*TWO, DONE]))
    assert [(topic, problem.position) for topic, problem in problems_of(exchange)] == [("not_json", 0)]
    assert len(exchange.answer.calls) == 2


@pytest.mark.check("chat.stream.finish", "chat.body.finish", "chat.choice.named")
def test_stop_is_right_where_the_request_named_the_tool_and_nowhere_else() -> None:
    stopped = [*with_quirk("stop_with_calls", TWO), DONE]
    named = {"type": "function", "function": {"name": "get_weather"}}
    assert topics(stopped, tool_choice=named) == set() == topics([*TWO, DONE], tool_choice=named)
    for choice in (
        "auto",
        "required",
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}},
    ):
        assert topics(stopped, tool_choice=choice) == {"untruthful_finish"}


@pytest.mark.check("chat.stream.sse", "responses.stream.sse")
def test_syntax_of_the_event_stream_standard_is_accepted() -> None:
    raw = render([*TWO, DONE])
    for allowed in (
        b"retry: 3000\n\n" + raw,
        raw.replace(b"data: ", b"id: 1\ndata: "),
        b"\xef\xbb\xbf" + raw,
        raw.replace(b"}\n\n", b"}\n: x\n\n"),
    ):
        assert problems_of(streamed(allowed)) == () and len(streamed(allowed).answer.calls) == 2
    for wrong in (raw.replace(b"data: {", b"dato: {", 1), raw.replace(b"data: {", b"{", 1)):
        assert "sse_syntax" in {topic for topic, _ in problems_of(streamed(wrong))}


@pytest.mark.check("chat.stream.shape", "chat.stream.finish", "chat.usage.asked")
def test_an_envelope_of_wrong_types_does_not_hide_what_is_in_it() -> None:
    frames = [{**frame, "created": "today"} for frame in with_quirk("stop_with_calls", TWO)]
    assert topics([*frames, DONE]) == {"shape", "untruthful_finish"}


@pytest.mark.check("chat.body.usage", "chat.body.no-extras", "chat.usage.asked")
def test_details_that_are_null_are_an_extra_and_leave_the_counts_right() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, "prompt_tokens_details": None}
    chunks = answer("Hello.", usage=usage)
    plain = [{**chunk, "usage": None} for chunk in chunks[:-1]]
    assert topics(
        [*plain, chunks[-1], DONE], "chat.usage.stream", stream_options={"include_usage": True}
    ) == {"null_key"}
    exchange = ProbeExchange(
        "chat.text.body",
        ProbeRequest("/chat/completions", {}),
        200,
        {},
        json.dumps(completion(chunks)).encode(),
    )
    assert {topic for topic, _ in problems_of(exchange)} == {"null_key"}
    bare = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5, "input_tokens_details": None}
    body = json.dumps({**response("completed"), "usage": bare}).encode()
    kept = ProbeExchange("responses.text.body", ProbeRequest("/responses", {}), 200, {}, body)
    assert {topic for topic, _ in problems_of(kept)} == {"usage_details"}


def test_empty_keys_hide_no_other_problems() -> None:
    frames = [json.loads(json.dumps(frame)) for frame in TWO]
    for frame in frames:
        delta = frame["choices"][0]["delta"]
        frame["choices"][0]["delta"] = {"content": None, "function_call": None, "tool_calls": None, **delta}
        del frame["choices"][0]["finish_reason"]
    frames[-1]["choices"][0]["finish_reason"] = "stop"
    assert topics([*frames, DONE]) == {"null_key", "shape", "untruthful_finish"}


def test_items_that_come_mixed_are_sorted_and_judged() -> None:
    events: list[dict[str, Any]] = [
        {"type": kind, "response": response("in_progress")}
        for kind in ("response.created", "response.in_progress")
    ]
    items = [call(0, "get_weather", '{"city":"Paris"}'), call(1, "get_time", '{"city":"Tokyo"}')]
    events += [event for pair in zip(*(events for _, events in items), strict=True) for event in pair]
    events.append(
        {
            "type": "response.completed",
            "response": {**response("completed"), "output": [item for item, _ in items]},
        }
    )
    numbered = [{**event, "sequence_number": number} for number, event in enumerate(events)]
    assert topics(numbered, "responses.parallel.stream") == {"items_mixed"}
    for event in numbered:
        event.pop("sequence_number")
    assert topics(numbered, "responses.parallel.stream") == {"items_mixed", "sequence_number", "shape"}


def response(status: str) -> dict[str, Any]:
    said = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
    }
    echo = {"parallel_tool_calls": True, "metadata": {}, "tool_choice": "auto", "temperature": 1, "top_p": 1}
    return {**said, **echo, "model": "m", "tools": [], "output": []}


def call(index: int, name: str, arguments: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    item = {
        "type": "function_call",
        "id": f"fc_{index}",
        "call_id": f"call_{index}",
        "name": name,
        "arguments": arguments,
        "status": "completed",
    }
    place = {"output_index": index}
    return item, [
        {
            "type": "response.output_item.added",
            **place,
            "item": {**item, "arguments": "", "status": "in_progress"},
        },
        {
            "type": "response.function_call_arguments.delta",
            **place,
            "item_id": item["id"],
            "delta": arguments,
        },
        {
            "type": "response.function_call_arguments.done",
            **place,
            "item_id": item["id"],
            "name": name,
            "arguments": arguments,
        },
        {"type": "response.output_item.done", **place, "item": item},
    ]


# --- Messages ---


def messages_stream(stop_reason: str = "tool_use") -> list[dict[str, Any]]:
    message = {
        **{"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []},
        **{"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 0}},
    }
    call = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {}}
    piece = {"type": "input_json_delta", "partial_json": '{"city": "Paris"}'}
    ended = {"stop_reason": stop_reason, "stop_sequence": None}
    return [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": call},
        {"type": "content_block_delta", "index": 0, "delta": piece},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": ended, "usage": {"output_tokens": 3}},
        {"type": "message_stop"},
    ]


@pytest.mark.check("messages.stream.events", "messages.stream.usage", "messages.stream.stop")
@pytest.mark.parametrize(
    ("at", "path"),
    [(0, "message.usage"), (4, "usage"), (4, "delta.stop_sequence"), (1, "content_block.input")],
)
def test_a_missing_key_in_messages_is_one_fault_and_hides_nothing(at: int, path: str) -> None:
    own = {"usage_shape"} if path.endswith("usage") else {"shape"}
    faults: dict[str, set[str]] = {"tool_use": set(), "end_turn": {"untruthful_finish"}}
    for stop_reason, hidden in faults.items():
        frames = messages_stream(stop_reason)
        *steps, last = path.split(".")
        holder: Any = frames[at]
        for step in steps:
            holder = holder[step]
        del holder[last]
        assert topics(frames, "messages.call.stream") == own | hidden
    assert topics(messages_stream(), "messages.call.stream") == set()

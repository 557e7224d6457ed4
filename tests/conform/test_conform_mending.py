"""One fault is one failure: a small slip is told once and hides nothing of what comes after it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from toolwire.conform.exchange import Exchange, Request
from toolwire.conform.problems import problems_of
from toolwire.judge import DONE
from toolwire.judge.damage import render
from toolwire.testing.upstream import answer, completion, sinned

TWO = answer("Let me look.", [("call_1", "get_weather", '{"city": "Paris"}'), ("call_2", "get_time", '{"city": "Tokyo"}')])


def topics(frames: list[Any], question: str = "chat.parallel.stream") -> set[str]:
    request = Request("/chat/completions", {"stream": True})
    family: Any = question.partition(".")[0]
    exchange = Exchange(question, family, request, 200, {"content-type": "text/event-stream"}, render(frames))
    return {topic for topic, _ in problems_of(exchange)}


@pytest.mark.check("chat.stream.index", "chat.stream.ids", "chat.stream.names-once", "chat.stream.increments", "chat.stream.no-extras")
@pytest.mark.parametrize(
    ("sin", "said"),
    [
        ("missing_index", {"call_index"}),
        ("missing_ids", {"call_id", "null_key"}),
        ("repeated_names", {"call_repeated"}),
        ("empty_strings", {"null_key"}),
        ("interleaved", {"calls_mixed"}),
        ("cumulative_arguments", {"cumulative_arguments"}),
        ("whole_calls", set()),
        ("stop_with_calls", {"untruthful_finish"}),
    ],
)
def test_what_real_servers_do_is_called_by_its_name_and_nothing_else(sin: str, said: set[str]) -> None:
    assert topics([*sinned(sin, TWO), DONE]) == said


def test_a_right_stream_and_a_right_body_are_right() -> None:
    assert topics([*TWO, DONE]) == set()
    exchange = Exchange("chat.call.body", "chat", Request("/chat/completions", {}), 200, {}, json.dumps(completion(TWO)).encode())
    assert problems_of(exchange) == ()


def test_keys_that_say_nothing_hide_nothing() -> None:
    frames = [json.loads(json.dumps(frame)) for frame in TWO]
    for frame in frames:
        delta = frame["choices"][0]["delta"]
        frame["choices"][0]["delta"] = {"content": None, "function_call": None, "tool_calls": None, **delta}
        del frame["choices"][0]["finish_reason"]
    frames[-1]["choices"][0]["finish_reason"] = "stop"
    assert topics([*frames, DONE]) == {"null_key", "shape", "untruthful_finish"}


def test_items_that_come_mixed_are_sorted_and_judged() -> None:
    events: list[dict[str, Any]] = [{"type": kind, "response": response("in_progress")} for kind in ("response.created", "response.in_progress")]
    items = [call(0, "get_weather", '{"city":"Paris"}'), call(1, "get_time", '{"city":"Tokyo"}')]
    events += [event for pair in zip(*(events for _, events in items), strict=True) for event in pair]
    events.append({"type": "response.completed", "response": {**response("completed"), "output": [item for item, _ in items]}})
    numbered = [{**event, "sequence_number": number} for number, event in enumerate(events)]
    assert topics(numbered, "responses.parallel.stream") == {"items_mixed"}
    for event in numbered:
        event.pop("sequence_number")
    assert topics(numbered, "responses.parallel.stream") == {"items_mixed", "sequence_number", "shape"}


def response(status: str) -> dict[str, Any]:
    said = {"id": "resp_1", "object": "response", "created_at": 1, "status": status, "error": None, "incomplete_details": None, "instructions": None}
    echo = {"parallel_tool_calls": True, "metadata": {}, "tool_choice": "auto", "temperature": 1, "top_p": 1}
    return {**said, **echo, "model": "m", "tools": [], "output": []}


def call(index: int, name: str, arguments: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    item = {"type": "function_call", "id": f"fc_{index}", "call_id": f"call_{index}", "name": name, "arguments": arguments, "status": "completed"}
    place = {"output_index": index}
    return item, [
        {"type": "response.output_item.added", **place, "item": {**item, "arguments": "", "status": "in_progress"}},
        {"type": "response.function_call_arguments.delta", **place, "item_id": item["id"], "delta": arguments},
        {"type": "response.function_call_arguments.done", **place, "item_id": item["id"], "name": name, "arguments": arguments},
        {"type": "response.output_item.done", **place, "item": item},
    ]

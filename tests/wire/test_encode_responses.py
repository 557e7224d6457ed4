"""The Responses encoder reproduces the golden streams, and handles the cases that they do not show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from toolwire.core.events import (
    CallArgs,
    CallBegin,
    CallEnd,
    Event,
    Failure,
    Finish,
    McpAsk,
    McpCall,
    McpResult,
    McpTools,
    Refusal,
    Text,
    Thought,
    Usage,
)
from toolwire.core.ids import IdFactory, counting_ids
from toolwire.core.turn import ToolSpec, Turn
from toolwire.wire.responses.decode import decode
from toolwire.wire.responses.encode import ResponsesEncoder
from toolwire.wire.sse import EMPTY_LINE, SseEvent, SseReader

GOLDEN = Path(__file__).parents[1] / "conform" / "golden"
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def numbered() -> IdFactory:
    """Ids as in the golden streams: the number is the item's index in the output."""
    numbers = iter(range(1000))
    return lambda prefix: f"{prefix}{next(numbers)}"


def turn(**options: Any) -> Turn:
    return Turn("responses", "m", (), **{"store": True, **options})


def encoder(asked: Turn | None = None, ids: IdFactory | None = None) -> ResponsesEncoder:
    return ResponsesEncoder(asked or turn(), id="resp_1", created=1, ids=ids or numbered(), clock=lambda: 2.9)


def frames(stream: bytes) -> list[dict[str, Any]]:
    reader = SseReader()
    parsed = []
    for event in reader.feed(stream) + reader.feed(EMPTY_LINE):
        assert isinstance(event, SseEvent)
        data: dict[str, Any] = json.loads(event.data)
        assert data["type"] == event.name
        parsed.append(data)
    return parsed


def stream(*events: Event, asked: Turn | None = None) -> list[dict[str, Any]]:
    responses = encoder(asked)
    return frames(responses.feed(events) + responses.finish())


USAGE = Usage(9, 5)
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True, "description": None}
ONE_CALL: list[Event] = [
    CallBegin(0, "f", "call_a"),
    CallArgs(0, '{"x"'),
    CallArgs(0, ":1}"),
    CallEnd(0),
    USAGE,
    Finish(),
]
SERVER = {"type": "mcp", "server_label": "files", "server_url": "https://mcp.example.com/"}
SERVED = {"tools": [{**SERVER, "allowed_tools": None, "headers": None, "require_approval": "always"}]}
PATHS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
READS = {
    **{"name": "read", "description": "Reads a file.", "input_schema": PATHS},
    "annotations": {"read_only": True},
}
LISTED = McpTools("mcpl_1", "files", (READS,))
CALLED = ("files", "read", '{"path":"a.md"}')
READ = McpCall("mcp_1", *CALLED)
SAID: list[Event] = [Text("It says Hello."), USAGE, Finish()]
MISSING = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "no such file"}]}
GOLDENS: dict[str, tuple[list[Event], Turn]] = {
    "resp_text": ([Text("Hel"), Text("lo"), USAGE, Finish()], turn()),
    "resp_one_tool": (ONE_CALL, turn()),
    "resp_two_tools": (
        [
            CallBegin(0, "f", "call_a"),
            CallArgs(0, '{"x":1}'),
            CallEnd(0),
            CallBegin(1, "g", "call_b"),
            CallArgs(1, '{"y":2}'),
            CallEnd(1),
            USAGE,
            Finish(),
        ],
        turn(),
    ),
    "resp_text_then_tool": (
        [Text("Let me look."), CallBegin(0, "f", "call_a"), CallEnd(0), USAGE, Finish()],
        turn(),
    ),
    "resp_reasoning_tool": (
        [
            Thought("Think", True),
            Thought("ing", True),
            CallBegin(0, "f", "call_a"),
            CallEnd(0),
            USAGE,
            Finish(),
        ],
        turn(),
    ),
    "resp_custom_tool": (
        [
            CallBegin(0, "apply_patch", "call_a", "custom"),
            CallArgs(0, "*** Begin Patch"),
            CallEnd(0),
            USAGE,
            Finish(),
        ],
        turn(),
    ),
    "resp_refusal": ([Refusal("I can't "), Refusal("help."), USAGE, Finish()], turn()),
    "resp_length": ([Text("trunc"), USAGE, Finish("length")], turn()),
    "resp_tool_length": (
        [
            CallBegin(0, "f", "call_a"),
            CallArgs(0, '{"x":"tru'),
            CallEnd(0, "truncated"),
            USAGE,
            Finish("length"),
        ],
        turn(),
    ),
    "resp_content_filter": ([USAGE, Finish("content_filter")], turn()),
    "resp_json_schema": (
        [Text('{"a":'), Text("1}"), USAGE, Finish()],
        turn(echo={"text": {"format": FORMAT}}),
    ),
    "resp_previous": ([Text("It is 21C."), USAGE, Finish()], turn(previous_response_id="resp_0")),
    "resp_failed": ([Text("par"), Failure("server", "backend died")], turn()),
    "resp_mcp_call": ([LISTED, READ, McpResult("Hello"), *SAID], turn(echo=SERVED)),
    "resp_mcp_ask": ([LISTED, McpAsk("mcpr_1", *CALLED), USAGE, Finish()], turn(echo=SERVED)),
    "resp_mcp_approved": (
        [McpCall("mcp_1", *CALLED, "mcpr_1"), McpResult("Hello"), *SAID],
        turn(echo=SERVED),
    ),
    "resp_mcp_failed": (
        [LISTED, READ, McpResult(None, MISSING), Text("It is missing."), USAGE, Finish()],
        turn(echo=SERVED),
    ),
}


def test_every_golden_stream_of_this_api_is_covered() -> None:
    assert {path.stem for path in GOLDEN.glob("resp_*.sse")} == set(GOLDENS)


@pytest.mark.parametrize("name", GOLDENS)
def test_golden_stream_is_reproduced_field_by_field(name: str) -> None:
    events, asked = GOLDENS[name]
    expected = frames((GOLDEN / f"{name}.sse").read_bytes())
    sent = stream(*events, asked=asked)
    assert sent == expected
    assert json.dumps(sent) == json.dumps(expected)  # the order of keys too


@pytest.mark.parametrize("name", GOLDENS)
def test_golden_events_validate_as_the_sdks_types(name: str) -> None:
    for event in stream(*GOLDENS[name][0], asked=GOLDENS[name][1]):
        EVENTS.validate_python(event)


def test_events_in_many_batches_give_the_same_bytes_as_in_one() -> None:
    one, many = encoder(), encoder()
    assert (
        b"".join([many.feed([event]) for event in ONE_CALL]) + many.finish()
        == one.feed(ONE_CALL) + one.finish()
    )


def test_nothing_is_sent_before_the_first_output() -> None:
    responses = encoder()
    assert responses.feed([Usage(1, 1), Text("")]) == b""
    assert [frame["type"] for frame in frames(responses.feed([Text("a")]))][:2] == [
        "response.created",
        "response.in_progress",
    ]


def test_the_response_is_the_object_of_the_terminal_event() -> None:
    responses = encoder()
    sent = frames(responses.feed([Text("a"), *ONE_CALL]) + responses.finish())
    assert sent[-1]["response"] == responses.response()
    Response.model_validate(responses.response())


def test_the_comment_is_a_separate_block_before_the_terminal_event() -> None:
    responses = encoder()
    responses.feed([Text("a"), Finish()])
    comment, terminal, rest = responses.finish("facts").split(b"\n\n")
    assert comment == b": facts" and terminal.startswith(b"event: response.completed\n") and rest == b""


def test_raw_thoughts_are_a_reasoning_item_with_content() -> None:
    sent = stream(Thought("h"), Thought("m"), Text("a"), Finish())
    for event in sent:
        EVENTS.validate_python(event)
    assert [frame["type"].removeprefix("response.") for frame in sent[2:9]] == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
    ]
    assert sent[8]["item"] == {
        "id": "rs_0",
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "hm"}],
    }


def test_reasoning_that_was_cut_off_says_so() -> None:
    [item] = stream(Thought("h"), Finish("length"))[-1]["response"]["output"]
    assert item["status"] == "incomplete"


def test_a_call_of_a_namespaced_tool_names_its_namespace() -> None:
    asked = turn(tools=(ToolSpec("spawn", namespace="agents"), ToolSpec("plain")))
    sent = stream(
        CallBegin(0, "spawn", "a"), CallEnd(0), CallBegin(1, "plain", "b"), CallEnd(1), Finish(), asked=asked
    )
    for event in sent:
        EVENTS.validate_python(event)
    first, second = sent[-1]["response"]["output"]
    assert first["namespace"] == "agents" and "namespace" not in second
    assert sent[2]["item"]["namespace"] == "agents"


def test_a_run_that_breaks_off_closes_its_item_and_fails() -> None:
    responses = encoder()
    sent = frames(responses.feed([CallBegin(0, "f", "call_a"), CallArgs(0, '{"x')]) + responses.finish())
    assert [frame["type"] for frame in sent[-2:]] == ["response.output_item.done", "response.failed"]
    assert sent[-2]["item"]["status"] == "incomplete"
    assert sent[-1]["response"]["error"]["code"] == "server_error"
    assert responses.failure is not None and responses.failure.kind == "backend_cut"


def test_a_run_that_fails_before_any_output_still_opens_and_fails() -> None:
    sent = stream(Failure("rate_limit", "slow down"))
    assert [frame["type"] for frame in sent] == [
        "response.created",
        "response.in_progress",
        "response.failed",
    ]
    assert sent[0]["response"]["error"] is None and sent[0]["response"]["status"] == "in_progress"
    assert sent[2]["response"]["error"] == {"code": "rate_limit_exceeded", "message": "slow down"}


def test_the_request_is_echoed_and_what_it_left_out_is_filled_in() -> None:
    asked = decode(
        {
            "model": "m",
            "input": "Hi",
            "instructions": "be brief",
            "parallel_tool_calls": False,
            "store": False,
            "metadata": {"k": "v"},
            "user": "u",
            "temperature": 0.0,
            "max_output_tokens": 7,
            "tools": [{"type": "function", "name": "f", "strict": None}, {"type": "web_search"}],
            "tool_choice": {"type": "function", "name": "f"},
            "reasoning": {"effort": "low"},
            "text": {"verbosity": "low"},
            "truncation": "auto",
        }
    )
    response = stream(Finish(), asked=asked)[-1]["response"]
    assert response["tools"] == [
        {"description": None, "parameters": {}, "type": "function", "name": "f", "strict": False},
        {"type": "web_search"},
    ]
    assert response["tool_choice"] == {"type": "function", "name": "f"}
    assert response["reasoning"] == {"effort": "low", "summary": None}
    assert response["text"] == {"format": {"type": "text"}, "verbosity": "low"}
    picked = (
        "instructions",
        "parallel_tool_calls",
        "store",
        "metadata",
        "user",
        "temperature",
        "max_output_tokens",
        "truncation",
        "top_p",
    )
    assert [response[key] for key in picked] == [
        "be brief",
        False,
        False,
        {"k": "v"},
        "u",
        0.0,
        7,
        "auto",
        1.0,
    ]
    Response.model_validate(response)


def test_a_key_that_may_not_be_null_is_left_out() -> None:
    response = stream(Text("a"), Finish())[-1]["response"]
    assert "user" not in response and "usage" not in response


def test_lone_surrogates_become_replacement_characters_and_deltas_still_add_up() -> None:
    responses = encoder(turn(instructions="\ud800"), counting_ids())
    sent = frames(
        responses.feed(
            [Text("a\ud83d"), Text("\ude00"), CallBegin(0, "f\ud800"), CallArgs(0, "\ud800"), Finish()]
        )
        + responses.finish()
    )
    text = "".join(frame["delta"] for frame in sent if frame["type"] == "response.output_text.delta")
    assert text == "a\ufffd\ufffd"
    message, call = sent[-1]["response"]["output"]
    assert message["content"][0]["text"] == text
    assert (call["name"], call["arguments"]) == ("f\ufffd", "\ufffd")


def test_a_long_stream_counts_its_events_without_a_gap() -> None:
    sent = stream(*[Text("x")] * 5000, Finish())
    assert [frame["sequence_number"] for frame in sent] == list(range(len(sent)))

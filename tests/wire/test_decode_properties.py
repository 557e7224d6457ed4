"""Decoding any JSON object returns a Turn or raises `ToolwireError`, and never changes the object."""

from __future__ import annotations

import copy
import re
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from toolwire.core.errors import KINDS, ToolwireError
from toolwire.core.turn import Turn
from toolwire.wire.chat import decode as chat
from toolwire.wire.responses import decode as responses

PATH = re.compile(r"[a-z_]+(\[\d+\])?(\.[a-z_]+(\[\d+\])?)*")

CHAT_SEED: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "n": 2,
    "temperature": 1,
    "stop": ["a"],
    "metadata": {"a": "b"},
    "stream_options": {"include_usage": True},
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": {}, "strict": True},
    },
    "tools": [
        {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}, "strict": None}},
        {
            "type": "custom",
            "custom": {
                "name": "patch",
                "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /x/"}},
            },
        },
        {"type": "namespace", "name": "crm", "tools": [{"type": "function", "name": "find"}]},
        {"type": "web_search"},
    ],
    "tool_choice": {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "look"}}]},
    },
    "functions": [{"name": "old"}],
    "function_call": {"name": "old"},
    "messages": [
        {"role": "system", "content": "S"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "a"},
                {"type": "image_url", "image_url": {"url": "https://x/y", "detail": "low"}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "x", "name": "look"},
        {"role": "assistant", "content": None, "function_call": {"name": "old", "arguments": "{}"}},
        {"role": "function", "name": "old", "content": None},
    ],
}
RESPONSES_SEED: dict[str, Any] = {
    "model": "m",
    "instructions": "I",
    "text": {"format": {"type": "json_schema", "name": "answer", "schema": {}}, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto"},
    "tools": [
        {"type": "function", "name": "look"},
        {"type": "custom", "name": "patch"},
        {"type": "mcp", "server_label": "x", "server_url": "https://x.example/", "headers": {"A": "b"}},
    ],
    "tool_choice": {"type": "function", "name": "look"},
    "include": ["reasoning.encrypted_content"],
    "previous_response_id": "resp_1",
    "input": [
        {
            "role": "user",
            "content": [
                {"type": "input_image", "image_url": "data:,x", "detail": "auto"},
                {"type": "input_file", "file_id": "f"},
            ],
        },
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "S"}],
            "encrypted_content": None,
        },
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "x"}]},
        {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "x"},
        {"type": "item_reference", "id": "msg_1"},
        {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "x", "tools": []},
        *(
            {"type": "mcp_approval_request", "id": id, "server_label": "x", "name": "t", "arguments": "{}"}
            for id in ("mcpr_1", "mcpr_2")
        ),
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_2", "approve": False, "reason": "no"},
        {
            **{"type": "mcp_call", "id": "mcp_1", "server_label": "x", "name": "t", "arguments": "{}"},
            **{"approval_request_id": "mcpr_1", "output": "done", "error": None, "status": "completed"},
        },
    ],
}

words = st.sampled_from(
    [
        "",
        "user",
        "tool",
        "assistant",
        "function",
        "message",
        "function_call_output",
        "c1",
        "look",
        "auto",
        "required",
        "text",
        "image_url",
        "custom",
        "\x00",
    ]
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.just(10**400),
    st.floats(allow_nan=False, allow_infinity=False),
    words,
)
keys = st.sampled_from(
    sorted(
        {
            *chat.FIELDS,
            *responses.FIELDS,
            "tools",
            "tool_choice",
            "input",
            "type",
            "role",
            "content",
            "name",
            "id",
            "function",
            "call_id",
            "x",
        }
    )
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=4)),
    max_leaves=8,
)


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to every value inside a value."""
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    found = [here] if here else []
    for key, child in children:
        found += places(child, (*here, key))
    return found


@st.composite
def mutated(draw: st.DrawFn, seed: dict[str, Any]) -> dict[str, Any]:
    """The seed with up to three of its values replaced, removed or doubled."""
    request = copy.deepcopy(seed)
    for _ in range(draw(st.integers(0, 3))):
        *way, last = draw(st.sampled_from(places(request) or [("model",)]))
        holder: Any = request
        for key in way:
            holder = holder[key]
        change = draw(st.sampled_from(["replace", "remove", "double"]))
        if change == "replace" or (change == "double" and isinstance(holder, dict)):
            holder[last] = draw(values)
        elif change == "remove":
            del holder[last]
        else:
            holder.append(copy.deepcopy(holder[last]))
    return request


def survives(decode: Any, request: dict[str, Any]) -> None:
    before = copy.deepcopy(request)
    try:
        turn = decode(request)
    except ToolwireError as error:
        failure = error.failure
        assert KINDS[failure.kind].status == 400
        assert failure.param is not None and PATH.fullmatch(failure.param)
        assert failure.message.isprintable()
    else:
        assert isinstance(turn, Turn)
        assert all(PATH.fullmatch(field) for field, _ in turn.notes)
        msgspec.json.encode(turn.echo)
        hash((turn.model, turn.sent, turn.tool_choice, turn.notes))
    assert request == before


@settings(max_examples=250, deadline=None)
@given(mutated(CHAT_SEED))
def test_a_mutated_chat_request_gives_a_turn_or_a_refusal(request: dict[str, Any]) -> None:
    survives(chat.decode, request)


@settings(max_examples=250, deadline=None)
@given(mutated(RESPONSES_SEED))
def test_a_mutated_responses_request_gives_a_turn_or_a_refusal(request: dict[str, Any]) -> None:
    survives(responses.decode, request)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(keys, values, max_size=6), st.booleans())
def test_any_object_gives_a_turn_or_a_refusal(request: dict[str, Any], named: bool) -> None:
    for decode in (chat.decode, responses.decode):
        survives(decode, {**request, "model": "m"} if named else request)


def test_the_seeds_themselves_decode() -> None:
    assert len(chat.decode(CHAT_SEED).items) == 6
    assert len(responses.decode(RESPONSES_SEED).items) == 10

"""Requests in the shapes that Obsidian Copilot sends, with contents written for these tests.

These deviations were observed in its requests to the Responses API. Tools are either flat, or nested under
`function` as in chat completions; with nested tools, it sends both `tool_choice` and `toolChoice`. `strict`
is null, and `text` is an empty object. If the model only called a tool, an assistant message with empty
content comes before the call.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def _object(properties: Json, *required: str) -> Json:
    schema: Json = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": list(required)} if required else schema


def _tool(name: str, description: str, parameters: Json) -> Json:
    dialect = "http://json-schema.org/draft-07/schema#"
    return {
        "name": name,
        "description": description,
        "parameters": {**parameters, "$schema": dialect},
        "strict": None,
    }


_TEXT = {"type": "string", "minLength": 1}
_TEXTS = {"type": "array", "items": {"type": "string"}}
_SPAN = _object({"startTime": {"type": "number"}, "endTime": {"type": "number"}}, "startTime", "endTime")
_EXPANDED = _object(
    {"originalQuery": {"type": "string"}, "recallTerms": _TEXTS}, "originalQuery", "recallTerms"
)
_SPOKEN = _object(
    {"role": {"type": "string", "enum": ["user", "assistant"]}, "content": {"type": "string"}},
    "role",
    "content",
)
_FUNCTIONS = [
    _tool(
        "localSearch",
        "Finds notes.",
        _object(
            {"query": _TEXT, "salientTerms": _TEXTS, "timeRange": _SPAN, "_preExpandedQuery": _EXPANDED},
            "query",
            "salientTerms",
        ),
    ),
    _tool(
        "webSearch",
        'Finds pages.\n\nEXAMPLES:\n- "opening hours" → the café\'s page',
        _object({"query": _TEXT, "chatHistory": {"type": "array", "items": _SPOKEN}}, "query", "chatHistory"),
    ),
    _tool("getCurrentTime", "The time.", _object({"timezoneOffset": {"type": "string"}})),
    _tool("getTimeInfoByEpoch", "A time in words.", _object({"epoch": {"type": "number"}}, "epoch")),
    _tool(
        "readNote",
        "One part of a note.",
        _object({"notePath": _TEXT, "chunkIndex": {"type": "integer", "minimum": 0}}, "notePath"),
    ),
    _tool(
        "writeToFile",
        "Writes a file.",
        _object(
            {
                "path": {"type": "string"},
                "content": {
                    "anyOf": [
                        {"type": "string"},
                        {"type": "object", "properties": {}, "additionalProperties": True},
                    ]
                },
                "confirmation": {"type": "boolean", "default": True},
            },
            "path",
            "content",
        ),
    ),
    _tool("getFileTree", "All files.", _object({})),
    _tool(
        "getTagList",
        "All tags.",
        {
            **_object({"maxEntries": {"type": "integer", "minimum": 1, "maximum": 5000}}),
            "description": "Limits.",
        },
    ),
]

TOOLS: list[Json] = [{"type": "function", "function": function} for function in _FUNCTIONS]
"""Tools in the shape of chat completions."""
FLAT_TOOLS: list[Json] = [{"type": "function", **function} for function in _FUNCTIONS]

_COMMON: Json = {
    "model": "some-model",
    "temperature": 1,
    "stream": True,
    "text": {},
    "max_output_tokens": 65000,
}
_INSTRUCTIONS = {"type": "message", "role": "developer", "content": "You look after a folder of notes."}

QUESTION: Json = {
    **_COMMON,
    "tools": TOOLS,
    "tool_choice": "auto",
    "toolChoice": "auto",
    "input": [_INSTRUCTIONS, {"type": "message", "role": "user", "content": "What did I write about tea?"}],
}
"""A Responses request with a new question."""

RESULT: Json = {
    **_COMMON,
    "tools": FLAT_TOOLS,
    "input": [
        _INSTRUCTIONS,
        {"type": "message", "role": "user", "content": "When does the tea shop open?"},
        {"type": "message", "role": "assistant", "content": ""},
        {
            "type": "function_call",
            "name": "webSearch",
            "arguments": '{"query":"tea shop opening hours","chatHistory":[]}',
            "call_id": "call_7Fq2",
        },
        {"type": "function_call_output", "call_id": "call_7Fq2", "output": "The shop opens at nine."},
    ],
}
"""A Responses request with the result of a call."""

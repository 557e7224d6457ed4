"""Draws random runs and damaged request bodies.

An event is a list of a class name and its values, so that cases are plain data as in `generate.py`.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

from fuzz.generate import NAMES, WORDS, Case, arguments, pieces, text, value

# --- events ---


def _short(rng: Random) -> str:
    return text(rng, 2) if rng.random() < 0.5 else rng.choice(WORDS)


def call_events(rng: Random, index: int, custom: bool) -> list[list[Any]]:
    kind = "custom" if custom and rng.random() < 0.3 else "function"
    written = json.dumps(arguments(rng), ensure_ascii=False)
    parts = pieces(written, sorted(rng.randint(0, len(written)) for _ in range(rng.randint(0, 4))))
    own = None if rng.random() < 0.5 else f"call_own{index}"
    events: list[list[Any]] = [
        ["CallBegin", index, rng.choice(NAMES), own, kind],
        *(["CallArgs", index, part] for part in parts),
    ]
    return (
        [*events, ["CallEnd", index, rng.choice(("ok", "ok", "repaired", "truncated", "invalid")), []]]
        if rng.random() < 0.9
        else events
    )


def run_events(rng: Random, wild: bool, custom: bool = True) -> list[list[Any]]:
    """Returns the events of a run, each as a list of a class name and its values.

    A correct backend could produce these events. With `wild`, some events are repeated or out of place.
    """
    events: list[list[Any]] = []
    calls = 0
    for _ in range(rng.randint(0, 7)):
        kind = rng.randrange(8)
        if kind < 3:
            events.append(["Text", _short(rng)])
        elif kind == 3:
            events.append(["Thought", _short(rng), rng.random() < 0.5])
            if rng.random() < 0.3:
                events.append(["Signature", _short(rng), rng.random() < 0.3])
        elif kind == 4 and rng.random() < 0.3:
            events.append(["Refusal", _short(rng)])
        elif kind == 5:
            events.append(
                ["Usage", rng.randint(0, 9), rng.randint(0, 9), rng.randint(0, 3), rng.randint(0, 3)]
            )
        else:
            events += call_events(rng, calls, custom)
            calls += 1
    if rng.random() < 0.9:
        reason = rng.choice(("stop", "stop", "tool_calls", "length", "content_filter"))
        events.append(["Finish", reason, rng.choice((None, None, "END")), rng.random() < 0.2])
    elif rng.random() < 0.8:
        events.append(
            ["Failure", rng.choice(("backend", "timeout", "rate_limit", "server")), "!" + _short(rng)]
        )
    if wild:
        for _ in range(rng.randint(1, 4)):
            stray = (
                rng.choice(events)
                if events and rng.random() < 0.7
                else ["CallArgs", rng.randint(0, 3), _short(rng)]
            )
            events.insert(rng.randint(0, len(events)), stray)
    return events


# --- requests ---

_FUNCTION = {
    "name": "look",
    "description": "Looks.",
    "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
}
_CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"q": "x"}'}}
_CUSTOM = {"id": "call_2", "type": "custom", "custom": {"name": "free", "input": "x"}}
_FREE = {"type": "custom", "custom": {"name": "free", "format": {"type": "text"}}}
_SAID = {"type": "output_text", "text": "so", "annotations": []}
_SEEN = {"type": "input_image", "image_url": "https://example.com/a.png", "detail": "auto"}
_FORMAT = {
    "name": "answer",
    "schema": {"type": "object", "properties": {}, "additionalProperties": False},
    "strict": True,
}
_IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}}

CHAT_BODY: Case = {
    "model": "demo",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What is this?"}, _IMAGE], "name": "ann"},
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": [_CALL, _CUSTOM]},
        {"role": "tool", "tool_call_id": "call_1", "content": "a cat"},
        {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "two"}]},
        {"role": "assistant", "content": "So.", "reasoning_content": "Hm."},
        {"role": "user", "content": "Go on."},
    ],
    "tools": [{"type": "function", "function": {**_FUNCTION, "strict": True}}, _FREE],
    "tool_choice": {"type": "function", "function": {"name": "look"}},
    "parallel_tool_calls": True,
    "response_format": {"type": "json_schema", "json_schema": _FORMAT},
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.5,
    "top_p": 1,
    "max_completion_tokens": 100,
    "n": 2,
    "stop": ["END"],
    "seed": 7,
    "presence_penalty": 0.1,
    "logit_bias": {"50256": -100},
    "reasoning_effort": "low",
    "metadata": {"a": "b"},
    "user": "u",
    "store": False,
}
LEGACY_BODY: Case = {
    "model": "demo",
    "messages": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}},
        {"role": "function", "name": "look", "content": "nothing"},
    ],
    "functions": [_FUNCTION],
    "function_call": {"name": "look"},
}
RESPONSES_BODY: Case = {
    "model": "demo",
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": "Hi"},
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "x"}]},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "s"}],
            "encrypted_content": "e",
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "call_1",
            "name": "look",
            "arguments": "{}",
            "status": "completed",
        },
        {
            "type": "function_call_output",
            "call_id": "call_1",
            "output": [{"type": "input_text", "text": "y"}],
        },
        {"type": "custom_tool_call", "id": "ct_1", "call_id": "call_2", "name": "free", "input": "text"},
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": "z"},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [_SAID]},
        {"type": "item_reference", "id": "x"},
        {"role": "user", "content": [_SEEN, {"type": "input_text", "text": "?"}]},
    ],
    "tools": [
        {"type": "function", **_FUNCTION, "strict": False},
        {
            "type": "custom",
            "name": "free",
            "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x+/"},
        },
        {"type": "web_search"},
        {
            "type": "namespace",
            "name": "team",
            "tools": [{"type": "function", "name": "ask", "parameters": {}}],
        },
    ],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]},
    "parallel_tool_calls": False,
    "text": {"format": {"type": "json_schema", **_FORMAT}, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto"},
    "truncation": "disabled",
    "include": ["reasoning.encrypted_content"],
    "max_output_tokens": 50,
    "max_tool_calls": 3,
    "temperature": 1.0,
    "previous_response_id": None,
    "store": True,
    "stream": True,
    "metadata": {},
}
MESSAGES_BODY: Case = {
    "model": "demo",
    "max_tokens": 100,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Hi"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
                {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}},
            ],
        },
        {"role": "system", "content": "Now.", "output_config": {"effort": "low"}},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "So."},
                {"type": "tool_use", "id": "call_1", "name": "look", "input": {"q": "x"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "call_1",
                    "is_error": True,
                    "content": [
                        {"type": "text", "text": "no"},
                        {"type": "tool_reference", "tool_name": "later"},
                    ],
                },
                {"type": "search_result", "title": "T", "source": "s", "content": [{"text": "x"}]},
                {"type": "text", "text": "Go on."},
            ],
        },
    ],
    "tools": [
        {"name": "look", "description": "Looks.", "input_schema": _FUNCTION["parameters"], "strict": True},
        {"type": "custom", "name": "later", "input_schema": {"type": "object"}, "defer_loading": True},
        {"type": "bash_20250124", "name": "bash"},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
    ],
    "tool_choice": {"type": "tool", "name": "look", "disable_parallel_tool_use": True},
    "stop_sequences": ["END"],
    "temperature": 0.5,
    "top_p": 1,
    "top_k": 4,
    "thinking": {"type": "enabled", "budget_tokens": 2000, "display": "updates"},
    "output_config": {"effort": "high", "format": {"type": "json_schema", "schema": _FORMAT["schema"]}},
    "metadata": {"user_id": "u"},
    "context_management": {"edits": []},
    "stream": True,
}
_STRANGE: list[Any] = [
    *(None, True, False, 0, -1, 1, 2.5, 1e308, 2**70),
    *("", "x", "auto", "none", "look", "\u2028\x00", "a" * 300),
    *([], [None], [[]], {}, {"type": "x"}, {"": {}}),
]


def _strange(rng: Random) -> Any:
    return json.loads(json.dumps(rng.choice(_STRANGE)))  # a copy, because a later accident may change it


def _places(what: Any, out: list[tuple[Any, Any]]) -> None:
    entries = (
        list(what.items())
        if isinstance(what, dict)
        else list(enumerate(what))
        if isinstance(what, list)
        else []
    )
    for place, inner in entries:
        out.append((what, place))
        _places(inner, out)


def strange_body(rng: Random, body: Case) -> Case:
    """Returns a request with a few of its values replaced, removed, doubled or swapped."""
    fresh: Case = json.loads(json.dumps(body))
    for name in [name for name in fresh if rng.random() < 0.3 and name not in ("model", "messages", "input")]:
        del fresh[name]
    for _ in range(rng.choice((0, 1, 1, 1, 2, 4))):
        places: list[tuple[Any, Any]] = []
        _places(fresh, places)
        if not places:
            break
        holder, place = rng.choice(places)
        accident = rng.randrange(6)
        if accident == 0:
            del holder[place]
        elif accident == 1 and isinstance(holder, list):
            holder.insert(place, json.loads(json.dumps(holder[place])))
        elif accident == 2:
            other, there = rng.choice(places)
            holder[place] = json.loads(json.dumps(other[there]))
        elif accident == 3 and isinstance(holder, dict):
            holder[
                rng.choice(("type", "id", "name", "content", "role", "zz", "n", "tools", "stop", "function"))
            ] = _strange(rng)
        elif accident == 4:
            holder[place] = value(rng, 2)
        else:
            holder[place] = _strange(rng)
    return fresh


def strange_bytes(rng: Random, raw: bytes) -> bytes:
    """Returns the bytes of a request with a few accidents; some are no longer UTF-8 or JSON."""
    for _ in range(rng.randint(0, 3)):
        place = rng.randint(0, len(raw))
        junk = rng.choice(
            (
                b"",
                b"\xff",
                b"\x00",
                b"\\ud800",
                b'"',
                b"{",
                b"[" * 300,
                b"1e999",
                b",",
                b"\xed\xa0\x80",
                b"NaN",
                b"\xef\xbb\xbf",
            )
        )
        raw = raw[:place] + junk + raw[place + rng.choice((0, 1, 5)) :]
    return raw

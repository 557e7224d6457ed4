"""Calls as a dialect writes them: for the history that a text-only model reads, and for the round trip that every dialect is held to.

`parse(render(call)) == call` for any JSON arguments that the tool's schema allows, with every marker inside strings. Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from toolwire.emulate.dialects.render_headed import RENDER_HEADED
from toolwire.emulate.dialects.render_literal import RENDER_LITERAL
from toolwire.emulate.dialects.render_tagged import RENDER_TAGGED

Render = Callable[[str, str, Mapping[str, Any]], str]
"""(name, arguments, the tool's schema) → the call as the dialect writes it."""


def envelope(name: str, arguments: str, *, name_key: str = "name", arguments_key: str = "arguments") -> str:
    """`{"name": …, "arguments": …}` with the arguments verbatim when they are JSON, else as a string."""
    try:
        json.loads(arguments)
    except (ValueError, RecursionError):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return f'{{"{name_key}": {json.dumps(name, ensure_ascii=False)}, "{arguments_key}": {arguments or "{}"}}}'


def sentinel(name: str, arguments: str, nonce: str) -> str:
    return f"<tool_call:{nonce}>\n{envelope(name, arguments)}\n</tool_call:{nonce}>"


def _hermes(name: str, arguments: str, schema: Mapping[str, Any]) -> str:
    return f"<tool_call>\n{envelope(name, arguments)}\n</tool_call>"


def _bare(name: str, arguments: str, schema: Mapping[str, Any]) -> str:
    return envelope(name, arguments)


def _fenced(name: str, arguments: str, schema: Mapping[str, Any]) -> str:
    return f"```json\n{envelope(name, arguments)}\n```"


def _llama_json(name: str, arguments: str, schema: Mapping[str, Any]) -> str:
    return f"<|python_tag|>{envelope(name, arguments, arguments_key='parameters')}"


def _mistral(name: str, arguments: str, schema: Mapping[str, Any]) -> str:
    return f"[TOOL_CALLS] [{envelope(name, arguments)}]"


def _cohere(name: str, arguments: str, schema: Mapping[str, Any]) -> str:
    written = envelope(name, arguments, name_key="tool_name", arguments_key="parameters")
    return f'<|START_ACTION|>[\n    {{"tool_call_id": "0", {written[1:]}\n]<|END_ACTION|>'


def _granite(name: str, arguments: str, schema: Mapping[str, Any]) -> str:
    return f"<|tool_call|>[{envelope(name, arguments)}]"


RENDER: dict[str, Render] = {
    "hermes": _hermes,
    "bare": _bare,
    "fenced": _fenced,
    "llama_json": _llama_json,
    "mistral": _mistral,
    "cohere": _cohere,
    "granite": _granite,
    **RENDER_HEADED,
    **RENDER_TAGGED,
    **RENDER_LITERAL,
}


def render(dialect: str, name: str, arguments: str, *, schema: Mapping[str, Any] | None = None, nonce: str = "") -> str:
    """One call, as this dialect writes it."""
    if dialect == "sentinel":
        return sentinel(name, arguments, nonce)
    return RENDER[dialect](name, arguments, schema or {})

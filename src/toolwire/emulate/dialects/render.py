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


def envelope(name: str, arguments: str) -> str:
    """`{"name": …, "arguments": …}` with the arguments verbatim when they are JSON, else as a string."""
    try:
        json.loads(arguments)
    except (ValueError, RecursionError):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {arguments or "{}"}}}'


def sentinel(name: str, arguments: str, nonce: str) -> str:
    return f"<tool_call:{nonce}>\n{envelope(name, arguments)}\n</tool_call:{nonce}>"


def _hermes(name: str, arguments: str, schema: Mapping[str, Any]) -> str:
    return f"<tool_call>\n{envelope(name, arguments)}\n</tool_call>"


def _bare(name: str, arguments: str, schema: Mapping[str, Any]) -> str:
    return envelope(name, arguments)


def _fenced(name: str, arguments: str, schema: Mapping[str, Any]) -> str:
    return f"```json\n{envelope(name, arguments)}\n```"


RENDER: dict[str, Render] = {
    "hermes": _hermes,
    "bare": _bare,
    "fenced": _fenced,
    **RENDER_HEADED,
    **RENDER_TAGGED,
    **RENDER_LITERAL,
}


def render(dialect: str, name: str, arguments: str, *, schema: Mapping[str, Any] | None = None, nonce: str = "") -> str:
    """One call, as this dialect writes it."""
    if dialect == "sentinel":
        return sentinel(name, arguments, nonce)
    return RENDER[dialect](name, arguments, schema or {})

"""Custom tools as functions with one text parameter, there and back.

Most servers know only function tools. A custom tool, whose input is free text, is offered as a function with the parameter `input`; the call's
arguments `{"input":"…"}` are decoded while they stream, so that the client sees the plain input. Arguments of another shape are held to the end: a
single text value is the input, anything else is passed on as it is. Standard library only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from toolwire.turn import ToolSpec

PARAMETER = "input"

_OPENING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_OPENING_LIMIT = 256
_SPECIAL = re.compile(r'["\\]')
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "/": "/", "\\": "\\", '"': '"'}
_REPLACEMENT = "\ufffd"


def wrap_tool(tool: ToolSpec) -> dict[str, Any]:
    """The custom tool as the `function` of a chat tool."""
    schema = {
        "type": "object",
        "properties": {PARAMETER: {"type": "string", "description": "The tool's whole input, as plain text."}},
        "required": [PARAMETER],
        "additionalProperties": False,
    }
    grammar = _grammar(tool.format)
    description = f"{tool.description}\n\n{grammar}".strip() if grammar else tool.description
    return {"name": tool.name, **({"description": description} if description else {}), "parameters": schema}


def _grammar(format_: Mapping[str, Any] | None) -> str:
    """What a custom tool's format demands, in words: the server can not be held to it."""
    if not format_ or format_.get("type") != "grammar":
        return ""
    grammar = format_.get("grammar")
    grammar = grammar if isinstance(grammar, Mapping) else format_
    return f"The input must follow this {grammar.get('syntax', 'lark')} grammar:\n{grammar.get('definition', '')}"


def wrap_input(text: str) -> str:
    """A custom call of the history as the arguments of the function that stands for it."""
    return json.dumps({PARAMETER: text}, ensure_ascii=False, separators=(",", ":"))


class InputDecoder:
    """Decodes `{"input":"…"}` as it streams: what `feed` returned and what `finish` returns, concatenated, is the input. `started`: it fits."""

    __slots__ = ("_closed", "_escape", "_held", "_high", "_size", "started")

    def __init__(self) -> None:
        self._held: list[str] = []
        self._size = 0
        self.started = self._closed = False
        self._escape = ""  # an escape sequence that is not whole yet
        self._high = ""  # the first half of a surrogate pair

    def feed(self, piece: str) -> str:
        if self._closed:
            return ""
        if self.started:
            return self._decode(piece)
        self._held.append(piece)
        fresh_size, self._size = self._size, self._size + len(piece)
        if fresh_size > _OPENING_LIMIT:
            return ""
        text = "".join(self._held)
        opening = _OPENING.match(text)
        if opening is None:
            return ""
        self.started = True
        self._held.clear()
        return self._decode(text[opening.end() :])

    def finish(self) -> str:
        """What is still owed: a half pair, or arguments of another shape."""
        high, self._high = self._high, ""
        if self.started:
            return _REPLACEMENT if high else ""
        text = "".join(self._held)
        self._held.clear()
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return text
        if isinstance(value, str):
            return value
        values = list(value.values()) if isinstance(value, dict) else []
        return values[0] if len(values) == 1 and isinstance(values[0], str) else text if values else ""

    def _decode(self, piece: str) -> str:
        text = self._escape + piece
        self._escape = ""
        out: list[str] = []
        at = 0
        while at < len(text):
            special = _SPECIAL.search(text, at)
            end = special.start() if special else len(text)
            if end > at:
                self._put(text[at:end], out)
            if special is None:
                break
            if special[0] == '"':
                self._closed = True
                break
            size = 6 if text[end + 1 : end + 2] == "u" else 2
            if len(text) < end + size:
                self._escape = text[end:]
                break
            self._put(_unescape(text[end : end + size]), out)
            at = end + size
        return "".join(out)

    def _put(self, text: str, out: list[str]) -> None:
        if self._high:
            high, self._high = self._high, ""
            if "\udc00" <= text[0] <= "\udfff":
                text = (high + text[0]).encode("utf-16-le", "surrogatepass").decode("utf-16-le") + text[1:]
            else:
                out.append(_REPLACEMENT)
        if len(text) == 1 and "\ud800" <= text <= "\udbff":
            self._high = text
        else:
            out.append(_REPLACEMENT if len(text) == 1 and "\udc00" <= text <= "\udfff" else text)


def _unescape(sequence: str) -> str:
    if sequence[1] == "u":
        try:
            return chr(int(sequence[2:], 16))
        except ValueError:
            return sequence
    return _ESCAPES.get(sequence[1], sequence)

"""Offers custom tools to a backend that knows only functions.

A custom tool takes free text. The backend gets a function with one string parameter, `input`, and its calls
become custom calls whose deltas are the text itself. Arguments of another shape are held to the end: a single
text value is the input, and anything else passes unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from toolwire.core.events import CallArgs, CallBegin, CallEnd, Event
from toolwire.core.turn import ToolSpec

INPUT = "input"

_OPENING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_OPENING_LIMIT = 256
_SPECIAL = re.compile(r'["\\]')
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "/": "/", "\\": "\\", '"': '"'}
_REPLACEMENT = "\ufffd"


def as_function(tool: ToolSpec) -> ToolSpec:
    """The function that represents a custom tool; a function stays as it is."""
    if tool.kind == "function":
        return tool
    description = f"{tool.description}\n\n{_grammar(tool.format)}".strip()
    schema = {
        "type": "object",
        "properties": {INPUT: {"type": "string", "description": "The tool's whole input, as plain text."}},
        "required": [INPUT],
        "additionalProperties": False,
    }
    return ToolSpec(tool.name, description, schema, namespace=tool.namespace)


def _grammar(format: Mapping[str, Any] | None) -> str:
    """The grammar of a custom tool as an instruction: the backend cannot enforce it."""
    if not format or format.get("type") != "grammar":
        return ""
    grammar = format.get("grammar")
    grammar = grammar if isinstance(grammar, Mapping) else format
    syntax, definition = grammar.get("syntax", "lark"), grammar.get("definition", "")
    return f"The input must follow this {syntax} grammar:\n{definition}"


def wrap(text: str) -> str:
    """The input of a custom call as arguments of its function, for the history."""
    return json.dumps({INPUT: text}, ensure_ascii=False)


class InputDecoder:
    """Decodes `{"input":"…"}` as it streams. The texts that `feed` and `finish` return make up the input.

    `started`: the arguments have this shape.
    """

    __slots__ = ("_closed", "_escape", "_held", "_high", "_size", "started")

    def __init__(self) -> None:
        self._held: list[str] = []
        self._size = 0
        self.started = self._closed = False
        self._escape = ""  # an escape sequence that is not complete yet
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
        """The rest: half a surrogate pair, or arguments of another shape."""
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


class Unwrap:
    """Turns calls of the named functions into custom calls."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._open: dict[int, InputDecoder] = {}

    def feed(self, events: list[Event]) -> list[Event]:
        if not self._names:
            return events
        out: list[Event] = []
        for event in events:
            if isinstance(event, CallBegin) and event.name in self._names:
                self._open[event.index] = InputDecoder()
                out.append(CallBegin(event.index, event.name, event.id, "custom"))
            elif isinstance(event, CallArgs) and event.index in self._open:
                text = self._open[event.index].feed(event.delta)
                if text:
                    out.append(CallArgs(event.index, text))
            elif isinstance(event, CallEnd) and event.index in self._open:
                decoder = self._open.pop(event.index)
                text = decoder.finish()
                if text:
                    out.append(CallArgs(event.index, text))
                bare = (
                    event.status == "invalid" and not decoder.started
                )  # the input itself, without an object around it
                out.append(CallEnd(event.index, "repaired", event.issues) if bare else event)
            else:
                out.append(event)
        return out

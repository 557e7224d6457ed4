"""The tools of one request: finds tools by name, and offers custom tools as functions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from toolwire.core.events import CallArgs, CallBegin, CallEnd, Event
from toolwire.core.turn import ToolSpec
from toolwire.emulate.arguments import SURROGATE, StringDecoder

_PREFIXES = ("functions.", "functions/", "function.", "tools.", "default_api.")


def _fold(name: str) -> str:
    return name.casefold().replace("-", "_").replace(".", "_")


def spec_of(tool: ToolSpec | Mapping[str, Any]) -> ToolSpec | None:
    """Returns a tool in either of OpenAI's shapes as a `ToolSpec`; None if it has no name.

    One shape is nested under `function` or `custom`, the other is flat.
    """
    if isinstance(tool, ToolSpec):
        return tool
    inner = tool.get("function") or tool.get("custom") or tool
    name = inner.get("name") if isinstance(inner, Mapping) else None
    if not isinstance(name, str) or not name:
        return None
    parameters = inner.get("parameters")
    return ToolSpec(
        name=name,
        description=str(inner.get("description") or ""),
        parameters=parameters if isinstance(parameters, Mapping) else {},
        strict=inner.get("strict") is True,
        kind="custom" if tool.get("type") == "custom" else "function",
    )


class ToolRegistry:
    """The declared tools, in the client's order.

    `resolve` tries, in this order:

    1. the exact name
    2. the name before a special token (`look` in `look<|channel|>commentary`)
    3. the name without a common prefix, such as `functions.`
    4. the name without regard to case, `-`, `_` and `.`, if exactly one tool matches
    """

    def __init__(self, tools: Iterable[ToolSpec | Mapping[str, Any]]) -> None:
        self.tools: dict[str, ToolSpec] = {}
        folded: dict[str, list[str]] = {}
        for tool in tools:
            spec = spec_of(tool)
            if spec is not None and spec.name not in self.tools:
                self.tools[spec.name] = spec
                folded.setdefault(_fold(spec.name), []).append(spec.name)
        self._folded = {key: names[0] for key, names in folded.items() if len(names) == 1}

    def __bool__(self) -> bool:
        return bool(self.tools)

    def resolve(self, written: str) -> ToolSpec | None:
        """Returns the tool that a model means by this name; None if no tool matches."""
        tool = self.tools.get(written)
        if tool is not None:
            return tool
        written = written.partition("<|")[0].strip()
        for prefix in _PREFIXES:
            if written.startswith(prefix) and written[len(prefix) :] in self.tools:
                return self.tools[written[len(prefix) :]]
        for candidate in (written, *(written[len(p) :] for p in _PREFIXES if written.startswith(p))):
            name = self._folded.get(_fold(candidate))
            if name is not None:
                return self.tools[name]
        return None


# --- custom tools, for a backend that knows only functions ---
#
# A custom tool takes free text. The backend gets a function with one string parameter, `input`, and its calls
# become custom calls whose deltas are the text itself. Arguments of another shape are held to the end: a
# single text value is the input, and anything else passes unchanged.

INPUT = "input"


def as_function(tool: ToolSpec) -> ToolSpec:
    """Returns the function that represents a custom tool. A tool that is a function is returned unchanged."""
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
    """Returns a custom tool's grammar as an instruction, because the backend cannot enforce it."""
    if not format or format.get("type") != "grammar":
        return ""
    grammar = format.get("grammar")
    grammar = grammar if isinstance(grammar, Mapping) else format
    syntax, definition = grammar.get("syntax", "lark"), grammar.get("definition", "")
    return f"The input must follow this {syntax} grammar:\n{definition}"


def wrap(text: str) -> str:
    """Returns the arguments `{"input": …}` for the text that is the input of a custom tool."""
    return json.dumps({INPUT: text}, ensure_ascii=False)


_OPENING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_OPENING_LIMIT = 256


class InputDecoder:
    """Decodes `{"input":"…"}` as it streams. `feed` and `finish` return the decoded text.

    `started`: whether the arguments have begun in this form.
    """

    def __init__(self) -> None:
        self._held: list[str] = []
        self._size = 0
        self.started = False
        self._decoder = StringDecoder()
        self._escape = ""  # an escape sequence that is not complete yet

    def feed(self, piece: str) -> str:
        if self._decoder.done:
            return ""
        if self.started:
            return self._decode(piece)
        self._held.append(piece)
        size_before, self._size = self._size, self._size + len(piece)
        if size_before > _OPENING_LIMIT:
            return ""
        text = "".join(self._held)
        opening = _OPENING.match(text)
        if opening is None:
            return ""
        self.started = True
        self._held.clear()
        return self._decode(text[opening.end() :])

    def finish(self) -> str:
        """Returns the rest of the decoded text.

        For arguments of another shape, this is the only string in them, or else all of them.
        """
        if self.started:
            self._escape = ""
            return "" if self._decoder.done else self._decode('"')  # as if the string ended here
        text = "".join(self._held)
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return text
        values = list(value.values()) if isinstance(value, dict) else [value]
        if len(values) == 1 and isinstance(values[0], str):
            return values[0]
        return text if values else ""

    def _decode(self, piece: str) -> str:
        text = self._escape + piece
        decoded, stop = self._decoder.run(text, 0)
        self._escape = text[stop:]
        return SURROGATE.sub("\ufffd", decoded)


class Unwrap:
    """Turns events of function calls into events of custom calls.

    `names`: the functions that represent custom tools.
    """

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
                # Invalid arguments that do not begin with `{"input":"` are the input itself.
                bare = event.status == "invalid" and not decoder.started
                out.append(CallEnd(event.index, "repaired", event.issues) if bare else event)
            else:
                out.append(event)
        return out

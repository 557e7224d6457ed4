"""Custom tools on a backend that knows only functions.

A custom tool takes free text. It is offered as a function with one string, `input`, and what comes back is unwrapped: the encoders see a custom call whose deltas are
the text itself. Pure; standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from toolwire.emulate.arguments import StringFlow
from toolwire.events import CallArgs, CallBegin, CallEnd, Event
from toolwire.turn import ToolSpec

INPUT = "input"


def as_function(tool: ToolSpec) -> ToolSpec:
    """The function that stands for a custom tool."""
    if tool.kind == "function":
        return tool
    description = tool.description
    grammar = (tool.format or {}).get("definition") or ((tool.format or {}).get("grammar") or {}).get("definition")
    if isinstance(grammar, str):
        description = f"{description}\n\nThe input must follow this grammar:\n{grammar}".strip()
    schema = {
        "type": "object",
        "properties": {INPUT: {"type": "string", "description": "The tool's whole input, as plain text."}},
        "required": [INPUT],
        "additionalProperties": False,
    }
    return ToolSpec(tool.name, description, schema, namespace=tool.namespace)


def wrap(text: str) -> str:
    """A custom call's input as the arguments of its function, for the history."""
    return json.dumps({INPUT: text}, ensure_ascii=False)


class _Input:
    """Finds the string behind `"input":` and unescapes it as it comes; anything else a model wrote is its input as it stands."""

    def __init__(self) -> None:
        self._head = ""
        self._flow: Unescaped | None = None
        self._plain = False

    def feed(self, text: str) -> str:
        if self._plain:
            return text
        if self._flow is not None:
            return self._flow.feed(text)
        self._head += text
        compact = self._head.lstrip()
        opening = f'{{"{INPUT}":"'
        shape = "".join(compact[: compact.find(":") + 1].split()) + compact[compact.find(":") + 1 :].lstrip() if ":" in compact else "".join(compact.split())
        if shape.startswith(opening):
            self._flow = Unescaped()
            return self._flow.feed(shape[len(opening) :])
        if opening.startswith(shape):
            return ""
        self._plain = True
        return self._head

    def finish(self) -> str:
        return self._head if self._flow is None and not self._plain and self._head not in ("", "{}") else ""


class Unescaped:
    """The inside of a JSON string as text; what follows its closing quote is markup."""

    def __init__(self) -> None:
        self._flow = StringFlow()
        self._flow.bad = True  # free text: nothing in it is read as JSON
        self._rest = ""

    def feed(self, text: str) -> str:
        text = self._rest + text
        if self._flow.done:
            return ""
        self._rest = text[self._flow.run(text, 0) :]
        return self._flow.take()


class Unwrap:
    """Events in, events out: calls of the named custom tools become custom calls."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._open: dict[int, _Input] = {}

    def feed(self, events: list[Event]) -> list[Event]:
        if not self._names:
            return events
        out: list[Event] = []
        for event in events:
            if isinstance(event, CallBegin) and event.name in self._names:
                self._open[event.index] = _Input()
                out.append(CallBegin(event.index, event.name, event.id, "custom"))
            elif isinstance(event, CallArgs) and event.index in self._open:
                text = self._open[event.index].feed(event.delta)
                if text:
                    out.append(CallArgs(event.index, text))
            elif isinstance(event, CallEnd) and event.index in self._open:
                text = self._open.pop(event.index).finish()
                if text:
                    out.append(CallArgs(event.index, text))
                out.append(event)
            else:
                out.append(event)
        return out

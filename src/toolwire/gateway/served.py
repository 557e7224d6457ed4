"""The calls that the gateway runs itself: calls of MCP servers' tools (the Responses tool `mcp`).

The gateway does not import the tool runtime. It uses the protocol `ServedTools`; the HTTP server provides an
object with these methods. Only servers that the operator allows are called (law 9 in docs/architecture.md).
`TakenCalls` removes the calls from the events of a model's run; `rounds.py` decides what becomes of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, Protocol

from toolwire.core.events import (
    CallArgs,
    CallBegin,
    CallEnd,
    Dropped,
    Event,
    Failure,
    Finish,
    McpResult,
    Refusal,
    Text,
    Thought,
    Usage,
)
from toolwire.core.mcp import McpServer
from toolwire.core.turn import Item, Message, Reasoning, TextPart
from toolwire.gateway.records import Caller
from toolwire.wire.order import CUT

Action = Literal["deny", "ask", "allow"]


@dataclass(frozen=True, slots=True)
class ServedTool:
    """A tool of an MCP server.

    `name`: the tool's name for the model. `tool`: the tool's name at the server. `pin`: the hash of the
    tool's definition. `handle`: an object that only the tool runtime reads.
    """

    name: str
    server: str
    tool: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    read_only: bool = False
    pin: str = ""
    handle: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ServedCall:
    """A call to run. `granted`: the client approved the call, with an API key that may approve calls."""

    id: str
    tool: ServedTool
    arguments: str
    granted: bool = False


@dataclass(frozen=True, slots=True)
class Purpose:
    """The context in which calls run: the caller, the id of the response, and the model."""

    caller: Caller
    response: str
    model: str


class ServedTools(Protocol):
    """What the gateway needs of the tool runtime."""

    async def offered(self, server: McpServer, caller: Caller) -> Sequence[ServedTool] | None:
        """Returns the tools of a server; None if the operator does not offer the server.

        Raises `ToolwireError` if the server's tools cannot be listed.
        """
        ...

    def action(self, tool: ServedTool, arguments: Mapping[str, Any]) -> Action:
        """Returns what the operator's rules say about a call."""
        ...

    async def run(self, calls: Sequence[ServedCall], purpose: Purpose) -> Sequence[McpResult]:
        """Runs the calls under the operator's rules, and returns their results in order.

        May wait for a person's decision. If a call fails, its result is an error; no exception is raised.
        """
        ...


# --- the calls of one run ---


@dataclass(slots=True)
class TakenCall:
    name: str
    arguments: str = ""


class TakenCalls:
    """Removes from a run's events the calls that the gateway runs itself. Pure.

    If the run has such calls, or if the caller sets `holds`, the answer continues after the run. So `held`
    keeps the run's `Finish`. But if the run was cut off, its `Finish` passes, and the calls are dropped.
    """

    def __init__(self, names: frozenset[str] = frozenset(), holds: bool = False) -> None:
        self.calls: list[TakenCall] = []
        self.has_others = False
        """Whether the run has calls of the client's own tools."""
        self.said: list[Item] = []
        """What the model wrote in this run, for the history."""
        self.held: Finish | None = None
        """The `Finish` of the run, if it was not passed on."""
        self.used: Usage | None = None
        self._names, self._holds = names, holds
        self._open: dict[int, TakenCall] = {}

    def feed(self, events: Sequence[Event]) -> list[Event]:
        out: list[Event] = []
        for event in events:
            if isinstance(event, CallBegin):
                if event.name in self._names:
                    self._open[event.index] = TakenCall(event.name)
                    self.calls.append(self._open[event.index])
                    continue
                self.has_others = True
                self._open.pop(event.index, None)
            elif isinstance(event, CallArgs | CallEnd) and event.index in self._open:
                if isinstance(event, CallArgs):
                    self._open[event.index].arguments += event.delta
                continue
            elif isinstance(event, Text | Thought | Refusal):
                self._say(event)
            elif isinstance(event, Usage):
                self.used = event
            elif isinstance(event, Finish):
                if (self.calls or self._holds) and event.reason not in CUT:
                    self.held = event
                    continue
                out += [Dropped("cut", len(self.calls))] if self.calls else []
                self.calls = []
            elif isinstance(event, Failure):
                self.calls = []
            out.append(event)
        return out

    def _say(self, event: Text | Thought | Refusal) -> None:
        last, text = self.said[-1] if self.said else None, event.text
        if isinstance(event, Thought):
            before = last.content if isinstance(last, Reasoning) else ()
            said: Item = Reasoning(content=("".join((*before, text)),))
        else:
            parts = last.parts if isinstance(last, Message) else ()
            said = Message("assistant", (TextPart("".join(one.text for one in parts) + text),))  # type: ignore[union-attr]
        if type(last) is type(said):
            self.said.pop()
        self.said.append(said)


# --- parts ---


def refused_result(message: str) -> McpResult:
    content = [{"type": "text", "text": message}]
    return McpResult(None, {"type": "mcp_tool_execution_error", "content": content})


def plain(arguments: str) -> str:
    """Returns the arguments in the form that is shown, stored and sent. Raises `ValueError` if invalid."""
    try:
        value = json.loads(arguments, object_pairs_hook=_once, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("the arguments are nested too deeply") from None
    except json.JSONDecodeError:
        raise ValueError("the arguments are not valid JSON") from None
    if not isinstance(value, dict):
        raise ValueError("the arguments are not a JSON object")
    try:
        written = json.dumps(value, ensure_ascii=False, allow_nan=False)
        written.encode()
    except UnicodeEncodeError:
        raise ValueError("the arguments contain half a character (a lone surrogate)") from None
    except ValueError:
        raise ValueError("the arguments contain a number that JSON cannot express, such as NaN") from None
    return written


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) < len(pairs):
        raise ValueError("the arguments contain a key twice")
    return out


def _no_constant(name: str) -> NoReturn:
    raise ValueError("the arguments contain a number that JSON cannot express, such as NaN")

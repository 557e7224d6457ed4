"""Turns the events of a run into steps in an order that every API allows.

Whatever a backend sends, the encoders see only the steps that this automaton produces (law 2 in
docs/architecture.md), and every sequence of steps is legal on the wire:

    (Open(item) (Delta(item) | Sign(item))* Close(item))* (End | Fail)

One item is open at a time. Text after a call opens a new item; a call closes open text. A function call that
ends without arguments gets "{}". Events that come too late (after the end, or for a call that is no longer
open) are dropped and counted. A run that stops without a `Finish` or `Failure` becomes a failure. `Usage` and
`Dropped` are recorded and produce no steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import msgspec

from toolwire.core.errors import KINDS
from toolwire.core.events import (
    Block,
    Border,
    CallArgs,
    CallBegin,
    CallEnd,
    Citation,
    Dropped,
    Event,
    Failure,
    Finish,
    FinishReason,
    McpAsk,
    McpCall,
    McpResult,
    McpTools,
    Refusal,
    Signature,
    Text,
    Thought,
    TokenLogprob,
    Usage,
)
from toolwire.core.ids import IdFactory
from toolwire.wire.sse import scrub

ItemKind = Literal[
    "text", "refusal", "thought", "summary", "redacted", "block", "function", "custom", "mcp", "mcp_call"
]
ItemStatus = Literal["completed", "incomplete"]

CONTENT_KINDS: tuple[ItemKind, ...] = ("text", "refusal", "thought", "summary")
THOUGHT_KINDS: tuple[ItemKind, ...] = ("thought", "summary")
WHOLE_KINDS: tuple[ItemKind, ...] = ("redacted", "block")
"""Items that arrive whole, and are opened and closed at once."""
CALL_KINDS: tuple[ItemKind, ...] = ("function", "custom")
MCP_CALL: ItemKind = "mcp_call"
"""A call that the gateway makes itself; the item is open until the result is known.

All other items about MCP servers are of the kind `mcp`.
"""
EMPTY_ARGUMENTS = "{}"
CUT = frozenset({"length", "content_filter"})
"""Finish reasons of an answer that is not complete.

This module only passes them on. If a call was cut off, another module has set `length` before:
`gateway/interpret.py` if the call was found in text, the backend's `read.py` if the server sent the call.
"""


# --- steps ---


class Item(msgspec.Struct, frozen=True, gc=False):
    """A message, reasoning or call in a run's output.

    `index` is the item's number among all items of the run, `call_index` its number among the calls. Both
    begin at 0.
    """

    kind: ItemKind
    index: int
    call_index: int = -1
    call_id: str = ""
    name: str = ""
    mcp: McpTools | McpAsk | McpCall | None = None
    """For an item about an MCP server: the event that it comes from."""


class Open(msgspec.Struct, frozen=True, gc=False):
    item: Item


class Delta(msgspec.Struct, frozen=True, gc=False):
    item: Item
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class Sign(msgspec.Struct, frozen=True, gc=False):
    """An addition at the end of an open item.

    This is the signature of a thought, a citation of a text, or the whole content of a redacted thought or of
    a `Block`.
    """

    item: Item
    text: str


class Close(msgspec.Struct, frozen=True, gc=False):
    """An item ends. `result` is the result of a call of an MCP server; None for any other item."""

    item: Item
    status: ItemStatus
    result: McpResult | None = None


class End(msgspec.Struct, frozen=True, gc=False):
    """The run ended without a failure.

    `reason` is the backend's reason if that is in `CUT`. Otherwise, it is `tool_calls` if there was a call,
    and `stop` if there was none.
    """

    reason: FinishReason
    stop: str | None = None
    window: bool = False
    extra: Mapping[str, Any] | None = None


class Fail(msgspec.Struct, frozen=True):
    failure: Failure


Step: TypeAlias = Open | Delta | Sign | Close | End | Fail


# --- table ---

OPEN, DELTA, SIGN, CLOSE, BREAK = "open", "delta", "sign", "close", "break"
END, FAIL, LATE = "end", "fail", "late"
"""Actions of the table, each of which produces a step or changes the state.

CLOSE completes the open item, BREAK closes it as incomplete, LATE drops and counts the event.
"""

Actions: TypeAlias = tuple[str, ...]

_ROWS: dict[str, tuple[Actions, Actions, Actions, Actions]] = {
    # symbol       nothing open     content open           call open              ended
    "content": ((OPEN, DELTA), (CLOSE, OPEN, DELTA), (CLOSE, OPEN, DELTA), (LATE,)),
    "sign": ((OPEN, SIGN, CLOSE), (CLOSE, OPEN, SIGN, CLOSE), (CLOSE, OPEN, SIGN, CLOSE), (LATE,)),
    "whole": ((OPEN, SIGN, CLOSE), (CLOSE, OPEN, SIGN, CLOSE), (CLOSE, OPEN, SIGN, CLOSE), (LATE,)),
    "cite": ((LATE,),) * 4,
    "border": ((), (CLOSE,), (), ()),
    "begin": ((OPEN,), (CLOSE, OPEN), (CLOSE, OPEN), (LATE,)),
    "args": ((LATE,), (LATE,), (DELTA,), (LATE,)),
    "end": ((), (), (CLOSE,), ()),
    "mcp": ((OPEN, CLOSE), (CLOSE, OPEN, CLOSE), (CLOSE, OPEN, CLOSE), (LATE,)),
    "mcp_call": ((OPEN,), (CLOSE, OPEN), (CLOSE, OPEN), (LATE,)),
    "mcp_result": ((LATE,),) * 4,
    "finish": ((END,), (CLOSE, END), (CLOSE, END), (LATE,)),
    "cut": ((END,), (BREAK, END), (BREAK, END), (LATE,)),
    "failure": ((FAIL,), (BREAK, FAIL), (BREAK, FAIL), (LATE,)),
    "stray": ((LATE,),) * 4,
    "nothing": ((),) * 4,
}


def _expanded() -> dict[str, dict[str, Actions]]:
    """Returns the table by state (`idle`, the kind of the open item, `ended`) and symbol.

    The table is made from `_ROWS`, with these additions and changes:

    - Content of the same kind as the open item is a DELTA of this item.
    - A signature is added to an open thought and closes it. A citation is added to an open text.
    - Only the result of an MCP server's call completes the call. Any other event that closes the call closes
      it as incomplete.
    """
    columns: dict[str, int] = {"idle": 0, "ended": 3, **dict.fromkeys((*CONTENT_KINDS, *WHOLE_KINDS), 1)}
    columns.update(dict.fromkeys((*CALL_KINDS, "mcp", MCP_CALL), 2))
    table: dict[str, dict[str, Actions]] = {}
    for state, column in columns.items():
        table[state] = {symbol: cells[column] for symbol, cells in _ROWS.items()}
        content, whole = table[state].pop("content"), table[state].pop("whole")
        table[state] |= {kind: (DELTA,) if kind == state else content for kind in CONTENT_KINDS}
        table[state] |= dict.fromkeys(WHOLE_KINDS, whole)
        if state in THOUGHT_KINDS:
            table[state]["sign"] = (SIGN, CLOSE)
    table["text"]["cite"] = (SIGN,)
    unfinished = table[MCP_CALL].items()
    table[MCP_CALL] = {
        symbol: tuple(BREAK if one is CLOSE else one for one in row) for symbol, row in unfinished
    }
    table[MCP_CALL] |= {"mcp_result": (CLOSE,), "args": (LATE,), "end": ()}
    return table


TABLE = _expanded()
IDLE, IN_TEXT, ENDED = TABLE["idle"], TABLE["text"], TABLE["ended"]
"""The rows of the table while nothing is open, while a text is open, and after the end."""


_SYMBOLS: dict[type[Any], str] = {
    McpTools: "mcp",
    McpAsk: "mcp",
    McpCall: "mcp_call",
    McpResult: "mcp_result",
    Failure: "failure",
}
"""The symbol of each type of event that has only one symbol."""


# --- engine ---


class Order:
    """Turns the events of one run into steps.

    `single_call`: the API can express only one call (legacy functions); further calls are dropped and
    counted. `signed`: the API is Anthropic's, which can express the events `Signature`, `Block`, `Citation`
    and `Border`. For other APIs, these events produce no step.
    """

    def __init__(self, ids: IdFactory, *, single_call: bool = False, signed: bool = False) -> None:
        self.usage: Usage | None = None
        self.calls = 0
        self.dropped: dict[str, int] = {}
        self._ids = ids
        self._single_call = single_call
        self._signed = signed
        self.row = IDLE
        """The row of the table for the current state."""
        self._item = Item("text", -1)
        self._items = 0
        self._source = -1  # the backend's index of the last call
        self._bare = False  # the last call has no arguments so far

    def feed(self, events: Sequence[Event]) -> list[Step]:
        steps: list[Step] = []
        for event in events:
            if type(event) is Text:
                text = event.text
                symbol = "text" if text or (event.logprobs and self.row is IN_TEXT) else "nothing"
            elif type(event) is Usage:
                self.usage = event
                continue
            elif type(event) is CallArgs:
                text = event.delta
                symbol = "args" if text and event.index == self._source else "stray" if text else "nothing"
            else:
                symbol, text = self._read(event)
            for action in self.row[symbol]:
                if action is DELTA:
                    tokens = event.logprobs if type(event) is Text or type(event) is Refusal else ()
                    steps.append(Delta(self._item, text, tokens))
                    self._bare = False
                elif action is OPEN:
                    steps.append(Open(self._opened(event, symbol)))
                else:
                    self._act(action, event, text, steps)
        return steps

    def finish(self) -> list[Step]:
        """Ends the run as a failure if no `Finish` or `Failure` has ended it. Returns the last steps.

        Call this after the backend has stopped.
        """
        if self.row is ENDED:
            return []
        return self.feed([Failure("backend_cut", "The model's answer broke off before it was complete.")])

    def stop(self) -> None:
        """Ends the run without a step, because another choice of the same answer has failed."""
        self.row = ENDED

    def _read(self, event: Event) -> tuple[str, str]:
        """Returns the symbol and the text of an event other than Text, Usage and CallArgs.

        The symbol names the event in the table of `_expanded`.
        """
        if isinstance(event, Finish):
            return ("cut" if event.reason in CUT else "finish"), ""
        if isinstance(event, CallBegin):
            if not (self._single_call and self.calls):
                return "begin", ""
            self._drop("parallel", 1)
        elif isinstance(event, CallEnd):
            # A truncated call stays open: how it closes depends on how the run ends.
            return ("end" if event.index == self._source and event.status != "truncated" else "nothing"), ""
        elif isinstance(event, Thought) and event.text:
            return ("summary" if event.summary else "thought"), event.text
        elif isinstance(event, Refusal) and event.text:
            return "refusal", event.text
        elif isinstance(event, Signature) and self._signed and event.text:
            return ("redacted" if event.redacted else "sign"), event.text
        elif isinstance(event, Border) and self._signed:
            return "border", ""
        elif isinstance(event, Block | Citation):
            if self._signed:
                return ("block" if isinstance(event, Block) else "cite"), event.json
            self._drop(type(event).__name__.lower(), 1)
        elif isinstance(event, Dropped):
            self._drop(event.kind, event.count)
        return _SYMBOLS.get(type(event), "nothing"), ""

    def _act(self, action: str, event: Event, text: str, steps: list[Step]) -> None:
        """Performs an action other than DELTA and OPEN."""
        if action is SIGN:
            steps.append(Sign(self._item, text))
        elif action is CLOSE or action is BREAK:
            if self._bare and action is CLOSE and self._item.kind == "function":
                steps.append(Delta(self._item, EMPTY_ARGUMENTS))
            result = event if isinstance(event, McpResult) else None
            steps.append(Close(self._item, "completed" if action is CLOSE else "incomplete", result))
            self.row = IDLE
        elif action is END and isinstance(event, Finish):
            reason = event.reason if event.reason in CUT else "tool_calls" if self.calls else "stop"
            steps.append(End(reason, event.stop, event.window, event.extra))
            self.row = ENDED
        elif action is FAIL and isinstance(event, Failure):
            steps.append(Fail(event if event.kind in KINDS else replace(event, kind="server")))
            self.row = ENDED
        else:
            self._drop("late", len(text) or 1)

    def _opened(self, event: Event, symbol: str) -> Item:
        """Opens an item and returns it: a call, or content of the kind that `symbol` names."""
        if isinstance(event, CallBegin):
            id = scrub(event.id) if event.id else self._ids("call_")
            self._item = Item(event.kind, self._items, self.calls, id, scrub(event.name))
            self.calls += 1
            self._source, self._bare = event.index, True
        elif isinstance(event, McpTools | McpAsk | McpCall):
            self._item = Item(MCP_CALL if type(event) is McpCall else "mcp", self._items, mcp=event)
        else:
            kind = "thought" if symbol == "sign" else symbol
            self._item = Item(kind, self._items)  # type: ignore[arg-type]
        self.row = TABLE[self._item.kind]
        self._items += 1
        return self._item

    def _drop(self, kind: str, count: int) -> None:
        self.dropped[kind] = self.dropped.get(kind, 0) + count

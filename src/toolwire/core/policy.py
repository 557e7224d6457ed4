"""Decides which calls and texts of a run reach the client.

A pure stage between backend and encoder. It counts the calls and the text that it drops (law 5 in
docs/architecture.md).

- `stop_after`: `first` stops the run at the end of the first call. `burst` accepts calls with only white
  space between them, and stops the run at the first other text after a call.
- `suppress_tail`: drops text after the first call, but not later calls.
- `max_calls`, `parallel`, `legacy`: limit the number of calls. The first call over the limit is dropped, and
  the run is stopped.
- `dedup`: drops a call with the name and arguments of an earlier call. With this rule, a call is sent only
  when it is complete.

When a rule stops the run, it sets `cut`. The caller then cancels the run and sends the events of `end()`.
Events that still arrive are dropped, except `Usage`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from toolwire.core.events import (
    CallArgs,
    CallBegin,
    CallEnd,
    Dropped,
    Event,
    Failure,
    Finish,
    Refusal,
    Text,
    Thought,
    Usage,
)

StopAfter = Literal["off", "first", "burst"]
_NOTED = frozenset({CallBegin, CallEnd, Dropped})


@dataclass(frozen=True, slots=True)
class PolicyRules:
    """The rules of one run, with `auto` settings already resolved."""

    stop_after: StopAfter = "off"
    max_calls: int = 0
    dedup: bool = False
    suppress_tail: bool = False
    parallel: bool = True
    legacy: bool = False


NO_RULES = PolicyRules()


class Policy:
    """Applies the rules to one run, that is to one choice if the client asked for several."""

    def __init__(self, rules: PolicyRules, dropped: dict[str, int] | None = None) -> None:
        """`dropped`: counts what is dropped, by kind. All choices of an answer share this dict."""
        self.names: list[str] = []
        """Names of the calls that passed, in order."""
        self.rules = rules
        self._active = rules != NO_RULES
        self.dropped = {} if dropped is None else dropped
        """How much was dropped, by the kind and in the unit of the `Dropped` events."""
        self._numbers: dict[int, int | None] = {}  # backend's index → index on the wire; None if dropped
        self._held: list[CallBegin | CallArgs | CallEnd] = []  # the open call, if `dedup` is on
        self._seen: set[tuple[str, str]] = set()
        self.cut = False
        self.passes_text = True
        """Whether the caller may skip `feed` for a batch that is a single piece of text."""
        self.truncated = False
        """Whether the model made calls that were not sent."""
        self._called = False  # a call has begun: text from now on counts as `tail`
        self._open: int | None = None  # the backend's index of the open call
        self._after_cut = ""  # calls after the cut are counted as drops of this kind
        self._ended = False

    # --- interface ---

    def feed(self, events: list[Event]) -> list[Event]:
        """Returns the events that pass. If this sets `cut`, cancel the run and send the events of `end()`."""
        kinds = set(map(type, events))
        if not self._active or not (self._called or self.cut or CallBegin in kinds):
            if not _NOTED.isdisjoint(kinds):
                self._note(events)
            return events
        out: list[Event] = []
        for event in events:
            if self.cut:
                self._swallow(event, out)
            else:
                self._apply(event, out)
        return out

    def end(self) -> list[Event]:
        """Ends a run that a rule has stopped, or that the caller stops between two calls.

        Returns the last event for the client.
        """
        if self._ended:
            return []
        self.stop()
        self._ended = True
        return [Finish("tool_calls")]

    def stop(self) -> None:
        """Stops the run. After this, only `end()` may follow."""
        self.cut, self.passes_text = True, False

    @property
    def between_calls(self) -> bool:
        """Whether a call is complete and none is open, so that the run may stop here."""
        return bool(self.names) and self._open is None

    # --- the rules ---

    def _note(self, events: list[Event]) -> None:
        """Records the calls among events that pass unchanged, and counts `Dropped` events."""
        for event in events:
            if isinstance(event, CallBegin):
                self.names.append(event.name)
                self._open = event.index
            elif isinstance(event, CallEnd):
                self._open = None
            elif isinstance(event, Dropped):
                self._count(event.kind, event.count)

    def _apply(self, event: Event, out: list[Event]) -> None:
        match event:
            case Text() | Refusal() if self._called:
                self._tail(event, out)
            case CallBegin():
                self._begin(event, out)
            case CallArgs():
                self._grow(event, out)
            case CallEnd():
                self._grow(event, out)
                if event.index == self._open:
                    self._complete(out)
            case Finish() | Failure():
                if self._held:
                    self._release(out)
                out.append(event)
                self._ended = True
            case Dropped(kind, count):
                self._count(kind, count)
                out.append(event)
            case _:
                out.append(event)

    def _begin(self, event: CallBegin, out: list[Event]) -> None:
        self._complete(out)  # the next call ends an open call
        if self.cut:
            self._swallow(event, out)
            return
        self._called, self.passes_text = True, False
        self._open = event.index
        if self.rules.dedup:
            self._held = [event]
        else:
            self._admit(event, out)

    def _grow(self, event: CallArgs | CallEnd, out: list[Event]) -> None:
        """Passes arguments, or the end of a call, to the client if the call itself has passed."""
        if self._held and event.index == self._open:
            self._held.append(event)
            return
        if event.index not in self._numbers:
            if isinstance(event, CallArgs):
                self._drop("late", len(event.delta), out)
            return
        number = self._numbers[event.index]
        if number is not None:
            out.append(event if number == event.index else replace(event, index=number))

    def _admit(self, begin: CallBegin, out: list[Event]) -> bool:
        """Passes the call to the client, or drops it if a rule allows no further call.

        Calls that pass are numbered from 0. If the call is dropped, the run is stopped. Returns True if the
        call passes.
        """
        number = len(self.names)
        too_many = self._too_many(number)
        if too_many:
            self._numbers[begin.index] = None
            self.truncated = True
            self._drop(too_many, 1, out)
            self._cut(too_many)
            return False
        self._numbers[begin.index] = number
        self.names.append(begin.name)
        out.append(begin if number == begin.index else replace(begin, index=number))
        return True

    def _too_many(self, calls: int) -> str:
        """Returns the kind of drop if one more call after `calls` calls breaks a rule, otherwise ""."""
        rules = self.rules
        if calls and (rules.legacy or not rules.parallel):
            return "parallel"
        return "cap" if rules.max_calls and calls >= rules.max_calls else ""

    def _complete(self, out: list[Event]) -> None:
        """Ends the open call. If `stop_after` is `first`, also stops the run."""
        if self._open is None:
            return
        if self._held:
            self._release(out)
        self._open = None
        if self.rules.stop_after == "first" and self.names and not self.cut:
            self._cut("first")

    def _release(self, out: list[Event]) -> None:
        """Passes on a call that was held back until it is complete, or drops it if it is a duplicate."""
        held, self._held = self._held, []
        begin = held[0]
        assert isinstance(begin, CallBegin)
        key = (begin.name, "".join(event.delta for event in held if isinstance(event, CallArgs)) or "{}")
        if key in self._seen:
            self._numbers[begin.index] = None
            self._drop("duplicate", 1, out)
        elif self._admit(begin, out):
            self._seen.add(key)
            for event in held[1:]:
                assert not isinstance(event, CallBegin)
                self._grow(event, out)

    def _tail(self, event: Text | Refusal, out: list[Event]) -> None:
        """Passes or drops text after a call.

        With `stop_after` `burst`, text other than white space is dropped and stops the run.
        """
        ordinary = event.text.lstrip() if self.rules.stop_after == "burst" else ""
        blank = event.text[: len(event.text) - len(ordinary)]
        if blank and self.rules.suppress_tail:
            self._drop("tail", len(blank), out)
        elif blank:
            self._complete(out)
            if self.cut:
                self._swallow(event, out)
                return
            out.append(replace(event, text=blank, logprobs=()) if ordinary else event)
        if ordinary:
            self._complete(out)
            self._drop("tail", len(ordinary), out)
            if not self.cut:
                self._cut("late")

    def _swallow(self, event: Event, out: list[Event]) -> None:
        """Drops an event that arrives after the run was stopped. `Usage` passes.

        Counts the calls and the text that it drops.
        """
        match event:
            case Usage():
                out.append(event)
            case CallBegin():
                self.truncated = True
                self._count(self._after_cut or "late", 1)
            case Dropped(kind, count):
                self._count(kind, count)
            case Text(text) | Refusal(text) | Thought(text):
                self._count("tail", len(text))

    def _cut(self, kind: str) -> None:
        """Stops the run. Calls that still arrive are counted as drops of this kind."""
        self.stop()
        self._open = None
        self._after_cut = kind

    def _drop(self, kind: str, count: int, out: list[Event]) -> None:
        if count:
            self._count(kind, count)
            out.append(Dropped(kind, count))

    def _count(self, kind: str, count: int) -> None:
        if count:
            self.dropped[kind] = self.dropped.get(kind, 0) + count

"""Turns a backend's events into the client's: finds calls and thoughts in text, unwraps custom tools, assigns
ids.

One `Interpreter` reads one run, that is, one attempt. Pure: no I/O, ids are passed in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from toolwire.core.events import (
    CallArgs,
    CallBegin,
    CallEnd,
    Dropped,
    Event,
    Failure,
    Finish,
    Text,
    Thought,
    Usage,
)
from toolwire.core.ids import IdFactory
from toolwire.emulate.dialects.render import envelope
from toolwire.emulate.scanner import ToolCallParser
from toolwire.emulate.thoughts import MAY_OPEN
from toolwire.emulate.tools import Unwrap
from toolwire.gateway.plan import Plan, mentions

# --- stop sequences ---
#
# For turns whose calls are text. A stop sequence ends the answer's text and never a call; the backend could
# not distinguish them. The first complete sequence counts; of two that end together, the longer one. So the
# result does not depend on how the text was split. Only text that may be the beginning of a sequence waits.

_PASSING = (Usage, CallArgs, CallEnd)


class Stops:
    def __init__(self, sequences: Iterable[str]) -> None:
        self._sequences = tuple(filter(None, sequences))
        self._held = ""

    def feed(self, batch: list[Event]) -> list[Event]:
        """The events that pass. Where a sequence is found, `Finish` is the last of them."""
        out: list[Event] = []
        for place, event in enumerate(batch):
            if isinstance(event, Text):
                text, found = self._read(event.text)
                out += [Text(text)] if text else []
                if found:
                    return [
                        *out,
                        *(later for later in batch[place:] if isinstance(later, Usage)),
                        Finish("stop", stop=found),
                    ]
                continue
            if self._held and not isinstance(event, _PASSING):
                out.append(Text(self._held))
                self._held = ""
            out.append(event)
        return out

    def _read(self, text: str) -> tuple[str, str]:
        """The text that passes, and the sequence that was found, if any."""
        text = self._held + text
        ends = [(start + len(one), start) for one in self._sequences if (start := text.find(one)) >= 0]
        if ends:
            self._held = ""
            end, start = min(ends)
            return text[:start], text[start:end]
        wait = max(
            (size for one in self._sequences for size in range(1, len(one)) if text.endswith(one[:size])),
            default=0,
        )
        self._held = text[len(text) - wait :]
        return text[: len(text) - wait], ""


_REASONS = {"length": "length"}
_UNKNOWN = Failure("invalid_tool_call", "The model called a tool that the request does not declare.")


class Interpreter:
    """`feed` takes a batch and returns the client's events. Nothing follows `Finish` or `Failure`."""

    def __init__(self, plan: Plan, ids: IdFactory, mint: bool = False) -> None:
        """`mint`: every call gets an id from the gateway, and `minted` maps it to the backend's."""
        self._plan, self._mint, self._ids = plan, mint, ids
        self.ended, self._given = False, ""
        self.minted: dict[str, str] = {}
        self._native = plan.scanner is None
        self._scanner = plan.scanner() if plan.scanner is not None else None
        self._is_fresh = self._native and plan.thoughts  # a native answer may begin with a thought
        self._unwrap = Unwrap(plan.customs) if plan.customs else None
        self._stops = Stops(plan.stops) if plan.stops else None
        self._held: list[Event] = []
        self._strange: dict[
            int, list[str]
        ] = {}  # calls that are not allowed: the name, then pieces of the arguments
        self._one_call = plan.rules.legacy or not plan.rules.parallel
        self._called = False
        self._taken = set(plan.known_ids)
        self._only_scans = not (self._stops or self._unwrap or plan.hold_calls)  # nothing else changes text
        self.as_it_is = self._only_scans and self._scanner is None and not self._is_fresh
        """Text passes unchanged. May become true once a native answer has begun without a thought."""
        if self._scanner is not None and plan.begun:
            self._scanner.feed(plan.begun)  # the prefilled beginning of the answer
            self._given = plan.begun

    def feed(self, batch: list[Event]) -> list[Event]:
        if self._is_fresh:
            self._look_for_thoughts(batch)
        if (scanner := self._scanner) is not None:
            batch = self._scan(batch)
            if self._native and scanner.transparent:
                self._scanner, self.as_it_is = None, self._only_scans
            if scanner.unknown and self._plan.unknown == "error":
                batch = [_UNKNOWN]
        if self._stops is not None:
            batch = self._stops.feed(batch)
        if self._plan.declared is not None and (self._strange or CallBegin in map(type, batch)):
            batch = self._declare(batch)
        if self._unwrap is not None:
            batch = self._unwrap.feed(batch)
        if self._plan.hold_calls:
            batch = self._hold(batch)
        out: list[Event] = []  # not the batch itself: the journal keeps that as the backend sent it
        for event in batch:
            kind = type(event)
            out.append(self._identified(event) if kind is CallBegin else event)  # type: ignore[arg-type]
            if kind is Finish or kind is Failure:
                self.ended = True
                break
        return out

    def _look_for_thoughts(self, batch: list[Event]) -> None:
        """Scans a native answer for thoughts only if its first text may open one."""
        for event in batch:
            if isinstance(event, Usage) or event == Text(""):
                continue
            self._is_fresh = False
            if isinstance(event, Text) and MAY_OPEN.match(event.text):
                self._scanner = ToolCallParser((), (), thoughts=partial(mentions, self._plan.turn))
            else:
                self.as_it_is = self._only_scans
            return

    def _scan(self, batch: list[Event]) -> list[Event]:
        scanner = self._scanner
        assert scanner is not None
        out: list[Event] = []
        for event in batch:
            if type(event) is Text:
                out += scanner.feed(event.text)
            elif isinstance(event, Finish):
                ended = scanner.finish(_REASONS.get(event.reason, "eof"))
                cut = event.reason in ("stop", "tool_calls") and any(
                    isinstance(one, CallEnd) and one.status == "truncated" for one in ended
                )
                out += [
                    *ended,
                    Finish("length") if cut else event,
                ]  # whatever the backend says: a truncated call is not complete
            else:
                if isinstance(event, Failure):
                    out += scanner.finish("cancelled")
                elif self._native and not isinstance(
                    event, Usage
                ):  # the backend's own call, refusal or reasoning
                    out += scanner.finish()
                elif isinstance(event, Thought):
                    scanner.no_thoughts()
                out.append(event)
        return self._without_given(out) if self._given else out

    def _without_given(self, batch: list[Event]) -> list[Event]:
        """Removes the prefilled beginning from the text: the backend did not write it."""
        out: list[Event] = []
        for event in batch:
            if isinstance(event, CallBegin):
                self._given = ""
            if self._given and isinstance(event, Text):
                size = min(len(event.text), len(self._given))
                self._given = self._given[size:]
                event = Text(event.text[size:])
            if not isinstance(event, Text) or event.text:
                out.append(event)
        return out

    def _declare(self, batch: list[Event]) -> list[Event]:
        """Handles calls of tools that the request does not permit.

        A name that only differs in spelling is corrected. Any other call is sent if the client hides tools;
        else it becomes text, or is dropped and counted if the one allowed call was already made.
        """
        out: list[Event] = []
        for event in batch:
            if isinstance(event, CallBegin):
                known = self._plan.declared.resolve(event.name)  # type: ignore[union-attr]
                if known is not None:
                    self._called = True
                    out.append(event if known.name == event.name else replace(event, name=known.name))
                elif self._plan.unknown == "error":
                    return [*out, _UNKNOWN]
                elif self._plan.unknown == "forward":
                    self._called = True
                    out.append(event)
                else:
                    self._strange[event.index] = [event.name]
            elif isinstance(event, CallArgs) and event.index in self._strange:
                self._strange[event.index].append(event.delta)
            elif isinstance(event, CallEnd) and event.index in self._strange:
                name, *pieces = self._strange.pop(event.index)
                further = self._one_call and self._called
                out.append(Dropped("parallel") if further else Text(envelope(name, "".join(pieces))))
            else:
                out.append(event)
        return out

    def _hold(self, batch: list[Event]) -> list[Event]:
        """Holds native calls under `arguments = "validated"` until they are complete. Invalid JSON is an
        error.
        """
        out: list[Event] = []
        for event in batch:
            if isinstance(event, CallBegin | CallArgs):
                self._held.append(event)
            elif isinstance(event, CallEnd):
                if event.status == "invalid":
                    return [
                        *out,
                        Failure(
                            "invalid_tool_call",
                            "The model's tool call has arguments that are not a JSON object.",
                        ),
                    ]
                begin, *pieces = self._held
                whole = "".join(piece.delta for piece in pieces if isinstance(piece, CallArgs))
                out += [begin, CallArgs(event.index, whole), event] if whole else [begin, event]
                self._held = []
            else:
                out.append(event)
        return out

    def _identified(self, call: CallBegin) -> CallBegin:
        """The backend's id if it is new to this conversation, otherwise a new one: ids pair calls with
        results.
        """
        id = call.id
        if not id or id in self._taken or self._mint:
            id = self._ids("call_")
            self.minted[id] = call.id or ""
        self._taken.add(id)
        return call if id == call.id else CallBegin(call.index, call.name, id, call.kind)

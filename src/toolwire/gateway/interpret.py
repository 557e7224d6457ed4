"""From a backend's events to the client's: calls and thoughts found in text, custom tools unwrapped, calls held where a setting says so, and ids.

One `Interpreter` reads one run (one attempt of it). Pure: no I/O, ids are handed in.
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

# --- stops ------------------------------------------------------------
#
# Stop sequences of a turn whose calls are text: they end the answer's text and never a call, which the
# backend could not tell apart. The first sequence to be complete holds, of two that end together the
# longer one, so that it does not matter how the text was cut into pieces. Only what may be the beginning
# of one waits. Pure; standard library only.

_PASSING = (Usage, CallArgs, CallEnd)


class Stops:
    def __init__(self, sequences: Iterable[str]) -> None:
        self._sequences = tuple(filter(None, sequences))
        self._held = ""

    def feed(self, batch: list[Event]) -> list[Event]:
        """The events that go on; where a sequence is found, `Finish` is the last of them."""
        out: list[Event] = []
        for place, event in enumerate(batch):
            if isinstance(event, Text):
                text, found = self._read(event.text)
                out += [Text(text)] if text else []
                if found:
                    return [
                        *out,
                        *(later for later in batch[place:] if isinstance(later, Usage)),
                        Finish("stop"),
                    ]
                continue
            if self._held and not isinstance(event, _PASSING):
                out.append(Text(self._held))
                self._held = ""
            out.append(event)
        return out

    def _read(self, text: str) -> tuple[str, bool]:
        text = self._held + text
        ends = [(start + len(one), start) for one in self._sequences if (start := text.find(one)) >= 0]
        if ends:
            self._held = ""
            return text[: min(ends)[1]], True
        wait = max(
            (size for one in self._sequences for size in range(1, len(one)) if text.endswith(one[:size])),
            default=0,
        )
        self._held = text[len(text) - wait :]
        return text[: len(text) - wait], False


_REASONS = {"length": "length"}
_UNKNOWN = Failure("invalid_tool_call", "The model called a tool that the request does not declare.")


class Interpreter:
    """`feed` a batch, get the events that the client's answer is made of. After `Finish` or `Failure` nothing more comes out."""

    def __init__(self, plan: Plan, ids: IdFactory, mint: bool = False) -> None:
        """`mint`: every call gets an id of the gateway's own; `minted` maps it to the backend's."""
        self._plan, self._mint, self._ids = plan, mint, ids
        self.ended, self._given = False, ""
        self.minted: dict[str, str] = {}
        self._native = plan.scanner is None
        self._scanner = plan.scanner() if plan.scanner is not None else None
        self._is_fresh = (
            self._native and plan.thoughts
        )  # the first words of a native answer may open a thought
        self._unwrap = Unwrap(plan.customs) if plan.customs else None
        self._stops = Stops(plan.stops) if plan.stops else None
        self._held: list[Event] = []
        self._strange: dict[int, list[str]] = {}  # calls that may not be made: name, then pieces of arguments
        self._one_call = plan.rules.legacy or not plan.rules.parallel
        self._called = False
        self._taken = set(plan.known_ids)
        self._only_scans = not (
            self._stops or self._unwrap or plan.hold_calls
        )  # to a piece of text nothing else is done
        self.as_it_is = self._only_scans and self._scanner is None and not self._is_fresh
        """A piece of text passes as it is. Can become true after the first words of a native answer, when they open no thought."""
        if self._scanner is not None and plan.begun:
            self._scanner.feed(plan.begun)  # the answer begins with what it was made to begin with
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
        out: list[Event] = []  # never the batch itself: the journal keeps it as the backend sent it
        for event in batch:
            kind = type(event)
            out.append(self._identified(event) if kind is CallBegin else event)  # type: ignore[arg-type]
            if kind is Finish or kind is Failure:
                self.ended = True
                break
        return out

    def _look_for_thoughts(self, batch: list[Event]) -> None:
        """A native answer is scanned for thoughts only where its first words may open one."""
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
                ]  # whatever the backend says: a call that broke off is not complete
            else:
                if isinstance(event, Failure):
                    out += scanner.finish("cancelled")
                elif self._native and not isinstance(
                    event, Usage
                ):  # a call, a refusal or reasoning of the backend's own
                    out += scanner.finish()
                elif isinstance(event, Thought):
                    scanner.no_thoughts()
                out.append(event)
        return self._without_given(out) if self._given else out

    def _without_given(self, batch: list[Event]) -> list[Event]:
        """What became of the beginning that was given: where it became no call, it is not told as text, for the backend did not write it."""
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
        """Calls of tools that the request does not permit: a name that only differs in spelling is corrected, any other call becomes text.

        Where one call is allowed and has been made, it is dropped and counted, as any further call is.
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
        """Native calls under `arguments = "validated"`: sent once they are complete, an error when they are not JSON."""
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
        """The backend's own id where it is new to this conversation; else a fresh one, since ids pair calls with results."""
        id = call.id
        if not id or id in self._taken or self._mint:
            id = self._ids("call_")
            self.minted[id] = call.id or ""
        self._taken.add(id)
        return call if id == call.id else CallBegin(call.index, call.name, id, call.kind)

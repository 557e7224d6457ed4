"""Turns a backend's events into the client's events.

Finds calls and thoughts in text, unwraps the input of custom tools, and assigns call ids. One `Interpreter`
reads one run of the backend. Pure: it does no I/O, and ids are passed in.
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
    TokenLogprob,
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
# The gateway looks for stop sequences itself in turns whose calls are text: the backend cannot distinguish
# text from calls. A stop sequence ends the answer's text, never a call. The first complete sequence counts.
# If two sequences end at the same character, the longer one counts. So the result does not depend on how the
# text was split. Only text that may be the beginning of a sequence is held back.

_PASSING = (Usage, CallArgs, CallEnd)


class Stops:
    def __init__(self, sequences: Iterable[str]) -> None:
        self._sequences = tuple(filter(None, sequences))
        self._held = ""

    def feed(self, batch: list[Event]) -> list[Event]:
        """Returns the events up to the first stop sequence.

        If a sequence is found, the last event is `Finish`.
        """
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
        """Returns the text that can be sent, and the stop sequence that was found ("" if none)."""
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
    """Reads one run: `feed` takes a batch and returns the client's events.

    Nothing follows `Finish` or `Failure`.
    """

    def __init__(self, plan: Plan, ids: IdFactory, mint: bool = False) -> None:
        """`mint`: whether every call gets a new id from the gateway.

        The attribute `minted` maps each new id to the backend's id of the call.
        """
        self._plan, self._mint, self._ids = plan, mint, ids
        self.ended, self._given = False, ""
        self.minted: dict[str, str] = {}
        self._native = plan.scanner is None
        self._scanner = plan.scanner() if plan.scanner is not None else None
        self._is_fresh = self._native and plan.thoughts  # the first text may open a thought
        self._unwrap = Unwrap(plan.customs) if plan.customs else None
        self._stops = Stops(plan.stops) if plan.stops else None
        self._scanned = 0  # characters that the scanner holds back; `_tokens` has their log probabilities
        self._tokens: list[TokenLogprob] = []
        self.splits = False
        """Whether a thought was removed from the text of an answer that is not scanned for calls."""
        self._held: list[Event] = []
        self._strange: dict[
            int, list[str]
        ] = {}  # calls of undeclared tools, by index: the name, then pieces of the arguments
        self._one_call = plan.rules.legacy or not plan.rules.parallel
        self._called = False
        self._taken = set(plan.known_ids)
        self._only_scans = not (self._stops or self._unwrap or plan.hold_calls)  # no other step changes text
        self.as_it_is = self._only_scans and self._scanner is None and not self._is_fresh
        """Whether text passes unchanged from now on. This can become True while an answer is read."""
        if self._scanner is not None and plan.begun:
            self._scanner.feed(plan.begun)  # the beginning of the answer, which the gateway prefilled
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
        elif self.splits:
            batch = [Text(event.text) if isinstance(event, Text) else event for event in batch]
        if self._stops is not None:
            batch = self._stops.feed(batch)
        if self._plan.declared is not None and (self._strange or CallBegin in map(type, batch)):
            batch = self._declare(batch)
        if self._unwrap is not None:
            batch = self._unwrap.feed(batch)
        if self._plan.hold_calls:
            batch = self._hold(batch)
        out: list[Event] = []  # a new list: the journal keeps the batch as the backend sent it
        for event in batch:
            kind = type(event)
            out.append(self._identified(event) if kind is CallBegin else event)  # type: ignore[arg-type]
            if kind is Finish or kind is Failure:
                self.ended = True
                break
        return out

    def _look_for_thoughts(self, batch: list[Event]) -> None:
        """Starts to scan the answer for thoughts if the first text of the answer may open a thought.

        Used only for answers that are not scanned for calls.
        """
        for event in batch:
            if isinstance(event, Usage) or (isinstance(event, Text) and not event.text):
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
                self._scanned += len(event.text)
                self._tokens += event.logprobs
                found = scanner.feed(event.text)
                out += self._counted(found) if self._native else found
            elif isinstance(event, Finish):
                ended = self._counted(scanner.finish(_REASONS.get(event.reason, "eof")))
                cut = event.reason in ("stop", "tool_calls") and any(
                    isinstance(one, CallEnd) and one.status == "truncated" for one in ended
                )
                out += [
                    *ended,
                    Finish("length") if cut else event,
                ]  # a truncated call is never complete, whatever the backend reports
            else:
                if isinstance(event, Failure):
                    out += self._counted(scanner.finish("cancelled"))
                elif self._native and not isinstance(
                    event, Usage
                ):  # the backend's own call, refusal or reasoning ends the text before it
                    out += self._counted(scanner.finish())
                elif isinstance(event, Thought):
                    scanner.no_thoughts()
                out.append(event)
        return self._without_given(out) if self._given else out

    def _counted(self, found: list[Event]) -> list[Event]:
        """Adds the log probabilities to the text of an answer that is scanned only for thoughts.

        If the scanner removed a thought from the text, the log probabilities no longer match the text. They
        are then left out, and `splits` is set.
        """
        scanner = self._scanner
        if not self._native or scanner is None or not (found or scanner.transparent):
            return found
        texts = [event.text for event in found if isinstance(event, Text)]
        # An empty thought produces no event, but its markers are missing from the text.
        if len("".join(texts)) != self._scanned or Thought in map(type, found):
            self.splits = True
        elif self._tokens and not self.splits:
            found = [Text("".join(texts), tuple(self._tokens))]
        self._scanned, self._tokens = 0, []
        return found

    def _without_given(self, batch: list[Event]) -> list[Event]:
        """Removes the prefilled beginning of the answer from its text. Toolwire wrote it, not the model."""
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
        """Handles calls of tools that the request does not allow.

        If the name of an allowed tool differs only in spelling, the call's name is corrected. For any other
        tool, `Plan.unknown` decides whether the call is sent, fails the answer, or becomes text. If the
        answer may have only one call and already has it, a call that would become text is dropped and
        counted.
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
        """Holds calls back until they are complete (setting `arguments = "validated"`).

        If the arguments of a call are not a JSON object, the last event is a `Failure`.
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
        """Returns the call with an id that is unique in this conversation.

        The client pairs calls with results by id. The backend's own id is kept if it is unique, unless the
        gateway assigns all ids (`mint`).
        """
        id = call.id
        if not id or id in self._taken or self._mint:
            id = self._ids("call_")
            self.minted[id] = call.id or ""
        self._taken.add(id)
        return call if id == call.id else CallBegin(call.index, call.name, id, call.kind)

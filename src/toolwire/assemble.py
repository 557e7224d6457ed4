"""The one engine that turns fragments of calls, in whatever order and shape an upstream sends them, into events.

Which call a fragment belongs to:
  1. its `id` (or `alias`), where it is known;
  2. else its `index`, whatever number the upstream counts from;
  3. else its `position`, where its chunk brought several fragments;
  4. else it continues the last call, unless it brings a new name.
An unknown id or a new name opens a call. At a known index an unknown id opens one only together with a name, and then only if the name is another
one or what came so far is empty or closed: some servers mint an id for every delta, others count every call as 0. A fragment that repeats the name
of a call whose arguments are closed opens the next call, unless it repeats the arguments too.

What a fragment means:
  - `arguments` are an increment and are appended verbatim, even if they equal the last piece or a prefix of what is there. Only `complete` fragments,
    and all fragments where the upstream is `cumulative`, carry the whole: then the new suffix counts, and a whole that contradicts what is there
    changes nothing but the call's status. Arguments that are a JSON value instead of a string are written once, compactly.
  - A name counts once. Another name for the same call, before any arguments and before the call began, is the next piece of it ("get_" + "weather").
    So a call begins when its name is surely whole: it is among the declared names, or arguments come with it or follow it. Without an id it waits for
    the first text of its arguments too, because the id may come late.

What comes out: calls one at a time, in order of appearance, numbered from 0. A call that begins while the one before it is not closed is held until
that one is, or until the end. Whether arguments are closed is only looked at while another call waits. Cost is linear in what came in. Standard
library only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from toolwire.events import CallArgs, CallBegin, CallEnd, CallKind, CallStatus, Dropped, Event

NOT_JSON = "arguments_not_json"
NOT_OBJECT = "arguments_not_object"
CONTRADICTED = "arguments_contradicted"

_CUT_REASONS = ("length", "content_filter")
_STRUCTURE = re.compile(r'[{}\[\]"]')
_IN_STRING = re.compile(r'["\\]')


@dataclass(slots=True)
class Fragment:
    """A piece of a call as an upstream sent it. `alias` is a second id of the same call (a Responses item id); `position` is the fragment's place in
    its chunk, None where it came alone; `complete` says that `arguments` are the whole."""

    index: int | None = None
    id: str | None = None
    name: str | None = None
    arguments: Any = None
    kind: CallKind = "function"
    complete: bool = False
    alias: str | None = None
    position: int | None = None


class PartialCall:
    """A call as far as it came. `arguments` may be read at any time; `number` is its place among the calls, -1 before it has one."""

    __slots__ = (
        *("alias", "begun", "complete", "ended", "id", "index", "issues", "kind", "name", "number", "pieces", "sent"),
        *("_depth", "_in_string", "_scanned", "_skip", "_started"),
    )

    def __init__(self, kind: CallKind, index: int | None) -> None:
        self.kind: CallKind = kind
        self.index = index
        self.id: str | None = None
        self.alias: str | None = None
        self.name = ""
        self.number = -1
        self.pieces: list[str] = []
        self.sent = 0
        self.begun = self.ended = self.complete = False
        self.issues: list[str] = []
        self._scanned = self._depth = 0
        self._started = self._in_string = self._skip = False

    @property
    def arguments(self) -> str:
        """The arguments so far. What was sent and scanned is joined once, so that reading often costs no more than reading."""
        if len(self.pieces) > 1:
            sent, rest = self.pieces[: self.sent], self.pieces[self.sent :]
            self.is_closed()
            self.pieces = ["".join(sent)] * bool(sent) + ["".join(rest)] * bool(rest)
            self.sent, self._scanned = min(len(sent), 1), len(self.pieces)
        return "".join(self.pieces)

    def is_closed(self) -> bool:
        """Whether nothing can follow: the call was declared complete, or its outermost JSON bracket closed. Each piece is looked at once."""
        if self.complete:
            return True
        if self.kind == "custom":
            return False
        for piece in self.pieces[self._scanned :]:
            self._scan(piece)
        self._scanned = len(self.pieces)
        return self._started and self._depth <= 0

    def _scan(self, piece: str) -> None:
        at, end = 0, len(piece)
        if self._skip and end:
            at, self._skip = 1, False
        while at < end:
            found = (_IN_STRING if self._in_string else _STRUCTURE).search(piece, at)
            if found is None:
                return
            at, sign = found.end(), found[0]
            if sign == '"':
                self._in_string = not self._in_string
            elif sign == "\\":
                self._skip = at >= end
                at += 1
            elif sign in "{[":
                self._depth, self._started = self._depth + 1, True
            else:
                self._depth -= 1

    def take_whole(self, whole: str) -> str:
        """Takes the whole arguments (so far) and returns the new suffix. What is there already is never erased."""
        known = self.arguments
        if whole.startswith(known):
            return whole[len(known) :]
        if whole and CONTRADICTED not in self.issues:
            self.issues.append(CONTRADICTED)
        return ""

    def verdict(self, reason: str) -> CallEnd:
        """How the call ended, given why the run ended. Empty arguments are fine: the wire writes them as `{}`."""
        issues = list(self.issues)
        text = self.arguments if self.kind == "function" else ""
        if text.strip():
            try:
                if not isinstance(_STRICT.decode(text), dict):
                    issues.append(NOT_OBJECT)
            except (ValueError, RecursionError):
                issues.append(NOT_JSON)
        status: CallStatus = "ok"
        if issues:
            status = "truncated" if reason in _CUT_REASONS and issues == [NOT_JSON] else "invalid"
        elif reason in _CUT_REASONS and self.kind == "custom" and not self.complete:
            status = "truncated"
        return CallEnd(self.number, status, tuple(issues))


class CallAssembler:
    """Fragments in, events out. `names` are the declared tools; None: a name is whole when arguments come with it or after it.

    `ordered=False` sends every call's events as they come, and neither waits for ids nor judges arguments: for callers whose wire
    numbers its fragments. `changes` counts what fragments have changed.
    """

    def __init__(self, cumulative: bool = False, names: Container[str] | None = None, ordered: bool = True) -> None:
        self.calls: list[PartialCall] = []
        self.changes = 0
        self._cumulative = cumulative
        self._names = names
        self._ordered = ordered
        self._by_id: dict[str, PartialCall] = {}
        self._by_index: dict[int, PartialCall] = {}
        self._last: PartialCall | None = None
        self._head = 0
        self._numbered = 0

    @property
    def open(self) -> bool:
        """Whether a call has begun, or waits to, that has not ended."""
        return self._head < len(self.calls) if self._ordered else any(not call.ended for call in self.calls)

    def add(self, fragment: Fragment) -> list[Event]:
        arguments, bare = fragment.arguments, not fragment.name and not fragment.id and not fragment.alias
        if bare and fragment.index is not None and type(arguments) is str and not fragment.complete and not self._cumulative:
            call = self._by_index.get(fragment.index)  # the hot path: one more piece of the one open call
            if call is not None and call.begun and not call.ended and not call.complete and call is self.calls[-1] and arguments:
                self._last = call
                call.pieces.append(arguments)
                call.sent += 1
                self.changes += 1
                return [CallArgs(call.number, arguments)]
        return [] if bare and arguments is None else self._add(fragment)

    def settle(self) -> list[Event]:
        """Ends the open call if it is closed, because something other than a call follows."""
        if self._head == len(self.calls) - 1:
            call = self.calls[self._head]
            if call.begun and call.is_closed():
                return [self._end(call, "")]
        return []

    def finish(self, reason: str = "stop") -> list[Event]:
        """Ends every call. A call that never got a name can not be made: it is dropped, and counted."""
        out: list[Event] = []
        for call in self.calls[self._head :]:
            if call.ended:
                continue
            if call.name:
                self._send(call, out, force=True)
                out.append(self._end(call, reason))
            else:
                out.append(Dropped("phantom"))
                call.ended = True
        self._head = len(self.calls)
        return out

    # --- which call ---------------------------------------------------------------------------------------------------------------------------

    def _find(self, fragment: Fragment) -> PartialCall | None:
        """The call that the fragment belongs to; None: it opens one."""
        index, name = fragment.index, fragment.name
        call = self._by_id.get(fragment.id or "") or self._by_id.get(fragment.alias or "")
        if call is not None:
            # An id of one index that turns up with a name at another is a second call: some servers use the tool's name as id.
            second = bool(name) and index is not None and call.index is not None and index not in self._by_index
            return None if second or self._reopens(call, fragment) else call
        has_id = bool(fragment.id or fragment.alias)
        call = self._by_place(fragment, has_id) if index is None else self._by_index.get(index)
        if call is None or self._reopens(call, fragment):
            return None
        if has_id and (call.id or call.alias):
            other = bool(name) and (name != call.name or not call.pieces or call.is_closed())
            return None if other else call
        if name and call.name and name != call.name and (index is None or call.begun or call.pieces):
            return None
        return call

    def _by_place(self, fragment: Fragment, has_id: bool) -> PartialCall | None:
        position = fragment.position
        if has_id:  # an unknown id opens a call, unless it is the late id of a call that had none
            call = self._by_place(fragment, False) if fragment.complete else None
            return call if call is not None and not call.id and not call.alias and call.name == fragment.name else None
        if position is None:
            return self._last
        return self.calls[position] if position < len(self.calls) else None

    def _reopens(self, call: PartialCall, fragment: Fragment) -> bool:
        """Whether a fragment that repeats the call's name starts another call, since the call's own arguments are closed."""
        text = fragment.arguments
        if not fragment.name or fragment.name != call.name or not text or self._cumulative:
            return False
        if fragment.complete:  # only where nothing but its place leads to the call
            nameless = not fragment.id and not fragment.alias and fragment.index is None
            return nameless and isinstance(text, str) and call.is_closed() and not text.startswith(call.arguments)
        return call.is_closed() and _as_text(text) != call.arguments

    def _open(self, fragment: Fragment) -> PartialCall:
        call = PartialCall(fragment.kind, fragment.index)
        if not self._ordered:
            call.number = len(self.calls)
        self.calls.append(call)
        self.changes += 1
        if fragment.index is not None:
            self._by_index[fragment.index] = call
        return call

    # --- what it means ------------------------------------------------------------------------------------------------------------------------

    def _add(self, fragment: Fragment) -> list[Event]:
        found = self._find(fragment)
        call = self._open(fragment) if found is None else found
        self._last = call
        if fragment.index is not None and fragment.index not in self._by_index:
            self._by_index[fragment.index] = call
            call.index = fragment.index
        self._identify(call, fragment)
        arguments = fragment.arguments
        late = self._take(call, fragment) if arguments is not None else 0
        if fragment.complete:
            call.complete = True
        out: list[Event] = []
        if late:
            out.append(Dropped("late", late))
        if not call.ended or not self._ordered:
            identified = call.id is not None or not self._ordered
            self._emit(call, out, ready=fragment.complete or (identified and self._is_whole(call.name, arguments is not None)))
        return out

    def _identify(self, call: PartialCall, fragment: Fragment) -> None:
        if fragment.id and call.id is None and fragment.id not in self._by_id:
            call.id = fragment.id
            self.changes += 1
        if fragment.alias and call.alias is None:
            call.alias = fragment.alias
        for key in (fragment.id, fragment.alias):
            if key:
                self._by_id.setdefault(key, call)
        name = fragment.name
        if name and name != call.name and not call.begun and (not call.pieces or not call.name):
            call.name = name if self._cumulative and name.startswith(call.name) else call.name + name
            self.changes += 1

    def _take(self, call: PartialCall, fragment: Fragment) -> int:
        """Adds the fragment's arguments; returns the number of characters that came too late to be sent."""
        arguments = fragment.arguments
        if isinstance(arguments, str):
            text = arguments
        elif call.pieces:
            return 0  # a JSON value can not be an increment: it repeats what is there
        else:
            text = _as_text(arguments)
        if self._cumulative or fragment.complete:
            text = call.take_whole(text)
        elif fragment.name and fragment.name == call.name and call.pieces and text == call.arguments and call.is_closed():
            return 0  # the whole call once more
        if not text:
            return 0
        if (call.ended or call.complete) and (self._ordered or not fragment.complete):
            return len(text) if text.strip() else 0
        call.pieces.append(text)
        self.changes += 1
        return 0

    def _is_whole(self, name: str, has_arguments: bool) -> bool:
        if self._names is None:
            return has_arguments
        if name not in self._names:
            return False
        others = self._names if isinstance(self._names, frozenset) else ()
        return has_arguments or not any(other != name and other.startswith(name) for other in others)

    # --- what comes out -----------------------------------------------------------------------------------------------------------------------

    def _emit(self, call: PartialCall, out: list[Event], ready: bool) -> None:
        if not self._ordered:
            self._send(call, out, force=ready)
            if call.begun and call.complete and not call.ended:
                out.append(self._end(call, ""))
            return
        while self._head < len(self.calls):
            head = self.calls[self._head]
            waiting = self._head + 1 < len(self.calls)
            self._send(head, out, force=waiting or (ready and head is call) or head.complete)
            if not head.begun or not (head.complete or (waiting and head.is_closed())):
                return
            out.append(self._end(head, ""))

    def _send(self, call: PartialCall, out: list[Event], force: bool) -> None:
        if not call.begun:
            if not call.name or not (force or call.pieces):
                return
            if self._ordered:
                call.number, self._numbered = self._numbered, self._numbered + 1
            call.begun = True
            out.append(CallBegin(call.number, call.name, call.id or call.alias, call.kind))
        if call.sent < len(call.pieces):
            fresh = call.pieces[call.sent :]
            call.sent = len(call.pieces)
            out.append(CallArgs(call.number, fresh[0] if len(fresh) == 1 else "".join(fresh)))

    def _end(self, call: PartialCall, reason: str) -> CallEnd:
        call.ended = True
        if not self._ordered:
            return CallEnd(call.number, issues=tuple(call.issues))
        self._head += 1
        return call.verdict(reason)


class _EveryName:
    def __contains__(self, item: object) -> bool:
        return True


EVERY_NAME: Container[str] = _EveryName()
"""For callers who take every name as whole."""


def _as_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))


def _no_constant(name: str) -> Any:
    raise ValueError(name)


_STRICT = json.JSONDecoder(parse_int=len, parse_float=len, parse_constant=_no_constant)
"""JSON as the standard has it: no NaN, and numbers of any length."""

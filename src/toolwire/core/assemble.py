"""Turns the fragments of tool calls that an upstream server sends into events. Pure.

The fragments may have any order and shape. Calls are sent one at a time, in the order in which they
began, numbered from 0. A call that begins while the previous call is open waits until the previous call is
closed or the run ends. White space at the beginning of arguments is sent together with the text that follows,
and dropped if no text follows. The cost is linear in the input. To limit the memory, the caller checks
`CallAssembler.held` and `size`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

from toolwire.core.events import CallArgs, CallBegin, CallEnd, CallKind, Dropped, Event
from toolwire.core.partial_call import NOT_JSON, PartialCall, Repair, join_surrogates

CALL_SIZE = 500
"""How much each call adds to `CallAssembler.size`, besides the length of its texts."""


@dataclass(slots=True)
class Fragment:
    """A piece of a tool call, as an upstream server sent it.

    - `alias`: a second id of the call (a Responses item id).
    - `position`: the fragment's index in its chunk; None if it is the chunk's only fragment.
    - `complete`: `arguments` holds all arguments of the call, not an increment.
    - `own`: the fragment always opens a new call, whatever its id and index.
    - `rough`: `arguments` may begin or end with half of a surrogate pair.
    """

    index: int | None = None
    id: str | None = None
    name: str | None = None
    arguments: Any = None
    kind: CallKind = "function"
    complete: bool = False
    alias: str | None = None
    position: int | None = None
    own: bool = False
    rough: bool = False


class CallAssembler:
    """Turns the fragments of a run into events.

    Parameters:

    - `cumulative`: every fragment repeats the arguments from their beginning.
    - `names`: the names of the declared tools. A name can arrive in pieces. A declared name is complete at
      once. But if a longer name begins with the same text (`get` and `get_time`), the shorter name is
      complete when arguments arrive. If `names` is None, every name is complete when arguments arrive.
    - `ordered`: if False, a call does not wait for an earlier call or for its own id, and arguments are not
      checked. The events of several calls can alternate.
    - `rename`: returns the name for the event `CallBegin`, given the name that the upstream sent.
    - `repair`: creates the `Repair` for the arguments of a function call.

    Attributes:

    - `reason`: why the run ends. The caller sets it if the reason is known before the last calls are added.
    - `changes`: counts what fragments added: new calls, ids, and pieces of names and arguments.
    - `held`: the number of characters that wait to be sent.
    - `size`: roughly the number of characters that are kept.
    - `truncated`: a call was cut off.
    - `lost`: arguments arrived for a call that had already ended without arguments.
    """

    def __init__(
        self,
        cumulative: bool = False,
        names: Container[str] | None = None,
        ordered: bool = True,
        rename: Callable[[str], str] | None = None,
        repair: Callable[[], Repair] | None = None,
    ) -> None:
        self.calls: list[PartialCall] = []
        self.truncated = self.lost = False
        self._repair = repair
        self.reason = ""
        self.changes = self.held = self.size = 0
        self._rename = rename
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
        """Whether there is a call that has not ended yet."""
        return self._head < len(self.calls) if self._ordered else any(not call.ended for call in self.calls)

    @property
    def unfinished(self) -> bool:
        """Whether an open function call has arguments that are not complete yet."""
        return any(
            call.pieces and call.kind == "function" and not call.is_closed()
            for call in self.calls[self._head :]
        )

    def add(self, fragment: Fragment) -> list[Event]:
        """Adds a fragment and returns the events that can now be sent."""
        arguments, bare = fragment.arguments, not fragment.name and not fragment.id and not fragment.alias
        grows = type(arguments) is str and arguments and not (fragment.complete or fragment.rough)
        if bare and grows and fragment.index is not None and not self._cumulative:
            call = self._by_index.get(fragment.index)  # the hot path: the next piece of the last call
            if call is not None and call is self.calls[-1] and _flows(call):
                self._last = call
                call.pieces.append(arguments)
                call.sent += 1
                self.changes += 1
                self.size += len(arguments)
                if call.repair is not None:
                    arguments = call.repair.feed(arguments)
                return [CallArgs(call.number, arguments)] if arguments else []
        return [] if bare and arguments is None else self._add(fragment)

    def settle(self) -> list[Event]:
        """Ends the open call if its arguments are complete, so that text can follow the call."""
        if self._head == len(self.calls) - 1:
            call = self.calls[self._head]
            if call.begun and call.is_closed():
                out: list[Event] = []
                self._end(call, "", out)
                return out
        return []

    def finish(self, reason: str = "stop") -> list[Event]:
        """Ends every open call. A call without a name is dropped and counted.

        `reason` is why the run ended.
        """
        out: list[Event] = []
        for call in self.calls[self._head :]:
            if call.ended:
                continue
            if call.name:
                self._end(call, reason, out)
            else:
                out.append(Dropped("phantom"))
                call.ended = True
        self._head = len(self.calls)
        return out

    # --- finding the call of a fragment ---

    def _find(self, fragment: Fragment) -> PartialCall | None:
        """Returns the call that the fragment belongs to, or None if the fragment opens a new call.

        The call is looked up by id or alias, else by index, else by position if the chunk has several
        fragments. A fragment without any of these continues the last call, unless the fragment has a
        different name.

        Some servers send a new id with every delta, and others give every call the index 0. So if the
        fragment's id is unknown, and the call at its index has an id too, the name decides. A fragment
        without a name continues the call. A fragment with a name opens a new call if its name differs from
        the call's name, if the call has no arguments yet, or if the call's arguments are complete.
        """
        if fragment.own:
            return None
        index, name = fragment.index, fragment.name
        call = self._by_id.get(fragment.id or "") or self._by_id.get(fragment.alias or "")
        if call is not None:
            # A known id with a name at a new index is a second call: some servers use the tool's name as id.
            is_new = index is not None and call.index is not None and index not in self._by_index
            return None if (name and is_new) or self._reopens(call, fragment) else call
        has_id = bool(fragment.id or fragment.alias)
        call = self._by_position(fragment, has_id) if index is None else self._by_index.get(index)
        if call is None or self._reopens(call, fragment):
            return None
        if has_id and (call.id or call.alias):
            other = bool(name) and (name != call.name or not call.pieces or call.is_closed())
            return None if other else call
        if name and call.name and name != call.name and (index is None or call.begun or call.pieces):
            return None
        return call

    def _by_position(self, fragment: Fragment, has_id: bool) -> PartialCall | None:
        position = fragment.position
        if has_id:  # an unknown id opens a call, unless it is the late id of a call without an id
            call = self._by_position(fragment, False) if fragment.complete else None
            is_late = call is not None and not call.id and not call.alias and call.name == fragment.name
            return call if is_late else None
        if position is None:
            return self._last
        return self.calls[position] if position < len(self.calls) else None

    def _reopens(self, call: PartialCall, fragment: Fragment) -> bool:
        """Returns True if the fragment repeats the name of a closed call, and so opens a new call."""
        text = fragment.arguments
        if not fragment.name or fragment.name != call.name or not text or self._cumulative:
            return False
        if fragment.complete:  # it opens a new call only if nothing but its position identifies it
            if fragment.id or fragment.alias or fragment.index is not None or not isinstance(text, str):
                return False
            return call.is_closed() and not text.startswith(call.arguments)
        return call.is_closed() and _as_text(text) != call.arguments

    def _open(self, fragment: Fragment) -> PartialCall:
        call = PartialCall(fragment.kind, fragment.index)
        if not self._ordered:
            call.number = len(self.calls)
        if self._repair is not None and fragment.kind == "function":
            call.repair = self._repair()
        self.calls.append(call)
        self.changes += 1
        self.size += CALL_SIZE
        if fragment.index is not None:
            self._by_index[fragment.index] = call
        return call

    # --- adding a fragment ---

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
            whole = identified and self._is_whole(call.name, arguments is not None)
            self._emit(call, out, ready=fragment.complete or whole)
        return out

    def _identify(self, call: PartialCall, fragment: Fragment) -> None:
        """Sets the call's ids and name from the fragment.

        A different name before any arguments continues the name: "get_" + "weather".
        """
        if fragment.id and call.id is None and fragment.id not in self._by_id:
            call.id = fragment.id
            self.changes += 1
        if fragment.alias and call.alias is None:
            call.alias = fragment.alias
        for key in (fragment.id, fragment.alias):
            if key and key not in self._by_id:
                self._by_id[key] = call
                self.size += len(key)
        name = fragment.name
        if name and name != call.name and not call.begun and (not call.pieces or not call.name):
            call.name = name if self._cumulative and name.startswith(call.name) else call.name + name
            self.changes += 1
            self.size += len(call.name)

    def _take(self, call: PartialCall, fragment: Fragment) -> int:
        """Adds the fragment's arguments; returns how many characters came too late to be sent.

        Increments are appended verbatim, even if they repeat earlier text. If a fragment holds all arguments
        so far (`complete` or `cumulative`), only the new part is added.
        """
        arguments, whole = fragment.arguments, self._cumulative or fragment.complete
        if not isinstance(arguments, str) and call.pieces:
            return 0  # a JSON value cannot be an increment, so it repeats the arguments
        text = _as_text(arguments)
        if text is None:
            call.issues.append(NOT_JSON)
            return 0
        if fragment.rough or call.half:
            text, call.half = join_surrogates("" if whole else call.half, text, more=not fragment.complete)
        if whole:
            text = call.take_whole(text)
        elif fragment.name and fragment.name == call.name and call.pieces:
            if text == call.arguments and call.is_closed():
                return 0  # the whole call is repeated
        if not text:
            return 0
        if (call.ended or call.complete) and (self._ordered or not fragment.complete):
            late = len(text) if text.strip() else 0
            self.lost = self.lost or (bool(late) and call.hollow)
            return late
        self._keep(call, text)
        return 0

    def _keep(self, call: PartialCall, text: str) -> None:
        call.pieces.append(text)
        call.solid = call.solid or call.kind == "custom" or not self._ordered or not text.isspace()
        self.changes += 1
        self.held += len(text)
        self.size += len(text)

    def _is_whole(self, name: str, has_arguments: bool) -> bool:
        """Returns True if the name is complete. See `names` of `CallAssembler`."""
        if self._names is None:
            return has_arguments
        if name not in self._names:
            return False
        others = self._names if isinstance(self._names, frozenset) else ()
        return has_arguments or not any(other != name and other.startswith(name) for other in others)

    # --- sending events ---

    def _emit(self, call: PartialCall, out: list[Event], ready: bool) -> None:
        """Sends what can be sent after `call` has changed. `ready`: the call's name is complete."""
        if not self._ordered:
            self._send(call, out, force=ready)
            if call.begun and call.complete and not call.ended:
                self._end(call, "", out)
            return
        while self._head < len(self.calls):
            head = self.calls[self._head]
            waiting = self._head + 1 < len(self.calls)
            self._send(head, out, force=waiting or (ready and head is call) or head.complete)
            if not head.begun or not (head.complete or (waiting and head.is_closed())):
                return
            self._end(head, self.reason if head.complete else "", out)

    def _send(self, call: PartialCall, out: list[Event], force: bool) -> None:
        """Sends the beginning of a call, and its new arguments. `force`: the name is complete."""
        if not call.begun:
            if not call.name or not (force or call.pieces):
                return
            if self._ordered:
                call.number, self._numbered = self._numbered, self._numbered + 1
            call.begun = True
            name = call.name if self._rename is None else self._rename(call.name)
            out.append(CallBegin(call.number, name, call.id or call.alias, call.kind))
        if call.sent < len(call.pieces) and call.solid:
            text = "".join(call.pieces[call.sent :])
            call.sent = len(call.pieces)
            self.held -= len(text)
            if call.repair is not None:
                text = call.repair.feed(text)
            if text:
                out.append(CallArgs(call.number, text))

    def _end(self, call: PartialCall, reason: str, out: list[Event]) -> None:
        """Sends the rest of the call and its end. `reason`: why the run ended; "" if the run continues."""
        if call.half:
            self._keep(call, join_surrogates(call.half, "", more=False)[0])
            call.half = ""
        self._send(call, out, force=True)
        if call.repair is not None:
            call.hollow = call.repair.hollow
            if tail := call.repair.finish():
                out.append(CallArgs(call.number, tail))
        call.ended = True
        if self._ordered:
            self._head += 1
            verdict = call.verdict(reason)
            self.truncated = self.truncated or verdict.status == "truncated"
            out.append(verdict)
        else:
            out.append(CallEnd(call.number, issues=tuple(call.issues)))


class _EveryName:
    def __contains__(self, item: object) -> bool:
        return True


EVERY_NAME: Container[str] = _EveryName()
"""A set that contains every name, for callers that treat each name as complete when it arrives."""


def _flows(call: PartialCall) -> bool:
    """Returns True if the next piece of the call's arguments can be sent at once, unchanged."""
    return call.begun and call.solid and not (call.ended or call.complete or call.half)


def _as_text(arguments: Any) -> str | None:
    """Returns the arguments as JSON text, or None if JSON cannot express them."""
    if isinstance(arguments, str):
        return arguments
    try:
        return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    except Exception:  # a foreign object may raise anything
        return None

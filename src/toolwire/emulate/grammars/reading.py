"""The scanner as grammars see it, and the steps that grammars are built from.

A step is a generator that reads the scanner's buffer and yields for more text.
It decides nothing before it has the characters that decide it, so the cuts between chunks do not matter (law
4). It does not yield once the end of the text is known. Text that it consumed without making a call becomes
text again, because the scanner knows where the block began.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from toolwire.core.events import CallArgs, CallBegin, CallEnd, CallStatus, Event, Text
from toolwire.core.turn import ToolSpec
from toolwire.emulate.arguments import JsonFlow
from toolwire.emulate.dialects import Dialect
from toolwire.emulate.openers import Quotations
from toolwire.emulate.tools import ToolRegistry

Reading = Generator[None, None, Any]

# The result of a step. OK: read to its end. CUT: the text ended first. FAIL: the grammar does not allow this.
# CLOSED: the call has already been closed.
OK, CUT, FAIL, CLOSED = "ok", "cut", "fail", "closed"

LONGEST = 512  # characters of a name, a key or a tag

_WHITE = re.compile(r"\s*")
_LITERAL = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_SINGLE = re.compile(r"'[^'\\\x00-\x1f]*'")
_WORD = re.compile(r"[A-Za-z_]\w*")
_NAME = re.compile(r"[\w.-]*", re.ASCII)
_TAG = re.compile(r"<[^<>\n]*")
_CLOSING = re.compile(r"(?:[^\S\n]|[}\]),;])*")
_REST = re.compile(r"[^\n<\[{]*")  # the rest of a line, up to what may be another call
_MEMBER = re.compile(r"[\w-]+\s*[:=]")
_LEFT_OVER = re.compile(r"'[}\])]")


Check = Callable[[ToolSpec, str], Sequence[str]]
"""Checks complete arguments against the tool's schema and returns the errors; none if they are valid."""


@dataclass(frozen=True, slots=True)
class ScanLimits:
    """How many characters and calls the scanner holds at most. A block that exceeds a limit is text."""

    header: int = 65_536
    """Characters from the marker to a known tool's name."""
    held: int = 8_388_608
    """Characters of a call that is held until it is complete; at least `header`."""
    calls: int = 1024
    """Calls of one run; anything that looks like a further one is text."""


@dataclass(slots=True)
class OpenCall:
    """The call that is being read. `held`: its events wait until it is complete."""

    tool: ToolSpec
    name: str
    held: bool
    parts: list[str]
    issues: list[str]
    refused: bool = False
    sent: bool = False
    id: str | None = None


class Scan:
    """The text of an answer, and the calls that grammars make of it."""

    _dialect: Dialect
    _validated = False
    _unknown_tool = "text"
    _thought_may_open = False

    def __init__(
        self, registry: ToolRegistry, limits: ScanLimits, quoted: Quotations, check: Check | None
    ) -> None:
        self.registry, self.limits, self._quoted, self._check = registry, limits, quoted, check
        self.unknown: list[str] = []
        self._count = 0
        self._out: list[Event] = []
        self._pending: list[str] = []  # text that is sent next, as one event
        # The buffer holds unconsumed text, and the open candidate from `_start` on.
        self.buffer = ""
        self.position = 0
        self.ended = False
        self.reason = "eof"
        self.call: OpenCall | None = None
        self._start = -1
        self._spill: list[str] = []
        self._spilled = 0

    @property
    def open(self) -> OpenCall:
        """The call that is being read."""
        assert self.call is not None
        return self.call

    def add_text(self, text: str) -> None:
        raise NotImplementedError

    def open_call(self, written: str, hold: bool = False, id: str | None = None) -> None:
        """The grammar has read a tool's name (and an `id`, in dialects that have ids)."""
        tool = self.registry.resolve(written)
        refused = False
        if tool is None:
            self.unknown.append(written)
            refused = self._unknown_tool != "forward"
            tool = ToolSpec(written)
        quotable = self._dialect.recovery and bool(self._quoted)
        held = hold or refused or self._validated or tool.strict or quotable
        self.call = OpenCall(tool, tool.name, held, [], [], refused, id=id)
        if not held:
            self._end_text()
            self._out.append(CallBegin(self._count, tool.name, id))
            self._end_candidate()

    def write(self, text: str) -> None:
        if not text:
            return
        call = self.open
        call.sent = True
        if call.held:
            call.parts.append(text)
        else:
            self._out.append(CallArgs(self._count, text))

    def close_call(self, status: CallStatus = "ok") -> bool:
        """Ends the call. False: it is not a call after all, and all of it is text."""
        call, self.call = self.open, None
        cut = status == "truncated" and self.reason != "length"
        if call.held and (call.refused or status == "invalid" or cut or self._is_quotation()):
            self.add_text(self._candidate_text())
            self._end_candidate()
            return False
        self._end_text()
        if not call.sent and status != "truncated":
            call.parts = ["{}"]
        if call.held:
            self._out.append(CallBegin(self._count, call.name, call.id))
        if call.parts:
            self._out.append(CallArgs(self._count, "".join(call.parts)))
        if call.tool.strict and self._check is not None and status in ("ok", "repaired"):
            wrong = self._check(call.tool, "".join(call.parts))
            status = "invalid" if wrong else status
            call.issues += wrong
        if status == "ok" and call.issues:
            status = "repaired"
        self._out.append(CallEnd(self._count, status, tuple(call.issues)))
        self._count += 1
        self._thought_may_open = True
        self.checkpoint()
        return True

    def _is_quotation(self) -> bool:
        return self._dialect.recovery and bool(self._quoted) and self._candidate_text() in self._quoted

    # --- the candidate ---

    def _candidate_text(self) -> str:
        return "".join(self._spill) + self.buffer[self._start : self.position]

    def _end_candidate(self) -> None:
        self._start = -1
        self._spill = []
        self._spilled = 0

    @property
    def at_call_limit(self) -> bool:
        return self._count >= self.limits.calls

    @property
    def candidate_open(self) -> bool:
        """Whether a candidate is open; right after `close_call`, whether the call was made."""
        return self._start >= 0

    def checkpoint(self) -> None:
        """A call is complete: if the block does not continue, only the text from here on is text again."""
        self._end_candidate()
        self._start = self.position

    def _end_text(self) -> None:
        if self._pending:
            self._out.append(Text(self._pending[0] if len(self._pending) == 1 else "".join(self._pending)))
            self._pending.clear()


# --- steps ---


def peek(scan: Scan) -> Reading:
    """Skips white space and returns the next character, which is not consumed; "" at the end of the text."""
    while True:
        scan.position = _WHITE.match(scan.buffer, scan.position).end()  # type: ignore[union-attr]
        if scan.position < len(scan.buffer):
            return scan.buffer[scan.position]
        if scan.ended:
            return ""
        yield


def more(scan: Scan, size: int = 1) -> Reading:
    """Whether `size` characters follow, once that is known."""
    while len(scan.buffer) - scan.position < size:
        if scan.ended:
            return False
        yield
    return True


def match(scan: Scan, pattern: re.Pattern[str], limit: int = LONGEST) -> Reading:
    """The text that the pattern matches, not consumed; None if there is none, or it is too long or cut."""
    while True:
        found = pattern.match(scan.buffer, scan.position, scan.position + limit + 1)
        if found is None or found.end() - scan.position > limit:
            return None
        if found.end() < len(scan.buffer):
            return found.group()
        if scan.ended:
            return None
        yield


def bare_name(scan: Scan) -> Reading:
    """Consumes a name without quotes; None if there is none."""
    name = yield from match(scan, _NAME)
    scan.position += len(name or "")
    return name or None


def short_text(scan: Scan, closer: str) -> Reading:
    """Consumes the text up to `closer`, and the closer; None if it is too long or the text ends first."""
    while (end := scan.buffer.find(closer, scan.position)) < 0:
        if scan.ended or len(scan.buffer) - scan.position > LONGEST + len(closer):
            return None
        yield
    text = scan.buffer[scan.position : end]
    if len(text) > LONGEST:
        return None
    scan.position = end + len(closer)
    return text


def literal(scan: Scan, options: tuple[str, ...]) -> Reading:
    """Consumes the first of `options` that is here and returns it; None, and nothing consumed, if none is."""
    while True:
        for option in options:
            if scan.buffer.startswith(option, scan.position):
                scan.position += len(option)
                return option
        rest = scan.buffer[scan.position :]
        if scan.ended or not any(option.startswith(rest) for option in options):
            return None
        yield


def tag(scan: Scan) -> Reading:
    """The whole tag at this position, not consumed; None if there is none."""
    while scan.buffer.startswith("<", scan.position):
        stop = _TAG.match(scan.buffer, scan.position).end()  # type: ignore[union-attr]
        if stop - scan.position > LONGEST:
            return None
        if stop < len(scan.buffer):
            return scan.buffer[scan.position : stop + 1] if scan.buffer[stop] == ">" else None
        if scan.ended:
            break
        yield
    return None


def string(scan: Scan, bare: bool = False) -> Reading:
    """Consumes and decodes a short string; None if there is none.

    `bare`: a word without quotes counts too.
    """
    char = scan.buffer[scan.position]
    pattern = _LITERAL if char == '"' else _SINGLE if char == "'" else _WORD if bare else None
    if pattern is None:
        return None
    while True:
        found = pattern.match(scan.buffer, scan.position)
        if found is not None and (pattern is not _WORD or found.end() < len(scan.buffer) or scan.ended):
            break
        if scan.ended or (pattern is _WORD and found is None) or len(scan.buffer) - scan.position > LONGEST:
            return None
        yield
    if found.end() - scan.position > LONGEST:
        return None
    text = found.group()
    try:
        value = json.loads(text) if char == '"' else text.strip("'")
    except ValueError:
        return None
    scan.position = found.end()
    return value


def until(scan: Scan, closers: tuple[str, ...], keep: int, emit: Callable[[str], None]) -> Reading:
    """Passes the text before the first closer to `emit` and consumes the closer. False: the text ended first.

    Holds back `keep` characters that may be the beginning of a closer.
    """
    while True:
        starts = [(scan.buffer.find(closer, scan.position), closer) for closer in closers]
        found = [pair for pair in starts if pair[0] >= 0]
        if found:
            start, closer = min(found)
            emit(scan.buffer[scan.position : start])
            scan.position = start + len(closer)
            return True
        if scan.ended:
            emit(scan.buffer[scan.position :])
            scan.position = len(scan.buffer)
            return False
        stop = len(scan.buffer) - keep
        if stop > scan.position:
            emit(scan.buffer[scan.position : stop])
            scan.position = stop
        yield


def json_value(scan: Scan, flow: Any, emit: Callable[[str], None]) -> Reading:
    """Reads one JSON value and passes it to `emit` as strict JSON. Returns OK, CUT or FAIL."""
    while True:
        scan.position = flow.run(scan.buffer, scan.position)
        if flow.out:
            emit(flow.take())
        if flow.done:
            return OK
        if flow.failed:
            return FAIL
        if scan.ended:
            return CUT
        yield


def object_arguments(scan: Scan, closers: tuple[str, ...]) -> Reading:
    """Reads arguments that are one JSON object. `closers`: the texts that end arguments that are not JSON."""
    flow = JsonFlow()
    read = yield from json_value(scan, flow, scan.write)
    if read == OK:
        scan.open.issues += flow.issues
        return OK
    return (yield from give_up(scan, closers)) if read == FAIL else cut_off(scan, with_rest=True)


def cut_off(scan: Scan, *, with_rest: bool = False) -> str:
    """Closes a call whose text ended inside it.

    `with_rest`: the rest of the text belongs to the arguments.
    """
    if with_rest:
        scan.write(scan.buffer[scan.position :])
    scan.position = len(scan.buffer)
    scan.close_call("truncated")
    return CLOSED


def cut_name(scan: Scan, name: str) -> bool:
    """The text ended right after a name: a truncated call if the token limit cut it off, else no call."""
    if not scan.ended or scan.reason != "length" or scan.registry.resolve(name) is None:
        return False
    scan.open_call(name, hold=True)
    cut_off(scan)
    return scan.candidate_open


def end_call(scan: Scan, read: str, closers: tuple[str, ...]) -> Reading:
    """Closes the call after its arguments, of which `read` is the result. True: it is a call."""
    if read == CUT:
        cut_off(scan)
    elif read == FAIL:
        yield from give_up(scan, closers or ("\n",))
    elif read == OK and not (yield from is_complete(scan)):
        yield from give_up(scan, (*closers, "\n"))
    elif read == OK:
        scan.close_call()
    return scan.candidate_open


def is_complete(scan: Scan) -> Reading:
    """Whether a call whose arguments just ended really ends here; consumes nothing.

    If the line continues with another member or with the end of a string, the arguments ended too early: at
    one bracket too many, or at a quotation mark that the model forgot to escape.
    """
    while True:
        limit = scan.position + LONGEST
        stop = _CLOSING.match(scan.buffer, scan.position, limit).end()  # type: ignore[union-attr]
        end = _REST.match(scan.buffer, stop, limit).end()  # type: ignore[union-attr]
        if stop < len(scan.buffer) and scan.buffer[stop] in "\n<`[{\"'":
            return scan.buffer[stop] not in "\"'"  # a further member, or the rest of a string
        if end < len(scan.buffer) or scan.ended:
            rest = scan.buffer[stop:end]
            goes_on = "," in scan.buffer[scan.position : stop] and _MEMBER.match(rest)
            return not (goes_on or rest.count('"') % 2 or _LEFT_OVER.search(rest))
        yield


def give_up(scan: Scan, closers: tuple[str, ...]) -> Reading:
    """Closes a call whose arguments cannot be repaired: a held one becomes text, else the rest is sent."""
    call = scan.open
    keep = max(map(len, closers)) - 1
    call.refused = call.held
    if not call.held:
        call.issues.append("malformed_json")
    yield from until(scan, closers, keep, discard if call.held else scan.write)
    scan.close_call("invalid")
    return CLOSED


def discard(text: str) -> None:
    """Drops a text that belongs to the markup."""

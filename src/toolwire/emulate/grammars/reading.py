"""The scanner as grammars see it, and the steps that grammars are built from.

A step is a generator. It reads the scanner's buffer and yields when it needs more text. It decides nothing
before it has all characters that matter, so the cuts between chunks make no difference (law 4 in
docs/architecture.md). A step no longer yields when the end of the text is known. If a grammar consumes text
but makes no call, the scanner sends that text as part of the answer.
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

OK, CUT, FAIL, CLOSED = "ok", "cut", "fail", "closed"
"""How a step ended.

OK: the step has read what it looked for. CUT: the text ended first. FAIL: the grammar does not allow this
text. CLOSED: the step has already closed the call.
"""

LONGEST = 512  # maximum length of a name, a key or a tag

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
"""A function that checks complete arguments against the tool's schema. It returns the errors."""


@dataclass(frozen=True, slots=True)
class ScanLimits:
    """The scanner's limits in characters and calls. A block that exceeds a limit is text."""

    header: int = 65_536
    """The maximum number of characters from the marker to a known tool's name."""
    held: int = 8_388_608
    """The maximum number of characters of a call that is held until it is complete; at least `header`."""
    calls: int = 1024
    """The maximum number of calls in one answer. Further calls are text."""


@dataclass(slots=True)
class OpenCall:
    """The call that is being read.

    `held`: the call's events are held back until the call is complete. `parts`: the arguments of a held call
    so far. `refused`: the held call becomes text when it ends, because its tool is unknown or its arguments
    cannot be repaired. `sent`: at least one piece of arguments has been written.
    """

    tool: ToolSpec
    name: str
    held: bool
    parts: list[str]
    issues: list[str]
    refused: bool = False
    sent: bool = False
    id: str | None = None


class Scan:
    """The state that grammars work on: the text of an answer, and the call that is being read."""

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
        # The buffer holds unconsumed text, and the open candidate from `_start` on. Parts of a long candidate
        # are in `_spill`.
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
        """Opens a call, after the grammar has read the tool's name.

        `hold`: send nothing until the call is complete. `id`: the call's id, in dialects that have ids.
        """
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
        """Ends the call.

        Returns False if the block turns out not to be a call. The whole block is then text.
        """
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
        """Whether a candidate (a block that may be a call) is open.

        Right after `close_call`: whether the candidate became a call.
        """
        return self._start >= 0

    def checkpoint(self) -> None:
        """Marks the end of a complete call or a closer.

        If the block breaks off later, only what follows this position becomes text again.
        """
        self._end_candidate()
        self._start = self.position

    def _end_text(self) -> None:
        if self._pending:
            self._out.append(Text(self._pending[0] if len(self._pending) == 1 else "".join(self._pending)))
            self._pending.clear()


# --- steps ---


def peek(scan: Scan) -> Reading:
    """Skips white space. Returns the next character without consuming it; "" at the end."""
    while True:
        scan.position = _WHITE.match(scan.buffer, scan.position).end()  # type: ignore[union-attr]
        if scan.position < len(scan.buffer):
            return scan.buffer[scan.position]
        if scan.ended:
            return ""
        yield


def more(scan: Scan, size: int = 1) -> Reading:
    """Waits until the buffer has `size` characters. Returns False if the text ends before that."""
    while len(scan.buffer) - scan.position < size:
        if scan.ended:
            return False
        yield
    return True


def match(scan: Scan, pattern: re.Pattern[str], limit: int = LONGEST) -> Reading:
    """Returns the text that `pattern` matches here, without consuming it.

    Returns None if nothing matches, if the match is longer than `limit`, or if the text ends with the match.
    """
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
    """Consumes a name without quotes and returns it; None if no name is here."""
    name = yield from match(scan, _NAME)
    scan.position += len(name or "")
    return name or None


def short_text(scan: Scan, closer: str) -> Reading:
    """Consumes the text up to `closer`, and the closer. Returns the text.

    Returns None if that text is too long, or if there is no closer.
    """
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
    """Consumes the first of `options` that is found here, and returns it.

    If none is found, consumes nothing and returns None.
    """
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
    """Returns the whole tag at this position, without consuming it; None if no tag is here."""
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
    """Consumes a short string and returns its value; None if no string is here.

    `bare`: a word without quotes is accepted too.
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
    """Passes the text before the first closer to `emit`, and consumes the closer.

    Returns False if the text ended first. `keep`: how many characters to hold back, because they may be the
    beginning of a closer.
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
    """Reads one JSON value and passes it to `emit` as strict JSON.

    Returns how the step ended: `OK`, `CUT` or `FAIL`. `flow`: a `JsonFlow`, or an object with the same
    interface.
    """
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
    """Reads arguments that are one JSON object.

    Returns how the step ended: `OK` or `CLOSED`. `closers`: the texts that end the arguments if the arguments
    are not valid JSON.
    """
    flow = JsonFlow()
    read = yield from json_value(scan, flow, scan.write)
    if read == OK:
        scan.open.issues += flow.issues
        return OK
    return (yield from give_up(scan, closers)) if read == FAIL else cut_off(scan, with_rest=True)


def cut_off(scan: Scan, *, with_rest: bool = False) -> str:
    """Closes a call because the text ended inside it.

    Returns `CLOSED`. `with_rest`: the rest of the buffer belongs to the arguments.
    """
    if with_rest:
        scan.write(scan.buffer[scan.position :])
    scan.position = len(scan.buffer)
    scan.close_call("truncated")
    return CLOSED


def cut_name(scan: Scan, name: str) -> bool:
    """Handles a text that ends right after a tool's name. Returns whether the text was a call.

    If the token limit cut the text off and the tool is known, the text was a truncated call. Otherwise, it
    was no call.
    """
    if not scan.ended or scan.reason != "length" or scan.registry.resolve(name) is None:
        return False
    scan.open_call(name, hold=True)
    cut_off(scan)
    return scan.candidate_open


def end_call(scan: Scan, read: str, closers: tuple[str, ...]) -> Reading:
    """Ends the call after its arguments. Returns False if the block turns out not to be a call.

    `read`: how reading the arguments ended (OK, CUT, FAIL or CLOSED). `closers`: the texts that end the
    arguments if the arguments are not valid.
    """
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
    """Whether a call whose arguments just ended really ends here. Consumes nothing.

    The arguments may have ended too early: at an extra bracket, or at a quotation mark that the model forgot
    to escape. This is assumed if the line continues with another member or with the end of a string.
    """
    while True:
        limit = scan.position + LONGEST
        stop = _CLOSING.match(scan.buffer, scan.position, limit).end()  # type: ignore[union-attr]
        end = _REST.match(scan.buffer, stop, limit).end()  # type: ignore[union-attr]
        if stop < len(scan.buffer) and scan.buffer[stop] in "\n<`[{\"'":
            return scan.buffer[stop] not in "\"'"  # a quotation mark begins another member, or ends a string
        if end < len(scan.buffer) or scan.ended:
            rest = scan.buffer[stop:end]
            goes_on = "," in scan.buffer[scan.position : stop] and _MEMBER.match(rest)
            return not (goes_on or rest.count('"') % 2 or _LEFT_OVER.search(rest))
        yield


def give_up(scan: Scan, closers: tuple[str, ...]) -> Reading:
    """Closes a call whose arguments cannot be repaired.

    Returns `CLOSED`. A call that was held back until its end becomes text. Otherwise the text up to the first
    of `closers` is sent as arguments.
    """
    call = scan.open
    keep = max(map(len, closers)) - 1
    call.refused = call.held
    if not call.held:
        call.issues.append("malformed_json")
    yield from until(scan, closers, keep, discard if call.held else scan.write)
    scan.close_call("invalid")
    return CLOSED


def discard(text: str) -> None:
    """Drops the text. Passed as `emit` to a step whose text is not needed."""

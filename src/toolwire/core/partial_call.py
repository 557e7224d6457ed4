"""A call whose fragments are still arriving: its name and arguments so far, and how the call ended."""

from __future__ import annotations

import json
import re
from typing import Any, Protocol

from toolwire.core.events import CallEnd, CallKind, CallStatus

NOT_JSON = "arguments_not_json"
NOT_OBJECT = "arguments_not_object"
CONTRADICTED = "arguments_contradicted"

_CUT_REASONS = ("length", "content_filter")
_STRUCTURE = re.compile(r'[{}\[\]"]')
_IN_STRING = re.compile(r'["\\]')


def join_surrogates(half: str, text: str, more: bool) -> tuple[str, str]:
    """Joins surrogate pairs, including a pair that was cut between two texts.

    `half`: the high surrogate left over from the text before, or "". `more`: another text follows. A lone
    surrogate becomes U+FFFD. Returns the joined text, and the high surrogate for the next text, or "".
    """
    text, half = half + text, ""
    if more and "\ud800" <= text[-1:] <= "\udbff":
        text, half = text[:-1], text[-1]
    if not text.isascii():
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text, half


class Repair(Protocol):
    """Repairs a call's arguments piece by piece. Implemented by `emulate.native.NativeArguments`."""

    cut: bool

    @property
    def issues(self) -> tuple[str, ...]: ...

    @property
    def hollow(self) -> bool: ...

    def feed(self, text: str) -> str: ...

    def finish(self) -> str: ...


class PartialCall:
    """A call as far as it has arrived. `number`: its `CallBegin.index`; -1 until the index is known."""

    __slots__ = tuple(
        "alias begun complete ended half hollow id index issues kind name number pieces repair sent solid "
        "_depth _in_string _scanned _skip _started".split()
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
        self.half = ""
        self.begun = self.ended = self.complete = False
        self.solid = False  # has arguments other than white space
        self.repair: Repair | None = None
        self.hollow = False  # ended without arguments
        self.issues: list[str] = []
        self._scanned = self._depth = 0
        self._started = self._in_string = self._skip = False

    @property
    def arguments(self) -> str:
        """The arguments so far.

        A read joins the stored pieces, so that the next read is cheap.
        """
        if len(self.pieces) > 1:
            sent, rest = self.pieces[: self.sent], self.pieces[self.sent :]
            self.is_closed()
            self.pieces = ["".join(sent)] * bool(sent) + ["".join(rest)] * bool(rest)
            self.sent, self._scanned = min(len(sent), 1), len(self.pieces)
        return "".join(self.pieces)

    def is_closed(self) -> bool:
        """Returns True if no more arguments can follow.

        This is so if the upstream said that the arguments are complete, or if the outermost JSON bracket of
        a function's arguments is closed.
        """
        if self.complete:
            return True
        if self.kind == "custom":
            return False
        for piece in self.pieces[self._scanned :]:
            self._scan(piece)
        self._scanned = len(self.pieces)
        return self._started and self._depth <= 0

    def _scan(self, piece: str) -> None:
        """Follows brackets and strings through the next piece of the arguments."""
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
        """Returns the new part of `whole`, which repeats all arguments so far.

        If `whole` does not begin with the known arguments, returns "" and records an issue, because text that
        was sent cannot be taken back.
        """
        known = self.arguments
        if whole.startswith(known):
            return whole[len(known) :]
        if whole and CONTRADICTED not in self.issues:
            self.issues.append(CONTRADICTED)
        return ""

    def verdict(self, reason: str) -> CallEnd:
        """Returns how the call ended; `reason` is why the run ended.

        Empty arguments are valid: the encoder sends `{}` for them.
        """
        issues = list(self.issues)
        text = self.arguments if self.kind == "function" else ""
        repair, repaired = self.repair, self.repair.issues if self.repair is not None else ()
        if repair is not None and repaired:
            # The pieces were repaired when they were sent. Repairing the whole text gives the same result.
            again: Repair = type(repair)()
            text = again.feed(text) + again.finish()
        if text.strip():
            try:
                if not isinstance(_STRICT.decode(text), dict):
                    issues.append(NOT_OBJECT)
            except (ValueError, RecursionError):
                issues.append(NOT_JSON)
        status: CallStatus = "ok"
        if issues:
            cut = reason in _CUT_REASONS or (repair is not None and repair.cut)
            status = "truncated" if cut and issues == [NOT_JSON] else "invalid"
        elif repaired:
            return CallEnd(self.number, "repaired", repaired)
        elif reason in _CUT_REASONS and self.kind == "custom" and not self.complete:
            status = "truncated"
        return CallEnd(self.number, status, tuple(issues))


def _no_constant(name: str) -> Any:
    raise ValueError(name)


_STRICT = json.JSONDecoder(parse_int=len, parse_float=len, parse_constant=_no_constant)
"""Accepts standard JSON only: no NaN. Numbers may have any length, because they are not converted."""


def partial_object(text: str) -> dict[str, Any]:
    """Returns the complete members of a JSON object that was cut off.

    OpenAI's and Anthropic's SDKs return the same members for a stream that was cut off at the same place.
    """
    closers: list[str] = []
    best, in_string, is_key, escaped = "", False, False, False
    for place, char in enumerate(text):
        if in_string:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == '"':
                in_string = False
                if not is_key:
                    best = text[: place + 1] + "".join(reversed(closers))
        elif char == '"':
            in_string = True
            before = text[:place].rstrip()[-1:]
            is_key = bool(closers) and closers[-1] == "}" and before in "{,"
        elif char in "{[":
            closers.append("}" if char == "{" else "]")
            best = text[: place + 1] + "".join(reversed(closers))
        elif char in "}]" and closers:
            closers.pop()
            best = text[: place + 1] + "".join(reversed(closers))
        elif char == ",":
            best = text[:place] + "".join(reversed(closers))
    for candidate in (
        text + "".join(reversed(closers)),
        best,
    ):  # the first candidate is invalid if the text ends inside a value
        try:
            found = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        return found if isinstance(found, dict) else {}
    return {}

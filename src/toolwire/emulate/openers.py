"""Finds the markers that may open a call, and holds text back while its end may be the beginning of one.

A marker may have a placeholder, for the request's token or for the name of a declared tool. The search
pattern matches any token and any name, so the openers of a set of dialects are prepared once, and a request
only fills in its token.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import replace
from functools import lru_cache

from toolwire.emulate.dialects import DIALECTS, NONCE, Dialect, JsonBlock, Opener, select
from toolwire.emulate.dialects.shapes import TOOL

Table = dict[str, list[tuple[Dialect, Opener]]]

_ANY = r"[\w.-]{1,256}"  # what may fill a placeholder
_PLAIN = re.compile(_ANY + r"\Z")


class Openers:
    """The openers of one request.

    `table`: the openers by marker. `search`: finds the next marker, or text that only looks like a filled-in
    one. `may_begin`: finds text that could be the beginning of a marker. `search_inline` and
    `may_begin_inline` leave out the markers that count only at the start of a line. `has_answer_start`: some
    markers count only while the answer has no word yet. `words`: one of each recovery marker.
    """

    __slots__ = (
        "_alike",
        "_markers",
        "_reach",
        "has_answer_start",
        "may_begin",
        "may_begin_inline",
        "search",
        "search_inline",
        "table",
        "words",
    )

    def __init__(self, table: Table, alike: dict[str, str]) -> None:
        """`alike`: the pattern of each marker that had a placeholder."""
        self.table = table
        self.has_answer_start = any(opener.answer_start for pairs in table.values() for _, opener in pairs)
        self._alike = alike
        self._markers = sorted(table)
        self._reach = max(map(len, self._markers), default=1) - 1
        inline = [
            marker for marker in self._markers if not all(opener.line_start for _, opener in table[marker])
        ]
        self.may_begin = re.compile(_beginnings(self._markers)).search
        self.may_begin_inline = re.compile(_beginnings(inline)).search
        self.search = self._searching(self._markers)
        self.search_inline = self._searching(inline)
        recovery = [marker for marker in self._markers if table[marker][0][0].recovery]
        self.words = {max(re.findall(r"\w+", marker), key=len, default=marker) for marker in recovery}

    def filled(self, nonce: str) -> Openers:
        """The same openers with the request's token."""
        out = copy(self)
        out.table = {}
        for marker, pairs in self.table.items():
            if NONCE in marker:
                pairs = [(dialect, _fill(opener, nonce)) for dialect, opener in pairs]
                marker = pairs[0][1].marker
            out.table[marker] = pairs
        out._markers = sorted(out.table)
        out._reach = max(map(len, out._markers), default=1) - 1
        return out

    def _searching(self, markers: list[str]) -> Callable[..., re.Match[str] | None]:
        exact = sorted((marker for marker in markers if marker not in self._alike), key=len, reverse=True)
        alike = {self._alike[marker] for marker in markers if marker in self._alike}
        return re.compile("|".join([*map(re.escape, exact), *sorted(alike)]) or r"(?!)").search

    def without_answer_start(self) -> Openers:
        """The openers that count anywhere in an answer."""
        kept = {
            marker: [pair for pair in pairs if not pair[1].answer_start]
            for marker, pairs in self.table.items()
        }
        return Openers({marker: pairs for marker, pairs in kept.items() if pairs}, self._alike)

    def __bool__(self) -> bool:
        return bool(self.table)

    def hold_back(self, buffer: str, start: int) -> int:
        """The position from which the buffer's end may be the beginning of a marker; else its length."""
        tail = len(buffer)
        found = self.may_begin(buffer, start if tail - start <= self._reach else tail - self._reach)
        while found is not None:
            begin = found.start()
            if begin + 1 == tail:
                return begin
            rest = buffer[begin:]
            after = bisect_right(self._markers, rest)
            if after < len(self._markers) and self._markers[after].startswith(rest):
                return begin
            found = self.may_begin(buffer, begin + 1)
        return tail


_BY_TOOL = {dialect.name for dialect in DIALECTS.values() for one in dialect.openers if TOOL in one.marker}


def openers_of(dialects: tuple[str, ...], nonce: str | None, names: Iterable[str]) -> Openers:
    """The openers of these dialects, with placeholders filled in. Without a token there is no sentinel."""
    tools = () if _BY_TOOL.isdisjoint(dialects) else tuple(filter(_PLAIN.match, names))
    if nonce is None or not _PLAIN.match(nonce):
        return _openers(dialects, nonce, tools)
    return _openers(dialects, NONCE, tools).filled(nonce)


@lru_cache(64)
def _openers(dialects: tuple[str, ...], nonce: str | None, names: tuple[str, ...]) -> Openers:
    table: Table = {}
    alike: dict[str, str] = {}
    by_tool: list[tuple[Dialect, Opener]] = []
    for dialect in select(dialects):
        for opener in dialect.openers:
            if TOOL in opener.marker:
                by_tool.append((dialect, opener))
            elif NONCE not in opener.marker:
                table.setdefault(opener.marker, []).append((dialect, opener))
            elif nonce is not None:
                filled = _fill(opener, nonce)
                table.setdefault(filled.marker, []).append((dialect, filled))
                if nonce == NONCE:
                    alike[filled.marker] = _general(opener.marker, NONCE)
    for pair in by_tool:
        before, after = pair[1].marker.split(TOOL)
        pattern = _general(pair[1].marker, TOOL)
        pairs = [pair]
        for name in names:
            marker = before + name + after
            if table.setdefault(marker, pairs) is pairs:  # a tool cannot replace another marker
                alike[marker] = pattern
    return Openers(table, alike)


def _beginnings(markers: list[str]) -> str:
    """A pattern of the first two characters of every marker; at the text's end the first is enough."""
    seconds: dict[str, set[str]] = {}
    for marker in markers:
        seconds.setdefault(marker[0], set()).add(marker[1:2])
    patterns = []
    for first, following in sorted(seconds.items()):
        more = "" if "" in following else rf"(?:[{re.escape(''.join(sorted(following)))}]|\Z)"
        patterns.append(re.escape(first) + more)
    return "|".join(patterns) or r"(?!)"


def _general(marker: str, placeholder: str) -> str:
    return re.escape(marker).replace(re.escape(placeholder), _ANY)


def _fill(opener: Opener, nonce: str) -> Opener:
    block = opener.block
    if isinstance(block, JsonBlock):
        block = replace(block, closers=tuple(closer.replace(NONCE, nonce) for closer in block.closers))
    return replace(opener, marker=opener.marker.replace(NONCE, nonce), block=block)

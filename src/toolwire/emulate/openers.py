"""The markers that may open a block, for one request: found in text, and held back while they are not whole.

A marker's placeholders are filled in here: the request's own token, and the name of every declared tool where the name is the marker. The pattern
that searches does not depend on either, so that it is compiled once and not for every request. Standard library only.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from toolwire.emulate.dialects import NONCE, Dialect, JsonBlock, Opener
from toolwire.emulate.dialects.shapes import TOOL, ElementBlock

Pairs = Sequence[tuple[Dialect, Opener]]

_ANY = r"[\w.-]{1,256}"  # what may stand in place of a placeholder
_PLAIN = re.compile(_ANY + r"\Z")
_WORD = re.compile(r"\w")


class Openers:
    """`table`: openers by marker. `search`: the next marker, or what only looks like one that was filled in. `hot`: whether any could begin.

    `leading`: some count only while the answer has no word yet; `later` are the others.
    """

    __slots__ = ("_alike", "_hots", "_markers", "_reach", "_short", "hot", "leading", "search", "table")

    def __init__(self, table: dict[str, list[tuple[Dialect, Opener]]], alike: dict[str, str]) -> None:
        """`alike`: the pattern that finds a marker whose placeholder was filled in."""
        self.table = table
        self.leading = any(opener.answer_start for pairs in table.values() for _, opener in pairs)
        self._alike = alike
        self._markers = sorted(table)
        self._short = frozenset(short for short, longer in pairwise(self._markers) if longer.startswith(short))
        self._reach = max(map(len, self._markers), default=1) - 1
        hot = re.compile("[" + re.escape("".join(sorted({marker[0] for marker in self._markers})) or "\0") + "]")
        self.hot = hot.search
        self._hots = hot.finditer
        exact = sorted((marker for marker in self._markers if marker not in alike), key=len, reverse=True)
        self.search = re.compile("|".join([*map(re.escape, exact), *sorted(set(alike.values()))]) or r"(?!)").search

    @classmethod
    def of(cls, dialects: Iterable[Dialect], nonce: str | None, names: Iterable[str]) -> Openers:
        """Every placeholder filled in; without a token the sentinel is not there."""
        table: dict[str, list[tuple[Dialect, Opener]]] = {}
        alike: dict[str, str] = {}
        by = {NONCE: [] if nonce is None else [nonce], TOOL: [name for name in names if _PLAIN.match(name)]}
        for dialect in dialects:
            for opener in dialect.openers:
                placeholder = next((each for each in by if each in opener.marker), None)
                for filled in [opener] if placeholder is None else [_fill(opener, placeholder, each) for each in by[placeholder]]:
                    table.setdefault(filled.marker, []).append((dialect, filled))
                    if placeholder is not None and (placeholder == TOOL or _PLAIN.match(nonce or "")):
                        alike[filled.marker] = re.escape(opener.marker).replace(re.escape(placeholder), _ANY)
        return cls(table, {marker: pattern for marker, pattern in alike.items() if len(table[marker]) == 1})

    def later(self) -> Openers:
        kept = {marker: [pair for pair in pairs if not pair[1].answer_start] for marker, pairs in self.table.items()}
        return Openers({marker: pairs for marker, pairs in kept.items() if pairs}, self._alike)

    def __bool__(self) -> bool:
        return bool(self.table)

    def words(self, names: Iterable[str]) -> list[str]:
        """What a text must hold some of to hold a block; a marker without any letters stands before a tool's name."""
        return self._markers if all(_WORD.search(marker) or marker == "{" for marker in self._markers) else [*self._markers, *names]

    def undecided(self, marker: str, buffer: str, start: int) -> bool:
        """Whether this marker, at the end of what has come so far, may yet turn out to be a longer one."""
        return marker in self._short and self._begins(buffer, start)

    def hold_back(self, buffer: str, start: int) -> int:
        """From where on the end of the buffer may become a marker; the buffer's end where nothing may."""
        tail = len(buffer)
        for hot in self._hots(buffer, max(start, tail - self._reach)):
            if self._begins(buffer, hot.start()):
                return hot.start()
        return tail

    def _begins(self, buffer: str, start: int) -> bool:
        """Whether all that stands from here on is the beginning of a longer marker."""
        if len(buffer) - start > self._reach:
            return False
        rest = buffer[start:]
        place = bisect_right(self._markers, rest)
        return place < len(self._markers) and self._markers[place].startswith(rest)


def _fill(opener: Opener, placeholder: str, by: str) -> Opener:
    block = opener.block
    if isinstance(block, JsonBlock):
        block = replace(block, closers=tuple(closer.replace(placeholder, by) for closer in block.closers))
    elif isinstance(block, ElementBlock):
        block = replace(block, name=by, children=replace(block.children, call_close=block.children.call_close.replace(placeholder, by)))
    return replace(opener, marker=opener.marker.replace(placeholder, by), block=block)

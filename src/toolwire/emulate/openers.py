"""The markers that may open a block, for one request: found in text, and held back while they are not whole.

A marker's placeholders are filled in here: the request's own token, and the name of every declared tool where the name is the marker. The pattern
that searches does not depend on either, so that it is compiled once and not for every request. Standard library only.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import replace

from toolwire.emulate.dialects import NONCE, Dialect, JsonBlock, Opener
from toolwire.emulate.dialects.shapes import TOOL

_ANY = r"[\w.-]{1,256}"  # what may stand in place of a placeholder
_PLAIN = re.compile(_ANY + r"\Z")


class Openers:
    """`table`: openers by marker. `search`: the next marker, or what only looks like one that was filled in. `hot`: whether any could begin;
    `hot_inline`, `search_inline`: the same for those that need not be at the start of a line, as brackets and backticks must.

    `leading`: some count only while the answer has no word yet; `later` are the others.
    """

    __slots__ = ("_alike", "_markers", "_reach", "hot", "hot_inline", "leading", "search", "search_inline", "table")

    def __init__(self, table: dict[str, list[tuple[Dialect, Opener]]], alike: dict[str, str]) -> None:
        """`alike`: the pattern that finds a marker whose placeholder was filled in."""
        self.table = table
        self.leading = any(opener.answer_start for pairs in table.values() for _, opener in pairs)
        self._alike = alike
        self._markers = sorted(table)
        self._reach = max(map(len, self._markers), default=1) - 1
        inline = [marker for marker in self._markers if not all(opener.line_start for _, opener in table[marker])]
        self.hot = re.compile(_beginnings(self._markers)).search
        self.hot_inline = re.compile(_beginnings(inline)).search
        self.search = self._searching(self._markers)
        self.search_inline = self._searching(inline)

    @classmethod
    def of(cls, dialects: Iterable[Dialect], nonce: str | None, names: Iterable[str]) -> Openers:
        """Every placeholder filled in; without a token the sentinel is not there."""
        table: dict[str, list[tuple[Dialect, Opener]]] = {}
        alike: dict[str, str] = {}
        tools = [name for name in names if _PLAIN.match(name)]
        by_tool: list[tuple[Dialect, Opener]] = []
        for dialect in dialects:
            for opener in dialect.openers:
                if TOOL in opener.marker:
                    by_tool.append((dialect, opener))
                elif NONCE not in opener.marker:
                    table.setdefault(opener.marker, []).append((dialect, opener))
                elif nonce is not None:
                    filled = _fill(opener, nonce)
                    table.setdefault(filled.marker, []).append((dialect, filled))
                    if _PLAIN.match(nonce):
                        alike[filled.marker] = _general(opener.marker, NONCE)
        for pair in by_tool:
            before, behind = pair[1].marker.split(TOOL)
            pattern = _general(pair[1].marker, TOOL)
            pairs = [pair]
            for name in tools:
                marker = before + name + behind
                if table.setdefault(marker, pairs) is pairs:  # a tool that is called like another marker is not read by its name
                    alike[marker] = pattern
        return cls(table, alike)

    def _searching(self, markers: list[str]) -> Callable[..., re.Match[str] | None]:
        exact = sorted((marker for marker in markers if marker not in self._alike), key=len, reverse=True)
        alike = {self._alike[marker] for marker in markers if marker in self._alike}
        return re.compile("|".join([*map(re.escape, exact), *sorted(alike)]) or r"(?!)").search

    def later(self) -> Openers:
        kept = {marker: [pair for pair in pairs if not pair[1].answer_start] for marker, pairs in self.table.items()}
        return Openers({marker: pairs for marker, pairs in kept.items() if pairs}, self._alike)

    def __bool__(self) -> bool:
        return bool(self.table)

    def hold_back(self, buffer: str, start: int) -> int:
        """From where on the end of the buffer may become a marker; the buffer's end where nothing may."""
        tail = len(buffer)
        hot = self.hot(buffer, start if tail - start <= self._reach else tail - self._reach)
        while hot is not None:
            place = hot.start()
            if place + 1 == tail:
                return place
            rest = buffer[place:]
            after = bisect_right(self._markers, rest)
            if after < len(self._markers) and self._markers[after].startswith(rest):
                return place
            hot = self.hot(buffer, place + 1)
        return tail


def _beginnings(markers: list[str]) -> str:
    """Finds where a marker could begin: by its first two characters, or by the first at the end of the text."""
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

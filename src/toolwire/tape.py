"""What happened in a turn, row after row; kept small.

A row is appended as it is. Now and then the rows that came are packed: bytes, or pieces of text, as nearly all rows are, are joined. Thousands of
small objects that live on would push everything else out of the processor's caches, and that costs a stream more than most of the work on it. Any
other row is odd, and stays the object that it is. Standard library only.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from copy import copy
from time import perf_counter
from typing import Any, NamedTuple, Self

from toolwire.events import Event, Text

EACH = 32
"""So many rows come between two packings."""
ROW_BYTES = 16
"""What a row takes beside what it holds: its time, and its length."""


class _Pack(NamedTuple):
    """An odd row has no length in `joined`."""

    joined: Any
    lengths: array[int]
    times: array[float]
    odd: dict[int, Any]


class _Closed(list[Any]):
    """A list that takes nothing more: a tap that comes too late needs no check of its own."""

    __slots__ = ()

    def append(self, value: Any) -> None:
        pass


_CLOSED = _Closed()
_NOTHING: tuple[list[Any], list[float]] = ([], [])


class Rows:
    """Rows of one `kind`, bytes or texts, and odd ones, whose size `weigh` knows. Who adds one appends it to `new`, and its time to `times`."""

    __slots__ = ("_last", "_packed", "_packs", "_size", "_weigh", "kind", "new", "times")

    def __init__(self, weigh: Callable[[Any], int], kind: type[bytes | str] = bytes) -> None:
        self.kind = kind
        self.new: list[Any] = []
        self.times: list[float] = []
        self._packed = self._size = 0
        """So many rows are packed, and about so many bytes."""
        self._packs: list[_Pack] = []
        self._last: tuple[list[Any], list[float]] = _NOTHING
        """What was not packed when the rows were closed."""
        self._weigh = weigh

    def __len__(self) -> int:
        return self._packed + len(self._last[0]) + len(self.new)

    def weigh(self) -> int:
        """About so many bytes are held. What is worth it is packed."""
        if len(self.new) >= EACH:
            self._pack()
        kind, weigh, size = self.kind, self._weigh, self._size
        for row in self.new or self._last[0]:
            size += ROW_BYTES + (len(row) if type(row) is kind else weigh(row))
        return size

    def _pack(self) -> None:
        rows, kind, weigh = self.new, self.kind, self._weigh
        odd = {place: row for place, row in enumerate(rows) if type(row) is not kind}
        if odd:
            rows = [kind() if place in odd else row for place, row in enumerate(rows)]
        joined = kind().join(rows)
        self._packs.append(_Pack(joined, array("I", map(len, rows)), array("d", self.times), odd))
        self._packed += len(rows)
        self._size += len(joined) + len(rows) * ROW_BYTES + sum(map(weigh, odd.values()))
        self.new, self.times = [], []

    def close(self) -> None:
        """What comes from now on is not kept."""
        if self.new is not _CLOSED:
            self._last = (self.new, self.times)
            self.new = self.times = _CLOSED

    def rows(self) -> Iterator[Any]:
        for pack in self._packs:
            began = 0
            for place, length in enumerate(pack.lengths):
                yield pack.odd[place] if place in pack.odd else pack.joined[began : began + length]
                began += length
        yield from self._last[0]
        yield from self.new

    def timed(self) -> Iterator[tuple[float, Any]]:
        times = (at for times in (*(pack.times for pack in self._packs), self._last[1], self.times) for at in times)
        return zip(times, self.rows(), strict=False)

    def copy(self) -> Self:
        other = copy(self)
        if other.new is not _CLOSED:
            other.new, other.times, other._packs = self.new[:], self.times[:], self._packs[:]
        return other


class Tape(Rows):
    """Batches of events. One piece of the first choice's text is a row; any other batch is odd: its choice, and its events."""

    __slots__ = ("began", "how", "through")

    def __init__(self, weigh: Callable[[Any], int], how: str, through: bool = False) -> None:
        super().__init__(weigh, str)
        self.how = how
        self.began = perf_counter()
        self.through = through
        """Pieces of text go out as they are: they are kept there, and need not be kept here."""

    def keep(self, batch: list[Event], choice: int = 0) -> None:
        self.new.append(batch[0].text if len(batch) == 1 and type(batch[0]) is Text and not choice else (choice, *batch))
        self.times.append(perf_counter())

    def batches(self) -> Iterator[tuple[float, int, tuple[Event, ...]]]:
        """Time, choice and events."""
        for at, row in self.timed():
            if type(row) is str:
                yield at, 0, (Text(row),)
            else:
                yield at, row[0], row[1:]

"""What happened in a turn, row after row; kept small.

A row is appended as it is. Now and then the rows that came are packed: bytes, or pieces of text, as nearly all rows are, are joined. Thousands of
small objects that live on would push everything else out of the processor's caches, and that costs a stream more than most of the work on it. Any
other row is odd, and stays the object that it is. Standard library only.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from copy import copy
from time import perf_counter
from typing import Any, NamedTuple, Self

from toolwire.events import CallArgs, Event, Refusal, Text, Thought

EACH = 32
"""So many rows come between two packings."""
FRAME_BYTES, BATCH_BYTES, EVENT_BYTES = 130, 100, 120
"""What Python itself needs around a frame, a batch and an event that are kept as they are."""
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


class Rows:
    """Rows of one `kind`, bytes or texts, and odd ones. Who adds one appends it to `new`, and its time, where that matters, to `times`."""

    kind: type[bytes | str] = bytes
    _packs: list[_Pack] | tuple[()] = ()
    _packed = _size = 0
    """So many rows are packed, and about so many bytes."""
    _last: tuple[list[Any], list[float]] = ([], [])
    """What was not packed when the rows were closed."""

    def __init__(self) -> None:
        self.new: list[Any] = []
        self.times: list[float] = []

    @staticmethod
    def odd_bytes(row: Any) -> int:
        """About so many bytes an odd row refers to."""
        return weight(row)

    def __len__(self) -> int:
        return self._packed + len(self._last[0]) + len(self.new)

    def weigh(self) -> int:
        """About so many bytes are held. What is worth it is packed."""
        if len(self.new) >= EACH:
            self._pack()
        kind, size = self.kind, self._size
        for row in self.new or self._last[0]:
            size += ROW_BYTES + (len(row) if type(row) is kind else self.odd_bytes(row))
        return size

    def _pack(self) -> None:
        rows, kind = self.new, self.kind
        odd = {place: row for place, row in enumerate(rows) if type(row) is not kind}
        if odd:
            rows = [kind() if place in odd else row for place, row in enumerate(rows)]
        joined = kind().join(rows)
        self._packs = [*self._packs, _Pack(joined, array("I", map(len, rows)), array("d", self.times), odd)]
        self._packed += len(rows)
        self._size += len(joined) + len(rows) * ROW_BYTES + sum(map(self.odd_bytes, odd.values()))
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
            other.new, other.times = self.new[:], self.times[:]
        return other


class Frames(Rows):
    """What was read of a network; anything else is odd: its label, and what it is."""

    @staticmethod
    def odd_bytes(row: tuple[str, Any]) -> int:
        return FRAME_BYTES + weight(row[1])


class Tape(Rows):
    """Batches of events. One piece of the first choice's text is a row; any other batch is odd: its choice, and its events."""

    kind = str

    def __init__(self, how: str, through: bool = False) -> None:
        super().__init__()
        self.how = how
        self.began = perf_counter()
        self.through = through
        """Pieces of text go out as they are: they are kept there, and need not be kept here."""

    @staticmethod
    def odd_bytes(row: tuple[Any, ...]) -> int:
        return BATCH_BYTES + sum([EVENT_BYTES + _said_bytes(event) for event in row[1:]])

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


# --- how much is held --------------------------------------------------------------------------------------------------------------------------


def _said_bytes(event: Event) -> int:
    if isinstance(event, Text | Thought | Refusal):
        return len(event.text)
    return len(event.delta) if isinstance(event, CallArgs) else 0


def weight(data: Any, depth: int = 4) -> int:
    """About so many bytes a value refers to."""
    if isinstance(data, bytes | str):
        return len(data)
    if depth and isinstance(data, Mapping):
        return 200 + sum(80 + weight(value, depth - 1) for value in data.values())
    if depth and isinstance(data, list | tuple):
        return 60 + sum(weight(value, depth - 1) for value in data)
    return 200

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
_SAYING = frozenset({Text, Thought, Refusal})
ROW_BYTES = 16
"""What a row takes beside what it holds: its time, and its length."""


class _Pack(NamedTuple):
    """An odd row has no length in `joined`."""

    joined: Any
    lengths: array[int]
    times: array[float]
    odd: dict[int, Any]


class Rows:
    """Rows of one `kind`, bytes or texts, and odd ones. Who adds one appends it to `new`, its time, where that matters, to `times`, and adds what
    it holds to `size`, in bytes; and packs them once there are `EACH`."""

    kind: type[bytes | str] = bytes
    _packs: list[_Pack] | tuple[()] = ()
    _packed = 0
    """So many rows are packed."""

    def __init__(self) -> None:
        self.new: list[Any] = []
        self.times: list[float] = []
        self.size = 0

    def __len__(self) -> int:
        return self._packed + len(self.new)

    def pack(self) -> None:
        rows, kind = self.new, self.kind
        odd = {place: row for place, row in enumerate(rows) if type(row) is not kind}
        if odd:
            rows = [kind() if place in odd else row for place, row in enumerate(rows)]
        self._packs = [*self._packs, _Pack(kind().join(rows), array("I", map(len, rows)), array("d", self.times), odd)]
        self._packed += len(rows)
        self.new, self.times = [], []

    def rows(self) -> Iterator[Any]:
        for pack in self._packs:
            began = 0
            for place, length in enumerate(pack.lengths):
                yield pack.odd[place] if place in pack.odd else pack.joined[began : began + length]
                began += length
        yield from self.new

    def timed(self) -> Iterator[tuple[float, Any]]:
        times = (at for times in (*(pack.times for pack in self._packs), self.times) for at in times)
        return zip(times, self.rows(), strict=False)

    def copy(self) -> Self:
        other = copy(self)
        other.new, other.times = self.new[:], self.times[:]
        return other


class Tape(Rows):
    """Batches of events. One piece of the first choice's text is a row; any other batch is odd: its choice, and its events."""

    kind = str

    def __init__(self, how: str, through: bool = False) -> None:
        super().__init__()
        self.how = how
        self.began = perf_counter()
        self.through = through
        """Pieces of text go out as they are: they are kept there, and need not be kept here."""

    def batch(self, batch: list[Event], choice: int = 0) -> None:
        if len(batch) == 1 and type(batch[0]) is Text and not choice:
            text = batch[0].text
            self.new.append(text)
            self.size += len(text) + ROW_BYTES
        else:
            self.new.append((choice, *batch))
            self.size += sum(map(_event_bytes, batch)) + BATCH_BYTES
        self.times.append(perf_counter())

    def batches(self) -> Iterator[tuple[float, int, tuple[Event, ...]]]:
        """Time, choice and events."""
        for at, row in self.timed():
            if type(row) is str:
                yield at, 0, (Text(row),)
            else:
                yield at, row[0], row[1:]


# --- how much is held --------------------------------------------------------------------------------------------------------------------------


def _event_bytes(event: Event) -> int:
    kind = type(event)
    said = event.text if kind in _SAYING else event.delta if kind is CallArgs else ""  # type: ignore[union-attr]
    return EVENT_BYTES + len(said)


def weight(data: Any, depth: int = 4) -> int:
    """About so many bytes a value refers to."""
    if isinstance(data, bytes | str):
        return len(data)
    if depth and isinstance(data, Mapping):
        return 200 + sum(80 + weight(value, depth - 1) for value in data.values())
    if depth and isinstance(data, list | tuple):
        return 60 + sum(weight(value, depth - 1) for value in data)
    return 200

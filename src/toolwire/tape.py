"""What happened in a turn, row after row; kept small.

A few rows are held as they came. Where there are more, bytes and pieces of text, as nearly all rows are, are copied to the end of one buffer:
thousands of small objects that live on would push everything else out of the processor's caches, and that costs a stream more than most of the work
on it. Any other row is odd, and stays the object that it is. Standard library only.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from copy import copy
from time import perf_counter
from typing import Any, Self

from toolwire.events import CallArgs, Event, Refusal, Text, Thought

FEW = 8
"""So many rows are held as they came: most turns that are no streams have no more."""
FRAME_BYTES, BATCH_BYTES, EVENT_BYTES = 130, 100, 120
"""What Python itself needs around a frame, a batch and an event that are kept as they are."""
ROW_BYTES = 16
"""What a row takes beside what it holds: its time, and its length."""
_SAYING = frozenset({Text, Thought, Refusal})


class _Packed:
    """Many rows behind one another, with the length and the time of each. An odd row has no length."""

    __slots__ = ("data", "lengths", "odd", "times")

    def __init__(self, times: list[float]) -> None:
        self.data = bytearray()
        self.lengths = array("I")
        self.times = array("d", times)
        self.odd: dict[int, Any] = {}

    def copy(self) -> _Packed:
        other = _Packed([])
        other.data, other.lengths, other.times, other.odd = self.data[:], self.lengths[:], self.times[:], self.odd.copy()
        return other

    def rows(self) -> Iterator[Any]:
        whole, began = bytes(self.data), 0
        for place, length in enumerate(self.lengths):
            yield self.odd[place] if place in self.odd else whole[began : began + length]
            began += length


class Rows:
    """Rows, each with its time: bytes, and odd ones that are anything else. `size`: about so many bytes are held."""

    __slots__ = ("_few", "_packed", "looked_at", "size")

    def __init__(self) -> None:
        self._few: list[Any] = []  # a time, its row, and so on
        self._packed: _Packed | None = None
        self.size = 0
        self.looked_at = 0
        """The size when somebody last looked at it."""

    def __len__(self) -> int:
        return len(self._few) // 2 if self._packed is None else len(self._packed.lengths)

    def keep(self, row: bytes) -> None:
        packed = self._packed
        if packed is not None:
            packed.data += row
            packed.lengths.append(len(row))
            packed.times.append(perf_counter())
        else:
            self._few.append(perf_counter())
            self._few.append(row)
            if len(self._few) > 2 * FEW:
                self._pack()
        self.size += len(row) + ROW_BYTES

    def keep_odd(self, row: tuple[Any, ...], size: int) -> None:
        packed = self._packed
        if packed is not None:
            packed.odd[len(packed.lengths)] = row
            packed.lengths.append(0)
            packed.times.append(perf_counter())
        else:
            self._few.append(perf_counter())
            self._few.append(row)
        self.size += size + ROW_BYTES

    def _pack(self) -> None:
        self._packed = packed = _Packed(self._few[::2])
        for row in self._few[1::2]:
            if type(row) is bytes:
                packed.data += row
            else:
                packed.odd[len(packed.lengths)] = row
            packed.lengths.append(len(row) if type(row) is bytes else 0)
        self._few = []

    def rows(self) -> Iterator[Any]:
        return iter(self._few[1::2]) if self._packed is None else self._packed.rows()

    def timed(self) -> Iterator[tuple[float, Any]]:
        return zip(self._few[::2] if self._packed is None else self._packed.times, self.rows(), strict=True)

    def copy(self) -> Self:
        other = copy(self)
        other._few = self._few[:]
        other._packed = None if self._packed is None else self._packed.copy()
        return other


class Tape(Rows):
    """Batches of events. One piece of the first choice's text is a row; any other batch is odd: its choice, and its events."""

    __slots__ = ("began", "how", "through")

    def __init__(self, how: str, through: bool = False) -> None:
        super().__init__()
        self.how = how
        self.began = perf_counter()
        self.through = through
        """Pieces of text go out as they are: they are kept there, and need not be kept here."""

    def batch(self, batch: list[Event], choice: int = 0) -> None:
        if len(batch) == 1 and type(batch[0]) is Text and not choice:
            self.keep(batch[0].text.encode("utf-8", "surrogatepass"))
        else:
            self.keep_odd((choice, *batch), BATCH_BYTES + sum(map(_event_bytes, batch)))

    def batches(self) -> Iterator[tuple[float, int, tuple[Event, ...]]]:
        """Time, choice and events."""
        for at, row in self.timed():
            if type(row) is bytes:
                yield at, 0, (Text(row.decode("utf-8", "surrogatepass")),)
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

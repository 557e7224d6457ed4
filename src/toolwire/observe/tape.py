"""What happened in a turn, row after row, each with its time; kept small, and cheap to keep.

Nearly every row of a stream is a frame of bytes, or a piece of text and the bytes that it became. Whoever has one adds it to a `Lane`: a call of
a function of ours would cost more than the row. When a lane has `FEW` of them, they are copied, all at once, into pages: a stream touches little
memory that way, where thousands of small objects that live on would push everything else out of the processor's caches. Any other row is odd, and
stays the object that it is. Who looks gets all rows in the order of their times. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from functools import cache
from operator import itemgetter
from struct import Struct
from time import perf_counter
from typing import Any

from toolwire.core.events import CallArgs, Event, Finish, Refusal, Text, Thought, Usage

FRAME, OUT, RUN = 0, 1, 2
"""Kinds of rows: a frame of the backend's wire; events that went out, with the bytes that they became; a batch of the first run of the backend. The
runs behind it count up from there."""
FEW = 16
"""So many rows are packed together."""
FULL, LARGE = 3 * FEW, 4 * 1024
"""A lane is packed when it has so many members, or has got one of so many bytes."""
ROW_BYTES, FRAME_BYTES, BATCH_BYTES, EVENT_BYTES = 18, 130, 100, 120
"""What is needed around a row, and, where they are odd, around a frame, a batch and an event."""
LEAST_BYTES = 16
"""Every row takes as much: its time, and two lengths."""
EACH_BYTES = 32 * 1024
"""When so much came, it is looked how much there is in all."""
PAGE = 8 * 1024
"""Bytes. All pages are alike, so that what one turn lets go of is what the next one needs: buffers as long as their streams leave holes in memory."""
_BLOCK = Struct("<HII")
"""Of rows that are packed together: their kind, how many they are, and how many bytes all of them take before what they became."""
_SAYING, _TEXTS, _PASSING = frozenset({Text, Thought, Refusal}), {Text}, {Text, Usage, Finish}
Row = tuple[float, int, Any, bytes]
"""Time, kind, what it is (bytes of a frame, the text of a piece, or a tuple where it is odd), and the bytes that it became."""


class Lane(list[Any]):
    """Rows of one kind that are not packed yet: time, bytes or text, and the bytes that it became, and so on. Who appends has it packed when it is
    `FULL`. No tuples: the garbage collector would list them, and touch those beside each of them when it goes."""

    __slots__ = ("kind",)

    def __init__(self, kind: int) -> None:
        super().__init__()
        self.kind = kind

    def rows(self) -> Iterator[tuple[float, Any, bytes]]:
        return zip(self[::3], self[1::3], self[2::3], strict=True)


class Tape:
    """`counted` is about how many bytes the rows hold that are packed or odd, `look_at` how many they may become until somebody looks at it."""

    __slots__ = ("_lanes", "_odd", "_packed", "_pages", "_place", "counted", "look_at")

    def __init__(self) -> None:
        self._lanes: tuple[Lane, ...] = ()
        self._odd: list[Any] = []  # the four members of a row, and so on
        self._packed = 0  # how many rows are in the pages
        self._pages: list[bytearray] | None = None
        self._place = PAGE  # up to here the last of them is full
        self.counted, self.look_at = 0, EACH_BYTES

    @property
    def rows(self) -> int:
        """Their number."""
        return self._packed + len(self._odd) // 4 + sum(map(len, self._lanes)) // 3

    @property
    def size(self) -> int:
        """About how many bytes all rows hold."""
        if not self._lanes:
            return self.counted
        return self.counted + sum(ROW_BYTES + len(what) + len(became) for lane in self._lanes for _, what, became in lane.rows())

    def lane(self, kind: int) -> Lane:
        """Where rows of bytes or text go."""
        for lane in self._lanes:
            if lane.kind == kind:
                return lane
        lane = Lane(kind)
        self._lanes += (lane,)
        return lane

    def keep_odd(self, kind: int, what: tuple[Any, ...], size: int, became: bytes = b"") -> None:
        """`size`: of what the row refers to."""
        self._odd += (perf_counter(), kind, what, became)
        self.counted += size + len(became) + ROW_BYTES

    def keep_batch(self, kind: int, batch: list[Event], choice: int = 0, became: bytes = b"") -> None:
        """Pieces of the first choice's text are rows of text, each its own, the last with what all of them became. Any other batch is odd: its
        choice, and its events."""
        if not choice and only_text(batch):
            lane, at, size = self.lane(kind), perf_counter(), len(became)
            for event in batch:
                lane += (at, event.text, b"")  # type: ignore[union-attr]
                size += len(event.text)  # type: ignore[union-attr]
            lane[-1] = became
            if len(lane) >= FULL or size > LARGE:
                self.pack(lane)
        else:
            self.keep_odd(kind, (choice, *batch), _batch_bytes(batch), became)

    def pack(self, lane: Lane) -> None:
        """Empties a lane."""
        at, what, became = lane[::3], lane[1::3], lane[2::3]
        data = b"".join(what) if lane.kind == FRAME else "".join(what).encode("utf-8", "surrogatepass")
        count = len(at)
        head = _BLOCK.pack(lane.kind, count, len(data)) + _lengths(count).pack(*at, *map(len, what), *map(len, became))
        block = b"".join((head, data, *became))
        self._put(block)
        self._packed += count
        self.counted += len(block)
        lane.clear()

    def _put(self, block: bytes) -> None:
        pages, end = self._pages, self._place + len(block)
        if pages and end <= PAGE:  # nearly always
            pages[-1][self._place : end] = block
            self._place = end
            return
        pages = self._pages = pages or []
        left = memoryview(block)
        while left:
            if self._place == PAGE:
                pages.append(bytearray(PAGE))
                self._place = 0
            part = left[: PAGE - self._place]
            pages[-1][self._place : self._place + len(part)] = part
            self._place += len(part)
            left = left[len(part) :]

    def all(self) -> list[Row]:
        waiting = ((at, lane.kind, what, became) for lane in self._lanes for at, what, became in lane.rows())
        odd = zip(*(self._odd[place::4] for place in range(4)), strict=True)
        return sorted((*self._unpacked(), *odd, *waiting), key=itemgetter(0))

    def _unpacked(self) -> Iterator[Row]:
        data, place, left = b"".join(self._pages or ()), 0, self._packed
        while left:
            kind, count, size = _BLOCK.unpack_from(data, place)
            lengths = _lengths(count)
            numbers = lengths.unpack_from(data, place + _BLOCK.size)
            place += _BLOCK.size + lengths.size
            all_of_them: bytes | str = data[place : place + size]
            if kind != FRAME:
                all_of_them = all_of_them.decode("utf-8", "surrogatepass")  # type: ignore[union-attr]
            begin, place = 0, place + size
            for at, length, then in zip(numbers[:count], numbers[count : 2 * count], numbers[2 * count :], strict=True):
                yield at, kind, all_of_them[begin : begin + length], data[place : place + then]
                begin, place = begin + length, place + then
            left -= count

    def copy(self) -> Tape:
        other = copy(self)
        other._lanes = tuple(map(copy, self._lanes))
        other._pages = None if self._pages is None else [*self._pages[:-1], self._pages[-1][:]]
        other._odd = self._odd[:]
        return other


@cache
def _lengths(count: int) -> Struct:
    """Of so many rows: their times, and how long each is, and what it became."""
    return Struct(f"<{count}d{count}I{count}I")


def only_text(batch: list[Event]) -> bool:
    """Whether a batch is pieces of text, and nothing else."""
    return set(map(type, batch)) == _TEXTS


def passing(batch: Iterable[Event]) -> bool:
    """Whether a batch goes out as it came where nothing is done to text: it has no calls, and no failure."""
    return set(map(type, batch)) <= _PASSING


def batch_of(what: Any) -> tuple[int, tuple[Event, ...]]:
    """The choice and the events of a row."""
    return (0, (Text(what),)) if type(what) is str else (what[0], what[1:])


# --- how much is held --------------------------------------------------------------------------------------------------------------------------


def _batch_bytes(batch: list[Event]) -> int:
    size = BATCH_BYTES + EVENT_BYTES * len(batch)
    for event in batch:
        kind = type(event)
        if kind in _SAYING:
            size += len(event.text)  # type: ignore[union-attr]
        elif kind is CallArgs:
            size += len(event.delta)  # type: ignore[union-attr]
    return size


def weight(data: Any, depth: int = 4) -> int:
    """About so many bytes a value refers to."""
    if isinstance(data, bytes | str):
        return len(data)
    if depth and isinstance(data, Mapping):
        return 200 + sum(80 + weight(value, depth - 1) for value in data.values())
    if depth and isinstance(data, list | tuple):
        return 60 + sum(weight(value, depth - 1) for value in data)
    return 200

"""What happened in a turn, row after row, in the order in which it happened; kept small.

A few rows are held as they came. Where there are more, bytes and pieces of text, as nearly all rows are, are copied into a buffer. A stream touches
little memory that way: thousands of small objects that live on, or a dozen buffers side by side, would push everything else out of the processor's
caches, and that costs a stream more than most of the work on it. Any other row is odd, and stays the object that it is. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from struct import Struct
from time import perf_counter
from typing import Any

from toolwire.events import CallArgs, Event, Refusal, Text, Thought

FRAME, OUT, RUN = 0, 1, 2
"""Kinds of rows: a frame of the backend's wire; events that went out, with the bytes that they became; a batch of the first run of the backend. The
runs behind it count up from there."""
FEW = 16
"""So many rows are held as they came: turns that are no streams have no more."""
FRAME_BYTES, BATCH_BYTES, EVENT_BYTES = 130, 100, 120
"""What Python itself needs around a frame, a batch and an event that are kept as they are."""
_HEAD = Struct("<dHII")
"""Of a row in the buffer: its time, its kind, and how many bytes it has, of each of its two parts."""
_ODD = 2**32 - 1
"""In place of the first length: the row is not here."""
_SAYING = frozenset({Text, Thought, Refusal})
_head, _head_into = _HEAD.pack, _HEAD.pack_into
BUFFER = 8 * 1024
"""Bytes. One that grew as long as a stream does would be copied again and again, and leave holes in the memory."""
Row = tuple[float, int, Any, bytes]
"""Time, kind, what it is (bytes, or a tuple where it is odd), and the bytes that it became."""


class Tape:
    """`rows` is their number, `size` about how many bytes they hold, `looked_at` the size when somebody last looked at it."""

    __slots__ = ("_data", "_few", "_full", "_odd", "_place", "looked_at", "rows", "size")

    def __init__(self) -> None:
        self._few: list[Any] = []  # the four members of a row, and so on
        self._data: bytearray | None = None  # the buffer that is being filled …
        self._place = 0  # … up to here
        self._full: list[bytes | bytearray] | None = None  # those before it
        self._odd: list[Any] | None = None
        self.rows = self.size = self.looked_at = 0

    def keep(self, kind: int, what: bytes, became: bytes = b"") -> None:
        if self._data is None:
            self._few += (perf_counter(), kind, what, became)
            if self.rows >= FEW:
                self._pack()
        else:
            self._put(perf_counter(), kind, len(what), what, became)
        self.rows += 1
        self.size += len(what) + len(became) + _HEAD.size

    def keep_odd(self, kind: int, what: tuple[Any, ...], size: int, became: bytes = b"") -> None:
        """`size`: of what the row refers to."""
        if self._data is None:
            self._few += (perf_counter(), kind, what, became)
        else:
            self._put_odd(perf_counter(), kind, what, became)
        self.rows += 1
        self.size += size + len(became) + _HEAD.size

    def keep_batch(self, kind: int, batch: list[Event], choice: int = 0, became: bytes = b"") -> None:
        """One piece of the first choice's text is a row of bytes; any other batch is odd: its choice, and its events."""
        if len(batch) == 1 and type(batch[0]) is Text and not choice:
            self.keep(kind, batch[0].text.encode("utf-8", "surrogatepass"), became)
        else:
            self.keep_odd(kind, (choice, *batch), BATCH_BYTES + sum(map(_event_bytes, batch)), became)

    def _pack(self) -> None:
        few, self._few = self._few, []
        self._data, self._full = bytearray(BUFFER), []
        for at, kind, what, became in zip(*(few[place::4] for place in range(4)), strict=True):
            if type(what) is bytes:
                self._put(at, kind, len(what), what, became)
            else:
                self._put_odd(at, kind, what, became)

    def _put(self, at: float, kind: int, length: int, what: bytes, became: bytes) -> None:
        data, begin = self._data, self._place
        assert data is not None and self._full is not None
        then = begin + _HEAD.size
        between = then + len(what)
        end = between + len(became)
        if end <= BUFFER:
            _head_into(data, begin, at, kind, length, len(became))
            data[then:between] = what
            data[between:end] = became
            self._place = end
            return
        if begin:
            self._full.append(data[:begin])
            self._place = 0
        if end - begin > BUFFER:
            self._full.append(_head(at, kind, length, len(became)) + what + became)
        else:
            self._put(at, kind, length, what, became)

    def _put_odd(self, at: float, kind: int, what: tuple[Any, ...], became: bytes) -> None:
        if self._odd is None:
            self._odd = []
        self._odd.append(what)
        self._put(at, kind, _ODD, b"", became)

    def all(self) -> Iterator[Row]:
        if self._data is None:
            yield from zip(*(self._few[place::4] for place in range(4)), strict=True)
            return
        odd = iter(self._odd or ())
        for data in map(bytes, (*(self._full or ()), self._data[: self._place])):
            place = 0
            while place < len(data):
                at, kind, length, then = _HEAD.unpack_from(data, place)
                place += _HEAD.size
                what: Any = next(odd) if length == _ODD else data[place : place + length]
                place += 0 if length == _ODD else length
                yield at, kind, what, data[place : place + then]
                place += then

    def copy(self) -> Tape:
        other = copy(self)
        other._few = self._few[:]
        other._data = None if self._data is None else self._data[:]
        other._full = None if self._full is None else self._full[:]
        other._odd = None if self._odd is None else self._odd[:]
        return other


def batch_of(what: Any) -> tuple[int, tuple[Event, ...]]:
    """The choice and the events of a row."""
    return (0, (Text(what.decode("utf-8", "surrogatepass")),)) if type(what) is bytes else (what[0], what[1:])


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

"""What one connection remembers of its own conversations, so that a turn can continue one that nobody stored.

Rules: only the last response of each lane is remembered, and only in memory; it is gone with the connection. What would take all of them together
beyond `most` characters pushes the oldest out, and is not remembered at all where it is too large by itself: the client is told that it is not
there, and sends the whole conversation. What failed to continue is forgotten.
"""

from __future__ import annotations

from typing import NamedTuple

from toolwire.turn import Call, ImagePart, Item, Message, OtherPart, Reasoning, Result, TextPart

MOST = 8 * 1024 * 1024
ITEM_BYTES = 200
"""What an item weighs beside its texts."""


class Memory:
    """For a connection that runs one turn at a time."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._kept: dict[str, _Kept] = {}
        """By lane, the oldest first."""
        self._lane = ""
        self._before: tuple[Item, ...] = ()
        self.loose: tuple[Item, ...] = ()
        """What the turn that has begun goes on from, where nobody but this memory has it."""

    def enter(self, lane: str) -> None:
        """The next turn belongs to this lane."""
        self._lane = lane

    def begin(self, before: tuple[Item, ...] = (), previous: str | None = None) -> None:
        """A turn begins, after these items, which end in this response."""
        self._before = before
        self.loose = before if any(kept.id == previous and not kept.stored for kept in self._kept.values()) else ()

    def recall(self, id: str) -> tuple[Item, ...] | None:
        """The whole conversation that ends in this response, in whichever lane; None: it is not remembered here."""
        return next((kept.items for kept in self._kept.values() if kept.id == id), None)

    def keep(self, id: str, items: tuple[Item, ...], stored: bool = False) -> None:
        """The turn that has begun ended in this response: these are its own items, what was asked and what was answered."""
        whole, self._before, self.loose = (*self._before, *items), (), ()
        size = sum(ITEM_BYTES + _size(item) for item in whole)
        self._kept.pop(self._lane, None)
        while self._kept and size + sum(kept.size for kept in self._kept.values()) > self._most:
            del self._kept[next(iter(self._kept))]
        if size <= self._most:
            self._kept[self._lane] = _Kept(id, whole, size, stored)

    def forget(self, id: str) -> None:
        self._kept = {lane: kept for lane, kept in self._kept.items() if kept.id != id}


class _Kept(NamedTuple):
    id: str
    items: tuple[Item, ...]
    size: int
    stored: bool
    """The store has it too, and all that it goes on from."""


def _size(item: Item) -> int:
    if isinstance(item, Call):
        return len(item.arguments) + len(item.name) + len(item.call_id)
    if isinstance(item, Reasoning):
        return sum(map(len, (*item.summary, *item.content))) + len(item.encrypted or "")
    assert isinstance(item, Message | Result)
    return sum(_part_size(part) for part in item.parts)


def _part_size(part: TextPart | ImagePart | OtherPart) -> int:
    if isinstance(part, TextPart):
        return len(part.text)
    return len(part.url or "") if isinstance(part, ImagePart) else len(str(part.raw))

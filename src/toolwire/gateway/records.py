"""What surfaces and pipeline exchange: the caller, the answer and the summary of a turn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from toolwire.core.turn import (
    Api,
    Call,
    ImagePart,
    Item,
    Message,
    OtherPart,
    Reasoning,
    Result,
    TextPart,
    Turn,
)

if TYPE_CHECKING:
    from toolwire.access.keys import KeyGrant
    from toolwire.access.usage import Hold
    from toolwire.observe.trace import Trace
    from toolwire.observe.tracing import Contents


class Caller(msgspec.Struct, frozen=True):
    """The caller. `key_id` is a short hash of the key, "" if no keys are configured."""

    key_id: str = ""
    request_id: str = ""
    output_mode: str | None = None
    grant: KeyGrant | None = None
    """What the key may do; None: everything."""
    key_name: str = ""
    trace_parent: str = ""
    """The caller's own span, from the W3C header `traceparent`."""
    memory: Memory | None = None
    """The memory of the caller's connection, if it is a WebSocket."""
    headers: Mapping[str, str] = {}
    """Headers that are part of the request on its API: `Turn.headers`."""


OnSlow = Callable[[list[tuple[bytes, bytes]]], None]
"""Receives the headers of a stream that begins before the model has said anything."""


@dataclass(slots=True)
class Answer:
    """What the surface sends: a body, or a stream of blocks. Closing the stream cancels the run."""

    headers: list[tuple[bytes, bytes]]
    body: bytes | None = None
    stream: AsyncIterator[bytes] | None = None
    status: int = 200
    """Differs from 200 only if another node answered with an error, which is passed on unchanged."""


class TurnSummary(msgspec.Struct):
    """What logs and metrics need to know of a turn that has ended."""

    request_id: str
    key_id: str
    api: Api
    model: str
    backend: str
    strategy: str
    stream: bool
    status: int
    finish: str | None
    error_kind: str | None
    tool_call_count: int
    tool_call_names: tuple[str, ...]
    tool_call_ids: tuple[str, ...]
    tool_call_truncated: bool
    output_mode: str
    input_tokens: int
    output_tokens: int
    first_byte_s: float | None
    duration_s: float
    report: str
    cancelled: bool
    dropped: Mapping[str, int] = MappingProxyType({})
    """What policy dropped, by kind."""
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    kind: str = "new"
    """`new`, `resumed` or `replayed`."""
    key_name: str = ""
    turn_id: str = ""
    """The journal's id of the turn."""
    answer_id: str = ""
    """The id that the client sees."""
    started_at: float = 0.0
    """In seconds since 1970."""
    tool_call_s: tuple[float, ...] = ()
    """When each call began, in seconds after the start."""
    trace_parent: str = ""
    turn: Turn | None = None
    """The request, for observers that may see it."""
    contents: Contents | None = None
    """The texts of the turn, if telemetry wants them."""
    trace: Trace | None = None
    """What the journal keeps of the turn."""
    hold: Hold | None = None
    """What the turn has reserved of its key's budget, until it is counted."""


# --- memory of a connection ---
#
# What a WebSocket remembers of its own conversations, so that a turn can continue one that was not stored.
# Only the last response of each lane is remembered, in memory, until the connection ends. All of them
# together have at most `most` characters: the oldest is dropped first, and a response that is too large alone
# is not remembered. The client then gets an error and sends the whole conversation. A response whose
# continuation failed is forgotten.

MOST = 8 * 1024 * 1024
ITEM_BYTES = 200
"""What an item counts for besides its texts."""


class Memory:
    """The memory of a connection that runs one turn at a time."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._kept: dict[str, _Kept] = {}
        """By lane, the oldest first."""
        self._lane = ""
        self._before: tuple[Item, ...] = ()
        self.loose: tuple[Item, ...] = ()
        """What the current turn continues, if only this memory has it."""

    def enter(self, lane: str) -> None:
        """The next turn belongs to this lane."""
        self._lane = lane

    def begin(self, before: tuple[Item, ...] = (), previous: str | None = None) -> None:
        """A turn begins after these items, which end with this response."""
        self._before = before
        self.loose = (
            before if any(kept.id == previous and not kept.stored for kept in self._kept.values()) else ()
        )

    def recall(self, id: str) -> tuple[Item, ...] | None:
        """The conversation that ends with this response, in any lane; None: it is not remembered."""
        return next((kept.items for kept in self._kept.values() if kept.id == id), None)

    def keep(self, id: str, items: tuple[Item, ...], stored: bool = False) -> None:
        """The current turn ended with this response; `items` are its input and its output."""
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
    """The store has it too, and everything before it."""


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

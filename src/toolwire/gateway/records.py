"""Types that the gateway shares with its callers: the sender of a request, the answer, and the summary."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from toolwire.core.items import StoredItem
from toolwire.core.mcp import McpListed
from toolwire.core.turn import Api, Call, ImagePart, Message, OtherPart, Reasoning, Result, TextPart, Turn

if TYPE_CHECKING:
    from toolwire.access.keys import KeyGrant
    from toolwire.access.usage import Hold
    from toolwire.observe.trace import Trace
    from toolwire.observe.tracing import Contents


class Caller(msgspec.Struct, frozen=True):
    """The sender of a request.

    `key_id`: the id of the sender's API key; "" if the server has no keys.
    """

    key_id: str = ""
    request_id: str = ""
    output_mode: str | None = None
    grant: KeyGrant | None = None
    """The permissions of the key; None means everything is allowed."""
    key_name: str = ""
    trace_parent: str = ""
    """The value of the W3C header `traceparent`: the caller's own span."""
    memory: Memory | None = None
    """The memory of the caller's WebSocket connection; None for a plain HTTP request."""
    headers: Mapping[str, str] = {}
    """The headers that the API defines as part of a request (see `Turn.headers`), by name."""


OnSlow = Callable[[list[tuple[bytes, bytes]]], None]
"""A callback for the headers of a stream that begins before the model's first output."""
JSON = (b"content-type", b"application/json; charset=utf-8")
EVENT_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")


@dataclass(slots=True)
class Answer:
    """The answer to a request: a body or a stream of blocks. Closing the stream cancels the run.

    `headers` begin with the content type.
    """

    headers: list[tuple[bytes, bytes]]
    body: bytes | None = None
    stream: AsyncIterator[bytes] | None = None
    status: int = 200
    """The HTTP status. It differs from 200 only if another node answered with an error."""


class TurnSummary(msgspec.Struct):
    """The facts of a turn that has ended, for logs, metrics, usage and the journal."""

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
    stop_after: str = "off"
    """The value of the setting `tools.stop_after` in this turn, with `auto` resolved."""
    dropped: Mapping[str, int] = MappingProxyType({})
    """The number of dropped characters or calls, by reason."""
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    kind: str = "new"
    """`new`, `resumed` or `replayed`, as in the header `x-toolwire-turn`."""
    key_name: str = ""
    turn_id: str = ""
    """The id of the turn in the journal."""
    answer_id: str = ""
    """The id of the response that the client sees."""
    started_at: float = 0.0
    """Unix time in seconds."""
    tool_call_s: tuple[float, ...] = ()
    """When each call began, in seconds since the start of the turn."""
    trace_parent: str = ""
    turn: Turn | None = None
    """The decoded request, for observers that may see it."""
    contents: Contents | None = None
    """The texts of the turn; None unless telemetry or the log wants them."""
    trace: Trace | None = None
    """The journal's record of the turn; None without a journal."""
    hold: Hold | None = None
    """The part of the key's budget that is reserved for this turn until its usage is counted."""


# --- memory of a connection ---
#
# A WebSocket remembers its own conversations, so that a turn can continue a response that was not stored.
# Only the last response of each lane (a conversation with its own `stream_id`) is kept, with the conversation
# before it, in memory, until the connection ends. All kept conversations together may have at most `most`
# characters. To stay below this limit, the oldest are dropped, and a conversation that is too large on its
# own is not kept. A client that continues a dropped response gets an error and must send the whole
# conversation. A response whose continuation failed is dropped too.

MOST = 8 * 1024 * 1024
ITEM_BYTES = 200
"""The number of characters that an item counts as, in addition to its texts."""


class Memory:
    """The memory of one WebSocket connection, which runs one turn at a time."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._kept: dict[str, _Kept] = {}
        """The last response of each conversation on the connection, by `stream_id`, oldest first."""
        self._lane = ""
        self._before: tuple[StoredItem, ...] = ()
        self.loose: tuple[StoredItem, ...] = ()
        """The conversation before the current turn, if the store does not have it; otherwise empty."""

    def enter(self, lane: str) -> None:
        """Sets the conversation of the next turn. `lane`: the conversation's `stream_id`."""
        self._lane = lane

    def begin(self, before: tuple[StoredItem, ...] = (), previous: str | None = None) -> None:
        """Begins a turn. `before`: the conversation so far. `previous`: the id of its last response."""
        self._before = before
        self.loose = (
            before if any(kept.id == previous and not kept.stored for kept in self._kept.values()) else ()
        )

    def recall(self, id: str) -> tuple[StoredItem, ...] | None:
        """Returns the conversation that ends with this response; None if it is not remembered."""
        return next((kept.items for kept in self._kept.values() if kept.id == id), None)

    def keep(self, id: str, items: tuple[StoredItem, ...], stored: bool = False) -> None:
        """Remembers the response that ended the current turn, with the whole conversation before it.

        `items` are the input and the output of the turn. `stored`: the store has the response too.
        """
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
    items: tuple[StoredItem, ...]
    size: int
    stored: bool
    """Whether the store has the response and everything before it."""


def _size(item: StoredItem) -> int:
    if isinstance(item, Call):
        return len(item.arguments) + len(item.name) + len(item.call_id)
    if isinstance(item, Reasoning):
        return sum(map(len, (*item.summary, *item.content))) + len(item.encrypted or "")
    if isinstance(item, McpListed):
        return len(item.server)
    assert isinstance(item, Message | Result)
    return sum(_part_size(part) for part in item.parts)


def _part_size(part: TextPart | ImagePart | OtherPart) -> int:
    if isinstance(part, TextPart):
        return len(part.text)
    return len(part.url or "") if isinstance(part, ImagePart) else len(str(part.raw))

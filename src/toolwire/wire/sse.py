"""Reads and writes server-sent events, and the JSON in them.

- A frame (the bytes of one event or comment) is written whole. A comment never contains a line break, so it
  cannot end a frame early.
- JSON encoding never fails on a text: a lone surrogate, which UTF-8 cannot represent, becomes U+FFFD.
- The reader returns the same events however the bytes are split (even inside a UTF-8 character, or between CR
  and LF). It works in linear time and keeps no more bytes than its limit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from toolwire.core.errors import ToolwireError

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
EMPTY_LINE = b"\n\n"
"""Completes the last event of a stream, even if the stream ends in the middle of a line."""
READ_LIMIT = 16 * 1024 * 1024

json_bytes = msgspec.json.Encoder().encode
"""Encodes a value as JSON, fast. Raises UnicodeEncodeError on a lone surrogate."""


# --- writing ---


def scrub(text: str) -> str:
    """Returns the text as valid Unicode: surrogate pairs are joined, lone surrogates become U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def encode(value: Any) -> bytes:
    """Encodes a value as JSON. Never raises on a text: lone surrogates become U+FFFD."""
    try:
        return json_bytes(value)
    except UnicodeEncodeError:
        return json_bytes(_scrubbed(value))


def _scrubbed(value: Any) -> Any:
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, dict):
        return {_scrubbed(key): _scrubbed(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_scrubbed(item) for item in value]
    return value


def joined(parts: list[str]) -> str:
    """Joins the parts of a text.

    `scrub` is applied to each part separately. So the result is the same text that a client gets by joining
    the deltas.
    """
    text = "".join(parts)
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join(map(scrub, parts))
    return text


def data_frame(value: Any) -> bytes:
    return b"data: " + encode(value) + b"\n\n"


def comment_frame(text: str) -> bytes:
    """Returns an SSE comment, which clients skip."""
    return b": " + " ".join(scrub(text).splitlines()).encode() + b"\n\n"


# --- reading ---


class SseEvent(NamedTuple):
    """An event with a name. For an event without a name, `SseReader` returns only its data."""

    name: str
    data: bytes


_BOM = b"\xef\xbb\xbf"


class SseReader:
    """Parses a stream of bytes into events: `bytes`, or `SseEvent` if the event has a name.

    Skips comments, ids and retry times. Feed it `EMPTY_LINE` at the end of the stream, because the last event
    may lack its empty line.
    """

    def __init__(self, limit: int = READ_LIMIT) -> None:
        self._limit = limit
        self._partial: list[bytes] = []  # pieces of a line that has not ended
        self._partial_size = 0
        self._data: list[bytes] = []  # data lines of an event that has not ended
        self._name = ""
        self._size = 0
        self._after_cr = False
        self._head: bytes | None = b""  # the first bytes, while they may be a byte order mark

    def feed(self, block: bytes) -> list[bytes | SseEvent]:
        """Returns the events that this block completes. Raises an error if an event exceeds the limit."""
        is_pending = self._partial or self._data or self._name or self._head or self._after_cr
        if block[:6] == b"data: " and block[-2:] == b"\n\n" and b"\r" not in block and not is_pending:
            self._head = None
            whole_events = block[6:-2].split(b"\n\ndata: ")
            # The usual block: whole events of one line each.
            if block.count(b"\n") == 2 * len(whole_events) and len(block) <= self._limit:
                return list(whole_events)
        if self._head is not None:
            block = self._after_bom(block)
        if self._after_cr and block:
            self._after_cr = False
            if block[:1] == b"\n":
                block = block[1:]
        if b"\r" in block:
            self._after_cr = block.endswith(b"\r")
            block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        events: list[bytes | SseEvent] = []
        if b"\n" not in block:
            self._keep(block)
            return events
        if self._partial:
            block = b"".join(self._partial) + block
            self._partial.clear()
            self._partial_size = 0
        *whole, rest = block.split(b"\n\n")
        for text in whole:
            is_alone = b"\n" not in text and not self._data and not self._name
            if is_alone and text[:6] == b"data: " and len(text) <= self._limit:
                events.append(text[6:])
            else:
                self._lines(text.split(b"\n"), events)
                self._dispatch(events)
        *lines, partial = rest.split(b"\n")
        if lines:
            self._lines(lines, events)
        self._keep(partial)
        return events

    def _after_bom(self, block: bytes) -> bytes:
        head = (self._head or b"") + block
        if len(head) < len(_BOM) and _BOM.startswith(head):
            self._head = head
            return b""
        self._head = None
        return head.removeprefix(_BOM)

    def _lines(self, lines: list[bytes], events: list[bytes | SseEvent]) -> None:
        for line in lines:
            if not line:
                self._dispatch(events)
                continue
            self._check(len(line))
            field, _, value = line.partition(b":")
            if not field:
                continue
            self._size += len(line)
            self._check(0)
            value = value.removeprefix(b" ")
            if field == b"data":
                self._data.append(value)
            elif field == b"event":
                self._name = value.decode("utf-8", "replace")

    def _dispatch(self, events: list[bytes | SseEvent]) -> None:
        if self._data:
            data = b"\n".join(self._data)
            events.append(SseEvent(self._name, data) if self._name else data)
            self._data.clear()
        self._name = ""
        self._size = 0

    def _keep(self, piece: bytes) -> None:
        if piece:
            self._partial.append(piece)
            self._partial_size += len(piece)
            self._check(self._partial_size)

    def _check(self, more: int) -> None:
        if more > self._limit or self._size > self._limit:
            raise ToolwireError("backend", f"The backend sent an event larger than {self._limit} bytes.")

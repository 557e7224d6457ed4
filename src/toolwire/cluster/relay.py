"""Forwards the stream of another node, and completes the stream correctly if that node is lost.

The stream is forwarded in whole blocks of server-sent events. The events that complete it do not contradict
what the client has received. In a Responses stream, the open item is closed as incomplete with the text so
far, the sequence numbers continue, and `response.failed` lists every item. A chat stream ends with an error
object, and a Messages stream with an `error` event. If the stream had already ended, nothing is added.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from toolwire.core.errors import error_object, response_error
from toolwire.core.events import Failure
from toolwire.core.turn import Api
from toolwire.wire.messages.encode import error_object as messages_error
from toolwire.wire.responses.encode import SHAPES, ItemShape
from toolwire.wire.sse import data_frame, encode, joined

FIRST_S = 0.25
"""How long to wait for the first block. Before it arrives, this node can still run the turn itself."""
ENDS: dict[Api, tuple[bytes, ...]] = {
    "chat": (b"data: [DONE]",),
    "messages": (b"event: message_stop\n", b"event: error\n"),
}
"""Texts that show the end of a complete stream, by API. For the Responses API, see `TERMINALS`."""
TERMINALS = frozenset({"response.completed", "response.incomplete", "response.failed"})
NETWORK_ERRORS = (aiohttp.ClientError, OSError, TimeoutError)
LOST = Failure("backend_cut", "The server that ran this turn was lost. Send the request again.")

log = logging.getLogger("toolwire.nodes")


class Relay:
    """Another node's stream, as an iterator of whole blocks. `aclose` closes the connection."""

    def __init__(self, response: aiohttp.ClientResponse, api: Api) -> None:
        self._response = response
        self._passing = Passing(api)
        self._blocks = self._read()
        self._first: asyncio.Future[bytes] | None = None

    async def begun(self) -> bool:
        """Waits at most `FIRST_S` for the first block of the stream.

        Returns False if the stream failed or ended before that block. Returns True if the stream is open,
        even if it has sent nothing yet.
        """
        self._first = asyncio.ensure_future(anext(self._blocks))
        try:
            await asyncio.wait({self._first}, timeout=FIRST_S)
        except BaseException:
            await self.aclose()
            raise
        return not self._first.done() or self._first.exception() is None

    def __aiter__(self) -> Relay:
        return self

    async def __anext__(self) -> bytes:
        first, self._first = self._first, None
        try:
            block = await (first if first is not None else anext(self._blocks))
        except NETWORK_ERRORS as error:
            log.warning("another node's stream was cut (%s)", reason(error))
            await self.aclose()
            block = self._passing.end(LOST)
            if not block:
                raise StopAsyncIteration from None
            return block
        self._passing.feed(block)
        return block

    async def aclose(self) -> None:
        first, self._first = self._first, None
        if first is not None:
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
        self._response.close()
        await self._blocks.aclose()

    async def _read(self) -> AsyncGenerator[bytes, None]:
        waiting: list[bytes] = []  # a block that is not complete yet
        async for piece in self._response.content.iter_any():
            end = piece.rfind(b"\n\n") + 2
            if end == 1:
                end = 1 if waiting and waiting[-1].endswith(b"\n") and piece.startswith(b"\n") else 0
            if end:
                yield b"".join((*waiting, piece[:end]))
                waiting = []
            if piece[end:]:
                waiting.append(piece[end:])
        if waiting:
            yield b"".join(waiting)


def reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


# --- the end of an interrupted stream ----------------------------------------------------------------------


class _Frame(msgspec.Struct):
    """The fields of an event that the relay needs."""

    type: str
    sequence_number: int
    output_index: int = 0
    delta: str = ""
    item: dict[str, Any] | None = None
    part: dict[str, Any] | None = None
    response: dict[str, Any] | None = None


_decode = msgspec.json.Decoder(_Frame).decode


@dataclass(slots=True)
class _OpenItem:
    item: dict[str, Any]
    index: int
    part: str = ""
    """The type of the item's content part, or "" before the part was added."""
    pieces: list[str] = field(default_factory=list)
    text_done: bool = False
    part_done: bool = False

    def shape(self) -> ItemShape:
        """Returns the `ItemShape` of the open item.

        The shape is found by the type of the item's part. If no part was added yet, it is found by the item's
        keys.
        """
        kind, keys = self.item.get("type"), self.item.keys()
        for shape in SHAPES.values():
            part = shape.part.part["type"] if shape.part is not None else ""
            fits = part == self.part if self.part else shape.item.keys() <= keys
            if shape.item["type"] == kind and fits:
                return shape
        return SHAPES["text"]


class Passing:
    """Follows a stream: `feed` reads whole blocks, `end` returns the events that the stream still lacks."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._number = 0
        self._ended = False
        self._response: dict[str, Any] = {}
        self._output: list[dict[str, Any]] = []
        self._open: _OpenItem | None = None

    def feed(self, block: bytes) -> None:
        if self._api != "responses":
            self._ended = self._ended or any(end in block for end in ENDS[self._api])
            return
        for line in block.split(b"\n"):
            if line.startswith(b"data: "):
                try:
                    self._passed(_decode(line[len(b"data: ") :]))
                except msgspec.MsgspecError:
                    continue

    def _passed(self, frame: _Frame) -> None:
        self._number = frame.sequence_number + 1
        kind = frame.type
        if kind == "response.created":
            self._response = frame.response or {}
        elif kind == "response.output_item.added":
            self._open = _OpenItem(frame.item or {}, frame.output_index)
        elif kind == "response.output_item.done":
            self._output.append(frame.item or {})
            self._open = None
        elif kind in TERMINALS:
            self._ended = True
        elif self._open is not None:
            self._in_item(self._open, frame)

    def _in_item(self, opened: _OpenItem, frame: _Frame) -> None:
        if frame.type.endswith(".delta"):
            opened.pieces.append(frame.delta)
        elif frame.type.endswith("_part.added"):
            opened.part = str((frame.part or {}).get("type"))
        elif frame.type.endswith("_part.done"):
            opened.part_done = True
        elif frame.type.endswith(".done"):
            opened.text_done = True

    def end(self, failure: Failure) -> bytes:
        if self._ended:
            return b""
        self._ended = True
        if self._api == "chat":
            return data_frame(error_object(failure))
        if self._api == "messages":
            return b"event: error\ndata: %b\n\n" % encode(messages_error(failure))
        return b"".join(self._ending(failure))

    def _ending(self, failure: Failure) -> Iterator[bytes]:
        if self._number == 1:
            yield self._frame("response.in_progress", response=self._response)
        if self._open is not None:
            yield from self._closing(self._open)
        failed = {"status": "failed", "error": response_error(failure), "output": self._output}
        yield self._frame("response.failed", response={**self._response, **failed})

    def _closing(self, opened: _OpenItem) -> Iterator[bytes]:
        item, shape, text = opened.item, opened.shape(), joined(opened.pieces)
        where: dict[str, Any] = {"item_id": item.get("id"), "output_index": opened.index}
        if shape.part is not None:
            where[shape.part.index] = 0
            if not opened.part:
                yield self._frame(f"{shape.part.events}.added", **where, part=shape.part.part)
        if not opened.text_done:
            name = {"name": item.get("name")} if shape.names_call else {}
            body = {**where, **name, shape.text_field: text, **(shape.also or {})}
            yield self._frame(f"{shape.events}.done", **body)
        if shape.part is None:
            done = {**item, shape.text_field: text}
        else:
            part = {**shape.part.part, shape.part.field: text}
            done = {**item, shape.holder: [part]}
            if not opened.part_done:
                yield self._frame(f"{shape.part.events}.done", **where, part=part)
        done["status"] = "incomplete"
        yield self._frame("response.output_item.done", output_index=opened.index, item=done)
        self._output.append(done)

    def _frame(self, event: str, **body: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        data = encode({"type": event, "sequence_number": number, **body})
        return b"event: %s\ndata: %s\n\n" % (event.encode(), data)

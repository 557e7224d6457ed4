"""One request and its answer, below any framework: reading a body with limits, sending replies, failing cleanly.

Rules: every failure is an OpenAI error object. A refusal is answered at once, also while the client is still sending: the answer goes out whole, then
the rest of the body is read and thrown away within limits, because closing a socket with unread bytes would reset it and destroy the answer. A body
must go on arriving, at `BODY_RATE` at least after its first `BODY_IDLE_S`. All bodies that are arriving have a
bounded `Room` together, and each key has a share of it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec
from starlette.types import Message, Receive, Scope, Send

from toolwire.access.gate import HeaderList, Headers
from toolwire.access.keys import KeyHolder
from toolwire.core.errors import ToolwireError, error_object, status_of
from toolwire.core.events import Failure
from toolwire.wire.sse import encode

# --- watch ------------------------------------------------------------
#
# What is known of the connection that a request came by, and whether its client has left while the answer
# is made. Our own protocol says it by a call (`ClientConnection` in the scope), which costs nothing while nobody
# leaves; any other server says it only to who waits.

CONNECTION = "toolwire.connection"


class Wire(Protocol):
    """What can be had of a connection without waiting."""

    def take(self) -> bytes | None:
        """The request's body, where all of it is there."""

    def answer(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> bool:
        """Sends a whole answer, or says that it has to be sent in another way."""

    def write(self, block: bytes) -> bool:
        """Sends a piece of a stream, or says that it has to be sent, and waited for."""


class _Silent:
    """Of a connection of which nothing is known, or that was answered."""

    def take(self) -> bytes | None:
        return None

    def answer(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> bool:
        return False

    def write(self, block: bytes) -> bool:
        return False


SILENT = _Silent()


class ClientConnection:
    """One request's connection. `task` answers it. `gone`: it is over; `tell` is called when that happens."""

    __slots__ = ("gone", "task", "tell", "wire")

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.task: asyncio.Task[Any] | None = None
        self.gone = False
        self.tell: Callable[[], None] | None = None

    def left(self) -> None:
        self.gone = True
        if self.tell is not None:
            self.tell()

    def answered(self) -> None:
        """Nothing more will be said: what it refers to refers to it, and would otherwise wait for the garbage collector."""
        self.wire, self.task, self.tell = SILENT, None, None


NO_CONNECTION = ClientConnection(SILENT)
"""Where the server is not ours, and tells of none."""


class Watch:
    """Cancels the task that made it when the client goes away. `gone` tells this cancellation from the server's own."""

    __slots__ = ("_connection", "_task", "_watched", "gone")

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.gone = False
        self._connection: ClientConnection | None = scope.get(CONNECTION)
        self._watched = asyncio.current_task() if self._connection is None else self._connection.task
        self._task: asyncio.Task[Any] | None = None
        if self._connection is None:
            self._task = asyncio.get_running_loop().create_task(self._run(receive))
        elif self._connection.gone:
            self._left()
        else:
            self._connection.tell = self._left

    async def _run(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._left()

    def _left(self) -> None:
        self.gone = True
        if self._watched is not None:
            self._watched.cancel()

    def stop(self) -> None:
        if self._connection is not None:
            self._connection.tell = None
        elif self._task is not None:
            self._task.cancel()


JSON = (b"content-type", b"application/json; charset=utf-8")
NO_SNIFF = (b"x-content-type-options", b"nosniff")
BODY_IDLE_S = 30.0
BODY_RATE = 8 * 1024
"""Bytes a second."""
MOST_ARRIVING = 256 * 1024 * 1024
LINGER_S = 30.0
LONGEST_RETRY_S = 86_400.0
LINGER_BYTES = 512 * 1024 * 1024
SMALL_BODY = 64 * 1024
EVERYBODY = ""
"""The id of the one caller there is where no keys are set."""
NOBODY = "?"
"""Who sends before it is known whose key it is: all of them have one share."""
ROOM_KEY = "toolwire.room_key"
"""Where a WebSocket's scope says whose share its messages take, once that is known."""

encode_json = msgspec.json.Encoder().encode


def body_due(now: float, began: float, arrived: int) -> float:
    """The time by which the next piece of a body must arrive.

    A body that keeps up with `BODY_RATE` has `BODY_IDLE_S` from now. One that is slower has used up a part
    of that time.
    """
    return min(now, began + arrived / BODY_RATE) + BODY_IDLE_S


class Room:
    """The memory for requests that are still arriving or wait in line, shared by all keys.

    It has `MOST_ARRIVING` bytes, and at least four bodies of the largest size. A key may hold as much as it
    leaves free for others: alone at most half, and however much one key holds, another key finds room.
    Without keys there is one caller, who may use all of it.
    """

    __slots__ = ("_held", "left")

    def __init__(self, largest: int) -> None:
        self.left = max(MOST_ARRIVING, 4 * largest)
        self._held: dict[str, int] = {}

    def take(self, size: int, key: str) -> None:
        """Raises 429 where the key has its share, and 503 where nothing is left for anybody."""
        held, left = self._held.get(key, 0) + size, self.left - size
        if left < 0 if key == EVERYBODY else held > left:
            kind, whose = (
                ("overloaded", "") if key == EVERYBODY or held == size else ("rate_limit", " of this API key")
            )
            raise ToolwireError(
                kind,
                f"Too many large requests{whose} arrive at the same time. Please try again.",
                retry_after_s=1,
            )
        self._held[key], self.left = held, left

    def give(self, size: int, key: str) -> None:
        held = self._held.get(key, 0) - size
        self.left += size
        if held:
            self._held[key] = held
        else:
            self._held.pop(key, None)


class ClientGone(Exception):
    """The client left before its request was complete; there is nobody to answer."""


class Exchange:
    """`common` are the headers that every answer carries; `started`: an answer is under way; `reached_gateway`: a turn was tried."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, headers: Headers, request_id: str, cors: HeaderList
    ) -> None:
        self.scope = scope
        self.headers = headers
        self.request_id = request_id
        self.common: HeaderList = [(b"x-request-id", request_id.encode()), NO_SNIFF, *cors]
        self._cors = len(cors)
        self.began = time.perf_counter()
        self._receive = receive
        self._send = send
        self._connection: ClientConnection = scope.get(CONNECTION, NO_CONNECTION)
        self.started = self.reached_gateway = False
        self.holder: KeyHolder | None = None
        """Whose request it is, once that is known …"""
        self.status: int | None = None
        self.failure: Failure | None = None
        """… and what became of it."""
        self.told: Callable[[], HeaderList] | None = None
        """What is only known when the answer goes out: how much of its limits the caller's key has left."""
        self._body_read = self._body_late = False
        self._body_began: float | None = None
        self._arrived = 0

    @property
    def asker(self) -> str:
        """Whose refusals count together: a key's, or an address's where there is none."""
        holder, client = self.holder, self.scope.get("client")
        return holder.key_id if holder is not None and holder.key_id else client[0] if client else ""

    @property
    def room_key(self) -> str:
        """Whose share of the room the body takes."""
        return NOBODY if self.holder is None else self.holder.key_id

    def for_own_pages(self) -> None:
        """No other origin may read this answer."""
        self.common = self.common[: len(self.common) - self._cors]

    # --- the request -----------------------------------------------------------------------------------------------------------------------

    def check_json(self) -> None:
        """Raises unless the body says it is JSON (or says nothing) and comes as it is."""
        content_type = self.headers.get(b"content-type")
        if content_type is not None and content_type != b"application/json":
            media = content_type.split(b";", 1)[0].strip().lower()
            if (
                media
                and media != b"application/json"
                and not (media.startswith(b"application/") and media.endswith(b"+json"))
            ):
                raise ToolwireError(
                    "content_type",
                    "Unsupported content type. This API method only accepts 'application/json' requests.",
                )
        encoding = self.headers.get(b"content-encoding")
        if encoding is not None and encoding.strip().lower() not in (b"", b"identity"):
            raise ToolwireError("content_type", "Unsupported content encoding. Send the body uncompressed.")

    async def read_body(self, limit: int, room: Room | None = None) -> bytes:
        """The whole body. Raises `body_too_large` as early as it is known, `ClientGone` where the client left."""
        length = self.headers.get(b"content-length")
        if length is not None:
            if not length.isdigit() or len(length) > 18:
                raise ToolwireError("invalid_request", "The Content-Length header is not a number.")
            if int(length) > limit:
                raise _too_large(limit)
        body = self._connection.wire.take()
        if body is None:
            message = await self._arriving()
            body = message.get("body", b"")
            if message["type"] == "http.disconnect":
                raise ClientGone
            if message.get("more_body"):
                body = await self._read_rest(body, limit, room or Room(limit))
        self._body_read = True
        if len(body) > limit:
            raise _too_large(limit)
        return body

    async def receive(self) -> Message:
        """As the server gives it, for who reads the body themselves."""
        message = await (self._receive() if self._body_read else self._arriving())
        if message["type"] == "http.request" and not message.get("more_body"):
            self._body_read = True
        return message

    async def _arriving(self) -> Message:
        """The next part of the body, unless it comes too late or too slowly."""
        body = self._connection.wire.take()
        if body is not None:  # there is nothing to wait for
            return {"type": "http.request", "body": body, "more_body": False}
        now = asyncio.get_running_loop().time()
        if self._body_began is None:
            self._body_began = now
        due = body_due(now, self._body_began, self._arrived)
        try:
            async with asyncio.timeout_at(due):
                message = await self._receive()
        except TimeoutError:
            self._body_late = True
            silence = due - now
            told = (
                f"stopped arriving for {silence:.2g} s"
                if silence > BODY_IDLE_S / 2
                else f"came slower than {BODY_RATE // 1024} kB a second"
            )
            raise ToolwireError("invalid_request", f"The request's body {told}.") from None
        self._arrived += len(message.get("body", b""))
        return message

    async def _read_rest(self, body: bytes, limit: int, room: Room) -> bytes:
        pieces, size, more, key = [body], len(body), True, self.room_key
        room.take(size, key)
        try:
            while more:
                if size > limit:
                    raise _too_large(limit)
                message = await self._arriving()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                piece = message.get("body", b"")
                room.take(len(piece), key)
                size += len(piece)
                pieces.append(piece)
                more = message.get("more_body", False)
            if size > limit:
                raise _too_large(limit)
            return b"".join(pieces)
        finally:
            room.give(size, key)

    # --- the answer ------------------------------------------------------------------------------------------------------------------------

    def left(self, headers: HeaderList) -> HeaderList:
        """What `told` has to add, unless the node that ran the turn has said it already."""
        return (
            []
            if self.told is None or any(name.startswith(b"x-ratelimit-") for name, _ in headers)
            else self.told()
        )

    async def reply(self, status: int, headers: HeaderList, body: bytes) -> None:
        """A whole answer: `headers` hold at least the content type."""
        self.started, self.status = True, status
        head = [*headers, (b"content-length", b"%d" % len(body)), *self.common, *self.left(headers)]
        if not self._connection.wire.answer(status, head, body):
            await self._send({"type": "http.response.start", "status": status, "headers": head})
            await self._send({"type": "http.response.body", "body": body})

    async def reply_nothing(self) -> None:
        """204, as preflights are answered."""
        await self.begin(204, [])
        await self.end()

    async def begin(self, status: int, headers: HeaderList) -> None:
        """The head of an answer that comes in pieces, by `piece` and `end`."""
        self.started, self.status = True, status
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [*headers, *self.common, *self.left(headers)],
            }
        )

    def piece(self, block: bytes) -> Awaitable[None]:
        return self._send({"type": "http.response.body", "body": block, "more_body": True})

    @property
    def write(self) -> Callable[[bytes], bool]:
        """A shorter way for a piece: whether it took it. Where it did not, the piece is sent by `piece`."""
        return self._connection.wire.write

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})

    async def fail(self, failure: Failure, extra: HeaderList | None = None) -> int:
        """Answers with the failure's error object; gives the status."""
        status = status_of(failure)
        headers: HeaderList = [JSON, *(extra or ())]
        if status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if failure.retry_after_s is not None:
            wait_s = min(failure.retry_after_s, LONGEST_RETRY_S)
            headers.append((b"retry-after", b"%d" % max(1, math.ceil(wait_s))))
            if status == 429:
                headers.append((b"retry-after-ms", b"%d" % max(1, math.ceil(wait_s * 1000))))
        if failure.kind == "quota":
            headers.append((b"x-should-retry", b"false"))
        body = encode(error_object(failure))
        if self._body_read or self._body_is_absent():
            await self.reply(status, headers, body)
        else:
            await self._reply_and_linger(status, headers, body)
        return status

    def _body_is_absent(self) -> bool:
        return self.headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in self.headers

    async def _reply_and_linger(self, status: int, headers: HeaderList, body: bytes) -> None:
        length = self.headers.get(b"content-length", b"")
        if self._body_late:  # nobody waits for it any longer
            await self.reply(status, [*headers, (b"connection", b"close")], body)
            return
        if (
            b"expect" in self.headers
        ):  # the client waits for our word before it sends: it will not send now, and the connection can not be used again
            await self.reply(status, [*headers, (b"connection", b"close")], body)
            return
        if not (length.isdigit() and int(length[:18]) <= SMALL_BODY):
            headers = [*headers, (b"connection", b"close")]
        await self.begin(status, [*headers, (b"content-length", b"%d" % len(body))])
        await self.piece(body)
        try:
            async with asyncio.timeout(LINGER_S):
                await self._discard_body()
        except TimeoutError:
            pass
        await self.end()

    async def _discard_body(self) -> None:
        size = 0
        while size < LINGER_BYTES:
            message: Any = await self._receive()
            size += len(message.get("body", b""))
            if message["type"] == "http.disconnect" or not message.get("more_body"):
                return


def typed(headers: HeaderList, default: tuple[bytes, bytes]) -> HeaderList:
    """The headers with a content type, where they have none."""
    return headers if b"content-type" in dict(headers) else [default, *headers]


def _too_large(limit: int) -> ToolwireError:
    return ToolwireError(
        "body_too_large",
        f"The request's body is larger than {limit / 1048576:g} MB, this server's limit (server.max_body_mb).",
    )

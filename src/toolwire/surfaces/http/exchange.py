"""One request and its response: reads the body within limits and sends the reply.

Every failure is sent as an error object. It is sent at once, even while the client is still sending its body.
The rest of the body is then read and discarded, because closing a socket with unread bytes would reset the
connection and destroy the response. A body that arrives too slowly is refused (`body_due`). All arriving
bodies share one bounded `Room`, in which each key has a share.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from toolwire.access.gate import HeaderList, Headers
from toolwire.access.keys import KeyHolder
from toolwire.core.errors import ToolwireError, error_object, status_of
from toolwire.core.events import Failure
from toolwire.core.turn import Api
from toolwire.gateway.records import JSON
from toolwire.wire.messages.encode import error_object as messages_error
from toolwire.wire.sse import encode

CONNECTION = "toolwire.connection"
"""The key under which a request's scope has its `Connection`, until the response is complete."""


class Connection:
    """The client's connection while one request uses it. `task`: the task that answers the request.

    No method waits. The subclass `Cycle` is used with Toolwire's own protocol. With another server, the
    methods of this class do nothing, so the request is read and answered with ASGI messages.
    """

    task: asyncio.Task[Any] | None = None
    gone = False
    on_left: Callable[[], None] | None = None
    """Called when the client disconnects; `gone` is then True."""

    def take(self) -> bytes | None:
        """Returns the request's body if all of it has arrived; otherwise None."""
        return None

    def answer(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> bool:
        """Sends a whole response and returns True.

        Returns False if the caller must send it with ASGI messages.
        """
        return False

    def write(self, block: bytes) -> bool:
        """Sends a block and returns True. Returns False if the caller must send it with an ASGI message."""
        return False

    def left(self) -> None:
        self.gone = True
        if self.on_left is not None:
            self.on_left()


NO_CONNECTION = Connection()


class Watch:
    """Cancels the task of a request when its client disconnects.

    `gone` is then True, so that this can be distinguished from a cancellation by the server.
    """

    __slots__ = ("_connection", "_task", "_watched", "gone")

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.gone = False
        self._connection: Connection | None = scope.get(CONNECTION)
        self._watched = asyncio.current_task() if self._connection is None else self._connection.task
        self._task: asyncio.Task[Any] | None = None
        if self._connection is None:
            self._task = asyncio.get_running_loop().create_task(self._run(receive))
        elif self._connection.gone:
            self._left()
        else:
            self._connection.on_left = self._left

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
            self._connection.on_left = None
        elif self._task is not None:
            self._task.cancel()


NO_SNIFF = (b"x-content-type-options", b"nosniff")
BODY_IDLE_S = 30.0
BODY_RATE = 8 * 1024
"""The minimum rate, in bytes per second, at which a body must arrive."""
MOST_ARRIVING = 256 * 1024 * 1024
LINGER_S = 30.0
LONGEST_RETRY_S = 86_400.0
LINGER_BYTES = 512 * 1024 * 1024
SMALL_BODY = 64 * 1024
EVERYBODY = ""
"""The key id of all callers if no keys are configured."""
NOBODY = "?"
"""The key id of requests whose key is not known yet.

All these requests together have one share of the `Room`.
"""
ANTHROPIC = b"anthropic-version"
"""The header that every client of Anthropic's API sends."""
API_HEADERS = frozenset({ANTHROPIC, b"anthropic-beta"})
MESSAGES_PATHS = frozenset(
    f"{prefix}/messages{rest}{slash}"
    for prefix in ("/v1", "")
    for rest in ("", "/count_tokens")
    for slash in ("", "/")
)
ROOM_KEY = "toolwire.room_key"
"""The name under which a WebSocket's scope has the id of the API key that its messages count for."""


def body_due(now: float, began: float, arrived: int) -> float:
    """Returns the time by which the next piece of a body must arrive.

    If the body has arrived at `BODY_RATE` or faster, this is `BODY_IDLE_S` from now. For a slower body, it is
    `BODY_IDLE_S` after the moment at which `BODY_RATE` would have delivered the bytes that have arrived.
    """
    return min(now, began + arrived / BODY_RATE) + BODY_IDLE_S


class Room:
    """The memory for request bodies that are arriving or waiting, shared by all keys.

    The room has `MOST_ARRIVING` bytes, but at least four times the largest body. A key may hold at most as
    many bytes as are still free. So one key alone gets at most half of the room, and another key always finds
    some. If no keys are configured, all of the room may be used.
    """

    __slots__ = ("_held", "left")

    def __init__(self, largest: int) -> None:
        self.left = max(MOST_ARRIVING, 4 * largest)
        self._held: dict[str, int] = {}

    def take(self, size: int, key: str) -> None:
        """Takes `size` bytes for a key.

        If there is no room, raises an error: with status 429 if the key already holds bytes, otherwise with
        503.
        """
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
    """Raised when the client disconnects before its request is complete."""


class Exchange:
    """One request and its response.

    `common` contains the headers of every response. `started`: a response is being sent. `reached_gateway`:
    the gateway was asked to run a turn.
    """

    started = reached_gateway = False
    holder: KeyHolder | None = None
    """The holder of the request's key; None until the key is checked."""
    status: int | None = None
    failure: Failure | None = None
    """The failure that the response reported, if any."""
    late_headers: Callable[[], HeaderList] | None = None
    """A function that creates the headers about what is left of the key's limits; None without limits."""
    _body_read = _body_late = False
    _body_began: float | None = None
    _arrived = 0

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, headers: Headers, request_id: str, cors: HeaderList
    ) -> None:
        self.scope = scope
        self.headers = headers
        self.request_id = request_id
        self.api: Api = "messages" if ANTHROPIC in headers or scope["path"] in MESSAGES_PATHS else "chat"
        """The API whose errors the client understands: "messages" for Anthropic's, "chat" for OpenAI's."""
        self.common: HeaderList = [(b"x-request-id", request_id.encode()), NO_SNIFF, *cors]
        if self.api == "messages":
            self.common.insert(0, (b"request-id", request_id.encode()))
        self._cors = len(cors)
        self.began = time.perf_counter()
        self._receive = receive
        self._send = send
        self.connection: Connection = scope.get(CONNECTION, NO_CONNECTION)

    @property
    def requester(self) -> str:
        """Identifies the client whose refused requests are counted.

        The value is the id of the client's key; without a key, the client's address.
        """
        holder, client = self.holder, self.scope.get("client")
        return holder.key_id if holder is not None and holder.key_id else client[0] if client else ""

    @property
    def room_key(self) -> str:
        """The id of the key for which the body is counted in the `Room`."""
        return NOBODY if self.holder is None else self.holder.key_id

    def for_own_pages(self) -> None:
        """Removes the CORS headers, because no other origin may read this response."""
        self.common = self.common[: len(self.common) - self._cors]

    # --- the request ---

    def check_json(self) -> None:
        """Raises an error if the body is compressed, or if its content type is given and is not JSON."""
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
        """Returns the whole body. `room` provides the memory while the body arrives.

        Raises `body_too_large` as early as possible, and `ClientGone` if the client disconnects.
        """
        length = self.headers.get(b"content-length")
        if length is not None:
            if not length.isdigit() or len(length) > 18:
                raise ToolwireError("invalid_request", "The Content-Length header is not a number.")
            if int(length) > limit:
                raise _too_large(limit)
        body = self.connection.take()
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
        """Returns the next ASGI message, for code that reads the body itself."""
        if not self._body_read and (body := self.connection.take()) is not None:  # all of it has arrived
            self._body_read = True
            return {"type": "http.request", "body": body, "more_body": False}
        message = await (self._receive() if self._body_read else self._arriving())
        if message["type"] == "http.request" and not message.get("more_body"):
            self._body_read = True
        return message

    async def _arriving(self) -> Message:
        """Returns the next part of the body. Raises an error if the part is late or arrives too slowly."""
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
            problem = (
                f"stopped arriving for {silence:.2g} s"
                if silence > BODY_IDLE_S / 2
                else f"came slower than {BODY_RATE // 1024} kB a second"
            )
            raise ToolwireError("invalid_request", f"The request's body {problem}.") from None
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

    # --- the response ---

    def shared(self, headers: HeaderList) -> HeaderList:
        """Returns the headers to add to a response that has `headers`.

        These are `common`, and the headers that `late_headers` creates. If another node has already added the
        headers of `late_headers`, returns only `common`.
        """
        if self.late_headers is None or any(b"-ratelimit-" in name for name, _ in headers):
            return self.common
        return [*self.common, *self.late_headers()]

    async def reply(self, status: int, headers: HeaderList, body: bytes) -> None:
        """Sends a whole response. `headers` must include the content type."""
        self.started, self.status = True, status
        head = [*headers, (b"content-length", b"%d" % len(body)), *self.shared(headers)]
        if not self.connection.answer(status, head, body):
            await self._send({"type": "http.response.start", "status": status, "headers": head})
            await self._send({"type": "http.response.body", "body": body})

    async def reply_nothing(self) -> None:
        """Sends 204 without a body, the response to a CORS preflight."""
        await self.begin(204, [])
        await self.end()

    async def begin(self, status: int, headers: HeaderList) -> None:
        """Sends the head of a response. Call `piece` and `end` to send the body."""
        self.started, self.status = True, status
        await self._send(
            {"type": "http.response.start", "status": status, "headers": [*headers, *self.shared(headers)]}
        )

    def piece(self, block: bytes) -> Awaitable[None]:
        return self._send({"type": "http.response.body", "body": block, "more_body": True})

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})

    async def fail(self, failure: Failure, extra: HeaderList | None = None) -> int:
        """Sends the failure as an error object and returns the HTTP status."""
        status = status_of(failure, self.api)
        headers: HeaderList = [JSON, *(extra or ())]
        if status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if failure.retry_after_s is not None:
            wait_s = min(failure.retry_after_s, LONGEST_RETRY_S)
            headers.append((b"retry-after", b"%d" % max(1, math.ceil(wait_s))))
            if status == 429:
                headers.append((b"retry-after-ms", b"%d" % max(1, math.ceil(wait_s * 1000))))
        if failure.kind == "quota" or (failure.kind == "authentication" and self.api == "messages"):
            headers.append((b"x-should-retry", b"false"))  # otherwise Claude Code would try ten times
        if self.api == "messages":
            body = encode(messages_error(failure, self.request_id))
        else:
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
        if self._body_late:  # the rest of the body is no longer expected
            await self.reply(status, [*headers, (b"connection", b"close")], body)
            return
        if (
            b"expect" in self.headers
        ):  # the client waits for permission to send its body; the connection cannot be used again
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


def api_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Returns the headers that belong to a Messages request, by name: API version and betas."""
    found: dict[str, str] = {}
    for name, value in headers:
        if name in API_HEADERS and value.isascii():
            key, text = name.decode(), value.decode().strip()
            found[key] = f"{found[key]},{text}" if key in found else text
    return found


def _too_large(limit: int) -> ToolwireError:
    size = f"{limit / 1048576:g} MB"
    message = f"The request's body is larger than {size}, this server's limit (server.max_body_mb)."
    return ToolwireError("body_too_large", message)

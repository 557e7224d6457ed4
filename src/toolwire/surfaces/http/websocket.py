"""Serves /v1/responses over a WebSocket: a message for each request and for each event.

    handshake ─▶ Host, Origin and key ─▶ messages wait in a queue ─▶ the POST route, one at a time ─▶ events

- The connection is only another transport. A message becomes the same request as a POST, with its own request
  id. It is checked, limited, forwarded, logged and counted in the same way, and its key is looked up again.
- One response is sent at a time. Messages that arrive in the meantime wait: at most `MOST_WAITING`, with at
  most as many bytes as one request body may have. They use the key's share of the `Room` for arriving bodies.
- A lane (`stream_id`) names a conversation. The messages of all lanes wait in the same queue, and each event
  contains the name of its lane.
- The last response of a lane is kept in memory (`gateway/records.py`), even with `"store": false`. So the
  same process serves the next turn.
- A bad message gets one `error` event when its turn in the queue comes, and the connection continues. A frame
  that violates the WebSocket protocol ends the connection.
- The connection ends after `LIFETIME_S`, or after `IDLE_S` without a message, but never during a response. A
  server that drains closes it with 1012. If the client disconnects, the current response is cancelled.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter, deque
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from starlette.types import Message, Receive, Scope, Send

from toolwire.cluster.forward import HOP
from toolwire.core.errors import ToolwireError, error_object, status_of
from toolwire.core.events import Failure
from toolwire.core.ids import random_id
from toolwire.gateway.records import Memory
from toolwire.surfaces.http.exchange import ROOM_KEY, ClientGone, Exchange
from toolwire.wire import body as request_body
from toolwire.wire.sse import encode

if TYPE_CHECKING:
    from toolwire.surfaces.http.app import App

LIFETIME_S = 3600.0
IDLE_S = 1800.0
MOST_WAITING = 16
MOST_REFUSED = 256
"""How many refused messages may wait for their error event before the connection is closed."""
MOST_PER_KEY = 256
MOST_LANES, LONGEST_LANE = 32, 128
NORMAL, GOING_AWAY, POLICY, FAULT, RESTART = 1000, 1001, 1008, 1011, 1012
CREATE = "response.create"
OWN_HEADERS = re.compile(
    rb"sec-websocket-.*|connection|upgrade|content-.*|transfer-encoding|expect|x-request-id|x-toolwire-hop"
)
"""Headers of the handshake that do not apply to the requests in the messages."""
TOLD_HEADERS = re.compile(rb"x-request-id|retry-after(?:-ms)?|x-ratelimit-.*|x-should-retry")
TOO_MANY_WAIT = (
    "Too many messages wait for the current response. "
    "A connection makes one response at a time; use several connections for more."
)
TOO_OLD = ToolwireError(
    "invalid_request",
    f"This connection has reached its limit of {LIFETIME_S / 60:g} minutes. Open a new one to go on.",
    code="websocket_connection_limit_reached",
).failure
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_event = msgspec.json.Decoder()
_TRUE = msgspec.Raw(b"true")


class Sockets:
    """All WebSocket connections of a server."""

    def __init__(self, app: App, body_limit: int) -> None:
        self._app = app
        self._body_limit = body_limit
        self._open: set[SocketConnection] = set()
        self._by_key: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def drain(self) -> None:
        for connection in self._open:
            connection.drain()

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one connection, from its handshake to its end."""
        scheme = "https" if scope.get("scheme") in ("wss", "https") else "http"
        exchange = self._app.exchange(
            {**scope, "method": "GET", "scheme": scheme}, receive, partial(_refusing, send)
        )
        await self._app.handled(exchange, lambda: self._serve(exchange, scope, receive, send))

    async def _serve(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # the event websocket.connect
        if HOP in exchange.headers:
            raise ToolwireError("permission", "Nodes do not forward WebSockets to each other.")
        self._app.gate.check_place(exchange.headers, exchange.scope)
        key_id = (await self._app.caller(exchange)).key_id
        if self._app.draining:
            raise ToolwireError("overloaded", "The server is shutting down.", retry_after_s=1)
        if self._by_key[key_id] >= MOST_PER_KEY:
            raise ToolwireError(
                "rate_limit",
                f"This key has {MOST_PER_KEY} WebSocket connections open, which is the limit.",
                retry_after_s=1,
            )
        scope[ROOM_KEY] = key_id
        try:
            await send({"type": "websocket.accept", "headers": exchange.common})
        except OSError:  # the client has disconnected
            raise ClientGone from None
        exchange.started, exchange.status = True, 101
        connection = SocketConnection(self._app, exchange, send, self._body_limit)
        self._open.add(connection)
        self._by_key[key_id] += 1
        try:
            await connection.run(receive)
        finally:
            self._open.discard(connection)
            connection.forget()
            self._by_key[key_id] -= 1
            if not self._by_key[key_id]:
                del self._by_key[key_id]


async def _refusing(send: Send, message: Message) -> None:
    """Sends an HTTP response that refuses the WebSocket, in place of the response to the handshake."""
    await send({**message, "type": f"websocket.{message['type']}"})


class _Refused(NamedTuple):
    """A message that was refused when it arrived and waits for its error event."""

    failure: Failure
    lane: str


class SocketConnection:
    def __init__(self, app: App, exchange: Exchange, send: Send, body_limit: int) -> None:
        self._app = app
        self._send = send
        self._body_limit = body_limit
        self._room, self._room_key = app.room, exchange.room_key
        self._memory = Memory()
        self._lanes: set[str] = set()
        self._line: deque[bytes | _Refused] = deque()
        self._waiting = 0
        """The number of bytes of all waiting messages."""
        self._refused = 0
        """The number of refused messages that wait for their error event."""
        self._moved = asyncio.Event()
        self._gone = asyncio.Event()
        self._draining = False
        loop = asyncio.get_running_loop()
        self._now, self._ends = loop.time, loop.time() + LIFETIME_S
        headers = [
            (name, value) for name, value in exchange.scope["headers"] if not OWN_HEADERS.fullmatch(name)
        ]
        seen = {name: value for name, value in exchange.headers.items() if not OWN_HEADERS.fullmatch(name)}
        self._scope: Scope = {**exchange.scope, "type": "http", "method": "POST", "headers": headers}
        self._headers = seen

    def drain(self) -> None:
        """Lets the running turn end, and accepts no further turns."""
        self._draining = True
        self._moved.set()

    async def run(self, receive: Receive) -> None:
        reader = asyncio.get_running_loop().create_task(self._read(receive))
        code, reason = FAULT, "the server had an error"
        try:
            code, reason = await self._work()
        except ClientGone:
            pass
        except asyncio.CancelledError:
            code, reason = RESTART, "the server is shutting down"
            raise
        finally:
            reader.cancel()
            if not self._gone.is_set():
                await self._close(code, reason)

    async def _close(self, code: int, reason: str) -> None:
        try:
            await self._send({"type": "websocket.close", "code": code, "reason": reason})
        except OSError:  # the client has disconnected
            self._gone.set()

    # --- incoming messages ---

    async def _read(self, receive: Receive) -> None:
        """Receives messages, also while a turn runs, so that a disconnect is noticed."""
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                break
            if self._refused > MOST_REFUSED:
                continue
            self._line.append(self._taken(message.get("text")))
            self._moved.set()
        self._gone.set()
        self._moved.set()

    def _taken(self, text: str | None) -> bytes | _Refused:
        raw = b"" if text is None else text.encode()
        try:
            if text is None:
                raise ToolwireError("invalid_request", "Messages are JSON text; this one was binary.")
            if len(self._line) - self._refused >= MOST_WAITING or self._waiting + len(raw) > self._body_limit:
                raise ToolwireError("rate_limit", TOO_MANY_WAIT)
            self._room.take(len(raw), self._room_key)
        except ToolwireError as error:
            self._refused += 1
            return _Refused(error.failure, _lane_of(raw))
        self._waiting += len(raw)
        return raw

    def _leaves_line(self, size: int) -> None:
        self._waiting -= size
        self._room.give(size, self._room_key)

    def forget(self) -> None:
        """Frees the memory (`Room`) of messages that stay unanswered because the connection has ended."""
        self._leaves_line(self._waiting)

    async def _work(self) -> tuple[int, str]:
        """Answers waiting messages until the connection must close.

        Returns the close code and reason.
        """
        idle_until = self._now() + IDLE_S
        while not self._gone.is_set():
            if self._draining:
                return await self._leave()
            if self._now() >= self._ends:
                await self._fail(TOO_OLD)
                return GOING_AWAY, "the connection is too old"
            if self._line:
                await self._answer(self._line.popleft())
                idle_until = self._now() + IDLE_S
                if self._refused > MOST_REFUSED:
                    return POLICY, "too many messages were refused"
                continue
            self._moved.clear()
            try:
                async with asyncio.timeout_at(min(self._ends, idle_until)):
                    await self._moved.wait()
            except TimeoutError:
                if self._now() < self._ends:
                    return GOING_AWAY, f"no message for {IDLE_S / 60:g} minutes"
        return NORMAL, ""

    async def _leave(self) -> tuple[int, str]:
        """Sends an error event for each waiting message. Returns the close code and reason."""
        for message in tuple(self._line):
            lane = message.lane if isinstance(message, _Refused) else _lane_of(message)
            await self._fail(Failure("overloaded", "The server is shutting down.", retry_after_s=1), lane)
        return RESTART, "the server is shutting down"

    # --- a turn ---

    async def _answer(self, message: bytes | _Refused) -> None:
        if isinstance(message, _Refused):
            self._refused -= 1
            await self._fail(message.failure, message.lane)
            return
        self._leaves_line(len(message))
        lane = ""
        try:
            members = _read_message(message)
            lane = _lane(members)
            self._enter(lane)
        except ToolwireError as error:
            await self._fail(error.failure, lane)
            return
        previous, unstored = _previous(members), bytes(members.get("store", b"")) == b"false"
        here = unstored or (previous is not None and self._memory.recall(previous) is not None)
        turn = _Turn(self, encode(members), lane)
        exchange = Exchange(self._scope, turn.receive, turn.send, self._headers, random_id("req_"), [])
        await self._app.handled(
            exchange,
            lambda: self._app.turn("responses", exchange, turn.receive, memory=self._memory, here=here),
        )
        if turn.failed and previous is not None:
            self._memory.forget(previous)

    def _enter(self, lane: str) -> None:
        if lane and lane not in self._lanes:
            if len(self._lanes) >= MOST_LANES:
                message = f"This connection has {MOST_LANES} streams, which is the limit. "
                message += "Use one of these streams, or open another connection."
                raise ToolwireError(
                    "invalid_value", message, param="stream_id", code="websocket_stream_limit_reached"
                )
            self._lanes.add(lane)
        self._memory.enter(lane)

    async def send_text(self, text: str) -> None:
        try:
            await self._send({"type": "websocket.send", "text": text})
        except OSError:  # uvicorn's error for a client that has disconnected
            self._gone.set()
            raise ClientGone from None

    async def gone(self) -> None:
        await self._gone.wait()

    async def _fail(self, failure: Failure, lane: str = "") -> None:
        await self.send_text(error_event(status_of(failure), error_object(failure)["error"], {}, lane))


class _Turn:
    """The HTTP request that a message is turned into, with its ASGI `receive` and `send`."""

    def __init__(self, connection: SocketConnection, body: bytes, lane: str) -> None:
        self._connection = connection
        self._lane = lane
        self._named = b'{"stream_id":%b,' % encode(lane) if lane else b""
        self._body: bytes | None = body
        self._status = 200
        self._headers: dict[str, str] = {}
        self._streams = False
        self._answered: list[bytes] = []
        self.failed = False

    async def receive(self) -> Message:
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        await self._connection.gone()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._streams = any(
                name == b"content-type" and value.startswith(b"text/event-stream")
                for name, value in message["headers"]
            )
            self._headers = {
                name.decode(): value.decode("latin-1")
                for name, value in message["headers"]
                if TOLD_HEADERS.fullmatch(name)
            }
        elif self._streams:
            for event in _events(message["body"]):
                self.failed |= event.startswith(b'{"type":"response.failed"') or event.startswith(
                    b'{"type":"error"'
                )
                await self._connection.send_text((self._named + event[1:] if self._named else event).decode())
        else:
            self._answered.append(message["body"])
            if not message.get("more_body"):
                self.failed = True
                error = _event.decode(b"".join(self._answered))["error"]
                await self._connection.send_text(error_event(self._status, error, self._headers, self._lane))


def _events(block: bytes) -> Iterator[bytes]:
    """Yields the data of each server-sent event in a block. Comments have no data."""
    for frame in block.split(b"\n\n"):
        if not frame.startswith(b":"):
            data = frame.partition(b"data: ")[2]
            if data and data != b"[DONE]":
                yield data


def _read_message(raw: bytes) -> dict[str, msgspec.Raw]:
    """Returns the members of the request in a message, each as the client's raw JSON."""
    try:
        members = _members.decode(raw)
    except (msgspec.DecodeError, RecursionError, ValueError):
        request_body.parse(raw)  # raises an error with the reason
        raise ToolwireError("invalid_json", "We could not parse the JSON of your message.") from None
    kind = members.pop("type", None)
    if kind is None:
        raise ToolwireError(
            "missing", f"Missing required parameter: 'type'. Every message is a '{CREATE}'.", param="type"
        )
    if bytes(kind) != b'"response.create"' and _plain(kind) != CREATE:
        raise ToolwireError(
            "invalid_value",
            f"Invalid value for 'type'. The only message that is served here is '{CREATE}'.",
            param="type",
        )
    members["stream"] = _TRUE
    return members


def _lane(members: dict[str, msgspec.Raw]) -> str:
    """Removes the lane (`stream_id`) from the request and returns it; "" if the request names no lane."""
    given = members.pop("stream_id", None)
    if given is None or bytes(given) == b"null":
        return ""
    lane = _plain(given)
    if not isinstance(lane, str) or not 0 < len(lane) <= LONGEST_LANE:
        raise ToolwireError(
            "invalid_value",
            f"Invalid 'stream_id': expected a string of 1 to {LONGEST_LANE} characters.",
            param="stream_id",
        )
    return lane


def _lane_of(raw: bytes) -> str:
    """Returns the lane (`stream_id`) of a message; "" if it has none or cannot be parsed.

    This is for messages that get an error event instead of a response.
    """
    try:
        return _lane(_read_message(raw))
    except ToolwireError:
        return ""


def _previous(members: dict[str, msgspec.Raw]) -> str | None:
    found = _plain(members["previous_response_id"]) if "previous_response_id" in members else None
    return found if isinstance(found, str) else None


def _plain(raw: msgspec.Raw) -> Any:
    try:
        return _event.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None


def error_event(status: int, error: dict[str, Any], headers: dict[str, str], lane: str = "") -> str:
    """Returns the event for an HTTP error. The event always has a code, as the specification requires."""
    detail = {
        **error,
        "code": error.get("code") or error["type"],
        **({"headers": headers} if headers else {}),
    }
    return encode(
        {"type": "error", "status": status, "error": detail, **({"stream_id": lane} if lane else {})}
    ).decode()

"""An HTTP/1.1 client that POSTs to a model server without a proxy.

If a proxy is configured, `transport.py` uses aiohttp instead. This client exists for speed: with aiohttp, a
short request costs the gateway twice the CPU time (+98 %), and a chunk of a stream costs 20 to 65 % more.

Rules:

- A connection has one request at a time. A connection whose response is complete waits for the next request,
  at most `KEEP_ALIVE_S`. After the `[DONE]` of a stream, the client waits up to `END_S` for the end of the
  HTTP body, because many servers send it later.
- If anything arrives on a connection without a request, the client closes this connection. The bytes could be
  taken for the response to another user's request. Before each request, the client also checks the socket for
  bytes that the event loop has not read yet.
- The client follows no redirects and has no cookies. `transport.py` decodes compressed bodies.
- While more than `HIGH_WATER` bytes are unread, the client does not read the socket, so the server waits.
- A head larger than `MAX_HEAD` is an error. A response that has neither a length nor chunks ends with its
  connection.
- If a server sends nothing for `read_s` while a reader waits, the read times out.
- A request that fails or is cancelled closes its connection, so that the server stops working on it.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import httptools
from aiohappyeyeballs import start_connection
from yarl import URL

from toolwire.backends.openai.failures import (
    CutOff,
    Disconnected,
    NameUnknown,
    NotHttp,
    TlsRefused,
    TooLate,
    TransportFault,
    Unreachable,
)

KEEP_ALIVE_S = 60.0
END_S = 1.0
MAX_WAITING = 256
"""The maximum number of waiting connections per server."""
HIGH_WATER = 256 * 1024
MAX_HEAD = 64 * 1024
TICK_S = 0.001
"""The precision of the event loop's clock."""
NEXT_ADDRESS_S = 0.25
"""How long one address of a host is tried before Toolwire also tries the next one, in parallel."""

Origin = tuple[str, int, bool]


class Request:
    """What all requests for one model have in common: the address, the headers and the time limits."""

    def __init__(self, url: URL, headers: Mapping[str, str], connect_s: float, read_s: float) -> None:
        assert url.host is not None and url.port is not None
        self.url, self.headers, self.connect_s, self.read_s = url, headers, connect_s, read_s
        self.origin: Origin = (url.host, url.port, url.scheme == "https")
        host = url.host_subcomponent or url.host
        lines = [f"POST {url.raw_path_qs} HTTP/1.1"]
        if "host" not in {name.lower() for name in headers}:
            lines.append(f"Host: {host if url.is_default_port() else f'{host}:{url.port}'}")
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if any("\r" in line or "\n" in line for line in lines):
            raise ValueError("headers: a header cannot hold a line break")
        self.head = "\r\n".join([*lines, "Content-Length: "]).encode("latin-1", "replace")


class Http1Client:
    """The connections to all servers, for one event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._waiting: dict[Origin, list[_Connection]] = {}
        self.ending: set[_Connection] = set()
        """Connections on which only the end of the response has not arrived yet."""
        self._closed = False

    async def post(self, request: Request, body: bytes) -> Http1Reply:
        """Sends the request and returns the response as soon as its head is complete.

        Raises `TransportFault`. If an idle connection from an earlier request is used, and the server has
        closed it, the request is sent once more, on a new connection.
        """
        connection = self._take(request.origin)
        while True:
            is_new = connection is None
            reply = (connection or await self._connect(request)).send(request, body)
            try:
                await reply.read()
                return reply
            except BaseException as error:
                reply.release()
                # if the server has sent anything, it may already be working on the request
                if is_new or reply.heard or not isinstance(error, Disconnected):
                    raise
                connection = None

    def close(self) -> None:
        self._closed = True
        for connection in (*self.ending, *(one for waiting in self._waiting.values() for one in waiting)):
            connection.abort()

    def keep(self, connection: _Connection) -> None:
        waiting = self._waiting.setdefault(connection.origin, [])
        if self._closed or len(waiting) >= MAX_WAITING:
            connection.abort()
        else:
            waiting.append(connection)
            connection.start_timer(KEEP_ALIVE_S, connection.abort)

    def forget(self, connection: _Connection) -> None:
        self.ending.discard(connection)
        waiting = self._waiting.get(connection.origin)
        if waiting and connection in waiting:
            waiting.remove(connection)

    def _take(self, origin: Origin) -> _Connection | None:
        waiting = self._waiting.get(origin)
        while waiting:
            connection = waiting.pop()  # the last used one is the least likely to be closed
            if not connection.transport.is_closing() and not has_unread(connection.transport):
                return connection
            connection.abort()
        return None

    async def _connect(self, request: Request) -> _Connection:
        host, port, secure = request.origin
        tls: dict[str, Any] = {"ssl": tls_context(), "server_hostname": host} if secure else {}
        try:
            async with asyncio.timeout(request.connect_s):
                addresses = await self.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                # uvloop tries the addresses of a host one after the other, without a time limit for each
                connected = await start_connection(
                    addresses, happy_eyeballs_delay=NEXT_ADDRESS_S, interleave=1, loop=self.loop
                )
                try:
                    made = partial(_Connection, self, request.origin)
                    _, connection = await self.loop.create_connection(made, sock=connected, **tls)
                except BaseException:
                    connected.close()
                    raise
        except TimeoutError as error:
            raise TooLate(connecting=True) from error
        except ssl.SSLError as error:
            raise TlsRefused from error
        except socket.gaierror as error:
            raise NameUnknown from error
        except (OSError, UnicodeError) as error:
            raise Unreachable from error
        return connection


@cache
def tls_context() -> ssl.SSLContext:
    return ssl.create_default_context()


def has_unread(transport: asyncio.BaseTransport) -> bool:
    """Returns True if the socket is closed, or has something that the event loop has not read.

    What is unread may be bytes, the end of the connection or an error.
    """
    descriptor = transport.get_extra_info("socket").fileno()
    if descriptor < 0:
        return True
    if not hasattr(select, "poll"):  # Windows
        return bool(select.select([descriptor], [], [], 0)[0])
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


class _Connection(asyncio.Protocol):
    """A connection to a server. `reply` is the response that arrives on it, or None if it is idle.

    While a response arrives, asyncio passes its bytes to `reply`, not to this object.
    """

    def __init__(self, client: Http1Client, origin: Origin) -> None:
        self.client = client
        self.origin = origin
        self.transport: Any = None
        self.reply: Http1Reply | None = None
        self.due = 0.0
        """The time at which the current time limit ends, by the clock of the event loop."""
        self._then: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def send(self, request: Request, body: bytes) -> Http1Reply:
        self.reply = reply = Http1Reply(self, request.read_s)
        self.transport.set_protocol(reply)
        self.start_timer(request.read_s, reply.check_time)
        self.transport.write(b"%b%d\r\n\r\n%b" % (request.head, len(body), body))
        return reply

    def start_timer(self, seconds: float, then: Callable[[], None]) -> None:
        """Calls `then` after `seconds`, or later if `due` is set to a later time in the meantime.

        `due` changes often. So the event loop's timer is replaced only if it would end too late.
        """
        loop = self.client.loop
        self.due, self._then = loop.time() + seconds, then
        if self._timer is None or self.due < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(self.due, self._time_is_over)

    def _time_is_over(self) -> None:
        self._timer = None
        left = self.due - self.client.loop.time()
        if self._then is not None and left > TICK_S:
            self.start_timer(left, self._then)
        elif self._then is not None:
            self._then()

    def stop_timer(self) -> None:
        self._then = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def abort(self) -> None:
        self.stop_timer()
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        self.transport.abort()  # no request asked for these bytes

    def connection_lost(self, error: Exception | None) -> None:
        self.client.forget(self)
        self.stop_timer()


class Http1Reply(asyncio.Protocol):
    """The response to one request. The names in `headers` are in lower case.

    `heard`: whether the server has sent anything. `ended`: whether the whole body was read.
    """

    heard = ended = False

    def __init__(self, connection: _Connection, read_s: float) -> None:
        self.status = 0  # until the head is complete
        self.headers: dict[str, str] = {}
        self._connection = connection
        self._loop = connection.client.loop
        self._parser: Any = httptools.HttpResponseParser(self)
        self._read_s = read_s
        self._waiter: asyncio.Future[bytes] | None = None
        """The future that `read` waits for."""
        self._waits_for_head = True
        self._blocks: list[bytes] = []
        self._unread = self._head_size = 0
        self._paused = self._until_close = self._complete = self._reusable = self._released = False
        self._fault: type[TransportFault] | None = None

    def read(self) -> asyncio.Future[bytes]:
        """Returns the next bytes of the body, or no bytes at its end. Raises `TransportFault`.

        The first call returns no bytes, as soon as the head is complete.
        """
        self._waiter = waiter = self._loop.create_future()
        self._connection.due = self._loop.time() + self._read_s
        if self._blocks or self._complete or self._fault is not None:
            self._wake()
        return waiter

    def release(self, whole: bool = False) -> None:
        """Keeps the connection for the next request, or closes it if the response is not complete.

        `whole`: whether all content was read. The client then waits a short time for the end of the HTTP
        body. A server that responds before it has read the whole request may never read the rest, so its
        connection is closed.
        """
        connection = self._connection
        if connection.reply is not self:
            return
        if whole and not (self._complete or self._until_close or self._paused or self._fault):
            self._released = True
            connection.client.ending.add(connection)
            connection.start_timer(END_S, connection.abort)
            return
        connection.client.ending.discard(connection)
        transport = connection.transport
        connection.reply = self._parser = None  # the parser refers to this object
        if not transport.is_closing():
            transport.set_protocol(connection)
        is_read = self._complete and self._reusable and not self._paused and self.status != 413
        if is_read and not transport.is_closing() and not transport.get_write_buffer_size():
            connection.client.keep(connection)
        else:
            connection.abort()

    def _wake(self) -> None:
        """Wakes the waiting reader if there is something to read, or a fault."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if self._waits_for_head and self.status:
            self._waits_for_head = False
            waiter.set_result(b"")
        elif self._blocks or self._complete:
            waiter.set_result(self._blocks[0] if len(self._blocks) == 1 else b"".join(self._blocks))
            self._blocks.clear()
            self._unread, self.ended = 0, self._complete
            if self._paused:
                self._paused = False
                self._connection.transport.resume_reading()
        elif self._fault is not None:
            waiter.set_exception(self._fault())

    def _fail(self, fault: type[TransportFault]) -> None:
        self._fault = self._fault or fault
        self._wake()

    # --- called by the event loop ---

    def data_received(self, data: bytes) -> None:
        if self._complete:
            self._reusable = False
            return
        self.heard = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._reusable = False
            if not self._complete:
                self._fail(CutOff if self.status else NotHttp)
        if not self.status:
            self._head_size += len(data)
            if self._head_size > MAX_HEAD:
                self._fail(NotHttp)
        elif self._unread > HIGH_WATER and not self._paused and not self._complete:
            self._paused = True
            self._connection.transport.pause_reading()
        self._wake()
        if self._released and (self._complete or self._blocks or self._fault is not None):
            self.release()

    def connection_lost(self, error: Exception | None) -> None:
        connection = self._connection
        connection.connection_lost(error)
        if connection.reply is not self:  # released, when the connection was already closing
            return
        if self._until_close and error is None:
            self._complete = True
            self._wake()
        else:
            self._fail(CutOff if self.status else Disconnected)
        if self._released:
            self.release()

    def check_time(self) -> None:
        """Ends the response with a fault if a read takes too long. Time without a read does not count."""
        if self._waiter is None or self._waiter.done():
            self._connection.start_timer(self._read_s, self.check_time)
        else:
            self._fail(TooLate)

    # --- called by the parser ---

    def on_message_begin(self) -> None:
        if self._complete:  # a second response, which no request asked for
            self._reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.status:
            key, text = name.decode("latin-1").lower(), value.decode("latin-1").strip()
            self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    def on_headers_complete(self) -> None:
        if self._complete:
            return
        status = self._parser.get_status_code()
        if status < 200:  # 100 Continue, 103 Early Hints: the actual response follows
            self.headers = {}
            return
        self.status = status
        chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()
        self._until_close = not chunked and "content-length" not in self.headers and status not in (204, 304)

    def on_body(self, body: bytes) -> None:
        if not self._complete:
            self._blocks.append(body)
            self._unread += len(body)

    def on_message_complete(self) -> None:
        if self.status and not self._until_close and not self._complete:
            self._complete = True
            self._reusable = self._parser.should_keep_alive()

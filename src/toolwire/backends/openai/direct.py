"""HTTP/1.1 straight to an upstream server, with no more of it than an answer of a model needs: this is where most of a request's time went.

Rules:
- One request at a time on a connection. One whose answer was read to its end is kept for the next request, `KEPT_S` at most.
- A kept connection on which anything has arrived is closed, also where it has not been read from the socket yet: it would be taken for the answer to
  the next request, which may be another client's.
- No redirects, no cookies, no proxies: those are for `carrier.Proxied`. Compressed bodies are decoded in `encodings.py`.
- A block is what one read of the network brought. More than `HIGH_WATER` bytes unread, and the server waits.
- A head larger than `MAX_HEAD` is refused. An answer is whole when its length or its last chunk says so; one that says neither ends with the
  connection.
- A server that sends nothing for as long as somebody waits and `read_s` allows has failed; the time that a slow reader takes does not count.
"""

from __future__ import annotations

import asyncio
import base64
import select
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Any

import httptools
from aiohappyeyeballs import start_connection
from yarl import URL

from toolwire.backends.openai.failures import CutOff, Disconnected, NameUnknown, NotHttp, TlsRefused, TooLate, Unreachable

KEPT_S = 60.0
MOST_KEPT = 256
HIGH_WATER = 256 * 1024
MAX_HEAD = 64 * 1024
NEXT_ADDRESS_S = 0.25

Origin = tuple[str, int, bool]


class Request:
    """What is the same in every request to one address: made once."""

    __slots__ = ("connect_s", "head", "origin", "read_s")

    def __init__(self, url: URL, headers: Mapping[str, str], connect_s: float, read_s: float) -> None:
        if url.scheme not in ("http", "https") or not url.host or url.port is None:
            raise ValueError(f"base_url: {url} is not an http or https address")
        host = url.host_subcomponent or url.host
        sent = {"Host": host if url.is_default_port() else f"{host}:{url.port}"}
        if url.user is not None or url.password is not None:
            sent["Authorization"] = "Basic " + base64.b64encode(f"{url.user or ''}:{url.password or ''}".encode()).decode()
        given = {name.lower() for name in headers}
        sent = {**{name: value for name, value in sent.items() if name.lower() not in given}, **headers}
        lines = [f"POST {url.raw_path_qs} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())]
        if any("\r" in line or "\n" in line for line in lines):
            raise ValueError("headers: a line break can not be sent")
        self.head = "\r\n".join([*lines, "Content-Length: "]).encode("latin-1", "replace")
        self.origin: Origin = (url.host, url.port, url.scheme == "https")
        self.connect_s = connect_s
        self.read_s = read_s


class Direct:
    """The connections of one event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._kept: dict[Origin, deque[_Connection]] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        self._closed = False

    async def post(self, request: Request, body: bytes) -> DirectReply:
        """The answer, once its head is there. A kept connection that the server closed meanwhile is replaced by a fresh one, once."""
        connection = self._take(request.origin)
        if connection is not None:
            try:
                return await connection.ask(request, body)
            except Disconnected:
                if connection.heard:  # it may have begun to work
                    raise
        return await (await self._connect(request)).ask(request, body)

    def close(self) -> None:
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        for kept in self._kept.values():
            while kept:
                kept.pop().abort()

    def keep(self, connection: _Connection) -> None:
        kept = self._kept.get(connection.origin)
        if kept is None:
            kept = self._kept[connection.origin] = deque()
        if self._closed or len(kept) >= MOST_KEPT:
            connection.abort()
            return
        connection.idle_since = self.loop.time()
        kept.append(connection)
        if self._sweeping is None:
            self._sweeping = self.loop.call_later(KEPT_S, self._sweep)

    def lost(self, connection: _Connection) -> None:
        """A connection ended; should it have been waiting for work, it is not any more."""
        kept = self._kept.get(connection.origin)
        if kept and connection in kept:
            kept.remove(connection)

    def _take(self, origin: Origin) -> _Connection | None:
        kept = self._kept.get(origin)
        while kept:
            connection = kept.pop()  # the one that was used last: it is the likeliest to live
            if connection.usable() and self.loop.time() - connection.idle_since < KEPT_S and not has_unread(connection.transport):
                return connection
            connection.abort()
        return None

    def _sweep(self) -> None:
        self._sweeping = None
        oldest = self.loop.time() - KEPT_S
        for kept in self._kept.values():
            while kept and kept[0].idle_since <= oldest:
                kept.popleft().abort()
        times = [kept[0].idle_since for kept in self._kept.values() if kept]
        if times:
            self._sweeping = self.loop.call_later(max(0.1, min(times) - oldest), self._sweep)

    async def _connect(self, request: Request) -> _Connection:
        host, port, secure = request.origin
        wrapped: dict[str, Any] = {"ssl": _tls(), "server_hostname": host} if secure else {}
        try:
            async with asyncio.timeout(request.connect_s or None):
                found = await self.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                # a host with several addresses, some of which may lead nowhere: they are tried side by side
                reached = await start_connection(found, happy_eyeballs_delay=NEXT_ADDRESS_S, interleave=1, loop=self.loop)
                try:
                    _, connection = await self.loop.create_connection(lambda: _Connection(self, request.origin), sock=reached, **wrapped)
                except BaseException:
                    reached.close()
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
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def has_unread(transport: asyncio.BaseTransport) -> bool:
    """Whether the socket holds bytes, or an end or error, that the event loop has not read yet. A closed socket counts as one that does."""
    descriptor = transport.get_extra_info("socket").fileno()
    if descriptor < 0:
        return True
    if not hasattr(select, "poll"):  # Windows
        return bool(select.select([descriptor], [], [], 0)[0])
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


class _Connection(asyncio.Protocol):
    __slots__ = (
        "_direct",
        "_due",
        "_failure",
        "_future",
        "_head",
        "_head_size",
        "_now",
        "_parser",
        "_paused",
        "_read_s",
        "_reading",
        "_size",
        "_timer",
        "_until_close",
        "_waited_since",
        "_waiter",
        "ended",
        "headers",
        "heard",
        "idle_since",
        "origin",
        "reusable",
        "status",
        "transport",
        "unread",
    )

    def __init__(self, direct: Direct, origin: Origin) -> None:
        self._direct = direct
        self._future, self._now = direct.loop.create_future, direct.loop.time
        self.origin = origin
        self.transport: Any = None
        self._parser: Any = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[bytes] | None = None
        self._reading = False  # who waits wants blocks, not the head
        self._timer: asyncio.TimerHandle | None = None
        self.unread: list[bytes] = []
        self._size = 0
        self._paused = False
        self._failure: Exception | None = None
        self._waited_since = self.idle_since = self._read_s = self._due = 0.0
        self.ended = True
        self.reusable = True
        self.heard = False

    # --- for the reply and the pool ------------------------------------------------------------------------------------------------------------

    def usable(self) -> bool:
        return self.reusable and not self.transport.is_closing()

    async def ask(self, request: Request, body: bytes) -> DirectReply:
        self.unread, self._size, self._failure = [], 0, None
        self.status = 0
        self.headers: dict[str, str] = {}
        self._head, self._head_size, self._until_close = True, 0, False
        self.ended, self.reusable, self.heard = False, False, False
        self._read_s, self._reading = request.read_s, False
        try:
            self.transport.write(b"%b%d\r\n\r\n%b" % (request.head, len(body), body))
            await self._head_comes()
        except BaseException:
            self.abort()
            raise
        self._reading = True
        return DirectReply(self)

    def read(self) -> asyncio.Future[bytes]:
        """What has come, once something has; nothing once the answer is over. Raises what is wrong with the connection."""
        self._waiter = waiter = self._future()
        self._waited_since = self._now()
        if self._timer is None or self.unread or self.ended or self._failure is not None:
            if self._timer is None and self._read_s:
                self._look_at(self._waited_since + self._read_s)
            self._wake()
        return waiter

    def taken(self) -> bytes:
        """What has come and was not read."""
        blocks = self.unread
        self.unread, self._size = [], 0
        if self._paused:
            self._paused = False
            self.transport.resume_reading()
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)

    def release(self) -> None:
        """A server that answered before it had read everything may never read it: what is asked next would wait behind that."""
        self._waiter = None
        if self.ended and self.usable() and self.status != 413 and not self.transport.get_write_buffer_size():
            self._direct.keep(self)
        else:
            self.abort()

    def abort(self) -> None:
        self.reusable = False
        self._stop_timer()
        self.transport.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _head_comes(self) -> asyncio.Future[bytes]:
        self._waiter = waiter = self._future()
        self._waited_since = now = self._now()
        if self._read_s and (self._timer is None or self._due > now + self._read_s):
            self._look_at(now + self._read_s)
        if self._failure is not None:
            self._wake()
        return waiter

    def _look_at(self, due: float) -> None:
        """One timer for many reads, and for many requests: it looks how long the last read has taken."""
        self._stop_timer()
        self._due = due
        self._timer = self._direct.loop.call_at(due, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._waiter is None or self._waiter.done() or not self._read_s:
            return
        due = self._waited_since + self._read_s
        if due > self._direct.loop.time():
            self._look_at(due)
        else:
            self._fail(TooLate())

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if self._reading and (self.unread or self.ended):
            waiter.set_result(self.taken())
        elif self._failure is not None:
            waiter.set_exception(self._failure)
        elif not self._reading:
            waiter.set_result(b"")  # the head is there

    def _fail(self, failure: Exception) -> None:
        if self._failure is None:
            self._failure = failure
        self._wake()

    # --- from the network ----------------------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        if self.ended:  # nobody asked for anything
            self.reusable = False
            self.transport.abort()
            return
        self.heard = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.reusable = False
            if not self.ended:  # what comes behind a whole answer is nobody's
                self._fail(NotHttp() if self._head else CutOff())
        waiter = self._waiter
        if self._reading and len(self.unread) == 1 and waiter is not None and not waiter.done():  # nearly always
            waiter.set_result(self.unread.pop())
            return
        if self._head:
            self._head_size += len(data)
            if self._head_size > MAX_HEAD:
                self._fail(NotHttp())
            return
        if self.unread:  # nobody waits: it lies here
            self._size += len(data)
            if self._size > HIGH_WATER and not self._paused and not self.ended:
                self._paused = True
                self.transport.pause_reading()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self.reusable = False
        self._direct.lost(self)
        if self.ended:
            self._stop_timer()
            return
        if self._until_close and error is None:
            self.ended = True
            self._wake()
        else:
            self._fail(Disconnected() if self._head else CutOff())

    # --- from the parser -----------------------------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.ended:  # another answer, in the same read, that nobody asked for
            self.reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head:
            key, text, headers = name.decode("latin-1").lower(), value.decode("latin-1").strip(), self.headers
            headers[key] = f"{headers[key]}, {text}" if key in headers else text

    def on_headers_complete(self) -> None:
        if self.ended:
            return
        status = self._parser.get_status_code()
        if status < 200:  # 100 Continue, 103 Early Hints: the answer is still to come
            self.headers = {}
            return
        self.status = status
        chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()
        self._until_close = not chunked and "content-length" not in self.headers and status not in (204, 304)
        self._head = False
        self._wake()

    def on_body(self, body: bytes) -> None:
        if self.ended:
            return
        self.unread.append(body)

    def on_message_complete(self) -> None:
        if not self._head and not self._until_close and not self.ended:
            self.ended = True
            self.reusable = self._parser.should_keep_alive()


class DirectReply:
    """An answer whose head is there."""

    __slots__ = ("_connection", "headers", "read", "status")

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self.read: Callable[[], Awaitable[bytes]] = connection.read
        """What has come; nothing once the answer is over."""
        self.status = connection.status
        self.headers: Mapping[str, str] = connection.headers

    def rest(self) -> bytes | None:
        """What is left to be read, where all of it is there."""
        return self._connection.taken() if self._connection.ended else None

    def release(self) -> None:
        """The connection is kept where the answer is over, and closed where it is not, so that the server stops."""
        self._connection.release()

"""uvicorn's HTTP protocol with stricter limits, exact request framing, and JSON errors.

- A connection ends if a head (request line and headers) is incomplete after `HEAD_WITHIN_S` or larger than
  `MAX_HEAD`, or if more than `MOST_PIPELINED` requests wait.
- Only the head may contain headers: trailers of a chunked body are dropped. A connection ends if a chunked
  body has more than `MAX_HEAD` bytes of trailers or other overhead.
- A valid WebSocket handshake on a WebSocket path continues in `socket_protocol.py`. A request with any other
  `Upgrade` is an ordinary request with an ordinary body and response.
- Written bytes wait in a buffer of `HIGH_WATER` bytes and in one of the same size in the kernel. If both are
  full, the response waits until the client reads. A client that reads nothing for `limits.slow_reader_s` is
  disconnected, even after its response is complete. A client whose machine no longer answers is disconnected
  too.
"""

from __future__ import annotations

import asyncio
import binascii
import logging
import re
import socket
import struct
import sys
from collections import deque
from functools import lru_cache
from typing import Any, cast
from urllib.parse import unquote

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from toolwire.core.errors import error_object
from toolwire.core.events import Failure
from toolwire.surfaces.http.cycle import Cycle
from toolwire.surfaces.http.exchange import CONNECTION

HEAD_WITHIN_S = 30.0
MAX_HEAD = 64 * 1024
MOST_PIPELINED = 16
EMPTY_LINE = b"\r\n\r\n"
BEFORE_HEAD = re.compile(rb"[\r\n]*")
MOST_PIECES = 4 * MOST_PIPELINED
"""The most parts that one read is split into. `MOST_PIPELINED` requests in one read need fewer."""
CHUNKED = -1
"""Used as the length of a chunked body, which is only known at its end."""
USUAL_OVERHEAD = 16
"""How many bytes of chunk framing are allowed per byte of a body. Chunks of one byte need 5."""
SHORT = 64
"""The longest path whose parsed form is cached, if it has no query.

So no client can fill the cache with long paths or leave secrets in it.
"""
HIGH_WATER = 64 * 1024
LOOKS = 4
"""How many times a slow reader is checked before it is disconnected."""
INHERITED = sys.platform == "linux"
"""Whether a connection inherits its listener's socket options.

On other systems, the options are set again for each connection, with six system calls.
"""
PROBE_AFTER_S = 60
PROBE_EVERY_S = 15

log = logging.getLogger("toolwire.http")
LOGGER, ACCESS_LOGGER = logging.getLogger("uvicorn.error"), logging.getLogger("uvicorn.access")


class TooManyRequests(Exception):
    """Raised when a client sends more pipelined requests than allowed."""


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with the limits that the top of this module describes.

    It also handles new connections and complete heads in fewer steps.
    """

    logger, access_logger, access_log = LOGGER, ACCESS_LOGGER, False
    _unread = _stalled_looks = _overhead = 0
    """Class attributes, because few connections change them: an object with fewer attributes is cheaper."""
    _last_bytes = b""
    """The last parsed bytes: an empty line may be split between two reads."""
    _pieces = 0
    _head_bytes = 0
    """The size of the head so far, including empty lines before it."""
    _body_left = 0
    """The number of missing bytes of the body, or `CHUNKED`; 0 outside a body."""

    def __init__(
        self,
        config: Any,
        server_state: Any,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        if not config.loaded:
            config.load()
        self.config, self.app = config, config.loaded_app
        self.loop = _loop or asyncio.get_event_loop()
        self.parser = _parser(self)
        self.ws_protocol_class, self.root_path, self.asgi_version = (
            config.ws_protocol_class,
            config.root_path,
            config.asgi_version,
        )
        self.app_state, self.server_state = app_state, server_state
        self.connections, self.tasks = server_state.connections, server_state.tasks
        self.timeout_keep_alive_task = None
        self.timeout_keep_alive = config.timeout_keep_alive
        self.pipeline = deque()
        self.expect_100_continue = False
        self.cycle = None  # type: ignore[assignment]
        self._in_head = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._reader_timer: asyncio.TimerHandle | None = None
        self._running: Cycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=HIGH_WATER)
        if not INHERITED:
            guard(transport.get_extra_info("socket"), self._slow_reader_s)
        self._head_timer = self.loop.call_later(HEAD_WITHIN_S, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None
        if isinstance(exc, TimeoutError):  # the kernel noticed first, see `guard`
            log_slow_reader(self._slow_reader_s)
        super().connection_lost(exc)
        if self._running is not None:  # uvicorn notifies only the last of several pipelined requests
            self._running.disconnected = True
            self._running.message_event.set()
            if not self._running.response_complete:
                self._running.left()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        assert isinstance(cycle, Cycle)
        self._running = cycle.scope[CONNECTION] = cycle  # type: ignore[literal-required]
        cycle.task = task = self.loop.create_task(cycle.run_asgi(app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    @property
    def _slow_reader_s(self) -> float:
        return getattr(self.config.app, "slow_reader_s", 0)

    # --- what the client sends ---

    def data_received(self, data: bytes) -> None:
        """Feeds the parser in parts.

        Each part belongs to only one head or body, so that the size of each head is counted exactly.
        """
        self._unset_keepalive_if_required()
        start, size, self._pieces = 0, len(data), 0
        while start < size:
            self._pieces += 1
            end = self._end_of_piece(data, start) if self._pieces <= MOST_PIECES else size
            if end == start:
                self._end(431, f"The request's head is larger than {MAX_HEAD // 1024} kB.")
                return
            piece = data if end - start == size else memoryview(data)[start:end]
            start = end
            try:
                if self._stops_at_upgrade(piece):
                    if self._should_upgrade():
                        self._switch_to_websocket(data[end:])
                        return
                    self._decline_upgrade()
            except httptools.HttpParserError:
                self._end(400, "Invalid HTTP request received.")
            if self.transport.is_closing():
                return
        self._last_bytes = data[-3:] if size > 2 else (self._last_bytes + data)[-3:]
        if (
            self._in_head or self._is_idle()
        ) and self._head_timer is None:  # empty lines between two requests are limited too
            self._head_timer = self.loop.call_later(HEAD_WITHIN_S, self._head_is_late)

    def _end_of_piece(self, data: bytes, start: int) -> int:
        """Returns the end of the part that starts at `start`: the end of a head, of a body or of the data.

        Returns `start` if the head has become too large. Heads and chunked bodies end with an empty line. A
        split at any other empty line does no harm.
        """
        if self._body_left > 0:
            return min(start + self._body_left, len(data))
        end = start
        if not self._in_head and not self._body_left:
            end = cast(re.Match[bytes], BEFORE_HEAD.match(data, start)).end()
        if end == start:
            end = self._after_empty_line(data, start)
        return end if self._body_left else min(end, start + MAX_HEAD - self._head_bytes)

    def _after_empty_line(self, data: bytes, start: int) -> int:
        """Returns the index after the next empty line; without one, the length of the data.

        The empty line may have begun in the previous read.
        """
        before = b"" if start else self._last_bytes
        found = (before + data[:3]).find(EMPTY_LINE) if before else -1
        if found >= 0:
            return found + len(EMPTY_LINE) - len(before)
        found = data.find(EMPTY_LINE, start)
        return found + len(EMPTY_LINE) if found >= 0 else len(data)

    def _stops_at_upgrade(self, piece: bytes | memoryview) -> bool:
        """Parses a part of the received bytes. Returns True if the parser stopped at an upgrade.

        The parser stops after a head that offers an upgrade. It has read nothing after that head.
        """
        if self._body_left > 0:
            self._body_left -= len(piece)
        elif not self._body_left:
            self._head_bytes += len(piece)
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            return True
        if self._body_left == CHUNKED:
            self._overhead = max(self._overhead + len(piece), 0)
            if self._overhead > MAX_HEAD:
                raise httptools.HttpParserError("too many bytes in chunk headers and trailers")
        return False

    def on_message_begin(self) -> None:
        if self._pieces > MOST_PIECES:  # the size of its head would not be counted
            raise TooManyRequests
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if (
            self.parser.should_upgrade()
        ):  # the parser reads no body after an upgrade; `data_received` decides what this request is
            self.scope["method"], self.scope["http_version"] = (
                self.parser.get_method().decode("ascii"),
                self.parser.get_http_version(),
            )
            return
        self._in_head = False
        self._stop_head_timer()
        if len(self.pipeline) >= MOST_PIPELINED:
            raise TooManyRequests
        parser, scope, before = self.parser, self.scope, self.cycle
        version = parser.get_http_version()
        scope["method"] = parser.get_method().decode("ascii")
        if version != "1.1":
            scope["http_version"] = version
        url = self.url
        parsed = _known_path if len(url) <= SHORT and b"?" not in url else _path
        scope["path"], scope["raw_path"], scope["query_string"] = parsed(self.root_path, url)
        cycle = self.cycle = Cycle(
            scope,
            self.transport,
            self.flow,
            LOGGER,
            ACCESS_LOGGER,
            False,
            self.server_state.default_headers,
            asyncio.Event(),
            self.expect_100_continue,
            version != "1.0" and parser.should_keep_alive(),
            self.on_response_complete,
        )
        framing = dict(self.headers)
        self._body_left = (
            CHUNKED if b"transfer-encoding" in framing else int(framing.get(b"content-length", 0))
        )
        self._head_bytes = self._overhead = 0
        self.headers = []  # collects the trailers; the scope keeps the headers of the head
        if before is None or before.response_complete:
            self._start_asgi_task(cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))

    def on_body(self, body: bytes) -> None:
        self._overhead -= len(body) * (1 + USUAL_OVERHEAD)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            self._body_left = 0
            super().on_message_complete()

    # --- upgrades ---

    def _should_upgrade_to_ws(self) -> bool:
        """Whether the request is a WebSocket handshake that can succeed.

        A handshake cannot succeed while another response is being sent.
        """
        paths = getattr(self.config.app, "socket_paths", ())
        return self.url.partition(b"?")[0] in paths and self._is_idle() and _is_handshake(self.scope)

    def _decline_upgrade(self) -> None:
        """Parses the head again without its `Upgrade`, so that the parser reads the body too.

        CONNECT is refused: its body could not be distinguished from the next request.
        """
        method = self.scope["method"].encode()
        if method == b"CONNECT":
            self._end(405, "Not allowed to CONNECT: this server is no proxy.")
            return
        lines = [b"%b %b HTTP/%b\r\n" % (method, self.url, self.scope["http_version"].encode())]
        lines += [b"%b: %b\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = _parser(self)
        self.parser.feed_data(b"".join(lines) + b"\r\n")

    def _switch_to_websocket(self, rest: bytes) -> None:
        from toolwire.surfaces.http.socket_protocol import GuardedSocket

        self._stop_head_timer()
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None
        self.ws_protocol_class = GuardedSocket
        self.handle_websocket_upgrade()
        if rest:
            cast(GuardedSocket, self.transport.get_protocol()).data_received(rest)

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._in_head:
            self._end(408, f"The request's head did not arrive within {HEAD_WITHIN_S:g} s.")
        else:
            self._close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end(self, status: int, message: str) -> None:
        """Sends an error response and closes the connection.

        Sends nothing if another response is being sent, or if the body of an answered request is still
        arriving: the client could mistake the error for the other response.
        """
        self._stop_head_timer()
        self._in_head = False
        if self.transport.is_closing():
            return
        if self._is_idle() and not self._body_left:
            self.transport.write(refusal(status, message))
            self._close()
        else:
            self.transport.abort()

    def _close(self) -> None:
        self.transport.close()
        self._watch_reader()

    # --- what the client reads ---

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def on_response_complete(self) -> None:
        if (cycle := self._running) is not None:  # the request's objects must not form a reference cycle
            cycle.task = cycle.on_left = None
            del cycle.scope[CONNECTION]  # type: ignore[misc]
        super().on_response_complete()
        if self._reader_timer is None and self.transport.get_write_buffer_size():
            self._watch_reader()

    def _watch_reader(self) -> None:
        if self._reader_timer is None and self._slow_reader_s:
            self._unread, self._stalled_looks = self._all_unread(), 0
            self._reader_timer = self.loop.call_later(self._slow_reader_s / LOOKS, self._look_at_reader)

    def _look_at_reader(self) -> None:
        """Disconnects a client that has read nothing at `LOOKS` checks in a row.

        Nothing is written in between, so the number of unread bytes can only decrease.
        """
        self._reader_timer = None
        if not self.transport.get_write_buffer_size():
            return
        unread = self._all_unread()
        is_stalled = unread >= self._unread and (
            self.flow.write_paused or self._is_idle() or self.transport.is_closing()
        )
        self._unread, self._stalled_looks = unread, self._stalled_looks + 1 if is_stalled else 0
        if self._stalled_looks >= LOOKS:
            log_slow_reader(self._slow_reader_s)
            self.transport.abort()
            return
        self._reader_timer = self.loop.call_later(self._slow_reader_s / LOOKS, self._look_at_reader)

    def _all_unread(self) -> int:
        """Returns the number of unread bytes, including those in the kernel's buffer.

        The kernel's bytes are the first to decrease when a slow client reads.
        """
        return self.transport.get_write_buffer_size() + in_kernel(self.transport.get_extra_info("socket"))


def _path(root: str, url: bytes) -> tuple[str, bytes, bytes]:
    """Returns the decoded path, the raw path and the query of a request."""
    parsed = httptools.parse_url(url)
    return (
        root + unquote(parsed.path.decode("ascii")),
        root.encode("ascii") + parsed.path,
        parsed.query or b"",
    )


_known_path = lru_cache(256)(_path)


def _parser(protocol: GuardedProtocol) -> httptools.HttpRequestParser:
    parser = httptools.HttpRequestParser(protocol)
    parser.set_dangerous_leniencies(
        lenient_data_after_close=True
    )  # needed to answer the first of several pipelined requests
    return parser


def _is_handshake(scope: Any) -> bool:
    """Whether the request is a WebSocket handshake as RFC 6455 defines it, without a body."""
    found = dict(scope["headers"])
    try:
        key = binascii.a2b_base64(found.get(b"sec-websocket-key", b""), strict_mode=True)
    except binascii.Error:
        return False
    is_bare = b"transfer-encoding" not in found and found.get(b"content-length", b"0") == b"0"
    is_get = scope["method"] == "GET" and scope["http_version"] == "1.1"
    return is_get and is_bare and len(key) == 16 and found.get(b"sec-websocket-version", b"").strip() == b"13"


def refusal(status: int, message: str) -> bytes:
    """Returns a whole error response, with the header `connection: close`."""
    body = msgspec.json.encode(error_object(Failure("invalid_request", message)))
    head = (
        b"content-type: application/json; charset=utf-8\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        % len(body)
    )
    return STATUS_LINE[status] + head + body


def in_kernel(connection: Any) -> int:
    """Returns the number of bytes in the kernel that the client has not read; 0 if unknown."""
    if sys.platform != "linux" or connection is None:
        return 0
    import fcntl
    import termios

    try:
        return int(struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)))[0])
    except (OSError, ValueError):
        return 0


def log_slow_reader(slow_reader_s: float) -> None:
    log.info("a client was cut off: it read nothing for %g s", slow_reader_s)


def guard(connection: Any, slow_reader_s: float) -> None:
    """Sets socket options: small kernel buffers, and probes that detect when a client's machine is gone.

    `connection`: the socket of a connection, or of the listener if connections inherit its options.
    """
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    wanted = [(socket.SOL_SOCKET, "SO_KEEPALIVE", 1), (socket.IPPROTO_TCP, "TCP_KEEPIDLE", PROBE_AFTER_S)]
    wanted += [
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", PROBE_EVERY_S),
        (socket.IPPROTO_TCP, "TCP_NOTSENT_LOWAT", HIGH_WATER),
    ]
    if slow_reader_s:
        wanted.append((socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", max(1, int(slow_reader_s * 1000))))
    for level, name, value in wanted:
        option = getattr(socket, name, None)
        if option is not None:
            try:
                connection.setsockopt(level, option, value)
            except OSError:  # the socket is already closed, or the system does not know the option
                return

"""uvicorn's HTTP protocol with what it leaves out: a time and a size limit for request heads, and JSON where it would answer in plain text.

A head that is not complete after `HEAD_WITHIN_S`, or is larger than `MAX_HEAD`, ends the connection, so that slow or endless heads hold no memory.
"""

from __future__ import annotations

import asyncio

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from toolwire.errors import error_object
from toolwire.events import Failure

HEAD_WITHIN_S = 30.0
MAX_HEAD = 64 * 1024


class GuardedProtocol(HttpToolsProtocol):
    _in_head = False
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEAD_WITHIN_S, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        began_before = self._in_head
        super().data_received(data)
        if self._in_head:
            self._head_bytes = self._head_bytes + len(data) if began_before else 0
            if self._head_bytes > MAX_HEAD:
                self._end(431, f"The request's head is larger than {MAX_HEAD // 1024} kB.")
            elif self._head_timer is None:
                self._head_timer = self.loop.call_later(HEAD_WITHIN_S, self._head_is_late)

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_head_timer()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self._end(400, msg)

    def _unsupported_upgrade_warning(self) -> None:
        """An upgrade (to WebSocket, to HTTP/2) is answered as the plain request it also is; nothing to warn of."""

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._in_head:
            self._end(408, f"The request's head did not arrive within {HEAD_WITHIN_S:g} s.")
        else:
            self.transport.close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end(self, status: int, message: str) -> None:
        """Answers and closes; only closes where another answer is under way on this connection, which must not be mixed with this one."""
        self._stop_head_timer()
        self._in_head = False
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            body = msgspec.json.encode(error_object(Failure("invalid_request", message)))
            head = b"content-type: application/json; charset=utf-8\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()

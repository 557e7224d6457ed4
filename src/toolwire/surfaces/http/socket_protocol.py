"""uvicorn's WebSocket protocol with what it leaves out: bounds for clients that send or read too slowly, and an end that waits for answers.

Rules: a message that is arriving must go on arriving, as a request's body must, and takes its place in the same `Room`; however it is cut into
fragments, it costs its own size. A reader that takes nothing for `limits.slow_reader_s` is cut off. Pings keep the way open; a client that does not
answer them is not cut off, because many answer only while they read, and read nothing while their tool runs. When the server drains, the application
closes the connection, once its answer is out.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from toolwire.errors import ToolwireError
from toolwire.surfaces.http.exchange import BODY_IDLE_S, BODY_RATE, Room
from toolwire.surfaces.http.protocol import LOOKS, in_kernel

POLICY, TOO_LARGE_FOR_NOW = 1008, 1013
LARGEST_HELD = 64 * 1024
"""What is kept of a message that is still arriving without asking for room."""

log = logging.getLogger("toolwire.http")


class GuardedSocket(WebSocketsSansIOProtocol):
    _held = 0
    """How much of a message that is not complete was counted in the room."""
    _began = 0.0
    _arrived = 0
    _whole = False
    """A message was completed by what came last."""
    _late: asyncio.TimerHandle | None = None
    _reader_timer: asyncio.TimerHandle | None = None
    _unread = 0
    _stalled_looks = 0

    def __init__(self, config: Any, server_state: Any, app_state: dict[str, Any], _loop: asyncio.AbstractEventLoop | None = None) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._slow_reader_s: float = getattr(config.app, "slow_reader_s", 0)
        self._room: Room = config.app.room

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_looking()
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None
        self._count(0)
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """The application is told by itself, and ends what runs first."""
        if not self.handshake_complete or self.close_sent:
            super().shutdown()

    # --- what the client sends -----------------------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._whole = False
        super().data_received(data)
        if self.transport.is_closing() or self.disconnected:
            return
        pending = len(self.conn.reader.buffer) + (len(self.frames[0]) if self.frames else 0)
        try:
            self._count(pending if pending > LARGEST_HELD else 0)
        except ToolwireError:
            self._fail(TOO_LARGE_FOR_NOW, "too many large messages arrive at the same time")
            return
        if self._whole or not (pending or self.frames):
            self._stop_looking()
        self._arrived += len(data)
        if (pending or self.frames) and self._late is None:
            self._began, self._arrived = self.loop.time(), pending
            self._late = self.loop.call_later(BODY_IDLE_S, self._look_at_sender, pending)

    def _stop_looking(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _look_at_sender(self, before: int) -> None:
        """So much had arrived at the last look: there must be more by now, at the least rate."""
        due = (self.loop.time() - self._began - BODY_IDLE_S) * BODY_RATE
        if not self.read_paused and (self._arrived <= before or self._arrived < due):
            self._late = None
            self._fail(POLICY, "the message stopped arriving, or came too slowly")
            return
        self._late = self.loop.call_later(BODY_IDLE_S, self._look_at_sender, self._arrived)

    def send_receive_event_to_app(self) -> None:
        self._whole = True
        super().send_receive_event_to_app()

    def _count(self, size: int) -> None:
        if size > self._held:
            self._room.take(size - self._held)
        else:
            self._room.left += self._held - size
        self._held = size

    def _fail(self, code: int, reason: str) -> None:
        self.conn.fail(code, reason)
        self.handle_parser_exception()

    def handle_text(self, event: Frame) -> None:
        self.curr_msg_data_type = "text"
        self._begin(event)

    def handle_bytes(self, event: Frame) -> None:
        self.curr_msg_data_type = "bytes"
        self._begin(event)

    def _begin(self, event: Frame) -> None:
        self.frames = [bytes(event.data) if event.fin else bytearray(event.data)]  # type: ignore[list-item]
        if event.fin:
            self.send_receive_event_to_app()

    def handle_cont(self, event: Frame) -> None:
        self.frames[0] += event.data  # fragments of one byte, or none, add no more than that
        if event.fin:
            self.frames = [bytes(self.frames[0])]
            self.send_receive_event_to_app()

    # --- what the client reads -----------------------------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._reader_timer is None and self._slow_reader_s:
            self._unread, self._stalled_looks = self._all_unread(), 0
            self._reader_timer = self.loop.call_later(self._slow_reader_s / LOOKS, self._look_at_reader)

    def _look_at_reader(self) -> None:
        self._reader_timer = None
        if self.writable.is_set():
            return
        unread = self._all_unread()
        self._unread, self._stalled_looks = unread, self._stalled_looks + 1 if unread >= self._unread else 0
        if self._stalled_looks >= LOOKS:
            log.info("a client was cut off: it read nothing for %g s", self._slow_reader_s)
            self.transport.abort()
            return
        self._reader_timer = self.loop.call_later(self._slow_reader_s / LOOKS, self._look_at_reader)

    def _all_unread(self) -> int:
        return self.transport.get_write_buffer_size() + in_kernel(self.transport.get_extra_info("socket"))

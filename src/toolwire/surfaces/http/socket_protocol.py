"""uvicorn's WebSocket protocol, with limits for clients that flood, or send or read slowly.

- Frames are handled one by one, at most `FRAMES_A_TURN` within `TURN_S`. If more arrive, they wait and
  reading pauses. Frames without data (control frames and empty fragments) have a lower limit: the connection
  is closed with 1008 after more than `MOST_EMPTY` at once, or `EMPTY_RATE` per second.
- No frame is handled before the handshake is answered.
- A message must keep arriving, like the body of a request, and takes memory from the `Room` for such bodies.
- A client that reads nothing for `limits.slow_reader_s` is disconnected. While writing is paused, only the
  last ping is kept, and it is answered later.
- The server's pings keep the connection open. A client that does not answer them stays connected: many
  clients answer only while they read, and do not read while their tool runs.
- When the server drains, the application closes the connection after the current response.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import SecurityError
from websockets.frames import Frame

from toolwire.core.errors import ToolwireError
from toolwire.surfaces.http.exchange import BODY_IDLE_S, BODY_RATE, NOBODY, ROOM_KEY, Room
from toolwire.surfaces.http.protocol import LOOKS, in_kernel, log_slow_reader, refusal

INVALID_TEXT, POLICY, TOO_LARGE_FOR_NOW = 1007, 1008, 1013
LARGEST_HELD = 64 * 1024
"""The largest incomplete message, in bytes, that does not count in the `Room`."""
FRAMES_A_TURN, TURN_S = 16, 0.005
MOST_EMPTY, EMPTY_RATE = 128, 16.0
FIRST_CONTROL = 8
"""Opcodes of at least this value are control frames."""


class GuardedSocket(WebSocketsSansIOProtocol):
    _held = 0
    """Bytes of the incomplete message that are counted in the `Room`."""
    _held_by = NOBODY
    """The id of the key for which the bytes in `_held` are counted."""
    _began = 0.0
    _arrived = 0
    _whole = False
    """Whether the last frame completed a message."""
    _late: asyncio.TimerHandle | None = None
    _reader_timer: asyncio.TimerHandle | None = None
    _unread = 0
    _stalled_looks = 0
    _frame_left = 0
    """Bytes of the current frame that have not been parsed."""
    _frames_left = 0
    """Frames that may still be handled before `_turn_ends`."""
    _turn_ends = 0.0
    _turn: asyncio.TimerHandle | None = None
    _empty_left, _empty_at = float(MOST_EMPTY), 0.0
    """How many frames without data may still arrive, and when that was computed."""
    _pong = b""
    """The answer to the last ping, held back while writing is paused."""

    def __init__(
        self,
        config: Any,
        server_state: Any,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._slow_reader_s: float = getattr(config.app, "slow_reader_s", 0)
        self._room: Room = config.app.room
        self._waiting = bytearray()
        """Bytes that were received but not parsed."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_looking()
        for timer in (self._reader_timer, self._turn):
            if timer is not None:
                timer.cancel()
        self._reader_timer = self._turn = None
        self._waiting.clear()
        self._count(0)
        if isinstance(exc, TimeoutError):  # the kernel noticed first, see `guard`
            log_slow_reader(self._slow_reader_s)
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Does nothing after the handshake: the application ends the turn, then closes the connection."""
        if not self.handshake_complete or self.close_sent:
            super().shutdown()

    # --- what the client sends ---

    def data_received(self, data: bytes) -> None:
        if not self.handshake_initiated:  # the handshake, whose head arrives as a whole
            super().data_received(data)
            if not self.handshake_initiated:
                self._refuse()
            return
        self._waiting += data
        self._arrived += len(data)
        if self._turn is None:
            self._handle_frames()

    def _refuse(self) -> None:
        """Answers a handshake that the WebSocket library cannot parse."""
        problem = self.conn.handshake_exc
        status = 431 if isinstance(problem, SecurityError) else 400
        self.transport.write(refusal(status, f"The WebSocket handshake cannot be read: {problem}."))
        self.transport.close()

    def _handle_frames(self) -> None:
        """Handles waiting frames up to the limit. Pauses reading if some must wait, else resumes it."""
        self._turn, self._whole = None, False
        now = self.loop.time()
        if now >= self._turn_ends:
            self._frames_left, self._turn_ends = FRAMES_A_TURN, now + TURN_S
        while (
            self._waiting
            and self.handshake_complete
            and not self.read_paused
            and not self.transport.is_closing()
        ):
            if not self._frame_left:
                self._frame_left = _frame_size(self._waiting)
                if not self._frame_left:
                    break
                if not self._frames_left:
                    self._frame_left, self._turn = 0, self.loop.call_at(self._turn_ends, self._handle_frames)
                    break
                self._frames_left -= 1
                if _carries_nothing(self._waiting) and not self._may_be_empty(now):
                    self._fail(POLICY, "too many control frames or empty fragments")
                    break
            piece = bytes(self._waiting[: self._frame_left])
            del self._waiting[: len(piece)]
            self._frame_left -= len(piece)
            super().data_received(piece)
        if self.transport.is_closing() or self.disconnected:
            self._waiting.clear()
            return
        if self._turn is None and self.handshake_complete and not self.read_paused:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()
        self._watch_sender()

    def _may_be_empty(self, now: float) -> bool:
        self._empty_left = min(self._empty_left + (now - self._empty_at) * EMPTY_RATE, MOST_EMPTY) - 1
        self._empty_at = now
        return self._empty_left >= 0

    def _watch_sender(self) -> None:
        """Counts an arriving message in the `Room`.

        Also starts the timer that checks whether more of the message arrives.
        """
        pending = (
            len(self.conn.reader.buffer) + (len(self.frames[0]) if self.frames else 0) + len(self._waiting)
        )
        try:
            self._count(pending if pending > LARGEST_HELD else 0)
        except ToolwireError:
            self._fail(TOO_LARGE_FOR_NOW, "too many large messages arrive at the same time")
            return
        if self._whole or not (pending or self.frames):
            self._stop_looking()
        if (pending or self.frames) and self._late is None:
            self._began, self._arrived = self.loop.time(), pending
            self._late = self.loop.call_later(BODY_IDLE_S, self._look_at_sender, pending)

    def _stop_looking(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _look_at_sender(self, before: int) -> None:
        """Fails the connection if the message arrives too slowly, or not at all.

        `before` is the number of bytes at the last check. More must have arrived since, at a rate of at least
        `BODY_RATE`. While the server itself pauses reading, nothing is checked.
        """
        due = (self.loop.time() - self._began - BODY_IDLE_S) * BODY_RATE
        if not self.read_paused and self._turn is None and (self._arrived <= before or self._arrived < due):
            self._late = None
            self._fail(POLICY, "the message stopped arriving, or came too slowly")
            return
        self._late = self.loop.call_later(BODY_IDLE_S, self._look_at_sender, self._arrived)

    def send_receive_event_to_app(self) -> None:
        self._whole = True
        if self.curr_msg_data_type == "text":
            try:
                self.frames[0].decode()
            except UnicodeDecodeError:
                self._fail(INVALID_TEXT, "the message is not UTF-8")
                return
        super().send_receive_event_to_app()

    async def receive(self) -> Any:
        message = await self.queue.get()
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            if self._turn is None:
                self._turn = self.loop.call_later(0, self._handle_frames)
        return message

    def handle_ping(self) -> None:
        if self.writable.is_set():
            super().handle_ping()
        else:
            self._pong = b"".join(self.conn.data_to_send())

    def _count(self, size: int) -> None:
        key: str = getattr(self, "scope", {}).get(ROOM_KEY, NOBODY)
        if self._held and key != self._held_by:  # the key was unknown until the handshake was complete
            self._room.give(self._held, self._held_by)
            self._held = 0
        self._held_by = key
        if size > self._held:
            self._room.take(size - self._held, key)
        elif size < self._held:
            self._room.give(self._held - size, key)
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
        self.frames[0] += event.data  # one buffer: tiny fragments take no more memory than their bytes
        if event.fin:
            self.frames = [bytes(self.frames[0])]
            self.send_receive_event_to_app()

    # --- what the client reads ---

    async def send(self, message: Any) -> None:
        await self.writable.wait()
        if self.transport.is_closing():  # for example, a frame has violated the protocol
            raise ClientDisconnected
        await super().send(message)
        if message["type"] == "websocket.accept" and self._waiting:
            self._handle_frames()
        elif message["type"] == "websocket.http.response.body" and self.transport.is_closing():
            self.handshake_complete = True  # refused; otherwise uvicorn would log an error

    def resume_writing(self) -> None:
        super().resume_writing()
        pong, self._pong = self._pong, b""
        if pong:
            self.transport.write(pong)

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
            log_slow_reader(self._slow_reader_s)
            self.transport.abort()
            return
        self._reader_timer = self.loop.call_later(self._slow_reader_s / LOOKS, self._look_at_reader)

    def _all_unread(self) -> int:
        return self.transport.get_write_buffer_size() + in_kernel(self.transport.get_extra_info("socket"))


def _frame_size(data: bytearray) -> int:
    """Returns the size of the next frame with its header; 0 if the header is incomplete."""
    if len(data) < 2:
        return 0
    size, header = data[1] & 0x7F, 2
    if size > 125:
        header = 4 if size == 126 else 10
        if len(data) < header:
            return 0
        size = int.from_bytes(data[2:header], "big")
    return header + (4 if data[1] & 0x80 else 0) + size


def _carries_nothing(header: bytearray) -> bool:
    """Whether the frame that begins here is a control frame, or an empty fragment of a message."""
    return header[0] & 0x0F >= FIRST_CONTROL or not (header[0] & 0x80 or header[1] & 0x7F)

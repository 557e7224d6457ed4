"""Sends the answer of a turn: a whole body, or a stream of blocks with keep-alive comments.

The head of a stream is sent with the first block, or earlier if the model is slow.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from prometheus_client import Gauge
from starlette.types import Receive

from toolwire.access.gate import HeaderList, Pace
from toolwire.core.events import Failure
from toolwire.gateway.records import Answer
from toolwire.surfaces.http.exchange import Exchange, Watch
from toolwire.wire.messages.encode import PING
from toolwire.wire.sse import KEEP_ALIVE

# --- keep-alive comments ---
#
# If nothing was sent for a while, a comment is sent, so that neither the client nor a proxy closes the silent
# stream. Each stream has one timer; sending a block only updates a time.


class KeepAlive:
    """Sends a comment with `send` whenever nothing was sent for `every_s` seconds.

    Set `last` to the time of each sent block. Call `stop` before the end of the stream is sent.
    """

    __slots__ = ("_comment", "_every", "_loop", "_send", "_task", "_timer", "last")

    def __init__(
        self, send: Callable[[bytes], Awaitable[None]], every_s: float, comment: bytes = KEEP_ALIVE
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._send = send
        self._comment = comment
        self._every = every_s
        self.last = self._loop.time()
        self._task: asyncio.Future[None] | None = None
        self._timer = self._loop.call_later(every_s, self._look) if every_s > 0 else None

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._task.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        if now - self.last >= self._every and (self._task is None or self._task.done()):
            self.last = now
            self._task = asyncio.ensure_future(self._say())
        self._timer = self._loop.call_at(self.last + self._every, self._look)

    async def _say(self) -> None:
        await self._send(self._comment)


STREAM_HEADERS: HeaderList = [(b"cache-control", b"no-cache, no-transform"), (b"x-accel-buffering", b"no")]


class TurnResponse:
    """The response to one turn: a whole body or a stream. Cancels the turn if the client disconnects.

    `streams_open` counts the streams that have begun and not stopped.
    """

    __slots__ = ("_alive", "_begun", "_every_s", "_exchange", "_streams_open")

    def __init__(self, exchange: Exchange, every_s: float, streams_open: Gauge) -> None:
        self._exchange = exchange
        self._every_s = every_s
        self._streams_open = streams_open
        self._begun: asyncio.Task[KeepAlive] | None = None
        self._alive: KeepAlive | None = None

    def begin_early(self, headers: HeaderList) -> None:
        """Sends the head of a stream before the model's first output is known."""
        self._begun = asyncio.get_running_loop().create_task(self._begin(headers))

    async def _begin(self, headers: HeaderList) -> KeepAlive:
        exchange = self._exchange
        await exchange.begin(200, [*headers, *STREAM_HEADERS])
        self._streams_open.inc()
        comment = PING if exchange.api == "messages" else KEEP_ALIVE
        self._alive = alive = KeepAlive(exchange.piece, self._every_s, comment)
        return alive

    async def send(self, work: Awaitable[Answer], receive: Receive, pace: Pace) -> None:
        """Sends the answer that `work` returns.

        `pace` may delay an error that another node has returned.
        """
        exchange = self._exchange
        exchange.reached_gateway = True
        watch = Watch(exchange.scope, receive)
        blocks: AsyncIterator[bytes] | None = None
        try:
            answer = await work
            if (blocks := answer.stream) is None:
                if answer.status != 200:
                    await pace.hold(answer.status, exchange.requester)
                await exchange.reply(answer.status, answer.headers, answer.body or b"")
                return
            alive = await (self._begun or self._begin(answer.headers))
            write, now = exchange.connection.write, asyncio.get_running_loop().time
            if first := await anext(blocks, b""):  # after that, `async for` reads the run directly
                alive.last = now()
                if not write(first):
                    await exchange.piece(first)
            async for block in blocks:
                alive.last = now()
                if not write(block):
                    await exchange.piece(block)
        except asyncio.CancelledError:
            if watch.gone:
                return
            if exchange.started:
                raise
            await exchange.fail(Failure("overloaded", "The server is shutting down.", retry_after_s=1))
            return
        finally:
            if self._begun is not None or self._alive is not None:
                self._stop()
            watch.stop()
            close = getattr(blocks, "aclose", None)
            if close is not None:
                await close()
        await exchange.end()  # not earlier: the end would wake `watch`, which would cancel the turn

    def _stop(self) -> None:
        """Stops the keep-alive comments and the early sending of the head. May be called again."""
        begun, alive, self._begun, self._alive = self._begun, self._alive, None, None
        if begun is not None and not begun.cancel() and not begun.cancelled():
            begun.exception()  # marks the exception as retrieved, so that asyncio does not log it
        if alive is not None:
            alive.stop()
            self._streams_open.dec()

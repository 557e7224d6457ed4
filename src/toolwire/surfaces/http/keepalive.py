"""Signs of life on a stream: a comment whenever nothing else was sent for a while, so that neither client nor proxy gives a silent stream up.

One timer a stream and nothing per block: who sends a block only leaves the loop's time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from toolwire.encode.sse import KEEP_ALIVE


class KeepAlive:
    """Sends through `send` while it is running. `last` is when a block was sent; call `stop` before the end is."""

    __slots__ = ("_every", "_loop", "_send", "_task", "_timer", "last")

    def __init__(self, send: Callable[[bytes], Awaitable[None]], every_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._send = send
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
        await self._send(KEEP_ALIVE)

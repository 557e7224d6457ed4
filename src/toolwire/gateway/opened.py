"""A stream that opens: its first block is awaited for a while, because until then a failure can still be an HTTP error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolwire.gateway.run import Run


class Opened:
    """The blocks of a run whose first one is under way. Closing it ends the run, also when nobody has read anything yet."""

    def __init__(self, run: Run, blocks: AsyncGenerator[bytes, None]) -> None:
        self._run = run
        self._rest = blocks
        self._loop = asyncio.get_running_loop()
        self._first: asyncio.Task[bytes] | None = self._loop.create_task(_first(blocks))

    async def within(self, seconds: float) -> bool:
        """Whether the first block is there after so long; raises what came in its place. Where it is not, it is still under way."""
        first = self._first
        assert first is not None
        over: asyncio.Future[None] = self._loop.create_future()

        def end(_: object = None) -> None:
            if not over.done():
                over.set_result(None)

        timer = self._loop.call_later(seconds, end)  # as `asyncio.wait` does for many, for one
        first.add_done_callback(end)
        try:
            await over
        finally:
            timer.cancel()
            first.remove_done_callback(end)
        if first.done():
            first.result()
        return first.done()

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Who has the first block gets the others from where they come from."""
        return self if self._first is not None else self._rest

    def __anext__(self) -> Awaitable[bytes]:
        return self._rest.__anext__() if self._first is None else self._begun(self._first)

    async def _begun(self, first: asyncio.Task[bytes]) -> bytes:
        block = await first
        self._first = None
        return block

    async def aclose(self) -> None:
        await self.stop()
        self._run.observe(None, cancelled=True)  # where it was closed before it began to run

    async def stop(self) -> None:
        if self._first is not None:
            self._first.cancel()
            await asyncio.gather(self._first, return_exceptions=True)
        await self._rest.aclose()
        self._run.abandon()


async def _first(blocks: AsyncGenerator[bytes, None]) -> bytes:
    return await anext(blocks)

"""Several runs for one request (`n`): their events side by side, each with the number of its choice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from toolwire.backends.base import Batch

_MOST_WAITING = 64  # batches that a run may be ahead of the reader


async def merged(runs: list[AsyncGenerator[Batch, None]]) -> AsyncGenerator[tuple[int, Batch], None]:
    """Batches as they come. One run is passed through; closing this closes all."""
    if len(runs) == 1:
        async with aclosing(runs[0]) as run:
            async for batch in run:
                yield 0, batch
        return
    waiting: asyncio.Queue[tuple[int, Batch | BaseException | None]] = asyncio.Queue(_MOST_WAITING)

    async def read(choice: int, run: AsyncGenerator[Batch, None]) -> None:
        try:
            async with aclosing(run):
                async for batch in run:
                    await waiting.put((choice, batch))
            await waiting.put((choice, None))
        except Exception as error:
            await waiting.put((choice, error))

    readers = [asyncio.create_task(read(choice, run)) for choice, run in enumerate(runs)]
    try:
        left = len(runs)
        while left:
            choice, got = await waiting.get()
            if got is None:
                left -= 1
            elif isinstance(got, BaseException):
                raise got
            else:
                yield choice, got
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)

"""Several runs for one request (`n`): their events side by side. Each batch comes with the number of its choice.

At most `MOST_AT_ONCE` runs are open at a time: one request with many choices must not flood a backend.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from toolwire.backends.base import Batch

_MOST_WAITING = 64  # batches that a run may be ahead of the reader
MOST_AT_ONCE = 8


Numbered = tuple[int, Batch]


def merged(runs: list[AsyncGenerator[Numbered, None]]) -> AsyncGenerator[Numbered, None]:
    """Batches as they come; closing this closes all runs. With a single choice there is nothing to merge."""
    return runs[0] if len(runs) == 1 else _side_by_side(runs)


async def _side_by_side(runs: list[AsyncGenerator[Numbered, None]]) -> AsyncGenerator[Numbered, None]:
    waiting: asyncio.Queue[Numbered | BaseException | None] = asyncio.Queue(_MOST_WAITING)
    gate = asyncio.Semaphore(MOST_AT_ONCE)

    async def read(run: AsyncGenerator[Numbered, None]) -> None:
        try:
            async with gate, aclosing(run):
                async for numbered in run:
                    await waiting.put(numbered)
            await waiting.put(None)
        except Exception as error:
            await waiting.put(error)

    readers = [asyncio.create_task(read(run)) for run in runs]
    try:
        left = len(runs)
        while left:
            got = await waiting.get()
            if got is None:
                left -= 1
            elif isinstance(got, BaseException):
                raise got
            else:
                yield got
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)

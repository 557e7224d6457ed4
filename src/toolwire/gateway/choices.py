"""Runs the loops of several choices (`n`) at the same time and merges their blocks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from toolwire.gateway.answers import Answering

MOST_AT_ONCE = 8
"""The most runs of one request at a time, so that a request cannot flood a backend."""
MOST_WAITING = 64
"""How many blocks all runs together may be ahead of the client."""


async def side_by_side(
    loop: Callable[[int], AsyncGenerator[bytes, None]], choices: int, answer: Answering
) -> AsyncGenerator[bytes, None]:
    """Yields the blocks of all choices as they arrive.

    The failure of one choice ends all of them.
    """
    waiting: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue(MOST_WAITING)
    gate = asyncio.Semaphore(MOST_AT_ONCE)

    async def read(choice: int) -> None:
        try:
            async with gate, aclosing(loop(choice)) as blocks:
                async for block in blocks:
                    await waiting.put(block)
            await waiting.put(None)
        except Exception as error:
            await waiting.put(error)

    readers = [asyncio.create_task(read(choice)) for choice in range(choices)]
    try:
        while choices and answer.failure is None:
            got = await waiting.get()
            if got is None:
                choices -= 1
            elif isinstance(got, BaseException):
                raise got
            else:
                yield got
        while not waiting.empty():  # blocks that arrived before one of the choices failed
            if isinstance(got := waiting.get_nowait(), bytes):
                yield got
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)

"""From llama.cpp's thread to the event loop: chunks as they are decoded, one wake-up for all that came while the loop was busy."""

from __future__ import annotations

import asyncio
from collections import deque

Chunk = bytes | Exception | None
"""llama.cpp's JSON; what went wrong; the end."""


class Stream:
    """Chunks of one run. `put` is called by the thread that decodes, everything else by the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._chunks: deque[Chunk] = deque()
        self._woken = False
        self._event = asyncio.Event()
        self.cancelled = False

    def put(self, chunk: Chunk) -> bool:
        """Hands a chunk over. True: nobody wants more, decoding should end."""
        if self.cancelled:
            return True
        self._chunks.append(chunk)
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:  # the loop is closed
                self.cancelled = True
                return True
        return False

    def _wake(self) -> None:
        self._woken = False
        self._event.set()

    async def get(self) -> list[Chunk]:
        """All chunks that are there; waits for the first."""
        while not self._chunks:
            self._event.clear()
            await self._event.wait()
        taken = []
        while self._chunks:
            taken.append(self._chunks.popleft())
        return taken

"""How long a turn may take: until the model's first word, between two of its words, and in all.

Rules: only waiting counts against the first two, and only waiting for the model: neither the line in front of it nor a slow reader behind it. The
whole covers everything from the request on. What runs too long is cancelled at the backend and ends as one failure of kind `timeout`: an HTTP error
before the first byte, in-band after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from typing import TypeVar

from toolwire.backends.base import Batch
from toolwire.core.errors import ToolwireError
from toolwire.core.events import CallArgs, CallBegin, Refusal, Text, Thought
from toolwire.settings.types import LimitSettings

T = TypeVar("T")
WORDS = (Text, Thought, Refusal, CallBegin, CallArgs)


class Timeouts:
    """Of one turn, from now on. `of` gives None where the settings set none."""

    def __init__(self, limits: LimitSettings) -> None:
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.time() + limits.total_s if limits.total_s else None

    @classmethod
    def of(cls, limits: LimitSettings) -> Timeouts | None:
        return cls(limits) if limits.first_token_s or limits.idle_s or limits.total_s else None

    async def whole(self, work: Awaitable[T]) -> T:
        """Work that is no model's, within what is left of the whole."""
        return await self._within(work, 0, "")

    async def watch(self, run: AsyncGenerator[Batch, None]) -> AsyncGenerator[Batch, None]:
        """A backend's run. Raises `ToolwireError` when the model lets wait too long."""
        limits = self._limits
        wait_s, told = limits.first_token_s, f"The model did not begin to answer within {limits.first_token_s:g} s (limits.first_token_s)."
        silent = True
        async with aclosing(run):
            while True:
                try:
                    batch = await self._within(anext(run), wait_s, told)
                except StopAsyncIteration:
                    return
                if silent and any(isinstance(event, WORDS) for event in batch):
                    silent = False
                    wait_s, told = limits.idle_s, f"The model was silent for {limits.idle_s:g} s (limits.idle_s)."
                yield batch

    async def _within(self, work: Awaitable[T], wait_s: float, told: str) -> T:
        due = self._loop.time() + wait_s if wait_s else None
        if self._end is not None and (due is None or self._end < due):
            due, told = self._end, f"The request took longer than {self._limits.total_s:g} s (limits.total_s)."
        try:
            async with asyncio.timeout_at(due) as scope:
                return await work
        except TimeoutError:
            if not scope.expired():
                raise  # the work's own
            raise ToolwireError("timeout", told) from None

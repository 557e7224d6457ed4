"""The time limits of a turn: until the first output, between two outputs, and in total.

For the first two, only waiting for the model counts. Time in the queue before it, or for a slow client after
it, does not. The total limit counts everything from the request on. A turn that takes too long is cancelled
at the backend and ends with a failure of kind `timeout`: an HTTP error before the first byte, an error in the
stream after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from toolwire.backends.base import Batch
from toolwire.core.errors import ToolwireError
from toolwire.core.events import CallArgs, CallBegin, Refusal, Text, Thought
from toolwire.settings.types import LimitSettings

T = TypeVar("T")
WORDS = (Text, Thought, Refusal, CallBegin, CallArgs)


def has_words(batch: Batch) -> bool:
    """Whether the batch contains output of the model, such as text or a call.

    Usage is no output.
    """
    return any(isinstance(event, WORDS) for event in batch)


class Timeouts:
    """The time limits of one turn. The total time starts when the instance is created."""

    def __init__(self, limits: LimitSettings) -> None:
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.time() + limits.total_s if limits.total_s else None

    async def whole(self, work: Awaitable[T]) -> T:
        """Runs work other than the model's, within the rest of the total limit."""
        return await self._within(work, 0, "")

    async def batch(self, work: Awaitable[Batch], begun: bool) -> Batch:
        """Returns the model's next batch in time. `begun`: the model has already produced output."""
        limits = self._limits
        if begun:
            return await self._within(
                work, limits.idle_s, f"The model was silent for {limits.idle_s:g} s (limits.idle_s)."
            )
        words = f"The model did not begin to answer within {limits.first_token_s:g} s (limits.first_token_s)."
        return await self._within(work, limits.first_token_s, words)

    async def _within(self, work: Awaitable[T], wait_s: float, words: str) -> T:
        due = self._loop.time() + wait_s if wait_s else None
        if self._end is not None and (due is None or self._end < due):
            due, words = (
                self._end,
                f"The request took longer than {self._limits.total_s:g} s (limits.total_s).",
            )
        try:
            async with asyncio.timeout_at(due) as scope:
                return await work
        except TimeoutError:
            if not scope.expired():
                raise  # the work raised it, not this time limit
            raise ToolwireError("timeout", words) from None

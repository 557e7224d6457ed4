"""What the loop of a turn reads: runs of a backend, and rounds of calls that the gateway runs itself.

Also contains the time limits of a turn, and the loop over several choices at the same time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from time import perf_counter
from typing import TypeVar

from toolwire.backends.base import Batch, LiveRun
from toolwire.core.errors import ToolwireError
from toolwire.core.events import CallArgs, CallBegin, Failure, Finish, Refusal, Text, Thought, Usage
from toolwire.gateway.answers import Answering
from toolwire.gateway.parked import Claim
from toolwire.gateway.rounds import Round
from toolwire.gateway.stages import Stages
from toolwire.settings.types import LimitSettings

log = logging.getLogger("toolwire.gateway")
T = TypeVar("T")
WORDS = (Text, Thought, Refusal, CallBegin, CallArgs)
MOST_AT_ONCE = 8
"""How many runs of one request are active at a time, so that a request cannot flood a backend."""
MOST_WAITING = 64
"""How many blocks of all choices together may wait until they are sent to the client."""
LONGEST_S = 0.001
"""How many seconds the loop works on a long batch before other turns may run."""
CUT = Failure("backend_cut", "The model's answer broke off before it was complete.")


# --- time limits ---
#
# There are three limits: until the first output, between two outputs, and in total. The first two count only
# the time in which Toolwire waits for the model. They count neither the time in the queue nor the time in
# which Toolwire waits for a slow client. The total limit counts everything from the request on. A turn that
# takes too long is cancelled at the backend and ends with a failure of kind `timeout`: an HTTP error before
# the first byte of the answer, an error in the stream after the first byte.


def has_words(batch: Batch) -> bool:
    """Whether the batch contains output of the model, such as text or a call.

    Token counts are not output.
    """
    return any(isinstance(event, WORDS) for event in batch)


class Timeouts:
    """The time limits of one turn. The total time starts when the instance is created."""

    def __init__(self, limits: LimitSettings) -> None:
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.time() + limits.total_s if limits.total_s else None

    async def whole(self, work: Awaitable[T]) -> T:
        """Waits for work other than the model's answer, within the rest of the total time."""
        return await self._within(work, 0, "")

    async def batch(self, work: Awaitable[Batch], begun: bool) -> Batch:
        """Returns the model's next batch within the time limits.

        `begun`: the model has already produced output.
        """
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


# --- runs ---


class GraceOver(Exception):
    """Raised when a run is silent for the grace time (`tools.stop_grace_ms`) after its calls."""


class RunSource:
    """One run of the backend as the loop reads it.

    Any abnormal end of the run becomes a `Failure`.
    """

    def __init__(
        self,
        model: str,
        batches: AsyncGenerator[Batch, None],
        number: int = 0,
        live: LiveRun | None = None,
        claim: Claim | None = None,
        timeouts: Timeouts | None = None,
    ) -> None:
        """`number`: the run's number in the journal.

        `claim`: the parked run that this source continues. `timeouts`: the time limits of the turn.
        """
        self.number, self.live, self.claim = number, live, claim
        self.is_silent = True
        """Whether the run has produced no event yet, so that another run may replace it."""
        self.is_complete = self.is_parked = False
        self.batches = batches
        """The batches of the run. If `is_plain`, the loop may read them directly, without `pull`."""
        self.is_plain = timeouts is None and claim is None
        """Whether the source has no time limits and no results to send, so `pull` is not needed."""
        self._model, self._timeouts = model, timeouts
        self._results = None if claim is None else claim.results
        self._begun = False

    async def pull(self, grace_s: float) -> Batch:
        """Returns the next batch within the time limits.

        A resumed run first gets the results of its calls.

        If the run has ended, raises an exception: `StopAsyncIteration`, or the error that ended the run. Pass
        the exception to `ended_by` to get the last batch.
        """
        timeouts = self._timeouts
        if self.live is not None and self._results is not None:
            results, self._results = self._results, None
            await self.live.answer(results)
        following = self.batches.__anext__()
        try:
            async with asyncio.timeout(grace_s or None) as grace:
                if timeouts is None:
                    return await following
                batch = await timeouts.batch(following, self._begun)
                self._begun = self._begun or has_words(batch)
                return batch
        except TimeoutError:
            if grace.expired():
                raise GraceOver from None
            raise

    def ended_by(self, error: Exception) -> Batch | None:
        """Returns the last batch of a run that raised `error`; None if `error` is `GraceOver`."""
        if isinstance(error, GraceOver):
            return None
        if isinstance(error, StopAsyncIteration):
            return [CUT]
        if isinstance(error, ToolwireError):
            return [error.failure]
        log.error("the run of model %s failed", self._model, exc_info=error)
        return [Failure("backend", "The model's backend failed.")]

    async def close(self) -> None:
        """Cancels the run at the backend, unless it is parked."""
        try:
            await self.batches.aclose()
            if self.live is not None and not self.is_parked:
                await self.live.cancel()
        finally:
            if self.claim is not None:
                self.claim.release(self.is_complete)


class Opened:
    """A stream whose first block has already been read.

    Closing the stream ends the run, even if no other block was read.
    """

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes, None]) -> None:
        self._first: bytes | None = first
        self._rest = rest

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._rest if self._first is None else self

    async def __anext__(self) -> bytes:
        first, self._first = self._first, None
        return await anext(self._rest) if first is None else first

    async def aclose(self) -> None:
        await self._rest.aclose()


class ServedSource(RunSource):
    """A round of calls that the gateway runs itself. Of the time limits, only the total applies."""

    def __init__(
        self, batches: AsyncGenerator[Batch, None], number: int, round: Round, timeouts: Timeouts | None
    ) -> None:
        super().__init__("", batches, number, timeouts=timeouts)
        self.round = round
        self.is_silent = False  # nothing may replace it

    async def pull(self, grace_s: float) -> Batch:
        following = self.batches.__anext__()
        return await (following if self._timeouts is None else self._timeouts.whole(following))

    def ended_by(self, error: Exception) -> Batch | None:
        if isinstance(error, ToolwireError):
            return [error.failure]
        log.error("a round of calls failed", exc_info=error)
        return [Failure("server", "The tools of MCP servers could not be called.")]


async def nothing() -> AsyncGenerator[Batch, None]:
    """Yields the events of a request that stores its input and generates no answer."""
    yield [Usage(0, 0), Finish("stop")]


def failed(failure: Failure) -> RunSource:
    """Returns a `RunSource` that contains only this failure, for a turn that the queue refused."""

    async def run() -> AsyncGenerator[Batch, None]:
        yield [failure]

    return RunSource("", run())


# --- long batches ---


async def read_slowly(stages: Stages, batch: Batch) -> bytes:
    """Feeds a batch with a long text in slices. Other turns run in between."""
    blocks, began = [], perf_counter()
    for part in stages.slices(batch):
        blocks.append(stages.feed(part))
        if stages.over:
            break
        if perf_counter() - began > LONGEST_S:
            await asyncio.sleep(0)
            began = perf_counter()
    return b"".join(blocks)


# --- several choices ---


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

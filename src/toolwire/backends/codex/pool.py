"""The workers of one backend: started when needed, the least busy first, replaced when they have grown old.

- Starts happen one after another, so that the first process warms a fresh home before another one enters it.
- A process that can not start, or that dies again before it has served anything, is tried again after a growing pause; a request that comes during
  the pause gets one clear error, with what Codex said.
- A worker that has begun many threads or holds much memory takes no further ones and ends when its last one does: Codex keeps threads in memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from toolwire.backends.codex.home import CodexHome
from toolwire.backends.codex.options import CodexOptions
from toolwire.backends.codex.worker import CodexWorker
from toolwire.core.errors import ToolwireError

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
MEMORY_CHECK_S = 5.0


class Outdated(ToolwireError):
    """The installed Codex is not the version that the home was written for: it was updated while the gateway ran."""


class Lease:
    """The right to run one thread on a worker. `release` it once the thread is over; twice does no harm."""

    def __init__(self, pool: Pool, seat: _Seat) -> None:
        self._pool = pool
        self._seat: _Seat | None = seat
        self.worker = seat.worker

    def retire(self) -> None:
        """The worker shall take no further threads, and end when its last one has."""
        if self._seat is not None:
            self._seat.retired = True

    def release(self, served: bool) -> None:
        """`served`: the worker did what it is for."""
        seat, self._seat = self._seat, None
        if seat is not None:
            self._pool._released(seat, served)


class _Seat:
    """A worker and how busy it is."""

    def __init__(self, worker: CodexWorker) -> None:
        self.worker = worker
        self.busy = 0
        self.retired = False
        self.measured = 0.0


class Pool:
    def __init__(self, options: CodexOptions, home: CodexHome, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._home = home
        self._clock = clock
        self._seats: list[_Seat] = []
        self._starting = asyncio.Lock()
        self._deaths = 0
        self._not_before = 0.0
        self._why = ""
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def workers(self) -> tuple[CodexWorker, ...]:
        """The processes that take threads now."""
        return tuple(seat.worker for seat in self._open_seats())

    async def lease(self) -> Lease:
        """A place on the least busy worker; starts one where there is none, or where all are busy and another is allowed."""
        seat = self._best()
        if seat is None or (seat.busy and len(self._open_seats()) < self._options.workers):
            seat = await self._another()
        seat.busy += 1
        seat.worker.threads += 1
        if seat.worker.threads >= self._options.max_threads or self._too_large(seat):
            seat.retired = True
        return Lease(self, seat)

    async def close(self) -> None:
        """Ends every process. Nothing can be leased afterwards."""
        self._closed = True
        async with self._starting:
            seats, self._seats = self._seats, []
        await asyncio.gather(*(seat.worker.close() for seat in seats), *self._ending)

    # --- inside --------------------------------------------------------------------------------------------------------------------------------

    def _open_seats(self) -> list[_Seat]:
        for seat in [seat for seat in self._seats if not seat.worker.alive]:
            self._seats.remove(seat)
            self._end(seat)
            self._died(seat.worker.failure.message if seat.worker.failure else "Codex ended.", ready=True)
        return [seat for seat in self._seats if not seat.retired]

    def _best(self) -> _Seat | None:
        return min(self._open_seats(), key=lambda seat: seat.busy, default=None)

    async def _another(self) -> _Seat:
        async with self._starting:
            seat = self._best()  # someone else may have started one while we waited
            if seat is not None and (not seat.busy or len(self._open_seats()) >= self._options.workers):
                return seat
            if self._closed:
                raise ToolwireError("backend_unavailable", "The gateway is closing.")
            wait = self._not_before - self._clock()
            if wait > 0:
                if seat is not None:
                    return seat
                raise ToolwireError("backend_unavailable", f"{self._why} Codex is started again in {wait:.1f} s.", retry_after_s=wait)
            worker = CodexWorker(self._home)
            try:
                async with self._home.warming():
                    await worker.start(self._options.start_timeout_s)
            except ToolwireError as error:
                self._died(error.failure.message, ready=False)
                if seat is not None:
                    return seat
                raise ToolwireError("backend_unavailable", error.failure.message) from error
            if worker.version != self._home.version:
                await worker.close()
                raise Outdated("backend_unavailable", f"Codex was changed from {self._home.version} to {worker.version} while the gateway ran.")
            seat = _Seat(worker)
            self._seats.append(seat)
            return seat

    def _died(self, why: str, ready: bool) -> None:
        """A worker that had served gets its successor at once; each further loss without success doubles the pause."""
        self._deaths += 1
        pauses = self._deaths - (1 if ready else 0)
        self._why = why
        if pauses > 0:
            self._not_before = self._clock() + min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(pauses - 1, 16))

    def _released(self, seat: _Seat, served: bool) -> None:
        seat.busy -= 1
        if served:
            self._deaths = 0
            self._not_before = 0.0
        if seat.retired and not seat.busy and seat in self._seats:
            self._seats.remove(seat)
            self._end(seat)

    def _too_large(self, seat: _Seat) -> bool:
        now = self._clock()
        if now - seat.measured < MEMORY_CHECK_S:
            return False
        seat.measured = now
        return seat.worker.rss_mb() > self._options.max_rss_mb

    def _end(self, seat: _Seat) -> None:
        task = asyncio.get_running_loop().create_task(seat.worker.close())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

"""The workers of one backend: started when needed, least busy first, replaced when they grow old.

- Workers start one after another, so that the first process fills a fresh home before the next one opens it.
- A process that cannot start, or dies before it has served, is started again after a growing pause. Requests
  during the pause get one clear error, with what Codex said.
- A worker that has begun many threads or uses much memory takes no more: Codex keeps threads in memory.
"""

from __future__ import annotations

import asyncio
import time

from toolwire.backends.codex.home import CodexHome
from toolwire.backends.codex.options import CodexOptions
from toolwire.backends.codex.worker import CodexWorker
from toolwire.core.errors import ToolwireError

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
MEMORY_CHECK_S = 5.0


class Outdated(ToolwireError):
    """Codex was updated while the gateway ran: the home is of another version."""


class Seat:
    """A worker and the number of its threads now. Each lease must be released once."""

    def __init__(self, pool: Pool, worker: CodexWorker) -> None:
        self._pool = pool
        self.worker = worker
        self.busy = 0
        self.retired = False
        """The worker takes no more threads, and ends after its last one."""
        self.measured = 0.0

    def release(self, served: bool) -> None:
        """Ends one lease. `served`: the worker did its job."""
        self._pool._released(self, served)


class Pool:
    def __init__(self, options: CodexOptions, home: CodexHome) -> None:
        self._options = options
        self._home = home
        self._clock = time.monotonic
        self._seats: list[Seat] = []
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

    async def lease(self) -> Seat:
        """The least busy worker. Starts one if there is none, or if all are busy and another is allowed."""
        seat = self._free() or await self._another()
        seat.busy += 1
        seat.worker.threads += 1
        if seat.worker.threads >= self._options.max_threads or self._too_large(seat):
            seat.retired = True
        return seat

    async def close(self) -> None:
        """Ends every process. Later leases fail."""
        self._closed = True
        async with self._starting:
            seats, self._seats = self._seats, []
        await asyncio.gather(*(seat.worker.close() for seat in seats), *self._ending)

    def _open_seats(self) -> list[Seat]:
        for seat in [seat for seat in self._seats if not seat.worker.alive]:
            self._end(seat)
            self._died(seat.worker.failure.message if seat.worker.failure else "Codex ended.", ready=True)
        return [seat for seat in self._seats if not seat.retired]

    def _best(self) -> Seat | None:
        return min(self._open_seats(), key=lambda seat: seat.busy, default=None)

    def _free(self) -> Seat | None:
        """The least busy worker, unless another one should start."""
        seat = self._best()
        full = seat is not None and len(self._open_seats()) >= self._options.workers
        return seat if seat is not None and (full or not seat.busy) else None

    async def _another(self) -> Seat:
        async with self._starting:
            seat = self._free()  # a concurrent request may have started one meanwhile
            if seat is not None:
                return seat
            if self._closed:
                raise ToolwireError("backend_unavailable", "The gateway is closing.")
            busy = self._best()
            wait = self._not_before - self._clock()
            if wait > 0:
                if busy is not None:
                    return busy
                raise ToolwireError(
                    "backend_unavailable",
                    f"{self._why} Codex is started again in {wait:.1f} s.",
                    retry_after_s=wait,
                )
            worker = CodexWorker(self._home)
            try:
                async with self._home.warming():
                    await worker.start(self._options.start_timeout_s)
            except ToolwireError as error:
                self._died(error.failure.message, ready=False)
                if busy is not None:
                    return busy
                raise ToolwireError("backend_unavailable", error.failure.message) from error
            if worker.version != self._home.version:
                await worker.close()
                raise Outdated(
                    "backend_unavailable",
                    f"Codex was changed from {self._home.version} to {worker.version} while the gateway ran.",
                )
            seat = Seat(self, worker)
            self._seats.append(seat)
            return seat

    def _died(self, why: str, ready: bool) -> None:
        """Replaces a worker that had started at once; each further loss without success doubles the pause."""
        self._deaths += 1
        pauses = self._deaths - (1 if ready else 0)
        self._why = why
        if pauses > 0:
            self._not_before = self._clock() + min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(pauses - 1, 16))

    def _released(self, seat: Seat, served: bool) -> None:
        seat.busy -= 1
        if served:
            self._deaths = 0
            self._not_before = 0.0
        if seat.retired and not seat.busy and seat in self._seats:
            self._end(seat)

    def _too_large(self, seat: Seat) -> bool:
        now = self._clock()
        if now - seat.measured < MEMORY_CHECK_S:
            return False
        seat.measured = now
        return seat.worker.rss_mb() > self._options.max_rss_mb

    def _end(self, seat: Seat) -> None:
        self._seats.remove(seat)
        task = asyncio.get_running_loop().create_task(seat.worker.close())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

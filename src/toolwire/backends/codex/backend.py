"""Codex as a backend: the real `codex app-server`, with a login at OpenAI or with another provider.

`prepare` finds the installed version. The version decides which tool calling strategy is possible.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from os.path import expanduser
from typing import Any

from toolwire.backends.agents.processes import Backoff
from toolwire.backends.agents.run import one_response
from toolwire.backends.base import Batch, LiveRun
from toolwire.backends.codex.home import CodexHome, find_binary, prepare_home
from toolwire.backends.codex.options import CodexOptions, Features
from toolwire.backends.codex.runs import CodexRun
from toolwire.backends.codex.thread import Seat, Thread
from toolwire.backends.codex.worker import LOG_IN, CodexWorker
from toolwire.core.capabilities import Capabilities, Strategy
from toolwire.core.errors import ToolwireError, unavailable
from toolwire.core.turn import Turn

_KNOWN = re.compile(
    r"(?:code[xv]-5(?:\.\d)?|gpt-5(?:\.\d)?(?:-code[xv])?)(?:-(l|m|h|xh|low|medium|high|xhigh|local))?",
    re.IGNORECASE,
)
"""Model names that codex-completions-api and its successor accept.

A name may end with a reasoning effort.
"""
_SHORT = {"l": "low", "m": "medium", "h": "high", "xh": "xhigh", "local": "low"}

FIELDS = frozenset(
    {"reasoning_effort", "reasoning", "reasoning.summary", "response_format", "text", "verbosity"}
)
_TEXT_ONLY = Capabilities(
    schema=True, images=True, image_urls=False, reasoning=True, fields=FIELDS, recalls=frozenset({"sealed"})
)
_NATIVE = replace(_TEXT_ONLY, tools=True, tool_choice=True, parallel=True)
STRATEGIES: dict[str, Strategy] = {"parked": "parked", "replay": "native", "emulated": "emulated"}


def strategy_of(options: CodexOptions, features: Features) -> Strategy:
    return STRATEGIES[options.tools] if features.native_tools else "emulated"


MEMORY_CHECK_S = 5.0


class Outdated(ToolwireError):
    """Raised if Toolwire wrote the Codex home (its config folder) for another version of Codex."""


class Pool:
    """The worker processes of one backend. A new Codex thread runs on the least busy worker.

    - Workers start when they are needed, and only one at a time.
    - If a process cannot start, or dies before it has served a thread, no process is started for some time.
      This pause grows with each failure. Requests during the pause get an error with Codex's message.
    - A worker that has started many threads or uses much memory gets no more threads and is replaced, because
      Codex keeps threads in memory.
    """

    def __init__(self, options: CodexOptions, home: CodexHome) -> None:
        self._options = options
        self._home = home
        self._backoff = Backoff()
        self._seats: list[Seat] = []
        self._starting = asyncio.Lock()
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def workers(self) -> tuple[CodexWorker, ...]:
        return tuple(seat.worker for seat in self._open_seats())

    async def lease(self) -> Seat:
        """Returns the least busy worker.

        Starts a worker if none runs, or if all are busy and `workers` allows one more.
        """
        seat = self._free() or await self._another()
        seat.busy += 1
        seat.worker.threads += 1
        if seat.worker.threads >= self._options.max_threads or self._too_large(seat):
            seat.retired = True
        return seat

    async def close(self) -> None:
        self._closed = True
        async with self._starting:
            seats, self._seats = self._seats, []
        await asyncio.gather(*(seat.worker.close() for seat in seats), *self._ending)

    def _open_seats(self) -> list[Seat]:
        for seat in [seat for seat in self._seats if not seat.worker.alive]:
            self._end(seat)
            # only the second failure starts a pause, so a worker that had started is replaced at once
            self._backoff.failed(seat.worker.failure.message if seat.worker.failure else "Codex ended.", 1)
        return [seat for seat in self._seats if not seat.retired]

    def _best(self) -> Seat | None:
        return min(self._open_seats(), key=lambda seat: seat.busy, default=None)

    def _free(self) -> Seat | None:
        """Returns the least busy worker, or None if another worker should start."""
        seat = self._best()
        full = len(self._open_seats()) >= self._options.workers
        return seat if seat is not None and (full or not seat.busy) else None

    async def _another(self) -> Seat:
        async with self._starting:
            seat = self._free()  # a concurrent request may have started a worker
            if seat is not None:
                return seat
            if self._closed:
                raise unavailable("The gateway is closing.")
            busy = self._best()
            try:
                return await self._start()
            except Outdated:
                raise
            except ToolwireError:
                if busy is None:
                    raise
                return busy

    async def _start(self) -> Seat:
        self._backoff.check()
        worker = CodexWorker(self._home)
        try:
            async with self._home.warming():
                await worker.start(self._options.start_timeout_s)
        except ToolwireError as error:
            self._backoff.failed(error.failure.message)
            raise unavailable(error.failure.message) from error
        if worker.version != self._home.version:
            await worker.close()
            change = f"from {self._home.version} to {worker.version}"
            raise Outdated("backend_unavailable", f"Codex was changed {change} while the gateway ran.")
        seat = Seat(worker, self._released)
        self._seats.append(seat)
        return seat

    def _released(self, seat: Seat, served: bool) -> None:
        seat.busy -= 1
        if served:
            self._backoff.succeeded()
        if seat.retired and not seat.busy and seat in self._seats:
            self._end(seat)

    def _too_large(self, seat: Seat) -> bool:
        now = time.monotonic()
        if now - seat.measured < MEMORY_CHECK_S:
            return False
        seat.measured = now
        return seat.worker.rss_mb() > self._options.max_rss_mb

    def _end(self, seat: Seat) -> None:
        self._seats.remove(seat)
        task = asyncio.get_running_loop().create_task(seat.worker.close())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


class CodexBackend:
    """A configured Codex model."""

    def __init__(self, id: str, options: CodexOptions | None = None) -> None:
        self.id = id
        self._text_only = replace(_TEXT_ONLY, dialects=(options.dialects if options else None) or ())
        self.options = options or CodexOptions()
        self.home: CodexHome | None = None
        self.pool: Pool | None = None
        self._outdated: list[Pool] = []
        self._preparing = asyncio.Lock()

    @property
    def strategy(self) -> Strategy:
        if self.home is None:
            return STRATEGIES[self.options.tools]
        return strategy_of(self.options, self.home.features)

    @property
    def capabilities(self) -> Capabilities:
        return self._text_only if self.strategy == "emulated" else _NATIVE

    @property
    def aliases(self) -> Sequence[str]:
        return tuple(f"{self.id}-{effort}" for effort in self.options.efforts)

    def alias(self, name: str) -> str | None:
        if name in self.aliases:
            return name.removeprefix(f"{self.id}-")
        found = _KNOWN.fullmatch(name)
        effort = (found[1] or "").lower() if found else None
        return effort and _SHORT.get(effort, effort)

    async def prepare(self) -> None:
        """Finds the installed version and writes the Codex home. Processes start with the first turn."""
        if self.pool is None:
            await self._renew(None)

    async def _renew(self, outdated: Pool | None) -> None:
        """Writes the Codex home for the version that is now installed, and starts a new pool.

        `outdated`: the pool of the earlier version, or None at the start. Its runs continue to their end.
        """
        async with self._preparing:
            if self.pool is None or self.pool is outdated:
                self.home = await prepare_home(self.options)
                self.pool = Pool(self.options, self.home)
                if outdated is not None:
                    self._outdated.append(outdated)

    async def ready(self) -> bool:
        if self.pool is not None and self.pool.workers:
            return True
        return shutil.which(expanduser(self.options.bin)) is not None

    async def close(self) -> None:
        pools = [*self._outdated, *([self.pool] if self.pool is not None else [])]
        self.pool = None
        for pool in pools:
            await pool.close()
        self._outdated.clear()

    def open(self, turn: Turn) -> LiveRun:
        if self.home is not None and not self.home.features.native_tools:
            raise ToolwireError("backend", f"Codex {self.home.version} cannot wait for the client's tools.")
        return self._run(turn)

    def run(self, turn: Turn) -> AsyncGenerator[Batch, None]:
        return one_response(self._run, turn, self.prepare)

    def _run(self, turn: Turn) -> LiveRun:
        assert self.home is not None  # `prepare` has been called before
        return CodexRun(turn, self.options, self.home, self._thread)

    async def _thread(self) -> Thread:
        """Returns a new Codex thread on a worker that is logged in."""
        for last in (False, True):
            seat = await self._lease()
            try:
                if self.options.provider is None:
                    await seat.worker.require_login()
                return Thread(seat)
            except BaseException as error:
                # A process does not notice a newer login: try once more with a new process.
                login = seat.worker.home.path / "auth.json"
                again = isinstance(error, ToolwireError) and login.exists()
                seat.retired = seat.retired or (again and not last)
                seat.release(False)
                if last or not again:
                    raise
        raise AssertionError("unreachable")

    async def _lease(self) -> Seat:
        await self.prepare()
        pool = self.pool
        assert pool is not None
        try:
            return await pool.lease()
        except Outdated:
            await self._renew(pool)
            assert self.pool is not None
            return await self.pool.lease()


def lacking(options: CodexOptions) -> tuple[str, str] | None:
    """Returns what is missing (the command of Codex) and how to get it; None if it is installed."""
    if shutil.which(expanduser(options.bin)) is None:
        return f"there is no command {options.bin!r}", "npm install -g @openai/codex"
    return None


async def inspect(options: CodexOptions) -> dict[str, Any]:
    """Returns the facts for `toolwire doctor`, without a request to a model.

    `logged_in` is None if it is unknown, or if the provider is not OpenAI. `problem` is None or one line.
    """
    facts: dict[str, Any] = dict.fromkeys(("version", "strategy", "logged_in", "problem"))
    facts["installed"] = False
    try:
        find_binary(options)
        facts["installed"] = True
        home = await prepare_home(options)
        facts.update(version=str(home.version), strategy=strategy_of(options, home.features))
        worker = CodexWorker(home)
        try:
            async with home.warming():
                await worker.start(options.start_timeout_s)
            if options.provider is None:
                facts["logged_in"] = (await worker.account()).account is not None
                facts["problem"] = None if facts["logged_in"] else f"Codex is not logged in. {LOG_IN}"
        finally:
            await worker.close()
    except ToolwireError as error:
        facts["problem"] = error.failure.message
    return facts

"""Several worker processes that accept connections on the same sockets.

The parent binds the sockets and supervises the workers.

- A worker that dies is restarted, after a pause that grows while it keeps dying. If a worker dies before all
  workers have been ready once, the server does not start.
- The parent sends every stop signal to all workers. Each worker has its own process group, so it gets Ctrl-C
  only once.
- When the parent dies, its workers finish their running requests and end.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

from toolwire.core.errors import ToolwireError
from toolwire.settings.types import ConfigError

FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 10.0
SETTLED_S = 30.0
"""If a worker has run for longer than this, its count of failures starts from 0 again."""
MARGIN_S = 15.0
"""How many seconds after the drain time the parent kills workers that still run."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)

log = logging.getLogger("toolwire.workers")
Report = Callable[[dict[str, Any]], None]
"""A function with which a worker sends a dict to the parent."""


@dataclass(slots=True)
class WorkerProcess:
    """The parent's record of a worker.

    `pid`: 0 while the worker does not run. `due`: the time at which a worker that does not run is started.
    `pipe`: the pipe on which the worker reports that it is ready, or its error.
    """

    number: int
    pid: int = 0
    pipe: int = -1
    unread: bytes = b""
    ready: bool = False
    started: float = 0.0
    failures: int = 0
    due: float = 0.0


class Workers:
    """Runs `work(number, report, lifeline)` in each worker process.

    `report` sends a dict to the parent. `lifeline` is a pipe that closes when the parent ends. `on_ready` is
    called once, when all workers are ready, with the dict that worker 0 has reported. `on_stop` is called
    once, at the first signal to stop.
    """

    def __init__(
        self,
        count: int,
        work: Callable[[int, Report, int], int],
        on_ready: Callable[[dict[str, Any]], None],
        on_stop: Callable[[], None],
    ):
        self._workers = [WorkerProcess(number) for number in range(count)]
        self._work = work
        self._on_ready = on_ready
        self._on_stop = on_stop
        self._selector = selectors.DefaultSelector()
        self._signals: list[int] = []
        self._stopping_until: float | None = None
        self._all_ready = False
        self._first_report: dict[str, Any] = {}
        self._status = 0
        self._problem = ""
        self._lifeline = (-1, -1)

    def run(self, drain_s: float) -> int:
        """Runs the workers until they have ended after a signal. Returns the exit status.

        Raises `ConfigError` if a worker cannot start.
        """
        woken, waker = socket.socketpair()
        for end in (woken, waker):
            end.setblocking(False)
        self._lifeline = os.pipe()
        previous = [(number, signal.signal(number, self._note)) for number in SIGNALS]
        wakeup = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        self._selector.register(woken, selectors.EVENT_READ)
        try:
            while self._stopping_until is None or any(worker.pid for worker in self._workers):
                self._start_due()
                self._wait(woken)
                self._handle_signals(drain_s)
                self._reap()
        finally:
            self._kill_all()
            signal.set_wakeup_fd(wakeup)
            for number, handler in previous:
                signal.signal(number, handler)
            self._selector.close()
            for descriptor in self._lifeline:
                os.close(descriptor)
            woken.close()
            waker.close()
        if self._problem:
            raise ConfigError(self._problem)
        return self._status

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self._signals.append(number)

    # --- starting -------------------------------------------------------------------------------------------

    def _start_due(self) -> None:
        now = time.monotonic()
        for worker in self._workers:
            if not worker.pid and worker.due <= now and self._stopping_until is None:
                self._start(worker)

    def _start(self, worker: WorkerProcess) -> None:
        reading, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if not pid:
            self._run_worker(worker.number, writing, reading)
        os.close(writing)
        with suppress(OSError):  # the worker calls setpgid too, because either process may be first
            os.setpgid(pid, pid)
        worker.pid, worker.pipe, worker.started = pid, reading, time.monotonic()
        worker.unread, worker.ready = b"", False
        self._selector.register(reading, selectors.EVENT_READ, worker)

    def _run_worker(self, number: int, pipe: int, parents_end: int) -> None:
        """Runs in the new process and never returns."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            for each in SIGNALS:
                signal.signal(each, signal.SIG_DFL)
            with suppress(OSError):
                os.setpgid(0, 0)
            others = [other.pipe for other in self._workers if other.pid]
            for descriptor in (parents_end, self._lifeline[1], *others):
                os.close(descriptor)

            def report(facts: dict[str, Any]) -> None:
                with suppress(OSError):
                    os.write(pipe, json.dumps(facts).encode() + b"\n")

            try:
                status = self._work(number, report, self._lifeline[0])
            except (ConfigError, ToolwireError) as error:
                report({"error": " ".join(str(error).split())})
                status = 2
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    # --- supervising ----------------------------------------------------------------------------------------

    def _wait(self, woken: socket.socket) -> None:
        """Waits for a report, a signal, or the time of the next restart or kill."""
        if self._stopping_until is not None:
            times = [self._stopping_until]
        else:
            times = [worker.due for worker in self._workers if not worker.pid]
        for key, _ in self._selector.select(max(0.0, min(times) - time.monotonic()) if times else None):
            if key.data is None:
                with suppress(BlockingIOError):
                    woken.recv(4096)
            else:
                self._read(key.data)

    def _read(self, worker: WorkerProcess) -> None:
        data = os.read(worker.pipe, 65536)
        if not data:
            self._close_pipe(worker)
        *lines, worker.unread = (worker.unread + data).split(b"\n")
        for line in lines:
            report = json.loads(line)
            if "error" in report:
                self._cannot_start(worker, report["error"])
            else:
                worker.ready = True
                if worker.number == 0 and not self._all_ready:
                    self._first_report = report
        if not self._all_ready and all(each.ready for each in self._workers):
            self._all_ready = True
            self._on_ready(self._first_report)

    def _close_pipe(self, worker: WorkerProcess) -> None:
        if worker.pipe >= 0:
            self._selector.unregister(worker.pipe)
            os.close(worker.pipe)
            worker.pipe = -1

    def _reap(self) -> None:
        for worker in self._workers:
            if not worker.pid:
                continue
            pid, raw = os.waitpid(worker.pid, os.WNOHANG)
            if not pid:
                continue
            if worker.pipe >= 0:
                self._read(worker)
                self._close_pipe(worker)
            status = os.waitstatus_to_exitcode(raw)
            how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
            if self._stopping_until is not None:
                self._status = max(self._status, status if status >= 0 else 1)
            elif not self._all_ready:
                self._cannot_start(worker, f"worker {worker.number} {how} while starting")
            else:
                self._restart_later(worker, how)
            worker.pid = 0

    def _restart_later(self, worker: WorkerProcess, how: str) -> None:
        now = time.monotonic()
        worker.failures = 0 if now - worker.started > SETTLED_S else worker.failures + 1
        wait = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** max(0, worker.failures - 1))
        worker.due = now + wait
        log.warning("worker %d (process %d) %s; it restarts in %g s", worker.number, worker.pid, how, wait)

    def _cannot_start(self, worker: WorkerProcess, problem: str) -> None:
        """Stops the server because a worker cannot start.

        If all workers have been ready before, only logs the problem, because the worker is started again.
        """
        if self._all_ready:
            log.error("worker %d cannot start: %s", worker.number, problem)
        elif not self._problem:
            self._problem = problem
            self._signals.append(signal.SIGTERM)

    # --- stopping -------------------------------------------------------------------------------------------

    def _handle_signals(self, drain_s: float) -> None:
        signals, self._signals = self._signals, []
        for number in signals:
            if self._stopping_until is None:
                self._stopping_until = time.monotonic() + drain_s + MARGIN_S
                self._on_stop()
            self._send(number)
        if self._stopping_until is not None and time.monotonic() >= self._stopping_until:
            self._send(signal.SIGKILL)
            self._stopping_until = time.monotonic() + 1.0

    def _send(self, number: int) -> None:
        for worker in self._workers:
            if worker.pid:
                with suppress(ProcessLookupError):
                    os.kill(worker.pid, number)

    def _kill_all(self) -> None:
        """Kills all workers that still run. Also called when the parent ends because of an error."""
        self._send(signal.SIGKILL)
        for worker in self._workers:
            if worker.pid:
                with suppress(ChildProcessError):
                    os.waitpid(worker.pid, 0)
                worker.pid = 0
            self._close_pipe(worker)

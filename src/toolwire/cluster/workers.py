"""Several worker processes on one set of sockets. The parent binds them, starts the workers and watches over them; it serves nothing itself.

Rules: a worker that dies is started again, after a wait that grows while it keeps dying. Signals go from the parent to all of them, in process groups
of their own, so that a Ctrl-C reaches each of them once. A worker whose parent is gone drains and ends. Where one can not start at all, none does.
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
"""A worker that has lived so long starts its count of failures anew."""
MARGIN_S = 15.0
"""What workers may take beyond the time to drain; then they are killed."""

log = logging.getLogger("toolwire.workers")
Tell = Callable[[dict[str, Any]], None]


@dataclass(slots=True)
class WorkerProcess:
    """`pid` 0: it does not run, and is due again at `due`. `post` is the end of a pipe from which it says that it is ready, or why it is not."""

    number: int
    pid: int = 0
    post: int = -1
    said: bytes = b""
    ready: bool = False
    started: float = 0.0
    failures: int = 0
    due: float = 0.0


class Workers:
    """`work` runs in each worker with its number, the way to tell the parent, and a pipe that ends with the parent; it gives the exit status.

    `on_ready` is told once what the first worker had to say, when all are there; `on_stop` closes what the parent holds open for them.
    """

    def __init__(
        self,
        count: int,
        work: Callable[[int, Tell, int], int],
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
        self._announced = False
        self._first_words: dict[str, Any] = {}
        self._status = 0
        self._complaint = ""
        self._lifeline = (-1, -1)

    def run(self, drain_s: float) -> int:
        """Until all workers have ended on a signal. Raises where they could not start."""
        woken, waker = socket.socketpair()
        for end in (woken, waker):
            end.setblocking(False)
        self._lifeline = os.pipe()
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
        previous = [(number, signal.signal(number, self._note)) for number in numbers]
        waking = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        self._selector.register(woken, selectors.EVENT_READ)
        try:
            while not self._over():
                self._start_due()
                self._listen(woken)
                self._obey(drain_s)
                self._reap()
        finally:
            self._kill_all()
            signal.set_wakeup_fd(waking)
            for number, handler in previous:
                signal.signal(number, handler)
            self._selector.close()
            for descriptor in self._lifeline:
                os.close(descriptor)
            woken.close()
            waker.close()
        if self._complaint:
            raise ConfigError(self._complaint)
        return self._status

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self._signals.append(number)

    def _over(self) -> bool:
        return self._stopping_until is not None and not any(worker.pid for worker in self._workers)

    # --- a worker's life -----------------------------------------------------------------------------------------------------------------------

    def _start_due(self) -> None:
        now = time.monotonic()
        for worker in self._workers:
            if not worker.pid and worker.due <= now and self._stopping_until is None:
                self._start(worker)

    def _start(self, worker: WorkerProcess) -> None:
        ours, theirs = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if not pid:
            self._be(worker.number, theirs, ours)
        os.close(theirs)
        with suppress(OSError):  # the worker does it too, whoever is first
            os.setpgid(pid, pid)
        worker.pid, worker.post, worker.said, worker.ready, worker.started = (
            pid,
            ours,
            b"",
            False,
            time.monotonic(),
        )
        self._selector.register(ours, selectors.EVENT_READ, worker)

    def _be(self, number: int, post: int, parents_end: int) -> None:
        """In the new process, which never leaves this function."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            for each in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
                signal.signal(each, signal.SIG_DFL)
            with suppress(OSError):
                os.setpgid(0, 0)
            for descriptor in (
                parents_end,
                self._lifeline[1],
                *(other.post for other in self._workers if other.pid),
            ):
                os.close(descriptor)

            def tell(what: dict[str, Any]) -> None:
                with suppress(OSError):
                    os.write(post, json.dumps(what).encode() + b"\n")

            try:
                status = self._work(number, tell, self._lifeline[0])
            except (ConfigError, ToolwireError) as error:
                tell({"error": " ".join(str(error).split())})
                status = 2
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _listen(self, woken: socket.socket) -> None:
        """Waits for something to happen: a word of a worker's, a signal, or the time at which something is due."""
        now = time.monotonic()
        times = [worker.due for worker in self._workers if not worker.pid and self._stopping_until is None]
        times += [self._stopping_until] if self._stopping_until is not None else []
        for key, _ in self._selector.select(max(0.0, min(times) - now) if times else None):
            if key.data is None:
                with suppress(BlockingIOError):
                    woken.recv(4096)
            else:
                self._hear(key.data)

    def _hear(self, worker: WorkerProcess) -> None:
        said = os.read(worker.post, 65536)
        if not said:
            self._deafen(worker)
        *lines, worker.said = (worker.said + said).split(b"\n")
        for line in lines:
            told = json.loads(line)
            if "error" in told:
                self._cannot_start(worker, told["error"])
            else:
                worker.ready = True
                if worker.number == 0 and not self._announced:
                    self._first_words = told
        if not self._announced and all(each.ready for each in self._workers):
            self._announced = True
            self._on_ready(self._first_words)

    def _deafen(self, worker: WorkerProcess) -> None:
        if worker.post >= 0:
            self._selector.unregister(worker.post)
            os.close(worker.post)
            worker.post = -1

    def _reap(self) -> None:
        for worker in self._workers:
            if not worker.pid:
                continue
            pid, raw = os.waitpid(worker.pid, os.WNOHANG)
            if not pid:
                continue
            if worker.post >= 0:
                self._hear(worker)
                self._deafen(worker)
            status = os.waitstatus_to_exitcode(raw)
            how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
            if self._stopping_until is not None:
                self._status = max(self._status, status if status >= 0 else 1)
            elif not self._announced:
                self._cannot_start(worker, f"worker {worker.number} {how} while it started")
            else:
                self._start_later(worker, how)
            worker.pid = 0

    def _start_later(self, worker: WorkerProcess, how: str) -> None:
        now = time.monotonic()
        worker.failures = 0 if now - worker.started > SETTLED_S else worker.failures + 1
        wait = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** max(0, worker.failures - 1))
        worker.due = now + wait
        log.warning(
            "worker %d (process %d) %s: it is started again in %g s", worker.number, worker.pid, how, wait
        )

    def _cannot_start(self, worker: WorkerProcess, why: str) -> None:
        """Before all were there, that is the end; later it is one worker's trouble, who will try again."""
        if self._announced:
            log.error("worker %d can not start: %s", worker.number, why)
        elif not self._complaint:
            self._complaint = why
            self._signals.append(signal.SIGTERM)

    # --- the end -------------------------------------------------------------------------------------------------------------------------------

    def _obey(self, drain_s: float) -> None:
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
        """Whatever went wrong in the parent, no worker is left behind."""
        self._send(signal.SIGKILL)
        for worker in self._workers:
            if worker.pid:
                with suppress(ChildProcessError):
                    os.waitpid(worker.pid, 0)
                worker.pid = 0
            self._deafen(worker)

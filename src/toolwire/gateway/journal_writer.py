"""The thread that reads and writes the journal's files: whoever tells it something never waits, and what a disk can not follow is left out."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from toolwire.gateway.segments import Segments, TurnRecord
from toolwire.trace import Trace

log = logging.getLogger("toolwire.journal")
CLOSE_S = 5.0
GATHER_S = 0.1
"""So long it waits for more turns before it writes."""
SWEEP_S = 3600.0
"""So often the files are looked through for what is too old, where nothing is written."""


class Writer:
    """The thread that reads and writes the files. It starts with its first work."""

    def __init__(
        self,
        segments: Segments,
        masked: Callable[[TurnRecord], TurnRecord],
        fixture: Callable[[Trace, TurnRecord], list[str]],
        most_turns: int,
        most_bytes: int,
    ) -> None:
        """`masked` gives a turn's line as it may be written, `fixture` its file's lines; at most so many turns, and bytes of whole ones, may wait."""
        self._most_turns, self._most_bytes = most_turns, most_bytes
        self._segments = segments
        self._masked, self._fixture = masked, fixture
        self._waiting: deque[tuple[TurnRecord, Trace | None] | Callable[[], None] | None] = deque()
        self._woken, self._hurry = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._whole_bytes = 0
        self._complained = False

    def put(self, record: TurnRecord, trace: Trace | None) -> None:
        """Never waits. What a disk can not follow is not kept."""
        if len(self._waiting) > self._most_turns:
            self._complain("the disk is too slow for the journal: turns are left out")
            return
        if trace is not None:
            if self._whole_bytes + trace.size > self._most_bytes:
                self._complain("the disk is too slow for the journal: contents of turns are left out")
                trace = None
            else:
                self._whole_bytes += trace.size
        self._send((record, trace))

    def _complain(self, words: str) -> None:
        if not self._complained:
            log.warning("%s", words)
        self._complained = True

    def run(self, work: Callable[[], None]) -> None:
        self._send(work)
        self._hurry.set()

    def _send(self, what: tuple[TurnRecord, Trace | None] | Callable[[], None] | None) -> None:
        self._waiting.append(what)
        if not self._woken.is_set():  # waking a thread costs more than all else here: it is woken for many turns at once
            self._woken.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="toolwire-journal", daemon=True)
            self._thread.start()

    def settle(self) -> None:
        done = threading.Event()
        self.run(done.set)
        done.wait(CLOSE_S)

    def close(self) -> None:
        thread = self._thread
        if thread is not None:
            self._send(None)
            self._hurry.set()
            thread.join(CLOSE_S)
            self._thread = None

    def _run(self) -> None:
        while True:
            if not self._woken.wait(SWEEP_S if self._segments.max_age_s else None):
                self._safely(self._segments.sweep)
                continue
            self._hurry.wait(GATHER_S)
            self._hurry.clear()
            self._woken.clear()
            batch = [self._waiting.popleft() for _ in range(len(self._waiting))]
            turns = [one for one in batch if isinstance(one, tuple)]
            self._safely(lambda turns=turns: self._segments.append(self._masked(record) for record, _ in turns))  # type: ignore[misc]
            for record, trace in turns:
                if trace is not None:
                    self._whole_bytes -= trace.size
                    self._safely(lambda trace=trace, record=record: self._segments.keep(record.id, self._fixture(trace, record)))  # type: ignore[misc]
            for work in batch:
                if work is not None and not isinstance(work, tuple):
                    self._safely(work)
            if None in batch:
                return

    def _safely(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:
            log.exception("the journal could not be read or written")

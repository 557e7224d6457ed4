"""The journal on disk: a folder of append-only files that only the owner can read.

    journal/segment-MILLISECONDS-PID.jsonl    one line per turn that has ended, without messages
    journal/turns/ID.jsonl                    a whole turn as a fixture, with `journal.contents = "disk"`

Every file starts with a line that names its format and version. A file of another version is ignored, and an
incomplete line is skipped. All files together stay below a size limit: the oldest are deleted first. With
`journal.max_days`, a file is deleted when its last line is older than this limit. A new file is started at
least once a day, so no line is kept much longer than the limit. One thread runs this code, never the event
loop.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from math import inf
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from toolwire.observe.trace import Trace

log = logging.getLogger("toolwire.journal")
HEADER = b'{"format":"toolwire-journal","version":1}\n'
LARGEST_SEGMENT = 4 * 1024 * 1024
DAY_S = 86_400.0
SWEEP_EVERY_S = 600.0
_ID = re.compile(r"turn_[0-9a-f]{1,64}")


class TurnRecord(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The journal's record of a turn, without messages: one line of a file.

    `at`: Unix time. `error`: the kind of failure. `Journal._masked` masks the fields whose text a client can
    choose. A new field of this kind must be added there. `TurnLine` in `surfaces/web/types.d.ts` is the same
    type for the web pages.
    """

    id: str
    at: float
    state: str = "ended"
    request_id: str = ""
    key: str = ""
    api: str = "chat"
    model: str = ""
    backend: str = ""
    strategy: str = "none"
    kind: str = "new"
    stream: bool = False
    status: int | None = None
    finish: str | None = None
    error: str | None = None
    cancelled: bool = False
    calls: tuple[str, ...] = ()
    call_ids: tuple[str, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    first_byte_ms: float | None = None
    duration_ms: float | None = None
    report: str = ""
    dropped: dict[str, int] | None = None
    parked_ms: float | None = None
    """How long the run was parked before this turn resumed it."""
    resumed_from: str | None = None
    parked: bool = False
    """Whether the turn ended with calls, and its run waits for their results."""

    def as_json(self) -> dict[str, Any]:
        """Returns all fields, including those with default values, which a line in the file omits."""
        lists = {"calls": list(self.calls), "call_ids": list(self.call_ids)}
        return {**msgspec.structs.asdict(self), **lists, "dropped": dict(self.dropped or {})}


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(TurnRecord).decode


class Segments:
    def __init__(
        self, folder: Path, limit: int, max_days: float = 0, clock: Callable[[], float] = time.time
    ) -> None:
        """`limit`: the maximum number of bytes of all files together.

        `max_days`: the age in days at which a turn is deleted; 0: no limit.
        """
        self.folder = folder
        self.max_age_s = max_days * DAY_S
        self._clock = clock
        self._began = 0.0  # of the current segment
        self._sweep_at = 0.0
        self._limit = limit
        self._largest = max(1, min(LARGEST_SEGMENT, limit // 8))
        self._current: Path | None = None
        self._size = 0  # of the current segment
        self._total = inf  # bytes of all files; `_prune` counts them before the first comparison
        self._complained = False

    # --- writing ---

    def append(self, records: Iterable[TurnRecord]) -> None:
        """Appends lines to the current file. If the disk is full or read-only, this is logged once."""
        lines = b"".join(_encode(record) + b"\n" for record in records)
        if lines:
            self._trying(lambda: self._append(lines))

    def _append(self, lines: bytes) -> None:
        is_full = self._size + len(lines) > self._largest
        if self._current is None or is_full or self._is_old() or not self._current.exists():
            self._began = self._clock()
            self._current = self.folder / f"segment-{int(self._began * 1000):013d}-{os.getpid()}.jsonl"
            self._size = 0
            lines = HEADER + lines
        self._write(self._current, os.O_APPEND, lines)
        self._size += len(lines)

    def keep(self, id: str, fixture: Iterable[str]) -> None:
        """Writes the file of a whole turn."""
        content = "".join(fixture).encode()
        if _ID.fullmatch(id) and len(content) <= self._limit:
            self._trying(lambda: self._write(self.folder / "turns" / f"{id}.jsonl", os.O_EXCL, content))

    def _write(self, path: Path, how: int, content: bytes) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.parent.stat().st_mode & 0o077:
            path.parent.chmod(0o700)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | how | getattr(os, "O_NOFOLLOW", 0), 0o600)
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(descriptor, view) :]
        except OSError:
            self._current = None  # its last line may be incomplete
            if how == os.O_EXCL:
                path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        self._total += len(content)
        if self._total > self._limit:
            self._prune()
        if self.max_age_s and self._clock() >= self._sweep_at:
            self._sweep_at = self._clock() + SWEEP_EVERY_S
            self.sweep()

    def _trying(self, work: Callable[[], None]) -> None:
        try:
            work()
            self._complained = False
        except OSError as error:
            if not self._complained:
                log.error("the journal cannot be written to %s: %s", self.folder, error.strerror or error)
            self._complained = True

    # --- limits ---

    def _files(self) -> list[tuple[float, int, Path]]:
        """Returns all files of the journal as (time of the last write, size, path), oldest first."""
        found = []
        for path in (*self.folder.glob("segment-*.jsonl"), *self.folder.glob("turns/turn_*.jsonl")):
            try:
                about = path.lstat()
            except OSError:
                continue  # another process deleted it
            found.append((about.st_mtime, about.st_size, path))
        return sorted(found)

    def _is_old(self) -> bool:
        return bool(self.max_age_s) and not 0 <= self._clock() - self._began < min(DAY_S, self.max_age_s)

    def sweep(self) -> None:
        """Deletes files that are older than `max_days`."""
        if not self.max_age_s:
            return
        due = self._clock() - self.max_age_s
        for written, size, path in self._files():
            if written < due:
                path.unlink(missing_ok=True)
                self._total -= size
                if path == self._current:
                    self._current = None

    def _prune(self) -> None:
        files = self._files()
        self._total = sum(size for _, size, _ in files)
        for _, size, path in files:
            if self._total <= self._limit:
                break
            if path != self._current:
                path.unlink(missing_ok=True)
                self._total -= size

    # --- reading ---

    def load(self, most: int) -> list[TurnRecord]:
        """Returns the last turns, at most `most`, oldest first."""
        found: list[TurnRecord] = []
        for path in sorted(self.folder.glob("segment-*.jsonl"), reverse=True):
            found += _records(path)
            if len(found) >= most:
                break
        return sorted(found, key=attrgetter("at"))[-most:]

    def fixture(self, id: str) -> list[bytes] | None:
        """Returns the lines of a whole turn, or None if it is not on disk."""
        if not _ID.fullmatch(id):
            return None
        try:
            return (self.folder / "turns" / f"{id}.jsonl").read_bytes().splitlines()
        except OSError:
            return None


def _records(path: Path) -> Iterator[TurnRecord]:
    try:
        header, *lines = path.read_bytes().splitlines()
    except (OSError, ValueError):
        return
    if header != HEADER.strip():
        return
    for line in lines:
        try:
            yield _decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue  # incomplete after a crash, or damaged


# --- the writing thread ---
#
# The thread that reads and writes the journal's files. Turns never wait for the thread. If the disk is too
# slow, some turns are not written.

MOST_WAITING, MOST_WAITING_BYTES = 10_000, 16 * 1024 * 1024
"""How many turns, and how many bytes of whole turns, may wait to be written."""
CLOSE_S = 5.0
GATHER_S = 0.1
"""How long the thread collects turns before it writes them."""
SWEEP_S = 3600.0
"""How often old files are deleted while nothing is written."""


class JournalWriter:
    """The thread that reads and writes the files of the journal.

    The thread starts when it is needed for the first time.
    """

    def __init__(
        self,
        segments: Segments,
        masked: Callable[[TurnRecord], TurnRecord],
        fixture: Callable[[Trace, TurnRecord], list[str]],
    ) -> None:
        """`masked` masks secrets in a record. `fixture` returns the lines of the file with a whole turn."""
        self._segments = segments
        self._masked, self._fixture = masked, fixture
        self._waiting: deque[tuple[TurnRecord, Trace | None] | Callable[[], None] | None] = deque()
        self._woken, self._hurry = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._whole_bytes = 0
        self._complained = False

    def put(self, record: TurnRecord, trace: Trace | None) -> None:
        """Queues a turn without waiting. If too many turns wait already, the turn is not written.

        If the waiting turns are too large, only the turn's record is written, without the contents (`trace`).
        """

        if len(self._waiting) > MOST_WAITING:
            self._complain("the disk is too slow for the journal: some turns are not written")
            return
        if trace is not None:
            if self._whole_bytes + trace.size > MOST_WAITING_BYTES:
                self._complain(
                    "the disk is too slow for the journal: some turns are written without contents"
                )
                trace = None
            else:
                self._whole_bytes += trace.size
        self._waiting.append((record, trace))
        if not self._woken.is_set():  # waking a thread is expensive, so this is done once for many turns
            self._wake()

    def _complain(self, words: str) -> None:
        if not self._complained:
            log.warning("%s", words)
        self._complained = True

    def run(self, work: Callable[[], None]) -> None:
        self._waiting.append(work)
        self._wake()
        self._hurry.set()

    def _wake(self) -> None:
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
            self._waiting.append(None)
            self._wake()
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
            self._safely(self._segments.append, (self._masked(record) for record, _ in turns))
            for record, trace in turns:
                if trace is not None:
                    self._whole_bytes -= trace.size
                    self._safely(self._write_whole, record, trace)
            for work in batch:
                if work is not None and not isinstance(work, tuple):
                    self._safely(work)
            if None in batch:
                return

    def _write_whole(self, record: TurnRecord, trace: Trace) -> None:
        self._segments.keep(record.id, self._fixture(trace, record))

    def _safely(self, work: Callable[..., None], *given: Any) -> None:
        try:
            work(*given)
        except Exception:
            log.exception("the journal could not be read or written")

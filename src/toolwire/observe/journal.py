"""The journal: records the last turns, so that a person can see what happened in them.

- Recording never changes a turn. An error in this module is logged, and the turn continues.
- The contents of recent turns are in memory, up to a maximum number of bytes and of turns. Above a limit, the
  journal drops the oldest turn of the API key with the most bytes or turns, so that one key does not displace
  the turns of others.
- One line per turn, without messages, is written to disk. With `journal.contents = "disk"`, whole turns are
  written too; with "off" there is no journal.
- The gateway records a running turn in a `Trace`. From the `Trace` and the `TurnSummary`, `_record` creates
  the turn's line, a `TurnRecord` (`journal_files.py`).
- The event loop never waits for a disk: a separate thread formats and writes.
- Secrets are masked in everything that leaves memory.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from sys import intern
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from toolwire.core.ids import is_own, random_id
from toolwire.observe.fixture import masked, read, write
from toolwire.observe.journal_files import DAY_S, JournalWriter, Segments, TurnRecord
from toolwire.observe.masking import Mask
from toolwire.observe.recording import Recording, RecordingError, recording_of
from toolwire.observe.trace import Trace
from toolwire.wire.sse import scrub

if TYPE_CHECKING:
    from toolwire.core.ids import IdFactory
    from toolwire.core.turn import Api
    from toolwire.gateway.records import Caller, TurnSummary
    from toolwire.settings.types import Settings

log = logging.getLogger("toolwire.journal")
FOLDER = "journal"
MOST_BYTES = 16 * 1024 * 1024
MOST_TRACES = 200
MOST_RECORDS = 10_000
MOST_RUNNING = 4096
LONGEST_NAME = 128
LOAD_S = 10.0
OPENED = 2
"""How many turns stay cached after they were shown, because formatting a long turn takes a moment."""
Listener = Callable[[Callable[[], dict[str, Any]]], None]
"""A function that the journal calls for each change of a turn.

Its argument is a function that returns the turn's record.
"""
Contents = Literal["memory", "disk", "gone"]


class Journal:
    """The journal of one gateway.

    `listeners` are called when a turn has been planned, and again when it has ended.
    """

    def __init__(
        self,
        settings: Settings,
        folder: Path | None,
        *,
        most_bytes: int = MOST_BYTES,
        most_traces: int = MOST_TRACES,
    ) -> None:
        """`folder`: the folder for the files; None: nothing is written to disk."""
        limit = int(settings.journal.max_mb * 1024 * 1024)
        self.folder = folder if limit else None
        self.listeners: list[Listener] = []
        self.mask = Mask.of(settings, os.environ)
        self._name = lru_cache(1024)(self.mask.text)
        self._tools = settings.tools
        self._whole = settings.journal.contents == "disk"
        self._most_bytes, self._most_traces = most_bytes, most_traces
        self.held_bytes = 0
        self._bytes_by_key: dict[str, int] = defaultdict(int)
        self._turns_by_key: dict[str, int] = defaultdict(int)
        """The number of turns in `_kept`, by key."""
        self._running: dict[str, Trace] = {}
        self._kept: OrderedDict[str, Trace] = OrderedDict()
        self._records: deque[TurnRecord] = deque(maxlen=MOST_RECORDS)
        self._opened: OrderedDict[str, Recording] = OrderedDict()
        self._loading: threading.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._max_age_s = settings.journal.max_days * DAY_S
        self._segments: Segments | None = None
        self._writer: JournalWriter | None = None
        if self.folder is not None:
            self._segments = Segments(self.folder, limit, settings.journal.max_days)
            self._writer = JournalWriter(self._segments, self._masked, self._fixture)

    @classmethod
    def of(cls, settings: Settings, store_path: str | None) -> Journal | None:
        """Returns the journal in the store's folder, or None if the settings disable it.

        If the store has no file, the journal is only in memory.
        """
        if settings.journal.contents == "off":
            return None
        beside = None if store_path in (None, ":memory:") else Path(str(store_path)).parent / FOLDER
        return cls(settings, beside)

    # --- the life of a turn ---

    def begin(
        self,
        api: Api,
        raw: bytes,
        caller: Caller,
        stored: bool = False,
        ids: IdFactory = random_id,
        clock: Callable[[], float] = time.time,
    ) -> Trace | None:
        """Starts to record a turn and returns its trace. Returns None if the turn cannot be recorded.

        `ids` and `clock`: the functions that return new ids and the time. The turn calls them through the
        trace, which records the results.
        """
        try:
            if len(self._running) >= MOST_RUNNING:
                self._forget(self._running.pop(next(iter(self._running))))
            trace = Trace(random_id("turn_"), api, raw, caller, time.time(), self._grown, stored, ids, clock)
            self._running[trace.id] = trace
            return trace
        except Exception:
            log.exception("a turn could not be recorded")
            return None

    def planned(self, trace: Trace) -> None:
        """Calls the listeners because the turn has been planned."""
        if self.listeners:
            self._notify(lambda: _record(trace, None))

    def end(self, summary: TurnSummary) -> None:
        """Moves a turn that has ended from the running turns to the turns that the journal keeps."""
        trace = summary.trace
        if trace is None:
            return
        try:
            self._weigh(trace, trace.end())
            self._running.pop(trace.id, None)
            record = _record(trace, summary)
            self._records.append(record)
            self._kept[trace.id] = trace
            self._turns_by_key[trace.caller.key_id] += 1
            if len(self._kept) > self._most_traces or self.held_bytes > self._most_bytes or self._max_age_s:
                self._make_room()
            if self._writer is not None:
                self._writer.put(record, trace.snapshot() if self._whole and trace.raw is not None else None)
            if self.listeners:
                self._notify(lambda: record)
        except Exception:
            log.exception("a turn that has ended could not be added to the journal")

    def _notify(self, record: Callable[[], TurnRecord]) -> None:
        for listener in self.listeners:
            try:
                listener(lambda: self.line(record()))
            except Exception:
                log.exception("a listener of the journal failed")

    # --- bounds ---

    def _grown(self, trace: Trace, size: int) -> bool:
        self._weigh(trace, size)
        if self.held_bytes > self._most_bytes:
            self._make_room(trace)
        return self.held_bytes <= self._most_bytes

    def _weigh(self, trace: Trace, size: int) -> None:
        self.held_bytes += size
        self._bytes_by_key[trace.caller.key_id] += size

    def _make_room(self, growing: Trace | None = None) -> None:
        """Drops turns of the API key with the most turns or bytes, until the journal is within its limits.

        Turns that have ended are dropped first, then running turns. `growing` is the running turn that needs
        the room. If it belongs to that key, no running turn is dropped; the caller stops recording `growing`
        instead.
        """
        if self._max_age_s:
            self._forget_before(time.time() - self._max_age_s)
        while len(self._kept) > self._most_traces:
            oldest = _oldest_of_most(self._kept, self._turns_by_key)
            self._forget_kept(oldest or next(iter(self._kept.values())))
        while self.held_bytes > self._most_bytes:
            if kept := _oldest_of_most(self._kept, self._bytes_by_key):
                self._forget_kept(kept)
                continue
            running = _oldest_of_most(self._running, self._bytes_by_key) if growing else None
            if growing is None or running is None or running.caller.key_id == growing.caller.key_id:
                return
            self._forget(self._running.pop(running.id))

    def _forget_kept(self, trace: Trace) -> None:
        """Drops a turn that has ended. Pages that show it at the moment have their own copy."""
        del self._kept[trace.id]
        self._weigh(trace, -trace.size)
        self._turns_by_key[trace.caller.key_id] -= 1

    def _forget_before(self, due: float) -> None:
        """Drops turns that began before `due`."""
        while self._kept and (oldest := next(iter(self._kept.values()))).at < due:
            self._forget_kept(oldest)
        while self._records and self._records[0].at < due:
            self._records.popleft()

    def _forget(self, trace: Trace) -> None:
        self._weigh(trace, -trace.size)
        trace.forget()

    # --- reading ---

    def records(self) -> list[TurnRecord]:
        """Returns the last turns, including running ones, newest first."""
        self._make_room()
        running = [_record(trace, None) for trace in list(self._running.values())]
        return sorted((*self._records, *running), key=lambda record: record.at, reverse=True)

    def record(self, id: str) -> TurnRecord | None:
        trace = self._running.get(id)
        if trace is not None:
            return _record(trace, None)
        return next((record for record in reversed(self._records) if record.id == id), None)

    def line(self, record: TurnRecord) -> dict[str, Any]:
        """Returns the record of a turn as a dict, with secrets masked."""
        return self._masked(record).as_json()

    def contents(self, id: str) -> Contents:
        """Returns where the contents of a turn are: in memory, on disk, or nowhere ("gone")."""
        if id in self._kept or id in self._running:
            return "memory"
        return "disk" if self._segments is not None and self._segments.fixture(id) is not None else "gone"

    async def recording(self, id: str) -> Recording | None:
        """Returns a turn with its secrets, for a replay, or None if its contents are not available."""
        record, trace = self.record(id), self._running.get(id) or self._kept.get(id)
        if record is not None and trace is not None:
            return await asyncio.to_thread(recording_of, trace.snapshot(), record.as_json(), self._tools)
        return await asyncio.to_thread(self._from_disk, id)

    async def shown(self, id: str) -> Recording | None:
        """Returns a turn with secrets masked, or None if its contents are not available."""
        if id in self._opened:
            self._opened.move_to_end(id)
            return self._opened[id]
        running = id in self._running
        recording = await self.recording(id)
        if recording is None:
            return None
        recording = await asyncio.to_thread(masked, recording, self.mask)
        if not running:
            self._opened[id] = recording
            if len(self._opened) > OPENED:
                self._opened.popitem(last=False)
        return recording

    def _from_disk(self, id: str) -> Recording | None:
        lines = self._segments.fixture(id) if self._segments is not None else None
        try:
            return read(lines) if lines else None
        except RecordingError:
            return None

    def _masked(self, record: TurnRecord) -> TurnRecord:
        """Masks the ids and names in the `TurnRecord` of a turn, because clients choose them.

        Masked names are cached.
        """
        name, text = self._name, self.mask.text
        return msgspec.structs.replace(
            record,
            request_id=record.request_id if is_own(record.request_id) else text(record.request_id),
            key=name(record.key),
            model=name(record.model),
            calls=tuple([name(call) for call in record.calls]),
            call_ids=tuple([text(id) for id in record.call_ids]),
            report=name(record.report),
        )

    def _fixture(self, trace: Trace, record: TurnRecord) -> list[str]:
        return list(write(masked(recording_of(trace, record.as_json(), self._tools), self.mask)))

    # --- files ---

    def start(self) -> None:
        """Starts to read the files of earlier processes in the background."""
        if self._writer is not None and self._loading is None:
            self._loading = threading.Event()
            with suppress(RuntimeError):  # without a running loop nothing reads the records concurrently
                self._loop = asyncio.get_running_loop()
            self._writer.run(self._load)

    async def loaded(self) -> None:
        """Waits until the files have been read."""
        if self._loading is not None and not self._loading.is_set():
            await asyncio.to_thread(self._loading.wait, LOAD_S)
        await asyncio.sleep(0)  # let the event loop run `_join`

    def _load(self) -> None:
        assert self._segments is not None and self._loading is not None
        try:
            self._segments.sweep()
            known = {record.id for record in list(self._records)}
            earlier = [_shared(one) for one in self._segments.load(MOST_RECORDS) if one.id not in known]
            if self._loop is None:
                self._join(earlier)
            else:
                with suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self._join, earlier)
        finally:
            self._loading.set()

    def _join(self, earlier: list[TurnRecord]) -> None:
        """Adds records from files.

        Runs in the event loop, so that readers never see a partial change.
        """
        self._records = deque((*earlier, *self._records), maxlen=MOST_RECORDS)

    async def settled(self) -> None:
        """Waits until everything recorded so far has been written."""
        if self._writer is not None:
            await asyncio.to_thread(self._writer.settle)

    async def close(self) -> None:
        if self._writer is not None:
            await asyncio.to_thread(self._writer.close)


# --- a turn's line ---


def _record(trace: Trace, summary: TurnSummary | None) -> TurnRecord:
    """Returns the record of the turn, which becomes its line in the journal.

    Without a summary, the turn is still running.
    """
    if summary is None:
        return TurnRecord(
            id=trace.id,
            at=trace.at,
            state="running",
            request_id=trace.caller.request_id,
            key=trace.caller.key_id,
            api=trace.api,
            model=trace.model[:LONGEST_NAME],
            backend=trace.backend_kind,
            strategy=trace.strategy,
            kind=trace.kind,
            stream=trace.stream,
            report=trace.report,
            parked_ms=None if trace.parked_s is None else round(trace.parked_s * 1000, 2),
            resumed_from=trace.resumed_from,
            parked=trace.parked_at is not None,
        )
    return TurnRecord(
        id=trace.id,
        at=trace.at,
        state="ended",
        request_id=summary.request_id,
        key=_name(summary.key_id[:LONGEST_NAME]),
        api=summary.api,
        model=_name(summary.model[:LONGEST_NAME]),
        backend=summary.backend,
        strategy=summary.strategy,
        kind=trace.kind,
        stream=summary.stream,
        status=summary.status,
        finish=summary.finish,
        error=summary.error_kind,
        cancelled=summary.cancelled,
        calls=summary.tool_call_names
        and tuple([_name(name[:LONGEST_NAME]) for name in summary.tool_call_names]),
        call_ids=summary.tool_call_ids and tuple([scrub(id)[:LONGEST_NAME] for id in summary.tool_call_ids]),
        input_tokens=summary.input_tokens,
        output_tokens=summary.output_tokens,
        first_byte_ms=None if summary.first_byte_s is None else round(summary.first_byte_s * 1000, 2),
        duration_ms=round(summary.duration_s * 1000, 2),
        report=intern(summary.report),
        dropped=dict(summary.dropped) if summary.dropped else None,
        parked_ms=None if trace.parked_s is None else round(trace.parked_s * 1000, 2),
        resumed_from=trace.resumed_from,
        parked=trace.parked_at is not None,
    )


@lru_cache(1024)
def _name(text: str) -> str:
    """Returns a name that a client chose, safe to display. Equal names share one string."""
    return intern(scrub(text))


def _shared(record: TurnRecord) -> TurnRecord:
    """Returns a record that was read from a file. Equal texts in different records share one string."""
    names = ("key", "api", "model", "backend", "strategy", "kind", "report", "state")
    return msgspec.structs.replace(
        record,
        **{name: intern(getattr(record, name)) for name in names},
        calls=tuple(map(intern, record.calls)),
    )


def _oldest_of_most(traces: Mapping[str, Trace], counts: dict[str, int]) -> Trace | None:
    """Returns the oldest turn of the key with the highest count; None if this key has no turn."""
    most = max(counts, key=counts.__getitem__, default="")
    for trace in traces.values():
        if trace.caller.key_id == most:
            return trace
    return None

"""What is recorded of one turn while it runs: its two ends, with times, and the few facts that are not in them.

What the backend sent (raw frames, and the events of its runs) and what the client received (bytes) are appended as they
come, together with ids, clock readings and the outcome. Everything between the ends, the decoded turn, the plan and the events of the answer,
is computed again by the same pure code when a person looks at the turn (`recording.py`).

Recording never raises and never changes what it sees. It is bounded by rows and bytes: beyond them it stops, and the
trace says that it was `cut`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from toolwire.core.capabilities import Capabilities, Strategy
    from toolwire.core.events import Event, Failure
    from toolwire.core.ids import IdFactory
    from toolwire.core.turn import Api, Item, Turn
    from toolwire.gateway.plan import Plan
    from toolwire.gateway.records import Caller

log = logging.getLogger("toolwire.journal")
MOST_ROWS = 50_000
MOST_BYTES = 8 * 1024 * 1024
ROW_BYTES, EVENT_BYTES = 150, 120
"""What a row, and an event in it, take besides their texts."""
EACH_BYTES = 32 * 1024
"""The owner is asked for room once for so many bytes."""
READ = "read"
"""The label of bytes that were read from a network."""
FRAME, SENT = -2, -1
"""Kinds of rows besides the numbers of runs: a raw frame of the backend, and bytes that the client received."""


class RecordedRun(NamedTuple):
    """A run of the backend. `how` is `run`, `retry`, `open` or `resume`; `plan` is the number of the plan it served."""

    how: str
    choice: int
    plan: int


@dataclass(slots=True, eq=False, weakref_slot=True)
class Trace:
    """One turn. `grown` is called with every growth in bytes, and returns whether the trace may go on."""

    id: str
    api: Api
    raw: bytes | None
    caller: Caller
    at: float
    grown: Callable[[Trace, int], bool]
    stored: bool = False
    started: float = field(default_factory=perf_counter)
    kind: str = "new"
    backend_id: str = ""
    backend_kind: str = ""
    # what is shown of a turn that runs
    model: str = ""
    stream: bool = False
    strategy: str = "none"
    report: str = ""
    # what is needed to decode and plan the request again
    offers: tuple[tuple[Strategy, Capabilities], ...] = ()
    """What the backend could do, each time that the turn was planned."""
    effort: str | None = None
    open_responses: bool = False
    previous: tuple[Item, ...] | None = None
    """The conversation that the request refers to."""
    references: Mapping[str, Any] | None = None
    images: Mapping[str, str] | None = None
    """Images that were fetched, by their URL."""
    # the two ends
    rows: list[tuple[float, int, Any]] = field(default_factory=list)
    runs: tuple[RecordedRun, ...] = ()
    # the outcome
    committed: bool = False
    """The stream was begun before the backend had said anything."""
    failure: Failure | None = None
    resumed_from: str | None = None
    parked_s: float | None = None
    """How long the run that this turn resumed had waited."""
    parked_at: float | None = None
    """When this turn ended with calls that wait …"""
    waiting: tuple[str, ...] = ()
    """… and their ids."""
    minted: tuple[str, ...] = ()
    clock_readings: tuple[float, ...] = ()
    recording: bool = True
    cut: bool = False
    size: int = 0
    _uncounted: int = 0

    def __post_init__(self) -> None:
        size = len(self.raw or b"")
        if size > MOST_BYTES:
            self.cut, self.raw, size = True, None, 0
        self._uncounted = size
        if size > EACH_BYTES:
            self.weigh()

    # --- once a turn ---------------------------------------------------------------------------------------------------

    def watch(self, ids: IdFactory, clock: Callable[[], float]) -> tuple[IdFactory, Callable[[], float]]:
        """The same ids and the same clock, remembered for a replay."""

        def mint(prefix: str) -> str:
            id = ids(prefix)
            self.minted += (id,)
            return id

        def read() -> float:
            now = clock()
            self.clock_readings += (now,)
            return now

        return mint, read

    def planned(self, turn: Turn, plan: Plan, report: str) -> None:
        """How the turn is served; once more where the backend refused the first strategy."""
        self.offers += (plan.offer,)
        self.model, self.stream, self.effort = turn.model, turn.stream, turn.sampling.effort
        self.open_responses = turn.open_responses
        self.strategy, self.report = plan.strategy, report

    def looked_up(
        self,
        *,
        previous: tuple[Item, ...] | None = None,
        references: Mapping[str, Any] | None = None,
        images: Mapping[str, str] | None = None,
    ) -> None:
        """What the request refers to and does not hold itself."""
        self.previous = previous or self.previous
        self.references, self.images = references or self.references, images or self.images
        self._uncounted += (
            weight(references or {}) + weight(images or {}) + sum(map(_item_bytes, previous or ()))
        )
        self.weigh()

    def resumes(self, turn_id: str, waited_s: float) -> None:
        self.resumed_from, self.parked_s = turn_id or None, waited_s

    def parks(self, calls: list[str]) -> None:
        self.parked_at = perf_counter()
        self.waiting = (*self.waiting, *calls)

    def begin_run(self, how: str, choice: int) -> int:
        """The number of a run that begins: its batches are recorded under it."""
        self.runs += (RecordedRun(how, choice, max(0, len(self.offers) - 1)),)
        return len(self.runs) - 1

    # --- the two ends, once a chunk ------------------------------------------------------------------------------------

    def frame(self, label: str, data: Any) -> None:
        """A raw frame of the backend's wire, as it was read: bytes, text, or an object."""
        if self.recording:
            self.rows.append((perf_counter(), FRAME, (label, data)))
            self._uncounted += ROW_BYTES + (len(data) if type(data) is bytes else weight(data))
            if self._uncounted > EACH_BYTES:
                self.weigh()

    def received(self, run: int, batch: list[Event] | None) -> None:
        """A batch of a run of the backend. None: the gateway ended the run because it stayed silent after its calls."""
        if self.recording:
            self.rows.append((perf_counter(), run, batch))
            self._uncounted += ROW_BYTES
            for event in batch or ():
                text = getattr(event, "text", "") or getattr(event, "delta", "")
                self._uncounted += EVENT_BYTES + len(text)
            if self._uncounted > EACH_BYTES:
                self.weigh()

    def sent(self, block: bytes) -> None:
        """Bytes that the client receives."""
        if self.recording:
            self.rows.append((perf_counter(), SENT, block))
            self._uncounted += ROW_BYTES + len(block)
            if self._uncounted > EACH_BYTES:
                self.weigh()

    # --- the bounds ----------------------------------------------------------------------------------------------------

    def weigh(self) -> None:
        """Asks the owner for the room of what came since the last time."""
        size, self._uncounted = self._uncounted, 0
        if not self.recording or not size:
            return
        self.size += size
        try:
            if not self.grown(self, size) or self.size >= MOST_BYTES or len(self.rows) >= MOST_ROWS:
                self.stop(cut=True)
        except Exception:  # recording never disturbs what it records
            log.exception("a turn cannot be recorded further")
            self.stop(cut=True)

    def stop(self, cut: bool = False) -> None:
        """Nothing more is recorded."""
        self.cut = self.cut or cut
        self.recording = False

    def end(self) -> int:
        """Nothing more follows. Returns how many bytes the owner has not counted yet."""
        size, self._uncounted = (self._uncounted, 0) if self.recording else (0, 0)
        self.size += size
        self.recording = False
        return size

    def forget(self) -> None:
        """Drops everything that was said. A snapshot that was taken before keeps its own list."""
        self.recording = False
        self.raw = self.previous = self.references = self.images = None
        self.rows, self.runs = [], ()
        self.size = self._uncounted = 0

    def snapshot(self) -> Trace:
        """The trace as it is now, for another thread to read. The thread that the turn runs in takes it."""
        self.weigh()
        other = copy(self)
        other.rows = list(self.rows)
        return other


def _item_bytes(item: Any) -> int:
    parts = sum(
        len(getattr(part, "text", None) or getattr(part, "url", None) or "")
        for part in getattr(item, "parts", ())
    )
    return 200 + parts + len(getattr(item, "arguments", ""))


def weight(data: Any, depth: int = 4) -> int:
    """About how many bytes a value refers to."""
    if isinstance(data, bytes | str):
        return len(data)
    if depth and isinstance(data, Mapping):
        return 200 + sum(80 + weight(value, depth - 1) for value in data.values())
    if depth and isinstance(data, list | tuple):
        return 60 + sum(weight(value, depth - 1) for value in data)
    return 200

"""What is recorded of one turn while it runs: its two ends, with times, and a few facts besides.

What the backend sent (raw frames, and the events of its runs) and what the client received (bytes) are
appended as they come, together with ids, clock readings and the outcome. Everything between the ends (the
decoded turn, the plan, the events of the answer) is computed again by the same pure code when a person looks
at the turn (`recording.py`).

Recording never raises and never changes a turn. It is bounded by rows and bytes: beyond them it stops, and
the trace is `cut`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from copy import copy
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

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
"""What a row, and an event in it, count for besides their texts."""
EACH_BYTES = 32 * 1024
"""The owner is asked for room once per this many bytes."""
READ = "read"
"""The label of bytes that were read from a network."""
FRAME, SENT = -2, -1
"""Kinds of rows besides the numbers of runs: a raw frame of the backend, and bytes sent to the client."""


class RecordedRun(NamedTuple):
    """A run of the backend. `how` is `run`, `retry`, `open` or `resume`; `plan` is the number of its plan."""

    how: str
    choice: int
    plan: int


class Trace(msgspec.Struct, eq=False, weakref=True):
    """One turn. `grown` is called with every growth in bytes, and returns whether recording may continue."""

    id: str
    api: Api
    raw: bytes | None
    caller: Caller
    at: float
    grown: Callable[[Trace, int], bool]
    stored: bool = False
    started: float = msgspec.field(default_factory=perf_counter)
    kind: str = "new"
    backend_id: str = ""
    backend_kind: str = ""
    # what is shown of a running turn
    model: str = ""
    stream: bool = False
    strategy: str = "none"
    report: str = ""
    # what is needed to decode and plan the request again
    offers: tuple[tuple[Strategy, Capabilities], ...] = ()
    """The backend's strategy and capabilities, each time that the turn was planned."""
    effort: str | None = None
    open_responses: bool = False
    previous: tuple[Item, ...] | None = None
    """The conversation that the request refers to."""
    references: Mapping[str, Any] | None = None
    images: Mapping[str, str] | None = None
    """Images that were fetched, by their URL."""
    # the two ends
    rows: list[tuple[float, int, Any]] = []
    runs: tuple[RecordedRun, ...] = ()
    # the outcome
    committed: bool = False
    """The stream began before the backend had said anything."""
    failure: Failure | None = None
    resumed_from: str | None = None
    parked_s: float | None = None
    """How long the resumed run had waited."""
    parked_at: float | None = None
    """When this turn ended with calls that wait."""
    waiting: tuple[str, ...] = ()
    """The ids of the waiting calls."""
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

    # --- once per turn ---

    def watch(self, ids: IdFactory, clock: Callable[[], float]) -> tuple[IdFactory, Callable[[], float]]:
        """The same ids and clock, recorded for a replay."""

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
        """Records the plan; again if the backend refused the first strategy."""
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
        """Records what the request refers to but does not contain."""
        self.previous = previous or self.previous
        self.references, self.images = references or self.references, images or self.images
        items = sum(map(_item_bytes, previous or ()))
        self._uncounted += weight(references or {}) + weight(images or {}) + items
        self.weigh()

    def resumes(self, turn_id: str, waited_s: float) -> None:
        self.resumed_from, self.parked_s = turn_id or None, waited_s

    def parks(self, calls: list[str]) -> None:
        self.parked_at = perf_counter()
        self.waiting = (*self.waiting, *calls)

    def begin_run(self, how: str, choice: int) -> int:
        """Records the start of a run, and returns its number."""
        self.runs += (RecordedRun(how, choice, max(0, len(self.offers) - 1)),)
        return len(self.runs) - 1

    # --- the two ends, once per chunk ---

    def frame(self, label: str, data: Any) -> None:
        """Records a raw frame of the backend's wire: bytes, text, or an object."""
        if self.recording:
            self.rows.append((perf_counter(), FRAME, (label, data)))
            self._uncounted += ROW_BYTES + (len(data) if type(data) is bytes else weight(data))
            if self._uncounted > EACH_BYTES:
                self.weigh()

    def received(self, run: int, batch: list[Event] | None) -> None:
        """Records a batch of a run. None: the gateway ended the run, which stayed silent after its calls."""
        if self.recording:
            self.rows.append((perf_counter(), run, batch))
            self._uncounted += ROW_BYTES
            for event in batch or ():
                text = getattr(event, "text", "") or getattr(event, "delta", "")
                self._uncounted += EVENT_BYTES + len(text)
            if self._uncounted > EACH_BYTES:
                self.weigh()

    def sent(self, block: bytes) -> None:
        """Records bytes for the client."""
        if self.recording:
            self.rows.append((perf_counter(), SENT, block))
            self._uncounted += ROW_BYTES + len(block)
            if self._uncounted > EACH_BYTES:
                self.weigh()

    # --- bounds ---

    def weigh(self) -> None:
        """Asks the owner for room for what was recorded since the last time."""
        size, self._uncounted = self._uncounted, 0
        if not self.recording or not size:
            return
        self.size += size
        try:
            has_room = self.grown(self, size) and self.size < MOST_BYTES and len(self.rows) < MOST_ROWS
        except Exception:  # recording never disturbs a turn
            log.exception("a turn cannot be recorded further")
            has_room = False
        if not has_room:
            self.cut, self.recording = True, False

    def end(self) -> int:
        """Ends recording. Returns how many bytes the owner has not counted yet."""
        size = self._uncounted if self.recording else 0
        self.size += size
        self._uncounted, self.recording = 0, False
        return size

    def forget(self) -> None:
        """Drops all contents. An earlier snapshot keeps its own list."""
        self.recording = False
        self.raw = self.previous = self.references = self.images = None
        self.rows, self.runs = [], ()
        self.size = self._uncounted = 0

    def snapshot(self) -> Trace:
        """A copy for another thread to read, made in the turn's own thread."""
        self.weigh()
        other = copy(self)
        other.rows = list(self.rows)
        return other


def _item_bytes(item: Any) -> int:
    parts = getattr(item, "parts", ())
    texts = [getattr(part, "text", None) or getattr(part, "url", None) or "" for part in parts]
    return 200 + sum(map(len, texts)) + len(getattr(item, "arguments", ""))


def weight(data: Any, depth: int = 4) -> int:
    """Approximately how many bytes a value refers to."""
    if isinstance(data, bytes | str):
        return len(data)
    if depth and isinstance(data, Mapping):
        return 200 + sum(80 + weight(value, depth - 1) for value in data.values())
    if depth and isinstance(data, list | tuple):
        return 60 + sum(weight(value, depth - 1) for value in data)
    return 200

"""Records one turn while it runs.

A trace has what the backend sent (raw frames, and the events of its runs) and the bytes that the client
received, each with its time. It also has the ids, the clock readings and the outcome. The steps in between
(the decoded turn, the plan, the events of the answer) are not recorded. When a person looks at the turn,
`recording.py` computes these steps again with the same pure code.

Recording never raises and never changes a turn. A trace has a maximum number of rows and of bytes. When it
reaches one of the two limits, recording stops and `cut` is set.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from copy import copy
from time import perf_counter, time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from toolwire.core.ids import random_id

if TYPE_CHECKING:
    from toolwire.core.capabilities import Capabilities, Strategy
    from toolwire.core.events import Event, Failure
    from toolwire.core.ids import IdFactory
    from toolwire.core.items import StoredItem
    from toolwire.core.turn import Api, Turn
    from toolwire.gateway.plan import Plan
    from toolwire.gateway.records import Caller

log = logging.getLogger("toolwire.journal")
MOST_ROWS = 50_000
MOST_BYTES = 8 * 1024 * 1024
ROW_BYTES, EVENT_BYTES = 150, 120
"""How many bytes are counted for a row, and for each event in a row, in addition to their texts."""
EACH_BYTES = 32 * 1024
"""After how many recorded bytes the trace asks the journal for room."""
READ = "read"
"""The label of frames that contain bytes as they came from the network."""
FRAME, SENT = -2, -1
"""Kinds of rows: a raw frame of the backend, and bytes sent to the client.

A row of any other kind is a batch of events; its kind is the number of the run.
"""


class RecordedRun(NamedTuple):
    """A run of the backend.

    `plan`: the number of the plan that the run followed. Values of `how`:

    - `run`: an ordinary run
    - `retry`: the second attempt
    - `open`: the run can be parked
    - `resume`: a parked run continues
    - `tools`: not a run of the model; the gateway calls MCP tools
    - `failed`: another model answered instead
    """

    how: str
    choice: int
    plan: int


class Trace(msgspec.Struct, eq=False, weakref=True):
    """One recorded turn.

    `grown`: a function that is called with the trace and the number of bytes by which the trace has grown. It
    returns whether recording may continue.
    """

    id: str
    api: Api
    raw: bytes | None
    caller: Caller
    at: float
    grown: Callable[[Trace, int], bool]
    stored: bool = False
    ids: IdFactory = random_id
    clock: Callable[[], float] = time
    """`mint` takes new ids from `ids`, and `now` takes the time from `clock`."""
    started: float = msgspec.field(default_factory=perf_counter)
    kind: str = "new"
    backend_id: str = ""
    backend_kind: str = ""
    # shown while the turn is running
    model: str = ""
    stream: bool = False
    strategy: str = "none"
    report: str = ""
    # what is needed to decode and plan the request again
    offers: tuple[tuple[Strategy, Capabilities], ...] = ()
    """The backend's strategy and capabilities, each time the turn was planned."""
    effort: str | None = None
    open_responses: bool = False
    previous: tuple[StoredItem, ...] | None = None
    """The earlier conversation that the request refers to."""
    references: Mapping[str, Any] | None = None
    images: Mapping[str, str] | None = None
    """The images that were fetched, by URL."""
    served: Mapping[str, Any] | None = None
    """The tools of the request's MCP servers and the approvals of calls, as `RecordedServers` reads them."""
    # what the backend sent and what the client received
    rows: list[tuple[float, int, Any]] = []
    runs: tuple[RecordedRun, ...] = ()
    # the outcome
    committed: bool = False
    """Whether the stream started before the backend had sent anything."""
    failure: Failure | None = None
    resumed_from: str | None = None
    parked_s: float | None = None
    """How long the run was parked before this turn resumed it."""
    parked_at: float | None = None
    """When the turn ended with calls and its run was parked."""
    waiting: tuple[str, ...] = ()
    """The ids of the calls whose results the parked run waits for."""
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

    def mint(self, prefix: str) -> str:
        """Returns a new id, and records it for a replay."""
        id = self.ids(prefix)
        self.minted += (id,)
        return id

    def now(self) -> float:
        """Returns the time, and records it for a replay."""
        now = self.clock()
        self.clock_readings += (now,)
        return now

    def planned(self, turn: Turn, plan: Plan, report: str) -> None:
        """Records a plan. Called again if the backend refused the strategy of the first plan."""
        self.offers += (plan.offer,)
        self.model, self.stream, self.effort = turn.model, turn.stream, turn.sampling.effort
        self.open_responses = turn.open_responses
        self.strategy, self.report = plan.strategy, report

    def looked_up(
        self,
        *,
        previous: tuple[StoredItem, ...] | None = None,
        references: Mapping[str, Any] | None = None,
        images: Mapping[str, str] | None = None,
        served: Mapping[str, Any] | None = None,
    ) -> None:
        """Records data that the request refers to but does not contain."""
        self.previous = previous or self.previous
        self.references, self.images = references or self.references, images or self.images
        self.served = served or self.served
        items = sum(map(_item_bytes, previous or ()))
        self._uncounted += weight(references or {}) + weight(images or {}) + weight(served or {}) + items
        self.weigh()

    def resumes(self, turn_id: str, waited_s: float) -> None:
        self.resumed_from, self.parked_s = turn_id or None, waited_s

    def parks(self, calls: list[str]) -> None:
        self.parked_at = perf_counter()
        self.waiting = (*self.waiting, *calls)

    def restart(self, ids: int, readings: int) -> None:
        """Records that another model answers instead of the first one.

        Only the first `ids` ids and the first `readings` clock readings are kept: those that were recorded
        before the first model started.
        """
        self.minted, self.clock_readings = self.minted[:ids], self.clock_readings[:readings]
        self.offers, self.runs = (), tuple(run._replace(how="failed", plan=0) for run in self.runs)

    def begin_run(self, how: str, choice: int) -> int:
        """Records the start of a run. Returns its number."""
        self.runs += (RecordedRun(how, choice, max(0, len(self.offers) - 1)),)
        return len(self.runs) - 1

    # --- backend output and sent bytes, once per chunk ---

    def frame(self, label: str, data: Any) -> None:
        """Records a raw frame from the backend: bytes, text, or an object."""
        if self.recording:
            self.rows.append((perf_counter(), FRAME, (label, data)))
            self._uncounted += ROW_BYTES + (len(data) if type(data) is bytes else weight(data))
            if self._uncounted > EACH_BYTES:
                self.weigh()

    def received(self, run: int, batch: list[Event] | None) -> None:
        """Records a batch of a run.

        `batch` None: the gateway ended the run because the backend was silent after its calls.
        """
        if self.recording:
            self.rows.append((perf_counter(), run, batch))
            self._uncounted += ROW_BYTES
            for event in batch or ():
                text = getattr(event, "text", "") or getattr(event, "delta", "")
                text = text or getattr(event, "output", "") or ""  # of an MCP call
                self._uncounted += EVENT_BYTES + len(text)
            if self._uncounted > EACH_BYTES:
                self.weigh()

    def sent(self, block: bytes) -> None:
        """Records bytes that are sent to the client."""
        if self.recording:
            self.rows.append((perf_counter(), SENT, block))
            self._uncounted += ROW_BYTES + len(block)
            if self._uncounted > EACH_BYTES:
                self.weigh()

    # --- bounds ---

    def weigh(self) -> None:
        """Asks the journal for room for what was recorded since the last call of `weigh`."""
        size, self._uncounted = self._uncounted, 0
        if not self.recording or not size:
            return
        self.size += size
        try:
            has_room = self.grown(self, size) and self.size < MOST_BYTES and len(self.rows) < MOST_ROWS
        except Exception:  # recording must not disturb a turn
            log.exception("recording failed: the rest of this turn is not recorded")
            has_room = False
        if not has_room:
            self.cut, self.recording = True, False

    def end(self) -> int:
        """Ends recording. Returns how many bytes the journal has not counted yet."""
        size = self._uncounted if self.recording else 0
        self.size += size
        self._uncounted, self.recording = 0, False
        return size

    def forget(self) -> None:
        """Drops all contents. Earlier snapshots keep their contents."""
        self.recording = False
        self.raw = self.previous = self.references = self.images = self.served = None
        self.rows, self.runs = [], ()
        self.size = self._uncounted = 0

    def snapshot(self) -> Trace:
        """Returns a copy that another thread may read. Call it in the turn's own thread."""
        self.weigh()
        other = copy(self)
        other.rows = list(self.rows)
        return other


def _item_bytes(item: Any) -> int:
    parts = getattr(item, "parts", ())
    texts = [getattr(part, "text", None) or getattr(part, "url", None) or "" for part in parts]
    return 200 + sum(map(len, texts)) + len(getattr(item, "arguments", ""))


def weight(data: Any, depth: int = 4) -> int:
    """Returns approximately how many bytes a value uses."""
    if isinstance(data, bytes | str):
        return len(data)
    if depth and isinstance(data, Mapping):
        return 200 + sum(80 + weight(value, depth - 1) for value in data.values())
    if depth and isinstance(data, list | tuple):
        return 60 + sum(weight(value, depth - 1) for value in data)
    return 200

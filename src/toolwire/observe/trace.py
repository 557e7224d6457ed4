"""What one turn was made of: references with times, appended while it runs, and nothing formatted until somebody asks.

Rules: a tap costs an append, and in a stream no more than that (`Lane`). What is kept is bounded by rows and bytes; beyond them the trace stops and
says that it was `cut`. A tap never raises, and changes nothing of what it sees. `current` is the trace of the request that is being answered: a
backend that has a wire of its own asks for it once, when a run or a segment begins, and hands it what it reads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from copy import copy
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

import msgspec

from toolwire.core.events import Event
from toolwire.core.turn import Call, Message, Result, TextPart, Turn
from toolwire.observe.tape import EACH_BYTES, FRAME, FRAME_BYTES, LEAST_BYTES, OUT, RUN, Lane, Tape, weight

if TYPE_CHECKING:
    from toolwire.backends.base import Backend
    from toolwire.core.capabilities import Capabilities, Strategy
    from toolwire.core.events import Failure
    from toolwire.core.ids import IdFactory
    from toolwire.core.turn import Api, Item
    from toolwire.gateway.plan import Plan
    from toolwire.gateway.records import Caller

log = logging.getLogger("toolwire.journal")
MOST_ROWS = 50_000
MOST_BYTES = 8 * 1024 * 1024
REQUEST_COPIES = 3
"""A request is held as bytes, as the decoded turn, and as what the backend is asked."""
READ = "read"
"""The label of what was read of a network: nearly every frame of a stream."""
_NOTHING = Turn("chat", "", ())
_TOLD_AGAIN = ("none", "native")
"""Ways to serve a turn that need nothing but the request to be planned."""
_NO_TAPE = Tape()
"""What is left of rows that a trace had to let go of."""

current: ContextVar[ref[Trace] | None] = ContextVar("current", default=None)
"""Of the request that is being answered. Does not keep it alive: connections, processes and timers that begin in a request hold on to its context."""


FrameTap = Callable[[str, Any], None]


def traced() -> Trace | None:
    """The trace of the request that is being answered."""
    held = current.get()
    return None if held is None else held()


def watched() -> Trace | None:
    """For a backend: the trace of the run that begins now, None when nobody watches."""
    trace = traced()
    return trace if trace is not None and trace.recording else None


def frame_tap() -> FrameTap | None:
    """For a backend: what takes the raw frames of the run that begins now, None when nobody watches."""
    trace = watched()
    return None if trace is None else trace.frame


class TracedRun(NamedTuple):
    """A run of the backend. `through`: what passes goes out as it is, so that it is kept there and need not be kept here."""

    kind: int
    """Of its rows."""
    how: str
    began: float
    through: bool


class Trace(msgspec.Struct, eq=False, weakref=True):
    """One turn. `size` is what it begins with; `grown` is told of every growth in bytes, and says whether the trace may go on. A struct, because it
    has many fields, most of which few turns set."""

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
    decoded: Turn | None = None
    turn: Turn | None = None
    offers: tuple[tuple[Strategy, Capabilities], ...] = ()
    """What the backend could do, each time that the turn was planned …"""
    plans: tuple[Plan, ...] = ()
    """… and how it was planned."""
    again: bool = False
    """Turn and plan are not held: the request's bytes, what the backend offered and the settings make them anew."""
    open_responses: bool = False
    previous: tuple[Item, ...] | None = None
    """The conversation that the request refers to."""
    references: Mapping[str, Any] | None = None
    through: bool = False
    committed: bool = False
    """The stream was begun before the backend had said anything."""
    tape: Tape = msgspec.field(default_factory=Tape)
    runs: tuple[TracedRun, ...] = ()
    """The runs of the backend, in the order in which they began."""
    remade: tuple[float, ...] = ()
    """When a batch that was kept, of a run whose text goes out as it is, had become something that looks like it: what goes out next."""
    whole: bytes | None = None
    """The answer, where it is no stream."""
    failure: Failure | None = None
    resumed_from: str | None = None
    parked_s: float | None = None
    """How long the run that this turn resumed had waited."""
    parked_at: float | None = None
    """When this turn ended with calls that wait …"""
    called: tuple[str, ...] = ()
    """… and their ids."""
    minted: tuple[str, ...] = ()
    clock_readings: tuple[float, ...] = ()
    recording: bool = True
    cut: bool = False
    size: int = 0
    _weighed: int = 0
    _ids: IdFactory | None = None
    _clock: Callable[[], float] | None = None

    def __post_init__(self) -> None:
        size = len(self.raw or b"") * REQUEST_COPIES
        if size > MOST_BYTES:
            self.cut, self.raw, size = True, None, 0
        self.size = size

    # --- taps: once a turn --------------------------------------------------------------------------------------------------------------------------

    def watch(self, ids: IdFactory, clock: Callable[[], float]) -> tuple[IdFactory, Callable[[], float]]:
        """The same ids and the same clock, remembered."""
        self._ids, self._clock = ids, clock
        return self._mint, self._read

    def _mint(self, prefix: str) -> str:
        assert self._ids is not None
        id = self._ids(prefix)
        self.minted += (id,)
        return id

    def _read(self) -> float:
        assert self._clock is not None
        now = self._clock()
        self.clock_readings += (now,)
        return now

    def asks(self, backend: Backend, kind: str) -> None:
        """The model is found."""
        self.backend_id, self.backend_kind = backend.id, kind

    def planned(self, turn: Turn, plan: Plan, plain: bool = False) -> None:
        """How the turn is served; once more where the backend refused the first way. `plain`: the answer is in OpenAI's form."""
        self.through = plain and turn.n == 1 and _passes_text(plan)
        more = 0
        if turn is not self.decoded or self.previous or self.references:  # images that were fetched, items that were looked up
            more = sum(map(_item_bytes, turn.items)) + weight(self.references or {})
        if self.raw is None or self.size + more > MOST_BYTES:
            self._forget_request()
            self.cut = True
            plan = replace(plan, turn=_NOTHING, scanner=None)
        else:
            self.turn = turn
            if more:
                self._grow(more)
        self.plans += (plan,)

    def resumes(self, turn_id: str, waited_s: float) -> None:
        self.resumed_from, self.parked_s = turn_id or None, waited_s

    def parks(self, calls: list[str]) -> None:
        self.parked_at = perf_counter()
        self.called = (*self.called, *calls)

    def begin_run(self, how: str) -> TracedRun:
        """Where the batches of a run that begins are kept: `how` is `run`, `open` or `resume`."""
        run = TracedRun(RUN + len(self.runs), how, perf_counter(), self.through)
        self.runs += (run,)
        return run

    # --- taps: once a chunk -------------------------------------------------------------------------------------------------------------------------

    def batch(self, run: TracedRun, batch: list[Event]) -> None:
        """A batch of a backend's run, before anything looks at it."""
        if self.recording:
            try:
                tape = self.tape
                tape.keep_batch(run.kind, batch)
                if tape.counted > tape.look_at:
                    self.weigh()
            except Exception:
                self._break_off()

    def frame(self, label: str, data: Any) -> None:
        """A raw frame of the backend's wire, as it was read: bytes, text, or an object."""
        if self.recording:
            try:
                tape = self.tape
                tape.keep_odd(FRAME, (label, data), FRAME_BYTES + (len(data) if type(data) is bytes else weight(data)))
                if tape.counted > tape.look_at:
                    self.weigh()
            except Exception:
                self._break_off()

    def sent(self, choice: int, events: list[Event], became: bytes = b"") -> None:
        """The events of a choice after policy, and the bytes of the stream that they became, if any."""
        if self.recording:
            try:
                tape = self.tape
                tape.keep_batch(OUT, events, choice, became)
                if tape.counted > tape.look_at:
                    self.weigh()
            except Exception:
                self._break_off()

    def lane(self, kind: int) -> Lane:
        """Where a stream's frames (what was read, as it was read) or its pieces of text go, without a call of a tap …"""
        return self.tape.lane(kind) if self.recording else Lane(kind)

    def pack(self, lane: Lane) -> None:
        """… and what who fills it calls when it is full."""
        try:
            if self.recording:
                tape = self.tape
                tape.pack(lane)
                if tape.counted > tape.look_at:
                    self.weigh()
        except Exception:
            self._break_off()
        lane.clear()

    # --- the bounds ---------------------------------------------------------------------------------------------------------------------------------

    def _break_off(self) -> None:
        """Who only watches must not change what is watched."""
        log.exception("a turn could not be watched further")
        self.stop(cut=True)

    def weigh(self) -> None:
        """Counts what came since the last time."""
        if not self.recording:
            return
        tape = self.tape
        size = tape.size + (0 if self.whole is None else len(self.whole))
        tape.look_at = tape.counted + EACH_BYTES
        grown, self._weighed = size - self._weighed, size
        self._grow(grown)
        if self.size >= MOST_BYTES or (size > MOST_ROWS * LEAST_BYTES and tape.rows >= MOST_ROWS):
            self.stop(cut=True)

    def _grow(self, size: int) -> None:
        self.size += size
        try:
            if not self.grown(self, size):
                self.stop(cut=True)
        except Exception:
            self._break_off()

    def stop(self, cut: bool = False) -> None:
        """Nothing more is kept. Who fills a lane goes on filling it, and what is kept must not see that."""
        if self.recording:
            self.tape = self.tape.copy()
        self.cut = self.cut or cut
        self.recording = False

    def end(self) -> None:
        """Nothing more comes. What the request's bytes tell again is not kept: hundreds of turns are."""
        self.weigh()
        self.recording = False
        if self.raw is not None and self.turn is self.decoded and len(self.plans) == 1 and self.plans[0].strategy in _TOLD_AGAIN:
            if self.turn is not None and not self.previous and not self.references:
                self.open_responses = self.turn.open_responses
                self.decoded = self.turn = None
                self.plans = ()
                self.again = True

    def forget(self) -> None:
        """Lets go of everything that was said; whoever still reads has the old lists."""
        self._forget_request()
        self.whole = None
        self.recording = False
        self.tape, self.plans, self.runs = _NO_TAPE, (), ()
        self.size = self._weighed = 0

    def snapshot(self) -> Trace:
        """The trace as it is now, for another thread to read: to be taken by the thread that the turn runs in."""
        self.weigh()
        other = copy(self)
        other.tape = self.tape.copy()
        return other

    def _forget_request(self) -> None:
        self.raw = self.decoded = self.turn = self.previous = None
        self.references = None


def _item_bytes(item: Item) -> int:
    if isinstance(item, Message | Result):
        return 200 + sum(len(part.text) if isinstance(part, TextPart) else weight(getattr(part, "url", None) or part) for part in item.parts)
    return 200 + len(item.arguments) if isinstance(item, Call) else 200


def _passes_text(plan: Plan) -> bool:
    """Whether a piece of text that the backend sends is, as it is, what the client gets."""
    return plan.scanner is None and not (plan.customs or plan.hold_calls or plan.stops) and plan.rules.all_off

"""The contract of a backend.

A backend turns a `Turn` into batches of events. It never sees the client's bytes, never encodes, and never
decides policy. A batch is what one read of the backend returned; the pipeline sends it in one write. Closing
the iterator (`aclose`) cancels the run at the backend.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Protocol, runtime_checkable
from weakref import ref

from toolwire.core.capabilities import Capabilities, Strategy
from toolwire.core.events import Event
from toolwire.core.turn import Result, Turn

Batch = list[Event]


class Backend(Protocol):
    """One configured model.

    `id` is its name for clients. `strategy` is how its tools are served; an emulated backend receives a Turn
    without tools.
    """

    id: str

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def strategy(self) -> Strategy: ...

    @property
    def aliases(self) -> Sequence[str]:
        """Other names that are listed besides the model's id."""
        ...

    def alias(self, name: str) -> str | None:
        """The reasoning effort that an alias selects, "" for none; None if it is not an alias."""
        ...

    def run(self, turn: Turn) -> AsyncGenerator[Batch, None]:
        """Runs the turn. Yields batches and ends with `Finish` or `Failure`; may raise `ToolwireError`
        instead.
        """
        ...

    async def prepare(self) -> None:
        """Finds out what `strategy` and `capabilities` depend on, such as a version.

        Called before every turn, so it must be cheap once done.
        """
        ...

    async def ready(self) -> bool:
        """Whether the model could serve now, without a costly request."""
        ...

    async def close(self) -> None: ...


class Source(Protocol):
    """A server with several models, each of which is a backend. Their ids begin with `id` and a slash."""

    id: str

    async def names(self) -> Sequence[str]:
        """The server's names of its models. Raises `ToolwireError` if it does not list them."""
        ...

    def model(self, name: str) -> Backend: ...

    async def close(self) -> None: ...


class LiveRun(Protocol):
    """A run that holds its calls open: it outlives the HTTP response, and continues when the results arrive.

    One segment is one response: `segment` yields batches up to `Finish` or `Failure`. A segment that ends
    with calls leaves them in `pending`. `answer` passes their results, then the next `segment` continues the
    same run. `cancel` ends it at any time and may be called twice.
    """

    @property
    def pending(self) -> tuple[str, ...]:
        """The backend's ids of the waiting calls, in model order: the `id` of their `CallBegin`."""
        ...

    def segment(self) -> AsyncGenerator[Batch, None]: ...

    async def answer(self, results: Mapping[str, Result]) -> None: ...

    async def cancel(self) -> None: ...


@runtime_checkable
class ParkingBackend(Backend, Protocol):
    """A backend whose runs can be parked. `run` is a live run, cancelled after its first segment."""

    def open(self, turn: Turn) -> LiveRun: ...


@runtime_checkable
class CountingBackend(Backend, Protocol):
    """A backend that can count the tokens of a request without running it."""

    async def count(self, turn: Turn) -> int | None:
        """The input tokens of the turn; None if this model cannot count. May raise `ToolwireError`."""
        ...


FrameTap = Callable[[str, Any], None]
"""Receives a raw frame of a backend's wire: a label, and bytes, text or an object."""


class FrameRecorder(Protocol):
    @property
    def frame(self) -> FrameTap: ...


frames: ContextVar[ref[FrameRecorder] | None] = ContextVar("frames", default=None)
"""What records the frames of the current request.

Weak, because connections, processes and timers that begin in a request keep its context.
"""


def frame_tap() -> FrameTap | None:
    """What records the raw frames of the run that begins now; None: they are not recorded."""
    known = frames.get()
    recorder = None if known is None else known()
    return None if recorder is None else recorder.frame

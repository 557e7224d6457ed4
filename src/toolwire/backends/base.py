"""What stands behind the wire: the contract of a backend.

A backend turns a `Turn` into batches of events. It never sees the client's bytes, never encodes, and never decides policy. A batch is what one read
of the backend gave: the pipeline sends what it yields in one write. Closing the iterator (`aclose`) cancels the run at the backend.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Protocol, runtime_checkable
from weakref import WeakMethod

from toolwire.core.capabilities import Capabilities, Strategy
from toolwire.core.events import Event
from toolwire.core.turn import Result, Turn

Batch = list[Event]


class Backend(Protocol):
    """One configured model.

    `id` is what clients call it. `strategy` is how its tools are served; the pipeline hands an emulated backend a Turn without tools.
    """

    id: str

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def strategy(self) -> Strategy: ...

    @property
    def aliases(self) -> Sequence[str]:
        """Other names that are listed beside the model's id."""
        ...

    def alias(self, name: str) -> str | None:
        """The reasoning effort that another name of this model stands for, "" for none; None when it is no name of it."""
        ...

    def run(self, turn: Turn) -> AsyncGenerator[Batch, None]:
        """Runs the turn. Yields batches; ends with `Finish` or `Failure`; raises `ToolwireError` where that is simpler."""
        ...

    async def prepare(self) -> None:
        """Finds out what there is to find out (a version, say) before `strategy` and `capabilities` are asked.

        Called before every turn: cheap once done.
        """
        ...

    async def ready(self) -> bool:
        """Whether the model could serve now, without asking it anything costly."""
        ...

    async def close(self) -> None: ...


class Source(Protocol):
    """A server with models of its own, each of which is a backend. `id` is what stands before the slash of their ids."""

    id: str

    async def names(self) -> Sequence[str]:
        """What the server calls its models; raises `ToolwireError` when it does not say."""
        ...

    def model(self, name: str) -> Backend: ...

    async def close(self) -> None: ...


class LiveRun(Protocol):
    """A run that holds its calls open: it outlives the HTTP response that ended with them, and goes on when their results are there.

    One segment is one response: `segment` yields batches up to `Finish` or `Failure`. A segment that ends with calls leaves them in `pending`;
    `answer` hands all of them their results, then the next `segment` goes on with the very same run. `cancel` ends it at any time; it is safe to
    call twice.
    """

    @property
    def pending(self) -> tuple[str, ...]:
        """The backend's ids of the calls that wait, in model order: the `id` of their `CallBegin`."""
        ...

    def segment(self) -> AsyncGenerator[Batch, None]: ...

    async def answer(self, results: Mapping[str, Result]) -> None: ...

    async def cancel(self) -> None: ...


@runtime_checkable
class ParkingBackend(Backend, Protocol):
    """A backend whose runs can be parked. `run` must work too: it is a live run that is cancelled when its first segment ends."""

    def open(self, turn: Turn) -> LiveRun: ...


FrameTap = Callable[[str, Any], None]
"""Takes a raw frame of a backend's wire: a label, and bytes, text or an object."""

frames: ContextVar[WeakMethod[FrameTap] | None] = ContextVar("frames", default=None)
"""Where the frames of the request that is being answered are recorded.

Weak, because connections, processes and timers that begin in a request hold on to its context.
"""


def frame_tap() -> FrameTap | None:
    """For a backend with a wire of its own: what takes the raw frames of the run that begins now. None: nobody records."""
    tap = frames.get()
    return None if tap is None else tap()

"""The interfaces that a backend implements.

A backend turns a `Turn` into batches of events. It never sees the client's bytes, never encodes a response,
and makes no policy decisions. A batch contains the events of one read from the model's server or agent. The
gateway sends each batch in one write. Closing the iterator (`aclose`) cancels the backend's run.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable
from weakref import ref

from toolwire.core.capabilities import Capabilities, Strategy
from toolwire.core.events import Event
from toolwire.core.turn import Result, Turn

Batch = list[Event]


@dataclass(frozen=True, slots=True)
class About:
    """What a person should know about a model before they choose it."""

    title: str = ""
    """The name that people see; if it is empty, they see the id."""
    use: str = ""
    """What the model is good for: a phrase that begins with "for" and is shown after the title."""
    no_tools: str = ""
    """Why Toolwire does not offer the model the tools on a person's notes; "" if it offers them."""
    is_trial: bool = False
    """Whether the model is only for trying things out. If there is another model, that one is the default."""


class Backend(Protocol):
    """One configured model.

    `id` is the model's name for clients. `strategy` is how the model gets its tools. If tools are emulated,
    the backend receives a `Turn` without tools.
    """

    id: str

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def strategy(self) -> Strategy: ...

    @property
    def aliases(self) -> Sequence[str]:
        """Further names under which the model is listed."""
        ...

    def alias(self, name: str) -> str | None:
        """Returns the reasoning effort that an alias of this model selects, or "" if it selects none.

        Returns None if the name is not an alias.
        """
        ...

    def run(self, turn: Turn) -> AsyncGenerator[Batch, None]:
        """Runs the turn. Yields batches; the last event is a `Finish` or `Failure`.

        May raise `ToolwireError` instead.
        """
        ...

    async def prepare(self) -> None:
        """Finds out what `strategy` and `capabilities` depend on, such as the server's version.

        The gateway calls this before every turn, so repeated calls must be cheap.
        """
        ...

    async def ready(self) -> bool:
        """Returns True if the model can serve requests now. The check must not cost money or much time."""
        ...

    async def close(self) -> None: ...


class Source(Protocol):
    """A server with several models. Each of its models is a backend with the id `ID/NAME`."""

    id: str

    async def names(self) -> Sequence[str]:
        """Returns the names that the server gives its models.

        Raises `ToolwireError` if the server does not list its models.
        """
        ...

    def model(self, name: str) -> Backend: ...

    async def close(self) -> None: ...


class LiveRun(Protocol):
    """A run that waits after an HTTP response with tool calls, and continues when it gets their results.

    A segment is the part of the run that belongs to one response. The method `segment` yields the batches of
    the next segment, up to a `Finish` or `Failure`. If a segment ends with tool calls, `pending` has the ids
    of these calls. `answer` passes their results to the run. `cancel` ends the run at any time and may be
    called twice.
    """

    @property
    def pending(self) -> tuple[str, ...]:
        """The ids of the calls that wait for results, in the model's order."""
        ...

    def segment(self) -> AsyncGenerator[Batch, None]: ...

    async def answer(self, results: Mapping[str, Result]) -> None: ...

    async def cancel(self) -> None: ...


@runtime_checkable
class ParkingBackend(Backend, Protocol):
    """A backend whose runs can wait for tool results between two requests: `open` returns a `LiveRun`.

    `run` also starts a `LiveRun`, but cancels it after its first response.
    """

    def open(self, turn: Turn) -> LiveRun: ...


@runtime_checkable
class CountingBackend(Backend, Protocol):
    """A backend that can count the tokens of a request without running it."""

    async def count(self, turn: Turn) -> int | None:
        """Returns the number of input tokens of the turn; None if this model cannot count.

        May raise `ToolwireError`.
        """
        ...


FrameTap = Callable[[str, Any], None]
"""A function that records a raw message (frame) of a backend.

Its arguments are a label and the message itself, as bytes, text or an object.
"""


class FrameRecorder(Protocol):
    @property
    def frame(self) -> FrameTap: ...


frames: ContextVar[ref[FrameRecorder] | None] = ContextVar("frames", default=None)
"""The recorder of the current request's raw messages (frames), or None if nothing records them.

A weak reference, because connections, processes and timers that start during a request keep its context.
"""


def frame_tap() -> FrameTap | None:
    """Returns the function that records the run's raw messages (frames), or None if nothing records them."""
    known = frames.get()
    recorder = None if known is None else known()
    return None if recorder is None else recorder.frame

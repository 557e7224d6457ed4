"""What stands behind the wire: the contract of a backend.

A backend turns a `Turn` into batches of events. It never sees the client's bytes, never encodes, and never decides policy. A batch is what one read
of the backend gave: the pipeline sends what it yields in one write. Closing the iterator (`aclose`) cancels the run at the backend.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Literal, Protocol

from toolwire.events import Event
from toolwire.turn import Turn

Strategy = Literal["native", "emulated", "constrained", "parked", "none"]
Batch = list[Event]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do for a model, as data. `gateway/plan.py` compares it with the request; nothing else branches on a backend's kind.

    `fields` are the names of request fields (of `plan.FIELDS`) that the backend passes on or honours by itself.
    """

    tools: bool = False
    tool_choice: bool = False
    parallel: bool = False
    custom_tools: bool = False
    schema: bool = False
    images: bool = False
    prefill: bool = False
    reasoning: bool = False
    usage: bool = True
    ends_turn: bool = True
    fields: frozenset[str] = field(default_factory=frozenset)


class Backend(Protocol):
    """One configured model. `strategy` is how its tools are served; the pipeline hands an emulated backend a Turn without tools."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def strategy(self) -> Strategy: ...

    def run(self, turn: Turn) -> AsyncGenerator[Batch, None]:
        """Runs the turn. Yields batches; ends with `Finish` or `Failure`; raises `ToolwireError` where that is simpler."""
        ...

    async def ready(self) -> bool:
        """Whether the model could serve now, without asking it anything costly."""
        ...

    async def close(self) -> None: ...

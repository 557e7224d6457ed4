"""Who asks, what is sent, and what is told of a turn afterwards: the records between the surface and the pipeline."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from toolwire.frozen import record
from toolwire.turn import Api, Turn

if TYPE_CHECKING:
    from toolwire.gateway.contents import Contents
    from toolwire.gateway.keys import KeyGrant
    from toolwire.gateway.memory import Memory
    from toolwire.gateway.usage import Hold
    from toolwire.trace import Trace


@record(frozen=True, slots=True)
class Caller:
    """Who asks. `key_id` is a short hash of the key, "" where no keys are configured; `output_mode` is the request's own wish."""

    key_id: str = ""
    request_id: str = ""
    output_mode: str | None = None
    grant: KeyGrant | None = None
    """What the key may do; None: no restriction."""
    key_name: str = ""
    trace_parent: str = ""
    """The caller's own span, as W3C's `traceparent` says it."""
    memory: Memory | None = None
    """What the caller's connection remembers, where it is one that does."""


OnSlow = Callable[[list[tuple[bytes, bytes]]], None]
"""Gets the headers of a stream that is to be begun before the model has said anything."""


@dataclass(slots=True)
class Answer:
    """What the surface sends: a body, or a stream of blocks that ends by itself and is cancelled by closing it."""

    headers: list[tuple[bytes, bytes]]
    body: bytes | None = None
    stream: AsyncIterator[bytes] | None = None
    status: int = 200
    """Another one only where another node answered with an error, which is passed on as it is."""


class TurnSummary(msgspec.Struct):
    """What logs and metrics need of a turn that has ended. A struct, because it has many fields and every turn makes one."""

    request_id: str
    key_id: str
    api: Api
    model: str
    backend: str
    strategy: str
    stream: bool
    status: int
    finish: str | None
    error_kind: str | None
    tool_call_count: int
    tool_call_names: tuple[str, ...]
    tool_call_ids: tuple[str, ...]
    tool_call_truncated: bool
    output_mode: str
    input_tokens: int
    output_tokens: int
    first_byte_s: float | None
    duration_s: float
    report: str
    cancelled: bool
    dropped: Mapping[str, int] = MappingProxyType({})
    """What policy left out, by kind."""
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    kind: str = "new"
    """`new`, `resumed` or `replayed`."""
    key_name: str = ""
    turn_id: str = ""
    """As the journal names it."""
    answer_id: str = ""
    """As the client knows it."""
    started_at: float = 0.0
    """In seconds since 1970."""
    tool_call_s: tuple[float, ...] = ()
    """When each call began, after the start."""
    trace_parent: str = ""
    turn: Turn | None = None
    """The request, for those who may look into it."""
    contents: Contents | None = None
    """What was said, where somebody who may see it wants it."""
    trace: Trace | None = None
    """What the journal keeps of the turn."""
    hold: Hold | None = None
    """What the turn has reserved of its key's budget, until it is counted."""

"""Who asks, what is sent, and what is told of a turn afterwards: the records between the surface and the pipeline."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from toolwire.turn import Api


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. `key_id` is a short hash of the key, "" where no keys are configured; `output_mode` is the request's own wish."""

    key_id: str = ""
    request_id: str = ""
    output_mode: str | None = None


@dataclass(slots=True)
class Answer:
    """What the surface sends: a body, or a stream of blocks that ends by itself and is cancelled by closing it."""

    headers: list[tuple[bytes, bytes]]
    body: bytes | None = None
    stream: AsyncIterator[bytes] | None = None


@dataclass(frozen=True, slots=True)
class TurnSummary:
    """What logs and metrics need of a turn that has ended."""

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
    dropped: Mapping[str, int] = field(default_factory=dict)
    """What policy left out, by kind."""

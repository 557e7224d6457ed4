"""What agent backends share: options, runs that outlive a request, prompts, processes.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """The keys of `[models.ID]` that agents have in common. A bad value raises `ValueError` with one line."""

    settle_ms: int = 200
    """How long silence must last to end a response with calls."""
    repeats: int = 8
    """How often an agent may repeat the same call before it is stopped."""
    idle_s: float = 300.0
    """How long an agent waits for the next turn of its conversation."""
    sessions: int = 4
    """How many agents wait for their next turn at most; 0: none."""
    timeout_s: float = 300.0
    """How long the agent may be silent while it works."""
    start_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        least = {"settle_ms": 0, "repeats": 1, "sessions": 0}
        check_numbers(self, least, ("idle_s", "timeout_s", "start_timeout_s"))


def check_numbers(options: object, at_least: Mapping[str, int], above_zero: Sequence[str]) -> None:
    """Raises `ValueError` with one line that names the first key whose number is too small."""
    for key, least in at_least.items():
        if getattr(options, key) < least:
            raise ValueError(f"{key}: expected at least {least}")
    for key in above_zero:
        if not getattr(options, key) > 0:
            raise ValueError(f"{key}: expected a number above 0")

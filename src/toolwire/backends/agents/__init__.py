"""Code that agent backends share. This module has their common options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """The keys of `[models.ID]` that all agents have. An invalid value raises a `ValueError`."""

    settle_ms: int = 200
    """How long an agent must be silent after a call before Toolwire ends the response with this call."""
    repeats: int = 8
    """How often an agent may make the same call. If it makes the call once more, the run is stopped."""
    idle_s: float = 300.0
    """How long a session waits for the next turn of its conversation."""
    sessions: int = 4
    """The maximum number of sessions that wait for their next turn. 0: each session ends with its turn."""
    timeout_s: float = 300.0
    """How long the agent may be silent while it works."""
    start_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        least = {"settle_ms": 0, "repeats": 1, "sessions": 0}
        check_numbers(self, least, ("idle_s", "timeout_s", "start_timeout_s"))


def check_numbers(options: object, at_least: Mapping[str, int], above_zero: Sequence[str]) -> None:
    """Raises a `ValueError` that names the first key whose number is too small.

    `at_least`: the minimum for each key. `above_zero`: keys whose number must be positive.
    """
    for key, least in at_least.items():
        if getattr(options, key) < least:
            raise ValueError(f"{key}: expected at least {least}")
    for key in above_zero:
        if not getattr(options, key) > 0:
            raise ValueError(f"{key}: expected a number above 0")

"""The keys of `[models.ID]` with `backend = "acp"`. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass, field

from toolwire.backends.acp.profiles import PROFILES
from toolwire.backends.agents.options import check_numbers


@dataclass(frozen=True, slots=True)
class AcpOptions:
    """A bad value raises `ValueError` with one line that names the key."""

    command: tuple[str, ...]
    """The command that starts the agent, and its arguments: ["opencode", "acp"]."""
    cwd: str = ""
    """The folder that the agent works in; empty: a fresh, empty one for every session."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables for the agent, beside the few that every process needs. With a `HOME` the agent lives there, else in a home of its own."""
    profile: str = "auto"
    """What is known of the agent: "auto" goes by the command's name."""
    model: str = ""
    """The model that the agent shall use, as it calls it; empty: its own choice."""
    settle_ms: int = 200
    """How long silence must last to end a response with calls."""
    repeats: int = 8
    """So often an agent may make the same call before it is stopped."""
    idle_s: float = 300.0
    """How long an agent waits for the next turn of its conversation …"""
    sessions: int = 4
    """… and how many of them wait at most; each is a process. 0: none."""
    timeout_s: float = 300.0
    """How long the agent may be silent while it works."""
    start_timeout_s: float = 60.0
    """How long the agent may take to start, and to open a session."""

    def __post_init__(self) -> None:
        if not self.command or not self.command[0]:
            raise ValueError('command: expected the words that start the agent, such as ["opencode", "acp"]')
        if self.profile != "auto" and self.profile not in PROFILES:
            raise ValueError(f"profile: expected one of auto, {', '.join(PROFILES)}")
        if not all(isinstance(value, str) for value in self.env.values()):
            raise ValueError("env: expected a table of strings")
        check_numbers(self, {"settle_ms": 0, "repeats": 1, "sessions": 0}, ("idle_s", "timeout_s", "start_timeout_s"))

"""What there is of ACP agents on this machine: the facts that `toolwire doctor` tells."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any

from toolwire.backends.acp.options import AcpOptions
from toolwire.backends.acp.profiles import PROFILES, profile_of
from toolwire.errors import ToolwireError

START: dict[str, tuple[str, ...]] = {
    "opencode": ("opencode", "acp"),
    "gemini": ("gemini", "--acp"),
    "codex-acp": ("codex-acp",),
    "claude-code-acp": ("claude-code-acp",),
    "cursor": ("cursor-agent", "acp"),
}
"""How each known agent is started as one, by profile."""


def installed() -> Mapping[str, tuple[str, ...]]:
    """The known agents on PATH: profile → command."""
    return {name: command for name, command in START.items() if name in PROFILES and shutil.which(command[0])}


async def inspect(options: AcpOptions) -> dict[str, Any]:
    """`installed`, `profile`, `title`, `install`, and in `problem` one line where a session can not be opened. The agent is started, but nothing is
    asked of its model."""
    profile = profile_of(options.profile, options.command)
    facts: dict[str, Any] = {"installed": False, "profile": profile.name, "title": profile.title, "install": profile.install, "problem": None}
    try:
        from toolwire.backends.acp.launch import find
        from toolwire.backends.acp.session import Session
    except ImportError:
        from toolwire.backends.acp.backend import MISSING

        return {**facts, "problem": MISSING}
    session = Session(options, profile, ())
    try:
        find(options, profile)
        facts["installed"] = True
        await session.open()
    except ToolwireError as error:
        facts["problem"] = error.failure.message
    finally:
        await session.close()
    return facts

"""Servers that misbehave, and connections to them that are closed at the end of a test."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from toolwire.settings.types import McpServerSettings, McpSettings
from toolwire.store.store import Store
from toolwire.tools.mcp.servers import McpServers
from toolwire.tools.mcp.upstream import Upstream

HOSTILE = Path(__file__).parents[2] / "doubles" / "hostile_mcp.py"
PEER = Path(__file__).parents[2] / "doubles" / "mcp_peer.py"


def hostile(mode: str, log: Path | None = None, **changes: Any) -> McpServerSettings:
    """Returns the settings of a server that misbehaves in this way."""
    words = (sys.executable, "-S", "-E", str(HOSTILE), mode, *([str(log)] if log is not None else []))
    given = {"name": "evil", "command": words, "folder": "/", "call_s": 20.0, **changes}
    return McpServerSettings(**given)


@pytest.fixture
async def upstream_to() -> AsyncIterator[Callable[..., Upstream]]:
    """Makes connections, and closes them."""
    opened: list[Upstream] = []

    def make(mode: str, log: Path | None = None, **changes: Any) -> Upstream:
        opened.append(Upstream(hostile(mode, log, **changes)))
        return opened[-1]

    yield make
    await asyncio.gather(*(one.close() for one in opened))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with Store(f"sqlite:///{tmp_path}/toolwire.db") as opened:
        yield opened


@pytest.fixture
async def servers_of(store: Store) -> AsyncIterator[Callable[..., McpServers]]:
    """Makes the servers of these settings, and closes them."""
    opened: list[McpServers] = []

    def make(*settings: McpServerSettings, **options: Any) -> McpServers:
        opened.append(McpServers(McpSettings(settings), store, **{"patience_s": 20.0, **options}))
        return opened[-1]

    yield make
    await asyncio.gather(*(one.close() for one in opened))


async def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Waits until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        await asyncio.sleep(0.01)


async def lag(during: asyncio.Future[Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """Returns the longest time for which the event loop did not run."""
    longest, last = 0.0, clock()
    while not during.done():
        await asyncio.sleep(0.002)
        now = clock()
        longest, last = max(longest, now - last), now
    return longest


def lives(pid: int) -> bool:
    """Whether a process runs. A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def processes(word: str) -> set[int]:
    """Returns the processes whose command line has this word."""
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if word.encode() in words:
                found.add(int(folder.name))
    return found

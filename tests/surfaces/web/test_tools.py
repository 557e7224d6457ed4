"""The tools of a chat turn: a server that is slow delays no turn twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from doubles.mcp_proxied import peer
from toolwire.settings.types import McpSettings, Settings
from toolwire.store.store import Store
from toolwire.surfaces.web.tools import Preferences, WebTools
from toolwire.tools.mcp.servers import McpServers

pytestmark = pytest.mark.process


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with Store(f"sqlite:///{tmp_path}/toolwire.db") as one:
        yield one


async def offered(tools: WebTools) -> set[str]:
    found = await tools.all()
    return set(found.tools) if found is not None else set()


async def test_a_turn_does_not_wait_again_for_a_server_that_was_slow(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolwire.surfaces.web.tools.SLOW_S", 2.0)
    late = peer(tmp_path / "late.log", "--slow-start", "600", name="late")
    servers = McpServers(McpSettings((peer(tmp_path / "stdin.log"), late)), store, patience_s=2.5)
    tools = WebTools(Settings(), Preferences(store), servers=servers)
    try:
        await servers.tools({"peer"}, wait=True)
        assert "peer__echo" in await offered(tools)
        servers._patience_s = 600
        async with asyncio.timeout(60):
            names = await offered(tools)
        assert "peer__echo" in names and not any(name.startswith("late__") for name in names)
    finally:
        await servers.close()


async def test_a_server_that_was_slow_is_offered_when_it_is_ready(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolwire.surfaces.web.tools.SLOW_S", 0.01)
    late = peer(tmp_path / "late.log", "--slow-start", "0.5", name="late")
    servers = McpServers(McpSettings((late,)), store, patience_s=0.02)
    tools = WebTools(Settings(), Preferences(store), servers=servers)
    try:
        assert await offered(tools) == set()
        async with asyncio.timeout(60):
            while "late__echo" not in await offered(tools):
                await asyncio.sleep(0.01)
    finally:
        await servers.close()

"""Runs Toolwire in front of MCP servers, and shows which messages the servers received."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp import Client

from doubles import mcp_peer
from toolwire.settings.types import McpServerSettings, McpSettings
from toolwire.store.store import Store
from toolwire.surfaces.mcp.server import ToolServer, Ways
from toolwire.tools.approvals import Approvals
from toolwire.tools.consent import Proofs
from toolwire.tools.contract import Tool
from toolwire.tools.mcp.servers import McpServers


def peer(log: Path, *more: str, name: str = "peer", era: str = "legacy", **rules: Any) -> McpServerSettings:
    """Returns the settings of a server `mcp_peer` that writes what it receives into `log`."""
    command = (sys.executable, str(mcp_peer.__file__), str(log), era, *more)
    return McpServerSettings(name, command=command, folder=str(log.parent), **rules)


def received(log: Path, method: str = "tools/call") -> list[dict[str, Any]]:
    """Returns the `params` of all requests of this method that a `peer` wrote into its log."""
    lines = log.read_text().splitlines() if log.exists() else []
    messages = [json.loads(line) for line in lines if line.startswith("{")]
    return [one.get("params") or {} for one in messages if one.get("method") == method]


@dataclass
class Proxied:
    """Toolwire's MCP server in this process, in front of other MCP servers."""

    server: ToolServer
    servers: McpServers
    approvals: Approvals
    told: list[str]

    @asynccontextmanager
    async def client(self, mode: str = "auto", form: Any = None, **more: Any) -> AsyncIterator[Client]:
        async with Client(self.server.server, mode=mode, elicitation_callback=form, **more) as client:
            yield client


@asynccontextmanager
async def proxied(
    store: Store,
    *settings: McpServerSettings,
    tools: tuple[Tool, ...] = (),
    lifetime_s: float = 60.0,
    proofs: Proofs | None = None,
    **ways: Any,
) -> AsyncIterator[Proxied]:
    """Yields Toolwire in front of these servers.

    `proofs`: the proofs of an earlier instance, so that Toolwire behaves as after a restart.
    """
    told: list[str] = []
    servers = McpServers(McpSettings(settings), store)
    approvals = Approvals(store, lifetime_s=lifetime_s, proofs=proofs)
    server = ToolServer(approvals, tools, servers, ways=Ways(**ways), notify=told.append)
    try:
        yield Proxied(server, servers, approvals, told)
    finally:
        await server.close()
        await servers.close()

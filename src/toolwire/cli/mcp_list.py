"""`toolwire mcp list`: shows the MCP servers of the settings, their tools, and what is wrong with them.

The command starts the servers. Listing a server's tools for the first time counts as agreeing to all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from toolwire.core.display import as_json, counted, one_line
from toolwire.settings.extras import add_extra
from toolwire.settings.load import load
from toolwire.settings.types import ConfigError, McpSettings, Settings
from toolwire.surfaces.tables import table

if TYPE_CHECKING:
    from toolwire.tools.mcp.servers import McpServers, ServerState

NONE = "no MCP server is configured: add a table [mcp.NAME] to the settings"


def list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("server", metavar="SERVER", nargs="?", help="only this server, [mcp.NAME]")
    parser.add_argument("--json", action="store_true", help="JSON, for scripts")


def run_list(arguments: argparse.Namespace) -> int:
    settings = load(arguments.config, os.environ, {}, exposed=False)
    states = asyncio.run(_states(chosen(settings, arguments.server)))
    if arguments.json:
        print(as_json([_public(one) for one in states]))
    else:
        print("\n".join(_lines(states)) if states else NONE)
    return 1 if any(one.error for one in states) else 0


async def _states(settings: Settings) -> list[ServerState]:
    if not settings.mcp.servers:
        return []
    async with opened(settings) as servers:
        await servers.tools(wait=True)
        return servers.states()


def chosen(settings: Settings, name: str | None) -> Settings:
    """Returns the settings with only the server `name`; with all servers if `name` is None.

    Raises `ConfigError` if the settings have no server of this name.
    """
    if name is None:
        return settings
    from toolwire.cli.mcp_explain import server_named

    return replace(settings, mcp=McpSettings((server_named(name, settings.mcp),)))


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[McpServers]:
    """Yields the MCP servers of the settings, and ends them afterwards."""
    if find_spec("mcp") is None:
        raise ConfigError(f"MCP servers need an extra: {add_extra('mcp')}")
    from toolwire.store.store import Store
    from toolwire.tools.mcp.servers import McpServers

    logging.getLogger("toolwire.mcp").setLevel(logging.ERROR)  # the command prints the problems itself
    async with Store(settings.store.url) as store:
        servers = McpServers(settings.mcp, store)
        try:
            yield servers
        finally:
            await servers.close()


def _lines(states: Sequence[ServerState]) -> list[str]:
    lines: list[str] = []
    for one in states:
        lines += [*([""] if lines else []), f"{one.name}: {one.state}, {counted(len(one.tools), 'tool')}"]
        lines.append(f"  {one_line(one.address, 1000)}")
        lines += [f"  problem: {one_line(one.error, 600)}"] if one.error else []
        rows = [(name, "") for name in one.tools]
        rows += [(it.tool, f"not offered: {it.why}; toolwire mcp agree {one.name}") for it in one.withheld]
        rows += [(name, f"not offered: {one_line(why)}") for name, why in one.unusable]
        lines += [f"  {line}".rstrip() for line in table(rows)] if rows else []
        lines += [f"  rule without effect: {one_line(line, 600)}" for line in one.warnings]
    return lines


def _public(state: ServerState) -> dict[str, Any]:
    return {
        "name": state.name,
        "address": state.address,
        "state": state.state,
        "error": state.error,
        "tools": list(state.tools),
        "withheld": [{"tool": one.tool, "why": one.why, "pin": one.pin} for one in state.withheld],
        "unusable": dict(state.unusable),
        "warnings": list(state.warnings),
    }

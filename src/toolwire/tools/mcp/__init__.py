"""MCP servers as tools: transport, servers, pinned definitions, rules."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolwire.settings.types import McpSettings
    from toolwire.store.store import Store
    from toolwire.tools.mcp.servers import McpServers


def servers_of(settings: McpSettings, store: Store) -> McpServers | None:
    """Returns the MCP servers of the settings; None if there are none, or without the extra `mcp`."""
    if not settings.servers or find_spec("mcp_types") is None:
        return None
    from toolwire.tools.mcp.servers import McpServers

    return McpServers(settings, store)

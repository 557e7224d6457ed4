"""The tools of MCP servers: connections to servers, pinned definitions of tools, and rules for calls."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolwire.settings.types import McpSettings
    from toolwire.store.store import Store
    from toolwire.tools.approvals import Approvals
    from toolwire.tools.mcp.served import ServedServers
    from toolwire.tools.mcp.servers import McpServers


def servers_of(settings: McpSettings, store: Store) -> McpServers | None:
    """Returns the MCP servers of the settings; None if there are none, or without the extra `mcp`."""
    if not settings.servers or find_spec("mcp_types") is None:
        return None
    from toolwire.tools.mcp.servers import McpServers

    return McpServers(settings, store)


def served_of(
    settings: McpSettings, store: Store, servers: McpServers | None, approvals: Approvals
) -> ServedServers | None:
    """Returns the servers that API clients may use; None if there are none, or without the extra `mcp`.

    Raises `ConfigError`.
    """
    offered = settings.urls or any(one.api for one in settings.servers)
    if not offered or find_spec("mcp_types") is None:
        return None
    from toolwire.tools.mcp.served import ServedServers

    return ServedServers(servers, settings, approvals, store)

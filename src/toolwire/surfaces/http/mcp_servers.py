"""The MCP servers of the settings, for clients of the Responses API."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from toolwire.settings.extras import add_extra
from toolwire.settings.types import Settings
from toolwire.store.store import Store
from toolwire.tools.approvals import Approvals

if TYPE_CHECKING:
    from toolwire.tools.mcp.served import ServedServers

log = logging.getLogger("toolwire.mcp")


def served_servers(settings: Settings, store: Store, approvals: Approvals) -> ServedServers | None:
    """Returns the servers that API clients may use; None if there are none.

    Their questions wait in the inbox of `approvals`. Raises `ConfigError`.
    """
    given = settings.mcp
    if not given.urls and not any(one.api for one in given.servers):
        return None
    try:
        from toolwire.tools.mcp.served import ServedServers
        from toolwire.tools.mcp.servers import McpServers
    except ImportError:
        log.warning("API clients cannot use MCP servers: this needs the extra mcp: %s", add_extra("mcp"))
        return None
    return ServedServers(McpServers(given, store), given, approvals, store)

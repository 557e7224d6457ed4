"""Serves an application on a loopback socket in this process, as `toolwire serve` does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from toolwire.surfaces.http.server import DrainingServer, bind

DRAIN_S = 5.0


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[tuple[DrainingServer, int]]:
    """Yields the server and its port.

    The caller closes the application and its backends afterwards.
    """
    server = DrainingServer(app, DRAIN_S, lambda: None)
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    sockets = bind("127.0.0.1", 0)
    await server.startup(sockets)
    try:
        yield server, sockets[0].getsockname()[1]
    finally:
        await server.shutdown()

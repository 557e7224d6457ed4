"""A web server on loopback, at a port of its own, for one agent or one bridge."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any

from aiohttp import web


class LoopbackServer(ABC):
    """`start` it, `close` it. Every request comes to `_serve`."""

    def __init__(self, body_limit: int, **runner: Any) -> None:
        self._body_limit = body_limit
        self._options = runner
        self._runner: web.AppRunner | None = None
        self._port = 0

    @abstractmethod
    async def _serve(self, request: web.Request) -> web.StreamResponse: ...

    async def start(self) -> None:
        """A start that is cancelled halfway comes to its end first, and is undone: else its socket would stay."""
        starting = asyncio.ensure_future(self._start())
        try:
            await asyncio.shield(starting)
        except BaseException:
            await asyncio.wait({starting})
            await self.close()
            raise

    async def _start(self) -> None:
        app = web.Application(client_max_size=self._body_limit)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, **self._options)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self._port = self._runner.addresses[0][1]

    async def close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

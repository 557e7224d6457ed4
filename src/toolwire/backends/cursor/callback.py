"""The server that the bridge brings the agent's tool calls to: loopback only, with a token of its own.

Every call is answered. One for a tool of the client's is held open until the client's result is there; anything else gets an error result at once.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from toolwire.backends.cursor.connect import Malformed, parse

METHOD = "sdk.v1.SdkCustomToolCallbackService/CallCustomTool"
LARGEST = 64 * 2**20
Answer = Callable[[str, str, dict[str, Any], str | None], Awaitable[dict[str, Any]]]
"""Agent, tool, arguments and the call's id → the result."""


class CallbackServer:
    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.token = secrets.token_urlsafe(32)
        self.url = ""
        app = web.Application(client_max_size=LARGEST)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)

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
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/"

    async def close(self) -> None:
        await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.Response:
        given = request.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), f"Bearer {self.token}".encode()):
            return _error(401, "unauthenticated", "Unauthorized")
        if request.path.lstrip("/") != METHOD or request.method != "POST":
            return _error(404, "unimplemented", "This server has CallCustomTool only.")
        try:
            asked = parse(await request.read())
        except Malformed as error:
            return _error(400, "invalid_argument", f"The request is {error}.")
        arguments = asked.get("args")
        call_id = asked.get("toolCallId")
        result = await self._answer(
            str(asked.get("agentId") or ""),
            str(asked.get("toolName") or ""),
            arguments if isinstance(arguments, dict) else {},
            call_id if isinstance(call_id, str) and call_id else None,
        )
        return web.json_response({"result": result}, dumps=lambda value: json.dumps(value))


def _error(status: int, code: str, message: str) -> web.Response:
    return web.json_response({"code": code, "message": message}, status=status)

"""The server that the bridge brings the agent's tool calls to: loopback only, with a token of its own.

Every call is answered. One for a tool of the client's is held open until the client's result is there; anything else gets an error result at once.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from toolwire.backends.agents.loopback import LoopbackServer
from toolwire.backends.cursor.connect import Malformed, parse

METHOD = "sdk.v1.SdkCustomToolCallbackService/CallCustomTool"
LARGEST = 64 * 2**20
Answer = Callable[[str, str, dict[str, Any], str | None], Awaitable[dict[str, Any]]]
"""Agent, tool, arguments and the call's id → the result."""


class CallbackServer(LoopbackServer):
    def __init__(self, answer: Answer) -> None:
        super().__init__(LARGEST, handler_cancellation=True)
        self._answer = answer
        self.token = secrets.token_urlsafe(32)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/"

    async def _serve(self, request: web.Request) -> web.Response:
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

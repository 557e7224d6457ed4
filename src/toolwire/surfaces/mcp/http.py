"""Streamable HTTP for the MCP server: checks access, and detects when a client disconnects.

Access is checked as in the gateway, by `access/gate.py`, and always needs a bearer token. If a client
disconnects while its call waits for a decision, the call is cancelled. Without `--wait`, its question
expires.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings

from toolwire.access.gate import Gate, HeaderList
from toolwire.core.errors import ToolwireError, error_object, status_of
from toolwire.settings.types import ServerSettings
from toolwire.surfaces.mcp.server import GONE, ToolServer

PATH = "/mcp"
EXPOSED = b"mcp-session-id, mcp-protocol-version, www-authenticate"
DRAIN_S = 2.0

Scope = Any
Receive = Callable[[], Any]
Send = Callable[[Any], Any]


class HttpApp:
    """The ASGI app. Serve it inside `async with app.running()`."""

    def __init__(self, served: ToolServer, server: ServerSettings, bearer: str) -> None:
        self._gate = Gate(replace(server, keys=(bearer,)))
        self._served = served
        self._ending = False
        self._manager = StreamableHTTPSessionManager(
            app=served.server,
            # The gate protects against DNS rebinding.
            security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
            max_request_body_size=int(server.max_body_mb * 1024 * 1024),
        )
        self.running = self._manager.run

    def drain(self) -> None:
        self._ending = True
        self._closing = asyncio.ensure_future(self._served.calls.close())

    async def leave(self) -> None:
        """Does nothing: this server is not a node of a cluster."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])
        if scope["method"] == "OPTIONS":
            await _answer(send, 204, b"", self._gate.preflight(headers))
            return
        cors = [
            (name, EXPOSED) if name == b"access-control-expose-headers" else (name, value)
            for name, value in self._gate.cors(headers)
        ]
        try:
            self._gate.check_place(headers, scope)
            self._gate.check_caller(headers, scope.get("client"))
            if scope["path"].rstrip("/") != PATH:
                raise ToolwireError("not_found", f"Nothing is at this path; the MCP endpoint is {PATH}.")
            if self._ending:
                raise ToolwireError("overloaded", "The server is shutting down.")
        except ToolwireError as error:
            status = status_of(error.failure)
            ask = [(b"www-authenticate", b'Bearer realm="toolwire"')] if status == 401 else []
            body = json.dumps(error_object(error.failure)).encode()
            await _answer(send, status, body, [(b"content-type", b"application/json"), *ask, *cors])
            return
        gone = asyncio.Event()
        done = False

        async def watched_receive() -> Any:
            received = await receive()
            if received["type"] == "http.disconnect" and not done:
                gone.set()
            return received

        async def watched_send(sent: Any) -> None:
            nonlocal done
            if sent["type"] == "http.response.start" and cors:
                sent = {**sent, "headers": [*sent.get("headers", ()), *cors]}
            done = done or (sent["type"] == "http.response.body" and not sent.get("more_body", False))
            await send(sent)

        await self._manager.handle_request({**scope, GONE: gone}, watched_receive, watched_send)


async def _answer(send: Send, status: int, body: bytes, headers: HeaderList) -> None:
    headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

"""A real MCP server over HTTP on loopback, in this process. It records every request that reaches it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
from mcp.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings

from doubles.served import served

PATHS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
READS = types.ToolAnnotations(read_only_hint=True)


class FilesServer:
    """The tools `read_file` and `write_file`. `headers`: of the requests, `calls`: what was called."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.description = "Reads a file."
        self.gate: asyncio.Event | None = None
        self.stopped = 0
        """How many calls were cancelled."""
        self.redirect = ""
        self._manager = StreamableHTTPSessionManager(
            app=Server("files", on_list_tools=self._list, on_call_tool=self._call),
            security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        )

    async def _list(self, context: Any, params: Any) -> types.ListToolsResult:
        read = types.Tool(
            name="read_file", description=self.description, input_schema=PATHS, annotations=READS
        )
        write = types.Tool(name="write_file", description="Writes a file.", input_schema=PATHS)
        return types.ListToolsResult(tools=[read, write])

    async def _call(self, context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        arguments = dict(params.arguments or {})
        self.calls.append((params.name, arguments))
        if self.gate is not None:
            try:
                await self.gate.wait()
            except BaseException:
                self.stopped += 1
                raise
        if arguments["path"] == "missing":
            return types.CallToolResult(content=[types.TextContent(text="no such file")], is_error=True)
        return types.CallToolResult(content=[types.TextContent(text=f"contents of {arguments['path']}")])

    # --- as the application of a server ---

    def drain(self) -> None:
        pass

    async def leave(self) -> None:
        pass

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        self.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
        if self.redirect:
            headers = [(b"location", self.redirect.encode()), (b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 307, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
            return
        await self._manager.handle_request(scope, receive, send)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Yields the server's URL."""
        async with self._manager.run(), served(self) as (_, port):
            yield f"http://127.0.0.1:{port}/mcp"

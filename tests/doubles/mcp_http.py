"""A real MCP server over HTTP in this process, and a gateway that offers its tools to API clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import mcp_types as types
import openai
from mcp.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings

from doubles.served import served
from toolwire.access.keys import KeyRecords
from toolwire.gateway.pipeline import Gateway
from toolwire.settings.types import McpServerSettings, McpSettings, Settings
from toolwire.store.store import Store
from toolwire.surfaces.http.app import App
from toolwire.testing import ScriptedBackend, ScriptedOptions
from toolwire.tools.contract import Approval, Decision

PATHS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
SCRIPT = """
call files__read_file {"path": "a.md"}
---
say I read: {result}
"""
READS = types.ToolAnnotations(read_only_hint=True)


class FilesServer:
    """An MCP server with the tools `read_file` and `write_file`.

    `headers`: the headers of every request. `calls`: the name and the arguments of every call.
    """

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


@dataclass
class Place:
    """A gateway with a scripted model and two API keys: `plain`, and `approves`, which may approve calls."""

    app: App
    files: FilesServer
    store: Store
    url: str
    keys: dict[str, str]

    def client(self, key: str = "plain") -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.url, api_key=self.keys[key], max_retries=0, timeout=20)

    async def question(self) -> Approval:
        """Waits for a pending question, and returns the first one."""
        assert self.app.pages is not None
        async with asyncio.timeout(10):
            while not (pending := await self.app.pages.web.approvals.pending()):
                await asyncio.sleep(0.01)
        return pending[0]

    async def decide(self, approve: bool) -> None:
        assert self.app.pages is not None
        one = await self.question()
        await self.app.pages.web.approvals.decide(one, Decision(approve), by="test")

    async def audit(self) -> list[dict[str, Any]]:
        assert self.app.pages is not None
        return await self.app.pages.web.approvals.records.audit()


@asynccontextmanager
async def place(
    script: str = SCRIPT, tools: Any = "native", urls: tuple[str, ...] = (), **server: Any
) -> AsyncIterator[Place]:
    files = FilesServer()
    async with files.running() as url, Store("sqlite://") as store:
        records = KeyRecords(store)
        keys = {
            "plain": (await records.add("plain", {}, {}))[1],
            "approves": (await records.add("approves", {"approve": True}, {}))[1],
        }
        given = McpServerSettings("files", **{"url": url, "api": True, "allow": ("read_file *",), **server})
        settings = Settings(mcp=McpSettings((given,), urls))
        model = ScriptedBackend("m", ScriptedOptions(script=script, tools=tools))
        gateway = Gateway(settings, store=store, backends={"m": model})
        await gateway.start()
        app = App(gateway, settings, store)
        try:
            async with served(app) as (_, port):
                yield Place(app, files, store, f"http://127.0.0.1:{port}/v1", keys)
        finally:
            await app.close()
            await gateway.close()

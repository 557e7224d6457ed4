"""Servers over HTTP: real ones of the SDK in both eras, and one that breaks HTTP."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
import pytest
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from tools.mcp.conftest import until
from toolwire.settings.types import McpServerSettings
from toolwire.tools.mcp.upstream import Upstream, UpstreamFailed


def words(result: types.CallToolResult) -> str:
    return "".join(one.text for one in result.content if isinstance(one, types.TextContent))


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[int]:
    """Serves an application on loopback with its lifespan, and yields the port."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="critical", lifespan="on", timeout_graceful_shutdown=1)
    )
    task = asyncio.ensure_future(server.serve(sockets=[listening]))
    await until(lambda: server.started)
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        await task
        listening.close()


class Weather:
    """A server with the SDK."""

    def __init__(self) -> None:
        self.stopped: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.server: MCPServer = MCPServer("weather", version="1", instructions="Ask about the weather.")
        server = self.server

        @server.tool()
        def add(a: int, b: int) -> int:
            """Adds."""
            return a + b

        @server.tool()
        async def slow(context: Context) -> str:
            """Reports progress until it is stopped."""
            try:
                for step in range(1000):
                    await context.report_progress(step, 1000, "at work")
                    await asyncio.sleep(0.02)
            except BaseException as error:
                self.stopped.append(type(error).__name__)
                raise
            return "done"

        @server.tool()
        def big(n: int) -> str:
            """Returns much text."""
            return "x" * n

        @server.tool()
        async def grow(context: Context) -> str:
            """Adds a tool."""
            server.add_tool(lambda: "new", name="grown", description="A new tool.")
            await context.notify_tools_changed()
            await context.session.send_tool_list_changed()
            return "ok"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        app: Any = self.server.streamable_http_app()

        async def noted(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                self.headers.append({key.decode(): value.decode() for key, value in scope["headers"]})
            await app(scope, receive, send)

        async with served(noted) as port:
            yield f"http://127.0.0.1:{port}/mcp"


@asynccontextmanager
async def connected(url: str, **changes: Any) -> AsyncIterator[Upstream]:
    upstream = Upstream(McpServerSettings("web", url=url, **{"call_s": 20.0, **changes}))
    try:
        yield upstream
    finally:
        await upstream.close()


async def test_a_server_is_listed_and_called() -> None:
    weather = Weather()
    headers = {"Authorization": "Bearer s3cret"}
    async with (
        weather.running() as url,
        connected(url, headers=headers, secret=("Bearer s3cret",)) as upstream,
    ):
        names = [one.name for one in await upstream.tools()]
        assert names == ["add", "slow", "big", "grow"]
        assert (await upstream.connected()).instructions == "Ask about the weather."
        assert words(await upstream.call("add", {"a": 1, "b": 2})) == "3"
        assert len(words(await upstream.call("big", {"n": 3_000_000}))) == 3_000_000
    assert {one["authorization"] for one in weather.headers} == {"Bearer s3cret"}


async def test_several_calls_run_at_once_and_a_cancelled_one_stops_at_the_server() -> None:
    weather = Weather()
    async with weather.running() as url, connected(url) as upstream:
        seen: list[float] = []

        async def report(done: float, total: float | None, message: str | None) -> None:
            seen.append(done)

        calling = asyncio.ensure_future(upstream.call("slow", {}, progress=report))
        await until(lambda: len(seen) > 2)
        assert words(await upstream.call("add", {"a": 1, "b": 2})) == "3"
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
        await until(lambda: weather.stopped)
        assert words(await upstream.call("add", {"a": 2, "b": 2})) == "4"


async def test_a_changed_list_is_heard_of() -> None:
    weather = Weather()
    async with weather.running() as url, connected(url) as upstream:
        await upstream.tools()
        await until(lambda: any(one.get("mcp-method") == "subscriptions/listen" for one in weather.headers))
        await upstream.call("grow", {})
        await until(lambda: upstream.listed is None)
        assert "grown" in [one.name for one in await upstream.tools()]


async def test_a_server_that_is_gone_fails_its_calls_and_is_found_again() -> None:
    weather = Weather()
    async with weather.running() as url, connected(url, start_s=2.0) as upstream:
        assert words(await upstream.call("add", {"a": 1, "b": 2})) == "3"
    async with connected(url, start_s=2.0) as upstream:
        with pytest.raises(UpstreamFailed, match=r"web cannot be used: .*connect"):
            await upstream.tools()
        assert upstream.state == "failed"


# --- a server that breaks HTTP ---

Handler = Callable[[dict[str, Any]], Response]


@asynccontextmanager
async def breaking(answer: Handler) -> AsyncIterator[str]:
    """Serves the protocol up to the list of tools, then answers as `answer` does."""

    async def handle(request: Request) -> Response:
        if request.method != "POST":
            return Response(status_code=405)
        message = json.loads(await request.body())
        method, id = message.get("method"), message.get("id")
        if method == "initialize":
            told = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
            return reply(id, {**told, "serverInfo": {"name": "b", "version": "1"}})
        if method == "tools/list":
            return reply(id, {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]})
        if method == "server/discover":
            return JSONResponse({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "no"}})
        if id is None:
            return Response(status_code=202)
        return answer(message)

    async with served(Starlette(routes=[Route("/mcp", handle, methods=["GET", "POST", "DELETE"])])) as port:
        yield f"http://127.0.0.1:{port}/mcp"


def reply(id: Any, result: dict[str, Any]) -> Response:
    return JSONResponse({"jsonrpc": "2.0", "id": id, "result": result})


def text(message: dict[str, Any], said: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": message["id"], "result": {"content": [{"type": "text", "text": said}]}}


def compressed(message: dict[str, Any]) -> Response:
    body = gzip.compress(json.dumps(text(message, "x" * 100_000_000)).encode(), 1)
    return Response(body, headers={"content-type": "application/json", "content-encoding": "gzip"})


def event(message: dict[str, Any]) -> Response:
    body = f"event: message\ndata: {json.dumps(text(message, 'x' * 9_000_000))}\n\n"
    return Response(body, headers={"content-type": "text/event-stream"})


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (lambda message: JSONResponse(text(message, "x" * 9_000_000)), ""),
        (event, "SSE stream failed"),
        (compressed, "compressed"),
        (lambda message: Response("<html>", media_type="text/html"), "content type"),
        (lambda message: Response("{", media_type="application/json"), "parse"),
        (lambda message: Response(status_code=500), "HTTP 500"),
        (lambda message: Response(status_code=202), "202"),
        (lambda message: RedirectResponse("http://169.254.169.254/latest"), "169.254|HTTP 307"),
    ],
    ids=["large", "large-event", "compressed", "html", "half", "500", "202", "redirect"],
)
async def test_an_answer_that_breaks_http_fails_its_call_in_time(answer: Handler, problem: str) -> None:
    async with breaking(answer) as url, connected(url) as upstream:
        await upstream.tools()
        with pytest.raises(UpstreamFailed) as caught:
            async with asyncio.timeout(10):
                await upstream.call("t", {})
        assert re.search(f"(?i){problem}", f"{caught.value} {caught.value.said}")
        assert "\n" not in str(caught.value)
        assert caught.value.may_have_run is (problem != "169.254|HTTP 307")
        assert [one.name for one in await upstream.tools()] == ["t"], "the next request works again"


async def test_an_error_with_the_number_of_a_closed_connection_is_the_servers_answer() -> None:
    def refuses(message: dict[str, Any]) -> Response:
        error = {"code": -32000, "message": "no such note"}
        return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "error": error})

    async with breaking(refuses) as url, connected(url) as upstream:
        with pytest.raises(UpstreamFailed, match="no such note") as caught:
            await upstream.call("t", {})
        assert caught.value.error is not None and not caught.value.may_have_run


async def test_a_refusal_at_the_start_is_shown_with_its_status() -> None:
    async def refuse(request: Request) -> Response:
        return Response("no entry", status_code=401)

    async with served(Starlette(routes=[Route("/mcp", refuse, methods=["GET", "POST"])])) as port:
        url = f"http://127.0.0.1:{port}/mcp"
        async with connected(url, headers={"Authorization": "s3cret"}, secret=("s3cret",)) as upstream:
            with pytest.raises(UpstreamFailed, match="HTTP 401") as caught:
                await upstream.tools()
            assert caught.value.status == 401 and "s3cret" not in str(caught.value)


async def test_an_address_of_oauth_metadata_is_not_contacted() -> None:
    """It is the server's choice, and could be an internal host."""
    sent: list[str] = []

    async def refuse(request: Request) -> Response:
        sent.append(request.url.path)
        where = f'Bearer resource_metadata="{request.base_url}latest/meta-data"'
        return Response(status_code=401, headers={"www-authenticate": where})

    routes = [Route("/{path:path}", refuse, methods=["GET", "POST"])]
    async with served(Starlette(routes=routes)) as port, connected(f"http://127.0.0.1:{port}/mcp") as up:
        with pytest.raises(UpstreamFailed, match="HTTP 401"):
            await up.tools()
        assert set(sent) == {"/mcp"}


async def test_a_redirect_is_not_followed_even_within_the_same_server() -> None:
    sent: list[str] = []

    async def elsewhere(request: Request) -> Response:
        sent.append(request.url.path)
        return RedirectResponse("/admin/delete?all=1")

    routes = [Route("/{path:path}", elsewhere, methods=["GET", "POST"])]
    async with served(Starlette(routes=routes)) as port, connected(f"http://127.0.0.1:{port}/team/mcp") as up:
        with pytest.raises(UpstreamFailed, match="not followed"):
            await up.tools()
        assert set(sent) == {"/team/mcp"}


async def test_a_token_is_masked_without_its_scheme_too() -> None:
    def repeats(message: dict[str, Any]) -> Response:
        error = {"code": -32000, "message": "invalid token s3cret-1, of Bearer s3cret-1"}
        return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "error": error})

    secret = ("Bearer s3cret-1",)
    async with breaking(repeats) as url, connected(url, secret=secret) as upstream:
        await upstream.tools()
        with pytest.raises(UpstreamFailed, match="invalid token") as caught:
            await upstream.call("t", {})
        assert "s3cret-1" not in str(caught.value)

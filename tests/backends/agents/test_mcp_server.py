"""The loopback MCP server that offers a client's tools to an agent.

Tested with the official client, and with raw requests that the client would not send.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from toolwire.backends.agents.mcp_server import ToolServer, content
from toolwire.core.errors import ToolwireError
from toolwire.core.turn import ImagePart, OtherPart, Result, TextPart, ToolSpec

WEATHER = ToolSpec(
    "get_weather", "The weather.", {"properties": {"city": {"type": "string"}}, "required": ["city"]}
)
MODES = ["legacy", "auto"]


class Desk:
    """The tests' tool: calls wait until `go` is set."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.came = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()
        self.fails = ""

    async def __call__(self, name: str, arguments: dict[str, Any]) -> Result:
        self.asked.append((name, arguments))
        self.came.set()
        await self.go.wait()
        if self.fails:
            raise ToolwireError("backend", self.fails)
        city = arguments.get("city")
        return Result("c", (TextPart(f"sun in {city}"),), is_error=city == "Nowhere")


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
async def server(desk: Desk) -> AsyncIterator[ToolServer]:
    made = ToolServer([WEATHER, ToolSpec("free")], desk, keep_alive_s=0.02)
    await made.start()
    yield made
    await made.close()


@asynccontextmanager
async def _official(server: ToolServer, mode: str) -> AsyncIterator[Any]:
    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    async with httpx2.AsyncClient(headers=server.headers, timeout=10) as http:
        async with Client(streamable_http_client(server.url, http_client=http), mode=mode) as client:
            yield client


@pytest.mark.parametrize("mode", MODES)
async def test_the_official_client_lists_and_calls_the_tools(
    server: ToolServer, desk: Desk, mode: str
) -> None:
    async with _official(server, mode) as client:
        tools = (await client.list_tools()).tools
        assert [(tool.name, tool.description, tool.input_schema["type"]) for tool in tools] == [
            ("get_weather", "The weather.", "object"),
            ("free", "", "object"),
        ]
        assert tools[0].input_schema["required"] == ["city"]
        result = await client.call_tool("get_weather", {"city": "Oslo"})
        assert (result.is_error, result.content[0].text) == (False, "sun in Oslo")
        assert desk.asked == [("get_weather", {"city": "Oslo"})]
        assert (await client.call_tool("get_weather", {"city": "Nowhere"})).is_error
    assert server.listed.is_set()


async def test_a_call_that_waits_gives_signs_of_life(server: ToolServer, desk: Desk) -> None:
    desk.go.clear()
    reported: list[float] = []
    enough = asyncio.Event()

    async def progress(done: float, total: float | None, message: str | None) -> None:
        reported.append(done)
        if len(reported) == 3:
            enough.set()

    async with _official(server, "legacy") as client:
        call = asyncio.ensure_future(
            client.call_tool("get_weather", {"city": "Oslo"}, progress_callback=progress)
        )
        await enough.wait()
        desk.go.set()
        assert (await call).content[0].text == "sun in Oslo"
    assert reported == sorted(reported)


async def test_calls_wait_beside_each_other(server: ToolServer, desk: Desk) -> None:
    desk.go.clear()
    async with _official(server, "legacy") as client:
        calls = [
            asyncio.ensure_future(client.call_tool("get_weather", {"city": city}))
            for city in ("Oslo", "Rome")
        ]
        while len(desk.asked) < 2:
            await asyncio.wait_for(desk.came.wait(), 5)
            desk.came.clear()
        desk.go.set()
        assert [result.content[0].text for result in await asyncio.gather(*calls)] == [
            "sun in Oslo",
            "sun in Rome",
        ]


async def test_a_failed_call_is_an_error_result(server: ToolServer, desk: Desk) -> None:
    desk.fails = "the run is over"
    async with _official(server, "legacy") as client:
        result = await client.call_tool("get_weather", {"city": "Oslo"})
        assert result.is_error and result.content[0].text == "error: the run is over"


async def test_calls_that_wait_when_the_server_closes_are_cancelled(server: ToolServer, desk: Desk) -> None:
    desk.go.clear()
    async with aiohttp.ClientSession() as http:
        call = asyncio.ensure_future(_post(http, server, _call("get_weather", {"city": "Oslo"})))
        await desk.came.wait()
        await server.close()
        status, body = await call
        assert (
            status == 200
            and body["result"]["isError"]
            and "cancelled" in body["result"]["content"][0]["text"]
        )
        with pytest.raises(aiohttp.ClientError):
            await _post(http, server, _call("get_weather", {}))


# --- raw requests ---


def _call(name: Any, arguments: Any) -> dict[str, Any]:
    return {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": name, "arguments": arguments},
    }


async def _post(
    http: aiohttp.ClientSession, server: ToolServer, message: Any, **headers: str
) -> tuple[int, Any]:
    data = message if isinstance(message, bytes) else json.dumps(message).encode()
    async with http.post(
        server.url, data=data, headers={**server.headers, "Accept": "application/json", **headers}
    ) as answer:
        text = await answer.text()
        return answer.status, json.loads(text) if text.startswith("{") else text


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": ""}, 401),
        ({"Authorization": "Bearer \xe9"}, 401),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1:1"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:{port}"}, 200),
        ({"Host": "localhost:{port}"}, 200),
    ],
)
async def test_only_requests_with_the_token_are_answered(
    server: ToolServer, desk: Desk, change: dict[str, str], status: int
) -> None:
    port = server.url.rpartition(":")[2].partition("/")[0]
    async with aiohttp.ClientSession() as http:
        given = {name: value.replace("{port}", port) for name, value in change.items()}
        assert (await _post(http, server, _call("get_weather", {"city": "Oslo"}), **given))[0] == status
    assert bool(desk.asked) == (status == 200)


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT", "OPTIONS"])
async def test_nothing_but_post_is_answered(server: ToolServer, method: str) -> None:
    async with (
        aiohttp.ClientSession() as http,
        http.request(method, server.url, headers=server.headers) as answer,
    ):
        assert (answer.status, answer.headers["Allow"]) == (405, "POST")


async def test_another_path_is_not_found(server: ToolServer) -> None:
    async with (
        aiohttp.ClientSession() as http,
        http.post(server.url + "/x", headers=server.headers) as answer,
    ):
        assert answer.status == 404


@pytest.mark.parametrize(
    ("message", "status", "code"),
    [
        (b"{", 400, -32700),
        (b"[]", 400, -32600),
        (b"[" * 100_000, 400, -32700),
        ({"id": 1, "method": "ping"}, 400, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": "resources/list"}, 200, -32601),
        (_call("no_such_tool", {}), 200, -32602),
        (_call("get_weather", [1]), 200, -32602),
        (_call(["get_weather"], {}), 200, -32602),
        (json.dumps(_call("get_weather", {"city": float("nan")})).encode(), 400, -32700),
    ],
)
async def test_an_invalid_request_gets_a_clear_error(
    server: ToolServer, message: Any, status: int, code: int
) -> None:
    async with aiohttp.ClientSession() as http:
        given, body = await _post(http, server, message)
    assert (given, body["error"]["code"]) == (status, code)


async def test_notifications_are_taken_and_versions_are_settled(server: ToolServer) -> None:
    hello: Callable[[str], dict[str, Any]] = lambda version: {  # noqa: E731
        "jsonrpc": "2.0",
        "id": 0,
        "method": "initialize",
        "params": {"protocolVersion": version},
    }
    async with aiohttp.ClientSession() as http:
        assert (await _post(http, server, {"jsonrpc": "2.0", "method": "notifications/initialized"}))[
            0
        ] == 202
        assert (await _post(http, server, hello("2025-03-26")))[1]["result"][
            "protocolVersion"
        ] == "2025-03-26"
        assert (await _post(http, server, hello("1999-01-01")))[1]["result"][
            "protocolVersion"
        ] == "2025-11-25"
        status, body = await _post(
            http,
            server,
            {"jsonrpc": "2.0", "id": 1, "method": "ping"},
            **{"MCP-Protocol-Version": "1999-01-01"},
        )
        assert (status, body["error"]["code"]) == (400, -32022)


async def test_an_agent_that_disconnects_from_a_stream_does_no_harm(server: ToolServer, desk: Desk) -> None:
    desk.go.clear()
    async with aiohttp.ClientSession() as http:
        async with http.post(
            server.url,
            json=_call("get_weather", {}),
            headers={**server.headers, "Accept": "text/event-stream"},
        ) as answer:
            assert answer.headers["Content-Type"] == "text/event-stream"
            assert (await answer.content.readline()) == b": waiting\n"
        desk.go.set()
        assert (await _post(http, server, {"jsonrpc": "2.0", "id": 1, "method": "ping"}))[0] == 200


async def test_the_server_is_on_loopback_only(server: ToolServer) -> None:
    port = int(server.url.rpartition(":")[2].partition("/")[0])
    with socket.socket() as other:
        other.bind(("127.0.0.2", port))  # would succeed if the server listened on every address


async def test_a_start_that_is_cancelled_at_any_moment_leaves_no_socket() -> None:
    async def call(name: str, arguments: dict[str, Any]) -> Result:
        raise AssertionError

    before = len(os.listdir("/dev/fd"))
    for moments in range(1, 8):
        server = ToolServer([], call)
        starting = asyncio.ensure_future(server.start())
        for _ in range(moments):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await server.close()
    assert len(os.listdir("/dev/fd")) == before


def test_results_keep_their_images() -> None:
    parts = (
        TextPart("a"),
        ImagePart("data:image/png;base64,AAAA"),
        ImagePart("https://x.example/a.png"),
        OtherPart("file", {"id": "f"}),
    )
    assert content(parts) == [
        {"type": "text", "text": "a"},
        {"type": "image", "data": "AAAA", "mimeType": "image/png"},
        {"type": "text", "text": "[image https://x.example/a.png]"},
        {"type": "text", "text": '{"id": "f"}'},
    ]

"""Servers behind Toolwire over HTTP, on both sides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from doubles.mcp_http import FilesServer
from doubles.mcp_proxied import peer, proxied, received
from toolwire.settings.types import McpServerSettings
from toolwire.store.store import Store
from toolwire.surfaces.mcp.server import TOO_MANY
from toolwire.tools.contract import Decision

both_eras = pytest.mark.parametrize("mode", ["legacy", "auto"])
BEARER = {"authorization": "Bearer a-bearer-for-the-tests"}


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with Store(f"sqlite:///{tmp_path}/state/toolwire.db") as one:
        yield one


@both_eras
async def test_no_header_of_a_client_reaches_a_server_and_no_header_of_one_server_another(
    store: Store, on_http: Any, mode: str
) -> None:
    files, other = FilesServer(), FilesServer()
    mine = {**BEARER, "x-api-key": "client-key", "cookie": "client=1", "x-forwarded-for": "10.0.0.1"}
    async with files.running() as first, other.running() as second:
        settings = [
            McpServerSettings("files", url=first, headers={"Authorization": "first"}, default="allow"),
            McpServerSettings("other", url=second, headers={"X-Other": "second"}, default="allow"),
        ]
        async with (
            proxied(store, *settings) as proxy,
            on_http(proxy) as url,
            httpx2.AsyncClient(headers=mine, timeout=30) as http,
            Client(streamable_http_client(url, http_client=http), mode=mode) as client,
        ):
            await client.list_tools()
            for name in ("files__read_file", "other__read_file"):
                assert not (await client.call_tool(name, {"path": "a"})).is_error
    for server, own, others in ((files, "authorization", "x-other"), (other, "x-other", "authorization")):
        assert server.headers
        for headers in server.headers:
            assert headers.get(own) in ("first", "second") and others not in headers
            assert not {"x-api-key", "cookie", "x-forwarded-for"} & headers.keys()
            assert "a-bearer-for-the-tests" not in str(headers) and "client" not in headers.get("cookie", "")


@both_eras
@pytest.mark.process
async def test_a_client_on_http_is_asked_and_its_declined_call_reaches_no_server(
    store: Store, tmp_path: Path, on_http: Any, connect: Any, form: Any, mode: str
) -> None:
    log = tmp_path / "stdin.log"
    person = form("decline", {"approve": True})
    async with (
        proxied(store, peer(log)) as proxy,
        on_http(proxy) as url,
        connect(url, mode, person) as client,
    ):
        assert (await client.call_tool("peer__echo", {"text": "a"})).is_error
        assert received(log) == []
        assert not (await client.call_tool("peer__echo", {"text": "b"})).is_error
    assert [one["arguments"] for one in received(log)] == [{"text": "b"}]


@pytest.mark.process
async def test_every_session_learns_of_a_changed_list(
    store: Store, tmp_path: Path, on_http: Any, connect: Any
) -> None:
    told = [asyncio.Event(), asyncio.Event()]

    def listener(event: asyncio.Event) -> Any:
        async def heard(message: Any) -> None:
            if isinstance(message, types.ToolListChangedNotification):
                event.set()

        return heard

    settings = peer(tmp_path / "stdin.log", allow=("*",))
    async with proxied(store, settings) as proxy, on_http(proxy) as url:
        async with (
            httpx2.AsyncClient(headers=BEARER, timeout=30) as http,
            Client(
                streamable_http_client(url, http_client=http),
                mode="legacy",
                message_handler=listener(told[0]),
            ) as first,
            httpx2.AsyncClient(headers=BEARER, timeout=30) as http2,
            Client(
                streamable_http_client(url, http_client=http2),
                mode="legacy",
                message_handler=listener(told[1]),
            ) as second,
        ):
            await first.list_tools()
            await second.list_tools()
            await first.call_tool("peer__grow", {})
            async with asyncio.timeout(30):
                await asyncio.gather(*(one.wait() for one in told))


@pytest.mark.process
async def test_a_client_that_leaves_a_call_cancels_it_at_the_server(
    store: Store, tmp_path: Path, on_http: Any, connect: Any
) -> None:
    log = tmp_path / "stdin.log"
    async with proxied(store, peer(log, allow=("*",))) as proxy, on_http(proxy) as url:
        async with connect(url, "auto") as client:
            calling = asyncio.ensure_future(client.call_tool("peer__slow", {}))
            while not received(log):
                await asyncio.sleep(0.01)
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)
        async with asyncio.timeout(30):
            while "cancelled: slow" not in log.read_text():
                await asyncio.sleep(0.01)


@both_eras
@pytest.mark.process
async def test_a_call_that_was_answered_with_wait_is_taken_by_a_later_session(
    store: Store, tmp_path: Path, on_http: Any, connect: Any, mode: str
) -> None:
    log = tmp_path / "stdin.log"
    async with proxied(store, peer(log), wait_s=0.2) as proxy, on_http(proxy) as url:
        async with connect(url, mode) as client:
            assert (await client.call_tool("peer__echo", {"text": "a"})).is_error
        (question,) = await proxy.approvals.pending()
        await proxy.approvals.decide(question, Decision(True), by="test")
        async with connect(url, mode) as client:
            assert not (await client.call_tool("peer__echo", {"text": "a"})).is_error
    assert len(received(log)) == 1


@pytest.mark.process
async def test_clients_without_a_session_leave_a_limited_number_of_questions(
    store: Store, tmp_path: Path, on_http: Any, connect: Any, text: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolwire.surfaces.mcp.server.MOST_WAITING", 2)
    log = tmp_path / "stdin.log"
    async with (
        proxied(store, peer(log), wait_s=0.05) as proxy,
        on_http(proxy) as url,
        connect(url, "auto") as client,
    ):
        said = [text(await client.call_tool("peer__echo", {"text": word})) for word in "abca"]
        questions = {one.arguments["text"]: one for one in await proxy.approvals.pending()}
        assert [TOO_MANY in one for one in said] == [False, False, True, False]
        assert questions.keys() == {"a", "b"}
        question = questions["a"]
        await proxy.approvals.decide(question, Decision(True), by="test")
        assert not (await client.call_tool("peer__echo", {"text": "a"})).is_error
        assert TOO_MANY not in text(await client.call_tool("peer__echo", {"text": "c"}))
    assert [one["arguments"] for one in received(log)] == [{"text": "a"}]

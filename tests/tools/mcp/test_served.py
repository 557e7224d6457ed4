"""The servers that API clients may use: whose grants count, and how long connections are kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from doubles.mcp_http import FilesServer
from tools.mcp.conftest import until
from toolwire.core.errors import ToolwireError
from toolwire.core.events import McpResult
from toolwire.core.mcp import McpServer
from toolwire.gateway.records import Caller
from toolwire.gateway.served import Purpose, ServedCall, ServedTool
from toolwire.settings.types import McpServerSettings, McpSettings
from toolwire.store.store import Store
from toolwire.tools.approvals import Approvals, Question
from toolwire.tools.contract import Asking, Decision, Preview
from toolwire.tools.mcp import served as module
from toolwire.tools.mcp.served import MOST_NAMED, MOST_OF_KEY, NamedServers, ServedServers
from toolwire.tools.mcp.servers import McpServers

LAPTOP = Caller("key_1", key_name="laptop")


def by_url(url: str, label: str = "files") -> McpServer:
    return McpServer(label, "tools[0]", url)


@asynccontextmanager
async def serving(store: Store, servers: McpServers | None = None) -> AsyncIterator[ServedServers]:
    """Has every address count as public."""
    settings, approvals = McpSettings((), ("*",)), Approvals(store)
    made = ServedServers(
        servers, settings, approvals, store, allowed=lambda address: True, plain=lambda url: ""
    )
    try:
        yield made
    finally:
        await made.close()


async def offered(served: ServedServers, url: str, caller: Caller = LAPTOP) -> ServedTool:
    tools = await served.offered(by_url(url), caller)
    assert tools is not None
    return tools[0]


def called(served: ServedServers, tool: ServedTool, caller: Caller = LAPTOP) -> asyncio.Future[Any]:
    """Calls a tool, with the approval of the client."""
    calls = [ServedCall("mcp_1", tool, '{"path": "a.md"}', granted=bool(caller.key_name))]
    running: asyncio.Future[Sequence[McpResult]] = asyncio.ensure_future(
        served.run(calls, Purpose(caller, "resp_1", "demo"))
    )
    return running


# --- grants ---


async def test_a_grant_answers_only_the_calls_of_the_chat_or_the_key_that_it_was_given_for(
    store: Store,
) -> None:
    files, approvals = FilesServer(), Approvals(store)
    callers = [
        *(Caller(), Caller("5f2c"), Caller("77aa"), Caller("key_1", key_name="laptop")),
        Caller("key_2", key_name="laptop"),
    ]
    async with files.running() as url:
        servers = McpServers(
            McpSettings((McpServerSettings("files", url=url, api=True),)), store, patience_s=20
        )
        served = ServedServers(servers, McpSettings(), approvals, store)
        tools = await served.offered(McpServer("files", "tools[0]"), LAPTOP)
        assert tools is not None
        (tool,) = [one for one in tools if one.tool == "write_file"]
        in_chat = Question(tool.name, "run", {"path": "b"}, Preview(action="Run"), "mcp:files", tool.pin)
        asked = asyncio.ensure_future(approvals.ask(Asking("chat_1", "demo", "web"), [in_chat], None))
        for number, caller in enumerate(callers):  # each question is new, despite the grants before it
            await until_pending(approvals)
            (question,) = await approvals.pending()
            await approvals.decide(question, Decision(True, remember="tool"), by="the person")
            await asked
            calls = [ServedCall(f"mcp_{number}", tool, '{"path": "a.md"}')]
            asked = asyncio.ensure_future(served.run(calls, Purpose(caller, "resp_1", "demo")))  # type: ignore[arg-type]
        await until_pending(approvals)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        again = await asyncio.wait_for(served.run(calls[:1], Purpose(callers[0], "resp_2", "demo")), 10)
        assert again[0].output == "contents of a.md", "the grant of the same caller counts"
        await served.close()
        await servers.close()


async def until_pending(approvals: Approvals) -> None:
    async with asyncio.timeout(10):
        while not await approvals.pending():
            await asyncio.sleep(0.01)


# --- servers that clients name ---


async def test_a_connection_is_not_closed_under_a_running_call(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0.2)
    files = FilesServer()
    async with files.running() as url, serving(store) as served:
        tool = await offered(served, url)
        files.gate = asyncio.Event()
        running = called(served, tool)
        await until(lambda: files.calls)
        await offered(served, url, Caller("key_2"))
        await until(lambda: len(served._named._open) == 1)  # that of the later one, which is idle
        files.gate.set()
        (result,) = await running
        assert (result.output, result.error) == ("contents of a.md", None)
        await until(lambda: not served._named._open)  # its time without a call has begun at its end


async def test_a_tool_whose_connection_was_closed_in_between_can_still_be_called(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0.05)
    files = FilesServer()
    async with files.running() as url, serving(store) as served:
        tool = await offered(served, url)
        await until(lambda: not served._named._open)
        (result,) = await called(served, tool)
        assert (result.output, result.error) == ("contents of a.md", None)


async def test_one_key_cannot_close_or_use_up_the_connections_of_another(store: Store) -> None:
    named = NamedServers(store, lambda address: True)
    first = named.get(by_url("https://x.example/mcp"), "key_1")
    with named.used(first):
        pass
    for number in range(2 * MOST_NAMED):
        with named.used(named.get(by_url("https://x.example/mcp", f"s{number}"), "key_2")):
            pass
    assert first.id in named._open
    assert len(named._open) == 1 + MOST_OF_KEY
    with ExitStack() as stack:
        for number in range(MOST_OF_KEY):
            one = named.get(by_url("https://x.example/mcp", f"t{number}"), "key_2")
            stack.enter_context(named.used(one))
        one_more = named.get(by_url("https://x.example/mcp", "more"), "key_2")
        with pytest.raises(ToolwireError, match="too many"), named.used(one_more):
            pass
        with named.used(named.get(by_url("https://y.example/mcp"), "key_1")):
            assert first.id in named._open
    await named.close()


async def test_a_connection_is_for_one_key_one_url_and_one_set_of_headers(store: Store) -> None:
    """Behind one key may be many people, each with a token of their own."""
    named = NamedServers(store, lambda address: True)
    one = replace(by_url("https://x.example/mcp"), headers={"Authorization": "Bearer a"})
    others = [
        (one, "key_2"),
        (replace(one, headers={"Authorization": "Bearer b"}), "key_1"),
        (replace(one, headers={}), "key_1"),
        (replace(one, url="https://x.example/other"), "key_1"),
        (replace(one, label="more"), "key_1"),
    ]
    first = named.get(one, "key_1")
    kept = [first, *(named.get(*other) for other in others)]
    assert named.get(replace(one), "key_1") is first and len({each.id for each in kept}) == len(kept)
    await named.close()


async def test_the_connections_of_many_keys_have_a_limit(store: Store) -> None:
    named = NamedServers(store, lambda address: True)
    for number in range(2 * MOST_NAMED):
        with named.used(named.get(by_url("https://x.example/mcp"), f"key_{number}")):
            pass
    assert len(named._open) == MOST_NAMED
    await named.close()
    assert not named._open


async def test_no_new_connection_is_opened_after_the_end(store: Store) -> None:
    files = FilesServer()
    async with files.running() as url, serving(store) as served:
        tool = await offered(served, url)
        await served.close()
        (result,) = await called(served, tool)
        assert result.output is None
        assert files.calls == []

"""The official client accepts the scripted bridge, and Toolwire works with the real bridge offline.

Needs the package `cursor-sdk`. If it is missing, these tests are skipped; under CI=true they fail.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import sys
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from doubles.cursor_bridge import FakeCursorBridge
from toolwire.backends.cursor import CursorBackend, CursorOptions
from toolwire.backends.cursor.bridge import Bridge
from toolwire.backends.cursor.client import AGENT, CONTROL, BridgeClient, ConnectError
from toolwire.backends.cursor.options import BridgeTarget, bundled
from toolwire.backends.cursor.session import create_agent
from toolwire.core.events import Failure
from toolwire.core.turn import Message, TextPart, ToolChoice, ToolSpec, Turn
from toolwire.settings.extras import add_extra

Make = Callable[..., CursorBackend]
TURN = Turn(
    "chat",
    "m",
    (Message("user", (TextPart("hi"),)),),
    tools=(ToolSpec("look"),),
    tool_choice=ToolChoice("auto"),
)


def _missing(what: str) -> None:
    pytest.skip(what)


@pytest.fixture
def sdk() -> Iterator[Any]:
    """The official client. It leaves its bridge's pipe open, which must be collected in this test."""
    try:
        yield importlib.import_module("cursor_sdk")
    except ImportError:
        _missing(f"cursor-sdk is missing: {add_extra('cursor')}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def real_bridge() -> str:
    found = bundled()
    if found is None:
        _missing(f"Cursor's bridge is missing: {add_extra('cursor')}")
    assert found is not None
    return found


# --- the official client on the scripted bridge ---


def scripted(launcher: Any, *script: Any, flags: str = "") -> list[str]:
    return [launcher(*script, flags=flags)]


async def test_the_official_client_runs_the_whole_loop_with_parallel_parked_calls(
    sdk: Any, launcher: Any
) -> None:
    calls = [{"call": "look", "args": {"n": 1}, "id": "a"}, {"call": "look", "args": {"n": 2}, "id": "b"}]
    usage = {
        "input_tokens": 9,
        "output_tokens": 4,
        "cache_read_tokens": 1,
        "cache_write_tokens": 0,
        "total_tokens": 14,
    }
    script = [
        {"think": "Hm."},
        {"text": "Let me look. "},
        {"calls": calls},
        {"usage": usage},
        {"text": "Found {results}."},
    ]
    parked: dict[str, asyncio.Future[str]] = {}

    async def look(arguments: Any, context: Any) -> str:
        waiting = parked[context.tool_call_id] = asyncio.get_running_loop().create_future()
        return f"{arguments['n']}:{await waiting}"

    wait = float(os.environ.get("TOOLWIRE_LONG_PARK_S", "5"))
    async with (
        asyncio.timeout(wait + 60),
        await sdk.AsyncClient.launch_bridge(scripted(launcher, script)) as client,
    ):
        models = await client.list_models(api_key="crsr_x")
        assert [model.id for model in models] == ["auto", "composer-2"]
        tool = sdk.CustomTool(execute=look, description="looks", input_schema={"type": "object"})
        local = sdk.LocalAgentOptions(cwd="/", custom_tools={"look": tool})
        async with await client.agents.create(
            sdk.AgentOptions(model="auto", api_key="crsr_x", local=local, tools=["mcp"])
        ) as agent:
            deltas: list[str] = []
            run = await agent.send("hi", sdk.SendOptions(on_delta=lambda update: deltas.append(update.type)))
            waiting = asyncio.ensure_future(run.wait())
            while len(parked) < 2:
                await asyncio.sleep(0.01)
            await asyncio.sleep(wait)
            assert not waiting.done()
            for id, future in parked.items():
                future.set_result(id)
            result = await waiting
    assert (result.status, result.result) == ("finished", "Let me look. Found 1:a 2:b.")
    assert (result.usage.input_tokens, result.usage.output_tokens) == (9, 4)
    assert "text-delta" in deltas and "tool-call-started" in deltas
    made = launcher.bodies("CreateAgent")[0]["options"]
    assert made["tools"] == {"names": ["mcp"]} and made["local"]["customTools"] == {
        "look": {"description": "looks", "inputSchema": {"type": "object"}}
    }


async def test_the_official_client_can_cancel_and_gets_errors(sdk: Any, launcher: Any) -> None:
    script = [
        {"when": "wait", "steps": [{"text": "a"}, {"hang": True}]},
        {"when": "fail", "steps": [{"status": "ERROR", "code": "upstream", "message": "It broke."}]},
        {
            "when": "limit",
            "steps": [
                {
                    "error": "resource_exhausted",
                    "message": "slow",
                    "sdk": "SDK_ERROR_CODE_RATE_LIMIT_EXCEEDED",
                }
            ],
        },
    ]
    async with (
        asyncio.timeout(60),
        await sdk.AsyncClient.launch_bridge(
            scripted(launcher, *script, flags="--api-key crsr_right")
        ) as client,
    ):
        local = sdk.LocalAgentOptions(cwd="/")
        with pytest.raises(sdk.AuthenticationError):
            await client.agents.create(sdk.AgentOptions(model="auto", api_key="crsr_wrong", local=local))
        with pytest.raises(sdk.ConfigurationError):
            await client.agents.create(
                sdk.AgentOptions(model="gpt-nonsense", api_key="crsr_right", local=local)
            )
        async with await client.agents.create(
            sdk.AgentOptions(model="auto", api_key="crsr_right", local=local)
        ) as agent:
            run = await agent.send("wait")
            await run.cancel()
            assert (await run.wait()).status == "cancelled"
            failed = await (await agent.send("fail")).wait()
            assert (failed.status, failed.error_message) == ("error", "It broke.")
            with pytest.raises(sdk.RateLimitError):
                await (await agent.send("limit")).wait()


async def test_the_official_client_attaches_with_the_right_token_only(sdk: Any) -> None:
    async with asyncio.timeout(60), FakeCursorBridge([{"text": "Hello."}]) as bridge:
        async with sdk.AsyncClient.connect(bridge.url, bridge.token) as client:
            agent = await client.agents.create(
                sdk.AgentOptions(model="auto", api_key="crsr_x", local=sdk.LocalAgentOptions(cwd="/"))
            )
            assert await (await agent.send("hi")).text() == "Hello."
        with pytest.raises(sdk.AuthenticationError):
            async with sdk.AsyncClient.connect(bridge.url, "guessed") as client:
                await client.agents.create(
                    sdk.AgentOptions(model="auto", api_key="crsr_x", local=sdk.LocalAgentOptions(cwd="/"))
                )


async def test_the_official_client_may_answer_late(sdk: Any, launcher: Any) -> None:
    released = asyncio.Event()

    async def look(arguments: Any, context: Any) -> str:
        await released.wait()
        return "too late"

    script = [{"call": "look", "within": 0.3}, {"text": "I could not wait: {result}."}]
    async with asyncio.timeout(60), await sdk.AsyncClient.launch_bridge(scripted(launcher, script)) as client:
        local = sdk.LocalAgentOptions(cwd="/", custom_tools={"look": sdk.CustomTool(execute=look)})
        agent = await client.agents.create(
            sdk.AgentOptions(model="auto", api_key="crsr_x", local=local, tools=["mcp"])
        )
        assert await (await agent.send("hi")).text() == "I could not wait: gave up."
        released.set()
        assert await (await agent.send("again")).text() == "I could not wait: too late."


async def test_the_official_client_notices_that_the_bridge_died(sdk: Any, launcher: Any) -> None:
    async with (
        asyncio.timeout(60),
        await sdk.AsyncClient.launch_bridge(scripted(launcher, [{"text": "a"}, {"die": True}])) as client,
    ):
        agent = await client.agents.create(
            sdk.AgentOptions(model="auto", api_key="crsr_x", local=sdk.LocalAgentOptions(cwd="/"))
        )
        with pytest.raises(sdk.CursorAgentError):
            await (await agent.send("hi")).wait()


# --- the real bridge ---


async def test_the_real_bridge_reports_its_version_accepts_our_callback_and_creates_an_agent(
    real_bridge: str,
) -> None:
    bridge = Bridge(BridgeTarget(command=real_bridge), 60, 30)
    try:
        connection = await bridge.connect()
        assert (await connection.client.unary(f"{CONTROL}/Ping", {}))["message"] == "pong"
        assert (await connection.client.unary(f"{CONTROL}/GetVersion", {}))["protocolVersion"] == "sdk.v1"
        made = await connection.client.unary(
            f"{AGENT}/CreateAgent",
            create_agent(str(uuid.uuid4()), CursorOptions(), "", TURN.tools, connection.work),
        )
        assert made["agentId"] and made["model"] == {"id": "auto"}
        without = await connection.client.unary(
            f"{AGENT}/CreateAgent", create_agent(str(uuid.uuid4()), CursorOptions(), "", (), connection.work)
        )
        assert without["agentId"] != made["agentId"]
        with pytest.raises(ConnectError) as caught:
            await connection.client.unary(f"{AGENT}/CloseAgent", {"agentId": "nobody"})
        assert caught.value.code == "not_found"
        process = connection.process
        assert process is not None and process.home is not None
        stranger = BridgeClient((connection.client._url), "guessed", 10)
        try:
            with pytest.raises(ConnectError) as caught:
                await stranger.unary(f"{CONTROL}/GetVersion", {})
            assert caught.value.code == "unauthenticated"
        finally:
            await stranger.close()
        assert Path(process.home.home / ".cursor").exists(), "what it keeps lies in its own home"
    finally:
        await bridge.close()
    assert not process.alive and not process.home.path.exists()


async def test_a_key_that_cursor_cannot_check_or_does_not_know_is_one_clear_error(
    real_bridge: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    backend = make(bridge_bin=real_bridge)
    async with asyncio.timeout(60):
        events = [event async for batch in backend.run(TURN) for event in batch]
    assert len(events) == 1 and isinstance(events[0], Failure)
    assert events[0].kind in ("backend_unavailable", "backend_auth") and events[0].message


def test_the_core_never_imports_the_proprietary_package() -> None:
    import subprocess

    program = (
        "import sys, toolwire.backends.cursor, doubles.cursor_bridge; sys.exit('cursor_sdk' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

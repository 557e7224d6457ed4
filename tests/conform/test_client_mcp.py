"""openai-agents completes the approval flow of a `HostedMCPTool` with the gateway and a real MCP server."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import pytest

from doubles.mcp_http import Place, place
from matrix import CLIENTS, installed

pytestmark = pytest.mark.timeout(120)
CALL = ("read_file", {"path": "a.md"})
SCRIPT = """
call files__read_file {"path": "a.md"}
---
say It says: {result}
---
say Nothing new.
"""
ITEMS = [
    *("mcp_list_tools_item", "mcp_approval_request_item", "mcp_approval_response_item"),
    *("tool_call_item", "message_output_item"),
]
STREAMED = [
    *("response.created", "response.in_progress"),
    *("response.output_item.added", "response.mcp_list_tools.in_progress"),
    *("response.mcp_list_tools.completed", "response.output_item.done"),
    *("response.output_item.added", "response.output_item.done", "response.completed"),
    *("response.created", "response.in_progress"),
    *("response.output_item.added", "response.mcp_call.in_progress", "response.mcp_call_arguments.delta"),
    *("response.mcp_call_arguments.done", "response.mcp_call.completed", "response.output_item.done"),
    *("response.output_item.added", "response.content_part.added", "response.output_text.delta"),
]


async def runs_of(gateways: list[Place]) -> list[dict[str, Any]]:
    python = installed().pythons["python"]
    if not python.exists():
        pytest.skip("the environment of openai-agents is missing: make test makes it")
    given = [f"{one.url},{one.keys['plain']}" for one in gateways]
    child = await asyncio.create_subprocess_exec(
        str(python), str(CLIENTS / "agents_mcp.py"), *given, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await child.communicate()
    assert child.returncode == 0
    results: list[dict[str, Any]] = json.loads(out)
    return results


async def test_openai_agents_completes_the_approval_flow_with_every_strategy() -> None:
    async with AsyncExitStack() as stack:
        strategies = ("native", "emulated", "constrained")
        gateways = [await stack.enter_async_context(place(SCRIPT, tools=tools)) for tools in strategies]
        for tools, here, results in zip(strategies, gateways, await runs_of(gateways), strict=True):
            for way in ("yes", "previous", "streamed", "interrupted yes"):
                assert "contents of a.md" in results[way]["text"], (tools, way)
            for way in ("no", "interrupted no"):
                assert "did not approve" in results[way]["text"], (tools, way)
            assert "not now" in results["no"]["text"]
            assert results["yes"]["items"] == ITEMS
            assert results["interrupted yes"]["asked"] == [["read_file", '{"path": "a.md"}']]
            assert results["streamed"]["events"][: len(STREAMED)] == STREAMED
            assert results["goes on"]["text"] == "Nothing new."
            assert here.files.calls == [CALL] * 5

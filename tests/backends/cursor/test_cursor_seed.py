"""The quick tests of the first Cursor proxy, with their original bodies, over HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest

from doubles.cursor_bridge import FakeCursorBridge
from doubles.judges import Judge
from toolwire.backends.cursor import CursorBackend
from toolwire.conform.judge import fold
from toolwire.gateway.pipeline import Gateway
from toolwire.settings.types import ModelSettings, Settings

Make = Callable[..., CursorBackend]

FIRST = (
    '{"model":"gpt-4o","messages":[{"role":"user","content":"Read '
    'README.md"}],"tools":[{"type":"function","function":{"name":"read",'
    '"description":"Read file","parameters":{"type":"object","properties":{"filePath":{"type":"string"}},'
    '"required":["filePath"]}}}],"stream":true}'
)
FOLLOW_UP = (
    '{"model":"gpt-4o","messages":[{"role":"user","content":"Read '
    'README.md"},{"role":"assistant","content":null,"tool_calls":[{"id":"call_0",'
    '"type":"function","function":{"name":"read","arguments":"{\\"filePath\\":\\"README.md\\"}"}}]},'
    '{"role":"tool","tool_call_id":"call_0",'
    '"content":"# README\\n..."}],"stream":true}'
)
READ = {"call": "read", "args": {"filePath": "README.md"}}
AGENT: list[Any] = [
    {"when": "result of tool read, id call_0.*# README", "steps": [{"text": "The README says: # README"}]},
    {
        "when": "add a line",
        "steps": [
            READ,
            {"call": "write", "args": {"filePath": "README.md", "content": "# README\nline"}},
            {"text": "Added."},
        ],
    },
    {"when": "Read README.md", "steps": [READ, {"text": "It says: {result}"}]},
]


@pytest.fixture
async def url(make: Make, bridge: FakeCursorBridge, on_a_socket: Callable[..., Any]) -> AsyncIterator[str]:
    bridge.play(*AGENT)
    settings = Settings(models=(ModelSettings("gpt-4o", "cursor"),))
    async with on_a_socket(Gateway(settings, backends={"gpt-4o": make(model="gpt-4o")}), settings) as root:
        yield root + "/v1/chat/completions"


async def curl(url: str, body: str, judge: Judge) -> tuple[dict[str, Any], str]:
    """The stream as one answer, and the turn's kind."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=body, headers={"Content-Type": "application/json"}) as response,
    ):
        raw = await response.read()
        assert response.status == 200, raw
        judge.stream(raw, "chat")
        return fold(raw, "chat"), response.headers["x-toolwire-turn"]


def calls(answer: dict[str, Any]) -> list[tuple[str, Any]]:
    found = answer["choices"][0]["message"].get("tool_calls") or []
    return [(one["function"]["name"], json.loads(one["function"]["arguments"])) for one in found]


def ended(answer: dict[str, Any]) -> tuple[str, str]:
    choice = answer["choices"][0]
    return choice["message"]["content"] or "", choice["finish_reason"]


async def test_the_request_with_tools_gets_a_call_of_read(url: str, judge: Judge) -> None:
    answer, _ = await curl(url, FIRST, judge)
    assert calls(answer) == [("read", {"filePath": "README.md"})] and ended(answer)[1] == "tool_calls"


async def test_the_follow_up_without_tools_gets_text(
    url: str, judge: Judge, bridge: FakeCursorBridge
) -> None:
    answer, kind = await curl(url, FOLLOW_UP, judge)
    assert (*ended(answer), kind) == ("The README says: # README", "stop", "replayed")
    assert bridge.bodies("CreateAgent")[-1]["options"]["tools"] == {"names": []}


async def test_the_follow_up_with_tools_gets_text_and_the_agent_keeps_them(
    url: str, judge: Judge, bridge: FakeCursorBridge
) -> None:
    body = {**json.loads(FOLLOW_UP), "tools": json.loads(FIRST)["tools"]}
    answer, _ = await curl(url, json.dumps(body), judge)
    assert ended(answer) == ("The README says: # README", "stop")
    assert list(bridge.bodies("CreateAgent")[-1]["options"]["local"]["customTools"]) == ["read"]


@pytest.mark.parametrize("with_tools", [True, False])
async def test_a_tool_loop_works_with_the_received_ids(
    url: str, judge: Judge, bridge: FakeCursorBridge, with_tools: bool
) -> None:
    first = json.loads(FIRST)
    answer, _ = await curl(url, FIRST, judge)
    message = answer["choices"][0]["message"]
    id = message["tool_calls"][0]["id"]
    assistant = {"role": "assistant", "content": None, "tool_calls": message["tool_calls"]}
    following = {
        **first,
        "messages": [
            *first["messages"],
            assistant,
            {"role": "tool", "tool_call_id": id, "content": "# README\n..."},
        ],
    }
    if not with_tools:
        del following["tools"]
        bridge.play({"when": f"id {id}.*# README", "steps": [{"text": "It says: # README\n..."}]})
    answer, kind = await curl(url, json.dumps(following), judge)
    assert (*ended(answer), kind) == (
        "It says: # README\n...",
        "stop",
        "resumed" if with_tools else "replayed",
    )


async def test_read_then_write_in_several_steps(url: str, judge: Judge, bridge: FakeCursorBridge) -> None:
    def tool(name: str) -> dict[str, Any]:
        return {
            "type": "function",
            "function": {
                "name": name,
                "parameters": {"type": "object", "properties": {"filePath": {"type": "string"}}},
            },
        }

    body: dict[str, Any] = {"model": "gpt-4o", "stream": True, "tools": [tool("read"), tool("write")]}
    body["messages"] = [{"role": "user", "content": "Read README.md and add a line to it"}]
    for name, result in (("read", "# README"), ("write", "ok")):
        answer, _ = await curl(url, json.dumps(body), judge)
        assert [call[0] for call in calls(answer)] == [name] and ended(answer)[1] == "tool_calls"
        message = answer["choices"][0]["message"]
        tool_message = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": result}
        body["messages"] += [
            {"role": "assistant", "content": message["content"], "tool_calls": message["tool_calls"]},
            tool_message,
        ]
    answer, kind = await curl(url, json.dumps(body), judge)
    assert (*ended(answer), kind) == ("Added.", "stop", "resumed") and len(bridge.bodies("Send")) == 1

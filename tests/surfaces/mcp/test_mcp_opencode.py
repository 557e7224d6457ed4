"""OpenCode as a client: a real agent with the vault as its MCP server, and a person at the inbox."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from toolwire.testing.upstream import FakeUpstream, Recorded, Reply, answer
from toolwire.tools.contract import Decision

OPENCODE = (
    Path(__file__).resolve().parents[2] / "acp-agents" / "opencode" / "node_modules" / ".bin" / "opencode"
)


@pytest.fixture
def opencode() -> str:
    if OPENCODE.exists() and shutil.which("node"):
        return str(OPENCODE)
    missing = "opencode is missing: npm ci --prefix tests/acp-agents/opencode"
    pytest.skip(missing)


def _model(asked: Recorded) -> Reply:
    """Searches the vault, then repeats the result; a request without tools (for a title) gets a word."""
    messages = asked.body["messages"]
    last = messages[-1]
    if not asked.body.get("tools"):
        return Reply.stream(answer(text="Title"))
    if last["role"] == "tool":
        told = last["content"] if isinstance(last["content"], str) else json.dumps(last["content"])
        return Reply.stream(answer(text=f"The tool said: {told}", size=64))
    name = next(
        one["function"]["name"]
        for one in asked.body["tools"]
        if one["function"]["name"].endswith("vault_search")
    )
    return Reply.stream(answer(calls=[("call_1", name, '{"query": "launch code"}')]))


def _configured(process: Any, upstream: FakeUpstream) -> dict[str, str]:
    names = ("HOME", "XDG_CACHE_HOME", "TOOLWIRE_STORE__URL", "TOOLWIRE_APPROVALS__COMMAND_LINE")
    own = {name: process.environment[name] for name in names}
    config = {
        "$schema": "https://opencode.ai/config.json",
        "autoupdate": False,
        "share": "disabled",
        "model": "scripted/fake",
        "small_model": "scripted/fake",
        "enabled_providers": ["scripted"],
        "provider": {
            "scripted": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "Scripted",
                "options": {"baseURL": upstream.base_url, "apiKey": "none"},
                "models": {
                    "fake": {"name": "Fake", "tool_call": True, "limit": {"context": 100000, "output": 8000}}
                },
            }
        },
        "mcp": {
            "notes": {
                "type": "local",
                "command": process.command(),
                "environment": own,
                "enabled": True,
                "timeout": 120000,
            }
        },
    }
    home = process.tmp_path / "opencode"
    home.mkdir()
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in ("PATH", "LANG", "TMPDIR", "NODE_EXTRA_CA_CERTS")
    }
    places = {f"XDG_{name}_HOME": str(home / name.lower()) for name in ("CONFIG", "DATA", "CACHE", "STATE")}
    quiet = {
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    }
    return {**kept, **places, **quiet, "HOME": str(home), "OPENCODE_CONFIG_CONTENT": json.dumps(config)}


async def _run(opencode: str, process: Any, upstream: FakeUpstream) -> asyncio.subprocess.Process:
    work = process.tmp_path / "work"
    work.mkdir()
    return await asyncio.create_subprocess_exec(
        opencode,
        "run",
        "What is the launch code?",
        env=_configured(process, upstream),
        cwd=work,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


@pytest.mark.timeout(240)
async def test_opencode_searches_the_vault_and_a_person_decides_in_the_inbox(
    opencode: str, process: Any, inbox: Any
) -> None:
    async with FakeUpstream(_model) as upstream:
        agent = await _run(opencode, process, upstream)
        run = await inbox.next()
        assert (run.tool, run.stage, run.arguments["query"]) == ("vault_search", "run", "launch code")
        assert "opencode" in run.model.lower()
        await inbox.decide(run, Decision(True))
        share = await inbox.next([run.id])
        place = next(one.key for one in share.shown.touched if one.path == "Diary.md")
        await inbox.decide(share, Decision(True, picked=(place,)))
        out, errors = await asyncio.wait_for(agent.communicate(), 120)
    told = [
        one.body["messages"][-1]
        for one in upstream.requests
        if one.body and one.body["messages"][-1]["role"] == "tool"
    ]
    assert len(told) == 1, errors.decode()
    assert "The launch code is Zulu-4711." in json.dumps(told[0], ensure_ascii=False)
    assert "untrusted data" in json.dumps(told[0])
    assert b"Zulu-4711" in out


@pytest.mark.timeout(240)
async def test_opencode_gets_the_refusal_and_the_model_sees_nothing(
    opencode: str, process: Any, inbox: Any
) -> None:
    async with FakeUpstream(_model) as upstream:
        agent = await _run(opencode, process, upstream)
        run = await inbox.next()
        await inbox.decide(run, Decision(False, reason="not for agents"))
        await asyncio.wait_for(agent.communicate(), 120)
    everything = json.dumps([one.body for one in upstream.requests])
    assert "User cancelled tool execution" in everything and "not for agents" in everything
    assert "Zulu-4711" not in everything

"""A gateway with a scripted or a real ACP agent, and a client's conversation with it."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from doubles import acp_agent
from doubles.judges import Judge
from toolwire.backends.acp import AcpBackend, AcpOptions
from toolwire.conform.judge import fold
from toolwire.core.errors import ToolwireError
from toolwire.core.events import Failure
from toolwire.core.turn import Api

AGENTS = Path(__file__).resolve().parents[2] / "acp-agents"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = ("get_weather", "get_time", "read", "write", "bash")


# --- a conversation ---


class Reply:
    """One judged answer. `kind` is the turn's kind in the response header."""

    def __init__(self, api: Api, body: dict[str, Any], kind: str) -> None:
        self.api, self.body, self.kind = api, body, kind

    @property
    def text(self) -> str:
        if self.api == "chat":
            return self.body["choices"][0]["message"]["content"] or ""
        return "".join(
            part["text"]
            for item in self.body["output"]
            if item["type"] == "message"
            for part in item["content"]
        )

    @property
    def ids(self) -> list[str]:
        if self.api == "chat":
            return [one["id"] for one in self.body["choices"][0]["message"].get("tool_calls") or []]
        return [item["call_id"] for item in self.body["output"] if item["type"] == "function_call"]

    @property
    def calls(self) -> list[tuple[str, Any]]:
        """The names and arguments of the calls."""
        if self.api == "chat":
            functions = [
                one["function"] for one in self.body["choices"][0]["message"].get("tool_calls") or []
            ]
        else:
            functions = [item for item in self.body["output"] if item["type"] == "function_call"]
        return [(one["name"], json.loads(one["arguments"])) for one in functions]


class Talk:
    """A client of one API, streamed or not, that keeps the history."""

    def __init__(
        self,
        table: Any,
        judge: Judge,
        api: Api = "chat",
        stream: bool = False,
        tools: tuple[str, ...] = TOOLS,
    ) -> None:
        self._table, self._judge, self.api, self.stream = table, judge, api, stream
        flat = [
            {"type": "function", "name": name, "description": f"does {name}", "parameters": CITY}
            for name in tools
        ]
        self.tools = (
            [{"type": "function", "function": {k: v for k, v in one.items() if k != "type"}} for one in flat]
            if api == "chat"
            else flat
        )
        self.items: list[dict[str, Any]] = []
        self.last: Reply | None = None

    async def say(self, words: str, **extra: Any) -> Reply:
        self.items.append({"role": "user", "content": words})
        return await self._send(**extra)

    async def answer(self, *results: str, **extra: Any) -> Reply:
        """Sends the results of the last calls, in order."""
        assert self.last is not None and len(self.last.ids) == len(results)
        for id, result in zip(self.last.ids, results, strict=True):
            tool_message = {"role": "tool", "tool_call_id": id, "content": result}
            self.items.append(
                tool_message
                if self.api == "chat"
                else {"type": "function_call_output", "call_id": id, "output": result}
            )
        return await self._send(**extra)

    async def _send(self, **extra: Any) -> Reply:
        key = "messages" if self.api == "chat" else "input"
        tools = {"tools": self.tools} if self.tools else {}
        request = {
            key: self.items,
            **tools,
            "stream": self.stream,
            **({} if self.api == "chat" else {"store": False}),
            **extra,
        }
        answer = await self._table.answer(self.api, request)
        kind = dict(answer.headers)[b"x-toolwire-turn"].decode()
        if self.stream:
            raw = b"".join([block async for block in answer.stream])
            self._judge.stream(raw, self.api)
            body = fold(raw, self.api)
        else:
            body = json.loads(answer.body)
            self._judge.body(body, self.api)
        self.items = [
            *self.items,
            *([body["choices"][0]["message"]] if self.api == "chat" else body["output"]),
        ]
        self.last = Reply(self.api, body, kind)
        return self.last

    async def failure(self, words: str, **extra: Any) -> Failure:
        """The error of a message that must fail."""
        with pytest.raises(ToolwireError) as caught:
            await self.say(words, **extra)
        return caught.value.failure


@pytest.fixture
def talk(table: Any, judge: Judge) -> Callable[..., Talk]:
    """`talk(backend, api, stream, tools)`: a conversation with a backend."""

    def make(
        backend: AcpBackend, api: Api = "chat", stream: bool = False, tools: tuple[str, ...] = TOOLS
    ) -> Talk:
        if table.gateway is None or table.gateway.models["m"] is not backend:
            table.serve(backend)
        return Talk(table, judge, api, stream, tools)

    return make


# --- agents ---


class Log:
    """What the scripted agent received."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []

    def sent(self, method: str) -> list[dict[str, Any]]:
        return [entry.get("params", {}) for entry in self.entries() if entry.get("method") == method]

    def prompts(self) -> list[str]:
        return [
            "".join(part.get("text", "") for part in params["prompt"])
            for params in self.sent("session/prompt")
        ]

    def answers(self) -> list[dict[str, Any]]:
        return [entry["answer"] for entry in self.entries() if "answer" in entry]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "agent.log")


def _mine() -> set[str]:
    """The folders of this process's agents."""
    return {str(path) for path in Path(tempfile.gettempdir()).glob(f"toolwire-acp-{os.getpid()}-*")}


@pytest.fixture
async def backends() -> AsyncIterator[list[AcpBackend]]:
    """Closes what a test opened, and checks that nothing remains."""
    made: list[AcpBackend] = []
    before = _mine()
    yield made
    for backend in made:
        await backend.close()
    assert _mine() <= before


@pytest.fixture
def agent(
    tmp_path: Path, log: Log, backends: list[AcpBackend], request: pytest.FixtureRequest
) -> Callable[..., AcpBackend]:
    """`agent(*prompts, script={…}, **options)`: a backend whose agent plays a script."""

    def make(
        *prompts: list[dict[str, Any]], script: dict[str, Any] | None = None, **options: Any
    ) -> AcpBackend:
        path = tmp_path / f"script-{len(backends)}.json"
        path.write_text(
            json.dumps({"prompts": list(prompts) or None, "log": str(log.path), **(script or {})})
        )
        command = (sys.executable, acp_agent.__file__, str(path))
        given = {"profile": "opencode", "settle_ms": 60, "timeout_s": 20.0, **options}
        made = AcpBackend("m", AcpOptions(command, **given))
        backends.append(made)
        return made

    return make


def real(folder: str, program: str) -> str:
    """The path of a real agent, installed by npm ci."""
    found = AGENTS / folder / "node_modules" / ".bin" / program
    if found.exists() and shutil.which("node"):
        return str(found)
    missing = f"{program} is missing: npm ci --prefix tests/acp-agents/{folder}"
    pytest.skip(missing)


@pytest.fixture(scope="session")
def real_agent() -> Callable[[str, str], str]:
    return real

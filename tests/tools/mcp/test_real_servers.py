"""The reference servers of MCP: listed, and called with consent. Each is started once for this module."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
import pytest_asyncio

from doubles import mcp_real
from doubles.notes import Person
from toolwire.settings.types import McpSettings
from toolwire.store.store import Store
from toolwire.tools.approvals import Approvals
from toolwire.tools.contract import Asking, Decision, Outcome, ToolCall
from toolwire.tools.executor import Executor, Toolbox
from toolwire.tools.mcp.servers import McpServers
from toolwire.tools.mcp.tool import McpTool

pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="module")]

YES = Decision(True)


@dataclass
class House:
    """All reference servers, and an executor over their tools."""

    folder: Path
    servers: McpServers
    tools: dict[str, McpTool]
    approvals: Approvals

    async def call(
        self, name: str, decision: Decision = YES, progress: Any = None, **arguments: Any
    ) -> Outcome:
        self.person = Person(self.approvals, decision)
        executor = Executor(Toolbox([self.tools[name]]), self.approvals, self.person, progress=progress)
        calls = [ToolCall("c", name, json.dumps(arguments))]
        (outcome,) = await executor.execute(calls, Asking("s", "m", "test"))
        return outcome

    async def text(self, name: str, **arguments: Any) -> str:
        outcome = await self.call(name, **arguments)
        assert outcome.status == "done", outcome
        return str(outcome.result["result"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    folder = tmp_path_factory.mktemp("servers").resolve()
    (folder / "plan.md").write_text("The plan.")
    real = (
        mcp_real.everything(folder),
        mcp_real.filesystem(folder),
        mcp_real.memory(folder),
        mcp_real.git(folder, env={"HOME": str(folder)}),
        mcp_real.time(folder),
        mcp_real.sqlite(folder),
    )
    settings = tuple(replace(one, start_s=60) for one in real)
    async with Store(f"sqlite:///{folder}/toolwire.db") as store:
        servers = McpServers(McpSettings(settings), store)
        tools = {one.name: one for one in await servers.tools(wait=True)}
        try:
            yield House(folder, servers, tools, Approvals(store))
        finally:
            await servers.close()


async def test_every_server_is_listed(house: House) -> None:
    assert {one.name: (one.state, one.error) for one in house.servers.states()} == dict.fromkeys(
        ("everything", "files", "memory", "git", "time", "sqlite"), ("ready", "")
    )
    counts = {one.name: len(one.tools) for one in house.servers.states()}
    assert counts == {"everything": 13, "files": 14, "memory": 9, "git": 12, "time": 2, "sqlite": 6}
    assert all(not one.withheld and not one.unusable for one in house.servers.states())


async def test_a_file_is_read_written_and_left_alone(house: House) -> None:
    docs = house.folder
    assert await house.text("files__read_text_file", path=str(docs / "plan.md")) == "The plan."
    new = docs / "new.md"
    denied = await house.call("files__write_file", Decision(False), path=str(new), content="x")
    assert denied.status == "denied" and not new.exists()
    edited = Decision(True, arguments={"path": str(new), "content": "as edited"})
    assert (await house.call("files__write_file", edited, path=str(new), content="x")).status == "done"
    assert new.read_text() == "as edited"
    outside = await house.call("files__read_text_file", path="/etc/hostname")
    assert outside.result["result"]["is_error"] is True


async def test_a_repository_is_read(house: House) -> None:
    assert "new.txt" in await house.text("git__git_status", repo_path=str(house.folder))


async def test_a_database_is_changed_and_queried(house: House) -> None:
    await house.text("sqlite__create_table", query="CREATE TABLE t (a INTEGER)")
    await house.text("sqlite__write_query", query="INSERT INTO t VALUES (42)")
    assert "42" in await house.text("sqlite__read_query", query="SELECT a FROM t")


async def test_a_memory_and_a_clock(house: House) -> None:
    entity = {"name": "Ada", "entityType": "person", "observations": ["writes programs"]}
    assert "Ada" in await house.text("memory__create_entities", entities=[entity])
    assert "writes programs" in await house.text("memory__read_graph")
    assert "Europe/Berlin" in await house.text("time__get_current_time", timezone="Europe/Berlin")


async def test_everything(house: House) -> None:
    assert await house.text("everything__echo", message="é \u202e") == "Echo: é \u202e"
    environment = json.loads(await house.text("everything__get-env"))
    assert {"HOME", "USER", "LOGNAME", "SHELL"}.isdisjoint(environment) and "PATH" in environment
    image = await house.call("everything__get-tiny-image")
    assert "[image/png, " in image.result["result"] and ": not shown]" in image.result["result"]
    assert isinstance(image.raw, types.CallToolResult) and image.raw.content[1].type == "image"
    weather = await house.call("everything__get-structured-content", location="New York")
    assert isinstance(weather.raw, types.CallToolResult) and weather.raw.structured_content is not None
    seen: list[float] = []

    async def report(done: float, total: float | None, message: str | None) -> None:
        seen.append(done)

    name = "everything__trigger-long-running-operation"
    assert (await house.call(name, progress=report, duration=0.4, steps=4)).status == "done"
    assert seen and seen[-1] == 4 and seen == sorted(seen)

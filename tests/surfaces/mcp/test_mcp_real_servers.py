"""Real servers behind Toolwire, with the official SDK as the client: listed, asked, edited, called."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from doubles import mcp_real as real
from doubles.mcp_proxied import Proxied, proxied
from toolwire.store.store import Store
from toolwire.tools.contract import Decision

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]
both_eras = pytest.mark.parametrize("mode", ["legacy", "auto"])
YES = {"approve": True}


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with Store(f"sqlite:///{tmp_path}/state/toolwire.db") as one:
        yield one


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "docs"
    made.mkdir()
    (made / "plan.md").write_text("# Plan\n")
    return made


async def listed(proxy: Proxied, client: Any) -> set[str]:
    """The names of all tools, when every server has started."""
    await proxy.servers.tools(wait=True)
    return {tool.name for tool in (await client.list_tools()).tools}


@both_eras
async def test_all_of_them_at_once(store: Store, folder: Path, mode: str) -> None:
    servers = [
        make(folder, default="allow")
        for make in (real.everything, real.filesystem, real.memory, real.git, real.time, real.sqlite)
    ]
    async with proxied(store, *servers) as proxy, proxy.client(mode) as client:
        names = await listed(proxy, client)
        for prefix, least in (("everything", 10), ("files", 14), ("memory", 9), ("git", 12), ("time", 2)):
            assert len([name for name in names if name.startswith(f"{prefix}__")]) >= least, prefix
        calls: list[tuple[str, dict[str, Any], str]] = [
            ("everything__echo", {"message": "hi"}, "hi"),
            ("files__read_text_file", {"path": str(folder / "plan.md")}, "# Plan"),
            ("memory__read_graph", {}, "entities"),
            ("git__git_status", {"repo_path": str(folder)}, "new.txt"),
            ("time__get_current_time", {"timezone": "Europe/Berlin"}, "Europe/Berlin"),
            ("sqlite__list_tables", {}, ""),
        ]
        for name, arguments, said in calls:
            result = await client.call_tool(name, arguments)
            assert not result.is_error, (name, result.content)
            assert said in "".join(getattr(one, "text", "") for one in result.content), name


@both_eras
async def test_a_declined_write_leaves_the_file_and_an_edited_one_writes_what_was_approved(
    store: Store, folder: Path, form: Any, inbox: Any, mode: str
) -> None:
    write = {"path": str(folder / "plan.md"), "content": "changed\n"}
    async with proxied(store, real.filesystem(folder)) as proxy:
        async with proxy.client(mode, form("decline")) as client:
            await listed(proxy, client)
            assert (await client.call_tool("files__write_file", write)).is_error
            assert (folder / "plan.md").read_text() == "# Plan\n"
        async with proxy.client(mode) as client:
            calling = asyncio.ensure_future(client.call_tool("files__write_file", write))
            question = await inbox.next()
            edited = Decision(True, arguments={**write, "content": "edited\n"})
            await proxy.approvals.decide(question, edited, by="test")
            written = await calling
    assert not written.is_error and written.structured_content is not None
    assert (folder / "plan.md").read_text() == "edited\n"


@both_eras
async def test_rules_keep_a_server_in_a_part_of_its_folder(
    store: Store, folder: Path, form: Any, mode: str
) -> None:
    (folder / "private").mkdir()
    (folder / "private" / "key").write_text("hidden")
    rules = {"allow": (f"read_text_file path={folder}/** *",), "deny": (f"* path={folder}/private/**",)}
    person = form("decline", "decline")
    async with (
        proxied(store, real.filesystem(folder, **rules)) as proxy,
        proxy.client(mode, person) as client,
    ):
        await listed(proxy, client)

        async def read(path: str) -> types.CallToolResult:
            return await client.call_tool("files__read_text_file", {"path": path})

        assert not (await read(f"{folder}/plan.md")).is_error
        assert (await read(f"{folder}/private/key")).is_error and person.shown == []
        assert (await read(f"{folder}/x/../private/key")).is_error  # cannot be judged: denied
        assert person.shown == []
        moved = {"source": f"{folder}/plan.md", "destination": f"{folder}/b.md"}
        assert (await client.call_tool("files__move_file", moved)).is_error and len(person.shown) == 1
    assert (folder / "plan.md").exists()


@both_eras
async def test_images_links_structure_progress_prompts_and_resources_of_server_everything(
    store: Store, folder: Path, mode: str
) -> None:
    rules = {"default": "allow", "allow": ("resources/read *", "prompts/get *")}
    reports: list[tuple[float, float | None]] = []

    async def reported(progress: float, total: float | None, message: str | None) -> None:
        reports.append((progress, total))

    async with proxied(store, real.everything(folder, **rules)) as proxy, proxy.client(mode) as client:
        await listed(proxy, client)
        image = await client.call_tool("everything__get-tiny-image", {})
        links = await client.call_tool("everything__get-resource-links", {"count": 2})
        weather = await client.call_tool("everything__get-structured-content", {"location": "New York"})
        long = {"duration": 0.6, "steps": 3}
        await client.call_tool("everything__trigger-long-running-operation", long, progress_callback=reported)
        resources = (await client.list_resources()).resources
        read = await client.read_resource(resources[0].uri)
        prompts = [one.name for one in (await client.list_prompts()).prompts]
        prompt = await client.get_prompt("everything__simple-prompt")
        with pytest.raises(MCPError):
            await client.get_prompt("everything__no-such-prompt")
    assert any(isinstance(block, types.ImageContent) for block in image.content)
    assert len([block for block in links.content if isinstance(block, types.ResourceLink)]) == 2
    assert set(weather.structured_content) == {"temperature", "conditions", "humidity"}
    assert set(reports) <= {(1.0, 3.0), (2.0, 3.0), (3.0, 3.0)} and reports == sorted(set(reports)) != []
    assert read.contents and prompt.messages and "everything__simple-prompt" in prompts


async def test_the_environment_of_a_real_server_has_no_secrets(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_TOOLWIRE", "hidden")
    settings = real.everything(folder, default="allow", env={"GIVEN": "yes"})
    async with proxied(store, settings) as proxy, proxy.client() as client:
        await listed(proxy, client)
        told: Any = (await client.call_tool("everything__get-env", {})).content[0]
    assert '"GIVEN": "yes"' in told.text and "SECRET_OF_TOOLWIRE" not in told.text

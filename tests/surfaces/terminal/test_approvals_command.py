"""`toolwire approvals`: the inbox of every surface, from a shell."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from toolwire.cli.main import main
from toolwire.store.store import Store
from toolwire.tools.approvals import Approvals, Question
from toolwire.tools.contract import Approval, Asking, Preview, Touched

SHOWN = Preview(
    (
        Touched("0", "P/A.md", 10, "the alpha"),
        Touched("1", "P/B.md", 20),
        Touched("2", "gone.md", missing=True),
    ),
    pick=True,
)


class Shell:
    """Runs the command on a store with a waiting question."""

    def __init__(
        self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.url = f"sqlite:///{folder}/state/toolwire.db"
        self._capsys = capsys
        monkeypatch.setenv("TOOLWIRE_STORE__URL", self.url)
        monkeypatch.chdir(folder)

    async def __call__(self, *arguments: str, status: int = 0) -> str:
        assert await asyncio.to_thread(main, ["approvals", *arguments]) == status
        shown = self._capsys.readouterr()
        return shown.err if status else shown.out

    async def json(self, *arguments: str) -> Any:
        return json.loads(await self(*arguments, "--json"))


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(tmp_path, capsys, monkeypatch)


class Waiting:
    def __init__(self, approval: Approval, task: asyncio.Task[list[Approval]]) -> None:
        self.id = approval.id
        self._task = task

    async def decided(self) -> Approval:
        return (await asyncio.wait_for(self._task, 20))[0]


@pytest.fixture
async def waiting(shell: Shell) -> AsyncIterator[Waiting]:
    """A question of some surface that nobody has answered."""
    store = Store(shell.url)
    approvals = Approvals(store)
    question = Question("file_read", "run", {"filePaths": ["P/A.md", "P/B.md", "gone.md"]}, SHOWN)
    asking = Asking("s", "qwen", "mcp")
    task = asyncio.ensure_future(approvals.ask(asking, [question], None))
    while not (found := await approvals.pending()):
        await asyncio.sleep(0)
    yield Waiting(found[0], task)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await store.close()


async def test_nothing_is_pending_at_first(shell: Shell) -> None:
    assert await shell() == "no approval request is pending\n" and await shell.json("list") == []
    assert (
        await shell("grants") == "there are no grants\n"
        and await shell("audit") == "nothing has been decided yet\n"
    )


async def test_list_and_show_print_the_whole_question_except_its_token(
    shell: Shell, waiting: Waiting
) -> None:
    listed = await shell()
    head, line = listed.splitlines()[:2]
    assert head.split("  ")[0] == "ID" and "WHO ASKS" in head and "APPROVING WOULD" in head
    assert waiting.id in line and "qwen via MCP" in line and "file_read" in line and "Read notes" in line
    shown = await shell("show", waiting.id)
    for words in (
        "asked by qwen via MCP",
        f"Read notes: toolwire approvals approve {waiting.id} --pick",
        f"Deny: toolwire approvals deny {waiting.id}",
        "Decide later: do nothing",
        "1. P/A.md  (10 B)",
        "the alpha",
        "gone.md  (not found)",
        "pending",
        "it expires in",
    ):
        assert words in shown
    assert "token" not in await shell.json("show", waiting.id)


@pytest.mark.parametrize(
    ("pick", "picked"),
    [(["1"], ("0",)), (["P/B.md", "1"], ("1", "0")), (["all"], ("0", "1")), (["none"], ())],
)
async def test_approve_accepts_numbers_paths_all_or_none(
    shell: Shell, waiting: Waiting, pick: list[str], picked: tuple[str, ...]
) -> None:
    assert await shell("approve", waiting.id, "--pick", *pick) == f"{waiting.id}: approved\n"
    decided = await waiting.decided()
    assert (decided.status, decided.decided_by) == ("approved", "shell")
    assert decided.decision is not None and decided.decision.picked == picked


async def test_deny_stores_the_reason(shell: Shell, waiting: Waiting) -> None:
    assert (await shell.json("deny", waiting.id, "--reason", "not now"))["status"] == "denied"
    decided = await waiting.decided()
    assert decided.decision is not None and (decided.status, decided.decision.reason) == ("denied", "not now")


async def test_a_unique_prefix_of_an_id_is_enough(shell: Shell, waiting: Waiting) -> None:
    await shell("deny", waiting.id.removeprefix("appr_")[:6])
    assert (await waiting.decided()).status == "denied"


async def test_arguments_can_be_edited(shell: Shell, waiting: Waiting) -> None:
    await shell("approve", waiting.id, "--arguments", '{"filePaths": ["P/A.md"]}')
    shown = await shell("show", waiting.id)
    assert '- filePaths: ["P/A.md", "P/B.md", "gone.md"]' in shown and '+ filePaths: ["P/A.md"]' in shown
    assert '{"filePaths": ["P/A.md"]}' in await shell("list", "--all")
    decided = await waiting.decided()
    assert decided.decision is not None and decided.decision.arguments == {"filePaths": ["P/A.md"]}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["approve"], "an id is missing"),
        (["approve", "appr_nobody"], "there is no such id"),
        (["approve", "ID"], "pick some, all or none"),
        (["approve", "ID", "--pick", "9"], "not one of the 3 files or results shown"),
        (["approve", "ID", "--pick", "Diary.md"], "not one of the 3 files or results shown"),
        (["approve", "ID", "--arguments", "{"], "not a JSON object"),
        (["approve", "ID", "--arguments", '{"a": NaN}'], "NaN is not JSON"),
        (["approve", "ID", "--arguments", '{"a": 1e999}'], "1e999 is not JSON"),
        (["approve", "ID", "--arguments", '{"a": 1, "a": 2}'], "a key occurs twice"),
        (["approve", "ID", "--arguments", "[]"], "not a JSON object"),
        (["approve", "ID", "--pick", "1", "--remember", "folder"], "needs the folder"),
        (["revoke", "grant_1"], "there is no such id"),
    ],
)
async def test_an_invalid_command_prints_one_line_and_decides_nothing(
    shell: Shell, waiting: Waiting, arguments: list[str], words: str
) -> None:
    told = await shell(*(waiting.id if one == "ID" else one for one in arguments), status=2)
    assert words in told and told.count("\n") == 1
    assert [one["id"] for one in await shell.json("list")] == [waiting.id]


async def test_a_decision_cannot_be_changed(shell: Shell, waiting: Waiting) -> None:
    await shell("deny", waiting.id)
    assert "already denied" in await shell("approve", waiting.id, "--pick", "all", status=2)
    assert (await shell.json("list", "--all"))[0]["status"] == "denied"


async def test_grants_are_made_listed_and_revoked(shell: Shell, waiting: Waiting) -> None:
    await shell("approve", waiting.id, "--pick", "1", "--remember", "folder", "--folder", "P")
    (grant,) = await shell.json("grants")
    assert (grant["scope"], grant["target"]) == ("folder", "P") and grant["id"] in await shell("grants")
    assert await shell("revoke", grant["id"]) == f"{grant['id']}: revoked\n"
    assert await shell.json("grants") == []


async def test_the_audit_log_is_read_newest_last(shell: Shell, waiting: Waiting) -> None:
    await shell("deny", waiting.id)
    await waiting.decided()
    (entry,) = await shell.json("audit")
    assert (entry["event"], entry["tool"], entry["approval_id"]) == ("denied", "file_read", waiting.id)
    assert "denied" in await shell("audit", "--limit", "1")

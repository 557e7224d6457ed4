"""Approvals: stored before anyone is asked, decided once, bound to what was shown; grants."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from doubles.notes import Person
from toolwire.core.errors import ToolwireError
from toolwire.core.ids import counting_ids
from toolwire.store import sqlite
from toolwire.store.store import Store
from toolwire.tools.approvals import Approvals, Question
from toolwire.tools.consent import Proofs, Signer, shown_token
from toolwire.tools.contract import Approval, Asking, Decision, Preview, Stage, Touched

ASKING = Asking("session-1", "model-1", "test")
YES, NO = Decision(True), Decision(False)
PICKS = Preview((Touched("a", "Projects/A.md", 10), Touched("b", "Projects/B.md", 20)), pick=True)


def question(
    tool: str = "file_read", stage: Stage = "run", shown: Preview | None = None, **arguments: Any
) -> Question:
    return Question(tool, stage, arguments, shown or Preview())


def folder(*paths: str) -> Preview:
    return Preview(tuple(Touched(path, path, 1) for path in paths))


async def asked(
    approvals: Approvals,
    *decisions: Any,
    shown: Preview | None = None,
    asking: Asking = ASKING,
    **options: Any,
) -> Approval:
    """Asks one question and decides it."""
    return (await approvals.ask(asking, [question(shown=shown, **options)], Person(approvals, *decisions)))[0]


async def test_a_question_is_stored_before_it_is_asked(approvals: Approvals) -> None:
    seen: list[str] = []

    class Looks:
        async def ask(self, asked: Any) -> bool:
            for one in asked:
                kept = await approvals.records.get(one.id)
                assert kept == one
                seen.append(one.status)
                await approvals.decide(one, YES, by="test")
            return False

    decided = await approvals.ask(ASKING, [question(path="x")], Looks())
    assert seen == ["pending"]
    assert (decided[0].status, decided[0].decided_by, decided[0].decision) == ("approved", "test", YES)


async def test_several_questions_are_shown_together_and_returned_in_their_order(approvals: Approvals) -> None:
    person = Person(approvals, YES, replace(NO, reason="not now"), YES)
    decided = await approvals.ask(ASKING, [question(n=1), question(n=2), question(n=3)], person)
    assert [len(shown) for shown in person.shown] == [3]
    assert [(one.arguments["n"], one.status) for one in decided] == [
        (1, "approved"),
        (2, "denied"),
        (3, "approved"),
    ]
    assert decided[1].decision is not None and decided[1].decision.reason == "not now"


async def test_a_question_has_its_requester_tool_arguments_and_preview(approvals: Approvals) -> None:
    kept = await asked(approvals, replace(YES, picked=("a",)), shown=PICKS, path="x")
    assert (kept.session, kept.model, kept.surface, kept.tool, kept.stage) == (
        "session-1",
        "model-1",
        "test",
        "file_read",
        "run",
    )
    assert (kept.arguments, kept.shown) == ({"path": "x"}, PICKS)
    assert kept.decision is not None and kept.decision.picked == ("a",)


# --- the token ----------------------------------------------------------------------------------


async def pending(
    approvals: Approvals, shown: Preview | None = None, **arguments: Any
) -> tuple[Approval, asyncio.Task[list[Approval]]]:
    """A question that waits in the inbox, and the task that waits for it."""
    task = asyncio.ensure_future(approvals.ask(ASKING, [question(shown=shown, **arguments)], None))
    while not (found := await approvals.pending()):
        await asyncio.sleep(0)
    return found[0], task


def _asked_once() -> Approval:
    return Approval("appr_1", 0, 1, "", "s", "test", "m", "file_read", "run", {"path": "x"}, PICKS, "")


async def test_a_decision_with_another_token_decides_nothing(approvals: Approvals) -> None:
    approval, task = await pending(approvals)
    with pytest.raises(ToolwireError, match="does not match what was shown"):
        await approvals.decide(replace(approval, token="0" * 64), YES, by="test")
    assert (await approvals.pending())[0].id == approval.id and not task.done()
    await approvals.decide(approval, NO, by="test")
    assert (await task)[0].status == "denied"


@pytest.mark.parametrize(
    "change",
    [
        lambda one: replace(one, tool="note_write"),
        lambda one: replace(one, stage="share"),
        lambda one: replace(one, arguments={"path": "y"}),
        lambda one: replace(one, shown=replace(PICKS, diff="+x")),
        lambda one: replace(one, shown=replace(PICKS, touched=(Touched("a", "Projects/A.md", 11),))),
        lambda one: replace(one, id="appr_2"),
    ],
)
def test_the_tokens_are_bound_to_everything_that_is_shown(change: Callable[[Approval], Approval]) -> None:
    one = _asked_once()
    proofs, others = Proofs(Store("sqlite://"), b"secret"), Proofs(Store("sqlite://"), b"another secret")
    assert proofs.token(change(one)) != proofs.token(one) != others.token(one)
    assert proofs.token(replace(one, arguments=dict(one.arguments))) == proofs.token(one)
    assert shown_token(change(one)) != shown_token(one) == shown_token(replace(one, status="denied"))


async def test_a_question_that_changed_in_the_store_after_it_was_shown_is_not_decided(store: Store) -> None:
    asker = Approvals(store, proofs=Proofs(store, b"a" * 32))
    signer = Signer(b"s" * 32)
    web = Approvals(store, proofs=Proofs(store, b"w" * 32))
    approval, task = await pending(asker)
    rewrite = "UPDATE approvals SET arguments = ?"
    asked = (json.dumps(dict(approval.arguments)),)
    await store.run(lambda c: c.execute(rewrite, ('{"path": "harmless"}',)), "write")
    (shown,) = await web.pending()
    assert shown.arguments == {"path": "harmless"}
    await store.run(lambda c: c.execute(rewrite, asked), "write")
    for decision in (YES, NO, replace(YES, remember="tool")):
        with pytest.raises(ToolwireError, match="does not match what was shown"):
            await web.decide(shown, decision, by="web", signer=signer)
    assert await web.records.grants() == [] and not task.done()
    await web.decide(approval, NO, by="web")
    assert (await task)[0].status == "denied"


async def test_a_question_is_decided_once(approvals: Approvals) -> None:
    approval, task = await pending(approvals)
    results = await asyncio.gather(
        *(approvals.decide(approval, one, by=by) for one, by in ((YES, "first"), (NO, "second"))),
        return_exceptions=True,
    )
    failed = [one for one in results if isinstance(one, ToolwireError)]
    assert len(failed) == 1 and "already" in str(failed[0])
    kept = (await task)[0]
    assert (kept.status, kept.decided_by) in {("approved", "first"), ("denied", "second")}


async def test_an_unknown_question_cannot_be_decided(approvals: Approvals) -> None:
    with pytest.raises(ToolwireError, match="no approval"):
        await approvals.decide(_asked_once(), YES, by="test")


async def test_nothing_can_be_granted_that_was_not_shown(approvals: Approvals) -> None:
    approval, task = await pending(approvals, shown=PICKS)
    for wrong, words in (
        (YES, "pick some"),
        (replace(YES, picked=("a", "c")), "not shown"),
        (replace(YES, picked=("a",), remember="folder"), "folder"),
    ):
        with pytest.raises(ToolwireError, match=words):
            await approvals.decide(approval, wrong, by="test")
    with pytest.raises(ToolwireError, match="folder"):
        await approvals.decide(
            approval, replace(YES, picked=(), remember="folder", folder="Projects/../.."), by="test"
        )
    assert await approvals.records.grants() == []
    await approvals.decide(approval, replace(YES, picked=()), by="test")
    assert (await task)[0].status == "approved"


# --- no answer is a no, but not a denial --------------------------------------------------------


async def test_a_question_expires_if_its_surface_does_not_decide_it(approvals: Approvals) -> None:
    kept = await asked(approvals)
    assert (kept.status, kept.decision, kept.decided_by) == ("expired", None, "")


async def test_a_surface_that_fails_leaves_nothing_pending(approvals: Approvals) -> None:
    class Breaks:
        async def ask(self, asked: Any) -> bool:
            raise ConnectionError("the terminal is gone")

    with pytest.raises(ConnectionError):
        await approvals.ask(ASKING, [question(), question()], Breaks())
    assert [one.status for one in await approvals.records.listed()] == ["expired", "expired"]


async def test_a_cancelled_caller_leaves_nothing_pending(approvals: Approvals) -> None:
    approval, task = await pending(approvals)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    kept = await approvals.records.get(approval.id)
    assert kept is not None and kept.status == "expired"
    with pytest.raises(ToolwireError, match="already expired"):
        await approvals.decide(approval, YES, by="late")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_a_question_expires_after_its_lifetime_and_cannot_be_decided(store: Store) -> None:
    clock = Clock()
    approvals = Approvals(store, lifetime_s=60, clock=clock, ids=counting_ids())
    approval, task = await pending(approvals)
    assert approval.expires_at == 1060
    clock.now = 1060
    with pytest.raises(ToolwireError, match="expired"):
        await approvals.decide(approval, YES, by="late")
    kept = (await task)[0]
    assert (kept.status, kept.decision) == ("expired", None)
    assert [entry["event"] for entry in await approvals.records.audit()] == ["expired"]


async def test_another_process_decides_through_the_same_store(approvals: Approvals, store: Store) -> None:
    _, task = await pending(approvals)
    other = Store(f"sqlite:///{store.path}")
    try:
        elsewhere = Approvals(other)
        seen = (await elsewhere.pending())[0]
        await elsewhere.decide(seen, replace(NO, reason="from the shell"), by="shell")
    finally:
        await other.close()
    kept = (await task)[0]
    assert (kept.status, kept.decided_by, kept.decision and kept.decision.reason) == (
        "denied",
        "shell",
        "from the shell",
    )


async def test_a_question_in_the_inbox_waits_for_another_surface(approvals: Approvals) -> None:
    task = asyncio.ensure_future(approvals.ask(ASKING, [question()], Person(approvals, "leave")))
    while not (found := await approvals.pending()):
        await asyncio.sleep(0)
    await approvals.decide(found[0], YES, by="inbox")
    assert (await task)[0].decided_by == "inbox"


async def test_a_question_decided_elsewhere_ends_the_prompt_on_the_surface(approvals: Approvals) -> None:
    ended: list[str] = []

    class Waits:
        async def ask(self, asked: Any) -> bool:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("asking")
            return False

    task = asyncio.ensure_future(approvals.ask(ASKING, [question()], Waits()))
    while not (found := await approvals.pending()):
        await asyncio.sleep(0)
    await approvals.decide(found[0], YES, by="inbox")
    assert (await task)[0].status == "approved" and ended == ["asking"]


# --- remembered grants --------------------------------------------------------------------------


async def covered(approvals: Approvals, **options: Any) -> bool:
    """Whether a similar question is answered without asking."""
    return (await asked(approvals, **options)).status == "approved"


async def test_the_surface_that_decides_the_last_question_can_finish(
    approvals: Approvals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waiting task sees the decision when it is stored, before the surface returns from deciding."""
    said: list[str] = []
    look = approvals.records.get

    class Slow:
        async def ask(self, questions: Any) -> bool:
            me = asyncio.current_task()

            async def get(id: str) -> Approval | None:
                found = await look(id)
                if asyncio.current_task() is me and found is not None and found.status != "pending":
                    await asyncio.sleep(0.6)  # longer than anybody waits before they look again
                return found

            monkeypatch.setattr(approvals.records, "get", get)
            for one in questions:
                said.append((await approvals.decide(one, NO, by="test")).status)
            return False

    decided = await approvals.ask(ASKING, [question()], Slow())
    assert ([one.status for one in decided], said) == (["denied"], ["denied"])


async def test_an_approval_whose_grant_cannot_be_stored_is_not_an_approval(store: Store) -> None:
    """A decision and its grant are stored together or not at all."""
    ids = counting_ids()
    approvals = Approvals(store, ids=lambda prefix: "grant_same" if prefix == "grant_" else ids(prefix))
    forever = Decision(True, remember="tool")
    assert (await asked(approvals, forever)).status == "approved"
    made = approvals._made(ASKING, question("note_write"))
    await approvals.records.add([made])
    with pytest.raises(ToolwireError, match="could not write"):
        await approvals.decide(made, forever, by="test")
    assert [one.status for one in await approvals.pending()] == ["pending"]


async def test_a_plain_approval_is_not_remembered(approvals: Approvals) -> None:
    await asked(approvals, YES)
    assert not await covered(approvals) and await approvals.records.grants() == []


async def test_a_grant_for_a_session_covers_that_session_and_that_tool(approvals: Approvals) -> None:
    await asked(approvals, replace(YES, remember="session"), path="x")
    assert await covered(approvals, path="y")
    assert not await covered(approvals, asking=replace(ASKING, session="session-2"))
    assert not await covered(approvals, tool="note_write")
    assert not await covered(approvals, stage="share")
    assert not await covered(approvals, asking=replace(ASKING, owner="another"))


async def test_a_grant_for_a_tool_covers_it_everywhere(approvals: Approvals) -> None:
    await asked(approvals, replace(YES, remember="tool"))
    assert await covered(approvals, asking=replace(ASKING, session="session-2"), shown=folder("Anywhere.md"))
    assert not await covered(approvals, tool="vault_search")


async def test_a_grant_for_a_folder_covers_only_calls_inside_it(approvals: Approvals) -> None:
    await asked(approvals, replace(YES, remember="folder", folder="Projects/"), shown=folder("Projects/A.md"))
    assert await covered(
        approvals,
        shown=folder("Projects/B.md", "Projects/Deep/C.md"),
        asking=replace(ASKING, session="session-2"),
    )
    assert not await covered(approvals, shown=folder("Projects/B.md", "Diary.md"))
    assert not await covered(approvals, shown=folder("ProjectsX/B.md"))
    assert not await covered(approvals, shown=folder())


async def test_a_grant_picks_everything_except_missing_files(approvals: Approvals) -> None:
    await asked(approvals, replace(YES, picked=("a",), remember="tool"), shown=PICKS)
    shown = replace(PICKS, touched=(*PICKS.touched, Touched("c", "Projects/C.md", missing=True)))
    kept = await asked(approvals, shown=shown)
    assert kept.decision is not None and kept.decision.picked == ("a", "b")
    assert kept.decided_by is not None and kept.decided_by.startswith("grant grant_")


async def test_a_call_that_a_grant_covers_is_never_pending(
    approvals: Approvals, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that lists what is pending must not ask a question that a grant is about to answer."""
    await asked(approvals, replace(YES, remember="tool"))
    run = store.run
    pending: list[int] = []

    async def watched(work: Any, action: str) -> Any:
        result = await run(work, action)
        count = "SELECT COUNT(*) FROM approvals WHERE status = 'pending'"
        pending.append(await run(lambda connection: connection.execute(count).fetchone()[0], "read"))
        return result

    monkeypatch.setattr(store, "run", watched)
    kept = await asked(approvals)
    assert kept.status == "approved" and pending and not any(pending)
    newest = (await approvals.records.audit())[0]
    assert (newest["event"], newest["approval_id"]) == ("approved", kept.id)


async def test_a_revoked_grant_covers_nothing(approvals: Approvals) -> None:
    await asked(approvals, replace(YES, remember="tool"))
    (grant,) = await approvals.records.grants()
    assert await approvals.revoke(grant.id) and not await approvals.revoke(grant.id)
    assert await approvals.records.grants() == [] and len(await approvals.records.grants(revoked=True)) == 1
    assert not await covered(approvals)


async def test_a_denial_is_never_remembered(approvals: Approvals) -> None:
    await asked(approvals, replace(NO, remember="tool"))
    assert await approvals.records.grants() == []


async def test_grants_and_decisions_persist_after_the_process_ends(
    approvals: Approvals, store: Store
) -> None:
    await asked(approvals, replace(YES, remember="tool"))
    await store.close()
    again = Store(f"sqlite:///{store.path}")
    try:
        assert await covered(Approvals(again))
    finally:
        await again.close()


# --- the audit log ------------------------------------------------------------------------------


async def test_the_audit_log_has_every_decision_with_hashes_and_no_content(approvals: Approvals) -> None:
    await asked(approvals, YES, path="secret-diary.md")
    await asked(approvals, replace(NO, reason="no"), path="secret-diary.md")
    await asked(approvals, path="other.md")
    entries = list(reversed(await approvals.records.audit()))
    assert [entry["event"] for entry in entries] == ["approved", "denied", "expired"]
    assert entries[0]["arguments_sha256"] == entries[1]["arguments_sha256"] != entries[2]["arguments_sha256"]
    assert "secret-diary" not in str(entries)


async def test_a_cancelled_caller_leaves_an_audit_line_for_each_question(approvals: Approvals) -> None:
    _, task = await pending(approvals)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [entry["event"] for entry in await approvals.records.audit()] == ["expired"]


async def test_a_question_of_an_ended_process_expires_with_an_audit_line(store: Store) -> None:
    clock = Clock()
    approvals = Approvals(store, lifetime_s=60, clock=clock, ids=counting_ids())
    _, task = await pending(approvals)
    (kept,) = await approvals.records.listed()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await approvals.records.add([replace(kept, id="appr_left")])
    clock.now = 2000
    assert await approvals.pending() == [] == await approvals.pending()
    assert [
        entry["approval_id"] for entry in await approvals.records.audit() if entry["event"] == "expired"
    ] == ["appr_left", kept.id]


# --- what a decision may not say ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "shown", "decision", "words"),
    [
        ("run", folder("A.md"), replace(YES, picked=()), "nothing to pick from"),
        ("share", PICKS, replace(YES, arguments={}), "has already run"),
    ],
)
async def test_an_approval_that_does_not_match_its_question_grants_nothing(
    approvals: Approvals, stage: Stage, shown: Preview, decision: Decision, words: str
) -> None:
    task = asyncio.ensure_future(approvals.ask(ASKING, [question(stage=stage, shown=shown)], None))
    while not (found := await approvals.pending()):
        await asyncio.sleep(0)
    with pytest.raises(ToolwireError, match=words):
        await approvals.decide(found[0], decision, by="test")
    with pytest.raises(ToolwireError, match="does not match"):
        await approvals.decide(replace(found[0], token="tökén"), YES, by="test")
    await approvals.decide(found[0], NO, by="test")
    assert (await task)[0].status == "denied"


@pytest.mark.parametrize("scope", ["session", "folder", "tool"])
async def test_a_grant_is_limited_to_its_vault_and_model(approvals: Approvals, scope: Any) -> None:
    asking = replace(ASKING, source="vault:/home/p/work")
    await asked(
        approvals,
        replace(YES, remember=scope, folder="Projects"),
        shown=folder("Projects/A.md"),
        asking=asking,
    )
    assert await covered(approvals, shown=folder("Projects/B.md"), asking=asking)
    assert not await covered(
        approvals, shown=folder("Projects/B.md"), asking=replace(asking, source="vault:/home/p/private")
    )
    assert not await covered(
        approvals, shown=folder("Projects/B.md"), asking=replace(asking, model="a hosted one")
    )


def test_several_processes_may_open_a_new_store_at_once(tmp_path: Path) -> None:
    started = threading.Barrier(4)

    def opens(path: str) -> None:
        started.wait()
        sqlite._opened(path).close()

    with ThreadPoolExecutor(4) as threads:
        for number in range(40):
            list(threads.map(opens, [f"{tmp_path}/{number}/toolwire.db"] * 4))

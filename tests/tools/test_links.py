"""Links decide one question once, and prove it to the process that asked. The store helps nobody."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from toolwire.core.errors import ToolwireError
from toolwire.store.store import Store
from toolwire.tools import links as links_module
from toolwire.tools.approvals import Approvals, Question
from toolwire.tools.consent import LINKED, LinkKey, Proofs, decision_text, shown_token
from toolwire.tools.contract import Approval, Asking, Decision, Preview, Touched
from toolwire.tools.links import MOST_WRONG, Link, Links, over

ASKING = Asking("session-1", "model-1", "mcp")
YES, NO = Decision(True), Decision(False)
SHOWN = Preview(diff="+x", action="Create note")
PICKS = Preview((Touched("a", "A.md", 10), Touched("b", "B.md", 20)), pick=True)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "WRONG_S", 0.0)


class Elsewhere:
    """Another process with the same store: it has another key, and decides what the first one asks."""

    def __init__(self, store: Store, clock: Callable[[], float] | None = None) -> None:
        clock = clock or time.time
        self.approvals = Approvals(store, proofs=Proofs(store, b"k" * 32), clock=clock)
        self.links = Links(store, self.approvals, clock)

    async def press(self, key: LinkKey, decision: Decision) -> Approval:
        link, approval = await self.links.opened(key.id, key.secret)
        return await self.links.decide(link, approval, key.secret, decision, shown_token(approval))


@asynccontextmanager
async def waiting(approvals: Approvals, shown: Preview = SHOWN) -> Any:
    """A question that waits, and the task whose result is the decided question."""

    class Left:
        async def ask(self, asked: Any) -> bool:
            return True

    before = {one.id for one in await approvals.pending()}
    question = Question("note_write", "run", {"path": "A.md"}, shown)
    task = asyncio.ensure_future(approvals.ask(ASKING, [question], Left()))
    try:
        async with asyncio.timeout(10):
            while not (asked := [one for one in await approvals.pending() if one.id not in before]):
                await asyncio.sleep(0)
        yield asked[0], task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def refused(work: Any, kind: str = "gone") -> str:
    with pytest.raises(ToolwireError) as caught:
        await work
    assert caught.value.failure.kind == kind
    return str(caught.value)


async def written(approvals: Approvals, one: Approval, decision: Decision, proof: str) -> None:
    """A program of the same user writes an approval into the store."""
    query = "UPDATE approvals SET status = 'approved', decided_by = ?, decision = ?, proof = ? WHERE id = ?"
    values = ("link phone", json.dumps(decision.to_json()), proof, one.id)
    await approvals.records._store.run(lambda c: c.execute(query, values), "write")


async def events(approvals: Approvals) -> list[tuple[str, str]]:
    return [(line["event"], line["note"]) for line in reversed(await approvals.records.audit())]


async def test_a_link_approves_the_question_of_another_process(approvals: Approvals, store: Store) -> None:
    async with waiting(approvals) as (one, task):
        key = await Links(store, approvals).add(one, "link", "phone", approves=True)
        assert not Elsewhere(store).approvals.proofs.is_own(one)
        decided = await Elsewhere(store).press(key, YES)
        assert (decided.status, decided.decided_by) == ("approved", "link phone")
        asked = (await task)[0]
    assert (asked.status, asked.decided_by, asked.decision) == ("approved", "link phone", YES)


async def test_a_link_denies_and_the_reason_arrives(approvals: Approvals, store: Store) -> None:
    async with waiting(approvals) as (one, task):
        key = await Links(store, approvals).add(one, "link", "phone", approves=True)
        await Elsewhere(store).press(key, replace(NO, reason="not now"))
        asked = (await task)[0]
    assert (asked.status, asked.decision.reason) == ("denied", "not now")


async def test_a_link_approves_only_what_its_page_showed(approvals: Approvals, store: Store) -> None:
    """A program shows something harmless while the page is read, and restores the question after that."""

    async def put(command: str) -> None:
        query = "UPDATE approvals SET arguments = ?"
        await store.run(lambda c: c.execute(query, (json.dumps({"path": command}),)), "write")

    async with waiting(approvals) as (one, task):
        key = await Links(store, approvals).add(one, "link", "phone", approves=True)
        links = Elsewhere(store).links
        await put("harmless")
        link, shown = await links.opened(key.id, key.secret)
        token = shown_token(shown)
        await put("A.md")
        _, now = await links.opened(key.id, key.secret)
        assert now == one
        for sent in (token, "", one.token, "tökén"):
            said = await refused(links.decide(link, now, key.secret, YES, sent), "conflict")
            assert "Reload the page" in said
        # The question may also change between reading it and deciding it.
        said = await refused(links.decide(link, shown, key.secret, YES, token), "conflict")
        assert "Reload the page" in said and not task.done()
        await put("harmless")
        assert (await links.decide(link, shown, key.secret, YES, token)).status == "approved"
        assert (await task)[0].status == "expired"
    assert ("forged", "the stored approval had no proof") in await events(approvals)


@pytest.mark.parametrize(
    ("kind", "notice"), [("button", "phone"), ("webhook", "phone"), ("link my", "phone")]
)
async def test_a_link_whose_kind_a_program_changes_approves_nothing_unseen(
    approvals: Approvals, store: Store, kind: str, notice: str
) -> None:
    async with waiting(approvals) as (one, task):
        key = await Links(store, approvals).add(one, "link", "my phone", approves=True)
        query = "UPDATE notice_links SET kind = ?, notice = ?"
        await store.run(lambda c: c.execute(query, (kind, notice)), "write")
        links = Elsewhere(store).links
        link, found = await links.opened(key.id, key.secret)
        if kind == "link my":  # the audit log would name it as before, so the secret would fit
            await refused(links.decide(link, found, key.secret, YES), "conflict")
            return
        assert (await links.decide(link, found, key.secret, YES)).status == "approved"
        assert (await task)[0].status == "expired"


async def test_a_link_works_once(approvals: Approvals, store: Store) -> None:
    async with waiting(approvals) as (one, task):
        key = await Links(store, approvals).add(one, "link", "phone", approves=True)
        await Elsewhere(store).press(key, NO)
        said = await refused(Elsewhere(store).press(key, YES))
        assert said == "This approval request was already denied (link phone)."
        assert (await task)[0].status == "denied"


async def test_two_clicks_at_once_decide_once(approvals: Approvals, store: Store) -> None:
    async with waiting(approvals) as (one, task):
        add = Links(store, approvals).add
        keys = [
            await add(one, "link", "phone", approves=True),
            await add(one, "button", "tablet", approves=True),
        ]
        presses = [Elsewhere(store).press(key, decision) for key in keys for decision in (YES, NO, YES)]
        results = await asyncio.gather(*presses, return_exceptions=True)
        assert sum(isinstance(result, Approval) for result in results) == 1
        assert all(isinstance(result, Approval | ToolwireError) for result in results)
        await task
    lines = await events(approvals)
    assert len([event for event, _ in lines if event in ("approved", "denied")]) == 1


async def test_a_link_to_a_question_that_was_decided_elsewhere_is_over(
    approvals: Approvals, store: Store
) -> None:
    async with waiting(approvals) as (one, task):
        key = await Links(store, approvals).add(one, "link", "phone", approves=True)
        await approvals.decide(one, YES, by="chat")
        await task
        said = await refused(Links(store, approvals).opened(key.id, key.secret))
    assert said == "This approval request was already approved (chat)."


async def test_a_link_expires_with_its_question(store: Store) -> None:
    now = 1000.0
    approvals = Approvals(store, lifetime_s=60, clock=lambda: now)
    async with waiting(approvals) as (one, task):
        key = await Links(store, approvals, clock=lambda: now).add(one, "link", "phone", approves=True)
        other = Elsewhere(store, clock=lambda: now)
        link, found = await other.links.opened(key.id, key.secret)
        now = 1060.0
        await refused(other.links.opened(key.id, key.secret))
        await refused(other.links.decide(link, found, key.secret, YES, shown_token(found)))
        assert (await task)[0].status == "expired"


async def test_five_wrong_secrets_make_a_link_void_also_for_the_right_one(
    approvals: Approvals, store: Store
) -> None:
    async with waiting(approvals) as (one, _):
        key = await Links(store, approvals).add(one, "link", "phone", approves=True)
        for guess in ("", "x", key.secret[:-1], key.secret + "A", key.sha256):
            await refused(Links(store, approvals).opened(key.id, guess), "permission")
        said = await refused(Links(store, approvals).opened(key.id, key.secret))
        assert "no longer works" in said
        assert (await approvals.records.get(one.id) or one).status == "pending"
    assert ("voided", f"link phone: {MOST_WRONG} wrong answers") in await events(approvals)


async def test_an_unknown_link_says_the_same_as_a_wrong_secret(approvals: Approvals, store: Store) -> None:
    async with waiting(approvals) as (one, _):
        key = await Links(store, approvals).add(one, "link", "phone", approves=True)
        wrong = await refused(Links(store, approvals).opened(key.id, "wrong"), "permission")
        unknown = await refused(Links(store, approvals).opened("link_0000", "wrong"), "permission")
    assert wrong == unknown


async def test_reading_a_link_a_hundred_times_decides_nothing(approvals: Approvals, store: Store) -> None:
    async with waiting(approvals) as (one, task):
        key = await Links(store, approvals).add(one, "link", "phone", approves=True)
        for _ in range(100):
            await Elsewhere(store).links.opened(key.id, key.secret)
        assert not task.done() and (await Elsewhere(store).press(key, YES)).status == "approved"
        assert (await task)[0].status == "approved"


@pytest.mark.parametrize(
    "decision",
    [
        replace(YES, remember="session"),
        replace(YES, remember="tool"),
        replace(YES, arguments={"path": "B.md"}, seen="x"),
        replace(YES, standing=True),
        replace(YES, within=("*",)),
    ],
)
async def test_a_link_neither_edits_nor_remembers(
    approvals: Approvals, store: Store, decision: Decision
) -> None:
    async with waiting(approvals) as (one, task):
        key = await Links(store, approvals).add(one, "link", "phone", approves=True)
        await refused(Elsewhere(store).press(key, decision), "permission")
        # Somebody writes such a decision past the check, with a proof by the link's own secret.
        text = decision_text(one, decision, "link phone")
        await written(approvals, one, decision, key.sign(text))
        assert (await task)[0].status == "expired"
    assert await approvals.valid_grants() == []
    assert ("forged", "the stored approval had no proof") in await events(approvals)


async def test_a_button_that_may_only_deny_cannot_approve(approvals: Approvals, store: Store) -> None:
    async with waiting(approvals) as (one, task):
        key = await Links(store, approvals).add(one, "button", "phone", approves=False)
        await refused(Elsewhere(store).press(key, YES), "permission")
        # Also not if a program changes the store: the secret is another one.
        query = "UPDATE notice_links SET approves = 1"
        await store.run(lambda c: c.execute(query), "write")
        assert (await Elsewhere(store).press(key, YES)).status == "approved"
        assert (await task)[0].status == "expired"
    assert ("forged", "the stored approval had no proof") in await events(approvals)


async def test_a_link_that_a_program_plants_in_the_store_approves_nothing(
    approvals: Approvals, store: Store
) -> None:
    async with waiting(approvals) as (one, task):
        own = LinkKey("an agent's own secret", "link phone", "link_planted")
        link = Link(own.id, one.id, one.token, "link", "phone", 1, own.sha256, one.created_at, one.expires_at)
        columns = (link.id, link.approval_id, link.approval_token, link.kind, link.notice, link.approves)
        row = (*columns, link.sha256, link.created_at, link.expires_at, None, 0)
        query = f"INSERT INTO notice_links VALUES ({', '.join('?' * len(row))})"
        await store.run(lambda c: c.execute(query, row), "write")
        assert (await Elsewhere(store).press(own, YES)).status == "approved"
        assert (await task)[0].status == "expired"
    assert ("forged", "the stored approval had no proof") in await events(approvals)


async def test_a_link_of_one_question_proves_nothing_about_another(
    approvals: Approvals, store: Store
) -> None:
    async with waiting(approvals) as (one, _), waiting(approvals) as (other, other_task):
        key = await Links(store, approvals).add(one, "link", "phone", approves=True)
        text = decision_text(other, YES, "link phone")
        await written(approvals, other, YES, key.sign(text))
        assert [(each.id, each.status) for each in await other_task] == [(other.id, "expired")]


async def test_a_question_that_was_changed_in_the_store_cannot_be_approved(
    approvals: Approvals, store: Store
) -> None:
    async with waiting(approvals) as (one, task):
        key = await Links(store, approvals).add(one, "link", "phone", approves=True)
        query = 'UPDATE approvals SET arguments = \'{"path": "harmless.md"}\''
        await store.run(lambda c: c.execute(query), "write")
        await Elsewhere(store).press(key, YES)
        assert (await task)[0].status == "expired"


async def test_a_link_says_so_if_the_program_that_asked_has_ended(
    approvals: Approvals, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with waiting(approvals) as (one, _):
        key = await Links(store, approvals).add(one, "link", "phone", approves=True)
        for module in (links_module, __import__("toolwire.tools.approvals", fromlist=["x"])):
            monkeypatch.setattr(module, "has_ended", lambda requester: True)
        assert "The Toolwire program that asked you has ended" in await refused(
            Links(store, approvals).opened(key.id, key.secret)
        )


async def test_the_person_picks_by_a_link_only_what_was_shown(approvals: Approvals, store: Store) -> None:
    async with waiting(approvals, PICKS) as (one, task):
        key = await Links(store, approvals).add(one, "link", "phone", approves=True)
        for picked in (None, ("c",)):
            await refused(Elsewhere(store).press(key, replace(YES, picked=picked)), "invalid_value")
        await Elsewhere(store).press(key, replace(YES, picked=("b",)))
        assert (await task)[0].decision == replace(YES, picked=("b",))


async def test_the_store_has_only_the_hash_of_a_secret(approvals: Approvals, store: Store) -> None:
    async with waiting(approvals) as (one, _):
        key = await Links(store, approvals).add(one, "link", "phone", approves=True)
        rows = await store.run(lambda c: c.execute("SELECT * FROM notice_links").fetchall(), "read")
        dump = repr(rows)
    assert key.secret not in dump and hashlib.sha256(key.secret.encode()).hexdigest() in dump
    assert len(key.secret) == 43  # 32 bytes


async def test_secrets_differ_by_question_notice_kind_and_right(approvals: Approvals) -> None:
    async with waiting(approvals) as (one, _), waiting(approvals) as (other, _):
        link = approvals.proofs.link
        keys = {
            link(each, by, may).secret
            for each in (one, other)
            for by in ("link a", "button a")
            for may in (True, False)
        }
    assert len(keys) == 8


async def test_a_link_proof_without_a_link_is_forged(approvals: Approvals) -> None:
    async with waiting(approvals) as (one, task):
        await written(approvals, one, YES, LINKED + "00" * 32)
        assert (await task)[0].status == "expired"


async def test_links_are_deleted_with_their_questions(store: Store) -> None:
    now = 1000.0
    approvals = Approvals(store, lifetime_s=60, clock=lambda: now)
    async with waiting(approvals) as (one, _):
        await Links(store, approvals, clock=lambda: now).add(one, "link", "phone", approves=True)
    now += 40 * 86400
    async with waiting(approvals):
        count = await store.run(lambda c: c.execute("SELECT COUNT(*) FROM notice_links").fetchone(), "read")
    assert count[0] == 0


ENDED = Approval("a", 0, 1, "", "s", "mcp", "m", "t", "run", {}, Preview(), "", status="expired")


@pytest.mark.parametrize(
    ("stage", "nothing"), [("run", "the call did not run"), ("share", "nothing was shared")]
)
def test_an_expired_question_says_what_did_not_happen(stage: Any, nothing: str) -> None:
    assert over(replace(ENDED, stage=stage)).endswith(f", so {nothing}.")


def test_what_is_over_is_said_without_hidden_characters() -> None:
    assert "\u202e" not in over(replace(ENDED, status="denied", decided_by="we\u202eb"))

"""The other rows of the store, on each engine: approvals, grants, audit log, conversations, sessions."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from toolwire.core.errors import ToolwireError
from toolwire.store.store import Store
from toolwire.surfaces.web.inbox import _STATE
from toolwire.surfaces.web.sessions import LIFETIME_S, Sessions
from toolwire.surfaces.web.talk import Conversations, StoredChat
from toolwire.surfaces.web.tools import Preferences
from toolwire.tools.approvals import Approvals
from toolwire.tools.consent import shown_token
from toolwire.tools.contract import Approval, Decision, Grant, Preview, Touched
from toolwire.tools.links import Links
from toolwire.tools.records import Records
from toolwire.tools.requester import this_process

SHOWN = Preview((Touched("a", "A.md", 11, "snippet 'é'"),), "+x", "reads A.md", True)
APPROVAL = Approval(
    "appr_1",
    1.5,
    10.25,
    "",
    "s",
    "test",
    "m",
    "file_read",
    "run",
    {"path": "x", "n": [1, None]},
    SHOWN,
    "token",
)


def line(one: Approval) -> list[Any]:
    return [
        one.decided_at,
        one.owner,
        one.status,
        one.id,
        one.session,
        one.surface,
        one.model,
        one.tool,
        "sha",
        "",
        3,
        "note\0",
        one.source,
        one.pin,
        one.decided_by or "",
    ]


async def test_approvals_are_stored_listed_and_decided_once_with_a_line_in_the_log(store: Store) -> None:
    records = Records(store)
    await records.add([APPROVAL, replace(APPROVAL, id="appr_2", created_at=2.5)])
    assert await records.get("appr_1") == APPROVAL and await records.get("appr_9") is None
    assert [one.id for one in await records.listed("pending")] == ["appr_2", "appr_1"]
    decision = Decision(True, "fine", picked=("a",))
    assert not await records.decide("appr_1", "other", "approved", 3.0, "test", decision, line)
    outcomes = await asyncio.gather(
        *(records.decide("appr_1", "token", "approved", 3.0, f"by {n}", decision, line) for n in range(8))
    )
    assert outcomes.count(True) == 1
    kept = await records.get("appr_1")
    assert kept is not None and (kept.status, kept.decided_at, kept.decision) == ("approved", 3.0, decision)
    (entry,) = await records.audit()
    assert (entry["number"], entry["event"], entry["approval_id"], entry["bytes"]) == (
        1,
        "approved",
        "appr_1",
        3,
    )


async def test_old_questions_expire_and_decided_ones_are_deleted(store: Store) -> None:
    records = Records(store)
    await records.add(
        [replace(APPROVAL, id=f"appr_{number}", expires_at=float(number)) for number in range(5)]
    )
    assert await records.expire(2.0, line) == 3 and await records.expire(2.0, line) == 0
    assert [one["approval_id"] for one in await records.audit()][::-1] == ["appr_0", "appr_1", "appr_2"]
    assert await records.forget(100.0) == 3
    assert sorted(one.id for one in await records.listed()) == ["appr_3", "appr_4"]
    state = await store.run(lambda c: tuple(c.execute(_STATE).fetchone()), "read")
    assert state == (2, 1.5, None, 3, 0, 0)


async def test_two_links_and_an_inbox_decide_a_question_once(store: Store) -> None:
    approvals = Approvals(store, clock=lambda: 2.0)
    approval = replace(APPROVAL, requester=this_process(), token=approvals.proofs.token(APPROVAL))
    await approvals.records.add([approval])
    links = Links(store, approvals, clock=lambda: 2.0)
    keys = [await links.add(approval, "link", name, approves=True) for name in ("phone", "tablet")]
    decisions = [Decision(False), Decision(True, picked=("a",))] * 4

    async def press(number: int) -> Approval:
        key = keys[number % 2]
        link, found = await links.opened(key.id, key.secret)
        return await links.decide(link, found, key.secret, decisions[number], shown_token(found))

    inbox = approvals.decide(approval, Decision(False), by="web")
    results = await asyncio.gather(*map(press, range(8)), inbox, return_exceptions=True)
    assert len([one for one in results if isinstance(one, Approval)]) == 1
    assert {one.failure.kind for one in results if isinstance(one, ToolwireError)} <= {"gone", "conflict"}
    assert [entry["event"] in ("approved", "denied") for entry in await approvals.records.audit()] == [True]
    query = "SELECT COUNT(*) FROM notice_links WHERE used_at IS NOT NULL"
    assert (await store.run(lambda c: c.execute(query).fetchone(), "read"))[0] <= 1
    with pytest.raises(ToolwireError, match="not valid"):
        await links.opened(keys[0].id, "wrong")
    assert await approvals.records.forget(100.0) == 1
    assert (await store.run(lambda c: c.execute("SELECT COUNT(*) FROM notice_links").fetchone(), "read"))[
        0
    ] == 0


async def test_grants_are_remembered_until_they_are_revoked(store: Store) -> None:
    records = Records(store)
    grant = Grant("grant_1", 1.0, "", "tool", "file_read", "run", "", "appr_1", None, "/vault", "m")
    await records.add([APPROVAL])
    for first in (True, False):  # the second decision is refused
        assert first is await records.decide(
            "appr_1", "token", "approved", 3.0, "test", Decision(True, remember="tool"), line, grant
        )
    assert await records.grants() == [grant]
    assert await records.revoke("grant_1", 2.0) and not await records.revoke("grant_1", 3.0)
    assert await records.grants() == [] and await records.grants(revoked=True) == [
        replace(grant, revoked_at=2.0)
    ]


async def test_conversations_are_replaced_found_by_text_and_deleted(store: Store) -> None:
    rows = Conversations(store)
    said = [{"kind": "user", "text": "Green TEA costs 50% of_it\0 'q' É"}]
    await rows.put(StoredChat("c1", "Tea", "m", 1.0, 2.0, said, [{"role": "user", "content": "x\0"}]))
    await rows.put(StoredChat("c2", "Coffee", "m", 1.0, 3.0))
    await rows.put(StoredChat("c1", "Tea!", "n", 1.0, 4.0, said, [{"role": "user", "content": "x\0"}]))
    kept = await rows.get("c1")
    assert kept is not None and (kept.title, kept.model, kept.entries, kept.messages[0]["content"]) == (
        "Tea!",
        "n",
        said,
        "x\0",
    )
    assert [one["id"] for one in await rows.listed("", 10)] == ["c1", "c2"]
    for words, found in (
        ("tea É", ["c1"]),
        ("50%", ["c1"]),
        ("of_it", ["c1"]),
        ("o_it", []),
        ("5%f", []),
        ("\\", []),
        ("'q'", ["c1"]),
    ):
        assert [one["id"] for one in await rows.listed(words, 10)] == found, words
    assert await rows.delete("c1") and not await rows.delete("c1")


async def test_preferences_are_stored(store: Store) -> None:
    first = Preferences(store)
    await first.set("theme", "dark")
    await first.set("theme", {"odd": ["\0", None]})
    second = Preferences(store)
    await second.load()
    assert second.get("theme") == {"odd": ["\0", None]}


async def test_a_session_is_valid_on_every_node_until_it_ends(store: Store) -> None:
    now = [1000.0]
    here, there = (Sessions(store, ["admin"], lambda: now[0]) for _ in range(2))
    token = await here.enter_by_key("admin")
    assert token is not None and await there.valid(token) and not await there.valid("other")
    now[0] += LIFETIME_S - 1
    assert await Sessions(store, (), lambda: now[0]).valid(token)
    now[0] += LIFETIME_S + 2
    assert not await Sessions(store, (), lambda: now[0]).valid(token)
    await here.end(token)
    assert (
        await store.run(lambda c: c.execute("SELECT count(*) FROM web_sessions").fetchone()[0], "read") == 0
    )

"""`--wait`: a call ends before its decision, and the identical call takes the decision once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest

from doubles.mcp_proxied import Proxied, peer, proxied, received
from toolwire.store.store import Store
from toolwire.tools.approvals import Approvals
from toolwire.tools.consent import Proofs
from toolwire.tools.contract import Approval, Decision
from toolwire.tools.records import Records

pytestmark = pytest.mark.process
SOON_S = 0.2
NOTE = {"text": "a"}
CODE = "correct horse"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with Store(f"sqlite:///{tmp_path}/state/toolwire.db") as one:
        yield one


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "stdin.log"


async def asked(proxy: Proxied, client: Any, arguments: dict[str, Any] | None = None) -> Approval:
    """Calls, gets the answer that the call waits, and returns its question."""
    answer = await client.call_tool("peer__add_note", arguments or NOTE)
    assert answer.is_error and answer.structured_content is None
    told = answer.content[0].text
    (question,) = [one for one in await proxy.approvals.pending() if one.id in told]
    assert "Send the same call again" in told and "has not run" in told
    return question


async def decide(proxy: Proxied, question: Approval, decision: Decision) -> None:
    await proxy.approvals.decide(question, decision, by="test")


def named(name: str) -> dict[str, Any]:
    return {"client_info": types.Implementation(name=name, version="1")}


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_same_call_takes_the_approval_and_runs_once(store: Store, log: Path, mode: str) -> None:
    async with proxied(store, peer(log), wait_s=SOON_S) as proxy, proxy.client(mode) as client:
        question = await asked(proxy, client)
        assert (await asked(proxy, client)).id == question.id  # still the same question
        await decide(proxy, question, Decision(True))
        assert received(log) == []
        added = await client.call_tool("peer__add_note", NOTE)
        assert added.structured_content == {"id": 7}
        assert (await asked(proxy, client)).id != question.id  # used up
        events = [line["event"] for line in await proxy.approvals.records.audit()]
    assert [one["arguments"] for one in received(log)] == [NOTE]
    assert sorted(events) == ["approved", "ran"]


async def test_an_edited_approval_is_taken_by_the_call_that_was_asked_for(store: Store, log: Path) -> None:
    async with proxied(store, peer(log), wait_s=SOON_S) as proxy, proxy.client() as client:
        question = await asked(proxy, client)
        await decide(proxy, question, Decision(True, arguments={"text": "edited"}))
        assert not (await client.call_tool("peer__add_note", NOTE)).is_error
    assert [one["arguments"] for one in received(log)] == [{"text": "edited"}]


async def test_a_denial_is_told_once(store: Store, log: Path, text: Any) -> None:
    async with proxied(store, peer(log), wait_s=SOON_S) as proxy, proxy.client() as client:
        question = await asked(proxy, client)
        await decide(proxy, question, Decision(False, reason="not today"))
        assert "not today" in text(await client.call_tool("peer__add_note", NOTE))
        assert (await asked(proxy, client)).id != question.id
    assert received(log) == []


@pytest.mark.parametrize(
    "other", [{"text": "b"}, {"text": "a "}, {"text": "a", "tag": "none"}, {"text": "a", "more": 1}], ids=str
)
async def test_a_call_that_differs_takes_nothing(store: Store, log: Path, other: dict[str, Any]) -> None:
    async with proxied(store, peer(log), wait_s=SOON_S) as proxy, proxy.client() as client:
        question = await asked(proxy, client)
        await decide(proxy, question, Decision(True))
        assert (await asked(proxy, client, other)).id != question.id
    assert received(log) == []


async def test_another_client_another_server_and_another_tool_take_nothing(store: Store, log: Path) -> None:
    servers = (peer(log), peer(log.with_name("other.log"), name="other"))
    async with proxied(store, *servers, wait_s=SOON_S) as proxy:
        async with proxy.client(**named("first")) as client:
            question = await asked(proxy, client)
            await decide(proxy, question, Decision(True))
            assert (await client.call_tool("peer__echo", NOTE)).is_error
            assert (await client.call_tool("other__add_note", NOTE)).is_error
        async with proxy.client(**named("second")) as client:
            assert (await asked(proxy, client)).id != question.id
        assert received(log) == received(log.with_name("other.log")) == []
        async with proxy.client("legacy", **named("first")) as client:
            assert not (await client.call_tool("peer__add_note", NOTE)).is_error


async def test_a_definition_that_has_changed_in_between_takes_nothing(store: Store, log: Path) -> None:
    settings = peer(log, allow=("rug",))
    async with proxied(store, settings, wait_s=SOON_S) as proxy, proxy.client() as client:
        answer = await client.call_tool("peer__echo", NOTE)
        (question,) = await proxy.approvals.pending()
        assert question.id in answer.content[0].text  # type: ignore[union-attr]
        await decide(proxy, question, Decision(True))
        await client.call_tool("peer__rug", {})
        while any(tool.name == "peer__echo" for tool in await proxy.servers.tools()):
            await asyncio.sleep(0.02)
        assert (await client.call_tool("peer__echo", NOTE)).is_error
        await proxy.servers.agree(proxy.servers.withheld())
        again = await client.call_tool("peer__echo", NOTE)
        assert again.is_error and question.id not in again.content[0].text  # type: ignore[union-attr]
    assert [one["name"] for one in received(log)] == ["rug"]


async def test_calls_at_once_are_asked_once_and_run_once_for_each_approval(store: Store, log: Path) -> None:
    async with proxied(store, peer(log), wait_s=5.0) as proxy, proxy.client() as client:
        first = asyncio.ensure_future(client.call_tool("peer__add_note", NOTE))
        while not (pending := await proxy.approvals.pending()):
            await asyncio.sleep(0.02)
        others = [asyncio.ensure_future(client.call_tool("peer__add_note", NOTE)) for _ in range(4)]
        await asyncio.sleep(0)
        await decide(proxy, pending[0], Decision(True))
        done, waiting = await asyncio.wait({first, *others}, return_when=asyncio.FIRST_COMPLETED)
        assert [one.result().is_error for one in done] == [False]
        while not (again := await proxy.approvals.pending()):
            await asyncio.sleep(0.02)
        assert again[0].id != pending[0].id
        assert len(received(log)) == 1
        (question,) = again
        await decide(proxy, question, Decision(False))
        await asyncio.wait(waiting)
        assert all(one.result().is_error for one in waiting) and not await proxy.approvals.pending()
    assert len(received(log)) == 1


async def test_equal_calls_that_begin_at_once_are_one_question(store: Store, log: Path) -> None:
    async with proxied(store, peer(log), wait_s=SOON_S) as proxy, proxy.client() as client:
        calls = await asyncio.gather(*(client.call_tool("peer__add_note", NOTE) for _ in range(20)))
        assert all(one.is_error for one in calls) and len(await proxy.approvals.pending()) == 1
    assert received(log) == []


async def test_two_processes_race_for_one_approval_and_one_runs(
    store: Store, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_found_it, take = asyncio.Barrier(2), Records.take

    async def taken_together(records: Records, id: str, at: float) -> bool:
        await both_found_it.wait()
        return await take(records, id, at)

    monkeypatch.setattr(Records, "take", taken_together)
    async with (
        proxied(store, peer(log), wait_s=SOON_S) as proxy,
        proxied(store, peer(log), wait_s=SOON_S) as second,
        proxy.client() as client,
        second.client() as other,
    ):
        question = await asked(proxy, client)
        await decide(proxy, question, Decision(True))
        both = await asyncio.gather(
            client.call_tool("peer__add_note", NOTE), other.call_tool("peer__add_note", NOTE)
        )
    assert [one.is_error for one in both].count(False) == 1
    assert len(received(log)) == 1


async def test_a_client_that_gives_up_does_not_end_its_question(store: Store, log: Path) -> None:
    async with proxied(store, peer(log), wait_s=30.0) as proxy:
        async with proxy.client("legacy") as client:
            calling = asyncio.ensure_future(client.call_tool("peer__add_note", NOTE))
            while not (pending := await proxy.approvals.pending()):
                await asyncio.sleep(0.02)
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)
        await decide(proxy, pending[0], Decision(True))
        async with proxy.client("legacy") as client:
            assert not (await client.call_tool("peer__add_note", NOTE)).is_error
    assert len(received(log)) == 1


async def test_a_question_expires_at_its_own_time(store: Store, log: Path) -> None:
    async with proxied(store, peer(log), wait_s=SOON_S, lifetime_s=1.0) as proxy, proxy.client() as client:
        question = await asked(proxy, client)
        await decide(proxy, question, Decision(True))
        while (await proxy.approvals.records.kept(question, proxy.approvals._clock())) != []:
            await asyncio.sleep(0.05)
        assert (await asked(proxy, client)).id != question.id
    assert received(log) == []


# --- across a restart ---------------------------------------------------------------------------


async def test_after_a_restart_the_call_takes_an_approval_that_was_given_with_the_code(
    store: Store, log: Path
) -> None:
    web = Approvals(store, proofs=Proofs(store, b"the web server"))
    signer = await web.proofs.code.set(CODE, "test")
    first, second = (Proofs(store, key) for key in (b"first run", b"second run"))
    async with proxied(store, peer(log), wait_s=SOON_S, proofs=first) as proxy, proxy.client() as client:
        question = await asked(proxy, client)
    async with proxied(store, peer(log), wait_s=SOON_S, proofs=second) as proxy, proxy.client() as client:
        assert (await asked(proxy, client)).id == question.id
        await web.decide(question, Decision(True), by="web", signer=signer)
    third = Proofs(store, b"third run")
    async with proxied(store, peer(log), wait_s=SOON_S, proofs=third) as proxy, proxy.client() as client:
        assert not (await client.call_tool("peer__add_note", NOTE)).is_error
        assert (await asked(proxy, client)).id != question.id
    assert len(received(log)) == 1


async def test_after_a_restart_an_approval_without_the_code_is_worth_nothing(store: Store, log: Path) -> None:
    first, second = (Proofs(store, key) for key in (b"first run", b"second run"))
    async with proxied(store, peer(log), wait_s=SOON_S, proofs=first) as proxy, proxy.client() as client:
        question = await asked(proxy, client)
        await decide(proxy, question, Decision(True))
    async with proxied(store, peer(log), wait_s=SOON_S, proofs=second) as proxy, proxy.client() as client:
        assert (await asked(proxy, client)).id != question.id
    assert received(log) == []


async def test_a_program_that_writes_to_the_store_cannot_approve_or_repeat_a_call(
    store: Store, log: Path
) -> None:
    async with proxied(store, peer(log), wait_s=SOON_S) as proxy, proxy.client() as client:
        question = await asked(proxy, client)
        yes = '{"approved": true}'
        forge = "UPDATE approvals SET status = 'approved', decided_by = 'web', decided_at = 1, decision = ?"
        await store.run(lambda c: c.execute(forge, (yes,)), "write")
        again = await asked(proxy, client)
        assert again.id != question.id and received(log) == []
        await decide(proxy, again, Decision(True))
        assert not (await client.call_tool("peer__add_note", NOTE)).is_error
        await store.run(lambda c: c.execute("UPDATE approvals SET used_at = NULL"), "write")
        assert (await asked(proxy, client)).id != again.id
    assert len(received(log)) == 1

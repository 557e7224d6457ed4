"""Monthly budgets: no more is served than the budget, and ended turns leave no reservations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.nodes import RedisServer
from toolwire.access import shared_limits, usage
from toolwire.access.keys import KeyLimits
from toolwire.access.limits import RateLimits, Ticket
from toolwire.access.usage import UsageBook
from toolwire.core.errors import ToolwireError
from toolwire.core.events import Usage
from toolwire.core.turn import Message, Sampling, TextPart, Turn
from toolwire.gateway.records import TurnSummary
from toolwire.settings.types import Settings, StoreSettings
from toolwire.store.store import Store

TURN = Turn("chat", "m", (Message("user", (TextPart("x" * 400),)),), sampling=Sampling(max_tokens=100))
"""Estimated at 200 tokens."""
SMALL = Usage(1, 1)


def summary(ticket: Ticket, usage: Usage, error: str | None) -> TurnSummary:
    return TurnSummary(
        request_id="req_1",
        key_id=ticket.key_id,
        api="chat",
        model="m",
        backend="scripted",
        strategy="none",
        stream=False,
        status=200,
        finish="stop",
        error_kind=error,
        tool_call_count=0,
        tool_call_names=(),
        tool_call_ids=(),
        tool_call_truncated=False,
        output_mode="openai-json",
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        first_byte_s=None,
        duration_s=0.1,
        report="",
        cancelled=False,
        hold=ticket.hold,
    )


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn waits longer than a second for the store: a busy machine may read it slowly."""
    monkeypatch.setattr(usage, "WAIT_S", 30.0)


@dataclass
class Place:
    """One node: its limits and its usage."""

    limits: RateLimits
    usage: UsageBook
    refusals: list[str]

    async def admitted(self, allowed: KeyLimits, key: str = "k") -> Ticket | None:
        try:
            return await self.limits.admit(key, allowed, TURN)
        except ToolwireError as error:
            self.refusals.append(error.failure.kind)
            return None

    def end(self, ticket: Ticket, usage: Usage = SMALL, error: str | None = None) -> None:
        """Ends a turn as the pipeline does: it is settled first, and counted a moment later."""
        charged = ticket.settle(usage, ran=error is None, answered=error is None)
        told = summary(ticket, charged, error)
        asyncio.get_running_loop().call_soon(self.usage.observe, told)

    async def settled(self) -> None:
        """Waits until everything that ended is counted, here and in Redis."""
        await asyncio.sleep(0)
        async with asyncio.timeout(20):
            while self.limits._errands:
                await asyncio.sleep(0.01)


def alone(store: Store | None = None) -> Place:
    usage = UsageBook(store)
    return Place(RateLimits(Settings(), usage), usage, [])


# --- one process ---


async def test_concurrent_turns_get_exactly_the_budget(store: Store) -> None:
    place, allowed = alone(store), KeyLimits(budget_requests=3)
    tickets = [
        ticket
        for ticket in await asyncio.gather(*(place.admitted(allowed) for _ in range(300)))
        if ticket is not None
    ]
    assert len(tickets) == 3
    assert set(place.refusals) == {"requests_limit"}, (
        "while they run, one may still fail and give its request back"
    )
    for ticket in tickets:
        place.end(ticket)
    assert await place.admitted(allowed) is None, (
        "a turn that has ended and is not counted yet is not forgotten in between"
    )
    await place.settled()
    assert await place.admitted(allowed) is None and place.refusals[-1] == "quota"
    assert place.usage.held("k") == (0, 0)
    await place.usage.close()


async def test_a_failed_turn_returns_its_request_and_tokens() -> None:
    place, allowed = alone(), KeyLimits(budget_requests=1, budget_tokens=100)
    for _ in range(5):
        ticket = await place.admitted(allowed)
        assert ticket is not None and await place.admitted(allowed) is None
        place.end(ticket, Usage(0, 0), error="overloaded")
        await place.settled()
    assert place.usage.held("k") == (0, 0)


async def test_tokens_are_reserved_by_estimate_and_charged_as_counted() -> None:
    place, allowed = alone(), KeyLimits(budget_tokens=1000)
    tickets = [ticket for ticket in [await place.admitted(allowed) for _ in range(50)] if ticket is not None]
    assert len(tickets) == 5 and place.usage.held("k") == (5, 1000)
    assert set(place.refusals) == {"tokens_limit"}
    for ticket in tickets:
        place.end(ticket, Usage(10, 10))
    await place.settled()
    assert place.usage.held("k") == (0, 0) and (await place.usage.month("k")).tokens == 100
    crossing = await place.admitted(allowed)
    assert crossing is not None
    place.end(crossing, Usage(900, 500))
    await place.settled()
    assert await place.admitted(allowed) is None and place.refusals[-1] == "quota"


async def test_a_refusal_by_another_limit_reserves_nothing() -> None:
    place, allowed = alone(), KeyLimits(budget_requests=100, concurrent=2)
    tickets = [await place.admitted(allowed) for _ in range(10)]
    assert place.usage.held("k") == (2, 0)
    for ticket in filter(None, tickets):
        place.end(ticket)
    await place.settled()
    assert place.usage.held("k") == (0, 0) and (await place.usage.month("k")).requests == 2


async def test_usage_survives_a_restart(store_url: str) -> None:
    allowed = KeyLimits(budget_requests=3)
    for served in (3, 0):
        store = Store(store_url)
        place = alone(store)
        tickets = [
            ticket
            for ticket in await asyncio.gather(*(place.admitted(allowed) for _ in range(20)))
            if ticket is not None
        ]
        assert len(tickets) == served
        for ticket in tickets:
            place.end(ticket)
        await place.settled()
        await place.usage.close()
        await store.close()


async def test_a_killed_process_has_already_written_the_usage_of_a_budget(store: Store) -> None:
    """The usage is written before the next regular write, which a kill would lose."""
    place, allowed = alone(store), KeyLimits(budget_requests=1)
    ticket = await place.admitted(allowed)
    assert ticket is not None
    place.end(ticket)
    after = alone(store)
    async with asyncio.timeout(2):
        while (second := await after.admitted(allowed)) is not None:
            after.end(second, error="overloaded")
            await after.settled()
            after.usage._months.clear()
            await asyncio.sleep(0.02)


@given(
    requests=st.integers(0, 6),
    tokens=st.integers(0, 1500),
    steps=st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 10), st.booleans(), st.integers(0, 400)), max_size=12
    ),
)
@settings(max_examples=60, deadline=None)
def test_no_order_of_turns_exceeds_the_budget(
    requests: int, tokens: int, steps: list[tuple[int, int, bool, int]]
) -> None:
    """Each step: turns that arrive together, turns that end, whether these fail, and their tokens."""

    async def run() -> None:
        place, allowed = alone(), KeyLimits(budget_requests=requests, budget_tokens=tokens)
        running: list[Ticket] = []
        served = spent = 0
        for arrive, end, fails, used in steps:
            got = await asyncio.gather(*(place.admitted(allowed) for _ in range(arrive)))
            running += filter(None, got)
            if requests:
                assert served + len(running) <= requests
            if tokens and any(got):
                assert spent + 200 * (len(running) - 1) < tokens, "something was left when the last one came"
            for ticket in running[:end]:
                place.end(ticket, Usage(0, 0) if fails else Usage(used, 1), "overloaded" if fails else None)
                served, spent = served + (not fails), spent + (0 if fails else used + 1)
            del running[:end]
            await place.settled()
        for ticket in running:
            place.end(ticket)
        await place.settled()
        assert place.usage.held("k") == (0, 0)
        assert not place.limits._accounts or not place.limits._accounts["k"].running

    asyncio.run(run())


# --- several nodes ---


Node = Callable[[], Awaitable[Place]]


@pytest.fixture
async def node(redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    """`await node()` starts one more node that shares the limits and the store."""
    monkeypatch.setattr(shared_limits, "BEAT_S", 0.1)
    monkeypatch.setattr(shared_limits, "RETRY_S", 0.1)
    # a loaded machine must not look like an unreachable Redis
    monkeypatch.setattr(shared_limits, "WITHIN_S", 20.0)
    started: list[tuple[Place, Store]] = []

    async def start() -> Place:
        store = Store(f"sqlite:///{tmp_path}/toolwire.db")
        usage = UsageBook(store)
        limits = RateLimits(Settings(store=StoreSettings(redis=redis.url)), usage)
        started.append((Place(limits, usage, []), store))
        await limits.start()
        return started[-1][0]

    yield start
    for place, store in started:
        await place.limits.close()
        await place.usage.close()
        await store.close()


def up(place: Place) -> bool:
    return place.limits.shared is not None and place.limits.shared.up


async def becomes(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.01)


async def race(places: list[Place], allowed: KeyLimits, each: int = 30) -> list[tuple[Place, Ticket]]:
    asked = [(place, asyncio.ensure_future(place.admitted(allowed))) for _ in range(each) for place in places]
    return [(place, ticket) for place, work in asked if (ticket := await work) is not None]


async def test_several_nodes_serve_exactly_the_budget(node: Node) -> None:
    places, allowed = [await node() for _ in range(3)], KeyLimits(budget_requests=7)
    served = await race(places, allowed)
    assert len(served) == 7
    for place, ticket in served[:4]:
        place.end(ticket)
    for place, ticket in served[4:]:
        place.end(ticket, Usage(0, 0), error="overloaded")
    for place in places:
        await place.settled()
    again = await race(places, allowed)
    assert len(again) == 3, "the failed ones gave their requests back"
    for place, ticket in again:
        place.end(ticket)
    for place in places:
        await place.settled()
        assert await place.admitted(allowed) is None and place.refusals[-1] == "quota"
        assert place.usage.held("k") == (0, 0)
    shared = places[0].limits.shared
    assert shared is not None and await shared._redis.zcard(f"{shared_limits.RUNNING}{{k}}") == 0


async def test_a_burst_of_turns_does_not_make_redis_look_unreachable(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    places, allowed = [await node() for _ in range(2)], KeyLimits(budget_requests=7)
    served = await race(places, allowed, 300)
    assert len(served) == 7
    assert all(map(up, places)) and "redis cannot be reached" not in caplog.text


async def test_nodes_share_a_budget_of_tokens(node: Node) -> None:
    places, allowed = [await node() for _ in range(3)], KeyLimits(budget_tokens=1000)
    served = await race(places, allowed, 20)
    assert len(served) == 5
    for place, ticket in served:
        place.end(ticket, Usage(50, 50))
    for place in places:
        await place.settled()
    served = await race(places, allowed, 20)
    assert len(served) == 3
    for place, ticket in served:
        place.end(ticket, Usage(100, 100))
    for place in places:
        await place.settled()
    assert not await race(places, allowed, 20)


async def test_reservations_of_a_dead_node_are_returned_and_its_usage_is_not(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_limits, "LEASE_S", 0.6)
    dead, alive = await node(), await node()
    allowed = KeyLimits(budget_requests=2)
    used, running = await dead.admitted(allowed), await dead.admitted(allowed)
    assert used is not None and running is not None and await alive.admitted(allowed) is None
    dead.end(used)
    await dead.settled()
    assert dead.limits.shared is not None and dead.limits.shared._beating is not None
    dead.limits.shared._beating.cancel()
    async with asyncio.timeout(10):
        while (ticket := await alive.admitted(allowed)) is None:
            await asyncio.sleep(0.05)
    alive.end(ticket)
    await alive.settled()
    assert await alive.admitted(allowed) is None and alive.refusals[-1] == "quota"


async def test_an_empty_redis_starts_from_the_usage_in_the_store(node: Node, redis: RedisServer) -> None:
    place, allowed = await node(), KeyLimits(budget_requests=2)
    for place_, ticket in await race([place], allowed):
        place_.end(ticket)
    await place.settled()
    await place.usage.flush()
    redis.kill()
    await becomes(lambda: not up(place))
    redis.start()
    await becomes(lambda: up(place))
    fresh = await node()
    assert not await race([place, fresh], allowed)
    assert fresh.refusals[-1] == place.refusals[-1] == "quota"


async def test_without_redis_nodes_divide_the_rest_and_report_it_later(
    node: Node, redis: RedisServer
) -> None:
    places, allowed = [await node(), await node()], KeyLimits(budget_requests=20)
    await becomes(
        lambda: all(place.limits.shared is not None and place.limits.shared.nodes == 2 for place in places)
    )
    before = [
        (place, ticket)
        for place in places
        for _ in range(3)
        if (ticket := await place.admitted(allowed)) is not None
    ]
    for place, ticket in before:
        place.end(ticket)
    for place in places:
        await place.settled()
        await place.usage.flush()
    redis.kill()
    away = await race(places, allowed, 30)
    assert 10 <= len(away) <= 14, "14 were left"
    assert {kind for place in places for kind in place.refusals} <= {"overloaded", "requests_limit"}, (
        "nobody is told that the month is over"
    )
    for place, ticket in away[:-2]:
        place.end(ticket)
    for place in places:
        await place.settled()
    redis.start()
    await becomes(lambda: all(map(up, places)))
    for place in places:
        assert place.limits.shared is not None
        await place.limits.shared.beat()
    rest = await race(places, allowed, 30)
    assert len(rest) == 14 - len(away), "what was used and what still runs is known to Redis again"
    for place, ticket in [*away[-2:], *rest]:
        place.end(ticket)
    for place in places:
        await place.settled()
    assert not await race(places, allowed, 5)
    assert all(place.usage.held("k") == (0, 0) for place in places)


async def test_a_client_that_disconnects_during_admission_reserves_nothing(node: Node) -> None:
    place, allowed = await node(), KeyLimits(budget_requests=2, budget_tokens=1000)
    for steps in (0, 1, 2, 3, 5, 8, 13, 21):
        asking = asyncio.ensure_future(place.limits.admit("k", allowed, TURN))
        for _ in range(steps):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        if not asking.cancelled() and asking.exception() is None:
            place.end(asking.result(), Usage(0, 0), error="gone")
        await place.settled()
    assert place.usage.held("k") == (0, 0)
    assert len(await race([place], allowed, 10)) == 2

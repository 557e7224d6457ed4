"""Limits of a key: on one node, on several that share a real Redis, and while that Redis is down."""

from __future__ import annotations

import asyncio
import logging
import os
import time as real_time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from doubles.nodes import RedisServer
from toolwire.access import shared_limits
from toolwire.access.keys import KeyGrant, KeyLimits
from toolwire.access.limits import RateLimits, Ticket, estimate
from toolwire.access.meters import MINUTE
from toolwire.access.shared_limits import SharedLimits
from toolwire.access.usage import UsageBook
from toolwire.cluster.nodes import WITHIN_S
from toolwire.core.errors import ToolwireError, error_object, status_of
from toolwire.core.events import CallArgs, Failure, Text, Usage
from toolwire.core.turn import Call, ImagePart, Message, Result, Sampling, TextPart, ToolSpec, Turn
from toolwire.gateway.parked import Parking
from toolwire.settings.types import ParkedSettings, ServerSettings, Settings, StoreSettings

TURN = Turn("chat", "m", (Message("user", (TextPart("x" * 400),)),), sampling=Sampling(max_tokens=100))
"""Estimated at 100 tokens of input and 100 of output."""


class Time:
    """A clock in microseconds that tests set."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def limits(time: Time) -> RateLimits:
    return RateLimits(Settings(), clock=time)


def headers(limits: RateLimits, allowed: KeyLimits, key: str = "k") -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in limits.headers(key, allowed)}


async def refused(work: Awaitable[Any]) -> Failure:
    with pytest.raises(ToolwireError) as caught:
        await work
    return caught.value.failure


# --- one node ---


async def test_requests_beyond_the_limit_get_openais_429(limits: RateLimits, time: Time) -> None:
    allowed = KeyLimits(requests_per_minute=3)
    for _ in range(3):
        (await limits.admit("k", allowed, TURN)).settle(Usage(1, 1), ran=True)
    failure = await refused(limits.admit("k", allowed, TURN))
    assert error_object(failure)["error"] == {
        "message": "Rate limit reached for this API key on requests per min (RPM): Limit 3, Used 3, "
        "Requested 1. "
        "Please try again in 20s.",
        "type": "requests",
        "param": None,
        "code": "rate_limit_exceeded",
    }
    assert failure.retry_after_s == 20
    assert headers(limits, allowed) == {
        "x-ratelimit-limit-requests": "3",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1m0s",
    }
    time.now += 20_000_000
    await limits.admit("k", allowed, TURN)
    await limits.admit("another", allowed, TURN)


async def test_tokens_are_reserved_by_estimate_and_charged_by_usage(limits: RateLimits) -> None:
    allowed = KeyLimits(tokens_per_minute=1000)
    ticket = await limits.admit("k", allowed, TURN)
    assert headers(limits, allowed)["x-ratelimit-remaining-tokens"] == "800"
    ticket.settle(Usage(300, 400), ran=True)
    assert headers(limits, allowed)["x-ratelimit-remaining-tokens"] == "300"
    cheap = await limits.admit("k", allowed, TURN)
    cheap.settle(Usage(1, 1), ran=True)
    assert headers(limits, allowed)["x-ratelimit-remaining-tokens"] == "298"
    cheap.settle(Usage(500, 500), ran=True)  # a second call has no effect
    assert headers(limits, allowed)["x-ratelimit-remaining-tokens"] == "298"
    await limits.admit("k", allowed, TURN)
    failure = await refused(limits.admit("k", allowed, TURN))
    assert (
        error_object(failure)["error"]["type"] == "tokens"
        and "Limit 1000, Used 902, Requested 200" in failure.message
    )
    assert headers(limits, allowed)["x-ratelimit-reset-tokens"] == "54.12s"


async def test_an_abandoned_turn_pays_for_what_was_sent_and_a_failed_one_pays_nothing(
    limits: RateLimits,
) -> None:
    allowed = KeyLimits(tokens_per_minute=1000)
    left = await limits.admit("k", allowed, TURN)
    left.saw([Text("y" * 100), CallArgs(0, "z" * 60)])
    assert left.settle(Usage(0, 0), ran=True) == Usage(100, 40)
    assert headers(limits, allowed)["x-ratelimit-remaining-tokens"] == "860"
    failed = await limits.admit("k", allowed, TURN)
    assert failed.settle(Usage(0, 0), ran=False) == Usage(0, 0)
    assert headers(limits, allowed)["x-ratelimit-remaining-tokens"] == "860"


async def test_a_turn_above_the_limit_runs_if_nothing_was_used(limits: RateLimits, time: Time) -> None:
    allowed = KeyLimits(tokens_per_minute=50)
    ticket = await limits.admit("k", allowed, TURN)
    assert ticket.reserved == 50
    ticket.settle(Usage(100, 50), ran=True)
    assert (await refused(limits.admit("k", allowed, TURN))).retry_after_s == 180
    time.now += 3 * MINUTE
    await limits.admit("k", allowed, TURN)


async def test_concurrent_turns_are_limited(limits: RateLimits) -> None:
    allowed = KeyLimits(concurrent=2, requests_per_minute=100)
    first, _ = await limits.admit("k", allowed, TURN), await limits.admit("k", allowed, TURN)
    failure = await refused(limits.admit("k", allowed, TURN))
    assert (
        error_object(failure)["error"]["code"] == "rate_limit_exceeded"
        and "2 requests at once" in failure.message
        and failure.retry_after_s
    )
    assert headers(limits, allowed)["x-ratelimit-remaining-requests"] == "98"  # a refusal costs nothing
    with pytest.raises(ToolwireError):
        limits.check("k", allowed)
    first.settle(Usage(0, 0), ran=False)
    limits.check("k", allowed)
    await limits.admit("k", allowed, TURN)


async def test_an_exhausted_limit_refuses_before_the_body_is_read(limits: RateLimits) -> None:
    allowed = KeyLimits(requests_per_minute=1)
    limits.check("k", allowed)
    await limits.admit("k", allowed, TURN)
    with pytest.raises(ToolwireError) as caught:
        limits.check("k", allowed)
    assert caught.value.failure.kind == "requests_limit" and caught.value.failure.retry_after_s == 60


async def test_an_invalid_request_is_charged_and_a_429_is_not(limits: RateLimits) -> None:
    allowed = KeyLimits(requests_per_minute=5)
    limits.fault("k", allowed, Failure("invalid_json", "no"))
    limits.fault("k", allowed, Failure("model_not_found", "no"))
    limits.fault("k", allowed, Failure("requests_limit", "no"))
    limits.fault("k", allowed, Failure("quota", "no"))
    assert headers(limits, allowed)["x-ratelimit-remaining-requests"] == "3"
    limits.fault("free", KeyLimits(), Failure("invalid_json", "no"))


async def test_worker_processes_without_redis_divide_the_limits(time: Time) -> None:
    limits = RateLimits(Settings(server=ServerSettings(workers=4)), clock=time)
    allowed = KeyLimits(requests_per_minute=40, concurrent=8)
    assert headers(limits, allowed)["x-ratelimit-limit-requests"] == "10"
    for _ in range(2):
        await limits.admit("k", allowed, TURN)
    assert "at once" in (await refused(limits.admit("k", allowed, TURN))).message


async def test_an_exhausted_monthly_budget_is_a_quota_error(limits: RateLimits) -> None:
    usage = UsageBook(None)
    limits = RateLimits(Settings(), usage)
    spent = await usage.month("k")
    allowed = KeyLimits(budget_requests=2, budget_tokens=1000)
    spent.requests, spent.tokens = 1, 999
    await limits.admit("k", allowed, TURN)
    for spent.requests, spent.tokens, word in ((2, 0, "2 requests"), (0, 1000, "1,000 tokens")):
        failure = await refused(limits.admit("k", allowed, TURN))
        told = error_object(failure)["error"]
        assert (told["type"], told["code"]) == ("insufficient_quota", "insufficient_quota") and word in told[
            "message"
        ]
        assert failure.retry_after_s and 0 < failure.retry_after_s <= 31 * 86400
    assert headers(limits, allowed) == {}


async def test_while_the_store_is_down_only_an_unknown_budget_is_refused() -> None:
    class Away:
        async def run(self, work: Any, action: str) -> Any:
            raise ToolwireError("overloaded", "no store", retry_after_s=1)

    away: Any = Away()
    limits = RateLimits(Settings(), UsageBook(away))
    for allowed in (KeyLimits(budget_requests=2), KeyLimits(budget_tokens=1000, requests_per_minute=5)):
        failure = await refused(limits.admit("k", allowed, TURN))
        told = error_object(failure)["error"]
        assert (told["code"], failure.retry_after_s, status_of(failure)) == (
            "overloaded",
            1,
            503,
        ) and "budget" in told["message"]
    await limits.admit("k", KeyLimits(requests_per_minute=5, tokens_per_minute=1000, concurrent=1), TURN)


def test_an_estimate_counts_everything_that_is_sent() -> None:
    whole = replace(
        TURN,
        instructions="i" * 40,
        items=(
            *TURN.items,
            Call("c", "look", "a" * 36),
            Result("c", (TextPart("r" * 40),)),
            Message("user", (ImagePart("data:…"),)),
        ),
        tools=(ToolSpec("look", "d" * 36),),
        n=2,
    )
    assert estimate(whole) == Usage(100 + 10 + 10 + 10 + 800 + 11, 200)
    assert estimate(replace(TURN, sampling=Sampling())).output_tokens == 256
    assert estimate(replace(TURN, sampling=Sampling(max_tokens=100_000))).output_tokens == 1024


def test_a_key_without_limits_is_not_limited() -> None:
    assert not KeyGrant().limited and not KeyGrant(limits=KeyLimits(parked=3)).limited
    for name in (
        "requests_per_minute",
        "tokens_per_minute",
        "concurrent",
        "budget_tokens",
        "budget_requests",
    ):
        assert KeyGrant(limits=KeyLimits(**{name: 1})).limited


async def test_a_key_has_its_own_limit_of_parked_runs() -> None:
    class Live:
        cancelled = False

        async def cancel(self) -> None:
            self.cancelled = True

    parking = Parking(ParkedSettings(max_per_key=3))
    parking.allow("k", 1)
    parking.allow("greedy", 50)
    for key, count in (("k", 1), ("greedy", 3), ("other", 3)):
        lives: list[Any] = [Live() for _ in range(4)]
        for number, live in enumerate(lives):
            parking.park(live, {f"{key}{number}": "c"}, key, TURN, "", {f"{key}{number}": "look"}, object())
        held = [number for number in range(4) if parking.holds([f"{key}{number}"])]
        assert held == list(range(4 - count, 4))
    parking.allow("k", 0)
    parking.park(lives[0], {"k9": "c"}, "k", TURN, "", {"k9": "look"}, object())
    assert parking.holds(["k3"]) and parking.holds(["k9"])
    await parking.close()


# --- several nodes ---


Node = Callable[[], Awaitable[RateLimits]]


@pytest.fixture
async def node(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    """`await node()` starts one more node that shares the limits."""
    monkeypatch.setattr(shared_limits, "BEAT_S", 0.1)
    monkeypatch.setattr(shared_limits, "RETRY_S", 0.1)
    started: list[RateLimits] = []

    async def start() -> RateLimits:
        limits = RateLimits(Settings(store=StoreSettings(redis=redis.url)))
        started.append(limits)
        await limits.start()
        return limits

    yield start
    for limits in started:
        await limits.close()


async def becomes(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.01)


async def admitted(limits: RateLimits, allowed: KeyLimits, key: str = "k") -> Ticket | None:
    try:
        return await limits.admit(key, allowed, TURN)
    except ToolwireError:
        return None


async def test_several_nodes_admit_what_one_would_within_five_percent(node: Node) -> None:
    nodes = [await node() for _ in range(3)]
    rate = 240
    allowed = KeyLimits(requests_per_minute=rate)
    began, counts = real_time.monotonic(), [0, 0, 0]

    async def press(place: int) -> None:
        refusals = 0
        while refusals < 60:
            asked = await asyncio.gather(*(admitted(nodes[place], allowed) for _ in range(10)))
            counts[place] += sum(ticket is not None for ticket in asked)
            refusals += asked.count(None)

    await asyncio.gather(*map(press, range(3)))
    right = rate * (1 + (real_time.monotonic() - began) / 60)
    assert right * 0.95 <= sum(counts) <= right * 1.05
    assert min(counts) > 0
    shown = [int(headers(limits, allowed)["x-ratelimit-remaining-requests"]) for limits in nodes]
    assert max(shown) <= rate * 0.05


async def test_tokens_and_concurrent_turns_are_shared_between_nodes(node: Node) -> None:
    here, there = await node(), await node()
    allowed = KeyLimits(tokens_per_minute=1000, concurrent=2)
    first, second = await here.admit("k", allowed, TURN), await there.admit("k", allowed, TURN)
    assert "at once" in (await refused(here.admit("k", allowed, TURN))).message
    first.settle(Usage(300, 0), ran=True)
    second.settle(Usage(100, 0), ran=True)
    await becomes(lambda: not here._errands and not there._errands)
    third = await here.admit("k", allowed, TURN)
    assert 400 <= int(headers(here, allowed)["x-ratelimit-remaining-tokens"]) <= 480
    third.settle(Usage(900, 0), ran=True)
    await becomes(lambda: not here._errands)
    failure = await refused(there.admit("k", allowed, TURN))
    assert failure.kind == "tokens_limit" and failure.retry_after_s and 20 < failure.retry_after_s < 45


async def test_redis_counts_like_the_local_meters(node: Node, time: Time) -> None:
    shared, alone = await node(), RateLimits(Settings(), clock=time)
    for key, allowed in (
        ("a", KeyLimits(requests_per_minute=7)),
        ("b", KeyLimits(tokens_per_minute=1_234_567)),
        ("c", KeyLimits(7, 9999)),
    ):
        for _ in range(6):
            for limits in (shared, alone):
                (await limits.admit(key, allowed, TURN)).settle(Usage(77, 3), ran=True)
        await becomes(lambda: not shared._errands)
        for kind, rate in (("requests", allowed.requests_per_minute), ("tokens", allowed.tokens_per_minute)):
            if rate:
                there, here = (
                    int(headers(limits, allowed, key)[f"x-ratelimit-remaining-{kind}"])
                    for limits in (shared, alone)
                )
                assert here <= there <= here + 1 + rate // 10  # some time passed there


async def test_turns_of_a_dead_node_end_with_their_leases(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_limits, "LEASE_S", 0.6)
    dead, alive = await node(), await node()
    allowed = KeyLimits(concurrent=2)
    await dead.admit("k", allowed, TURN)
    mine = await alive.admit("k", allowed, TURN)
    assert await admitted(alive, allowed) is None
    assert dead.shared is not None and dead.shared._beating is not None
    dead.shared._beating.cancel()
    async with asyncio.timeout(10):
        while (other := await admitted(alive, allowed)) is None:
            await asyncio.sleep(0.05)
    assert await admitted(alive, allowed) is None  # its own turn is still running
    for ticket in (mine, other):
        ticket.settle(Usage(0, 0), ran=False)


HOUR = 3600 * 1_000_000


async def test_a_redis_clock_that_goes_back_locks_nobody_out(node: Node) -> None:
    limits = await node()
    allowed = KeyLimits(requests_per_minute=300)
    while await admitted(limits, allowed) is not None:
        pass
    assert limits.shared is not None
    await limits.shared._redis.hincrby(
        f"{shared_limits.METERS}{{k}}", "at", HOUR
    )  # as if the clock had gone back since the last request
    failure = await refused(limits.admit("k", allowed, TURN))
    assert (
        failure.retry_after_s and failure.retry_after_s <= 0.4
    )  # the time of two requests: the jump of the clock changes nothing
    async with asyncio.timeout(5):
        while await admitted(limits, allowed) is None:
            await asyncio.sleep(0.02)


async def test_turns_of_a_dead_node_end_even_if_the_redis_clock_goes_back(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_limits, "LEASE_S", 0.6)
    limits = await node()
    allowed = KeyLimits(concurrent=2)
    mine = await limits.admit("k", allowed, TURN)
    assert limits.shared is not None
    later = (real_time.time_ns() // 1000) + HOUR
    await limits.shared._redis.zadd(f"{shared_limits.RUNNING}{{k}}", {"of a node that died": later})
    await limits.shared._redis.zadd(shared_limits.NODES, {"node_dead": later})
    assert await admitted(limits, allowed) is None
    async with asyncio.timeout(5):
        while (other := await admitted(limits, allowed)) is None:
            await asyncio.sleep(0.02)
    await becomes(lambda: limits.shared is not None and limits.shared.nodes == 1)
    assert await admitted(limits, allowed) is None  # its own turn is still running
    for ticket in (mine, other):
        ticket.settle(Usage(0, 0), ran=False)


async def test_without_redis_each_node_allows_its_share_and_logs_it_once(
    node: Node, redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = [await node(), await node()]
    await becomes(lambda: all(limits.shared is not None and limits.shared.nodes == 2 for limits in nodes))
    allowed = KeyLimits(requests_per_minute=100, concurrent=90)
    with caplog.at_level(logging.WARNING, "toolwire.limits"):
        for limits in nodes:
            for _ in range(10):
                (await limits.admit("k", allowed, TURN)).settle(Usage(0, 0), ran=False)
        await becomes(lambda: not any(limits._errands for limits in nodes))
        redis.kill()
        for limits in nodes:
            taken = [ticket for _ in range(80) if (ticket := await admitted(limits, allowed)) is not None]
            assert 40 <= len(taken) <= 46, "half of the limit, less this node's part of what was taken before"
            assert headers(limits, allowed)["x-ratelimit-limit-requests"] == "50"
            for ticket in taken:
                ticket.settle(Usage(0, 0), ran=False)
        assert [record.message for record in caplog.records if "cannot be reached" in record.message] == [
            record.message for record in caplog.records
        ]
        assert len(caplog.records) == 2 and "1/2" in caplog.text  # once per node
        redis.start()
        await becomes(lambda: all(limits.shared is not None and limits.shared.up for limits in nodes))
    assert caplog.text.count("redis is back") == 2
    await becomes(lambda: all(limits.shared is not None and not limits.shared._owed for limits in nodes))
    left = 0
    while await admitted(nodes[left % 2], allowed) is not None:
        left += 1
    assert left <= 10, "Redis had forgotten everything, and was told what was taken before and meanwhile"
    assert headers(nodes[0], allowed)["x-ratelimit-limit-requests"] == "100"


async def test_a_redis_that_lost_its_data_does_not_reset_the_limits(node: Node, redis: RedisServer) -> None:
    nodes = [await node(), await node()]
    allowed = KeyLimits(requests_per_minute=60, tokens_per_minute=100_000)
    for key in ("quiet", "noisy"):
        taken = 0
        while await admitted(nodes[taken % 2], allowed, key) is not None:
            taken += 1
        assert taken >= 60
    redis.kill()
    assert (
        await admitted(nodes[0], allowed, "noisy") is None
    )  # this node notices that Redis is down; the other one notices with its heartbeat
    await becomes(lambda: not any(limits.shared is None or limits.shared.up for limits in nodes))
    redis.start()
    await becomes(
        lambda: all(
            limits.shared is not None and limits.shared.up and not limits.shared._owed for limits in nodes
        )
    )
    began = real_time.monotonic()
    for key in ("quiet", "noisy"):
        again = 0
        while await admitted(nodes[again % 2], allowed, key) is not None:
            again += 1
        # one request becomes available every second
        assert again <= 10 + (real_time.monotonic() - began), key


async def used_up(nodes: list[RateLimits], allowed: KeyLimits) -> None:
    """Uses up the limit of a minute, so that every node knows it."""
    taken = 0
    while await admitted(nodes[taken % len(nodes)], allowed) is not None:
        taken += 1
    assert taken >= allowed.requests_per_minute
    for limits in nodes:
        assert await admitted(limits, allowed) is None


async def test_a_reachable_redis_gets_missed_usage_before_new_requests(
    node: Node, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [await node(), await node()]
    allowed = KeyLimits(requests_per_minute=60)
    began = real_time.monotonic()
    await used_up(nodes, allowed)
    told = asyncio.Event()
    run = SharedLimits._run

    async def slowly(self: SharedLimits, asked: Any, way: str) -> Any:
        if way != "take":
            told.set()
            await asyncio.sleep(0.3)
        return await run(self, asked, way)

    monkeypatch.setattr(SharedLimits, "_run", slowly)
    redis.kill()
    await becomes(lambda: not any(limits.shared is None or limits.shared.up for limits in nodes))
    redis.start()
    await told.wait()
    rounds = [
        await asyncio.gather(*(admitted(limits, allowed) for limits in nodes for _ in range(20)))
        for _ in range(3)
    ]
    got = sum(ticket is not None for tickets in rounds for ticket in tickets)
    assert got <= 2 + (real_time.monotonic() - began), "one comes back every second"


async def test_a_node_that_missed_a_redis_restart_does_not_reset_the_limits(
    node: Node, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_limits, "BEAT_S", 60.0)
    nodes = [await node(), await node()]
    allowed = KeyLimits(requests_per_minute=60, tokens_per_minute=100_000)
    began = real_time.monotonic()
    await used_up(nodes, allowed)
    redis.kill()
    redis.start()
    got = [
        ticket
        for limits in nodes
        for ticket in await asyncio.gather(*(admitted(limits, allowed) for _ in range(20)))
        if ticket is not None
    ]
    assert len(got) <= 2 + (real_time.monotonic() - began), "one comes back every second"


async def test_the_number_of_nodes_survives_a_restart_of_redis(node: Node, redis: RedisServer) -> None:
    here, there = await node(), await node()
    assert here.shared is not None and there.shared is not None
    await becomes(lambda: here.shared is not None and here.shared.nodes == 2)
    there.shared._closed = True  # this node dies and does not return
    redis.kill()
    await becomes(lambda: here.shared is not None and not here.shared.up)
    redis.start()
    while not here.shared.up:
        await asyncio.sleep(0)
    assert here.shared.nodes == 2, "the other one may not have been back yet"
    await becomes(lambda: here.shared is not None and here.shared.nodes == 1)


async def test_turns_without_redis_are_counted_when_it_is_reachable_again(
    node: Node, redis: RedisServer
) -> None:
    limits = await node()
    allowed = KeyLimits(concurrent=2)
    before = await limits.admit("k", allowed, TURN)
    redis.kill()
    during = await limits.admit("k", allowed, TURN)
    assert await admitted(limits, allowed) is None
    redis.start()
    await becomes(lambda: limits.shared is not None and limits.shared.up)
    assert limits.shared is not None
    await limits.shared.beat()
    assert await admitted(limits, allowed) is None
    for ticket in (before, during):
        ticket.settle(Usage(0, 0), ran=False)
    await becomes(lambda: not limits._errands)
    assert await admitted(limits, allowed) is not None


async def test_a_redis_that_hangs_delays_only_one_request(node: Node, redis: RedisServer) -> None:
    import signal

    limits = await node()
    allowed = KeyLimits(requests_per_minute=1000)
    await limits.admit("k", allowed, TURN)
    os.kill(redis.pid, signal.SIGSTOP)
    try:
        await limits.admit("k", allowed, TURN)  # this request notices that Redis hangs
        began = real_time.monotonic()
        for _ in range(50):
            await limits.admit("k", allowed, TURN)
        assert real_time.monotonic() - began < WITHIN_S
    finally:
        os.kill(redis.pid, signal.SIGCONT)
    await becomes(lambda: limits.shared is not None and limits.shared.up)
    await limits.admit("k", allowed, TURN)


async def test_a_client_that_disconnects_during_admission_leaves_no_reservation(node: Node) -> None:
    limits = await node()
    allowed = KeyLimits(tokens_per_minute=1000, concurrent=1)
    for _ in range(10):
        asking = asyncio.ensure_future(limits.admit("k", allowed, TURN))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        if not asking.cancelled():
            asking.result().settle(Usage(0, 0), ran=False)
    await becomes(lambda: not limits._errands)
    (await limits.admit("k", allowed, TURN)).settle(Usage(0, 0), ran=False)
    await becomes(lambda: not limits._errands)
    assert headers(limits, allowed)["x-ratelimit-remaining-tokens"] == "1000"

"""Keys take turns to begin their requests; a key alone never waits."""

from __future__ import annotations

import asyncio

from toolwire.access import turns
from toolwire.access.turns import KeyTurns


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def _begin(taken: KeyTurns, key: str, begun: list[str]) -> None:
    place = taken.wait(key)
    if place is not None:
        await place
    begun.append(key)


async def test_requests_of_a_key_alone_begin_at_once() -> None:
    taken = KeyTurns()
    assert [taken.wait("one") for _ in range(100)] == [None] * 100


async def test_a_request_begins_after_at_most_one_of_a_key_with_many() -> None:
    taken, begun = KeyTurns(), list[str]()
    await _begin(taken, "other", [])
    many = [asyncio.ensure_future(_begin(taken, "flood", begun)) for _ in range(50)]
    await asyncio.sleep(0)
    before = len(begun)
    await _begin(taken, "other", begun)
    assert begun[before:].index("other") <= 1 < 40 < 50 - before
    await asyncio.gather(*many)
    assert begun.count("flood") == 50


async def test_one_request_begins_in_each_pass_of_the_event_loop() -> None:
    taken, begun = KeyTurns(), list[str]()
    await _begin(taken, "other", [])
    waiting = [
        asyncio.ensure_future(_begin(taken, key, begun))
        for key in ("a", "a", "a", "b", "b", "c")
        for _ in "12"
    ]
    passes = 0
    while len(begun) < len(waiting):
        before = len(begun)
        await asyncio.sleep(0)
        passes += 1
        assert len(begun) - before <= 1
    assert len(waiting) <= passes <= len(waiting) + 5
    assert set(begun[:5]) == {"a", "b", "c"}


async def test_a_cancelled_request_does_not_stop_those_that_follow() -> None:
    taken, begun = KeyTurns(), list[str]()
    await _begin(taken, "other", [])
    waiting = [asyncio.ensure_future(_begin(taken, "flood", begun)) for _ in range(4)]
    await asyncio.sleep(0)
    for task in waiting[1:3]:
        task.cancel()
    done = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 5)
    assert [type(one) for one in done].count(asyncio.CancelledError) == 2 and len(begun) == 2


async def test_keys_take_turns_only_while_several_send_requests() -> None:
    clock = Clock()
    taken = KeyTurns(clock)
    taken.wait("one")
    taken.wait("other")
    assert taken.wait("other") is not None
    clock.now += turns.SHARED_S
    assert taken.wait("other") is None

"""Refusals are rate limited."""

from __future__ import annotations

import pytest

from toolwire.access.gate import AT_ONCE, HELD_S, Pace


def test_the_first_refusals_of_a_second_are_answered_at_once_and_further_ones_wait() -> None:
    now = [100.0]
    pace = Pace(lambda: now[0])
    assert [pace.wait_s("a") for _ in range(AT_ONCE)] == [0.0] * AT_ONCE
    assert pace.wait_s("a") == HELD_S
    assert pace.wait_s("b") == 0.0, "another asker's refusals are its own"
    now[0] += 1.0
    assert pace.wait_s("a") == 0.0, "a new second"


async def test_only_refusals_of_keys_and_limits_are_paced(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(wait_s: float) -> None:
        slept.append(wait_s)

    monkeypatch.setattr("toolwire.access.gate.asyncio.sleep", sleep)
    pace = Pace(lambda: 100.0)
    for status in (200, 400, 404, 503):
        for _ in range(AT_ONCE * 10):
            await pace.hold(status, "a")
    assert not slept
    for status in (401, 429):
        for _ in range(AT_ONCE):
            await pace.hold(status, "a")
    assert slept == [HELD_S] * AT_ONCE

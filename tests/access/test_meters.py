"""The meters: exact arithmetic, limits over any period, and durations as OpenAI writes them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwire.access.meters import (
    MINUTE,
    MeterRefusal,
    Meters,
    Rates,
    charge,
    drain,
    duration,
    remaining,
    reset_us,
    take,
)


@given(st.integers(1, 1000), st.lists(st.tuples(st.integers(0, 90_000_000), st.integers(1, 5)), max_size=60))
def test_meters_agree_with_exact_fractions(rate: int, asked: list[tuple[int, int]]) -> None:
    meters, now, level = Meters(), 0, Fraction(0)
    for pause, amount in asked:
        now += pause
        level = max(Fraction(0), level - Fraction(pause * rate, MINUTE))
        amount = min(amount, rate)
        refused = take(meters, Rates(requests=rate), now, amount, 0)
        assert (refused is None) == (level + amount <= rate)
        if refused is None:
            level += amount
        else:
            assert refused.wait_us == -(-(level + amount - rate) * MINUTE // rate)
        assert Fraction(meters.requests, MINUTE) == level


@given(st.integers(1, 600), st.lists(st.integers(0, 2_000_000), min_size=1, max_size=200))
def test_in_any_period_at_most_the_rate_plus_one_minute_is_admitted(rate: int, pauses: list[int]) -> None:
    meters, now, taken = Meters(), 0, []
    for pause in pauses:
        now += pause
        if take(meters, Rates(requests=rate), now, 1, 0) is None:
            taken.append(now)
    for first in range(0, len(taken), 7):
        for last in range(first, len(taken), 5):
            assert last - first + 1 <= rate * (taken[last] - taken[first] + MINUTE) / MINUTE


def test_the_reported_wait_is_exact_to_the_microsecond() -> None:
    rates, meters = Rates(requests=7), Meters()
    for _ in range(7):
        assert take(meters, rates, 1000, 1, 0) is None
    refused = take(meters, rates, 1000, 1, 0)
    assert isinstance(refused, MeterRefusal) and refused.kind == "requests"
    assert take(meters, rates, 1000 + refused.wait_us - 1, 1, 0) is not None
    assert take(meters, rates, 1000 + refused.wait_us, 1, 0) is None


def test_requests_and_tokens_are_taken_together_or_not_at_all() -> None:
    rates, meters = Rates(requests=10, tokens=100), Meters()
    assert take(meters, rates, 0, 1, 90) is None
    refused = take(meters, rates, 0, 1, 20)
    assert refused == MeterRefusal("tokens", 6_000_000)
    assert (remaining(meters.requests, 10), remaining(meters.tokens, 100)) == (9, 10)


def test_more_than_a_minutes_allowance_is_taken_when_nothing_is_used() -> None:
    rates, meters = Rates(tokens=100), Meters()
    assert take(meters, rates, 0, 1, 5000) is None
    assert take(meters, rates, 0, 1, 1) is not None
    assert take(meters, rates, MINUTE, 1, 5000) is None


def test_charges_correct_the_estimate_in_both_directions() -> None:
    rates, meters = Rates(tokens=600), Meters()
    take(meters, rates, 0, 1, 100)
    charge(meters, rates, 0, 1100 * MINUTE)
    assert remaining(meters.tokens, 600) == 0 and reset_us(meters.tokens, 600) == 2 * MINUTE
    drain(meters, rates, MINUTE)
    assert take(meters, rates, MINUTE, 1, 1) is not None
    charge(meters, rates, 0, -5000 * MINUTE)
    assert meters.tokens == 0


def test_a_clock_that_goes_back_changes_nothing() -> None:
    rates, meters = Rates(requests=60), Meters()
    for _ in range(60):
        take(meters, rates, 10 * MINUTE, 1, 0)
    assert take(meters, rates, 0, 1, 0) == MeterRefusal("requests", 1_000_000)
    assert take(meters, rates, 1_000_000, 1, 0) is None


def test_a_nodes_share_is_at_least_one() -> None:
    assert Rates(10, 0).shared_by(3) == Rates(3, 0)
    assert Rates(1, 5).shared_by(8) == Rates(1, 1)


@pytest.mark.parametrize(
    ("microseconds", "written"),
    [
        (0, "0s"),
        (1, "1ms"),
        (12_000, "12ms"),
        (1_000_000, "1s"),
        (1_500_000, "1.5s"),
        (8_640_000, "8.64s"),
        (59_999_999, "1m0s"),
        (360_000_000, "6m0s"),
        (3_600_000_000, "1h0m0s"),
        (3_661_000_000, "1h1m1s"),
    ],
)
def test_durations_are_written_as_openai_writes_them(microseconds: int, written: str) -> None:
    assert duration(microseconds) == written

"""Meters count, in integers, how much of a limit per minute is used.

The functions are pure: the time is passed in, in microseconds. A meter is a leaky bucket: it holds what was
taken and has not drained yet, and it drains evenly at its rate. At most one minute's allowance can be taken
at once, so in any t minutes at most rate × (t + 1) can be taken. A meter counts in units of 1/60,000,000, so
it drains exactly `rate` units per microsecond, without rounding. Several meters are charged together or not
at all. If the clock goes back, nothing drains. `shared_limits.py` has the same rules inside Redis.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

MINUTE = 60_000_000
"""Microseconds in a minute; also the number of units in one request or token."""

Metered = Literal["requests", "tokens"]


@dataclass(frozen=True, slots=True)
class Rates:
    """The requests and tokens that are allowed per minute; 0: no limit."""

    requests: int = 0
    tokens: int = 0

    def shared_by(self, nodes: int) -> Rates:
        """Returns the part of these rates for one of `nodes` nodes; each rate is at least 1."""
        return Rates(*(max(1, rate // nodes) if rate else 0 for rate in (self.requests, self.tokens)))


@dataclass(slots=True)
class Meters:
    """How much is taken at the time `at`, in units of 1/60,000,000 request or token."""

    at: int = 0
    requests: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class MeterRefusal:
    """The limit that refuses a request, and after how many microseconds it would allow the request."""

    kind: Literal["requests", "tokens", "concurrent", "budget_requests", "budget_tokens"]
    wait_us: int


def drain(meters: Meters, rates: Rates, now: int) -> None:
    """Drains the meters: lowers them by what the rates allow from `meters.at` to `now`."""
    passed = max(0, now - meters.at)
    meters.requests = max(0, meters.requests - passed * rates.requests)
    meters.tokens = max(0, meters.tokens - passed * rates.tokens)
    meters.at = now


def take(meters: Meters, rates: Rates, now: int, requests: int, tokens: int) -> MeterRefusal | None:
    """Takes the amounts and returns None, or takes nothing and returns the limit that refuses.

    An amount above one minute's allowance counts as one minute's allowance.
    """
    drain(meters, rates, now)
    waits: list[tuple[int, Metered]] = [
        (wait(meters.requests, rates.requests, requests), "requests"),
        (wait(meters.tokens, rates.tokens, tokens), "tokens"),
    ]
    longest, kind = max(waits, key=lambda one: one[0])
    if longest:
        return MeterRefusal(kind, longest)
    charge(meters, rates, requests * MINUTE, min(tokens, rates.tokens) * MINUTE)
    return None


def charge(meters: Meters, rates: Rates, requests: int, tokens: int) -> None:
    """Adds units without checking the limits. Negative numbers give units back."""
    if rates.requests:
        meters.requests = max(0, meters.requests + requests)
    if rates.tokens:
        meters.tokens = max(0, meters.tokens + tokens)


def wait(taken: int, rate: int, amount: int) -> int:
    """Returns after how many microseconds `amount` can be taken; 0: it can be taken now."""
    return (
        -(-(taken + (min(amount, rate) - rate) * MINUTE) // rate)
        if rate and taken + min(amount, rate) * MINUTE > rate * MINUTE
        else 0
    )


def remaining(taken: int, rate: int) -> int:
    """Returns how many requests or tokens can be taken now."""
    return max(0, (rate * MINUTE - taken) // MINUTE)


def reset_us(taken: int, rate: int) -> int:
    """Returns after how many microseconds the full allowance is available again."""
    return -(-taken // rate) if rate else 0


def moment(seconds: float) -> str:
    """Returns a Unix time, rounded up, as Anthropic writes it: `2026-11-18T12:00:00Z`."""
    return datetime.fromtimestamp(math.ceil(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def duration(microseconds: int) -> str:
    """Returns a duration as OpenAI writes it: `0s`, `12ms`, `1s`, `1.5s`, `6m0s`, `1h0m3s`."""
    milliseconds = -(-microseconds // 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds else "0s"
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{rest / 1000:g}s"
    return f"{hours}h{minutes}m{seconds}" if hours else f"{minutes}m{seconds}" if minutes else seconds

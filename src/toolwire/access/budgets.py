"""Monthly budgets of requests and tokens.

A turn is admitted if its key's usage of the month is below the budget. The usage includes what running turns
have reserved. An admitted turn reserves one request and an estimate of its tokens until its usage is counted
(`usage.py`). So a budget of N requests serves N turns, even if more arrive at the same time. A turn that
fails gives its request back. A turn that exceeds the budget of tokens while it runs is not interrupted.

A single process counts by itself. With Redis, all nodes count together, in the script that also charges the
meters (`shared_limits.py`). While Redis is unreachable, the remaining budget is divided by the number of
nodes (rounded down), and each node admits turns up to its share.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from toolwire.access.meters import MeterRefusal
from toolwire.access.shared_limits import BUDGET_S, NO_BUDGET, Amounts, Month, MonthAsked
from toolwire.access.usage import UsageBook, month_of, next_month
from toolwire.core.errors import ToolwireError

if TYPE_CHECKING:
    from toolwire.access.keys import KeyLimits

RETRY_S = 1.0
KINDS: tuple[Literal["budget_requests"], Literal["budget_tokens"]] = ("budget_requests", "budget_tokens")
NOTHING: Amounts = (0, 0)
NO_MONTH = Month(0, NOTHING, NOTHING)


@dataclass(slots=True)
class Apart:
    """A key's monthly usage while Redis is unreachable.

    `before`: the amounts that were used or reserved when Redis became unreachable. `taken`: the amounts that
    this node has used or reserved since then.
    """

    month: int
    before: Amounts
    taken: Amounts = NOTHING


@dataclass(slots=True)
class KeyMonth:
    """A key's usage this month: what Redis last reported, and what this node has not reported yet."""

    seen: Month = NO_MONTH
    """The usage that Redis last reported."""
    seen_at: float = 0.0
    """The time at which Redis reported `seen`."""
    apart: Apart | None = None
    unpaid: Amounts = NOTHING
    """Usage that has not been reported to Redis yet."""


class Budgets:
    def __init__(
        self,
        usage: UsageBook | None,
        wall: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._usage = usage
        self._wall, self._ticks = wall, ticks
        self._months: dict[str, KeyMonth] = {}

    def has(self, limits: KeyLimits) -> bool:
        return self._usage is not None and bool(limits.budget_requests or limits.budget_tokens)

    async def open(self, key_id: str) -> None:
        """Loads the key's usage of this month, if needed. Raises an error if the store cannot be read."""
        assert self._usage is not None
        await self._usage.month(key_id)

    def _of(self, key_id: str) -> KeyMonth:
        return self._months.setdefault(key_id, KeyMonth())

    def _used(self, key_id: str) -> tuple[Amounts, Amounts]:
        """Returns the used and the reserved amounts of a key's month, as far as this node knows."""
        assert self._usage is not None
        spent = self._usage.known_month(key_id)
        return (spent.requests, spent.tokens), self._usage.held(key_id)

    # --- one process, or a node without its Redis ---

    def refusal(self, key_id: str, limits: KeyLimits, nodes: int) -> MeterRefusal | None:
        """Returns the budget that refuses a turn of this key, or None if the turn may run.

        `nodes`: 0 if Redis is not used. While Redis is unreachable: the number of nodes, each of which may
        use an equal share of the remaining budget.
        """
        spent, held = self._used(key_id)
        apart = self._apart(key_id, _sum(spent, held)) if nodes else None
        for place, budget in enumerate(_budget(limits)):
            left = budget - spent[place] - held[place]
            if apart is not None:
                left = min(left, (budget - apart.before[place]) // nodes - apart.taken[place])
            if budget and left <= 0:
                return MeterRefusal(KINDS[place], 0)
        return None

    def _apart(self, key_id: str, known: Amounts) -> Apart:
        own, month = self._of(key_id), month_of(self._wall())
        if own.apart is None:
            seen = _sum(own.seen.spent, own.seen.held) if self._fresh(own) else NOTHING
            own.apart = Apart(month, (max(known[0], seen[0]), max(known[1], seen[1])))
        elif own.apart.month != month:
            own.apart = Apart(month, NOTHING)
        return own.apart

    def admitted_apart(self, key_id: str, tokens: int) -> None:
        """Counts a turn that was admitted while Redis was unreachable."""
        apart = self._of(key_id).apart
        if apart is not None:
            apart.taken = _sum(apart.taken, (1, tokens))

    def ended_apart(self, key_id: str, reserved: int, used: Amounts) -> None:
        """Counts a turn that ended while Redis was unreachable.

        `reserved`: the tokens that were reserved for the turn. `used`: the requests and tokens that it really
        used.
        """
        own = self._of(key_id)
        own.unpaid = _sum(own.unpaid, used)
        if own.apart is not None:
            own.apart.taken = _sum(own.apart.taken, (used[0] - 1, used[1] - reserved))

    def lost(self) -> None:
        """Discards what was counted during the last outage of Redis. Called when a new outage begins."""
        for own in self._months.values():
            own.apart = None

    # --- requests to Redis and its replies ---

    def asked(self, key_id: str, limits: KeyLimits, used: Amounts = NOTHING) -> MonthAsked:
        """Returns the budget's part of a request to Redis (`MonthAsked`).

        `used`: the usage of a turn that has ended.
        """
        if not self.has(limits):
            return NO_BUDGET
        own = self._of(key_id)
        seen = own.seen if self._fresh(own) else NO_MONTH
        spent, _ = self._used(key_id)
        known = max(seen.spent[0], spent[0] - own.unpaid[0]), max(seen.spent[1], spent[1] - own.unpaid[1])
        return MonthAsked(month_of(self._wall()), _budget(limits), used, known, seen.spent, seen.epoch)

    def owed(self, key_id: str, limits: KeyLimits) -> MonthAsked:
        """Returns the request that reports all unreported usage to a Redis that is reachable again.

        From then on, the usage counts as reported. If Redis has lost its sum, it starts from the sum that it
        last reported. The sum in the store would count the usage of other nodes twice.
        """
        own = self._months.get(key_id)
        if own is None or not self.has(limits):
            return NO_BUDGET
        asked = self.asked(key_id, limits, own.unpaid)
        own.unpaid = NOTHING
        return replace(asked, known=asked.seen) if asked.epoch else asked

    def saw(self, key_id: str, month: Month) -> None:
        """Stores a key's monthly usage that Redis has reported."""
        own = self._of(key_id)
        if (month.month, month.epoch) == (own.seen.month, own.seen.epoch):  # replies may arrive out of order
            spent = max(month.spent[0], own.seen.spent[0]), max(month.spent[1], own.seen.spent[1])
            month = replace(month, spent=spent)
        own.seen, own.seen_at = month, self._ticks()

    def _fresh(self, own: KeyMonth) -> bool:
        return own.seen.month == month_of(self._wall()) and self._ticks() - own.seen_at < BUDGET_S

    # --- messages for the client ---

    def error(self, refusal: MeterRefusal, key_id: str, limits: KeyLimits, shared: bool) -> ToolwireError:
        """Returns the error for a client whose turn a budget refuses.

        `shared`: whether Redis refused the turn. The message then has the amounts that Redis reported.
        """
        place = KINDS.index(refusal.kind)
        own, (spent, held) = self._of(key_id), self._used(key_id)
        if shared:
            spent, held = own.seen.spent, own.seen.held
        name, budget, used, reserved = (
            ("requests", "tokens")[place],
            _budget(limits)[place],
            spent[place],
            held[place],
        )
        if used >= budget:
            now = self._wall()
            message = f"You exceeded your current quota: this API key's budget is {budget:,} {name} a month"
            message += f", and {used:,} are used."
            return ToolwireError(
                "quota",
                f"{message} The budget starts again with the next month (UTC).",
                retry_after_s=max(1.0, next_month(now) - now),
            )
        if used + reserved >= budget:
            message = f"Rate limit reached: of this API key's budget of {budget:,} {name} a month"
            message += f", {used:,} are used and {reserved:,} are reserved by requests that are running."
            message += " Please try again when one has ended."
            return ToolwireError(
                "requests_limit" if place == 0 else "tokens_limit", message, retry_after_s=RETRY_S
            )
        message = f"The nodes cannot share this API key's monthly budget of {name} now, "
        message += "and this node has used its share. Please try again."
        return ToolwireError("overloaded", message, retry_after_s=RETRY_S)


def _budget(limits: KeyLimits) -> Amounts:
    return limits.budget_requests, limits.budget_tokens


def _sum(left: Amounts, right: Amounts) -> Amounts:
    return left[0] + right[0], left[1] + right[1]

"""The limits of each key: requests and tokens per minute, concurrent turns, monthly budget.

Before a turn runs, one request and an estimate of its tokens are reserved from all limits, or the turn is
refused. When the turn ends, the tokens that it used replace the estimate. If the client disconnects before
the backend has reported usage, the turn is charged for the text that was sent. An invalid request also costs
one request. Keys without limits are not counted here.

With `store.redis`, all nodes share one set of meters; while Redis is unreachable, each node uses its share of
the limits. Without Redis, each worker process uses its share. `budgets.py` has the monthly budget.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from toolwire.access import meters
from toolwire.access.budgets import KINDS, NOTHING, Budgets
from toolwire.access.keys import KeyLimits
from toolwire.access.meters import MINUTE, MeterRefusal, Meters, Rates
from toolwire.access.shared_limits import (
    NO_BUDGET,
    Amounts,
    MeterRequest,
    RedisUnreachable,
    Seen,
    SharedLimits,
)
from toolwire.access.usage import Hold, UsageBook
from toolwire.core.errors import ToolwireError, status_of
from toolwire.core.events import CallArgs, Event, Failure, Refusal, Text, Thought, Usage
from toolwire.core.ids import random_id
from toolwire.core.turn import Call, ImagePart, Message, OtherPart, Reasoning, Result, TextPart, Turn

if TYPE_CHECKING:
    from toolwire.settings.types import Settings

HeaderList = list[tuple[bytes, bytes]]
CHARACTERS_A_TOKEN = 4
IMAGE_TOKENS = 800
ANSWER_TOKENS = 256
MOST_ANSWER_TOKENS = 1024
"""The most tokens that are reserved for an answer whose request sets a maximum of tokens.

Without such a maximum, `ANSWER_TOKENS` are reserved. If the answer uses more than was reserved, the rest is
charged when the turn ends.
"""
CONCURRENT_RETRY_S = 1.0
CLOSE_S = 2.0
NO_RATES = Rates()
NO_TOKENS = Usage(0, 0)
RATE_LIMIT_HEADERS = {
    kind: tuple(b"x-ratelimit-%b-%b" % (what, kind.encode()) for what in (b"limit", b"remaining", b"reset"))
    for kind in ("requests", "tokens")
}
"""The header names of each limit.

`gate.py` exposes these headers to browsers. Other modules recognize them by a part of the name:
`cluster/forward.py` and `surfaces/http/websocket.py` by its beginning, `surfaces/http/exchange.py` by
`-ratelimit-`.
"""
ANTHROPIC_HEADERS = {
    kind: tuple(
        b"anthropic-ratelimit-%b-%b" % (kind.encode(), what) for what in (b"limit", b"remaining", b"reset")
    )
    for kind in ("requests", "tokens")
}
"""The header names of each limit for clients of Anthropic's API, which expect the time of the reset."""
_SPOKEN = {Text: "text", Thought: "text", Refusal: "text", CallArgs: "delta"}


def microseconds() -> int:
    return time.monotonic_ns() // 1000


@dataclass(slots=True, eq=False)
class KeyAccount:
    """One key's meters on this node.

    With Redis, `meters` are those of all nodes, as Redis last reported them. Without Redis, they are this
    node's own.
    """

    meters: Meters
    limits: KeyLimits
    running: dict[str, Ticket] = field(default_factory=dict)
    alone: tuple[int, int] = (0, 0)
    """The requests and tokens that this node took while Redis was unreachable, in units of `meters.py`."""
    shared: Meters = field(default_factory=Meters)
    """The meters of all nodes at the time when Redis became unreachable."""


class RateLimits:
    def __init__(
        self,
        settings: Settings,
        usage: UsageBook | None = None,
        *,
        clock: Callable[[], int] = microseconds,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._usage = usage
        self._clock = clock
        self._budgets = Budgets(usage, wall)
        self._accounts: dict[str, KeyAccount] = {}
        self._errands: set[asyncio.Task[None]] = set()
        url, self._workers = settings.store.redis, settings.server.workers
        self.shared = (
            SharedLimits(
                url, random_id("node_"), self._running, self._redis_lost, self._owed, nodes=self._workers
            )
            if url
            else None
        )

    async def start(self) -> None:
        """Registers this node with the nodes that share the limits."""
        if self.shared is not None:
            await self.shared.beat()
            self.shared.start()

    async def close(self) -> None:
        if self._errands:
            await asyncio.wait(self._errands, timeout=CLOSE_S)
        if self.shared is not None:
            await self.shared.close()

    # --- before a turn ---

    def check(self, key_id: str, limits: KeyLimits) -> None:
        """Raises an error if the key may not run any turn now. Called before the request's body is read.

        Checks the requests per minute and the concurrent turns, but not the tokens and the budget.
        """
        account, rates = self._account(key_id, limits), self._rates(limits)
        refusal = None
        if limits.requests_per_minute:
            meters.drain(account.meters, rates, self._clock())
            if wait := meters.wait(account.meters.requests, rates.requests, 1):
                refusal = MeterRefusal("requests", wait)
        if refusal is None and limits.concurrent and len(account.running) >= self._at_once(limits):
            refusal = MeterRefusal("concurrent", 0)
        if refusal is not None:
            raise self._refused(refusal, Ticket(self, key_id, limits, NO_TOKENS), account)

    async def admit(self, key_id: str, limits: KeyLimits, turn: Turn) -> Ticket:
        """Reserves what the turn needs. Raises an error if the key's limits do not allow the turn."""
        budgeted = self._budgets.has(limits)
        if budgeted:
            await self._budgets.open(key_id)
        asked = estimate(turn) if limits.tokens_per_minute or limits.budget_tokens else Usage(0, 0)
        account = self._account(key_id, limits)
        ticket = Ticket(self, key_id, limits, asked)
        if limits.rates != NO_RATES or limits.concurrent or budgeted:
            await self._take(account, ticket)
        if ticket.id:
            account.running[ticket.id] = ticket
        if budgeted and self._usage is not None:
            ticket.hold = self._usage.hold(key_id, 1, ticket.held_tokens)
        return ticket

    async def _take(self, account: KeyAccount, ticket: Ticket) -> None:
        shared = self.shared
        if shared is not None and shared.up:
            shared.start()
            taking = asyncio.ensure_future(
                shared.take(self._asked(account, ticket, MINUTE, ticket.reserved * MINUTE))
            )
            try:
                refusal, seen = await asyncio.shield(taking)  # the Redis client may ignore a cancellation
            except RedisUnreachable:
                pass
            except asyncio.CancelledError:
                self._errand(self._give_back(account, ticket, taking))
                raise
            else:
                self._seen(account, ticket.key_id, seen)
                if refusal is not None:
                    raise self._refused(refusal, ticket, account, shared=True)
                return
        if (refusal := self._take_here(account, ticket)) is not None:
            raise self._refused(refusal, ticket, account)

    def _take_here(self, account: KeyAccount, ticket: Ticket) -> MeterRefusal | None:
        """Counts a turn against the limits of this process. Returns the limit that refuses the turn, or None.

        Without Redis, each worker process gets an equal part of the limits. While Redis is unreachable, each
        node gets an equal part.
        """
        shared, limits, rates = self.shared, ticket.limits, self._rates(ticket.limits)
        if self._budgets.has(limits):
            over = self._budgets.refusal(ticket.key_id, limits, 0 if shared is None else shared.nodes)
            if over is not None:
                return over
        refusal = meters.take(account.meters, rates, self._clock(), 1, ticket.reserved)
        if refusal is None and limits.concurrent and len(account.running) >= self._at_once(limits):
            meters.charge(account.meters, rates, -MINUTE, -ticket.reserved * MINUTE)
            refusal = MeterRefusal("concurrent", 0)
        if refusal is None and shared is not None:
            account.alone = (account.alone[0] + MINUTE, account.alone[1] + ticket.reserved * MINUTE)
            self._budgets.admitted_apart(ticket.key_id, ticket.held_tokens)
        return refusal

    async def _give_back(
        self, account: KeyAccount, ticket: Ticket, taking: asyncio.Future[tuple[MeterRefusal | None, Seen]]
    ) -> None:
        """Returns a reservation to Redis if the client disconnected while the reservation was being made."""
        await asyncio.wait({taking})
        if taking.exception() is None and taking.result()[0] is None:
            await self._charge_shared(
                account, self._asked(account, ticket, -MINUTE, -ticket.reserved * MINUTE)
            )

    def fault(self, key_id: str, limits: KeyLimits, failure: Failure) -> None:
        """Counts an invalid request towards the requests per minute of its key."""
        if limits.requests_per_minute and status_of(failure) != 429:
            self._charge(
                self._account(key_id, limits),
                Ticket(self, key_id, replace(limits, budget_requests=0, budget_tokens=0), NO_TOKENS),
                MINUTE,
                0,
            )

    # --- after a turn ---

    def settle(self, ticket: Ticket, tokens: int, answered: bool) -> None:
        account = self._account(ticket.key_id, ticket.limits)
        account.running.pop(ticket.id, None)
        if ticket.limits.tokens_per_minute or ticket.id:
            self._charge(account, ticket, 0, (tokens - ticket.reserved) * MINUTE, (int(answered), tokens))

    def _charge(
        self, account: KeyAccount, ticket: Ticket, requests: int, tokens: int, used: Amounts = NOTHING
    ) -> None:
        asked = self._asked(account, ticket, requests, tokens, used)
        meters.charge(account.meters, self._rates(ticket.limits), requests, tokens)
        if self.shared is not None:
            if self.shared.up:
                self._errand(self._charge_shared(account, asked))
            else:
                account.alone = (account.alone[0] + requests, account.alone[1] + tokens)
                if ticket.hold is not None:
                    self._budgets.ended_apart(ticket.key_id, ticket.held_tokens, used)

    async def _charge_shared(self, account: KeyAccount, asked: MeterRequest) -> None:
        assert self.shared is not None
        seen = await self.shared.charge(asked)
        if seen is not None:
            self._seen(account, asked.key_id, seen)

    def _errand(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    # --- state ---

    def _account(self, key_id: str, limits: KeyLimits) -> KeyAccount:
        account = self._accounts.get(key_id)
        if account is None:
            account = self._accounts[key_id] = KeyAccount(Meters(self._clock()), limits)
        account.limits = limits
        return account

    def _known(self, account: KeyAccount) -> tuple[int, int]:
        """Returns the requests and tokens taken now, in units of `meters.py`, as far as this node knows."""
        meters.drain(account.meters, self._rates(account.limits), self._clock())
        return account.meters.requests, account.meters.tokens

    def _asked(
        self, account: KeyAccount, ticket: Ticket, requests: int, tokens: int, used: Amounts = NOTHING
    ) -> MeterRequest:
        limits, month = ticket.limits, NO_BUDGET
        if ticket.id and self.shared is not None:
            month = self._budgets.asked(ticket.key_id, limits, used)
        return MeterRequest(
            ticket.key_id,
            limits.rates,
            limits.concurrent,
            ticket.id,
            requests,
            tokens,
            self._known(account),
            month,
        )

    def _seen(self, account: KeyAccount, key_id: str, seen: Seen) -> None:
        seen.meters.at = self._clock()
        account.meters = seen.meters
        if seen.month.month:
            self._budgets.saw(key_id, seen.month)

    @property
    def _parts(self) -> int:
        """Returns the number by which the limits are divided now.

        This is 1 if Redis counts for all nodes. Otherwise each node or worker counts separately, and this is
        the number of nodes or workers.
        """
        shared = self.shared
        return self._workers if shared is None else 1 if shared.up else shared.nodes

    def _rates(self, limits: KeyLimits) -> Rates:
        parts = self._parts
        return limits.rates if parts == 1 else limits.rates.shared_by(parts)

    def _at_once(self, limits: KeyLimits) -> int:
        return max(1, limits.concurrent // self._parts)

    def _running(self) -> dict[str, list[str]]:
        """Returns, for each key, the ids of the running turns whose leases in Redis must be renewed."""
        return {
            key_id: list(account.running)
            for key_id, account in self._accounts.items()
            if account.limits.concurrent or account.running
        }

    def _redis_lost(self) -> None:
        """Continues with this node's share of the meters when Redis becomes unreachable."""
        nodes = self.shared.nodes if self.shared is not None else 1
        for account in self._accounts.values():
            now = account.meters
            meters.drain(now, account.limits.rates, self._clock())
            account.shared = Meters(now.at, now.requests, now.tokens)
            now.requests, now.tokens, account.alone = now.requests // nodes, now.tokens // nodes, (0, 0)
        self._budgets.lost()

    def _owed(self) -> Iterable[MeterRequest]:
        """Returns the requests to send to Redis when it is reachable again.

        They report what was taken before Redis became unreachable, and what this node has taken since.
        """
        owed: list[MeterRequest] = []
        for key_id, account in self._accounts.items():
            rates, before, alone = account.limits.rates, account.shared, account.alone
            requests, tokens = self._known(account)
            meters.drain(before, rates, self._clock())
            units = min(alone[0], requests), min(alone[1], tokens)
            account.alone = (0, 0)
            month = self._budgets.owed(key_id, account.limits)
            if any(units) or before.requests or before.tokens or month.month:
                known = (before.requests, before.tokens)
                owed.append(
                    MeterRequest(
                        key_id, rates, account.limits.concurrent, "", *units, known=known, month=month
                    )
                )
        return owed

    # --- headers ---

    def headers(self, key_id: str, limits: KeyLimits, anthropic: bool = False) -> HeaderList:
        """Returns the headers `x-ratelimit-…` for a response, if the key has limits per minute.

        `anthropic`: use Anthropic's names, and give the reset as a time instead of a duration.
        """
        account, rates = self._account(key_id, limits), self._rates(limits)
        meters.drain(account.meters, rates, self._clock())
        out: HeaderList = []
        for kind, rate, taken in (
            ("requests", rates.requests, account.meters.requests),
            ("tokens", rates.tokens, account.meters.tokens),
        ):
            if rate:
                left_us = meters.reset_us(taken, rate)
                reset = meters.moment(time.time() + left_us / 1e6) if anthropic else meters.duration(left_us)
                values = (b"%d" % rate, b"%d" % meters.remaining(taken, rate), reset.encode())
                names = (ANTHROPIC_HEADERS if anthropic else RATE_LIMIT_HEADERS)[kind]
                out += zip(names, values, strict=True)
        return out

    def _refused(
        self, refusal: MeterRefusal, ticket: Ticket, account: KeyAccount, shared: bool = False
    ) -> ToolwireError:
        limits, tokens = ticket.limits, ticket.reserved
        if refusal.kind in KINDS:
            return self._budgets.error(refusal, ticket.key_id, limits, shared)
        if refusal.kind == "concurrent":
            message = f"Rate limit reached: this API key may run {self._at_once(limits)} requests at once."
            message += " Please try again when one has ended."
            return ToolwireError("requests_limit", message, retry_after_s=CONCURRENT_RETRY_S)
        rates, wait = self._rates(limits), meters.duration(refusal.wait_us)
        if refusal.kind == "requests":
            used = rates.requests - meters.remaining(account.meters.requests, rates.requests)
            message = "Rate limit reached for this API key on requests per min (RPM): "
            message += f"Limit {rates.requests}, Used {used}, Requested 1."
        else:
            used = rates.tokens - meters.remaining(account.meters.tokens, rates.tokens)
            message = "Rate limit reached for this API key on tokens per min (TPM): "
            message += f"Limit {rates.tokens}, Used {used}, Requested {tokens}."
        kind = "requests_limit" if refusal.kind == "requests" else "tokens_limit"
        return ToolwireError(
            kind, f"{message} Please try again in {wait}.", retry_after_s=refusal.wait_us / 1e6
        )


class Ticket:
    """An admitted turn. Call `settle` when the turn ends, for whatever reason."""

    __slots__ = (
        "_characters",
        "_limits",
        "_open",
        "asked_for",
        "held_tokens",
        "hold",
        "id",
        "key_id",
        "limits",
        "reserved",
    )

    def __init__(self, owner: RateLimits, key_id: str, limits: KeyLimits, asked_for: Usage) -> None:
        self.held_tokens = asked_for.total_tokens if limits.budget_tokens else 0
        self.id = (
            f"{random_id('')}:{self.held_tokens}"
            if limits.concurrent or limits.budget_requests or limits.budget_tokens
            else ""
        )
        """The turn's id in Redis; "" if the turn only counts against limits per minute."""
        self.hold: Hold | None = None
        """The reserved part of the key's budget, until the turn's usage is counted."""
        self.key_id = key_id
        self.limits = limits
        self.asked_for = asked_for
        self.reserved = min(asked_for.total_tokens, limits.tokens_per_minute)
        self._limits = owner
        self._characters = 0
        self._open = True

    def saw(self, batch: Iterable[Event]) -> None:
        """Counts characters that were sent, so that a turn whose client disconnects can be charged."""
        for event in batch:
            said = _SPOKEN.get(type(event))
            if said is not None:
                self._characters += len(getattr(event, said))

    def settle(self, usage: Usage, ran: bool, answered: bool = True) -> Usage:
        """Charges the turn and returns the usage that was charged.

        If the backend reported no `usage`, charges an estimate if the turn `ran` or text was sent. If the
        turn was not `answered`, returns its request to the key's budget.
        """
        if self._open:
            self._open = False
            if not usage.total_tokens and (ran or self._characters):
                usage = Usage(self.asked_for.input_tokens, math.ceil(self._characters / CHARACTERS_A_TOKEN))
            self._limits.settle(self, usage.total_tokens, answered)
        return usage


def estimate(turn: Turn) -> Usage:
    """Estimates a turn's usage: four characters per token, and a part of the allowed answer."""
    characters, images = len(turn.instructions or ""), 0
    for item in turn.items:
        if isinstance(item, Call):
            characters += len(item.name) + len(item.arguments)
        elif isinstance(item, Reasoning):
            characters += sum(map(len, (*item.summary, *item.content)))
        else:
            assert isinstance(item, Message | Result)
            for part in item.parts:
                if isinstance(part, TextPart):
                    characters += len(part.text)
                else:
                    assert isinstance(part, ImagePart | OtherPart)
                    images += 1
    for tool in turn.tools:
        characters += len(tool.name) + len(tool.description) + len(str(tool.parameters))
    asked = turn.sampling.max_tokens
    answer = ANSWER_TOKENS if asked is None else min(max(asked, 1), MOST_ANSWER_TOKENS)
    return Usage(math.ceil(characters / CHARACTERS_A_TOKEN) + images * IMAGE_TOKENS, answer * max(1, turn.n))

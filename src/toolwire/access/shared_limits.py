"""The meters of all nodes, in Redis.

The rules of `meters.py` run there as one script, so two nodes cannot both take the last request.

    toolwire:meters:{KEY}     units that are taken, and the time
    toolwire:running:{KEY}    the running turns, each with the end of its lease
    toolwire:budget:{KEY}     usage of ended turns in the current month, and the month
    toolwire:nodes            the nodes that share the limits, each with the end of its lease

All nodes use the clock of Redis; if it goes back, counting continues from the earlier time. Leases are
renewed while a turn runs, so the leases of a dead node expire.

When Redis becomes unreachable, the first request to it fails after at most `WITHIN_S` seconds. After that,
only the heartbeat tries to reach Redis. When Redis is reachable again, the node first reports what Redis has
missed. Each request to Redis also contains the meters that the node last saw. If Redis has lost the meters of
a key, they start from these numbers.

The id of a running turn of a key with a budget is `ID:TOKENS`. So the reserved part of the budget is always
the sum over the running turns, and the reservations of a dead node end with its leases. The usage of ended
turns starts from the store's sum. Redis deletes this usage `BUDGET_S` seconds after the last turn; by then,
the store has all of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from toolwire.access.meters import MeterRefusal, Meters, Rates
from toolwire.cluster.nodes import WITHIN_S, connect

if TYPE_CHECKING:
    from redis.asyncio import Redis

METERS, RUNNING, BUDGET, NODES = "toolwire:meters:", "toolwire:running:", "toolwire:budget:", "toolwire:nodes"
LEASE_S = 20.0
BUDGET_S = 600.0
BEAT_S = 4.0
RETRY_S = 0.5
MOST_OWED = 10_000

log = logging.getLogger("toolwire.limits")
T = TypeVar("T")

CLOCK = """
local whole = function(number) return string.format('%.0f', number) end
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local end_leases = function(leases, lease)
    local latest = whole(now + lease)
    redis.call('ZREMRANGEBYSCORE', leases, '-inf', whole(now))
    for _, one in ipairs(redis.call('ZRANGEBYSCORE', leases, '(' .. latest, '+inf')) do
        redis.call('ZADD', leases, latest, one)
    end
end
"""
"""Lua code with which both scripts begin: it reads the clock of Redis.

The clock may have gone back. A lease that ends later than a new lease would is therefore shortened.
"""

# KEYS: meters, running, budget. ARGV:
#
#   1, 2     the rate of requests, and the units of requests to take
#   3, 4     the rate of tokens, and the units of tokens to take
#   5        the limit of concurrent turns
#   6, 7     the turn's id, and its lease in microseconds
#   8        the operation: "take" checks the limits first; "charge" does not, and ends the turn; "report" is
#            a charge by a node that was disconnected from Redis
#   9, 10    the units of requests and tokens that the node knows of: the start if Redis has no meters of the
#            key, and for "report" also a minimum
#   11       the month; 0 if the key has no budget
#   12, 13   the budgets of requests and tokens
#   14, 15   the requests and tokens that the turn used
#   16, 17   the sums of requests and tokens to start from if Redis has none
#   18, 19   the sums of requests and tokens that Redis last reported to the node
#   20       the epoch of these sums. If Redis has lost its sums, it starts new ones with a new epoch, and
#            raises them to what the node has seen
#   21       how long unused sums are kept, in milliseconds
TAKE = """
local state = redis.call('HMGET', KEYS[1], 'at', 'requests', 'tokens')
local at = tonumber(state[1]) or now
local passed = math.max(0, now - at)
local rates, units = {tonumber(ARGV[1]), tonumber(ARGV[3])}, {tonumber(ARGV[2]), tonumber(ARGV[4])}
local taken, refused, wait = {}, '', 0
for n = 1, 2 do
    local known, here = tonumber(ARGV[8 + n]), tonumber(state[n + 1])
    taken[n] = here and math.max(ARGV[8] == 'report' and known or 0, here - passed * rates[n]) or known
    if ARGV[8] == 'take' and rates[n] > 0 then
        units[n] = math.min(units[n], rates[n] * 60000000)
        local over = math.ceil((taken[n] + units[n] - rates[n] * 60000000) / rates[n])
        if over > wait then
            wait = over
            refused = n == 1 and 'requests' or 'tokens'
        end
    end
end
local most, running, month = tonumber(ARGV[5]), 0, tonumber(ARGV[11])
local leased = most > 0 or month > 0
if leased then
    end_leases(KEYS[2], ARGV[7])
    running = redis.call('ZCARD', KEYS[2])
    if ARGV[8] ~= 'take' then
        running = running - redis.call('ZREM', KEYS[2], ARGV[6])
    elseif most > 0 and running >= most and refused == '' then
        refused = 'concurrent'
    end
end
local spent, first, held, epoch = {0, 0}, {0, 0}, {running, 0}, '0'
if month > 0 then
    local found = redis.call('HMGET', KEYS[3],
        'month', 'requests', 'tokens', 'first_requests', 'first_tokens', 'epoch')
    local there = tonumber(found[1]) or 0
    for n = 1, 2 do
        if there < month then
            spent[n], first[n] = tonumber(ARGV[15 + n]), tonumber(ARGV[15 + n])
        else
            spent[n], first[n] = tonumber(found[n + 1]), tonumber(found[n + 3])
            if there == month and found[6] ~= ARGV[20] and first[n] < tonumber(ARGV[17 + n]) then
                spent[n], first[n] = spent[n] + tonumber(ARGV[17 + n]) - first[n], tonumber(ARGV[17 + n])
            end
        end
        if ARGV[8] ~= 'take' then spent[n] = spent[n] + tonumber(ARGV[13 + n]) end
    end
    epoch = there < month and whole(now) or found[6]
    month = math.max(month, there)
    if tonumber(ARGV[13]) > 0 then
        for _, turn in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
            held[2] = held[2] + (tonumber(string.match(turn, ':(%d+)$')) or 0)
        end
    end
    for n = 1, 2 do
        local budget = tonumber(ARGV[11 + n])
        if ARGV[8] == 'take' and budget > 0 and spent[n] + held[n] >= budget then
            refused = n == 1 and 'budget_requests' or 'budget_tokens'
            wait = 0
        end
    end
end
if refused == '' then
    local last = 1
    for n = 1, 2 do
        if rates[n] > 0 then
            taken[n] = math.max(0, taken[n] + units[n])
            last = math.max(last, taken[n] / rates[n])
        end
    end
    redis.call('HSET', KEYS[1], 'at', whole(now), 'requests', whole(taken[1]), 'tokens', whole(taken[2]))
    redis.call('PEXPIRE', KEYS[1], whole(math.ceil(last / 1000) + 60000))
    if month > 0 then
        redis.call('HSET', KEYS[3], 'month', whole(month),
            'requests', whole(spent[1]), 'tokens', whole(spent[2]),
            'first_requests', whole(first[1]), 'first_tokens', whole(first[2]), 'epoch', epoch)
        redis.call('PEXPIRE', KEYS[3], ARGV[21])
    end
    if leased and ARGV[8] == 'take' then
        redis.call('ZADD', KEYS[2], whole(now + ARGV[7]), ARGV[6])
        redis.call('PEXPIRE', KEYS[2], whole(ARGV[7] / 1000))
        running = running + 1
    end
elseif now < at then
    redis.call('HSET', KEYS[1], 'at', whole(now))
end
local of_month = {whole(month), whole(spent[1]), whole(spent[2]), whole(held[1]), whole(held[2]), epoch}
return {refused, whole(wait), whole(taken[1]), whole(taken[2]), unpack(of_month)}
"""

# KEYS: a set of leases. ARGV: the lease in microseconds, then the members whose leases are renewed. Returns
# the number of members.
RENEW = """
end_leases(KEYS[1], ARGV[1])
for n = 2, #ARGV do redis.call('ZADD', KEYS[1], whole(now + ARGV[1]), ARGV[n]) end
redis.call('PEXPIRE', KEYS[1], whole(ARGV[1] / 1000))
return redis.call('ZCARD', KEYS[1])
"""


Amounts = tuple[int, int]
"""An amount of requests and an amount of tokens."""


@dataclass(frozen=True, slots=True)
class Month:
    """A key's usage of a month, as Redis knows it.

    `spent`: the usage of ended turns. `held`: what running turns have reserved.
    """

    month: int
    spent: Amounts
    held: Amounts
    epoch: int = 0
    """When Redis began to count this month. A Redis that has lost its data begins a new epoch."""


@dataclass(frozen=True, slots=True)
class MonthAsked:
    """The part of a request to Redis that concerns the key's monthly budget.

    `used`: the usage of a turn that has ended. `known`: the sum that Redis starts from if Redis has no sum.
    `seen`: the sum that Redis last reported to this node. `epoch`: when Redis began to count this sum.
    """

    month: int
    budget: Amounts
    used: Amounts = (0, 0)
    known: Amounts = (0, 0)
    seen: Amounts = (0, 0)
    epoch: int = 0


NO_BUDGET = MonthAsked(0, (0, 0))


@dataclass(frozen=True, slots=True)
class MeterRequest:
    """A request to Redis: the units that a turn takes.

    `known`: the units that are already taken, as far as this node knows.
    """

    key_id: str
    rates: Rates
    concurrent: int
    turn: str
    requests: int
    tokens: int
    known: tuple[int, int] = (0, 0)
    month: MonthAsked = NO_BUDGET


@dataclass(frozen=True, slots=True)
class Seen:
    """The reply of Redis: the meters and the usage of the month, as they are after the request."""

    meters: Meters
    month: Month


class RedisUnreachable(Exception):
    pass


class SharedLimits:
    """Shares the limits with the other nodes through Redis.

    `running` returns this node's running turns by key. `lost` is called when Redis becomes unreachable.
    `owed` returns the requests that Redis has missed since then.
    """

    def __init__(
        self,
        url: str,
        node: str,
        running: Callable[[], Mapping[str, Iterable[str]]],
        lost: Callable[[], None],
        owed: Callable[[], Iterable[MeterRequest]],
        nodes: int = 1,
    ) -> None:
        self.up = True
        self.nodes = nodes
        """The number of nodes that share the limits, as last known."""
        self._node = node
        self._running = running
        self._lost = lost
        self._owed_since = owed
        self._redis = connect(url)
        self._take = self._redis.register_script(CLOCK + TAKE)
        self._renew = self._redis.register_script(CLOCK + RENEW)
        self._owed: deque[MeterRequest] = deque(maxlen=MOST_OWED)
        self._beating: asyncio.Task[None] | None = None
        self._stumbled = asyncio.Event()
        self._closed = False

    async def take(self, asked: MeterRequest) -> tuple[MeterRefusal | None, Seen]:
        """Charges the request if all limits allow it.

        Returns the limit that refuses (or None) and the new meters. Raises `RedisUnreachable`.
        """
        refused, wait, *seen = await self._ask(lambda _: self._run(asked, "take"))
        return MeterRefusal(refused.decode(), max(1, int(wait))) if refused else None, _seen(seen)

    async def charge(self, asked: MeterRequest) -> Seen | None:
        """Charges a turn that has ended, without checking the limits. Returns the new meters.

        If Redis is unreachable, this returns None and charges later.
        """
        try:
            _, _, *seen = await self._ask(lambda _: self._run(asked, "charge"))
            return _seen(seen)
        except RedisUnreachable:
            self._owed.append(asked)
            return None

    def _run(self, asked: MeterRequest, way: str) -> Awaitable[Any]:
        rates, lease, month = asked.rates, int(LEASE_S * 1e6), asked.month
        keys = [f"{kind}{{{asked.key_id}}}" for kind in (METERS, RUNNING, BUDGET)]
        amounts = [rates.requests, asked.requests, rates.tokens, asked.tokens, asked.concurrent]
        budget = [
            month.month,
            *month.budget,
            *month.used,
            *month.known,
            *month.seen,
            month.epoch,
            int(BUDGET_S * 1000),
        ]
        return self._take(keys, [*amounts, asked.turn, lease, way, *asked.known, *budget])

    # --- heartbeat ---

    def start(self) -> None:
        if self._beating is None:
            self._beating = asyncio.ensure_future(self._live())

    async def beat(self) -> None:
        """Renews this node's leases, counts the nodes, and finds out whether Redis is reachable."""
        lease = int(LEASE_S * 1e6)

        async def renew(redis: Redis) -> int:
            renewed = {key_id: set(turns) for key_id, turns in self._running().items()}
            for key_id, turns in renewed.items():
                if turns:
                    await self._renew([f"{RUNNING}{{{key_id}}}"], [lease, *turns])
            now = self._running()
            for key_id, turns in renewed.items():  # turns that ended while their leases were renewed
                if gone := turns.difference(now.get(key_id, ())):
                    await redis.zrem(f"{RUNNING}{{{key_id}}}", *gone)
            count: int = await self._renew([NODES], [lease, self._node])
            return count

        with suppress(RedisUnreachable):
            nodes = max(1, await self._ask(renew, probing=True, within_s=2 * WITHIN_S))
            if self.up:
                self.nodes = nodes
            else:
                await self._return()
            await self._pay(self._owed, "charge")

    async def _return(self) -> None:
        """Reports to Redis what it missed while it was unreachable, and then shares the limits again."""
        untold = deque(self._owed_since())
        try:
            await self._pay(untold, "report")
        finally:
            self._owed.extend(replace(one, known=(0, 0)) for one in untold)
        self.up = True
        self._stumbled.clear()
        self._owed.extend(
            one for one in self._owed_since() if one.requests or one.tokens or any(one.month.used)
        )
        log.warning("redis is back: limits are shared again")

    async def _pay(self, owed: deque[MeterRequest], way: str) -> None:
        while owed:
            await self._ask(lambda _: self._run(owed[0], way), probing=True)
            owed.popleft()

    async def _live(self) -> None:
        while not self._closed:  # the client may ignore a cancellation
            try:
                await self.beat()
            except Exception:
                log.exception("this node could not renew its leases in Redis")
            if not self.up:
                await asyncio.sleep(RETRY_S)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(0 if self._closed else BEAT_S):
                    await self._stumbled.wait()

    async def close(self) -> None:
        self._closed = True
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        with suppress(RedisUnreachable):
            await self._ask(lambda redis: redis.zrem(NODES, self._node))
        await self._redis.aclose()

    async def _ask(
        self, work: Callable[[Redis], Awaitable[T]], probing: bool = False, within_s: float | None = None
    ) -> T:
        from redis.exceptions import RedisError

        if not self.up and not probing:
            raise RedisUnreachable
        try:
            async with asyncio.timeout(WITHIN_S if within_s is None else within_s):
                found = await work(self._redis)
        except (RedisError, OSError, TimeoutError) as error:
            if self.up:
                self.up = False
                self._stumbled.set()
                self._lost()
                share = "meanwhile this node allows its own share of each limit, 1/%d"
                log.warning(
                    f"redis cannot be reached (%s): {share}", str(error) or type(error).__name__, self.nodes
                )
            raise RedisUnreachable from error
        return found


def _seen(numbers: Iterable[bytes]) -> Seen:
    requests, tokens, month, *sums = map(int, numbers)
    return Seen(Meters(0, requests, tokens), Month(month, (sums[0], sums[1]), (sums[2], sums[3]), sums[4]))

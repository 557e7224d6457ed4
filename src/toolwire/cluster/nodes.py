"""Which node owns a parked run: the board in Redis that all nodes read and write.

    toolwire:node:ID      where a node is reached; it expires unless the node renews it
    toolwire:park:CALL    which node holds the run that waits for this call's result, and whose key asked for it; it expires with the park

Rules:
- A node that can not reach Redis serves on: its own parks are known to itself, and what others hold is replayed cold. Only the first one who asks
  waits for the failure; from then on the heartbeat alone tries, and puts everything up again when Redis is back or has forgotten it.
- Nothing that Redis says is believed unless a node has signed it: whoever can write there can make runs be replayed, and nothing more.
- A node that drains takes itself and its parks off the board before anything else.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from toolwire.core.ids import random_id
from toolwire.settings.types import ConfigError

if TYPE_CHECKING:
    from redis.asyncio import Redis

NODE, PARK, SECRET = "toolwire:node:", "toolwire:park:", "toolwire:secret"
NODE_TTL_S = 15.0
BEAT_S = 5.0
RETRY_S = 1.0
WITHIN_S = 1.0
"""How long Redis may take for one answer."""
MOST_CONNECTIONS = 16
"""Connections of one client to Redis. A command takes a fraction of a millisecond."""
SHUNNED_S = 5.0
MOST_IDS = 256
"""So many call ids of one request are looked up: the last ones."""

log = logging.getLogger("toolwire.nodes")
T = TypeVar("T")
Waiting = tuple[Collection[str], str, float]
"""A park: the ids of its calls, the id of its key, and how many seconds it has left."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Another node. `address` is a base URL: `http://10.0.0.5:8788`."""

    id: str
    address: str


class Nodes:
    """This node's place among the others. `secret` is what all nodes share; "" lets them keep one of their own in Redis, for nodes on one machine."""

    def __init__(
        self, url: str, address: str, secret: str = "", waiting: Callable[[], Iterable[Waiting]] = tuple
    ) -> None:
        self.id = random_id("node_")
        self.address = address
        self.up = True
        self._waiting = waiting
        self._redis = connect(url)
        self._keeps_secret = not secret
        self._candidate = secrets.token_hex(32)
        self._key = _derived(secret) if secret else b""
        self._known = False  # whether Redis has this node on its board, as far as is known
        self._left = False
        self._beating: asyncio.Task[None] | None = None
        self._errands: set[asyncio.Task[Any]] = set()
        self._shunned: dict[str, float] = {}
        self._stumbled = asyncio.Event()

    # --- being there ---------------------------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Joins the others. A Redis that is not there yet is tried again and again."""
        await self._beat()
        self._beating = asyncio.ensure_future(self._live())

    async def leave(self) -> None:
        """Takes this node and its parks off the board: from now on nobody passes anything on to it."""
        if self._left:
            return
        self._left = True
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        keys = [NODE + self.id, *(PARK + call for calls, _, _ in self._waiting() for call in calls)]
        await self._ask(lambda redis: redis.unlink(*keys), None)

    async def close(self) -> None:
        await self.leave()
        for errand in self._errands:
            errand.cancel()
        await asyncio.gather(*self._errands, return_exceptions=True)
        await self._redis.aclose()

    async def _live(self) -> None:
        while not self._left:
            with suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    await self._stumbled.wait()
                await asyncio.sleep(RETRY_S)
            try:
                await self._beat()
            except Exception:
                log.exception("this node could not renew its place among the others")

    async def _beat(self) -> None:
        """Renews this node's place, and finds out whether Redis has forgotten it."""
        if self._keeps_secret:
            await self._ask(self._agree, None, probing=True)
            if not self._key:
                return
        row = msgspec.json.encode([self.address, self.sign("node", self.id, self.address)])
        lasting = int(NODE_TTL_S * 1000)
        before = await self._ask(
            lambda redis: redis.set(NODE + self.id, row, px=lasting, get=True), ..., probing=True
        )
        if before is ...:
            self._known = False
        elif before is None or not self._known:
            self._known = True
            for calls, key_id, left_s in list(self._waiting()):
                await self.announce(calls, key_id, left_s)

    async def _agree(self, redis: Redis) -> None:
        """The secret that the first node put there. Should Redis forget it, the first to come back puts the same one there again."""
        await redis.set(SECRET, self._candidate, nx=True)
        agreed = await redis.get(SECRET)
        if agreed:
            self._candidate = agreed if isinstance(agreed, str) else agreed.decode()
            self._key = _derived(self._candidate)

    # --- parks ---------------------------------------------------------------------------------------------------------------------------------

    async def announce(self, calls: Collection[str], key_id: str, left_s: float) -> None:
        """Tells the others that the run which waits for these calls is here. Done before the calls reach their client, who may be fast."""
        if self._left or not self._key or not self.up:
            return

        async def write(redis: Redis) -> None:
            pipe = redis.pipeline(transaction=False)
            for call in calls:
                row = msgspec.json.encode([self.id, key_id, self.sign("park", call, self.id, key_id)])
                pipe.set(PARK + call, row, px=max(1, int(left_s * 1000)))
            await pipe.execute()

        await self._ask(write, None)

    def withdraw(self, calls: Collection[str]) -> None:
        """The run is not parked any more. Nobody waits for Redis here: a row that stays behind is only asked for in vain."""
        if self._left or not self.up or not calls:
            return
        keys = [PARK + call for call in calls]
        errand = asyncio.ensure_future(self._ask(lambda redis: redis.unlink(*keys), None))
        self._errands.add(errand)
        errand.add_done_callback(self._errands.discard)

    async def owner(self, calls: Collection[str], key_id: str) -> Peer | None:
        """The other node that holds the run which waits for one of these calls, and is alive as far as is known."""
        if not self._key or not calls:
            return None
        asked = list(calls)[-MOST_IDS:]
        rows = await self._ask(lambda redis: redis.mget([PARK + call for call in asked]), [None] * len(asked))
        for call, row in zip(reversed(asked), reversed(rows), strict=True):
            told = _strings(row, 3)
            if told is None or told[1] != key_id or not self.signed(told[2], "park", call, told[0], told[1]):
                continue
            return None if told[0] == self.id or self._shuns(told[0]) else await self._peer(told[0])
        return None

    async def _peer(self, id: str) -> Peer | None:
        told = _strings(await self._ask(lambda redis: redis.get(NODE + id), None), 2)
        return Peer(id, told[0]) if told is not None and self.signed(told[1], "node", id, told[0]) else None

    def shun(self, peer: Peer) -> None:
        """A node that could not be reached is left in peace for a moment: its runs are replayed at once."""
        now = time.monotonic()
        self._shunned = {id: until for id, until in self._shunned.items() if until > now}
        self._shunned[peer.id] = now + SHUNNED_S

    def _shuns(self, id: str) -> bool:
        return self._shunned.get(id, 0.0) > time.monotonic()

    # --- signatures ----------------------------------------------------------------------------------------------------------------------------

    def sign(self, *facts: str) -> str:
        """What only a node can write beside these facts."""
        return hmac.new(self._key, msgspec.json.encode(facts), hashlib.sha256).hexdigest()

    def signed(self, signature: str, *facts: str) -> bool:
        return bool(self._key) and hmac.compare_digest(
            signature.encode("utf-8", "replace"), self.sign(*facts).encode()
        )

    # --- asking Redis --------------------------------------------------------------------------------------------------------------------------

    async def _ask(
        self, work: Callable[[Redis], Awaitable[T]], otherwise: Any, probing: bool = False
    ) -> T | Any:
        """What Redis says; `otherwise` where it can not be asked."""
        from redis.exceptions import RedisError

        if not self.up and not probing:
            return otherwise
        try:
            async with asyncio.timeout(WITHIN_S):
                found = await work(self._redis)
        except (RedisError, OSError, TimeoutError) as error:
            if self.up:
                self.up = self._known = False
                self._stumbled.set()
                log.warning(
                    "redis can not be reached (%s): runs that other nodes hold are replayed until it is back",
                    _reason(error),
                )
            return otherwise
        if not self.up:
            self.up = True
            self._stumbled.clear()
            log.warning("redis is back")
        return found


def connect(url: str) -> Redis:
    """A client that fails fast, because a request waits for it. Raises `ConfigError` if it cannot be made.

    A burst of commands waits for a free connection. redis-py's default pool raises an error beyond 100
    connections, which would look like a Redis that is down.
    """
    try:
        from redis.asyncio import BlockingConnectionPool, Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError:
        raise ConfigError(
            "store.redis: the Redis client is missing; pip install 'toolwire[service]'"
        ) from None
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=MOST_CONNECTIONS,
            timeout=None,  # callers limit the whole wait
            socket_timeout=WITHIN_S,
            socket_connect_timeout=WITHIN_S,
            retry=Retry(NoBackoff(), 1),
        )
    except ValueError as error:
        raise ConfigError(f"store.redis: {error}") from None
    return Redis.from_pool(pool)


def _derived(secret: str) -> bytes:
    """The key that nodes sign with. The secret itself may serve for other things too."""
    return hmac.new(secret.encode(), b"toolwire nodes, version 1", hashlib.sha256).digest()


def _strings(row: Any, count: int) -> list[str] | None:
    """A row as it was written; None for anything else."""
    try:
        told = msgspec.json.decode(row or b"null", type=list[str])
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError):
        return None
    return told if len(told) == count else None


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__

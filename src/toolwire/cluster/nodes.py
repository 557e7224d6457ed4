"""The nodes: their settings and addresses, and which node holds a parked run.

A parked run waits on its node until the client sends the results of its tool calls. All nodes read and write
these rows in Redis:

    toolwire:node:ID      the address of a node; expires unless the node renews it
    toolwire:park:CALL    the node whose run waits for this call, and the id of the client's key; expires
                          when the run may no longer wait

- A node that cannot reach Redis continues to serve: it knows its own parked runs, and replays the parked runs
  of other nodes from the history in the request. Meanwhile, only `_beat` tries to reach Redis. When Redis is
  reachable again, or has lost the node's rows, `_beat` writes all of them again.
- Every row is signed by a node. Anyone else who can write to Redis can only cause replays.
- Before a node shuts down, it deletes its rows.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import SplitResult, urlsplit

import msgspec

from toolwire.core.ids import random_id
from toolwire.settings.extras import add_extra
from toolwire.settings.types import ConfigError, ServerSettings, Settings, is_loopback
from toolwire.store.engine import IN_MEMORY

if TYPE_CHECKING:
    from redis.asyncio import Redis

NODE, PARK, SECRET = "toolwire:node:", "toolwire:park:", "toolwire:secret"
NODE_TTL_S = 15.0
BEAT_S = 5.0
RETRY_S = 1.0
WITHIN_S = 1.0
"""How long Redis may take for one reply."""
MOST_CONNECTIONS = 16
"""The maximum number of connections to Redis. These suffice, because commands take little time."""
SHUNNED_S = 5.0
MAX_IDS = 256
"""The maximum number of call ids that are looked up for a request: the last ones of the request."""

log = logging.getLogger("toolwire.nodes")
T = TypeVar("T")
Waiting = tuple[Collection[str], str, float]
"""A parked run: the ids of its calls, the id of its key, and for how many seconds it still waits."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Another node. `address` is a base URL: `http://10.0.0.5:8788`."""

    id: str
    address: str


class Nodes:
    """Writes this node's rows to Redis, and reads the rows of other nodes.

    All nodes share `secret`. If it is "", the nodes agree on a secret through Redis, which is enough on a
    single machine. `waiting` returns the runs that wait on this node for tool results.
    """

    def __init__(
        self, url: str, address: str, secret: str = "", waiting: Callable[[], Iterable[Waiting]] = tuple
    ) -> None:
        self.id = random_id("node_")
        self.address = address
        self.up = True
        self._waiting = waiting
        self._redis = connect(url)
        self._agrees = not secret
        self._candidate = secrets.token_hex(32)
        self._key = _derived(secret) if secret else b""
        self._written = False  # whether Redis has this node's rows, as far as the node knows
        self._left = False
        self._heartbeat: asyncio.Task[None] | None = None
        self._withdrawals: set[asyncio.Task[Any]] = set()
        self._shunned: dict[str, float] = {}
        self._failed = asyncio.Event()

    async def start(self) -> None:
        """Writes this node's row to Redis and starts to renew it. Retries while Redis cannot be reached."""
        await self._beat()
        self._heartbeat = asyncio.ensure_future(self._beat_forever())

    async def leave(self) -> None:
        """Deletes this node's row and the rows of its parked runs.

        After that, no other node forwards requests to this one.
        """
        if self._left:
            return
        self._left = True
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            await asyncio.gather(self._heartbeat, return_exceptions=True)
        keys = [NODE + self.id, *(PARK + call for calls, _, _ in self._waiting() for call in calls)]
        await self._ask(lambda redis: redis.unlink(*keys), None)

    async def close(self) -> None:
        await self.leave()
        for task in self._withdrawals:
            task.cancel()
        await asyncio.gather(*self._withdrawals, return_exceptions=True)
        await self._redis.aclose()

    async def _beat_forever(self) -> None:
        while not self._left:
            with suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    await self._failed.wait()
                await asyncio.sleep(RETRY_S)
            try:
                await self._beat()
            except Exception:
                log.exception("this node could not renew its row in Redis")

    async def _beat(self) -> None:
        """Renews this node's row. If Redis has lost the row, writes all parked runs again."""
        if self._agrees:
            await self._ask(self._agree, None, probing=True)
            if not self._key:
                return
        row = msgspec.json.encode([self.address, self.sign("node", self.id, self.address)])
        ttl = int(NODE_TTL_S * 1000)
        before = await self._ask(
            lambda redis: redis.set(NODE + self.id, row, px=ttl, get=True), ..., probing=True
        )
        if before is ...:
            self._written = False
        elif before is None or not self._written:
            self._written = True
            for calls, key_id, left_s in list(self._waiting()):
                await self.announce(calls, key_id, left_s)

    async def _agree(self, redis: Redis) -> None:
        """Uses the secret that the first node has written to Redis.

        If Redis loses the secret, the first node that connects again writes the same secret again.
        """
        await redis.set(SECRET, self._candidate, nx=True)
        agreed = await redis.get(SECRET)
        if agreed:
            self._candidate = agreed if isinstance(agreed, str) else agreed.decode()
            self._key = _derived(self._candidate)

    # --- parked runs -------------------------------------------------------------------------------------

    async def announce(self, calls: Collection[str], key_id: str, left_s: float) -> None:
        """Writes to Redis that the run of these calls waits on this node.

        This happens before the client gets the calls, because the client may at once send the results to
        another node.
        """
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
        """Deletes the rows of a run that no longer waits for tool results. Does not wait for Redis.

        A row that remains for a moment does no harm.
        """
        if self._left or not self.up or not calls:
            return
        keys = [PARK + call for call in calls]
        task = asyncio.ensure_future(self._ask(lambda redis: redis.unlink(*keys), None))
        self._withdrawals.add(task)
        task.add_done_callback(self._withdrawals.discard)

    async def owner(self, calls: Collection[str], key_id: str) -> Peer | None:
        """Returns the node that holds the run of one of these calls; None if it is this node or unknown."""
        if not self._key or not calls:
            return None
        wanted = list(calls)[-MAX_IDS:]
        rows = await self._ask(
            lambda redis: redis.mget([PARK + call for call in wanted]), [None] * len(wanted)
        )
        for call, row in zip(reversed(wanted), reversed(rows), strict=True):
            found = _strings(row, 3)
            if found is None:
                continue
            node, key, signature = found
            if key == key_id and self.signed(signature, "park", call, node, key):
                return None if node == self.id or self._shuns(node) else await self._peer(node)
        return None

    async def _peer(self, id: str) -> Peer | None:
        found = _strings(await self._ask(lambda redis: redis.get(NODE + id), None), 2)
        if found is None or not self.signed(found[1], "node", id, found[0]):
            return None
        return Peer(id, found[0])

    def shun(self, peer: Peer) -> None:
        """Makes `owner` ignore the unreachable node `peer` for `SHUNNED_S` seconds.

        Until then, this node replays the runs of `peer`.
        """
        now = time.monotonic()
        self._shunned = {id: until for id, until in self._shunned.items() if until > now}
        self._shunned[peer.id] = now + SHUNNED_S

    def _shuns(self, id: str) -> bool:
        return self._shunned.get(id, 0.0) > time.monotonic()

    # --- signatures -----------------------------------------------------------------------------------------

    def sign(self, *facts: str) -> str:
        return hmac.new(self._key, msgspec.json.encode(facts), hashlib.sha256).hexdigest()

    def signed(self, signature: str, *facts: str) -> bool:
        given = signature.encode("utf-8", "replace")
        return bool(self._key) and hmac.compare_digest(given, self.sign(*facts).encode())

    # --- Redis ----------------------------------------------------------------------------------------------

    async def _ask(
        self, work: Callable[[Redis], Awaitable[T]], otherwise: Any, probing: bool = False
    ) -> T | Any:
        """Returns the reply of Redis, or `otherwise` if Redis cannot be reached.

        `probing`: whether to try even if Redis could not be reached before.
        """
        from redis.exceptions import RedisError

        if not self.up and not probing:
            return otherwise
        try:
            async with asyncio.timeout(WITHIN_S):
                found = await work(self._redis)
        except (RedisError, OSError, TimeoutError) as error:
            if self.up:
                self.up = self._written = False
                self._failed.set()
                reason = str(error) or type(error).__name__
                log.warning(
                    "redis cannot be reached (%s); runs of other nodes are replayed until it is", reason
                )
            return otherwise
        if not self.up:
            self.up = True
            self._failed.clear()
            log.warning("redis is back")
        return found


def connect(url: str) -> Redis:
    """Returns a Redis client that fails quickly, because requests wait for it.

    Raises `ConfigError` if the client is not installed or the URL is invalid. If all connections are in use,
    commands wait for a free one. redis-py's default pool would raise an error beyond 100 connections, which
    would look like an unreachable Redis.
    """
    try:
        from redis.asyncio import BlockingConnectionPool, Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError:
        message = f"store.redis: the Redis client is missing: {add_extra('service')}"
        raise ConfigError(message) from None
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=MOST_CONNECTIONS,
            timeout=None,  # the callers limit how long they wait
            socket_timeout=WITHIN_S,
            socket_connect_timeout=WITHIN_S,
            retry=Retry(NoBackoff(), 1),
        )
    except ValueError as error:
        raise ConfigError(f"store.redis: {error}") from None
    return Redis.from_pool(pool)


def _derived(secret: str) -> bytes:
    """Returns the key for the nodes' signatures. The secret itself is never used as a key."""
    return hmac.new(secret.encode(), b"toolwire nodes, version 1", hashlib.sha256).digest()


def _strings(row: Any, count: int) -> list[str] | None:
    """Returns the row's strings, or None if it does not have exactly `count` strings."""
    try:
        found = msgspec.json.decode(row or b"null", type=list[str])
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError):
        return None
    return found if len(found) == count else None


# --- settings and addresses ---------------------------------------------------------------------------------

ANY = ("0.0.0.0", "::", "")


def check(settings: Settings) -> None:
    """Raises an error if these settings cannot work with several workers or nodes."""
    server, store = settings.server, settings.store
    problem = ""
    if server.workers > 1:
        if not hasattr(os, "fork"):
            problem = "several workers need a system with fork; run several servers and a load balancer"
        elif not store.redis:
            problem = "several workers find each other through Redis; set store.redis, "
            problem += 'e.g. "redis://127.0.0.1:6379/0"'
        elif store.url in IN_MEMORY:
            problem = "several workers need a store that they share, but store.url is a store in memory"
    if problem:
        raise ConfigError(f"server.workers: {problem}")
    if store.redis and not server.node_secret:
        host = "127.0.0.1" if server.workers > 1 else server.host
        if not is_loopback(_host(server.advertise) if server.advertise else host):
            problem = 'nodes that share a Redis need a secret, e.g. "env:TOOLWIRE_NODE_SECRET"'
            raise ConfigError(f"server.node_secret: {problem}")


def node_address(settings: Settings, port: int) -> str:
    """Returns the address at which other nodes reach this one.

    This is `server.advertise`, or else the host and port of the server.
    """
    server = settings.server
    if server.advertise:
        scheme = _split(server.advertise).scheme
        return f"{scheme}://{_bracketed(_host(server.advertise))}:{_port(server.advertise)}"
    host = server.host.strip("[]")
    if host in ANY:
        host = _address_towards(settings.store.redis)
    return f"{'https' if server.tls_cert else 'http'}://{_bracketed(host)}:{port}"


def worker_address(server: ServerSettings, number: int) -> tuple[str, int]:
    """Returns the host and port on which a worker listens for other nodes.

    With `server.advertise`, the workers have the port numbers after the advertised one. Without it, a worker
    has a free port on loopback.
    """
    if not server.advertise:
        return "127.0.0.1", 0
    return server.host, _port(server.advertise) + 1 + number


def advertised(server: ServerSettings, port: int) -> str:
    """Returns a worker's address for other nodes."""
    host = _bracketed(_host(server.advertise)) if server.advertise else "127.0.0.1"
    return f"http://{host}:{port}"


def _split(address: str) -> SplitResult:
    return urlsplit(address if "://" in address else f"http://{address}")


def _host(address: str) -> str:
    host = _split(address).hostname
    if not host:
        raise _invalid(address)
    return host


def _port(address: str) -> int:
    parts = _split(address)
    try:
        port = parts.port
    except ValueError:
        port = 0
    if parts.scheme not in ("http", "https") or parts.path not in ("", "/") or port == 0:
        raise _invalid(address)
    return port or (443 if parts.scheme == "https" else 80)


def _invalid(address: str) -> ConfigError:
    return ConfigError(f'server.advertise: expected "host:port" or a URL, got "{address}"')


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _address_towards(redis: str) -> str:
    """Returns the address that this machine would use to connect to Redis, without sending anything.

    All nodes can reach Redis, so they can usually reach this address too.
    """
    host = urlsplit(redis).hostname or "127.0.0.1"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        message = "set host:port where the other nodes reach this one; Toolwire cannot find it out"
        raise ConfigError(f"server.advertise: {message}") from None

"""Signs people in with a one-time link or an admin key.

Access to this machine is not enough: a local program, or the agent itself, must not approve its own calls.
The session's token is in a cookie that scripts and other sites cannot read; the store has only its hash.
Browsers send a cookie to every port of a host, so each request must also contain the session's page key,
which only the page's own origin can read. A link works once, on any node or worker. A session that was
started with a stored key ends when that key is revoked.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Any

from toolwire.access.keyring import KeyRing
from toolwire.store.store import Store

LIFETIME_S = 30 * 86400.0
LINK_S = 86400.0
SEEN_EVERY_S = 3600.0
PAGE_SECRET = "page_secret"
STORED_KEY = "key:"
OFFERED = "offered"
"""The value of `started_by` for a link that was not used yet.

The hash of a link has a prefix, so it cannot be used as a session.
"""


class Sessions:
    def __init__(
        self,
        store: Store,
        admin_keys: Iterable[str] = (),
        clock: Callable[[], float] = time.time,
        keys: KeyRing | None = None,
    ) -> None:
        self._store = store
        self._keys = keys
        self._admin = [hashlib.sha256(key.encode()).digest() for key in admin_keys]
        self._clock = clock
        self._secret: bytes | None = None

    async def link(self) -> str:
        """Returns a new one-time token."""
        token = secrets.token_urlsafe(24)
        await self._insert(_offer(token), OFFERED, LINK_S)
        return token

    async def enter(self, token: str) -> str | None:
        """Starts a session with a one-time token. Returns None if the token is used or unknown."""
        query = "DELETE FROM web_sessions WHERE token_sha256 = ? AND expires_at > ?"
        used = await self._write(query, _offer(token), self._clock())
        return await self._begin("link") if used else None

    async def enter_by_key(self, key: str) -> str | None:
        digest = hashlib.sha256(key.encode("utf-8", "replace")).digest()
        # Compare with every key, so that the duration reveals nothing.
        if sum(hmac.compare_digest(digest, known) for known in self._admin):
            return await self._begin("key")
        holder = await self._keys.admin(key) if self._keys is not None else None
        return await self._begin(STORED_KEY + holder.key_id) if holder is not None else None

    async def _begin(self, started_by: str) -> str:
        token = secrets.token_urlsafe(32)
        await self._insert(_hash(token), started_by, LIFETIME_S)
        return token

    async def _insert(self, hashed: str, started_by: str, lifetime_s: float) -> None:
        now = self._clock()
        await self._write("DELETE FROM web_sessions WHERE expires_at <= ?", now)
        row = (hashed, started_by, now, now, now + lifetime_s)
        await self._write("INSERT INTO web_sessions VALUES (?, ?, ?, ?, ?)", *row)

    async def _write(self, query: str, *values: Any) -> int:
        """Runs the statement and returns the number of changed rows."""
        return await self._store.run(lambda c: c.execute(query, values).rowcount, "write")

    async def _read(self, query: str, value: str) -> Any:
        return await self._store.run(lambda c: c.execute(query, (value,)).fetchone(), "read")

    async def valid(self, token: str) -> bool:
        if not token or len(token) > 200:
            return False
        hashed, now = _hash(token), self._clock()
        query = "SELECT expires_at, seen_at, started_by FROM web_sessions WHERE token_sha256 = ?"
        ends, seen, started_by = await self._read(query, hashed) or (0.0, 0.0, "")
        if ends <= now:
            return False
        if started_by.startswith(STORED_KEY):
            key_id = started_by.removeprefix(STORED_KEY)
            if self._keys is None or not await self._keys.is_admin(key_id):
                return False
        if now - seen > SEEN_EVERY_S:
            query = "UPDATE web_sessions SET seen_at = ?, expires_at = ? WHERE token_sha256 = ?"
            # 0: the session has ended in the meantime
            return await self._write(query, now, now + LIFETIME_S, hashed) > 0
        return True

    async def page_key(self, token: str) -> str:
        """Returns the session's page key, a second secret that only its pages have."""
        secret = await self._page_secret()
        return hmac.new(secret, token.encode("utf-8", "replace"), hashlib.sha256).hexdigest()[:40]

    async def page_key_fits(self, token: str, given: str) -> bool:
        return hmac.compare_digest((await self.page_key(token)).encode(), given.encode("utf-8", "replace"))

    async def _page_secret(self) -> bytes:
        """Returns the secret from which page keys are derived.

        It is in the store, so that page keys stay valid after a restart and on every node.
        """
        if self._secret is None:
            query = "INSERT INTO preferences (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING"
            await self._write(query, PAGE_SECRET, json.dumps(secrets.token_hex(32)))
            row = await self._read("SELECT value FROM preferences WHERE name = ?", PAGE_SECRET)
            self._secret = bytes.fromhex(json.loads(row[0]))
        return self._secret

    async def end(self, token: str) -> None:
        await self._write("DELETE FROM web_sessions WHERE token_sha256 = ?", _hash(token))


def _offer(token: str) -> str:
    return "link:" + _hash(token)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()

"""Who sits before the pages. A session starts from a one-time link or an admin key, never from being on this machine: a local program, or the agent
itself, must not be able to approve its own calls.

Rules: a session's token lives in a cookie that scripts and other sites do not get; the store keeps only its hash. Browsers send a cookie to every
port of its host, so the cookie alone opens nothing: whatever is asked must also carry the session's page key, which the page keeps where only its
own origin finds it, and which does not follow from the cookie. A link works once, on whichever
node or worker it is opened. A session that a stored key started ends with that key.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable, Iterable

from toolwire.access.keyring import KeyRing
from toolwire.store.store import Store

LIFETIME_S = 30 * 86400.0
LINK_S = 86400.0
SEEN_EVERY_S = 3600.0
PAGE_SECRET = "page_secret"
STORED_KEY = "key:"
OFFERED = "offered"
"""What stands in a row that is no session yet, but a link. Its hash has a prefix that no session's has."""


class Sessions:
    def __init__(self, store: Store, admin_keys: Iterable[str] = (), clock: Callable[[], float] = time.time, keys: KeyRing | None = None) -> None:
        self._store = store
        self._keys = keys
        self._admin = [hashlib.sha256(key.encode()).digest() for key in admin_keys]
        self._clock = clock
        self._secret: bytes | None = None
        self._known: dict[str, tuple[float, float, str]] = {}
        """By the token's hash: when it ends, when the store was last told that it was seen, and what started it."""

    # --- beginnings ----------------------------------------------------------------------------------------------------------------------------

    async def link(self) -> str:
        """A fresh one-time token."""
        token, now = secrets.token_urlsafe(24), self._clock()
        row = (_offer(token), OFFERED, now, now, now + LINK_S)
        await self._store.run(lambda c: c.execute("DELETE FROM web_sessions WHERE expires_at <= ?", (now,)), "write")
        await self._store.run(lambda c: c.execute("INSERT INTO web_sessions VALUES (?, ?, ?, ?, ?)", row), "write")
        return token

    async def enter(self, token: str) -> str | None:
        """The session that a one-time token starts; None: it was used, or never was."""
        offer = (_offer(token), self._clock())
        taken = await self._store.run(
            lambda c: c.execute("DELETE FROM web_sessions WHERE token_sha256 = ? AND expires_at > ?", offer).rowcount, "write"
        )
        return await self._begin("link") if taken == 1 else None

    async def enter_by_key(self, key: str) -> str | None:
        digest = hashlib.sha256(key.encode("utf-8", "replace")).digest()
        fits = [hmac.compare_digest(digest, known) for known in self._admin]  # all of them, always: the time tells nothing
        if any(fits):
            return await self._begin("key")
        holder = await self._keys.admin(key) if self._keys is not None else None
        return await self._begin(STORED_KEY + holder.key_id) if holder is not None else None

    async def _begin(self, started_by: str) -> str:
        token, now = secrets.token_urlsafe(32), self._clock()
        row = (_hash(token), started_by, now, now, now + LIFETIME_S)
        await self._store.run(lambda c: c.execute("DELETE FROM web_sessions WHERE expires_at <= ?", (now,)), "write")
        await self._store.run(lambda c: c.execute("INSERT INTO web_sessions VALUES (?, ?, ?, ?, ?)", row), "write")
        self._known[row[0]] = (row[4], now, started_by)
        return token

    # --- while it lasts ------------------------------------------------------------------------------------------------------------------------

    async def valid(self, token: str) -> bool:
        if not token or len(token) > 200:
            return False
        hashed, now = _hash(token), self._clock()
        ends, told, started_by = self._known.get(hashed, (0.0, 0.0, ""))
        if ends <= now:
            row = await self._store.run(
                lambda c: c.execute("SELECT expires_at, started_by FROM web_sessions WHERE token_sha256 = ?", (hashed,)).fetchone(), "read"
            )
            if row is None or row[0] <= now:
                return False
            ends, started_by = row
        if started_by.startswith(STORED_KEY) and not await self._opens(started_by.removeprefix(STORED_KEY)):
            return False
        if now - told > SEEN_EVERY_S:
            told, ends = now, now + LIFETIME_S
            seen = (now, ends, hashed)
            query = "UPDATE web_sessions SET seen_at = ?, expires_at = ? WHERE token_sha256 = ?"
            if await self._store.run(lambda c: c.execute(query, seen).rowcount, "write") == 0:
                return False  # it was ended meanwhile
        self._known[hashed] = (ends, told, started_by)
        return True

    async def page_key(self, token: str) -> str:
        """What the session's own pages know beside the cookie."""
        return hmac.new(await self._page_secret(), token.encode("utf-8", "replace"), hashlib.sha256).hexdigest()[:40]

    async def page_key_fits(self, token: str, given: str) -> bool:
        return hmac.compare_digest((await self.page_key(token)).encode(), given.encode("utf-8", "replace"))

    async def _page_secret(self) -> bytes:
        """Kept in the store: a page's key outlives the process, and is the same for all that share the store."""
        if self._secret is None:
            fresh = (PAGE_SECRET, json.dumps(secrets.token_hex(32)))
            query = "INSERT INTO preferences (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING"
            await self._store.run(lambda c: c.execute(query, fresh), "write")
            row = await self._store.run(lambda c: c.execute("SELECT value FROM preferences WHERE name = ?", fresh[:1]).fetchone(), "read")
            self._secret = bytes.fromhex(json.loads(row[0]))
        return self._secret

    async def _opens(self, key_id: str) -> bool:
        return self._keys is not None and await self._keys.is_admin(key_id)

    async def end(self, token: str) -> None:
        hashed = _hash(token)
        await self._store.run(lambda c: c.execute("DELETE FROM web_sessions WHERE token_sha256 = ?", (hashed,)), "write")
        self._known.pop(hashed, None)  # last: a request that was being judged meanwhile may have remembered it


def _offer(token: str) -> str:
    return "link:" + _hash(token)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()

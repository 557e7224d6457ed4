"""Signs people in with a one-time link or an admin key.

Access to this machine is not enough to approve calls: otherwise a local program, such as an agent, could
approve its own calls. The session's token is in a cookie that scripts and other sites cannot read; the store
has only its hash. Browsers send a cookie to every port of a host, so each request must also contain the
session's page key, which only the page's own origin can read. A link works once, on any node or worker. A
session that was started with a stored key ends when that key is revoked.

Each session has an origin: how its person signed in. If a session creates a link, the session that the link
starts gets the same origin.

Every program of the same user can write to the store, so a session may approve calls only if its row has an
authority: a value that is sealed with the server's key (`tools/consent.py`). A session gets an authority from
the link that `toolwire serve` prints, from an admin key of the settings, from a link of a session with an
authority, or from the approval code.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from toolwire.access.keyring import KeyRing
from toolwire.store.store import Store
from toolwire.tools.consent import Signer, process_key, sealed, unsealed

LIFETIME_S = 30 * 86400.0
LINK_S = 86400.0
SEEN_EVERY_S = 3600.0
PAGE_SECRET = "page_secret"
STORED_KEY = "key:"
LINK, OPEN, KEY = "link", "open", "key"
"""Origins: the link that `toolwire serve` prints, `toolwire open`, and an admin key of the settings.

The origin of a session that was started with a stored key is `STORED_KEY` and the key's id.
"""
OFFERED = "offered:"
"""The prefix of `started_by` for an unused link. After it comes the origin of the session to start.

The stored hash of a link also has a prefix, so that nobody can use the link's token as a session.
"""


@dataclass(frozen=True, slots=True)
class Authority:
    """What a session may do.

    `decides`: whether it may approve calls. `signer`: signs with the approval code; None if the person has
    not entered the code in this session.
    """

    decides: bool = False
    signer: Signer | None = None


class Sessions:
    def __init__(
        self,
        store: Store,
        admin_keys: Iterable[str] = (),
        clock: Callable[[], float] = time.time,
        keys: KeyRing | None = None,
        seal_key: bytes | None = None,
    ) -> None:
        self._store = store
        self._seal_key = seal_key or process_key()
        self._keys = keys
        self._admin = [hashlib.sha256(key.encode()).digest() for key in admin_keys]
        self._clock = clock
        self._secret: bytes | None = None

    async def link(self, origin: str = LINK, decides: bool = True) -> str:
        """Returns a new one-time token.

        `origin`: the origin of the session that the token starts. `decides`: whether this session may approve
        calls.
        """
        token = secrets.token_urlsafe(24)
        await self._insert(_offer(token), OFFERED + origin, LINK_S, decides)
        return token

    async def enter(self, token: str) -> str | None:
        """Starts a session with a one-time token. Returns None if the token is used, expired or unknown."""
        offer = _offer(token)
        query = "SELECT started_by, authority FROM web_sessions WHERE token_sha256 = ?"
        row = await self._read(query, offer)
        query = "DELETE FROM web_sessions WHERE token_sha256 = ? AND expires_at > ?"
        if row is None or not await self._write(query, offer, self._clock()):
            return None
        decides = unsealed(self._seal_key, row[1], offer) is not None
        return await self._begin(row[0].removeprefix(OFFERED), decides)

    async def enter_by_key(self, key: str) -> str | None:
        digest = hashlib.sha256(key.encode("utf-8", "replace")).digest()
        # Compares with every key, so that the duration does not reveal which key is similar.
        if sum(hmac.compare_digest(digest, known) for known in self._admin):
            return await self._begin(KEY, decides=True)
        holder = await self._keys.admin(key) if self._keys is not None else None
        # Every program of this user can create a stored key, so it gives no authority.
        return await self._begin(STORED_KEY + holder.key_id, decides=False) if holder is not None else None

    async def _begin(self, started_by: str, decides: bool) -> str:
        token = secrets.token_urlsafe(32)
        await self._insert(_hash(token), started_by, LIFETIME_S, decides)
        return token

    async def _insert(self, hashed: str, started_by: str, lifetime_s: float, decides: bool) -> None:
        now = self._clock()
        await self._write("DELETE FROM web_sessions WHERE expires_at <= ?", now)
        authority = sealed(self._seal_key, b"", hashed) if decides else ""
        row = (hashed, started_by, now, now, now + lifetime_s, authority)
        columns = "token_sha256, started_by, created_at, seen_at, expires_at, authority"
        await self._write(f"INSERT INTO web_sessions ({columns}) VALUES (?, ?, ?, ?, ?, ?)", *row)

    async def authority(self, token: str) -> Authority:
        """Returns what a valid session may do. An authority sealed with another key is not valid."""
        hashed = _hash(token)
        row = await self._read("SELECT authority FROM web_sessions WHERE token_sha256 = ?", hashed)
        seed = unsealed(self._seal_key, row[0], hashed) if row is not None else None
        return Authority(seed is not None, Signer(seed) if seed else None)

    async def authorize(self, token: str, signer: Signer) -> None:
        """Lets the session approve calls, because the person has entered the approval code."""
        hashed = _hash(token)
        query = "UPDATE web_sessions SET authority = ? WHERE token_sha256 = ?"
        await self._write(query, sealed(self._seal_key, signer.seed, hashed), hashed)

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
            # If no row was changed, the session has ended in the meantime.
            return await self._write(query, now, now + LIFETIME_S, hashed) > 0
        return True

    async def origin(self, token: str) -> str:
        """Returns the origin of a session: how its person signed in. "" if there is no such session."""
        query = "SELECT started_by FROM web_sessions WHERE token_sha256 = ?"
        row = await self._read(query, _hash(token))
        return str(row[0]) if row is not None else ""

    async def page_key(self, token: str) -> str:
        """Returns the session's page key, a second secret that only the pages of this session have."""
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

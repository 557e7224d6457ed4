"""API keys: what a key may do, where keys are kept, and how a caller's key is found among them.

Rules: a key is 240 random bits, shown once and kept as its SHA-256 alone. A caller's key is looked up by a digest that is keyed with this process's
own secret, and then compared in constant time: how long it takes tells nothing of any key, however many there are. A key is known by its identity: a
rotated one keeps it, and with it its responses, limits and budgets; the old text goes on working for a while. Stored keys are read again within
`FRESH_S`, so that what one node revokes no node takes. Where the store does not answer, the keys that were read last hold.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeVar

from toolwire.config import LimitSettings
from toolwire.errors import ToolwireError
from toolwire.gateway.meters import Rates

if TYPE_CHECKING:
    from toolwire.gateway.store import Store
    from toolwire.turn import Turn

log = logging.getLogger("toolwire.keys")
PREFIX = "tw_"
SHOWN = 8
"""So many characters of a key are kept to recognise it by, its prefix among them."""
REREAD_S = 2.0
FRESH_S = 5.0
LOOK_AGAIN_S = 0.25
"""A key that is not known makes the stored ones be read again, so that a new one works at once; but no more often than this."""
WAIT_S = 1.0
"""So long a request waits for keys that are older than `FRESH_S`."""
FIRST_WAIT_S = 5.0
USED_EVERY_S = 60.0
LONGEST_NAME = 80
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """What a key may use; 0: as much as it likes."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    concurrent: int = 0
    parked: int = 0
    budget_tokens: int = 0
    budget_requests: int = 0

    @classmethod
    def of(cls, settings: LimitSettings, own: dict[str, Any] | None = None) -> KeyLimits:
        """The settings' limits, and a key's own where it has some."""
        given = {one.name: getattr(settings, one.name, 0) for one in fields(cls)}
        return cls(**{**given, **{name: int(value) for name, value in (own or {}).items() if name in given}})

    @property
    def rates(self) -> Rates:
        return Rates(self.requests_per_minute, self.tokens_per_minute)


NO_LIMITS = KeyLimits()


@dataclass(frozen=True, slots=True)
class KeyGrant:
    """What a key may do. `models` are ids, or patterns with `*`."""

    models: tuple[str, ...] = ("*",)
    tools: bool = True
    admin: bool = False
    limits: KeyLimits = NO_LIMITS
    limited: bool = field(init=False, default=False)
    """Whether anything has to be counted for this key before it may run a turn."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "limited", replace(self.limits, parked=0) != NO_LIMITS)

    @property
    def plain(self) -> bool:
        """Whether it says nothing that a key does not have anyway."""
        return self == KeyGrant()

    def may_use(self, *names: str) -> bool:
        """Whether the key may use a model that goes by these names."""
        return any(fnmatchcase(name, pattern) for pattern in self.models for name in names)

    def check(self, turn: Turn, model: str) -> None:
        """Raises where the turn asks for more than the key may. `model` is the id that serves it, of which the turn may use another name."""
        if not self.may_use(model, turn.model):
            raise no_model(turn.model)
        if turn.tools and not self.tools:
            raise ToolwireError("permission", "This API key may not use tools; ask without tools, or with another key.", param="tools")


def no_model(name: str) -> ToolwireError:
    """The same words for a model that there is not and for one that the key may not use."""
    return ToolwireError("model_not_found", f"The model '{name[:80]}' does not exist or you do not have access to it.", param="model")


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """Who a key stands for. `grant` None: no restriction."""

    key_id: str = ""
    grant: KeyGrant | None = None
    name: str = ""

    @property
    def admin(self) -> bool:
        return self.grant is not None and self.grant.admin


def key_id_of(key: str) -> str:
    """A short name for a key of the settings that tells nothing about it: for logs, and to keep each key's responses apart."""
    return hashlib.sha256(key.encode()).hexdigest()[:12]


# --- keys at rest ------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoredKey:
    """`rotated_from` is the identity that a rotated key goes on with; "" for a key of its own. A `revoked_at` in the future ends a grace time."""

    id: str
    name: str
    sha256: str
    prefix: str
    scopes: dict[str, Any]
    limits: dict[str, Any]
    created_at: float
    revoked_at: float | None = None
    rotated_from: str = ""
    last_used_at: float | None = None

    @property
    def identity(self) -> str:
        return self.rotated_from or self.id

    def lives(self, now: float) -> bool:
        return self.revoked_at is None or self.revoked_at > now

    def public(self) -> dict[str, Any]:
        """Without the hash: nobody needs it."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "sha256"}

    def holder(self, settings: LimitSettings) -> KeyHolder:
        models = tuple(self.scopes.get("models") or ("*",))
        limits = KeyLimits.of(settings, self.limits)
        grant = KeyGrant(models, bool(self.scopes.get("tools", True)), bool(self.scopes.get("admin", False)), limits)
        return KeyHolder(self.identity, None if grant.plain else grant, self.name)


_COLUMNS = "id, name, sha256, prefix, scopes, limits, created_at, revoked_at, rotated_from, last_used_at"
Rows = list[tuple[Any, ...]]


def _rows(connection: Any) -> Rows:
    return [tuple(row) for row in connection.execute(f"SELECT {_COLUMNS} FROM keys ORDER BY created_at, id").fetchall()]


def _stored_key(row: tuple[Any, ...]) -> StoredKey:
    id, name, sha256, prefix, scopes, limits, *times = row
    return StoredKey(id, name, sha256, prefix, json.loads(scopes), json.loads(limits), *times)


class KeyRecords:
    """The table of keys, through the store."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    async def all(self) -> list[StoredKey]:
        """Every key that there ever was, oldest first."""
        return await self._store.run(lambda c: list(map(_stored_key, _rows(c))), "read")

    async def changed(self, before: Rows, build: Callable[[list[StoredKey]], T]) -> tuple[Rows, T] | None:
        """What `build` makes of all keys, beside their rows; None where these are as before. Everything happens in the store's thread."""

        def work(connection: Any) -> tuple[Rows, T] | None:
            rows = _rows(connection)
            return None if rows == before else (rows, build(list(map(_stored_key, rows))))

        return await self._store.run(work, "read")

    async def add(self, name: str, scopes: dict[str, Any], limits: dict[str, Any]) -> tuple[StoredKey, str]:
        """A new key, and its text, which nobody can ask for again. A living key's name is not given twice."""
        if not name.strip() or len(name) > LONGEST_NAME:
            raise ToolwireError("invalid_value", f"a key's name has 1 to {LONGEST_NAME} characters", param="name")
        if any(key.name == name and key.lives(self._clock()) for key in await self.all()):
            raise ToolwireError("conflict", f"there is a key named {name} already; revoke or rotate it, or choose another name")
        return await self._insert(name, scopes, limits, "")

    async def rotate(self, id: str, grace_s: float) -> tuple[StoredKey, str]:
        """A new text for a living key. The old one works for `grace_s` more."""
        old = next((key for key in await self.all() if key.id == id), None)
        now = self._clock()
        if old is None or not old.lives(now):
            raise ToolwireError("not_found", f"there is no living key {id}")
        made = await self._insert(old.name, old.scopes, old.limits, old.identity)
        await self._end(old.id, now + grace_s)
        return made

    async def revoke(self, id: str) -> None:
        """From now on. A grace time that is under way ends too."""
        await self._end(id, self._clock())

    async def used(self, ids: Iterable[str], at: float) -> None:
        rows = [(at, id) for id in ids]
        await self._store.run(lambda c: c.executemany("UPDATE keys SET last_used_at = ? WHERE id = ?", rows), "write")

    async def _insert(self, name: str, scopes: dict[str, Any], limits: dict[str, Any], rotated_from: str) -> tuple[StoredKey, str]:
        text = PREFIX + secrets.token_urlsafe(30)
        digest = hashlib.sha256(text.encode()).hexdigest()
        key = StoredKey(f"key_{secrets.token_hex(8)}", name, digest, text[:SHOWN], scopes, limits, self._clock(), None, rotated_from)
        row = (*(getattr(key, column) for column in ("id", "name", "sha256", "prefix")), json.dumps(scopes), json.dumps(limits))
        sql = f"INSERT INTO keys ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        await self._store.run(lambda c: c.execute(sql, (*row, key.created_at, None, rotated_from, None)), "write")
        return key, text

    async def _end(self, id: str, at: float) -> None:
        sql = "UPDATE keys SET revoked_at = ? WHERE id = ? AND (revoked_at IS NULL OR revoked_at > ?)"
        await self._store.run(lambda c: c.execute(sql, (at, id, at)), "write")


async def any_stored(url: str) -> bool:
    """Whether there ever was a key in this store."""
    from toolwire.gateway.store import Store

    store = Store(url)
    try:
        return bool(await KeyRecords(store).all())
    finally:
        await store.close()


# --- keys at hand ------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Known:
    digest: bytes
    holder: KeyHolder
    row: StoredKey | None = None


class KeyRing:
    """Every key that this server takes: those of the settings, and those of the store as they were read last."""

    def __init__(
        self,
        keys: Iterable[str] = (),
        admin_keys: Iterable[str] = (),
        limits: LimitSettings | None = None,
        records: KeyRecords | None = None,
        *,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` tells the time of day, `ticks` how much of it has passed."""
        self._limits = limits or LimitSettings()
        self._records = records
        self._clock, self._ticks = clock, ticks
        self._secret = secrets.token_bytes(32)
        self._configured: dict[bytes, _Known] = {}
        standard = KeyGrant(limits=KeyLimits.of(self._limits))
        self._anyone = KeyHolder("", None if standard.plain else standard)
        for text, admin in (*((key, False) for key in keys), *((key, True) for key in admin_keys)):
            self._configure(text, replace(standard, admin=admin))
        self._stored: dict[bytes, _Known] = {}
        self._rows: Rows = []
        self._admins: frozenset[str] = frozenset()
        self._read_at: float | None = None
        self._tried_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None
        self._failing = False
        self._used: set[str] = set()
        self._told: dict[str, float] = {}

    def _configure(self, text: str, grant: KeyGrant) -> None:
        digest = hashlib.sha256(text.encode()).digest()
        self._configured[self._blind(digest)] = _Known(digest, KeyHolder(key_id_of(text), None if grant.plain else grant))

    def _blind(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest, key=self._secret, digest_size=16).digest()

    # --- asking --------------------------------------------------------------------------------------------------------------------------------

    @property
    def needed(self) -> bool:
        """Whether a caller needs a key. Revoking the last one does not open the door."""
        return bool(self._configured) or bool(self._rows)

    @property
    def anyone(self) -> KeyHolder:
        """Who asks where no key is needed."""
        return self._anyone

    @property
    def due(self) -> bool:
        """Whether `refresh` has something to do: also for all who ask while the keys are read for the first time."""
        return self._records is not None and (self._read_at is None or self._ticks() - self._tried_at >= REREAD_S)

    def find(self, token: bytes) -> KeyHolder | None:
        """Whose key this is."""
        digest = hashlib.sha256(token).digest()
        blinded = self._blind(digest)
        known = self._stored.get(blinded) or self._configured.get(blinded)
        if not hmac.compare_digest(digest, known.digest if known is not None else self._secret) or known is None:
            return None
        if known.row is not None:
            if not known.row.lives(self._clock()):
                return None
            self._used.add(known.row.id)
        return known.holder

    async def is_admin(self, key_id: str) -> bool:
        """Whether a stored key of this identity still opens the web pages."""
        await self.refresh()
        return key_id in self._admins

    async def admin(self, text: str) -> KeyHolder | None:
        """The holder of a stored key that opens the web pages."""
        await self.refresh()
        holder = self.find(text.encode("utf-8", "replace"))
        return holder if holder is not None and holder.admin else None

    # --- reading again -------------------------------------------------------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Starts to read the stored keys again, and waits for it where what is known is too old to be used."""
        if self._records is None:
            return
        now = self._ticks()
        if self._reading is None and now - self._tried_at >= REREAD_S:
            self._start(self._records)
        if self._read_at is None or now - self._read_at >= FRESH_S:
            await self._wait(FIRST_WAIT_S if self._read_at is None else WAIT_S)

    async def look_again(self) -> None:
        """A key was not found: it may be new."""
        if self._records is None or self._failing:
            return
        if self._reading is None and self._ticks() - self._tried_at >= LOOK_AGAIN_S:
            self._start(self._records)
        await self._wait(WAIT_S)

    async def _wait(self, most_s: float) -> None:
        """For the reading that is under way; not where one has failed or hung: then only that one request has waited."""
        reading = self._reading
        if reading is None or self._failing:
            return
        done, _ = await asyncio.wait({reading}, timeout=most_s)
        if not done:
            self._fail("the store does not answer")

    def _start(self, records: KeyRecords) -> None:
        self._tried_at = self._ticks()
        self._reading = asyncio.ensure_future(self._read(records))

    def check_known(self) -> None:
        """Raises where it is not known yet which keys there are, and a key that is not found may be one of them."""
        if self._records is not None and self._read_at is None:
            raise ToolwireError("backend_unavailable", "The server can not read its API keys now. Please try again.", retry_after_s=1)

    async def _read(self, records: KeyRecords) -> None:
        try:
            found = await records.changed(self._rows, self._known)
            if found is not None:
                self._rows, (self._stored, self._admins) = found
            self._read_at = self._ticks()
            if self._failing:
                log.warning("stored keys can be read again")
            self._failing = False
            await self._tell_used(records)
        except Exception as error:  # whatever it is, the keys that are known hold
            self._fail(error)
        finally:
            self._reading = None

    def _fail(self, why: object) -> None:
        if not self._failing:
            log.warning("stored keys can not be read, those that were read last hold: %s", why)
        self._failing = True

    def _known(self, keys: list[StoredKey]) -> tuple[dict[bytes, _Known], frozenset[str]]:
        now = self._clock()
        known = [_Known(bytes.fromhex(key.sha256), key.holder(self._limits), key) for key in keys if key.lives(now)]
        return {self._blind(one.digest): one for one in known}, frozenset(one.holder.key_id for one in known if one.holder.admin)

    async def _tell_used(self, records: KeyRecords) -> None:
        """When keys were used last, to the minute."""
        now = self._clock()
        ids = sorted(id for id in self._used if now - self._told.get(id, 0.0) >= USED_EVERY_S)
        if not ids:
            return
        self._used.clear()
        self._told.update(dict.fromkeys(ids, now))
        try:
            await records.used(ids, now)
        except ToolwireError as error:  # a full disk does not make keys unreadable
            log.info("when keys were used last could not be kept: %s", error)

    async def close(self) -> None:
        """Lets a reading that is under way end."""
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)

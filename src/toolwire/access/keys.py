"""API keys: what a key may do, and where keys are kept.

Rules: a key is 240 random bits, shown once and kept as its SHA-256 alone. A key is known by its identity: a rotated one keeps it, and with it its
responses, limits and budgets; the old text goes on working for a while. What was revoked is so by any clock: only that while follows one.
`keyring.py` finds a caller's key among them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeVar

from toolwire.access.meters import Rates
from toolwire.core.errors import ToolwireError
from toolwire.settings.types import LimitSettings

if TYPE_CHECKING:
    from toolwire.core.turn import Turn
    from toolwire.store.store import Store

log = logging.getLogger("toolwire.keys")
PREFIX = "tw_"
SHOWN = 8
"""So many characters of a key are kept to recognise it by, its prefix among them."""
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
            raise ToolwireError(
                "permission",
                "This API key may not use tools; ask without tools, or with another key.",
                param="tools",
            )


def no_model(name: str) -> ToolwireError:
    """The same words for a model that there is not and for one that the key may not use."""
    return ToolwireError(
        "model_not_found",
        f"The model '{name[:80]}' does not exist or you do not have access to it.",
        param="model",
    )


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """Who a key stands for. `grant` None: no restriction."""

    key_id: str = ""
    grant: KeyGrant | None = None
    name: str = ""
    lasting: bool = False
    """Its key stands in the settings: nobody revokes it in the store."""

    @property
    def admin(self) -> bool:
        return self.grant is not None and self.grant.admin


def key_id_of(key: str) -> str:
    """A short name for a key of the settings that tells nothing about it: for logs, and to keep each key's responses apart."""
    return hashlib.sha256(key.encode()).hexdigest()[:12]


# --- keys at rest ------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoredKey:
    """`rotated_from` is the identity that a rotated key goes on with; "" for a key of its own.

    `revoked_at` above 0 is the end of a grace time; below 0 it is, with its sign turned, when the key was revoked: by no clock is that yet to come.
    """

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
        """Without the hash: nobody needs it. `revoked_at` is a time."""
        shown = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "sha256"}
        return {**shown, "revoked_at": None if self.revoked_at is None else abs(self.revoked_at)}

    def holder(self, settings: LimitSettings) -> KeyHolder:
        models = tuple(self.scopes.get("models") or ("*",))
        limits = KeyLimits.of(settings, self.limits)
        grant = KeyGrant(
            models, bool(self.scopes.get("tools", True)), bool(self.scopes.get("admin", False)), limits
        )
        return KeyHolder(self.identity, None if grant.plain else grant, self.name)


_COLUMNS = "id, name, sha256, prefix, scopes, limits, created_at, revoked_at, rotated_from, last_used_at"
Rows = list[tuple[Any, ...]]


def _rows(connection: Any) -> Rows:
    return [
        tuple(row)
        for row in connection.execute(f"SELECT {_COLUMNS} FROM keys ORDER BY created_at, id").fetchall()
    ]


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
            raise ToolwireError(
                "invalid_value", f"a key's name has 1 to {LONGEST_NAME} characters", param="name"
            )
        if any(key.name == name and key.lives(self._clock()) for key in await self.all()):
            raise ToolwireError(
                "conflict",
                f"there is a key named {name} already; revoke or rotate it, or choose another name",
            )
        return await self._insert(name, scopes, limits, "")

    async def rotate(self, id: str, grace_s: float) -> tuple[StoredKey, str]:
        """A new text for a living key. The old one works for `grace_s` more."""
        old = next((key for key in await self.all() if key.id == id), None)
        now = self._clock()
        if old is None or not old.lives(now):
            raise ToolwireError("not_found", f"there is no living key {id}")
        made = await self._insert(old.name, old.scopes, old.limits, old.identity)
        await self._end(old.id, now + grace_s if grace_s > 0 else -now)
        return made

    async def revoke(self, id: str) -> None:
        """From now on, whatever time it is elsewhere. A grace time that is under way ends too."""
        await self._end(id, -self._clock())

    async def used(self, ids: Iterable[str], at: float) -> None:
        rows = [(at, id) for id in ids]
        await self._store.run(
            lambda c: c.executemany("UPDATE keys SET last_used_at = ? WHERE id = ?", rows), "write"
        )

    async def _insert(
        self, name: str, scopes: dict[str, Any], limits: dict[str, Any], rotated_from: str
    ) -> tuple[StoredKey, str]:
        text = PREFIX + secrets.token_urlsafe(30)
        digest = hashlib.sha256(text.encode()).hexdigest()
        key = StoredKey(
            f"key_{secrets.token_hex(8)}",
            name,
            digest,
            text[:SHOWN],
            scopes,
            limits,
            self._clock(),
            None,
            rotated_from,
        )
        row = (
            *(getattr(key, column) for column in ("id", "name", "sha256", "prefix")),
            json.dumps(scopes),
            json.dumps(limits),
        )
        sql = f"INSERT INTO keys ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        await self._store.run(
            lambda c: c.execute(sql, (*row, key.created_at, None, rotated_from, None)), "write"
        )
        return key, text

    async def _end(self, id: str, at: float) -> None:
        sql = "UPDATE keys SET revoked_at = ? WHERE id = ? AND (revoked_at IS NULL OR revoked_at > ?)"
        await self._store.run(lambda c: c.execute(sql, (at, id, max(at, 0.0))), "write")


async def any_stored(url: str) -> bool:
    """Whether there ever was a key in this store."""
    from toolwire.store.store import Store

    store = Store(url)
    try:
        return bool(await KeyRecords(store).all())
    finally:
        await store.close()

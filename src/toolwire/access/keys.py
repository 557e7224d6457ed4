"""API keys: their permissions, and how they are stored.

A key has 240 random bits. It is shown once, and only its SHA-256 is stored. After a rotation, the new key
acts under the id of the original key, so it has the same stored responses, limits and budget. The old key
works for a grace period. Whether a key is revoked does not depend on the clock; only the end of a grace
period does. `keyring.py` finds a caller's key.
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
"""How many characters of a key are stored, prefix included, so that a person recognizes the key."""
LONGEST_NAME = 80
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """The limits of a key; 0: no limit."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    concurrent: int = 0
    parked: int = 0
    budget_tokens: int = 0
    budget_requests: int = 0

    @classmethod
    def of(cls, settings: LimitSettings, own: dict[str, Any] | None = None) -> KeyLimits:
        """Returns the limits of the settings, overridden by those of the key (`own`)."""
        given = {one.name: getattr(settings, one.name, 0) for one in fields(cls)}
        return cls(**{**given, **{name: int(value) for name, value in (own or {}).items() if name in given}})

    @property
    def rates(self) -> Rates:
        return Rates(self.requests_per_minute, self.tokens_per_minute)


NO_LIMITS = KeyLimits()


@dataclass(frozen=True, slots=True)
class KeyGrant:
    """The permissions and limits of a key. `models`: the ids of allowed models, or patterns with `*`."""

    models: tuple[str, ...] = ("*",)
    tools: bool = True
    admin: bool = False
    limits: KeyLimits = NO_LIMITS
    approve: bool = False
    """Whether the client's own approval of an MCP call counts like an approval by a person at the server."""
    limited: bool = field(init=False, default=False)
    """Whether turns of this key must be admitted by `RateLimits` before they run."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "limited", replace(self.limits, parked=0) != NO_LIMITS)

    @property
    def plain(self) -> bool:
        """Whether this grant has neither restrictions nor extra permissions."""
        return self == KeyGrant()

    def may_use(self, *names: str) -> bool:
        """Returns whether the key may use a model that has these names (its id and aliases)."""
        return any(fnmatchcase(name, pattern) for pattern in self.models for name in names)

    def check(self, turn: Turn, model: str) -> None:
        """Raises an error if the key may not run this turn.

        `model`: the model's id, even if the client requested an alias.
        """
        if not self.may_use(model, turn.model):
            raise no_model(turn.model)
        if not self.tools and (turn.tools or (turn.mcp is not None and turn.mcp.servers)):
            raise ToolwireError(
                "permission",
                "This API key may not use tools; send the request without tools, or with another key.",
                param="tools",
            )


def no_model(name: str) -> ToolwireError:
    """Returns the error for a model that is unknown or that the key may not use.

    Both cases have the same error, so that a client cannot find out which models exist.
    """
    return ToolwireError(
        "model_not_found",
        f"The model '{name[:80]}' does not exist or you do not have access to it.",
        param="model",
    )


def not_available(name: str, reason: str) -> ToolwireError:
    """Returns the error for a model of the settings that cannot be used. `reason` contains no secret."""
    return ToolwireError(
        "backend_unavailable", f"The model '{name[:80]}' is not available: {reason}.", param="model"
    )


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """A caller, identified by its key. If `grant` is None, the caller has no restrictions."""

    key_id: str = ""
    grant: KeyGrant | None = None
    name: str = ""
    lasting: bool = False
    """Whether the key is in the settings, so that it cannot be revoked in the store."""

    @property
    def admin(self) -> bool:
        return self.grant is not None and self.grant.admin


def key_id_of(key: str) -> str:
    """Returns a short hash of a key in the settings, which is the key's id.

    It is used in logs, and to keep the responses of different keys apart.
    """
    return hashlib.sha256(key.encode()).hexdigest()[:12]


# --- stored keys ---


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A stored key. `rotated_from`: the id of the original key after a rotation, otherwise "".

    A positive `revoked_at` is the end of a grace period. A negative one is minus the time of the revocation:
    a negative time is in the past on every clock.
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
        """Returns the key's fields for display.

        The hash is left out, and `revoked_at` is always a positive time.
        """
        shown = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "sha256"}
        return {**shown, "revoked_at": None if self.revoked_at is None else abs(self.revoked_at)}

    def holder(self, settings: LimitSettings) -> KeyHolder:
        models = tuple(self.scopes.get("models") or ("*",))
        limits = KeyLimits.of(settings, self.limits)
        grant = KeyGrant(
            models,
            bool(self.scopes.get("tools", True)),
            bool(self.scopes.get("admin", False)),
            limits,
            bool(self.scopes.get("approve", False)),
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
    """The table of keys in the store."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    async def all(self) -> list[StoredKey]:
        """Returns all keys, including revoked ones, oldest first."""
        return await self._store.run(lambda c: list(map(_stored_key, _rows(c))), "read")

    async def changed(self, before: Rows, build: Callable[[list[StoredKey]], T]) -> tuple[Rows, T] | None:
        """Returns None if the rows of all keys equal `before`, otherwise the rows and `build(keys)`.

        `build` runs in the store's thread.
        """

        def work(connection: Any) -> tuple[Rows, T] | None:
            rows = _rows(connection)
            return None if rows == before else (rows, build(list(map(_stored_key, rows))))

        return await self._store.run(work, "read")

    async def add(self, name: str, scopes: dict[str, Any], limits: dict[str, Any]) -> tuple[StoredKey, str]:
        """Creates a key. Returns the key and its text, which is not stored.

        Raises an error if an active key has the same name.
        """
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
        """Creates a new key text for an active key. The old text works for `grace_s` more seconds."""
        old = next((key for key in await self.all() if key.id == id), None)
        now = self._clock()
        if old is None or not old.lives(now):
            raise ToolwireError("not_found", f"there is no active key {id}")
        made = await self._insert(old.name, old.scopes, old.limits, old.identity)
        await self._end(old.id, now + grace_s if grace_s > 0 else -now)
        return made

    async def revoke(self, id: str) -> None:
        """Revokes a key at once. This also ends a grace period."""
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
    """Returns whether this store contains any key, including revoked ones."""
    from toolwire.store.store import Store

    store = Store(url)
    try:
        return bool(await KeyRecords(store).all())
    finally:
        await store.close()

"""Finds a caller's key among those in the settings and those in the store.

A key is looked up by a digest that is keyed with a secret of this process, and then compared in constant
time, so the response time reveals nothing about any key. Stored keys are read again within `FRESH_S` seconds,
so a revoked key stops working on every node. If the store does not answer, the keys that were read last are
used, and the store is tried again after a moment.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from toolwire.access.keys import KeyGrant, KeyHolder, KeyLimits, KeyRecords, Rows, StoredKey, key_id_of
from toolwire.core.errors import ToolwireError
from toolwire.settings.types import LimitSettings

log = logging.getLogger("toolwire.keys")
MOST_RECENT = 1024
REREAD_S = 2.0
FRESH_S = 5.0
LOOK_AGAIN_S = 0.25
"""The minimum number of seconds from one read of the stored keys to a read for an unknown key."""
BEHIND_S = 0.05
"""Delay of a refresh in the background, so that the current response is sent first."""
WAIT_S = 1.0
"""How long a request waits for a read if the keys in memory are older than `FRESH_S`."""
FIRST_WAIT_S = 5.0
USED_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class _Known:
    digest: bytes
    holder: KeyHolder
    row: StoredKey | None = None


class KeyRing:
    """Every key that this server accepts: from the settings, and from the store."""

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
        """`clock` returns the time of day, `ticks` a monotonic time."""
        self._limits = limits or LimitSettings()
        self._records = records
        self._clock, self._ticks = clock, ticks
        self._secret = secrets.token_bytes(32)
        self._marker = hashlib.blake2b(key=self._secret, digest_size=16)
        self._configured: dict[bytes, _Known] = {}
        standard = KeyGrant(limits=KeyLimits.of(self._limits))
        self.anyone = KeyHolder("", None if standard.plain else standard)
        """The holder of every request if the server has no keys."""
        for text, admin in (*((key, False) for key in keys), *((key, True) for key in admin_keys)):
            self._configure(text, replace(standard, admin=admin))
        self.needed = bool(self._configured)
        """Whether callers need a key. This stays True after the last key was revoked."""
        self._stored: dict[bytes, _Known] = {}
        self._recent: dict[bytes, _Known] = {}
        """Keys that were found recently, by the digest of `_blind`."""
        self._rows: Rows = []
        self._admins: frozenset[str] = frozenset()
        self._ended: set[str] = set()
        self._read_at: float | None = None
        self._tried_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None
        self._later: asyncio.TimerHandle | None = None
        self._failing = False
        self._failed_at = float("-inf")
        self._used: set[str] = set()
        self._told: dict[str, float] = {}

    def _configure(self, text: str, grant: KeyGrant) -> None:
        digest = hashlib.sha256(text.encode()).digest()
        self._configured[self._blind(digest)] = _Known(
            digest, KeyHolder(key_id_of(text), None if grant.plain else grant, lasting=True)
        )

    def _blind(self, text: bytes) -> bytes:
        """Returns a digest that only this process can compute."""
        marking = self._marker.copy()
        marking.update(text)
        return marking.digest()

    # --- lookup ---

    @property
    def due(self) -> bool:
        """Whether `refresh` must be called, because the last read of the stored keys is too long ago."""
        if self._records is None or self._read_at is None:
            return self._records is not None
        now = self._ticks()
        return now - self._tried_at >= REREAD_S or now - self._read_at >= FRESH_S

    def find(self, token: bytes) -> KeyHolder | None:
        """Returns the holder of this key, or None if the key is unknown or revoked."""
        mark = self._blind(token)
        known = self._recent.get(mark)
        if known is None:
            known = self._look_up(token)
            if known is None:
                return None
            if len(self._recent) >= MOST_RECENT:
                self._recent.clear()
            self._recent[mark] = known
        if known.row is not None:
            if known.row.revoked_at is not None and self._over(known.row):
                return None
            self._used.add(known.row.id)
        return known.holder

    def _look_up(self, token: bytes) -> _Known | None:
        digest = hashlib.sha256(token).digest()
        blinded = self._blind(digest)
        known = self._stored.get(blinded) or self._configured.get(blinded)
        return (
            known
            if hmac.compare_digest(digest, known.digest if known is not None else self._secret)
            else None
        )

    def _over(self, key: StoredKey) -> bool:
        """Whether the key no longer works. Such a key never works again, even if the clock is set back."""
        if not key.lives(self._clock()):
            self._ended.add(key.id)
        return key.revoked_at is not None and key.id in self._ended

    async def is_admin(self, key_id: str) -> bool:
        """Whether the store still has a valid key with this id that may use the web pages."""
        await self.refresh()
        return key_id in self._admins

    async def admin(self, text: str) -> KeyHolder | None:
        """Returns the key's holder if the key may use the web pages, otherwise None."""
        await self.refresh()
        holder = self.find(text.encode("utf-8", "replace"))
        return holder if holder is not None and holder.admin else None

    # --- refresh ---

    async def refresh(self) -> None:
        """Starts to read the stored keys again, if the last read began at least `REREAD_S` ago.

        Waits for the read if the keys in memory are older than `FRESH_S`, or if there are none yet.
        """
        if self._records is None:
            return
        now = self._ticks()
        if self._reading is None and now - self._tried_at >= REREAD_S:
            self._start(self._records)
        if self._read_at is None or now - self._read_at >= FRESH_S:
            await self._wait(FIRST_WAIT_S if self._read_at is None else WAIT_S, REREAD_S)

    def refresh_behind(self) -> bool:
        """Schedules a read of the stored keys and returns True, without waiting.

        Returns False if the keys were never read. In this case the caller must wait for `refresh`.
        """
        if self._read_at is None:
            return False
        idle = self._reading is None and self._later is None
        if self._records is not None and idle and self._ticks() - self._tried_at >= REREAD_S:
            self._later = asyncio.get_running_loop().call_later(BEHIND_S, self._start, self._records)
        return True

    async def look_again(self) -> None:
        """Reads the stored keys again because a key was not found: it may be new."""
        if self._records is None:
            return
        if self._reading is None and self._ticks() - self._tried_at >= LOOK_AGAIN_S:
            self._start(self._records)
        await self._wait(WAIT_S, LOOK_AGAIN_S)

    async def _wait(self, most_s: float, believed_s: float) -> None:
        """Waits for the current read of the stored keys, at most `most_s` seconds.

        Does not wait if a read has failed or timed out within the last `believed_s` seconds.
        """
        reading = self._reading
        if reading is None:
            return
        if self._failing:
            now = self._ticks()
            most_s -= now - self._tried_at  # requests do not wait one after the other for a read that hangs
            if most_s <= 0 or now - self._failed_at < believed_s:
                return
        done, _ = await asyncio.wait({reading}, timeout=most_s)
        if not done:
            self._fail("the store does not answer")

    def _start(self, records: KeyRecords) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
        self._tried_at = self._ticks()
        self._reading = asyncio.ensure_future(self._read(records))

    def check_known(self, new: bool = False) -> None:
        """Raises an error if the stored keys were never read, because an unknown key may be one of them.

        `new`: also raises if they cannot be read now, because the key may have been created since the last
        read.
        """
        if self._records is not None and (self._read_at is None or (new and self._failing)):
            raise ToolwireError(
                "backend_unavailable",
                "The server cannot read its API keys now. Please try again.",
                retry_after_s=1,
            )

    async def _read(self, records: KeyRecords) -> None:
        try:
            found = await records.changed(self._rows, self._known)
            if found is not None:
                self._rows, (self._stored, self._admins) = found
                self.needed = bool(self._configured) or bool(self._rows)
                self._recent.clear()
            self._read_at = self._ticks()
            if self._failing:
                log.warning("stored keys can be read again")
            self._failing = False
            await self._tell_used(records)
        except Exception as error:  # whatever the error is, the known keys still work
            self._fail(error)
        finally:
            self._reading = None

    def _fail(self, why: object) -> None:
        if not self._failing:
            log.warning("stored keys cannot be read; the last known keys stay valid: %s", why)
        self._failing, self._failed_at = True, self._ticks()

    def _known(self, keys: list[StoredKey]) -> tuple[dict[bytes, _Known], frozenset[str]]:
        known = [
            _Known(bytes.fromhex(key.sha256), key.holder(self._limits), key)
            for key in keys
            if not self._over(key)
        ]
        return {self._blind(one.digest): one for one in known}, frozenset(
            one.holder.key_id for one in known if one.holder.admin
        )

    async def _tell_used(self, records: KeyRecords) -> None:
        """Stores the times when keys were last used, at most once a minute for each key."""
        now = self._clock()
        ids = sorted(id for id in self._used if now - self._told.get(id, 0.0) >= USED_EVERY_S)
        if not ids:
            return
        self._used.clear()
        self._told.update(dict.fromkeys(ids, now))
        try:
            await records.used(ids, now)
        except ToolwireError as error:  # keys can still be read if the disk is full
            log.info("the times at which keys were last used could not be stored: %s", error)

    async def close(self) -> None:
        """Cancels a scheduled read and waits for one that has started."""
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)

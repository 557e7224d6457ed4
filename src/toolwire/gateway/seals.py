"""Text that a client keeps for this installation, and can neither read nor change nor make: a compacted conversation.

Rules: the secret is kept in the store, so it outlives the process and is the same for all that share the store; without a store it lasts as long as
the process. What is sealed for one key opens for no other. The text is hidden by a keystream (SHAKE-256 of key and nonce, a fresh nonce each time),
then signed with what it belongs to (HMAC-SHA-256); nothing is read of what is not signed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolwire.gateway.store import Store

PREFIX = "twc1."
SECRET = "compaction_secret"
NONCE, SIGNATURE = 24, 32
LARGEST = 20 * 1024 * 1024
"""What OpenAI takes at most."""


class Seals:
    def __init__(self, store: Store | None) -> None:
        self._store = store
        self._secret: bytes | None = None if store is not None else secrets.token_bytes(32)

    async def seal(self, text: str, key_id: str) -> str:
        secret, nonce = await self._known(), secrets.token_bytes(NONCE)
        hidden = _hidden(text.encode("utf-8", "replace"), secret, nonce)
        sealed = nonce + hidden + _signature(secret, key_id, nonce, hidden)
        return PREFIX + base64.urlsafe_b64encode(sealed).decode()

    async def open(self, sealed: str, key_id: str) -> str | None:
        """The text; None where this installation did not seal it for this key."""
        if not sealed.startswith(PREFIX) or len(sealed) > LARGEST or not sealed.isascii():
            return None
        try:
            raw = base64.b64decode(sealed[len(PREFIX) :], altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        if base64.urlsafe_b64encode(raw).decode() != sealed[len(PREFIX) :]:  # two texts must not be one seal
            return None
        nonce, hidden, signature = raw[:NONCE], raw[NONCE:-SIGNATURE], raw[-SIGNATURE:]
        secret = await self._known()
        if len(raw) < NONCE + SIGNATURE or not hmac.compare_digest(signature, _signature(secret, key_id, nonce, hidden)):
            return None
        return _hidden(hidden, secret, nonce).decode()

    async def _known(self) -> bytes:
        if self._secret is None:
            assert self._store is not None
            fresh = (SECRET, json.dumps(secrets.token_hex(32)))
            query = "INSERT INTO preferences (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING"
            await self._store.run(lambda c: c.execute(query, fresh), "write")
            row = await self._store.run(lambda c: c.execute("SELECT value FROM preferences WHERE name = ?", fresh[:1]).fetchone(), "read")
            self._secret = bytes.fromhex(json.loads(row[0]))
        return self._secret


def _hidden(text: bytes, secret: bytes, nonce: bytes) -> bytes:
    """The text under its keystream; done twice, it is the text again."""
    if not text:
        return b""
    stream = hashlib.shake_256(_derived(secret, b"hide") + nonce).digest(len(text))
    return (int.from_bytes(text) ^ int.from_bytes(stream)).to_bytes(len(text))


def _signature(secret: bytes, key_id: str, nonce: bytes, hidden: bytes) -> bytes:
    owner = hashlib.sha256(key_id.encode("utf-8", "replace")).digest()
    return hmac.digest(_derived(secret, b"sign"), owner + nonce + hidden, "sha256")


def _derived(secret: bytes, purpose: bytes) -> bytes:
    return hmac.digest(secret, b"toolwire compaction " + purpose, "sha256")

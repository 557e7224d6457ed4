"""Proofs that an approval or a grant comes from the person, and the person's approval code.

Consent comes first, and it must come from the person (law 11 in `docs/architecture.md`). Every program of the
same user can write to the store, so a row that says `approved` proves nothing. An approval or a grant counts
only with a proof over everything that was asked and decided:

- `own`: an HMAC with the server's key. The key exists only in the memory of the process that asks and of its
  workers, or it is derived from `server.node_secret`, which all nodes share.
- `code`: an Ed25519 signature. Its private key is derived from the approval code, which only the person
  knows. The store has the public key. Other processes and later runs accept these proofs.
- `link`: an HMAC with the secret of a link that was sent to the person (`links.py`). The process that asks
  derives this secret from its key; the store has only its hash. The proof is valid for one question.

A denial needs no proof.
"""

from __future__ import annotations

import asyncio
import base64
import ctypes
import hashlib
import hmac
import json
import secrets
import sys
import time
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from toolwire.core.errors import ToolwireError
from toolwire.settings.types import ServerSettings
from toolwire.store.store import Store
from toolwire.tools.contract import Approval, Decision, Grant

OWN, SIGNED, LINKED = "own:", "code:", "link:"
SHORTEST_CODE, LONGEST_CODE = 8, 200
NEEDS_CODE = "approval_code"
"""The error code of a decision that needs the approval code, or a web session that may approve calls."""
OTHER_PROGRAM = "This call comes from another program. To approve it, enter your approval code."
_RECORD = "approval_code"

# --- the server's key ---


@cache
def process_key() -> bytes:
    """Returns the random key of this process. Workers are forked later, so they have the same key."""
    return secrets.token_bytes(32)


def server_key(server: ServerSettings) -> bytes:
    """Returns the key that all workers and nodes of a server share."""
    secret = server.node_secret
    return _mac(secret.encode(), "approvals") if secret else process_key()


def hide_memory() -> None:
    """Prevents other programs of this user from reading the memory and environment of this process.

    Linux only. This also disables core dumps and debuggers. Programs that this process starts are not
    affected.
    """
    if sys.platform == "linux":
        set_dumpable = 4
        ctypes.CDLL(None).prctl(set_dumpable, 0, 0, 0, 0)


def sealed(key: bytes, content: bytes, bound_to: str) -> str:
    """Encrypts `content`. Only `unsealed` with the same key and the same `bound_to` can decrypt it."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = secrets.token_bytes(12)
    box = AESGCM(_mac(key, "seal")).encrypt(nonce, content, bound_to.encode())
    return base64.b64encode(nonce + box).decode()


def unsealed(key: bytes, written: str, bound_to: str) -> bytes | None:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        box = base64.b64decode(written, validate=True)
        return AESGCM(_mac(key, "seal")).decrypt(box[:12], box[12:], bound_to.encode())
    except (ValueError, InvalidTag):
        return None


def _mac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode("utf-8", "surrogatepass"), "sha256")


# --- what a proof covers ---

_QUESTION = "id created_at expires_at owner session surface model source pin tool stage requester".split()
_GRANT = "id created_at owner scope tool stage target approval_id".split()


def question_text(approval: Approval) -> str:
    """Returns everything that a question asks, as text: who asks for what, and what the person is shown."""
    asked = [getattr(approval, name) for name in _QUESTION]
    return _written("question", *asked, dict(approval.arguments), approval.shown.to_json())


def shown_token(approval: Approval) -> str:
    """Returns the token of a question as it is shown: a hash of all that it asks.

    A decision that comes from a page contains this token. Every process can compute it, and so notices if a
    question in the store has changed. The field `Approval.token` can only be checked by the process that
    asked.
    """
    return hashlib.sha256(_written("shown", question_text(approval), approval.token).encode()).hexdigest()


def is_as_shown(approval: Approval, token: str) -> bool:
    """Whether `token`, which came with a decision, is the `shown_token` of this question."""
    return hmac.compare_digest(shown_token(approval).encode(), token.encode("utf-8", "replace"))


def decision_text(approval: Approval, decision: Decision, by: str) -> str:
    return _written("decision", question_text(approval), approval.token, decision.to_json(), by)


def grant_text(grant: Grant) -> str:
    """Returns everything that a grant allows.

    For a vault, only its path is included, without `vault:`, so that grants of earlier versions stay valid.
    """
    pinned = (grant.pin,) if grant.pin else ()
    source = grant.source.removeprefix("vault:")
    return _written("grant", *(getattr(grant, name) for name in _GRANT), source, grant.model, *pinned)


def _written(*values: Any) -> str:
    return json.dumps(values, sort_keys=True, separators=(",", ":"), default=str)


# --- the approval code ---


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs decisions and grants with the key of an approval code."""

    seed: bytes

    @property
    def public(self) -> str:
        return _hex(self._key().public_key().public_bytes_raw())

    def sign(self, text: str) -> str:
        return SIGNED + _hex(self._key().sign(text.encode("utf-8", "surrogatepass")))

    def _key(self) -> Any:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.seed)


def _signed(text: str, signature: str, public: str) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))
        key.verify(bytes.fromhex(signature), text.encode("utf-8", "surrogatepass"))
    except (ValueError, InvalidSignature):
        return False
    return True


def _hex(value: bytes) -> str:
    return value.hex()


@dataclass(frozen=True, slots=True)
class LinkKey:
    """The secret of a link. Anyone who has it can decide one question, once.

    `by`: the name of the link in the audit log, such as "link phone". `id`: the id of the link in the store.
    """

    secret: str
    by: str
    id: str = ""

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.secret.encode("utf-8", "replace")).hexdigest()

    def sign(self, text: str) -> str:
        return LINKED + _hex(_mac(self.secret.encode("utf-8", "replace"), text))


@dataclass(frozen=True, slots=True)
class CodeRecord:
    """What the store has of an approval code: a salt and a public key, never the code.

    `set_by`: the surface on which the code was set. `confirmed`: a proof, made by the running server, that a
    person set or entered this code on the server's pages.
    """

    salt: str
    public: str
    set_at: float
    set_by: str
    confirmed: str = ""


class ApprovalCode:
    """The approval code of a store.

    A process that the person starts calls `pin` at its start. From then on, the process trusts no code that
    another process stores later, unless the person sets or enters that code on the server's own pages.
    """

    def __init__(self, store: Store, key: bytes, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._key = key
        self._clock = clock
        self._pinned: str | None = None
        self._lock = asyncio.Lock()

    async def pin(self) -> None:
        record = await self.record()
        self._pinned = record.public if record is not None else ""

    async def record(self) -> CodeRecord | None:
        """Returns the stored record of the code; None if there is none.

        The record is returned even if this process does not trust it.
        """
        query = "SELECT value FROM preferences WHERE name = ?"
        row = await self._store.run(lambda c: c.execute(query, (_RECORD,)).fetchone(), "read")
        try:
            return CodeRecord(**json.loads(row[0])) if row is not None else None
        except (ValueError, TypeError):  # another program wrote this
            return None

    async def trusted(self) -> str:
        """Returns the public key whose signatures count in this process; "" if there is none."""
        record = await self.record()
        if record is None:
            return ""
        if self._pinned is None:
            self._pinned = record.public
        own = hmac.compare_digest(record.confirmed.encode(), self._confirmed(record.public).encode())
        return record.public if own or record.public == self._pinned else ""

    async def signer(self, code: str) -> Signer | None:
        """Returns the signer of a code; None if the store has another code, or none."""
        record = await self.record()
        if record is None:
            return None
        found = await self._derived(code, record.salt)
        return found if hmac.compare_digest(found.public.encode(), record.public.encode()) else None

    async def set(self, code: str, by: str, *, old: Signer | None = None, replace: bool = False) -> Signer:
        """Stores a new code and returns its signer.

        An existing code is replaced only if `old` is its signer, or if `replace` is True. Only pages on which
        the person may decide set `replace`. Grants that were signed with the former code become invalid.
        """
        if not SHORTEST_CODE <= len(_plain(code)) <= LONGEST_CODE:
            message = f"Choose an approval code with {SHORTEST_CODE} to {LONGEST_CODE} characters."
            raise ToolwireError("invalid_value", message, param="code")
        before = await self.record()
        if before is not None and not replace and (old is None or old.public != before.public):
            raise ToolwireError("conflict", "An approval code is already set. Enter it first.", param="code")
        salt = secrets.token_hex(16)
        signer = await self._derived(code, salt)
        await self._put(CodeRecord(salt, signer.public, self._clock(), by, self._confirmed(signer.public)))
        self._pinned = signer.public
        return signer

    async def confirm(self) -> None:
        """Trusts the stored code: a person who may decide here has just entered it."""
        record = await self.record()
        if record is not None and not await self.trusted():
            confirmed = self._confirmed(record.public)
            await self._put(CodeRecord(record.salt, record.public, record.set_at, record.set_by, confirmed))

    async def _put(self, record: CodeRecord) -> None:
        query = "INSERT INTO preferences (name, value) VALUES (?, ?) "
        query += "ON CONFLICT (name) DO UPDATE SET value = excluded.value"
        value = json.dumps({name: getattr(record, name) for name in CodeRecord.__slots__})
        await self._store.run(lambda c: c.execute(query, (_RECORD, value)), "write")

    async def _derived(self, code: str, salt: str) -> Signer:
        async with self._lock:  # each derivation needs 32 MB
            return Signer(await asyncio.to_thread(_seed, _plain(code), salt))

    def _confirmed(self, public: str) -> str:
        return _hex(_mac(self._key, _written("code", public)))


def _seed(code: str, salt: str) -> bytes:
    """Derives the private key. This is slow, so that a short code cannot be guessed from the public key."""
    given, salted = code.encode("utf-8", "replace"), salt.encode()
    return hashlib.scrypt(given, salt=salted, n=2**15, r=8, p=1, maxmem=64 * 2**20, dklen=32)


def _plain(code: str) -> str:
    """Returns the code in one normal form, because keyboards encode the same letters in several ways."""
    return unicodedata.normalize("NFKC", code).strip()


# --- proofs ---

Lasts = Literal["until_revoked", "until_exit", "never"]
"""How long a grant is valid: until it is revoked, until the server that asked for it ends, or not at all."""


class Proofs:
    """Creates and checks the proofs of approvals and grants, for one process.

    `unproven`: approvals and grants need no proof (`approvals.command_line = "open"`).
    """

    def __init__(self, store: Store, key: bytes | None = None, *, unproven: bool = False) -> None:
        self.key = key or process_key()
        self.code = ApprovalCode(store, self.key)
        self._durable = unproven or self.key != process_key()
        self.unproven = unproven

    def token(self, approval: Approval) -> str:
        """Returns the token of a question of this server: an HMAC over everything in the question."""
        return _hex(_mac(self.key, question_text(approval)))

    def is_own(self, approval: Approval) -> bool:
        """Whether this server asked exactly this question."""
        return hmac.compare_digest(self.token(approval).encode(), approval.token.encode())

    def link(self, approval: Approval, by: str, approves: bool) -> LinkKey:
        """Returns the secret of a link to a question of this process.

        `approves`: whether the link may approve. If it may only deny, its secret cannot prove an approval.
        """
        key = _mac(self.key, _written("link", approval.token, by, approves))
        return LinkKey(base64.urlsafe_b64encode(key).decode().rstrip("="), by)

    def of_decision(
        self, approval: Approval, decision: Decision, by: str, signer: Signer | LinkKey | None
    ) -> str:
        """Returns the proof of a decision.

        Raises an error if the approval code is needed, but there is no `signer`.
        """
        if not decision.approved:
            return ""
        text = decision_text(approval, decision, by)
        if isinstance(signer, LinkKey):
            return signer.sign(text)
        if self.is_own(approval):
            return self._own(text)
        if signer is not None:
            return signer.sign(text)
        if self.unproven:
            return ""
        raise ToolwireError("permission", OTHER_PROGRAM, code=NEEDS_CODE)

    def of_grant(self, grant: Grant, signer: Signer | None) -> str:
        """Returns the proof of a grant. Without a signer, the proof is made with the server's key."""
        text = grant_text(grant)
        return signer.sign(text) if signer is not None else self._own(text)

    async def proves_decision(self, asked: Approval, found: Approval) -> bool:
        """Whether the stored decision `found` is a person's decision about the question `asked`."""
        decision, by = found.decision, found.decided_by or ""
        if decision is None or not decision.approved:
            return False
        text = decision_text(asked, decision, by)
        if found.proof.startswith(LINKED) and not self.unproven:
            proof = self.link(asked, by, approves=True).sign(text)
            return decision.is_plain and hmac.compare_digest(proof.encode(), found.proof.encode())
        return await self._proves(text, found.proof)

    async def proves_grant(self, grant: Grant) -> bool:
        return await self._proves(grant_text(grant), grant.proof)

    async def lasts(self, grant: Grant) -> Lasts:
        """Returns how long a grant is valid, unless it is revoked."""
        if await self.proves_grant(grant) and (self._durable or not grant.proof.startswith(OWN)):
            return "until_revoked"
        return "until_exit" if grant.proof.startswith(OWN) else "never"

    def _own(self, text: str) -> str:
        return OWN + _hex(_mac(self.key, text))

    async def _proves(self, text: str, proof: str) -> bool:
        if self.unproven:
            return True
        if proof.startswith(SIGNED):
            public = await self.code.trusted()
            return bool(public) and _signed(text, proof.removeprefix(SIGNED), public)
        return hmac.compare_digest(self._own(text).encode(), proof.encode())

"""Compacts a long conversation: POST /v1/responses/compact.

    request ─▶ items ─▶ the same model writes a summary ─▶ messages · sealed summary · open calls

- User, system and developer messages stay unchanged. The model's messages, its calls and their results are
  replaced by the summary.
- Calls that have no result yet are placed after the summary. They stay unchanged, each with its group (see
  `open_groups`), so that the client can still send their results.
- The summary is written in an ordinary turn, with the same key, limits, journal and usage. The summary is not
  stored: the sealed item that the client gets contains it.
- When the client sends the compacted conversation, the model gets the summary as a message of the assistant,
  never as an instruction.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from toolwire.core.errors import ToolwireError
from toolwire.core.events import Usage
from toolwire.core.ids import IdFactory
from toolwire.core.turn import Call, ImagePart, Item, Message, Part, Reasoning, Result, TextPart
from toolwire.gateway.records import Answer, Caller
from toolwire.wire.checks import ALIASES, missing
from toolwire.wire.fields import FIELDS, unknown
from toolwire.wire.history import NO_RESULT
from toolwire.wire.responses.encode import usage_object
from toolwire.wire.sse import encode

if TYPE_CHECKING:
    from toolwire.gateway.pipeline import Gateway
    from toolwire.store.store import Store

PASSED = (
    "model",
    "instructions",
    "previous_response_id",
    "reasoning",
    "service_tier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options",
    "safety_identifier",
    "user",
)
"""Fields that are copied from the client's request to the request for the summary.

All other fields except `input` are reported as ignored.
"""
REPORT = b"x-toolwire-report"
ASKED = (
    "Stop here: this conversation is about to be shortened. Write the notes that you will need to go on with "
    "it. The messages of the user are kept, everything else is replaced by your notes. Say what was asked "
    "for and what was decided; what has been done, with the names, numbers, paths and results that matter; "
    "what was found out; what is not done yet, and what comes next. Call no tools and answer nothing: write "
    "the notes "
    "only."
)
INSTRUCTIONS = frozenset({"user", "system", "developer"})


class Compaction:
    """A decoded and checked request to compact a conversation."""

    def __init__(self, gateway: Gateway, body: dict[str, Any], items: Sequence[Item], caller: Caller) -> None:
        self._gateway = gateway
        self._body = body
        self._items = items
        self._caller = caller

    async def answer(self) -> Answer:
        answer = await self._gateway.respond("responses", self._question(), self._caller)
        response = msgspec.json.decode(answer.body or b"{}")
        if response["status"] != "completed":
            why = (response.get("incomplete_details") or {}).get("reason") or response["status"]
            raise ToolwireError(
                "backend",
                f"The model's summary of the conversation broke off ({why}). Nothing was compacted.",
            )
        summary = _text(response)
        if not summary:
            raise ToolwireError("backend", "The model wrote no summary of the conversation.")
        ids = self._gateway.ids
        sealed = await self._gateway.seals.seal(summary, self._caller.key_id)
        compacted = {
            "id": ids("resp_"),
            "object": "response.compaction",
            "created_at": int(self._gateway.clock()),
            "output": [
                *(
                    wire_item(item, ids)
                    for item in self._items
                    if isinstance(item, Message) and item.role in INSTRUCTIONS
                ),
                {"id": ids("cmp_"), "type": "compaction", "encrypted_content": sealed},
                *(wire_item(item, ids) for item in open_groups(self._items)),
            ],
            "usage": response.get("usage") or usage_object(Usage(0, 0)),  # the API requires it
        }
        return Answer(
            [(name, self._report(value) if name == REPORT else value) for name, value in answer.headers],
            encode(compacted),
        )

    def _report(self, inner: bytes) -> bytes:
        """Returns the value of the report header for the client's request.

        It contains the report on the request for the summary (`inner`), and the client's fields that were not
        copied to that request.
        """
        left = {ALIASES.get(name, name) for name, value in self._body.items() if value is not None} - {
            *PASSED,
            "input",
        }
        ignored = [
            f"{name}=ignored" for name in (*unknown(left - FIELDS.keys()), *sorted(left & FIELDS.keys()))
        ]
        return "; ".join(dict.fromkeys([*ignored, *filter(None, inner.decode().split("; "))])).encode()

    def _question(self) -> bytes:
        given = self._body.get("input")
        before = [{"role": "user", "content": given}] if isinstance(given, str) else list(given or ())
        asked = {name: self._body[name] for name in PASSED if self._body.get(name) is not None}
        return encode(
            {**asked, "input": [*before, {"role": "user", "content": ASKED}], "store": False, "stream": False}
        )


def check_input(body: dict[str, Any]) -> None:
    """Raises an error if the request has neither input nor a previous response to compact."""
    if not body.get("input") and not body.get("previous_response_id"):
        raise missing("input")


def _text(response: dict[str, Any]) -> str:
    parts = (part for item in response["output"] if item["type"] == "message" for part in item["content"])
    return "".join(part["text"] for part in parts if part["type"] == "output_text").strip()


def open_groups(items: Sequence[Item]) -> list[Item]:
    """Returns the calls since the last user message that have no result yet, with their groups.

    In `items`, such a call has a placeholder as its result. A group is a sequence of reasoning and calls,
    together with the results of these calls. A message ends a group. A call or reasoning that follows
    a result begins a new group. A result always belongs to the group of its call.
    """
    groups: list[list[Item]] = [[]]
    group_of: dict[str, list[Item]] = {}
    for item in items:
        if isinstance(item, Message):
            if item.role == "user":  # calls before a user message no longer wait
                groups.clear()
            groups.append([])
        elif isinstance(item, Result):
            group_of[item.call_id].append(item)
        else:
            if groups[-1] and isinstance(groups[-1][-1], Result):
                groups.append([])
            groups[-1].append(item)
            if isinstance(item, Call):
                group_of[item.call_id] = groups[-1]
    return [item for group in groups for item in _open(group)]


def _open(group: Sequence[Item]) -> list[Item]:
    """Returns the group without placeholder results; no items if every call has a real result."""
    kept = [item for item in group if not (isinstance(item, Result) and item.parts == (TextPart(NO_RESULT),))]
    answered = {item.call_id for item in kept if isinstance(item, Result)}
    return kept if any(isinstance(item, Call) and item.call_id not in answered for item in kept) else []


# --- items on the wire ---


def wire_item(item: Item, ids: IdFactory) -> dict[str, Any]:
    if isinstance(item, Message):
        return {
            "id": ids("msg_"),
            "type": "message",
            "status": "completed",
            "role": item.role,
            "content": [_part(part) for part in item.parts],
        }
    if isinstance(item, Call):
        custom = item.kind == "custom"
        shared = {
            "id": ids("ctc_" if custom else "fc_"),
            "type": "custom_tool_call" if custom else "function_call",
            "status": "completed",
        }
        named = {"namespace": item.namespace} if item.namespace else {}
        return {
            **shared,
            "call_id": item.call_id,
            "name": item.name,
            **named,
            "input" if custom else "arguments": item.arguments,
        }
    if isinstance(item, Result):
        kind = "custom_tool_call_output" if item.kind == "custom" else "function_call_output"
        whole = (
            item.parts[0].text
            if len(item.parts) == 1 and isinstance(item.parts[0], TextPart)
            else [_part(part) for part in item.parts]
        )
        return {
            "id": ids("fco_"),
            "type": kind,
            "status": "completed",
            "call_id": item.call_id,
            "output": whole,
        }
    return _reasoning(item, ids)


def _reasoning(item: Reasoning, ids: IdFactory) -> dict[str, Any]:
    out: dict[str, Any] = {
        "id": item.id or ids("rs_"),
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": one} for one in item.summary],
    }
    if item.content:
        out["content"] = [{"type": "reasoning_text", "text": one} for one in item.content]
    if item.encrypted is not None:
        out["encrypted_content"] = item.encrypted
    return out


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "input_text", "text": part.text}
    if isinstance(part, ImagePart):
        held = {"image_url": part.url, "file_id": part.file_id}
        return {
            "type": "input_image",
            "detail": part.detail or "auto",
            **{name: value for name, value in held.items() if value is not None},
        }
    return dict(part.raw)


# --- seals ---
#
# A seal is an encrypted text (the summary of a conversation) that the client stores but cannot read, change
# or create. The secret for all seals is kept in the store, so it outlives the process, and all processes with
# that store share it. Without a store, the secret lasts as long as the process. A seal made for one API key
# cannot be opened with another API key. The text is encrypted with a keystream (SHAKE-256 of a key derived
# from the secret and a nonce, with a new nonce each time) and signed together with the id of the API key
# (HMAC-SHA-256). Text without a valid signature is never decrypted.

PREFIX = "twc1."
SECRET = "compaction_secret"
NONCE, SIGNATURE = 24, 32
LARGEST = 20 * 1024 * 1024
"""OpenAI's limit for the encrypted content."""


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
        """Returns the sealed text; None if it was not sealed by this installation for this key."""
        if not sealed.startswith(PREFIX) or len(sealed) > LARGEST or not sealed.isascii():
            return None
        try:
            raw = base64.b64decode(sealed[len(PREFIX) :], altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        # Base64 can spell the same bytes in several ways; only one of them is valid.
        if base64.urlsafe_b64encode(raw).decode() != sealed[len(PREFIX) :]:
            return None
        nonce, hidden, signature = raw[:NONCE], raw[NONCE:-SIGNATURE], raw[-SIGNATURE:]
        secret = await self._known()
        if len(raw) < NONCE + SIGNATURE or not hmac.compare_digest(
            signature, _signature(secret, key_id, nonce, hidden)
        ):
            return None
        return _hidden(hidden, secret, nonce).decode()

    async def _known(self) -> bytes:
        if self._secret is None:
            assert self._store is not None
            fresh = (SECRET, json.dumps(secrets.token_hex(32)))
            query = "INSERT INTO preferences (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING"
            await self._store.run(lambda c: c.execute(query, fresh), "write")
            row = await self._store.run(
                lambda c: c.execute("SELECT value FROM preferences WHERE name = ?", fresh[:1]).fetchone(),
                "read",
            )
            self._secret = bytes.fromhex(json.loads(row[0]))
        return self._secret


def _hidden(text: bytes, secret: bytes, nonce: bytes) -> bytes:
    """Encrypts or decrypts `text`: applying the same keystream twice returns the original text."""
    if not text:
        return b""
    stream = hashlib.shake_256(_derived(secret, b"hide") + nonce).digest(len(text))
    return (int.from_bytes(text) ^ int.from_bytes(stream)).to_bytes(len(text))


def _signature(secret: bytes, key_id: str, nonce: bytes, hidden: bytes) -> bytes:
    owner = hashlib.sha256(key_id.encode("utf-8", "replace")).digest()
    return hmac.digest(_derived(secret, b"sign"), owner + nonce + hidden, "sha256")


def _derived(secret: bytes, purpose: bytes) -> bytes:
    return hmac.digest(secret, b"toolwire compaction " + purpose, "sha256")

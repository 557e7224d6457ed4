"""Serializes the items of a turn, for the store and the journal.

An item is a JSON object whose `t` names its class. Fields that hold their default are left out and unknown
fields are skipped, so that other versions can read the rows as long as fields keep their meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any

import msgspec

from toolwire.core.turn import Call, ImagePart, Item, Message, OtherPart, Reasoning, Result, TextPart

CLASSES: dict[str, type[Any]] = {
    "message": Message,
    "call": Call,
    "result": Result,
    "reasoning": Reasoning,
    "text": TextPart,
    "image": ImagePart,
    "other": OtherPart,
}
TAGS = {cls: tag for tag, cls in CLASSES.items()}
TUPLES = frozenset({"parts", "summary", "content"})
_FIELDS = {cls: tuple((f.name, f.default) for f in fields(cls)) for cls in TAGS}
_NAMES = {cls: frozenset(f.name for f in fields(cls)) for cls in TAGS}


def encode_items(items: Sequence[Item]) -> bytes:
    return msgspec.json.encode([_plain(item) for item in items])


def decode_items(raw: bytes) -> tuple[Item, ...]:
    return tuple(_revive(entry) for entry in msgspec.json.decode(raw))


def _plain(value: Any) -> dict[str, Any]:
    cls = type(value)
    out: dict[str, Any] = {"t": TAGS[cls]}
    for name, default in _FIELDS[cls]:
        held = getattr(value, name)
        if default is MISSING or held != default:
            out[name] = [_plain(part) for part in held] if name == "parts" else held
    return out


def _revive(entry: dict[str, Any]) -> Any:
    cls = CLASSES[entry["t"]]
    held: dict[str, Any] = {}
    for name, value in entry.items():
        if name in _NAMES[cls]:
            held[name] = (
                tuple(_revive(part) for part in value)
                if name == "parts"
                else tuple(value)
                if name in TUPLES
                else value
            )
    return cls(**held)

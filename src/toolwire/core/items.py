"""Serializes the items of a turn, for the store and the journal.

An item is a JSON object whose `t` names its class. Fields with their default value are omitted, and unknown
fields are skipped, so that older and newer versions of Toolwire can read each other's data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any

import msgspec

from toolwire.core.mcp import McpListed
from toolwire.core.turn import Call, ImagePart, Item, Message, OtherPart, Reasoning, Result, TextPart

StoredItem = Item | McpListed
"""An item of a stored response."""
_CLASSES: dict[str, type[Any]] = {
    "message": Message,
    "call": Call,
    "result": Result,
    "reasoning": Reasoning,
    "mcp_listed": McpListed,
    "text": TextPart,
    "image": ImagePart,
    "other": OtherPart,
}
_TAGS = {cls: tag for tag, cls in _CLASSES.items()}
_TUPLES = frozenset({"parts", "summary", "content"})
_DEFAULTS = {cls: {field.name: field.default for field in fields(cls)} for cls in _TAGS}


def encode_items(items: Sequence[StoredItem]) -> bytes:
    return msgspec.json.encode([_plain(item) for item in items])


def decode_items(raw: bytes) -> tuple[StoredItem, ...]:
    return tuple(_revive(entry) for entry in msgspec.json.decode(raw))


def _plain(value: Any) -> dict[str, Any]:
    cls = type(value)
    out: dict[str, Any] = {"t": _TAGS[cls]}
    for name, default in _DEFAULTS[cls].items():
        held = getattr(value, name)
        if default is MISSING or held != default:
            out[name] = [_plain(part) for part in held] if name == "parts" else held
    return out


def _revive(entry: dict[str, Any]) -> Any:
    cls = _CLASSES[entry["t"]]
    held = {name: value for name, value in entry.items() if name in _DEFAULTS[cls]}
    if "parts" in held:
        held["parts"] = map(_revive, held["parts"])
    return cls(**{name: tuple(held[name]) if name in _TUPLES else held[name] for name in held})

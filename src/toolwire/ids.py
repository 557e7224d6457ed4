"""Minting of ids. Law 1: randomness is handed in, so that tests and replays can repeat a turn to the byte. Standard library only."""

from __future__ import annotations

import secrets
from collections.abc import Callable

IdFactory = Callable[[str], str]
"""Takes a prefix such as `call_`, gives a fresh id that starts with it."""

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_MASK = 63


def random_id(prefix: str, size: int = 24) -> str:
    """An unguessable id. 24 characters of 62 carry over 140 bits."""
    out = ""
    while len(out) < size:
        out += "".join(_ALPHABET[b & _MASK] for b in secrets.token_bytes(size + 8) if (b & _MASK) < 62)
    return prefix + out[:size]


def counting_ids() -> IdFactory:
    """Ids that count from 1 per prefix: for tests, fixtures and replays."""
    counts: dict[str, int] = {}

    def mint(prefix: str) -> str:
        counts[prefix] = counts.get(prefix, 0) + 1
        return f"{prefix}{counts[prefix]}"

    return mint

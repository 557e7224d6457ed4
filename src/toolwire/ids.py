"""Minting of ids. Law 1: randomness is handed in, so that tests and replays can repeat a turn to the byte. Standard library only."""

from __future__ import annotations

import secrets
from collections.abc import Callable

IdFactory = Callable[[str], str]
"""Takes a prefix such as `call_`, gives a fresh id that starts with it."""


def random_id(prefix: str) -> str:
    """An unguessable id: 96 random bits as 24 hexadecimal digits."""
    return prefix + secrets.token_hex(12)


def counting_ids() -> IdFactory:
    """Ids that count from 1 per prefix: for tests, fixtures and replays."""
    counts: dict[str, int] = {}

    def mint(prefix: str) -> str:
        counts[prefix] = counts.get(prefix, 0) + 1
        return f"{prefix}{counts[prefix]}"

    return mint

"""Minting of ids. Law 1: randomness is handed in, so that tests and replays can repeat a turn to the byte. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Callable

IdFactory = Callable[[str], str]
"""Takes a prefix such as `call_`, gives a fresh id that starts with it."""


_BYTES, _AT_ONCE = 12, 128
_drawn: list[str] = []
"""Random digits that are not used yet: the system is asked for many at once, since asking costs more than everything else here."""


def random_id(prefix: str) -> str:
    """An unguessable id: 96 random bits as 24 hexadecimal digits."""
    try:
        return prefix + _drawn.pop()
    except IndexError:
        _drawn.extend(os.urandom(_AT_ONCE * _BYTES).hex(" ", _BYTES).split())
        return prefix + _drawn.pop()


os.register_at_fork(after_in_child=_drawn.clear)  # what the parent has drawn is the parent's


def counting_ids() -> IdFactory:
    """Ids that count from 1 per prefix: for tests, fixtures and replays."""
    counts: dict[str, int] = {}

    def mint(prefix: str) -> str:
        counts[prefix] = counts.get(prefix, 0) + 1
        return f"{prefix}{counts[prefix]}"

    return mint

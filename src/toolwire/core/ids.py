"""Creates ids. Law 1: randomness is passed in, so that tests and replays can repeat a turn exactly."""

from __future__ import annotations

import os
from collections.abc import Callable

IdFactory = Callable[[str], str]
"""A function that takes a prefix such as `call_` and returns a new id that starts with this prefix."""

_BYTES, _AT_ONCE = 12, 128
_drawn: list[str] = []
"""Random hexadecimal digits that are not used yet. Many are drawn at once, which saves system calls."""


def random_id(prefix: str) -> str:
    """Returns an unguessable id: the prefix and 96 random bits as 24 hexadecimal digits."""
    try:
        return prefix + _drawn.pop()
    except IndexError:
        _drawn.extend(os.urandom(_AT_ONCE * _BYTES).hex(" ", _BYTES).split())
        return prefix + _drawn.pop()


os.register_at_fork(after_in_child=_drawn.clear)  # a child must not repeat its parent's ids


def counting_ids() -> IdFactory:
    """Returns a factory whose ids count from 1 for each prefix, for tests."""
    counts: dict[str, int] = {}

    def mint(prefix: str) -> str:
        counts[prefix] = counts.get(prefix, 0) + 1
        return f"{prefix}{counts[prefix]}"

    return mint

"""Creates ids.

Functions that need ids get an `IdFactory` as an argument (law 1 in docs/architecture.md), so that tests and
replays can repeat a turn exactly.
"""

from __future__ import annotations

import os
import re
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


_OWN = re.compile(rf"[a-z]+[_-][0-9a-f]{{{2 * _BYTES}}}")


def is_own(id: str) -> bool:
    """Whether an id has the form of the ids of `random_id`.

    The log and the journal do not search such an id for secrets.
    """
    return _OWN.fullmatch(id) is not None


os.register_at_fork(after_in_child=_drawn.clear)  # a child process must not repeat the ids of its parent


def counting_ids() -> IdFactory:
    """Returns a factory whose ids count from 1 for each prefix, for tests."""
    counts: dict[str, int] = {}

    def mint(prefix: str) -> str:
        counts[prefix] = counts.get(prefix, 0) + 1
        return f"{prefix}{counts[prefix]}"

    return mint

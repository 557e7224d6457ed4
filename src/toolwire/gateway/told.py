"""Turns that have ended and are yet to be told of, to the journal, the log, metrics and usage.

They are told together, as soon as the event loop has come around: the answer itself goes out first, and what is done for many turns in a row costs
less than the same done between other work. Nothing waits longer than that, and `now` waits for nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Told:
    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []

    def soon(self, tell: Callable[[], None]) -> None:
        """`tell` must not raise."""
        self._waiting.append(tell)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self.now)

    def now(self) -> None:
        waiting, self._waiting = self._waiting, []
        for tell in waiting:
            tell()

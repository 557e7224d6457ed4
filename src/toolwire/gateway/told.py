"""Turns that have ended and are yet to be told of, to the journal, the log, metrics and usage.

They are told together, as soon as the event loop has come around: the answer itself goes out first, and what is done for many turns in a row costs
less than the same done between other work. So each way to tell of a turn is gone for all of them before the next one is. Nothing waits longer than
that, and `now` waits for nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

log = logging.getLogger("toolwire.gateway")


class Told:
    def __init__(self) -> None:
        self._waiting: list[Iterator[None]] = []

    def soon(self, tell: Iterator[None]) -> None:
        """`tell` stops behind each thing that it does."""
        self._waiting.append(tell)
        if len(self._waiting) > 1:
            return
        try:
            asyncio.get_running_loop().call_soon(self.now)
        except RuntimeError:  # outside of a loop nobody would come back to it
            self.now()

    def now(self) -> None:
        waiting, self._waiting = self._waiting, []
        while waiting:
            waiting = [tell for tell in waiting if _goes_on(tell)]


def _goes_on(tell: Iterator[None]) -> bool:
    try:
        return next(tell, tell) is None
    except Exception:  # one turn's trouble is not another's
        log.exception("the end of a turn could not be told")
        return False

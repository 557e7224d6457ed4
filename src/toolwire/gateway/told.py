"""Turns that have ended and are yet to be told of, to the journal, the log, metrics and usage.

They are told together, as soon as the event loop has come around: the answer itself goes out first, and what is done for many turns in a row costs
less than the same done between other work. So each who is told hears of all of them before the next one does. Nothing waits longer than that, and
`now` waits for nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from toolwire.gateway.records import TurnSummary

log = logging.getLogger("toolwire.gateway")


class Told:
    """`observers` are told, in their order."""

    def __init__(self, observers: Sequence[Callable[[TurnSummary], None]]) -> None:
        self._observers = observers
        self._waiting: list[Callable[[], TurnSummary]] = []

    def soon(self, summary: Callable[[], TurnSummary]) -> None:
        """`summary` is made when it is told."""
        self._waiting.append(summary)
        if len(self._waiting) > 1:
            return
        try:
            asyncio.get_running_loop().call_soon(self.now)
        except RuntimeError:  # outside of a loop nobody would come back to it
            self.now()

    def now(self) -> None:
        waiting, self._waiting = self._waiting, []
        summaries = []
        for summary in waiting:
            try:
                summaries.append(summary())
            except Exception:  # one turn's trouble is not another's
                log.exception("the end of a turn could not be told")
        for observer in tuple(self._observers):
            for told in summaries:
                try:
                    observer(told)
                except Exception:  # who only watches must not change what is watched
                    log.exception("an observer of turns failed")

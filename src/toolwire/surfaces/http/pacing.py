"""The pace of refusals: whoever goes on asking after a 401 or a 429 must not take the time of those who are served.

Rules: every asker (a key, or an address where the key is unknown) gets `AT_ONCE` refusals a second without delay; each further one is answered
`HELD_S` later, so that a connection that does nothing but ask has one refusal in that time. An SDK, which waits as the refusal says, never notices.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable

PACED = frozenset({401, 429})
AT_ONCE = 50
HELD_S = 0.25


class Pace:
    __slots__ = ("_clock", "_refused", "_until")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._refused: Counter[str] = Counter()
        self._until = 0.0

    def wait_s(self, asker: str) -> float:
        """Counts a refusal, and says how long its answer waits."""
        now = self._clock()
        if now >= self._until:
            self._refused, self._until = Counter(), now + 1.0
        self._refused[asker] += 1
        return HELD_S if self._refused[asker] > AT_ONCE else 0.0

    async def hold(self, status: int, asker: str) -> None:
        if status in PACED and (wait_s := self.wait_s(asker)):
            await asyncio.sleep(wait_s)

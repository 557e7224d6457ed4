"""Decides whose request begins next when requests of several keys arrive at the same time.

If all requests began at once, a key with a hundred connections could delay each request of another key by a
hundred requests. Instead, keys take turns: one request begins in each pass of the event loop. While only one
key sends requests, no request waits, because it is cheaper to begin many at once.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable

SHARED_S = 1.0
"""For how many seconds keys take turns, after requests of two different keys arrived in a row."""


class KeyTurns:
    """The requests that wait to begin, by key. The first key in the table is next."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._last_key: str | None = None
        self._shared_until = 0.0
        self._begun = False
        """Whether a request has begun in this pass of the event loop."""

    def wait(self, key_id: str) -> asyncio.Future[None] | None:
        """Returns None if a request of this key may begin at once, otherwise a future to wait for."""
        now = self._clock()
        if key_id != self._last_key:
            if self._last_key is not None:
                self._shared_until = now + SHARED_S
            self._last_key = key_id
        if now >= self._shared_until:
            return None
        loop = asyncio.get_running_loop()
        if not self._begun:
            self._begun = True
            loop.call_soon(self._next_pass)
            return None
        place = loop.create_future()
        self._waiting.setdefault(key_id, deque()).append(place)
        return place

    def _next_pass(self) -> None:
        """Begins the next waiting request, and moves its key to the end of the table."""
        while self._waiting:
            key_id, places = self._waiting.popitem(last=False)
            place = places.popleft()
            if places:
                self._waiting[key_id] = places
            if not place.done():  # the future of a cancelled request is already done
                place.set_result(None)
                asyncio.get_running_loop().call_soon(self._next_pass)
                return
        self._begun = False

"""Sessions that wait between two turns, known by the conversation they have been through. Bounded in number and time; closing is the owner's."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Session = TypeVar("Session")


class Idle(Generic[Session]):
    """`close` ends a session that nobody came back for."""

    def __init__(self, close: Callable[[Session], Awaitable[None]], most: int, ttl_s: float) -> None:
        self._close = close
        self._most = most
        self._ttl_s = ttl_s
        self._waiting: OrderedDict[str, tuple[Session, asyncio.TimerHandle]] = OrderedDict()
        self._closing: set[asyncio.Future[None]] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def keep(self, fingerprint: str, session: Session) -> None:
        self._drop(fingerprint)
        timer = asyncio.get_running_loop().call_later(self._ttl_s, self._drop, fingerprint)
        self._waiting[fingerprint] = (session, timer)
        while len(self._waiting) > self._most:
            self._drop(next(iter(self._waiting)))

    def take(self, fingerprint: str) -> Session | None:
        """The session of this conversation; from now on it is the caller's."""
        found = self._waiting.pop(fingerprint, None)
        if found is None:
            return None
        found[1].cancel()
        return found[0]

    def _drop(self, fingerprint: str) -> None:
        session = self.take(fingerprint)
        if session is not None:
            task = asyncio.ensure_future(self._close(session))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        for fingerprint in list(self._waiting):
            self._drop(fingerprint)
        await asyncio.gather(*self._closing, return_exceptions=True)

"""What is older than `store.retention_days` goes: stored responses by when they were made, conversations by when they were last touched.

Rules: a response that a younger one continues stays, so a conversation that is still used stays whole. Every statement removes by itself and may be
repeated, so several nodes may sweep at once; between handfuls others get their turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from toolwire.errors import ToolwireError
from toolwire.gateway.engines import Connection

log = logging.getLogger("toolwire.store")
Run = Callable[[Callable[[Connection], Any], str], Awaitable[Any]]

DAY_S = 86400.0
SWEEP_EVERY_S = 3600.0
HANDFUL = 100
"""How many rows go before others get their turn."""

_DUE = "created_at < ? AND NOT EXISTS (SELECT 1 FROM responses AS later WHERE later.previous_response_id = responses.id AND later.id <> responses.id)"
_ENDS = f"SELECT id FROM responses WHERE {_DUE} LIMIT ?"
_REMOVE = f"DELETE FROM responses WHERE id = ? AND {_DUE} RETURNING previous_response_id"
_UNTOUCHED = "DELETE FROM conversations WHERE id IN (SELECT id FROM conversations WHERE updated_at < ? LIMIT ?)"


class Retention:
    """The background sweep of one store."""

    def __init__(self, run: Run, days: float, clock: Callable[[], float]) -> None:
        self._run = run
        self._days = days
        self._clock = clock
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._days > 0 and self._task is None:
            self._task = asyncio.ensure_future(self._forever())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def sweep(self) -> int:
        if self._days <= 0:
            return 0
        before = self._clock() - self._days * DAY_S
        removed = 0
        for remove in (_responses, _conversations):
            while count := await self._run(partial(remove, before=before), "remove what is too old"):
                removed += count
        return removed

    async def _forever(self) -> None:
        while True:
            try:
                removed = await self.sweep()
                if removed:
                    log.info("%d stored rows older than %g days removed", removed, self._days)
            except ToolwireError as error:
                log.warning("what is too old could not be removed, it is tried again later: %s", error)
            await asyncio.sleep(SWEEP_EVERY_S)


def _responses(connection: Connection, before: float) -> int:
    """From the ends of conversations backwards."""
    removed = 0
    for (id,) in connection.execute(_ENDS, (before, HANDFUL)).fetchall():
        link: str | None = id
        while link is not None and removed < HANDFUL:
            gone = connection.execute(_REMOVE, (link, before)).fetchall()
            removed += len(gone)
            link = gone[0][0] if gone else None
    return removed


def _conversations(connection: Connection, before: float) -> int:
    return connection.execute(_UNTOUCHED, (before, HANDFUL)).rowcount

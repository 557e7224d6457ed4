"""The models that Cursor has for a key, asked for at most every five minutes. When it can not say, what it said last holds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from toolwire.backends.cursor.bridge import Bridge
from toolwire.backends.cursor.client import CURSOR, Unreachable
from toolwire.backends.cursor.connect import ConnectError
from toolwire.backends.cursor.failures import of_error
from toolwire.errors import ToolwireError

FRESH_S = 300.0


class Models:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ids: tuple[str, ...] | None = None
        self._asked = 0.0

    async def ids(self, bridge: Bridge, key: str) -> tuple[str, ...]:
        """Raises `ToolwireError` when nothing was ever told."""
        if self._ids is not None and self._clock() - self._asked < FRESH_S:
            return self._ids
        try:
            self._ids = await self._ask(bridge, key)
        except ToolwireError:
            if self._ids is None:
                raise
        self._asked = self._clock()
        return self._ids

    async def _ask(self, bridge: Bridge, key: str) -> tuple[str, ...]:
        line = await bridge.line()
        try:
            told: Any = await line.client.unary(f"{CURSOR}/ListModels", {"options": {"apiKey": key}} if key else {})
        except Unreachable as error:
            raise await line.lost(error) from error
        except ConnectError as error:
            raise ToolwireError.of(of_error(error)) from error
        items = told.get("items")
        return tuple(item["id"] for item in items if isinstance(item, dict) and item.get("id")) if isinstance(items, list) else ()

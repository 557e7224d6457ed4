"""All of Cursor's models, on one bridge."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from toolwire.backends.base import Backend
from toolwire.backends.cursor.backend import CursorBackend, require_key
from toolwire.backends.cursor.bridge import Bridge
from toolwire.backends.cursor.client import CURSOR, BridgeUnreachable, ConnectError, of_error
from toolwire.backends.cursor.options import CursorOptions
from toolwire.core.errors import ToolwireError

# --- models ------------------------------------------------------------
#
# The models that Cursor has for a key, asked for at most every five minutes. When it can not say, what it
# said last holds.

FRESH_S = 300.0


class CursorModels:
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
        except BridgeUnreachable as error:
            raise await line.lost(error) from error
        except ConnectError as error:
            raise ToolwireError.of(of_error(error)) from error
        items = told.get("items")
        return tuple(item["id"] for item in items if isinstance(item, dict) and item.get("id")) if isinstance(items, list) else ()


class CursorSource:
    def __init__(self, id: str, options: dict[str, Any]) -> None:
        self.id = id
        self._options = CursorOptions(**options)
        self._own = CursorBackend(id, self._options)
        """Holds the bridge, and asks it; serves no turn."""
        self._models = CursorModels()

    async def names(self) -> Sequence[str]:
        bridge = self._own.bridge
        return await self._models.ids(bridge, require_key(self._options, bridge))

    def model(self, name: str) -> Backend:
        return CursorBackend(f"{self.id}/{name}", replace(self._options, model=name))

    async def close(self) -> None:
        await self._own.close()

"""All of Cursor's models, on one bridge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from toolwire.backends.base import Backend
from toolwire.backends.cursor.backend import CursorBackend, require_key
from toolwire.backends.cursor.models import Models
from toolwire.backends.cursor.options import CursorOptions


class CursorSource:
    def __init__(self, id: str, options: dict[str, Any]) -> None:
        self.id = id
        self._options = CursorOptions(**options)
        self._own = CursorBackend(id, self._options)
        """Holds the bridge, and asks it; serves no turn."""
        self._models = Models()

    async def names(self) -> Sequence[str]:
        bridge = self._own.bridge
        return await self._models.ids(bridge, require_key(self._options, bridge))

    def model(self, name: str) -> Backend:
        return CursorBackend(f"{self.id}/{name}", replace(self._options, model=name))

    async def close(self) -> None:
        await self._own.close()

"""What a person chose on the pages, kept in the store over restarts."""

from __future__ import annotations

import json
from typing import Any

from toolwire.gateway.store import Store


class Preferences:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._values: dict[str, Any] = {}

    async def load(self) -> None:
        rows = await self._store.run(lambda c: c.execute("SELECT name, value FROM preferences").fetchall(), "read")
        self._values = {name: json.loads(value) for name, value in rows}

    def get(self, name: str, default: Any = None) -> Any:
        return self._values.get(name, default)

    async def set(self, name: str, value: Any) -> None:
        row = (name, json.dumps(value))
        query = "INSERT INTO preferences (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
        await self._store.run(lambda c: c.execute(query, row), "write")
        self._values[name] = value

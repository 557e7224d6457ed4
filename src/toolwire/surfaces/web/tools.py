"""The vault's tools in the chat: only while tool calling is on, and only for allowed models.

The switch is off at first and survives restarts. Root and patterns come from the configuration file.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from toolwire.settings.types import Settings
from toolwire.store.store import Store
from toolwire.tools.contract import Tool
from toolwire.tools.executor import Toolbox
from toolwire.vault.policy import PathRefused

log = logging.getLogger("toolwire.web")
Source = Callable[[Settings, Path], AbstractAsyncContextManager[Sequence[Tool]]]


@asynccontextmanager
async def vault_tools(settings: Settings, root: Path) -> AsyncIterator[Sequence[Tool]]:
    from toolwire.tools.vault_tools import opened

    async with opened(settings, root) as tools:
        yield tools


class WebTools:
    def __init__(self, settings: Settings, preferences: Preferences, source: Source = vault_tools) -> None:
        self._settings = settings
        self._preferences = preferences
        self._source = source
        self._stack: AsyncExitStack | None = None
        self._lock = asyncio.Lock()
        self.toolbox: Toolbox | None = None
        self.error = ""
        """Why the vault is not open, if it should be."""
        self.users: list[Callable[[], Awaitable[None]]] = []
        """Called before the vault closes: nothing may use its tools, or get a grant, after that."""

    @property
    def root(self) -> Path:
        return Path(os.path.expanduser(self._settings.vault.root))

    @property
    def enabled(self) -> bool:
        return bool(self._preferences.get("tool_calling", self._settings.vault.enabled))

    @property
    def models(self) -> list[str]:
        """Patterns of the models that may use tools."""
        return list(self._preferences.get("tool_models", list(self._settings.vault.models)))

    def may_use_tools(self, model: str) -> bool:
        return any(fnmatchcase(model, pattern) for pattern in self.models)

    async def refresh(self) -> None:
        """Opens or closes the vault, by the switch."""
        async with self._lock:
            if not self.enabled:
                self.error = ""
                await self._close()
            elif self.toolbox is None:
                await self._open()

    async def _open(self) -> None:
        if not self.root.is_dir():
            self.error = f"{self._settings.vault.root} is not a folder"
            return
        stack = AsyncExitStack()
        try:
            tools = await stack.enter_async_context(self._source(self._settings, self.root.resolve()))
            self.toolbox = Toolbox(tools)
        except Exception as error:
            log.error("the vault cannot be opened: %s", error, exc_info=not isinstance(error, PathRefused))
            await stack.aclose()
            self.error = str(error) or type(error).__name__
            return
        self._stack, self.error = stack, ""

    async def _close(self) -> None:
        stack, self._stack, self.toolbox = self._stack, None, None
        if stack is not None:
            for stop in self.users:
                await stop()
            await stack.aclose()

    async def close(self) -> None:
        async with self._lock:
            await self._close()


class Preferences:
    """What a person set on the pages, in the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._values: dict[str, Any] = {}

    async def load(self) -> None:
        rows = await self._store.run(
            lambda c: c.execute("SELECT name, value FROM preferences").fetchall(), "read"
        )
        self._values = {name: json.loads(value) for name, value in rows}

    def get(self, name: str, default: Any = None) -> Any:
        return self._values.get(name, default)

    async def set(self, name: str, value: Any) -> None:
        row = (name, json.dumps(value))
        query = (
            "INSERT INTO preferences (name, value) VALUES (?, ?) "
            "ON CONFLICT (name) DO UPDATE SET value = excluded.value"
        )
        await self._store.run(lambda c: c.execute(query, row), "write")
        self._values[name] = value

"""The chat's tools (of the vault and of MCP servers), and the API of the settings page.

A model in the chat gets tools only while the page's switch is on, and only if the page's list allows the
model. The switch and the list are in the store; until a person changes them, `vault.enabled` and
`vault.models` of the settings apply. The vault's folder comes from the settings, or from the file that the
settings page writes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from toolwire.settings.types import Settings, print_config
from toolwire.store.store import Store
from toolwire.surfaces.web.context import PageApi, Row, body, field, invalid
from toolwire.tools.contract import Tool
from toolwire.tools.executor import Toolbox
from toolwire.vault.policy import PathRefused

if TYPE_CHECKING:
    from toolwire.tools.mcp.servers import McpServers

log = logging.getLogger("toolwire.web")
MOST_PATTERNS = 1000
LONGEST_PATTERN = 200
SLOW_S, AGAIN_S = 1.0, 0.2
"""A turn waits only `AGAIN_S` for a server that took longer than `SLOW_S` to list its tools."""
Source = Callable[[Settings, Path], AbstractAsyncContextManager[Sequence[Tool]]]


def vault_tools(settings: Settings, root: Path) -> AbstractAsyncContextManager[Sequence[Tool]]:
    from toolwire.tools.vault_tools import opened

    return opened(settings, root)


class WebTools:
    """The tools of the open vault and of the configured MCP servers."""

    def __init__(
        self,
        settings: Settings,
        preferences: Preferences,
        source: Source = vault_tools,
        servers: McpServers | None = None,
    ) -> None:
        self._settings = settings
        self._preferences = preferences
        self._source = source
        self._stack: AsyncExitStack | None = None
        self._lock = asyncio.Lock()
        self.servers = servers
        self._slow = set[str]()
        self.toolbox: Toolbox | None = None
        """The tools of the vault; None if it is not open."""
        self.error = ""
        """Why the vault is not open although tools are enabled; "" if there is no problem."""
        self.users: list[Callable[[], Awaitable[None]]] = []
        """Functions that stop all use of the vault's tools. They are called before the vault closes."""

    @property
    def root(self) -> Path:
        return Path(os.path.expanduser(self._settings.vault.root))

    @property
    def enabled(self) -> bool:
        return bool(self._preferences.get("tool_calling", self._settings.vault.enabled))

    @property
    def models(self) -> list[str]:
        """Patterns of the models that may use tools."""
        return list(self._preferences.get("tool_models", self._settings.vault.models))

    def may_use_tools(self, model: str) -> bool:
        return any(fnmatchcase(model, pattern) for pattern in self.models)

    async def all(self) -> Toolbox | None:
        """Returns the tools for a turn; None if there are none. Starts MCP servers if needed."""
        names = [one.name for one in self.servers.usable()] if self.servers is not None else []
        lists = await asyncio.gather(*(self._of(name) for name in names))
        foreign = [tool for tools in lists for tool in tools]
        return (self.toolbox or Toolbox(())).joined(foreign) if foreign else self.toolbox

    async def _of(self, server: str) -> Sequence[Tool]:
        """Returns the tools of a server.

        Returns no tools if the server was slow the last time and does not answer within `AGAIN_S` now.
        """
        assert self.servers is not None
        began = time.monotonic()
        try:
            async with asyncio.timeout(AGAIN_S if server in self._slow else None):
                tools = await self.servers.tools({server})  # the listing continues after a timeout
        except TimeoutError:
            return []
        (self._slow.add if time.monotonic() - began > SLOW_S else self._slow.discard)(server)
        return tools

    async def refresh(self) -> None:
        """Opens or closes the vault, depending on whether tools are enabled."""
        async with self._lock:
            if not self.enabled:
                self.error = ""
                await self._close()
            elif self.toolbox is None:
                await self._open()

    async def use(self, settings: Settings) -> None:
        """Applies new settings: closes an open vault, and opens the vault in the new settings."""
        async with self._lock:
            await self._close()
            self._settings = settings
        await self.refresh()

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
    """The choices that a person made on the pages. They are in the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._values: dict[str, Any] = {}

    async def load(self) -> None:
        query = "SELECT name, value FROM preferences"
        rows = await self._store.run(lambda c: c.execute(query).fetchall(), "read")
        self._values = {name: json.loads(value) for name, value in rows}

    def get(self, name: str, default: Any = None) -> Any:
        return self._values.get(name, default)

    async def set(self, name: str, value: Any) -> None:
        row = (name, json.dumps(value))
        query = "INSERT INTO preferences (name, value) VALUES (?, ?) "
        query += "ON CONFLICT (name) DO UPDATE SET value = excluded.value"
        await self._store.run(lambda c: c.execute(query, row), "write")
        self._values[name] = value


class SettingsApi(PageApi):
    """The API of the settings page."""

    def routes(self) -> list[Row]:
        return [("GET", "/settings", self.show), ("PUT", "/settings", self.change)]

    async def show(self, request: Request) -> dict[str, Any]:
        settings, tools = self._web.settings, self._web.tools
        vault, journal = settings.vault, settings.journal
        where = settings.origins.get("vault.root", "")
        return {
            "tool_calling": tools.enabled,
            "tool_models": tools.models,
            "vault": {
                "root": str(tools.root),
                "exists": tools.root.is_dir(),
                "include": list(vault.include),
                "exclude": list(vault.exclude),
                "enabled_in_file": vault.enabled,
                "open": tools.toolbox is not None,
                "error": tools.error,
                "origin": "page" if where and where == settings.page_file else where,
            },
            "journal": {
                "contents": journal.contents,
                "max_mb": journal.max_mb,
                "path": str(getattr(self._web.gateway.journal, "folder", None) or ""),
            },
            "config": print_config(settings),
            "config_path": settings.file,
        }

    async def change(self, request: Request) -> dict[str, Any]:
        given, preferences = await body(request), self._web.preferences
        enabled, models = field(given, "tool_calling", bool), field(given, "tool_models", list)
        if models is not None:
            fits = all(isinstance(one, str) and len(one.strip()) <= LONGEST_PATTERN for one in models)
            if not fits or len(models) > MOST_PATTERNS:
                raise invalid("Expected a list of model ids, or patterns with *.", "tool_models")
            await preferences.set("tool_models", [one.strip() for one in models if one.strip()])
        if enabled is not None:
            await preferences.set("tool_calling", enabled)
            await self._web.tools.refresh()
        self._web.hub.publish("settings", {})
        return await self.show(request)

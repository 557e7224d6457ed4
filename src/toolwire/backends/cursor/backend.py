"""Cursor's agents as a backend, and the list of Cursor's models."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from toolwire.backends.agents.backend import AgentBackend
from toolwire.backends.agents.run import AgentRun
from toolwire.backends.base import Backend
from toolwire.backends.cursor.bridge import Bridge, share
from toolwire.backends.cursor.client import CURSOR
from toolwire.backends.cursor.options import CursorOptions, find_bridge
from toolwire.backends.cursor.session import CursorSession
from toolwire.core.errors import ToolwireError, unavailable

NO_KEY = "Cursor needs an API key: set CURSOR_API_KEY or api_key. Create a key at cursor.com/dashboard."
MODELS_FRESH_S = 300.0


class CursorBackend(AgentBackend[CursorSession]):
    def __init__(self, id: str, options: CursorOptions | None = None) -> None:
        self.options = options or CursorOptions()
        super().__init__(id, self.options)
        self._bridge: Bridge | None = None

    @property
    def bridge(self) -> Bridge:
        if self.closed:
            raise unavailable("The gateway is closing.")
        if self._bridge is None:
            target = find_bridge(self.options, os.environ)
            self._bridge = share(target, self.options.start_timeout_s, self.options.request_timeout_s)
        return self._bridge

    def require_key(self) -> str:
        """Returns the API key. Raises an error if there is no key and Toolwire must start the bridge.

        If there is no key and Toolwire attaches to a running bridge, returns "", because such a bridge may
        have a key of its own.
        """
        key, bridge = self.options.key(os.environ), self.bridge
        if not key and not bridge.target.url:
            raise ToolwireError("backend_auth", NO_KEY)
        return key

    async def ready(self) -> bool:
        try:
            self.require_key()
        except ToolwireError:
            return False
        return True

    async def close(self) -> None:
        await super().close()
        bridge, self._bridge = self._bridge, None
        if bridge is not None:
            await bridge.release()

    async def _new_session(self, run: AgentRun) -> CursorSession:
        return await CursorSession.create(self.bridge, self.options, self.require_key(), run.turn.offered())


class CursorSource:
    """All of Cursor's models, on one bridge. The list of models is read again after five minutes, or if it is
    empty.
    """

    def __init__(self, id: str, options: dict[str, Any]) -> None:
        self.id = id
        self.clock = time.monotonic
        self._backend = CursorBackend(id, CursorOptions(**options))
        """A backend that only holds the bridge. It serves no turns."""
        self._names: tuple[str, ...] = ()
        self._fresh_until = 0.0

    async def names(self) -> Sequence[str]:
        if not self._names or self.clock() >= self._fresh_until:
            key = self._backend.require_key()
            connection = await self._backend.bridge.connect()
            body = {"options": {"apiKey": key}} if key else {}
            items = (await connection.ask(f"{CURSOR}/ListModels", body)).get("items")
            found = items if isinstance(items, list) else ()
            self._names = tuple(item["id"] for item in found if isinstance(item, dict) and item.get("id"))
            self._fresh_until = self.clock() + MODELS_FRESH_S
        return self._names

    def model(self, name: str) -> Backend:
        return CursorBackend(f"{self.id}/{name}", replace(self._backend.options, model=name))

    async def close(self) -> None:
        await self._backend.close()


def lacking(options: CursorOptions) -> tuple[str, str] | None:
    """Returns what a Cursor model lacks (bridge or key) and how to get it; None if it lacks nothing."""
    try:
        target = find_bridge(options, os.environ)
    except ToolwireError as error:
        problem, _, how = error.failure.message.partition(" Install it with: ")
        return problem, how or "correct the settings of the bridge"
    if not target.url and not options.key(os.environ):
        return "there is no key for Cursor", "set CURSOR_API_KEY, or the model's api_key"
    return None


async def inspect(options: CursorOptions) -> dict[str, Any]:
    """Returns the facts for `toolwire doctor`, without a request to Cursor's servers.

    `path`: the bridge's command or address, or None if no bridge was found. `key`: whether there is an API
    key. `problem`: None or one line.
    """
    facts: dict[str, Any] = {"path": None, "key": bool(options.key(os.environ)), "problem": None}
    backend = CursorBackend("doctor", options)
    try:
        target = backend.bridge.target
        facts["path"] = target.url or target.command
        backend.require_key()
        await backend.bridge.connect()  # starts the bridge, which takes a second
    except ToolwireError as error:
        facts["problem"] = error.failure.message
    finally:
        await backend.close()
    return facts

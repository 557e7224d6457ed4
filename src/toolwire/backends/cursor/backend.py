"""Cursor's agents as a backend, and all of Cursor's models as a source of backends.

A new conversation gets a fresh agent, which then waits for the conversation's next turn.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from typing import Any

from toolwire.backends.agents.history import (
    Idle,
    fingerprint,
    fresh_prompt,
    images,
    known_part,
    news,
    next_prompt,
)
from toolwire.backends.agents.run import AgentRun, one_response
from toolwire.backends.base import Backend, Batch
from toolwire.backends.cursor.bridge import Bridge, share
from toolwire.backends.cursor.client import CURSOR
from toolwire.backends.cursor.options import CursorOptions, find_bridge
from toolwire.backends.cursor.session import AgentUnknown, CursorSession
from toolwire.core.capabilities import Capabilities, Strategy
from toolwire.core.errors import ToolwireError
from toolwire.core.turn import Turn

NO_KEY = (
    "Cursor needs an API key: set CURSOR_API_KEY, or api_key of the model. "
    "Keys are made at cursor.com/dashboard."
)
MODELS_FRESH_S = 300.0


class CursorBackend:
    """One configured model."""

    strategy: Strategy = "parked"
    capabilities = Capabilities(
        tools=True, tool_choice=True, parallel=True, images=True, image_urls=False, reasoning=True
    )
    aliases: Sequence[str] = ()

    def __init__(self, id: str, options: CursorOptions | None = None) -> None:
        self.id = id
        self.options = options or CursorOptions()
        self.closed = False
        self.waiting: Idle[CursorSession] = Idle(
            CursorSession.close, self.options.sessions, self.options.idle_s
        )
        self._bridge: Bridge | None = None

    def alias(self, name: str) -> str | None:
        return None

    @property
    def bridge(self) -> Bridge:
        """The bridge, which starts with its first request."""
        if self.closed:
            raise ToolwireError("backend_unavailable", "The gateway is closing.")
        if self._bridge is None:
            target = find_bridge(self.options, os.environ)
            self._bridge = share(target, self.options.start_timeout_s, self.options.request_timeout_s)
        return self._bridge

    @property
    def idle(self) -> int:
        """How many agents wait for the next turn of their conversation."""
        return len(self.waiting)

    def require_key(self) -> str:
        """The API key. An attached bridge may have one of its own."""
        key, bridge = self.options.key(os.environ), self.bridge
        if not key and not bridge.target.url:
            raise ToolwireError("backend_auth", NO_KEY)
        return key

    async def prepare(self) -> None:
        return None

    async def ready(self) -> bool:
        try:
            self.require_key()
        except ToolwireError:
            return False
        return True

    async def close(self) -> None:
        self.closed = True
        await self.waiting.close()
        bridge, self._bridge = self._bridge, None
        if bridge is not None:
            await bridge.release()

    def open(self, turn: Turn) -> AgentRun:
        """A run that can be parked."""
        work = _TurnWork(self, turn)
        options = self.options
        return AgentRun(
            turn,
            work.work,
            work.stop,
            settle_s=options.settle_ms / 1000,
            repeats=options.repeats,
            timeout_s=options.timeout_s,
        )

    def run(self, turn: Turn) -> AsyncGenerator[Batch, None]:
        return one_response(self.open, turn)


class _TurnWork:
    """One turn, and the agent that works on it."""

    def __init__(self, backend: CursorBackend, turn: Turn) -> None:
        self._backend = backend
        self._turn = turn
        self._session: CursorSession | None = None

    async def work(self, run: AgentRun) -> None:
        turn, backend = self._turn, self._backend
        self._session = self._waiting()
        if self._session is not None:
            try:
                await self._session.prompt(run, next_prompt(turn), images(news(turn.items)))
            except AgentUnknown:
                await self._session.close()
                self._session = None
        if self._session is None:
            bridge, key = backend.bridge, backend.require_key()
            self._session = await CursorSession.create(bridge, backend.options, key, turn.offered())
            await self._session.prompt(run, fresh_prompt(turn), images(turn.items))
        session, self._session = self._session, None
        if run.failed or backend.closed:
            await session.close()
        else:
            backend.waiting.keep(fingerprint(turn, run.told), session)

    def _waiting(self) -> CursorSession | None:
        """The agent that already had this conversation."""
        known = known_part(self._turn)
        session = self._backend.waiting.take(fingerprint(self._turn, known)) if known else None
        if session is not None and not session.alive:
            self._backend.bridge.in_background(session.close())
            return None
        return session

    async def stop(self) -> None:
        """Has no effect once the agent waits for its next turn."""
        session, self._session = self._session, None
        if session is not None:
            await session.stop()


class CursorModels:
    """The models that Cursor offers for a key, requested at most every five minutes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ids: tuple[str, ...] | None = None
        self._asked = 0.0

    async def ids(self, bridge: Bridge, key: str) -> tuple[str, ...]:
        """Falls back to the last list when a request fails; raises `ToolwireError` without one."""
        if self._ids is not None and self._clock() - self._asked < MODELS_FRESH_S:
            return self._ids
        try:
            connection = await bridge.connect()
            body = {"options": {"apiKey": key}} if key else {}
            items = (await connection.ask(f"{CURSOR}/ListModels", body)).get("items")
            found = items if isinstance(items, list) else ()
            self._ids = tuple(item["id"] for item in found if isinstance(item, dict) and item.get("id"))
        except ToolwireError:
            if self._ids is None:
                raise
        self._asked = self._clock()
        return self._ids


class CursorSource:
    """All of Cursor's models, on one bridge."""

    def __init__(self, id: str, options: dict[str, Any]) -> None:
        self.id = id
        self._backend = CursorBackend(id, CursorOptions(**options))
        """Holds the bridge; serves no turn."""
        self._models = CursorModels()

    async def names(self) -> Sequence[str]:
        return await self._models.ids(self._backend.bridge, self._backend.require_key())

    def model(self, name: str) -> Backend:
        return CursorBackend(f"{self.id}/{name}", replace(self._backend.options, model=name))

    async def close(self) -> None:
        await self._backend.close()


async def inspect(options: CursorOptions) -> dict[str, Any]:
    """The facts for `toolwire doctor`, without a request to Cursor's servers.

    `path` may be the address of a running bridge. `answers`: it speaks the protocol. `problem`: one line.
    """
    key = bool(options.key(os.environ))
    facts: dict[str, Any] = {"installed": False, "path": None, "answers": False, "key": key, "problem": None}
    backend = CursorBackend("doctor", options)
    try:
        target = backend.bridge.target
        facts.update(installed=True, path=target.url or target.command)
        await backend.bridge.connect()
        facts["answers"] = True
        backend.require_key()
    except ToolwireError as error:
        facts["problem"] = error.failure.message
    finally:
        await backend.close()
    return facts

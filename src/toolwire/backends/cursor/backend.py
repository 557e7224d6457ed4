"""Cursor's agents as a backend: a fresh agent for a conversation that is new here, the same one for its next turns, calls parked in between."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from toolwire.backends.agents.history import Idle, fingerprint, fresh_prompt, images, known_part, news, next_prompt
from toolwire.backends.agents.run import AgentRun, one_response
from toolwire.backends.base import Batch
from toolwire.backends.cursor.bridge import Bridge, share
from toolwire.backends.cursor.find import find_bridge
from toolwire.backends.cursor.options import CursorOptions
from toolwire.backends.cursor.session import CursorSession, Forgotten
from toolwire.core.capabilities import Capabilities, Strategy
from toolwire.core.errors import ToolwireError
from toolwire.core.turn import Turn

NO_KEY = "Cursor needs an API key: set CURSOR_API_KEY, or api_key of the model. Keys are made at cursor.com/dashboard."


class CursorBackend:
    """One configured model."""

    def __init__(self, id: str, options: CursorOptions | None = None) -> None:
        self.id = id
        self.options = options or CursorOptions()
        self._bridge: Bridge | None = None
        self._closed = False
        self._idle: Idle[CursorSession] = Idle(_close, self.options.sessions, self.options.idle_s)

    @property
    def strategy(self) -> Strategy:
        return "parked"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(tools=True, tool_choice=True, parallel=True, images=True, image_urls=False, reasoning=True)

    @property
    def aliases(self) -> Sequence[str]:
        return ()

    def alias(self, name: str) -> str | None:
        return None

    @property
    def bridge(self) -> Bridge:
        """The bridge, which is not started before it is asked something."""
        if self._closed:
            raise ToolwireError("backend_unavailable", "The gateway is closing.")
        if self._bridge is None:
            where = find_bridge(self.options, os.environ)
            self._bridge = share(where, self.options.start_timeout_s, self.options.request_timeout_s)
        return self._bridge

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def idle(self) -> int:
        """How many agents wait for the next turn of their conversation."""
        return len(self._idle)

    async def prepare(self) -> None:
        return None

    async def ready(self) -> bool:
        try:
            require_key(self.options, self.bridge)
        except ToolwireError:
            return False
        return True

    async def close(self) -> None:
        self._closed = True
        await self._idle.close()
        bridge, self._bridge = self._bridge, None
        if bridge is not None:
            await bridge.release()

    def open(self, turn: Turn) -> AgentRun:
        """A run that can be parked."""
        talk = _Talk(self, turn)
        options = self.options
        return AgentRun(turn, talk.work, talk.stop, settle_s=options.settle_ms / 1000, repeats=options.repeats, timeout_s=options.timeout_s)

    def run(self, turn: Turn) -> AsyncGenerator[Batch, None]:
        return one_response(self.open, turn)

    def waiting(self, turn: Turn) -> CursorSession | None:
        """The agent that has been through this conversation; from now on it is the caller's."""
        known = known_part(turn)
        session = self._idle.take(fingerprint(turn, known)) if known else None
        if session is not None and not session.alive:
            self.bridge.later(session.close())
            return None
        return session

    async def fresh(self, turn: Turn) -> CursorSession:
        bridge = self.bridge
        return await CursorSession.create(bridge, self.options, require_key(self.options, bridge), turn.offered())

    def keep(self, run: AgentRun, session: CursorSession) -> None:
        self._idle.keep(fingerprint(run.turn, run.told), session)


class _Talk:
    """One turn's work, and the agent that does it."""

    def __init__(self, backend: CursorBackend, turn: Turn) -> None:
        self._backend = backend
        self._turn = turn
        self._session: CursorSession | None = None

    async def work(self, run: AgentRun) -> None:
        turn = self._turn
        self._session = self._backend.waiting(turn)
        if self._session is not None:
            try:
                await self._session.say(run, next_prompt(turn), images(news(turn.items)))
            except Forgotten:
                await self._session.close()
                self._session = None
        if self._session is None:
            self._session = await self._backend.fresh(turn)
            await self._session.say(run, fresh_prompt(turn), images(turn.items))
        session, self._session = self._session, None
        if run.failed or self._backend.closed:
            await session.close()
        else:
            self._backend.keep(run, session)

    async def stop(self) -> None:
        """Without effect once the agent waits for its next turn."""
        session, self._session = self._session, None
        if session is not None:
            await session.stop()


def require_key(options: CursorOptions, bridge: Bridge) -> str:
    """The API key. A bridge that somebody else started may have one of its own."""
    key = options.key(os.environ)
    if not key and not bridge.where.url:
        raise ToolwireError("backend_auth", NO_KEY)
    return key


async def _close(session: CursorSession) -> None:
    await session.close()


# --- doctor ------------------------------------------------------------
#
# What there is of Cursor on this machine: the facts that `toolwire doctor` tells.


async def inspect(options: CursorOptions) -> dict[str, Any]:
    """`installed`, `path` (or the address of a bridge that runs), `answers` (it started and speaks the protocol), `key`, and in `problem` one line
    where something is missing. Nothing is asked of Cursor's servers."""
    facts: dict[str, Any] = {"installed": False, "path": None, "answers": False, "key": bool(options.key(os.environ)), "problem": None}
    backend = CursorBackend("doctor", options)
    try:
        where = find_bridge(options, os.environ)
        facts.update(installed=True, path=where.url or where.command)
        await backend.bridge.line()
        facts["answers"] = True
        require_key(options, backend.bridge)
    except ToolwireError as error:
        facts["problem"] = error.failure.message
    finally:
        await backend.close()
    return facts

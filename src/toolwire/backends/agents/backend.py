"""The base of agent backends that keep a session for each conversation.

The first turn of a conversation starts a session. The session then waits for the conversation's next turn.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from toolwire.backends.agents import AgentOptions, history
from toolwire.backends.agents.run import AgentRun, one_response
from toolwire.backends.base import Batch
from toolwire.core.capabilities import Capabilities, Strategy
from toolwire.core.errors import ToolwireError, unavailable
from toolwire.core.turn import ImagePart, Turn

WORD_KINDS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), kind)
    for pattern, kind in (
        (r"quota|usage limit|out of (?:credits|usage)|spend limit|credit balance|billing", "quota"),
        (r"rate.?limit|too many requests|\b429\b|resource.?exhausted", "rate_limit"),
        (r"context.?(?:window|length)|prompt is too long|maximum context|too many tokens", "context_length"),
        (
            r"\b401\b|\b403\b|unauthori[sz]ed|authenticat|api.?key|not logged in|log ?in\b|credential",
            "backend_auth",
        ),
        (
            r"model.{0,60}(?:not found|does not exist|unknown|not supported|not available)"
            r"|(?:unknown|invalid|unsupported|no such) model|ProviderModelNotFound",
            "model_not_found",
        ),
        (r"overloaded|\b503\b|\b529\b|at capacity", "overloaded"),
        (r"content.?filter|safety|blocked", "content_filter"),
        (r"timed? ?out|timeout", "timeout"),
        (
            r"econnrefused|enotfound|eai_again|connection (?:refused|failed|error)|fetch failed|dns"
            r"|(?:cannot|unable to|failed to) connect|network request failed",
            "backend_unavailable",
        ),
    )
)
"""Patterns for the error messages of agents, each with the kind of error that it indicates.

The first pattern that matches decides.
"""


def kind_by_words(message: str) -> str | None:
    return next((kind for pattern, kind in WORD_KINDS if pattern.search(message)), None)


class AgentSession(Protocol):
    @property
    def alive(self) -> bool: ...

    async def prompt(self, run: AgentRun, text: str, images: Sequence[ImagePart]) -> None:
        """Sends a prompt and reports events to `run` until the answer is complete.

        Raises an exception if the agent fails.
        """
        ...

    async def close(self) -> None:
        """Stops the agent and removes everything that belongs to the session. May be called twice."""
        ...


Session = TypeVar("Session", bound=AgentSession)
Kept = TypeVar("Kept")


class IdleSessions(Generic[Kept]):
    """Sessions that wait for their next turn, by the fingerprint of their conversation.

    A session ends when it has waited for `ttl_s` seconds. If more than `limit` sessions wait, the oldest one
    ends. The argument `close` is the function that ends a session.
    """

    def __init__(self, close: Callable[[Kept], Awaitable[None]], limit: int, ttl_s: float) -> None:
        self._close = close
        self._limit = limit
        self._ttl_s = ttl_s
        self._waiting: OrderedDict[str, tuple[Kept, asyncio.TimerHandle]] = OrderedDict()
        self._closing: set[asyncio.Future[None]] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def keep(self, fingerprint: str, session: Kept) -> None:
        self._drop(fingerprint)
        timer = asyncio.get_running_loop().call_later(self._ttl_s, self._drop, fingerprint)
        self._waiting[fingerprint] = (session, timer)
        while len(self._waiting) > self._limit:
            self._drop(next(iter(self._waiting)))

    def take(self, fingerprint: str) -> Kept | None:
        """Removes and returns the session of this conversation, or returns None if no session waits.

        The caller must close the session.
        """
        session, timer = self._waiting.pop(fingerprint, (None, None))
        if timer is not None:
            timer.cancel()
        return session

    def _drop(self, fingerprint: str) -> None:
        session = self.take(fingerprint)
        if session is not None:
            task = asyncio.ensure_future(self._close(session))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        for fingerprint in list(self._waiting):
            self._drop(fingerprint)
        await asyncio.gather(*self._closing, return_exceptions=True)


class AgentBackend(ABC, Generic[Session]):
    """A configured agent. `live`: all its sessions. `idle`: the sessions that wait for their next turn."""

    strategy: Strategy = "parked"
    capabilities = Capabilities(
        tools=True, tool_choice=True, parallel=True, images=True, image_urls=False, reasoning=True
    )
    aliases: Sequence[str] = ()

    def __init__(self, id: str, options: AgentOptions) -> None:
        self.id = id
        self.closed = False
        self.live: set[Session] = set()
        self.idle: IdleSessions[Session] = IdleSessions(self.end, options.sessions, options.idle_s)
        self._limits = options

    @abstractmethod
    async def _new_session(self, run: AgentRun) -> Session: ...

    def alias(self, name: str) -> str | None:
        return None

    async def prepare(self) -> None:
        """Does nothing, because agents need no preparation."""

    async def close(self) -> None:
        self.closed = True
        await self.idle.close()
        await asyncio.gather(*map(self.end, list(self.live)))

    def open(self, turn: Turn) -> AgentRun:
        work, limits = _Work(self), self._limits
        return AgentRun(
            turn,
            work.drive,
            work.stop,
            settle_s=limits.settle_ms / 1000,
            repeats=limits.repeats,
            timeout_s=limits.timeout_s,
        )

    def run(self, turn: Turn) -> AsyncGenerator[Batch, None]:
        return one_response(self.open, turn)

    async def start(self, run: AgentRun) -> Session:
        if self.closed:
            raise unavailable("The gateway is closing.")
        session = await self._new_session(run)
        self.live.add(session)
        return session

    async def end(self, session: Session) -> None:
        try:
            await session.close()
        finally:
            self.live.discard(session)  # only now, because `close` waits for every session in `live`


class _Work(Generic[Session]):
    """The work of an agent on one turn, with the session that the turn uses."""

    def __init__(self, backend: AgentBackend[Session]) -> None:
        self._backend = backend
        self._session: Session | None = None

    async def drive(self, run: AgentRun) -> None:
        backend = self._backend
        if not await self._continued(run):
            self._session = await backend.start(run)
            text = history.fresh_prompt(run.turn)
            await self._session.prompt(run, text, history.images(run.turn.items))
        session, self._session = self._session, None
        assert session is not None
        if run.failed or backend.closed or not session.alive:
            await backend.end(session)
        else:
            backend.idle.keep(history.fingerprint(run.turn, run.conversation), session)

    async def _continued(self, run: AgentRun) -> bool:
        """Continues the conversation in the session that waits for its next turn.

        Returns False if there is no such session, or if the session died.
        """
        turn, known = run.turn, len(run.conversation)
        self._session = session = self._backend.idle.take(history.fingerprint(turn, history.known_part(turn)))
        if session is None:
            return False
        if session.alive:
            try:
                await session.prompt(run, history.next_prompt(turn), history.images(history.news(turn.items)))
                return True
            except ToolwireError:
                if session.alive or run.called or len(run.conversation) != known:
                    raise
        await self._backend.end(session)
        return False

    async def stop(self) -> None:
        """Ends the session, unless it already waits for its next turn."""
        session, self._session = self._session, None
        if session is not None:
            await self._backend.end(session)

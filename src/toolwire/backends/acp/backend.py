"""Any agent of the Agent Client Protocol as a backend. A call of a client's tool waits for its result."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator, Mapping, Sequence
from os.path import expanduser
from typing import Any

from toolwire.backends.acp.profiles import PROFILES, AcpOptions, find, profile_of
from toolwire.backends.agents import history
from toolwire.backends.agents.history import Idle
from toolwire.backends.agents.run import AgentRun, one_response
from toolwire.backends.base import Batch, LiveRun
from toolwire.core.capabilities import Capabilities, Strategy
from toolwire.core.errors import ToolwireError
from toolwire.core.turn import ImagePart, Item, Turn

MISSING = "The backend acp needs the extra 'acp': pip install 'toolwire[acp]'"


class AcpBackend:
    """One configured agent."""

    strategy: Strategy = "parked"
    capabilities = Capabilities(
        tools=True, tool_choice=True, parallel=True, images=True, image_urls=False, reasoning=True
    )
    aliases: Sequence[str] = ()

    def __init__(self, id: str, options: AcpOptions) -> None:
        self.id = id
        self.options = options
        self.profile = profile_of(options.profile, options.command)
        self.idle: Idle[Any] = Idle(self.let_go, options.sessions, options.idle_s)
        self._live: set[Any] = set()
        self._closed = False

    def alias(self, name: str) -> str | None:
        return None

    async def prepare(self) -> None:
        """Nothing to do: every session starts its own process."""

    async def ready(self) -> bool:
        return (
            shutil.which(expanduser(self.options.command[0]), path=self.options.env.get("PATH")) is not None
        )

    async def close(self) -> None:
        self._closed = True
        await self.idle.close()
        await asyncio.gather(*map(self.let_go, list(self._live)))

    def open(self, turn: Turn) -> LiveRun:
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

    async def waiting(self, turn: Turn) -> Any:
        """The living session that already had this conversation."""
        session = self.idle.take(history.fingerprint(turn, history.known_part(turn)))
        if session is not None and not session.alive:
            await self.let_go(session)
            return None
        return session

    async def fresh(self, turn: Turn, run: AgentRun) -> Any:
        """A new session for the turn's tools. The run does not time out while the agent starts."""
        try:
            from toolwire.backends.acp.session import AcpSession
        except ImportError as error:
            raise ToolwireError("backend_unavailable", MISSING) from error
        if self._closed:
            raise ToolwireError("backend_unavailable", "The gateway is closing.")
        session = AcpSession(self.options, self.profile, turn.offered())
        self._live.add(session)
        opening = asyncio.ensure_future(session.open())
        try:
            while not (await asyncio.wait({opening}, timeout=self.options.timeout_s / 4))[0]:
                run.alive()
            opening.result()
        except BaseException:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            self._live.discard(session)
            raise
        return session

    async def let_go(self, session: Any) -> None:
        try:
            await session.close()
        finally:
            self._live.discard(session)  # not before: `close` waits for every session that is listed

    async def keep(self, turn: Turn, run: AgentRun, session: Any) -> None:
        if self._closed:
            await self.let_go(session)
        else:
            self.idle.keep(history.fingerprint(turn, run.told), session)


class _TurnWork:
    """One turn, and the session that works on it."""

    def __init__(self, backend: AcpBackend, turn: Turn) -> None:
        self._backend = backend
        self._turn = turn
        self._session: Any = None

    async def work(self, run: AgentRun) -> None:
        turn, backend = self._turn, self._backend
        session = await self._prompted(run)
        if run.lacks_call and not session.saw_tools:
            problem = (
                f"{backend.profile.title} did not look at the client's tools: "
                "it seems to ignore the MCP servers of a session."
            )
            raise ToolwireError("no_tool_call", problem, param="tool_choice")
        if run.failed or not session.alive:
            await backend.let_go(session)
        else:
            await backend.keep(turn, run, session)

    async def _prompted(self, run: AgentRun) -> Any:
        """Prompts the session that had this conversation, or a fresh one if it is missing or dies."""
        turn, known = self._turn, len(run.told)
        self._session = session = await self._backend.waiting(turn)
        if session is not None:
            try:
                run.reason = await session.prompt(
                    run, _blocks(history.news(turn.items), turn, session, history.next_prompt(turn))
                )
                return session
            except ToolwireError:
                if session.alive or run.called or len(run.told) != known:
                    raise
                await self._backend.let_go(session)
        self._session = session = await self._backend.fresh(turn, run)
        run.reason = await session.prompt(run, _blocks(turn.items, turn, session, history.fresh_prompt(turn)))
        return session

    async def stop(self) -> None:
        if self._session is not None:
            await self._backend.let_go(self._session)


def _blocks(items: Sequence[Item], turn: Turn, session: Any, text: str) -> list[Mapping[str, Any]]:
    """The prompt's images and text. An agent that takes no images misses those of earlier turns."""
    found = history.images(items)
    if found and not session.takes_images:
        if history.images(history.news(turn.items)):
            raise ToolwireError("unsupported_value", "This agent takes no images.")
        found = []
    return [
        *(block for image in found if (block := _block(image)) is not None),
        {"type": "text", "text": text},
    ]


def _block(image: ImagePart) -> Mapping[str, Any] | None:
    head, mark, data = (image.url or "").partition(";base64,")
    return {"type": "image", "data": data, "mimeType": head.removeprefix("data:")} if mark else None


START: dict[str, tuple[str, ...]] = {
    "opencode": ("opencode", "acp"),
    "gemini": ("gemini", "--acp"),
    "codex-acp": ("codex-acp",),
    "claude-code-acp": ("claude-code-acp",),
    "cursor": ("cursor-agent", "acp"),
}
"""The command of each known agent, by profile."""


def installed() -> Mapping[str, tuple[str, ...]]:
    """The known agents on PATH: profile → command."""
    return {name: command for name, command in START.items() if name in PROFILES and shutil.which(command[0])}


async def inspect(options: AcpOptions) -> dict[str, Any]:
    """The facts for `toolwire doctor`. Starts the agent, but does not ask its model."""
    profile = profile_of(options.profile, options.command)
    facts: dict[str, Any] = {
        "installed": False,
        "profile": profile.name,
        "title": profile.title,
        "install": profile.install,
        "problem": None,
    }
    try:
        from toolwire.backends.acp.session import AcpSession
    except ImportError:
        return {**facts, "problem": MISSING}
    session = AcpSession(options, profile, ())
    try:
        find(options, profile)
        facts["installed"] = True
        await session.open()
    except ToolwireError as error:
        facts["problem"] = error.failure.message
    finally:
        await session.close()
    return facts

"""Any agent of the Agent Client Protocol as a backend."""

from __future__ import annotations

import asyncio
import shutil
from importlib.util import find_spec
from os.path import expanduser
from typing import Any

from toolwire.backends.acp.profiles import AcpOptions, profile_of
from toolwire.backends.agents.backend import AgentBackend
from toolwire.backends.agents.run import AgentRun
from toolwire.core.errors import ToolwireError, unavailable
from toolwire.settings.extras import add_extra


def _missing() -> str:
    return f"The backend acp needs the extra 'acp': {add_extra('acp')}"


class AcpBackend(AgentBackend[Any]):
    """A configured agent. Each session is a separate process of the agent."""

    def __init__(self, id: str, options: AcpOptions) -> None:
        super().__init__(id, options)
        self.options = options
        self.profile = profile_of(options.profile, options.command)

    async def ready(self) -> bool:
        program = expanduser(self.options.command[0])
        return shutil.which(program, path=self.options.env.get("PATH")) is not None

    async def _new_session(self, run: AgentRun) -> Any:
        try:
            from toolwire.backends.acp.session import AcpSession
        except ImportError as error:
            raise unavailable(_missing()) from error
        session = AcpSession(self.options, self.profile, run.turn.offered())
        self.live.add(session)
        opening = asyncio.ensure_future(session.open())
        try:
            # `open` has its own limit, `start_timeout_s`. While it runs, `timeout_s` must not end the run.
            while not (await asyncio.wait({opening}, timeout=self.options.timeout_s / 4))[0]:
                run.alive()
            opening.result()
        except BaseException:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            self.live.discard(session)
            raise
        return session


def lacking(options: AcpOptions) -> tuple[str, str] | None:
    """Returns what an agent lacks (the extra or its command) and how to get it; None if it lacks nothing."""
    if find_spec("acp") is None:
        return "the extra 'acp' is not installed", add_extra("acp")
    program = expanduser(options.command[0])
    if shutil.which(program, path=options.env.get("PATH")) is None:
        how = profile_of(options.profile, options.command).install or "install the agent"
        return f"there is no command {program!r}", f"{how}, or correct the model's command"
    return None


async def inspect(options: AcpOptions) -> tuple[str, str]:
    """Returns the agent's title and a problem ("" if none), for `toolwire doctor`.

    This opens a session, but sends no prompt.
    """
    profile = profile_of(options.profile, options.command)
    try:
        from toolwire.backends.acp.session import AcpSession
    except ImportError:
        return profile.title, _missing()
    session = AcpSession(options, profile, ())
    try:
        await session.open()
    except ToolwireError as error:
        return profile.title, error.failure.message
    finally:
        await session.close()
    return profile.title, ""

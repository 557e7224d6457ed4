"""`toolwire tour --terminal`: the tour's conversation, with a hint before each approval request."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass
from typing import Any

from toolwire.backends.scripted.tour import END, LABEL, MODEL, OPENING, tour_model
from toolwire.settings.types import ConfigError, Settings
from toolwire.surfaces.terminal.screen import Screen, TerminalScreen, quiet_keyboard, screen_for_person, show
from toolwire.surfaces.terminal.session import TerminalSession, opened, person_is_here
from toolwire.surfaces.terminal.surface import read_line
from toolwire.tools.approvals import Surface
from toolwire.tools.contract import Approval
from toolwire.tools.loop import Conversation
from toolwire.tools.tour import hint

GO_ON = "Go on."


@dataclass(frozen=True, slots=True)
class HintSurface:
    """Shows the tour's hint for each approval request, and then lets `surface` ask the person."""

    surface: Surface
    screen: Screen

    async def ask(self, approvals: Sequence[Approval]) -> bool:
        self.screen.rows([("label", f"\n{hint(approval)}") for approval in approvals])
        return await self.surface.ask(approvals)


def run_tour(settings: Settings) -> int:
    """Runs the tour until its end, or until the person ends it. `settings`: the tour's own settings."""
    if not person_is_here():
        raise ConfigError("tour --terminal: this is not a terminal; toolwire tour opens the web page instead")
    return asyncio.run(_tour(settings))


async def _tour(settings: Settings) -> int:
    async with opened(settings, None, "tour") as session:
        session.gateway.catalog.add_unlisted(tour_model(), "scripted")
        await Tour(session).run()
    return 0


class Tour:
    """The conversation of the tour. Ctrl-C stops a turn, or ends the tour between two turns."""

    def __init__(self, session: TerminalSession) -> None:
        self._screen = screen_for_person()
        self._task: asyncio.Future[Any] | None = None
        surface = session.surface(self._screen, self._stop, person=True)
        self._conversation: Conversation = session.conversation(MODEL, HintSurface(surface, self._screen))

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._stop)
        try:
            self._screen.rows([("dim", f"{MODEL} ({LABEL}) · your own notes are not touched")])
            await self._walk()
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    async def _walk(self) -> None:
        text: str = OPENING
        while True:
            with quiet_keyboard() if isinstance(self._screen, TerminalScreen) else nullcontext():
                stopped = await self._until_done(self._play(text))
            self._screen.pause()
            if stopped:
                self._screen.rows([("warning", "stopped")])
            elif self._over:
                return
            self._screen.rows([("label", "Enter continues the tour, Ctrl-D ends it.")])
            if await self._until_done(read_line()) or self._task is None or self._task.result() is None:
                return
            text = GO_ON

    async def _until_done(self, doing: Any) -> bool:
        """Waits for a turn or for a line of input. Returns whether the person stopped it."""
        self._task = asyncio.ensure_future(doing)
        await asyncio.wait({self._task})
        if not self._task.cancelled() and (error := self._task.exception()) is not None:
            raise error
        return self._task.cancelled()

    async def _play(self, text: str) -> None:
        async with aclosing(self._conversation.turn(text)) as happenings:
            async for happening in happenings:
                show(self._screen, happening)

    @property
    def _over(self) -> bool:
        return END in str(self._conversation.messages[-1].get("content"))

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

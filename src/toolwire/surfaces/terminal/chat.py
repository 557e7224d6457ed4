"""`toolwire chat`: prompts and turns, until the person ends it.

Ctrl-C stops the turn and keeps the chat: what was said stays, open questions lapse. Ctrl-D at the prompt ends it. Where there is no terminal, lines
come in and plain text goes out, and tools are denied, for nobody can be asked.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

from toolwire.config import Settings
from toolwire.surfaces.shown import one_line
from toolwire.surfaces.terminal import commands
from toolwire.surfaces.terminal.cards import Row
from toolwire.surfaces.terminal.screen import PlainScreen, Screen, TerminalScreen, quiet_keyboard, require_extra, show
from toolwire.surfaces.terminal.session import Session, ToolSource, opened, person_is_here, settings_of
from toolwire.surfaces.terminal.surface import surface_for
from toolwire.tools.approvals import LIFETIME_S
from toolwire.tools.loop import Conversation

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer

HISTORY = "chat_history"


def run_chat(arguments: argparse.Namespace, source: ToolSource | None = None, lifetime_s: float = LIFETIME_S) -> int:
    require_extra("chat")
    return asyncio.run(_chat(arguments, settings_of(arguments), source, lifetime_s))


async def _chat(arguments: argparse.Namespace, settings: Settings, source: ToolSource | None, lifetime_s: float) -> int:
    async with opened(settings, arguments.vault, "chat", source, lifetime_s) as session:
        person = person_is_here()
        chat = Chat(session, session.model(arguments.model), TerminalScreen() if person else PlainScreen(), person)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, chat.stop)
        try:
            await chat.run(Prompt(session, chat) if person else _piped_line)
        finally:
            loop.remove_signal_handler(signal.SIGINT)
    return 0


class Chat:
    """A conversation, its screen, and the turn that runs."""

    def __init__(self, session: Session, model: str, screen: Screen, person: bool) -> None:
        self.session = session
        self.screen = screen
        self.model = model
        self.over = False
        self._surface = surface_for(session.approvals, (), lambda: session.toolbox, screen, self.stop, person=person, by="chat")
        self._turn: asyncio.Task[None] | None = None
        self.conversation: Conversation = session.conversation(model, self._surface)

    async def run(self, prompt: Callable[[], Awaitable[str | None]]) -> None:
        """`prompt` gives the next line; None: the person ends the chat."""
        vault = f" · vault: {self.session.vault}" if self.session.vault else ""
        self.screen.rows([("dim", f"{self.model}{vault} · /help"), *self.withheld()])
        while not self.over:
            line = await prompt()
            if line is None:
                return
            if line.strip().startswith("/"):
                self.screen.rows(await commands.run(self, line))
            elif line.strip():
                await self.turn(line)

    async def turn(self, text: str) -> None:
        """One turn. Stopping it stops the model and the tools, not the chat."""
        self._turn = asyncio.ensure_future(self._play(text))
        try:
            with quiet_keyboard():
                await asyncio.wait({self._turn})
            self.screen.pause()
            if self._turn.cancelled():
                self.screen.rows([("warning", "stopped")])
            elif (error := self._turn.exception()) is not None:
                raise error
        finally:
            self._turn = None

    async def _play(self, text: str) -> None:
        async with aclosing(self.conversation.turn(text)) as happenings:
            async for happening in happenings:
                show(self.screen, happening)

    def stop(self) -> None:
        if self._turn is not None:
            self._turn.cancel()

    # --- what the slash commands change --------------------------------------------------------------------------------------------------------

    def use_model(self, model: str) -> None:
        self.model = model
        self.use_tools()

    def use_tools(self) -> None:
        """The same conversation, with the model and the tools of now."""
        messages = [one for one in self.conversation.messages if one["role"] != "system"]
        self.conversation = self.session.conversation(self.model, self._surface, messages=messages)

    def withheld(self) -> list[Row]:
        """A row where the vault is kept from the model of now."""
        told = self.session.withheld(self.model)
        return [("warning", told)] if told else []

    def start_over(self) -> None:
        self.conversation = self.session.conversation(self.model, self._surface)


class Prompt:
    """The line editor with its history. Ctrl-C clears the line, Ctrl-D ends the chat."""

    def __init__(self, session: Session, chat: Chat) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import FileHistory, InMemoryHistory
        from prompt_toolkit.key_binding import KeyBindings

        bindings = KeyBindings()
        bindings.add("escape", "enter")(lambda event: event.current_buffer.insert_text("\n"))
        kept = history_file(session.store.path)
        self._chat = chat
        self._session: PromptSession[str] = PromptSession(
            history=FileHistory(kept) if kept is not None else InMemoryHistory(),
            completer=_completer(chat),
            complete_while_typing=False,
            key_bindings=bindings,
            bottom_toolbar=self._toolbar,
        )

    async def __call__(self) -> str | None:
        while True:
            try:
                return await self._session.prompt_async("› ", handle_sigint=False)
            except KeyboardInterrupt:
                self._chat.screen.rows([("dim", "ctrl-d or /quit ends the chat")])
            except EOFError:
                return None

    def _toolbar(self) -> str:
        vault = self._chat.session.vault
        return one_line(f" {self._chat.model}{f' · {vault.name}' if vault else ' · no vault'} · /help ")


def _completer(chat: Chat) -> Completer:
    from collections.abc import Iterable

    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document

    class Slash(Completer):
        def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
            text = document.text_before_cursor
            name, space, rest = text.partition(" ")
            if not space and text.startswith("/"):
                yield from (Completion(one, -len(text)) for one in commands.COMMANDS if one.startswith(text))
            elif name == "/model":
                yield from (Completion(one, -len(rest)) for one in chat.session.gateway.catalog.listed() if one.startswith(rest))

    return Slash()


def history_file(store: str) -> Path | None:
    """Beside the store, readable by its owner only; a store in memory keeps no history."""
    if store == ":memory:":
        return None
    path = Path(store).with_name(HISTORY)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    path.chmod(0o600)
    return path


async def _piped_line() -> str | None:
    return await asyncio.to_thread(sys.stdin.readline) or None

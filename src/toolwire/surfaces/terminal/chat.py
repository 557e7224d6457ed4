"""`toolwire chat`: reads prompts and runs turns until the person ends the chat.

Ctrl-C stops the turn but not the chat: the text of the answer stays, and approval requests expire. Ctrl-D at
the prompt ends the chat. Without a terminal, the chat reads lines, writes plain text, and denies tool calls,
because nobody can be asked.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from toolwire.core.display import counted, one_line
from toolwire.core.errors import ToolwireError
from toolwire.settings.types import ConfigError, Settings
from toolwire.surfaces import conversation_note
from toolwire.surfaces.cards import Row
from toolwire.surfaces.terminal.approvals import grant_lines
from toolwire.surfaces.terminal.screen import (
    PlainScreen,
    Screen,
    TerminalScreen,
    quiet_keyboard,
    require_extra,
    show,
)
from toolwire.surfaces.terminal.session import (
    TerminalSession,
    ToolSource,
    opened,
    person_is_here,
    settings_of,
)
from toolwire.tools.approvals import LIFETIME_S
from toolwire.tools.loop import Conversation
from toolwire.vault.edits import Edits
from toolwire.vault.paths import Vault
from toolwire.vault.policy import PathRefused

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer

# --- slash commands ---


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """A command of the chat, such as `/model`.

    `run` gets the chat and the text after the command's name, and returns the rows to show.
    """

    usage: str
    help: str
    run: Callable[[Chat, str], Awaitable[list[Row]]]


async def _model(chat: Chat, rest: str) -> list[Row]:
    if not rest:
        known = chat.session.gateway.catalog.listed()
        return [("plain", f"{'›' if name == chat.model else ' '} {name}") for name in known[:40]]
    chat.use_model(chat.session.model(rest))
    return [("dim", f"model: {chat.model}"), *chat.withheld()]


async def _vault(chat: Chat, rest: str) -> list[Row]:
    if rest == "off":
        await chat.session.close_vault()
        chat.use_tools()
    elif rest:
        await chat.session.open_vault(rest)
        chat.use_tools()
    toolbox = chat.session.toolbox
    if toolbox is None:
        return [("plain", "no vault is open; /vault DIR opens one")]
    tools: list[Row] = chat.withheld() or [("dim", f"tools: {', '.join(toolbox.tools)}")]
    return [("plain", f"vault: {chat.session.vault}"), *tools]


async def _servers(chat: Chat, rest: str) -> list[Row]:
    await chat.session.refresh_tools()
    rows: list[Row] = []
    for one in chat.session.server_states():
        tools = counted(len(one.tools), "tool")
        rows.append(("plain", f"{one.name}  {one.state}  {tools}  {one_line(one.address, 120)}"))
        rows += [("dim", f"  {one.name}__{one_line(name, 80)}") for name in one.tools]
        rows += [
            ("warning", f"  not offered until you agree: {one_line(it.tool, 80)}") for it in one.withheld
        ]
        rows += [("warning", f"  {one_line(one.error, 300)}")] if one.error else []
    return rows or [("plain", "no MCP server is configured: add a table [mcp.NAME] to the settings")]


async def _grants(chat: Chat, rest: str) -> list[Row]:
    grants = await chat.session.approvals.records.grants()
    word, _, which = rest.partition(" ")
    if word == "revoke" and which.strip():
        named = which.strip()
        ids = [one.id for number, one in enumerate(grants, 1) if named in (str(number), one.id)]
        if not ids or not await chat.session.approvals.revoke(ids[0]):
            return [("warning", f"there is no grant {named}")]
        return [("dim", f"revoked: {ids[0]}")]
    if rest:
        return [("warning", "/grants, or /grants revoke NUMBER")]
    if not grants:
        return [("plain", "there are no grants")]
    head, *lines = await grant_lines(grants, chat.session.approvals.proofs)
    rows: list[Row] = [("plain", f"{number:>3} {line}") for number, line in enumerate(lines, 1)]
    return [("label", f"    {head}"), *rows, ("dim", "/grants revoke NUMBER")]


async def _save(chat: Chat, rest: str) -> list[Row]:
    if not rest:
        return [("warning", "/save: the name of the note is missing")]
    text = conversation_note.render(chat.conversation.messages, chat.model, chat.conversation.edited)
    settings, root = chat.session.settings.vault, chat.session.vault
    try:
        path = Path(rest if rest.lower().endswith(".md") else rest + ".md").expanduser()
        if root is None:
            path = Path.cwd() / path
            saved = _write_new(Vault(path.parent), path.name, text)
        else:
            saved = _write_new(Vault(root, settings.include, settings.exclude), str(path), text)
    except PathRefused as refused:
        return [("warning", f"not saved: {refused}")]
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: this user has no home folder
        return [("warning", f"not saved: {getattr(error, 'strerror', None) or error}")]
    return [("dim", f"saved: {saved}; toolwire note continues the conversation")]


def _write_new(vault: Vault, path: str, text: str) -> Path:
    """Writes a new note and returns its path. Raises `PathRefused` if the vault's rules refuse the path."""
    with vault:
        edits = Edits(vault, clean=False)
        change = edits.plan_write(path, text.encode("utf-8", "replace").decode())
        if not change.creates:
            raise PathRefused(path, "exists; choose another name", "exists")
        if change.new_folders:
            raise PathRefused(path, f"there is no folder {change.new_folders[0]} in the vault", "missing")
        return vault.root / edits.apply(change)


async def _new(chat: Chat, rest: str) -> list[Row]:
    chat.start_over()
    return [("dim", "a new conversation")]


async def _help(chat: Chat, rest: str) -> list[Row]:
    rows: list[Row] = [("plain", f"{one.usage:<28} {one.help}") for one in COMMANDS.values()]
    return [*rows, ("dim", "alt-enter: a new line · ctrl-c: stop the turn · ctrl-d: end the chat")]


async def _quit(chat: Chat, rest: str) -> list[Row]:
    chat.over = True
    return []


COMMANDS: dict[str, SlashCommand] = {
    "/model": SlashCommand("/model [ID]", "list the models, or switch to another one", _model),
    "/vault": SlashCommand("/vault [DIR|off]", "show, open or close the vault", _vault),
    "/servers": SlashCommand("/servers", "show the MCP servers and their tools", _servers),
    "/grants": SlashCommand("/grants [revoke NUMBER]", "list or revoke remembered grants", _grants),
    "/save": SlashCommand("/save NOTE", "write the conversation into a Markdown note", _save),
    "/new": SlashCommand("/new", "start a new conversation", _new),
    "/help": SlashCommand("/help", "show this list", _help),
    "/quit": SlashCommand("/quit", "end the chat", _quit),
}


async def run(chat: Chat, line: str) -> list[Row]:
    """Runs a slash command and returns the rows to show. An error becomes a row."""
    name, _, rest = line.strip().partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        return [("warning", f"there is no command {name}; /help lists the commands")]
    try:
        return await command.run(chat, rest.strip())
    except (ConfigError, ToolwireError) as error:
        return [("warning", str(error))]


HISTORY = "chat_history"


def run_chat(
    arguments: argparse.Namespace, source: ToolSource | None = None, lifetime_s: float = LIFETIME_S
) -> int:
    require_extra("chat")
    return asyncio.run(_chat(arguments, settings_of(arguments), source, lifetime_s))


async def _chat(
    arguments: argparse.Namespace, settings: Settings, source: ToolSource | None, lifetime_s: float
) -> int:
    async with opened(settings, arguments.vault, "chat", source, lifetime_s) as session:
        person = person_is_here()
        screen = TerminalScreen() if person else PlainScreen()
        chat = Chat(session, session.model(arguments.model), screen, person)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, chat.stop)
        try:
            await chat.run(Prompt(session, chat) if person else _piped_line)
        finally:
            loop.remove_signal_handler(signal.SIGINT)
    return 0


class Chat:
    """A conversation, its screen, and the turn in progress."""

    def __init__(self, session: TerminalSession, model: str, screen: Screen, person: bool) -> None:
        self.session = session
        self.screen = screen
        self.model = model
        self.over = False
        self._surface = session.surface(screen, self.stop, person=person)
        self._turn: asyncio.Task[None] | None = None
        self.conversation: Conversation = session.conversation(model, self._surface)

    async def run(self, prompt: Callable[[], Awaitable[str | None]]) -> None:
        """Handles the person's lines until the chat ends.

        `prompt` returns the next line, or None if the person ends the chat.
        """
        vault = f" · vault: {self.session.vault}" if self.session.vault else ""
        names = ", ".join(one.name for one in self.session.server_states())
        servers = f" · MCP servers: {names}" if names else ""
        self.screen.rows([("dim", f"{self.model}{vault}{servers} · /help"), *self.withheld()])
        starting = asyncio.ensure_future(self.session.refresh_tools())
        try:
            await self._read(prompt)
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)

    async def _read(self, prompt: Callable[[], Awaitable[str | None]]) -> None:
        while not self.over:
            line = await prompt()
            if line is None:
                return
            if line.strip().startswith("/"):
                self.screen.rows(await run(self, line))
            elif line.strip():
                await self.turn(line)

    async def turn(self, text: str) -> None:
        """Runs one turn. Ctrl-C stops the turn, with the model and the tools, but not the chat."""
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
        if await self.session.refresh_tools() or self.conversation.executor is None:
            self.use_tools()
        self.screen.rows([("warning", line) for line in self.session.new_problems()])
        async with aclosing(self.conversation.turn(text)) as happenings:
            async for happening in happenings:
                show(self.screen, happening, self.session.location(self.model))

    def stop(self) -> None:
        if self._turn is not None:
            self._turn.cancel()

    # --- what the slash commands change ---

    def use_model(self, model: str) -> None:
        self.model = model
        self.use_tools()

    def use_tools(self) -> None:
        """Continues the conversation with the current model and tools."""
        messages = [one for one in self.conversation.messages if one["role"] != "system"]
        edited = self.conversation.edited
        self.conversation = self.session.conversation(self.model, self._surface, messages=messages)
        self.conversation.edited = edited

    def withheld(self) -> list[Row]:
        """Returns a row that says why the current model gets no tools; no rows if it gets them."""
        line = self.session.withheld(self.model)
        return [("warning", line)] if line else []

    def start_over(self) -> None:
        self.conversation = self.session.conversation(self.model, self._surface)


class Prompt:
    """The line editor with its history. Ctrl-C clears the line, Ctrl-D ends the chat."""

    def __init__(self, session: TerminalSession, chat: Chat) -> None:
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
                yield from (Completion(one, -len(text)) for one in COMMANDS if one.startswith(text))
            elif name == "/model":
                known = chat.session.gateway.catalog.listed()
                yield from (Completion(one, -len(rest)) for one in known if one.startswith(rest))

    return Slash()


def history_file(store: str) -> Path | None:
    """Returns the file for the history of prompts, next to the store. Only its owner can read the file.

    Returns None if the store is in memory; the chat then keeps no history.
    """
    if store == ":memory:":
        return None
    path = Path(store).with_name(HISTORY)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    path.chmod(0o600)
    return path


async def _piped_line() -> str | None:
    return await asyncio.to_thread(sys.stdin.readline) or None

"""`toolwire chat`: prompts and turns, until the person ends it.

Ctrl-C stops the turn and keeps the chat: what was said stays, open questions lapse. Ctrl-D at the prompt ends it. Where there is no terminal, lines
come in and plain text goes out, and tools are denied, for nobody can be asked.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from toolwire.core.display import one_line
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
from toolwire.surfaces.terminal.surface import surface_for
from toolwire.tools.approvals import LIFETIME_S
from toolwire.tools.loop import Conversation
from toolwire.vault.edits import Edits
from toolwire.vault.paths import Vault
from toolwire.vault.policy import PathRefused

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer

# --- commands ------------------------------------------------------------
#
# The slash commands of a chat, as a table. Each gets the chat and what stands behind its name, and answers
# with rows.


@dataclass(frozen=True, slots=True)
class SlashCommand:
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
    return [
        ("plain", f"vault: {chat.session.vault}"),
        *(chat.withheld() or [("dim", f"tools: {', '.join(toolbox.tools)}")]),
    ]


async def _grants(chat: Chat, rest: str) -> list[Row]:
    grants = await chat.session.approvals.records.grants()
    word, _, which = rest.partition(" ")
    if word == "revoke" and which.strip():
        named = which.strip()
        fitting = [one.id for place, one in enumerate(grants, 1) if named in (str(place), one.id)]
        if not fitting or not await chat.session.approvals.revoke(fitting[0]):
            return [("warning", f"there is no grant {named}")]
        return [("dim", f"revoked: {fitting[0]}")]
    if rest:
        return [("warning", "/grants, or /grants revoke NUMBER")]
    if not grants:
        return [("plain", "nothing is remembered")]
    head, *lines = grant_lines(grants)
    return [
        ("label", f"    {head}"),
        *(("plain", f"{place:>3} {line}") for place, line in enumerate(lines, 1)),
        ("dim", "/grants revoke NUMBER"),
    ]


async def _save(chat: Chat, rest: str) -> list[Row]:
    if not rest:
        return [("warning", "/save NOTE: the note's name is missing")]
    text = conversation_note.render(chat.conversation.messages, chat.model)
    path = Path(rest if rest.lower().endswith(".md") else rest + ".md")
    try:
        path = path.expanduser()
        if chat.session.vault is not None:
            path = _write_into(chat, path, text)
        else:
            path = Path.cwd() / path
            _write_new(path, text.encode("utf-8", "replace"))
    except FileExistsError:
        return [("warning", f"{path} exists; choose another name")]
    except PathRefused as refused:
        return [("warning", f"not saved: {refused}")]
    except (OSError, ValueError, RuntimeError) as error:  # the latter: no such user's home
        return [("warning", f"{path}: {getattr(error, 'strerror', None) or error}")]
    return [("dim", f"saved: {path}; toolwire note continues it")]


def _write_into(chat: Chat, path: Path, text: str) -> Path:
    """Writes a new note of the vault, by the vault's own rules; gives where it lies. Raises `PathRefused`, or `FileExistsError`."""
    session = chat.session
    assert session.vault is not None
    with Vault(session.vault, session.settings.vault.include, session.settings.vault.exclude) as vault:
        edits = Edits(vault, clean=False)
        change = edits.plan_write(str(path), text.encode("utf-8", "replace").decode())
        if not change.creates:
            raise FileExistsError
        if change.new_folders:
            raise PathRefused(
                str(path), f"there is no folder {change.new_folders[0]} in the vault", "missing"
            )
        return session.vault / edits.apply(change)


def _write_new(path: Path, data: bytes) -> None:
    """The whole file or none, and never over another."""
    temporary = path.with_name(
        f".toolwire-{secrets.token_hex(8)}.tmp"
    )  # what is left of it when this is killed, the vault takes away
    with os.fdopen(
        os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb"
    ) as note:
        try:
            note.write(data)
            note.flush()
            os.fsync(note.fileno())
            try:
                os.link(temporary, path)
            except FileExistsError:
                raise
            except OSError:  # a file system without links
                if os.path.lexists(path):
                    raise FileExistsError from None
                os.rename(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


async def _new(chat: Chat, rest: str) -> list[Row]:
    chat.start_over()
    return [("dim", "a new conversation")]


async def _help(chat: Chat, rest: str) -> list[Row]:
    rows: list[Row] = [("plain", f"{one.usage:<28} {one.help}") for one in COMMANDS.values()]
    return [*rows, ("dim", "alt-enter: a new line · ctrl-c: stop the turn · ctrl-d: end")]


async def _quit(chat: Chat, rest: str) -> list[Row]:
    chat.over = True
    return []


COMMANDS: dict[str, SlashCommand] = {
    "/model": SlashCommand("/model [ID]", "list the models, or talk to another one", _model),
    "/vault": SlashCommand("/vault [DIR|off]", "show, open or close the vault", _vault),
    "/grants": SlashCommand("/grants [revoke NUMBER]", "list what is remembered, or take it back", _grants),
    "/save": SlashCommand("/save NOTE", "write the conversation into a Markdown note", _save),
    "/new": SlashCommand("/new", "start over", _new),
    "/help": SlashCommand("/help", "this list", _help),
    "/quit": SlashCommand("/quit", "end", _quit),
}


async def run(chat: Chat, line: str) -> list[Row]:
    """Runs one; whatever is wrong with it is a row."""
    name, _, rest = line.strip().partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        return [("warning", f"there is no {name}; /help lists what there is")]
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
        chat = Chat(
            session, session.model(arguments.model), TerminalScreen() if person else PlainScreen(), person
        )
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, chat.stop)
        try:
            await chat.run(Prompt(session, chat) if person else _piped_line)
        finally:
            loop.remove_signal_handler(signal.SIGINT)
    return 0


class Chat:
    """A conversation, its screen, and the turn that runs."""

    def __init__(self, session: TerminalSession, model: str, screen: Screen, person: bool) -> None:
        self.session = session
        self.screen = screen
        self.model = model
        self.over = False
        self._surface = surface_for(
            session.approvals, (), lambda: session.toolbox, screen, self.stop, person=person, by="chat"
        )
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
                self.screen.rows(await run(self, line))
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
                yield from (
                    Completion(one, -len(rest))
                    for one in chat.session.gateway.catalog.listed()
                    if one.startswith(rest)
                )

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

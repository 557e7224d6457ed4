"""The slash commands of a chat, as a table. Each gets the chat and what stands behind its name, and answers with rows."""

from __future__ import annotations

import os
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from toolwire.config import ConfigError
from toolwire.errors import ToolwireError
from toolwire.surfaces.terminal import conversation_note
from toolwire.surfaces.terminal.approvals import grant_lines
from toolwire.surfaces.terminal.cards import Row
from toolwire.vault import Edits, PathRefused, Vault

if TYPE_CHECKING:
    from toolwire.surfaces.terminal.chat import Chat


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
    return [("plain", f"vault: {chat.session.vault}"), *(chat.withheld() or [("dim", f"tools: {', '.join(toolbox.tools)}")])]


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
    return [("label", f"    {head}"), *(("plain", f"{place:>3} {line}") for place, line in enumerate(lines, 1)), ("dim", "/grants revoke NUMBER")]


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
            raise PathRefused(str(path), f"there is no folder {change.new_folders[0]} in the vault", "missing")
        return session.vault / edits.apply(change)


def _write_new(path: Path, data: bytes) -> None:
    """The whole file or none, and never over another."""
    temporary = path.with_name(f".toolwire-{secrets.token_hex(8)}.tmp")  # what is left of it when this is killed, the vault takes away
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as note:
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

"""`toolwire note`: continues a conversation that lives in a note. The answer is appended to the file as it is written.

Rules: what the person wrote is never rewritten, only added to. The heading and the first words go in with one write; before every further one the
file must be as it was left. When somebody changed it meanwhile, or an editor put another file in its place, the answer goes on in a file of its own
beside it, whole.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from contextlib import aclosing
from pathlib import Path

from toolwire.config import ConfigError, Settings
from toolwire.surfaces.terminal import conversation_note, rules
from toolwire.surfaces.terminal.screen import PlainScreen, Screen, screen_for_person, show
from toolwire.surfaces.terminal.session import ToolSource, interrupt, opened, person_is_here, settings_of
from toolwire.surfaces.terminal.shown import one_line
from toolwire.surfaces.terminal.surface import surface_for
from toolwire.tools.loop import Called, Conversation, Ended, Said

LARGEST = 4 * 1024 * 1024


def run_note(arguments: argparse.Namespace, source: ToolSource | None = None) -> int:
    return asyncio.run(_note(arguments, settings_of(arguments), source))


class Appender:
    """Appends to a file that others may change. `path` is what was read, `before` its bytes."""

    def __init__(self, path: Path, before: bytes) -> None:
        self._path = path
        self._before = before
        self._written: list[str] = []
        self._file: int | None = None
        self._size = len(before)
        self.moved_to: Path | None = None

    def write(self, text: str) -> None:
        if not text:
            return
        self._written.append(text)
        if self.moved_to is None and not self._append(text):
            self.moved_to = self._beside()
            self._close()
            self._file = os.open(self.moved_to, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            text = "".join(self._written).lstrip("\n")
        if self.moved_to is not None:
            self._all(text)

    def close(self) -> None:
        if self._file is not None:
            os.fsync(self._file)
        self._close()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _append(self, text: str) -> bool:
        """False: the file is not the one that was left."""
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
                if self._path.read_bytes() != self._before:
                    return False
            held, named = os.fstat(self._file), os.stat(self._path)
        except OSError:
            return False
        if (held.st_dev, held.st_ino) != (named.st_dev, named.st_ino) or held.st_size != self._size:
            return False
        self._size += self._all(text)
        return True

    def _all(self, text: str) -> int:
        assert self._file is not None
        data = text.encode("utf-8", "replace")
        sent = 0
        while sent < len(data):
            sent += os.write(self._file, data[sent:])
        return len(data)

    def _beside(self) -> Path:
        for number in range(1, 1000):
            path = self._path.with_name(f"{self._path.stem} (answer {number}){self._path.suffix}")
            if not os.path.lexists(path):
                return path
        raise ConfigError(f"{self._path} was changed while it was answered, and no free name was found for the answer")


def _read(path: Path) -> tuple[bytes, str]:
    try:
        if not path.is_file():
            raise ConfigError(f"{path} is not a file")
        if path.stat().st_size > LARGEST:
            raise ConfigError(f"{path} is too large for a conversation")
        raw = path.read_bytes()
        return raw, raw.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{path} can not be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text") from error


async def _note(arguments: argparse.Namespace, settings: Settings, source: ToolSource | None) -> int:
    path = Path(arguments.note)
    raw, text = _read(path)
    told = conversation_note.parse(text)
    if not told.open:
        raise ConfigError(f"{path}: nothing to answer; write under the last role::user heading")
    if not os.access(path, os.W_OK):
        raise ConfigError(f"{path} can not be written")
    async with opened(settings, arguments.vault, "note", source) as session:
        model = session.model(arguments.model or told.model)
        person = person_is_here()
        allowed = rules.parse(arguments.allow, session.toolbox.tools if session.toolbox is not None else ())
        screen = screen_for_person(sys.stdout) if person else PlainScreen(sys.stderr)
        surface = surface_for(session.approvals, allowed, lambda: session.toolbox, screen, interrupt, person=person, by="note")
        conversation = session.conversation(model, surface, messages=told.history(), options=told.options)
        print(f"{one_line(model)} answers into {path}", file=sys.stderr, flush=True)
        appender = Appender(path, raw)
        try:
            ended = await _answer(conversation, told, appender, screen, text)
        finally:
            appender.close()
            if appender.moved_to is not None:
                print(f"{path} was changed meanwhile; the answer is in {appender.moved_to}", file=sys.stderr)
        return 1 if ended in ("failed", "budget") or appender.moved_to is not None else 0


async def _answer(conversation: Conversation, told: conversation_note.NoteConversation, appender: Appender, screen: Screen, text: str) -> str:
    """The turn, written into the note. However it ends, the note can go on: what was said is closed by the person's next heading."""
    guard, begun, ended = conversation_note.Guard(), False, "failed"
    gap = "\n" * max(0, 2 - (len(text) - len(text.rstrip("\n"))))
    header = gap + conversation_note.header("assistant", told.heading, conversation.name).lstrip("\n")
    try:
        async with aclosing(conversation.turn(None)) as happenings:
            async for happening in happenings:
                if isinstance(happening, Said):
                    words = guard.feed(happening.text)
                    if words and not begun:
                        words, begun = header + words, True
                    appender.write(words)
                elif isinstance(happening, Called):
                    appender.write(guard.finish() + "\n\n" if begun else "")
                    show(screen, happening)
                else:
                    show(screen, happening)
                if isinstance(happening, Ended):
                    ended = happening.why
    finally:
        rest = guard.finish()
        if rest and not begun:
            rest, begun = header + rest, True
        if begun:
            appender.write(rest + conversation_note.header("user", told.heading))
    return ended

"""`toolwire note`: continues a conversation in a note.

The command appends the answer to the note while the model generates it, with the note's own line ends. It
never changes the person's text. The heading and the first words of the answer are written together. Before
each write, the command checks whether another program has changed or replaced the note. If so, the command
writes the whole answer to a new file in the same folder. If writing fails, for example because the disk is
full, the command removes the written part of the answer, and prints the whole answer.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from contextlib import aclosing
from pathlib import Path

from toolwire.core.display import one_line
from toolwire.settings.types import ConfigError, Settings
from toolwire.store.engine import disk_error
from toolwire.surfaces import conversation_note
from toolwire.surfaces.terminal.screen import PlainScreen, Screen, screen_for_person, show
from toolwire.surfaces.terminal.session import ToolSource, interrupt, opened, person_is_here, settings_of
from toolwire.tools.loop import Called, Conversation, Ended, SaidText
from toolwire.vault.edits import dominant
from toolwire.vault.paths import unix

LARGEST = 4 * 1024 * 1024


def run_note(arguments: argparse.Namespace, source: ToolSource | None = None) -> int:
    return asyncio.run(_note(arguments, settings_of(arguments), source))


class Appender:
    """Appends an answer to a note that other programs may change.

    `before`: the bytes of the note when it was read. `moved_to`: the new file with the answer, if another
    program has changed the note. `failed`: why the answer could not be written; "" if it was written.
    """

    def __init__(self, path: Path, before: bytes, newline: str = "\n") -> None:
        self._path = path
        self._before = before
        self._newline = newline
        self._written: list[str] = []
        self._words: list[str] = []
        self._file: int | None = None
        self._size = len(before)
        self.moved_to: Path | None = None
        self.failed = ""

    @property
    def words(self) -> str:
        """The text of the model, as far as it has arrived."""
        return "".join(self._words)

    def write(self, words: str, *, before: str = "", after: str = "") -> None:
        """Appends text of the model, between the headings `before` and `after`."""
        text = before + words + after
        if not text:
            return
        self._written.append(text)
        self._words.append(words)
        try:
            if not self.failed:
                self._write(text)
        except OSError as error:
            self._undo(error)

    def close(self) -> None:
        try:
            if self._file is not None:
                os.fsync(self._file)
        except OSError as error:
            self._undo(error)
        self._close()

    def _write(self, text: str) -> None:
        if self.moved_to is None and not self._unchanged():
            self._close()
            beside = self._beside()
            self._file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            self.moved_to, text = beside, "".join(self._written).lstrip("\n")
        assert self._file is not None
        data = text.replace("\n", self._newline).encode("utf-8", "replace")
        while data:
            sent = os.write(self._file, data)
            self._size += sent
            data = data[sent:]

    def _undo(self, error: OSError) -> None:
        """Removes the written part of the answer, unless another program has changed the note since then."""
        self.failed = disk_error(error)
        try:
            if self.moved_to is not None:
                os.unlink(self.moved_to)
            elif self._file is not None:
                if os.fstat(self._file).st_size != self._size:
                    raise OSError("it was changed meanwhile")
                os.ftruncate(self._file, len(self._before))
        except OSError as stays:
            where = self.moved_to or self._path
            self.failed += f"; a part of the answer stays in {where}: {disk_error(stays)}"
        self.moved_to = None
        self._close()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _unchanged(self) -> bool:
        """Whether the note has not been changed or replaced since the last write.

        Before the first write, opens the note and compares its bytes with the bytes that were read at first.
        """
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
                if self._path.read_bytes() != self._before:
                    return False
            held, named = os.fstat(self._file), os.stat(self._path)
        except OSError:
            return False
        return os.path.samestat(held, named) and held.st_size == self._size

    def _beside(self) -> Path:
        for number in range(1, 1000):
            path = self._path.with_name(f"{self._path.stem} (answer {number}){self._path.suffix}")
            if not os.path.lexists(path):
                return path
        raise OSError("the note was changed meanwhile, and there is no free name for a file with the answer")


def _read(path: Path) -> tuple[bytes, str]:
    try:
        if not path.is_file():
            raise ConfigError(f"{path} is not a file")
        if path.stat().st_size > LARGEST:
            raise ConfigError(f"{path} is too large for a conversation")
        raw = path.read_bytes()
        return raw, raw.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text") from error


async def _note(arguments: argparse.Namespace, settings: Settings, source: ToolSource | None) -> int:
    path = Path(arguments.note)
    raw, text = _read(path)
    parsed = conversation_note.parse(text)
    if not parsed.open:
        raise ConfigError(f"{path}: there is nothing to answer; write under the last role::user heading")
    if not os.access(path, os.W_OK):
        raise ConfigError(f"{path} cannot be written")
    async with opened(settings, arguments.vault, "note", source) as session:
        model = session.model(arguments.model or parsed.model)
        await session.refresh_tools(wait=True)
        session.print_problems()
        session.print_withheld(model)
        person = person_is_here()
        screen = screen_for_person(sys.stdout) if person else PlainScreen(sys.stderr)
        surface = session.surface(screen, interrupt, person=person, allow=arguments.allow)
        history = parsed.history()
        conversation = session.conversation(model, surface, messages=history, options=parsed.options)
        print(f"{one_line(model)} writes its answer to {path}", file=sys.stderr, flush=True)
        appender = Appender(path, raw, "\r\n" if dominant(text) == "\r\n" else "\n")
        try:
            ended = await _answer(conversation, parsed.heading, appender, screen, unix(text))
        finally:
            appender.close()
            _print_elsewhere(path, appender)
        return 1 if ended in ("failed", "budget") or appender.moved_to is not None or appender.failed else 0


def _print_elsewhere(path: Path, appender: Appender) -> None:
    """Prints where the answer is, if it is not in the note."""
    if appender.moved_to is not None:
        print(f"{path} was changed meanwhile; the answer is in {appender.moved_to}", file=sys.stderr)
    elif appender.failed:
        screen = screen_for_person()
        screen.said(appender.words)
        screen.pause()
        reason = f"{path} could not be written: {appender.failed}"
        print(f"{reason}; the answer is on standard output", file=sys.stderr)


async def _answer(
    conversation: Conversation, heading: int, appender: Appender, screen: Screen, text: str
) -> str:
    """Runs a turn and writes the answer to the note. Returns why the turn ended.

    If there is any answer, a heading for the person's next text follows it, even after a failure.
    """
    guard, begun, ended = conversation_note.Guard(), False, "failed"
    gap = "\n" * max(0, 2 - (len(text) - len(text.rstrip("\n"))))
    header = gap + conversation_note.header("assistant", heading, conversation.name).lstrip("\n")
    try:
        async with aclosing(conversation.turn(None)) as happenings:
            async for happening in happenings:
                if isinstance(happening, SaidText):
                    words = guard.feed(happening.text)
                    appender.write(words, before=header if words and not begun else "")
                    begun = begun or bool(words)
                    continue
                if isinstance(happening, Called):
                    appender.write(guard.finish() + "\n\n" if begun else "")
                elif isinstance(happening, Ended):
                    ended = happening.why
                show(screen, happening)
    finally:
        rest = guard.finish()
        if rest or begun:
            after = conversation_note.header("user", heading)
            appender.write(rest, before="" if begun else header, after=after)
    return ended

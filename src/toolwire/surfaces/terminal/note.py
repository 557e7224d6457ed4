"""`toolwire note`: continues a conversation that lives in a note. The answer is appended to the file as it is written.

Rules: what the person wrote is never rewritten, only added to, in the note's own line ends. The heading and the first words go in with one write;
before every further one the file must be as it was left. When somebody changed it meanwhile, or an editor put another file in its place, the answer
goes on in a file of its own beside it, whole. When neither can be written, as on a full disk, the note is as it was, and the whole answer is shown.
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
from toolwire.surfaces.terminal.surface import surface_for
from toolwire.tools import rules
from toolwire.tools.loop import Called, Conversation, Ended, SaidText
from toolwire.vault.edits import dominant
from toolwire.vault.paths import unix

LARGEST = 4 * 1024 * 1024


def run_note(arguments: argparse.Namespace, source: ToolSource | None = None) -> int:
    return asyncio.run(_note(arguments, settings_of(arguments), source))


class Appender:
    """Appends to a file that others may change. `path` is what was read, `before` its bytes, `newline` its line end.

    `moved_to`: the answer stands there, because the note was changed. `failed`: why it stands nowhere; then `words` are all there is of it.
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
        """What the model said."""
        return "".join(self._words)

    def write(self, words: str, *, before: str = "", after: str = "") -> None:
        """Words of the model's, between what frames them in the note."""
        text = before + words + after
        if not text:
            return
        self._written.append(text)
        self._words.append(words)
        try:
            if not self.failed:
                self._write(text)
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        try:
            if self._file is not None:
                os.fsync(self._file)
        except OSError as error:
            self._give_up(error)
        self._close()

    def _write(self, text: str) -> None:
        if self.moved_to is None and not self._append(text):
            self._close()
            beside = self._beside()
            self._file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            self.moved_to, text = beside, "".join(self._written).lstrip("\n")
        if self.moved_to is not None:
            self._all(text)

    def _give_up(self, error: OSError) -> None:
        """Takes back what was written: half an answer is none. What somebody else has added since stays."""
        self.failed = disk_error(error)
        try:
            if self.moved_to is not None:
                os.unlink(self.moved_to)
            elif self._file is not None:
                if os.fstat(self._file).st_size != self._size:
                    raise OSError("it was changed meanwhile")
                os.ftruncate(self._file, len(self._before))
        except OSError as stays:
            self.failed += (
                f"; a part of the answer stands in {self.moved_to or self._path}: {disk_error(stays)}"
            )
        self.moved_to = None
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
        self._all(text)
        return True

    def _all(self, text: str) -> None:
        assert self._file is not None
        data = text.replace("\n", self._newline).encode("utf-8", "replace")
        while data:
            sent = os.write(self._file, data)
            self._size += sent
            data = data[sent:]

    def _beside(self) -> Path:
        for number in range(1, 1000):
            path = self._path.with_name(f"{self._path.stem} (answer {number}){self._path.suffix}")
            if not os.path.lexists(path):
                return path
        raise OSError("it was changed while it was answered, and no free name was found for the answer")


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
        session.tell_withheld(model)
        person = person_is_here()
        allowed = rules.parse(arguments.allow, session.toolbox.tools if session.toolbox is not None else ())
        screen = screen_for_person(sys.stdout) if person else PlainScreen(sys.stderr)
        surface = surface_for(
            session.approvals, allowed, lambda: session.toolbox, screen, interrupt, person=person, by="note"
        )
        conversation = session.conversation(model, surface, messages=told.history(), options=told.options)
        print(f"{one_line(model)} answers into {path}", file=sys.stderr, flush=True)
        appender = Appender(path, raw, "\r\n" if dominant(text) == "\r\n" else "\n")
        try:
            ended = await _answer(conversation, told, appender, screen, unix(text))
        finally:
            appender.close()
            _tell_where(path, appender)
        return 1 if ended in ("failed", "budget") or appender.moved_to is not None or appender.failed else 0


def _tell_where(path: Path, appender: Appender) -> None:
    """Where the answer is, when it is not in the note."""
    if appender.moved_to is not None:
        print(f"{path} was changed meanwhile; the answer is in {appender.moved_to}", file=sys.stderr)
    elif appender.failed:
        page = screen_for_person()
        page.said(appender.words)
        page.pause()
        print(
            f"{path} could not be written: {appender.failed}; the answer is on standard output",
            file=sys.stderr,
        )


async def _answer(
    conversation: Conversation,
    told: conversation_note.NoteConversation,
    appender: Appender,
    screen: Screen,
    text: str,
) -> str:
    """The turn, written into the note. However it ends, the note can go on: what was said is closed by the person's next heading."""
    guard, begun, ended = conversation_note.Guard(), False, "failed"
    gap = "\n" * max(0, 2 - (len(text) - len(text.rstrip("\n"))))
    header = gap + conversation_note.header("assistant", told.heading, conversation.name).lstrip("\n")
    try:
        async with aclosing(conversation.turn(None)) as happenings:
            async for happening in happenings:
                if isinstance(happening, SaidText):
                    words = guard.feed(happening.text)
                    appender.write(words, before=header if words and not begun else "")
                    begun = begun or bool(words)
                elif isinstance(happening, Called):
                    appender.write(guard.finish() + "\n\n" if begun else "")
                    show(screen, happening)
                else:
                    show(screen, happening)
                if isinstance(happening, Ended):
                    ended = happening.why
    finally:
        rest = guard.finish()
        if rest or begun:
            appender.write(
                rest, before="" if begun else header, after=conversation_note.header("user", told.heading)
            )
    return ended

"""A real terminal for a real process."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyte
import pytest

from toolwire.store.store import Store
from toolwire.tools.approvals import Approvals
from toolwire.tools.contract import Approval

PROGRAM = """
import argparse, fcntl, functools, sys, termios
if sys.stdin.isatty():
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from doubles.notes import opened
from toolwire.surfaces.terminal import ask, chat, note
from toolwire.cli import main as cli, terminal

lifetime, *rest = sys.argv[1:]
terminal.run_chat = functools.partial(chat.run_chat, source=opened, lifetime_s=float(lifetime))
terminal.run_ask = functools.partial(ask.run_ask, source=opened)
terminal.run_note = functools.partial(note.run_note, source=opened)
sys.exit(cli.main(rest))
"""
WAIT_S = 60
FOREIGN = ("TOOLWIRE_", "PROXY_", "NO_COLOR", "COLUMNS", "LINES")


class Place:
    """A home folder: settings with a scripted model, a store, a folder of notes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.vault = folder / "vault"
        self.vault.mkdir()
        self.environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("TOOLWIRE_", "PROXY_"))
                and name not in ("NO_COLOR", "COLUMNS", "LINES")
            },
            "HOME": str(folder),
            "TERM": "xterm-256color",
            "PROMPT_TOOLKIT_NO_CPR": "1",
            "TOOLWIRE_STORE__URL": f"sqlite:///{folder}/state/toolwire.db",
            "TOOLWIRE_APPROVALS__COMMAND_LINE": "open",  # who may decide: tests/tools/test_who_decides.py
        }

    def script(self, text: str) -> None:
        self.environment["TOOLWIRE_MODELS"] = json.dumps(
            {"m": {"backend": "scripted", "script": text}, "other": {"backend": "scripted"}}
        )

    def note(self, path: str, text: str) -> Path:
        file = self.vault / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
        return file

    @property
    def steps(self) -> list[str]:
        file = self.folder / "vault.steps"
        return file.read_text("utf-8").splitlines() if file.exists() else []

    def command(self, *arguments: str, lifetime_s: float = 600) -> list[str]:
        return [sys.executable, "-c", PROGRAM, str(lifetime_s), *arguments]

    def run(
        self, *arguments: str, stdin: str = "", status: int | None = 0
    ) -> subprocess.CompletedProcess[str]:
        """Runs the command in a pipe."""
        done = subprocess.run(
            self.command(*arguments),
            input=stdin,
            capture_output=True,
            text=True,
            encoding="utf-8",
            env=self.environment,
            cwd=self.folder,
            timeout=60,
        )
        assert status is None or done.returncode == status, (done.returncode, done.stdout, done.stderr)
        return done

    def asked(self) -> list[Approval]:
        """All questions, newest first; reading them marks expired ones."""

        async def look() -> list[Approval]:
            store = Store(self.environment["TOOLWIRE_STORE__URL"])
            try:
                approvals = Approvals(store)
                await approvals.pending()
                return await approvals.records.listed()
            finally:
                await store.close()

        return asyncio.run(look())

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json").stdout)


class Terminal:
    """A process on its own terminal. `see` waits for text on the screen; `press` sends keys."""

    def __init__(
        self, place: Place, *arguments: str, lifetime_s: float = 600, columns: int = 120, lines: int = 50
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process = subprocess.Popen(
            place.command(*arguments, lifetime_s=lifetime_s),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=place.environment,
            cwd=place.folder,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(
                signal.SIGINT, signal.SIG_DFL
            ),  # a person's shell does not ignore it, a runner in the background may
        )
        os.close(slave)
        self.screen = pyte.HistoryScreen(columns, lines, history=10_000)
        self._stream = pyte.ByteStream(self.screen)

    @property
    def shown(self) -> str:
        """The text of the screen and of the lines that scrolled off it."""
        above = (
            "".join(line[column].data for column in range(self.screen.columns))
            for line in self.screen.history.top
        )
        return "\n".join(line.rstrip() for line in (*above, *self.screen.display)).rstrip()

    def see(self, *words: str) -> str:
        """Waits until all of the words are on the screen; returns its text."""
        return self.until(lambda shown: all(word in shown for word in words), f"{words}")

    def until(self, true: Callable[[str], bool], what: str) -> str:
        end = time.monotonic() + WAIT_S
        while not true(shown := self.shown):
            left = end - time.monotonic()
            assert left > 0 and self._read(left), f"not seen: {what}\n{shown}"
        return shown

    def _read(self, timeout: float) -> bool:
        if not select.select([self._master], [], [], timeout)[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:
            return False
        self._stream.feed(data)
        return bool(data)

    def rest(self, seconds: float) -> None:
        """Reads what comes in this time."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._read(left)

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def prompted(self) -> str:
        """Waits for the empty prompt."""
        return self.until(lambda shown: any(line == "›" for line in shown.splitlines()[-3:]), "the prompt")

    def say(self, words: str) -> None:
        """Types a line at the prompt."""
        self.prompted()
        self.press(words + "\r")

    def answer(self, question: str, keys: str) -> None:
        """Presses keys at a question once it is bold, after the half second in which it takes none."""
        self.until(lambda shown: self._bold(question), f"{question!r}, ready")
        self.press(keys)

    def _bold(self, words: str) -> bool:
        found = [(row, line.find(words)) for row, line in enumerate(self.screen.display) if words in line]
        return bool(found) and all(self.screen.buffer[row][column].bold for row, column in found[-1:])

    def end(self) -> int:
        """Waits for the process; returns its exit status."""
        until = time.monotonic() + WAIT_S
        while self.process.poll() is None and time.monotonic() < until:
            self._read(0.1)
        assert self.process.poll() is not None, f"it does not end:\n{self.shown}"
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def terminal(place: Place) -> Iterator[Callable[..., Terminal]]:
    """`terminal("chat", "--vault", …)`: runs the command on its own terminal."""
    opened: list[Terminal] = []

    def start(*arguments: str, **options: Any) -> Terminal:
        opened.append(Terminal(place, *arguments, **options))
        return opened[-1]

    yield start
    for one in opened:
        one.close()

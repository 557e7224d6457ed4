"""Where words go: a terminal, in colours and painted, or a pipe, plainly. What a model says goes to `out`; what Toolwire says about it to `err`."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, Protocol, TextIO

from toolwire.core.display import clean, one_line, prose
from toolwire.settings.types import ConfigError
from toolwire.surfaces import cards
from toolwire.surfaces.cards import Row
from toolwire.tools import loop

if TYPE_CHECKING:
    from rich.console import Console

    from toolwire.surfaces.terminal.painter import Painter

EXTRA = ("prompt_toolkit", "rich")
STYLES = {
    "title": "bold cyan",
    "label": "bold",
    "plain": "",
    "dim": "dim",
    "path": "cyan",
    "warning": "yellow",
    "added": "green",
    "removed": "red",
    "hunk": "magenta",
}
THOUGHT = ("\x1b[2;3m", "\x1b[0m")


class Screen(Protocol):
    def said(self, text: str) -> None: ...

    def thought(self, text: str) -> None: ...

    def rows(self, rows: Sequence[Row]) -> None:
        """Lines about what happens."""
        ...

    def card(self, rows: Sequence[Row]) -> None:
        """A question."""
        ...

    def pause(self) -> None:
        """What was said so far is complete; the next words begin a line."""
        ...


def has_extra() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in EXTRA)


def require_extra(command: str) -> None:
    if not has_extra():
        raise ConfigError(f"toolwire {command} needs {' and '.join(EXTRA)}: pip install 'toolwire[chat]'")


def show(screen: Screen, happening: loop.Happening) -> None:
    """One thing that a turn tells."""
    if isinstance(happening, loop.SaidText):
        screen.said(happening.text)
    elif isinstance(happening, loop.ThoughtText):
        screen.thought(happening.text)
    elif isinstance(happening, loop.Called):
        screen.rows(cards.called(happening.calls))
    elif isinstance(happening, loop.Did):
        screen.rows(cards.did(happening.outcome))
    else:
        screen.pause()
        told = {
            "length": "the answer was cut: its length is used up",
            "budget": happening.words,
            "failed": f"the model failed: {happening.words}",
        }
        if happening.why in told:
            screen.rows([("warning", one_line(told[happening.why], 400))])


class PlainScreen:
    """For pipes, and for terminals without colours. Text goes out as it is, but for a terminal."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out = sys.stdout if out is None else out
        self._err = sys.stderr if err is None else err
        self._raw = not self._out.isatty()
        self._at_start = True

    def said(self, text: str) -> None:
        self._out.write(text.encode("utf-8", "replace").decode() if self._raw else prose(text))
        self._out.flush()
        self._at_start = text.endswith("\n")

    def thought(self, text: str) -> None:
        pass

    def rows(self, rows: Sequence[Row]) -> None:
        if rows:
            self.pause()
            print("\n".join(clean(text) for _, text in rows), file=self._err, flush=True)

    def card(self, rows: Sequence[Row]) -> None:
        self.pause()
        print(f"\n{cards.plain(rows)}", file=self._err, flush=True)

    def pause(self) -> None:
        if not self._at_start:
            self._out.write("\n")
            self._out.flush()
            self._at_start = True


class TerminalScreen:
    """A terminal, with Markdown painted as it comes. Needs the extra `chat`."""

    def __init__(self) -> None:
        from rich.console import Console

        self.console: Console = Console(highlight=False, markup=False, emoji=False, soft_wrap=False)
        self._mode: Literal["", "said", "thought"] = ""
        self._painter: Painter | None = None
        self._at_start = True

    def said(self, text: str) -> None:
        if self._mode != "said":
            from toolwire.surfaces.terminal.painter import Painter, renderer

            self.pause()
            self._mode = "said"
            self._painter = Painter(
                self._write, self._size, renderer(self.console), asyncio.get_running_loop().call_later
            )
        assert self._painter is not None
        self._painter.feed(text)

    def thought(self, text: str) -> None:
        if self._mode != "thought":
            self.pause()
            self._mode = "thought"
        begin, end = ("", "") if self.console.no_color else THOUGHT
        self._write(begin + prose(text) + end)
        self._at_start = text.endswith("\n")

    def rows(self, rows: Sequence[Row]) -> None:
        from rich.text import Text

        self.pause()
        for style, text in rows:
            self.console.print(Text(clean(text), STYLES[style]))

    def card(self, rows: Sequence[Row]) -> None:
        from rich.panel import Panel
        from rich.text import Text

        self.pause()
        lines = Text("\n").join(Text(text, STYLES[style]) for style, text in rows[1:])
        self.console.print(
            Panel(
                lines,
                title=Text(rows[0][1], STYLES["title"]),
                title_align="left",
                border_style="cyan",
                width=self._width(),
            )
        )

    def pause(self) -> None:
        if self._painter is not None:
            self._painter.finish()
            self._painter = None
        if self._mode == "thought" and not self._at_start:
            self._write("\n")
        self._mode = ""
        self._at_start = True

    def _width(self) -> int:
        return min(self._size()[0], 120)

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def _size(self) -> tuple[int, int]:
        try:
            columns, lines = os.get_terminal_size(sys.stdout.fileno())
        except (OSError, ValueError):
            columns, lines = 80, 24
        return columns or 80, lines or 24


def screen_for_person(out: TextIO | None = None) -> Screen:
    """The best that this terminal, or this pipe, can show."""
    out = sys.stdout if out is None else out
    return (
        TerminalScreen()
        if out is sys.stdout and out.isatty() and has_extra() and os.environ.get("TERM") != "dumb"
        else PlainScreen(out)
    )


@contextmanager
def quiet_keyboard() -> Iterator[None]:
    """While words are painted, keys are not echoed; they wait for the next prompt. Ctrl-C still is Ctrl-C."""
    if not sys.stdin.isatty():
        yield
        return
    import termios

    before = termios.tcgetattr(sys.stdin)
    quiet = termios.tcgetattr(sys.stdin)
    quiet[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def drop_typed_ahead() -> None:
    """What was typed before a question was there is no answer to it."""
    if sys.stdin.isatty():
        import termios

        termios.tcflush(sys.stdin, termios.TCIFLUSH)

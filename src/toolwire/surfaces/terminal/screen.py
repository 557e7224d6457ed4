"""Output for a terminal (colour, live Markdown) or a pipe (plain text).

The model's text goes to standard output, Toolwire's messages to standard error.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, Protocol, TextIO

from toolwire.core.display import clean, one_line, prose
from toolwire.settings.extras import add_extra
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

    def rows(self, rows: Sequence[Row]) -> None: ...

    def card(self, rows: Sequence[Row]) -> None:
        """Shows the card of an approval request."""
        ...

    def pause(self) -> None:
        """Ends the current text, so that the next output begins on a new line."""
        ...


def has_extra() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in EXTRA)


def require_extra(command: str) -> None:
    if not has_extra():
        raise ConfigError(f"toolwire {command} needs {' and '.join(EXTRA)}: {add_extra('chat')}")


def show(screen: Screen, happening: loop.Happening, model: str = "") -> None:
    """Shows an event of a turn. `model`: a text about the model that is added to the message of a failure."""
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
        warnings = {
            "length": happening.words or "the answer was cut at the token limit",
            "budget": happening.words,
            "failed": f"the model failed: {happening.words}{model and f' ({model})'}",
        }
        if happening.why in warnings:
            screen.rows([("warning", one_line(warnings[happening.why], 400))])


class PlainScreen:
    """Plain text, for pipes and simple terminals. The model's text is sent to a pipe unchanged."""

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
    """A terminal with live Markdown. Needs the extra `chat`."""

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
        title, width = Text(rows[0][1], STYLES["title"]), min(self._size()[0], 120)
        self.console.print(Panel(lines, title=title, title_align="left", border_style="cyan", width=width))

    def pause(self) -> None:
        if self._painter is not None:
            self._painter.finish()
            self._painter = None
        if self._mode == "thought" and not self._at_start:
            self._write("\n")
        self._mode = ""
        self._at_start = True

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
    """Returns a `TerminalScreen` if the output is a terminal that supports it; else a `PlainScreen`."""
    out = sys.stdout if out is None else out
    rich = out is sys.stdout and out.isatty() and has_extra() and os.environ.get("TERM") != "dumb"
    return TerminalScreen() if rich else PlainScreen(out)


@contextmanager
def quiet_keyboard() -> Iterator[None]:
    """Keeps typed keys from appearing in the output.

    The next prompt reads these keys. Ctrl-C still works.
    """
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
    """Drops keys that the person typed before the question was shown: they are not an answer to it."""
    if sys.stdin.isatty():
        import termios

        termios.tcflush(sys.stdin, termios.TCIFLUSH)

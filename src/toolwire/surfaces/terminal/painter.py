"""Renders Markdown on a terminal while it is generated.

A complete block is painted once. Only the block that still grows is painted again, from its first changed
line. Lines that have scrolled off the screen cannot be painted again. If the end of a block changes such
lines, for example the columns of a table, the whole block is painted again below. Widths are in terminal
cells, not characters.
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable
from itertools import takewhile

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Heading, Markdown
from rich.segment import Segment, Segments

from toolwire.core.display import prose

WIDEST = 100
SOONEST_S = 0.05
SHARE = 8
"""The pause after painting is at least this many times as long as the painting took."""

_FENCE = re.compile(r"\s*(`{3,}|~{3,})")
_ITEM = re.compile(r" {0,3}(?:[-*+]|\d{1,9}[.)])(?:\s|$)")
Render = Callable[[str, int], list[str]]


class Blocks:
    """Splits growing Markdown into blocks. `open`: the text of the block that is not complete yet."""

    def __init__(self) -> None:
        self.open = ""
        self._read = 0
        self._fence = ""
        self._blank: int | None = None

    def feed(self, text: str) -> list[str]:
        """Adds text. Returns the blocks that this text completes."""
        self.open += text
        done: list[str] = []
        while (end := self.open.find("\n", self._read)) >= 0:
            line, start = self.open[self._read : end], self._read
            self._read = end + 1
            if self._cuts_before(line):
                done.append(self._cut(start))
            elif self._closes(line) and not _ITEM.match(self.open) and not line.startswith((" ", "\t")):
                done.append(self._cut(end + 1))
        return [block for block in done if block.strip()]

    def finish(self) -> list[str]:
        rest, self.open, self._read, self._fence, self._blank = self.open, "", 0, "", None
        return [rest] if rest.strip() else []

    def _cut(self, at: int) -> str:
        block, self.open = self.open[:at], self.open[at:]
        self._read, self._blank = self._read - at, None
        return block

    def _cuts_before(self, line: str) -> bool:
        """Whether this line begins a new block.

        A line after a blank line does, unless it continues a list or is indented.
        """
        if self._fence:
            return False
        if not line.strip():
            self._blank = self._read
            return False
        if self._blank is None:
            return False
        self._blank = None
        in_list = _ITEM.match(self.open.lstrip("\n")) and _ITEM.match(line)
        if in_list or line.startswith((" ", "\t")):
            return False
        self._fence = found[1] if (found := _FENCE.match(line)) else ""
        return True

    def _closes(self, line: str) -> bool:
        """Keeps track of code fences. Returns whether this line closes a code fence."""
        found = _FENCE.match(line)
        if found is None:
            return False
        if not self._fence:
            self._fence = found[1]
        elif line.strip().startswith(self._fence) and not line.strip().strip(self._fence[0]):
            self._fence = ""
            return True
        return False


class Painter:
    """Paints text as it arrives.

    `later(seconds, call)` schedules a call. With it, text is painted even if no more text arrives for a
    while.
    """

    def __init__(
        self,
        write: Callable[[str], object],
        size: Callable[[], tuple[int, int]],
        render: Render,
        later: Callable[[float, Callable[[], None]], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write, self._size, self._render, self._later, self._clock = write, size, render, later, clock
        self._blocks = Blocks()
        self._painted: list[str] = []
        self._frozen = 0
        self._width = 0
        self._lost = False
        self._first = True
        self._due = 0.0
        self._waiting = False
        self._ended = False

    def feed(self, text: str) -> None:
        for block in self._blocks.feed(prose(text)):
            self._paint(block, last=True)
        if self._clock() >= self._due:
            self._paint_open()
        elif not self._waiting:
            self._waiting = True
            self._later(self._due - self._clock(), self._paint_late)

    def finish(self) -> None:
        for block in self._blocks.finish():
            self._paint(block, last=True)
        self._ended = True

    def _paint_late(self) -> None:
        self._waiting = False
        if not self._ended:
            self._paint_open()

    def _paint_open(self) -> None:
        if self._blocks.open.strip():
            started = self._clock()
            self._paint(self._blocks.open, last=False)
            spent = self._clock() - started
            self._due = started + spent + max(SOONEST_S, spent * SHARE)

    def _paint(self, block: str, last: bool) -> None:
        width, height = self._size()
        if self._width != width:  # after a resize, the position of the old lines is unknown
            self._lost, self._width = bool(self._painted), width
        if self._lost and not last:
            return
        new = self._render(block.strip("\n"), max(20, min(width, WIDEST) - 1))
        if not self._first and (new or self._painted):
            new = ["", *new]
        old = self._painted
        unchanged = takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False))
        same = sum(1 for _ in unchanged)
        if self._lost or (same < self._frozen and last):
            self._put(0, new)
        elif same < max(len(old), len(new)):
            same = max(same, min(self._frozen, len(new)))
            self._put(min(len(old) - same, max(1, height - 1)), new[same:])
        if last:
            self._painted, self._frozen, self._first, self._lost = [], 0, False, False
        else:
            self._painted = [*old[: self._frozen], *new[self._frozen :]]
            self._frozen = max(self._frozen, len(self._painted) - max(1, height - 1))

    def _put(self, up: int, lines: list[str]) -> None:
        """Moves the cursor up by `up` lines and paints `lines` there, in one update of the terminal."""
        back = f"\x1b[{up}A\r\x1b[J" if up > 0 else ""
        self._write("\x1b[?2026h" + back + "".join(line + "\n" for line in lines) + "\x1b[?2026l")


class _Heading(Heading):
    """A heading that is aligned to the left, like the text below it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _Page(Markdown):
    elements = Markdown.elements | {"heading_open": _Heading}


def renderer(console: Console) -> Render:
    """Returns a function that renders a block of Markdown as lines, in the console's colours."""

    def render(block: str, width: int) -> list[str]:
        page = Console(
            file=io.StringIO(),
            force_terminal=console.is_terminal,
            color_system=console.color_system,  # type: ignore[arg-type]
            no_color=console.no_color,
            width=width,
            legacy_windows=False,
        )
        lines = page.render_lines(_Page(block, code_theme="ansi_dark", hyperlinks=False), pad=False)
        with page.capture() as captured:
            for line in lines:
                page.print(Segments([*_stripped(line), Segment.line()]), end="", soft_wrap=True)
        return captured.get().split("\n")[:-1]

    return render


def _stripped(line: list[Segment]) -> list[Segment]:
    """Returns the line without spaces at its end, except spaces with a background colour."""
    kept = list(line)
    while kept and (kept[-1].style is None or kept[-1].style.bgcolor is None):
        last = kept.pop()
        if last.text.strip():
            return [*kept, Segment(last.text.rstrip(), last.style)]
    return kept

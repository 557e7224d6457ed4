"""Where the text stands: at the start of a line, inside a code fence, inside inline code. Fed with every character of text, in pieces of any size.

Fences are CommonMark's, seen through block quotes and lists at any depth: at least three backticks or tildes at the start of a line, closed by at
least as many of the same with nothing behind them. Inline code is what stands behind an odd number of runs of backticks on its line. In doubt the
text counts as code: then a recovery dialect does not fire, which is the safe side. Standard library only.
"""

from __future__ import annotations

import re

_START, _RUN, _INFO, _REST = range(4)
_PREFIX = frozenset(" \t>*+-0123456789.)")  # what may stand before a fence: white space, quotes, list items
_TICKS = re.compile("`+")


class FenceTracker:
    """`blank`: nothing but white space, or what may yet be a fence, stands on this line so far. `last`: the last character."""

    __slots__ = ("_bare", "_char", "_count", "_info_ok", "_open", "_phase", "_span", "blank", "last")

    def __init__(self) -> None:
        self._open: tuple[str, int] | None = None
        self.last = ""
        self._newline()

    def _newline(self) -> None:
        self._phase = _START
        self._char = ""
        self._count = 0
        self.blank = True
        self._bare = True  # nothing but white space behind the run
        self._info_ok = True
        self._span = False

    @property
    def inside(self) -> bool:
        """Within a fence, its opening line included, or within inline code."""
        if self._open is not None or self._span:
            return True
        return self._phase in (_RUN, _INFO) and (self._count < 3 or self._info_ok)

    @property
    def line_start(self) -> bool:
        """Only white space so far on this line."""
        return self.blank and self._phase in (_START, _REST)

    def feed(self, text: str) -> None:
        if not text:
            return
        position, end = 0, len(text)
        while position < end:
            if self._phase == _REST and not self.blank:  # nothing more to learn on this line, but for inline code
                stop = text.find("\n", position)
                self._spans(text, position, stop if stop >= 0 else end)
                if stop < 0:
                    break
                position = stop
            char = text[position]
            if char == "\n":
                self._end_line()
            else:
                self._step(char)
            self.last = char
            position += 1
        self.last = text[-1]

    def _spans(self, text: str, start: int, stop: int) -> None:
        if "`" not in text[start:stop]:
            return
        for run in _TICKS.finditer(text, start, stop):
            before = text[run.start() - 1] if run.start() else self.last
            if before != "`":  # a run that began in an earlier piece was counted there
                self._span = not self._span

    def _step(self, char: str) -> None:
        phase = self._phase
        if phase == _START:
            if char in "`~":
                self._phase, self._char, self._count = _RUN, char, 1
            elif char in _PREFIX:
                self.blank = self.blank and char.isspace()
            else:
                self._phase, self.blank = _REST, False
        elif phase == _RUN and char == self._char:
            self._count += 1
        elif phase == _REST:
            self.blank = self.blank and char.isspace()
        else:
            self._behind_run(char)

    def _behind_run(self, char: str) -> None:
        if self._count < 3:  # inline code, or a stray tick
            self._span = self._char == "`"
            self._phase, self.blank = _REST, False
            return
        self._phase = _INFO
        self._bare = self._bare and char.isspace()
        if char == "`" and self._char == "`":
            self._info_ok = False  # ```code``` on one line is a code span, not a fence

    def _end_line(self) -> None:
        if self._phase in (_RUN, _INFO) and self._count >= 3:
            if self._open is None:
                if self._info_ok:
                    self._open = (self._char, self._count)
            elif self._char == self._open[0] and self._count >= self._open[1] and self._bare:
                self._open = None
        self._newline()

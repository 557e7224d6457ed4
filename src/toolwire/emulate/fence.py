"""Where the text stands: at the start of a line, inside a code fence, behind a backtick. Fed with every character of text, in pieces of any size.

Fences are CommonMark's: up to three spaces, then at least three backticks or tildes; closed by at least as many of the same with nothing behind them.
Standard library only.
"""

from __future__ import annotations

_INDENT, _RUN, _INFO, _REST = range(4)


class FenceTracker:
    __slots__ = ("_blank", "_char", "_count", "_indent", "_info_ok", "_open", "_phase", "last")

    def __init__(self) -> None:
        self._open: tuple[str, int] | None = None
        self.last = ""
        self._newline()

    def _newline(self) -> None:
        self._phase = _INDENT
        self._indent = 0
        self._char = ""
        self._count = 0
        self._blank = True
        self._info_ok = True

    @property
    def inside(self) -> bool:
        """Within a fence, its opening line included."""
        return self._open is not None or (self._phase in (_RUN, _INFO) and self._count >= 3 and self._info_ok)

    @property
    def line_start(self) -> bool:
        """Only white space so far on this line."""
        return self._phase == _INDENT or (self._phase == _REST and self._blank)

    def feed(self, text: str) -> None:
        if not text:
            return
        self.last = text[-1]
        position, end = 0, len(text)
        while position < end:
            if self._phase == _REST and not self._blank:  # nothing more to learn on this line
                position = text.find("\n", position)
                if position < 0:
                    return
            if text[position] == "\n":
                self._end_line()
            else:
                self._step(text[position])
            position += 1

    def _step(self, char: str) -> None:
        phase = self._phase
        if phase == _INDENT:
            if char == " " and self._indent < 3:
                self._indent += 1
            elif char in "`~":
                self._phase, self._char, self._count = _RUN, char, 1
            else:
                self._phase, self._blank = _REST, char.isspace()
        elif phase == _RUN and char == self._char:
            self._count += 1
        elif phase == _REST:
            self._blank = self._blank and char.isspace()
        else:
            if self._count < 3:
                self._phase, self._blank = _REST, False
                return
            self._phase = _INFO
            self._blank = self._blank and char.isspace()
            if char == "`" and self._char == "`":
                self._info_ok = False  # ```code``` on one line is a code span, not a fence

    def _end_line(self) -> None:
        if self._phase in (_RUN, _INFO) and self._count >= 3:
            if self._open is None:
                if self._info_ok:
                    self._open = (self._char, self._count)
            elif self._char == self._open[0] and self._count >= self._open[1] and self._blank:
                self._open = None
        self._newline()

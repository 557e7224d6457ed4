"""Keeps quoted text from making calls (law 12): quotations of the request's input, and code.

A block that is part of the request's input is a quotation, not a call. A note may reach the model as JSON, as
HTML, in a block quote, with other line ends or in several parts, and come back as plain text. So both sides
are compared without white space, escapes, entities and quote marks. Brackets stay, because a name in a
sentence is not a call. Linear.
"""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Iterable

_NESTED = 3  # levels of HTML or JSON around a text that are decoded
_CODES = re.compile(r"(?<!\\)(?:\\+u[0-9a-fA-F]{4})+")
_CODE = re.compile(r"\\+u")
_ENTITIES = re.compile(r"&(?:#0*([0-9]{1,7})|#[xX]0*([0-9a-fA-F]{1,6})|[A-Za-z][A-Za-z0-9]{1,31});?")
_SPACES = re.compile(r"(?<!\\)\\+([nrt])")
_MARGINS = re.compile(r"(?:^|[\r\n])[>\\\s\u200b\u200c\u200d\ufeff]+")
_IGNORED = re.compile(r"[^\w<>{}:=/()\[\]]+")
_ENCODED = re.compile(r"\\u|&#|&\w+;")


def as_read(text: str) -> str:
    """The text as a person reads it: without white space, escapes, entities, and the marks around words."""
    for _ in range(_NESTED):
        if "\\" in text:
            text = _CODES.sub(_decode_codes, text)
        if "&" in text:
            text = _ENTITIES.sub(_character, text)
    if "\\" in text:
        text = _SPACES.sub(lambda found: "\t" if found[1] == "t" else "\n", text)
    return _IGNORED.sub("", _MARGINS.sub("", text))


def _decode_codes(codes: re.Match[str]) -> str:
    """Decodes JSON's `\\u` codes. They are UTF-16, so two may be one character."""
    return bytes.fromhex(_CODE.sub("", codes.group())).decode("utf-16-be", "replace")


def _character(entity: re.Match[str]) -> str:
    decimal, hexadecimal = entity.groups()
    return html.unescape(
        f"&#{decimal};" if decimal else f"&#x{hexadecimal};" if hexadecimal else entity.group()
    )


class Quotations:
    """The input texts of a request that may contain a call. Prepared when the first block is compared."""

    def __init__(self, texts: Iterable[str], words: Collection[str]) -> None:
        """`words`: a block in a text contains one of them, a brace or an encoded character."""
        self._texts = [
            text
            for text in texts
            if "{" in text or _ENCODED.search(text) or any(word in text for word in words)
        ]
        self._read: str | None = None

    def __bool__(self) -> bool:
        return bool(self._texts)

    def __contains__(self, block: str) -> bool:
        if self._read is None:
            self._read = as_read("\n".join(self._texts))
        return as_read(block) in self._read


# --- code ---
#
# Fences are CommonMark's, also inside block quotes and lists: at least three backticks or tildes at the start
# of a line, closed by at least as many of the same with nothing after them. Inline code follows a run of
# backticks, up to the next run of the same length or the end of the line. If the run is the last thing on its
# line, inline code ends at the next run of the same length or at the end of the paragraph. In doubt, text
# counts as code: then a recovery dialect does not fire, which is the safe side.

_START, _RUN, _INFO, _REST = range(4)  # prefix, run of a fence, text after that run, other text
_PREFIX = frozenset(" \t\r>*+-0123456789.)")  # before a fence: white space, block quotes, list items
_RUNS = re.compile("`+|[^`]+")


class FenceTracker:
    """Follows the text and knows whether it is at a line's start, in a code fence or in inline code.

    `blank`: the line has only white space so far, or what may still become a fence.
    """

    __slots__ = ("_bare", "_carried", "_char", "_count", "_open", "_phase", "_span", "_ticks", "blank")

    def __init__(self) -> None:
        self._open: tuple[str, int] | None = None
        self._carried = 0  # length of the run that opened inline code at the end of an earlier line
        self._newline()

    def _newline(self) -> None:
        self._phase = _START
        self._char = ""
        self._count = 0
        self._span = 0  # length of the run that opened inline code on this line
        self._ticks = 0  # length so far of the current run
        self.blank = True
        self._bare = True  # only white space after the run

    @property
    def inside(self) -> bool:
        """Whether the text is in a fence (with its opening line) or in inline code."""
        if self._open is not None or self._span != self._ticks or self._carried not in (0, self._ticks):
            return True
        return self._phase in (_RUN, _INFO) and (self._count >= 3 or self._char == "~")

    @property
    def line_start(self) -> bool:
        """Whether the line has only white space so far."""
        return self.blank and self._phase in (_START, _REST)

    def feed(self, text: str) -> None:
        position, end = 0, len(text)
        while position < end:
            if self._phase == _REST and not self.blank:  # only inline code matters on the rest of this line
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
            position += 1

    def _spans(self, text: str, start: int, stop: int) -> None:
        if not (self._ticks or self._span) and text.find("`", start, stop) < 0:
            return
        for run in _RUNS.finditer(text, start, stop):
            if text[run.start()] == "`":
                self._ticks += run.end() - run.start()
            else:
                self._end_run()
                self._bare = self._bare and run.group().isspace()

    def _end_run(self) -> None:
        """A run of backticks ended: it opened inline code, closed it, or is part of it."""
        if not self._ticks:
            return
        self._bare = not self._span and self._ticks != self._carried
        if self._ticks == self._carried:
            self._carried = 0
        if self._ticks == self._span or not self._span:
            self._span = self._ticks - self._span
        self._ticks = 0

    def _step(self, char: str) -> None:
        phase = self._phase
        if phase == _START:
            if char in "`~":
                self._phase, self._char, self._count = _RUN, char, 1
                self._ticks = int(char == "`")
            elif char in _PREFIX:
                self.blank = self.blank and char.isspace()
            else:
                self._phase, self.blank = _REST, False
        elif phase == _RUN and char == self._char:
            self._count += 1
            self._ticks += char == "`"
        else:
            self._after_run(char)

    def _after_run(self, char: str) -> None:
        if self._count < 3:  # inline code, or a stray tick
            self._phase, self.blank = _REST, False
            self._spans(char, 0, 1)
        elif char == "`" and self._char == "`":  # ```code``` on one line is a code span, not a fence
            self._phase, self.blank, self._ticks = _REST, False, self._count
            self._end_run()
            self._ticks, self._bare = 1, False
        else:
            self._phase, self._ticks = _INFO, 0
            self._bare = self._bare and char.isspace()

    def _end_line(self) -> None:
        fence = self._phase in (_RUN, _INFO) and self._count >= 3
        if fence or self._open is not None or self._phase == _START:
            self._carried = 0
        else:
            self._end_run()
            self._carried = self._carried or (self._span if self._bare else 0)
        if fence:
            if self._open is None:
                self._open = (self._char, self._count)
            elif self._char == self._open[0] and self._count >= self._open[1] and self._bare:
                self._open = None
        self._newline()

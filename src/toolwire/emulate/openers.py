"""Where a call may begin: at a marker, but not in code or in a quotation of the request.

An opener is a marker and the shape of the block that follows it. A marker may have a placeholder: for the
random token of the request, or for the name of a declared tool.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable
from copy import copy
from dataclasses import replace
from functools import lru_cache

from toolwire.emulate.dialects import DIALECTS, NONCE, Dialect, JsonBlock, Opener, select
from toolwire.emulate.dialects.shapes import TOOL

Table = dict[str, list[tuple[Dialect, Opener]]]

_ANY = r"[\w.-]{1,256}"  # what may fill a placeholder
_PLAIN = re.compile(_ANY + r"\Z")


class Openers:
    """The openers of one request.

    `table`: the openers by marker. `search`: finds the next marker, or text that looks like a marker with
    another token or name. `may_begin`: finds text that could be the beginning of a marker. `search_inline`
    and `may_begin_inline` ignore markers that count only at the start of a line. `has_answer_start`: some
    markers count only at the start of the answer. `words`: one word of each marker that the prompt does not
    teach.
    """

    def __init__(self, table: Table, alike: dict[str, str]) -> None:
        """`alike`: a pattern for each marker with a placeholder, which any token or name may fill."""
        self.table = table
        self.has_answer_start = any(opener.answer_start for pairs in table.values() for _, opener in pairs)
        self._alike = alike
        self._markers = sorted(table)
        self._reach = max(map(len, self._markers), default=1) - 1
        anywhere = {marker for marker, pairs in table.items() if not all(one.line_start for _, one in pairs)}
        inline = [marker for marker in self._markers if marker in anywhere]
        self.may_begin = re.compile(_beginnings(self._markers)).search
        self.may_begin_inline = re.compile(_beginnings(inline)).search
        self.search = self._searching(self._markers)
        self.search_inline = self._searching(inline)
        recovery = [marker for marker in self._markers if table[marker][0][0].recovery]
        self.words = {max(re.findall(r"\w+", marker), key=len, default=marker) for marker in recovery}

    def filled(self, nonce: str) -> Openers:
        """Returns a copy of the openers with the request's token in their markers."""
        out = copy(self)
        out.table = {}
        for marker, pairs in self.table.items():
            if NONCE in marker:
                pairs = [(dialect, _fill(opener, nonce)) for dialect, opener in pairs]
                marker = pairs[0][1].marker
            out.table[marker] = pairs
        out._markers = sorted(out.table)
        out._reach = max(map(len, out._markers), default=1) - 1
        return out

    def _searching(self, markers: list[str]) -> Callable[..., re.Match[str] | None]:
        exact = sorted((marker for marker in markers if marker not in self._alike), key=len, reverse=True)
        alike = {self._alike[marker] for marker in markers if marker in self._alike}
        return re.compile("|".join([*map(re.escape, exact), *sorted(alike)]) or r"(?!)").search

    def without_answer_start(self) -> Openers:
        """Returns the openers that count anywhere in an answer, not only at its start."""
        kept: Table = {}
        for marker, pairs in self.table.items():
            anywhere = [pair for pair in pairs if not pair[1].answer_start]
            if anywhere:
                kept[marker] = anywhere
        return Openers(kept, self._alike)

    def __bool__(self) -> bool:
        return bool(self.table)

    def hold_back(self, buffer: str, start: int) -> int:
        """Returns the position where an incomplete marker at the end of the buffer may begin.

        Returns the buffer's length if the buffer does not end with an incomplete marker.
        """
        tail = len(buffer)
        found = self.may_begin(buffer, start if tail - start <= self._reach else tail - self._reach)
        while found is not None:
            begin = found.start()
            if begin + 1 == tail:
                return begin
            rest = buffer[begin:]
            after = bisect_right(self._markers, rest)
            if after < len(self._markers) and self._markers[after].startswith(rest):
                return begin
            found = self.may_begin(buffer, begin + 1)
        return tail


_BY_TOOL = {dialect.name for dialect in DIALECTS.values() for one in dialect.openers if TOOL in one.marker}


def openers_of(dialects: tuple[str, ...], nonce: str | None, names: Iterable[str]) -> Openers:
    """Returns the openers of these dialects, with placeholders filled in.

    `names`: the names of the declared tools. If `nonce` is None, the dialect `sentinel` is left out.
    """
    tools = () if _BY_TOOL.isdisjoint(dialects) else tuple(filter(_PLAIN.match, names))
    if nonce is None or not _PLAIN.match(nonce):
        return _openers(dialects, nonce, tools)
    return _openers(dialects, NONCE, tools).filled(nonce)


@lru_cache(64)
def _openers(dialects: tuple[str, ...], nonce: str | None, names: tuple[str, ...]) -> Openers:
    table: Table = {}
    alike: dict[str, str] = {}
    by_tool: list[tuple[Dialect, Opener]] = []
    for dialect in select(dialects):
        for opener in dialect.openers:
            if TOOL in opener.marker:
                by_tool.append((dialect, opener))
            elif NONCE not in opener.marker:
                table.setdefault(opener.marker, []).append((dialect, opener))
            elif nonce is not None:
                filled = _fill(opener, nonce)
                table.setdefault(filled.marker, []).append((dialect, filled))
                if nonce == NONCE:
                    alike[filled.marker] = _general(opener.marker, NONCE)
    for pair in by_tool:
        before, after = pair[1].marker.split(TOOL)
        pattern = _general(pair[1].marker, TOOL)
        pairs = [pair]
        for name in names:
            marker = before + name + after
            if table.setdefault(marker, pairs) is pairs:  # a tool's name cannot replace an existing marker
                alike[marker] = pattern
    return Openers(table, alike)


def _beginnings(markers: list[str]) -> str:
    """Returns a pattern of the first two characters of every marker.

    At the end of the text, the first character is enough.
    """
    seconds: dict[str, set[str]] = {}
    for marker in markers:
        seconds.setdefault(marker[0], set()).add(marker[1:2])
    patterns = []
    for first, following in sorted(seconds.items()):
        more = "" if "" in following else rf"(?:[{re.escape(''.join(sorted(following)))}]|\Z)"
        patterns.append(re.escape(first) + more)
    return "|".join(patterns) or r"(?!)"


def _general(marker: str, placeholder: str) -> str:
    return re.escape(marker).replace(re.escape(placeholder), _ANY)


def _fill(opener: Opener, nonce: str) -> Opener:
    block = opener.block
    if isinstance(block, JsonBlock):
        block = replace(block, closers=tuple(closer.replace(NONCE, nonce) for closer in block.closers))
    return replace(opener, marker=opener.marker.replace(NONCE, nonce), block=block)


# --- quotations (law 12 in docs/architecture.md) ---
#
# A block that is part of the request's input is a quotation, not a call. A note may reach the model as JSON,
# as HTML, in a block quote, with other line ends or in several parts, and come back as plain text. So the
# block and the input are compared without white space, escapes, entities and quote marks. Brackets stay,
# because the same words without brackets are not a call. The comparison takes linear time.

_NESTED = 3  # levels of HTML or JSON around a text that are decoded
_CODES = re.compile(r"(?<!\\)(?:\\+u[0-9a-fA-F]{4})+")
_CODE = re.compile(r"\\+u")
_ENTITIES = re.compile(r"&(?:#0*([0-9]{1,7})|#[xX]0*([0-9a-fA-F]{1,6})|[A-Za-z][A-Za-z0-9]{1,31});?")
_SPACES = re.compile(r"(?<!\\)\\+([nrt])")
_MARGINS = re.compile(r"(?:^|[\r\n])[>\\\s\u200b\u200c\u200d\ufeff]+")
_IGNORED = re.compile(r"[^\w<>{}:=/()\[\]]+")
_ENCODED = re.compile(r"\\u|&#|&\w+;")


def as_read(text: str) -> str:
    """Returns the text as a person reads it, for a comparison.

    Removes white space, escapes, entities, and signs other than brackets, `:`, `=` and `/`.
    """
    for _ in range(_NESTED):
        if "\\" in text:
            text = _CODES.sub(_decode_codes, text)
        if "&" in text:
            text = _ENTITIES.sub(_character, text)
    if "\\" in text:
        text = _SPACES.sub(lambda found: "\t" if found[1] == "t" else "\n", text)
    return _IGNORED.sub("", _MARGINS.sub("", text))


def _decode_codes(codes: re.Match[str]) -> str:
    """Decodes `\\u` codes of JSON. They are UTF-16, so two of them may be one character."""
    return bytes.fromhex(_CODE.sub("", codes.group())).decode("utf-16-be", "replace")


def _character(entity: re.Match[str]) -> str:
    decimal, hexadecimal = entity.groups()
    code = f"&#{decimal};" if decimal else f"&#x{hexadecimal};"
    return html.unescape(code if decimal or hexadecimal else entity.group())


def _has(text: str, words: Collection[str]) -> bool:
    return any(map(text.__contains__, words))


class Quotations:
    """The input texts of a request. `block in quotations`: whether a block is copied from one of them.

    Keeps only the texts that may contain a call. They are prepared when the first block is compared.
    """

    def __init__(self, texts: Iterable[str], words: Collection[str]) -> None:
        """`words`: parts of markers.

        Only a text with such a part, a brace or an encoded character can contain a call.
        """
        self._texts = [text for text in texts if "{" in text or _ENCODED.search(text) or _has(text, words)]
        self._read: str | None = None

    def __bool__(self) -> bool:
        return bool(self._texts)

    def __contains__(self, block: str) -> bool:
        if self._read is None:
            self._read = as_read("\n".join(self._texts))
        return as_read(block) in self._read


# --- code ---
#
# Fences are those of CommonMark, also inside block quotes and lists. A fence begins with a line that begins
# with at least three backticks or tildes. It ends with a line of at least as many of the same characters.
# Inline code follows a run of backticks, up to the next run of the same length or the end of the line. If the
# run is the last thing on its line, inline code ends at the next run of the same length or at the end of the
# paragraph. In doubt, text counts as code, which is safe: recovery dialects are ignored in code.

# Phases of a line: its prefix, the run of a fence, the text after that run, other text.
_START, _RUN, _INFO, _REST = range(4)
_PREFIX = frozenset(" \t\r>*+-0123456789.)")  # before a fence: white space, block quotes, list items
_RUNS = re.compile("`+|[^`]+")


class FenceTracker:
    """Knows whether the text so far ends at a line's start, in a code fence or in inline code.

    `blank`: so far, the line has only white space, or characters that may become a fence.
    """

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
        """Whether the current position is in a code fence, including its opening line, or in inline code."""
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
        """Handles the end of a run of backticks, which opens or closes inline code, or is part of it."""
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

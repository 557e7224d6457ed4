"""Reads values in Python's or Gemma's literals and sends them as JSON while the model writes them.

`literal_value` reads objects, lists and tuples, without recursion and at most `MAX_DEPTH` deep. A `Language`
reads keys and scalars. JSON that was sent is never taken back, so a parenthesis waits until it is clear
whether it begins a tuple.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from toolwire.emulate.arguments import MAX_DEPTH, JsonFlow
from toolwire.emulate.grammars.reading import CUT, FAIL, OK, Reading, peek

if TYPE_CHECKING:
    from toolwire.emulate.scanner import ToolCallParser

Emit = Callable[[str], None]

_VALUE, _KEY, _MORE = range(3)  # what is due next
_MOST_UNDECIDED = 16  # undecided parentheses inside each other; their content is copied once for each level


class Language(Protocol):
    """The literals of one language.

    `brackets`: the closing bracket of each opening one. `key` and `scalar` read at the scanner's position,
    emit JSON, and return OK, CUT or FAIL.
    """

    @property
    def brackets(self) -> dict[str, str]: ...

    def key(self, scan: ToolCallParser, emit: Emit, depth: int) -> Reading: ...

    def scalar(self, scan: ToolCallParser, emit: Emit, depth: int) -> Reading: ...


class _Open:
    """An open container. `undecided`: parentheses that may or may not be a tuple."""

    __slots__ = ("closer", "count", "keys", "undecided")

    def __init__(self, closer: str) -> None:
        self.closer = closer
        self.count = 0
        self.keys: set[str] = set()
        self.undecided = closer == ")"


class _Nesting:
    """The open containers, and the JSON that they become."""

    __slots__ = ("_emit", "_waiting", "stack")

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._waiting: list[list[str]] = []  # the content of undecided parentheses, by level
        self.stack: list[_Open] = []

    def write(self, text: str) -> None:
        if self._waiting:
            self._waiting[-1].append(text)
        else:
            self._emit(text)

    def closes(self, char: str, due: int) -> bool:
        """Whether this character closes the innermost container; after a key it cannot."""
        return bool(self.stack) and char == self.stack[-1].closer and (due != _VALUE or char != "}")

    @property
    def full(self) -> bool:
        return len(self.stack) >= MAX_DEPTH or len(self._waiting) >= _MOST_UNDECIDED

    def separate(self) -> None:
        """Writes the comma before an item of a list or a key."""
        if self.stack[-1].count:
            self.write(", ")
        self.stack[-1].count += 1

    def item(self) -> None:
        """Prepares for a value."""
        if self.stack and self.stack[-1].closer != "}":
            self.separate()

    def open(self, closer: str) -> int:
        """Opens a container and returns what is due next."""
        self.item()
        if closer == ")":
            self._waiting.append([])
        else:
            self.write("{" if closer == "}" else "[")
        self.stack.append(_Open(closer))
        return _KEY if closer == "}" else _VALUE

    def next(self) -> int:
        """Handles a comma and returns what is due next."""
        if self.stack[-1].closer == ")":
            self.decide("[")
        return _KEY if self.stack[-1].closer == "}" else _VALUE

    def decide(self, before: str) -> None:
        """Writes the innermost parentheses: `before` is "[" for a tuple, "" for a value in parentheses."""
        if self.stack[-1].undecided:
            self.stack[-1].undecided = False
            inside = self._waiting.pop()
            self.write(before + "".join(inside))

    def close(self) -> None:
        last = self.stack[-1]
        plain = last.undecided and last.count == 1
        self.decide("" if plain else "[")
        self.stack.pop()
        if not plain:
            self.write("}" if last.closer == "}" else "]")


def literal_value(scan: ToolCallParser, language: Language, emit: Emit) -> Reading:
    """Reads one value and returns OK, CUT (the text ended) or FAIL (it is no literal)."""
    nesting = _Nesting(emit)
    stack = nesting.stack
    due = _VALUE
    while True:
        char = yield from peek(scan)
        if not char:
            return CUT
        if nesting.closes(char, due):
            scan.position += 1
            nesting.close()
            due = _MORE
        elif due == _MORE:
            if char != ",":
                return FAIL
            scan.position += 1
            due = nesting.next()
        elif due == _KEY:
            read = yield from member_key(scan, language, nesting)
            if read != OK:
                return read
            due = _VALUE
        elif char in language.brackets:
            if nesting.full:
                return FAIL
            scan.position += 1
            due = nesting.open(language.brackets[char])
        else:
            nesting.item()
            read = yield from language.scalar(scan, nesting.write, len(stack))
            if read != OK:
                return read
            due = _MORE
        if due == _MORE and not stack:
            return OK


def member_key(scan: ToolCallParser, language: Language, nesting: _Nesting) -> Reading:
    """Reads a key and its colon. A repeated key makes the value ambiguous: FAIL."""
    nesting.separate()
    parts: list[str] = []
    read = yield from language.key(scan, parts.append, len(nesting.stack))
    if read != OK:
        return read
    key = "".join(parts)
    nesting.write(key)
    if key in nesting.stack[-1].keys:
        return FAIL
    nesting.stack[-1].keys.add(key)
    colon = yield from peek(scan)
    if colon != ":":
        return FAIL if colon else CUT
    scan.position += 1
    nesting.write(": ")
    return OK


def json_string(scan: ToolCallParser, emit: Emit) -> Reading:
    """Reads a JSON string."""
    flow = JsonFlow()
    while True:
        scan.position = flow.run(scan.buffer, scan.position)
        if flow.out:
            emit(flow.take())
        if flow.done:
            note_repair(scan, *flow.issues)
            return OK
        if flow.failed:
            return FAIL
        if scan.ended:
            return CUT
        yield


def note_repair(scan: ToolCallParser, *issues: str) -> None:
    """Adds repairs to the call's issues, each once."""
    call = scan.call
    assert call is not None
    call.issues += [issue for issue in issues if issue not in call.issues]


def streamed(scan: ToolCallParser, parts: list[str], reading: Reading) -> Reading:
    """Runs a reading that emits into `parts`, and sends the JSON of each chunk of text as one piece."""
    while True:
        try:
            next(reading)
        except StopIteration as end:
            scan.write("".join(parts))
            parts.clear()
            return end.value
        scan.write("".join(parts))
        parts.clear()
        yield


def ended_call(scan: ToolCallParser) -> None:
    """Closes a call whose text ended inside the arguments."""
    scan.position = len(scan.buffer)
    scan.close_call("truncated")

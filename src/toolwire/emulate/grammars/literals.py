"""Reads the literals of Python and Gemma and writes them as JSON. Also reads Gemma's calls.

`literal_value` reads objects, lists and tuples, without recursion and at most `MAX_DEPTH` deep. A `Language`
reads keys and scalars. JSON that was sent cannot be changed later, so the content of parentheses is held
until it is clear whether they are a tuple.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from toolwire.emulate.arguments import MAX_DEPTH, JsonFlow
from toolwire.emulate.dialects.shapes import GemmaBlock
from toolwire.emulate.grammars.reading import (
    CUT,
    FAIL,
    OK,
    Reading,
    Scan,
    bare_name,
    end_call,
    json_value,
    literal,
    match,
    peek,
    short_text,
    until,
)
from toolwire.emulate.grammars.tag_values import escaped, property_schema, typed

Emit = Callable[[str], None]

_VALUE, _KEY, _MORE = range(3)  # what is expected next
# How deep parentheses may nest while they are undecided; each level copies its content once.
_MOST_UNDECIDED = 16


class Language(Protocol):
    """The literals of one language: Python or Gemma.

    `brackets` maps each opening bracket to its closing one. `key` and `scalar` read at the scanner's
    position, pass JSON to `emit`, and return `OK`, `CUT` or `FAIL` (see `reading.py`). `depth` is the number
    of open containers.
    """

    @property
    def brackets(self) -> dict[str, str]: ...

    def key(self, scan: Scan, emit: Emit, depth: int) -> Reading: ...

    def scalar(self, scan: Scan, emit: Emit, depth: int) -> Reading: ...


class _Open:
    """An open container. `undecided`: it is in parentheses, and may still turn out to be a tuple."""

    def __init__(self, closer: str) -> None:
        self.closer, self.count, self.undecided = closer, 0, closer == ")"
        self.keys: set[str] = set()


class _Nesting:
    """The containers that are open while a literal is read. Writes them as JSON."""

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
        """Whether `char` closes the innermost container.

        A `}` right after a key and its colon closes nothing, because the value of the key is missing.
        """
        return bool(self.stack) and char == self.stack[-1].closer and (due != _VALUE or char != "}")

    @property
    def full(self) -> bool:
        return len(self.stack) >= MAX_DEPTH or len(self._waiting) >= _MOST_UNDECIDED

    def separate(self) -> None:
        """Writes the comma before a key or a list item, unless it is the first one."""
        if self.stack[-1].count:
            self.write(", ")
        self.stack[-1].count += 1

    def item(self) -> None:
        """Writes the comma before a value, if the container is a list or a tuple."""
        if self.stack and self.stack[-1].closer != "}":
            self.separate()

    def open(self, closer: str) -> int:
        """Opens a container. Returns what is expected next: a key or a value."""
        self.item()
        if closer == ")":
            self._waiting.append([])
        else:
            self.write("{" if closer == "}" else "[")
        self.stack.append(_Open(closer))
        return _KEY if closer == "}" else _VALUE

    def next(self) -> int:
        """Handles a comma. Returns what is expected next: a key or a value."""
        if self.stack[-1].closer == ")":
            self.decide("[")
        return _KEY if self.stack[-1].closer == "}" else _VALUE

    def decide(self, before: str) -> None:
        """Decides whether the innermost parentheses are a tuple, and writes their content so far.

        `before`: the text before the content: "[" for a tuple, otherwise "".
        """
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


def literal_value(scan: Scan, language: Language, emit: Emit) -> Reading:
    """Reads one value. Returns OK, CUT (the text ended) or FAIL (it is not a literal)."""
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


def member_key(scan: Scan, language: Language, nesting: _Nesting) -> Reading:
    """Reads a key and its colon.

    Returns how the step ended: `OK`, `CUT` or `FAIL` (see `reading.py`). A repeated key is a `FAIL`, because
    it makes the value ambiguous.
    """
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


def json_string(scan: Scan, emit: Emit) -> Reading:
    flow = JsonFlow()
    read = yield from json_value(scan, flow, emit)
    if read == OK:
        note_repair(scan, *flow.issues)
    return read


def note_repair(scan: Scan, *issues: str) -> None:
    """Adds repairs to the issues of the open call, each once."""
    call = scan.open
    call.issues += [issue for issue in issues if issue not in call.issues]


def streamed(scan: Scan, parts: list[str], reading: Reading) -> Reading:
    """Runs the generator `reading`, which appends JSON to `parts`, and sends this JSON once per chunk.

    Returns the result of `reading`.
    """
    result, running = None, True
    while running:
        try:
            next(reading)
        except StopIteration as end:
            result, running = end.value, False
        scan.write("".join(parts))
        parts.clear()
        if running:
            yield
    return result


# --- Gemma's calls: `call:NAME{key:value, …}` ---
#
# Keys are words without quotes. Strings have Gemma's own quotes and no escapes, or are JSON strings.

_CALL = "call:"
_BARE_KEY = re.compile(r"""[^\s:,{}\[\]<>"']+""")
_BARE_VALUE = re.compile(r"""[^,{}\[\]<>"'\n:][^,{}\[\]<>"'\n]*""")
WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?\Z", re.ASCII)
_GEMMA_WORDS = {**WORDS, "none": "null"}
_TYPES = ("integer", "number", "boolean", "array", "object", "null")


def gemma_block(scan: Scan, block: GemmaBlock) -> Reading:
    """Reads calls one after another and the closer. Returns False if there is no closer."""
    calls = 0
    while True:
        char = yield from peek(scan)
        if calls and char == "<":
            return (yield from literal(scan, block.wrapper_closers)) is not None
        if char != "c" or (calls and scan.at_call_limit) or (yield from literal(scan, (_CALL,))) is None:
            return False
        if not (yield from gemma_call(scan, block)):
            return False
        calls += 1


def gemma_call(scan: Scan, block: GemmaBlock) -> Reading:
    """Tries to read one call. Returns whether a call was read."""
    name = yield from bare_name(scan)
    if name is None or scan.buffer[scan.position] != "{":
        return False
    scan.open_call(name)
    parts: list[str] = []
    language = Gemma(block, scan.open.tool.parameters)
    read = yield from streamed(scan, parts, literal_value(scan, language, parts.append))
    return (yield from end_call(scan, read, block.wrapper_closers))


class Gemma:
    """Gemma's literals, as a `Language`."""

    brackets = {"{": "}", "[": "]"}  # noqa: RUF012

    def __init__(self, block: GemmaBlock, schema: Mapping[str, Any]) -> None:
        self._quote = block.quote
        self._schema = schema if block.untyped else {}
        self._key = ""  # the key of the current argument

    def key(self, scan: Scan, emit: Emit, depth: int) -> Reading:
        if (yield from literal(scan, (self._quote,))) is not None:
            key = yield from short_text(scan, self._quote)
            if key is None:
                return CUT if scan.ended else FAIL
        elif scan.buffer.startswith('"', scan.position):
            return (yield from json_string(scan, emit))
        else:
            key = yield from match(scan, _BARE_KEY)
            if key is None:
                return CUT if scan.ended else FAIL
            scan.position += len(key)
        if depth == 1:
            self._key = key
        emit(json.dumps(key, ensure_ascii=False))
        return OK

    def scalar(self, scan: Scan, emit: Emit, depth: int) -> Reading:
        if (yield from literal(scan, (self._quote,))) is not None:
            return (yield from self._string(scan, emit, depth))
        if scan.buffer.startswith('"', scan.position):
            return (yield from json_string(scan, emit))
        raw = yield from match(scan, _BARE_VALUE)
        if raw is None:
            return CUT if scan.ended else FAIL
        scan.position += len(raw)
        text = raw.strip()
        written = _GEMMA_WORDS.get(text) or (text if JSON_NUMBER.match(text) else None)
        if written is None:
            note_repair(scan, "unquoted_string")
            written = json.dumps(text, ensure_ascii=False)
        emit(written)
        return OK

    def _string(self, scan: Scan, emit: Emit, depth: int) -> Reading:
        """Reads a string and sends its text while it is read.

        If the schema asks for another type, the complete text is converted to that type instead.
        """
        pieces: list[str] = []
        is_typed = depth == 1 and property_schema(self._schema, self._key).get("type") in _TYPES
        emit("" if is_typed else '"')
        push = pieces.append if is_typed else lambda text: emit(escaped(text))
        if not (yield from until(scan, (self._quote,), len(self._quote) - 1, push)):
            return CUT
        emit(typed(scan, "".join(pieces), is_string=False) if is_typed else '"')
        return OK

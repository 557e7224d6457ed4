"""The grammar of Python calls with keyword arguments: `[f(a=1), g(b="x")]`.

Calls may be in a list or follow each other. After the name and the parenthesis must come a keyword, `**{…}`
or the closing parenthesis. Anything else, such as a list, a link or a sum, is not a call.
"""

from __future__ import annotations

import ast
import json
import re
import unicodedata

from toolwire.emulate.dialects import JsonBlock
from toolwire.emulate.dialects.shapes import PythonBlock
from toolwire.emulate.grammars.json_block import envelope_call
from toolwire.emulate.grammars.literals import JSON_NUMBER, WORDS, Emit, literal_value, note_repair, streamed
from toolwire.emulate.grammars.reading import (
    CUT,
    FAIL,
    LONGEST,
    OK,
    Reading,
    Scan,
    bare_name,
    cut_name,
    end_call,
    literal,
    match,
    more,
    peek,
)
from toolwire.emulate.grammars.tag_values import escaped

# --- values ---
#
# Python's literals: strings (either quote, triple, raw, adjacent), numbers, True, False, None, lists, tuples
# and dicts. `true`, `false` and `null` are accepted too, because models mix them in. A line break inside a
# simple string is repaired. Expressions, names, sets, bytes and f-strings are not literals.

_RUNS = {
    '"': re.compile(r'[^"\\\n]*'),
    "'": re.compile(r"[^'\\\n]*"),
    '"""': re.compile(r'[^"\\]*'),
    "'''": re.compile(r"[^'\\]*"),
}
_QUOTES = "\"'"
_PREFIXES = "rRuU"
_TOKEN = re.compile(r"[-+]?[\w.]*(?:(?<=[eE])[-+]\w*)?", re.ASCII)
_LONGEST_TOKEN = 4096
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "\n": ""}
_SIMPLE |= {char: char for char in "\\'\""}
_CODED = re.compile(
    r"\\(?:x(?P<x>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})|U(?P<U>[0-9a-fA-F]{8})|(?P<octal>[0-7]{1,3})"
    r"|N\{(?P<N>[^{}\n]{0,80})\})"
)
_LONGEST_CODE = {"N": len(r"\N{}") + 80, "U": 10}


class Python:
    """Python's literals, as a `Language`."""

    brackets = {"{": "}", "[": "]", "(": ")"}  # noqa: RUF012

    def key(self, scan: Scan, emit: Emit, depth: int) -> Reading:
        if (yield from at_string(scan)):
            return (yield from string(scan, emit))
        token = yield from match(scan, _TOKEN, _LONGEST_TOKEN)
        written = number(token) if token else None
        if token is None or written is None or not written.lstrip("-").isdigit():
            return CUT if scan.ended and scan.position + len(token or "") >= len(scan.buffer) else FAIL
        scan.position += len(token)
        emit(f'"{int(written)}"')
        return OK

    def scalar(self, scan: Scan, emit: Emit, depth: int) -> Reading:
        if (yield from at_string(scan)):
            return (yield from string(scan, emit))
        token = yield from match(scan, _TOKEN, _LONGEST_TOKEN)
        if token is None:
            return CUT if scan.ended else FAIL
        written = WORDS.get(token) or number(token)
        if written is None:
            return FAIL
        scan.position += len(token)
        emit(written)
        return OK


PYTHON = Python()


def number(token: str) -> str | None:
    """Returns a Python number as JSON, or None if it is not a finite number.

    A number that is also a JSON number is copied verbatim.
    """
    if JSON_NUMBER.match(token):
        return token
    try:
        value = ast.literal_eval(token)
        return json.dumps(value, allow_nan=False) if type(value) in (int, float) else None
    except (ValueError, SyntaxError):
        return None


def at_string(scan: Scan) -> Reading:
    """Whether a string begins here, with or without a prefix such as `r`."""
    char = scan.buffer[scan.position]
    if char not in _PREFIXES:
        return char in _QUOTES
    return (yield from more(scan, 2)) and scan.buffer[scan.position + 1] in _QUOTES


def string(scan: Scan, emit: Emit) -> Reading:
    """Reads a string and the strings that follow it, which Python joins.

    Returns how the step ended: `OK` or `CUT` (see `reading.py`).
    """
    emit('"')
    while True:
        read = yield from one_string(scan, emit)
        if read != OK:
            return read
        if not (yield from peek(scan)) or not (yield from at_string(scan)):
            emit('"')
            return OK


def one_string(scan: Scan, emit: Emit) -> Reading:
    """Reads one string and emits it without its quotes.

    Returns how the step ended: `OK` or `CUT` (see `reading.py`).
    """
    raw = scan.buffer[scan.position] in "rR"
    scan.position += scan.buffer[scan.position] not in _QUOTES
    quote = scan.buffer[scan.position]
    while (
        scan.buffer[scan.position : scan.position + 3] in (quote, quote * 2)
        and scan.position + 3 > len(scan.buffer)
        and not scan.ended
    ):
        yield  # wait until it is clear whether there are one, two or three quotes
    closer = quote * 3 if scan.buffer.startswith(quote * 3, scan.position) else quote
    scan.position += len(closer)
    run = _RUNS[closer]
    while True:
        stop = run.match(scan.buffer, scan.position).end()  # type: ignore[union-attr]
        if stop > scan.position:
            emit(escaped(scan.buffer[scan.position : stop]))
            scan.position = stop
        if stop == len(scan.buffer):
            if scan.ended:
                return CUT
            yield
        elif scan.buffer.startswith(closer, stop):
            scan.position += len(closer)
            return OK
        elif scan.buffer[stop] == "\\":
            read = yield from escape(scan, emit, raw)
            if read != OK:
                return read
        elif scan.buffer[stop] == "\n":
            note_repair(scan, "control_character")
            emit("\\n")
            scan.position += 1
        elif closer.startswith(scan.buffer[stop:]) and not scan.ended:
            yield  # wait: more quotes may follow, so that there are three
        else:
            emit(escaped(quote))
            scan.position += 1


def escape(scan: Scan, emit: Emit, raw: bool) -> Reading:
    """Reads an escape sequence.

    Returns how the step ended: `OK` or `CUT` (see `reading.py`). `raw`: the string has the prefix `r`. An
    escape that Python does not know keeps its backslash.
    """
    if not (yield from more(scan, 2)):
        return CUT
    char = scan.buffer[scan.position + 1]
    if raw or char in _SIMPLE:
        emit(escaped("\\" + char if raw else _SIMPLE[char]))
        scan.position += 2
        return OK
    character = None
    if char in "xuUN01234567":
        yield from more(scan, _LONGEST_CODE.get(char, 6))
        found = _CODED.match(scan.buffer, scan.position)
        character = _character(found) if found else None
        if found is not None and character is not None:
            emit(character)
            scan.position = found.end()
            return OK
        note_repair(scan, "bad_escape")
    emit("\\\\")
    scan.position += 1
    return OK


def _character(found: re.Match[str]) -> str | None:
    """Returns the character of a Python escape as JSON writes it; None if the escape is invalid.

    Half of a surrogate pair is returned as a JSON escape.
    """
    kind = str(found.lastgroup)
    code = found[kind]
    if kind == "N":
        try:
            return escaped(unicodedata.lookup(code))
        except KeyError:
            return None
    point = int(code, 8 if kind == "octal" else 16)
    if 0xD800 <= point <= 0xDFFF:
        return f"\\u{point:04x}"
    return escaped(chr(point)) if point < 0x110000 else None


# --- calls ---

_KEYWORD = re.compile(r"[^\W\d]\w*")


def python_block(scan: Scan, block: PythonBlock) -> Reading:
    """Reads calls, in a list or one after another, and the closer.

    Returns whether the block has its proper end: the closer or, for a shape without closers, `]`.
    """
    listed = False
    ready = True  # a call may begin here
    calls = 0
    while True:
        char = yield from peek(scan)
        if not char:
            return False
        if char == "[" and not listed and not calls:
            listed = True
            scan.position += 1
        elif char == "]" and listed and calls:
            listed = False
            scan.position += 1
            scan.checkpoint()
            if not block.wrapper_closers:
                return True
        elif calls and char in ",;":
            ready = True
            scan.position += 1
        elif calls and char == "<":
            return (yield from literal(scan, block.wrapper_closers)) is not None
        elif (
            (block.exact and not ready)
            or (calls and scan.at_call_limit)
            or not (yield from any_call(scan, block, char))
        ):
            return False
        else:
            ready = False
            calls += 1


def any_call(scan: Scan, block: PythonBlock, char: str) -> Reading:
    """Tries to read one call, in Python or as a JSON object with a name. Returns whether a call was read."""
    if char != "{":
        return (yield from python_call(scan, block))
    return not block.exact and (yield from envelope_call(scan, JsonBlock(closers=block.wrapper_closers)))


def python_call(scan: Scan, block: PythonBlock) -> Reading:
    """Tries to read one Python call `NAME(…)`. Returns whether a call was read."""
    name = yield from bare_name(scan)
    if name is None or scan.buffer[scan.position] != "(":
        return False
    scan.position += 1
    read = yield from first_argument(scan)
    if read == CUT:
        return cut_name(scan, name)
    if read == FAIL:
        return False
    scan.open_call(name, hold=block.exact)
    parts: list[str] = []
    if read == "**":
        done = yield from streamed(scan, parts, literal_value(scan, PYTHON, parts.append))
        last = yield from peek(scan)
        if done == OK and last == ",":
            scan.position += 1
            last = yield from peek(scan)
        done = done if done != OK or last == ")" else FAIL if last else CUT
    else:
        done = yield from streamed(scan, parts, keyword_arguments(scan, read, parts.append))
    scan.position += done == OK
    return (yield from end_call(scan, done, block.wrapper_closers))


def first_argument(scan: Scan) -> Reading:
    """Reads the first argument of a call, up to its value.

    Returns `=NAME` for a keyword `NAME=`, `**` if a dict follows, or "" if the call has no arguments. Returns
    CUT if the text ends too early, and FAIL for anything else.
    """
    char = yield from peek(scan)
    if char == ")":
        return ""
    if char == "*":
        if (yield from literal(scan, ("**",))) is None:
            return CUT if scan.ended else FAIL
        char = yield from peek(scan)
        return "**" if char == "{" else FAIL if char else CUT
    return (yield from keyword(scan))


def keyword(scan: Scan) -> Reading:
    """Consumes a keyword and its `=`.

    Returns `=` and the keyword, such as `=path`. If there is no keyword, returns `CUT` or `FAIL` (see
    `reading.py`).
    """
    while True:
        found = _KEYWORD.match(scan.buffer, scan.position)
        if found is None:
            return FAIL if scan.position < len(scan.buffer) else CUT
        if found.end() - scan.position > LONGEST:
            return FAIL
        if found.end() < len(scan.buffer):
            break
        if scan.ended:
            return CUT
        yield
    scan.position = found.end()
    char = yield from peek(scan)
    if char != "=":
        return FAIL if char else CUT
    scan.position += 1
    char = yield from peek(scan)
    return "=" + found.group() if char and char != "=" else FAIL if char else CUT


def keyword_arguments(scan: Scan, first: str, emit: Emit) -> Reading:
    """Reads keywords and values up to the closing parenthesis, which is not consumed.

    Returns how the step ended: `OK`, `CUT` or `FAIL` (see `reading.py`). `first`: what `first_argument`
    returned.
    """
    if not first:
        return OK
    before = "{"
    names: set[str] = set()
    while True:
        if first in names:
            return FAIL
        names.add(first)
        emit(before + json.dumps(first[1:], ensure_ascii=False) + ": ")
        before = ", "
        read = yield from literal_value(scan, PYTHON, emit)
        if read != OK:
            return read
        char = yield from peek(scan)
        if char == ",":
            scan.position += 1
            char = yield from peek(scan)
            if char and char != ")":
                first = yield from keyword(scan)
                if first in (CUT, FAIL):
                    return first
                continue
        if char != ")":
            return FAIL if char else CUT
        emit("}")
        return OK

"""The grammar of Python calls: `[f(a=1), g(b="x")]`, or one call after another, with keyword arguments only.

After the name and the parenthesis must come a keyword, `**{…}` or the closing parenthesis. Anything else is
not a call but a list, a link or a sum.
"""

from __future__ import annotations

import json
import re
import unicodedata
from typing import TYPE_CHECKING

from toolwire.emulate.dialects import JsonBlock
from toolwire.emulate.dialects.shapes import PythonBlock
from toolwire.emulate.grammars.json_block import envelope_call
from toolwire.emulate.grammars.literals import Emit, ended_call, literal_value, note_repair, streamed
from toolwire.emulate.grammars.reading import (
    CUT,
    FAIL,
    LONGEST,
    OK,
    Reading,
    give_up,
    is_complete,
    literal,
    peek,
)
from toolwire.emulate.grammars.tag_block import bare_name, cut_call
from toolwire.emulate.grammars.tag_values import escaped

if TYPE_CHECKING:
    from toolwire.emulate.scanner import ToolCallParser

# --- values ---
#
# Python's literals: strings (either quote, triple, raw, adjacent), numbers, True, False, None, lists, tuples
# and dicts. `true`, `false` and `null` count too, because models mix them in. A line break inside a simple
# string is repaired. Expressions, names, sets, bytes and f-strings are not literals.

_RUNS = {
    '"': re.compile(r'[^"\\\n]*'),
    "'": re.compile(r"[^'\\\n]*"),
    '"""': re.compile(r'[^"\\]*'),
    "'''": re.compile(r"[^'\\]*"),
}
_QUOTES = "\"'"
_PREFIXES = "rRuU"
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_TOKEN = re.compile(r"[-+]?[\w.]*(?:(?<=[eE])[-+]\w*)?", re.ASCII)
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?\Z", re.ASCII)
_PYTHON_INTEGER = re.compile(
    r"[-+]?(?:0[xX](?:_?[0-9a-fA-F])+|0[oO](?:_?[0-7])+|0[bB](?:_?[01])+|[1-9](?:_?[0-9])*|0(?:_?0)*)\Z",
    re.ASCII,
)
_DIGITS = r"[0-9](?:_?[0-9])*"
_PYTHON_FLOAT = re.compile(
    rf"[-+]?(?:{_DIGITS}\.(?:{_DIGITS})?|\.{_DIGITS}|{_DIGITS}(?=[eE]))(?:[eE][-+]?{_DIGITS})?\Z", re.ASCII
)
_LONGEST_TOKEN = 4096
_SIMPLE = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "v": "\v",
    "\n": "",
}
_CODES = {
    "x": re.compile(r"[0-9a-fA-F]{0,2}"),
    "u": re.compile(r"[0-9a-fA-F]{0,4}"),
    "U": re.compile(r"[0-9a-fA-F]{0,8}"),
}
_SIZES = {"x": 2, "u": 4, "U": 8}
_OCTAL = re.compile(r"[0-7]{1,3}")
_NAMED = re.compile(r"\{([^{}\n]{0,80})(\}?)")


class Python:
    """Python's literals, as a `Language`."""

    brackets = {"{": "}", "[": "]", "(": ")"}  # noqa: RUF012

    def key(self, scan: ToolCallParser, emit: Emit, depth: int) -> Reading:
        char = scan.buffer[scan.position]
        if char in _QUOTES or (char in _PREFIXES and (yield from prefixed(scan))):
            return (yield from string(scan, emit))
        token = yield from whole_token(scan)
        written = integer(token) if token else None
        if token is None or written is None:
            return CUT if scan.ended and scan.position + len(token or "") >= len(scan.buffer) else FAIL
        scan.position += len(token)
        emit(f'"{written}"')
        return OK

    def scalar(self, scan: ToolCallParser, emit: Emit, depth: int) -> Reading:
        char = scan.buffer[scan.position]
        if char in _QUOTES or (char in _PREFIXES and (yield from prefixed(scan))):
            return (yield from string(scan, emit))
        token = yield from whole_token(scan)
        if token is None:
            return CUT if scan.ended else FAIL
        written = _WORDS.get(token) or number(token)
        if written is None:
            return FAIL
        scan.position += len(token)
        emit(written)
        return OK


PYTHON = Python()


def whole_token(scan: ToolCallParser) -> Reading:
    """A word or a number, not consumed; None if it is too long or not certainly complete."""
    while True:
        found = _TOKEN.match(scan.buffer, scan.position, scan.position + _LONGEST_TOKEN + 1)
        assert found is not None
        if len(found.group()) > _LONGEST_TOKEN:
            return None
        if found.end() < len(scan.buffer):
            return found.group()
        if scan.ended:
            return None
        yield


def number(token: str) -> str | None:
    """A Python number as JSON; verbatim if it is also a JSON number."""
    if _JSON_NUMBER.match(token):
        return token
    if _PYTHON_INTEGER.match(token):
        return integer(token)
    value = float(token) if _PYTHON_FLOAT.match(token) else None
    return json.dumps(value) if value is not None and value - value == 0 else None


def integer(token: str) -> str | None:
    """A Python integer in decimal digits; None if it is not one, or has more digits than Python converts."""
    try:
        return str(int(token, 0)) if _PYTHON_INTEGER.match(token) else None
    except ValueError:
        return None


def prefixed(scan: ToolCallParser) -> Reading:
    """Whether the letter here is a string's prefix and not a word."""
    while scan.position + 1 >= len(scan.buffer) and not scan.ended:
        yield
    return scan.position + 1 < len(scan.buffer) and scan.buffer[scan.position + 1] in _QUOTES


def string(scan: ToolCallParser, emit: Emit) -> Reading:
    """Reads a string and the strings that follow it, which Python joins."""
    emit('"')
    while True:
        read = yield from one_string(scan, emit)
        if read != OK:
            return read
        char = yield from peek(scan)
        if not char or not (char in _QUOTES or (char in _PREFIXES and (yield from prefixed(scan)))):
            emit('"')
            return OK


def one_string(scan: ToolCallParser, emit: Emit) -> Reading:
    """Reads one string, without writing its quotes."""
    raw = scan.buffer[scan.position] in "rR"
    scan.position += scan.buffer[scan.position] not in _QUOTES
    quote = scan.buffer[scan.position]
    while (
        scan.buffer[scan.position : scan.position + 3] in (quote, quote * 2)
        and scan.position + 3 > len(scan.buffer)
        and not scan.ended
    ):
        yield  # one, two or three quotes
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
            yield  # these quotes may become three
        else:
            emit(escaped(quote))
            scan.position += 1


def escape(scan: ToolCallParser, emit: Emit, raw: bool) -> Reading:
    """Reads an escape; one that Python does not know keeps its backslash."""
    while scan.position + 1 >= len(scan.buffer):
        if scan.ended:
            return CUT
        yield
    char = scan.buffer[scan.position + 1]
    if raw:
        emit(escaped("\\" + char))
        scan.position += 2
        return OK
    if char in _SIMPLE:
        emit(escaped(_SIMPLE[char]))
        scan.position += 2
        return OK
    if char in "xuU01234567N":
        return (yield from coded(scan, emit, char))
    emit("\\\\")
    scan.position += 1
    return OK


def coded(scan: ToolCallParser, emit: Emit, kind: str) -> Reading:
    """Reads an escape with a character's number or name. A wrong one is repaired: it keeps its backslash."""
    pattern = _CODES.get(kind) or (_NAMED if kind == "N" else _OCTAL)
    start = scan.position + (1 if kind in "01234567" else 2)
    while True:
        found = pattern.match(scan.buffer, start)
        whole = found is not None and (
            found.group(2) == "}" if kind == "N" else len(found.group()) == _SIZES.get(kind, 3)
        )
        if (
            whole
            or scan.ended
            or (len(scan.buffer) > start if found is None else found.end() < len(scan.buffer))
        ):
            break
        start -= scan.position
        yield
        start += scan.position
    character = (
        _character(kind, found.group(1) if kind == "N" else found.group())
        if found and (whole or kind in "01234567")
        else None
    )
    if character is None:
        if scan.ended and (found is None or found.end() == len(scan.buffer)):
            return CUT
        note_repair(scan, "bad_escape")
        emit("\\\\")
        scan.position += 1
        return OK
    emit(character)
    assert found is not None
    scan.position = found.end()
    return OK


def _character(kind: str, code: str) -> str | None:
    """One character as the inside of a JSON string.

    Halves of a surrogate pair stay escapes; JSON joins them.
    """
    if kind == "N":
        try:
            return escaped(unicodedata.lookup(code))
        except KeyError:
            return None
    point = int(code, 8 if kind in "01234567" else 16)
    if 0xD800 <= point <= 0xDFFF:
        return f"\\u{point:04x}"
    return escaped(chr(point)) if point < 0x110000 else None


# --- calls ---

_KEYWORD = re.compile(r"[^\W\d]\w*")


def python_block(scan: ToolCallParser, block: PythonBlock) -> Reading:
    """Reads calls, in a list or one after another, and the closer. False: the block has no proper end."""
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


def any_call(scan: ToolCallParser, block: PythonBlock, char: str) -> Reading:
    """Reads one call, also as a JSON envelope. True: it is a call."""
    if char == "{":
        return (
            False
            if block.exact
            else (yield from envelope_call(scan, JsonBlock(closers=block.wrapper_closers)))
        )
    return (yield from python_call(scan, block))


def python_call(scan: ToolCallParser, block: PythonBlock) -> Reading:
    """Reads one `NAME(…)`. True: it is a call."""
    name = yield from bare_name(scan)
    if name is None or scan.buffer[scan.position] != "(":
        return False
    scan.position += 1
    read = yield from first_argument(scan)
    if read == CUT:
        return cut_call(scan, name)
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
    if done == CUT:
        ended_call(scan)
        return scan.candidate_open
    if done == FAIL:
        yield from give_up(scan, block.wrapper_closers or ("\n",))
        return scan.candidate_open
    scan.position += 1
    if not (yield from is_complete(scan)):
        yield from give_up(scan, (*block.wrapper_closers, "\n"))
        return scan.candidate_open
    return scan.close_call()


def first_argument(scan: ToolCallParser) -> Reading:
    """Reads the beginning of the arguments.

    Returns `=` and the first keyword (consumed with its sign), `**` before a dict, "" without arguments, CUT
    or FAIL.
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


def keyword(scan: ToolCallParser) -> Reading:
    """Consumes a keyword and its sign and returns `=` and the keyword; else CUT or FAIL."""
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


def keyword_arguments(scan: ToolCallParser, first: str, emit: Emit) -> Reading:
    """Reads keywords and values up to the closing parenthesis, which is not consumed."""
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

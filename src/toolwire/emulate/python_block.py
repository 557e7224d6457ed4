"""The grammar of Python calls: `[f(a=1), g(b="x")]`, or one call after another, with keyword arguments only.

A call is one when its name stands before a parenthesis with a keyword, `**{…}` or nothing behind it; anything else was a list, a link or a sum.
Standard library only.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from toolwire.emulate.dialects import JsonBlock
from toolwire.emulate.dialects.shapes import PythonBlock
from toolwire.emulate.json_block import envelope_call
from toolwire.emulate.literals import Emit, ended_call, flowing, literal_value
from toolwire.emulate.python_values import PYTHON
from toolwire.emulate.reading import CUT, FAIL, LONGEST, OK, Reading, is_complete, literal, peek, spoil
from toolwire.emulate.tag_block import bare_name, cut_call

if TYPE_CHECKING:
    from toolwire.emulate.scanner import ToolCallParser

_KEYWORD = re.compile(r"[^\W\d]\w*")


def python_block(scan: ToolCallParser, block: PythonBlock) -> Reading:
    """True when the block came to its end; False leaves the scanner behind the last complete call."""
    listed = False
    ready = True  # a call may stand here
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
        elif (block.exact and not ready) or (calls and scan.full) or not (yield from any_call(scan, block, char)):
            return False
        else:
            ready = False
            calls += 1


def any_call(scan: ToolCallParser, block: PythonBlock, char: str) -> Reading:
    """One call. True: it came out."""
    if char == "{":
        return False if block.exact else (yield from envelope_call(scan, JsonBlock(closers=block.wrapper_closers)))
    return (yield from python_call(scan, block))


def python_call(scan: ToolCallParser, block: PythonBlock) -> Reading:
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
        done = yield from flowing(scan, parts, literal_value(scan, PYTHON, parts.append))
        last = yield from peek(scan)
        if done == OK and last == ",":
            scan.position += 1
            last = yield from peek(scan)
        done = done if done != OK or last == ")" else FAIL if last else CUT
    else:
        done = yield from flowing(scan, parts, keyword_arguments(scan, read, parts.append))
    if done == CUT:
        ended_call(scan)
        return scan.started
    if done == FAIL:
        yield from spoil(scan, block.wrapper_closers or ("\n",))
        return scan.started
    scan.position += 1
    if not (yield from is_complete(scan)):
        yield from spoil(scan, (*block.wrapper_closers, "\n"))
        return scan.started
    return scan.close_call()


def first_argument(scan: ToolCallParser) -> Reading:
    """What the parentheses begin with: a keyword (consumed with its sign), `**` before a dict, or "" for nothing; else CUT or FAIL."""
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
    """Keywords and values up to the closing parenthesis, which is not consumed."""
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

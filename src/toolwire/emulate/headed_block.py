"""The grammar of headed blocks: the name in a header of markers, then the arguments as JSON, then closers that may be missing.

A header is short (`LONGEST`), so a marker that only looks like a call costs little and goes back to being text. Standard library only.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from toolwire.emulate.arguments import JsonFlow
from toolwire.emulate.dialects.shapes import HeadedBlock
from toolwire.emulate.reading import CLOSED, LONGEST, OK, Reading, is_complete, literal, peek, spoil

if TYPE_CHECKING:
    from toolwire.emulate.scanner import ToolCallParser

_FENCE = "```"


def headed_block(scan: ToolCallParser, block: HeadedBlock) -> Reading:
    """Calls one after another. Always leaves the scanner behind the last closer, or behind the last complete call."""
    calls = 0
    while (yield from peek(scan)):
        if calls and scan.full:
            break
        opened = (yield from literal(scan, block.call_openers)) if block.call_openers else None
        if (calls and opened is None) or not (yield from headed_call(scan, block)):
            break
        calls += 1
    return False


def headed_call(scan: ToolCallParser, block: HeadedBlock) -> Reading:
    """One call and its closers. True: it came out."""
    text = yield from header(scan, block)
    char = yield from peek(scan)
    found = named(scan, block, text)
    if found is None:
        return False
    if char:
        if char != "{" and (yield from literal(scan, closers(block, text))) is None:
            return False
    elif scan.reason != "length" or not text.rstrip().endswith(block.marks) or scan.registry.resolve(found["name"]) is None:
        return False
    scan.open_call(found["name"], id=found.groupdict().get("id") or None)
    if char != "{":  # no arguments, or the text ended before them
        came = scan.close_call("ok" if char else "truncated")
    elif (yield from object_arguments(scan, block)) == CLOSED:
        came = scan.started
    elif not (yield from is_complete(scan)):
        yield from spoil(scan, (block.call_close, *block.wrapper_closers, "\n"))
        came = scan.started
    else:
        came = scan.close_call()
    if came:
        yield from skip_closers(scan, closers(block, text))
    return came


def header(scan: ToolCallParser, block: HeadedBlock) -> Reading:
    """The words and markers that stand here, consumed; what breaks off at `LONGEST` matches no header."""
    text = ""
    marks = block.marks
    while len(text) <= LONGEST:
        while scan.position >= len(scan.buffer):
            if scan.ended:
                return text
            yield
        words = block.words.match(scan.buffer, scan.position, scan.position + LONGEST + 1 - len(text))
        if words is not None:
            text += words.group()
            scan.position = words.end()
            continue
        found = yield from literal(scan, marks)
        if found is None:
            return text
        text += found
        marks = tuple(mark for mark in marks if mark != found)
    return ""


def named(scan: ToolCallParser, block: HeadedBlock, text: str) -> re.Match[str] | None:
    """How the header reads: with a known tool where it can, since a name may hold what else ends it."""
    readings = [found for pattern in block.headers if (found := pattern.fullmatch(text))]
    return next((found for found in readings if scan.registry.resolve(found["name"]) is not None), readings[0] if readings else None)


def object_arguments(scan: ToolCallParser, block: HeadedBlock) -> Reading:
    """The object that stands here, as it is written."""
    flow = JsonFlow()
    while True:
        scan.position = flow.run(scan.buffer, scan.position)
        scan.write(flow.take())
        if flow.done:
            scan.call.issues += flow.issues  # type: ignore[union-attr]
            return OK
        if flow.failed:
            every = (block.call_close, *block.wrapper_closers)
            return (yield from spoil(scan, (*every, "\n") if block.open_ended else every))
        if scan.ended:
            scan.write(scan.buffer[scan.position :])
            scan.position = len(scan.buffer)
            scan.close_call("truncated")
            return CLOSED
        yield


def closers(block: HeadedBlock, header: str) -> tuple[str, ...]:
    """What may stand behind the call's arguments; a fence is closed where the header opened one."""
    return (*((_FENCE,) if _FENCE in header else ()), block.call_close, *block.wrapper_closers)


def skip_closers(scan: ToolCallParser, left: tuple[str, ...]) -> Reading:
    while left:
        yield from peek(scan)
        found = yield from literal(scan, left)
        if found is None:
            return
        scan.checkpoint()
        left = tuple(closer for closer in left if closer != found)

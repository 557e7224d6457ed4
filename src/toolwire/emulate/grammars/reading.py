"""What the grammars of a block read with, as generators: from the scanner's buffer, asking for more text by yielding.

A generator decides nothing before it has the characters that decide it, so that the cuts between pieces never show (law 4). Once the end of the text
is known it never yields. What it consumed without making a call of it is text again: the scanner knows where the block began. Standard library only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolwire.emulate.scanner import ToolCallParser

Reading = Generator[None, None, Any]

OK, CUT, FAIL, CLOSED = "ok", "cut", "fail", "closed"
# OK: read to its end. CUT: the text ended first. FAIL: the grammar does not allow what stands there. CLOSED: the call came to its end on the way.

LONGEST = 512  # of a name, a key, a tag

_WHITE = re.compile(r"\s*")
_LITERAL = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_SINGLE = re.compile(r"'[^'\\\x00-\x1f]*'")
_WORD = re.compile(r"[A-Za-z_]\w*")
_TAG = re.compile(r"<[^<>\n]*")
_CLOSING = re.compile(r"(?:[^\S\n]|[}\]),;])*")
_REST = re.compile(r"[^\n<\[{]*")  # of a line, up to what may be another call
_MEMBER = re.compile(r"[\w-]+\s*[:=]")
_LEFT_OVER = re.compile(r"'[}\])]")


def peek(scan: ToolCallParser) -> Reading:
    """Skips white space; the next character, or "" at the end of the text."""
    while True:
        scan.position = _WHITE.match(scan.buffer, scan.position).end()  # type: ignore[union-attr]
        if scan.position < len(scan.buffer):
            return scan.buffer[scan.position]
        if scan.ended:
            return ""
        yield


def literal(scan: ToolCallParser, options: tuple[str, ...]) -> Reading:
    """Consumes one of `options` where it stands; else None, and nothing is consumed."""
    while True:
        for option in options:
            if scan.buffer.startswith(option, scan.position):
                scan.position += len(option)
                return option
        rest = scan.buffer[scan.position :]
        if scan.ended or not any(option.startswith(rest) for option in options):
            return None
        yield


def tag(scan: ToolCallParser) -> Reading:
    """The whole tag that stands here, not consumed; None where no tag stands."""
    while True:
        stop = _TAG.match(scan.buffer, scan.position).end()  # type: ignore[union-attr]
        if stop - scan.position > LONGEST:
            return None
        if stop < len(scan.buffer):
            return scan.buffer[scan.position : stop + 1] if scan.buffer[stop] == ">" else None
        if scan.ended:
            return None
        yield


def string(scan: ToolCallParser, bare: bool = False) -> Reading:
    """A short string: consumed and decoded, or None. `bare`: a word without quotes will do."""
    char = scan.buffer[scan.position]
    pattern = _LITERAL if char == '"' else _SINGLE if char == "'" else _WORD if bare else None
    if pattern is None:
        return None
    while True:
        found = pattern.match(scan.buffer, scan.position)
        if found is not None and (pattern is not _WORD or found.end() < len(scan.buffer) or scan.ended):
            break
        if scan.ended or (pattern is _WORD and found is None) or len(scan.buffer) - scan.position > LONGEST:
            return None
        yield
    if found.end() - scan.position > LONGEST:
        return None
    text = found.group()
    try:
        value = json.loads(text) if char == '"' else text.strip("'")
    except ValueError:
        return None
    scan.position = found.end()
    return value


def until(scan: ToolCallParser, closers: tuple[str, ...], keep: int, emit: Callable[[str], None]) -> Reading:
    """Hands everything before the first closer to `emit`, holding back `keep` characters that may still belong to it; consumes the closer.

    False at the end.
    """
    while True:
        places = [(place, closer) for closer in closers if (place := scan.buffer.find(closer, scan.position)) >= 0]
        if places:
            place, closer = min(places)
            emit(scan.buffer[scan.position : place])
            scan.position = place + len(closer)
            return True
        if scan.ended:
            emit(scan.buffer[scan.position :])
            scan.position = len(scan.buffer)
            return False
        stop = len(scan.buffer) - keep
        if stop > scan.position:
            emit(scan.buffer[scan.position : stop])
            scan.position = stop
        yield


def is_complete(scan: ToolCallParser) -> Reading:
    """Whether a call whose arguments just ended really ends here; nothing is consumed.

    Where its line goes on with a further member, or with text that has the end of a string in it, the arguments ended too early: at one bracket too
    many, or at a quotation mark that the model forgot to escape.
    """
    while True:
        limit = scan.position + LONGEST
        stop = _CLOSING.match(scan.buffer, scan.position, limit).end()  # type: ignore[union-attr]
        end = _REST.match(scan.buffer, stop, limit).end()  # type: ignore[union-attr]
        if stop < len(scan.buffer) and scan.buffer[stop] in "\n<`[{\"'":
            return scan.buffer[stop] not in "\"'"  # a further member, or the rest of a string
        if end < len(scan.buffer) or scan.ended:
            rest = scan.buffer[stop:end]
            goes_on = "," in scan.buffer[scan.position : stop] and _MEMBER.match(rest)
            return not (goes_on or rest.count('"') % 2 or _LEFT_OVER.search(rest))
        yield


def give_up(scan: ToolCallParser, closers: tuple[str, ...]) -> Reading:
    """The call's arguments are no JSON that can be mended. What was sent stays: the rest follows verbatim. What was held becomes text, all of it."""
    call = scan.call
    assert call is not None
    keep = max(map(len, closers)) - 1
    if call.held:
        call.refused = True
        yield from until(scan, closers, keep, lambda _: None)
    else:
        call.issues.append("malformed_json")
        yield from until(scan, closers, keep, scan.write)
    scan.close_call("invalid")
    return CLOSED

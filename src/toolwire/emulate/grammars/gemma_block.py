"""The grammar of Gemma's calls: `call:NAME{key:value, …}`.

Keys are words without quotes. Strings have Gemma's own quotes and no escapes, or are JSON strings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolwire.emulate.dialects.shapes import GemmaBlock
from toolwire.emulate.grammars.literals import (
    Emit,
    ended_call,
    json_string,
    literal_value,
    note_repair,
    streamed,
)
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
    until,
)
from toolwire.emulate.grammars.tag_block import bare_name, short_text
from toolwire.emulate.grammars.tag_values import escaped, typed

if TYPE_CHECKING:
    from toolwire.emulate.scanner import ToolCallParser

_CALL = "call:"
_BARE_KEY = re.compile(r"""[^\s:,{}\[\]<>"']+""")
_BARE_VALUE = re.compile(r"""[^,{}\[\]<>"'\n:][^,{}\[\]<>"'\n]*""")
_WORDS = {
    "true": "true",
    "false": "false",
    "null": "null",
    "True": "true",
    "False": "false",
    "None": "null",
    "none": "null",
}
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?\Z", re.ASCII)
_TYPES = ("integer", "number", "boolean", "array", "object", "null")


def gemma_block(scan: ToolCallParser, block: GemmaBlock) -> Reading:
    """Reads calls one after another and the closer. False: there was no closer."""
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


def gemma_call(scan: ToolCallParser, block: GemmaBlock) -> Reading:
    """Reads one call. True: it is a call."""
    name = yield from bare_name(scan)
    if name is None or scan.buffer[scan.position] != "{":
        return False
    scan.open_call(name)
    parts: list[str] = []
    language = Gemma(block, scan.call.tool.parameters)  # type: ignore[union-attr]
    read = yield from streamed(scan, parts, literal_value(scan, language, parts.append))
    if read == OK and (yield from is_complete(scan)):
        return scan.close_call()
    if read == CUT:
        ended_call(scan)
    else:
        yield from give_up(scan, (*block.wrapper_closers, "\n") if read == OK else block.wrapper_closers)
    return scan.candidate_open


class Gemma:
    """Gemma's literals, as a `Language`."""

    brackets = {"{": "}", "[": "]"}  # noqa: RUF012

    def __init__(self, block: GemmaBlock, schema: Mapping[str, Any]) -> None:
        self._quote = block.quote
        self._schema = schema if block.untyped else {}
        self._key = ""  # of the current argument

    def key(self, scan: ToolCallParser, emit: Emit, depth: int) -> Reading:
        if (yield from literal(scan, (self._quote,))) is not None:
            key = yield from short_text(scan, self._quote)
            if key is None:
                return CUT if scan.ended else FAIL
        elif scan.buffer.startswith('"', scan.position):
            return (yield from json_string(scan, emit))
        else:
            key = yield from token(scan, _BARE_KEY)
            if key is None:
                return CUT if scan.ended else FAIL
            scan.position += len(key)
        if depth == 1:
            self._key = key
        emit(json.dumps(key, ensure_ascii=False))
        return OK

    def scalar(self, scan: ToolCallParser, emit: Emit, depth: int) -> Reading:
        if (yield from literal(scan, (self._quote,))) is not None:
            return (yield from self._string(scan, emit, depth))
        if scan.buffer.startswith('"', scan.position):
            return (yield from json_string(scan, emit))
        raw = yield from token(scan, _BARE_VALUE)
        if raw is None:
            return CUT if scan.ended else FAIL
        scan.position += len(raw)
        text = raw.strip()
        written = _WORDS.get(text) or (text if _NUMBER.match(text) else None)
        if written is None:
            note_repair(scan, "unquoted_string")
            written = json.dumps(text, ensure_ascii=False)
        emit(written)
        return OK

    def _string(self, scan: ToolCallParser, emit: Emit, depth: int) -> Reading:
        """Reads a string.

        Its text is sent at once, unless the schema says that it is another type in quotes.
        """
        keep = len(self._quote) - 1
        if depth == 1 and self._is_typed():
            pieces: list[str] = []
            closed = yield from until(scan, (self._quote,), keep, pieces.append)
            if not closed:
                return CUT
            emit(typed(scan, "".join(pieces), is_string=False))
            return OK
        emit('"')
        closed = yield from until(
            scan, (self._quote,), keep, lambda text: emit(escaped(text)) if text else None
        )
        if not closed:
            return CUT
        emit('"')
        return OK

    def _is_typed(self) -> bool:
        properties = self._schema.get("properties")
        one = properties.get(self._key) if isinstance(properties, Mapping) else None
        return isinstance(one, Mapping) and one.get("type") in _TYPES


def token(scan: ToolCallParser, pattern: re.Pattern[str]) -> Reading:
    """The text that the pattern matches, not consumed; None if it is empty, too long or incomplete."""
    while True:
        found = pattern.match(scan.buffer, scan.position, scan.position + LONGEST + 1)
        if found is None or len(found.group()) > LONGEST:
            return None
        if found.end() < len(scan.buffer):
            return found.group()
        if scan.ended:
            return None
        yield

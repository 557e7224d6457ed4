"""The grammar of tag blocks: calls as tags, values as text between tags, or JSON in their place. Standard library only."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolwire.emulate.arguments import JsonFlow
from toolwire.emulate.dialects import JsonBlock, TagBlock
from toolwire.emulate.json_block import envelope_call
from toolwire.emulate.reading import CLOSED, LONGEST, OK, Reading, literal, peek, spoil, tag, until

if TYPE_CHECKING:
    from toolwire.emulate.scanner import ToolCallParser

_ENTITIES = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'"}
_ENTITY = re.compile(r"&(lt|gt|amp|quot|apos|#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6});")


def tag_block(scan: ToolCallParser, block: TagBlock) -> Reading:
    """Calls one after another, then the wrapper's closer."""
    calls = 0
    while True:
        if (yield from peek(scan)) != "<":
            return False
        text = yield from tag(scan)
        if text is None:
            return False
        if calls and text in block.wrapper_closers:
            scan.position += len(text)
            return True
        found = block.call_tag.fullmatch(text)
        if found is None or (calls and scan.full):
            return False
        scan.position += len(text)
        if not (yield from tag_call(scan, block, found.group(1))):
            return False
        calls += 1
        if not block.wrapper_closers:
            return True


def tag_call(scan: ToolCallParser, block: TagBlock, name: str | None) -> Reading:
    """One call. True: it came out."""
    if name is None:
        if (yield from peek(scan)) == "{":
            if not (yield from envelope_call(scan, JsonBlock(closers=(block.call_close,)))):
                return False
            yield from peek(scan)
            return (yield from literal(scan, (block.call_close,))) is not None
        name = yield from name_child(scan, block)
    if not name:
        return False
    scan.open_call(name.strip())
    read = yield from tag_arguments(scan, block)
    return scan.started if read == CLOSED else scan.close_call()


def name_child(scan: ToolCallParser, block: TagBlock) -> Reading:
    if (yield from tag(scan) if (yield from peek(scan)) == "<" else _nothing()) != f"<{block.name_child}>":
        return None
    scan.position += len(f"<{block.name_child}>")
    closer = f"</{block.name_child}>"
    while (place := scan.buffer.find(closer, scan.position)) < 0:
        if scan.ended or len(scan.buffer) - scan.position > LONGEST + len(closer):
            return None
        yield
    if place - scan.position > LONGEST:
        return None
    name = unescape(scan.buffer[scan.position : place])
    scan.position = place + len(closer)
    return name


def _nothing() -> Reading:
    return None
    yield


def tag_arguments(scan: ToolCallParser, block: TagBlock) -> Reading:
    """Parameters up to the call's closing tag."""
    count = 0
    while True:
        char = yield from peek(scan)
        if char == "{" and not count:
            return (yield from json_body(scan, block))
        if not char:  # the text ended between two parameters
            if scan.reason == "length":
                scan.close_call("truncated")
                return CLOSED
            scan.write("}" if count else "")
            scan.call.issues.append("unclosed")  # type: ignore[union-attr]
            return OK
        text = yield from tag(scan) if char == "<" else _nothing()
        if text == block.call_close:
            scan.position += len(text)
            scan.write("}" if count else "")
            return OK
        found = block.parameter_tag.fullmatch(text) if text else None
        if found is None:
            return (yield from spoil(scan, (block.call_close,)))
        scan.position += len(text)
        scan.write(("{" if not count else ", ") + json.dumps(found.group(1), ensure_ascii=False) + ": ")
        count += 1
        if (yield from parameter(scan, block, found.group(1))) == CLOSED:
            return CLOSED


def json_body(scan: ToolCallParser, block: TagBlock) -> Reading:
    flow = JsonFlow()
    while not flow.done:
        scan.position = flow.run(scan.buffer, scan.position)
        scan.write(flow.take())
        if flow.failed:
            return (yield from spoil(scan, (block.call_close,)))
        if flow.done:
            break
        if scan.ended:
            scan.write(scan.buffer[scan.position :])
            scan.position = len(scan.buffer)
            scan.close_call("truncated")
            return CLOSED
        yield
    scan.call.issues += flow.issues  # type: ignore[union-attr]
    yield from peek(scan)
    yield from literal(scan, (block.call_close,))
    return OK


def parameter(scan: ToolCallParser, block: TagBlock, key: str) -> Reading:
    """One value. Text of a string parameter is sent while it is written; anything else once it is whole and its type is known."""
    closer = block.parameter_close.replace("{key}", key)
    is_string = wants_string(scan.call.tool.parameters, key)  # type: ignore[union-attr]
    while scan.position >= len(scan.buffer) and not scan.ended:
        yield
    newline = block.trim_newline and scan.buffer.startswith("\n", scan.position)
    if newline:
        scan.position += 1
        while scan.position >= len(scan.buffer) and not scan.ended:
            yield
    stream = is_string and not block.entities and not scan.buffer.startswith('"', scan.position)
    pieces: list[str] = []
    if stream:
        scan.write('"')
        last = _Held(scan, block.trim_newline)
        closed = yield from until(scan, (closer,), len(closer) - 1, last.push)
        last.flush(closed)
        scan.write('"' if closed else "")
    else:
        closed = yield from until(scan, (closer,), len(closer) - 1, pieces.append)
        raw = "".join(pieces)
        if closed and block.trim_newline:
            raw = raw.removesuffix("\n")
        if block.entities:
            raw = unescape(raw)
        scan.write(typed(scan, raw, is_string) if closed else escaped(raw, opened=True))
    if closed:
        return OK
    scan.close_call("truncated")
    return CLOSED


class _Held:
    """Passes text on as the inside of a JSON string, one newline behind."""

    __slots__ = ("_newline", "_scan", "_trim")

    def __init__(self, scan: ToolCallParser, trim: bool) -> None:
        self._scan = scan
        self._trim = trim
        self._newline = ""

    def push(self, text: str) -> None:
        if not text:
            return
        text = self._newline + text
        self._newline = ""
        if self._trim and text.endswith("\n"):
            text, self._newline = text[:-1], "\n"
        self._scan.write(escaped(text))

    def flush(self, closed: bool) -> None:
        if not closed:
            self._scan.write(escaped(self._newline))


def escaped(text: str, opened: bool = False) -> str:
    return json.dumps(text, ensure_ascii=False)[0 if opened else 1 : -1]


def wants_string(schema: Any, key: str) -> bool:
    """Whether the schema takes nothing but strings for this key: then the text between the tags is the value, whatever it looks like."""
    properties = schema.get("properties")
    one = properties.get(key) if isinstance(properties, Mapping) else None
    kind = one.get("type") if isinstance(one, Mapping) else None
    return kind == "string" or kind == ["string"]


def unescape(text: str) -> str:
    """XML's own entities; any other `&` is an ampersand."""
    return _ENTITY.sub(_character, text) if "&" in text else text


def _character(found: re.Match[str]) -> str:
    name = found.group(1)
    if not name.startswith("#"):
        return _ENTITIES[name]
    code = int(name[2:], 16) if name[1] in "xX" else int(name[1:])
    return chr(code) if code < 0x110000 else found.group()


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)


def typed(scan: ToolCallParser, raw: str, is_string: bool) -> str:
    """A value's text as JSON: what already is JSON stays as it is, a habitual spelling is mended, all else is a string."""
    text = raw.strip()
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
        if not is_string or isinstance(value, str):
            return text
    except (ValueError, RecursionError):
        if not is_string:
            flow = JsonFlow()
            stop = flow.run(text, 0)
            flow.finish()
            if flow.done and stop == len(text):
                scan.call.issues += flow.issues  # type: ignore[union-attr]
                return flow.take()
    return json.dumps(raw, ensure_ascii=False)

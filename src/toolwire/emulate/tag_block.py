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
_PARTIAL_ENTITY = re.compile(r"&(?:[a-z]{0,4}|#[0-9]{0,7}|#[xX][0-9a-fA-F]{0,6})\Z")
_LONGEST_ENTITY = len("&#x10ffff;")
_TEXT_KINDS = ("true", "string")
_NAME = re.compile(r"[\w.-]*", re.ASCII)
_ENTITY = re.compile(r"&(lt|gt|amp|quot|apos|#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6});")


def tag_block(scan: ToolCallParser, block: TagBlock) -> Reading:
    """Calls one after another, then the wrapper's closer."""
    if block.bare_name:
        return (yield from named_call(scan, block))
    calls = 0
    while True:
        if (yield from peek(scan)) != "<":
            return False
        text = yield from whole_tag(scan, block)
        if text is None:
            return False
        if calls and text in block.wrapper_closers:
            scan.position += len(text)
            return True
        found = block.call_tag.fullmatch(text)
        if found is None or (calls and scan.full):
            return False
        scan.position += len(text)
        if not (yield from tag_call(scan, block, attribute(block, found.group(1)), text)):
            return False
        calls += 1
        if not block.wrapper_closers:
            return True


def whole_tag(scan: ToolCallParser, block: TagBlock) -> Reading:
    """The whole tag that stands here, not consumed; None where no tag stands."""
    if block.tag_end == ">":
        return (yield from tag(scan))
    while True:
        rest = scan.buffer[scan.position : scan.position + LONGEST]
        place = rest.find(block.tag_end)
        begun = any(start.startswith(rest) or rest.startswith(start) for start in block.tag_starts)
        if place >= 0 and begun:
            return rest[: place + len(block.tag_end)]
        if not begun or scan.ended or len(rest) == LONGEST:
            return None
        yield


def attribute(block: TagBlock, text: str | None) -> str | None:
    return unescape(text) if text and block.attribute_entities else text


def tag_call(scan: ToolCallParser, block: TagBlock, name: str | None, opened: str) -> Reading:
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
    if opened.endswith("/>"):
        return scan.close_call()
    read = yield from tag_arguments(scan, block)
    return scan.started if read == CLOSED else scan.close_call()


def named_call(scan: ToolCallParser, block: TagBlock) -> Reading:
    """One call whose name is the text before the first tag. It is a call once what follows the name goes on like one."""
    name = yield from bare_name(scan)
    if name is None:
        return False
    char = yield from peek(scan)
    text = yield from whole_tag(scan, block) if char == "<" else _nothing()
    if char != "{" and text != block.call_close and not (text and block.parameter_tag.fullmatch(text)):
        return cut_call(scan, name) if not char or (char == "<" and text is None) else False
    scan.open_call(name)
    read = yield from tag_arguments(scan, block)
    return scan.started if read == CLOSED else scan.close_call()


def bare_name(scan: ToolCallParser) -> Reading:
    """A name without quotes: consumed once the character behind it has come, so that it is whole; else None."""
    while True:
        stop = _NAME.match(scan.buffer, scan.position).end()  # type: ignore[union-attr]
        size = stop - scan.position
        if stop < len(scan.buffer) and 0 < size <= LONGEST:
            name = scan.buffer[scan.position : stop]
            scan.position = stop
            return name
        if scan.ended or stop < len(scan.buffer) or size > LONGEST:
            return None
        yield


def cut_call(scan: ToolCallParser, name: str) -> bool:
    """The text ended right behind a name: a call only where the model was cut off, and then a truncated one. True: it came out."""
    if not scan.ended or scan.reason != "length" or scan.registry.resolve(name) is None:
        return False
    scan.open_call(name, hold=True)
    scan.position = len(scan.buffer)
    return scan.close_call("truncated")


def name_child(scan: ToolCallParser, block: TagBlock) -> Reading:
    if (yield from tag(scan) if (yield from peek(scan)) == "<" else _nothing()) != f"<{block.name_child}>":
        return None
    scan.position += len(f"<{block.name_child}>")
    name = yield from short_text(scan, f"</{block.name_child}>")
    return None if name is None else unescape(name)


def short_text(scan: ToolCallParser, closer: str) -> Reading:
    """The text up to `closer`, consumed with it; None where it is too long, or the text ended."""
    while (place := scan.buffer.find(closer, scan.position)) < 0:
        if scan.ended or len(scan.buffer) - scan.position > LONGEST + len(closer):
            return None
        yield
    if place - scan.position > LONGEST:
        return None
    text = scan.buffer[scan.position : place]
    scan.position = place + len(closer)
    return text


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
            return _end_between(scan, count)
        text = yield from whole_tag(scan, block) if char == "<" else _nothing()
        if text == block.call_close:
            scan.position += len(text)
            scan.write("}" if count else "")
            return OK
        if text and not count and block.body_tags and block.body_tags[0].fullmatch(text):
            scan.position += len(text)
            return (yield from json_body(scan, block)) if (yield from peek(scan)) == "{" else (yield from broken(scan, block))
        found = block.parameter_tag.fullmatch(text) if text else None
        if found is None:
            return (yield from broken(scan, block))
        scan.position += len(text)
        key = (yield from key_between(scan, block.key_tags)) if block.key_tags else attribute(block, found.group(1))
        if key is None:
            return (yield from broken(scan, block))
        scan.write(("{" if not count else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
        count += 1
        if (yield from parameter(scan, block, key, found.group(2) if found.re.groups > 1 else None)) == CLOSED:
            return CLOSED


def broken(scan: ToolCallParser, block: TagBlock) -> Reading:
    """Neither a parameter nor the end stands here: cut off amid a tag, or not what the grammar allows."""
    if scan.ended:
        scan.position = len(scan.buffer)
        scan.close_call("truncated")
        return CLOSED
    return (yield from spoil(scan, (block.call_close,)))


def _end_between(scan: ToolCallParser, count: int) -> str:
    if scan.reason == "length":
        scan.close_call("truncated")
        return CLOSED
    scan.write("}" if count else "")
    scan.call.issues.append("unclosed")  # type: ignore[union-attr]
    return OK


def key_between(scan: ToolCallParser, tags: tuple[str, str]) -> Reading:
    """A key that stands between tags of its own, and the tag that opens its value."""
    key = yield from short_text(scan, tags[0])
    if key is None or (yield from peek(scan)) != "<" or (yield from literal(scan, (tags[1],))) is None:
        return None
    return key.strip()


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
    if block.body_tags:
        yield from peek(scan)
        yield from literal(scan, (block.body_tags[1],))
    yield from peek(scan)
    yield from literal(scan, (block.call_close,))
    return OK


def parameter(scan: ToolCallParser, block: TagBlock, key: str, kind: str | None = None) -> Reading:
    """One value. Text of a string parameter is sent while it is written; anything else once it is whole and its type is known.

    `kind` is the type as the model says, where the dialect says types; else the schema tells.
    """
    closer = block.parameter_close.replace("{key}", key)
    verbatim = kind in _TEXT_KINDS
    is_string = verbatim or (kind is None and wants_string(scan.call.tool.parameters, key))  # type: ignore[union-attr]
    while scan.position >= len(scan.buffer) and not scan.ended:
        yield
    newline = block.trim_newline and scan.buffer.startswith("\n", scan.position)
    if newline:
        scan.position += 1
        while scan.position >= len(scan.buffer) and not scan.ended:
            yield
    stream = verbatim or (is_string and not (yield from _is_quoted(scan, block.entities)))
    pieces: list[str] = []
    if stream:
        scan.write('"')
        last = _Held(scan, block)
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


def _is_quoted(scan: ToolCallParser, entities: bool) -> Reading:
    """Whether the value begins with a quote, as itself or as an entity: then it may be a JSON string, which only its end tells."""
    while entities and _PARTIAL_ENTITY.fullmatch(scan.buffer, scan.position) and not scan.ended:
        yield
    found = _ENTITY.match(scan.buffer, scan.position) if entities else None
    return (_character(found) if found else scan.buffer[scan.position : scan.position + 1]) == '"'


class _Held:
    """Passes text on as the inside of a JSON string, one newline or one entity behind."""

    __slots__ = ("_entities", "_rest", "_scan", "_trim")

    def __init__(self, scan: ToolCallParser, block: TagBlock) -> None:
        self._scan = scan
        self._entities = block.entities
        self._trim = block.trim_newline and not block.entities
        self._rest = ""

    def push(self, text: str) -> None:
        if not text:
            return
        if self._rest:
            text, self._rest = self._rest + text, ""
        if self._trim and text[-1] == "\n":
            text, self._rest = text[:-1], "\n"
        elif self._entities:
            found = _PARTIAL_ENTITY.search(text, max(0, len(text) - _LONGEST_ENTITY)) if "&" in text else None
            if found is not None:
                text, self._rest = text[: found.start()], found.group()
            text = unescape(text)
        self._scan.write(escaped(text))

    def flush(self, closed: bool) -> None:
        if not (closed and self._trim):
            self._scan.write(escaped(self._rest))


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

"""The grammars of a block, as generators: they read from the scanner's buffer, and ask for more text by yielding.

A generator decides nothing before it has the characters that decide it, so that the cuts between pieces never show (law 4). Once the end of the
text is known it never yields. What it consumed without making a call of it is text again: the scanner knows where the block began. Standard library
only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

from toolwire.emulate.arguments import JsonFlow, StringFlow
from toolwire.emulate.dialects import JsonBlock, TagBlock

if TYPE_CHECKING:
    from toolwire.emulate.scanner import ToolCallParser

Reading = Generator[None, None, Any]

OK, CUT, FAIL, CLOSED = "ok", "cut", "fail", "closed"
# OK: read to its end. CUT: the text ended first. FAIL: the grammar does not allow what stands there. CLOSED: the call came to its end on the way.

_WHITE = re.compile(r"\s*")
_LITERAL = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_SINGLE = re.compile(r"'[^'\\\x00-\x1f]*'")
_WORD = re.compile(r"[A-Za-z_]\w*")
_TAG = re.compile(r"<[^<>\n]*")
_ENTITIES = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'"}
_ENTITY = re.compile(r"&(lt|gt|amp|quot|apos|#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6});")
_LONGEST = 512  # of a name, a key, a tag


# --- pieces ------------------------------------------------------------------------------------------------------------------------------------


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
        if stop - scan.position > _LONGEST:
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
        if scan.ended or (pattern is _WORD and found is None) or len(scan.buffer) - scan.position > _LONGEST:
            return None
        yield
    if found.end() - scan.position > _LONGEST:
        return None
    text = found.group()
    try:
        value = json.loads(text) if char == '"' else text.strip("'")
    except ValueError:
        return None
    scan.position = found.end()
    return value


def until(scan: ToolCallParser, closers: tuple[str, ...], keep: int, emit: Any) -> Reading:
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


def spoil(scan: ToolCallParser, closers: tuple[str, ...]) -> Reading:
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


# --- JSON envelopes ----------------------------------------------------------------------------------------------------------------------------


class Envelope:
    """What one `{"name": …, "arguments": …}` has told so far. Arguments that come before the name wait in `parts`."""

    __slots__ = ("complete", "issues", "name", "object", "parts")

    def __init__(self) -> None:
        self.name: str | None = None
        self.parts: list[str] = []
        self.complete = False
        self.object = True
        self.issues: list[str] = []


def json_block(scan: ToolCallParser, block: JsonBlock) -> Reading:
    """True when the block came to its closer; False leaves the scanner behind the last complete call."""
    array = False
    calls = 0
    while True:
        char = yield from peek(scan)
        if char == "{":
            if not (yield from envelope_call(scan, block)):
                return False
            calls += 1
            if not block.closers and not array:
                return True
        elif char == "[" and not array and not calls:
            array = True
            scan.position += 1
        elif not calls:
            return False
        elif char == "," or char == "}":
            scan.position += 1
        elif char == "]" and array:
            array = False
            scan.position += 1
        elif char and block.closers:
            return (yield from literal(scan, block.closers)) is not None
        else:
            return False


def envelope_call(scan: ToolCallParser, block: JsonBlock) -> Reading:
    """One call. True: it came out."""
    envelope = Envelope()
    read = yield from members(scan, block, envelope, nested=False)
    if read == CLOSED:
        return scan.started
    if envelope.name is None or (read != OK and not envelope.complete) or (block.exact and not envelope.complete):
        return False
    if scan.call is None:
        scan.open_call(envelope.name, hold=block.exact)
        for part in envelope.parts:
            scan.write(part)
    call = scan.call
    assert call is not None
    call.issues += envelope.issues
    if read == FAIL:
        call.refused = block.exact  # ordinary JSON that only began like a call
        call.issues.append("unclosed_envelope")
    return scan.close_call("ok" if envelope.object else "invalid")


def members(scan: ToolCallParser, block: JsonBlock, envelope: Envelope, nested: bool) -> Reading:
    """The members of an object whose brace stands here."""
    scan.position += 1
    char = yield from peek(scan)
    while char != "}":
        if not char:
            return CUT
        read = yield from member(scan, block, envelope, nested)
        if read != OK:
            return read
        char = yield from peek(scan)
        if char == ",":
            scan.position += 1
            char = yield from peek(scan)
        elif char and char != "}":
            return FAIL
    scan.position += 1
    return OK


def member(scan: ToolCallParser, block: JsonBlock, envelope: Envelope, nested: bool) -> Reading:
    key = yield from string(scan, bare=True)
    if key is None:
        return CUT if scan.ended else FAIL
    colon = yield from peek(scan)
    if colon != ":":
        return FAIL if colon else CUT
    scan.position += 1
    char = yield from peek(scan)
    if not char:
        return CUT
    if block.exact and key not in block.known_keys:
        return FAIL
    if key in block.name_keys:
        name = yield from string(scan)
        if not isinstance(name, str) or envelope.name is not None:
            return FAIL
        envelope.name = name
        return OK
    if key in block.arguments_keys:
        return (yield from arguments(scan, block, envelope, char))
    if key == "function" and char == "{" and not nested:
        return (yield from members(scan, block, envelope, nested=True))
    return (yield from skip(scan))


def skip(scan: ToolCallParser) -> Reading:
    """A value that nobody asked for."""
    flow = JsonFlow()
    while True:
        scan.position = flow.run(scan.buffer, scan.position)
        flow.out.clear()
        if flow.done:
            return OK
        if flow.failed:
            return FAIL
        if scan.ended:
            return CUT
        yield


def arguments(scan: ToolCallParser, block: JsonBlock, envelope: Envelope, char: str) -> Reading:
    """The arguments: an object as it stands, a string of JSON unescaped once, null for none."""
    if envelope.complete:
        return FAIL
    if envelope.name is not None:
        scan.open_call(envelope.name, hold=block.exact)
    if char == '"':
        scan.position += 1
    flow: JsonFlow | StringFlow = StringFlow() if char == '"' else JsonFlow()
    emit = scan.write if scan.call is not None else envelope.parts.append
    if char in "nN":
        emit = lambda _: None  # noqa: E731 — null: no arguments
    while True:
        scan.position = flow.run(scan.buffer, scan.position)
        if flow.out:
            emit(flow.take())
        if flow.done:
            break
        if isinstance(flow, JsonFlow) and flow.failed:
            return (yield from spoil(scan, block.closers or ("\n",))) if scan.call is not None else FAIL
        if scan.ended:
            if scan.call is None:
                return CUT
            emit(scan.buffer[scan.position :])
            scan.position = len(scan.buffer)
            scan.close_call("truncated")
            return CLOSED
        yield
    envelope.complete = True
    envelope.issues += flow.issues
    envelope.object = (not flow.bad and flow.first in ("", "{")) if isinstance(flow, StringFlow) else char in "{nN"
    return OK


# --- tags --------------------------------------------------------------------------------------------------------------------------------------


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
        if found is None:
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
        if scan.ended or len(scan.buffer) - scan.position > _LONGEST + len(closer):
            return None
        yield
    if place - scan.position > _LONGEST:
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

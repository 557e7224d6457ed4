"""Reads values between tags, even if a closing tag is missing, and writes them as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from toolwire.emulate.arguments import JsonFlow
from toolwire.emulate.dialects import TagBlock
from toolwire.emulate.grammars.reading import LONGEST, OK, Reading, Scan, cut_off, give_up, more

_ENTITIES = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'"}
_PARTIAL_ENTITY = re.compile(r"&(?:[a-z]{0,4}|#[0-9]{0,7}|#[xX][0-9a-fA-F]{0,6})\Z")
_LONGEST_ENTITY = len("&#x10ffff;")
_TEXT_KINDS = ("true", "string")
_MOST_BLANKS = 64  # white space before a tag on its own line
_LINE_START = re.compile(r"\n[^\S\n]*\Z")
_ENTITY = re.compile(r"&(lt|gt|amp|quot|apos|#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6});")


def attribute(block: TagBlock, text: str | None) -> str | None:
    """Returns the value of a tag's attribute. Decodes entities if the dialect uses them."""
    return unescape(text) if text and block.attribute_entities else text


def parameter(scan: Scan, block: TagBlock, key: str, kind: str | None, given: set[str]) -> Reading:
    """Reads one value and writes it as JSON.

    Returns how the step ended: `OK` or `CLOSED` (see `reading.py`). The text of a string is sent while the
    model writes it, any other value when it is complete. `kind`: the type that the model wrote, in dialects
    that write types; if None, the schema decides. `given`: the keys of the parameters so far, including this
    one.
    """
    verbatim = kind in _TEXT_KINDS
    is_string = verbatim or (kind is None and wants_string(scan.open.tool.parameters, key))
    yield from more(scan)
    if block.trim_newline and scan.buffer.startswith("\n", scan.position):
        scan.position += 1
        yield from more(scan)
    stream = verbatim or (is_string and not (yield from _is_quoted(scan, block.entities)))
    if stream:
        scan.write('"')
        writer = _StringWriter(scan, block)
        closed = yield from value_text(scan, block, key, given, writer.push)
        writer.flush(bool(closed))
        scan.write('"' if closed else "")
    else:
        pieces: list[str] = []
        closed = yield from value_text(scan, block, key, given, pieces.append)
        raw = "".join(pieces)
        if closed and block.trim_newline:
            raw = raw.removesuffix("\n")
        if block.entities and closed is not None:
            raw = unescape(raw)
        if closed and not is_string and _is_malformed(scan, key, kind, raw):
            scan.write(raw)
            closed = None
        else:
            scan.write(typed(scan, raw, is_string) if closed else escaped(raw, opened=True))
    if closed is None:
        return (yield from give_up(scan, (block.call_close,)))
    return OK if closed else cut_off(scan)


def value_text(
    scan: Scan, block: TagBlock, key: str, given: set[str], emit: Callable[[str], None]
) -> Reading:
    """Passes a value's text to `emit` and consumes its closer.

    Returns True if the value is closed, False if the text ended first, and None if it is uncertain where the
    value ends.

    If the closer is missing, the end is certain only if the last line of the value contains no tag, and one
    of these follows:

    - a new line that begins with the tag of another declared parameter
    - the closing tag of the call, and after it the closing tag of the wrapper or the end of the text
    """
    value = _Value(scan, block, key, given, emit)
    while True:
        mark, start = value.next_mark()
        if mark == value.closer:
            emit(scan.buffer[scan.position : start])
            scan.position = start + len(mark)
            return True
        if mark:
            value.pass_on(start)
            ends: bool | None = yield from value.ends_at(mark)
            if ends is None:
                return None
            if ends:
                scan.open.issues.append("unclosed_parameter")
                return True
            value.pass_on(scan.position + value.held + 1)
            continue
        if scan.ended:
            emit(scan.buffer[scan.position :])
            scan.position = len(scan.buffer)
            return False
        value.pass_on(max(scan.position, len(scan.buffer) - value.keep))
        yield
        value.moved = True


class _Value:
    """A value that is being read, whose closer may be missing.

    `held`: how many characters of white space before the current tag are held back. `moved`: the buffer
    changed, so the known positions of tags are invalid.
    """

    def __init__(
        self, scan: Scan, block: TagBlock, key: str, given: set[str], emit: Callable[[str], None]
    ) -> None:
        self._scan, self._block, self._given, self._emit = scan, block, given, emit
        self.closer = block.parameter_close.replace("{key}", key)
        inside = [mark.replace("{key}", key) for mark in block.not_inside]
        marks = (self.closer, block.parameter_start, block.call_close, *inside)
        self._positions = dict.fromkeys(filter(None, marks), -1)  # the closer must come first
        self.moved = True
        self.keep = max(map(len, self._positions)) - 1
        self._line = ""  # "<" if the last line so far has a tag in it, "x" if it has other text
        self.held = 0

    def next_mark(self) -> tuple[str, int]:
        """Returns the next tag that matters and its position; ("", -1) if there is none.

        Searches each character once, so that the cost stays linear.
        """
        scan, positions = self._scan, self._positions
        stop = len(scan.buffer)
        for mark, at in positions.items():  # the closer comes first; the other tags matter only before it
            if self.moved or 0 <= at < scan.position:
                limit = stop if stop == len(scan.buffer) else stop + len(mark) - 1
                positions[mark] = at = scan.buffer.find(mark, scan.position, limit)
            if mark == self.closer and at >= 0:
                stop = at
        self.moved = False
        found = [(at, mark) for mark, at in positions.items() if at >= 0]
        at, mark = min(found, default=(-1, ""))
        return mark, at

    def pass_on(self, stop: int) -> None:
        """Passes on the text up to `stop`, without a newline and blanks at its end: they may be markup."""
        scan = self._scan
        text = scan.buffer[scan.position : stop]
        blank = _LINE_START.search(text, max(0, len(text) - _MOST_BLANKS))
        self.held = len(text) - blank.start() if blank is not None else 0
        text = text[: len(text) - self.held]
        if text:
            line = text.rpartition("\n")[2]
            line = line if len(line) < len(text) else self._line + line
            self._line = ("<" if "<" in line or ">" in line else "x") if line else ""
            self._emit(text)
            scan.position += len(text)

    def ends_at(self, mark: str) -> Reading:
        """Whether the value ends before this tag, without its closer. Returns None if uncertain."""
        if mark == self._block.parameter_start:
            return (yield from self.ends_at_parameter())
        if mark == self._block.call_close and self._block.parameter_start:
            return (yield from self.ends_at_call())
        return None

    def ends_at_call(self) -> Reading:
        """Whether the value ends at the call's closing tag. Returns None if uncertain.

        The value ends there if the wrapper's closing tag or the end of the text follows.
        """
        scan, block = self._scan, self._block
        while True:
            start = scan.position + self.held + len(block.call_close)
            rest = scan.buffer[start : start + LONGEST].lstrip()
            if rest.startswith(block.wrapper_closers) or (not rest and scan.ended):
                break
            may_follow = not rest or any(closing.startswith(rest) for closing in block.wrapper_closers)
            if scan.ended or not may_follow or len(scan.buffer) - start >= LONGEST:
                return False
            yield
            self.moved = True
        if self._line == "<":
            return None
        scan.position += self.held
        return True

    def ends_at_parameter(self) -> Reading:
        """Whether the value ends at a parameter's tag. Returns None if uncertain.

        The value ends there if the tag begins a line and names a declared parameter that is not given yet.
        """
        scan, block = self._scan, self._block
        key = None
        while True:
            start = scan.position + self.held
            rest = scan.buffer[start : start + LONGEST]
            end = block.key_tags[0] if block.key_tags else block.tag_end
            at = rest.find(end, len(block.parameter_start))
            if at >= 0 and block.key_tags:
                key = rest[len(block.parameter_start) : at].strip()
            elif at >= 0 and (found := block.parameter_tag.fullmatch(rest[: at + len(end)])):
                key = attribute(block, found.group(1))
            if at >= 0:
                break
            if scan.ended or len(rest) == LONGEST:
                break
            yield
            self.moved = True
        if key is None:
            return False
        if not self.held or self._line == "<" or key in self._given or declared(scan, key) is None:
            return None
        scan.position += self.held
        return True


def _is_quoted(scan: Scan, entities: bool) -> Reading:
    """Whether the value begins with a quotation mark, which may be written as an entity.

    Only the end of such a value shows whether it is a JSON string.
    """
    while entities and _PARTIAL_ENTITY.fullmatch(scan.buffer, scan.position) and not scan.ended:
        yield
    found = _ENTITY.match(scan.buffer, scan.position) if entities else None
    return (_character(found) if found else scan.buffer[scan.position : scan.position + 1]) == '"'


class _StringWriter:
    """Sends text as the inside of a JSON string.

    Holds back a newline at the end of the text so far, because it may be markup. If the dialect has entities,
    holds back an incomplete entity instead.
    """

    def __init__(self, scan: Scan, block: TagBlock) -> None:
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
    """Returns the text as the inside of a JSON string. `opened`: add the opening quote."""
    return json.dumps(text, ensure_ascii=False)[0 if opened else 1 : -1]


def property_schema(schema: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Returns the schema of one property; an empty schema if there is none."""
    properties = schema.get("properties")
    one = properties.get(key) if isinstance(properties, Mapping) else None
    return one if isinstance(one, Mapping) else {}


def wants_string(schema: Mapping[str, Any], key: str) -> bool:
    """Whether the schema allows only strings for this key, so that the text itself is the value."""
    return property_schema(schema, key).get("type") in ("string", ["string"])


def declared(scan: Scan, key: str | None) -> Mapping[str, Any] | None:
    """Returns the schema of a parameter of the open call; None if the tool does not declare it."""
    parameters = scan.open.tool.parameters
    properties = parameters.get("properties")
    if key is None or not isinstance(properties, Mapping) or key not in properties:
        return None
    return property_schema(parameters, key)


def _is_malformed(scan: Scan, key: str, kind: str | None, raw: str) -> bool:
    """Whether a value is not JSON, although the type that the model wrote or the schema requires JSON."""
    text = raw.strip()
    wanted = text[:1] in ("{", "[") and (declared(scan, key) or {}).get("type") in ("array", "object")
    return (kind is not None or wanted) and repaired(text) is None


def repaired(text: str) -> JsonFlow | None:
    """Returns a `JsonFlow` that has read the text, or None if the text is not one JSON value."""
    flow = JsonFlow()
    stop = flow.run(text, 0)
    flow.finish()
    return flow if flow.done and stop == len(text) else None


def unescape(text: str) -> str:
    """Decodes the entities of XML. Any other `&` stays as it is."""
    return _ENTITY.sub(_character, text) if "&" in text else text


def _character(found: re.Match[str]) -> str:
    name = found.group(1)
    if not name.startswith("#"):
        return _ENTITIES[name]
    code = int(name[2:], 16) if name[1] in "xX" else int(name[1:])
    return chr(code) if code < 0x110000 else found.group()


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)


def typed(scan: Scan, raw: str, is_string: bool) -> str:
    """Returns a value as JSON.

    Valid JSON is kept, common mistakes are repaired, and anything else becomes a string. `is_string`: only a
    string is allowed.
    """
    text = raw.strip()
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
        if not is_string or isinstance(value, str):
            return text
    except (ValueError, RecursionError):
        flow = None if is_string else repaired(text)
        if flow is not None:
            scan.open.issues += flow.issues
            return flow.take()
    return json.dumps(raw, ensure_ascii=False)

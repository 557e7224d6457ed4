"""Grammars of calls between tags, with arguments as values between tags, as JSON or as YAML."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace

from toolwire.core.yaml import read_mapping
from toolwire.emulate.arguments import JsonFlow
from toolwire.emulate.dialects import JsonBlock, TagBlock
from toolwire.emulate.dialects.shapes import TOOL, ElementBlock
from toolwire.emulate.grammars.json_block import envelope_call
from toolwire.emulate.grammars.reading import (
    CLOSED,
    FAIL,
    LONGEST,
    OK,
    Reading,
    Scan,
    bare_name,
    cut_name,
    cut_off,
    give_up,
    json_value,
    literal,
    object_arguments,
    peek,
    short_text,
    tag,
    until,
)
from toolwire.emulate.grammars.tag_values import attribute, declared, parameter, unescape, wants_string


def tag_block(scan: Scan, block: TagBlock) -> Reading:
    """Reads calls one after another, and the closing tag of the wrapper around them.

    Returns False if there is no call, or if the dialect has a wrapper and its closing tag is missing.
    """
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
        if found is None or (calls and scan.at_call_limit):
            return False
        scan.position += len(text)
        if not (yield from tag_call(scan, block, attribute(block, found.group(1)), text)):
            return False
        calls += 1
        if not block.wrapper_closers:
            return True


def whole_tag(scan: Scan, block: TagBlock) -> Reading:
    """Returns the whole tag at this position, without consuming it; None if no tag is here."""
    if block.tag_end == ">":
        return (yield from tag(scan))
    while True:
        rest = scan.buffer[scan.position : scan.position + LONGEST]
        end = rest.find(block.tag_end)
        begun = any(start.startswith(rest) or rest.startswith(start) for start in block.tag_starts)
        if end >= 0 and begun:
            return rest[: end + len(block.tag_end)]
        if not begun or scan.ended or len(rest) == LONGEST:
            return None
        yield


def tag_call(scan: Scan, block: TagBlock, name: str | None, opened: str) -> Reading:
    """Tries to read one call, after its opening tag. Returns whether a call was read.

    `name`: the tool's name in the tag; None if the name is inside the element. `opened`: the opening tag.
    """
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
    return (yield from tag_arguments(scan, block))


def named_call(scan: Scan, block: TagBlock) -> Reading:
    """Tries to read one call whose name is the text before the first tag. Returns whether one was read.

    After the name must come arguments or the call's closing tag.
    """
    name = yield from bare_name(scan)
    if name is None:
        return False
    char = yield from peek(scan)
    text = yield from whole_tag(scan, block)
    if char != "{" and text != block.call_close and not (text and block.parameter_tag.fullmatch(text)):
        return cut_name(scan, name) if not char or (char == "<" and text is None) else False
    scan.open_call(name)
    return (yield from tag_arguments(scan, block))


def name_child(scan: Scan, block: TagBlock) -> Reading:
    """Returns the tool's name from a child element such as `<name>`; None if there is no such element."""
    yield from peek(scan)
    if (yield from tag(scan)) != f"<{block.name_child}>":
        return None
    scan.position += len(f"<{block.name_child}>")
    name = yield from short_text(scan, f"</{block.name_child}>")
    return None if name is None else unescape(name)


def tag_arguments(scan: Scan, block: TagBlock) -> Reading:
    """Reads the arguments and closes the call. Returns False if the block turns out not to be a call."""
    read = yield from tag_members(scan, block)
    if read == FAIL:  # neither a parameter nor the end: the text ended inside a tag, or breaks the grammar
        read = cut_off(scan) if scan.ended else (yield from give_up(scan, (block.call_close,)))
    if read == OK:
        scan.close_call()
    return scan.candidate_open


def tag_members(scan: Scan, block: TagBlock) -> Reading:
    """Reads the parameters and the call's closing tag.

    Returns how the step ended: `OK`, `FAIL` or `CLOSED` (see `reading.py`).
    """
    given: set[str] = set()
    while True:
        char = yield from peek(scan)
        if char == "{" and not given:
            return (yield from json_body(scan, block))
        if not char:  # the text ended between two parameters
            return _end_between(scan, given)
        text = yield from whole_tag(scan, block)
        if text == block.call_close or _ends_unclosed(scan, block, text, given):
            scan.position += len(text) if text == block.call_close else 0
            scan.write("}" if given else "")
            return OK
        if text and not given and block.body_tags and block.body_tags[0].fullmatch(text):
            scan.position += len(text)
            return (yield from json_body(scan, block)) if (yield from peek(scan)) == "{" else FAIL
        found = block.parameter_tag.fullmatch(text) if text else None
        if found is None:
            return FAIL
        scan.position += len(text)
        key = attribute(block, found.group(1)) if found.re.groups else None
        if block.key_tags:
            key = yield from key_between(scan, block.key_tags)
        nested = block.call_close == f"</{key}>" and declared(scan, key) is None
        if key is None or key in given or nested:  # a repeated parameter or a nested call is ambiguous
            return FAIL
        scan.write((", " if given else "{") + json.dumps(key, ensure_ascii=False) + ": ")
        given.add(key)
        kind = found.group(2) if found.re.groups > 1 else None
        if (yield from parameter(scan, block, key, kind, given)) == CLOSED:
            return CLOSED


def _ends_unclosed(scan: Scan, block: TagBlock, text: str | None, given: set[str]) -> bool:
    """Whether the call ends before the tag `text`, because the closing tag of the call is missing.

    This is so if no required parameter is missing, and `text` closes the wrapper or begins the next call.
    """
    if not text or not _has_required(scan, given):
        return False
    if text not in block.wrapper_closers and not (given and block.call_tag.fullmatch(text)):
        return False
    scan.open.issues.append("unclosed")
    return True


def _end_between(scan: Scan, given: set[str]) -> str:
    """Ends a call whose text ended after a parameter.

    Returns how the step ended: `OK` or `CLOSED` (see `reading.py`). If the token limit cut the text off, or a
    required parameter is missing, the call is truncated. Otherwise, only the closing tags are missing, and
    the call is complete.
    """
    if scan.reason == "length" or not _has_required(scan, given):
        scan.close_call("truncated")
        return CLOSED
    scan.write("}" if given else "")
    scan.open.issues.append("unclosed")
    return OK


def _has_required(scan: Scan, given: set[str]) -> bool:
    required = scan.open.tool.parameters.get("required")
    return all(key in given for key in required) if isinstance(required, list | tuple) else True


def key_between(scan: Scan, tags: tuple[str, str]) -> Reading:
    """Consumes a key and the tag that opens its value. Returns the key.

    `tags`: the tag that closes the key and the tag that opens the value. Returns None if one of them is not
    found.
    """
    key = yield from short_text(scan, tags[0])
    if key is None or "<" in key or "\n" in key or (yield from peek(scan)) != "<":
        return None
    return key.strip() if (yield from literal(scan, (tags[1],))) else None


def json_body(scan: Scan, block: TagBlock) -> Reading:
    """Reads arguments that are one JSON object, and the closing tag.

    Returns how the step ended: `OK` or `CLOSED` (see `reading.py`).
    """
    read = yield from object_arguments(scan, (block.call_close,))
    if read != OK:
        return read
    if block.body_tags:
        yield from peek(scan)
        yield from literal(scan, (block.body_tags[1],))
    if not (yield from peek(scan)) or (yield from literal(scan, (block.call_close,))) is not None:
        return OK
    text = yield from whole_tag(scan, block)
    closing = (block.call_close, block.body_tags[1] if block.body_tags else "", *block.wrapper_closers)
    if scan.ended and text is None and any(one.startswith(scan.buffer[scan.position :]) for one in closing):
        return OK
    return OK if text and text in block.wrapper_closers else (yield from give_up(scan, (block.call_close,)))


# --- element blocks ---
#
# The tag is the tool's name. The first character inside decides what follows: `<` child elements, `{` a JSON
# object, anything else a YAML mapping. The tag may be ordinary markup with the name of a tool, so the call is
# held until it is complete, unless its first child is a declared parameter.

_FIRST_KEY = re.compile(r"[^<>\n]{0,512}?:[ \t\r\n]")
_WHITE = re.compile(r"\s*")
_LINE = re.compile(r"[^<>\n]*")


def element_block(scan: Scan, block: ElementBlock) -> Reading:
    """Tries to read one call that is an element with the tool's name. Returns whether a call was read."""
    stop = scan.buffer.index(">", scan.position)
    name = scan.buffer[scan.position + 1 : stop]
    scan.position = stop + 1
    indent = yield from white_space(scan)
    char = yield from peek(scan)
    if char == "<":
        return (yield from children_call(scan, block, name))
    if char == "{":
        scan.open_call(name, hold=True)
        return (yield from json_call(scan, f"</{name}>"))
    if not (yield from at_key(scan)):
        return False
    scan.open_call(name, hold=True)
    return (yield from yaml_call(scan, f"</{name}>", indent))


def white_space(scan: Scan) -> Reading:
    """Skips white space. Returns the white space on the last of the skipped lines."""
    indent = ""
    while True:
        stop = _WHITE.match(scan.buffer, scan.position).end()  # type: ignore[union-attr]
        found = scan.buffer[scan.position : stop]
        indent = found[found.rindex("\n") + 1 :] if "\n" in found else indent + found
        scan.position = stop
        if stop < len(scan.buffer) or scan.ended:
            return indent
        yield


def children_call(scan: Scan, block: ElementBlock, name: str) -> Reading:
    """Tries to read a call whose arguments are child elements. Returns whether a call was read."""
    text = yield from tag(scan)
    children = replace(block.children, call_close=block.call_close.replace(TOOL, name))
    found = children.parameter_tag.fullmatch(text) if text else None
    if found is None and text != children.call_close:
        return False
    tool = scan.registry.resolve(name)
    properties = tool.parameters.get("properties") if tool is not None else None
    known = found is None or (isinstance(properties, Mapping) and found.group(1) in properties)
    scan.open_call(name, hold=not known)
    return (yield from tag_arguments(scan, children))


def json_call(scan: Scan, closer: str) -> Reading:
    """Tries to read a call with one JSON object up to the closing tag. Returns whether a call was read."""
    flow = JsonFlow()
    read = yield from json_value(scan, flow, scan.write)
    if read == OK:
        scan.open.issues += flow.issues
        yield from peek(scan)
        if (yield from literal(scan, (closer,))) is not None:
            return scan.close_call()
    if read != FAIL and scan.ended and (read != OK or closer.startswith(scan.buffer[scan.position :])):
        cut_off(scan)
        return scan.candidate_open
    return scan.close_call("invalid")


def at_key(scan: Scan) -> Reading:
    """Whether a YAML key and its colon are at this position."""
    while True:
        found = _FIRST_KEY.match(scan.buffer, scan.position)
        if found is not None:
            return found.end() - scan.position <= LONGEST
        stop = _LINE.match(scan.buffer, scan.position).end()  # type: ignore[union-attr]
        if scan.ended or stop < len(scan.buffer) or stop - scan.position > LONGEST:
            return False
        yield


def yaml_call(scan: Scan, closer: str, indent: str) -> Reading:
    """Reads a call whose arguments are a YAML mapping (`core/yaml.py`). Returns whether a call was read.

    `indent`: the white space before the first key.
    """
    call = scan.open
    pieces = [indent]
    if not (yield from until(scan, (closer,), len(closer) - 1, pieces.append)):
        return scan.close_call("truncated")
    values = read_mapping("".join(pieces), lambda key: wants_string(call.tool.parameters, key))
    if values is None:
        return scan.close_call("invalid")
    scan.write(json.dumps(values, ensure_ascii=False))
    return scan.close_call()

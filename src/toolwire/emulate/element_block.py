"""The grammar of calls whose tag is the tool's name: `<NAME>` … `</NAME>`.

What stands between is told by its first character: `<` children with the arguments, `{` a JSON object, a letter or a quote a YAML mapping. The tag
may be ordinary markup that happens to be called like a tool, so a call is held until it is whole, unless its first child is a parameter that the
tool declares. Standard library only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from toolwire.emulate.arguments import JsonFlow
from toolwire.emulate.dialects.shapes import TOOL, ElementBlock
from toolwire.emulate.reading import CLOSED, LONGEST, Reading, literal, peek, tag, until
from toolwire.emulate.tag_block import tag_arguments
from toolwire.emulate.tag_values import wants_string
from toolwire.emulate.yaml_values import yaml_mapping

if TYPE_CHECKING:
    from toolwire.emulate.scanner import ToolCallParser

_FIRST_KEY = re.compile(r"[^<>\n]{0,512}?:[ \t\r\n]")
_WHITE = re.compile(r"\s*")
_LINE = re.compile(r"[^<>\n]*")


def element_block(scan: ToolCallParser, block: ElementBlock) -> Reading:
    """One call. True: it came out."""
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


def white_space(scan: ToolCallParser) -> Reading:
    """Skips white space; how much of it stands on the line that it ends on."""
    indent = ""
    while True:
        stop = _WHITE.match(scan.buffer, scan.position).end()  # type: ignore[union-attr]
        found = scan.buffer[scan.position : stop]
        indent = found[found.rindex("\n") + 1 :] if "\n" in found else indent + found
        scan.position = stop
        if stop < len(scan.buffer) or scan.ended:
            return indent
        yield


def children_call(scan: ToolCallParser, block: ElementBlock, name: str) -> Reading:
    text = yield from tag(scan)
    children = replace(block.children, call_close=block.call_close.replace(TOOL, name))
    found = children.parameter_tag.fullmatch(text) if text else None
    if found is None and text != children.call_close:
        return False
    tool = scan.registry.resolve(name)
    properties = tool.parameters.get("properties") if tool is not None else None
    known = found is None or (isinstance(properties, Mapping) and found.group(1) in properties)
    scan.open_call(name, hold=not known)
    read = yield from tag_arguments(scan, children)
    return scan.started if read == CLOSED else scan.close_call()


def json_call(scan: ToolCallParser, closer: str) -> Reading:
    """An object, and nothing else before the closing tag."""
    call = scan.call
    assert call is not None
    flow = JsonFlow()
    while not (flow.done or flow.failed or scan.ended):
        scan.position = flow.run(scan.buffer, scan.position)
        scan.write(flow.take())
        if not (flow.done or flow.failed):
            yield
    if flow.done:
        call.issues += flow.issues
        yield from peek(scan)
        if (yield from literal(scan, (closer,))) is not None:
            return scan.close_call()
    if not flow.failed and scan.ended and (not flow.done or closer.startswith(scan.buffer[scan.position :])):
        scan.position = len(scan.buffer)
        return scan.close_call("truncated")
    return scan.close_call("invalid")


def at_key(scan: ToolCallParser) -> Reading:
    """Whether a line begins here with a key and its colon."""
    while True:
        found = _FIRST_KEY.match(scan.buffer, scan.position)
        if found is not None:
            return found.end() - scan.position <= LONGEST
        stop = _LINE.match(scan.buffer, scan.position).end()  # type: ignore[union-attr]
        if scan.ended or stop < len(scan.buffer) or stop - scan.position > LONGEST:
            return False
        yield


def yaml_call(scan: ToolCallParser, closer: str, indent: str) -> Reading:
    call = scan.call
    assert call is not None
    pieces = [indent]
    if not (yield from until(scan, (closer,), len(closer) - 1, pieces.append)):
        return scan.close_call("truncated")
    values = yaml_mapping("".join(pieces), lambda key: wants_string(call.tool.parameters, key))
    if values is None:
        return scan.close_call("invalid")
    scan.write(json.dumps(values, ensure_ascii=False))
    return scan.close_call()

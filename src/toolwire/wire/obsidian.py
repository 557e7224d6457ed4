"""Output mode `obsidian-xml`: adds a `<use_tool>` block to the text after every call.

A pure stage between `policy` and the encoder, for clients that read tool requests from the text. The calls
themselves pass unchanged. A call that was cut off gets no block.

    <use_tool>
      <name>localSearch</name>
      <query>a &lt; b</query>
    </use_tool>

Members are in the order of the arguments. A string is XML-escaped. For any other value, the model's JSON is
XML-escaped.

This form cannot express arguments that are not a JSON object, or that have a key `name`, a key `args` or a
key that is not an XML name. Such arguments are written as text in `<use_tool name="n">…</use_tool>`. If the
text is JSON, its angle brackets and ampersands become \\u escapes. Any other text is XML-escaped.
"""

from __future__ import annotations

import json
import re

from toolwire.core.events import CallArgs, CallBegin, CallEnd, Event, Failure, Finish, Text

_DECODER = json.JSONDecoder(parse_int=str, parse_float=str)  # numbers are only skipped, never converted
_SPACE = re.compile(r"[ \t\n\r]*")
_XML_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_OWN_TAGS = frozenset({"name", "args"})
_XML_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&apos;"})
_JSON_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def to_obsidian_xml(name: str, arguments: str) -> str:
    """Returns the `<use_tool>` block of a call, with its whole name and arguments. Never raises."""
    members = _members(arguments)
    if members is not None and all(_XML_NAME.fullmatch(key) and key not in _OWN_TAGS for key, _ in members):
        lines = [f"  <name>{name.translate(_XML_ESCAPES)}</name>"]
        lines += [f"  <{key}>{value.translate(_XML_ESCAPES)}</{key}>" for key, value in members]
        return "\n".join(["<use_tool>", *lines, "</use_tool>"])
    body = arguments.translate(_JSON_ESCAPES) if _is_json(arguments) else arguments.translate(_XML_ESCAPES)
    return f'<use_tool name="{name.translate(_XML_ESCAPES)}">{body}</use_tool>'


def _members(arguments: str) -> list[tuple[str, str]] | None:
    """Returns the keys and values of a JSON object in order, or None if it is not an object.

    A string value is returned decoded, any other value as it is written.
    """
    try:
        at = _skip(arguments, 0)
        if arguments[at] != "{":
            return None
        at = _skip(arguments, at + 1)
        members: list[tuple[str, str]] = []
        while arguments[at] != "}" or members:
            key, at = _DECODER.raw_decode(arguments, at)
            at = _skip(arguments, at)
            if not isinstance(key, str) or arguments[at] != ":":
                return None
            start = _skip(arguments, at + 1)
            value, end = _DECODER.raw_decode(arguments, start)
            members.append((key, value if arguments[start] == '"' else arguments[start:end]))
            at = _skip(arguments, end)
            if arguments[at] == "}":
                break
            if arguments[at] != ",":
                return None
            at = _skip(arguments, at + 1)
        return members if _skip(arguments, at + 1) == len(arguments) else None
    except (ValueError, IndexError, RecursionError):
        return None


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at


def _is_json(text: str) -> bool:
    try:
        _DECODER.decode(text)
    except (ValueError, RecursionError):
        return False
    return True


class ObsidianXml:
    """Adds a `<use_tool>` block to the text after each complete call. A truncated call gets none.

    `delimiter` separates the blocks.
    """

    def __init__(self, delimiter: str = "") -> None:
        self._delimiter = delimiter
        self._name: str | None = None  # the name of the open call
        self._index = -1
        self._arguments: list[str] = []
        self._blocks = 0

    def feed(self, events: list[Event]) -> list[Event]:
        out: list[Event] = []
        for event in events:
            match event:
                case CallBegin():
                    self._complete(out)
                    self._name, self._index, self._arguments = event.name, event.index, []
                    out.append(event)
                case CallArgs(index, delta):
                    if index == self._index:
                        self._arguments.append(delta)
                    out.append(event)
                case CallEnd(index, status):
                    out.append(event)
                    if index == self._index:
                        self._complete(out, kept=status != "truncated")
                case Finish(reason):
                    self._complete(out, kept=reason in ("stop", "tool_calls"))
                    out.append(event)
                case Failure():
                    self._complete(out, kept=False)
                    out.append(event)
                case _:
                    out.append(event)
        return out

    def _complete(self, out: list[Event], *, kept: bool = True) -> None:
        if self._name is not None and kept:
            block = to_obsidian_xml(self._name, "".join(self._arguments) or "{}")
            out.append(Text(self._delimiter + block if self._blocks else block))
            self._blocks += 1
        self._name, self._index, self._arguments = None, -1, []

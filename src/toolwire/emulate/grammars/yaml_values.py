"""A small and strict subset of YAML: what models write between tags as arguments, and nothing that could be read in two ways.

    key: plain text, a number, true, false, null, nothing       key: "double" or 'single' quotes, on one line
    key: | and > with - or +, then deeper lines                 key: [flow, "of", 1] and {like: JSON}, on one line
    key: with a deeper mapping, or a list of `- ` items         # a comment on a line of its own

Anything else (anchors, tags, text over several lines, comments behind a value, tabs as indentation, a key twice) is no mapping. Numbers are JSON's;
what only looks like one (007, 1_000, 0x1f) is text. Standard library only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

_DEPTH = 64
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?\Z", re.ASCII)
_COLON = re.compile(r":(?=\s|\Z)")
_BLOCK = re.compile(r"[|>][-+]?\Z")
_ODD_START = frozenset("&*!?%@`|>,]}#")
_FLOW_PLAIN = re.compile(r"""[^\s"'\[\]{},&*!|>%@`?:#-](?:[^,\[\]{}:#]|:(?!\s)|(?<!\s)#)*|-[^\s,\[\]{}:#][^,\[\]{}:#]*""")
_FLOW_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"|' + r"'(?:[^']|'')*'")


class _Outside(Exception):
    """Not in the subset."""


def yaml_mapping(text: str, wants_string: Callable[[str], bool] = lambda key: False) -> dict[str, Any] | None:
    """The mapping, or None. `wants_string`: keys at the top whose plain text is text, whatever it looks like."""
    try:
        reader = _Reader(text.replace("\r\n", "\n").split("\n"), wants_string)
        reader.skip()
        if reader.done:
            return None
        found = reader.mapping(reader.indent(), 0)
        reader.skip()
        return found if reader.done else None
    except (_Outside, ValueError, RecursionError):
        return None


def _refuse(why: str) -> NoReturn:
    raise _Outside(why)


class _Reader:
    """Lines, and the one that is read now. Every method leaves it behind what it read."""

    __slots__ = ("_wants_string", "at", "lines")

    def __init__(self, lines: list[str], wants_string: Callable[[str], bool]) -> None:
        self.lines = lines
        self.at = 0
        self._wants_string = wants_string

    @property
    def done(self) -> bool:
        return self.at >= len(self.lines)

    def skip(self) -> None:
        """Blank lines and comments."""
        while not self.done and (not self.lines[self.at].strip() or self.lines[self.at].lstrip().startswith("#")):
            self.at += 1

    def indent(self) -> int:
        line = self.lines[self.at]
        size = len(line) - len(line.lstrip(" "))
        return size if line[size : size + 1] != "\t" else _refuse("tab")

    def mapping(self, indent: int, depth: int) -> dict[str, Any]:
        """Keys that stand at `indent`."""
        out: dict[str, Any] = {}
        while True:
            self.skip()
            if self.done or self.indent() < indent:
                return out
            line = self.lines[self.at].rstrip()
            found = _member(line, indent) if self.indent() == indent else None
            if found is None or depth > _DEPTH:
                _refuse("no key")
            key, rest = found
            if key in out:
                _refuse("a key twice")
            text = not depth and self._wants_string(key)
            out[key] = self.value(rest, indent, depth, text, lists=indent)

    def value(self, rest: str, indent: int, depth: int, text: bool = False, lists: int = -1) -> Any:
        """What stands behind a key or a dash at `indent`: on its line, or on the deeper lines that follow; a list may also stand at `lists`."""
        self.at += 1
        if _BLOCK.match(rest):
            return self.block(rest, indent)
        if rest:
            return _scalar(rest, text)
        self.skip()
        if not self.done:
            inner = self.indent()
            if self._dash(inner) and (inner > indent or inner == lists):
                return self.sequence(inner, depth + 1)
            if inner > indent:
                return self.mapping(inner, depth + 1)
        return "" if text else None

    def _dash(self, indent: int) -> bool:
        line = self.lines[self.at].rstrip()
        return line[indent : indent + 2] in ("- ", "-")

    def sequence(self, indent: int, depth: int) -> list[Any]:
        out: list[Any] = []
        while True:
            self.skip()
            if self.done or self.indent() < indent or (self.indent() == indent and not self._dash(indent)):
                return out
            if self.indent() > indent or depth > _DEPTH:
                _refuse("no item")
            line = self.lines[self.at].rstrip()
            rest = line[indent + 1 :].lstrip(" ")
            inner = len(line) - len(rest)
            if rest == "-" or rest.startswith("- ") or _member(rest, 0):
                self.lines[self.at] = " " * inner + rest  # an item that is itself a mapping or a list begins on the dash's line
                out.append(self.sequence(inner, depth + 1) if self._dash(inner) else self.mapping(inner, depth + 1))
            else:
                out.append(self.value(rest, indent, depth))

    def block(self, mark: str, indent: int) -> str:
        """A block scalar: all deeper lines, without the indentation of the first."""
        lines: list[str] = []
        inner = -1
        while not self.done:
            line = self.lines[self.at]
            size = len(line) - len(line.lstrip(" "))
            if line.strip(" "):
                if size <= indent:
                    break
                inner = size if inner < 0 else inner
                if size < inner or line[size] == "\t":
                    _refuse("uneven indentation")
            lines.append(line)
            self.at += 1
        cut = [line[inner:] if inner >= 0 else "" for line in lines]
        while cut and not cut[-1]:
            cut.pop()
        breaks = len(lines) - len(cut) + (not self.done if cut else -self.done)  # behind the last line of text
        body = "\n".join(cut) if mark[0] == "|" else _folded(cut)
        if mark.endswith("+"):
            return body + "\n" * breaks
        return body + "\n" if cut and breaks and not mark.endswith("-") else body


def _folded(lines: list[str]) -> str:
    """Lines joined by spaces; blank lines stay breaks, deeper lines stay as they are."""
    out = before = ""
    breaks = 0
    for line in lines:
        if not line:
            breaks += 1
            continue
        if not before:
            out = "\n" * breaks
        elif line[0] == " " or before[0] == " ":
            out += "\n" * (breaks + 1)
        else:
            out += "\n" * breaks or " "
        out += line
        before, breaks = line, 0
    return out


def _member(line: str, at: int) -> tuple[str, str] | None:
    """The key that stands at `at`, and what stands behind its colon."""
    if line[at : at + 1] in ('"', "'"):
        found = _FLOW_QUOTED.match(line, at)
        colon = _COLON.match(line, _space(line, found.end())) if found else None
        return (_quoted(found.group()), line[colon.end() :].strip()) if found and colon else None
    colon = _COLON.search(line, at)
    key = line[at : colon.start()].rstrip() if colon else ""
    if colon is None or not key or key[0] in _ODD_START or key[0] in "[{" or " #" in key or key.startswith(("- ", "? ")):
        return None
    return key, line[colon.end() :].strip()


def _quoted(text: str) -> str:
    if text[0] == "'":
        return text[1:-1].replace("''", "'")
    value = json.loads(text)
    assert isinstance(value, str)
    return value


def _plain(text: str, is_text: bool = False) -> Any:
    if is_text:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if not _NUMBER.match(text):
        return text
    value = json.loads(text)
    return value if value - value == 0 else _refuse("too large")


def _scalar(text: str, is_text: bool) -> Any:
    if text[0] in "[{":
        value, stop = _flow(text, 0, 0)
    elif text[0] in "\"'":
        found = _FLOW_QUOTED.match(text)
        value, stop = (_quoted(found.group()), found.end()) if found else _refuse("unclosed quote")
    elif text[0] in _ODD_START or ": " in text or text.endswith(":") or " #" in text or text.startswith(("- ", "---", "...")) or text == "-":
        _refuse("not plain")
    else:
        return _plain(text, is_text)
    return value if not text[stop:].strip() else _refuse("text behind a value")


def _flow(text: str, at: int, depth: int) -> tuple[Any, int]:
    """A value in flow style, and where it ends."""
    if depth > _DEPTH:
        _refuse("too deep")
    char = text[at : at + 1]
    if char == "[":
        return _flow_items(text, at + 1, depth)
    if char == "{":
        return _flow_members(text, at + 1, depth)
    found = _FLOW_QUOTED.match(text, at) if char in ('"', "'") else _FLOW_PLAIN.match(text, at)
    if found is None:
        _refuse("no value")
    raw = found.group()
    return (_quoted(raw) if char in ('"', "'") else _plain(raw.rstrip())), found.end()


def _space(text: str, at: int) -> int:
    while text[at : at + 1] == " ":
        at += 1
    return at


def _flow_items(text: str, at: int, depth: int) -> tuple[list[Any], int]:
    out: list[Any] = []
    while True:
        at = _space(text, at)
        if text[at : at + 1] == "]":
            return out, at + 1
        value, at = _flow(text, at, depth + 1)
        out.append(value)
        at = _space(text, at)
        if text[at : at + 1] == ",":
            at += 1
        elif text[at : at + 1] != "]":
            _refuse("no comma")


def _flow_members(text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
    out: dict[str, Any] = {}
    while True:
        at = _space(text, at)
        if text[at : at + 1] == "}":
            return out, at + 1
        found = _FLOW_QUOTED.match(text, at) or _FLOW_PLAIN.match(text, at)
        if found is None:
            _refuse("no key")
        key = _quoted(found.group()) if found.group()[0] in "\"'" else found.group().rstrip()
        at = _space(text, found.end())
        if text[at : at + 1] != ":" or key in out:
            _refuse("no colon, or a key twice")
        out[key], at = _flow(text, _space(text, at + 1), depth + 1)
        at = _space(text, at)
        if text[at : at + 1] == ",":
            at += 1
        elif text[at : at + 1] != "}":
            _refuse("no comma")

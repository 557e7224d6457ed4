"""Reads a small subset of YAML: properties of notes, and arguments that a model writes in tags.

A value can be:

- plain text, a number, `true`, `false`, `null` or nothing
- text in double or single quotes, on one line
- a list or mapping in brackets, on one line: `[a, "b", 1]`, `{a: 1}`
- a block of text after `|` or `>`
- an indented mapping or list

Comments are supported on separate lines. `Rules` say how strict the reader is. `STRICT` refuses anchors,
tags, plain text over several lines, comments after a value, tabs as indentation and repeated keys. `LOOSE` is
for people's notes: a value that cannot be read as YAML is returned as text.

No input raises an exception. The time is linear in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn


@dataclass(frozen=True, slots=True)
class Rules:
    """How strictly a value is read."""

    number: re.Pattern[str]
    """Matches plain text that is a number."""
    flow_plain: re.Pattern[str]
    """Matches plain text inside brackets."""
    loose: bool = False
    """Whether comments may follow a value, unknown escapes stay, and unreadable values count as text."""


_FLOW_PLAIN = (
    r"""[^\s"'\[\]{},&*!|>%@`?:#-](?:[^,\[\]{}:#]|:(?!\s)|(?<!\s)#)*+|-[^\s,\[\]{}:#][^,\[\]{}:#]*+"""
)
STRICT = Rules(
    number=re.compile(r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++)?", re.ASCII),  # JSON's
    flow_plain=re.compile(_FLOW_PLAIN),
)
LOOSE = Rules(
    number=re.compile(
        r"[+-]?(?:(?:0|[1-9][0-9]{0,17})|[0-9]{1,17}\.[0-9]{1,17}(?:[eE][+-]?[0-9]{1,3})?)", re.ASCII
    ),
    flow_plain=re.compile(r"""[^,"'\[\]{}][^,\[\]{}]*+|(?=,)"""),
    loose=True,
)

_DEPTH = 64
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_COLON = re.compile(r":(?=\s|\Z)")
_BLOCK = re.compile(r"[|>][-+]?")
_NOT_PLAIN = frozenset("&*!?%@`|>,]}#")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*+"|' + r"'(?:[^']|'')*+'", re.DOTALL)
_SPACES = re.compile(r"[ \t]*+")
_COMMENT = re.compile(r"[ \t]+#.*", re.DOTALL)
_PAIR = r"u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = re.compile(rf"\\({_PAIR}|x[0-9a-fA-F]{{2}}|u[0-9a-fA-F]{{4}}|.)", re.DOTALL)
_ESCAPES = {"0": "\0", "b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "/": "/", "\\": "\\"}


class _Outside(Exception):
    """Raised inside this module if the text uses a part of YAML that is not supported."""


def _refuse(why: str) -> NoReturn:
    raise _Outside(why)


def read_mapping(text: str, wants_string: Callable[[str], bool] = lambda key: False) -> dict[str, Any] | None:
    """Returns the mapping in `text`, read by the strict rules, or None if `text` is not such a mapping.

    `wants_string(key)` is True for top-level keys whose plain value stays text, even if it looks like a
    number.
    """
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


def read_value(text: str) -> Any:
    """Returns the value on one line, by the loose rules. Text that cannot be read is returned unchanged."""
    try:
        return _value(text, LOOSE)
    except (_Outside, ValueError):
        return text


def read_member(line: str) -> tuple[str, str] | None:
    """Returns the key of a line and the text after its colon (loose rules); None if the line has no key."""
    return _member(line, 0, LOOSE)


def without_comment(text: str) -> str:
    """Returns a value's text without a trailing comment.

    After quotes or brackets, the comment is kept: `read_value` skips it.
    """
    return text[: text.index(" #")].rstrip() if " #" in text and text[0] not in "\"'[" else text


def _member(line: str, at: int, rules: Rules = STRICT) -> tuple[str, str] | None:
    """Returns the key at index `at` of a line, and the text after its colon.

    Returns None if no key begins there.
    """
    if line[at : at + 1] in ('"', "'"):
        found = _QUOTED.match(line, at)
        colon = _COLON.match(line, _after_space(line, found.end())) if found else None
        return (_unquoted(found.group(), rules), line[colon.end() :].strip()) if found and colon else None
    colon = _COLON.search(line, at)
    key = line[at : colon.start()].rstrip() if colon else ""
    if colon is None or not key or key[0].isspace() or key[0] in _NOT_PLAIN or key[0] in "[{":
        return None
    if key == "-" or key.startswith("- ") or (" #" in key and not rules.loose):
        return None
    return key, line[colon.end() :].strip()


# --- lines ---


class _Reader:
    """Reads lines. `at` is the index of the current line.

    Every method leaves `at` on the line after what it read.
    """

    __slots__ = ("_wants_string", "at", "lines")

    def __init__(self, lines: list[str], wants_string: Callable[[str], bool]) -> None:
        self.lines = lines
        self.at = 0
        self._wants_string = wants_string

    @property
    def done(self) -> bool:
        return self.at >= len(self.lines)

    def skip(self) -> None:
        """Skips blank lines and comments."""
        while not self.done and (
            not self.lines[self.at].strip() or self.lines[self.at].lstrip().startswith("#")
        ):
            self.at += 1

    def indent(self) -> int:
        line = self.lines[self.at]
        size = len(line) - len(line.lstrip(" "))
        return size if line[size : size + 1] != "\t" else _refuse("tab")

    def mapping(self, indent: int, depth: int) -> dict[str, Any]:
        """Returns the mapping whose keys begin at column `indent`."""
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
                _refuse("a repeated key")
            as_text = not depth and self._wants_string(key)
            out[key] = self.value(rest, indent, depth, as_text, list_indent=indent)

    def value(self, rest: str, indent: int, depth: int, as_text: bool = False, list_indent: int = -1) -> Any:
        """Returns the value of a key or dash at column `indent`.

        `rest`: the text after the key or dash on its line. If `rest` is empty, the value is in the following
        lines, which are indented more. A list may also begin at column `list_indent`. With `as_text`, plain
        text is not converted.
        """
        self.at += 1
        if _BLOCK.fullmatch(rest):
            return self.block(rest, indent)
        if rest:
            return _value(rest, STRICT, as_text)
        self.skip()
        if not self.done:
            inner = self.indent()
            if self._dash(inner) and (inner > indent or inner == list_indent):
                return self.sequence(inner, depth + 1)
            if inner > indent:
                return self.mapping(inner, depth + 1)
        return "" if as_text else None

    def _dash(self, indent: int) -> bool:
        line = self.lines[self.at].rstrip()
        return line[indent : indent + 2] in ("- ", "-")

    def sequence(self, indent: int, depth: int) -> list[Any]:
        """Returns the list whose dashes are at column `indent`."""
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
                # An item that is itself a mapping or a list begins on the dash's line: blank out the dash.
                self.lines[self.at] = " " * inner + rest
                out.append(
                    self.sequence(inner, depth + 1) if self._dash(inner) else self.mapping(inner, depth + 1)
                )
            else:
                out.append(self.value(rest, indent, depth))

    def block(self, mark: str, indent: int) -> str:
        """Returns a block scalar: the lines that are indented more than `indent`.

        The indentation of the first line is removed from all lines. `mark`: the sign after the key, such as
        `|` or `>-`.
        """
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
        breaks = len(lines) - len(cut) + (not self.done if cut else -self.done)  # after the last text
        body = "\n".join(cut) if mark[0] == "|" else _folded(cut)
        if mark.endswith("+"):
            return body + "\n" * breaks
        return body + "\n" if cut and breaks and not mark.endswith("-") else body


def _folded(lines: list[str]) -> str:
    """Joins lines by spaces, as YAML does for `>`.

    Blank lines become line breaks. The line breaks around indented lines stay.
    """
    out: list[str] = []
    before = ""
    breaks = 0
    for line in lines:
        if not line:
            breaks += 1
            continue
        if not before:
            out.append("\n" * breaks)
        elif line[0] == " " or before[0] == " ":
            out.append("\n" * (breaks + 1))
        else:
            out.append("\n" * breaks or " ")
        out.append(line)
        before, breaks = line, 0
    return "".join(out)


# --- values on one line ---


def _value(text: str, rules: Rules, as_text: bool = False) -> Any:
    """Returns the value of a text on one line. `as_text`: plain text is not converted."""
    first = text[:1]
    if first and first in "[{":
        value, stop = _flow(text, 0, 0, rules)
    elif first and first in "\"'":
        found = _QUOTED.match(text) or _refuse("an open quote")
        value, stop = _unquoted(found.group(), rules), found.end()
    elif rules.loose or _is_plain(text):
        return _plain(text, rules, as_text)
    else:
        _refuse("not plain")
    if text[stop:].strip() and not (rules.loose and _COMMENT.fullmatch(text, stop)):
        _refuse("text after a value")
    return value


def _is_plain(text: str) -> bool:
    if text[0] in _NOT_PLAIN or text == "-" or text.startswith(("- ", "---", "...")):
        return False
    return ": " not in text and not text.endswith(":") and " #" not in text


def _plain(text: str, rules: Rules, as_text: bool = False) -> Any:
    """Converts plain text to null, a boolean or a number, if it looks like one."""
    if as_text:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if not rules.number.fullmatch(text):
        return text
    if text.lstrip("+-").isdigit():
        return int(text)
    value = float(text)
    return value if value - value == 0 else _refuse("too large")


def _unquoted(text: str, rules: Rules) -> str:
    if text[0] == "'":
        return text[1:-1].replace("''", "'")
    return _ESCAPE.sub(lambda found: _unescaped(found, rules), text[1:-1]) if "\\" in text else text[1:-1]


def _unescaped(found: re.Match[str], rules: Rules) -> str:
    code = found[1]
    if len(code) == 1:
        return _ESCAPES.get(code) or (found[0] if rules.loose else _refuse("an unknown escape"))
    if len(code) > 5:  # a surrogate pair
        return chr(0x10000 + ((int(code[1:5], 16) & 0x3FF) << 10) + (int(code[7:], 16) & 0x3FF))
    number = int(code[1:], 16)
    return "\ufffd" if 0xD800 <= number <= 0xDFFF else chr(number)  # a lone surrogate


def _after_space(text: str, at: int) -> int:
    return _SPACES.match(text, at).end()  # type: ignore[union-attr]


def _flow(text: str, at: int, depth: int, rules: Rules) -> tuple[Any, int]:
    """Returns the `[…]`, `{…}` or scalar at index `at`, and the index after it."""
    if depth > _DEPTH:
        _refuse("too deep")
    char = text[at : at + 1]
    if char == "[":
        return _flow_items(text, at + 1, depth, rules)
    if char == "{":
        return _flow_members(text, at + 1, depth, rules)
    value, stop, is_quoted = _flow_scalar(text, at, rules)
    return value if is_quoted else _plain(value, rules), stop


def _flow_scalar(text: str, at: int, rules: Rules) -> tuple[str, int, bool]:
    """Returns the text of a scalar or key, the index after it, and whether it is quoted."""
    found = _QUOTED.match(text, at)
    if found is not None:
        return _unquoted(found.group(), rules), found.end(), True
    found = rules.flow_plain.match(text, at) or _refuse("no value")
    return found.group().rstrip(), found.end(), False


def _flow_items(text: str, at: int, depth: int, rules: Rules) -> tuple[list[Any], int]:
    out: list[Any] = []
    while True:
        at = _after_space(text, at)
        if text[at : at + 1] == "]":
            return out, at + 1
        value, at = _flow(text, at, depth + 1, rules)
        out.append(value)
        at = _after_comma(text, at, "]")


def _flow_members(text: str, at: int, depth: int, rules: Rules) -> tuple[dict[str, Any], int]:
    out: dict[str, Any] = {}
    while True:
        at = _after_space(text, at)
        if text[at : at + 1] == "}":
            return out, at + 1
        key, stop, _ = _flow_scalar(text, at, rules)
        at = _after_space(text, stop)
        if text[at : at + 1] != ":" or key in out:
            _refuse("no colon, or a repeated key")
        out[key], at = _flow(text, _after_space(text, at + 1), depth + 1, rules)
        at = _after_comma(text, at, "}")


def _after_comma(text: str, at: int, closer: str) -> int:
    """Returns the index after a comma, or the index of a closing bracket. Skips space before them."""
    at = _after_space(text, at)
    if text[at : at + 1] == ",":
        return at + 1
    return at if text[at : at + 1] == closer else _refuse("no comma")

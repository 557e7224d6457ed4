"""The properties at a note's head: a small, strict part of YAML. Pure, linear, never an exception.

Known: `key: value` at the margin, scalars (text, quoted text, numbers, true and false, null), lists by dashes and lists in brackets. A value of any
other shape (a nested map, a block of text) is kept as its own text. A head with a line that is none of this is no frontmatter: it is the note's text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

Scalar = str | int | float | bool | None
Value = Scalar | list[Scalar]

MOST_LINES = 2000
_KEY = re.compile(
    r"""(?:"([^"\\]{1,200})"|'([^']{1,200})'|([^\s\-\[\]{}#&*!|>'"%@`,?:][^:\n]{0,200}?|-[^\s:][^:\n]{0,200}?))[ \t]*:(?:[ \t]+(.*))?"""
)
_ITEM = re.compile(r"[ \t]*-(?:[ \t]+(.*))?")
_INTEGER = re.compile(r"[+-]?(?:0|[1-9][0-9]{0,17})")
_NUMBER = re.compile(r"[+-]?[0-9]{1,17}\.[0-9]{1,17}(?:[eE][+-]?[0-9]{1,3})?")
_WORDS: dict[str, Scalar] = {"true": True, "false": False, "null": None, "~": None, "": None}
_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\", "/": "/", "r": "\r", "0": "\0"}
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.S)
_INLINE = re.compile(r"""[ \t]*+(?:"((?:[^"\\]|\\.)*+)"|'((?:[^']|'')*+)'|([^,"'\[\]{}][^,\[\]{}]*+)?+)[ \t]*+(,|\Z)""", re.S)


@dataclass(frozen=True, slots=True)
class Frontmatter:
    """`end` is where the note's own text begins, and `lines` how many lines the head has, its marks included; both 0 when there is none."""

    properties: Mapping[str, Value] = field(default_factory=dict)
    end: int = 0
    lines: int = 0


NONE = Frontmatter()


def frontmatter(text: str) -> Frontmatter:
    """Reads the head of a note whose line ends are `\\n`."""
    if not text.startswith("---"):
        return NONE
    start = text.find("\n") + 1
    if start == 0 or text[3 : start - 1].strip():
        return NONE
    lines: list[str] = []
    place = start
    while place < len(text) and len(lines) < MOST_LINES:
        stop = text.find("\n", place)
        line = text[place:] if stop < 0 else text[place:stop]
        place = len(text) if stop < 0 else stop + 1
        if line.rstrip() == "---":
            found = _properties(lines)
            return NONE if found is None else Frontmatter(found, place, len(lines) + 2)
        lines.append(line)
    return NONE


def _properties(lines: list[str]) -> dict[str, Value] | None:
    found: dict[str, Value] = {}
    number = 0
    while number < len(lines):
        line = lines[number].rstrip()
        number += 1
        if not line or line.startswith("#"):
            continue
        key = _KEY.fullmatch(line)
        if key is None:
            return None
        block = []
        while number < len(lines) and _belongs(lines[number]):
            block.append(lines[number].rstrip())
            number += 1
        name = next(part for part in key.groups()[:3] if part is not None)
        found.setdefault(name, _value(key[4] or "", block))
    return found


def _belongs(line: str) -> bool:
    """Whether a line continues the key above it: it is indented, an item or blank."""
    return not line.strip() or line[0] in " \t" or _ITEM.fullmatch(line.rstrip()) is not None


def _value(text: str, block: list[str]) -> Value:
    text = _uncommented(text.strip())
    filled = [line for line in block if line.strip()]
    if not filled:
        inline = _inline(text)
        return inline if inline is not None else scalar(text)
    if not text:
        items = [_ITEM.fullmatch(line) for line in filled if not line.lstrip().startswith("#")]
        if all(item is not None and not _nested(item[1] or "") for item in items):
            return [scalar(_uncommented((item[1] or "").strip())) for item in items if item is not None]
    return "\n".join([*([text] if text and text[0] not in "|>" else []), *(line.strip() for line in filled)])


def _nested(item: str) -> bool:
    """Whether an item is more than a scalar."""
    if item[:1] in ("[", "{", "|", ">", "&", "*", "!"):
        return not item.startswith("[[")
    return item[:1] not in ('"', "'") and ": " in item and _KEY.fullmatch(item) is not None


def _uncommented(text: str) -> str:
    """The value without a comment behind it; within quotes and brackets a `#` is a letter."""
    if " #" not in text or text[:1] in ('"', "'", "["):
        return text
    return text[: text.index(" #")].rstrip()


def _inline(text: str) -> list[Scalar] | None:
    """The list in brackets; None when it is not one. `[[link]]` is text."""
    if not (text.startswith("[") and text.endswith("]")) or text.startswith("[["):
        return None
    inner = text[1:-1].strip()
    inner = inner[:-1] if inner.endswith(",") else inner
    found: list[Scalar] = []
    place = 0
    while place <= len(inner) and inner:
        item = _INLINE.match(inner, place)
        if item is None:
            return None
        double, single, plain, end = item.groups()
        found.append(_escaped(double) if double is not None else single.replace("''", "'") if single is not None else scalar((plain or "").strip()))
        if not end:
            break
        place = item.end()
    return found


def scalar(text: str) -> Scalar:
    if len(text) > 1 and text[0] == text[-1] == '"':
        return _escaped(text[1:-1])
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text


def _escaped(text: str) -> str:
    return _ESCAPE.sub(_unescape, text) if "\\" in text else text


def _unescape(found: re.Match[str]) -> str:
    code = found[1]
    if len(code) == 1:
        return _ESCAPES.get(code, found[0])
    number = int(code[1:], 16)
    return "\ufffd" if 0xD800 <= number <= 0xDFFF else chr(number)  # half a character is none


def texts(value: Value, separators: str = "") -> list[str]:
    """A property as a list of texts; a single text is split at `separators`."""
    if isinstance(value, list):
        return [str(item) for item in value if item is not None and str(item).strip()]
    if value is None or isinstance(value, bool):
        return []
    parts = re.split(f"[{separators}]+", str(value)) if separators else [str(value)]
    return [part.strip() for part in parts if part.strip()]

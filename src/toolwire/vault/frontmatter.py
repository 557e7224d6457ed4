"""Reads the properties at the head of a note, in linear time. Never raises.

A head consists of `key: value` lines that are not indented. A value is a scalar, a list with dashes or a list
in brackets, read by the lenient rules of `core/yaml.py`. A value of another shape (a nested mapping, a block
of text) is kept as text. If a line fits none of these forms, the head is not frontmatter but part of the
note's text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from toolwire.core.yaml import read_member, read_value, without_comment

Scalar = str | int | float | bool | None
Value = Scalar | list[Scalar]

MOST_LINES = 2000
LONGEST_KEY = 200
_ITEM = re.compile(r"[ \t]*-(?:[ \t]+(.*))?")


@dataclass(frozen=True, slots=True)
class Frontmatter:
    """A note's properties.

    `end`: the position where the note's text begins; 0 if there are no properties.
    """

    properties: Mapping[str, Value] = field(default_factory=dict)
    end: int = 0


NONE = Frontmatter()


def frontmatter(text: str) -> Frontmatter:
    """Reads the head of a note whose lines end in `\\n`."""
    if not text.startswith("---"):
        return NONE
    start = text.find("\n") + 1
    if start == 0 or text[3 : start - 1].strip():
        return NONE
    lines: list[str] = []
    position = start
    while position < len(text) and len(lines) < MOST_LINES:
        stop = text.find("\n", position)
        line = text[position:] if stop < 0 else text[position:stop]
        position = len(text) if stop < 0 else stop + 1
        if line.rstrip() == "---":
            found = _properties(lines)
            return NONE if found is None else Frontmatter(found, position)
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
        member = read_member(line)
        if member is None or len(member[0]) > LONGEST_KEY:
            return None
        block = []
        while number < len(lines) and _continues(lines[number]):
            block.append(lines[number].strip())
            number += 1
        found.setdefault(member[0], _value(member[1], [line for line in block if line]))
    return found


def _continues(line: str) -> bool:
    """Whether a line belongs to the key above it: the line is indented, an item of a list, or blank."""
    return not line.strip() or line[0] in " \t" or _ITEM.fullmatch(line.rstrip()) is not None


def _value(text: str, block: list[str]) -> Value:
    """Returns the value of a key.

    `text`: the rest of the key's line. `block`: the lines below that belong to the key.
    """
    text = without_comment(text)
    if not block:
        value = read_value(text)
        return value if all(map(_is_scalar, value if isinstance(value, list) else [value])) else text
    if not text:
        items = [_ITEM.fullmatch(line) for line in block if not line.startswith("#")]
        if all(item is not None and not _is_nested(item[1] or "") for item in items):
            return [_scalar(without_comment(item[1] or "")) for item in items if item is not None]
    return "\n".join([*([text] if text and text[0] not in "|>" else []), *block])


def _scalar(text: str) -> Scalar:
    value = read_value(text)
    return value if _is_scalar(value) else text


def _is_scalar(value: object) -> bool:
    return not isinstance(value, list | dict)


def _is_nested(item: str) -> bool:
    """Whether an item of a list is more than a scalar, such as a mapping."""
    if item[:1] in ("[", "{", "|", ">", "&", "*", "!"):
        return not item.startswith("[[")
    return item[:1] not in ('"', "'") and ": " in item and read_member(item) is not None


def texts(value: Value, separators: str = "") -> list[str]:
    """Returns a property as a list of texts. A single text is split at `separators`."""
    if isinstance(value, list):
        return [str(item) for item in value if item is not None and str(item).strip()]
    if value is None or isinstance(value, bool):
        return []
    parts = re.split(f"[{separators}]+", str(value)) if separators else [str(value)]
    return [part.strip() for part in parts if part.strip()]

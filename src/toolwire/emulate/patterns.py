"""Regular expressions of JSON schemas (ECMA's) as grammars take them.

llguidance reads Rust's syntax: the same for most patterns, but its classes are Unicode's and its dot is wider, so that these are written out. What
looks around, refers back or does not parse is given up: None. Pure; standard library only.
"""

from __future__ import annotations

import re

LONGEST = 400
_CLASSES = {"d": "0-9", "w": "A-Za-z0-9_"}
_DOT = r"[^\n\r\u2028\u2029]"
_GIVEN_UP = re.compile(r"\\[bBkpPAZzGcQE0-9]|\(\?(?![:<]|<[=!])|\(\?<[=!]|[*+?}]\+")
_UNBOUNDED = re.compile(r"(?<!\\)[*+]|,\}")

KEY = "^[A-Za-z_][A-Za-z0-9_]{0,23}$"
"""The keys of objects that may have any."""


def rust_pattern(pattern: str) -> str | None:
    """The pattern for llguidance."""
    if len(pattern) > LONGEST or _GIVEN_UP.search(pattern):
        return None
    out, inside, place = [], False, 0
    while place < len(pattern):
        char = pattern[place]
        if char == "\\":
            letter = pattern[place + 1 : place + 2]
            out.append(_escaped(letter, inside))
            place += 2
            continue
        if char == "[" and inside:
            out.append("\\[")  # Rust would nest classes
        elif char in "&~-" and inside and pattern[place + 1 : place + 2] == char:
            out.append("\\" + char)  # and has operators inside them
        else:
            out.append(_DOT if char == "." and not inside else char)
            inside = (inside or char == "[") and char != "]"
        place += 1
    told = "".join(out)
    try:
        re.compile(told.replace("(?<", "(?P<"))
    except (re.error, OverflowError, RecursionError):
        return None
    return told


def _escaped(letter: str, inside: bool) -> str:
    lower = _CLASSES.get(letter.lower())
    if lower is None or (inside and letter.isupper()):
        return "\\" + letter
    if inside:
        return lower
    return f"[{'^' if letter.isupper() else ''}{lower}]"


def portable_pattern(pattern: str) -> str | None:
    """The pattern for other engines, of which some take only whole ones."""
    return pattern if pattern[:1] == "^" and pattern[-1:] == "$" and pattern[-2:] != "\\$" and rust_pattern(pattern) is not None else None


def key_pattern(pattern: str) -> str | None:
    """The pattern of an object's keys, where it lets none go on for ever."""
    whole = pattern[:1] == "^" and pattern[-1:] == "$" and not _UNBOUNDED.search(pattern)
    return rust_pattern(pattern) if whole else None

"""Values that a schema lists (`enum`, `const`), judged by the bounds that stand beside them. Pure; standard library only.

What only a whole validator could judge (`BEYOND`) is left to the check of the complete call; a pattern of the client's is never run here.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any

from toolwire.emulate.schemas.keywords import identity, is_a


def _is_multiple(value: float, step: float) -> bool:
    return (isinstance(value, int) or math.isfinite(value)) and _listed_fraction(value) % _listed_fraction(step) == 0


def _listed_fraction(value: float) -> Fraction:
    return Fraction(value if isinstance(value, int) else str(value))


def _is_long(value: Any, least: float) -> bool:
    return len(value) >= least


def _is_short(value: Any, most: float) -> bool:
    return len(value) <= most


def _is_varied(value: list[Any], wanted: bool) -> bool:
    return not wanted or len(distinct(value)) == len(value)


def _has(value: Mapping[str, Any], names: Iterable[Any]) -> bool:
    return all(name in value for name in names if isinstance(name, str))


# keyword → the type of the values that it bounds, and whether such a value keeps the bound
BOUNDS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "minimum": ("number", operator.ge),
    "maximum": ("number", operator.le),
    "exclusiveMinimum": ("number", operator.gt),
    "exclusiveMaximum": ("number", operator.lt),
    "multipleOf": ("number", _is_multiple),
    "minLength": ("string", _is_long),
    "maxLength": ("string", _is_short),
    "minItems": ("array", _is_long),
    "maxItems": ("array", _is_short),
    "uniqueItems": ("array", _is_varied),
    "minProperties": ("object", _is_long),
    "maxProperties": ("object", _is_short),
    "required": ("object", _has),
}
BEYOND = {
    **dict.fromkeys(("pattern", "format"), "string"),
    **dict.fromkeys(("items", "prefixItems", "contains"), "array"),
    **dict.fromkeys(("properties", "additionalProperties", "patternProperties", "propertyNames"), "object"),
}
"""Keywords that are not judged here, and the type that they are about."""


def kept(listed: Iterable[Any], keywords: Mapping[str, Any]) -> list[Any]:
    """The listed values that keep every bound."""
    bounds = [(*BOUNDS[name], bound) for name, bound in keywords.items() if name in BOUNDS]
    return [one for one in listed if all(keeps(one, bound) for type, keeps, bound in bounds if is_a(one, type))]


def is_judged(listed: Iterable[Any], keywords: Mapping[str, Any]) -> bool:
    """Whether nothing else is said of these values."""
    beyond = {type for name, type in BEYOND.items() if name in keywords}
    return not any(is_a(one, type) for one in listed for type in beyond)


def distinct(listed: Iterable[Any]) -> list[Any]:
    """Each value once."""
    found: dict[Any, Any] = {}
    for one in listed:
        found.setdefault(identity(one), one)
    return list(found.values())


# --- numbers ------------------------------------------------------------
#
# The bounds of numbers in a JSON schema, exact, and never without an end. Pure; standard library only. A
# multiple that must be below zero is one of a list, since llguidance knows none.

LARGEST = 10**15 - 1
"""What every reader of JSON keeps exactly."""
FINEST = Fraction(1, 10**6)
MOST_LISTED = 64
"""So many numbers are named one by one where a grammar can not say them otherwise."""


class Numbers:
    """Bounds of a number: no more digits than every reader of JSON keeps, and six behind the point where nothing else is asked."""

    def __init__(self, keywords: Mapping[str, Any]) -> None:
        low, above = _fraction(keywords.get("minimum")), _fraction(keywords.get("exclusiveMinimum"))
        high, below = _fraction(keywords.get("maximum")), _fraction(keywords.get("exclusiveMaximum"))
        self.open_low = above is not None and (low is None or above >= low)
        self.open_high = below is not None and (high is None or below <= high)
        low = above if self.open_low else low
        high = below if self.open_high else high
        self.low = Fraction(-LARGEST if high is None or high >= -LARGEST else high * 10) if low is None else low
        self.high = Fraction(LARGEST if self.low <= LARGEST else self.low * 10) if high is None else high
        step = _fraction(keywords.get("multipleOf"))
        self.step = step if step and step > 0 else None

    def whole(self) -> dict[str, Any] | None:
        step = self.step.numerator if self.step else 1
        low, high = self._multiples(Fraction(step))
        if low > high:
            return None
        if high < 0 and step > 1:
            return _listed(low, high, Fraction(step))
        return {"type": "integer", "minimum": low * step, "maximum": high * step, **({"multipleOf": step} if step > 1 else {})}

    def any(self, portable: bool) -> dict[str, Any] | None:
        step = self.step or FINEST
        low, high = self._multiples(step)
        if low > high and self.step:
            return None
        empty = self.low > self.high or (self.low == self.high and (self.open_low or self.open_high))
        if empty:
            return None
        if low <= high < 0 and not portable:
            return _listed(low, high, step)
        out: dict[str, Any] = {"type": "number"}
        out["exclusiveMinimum" if self.open_low else "minimum"] = _plain(self.low)
        out["exclusiveMaximum" if self.open_high else "maximum"] = _plain(self.high)
        if low <= high and (self.step or not portable):
            out["multipleOf"] = _plain(step)
        return out

    def _multiples(self, step: Fraction) -> tuple[int, int]:
        """The first and the last multiple of the step within the bounds."""
        low, high = math.ceil(self.low / step), math.floor(self.high / step)
        return low + (self.open_low and low * step == self.low), high - (self.open_high and high * step == self.high)


def _listed(low: int, high: int, step: Fraction) -> dict[str, Any] | None:
    """Multiples of a step, all of them or some from one end to the other. llguidance finds no multiple below zero, and then holds nothing at all.

    A fraction that no reader keeps is not named.
    """
    count = min(high - low + 1, MOST_LISTED)
    places = {low + (high - low) * place // max(1, count - 1) for place in range(count)}
    multiples = [place * step for place in sorted(places, reverse=True)]
    named = [_plain(one) for one in multiples if one.denominator == 1 or one >= -LARGEST]
    return {"enum": named} if named else None


def _fraction(value: Any) -> Fraction | None:
    return None if value is None or isinstance(value, bool) else Fraction(str(value))


def _plain(value: Fraction) -> int | float:
    return value.numerator if value.denominator == 1 else float(value)


# --- patterns ------------------------------------------------------------
#
# Regular expressions of JSON schemas (ECMA's) as grammars take them. llguidance reads Rust's syntax: the
# same for most patterns, but its classes are Unicode's and its dot is wider, so that these are written
# out. What looks around, refers back or does not parse is given up: None. Pure; standard library only.

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

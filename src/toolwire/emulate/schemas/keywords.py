"""The keywords of a JSON schema: joins the keywords of two schemas, narrows values and patterns."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from fractions import Fraction
from typing import Any

Schema = dict[str, Any]

# The type that a schema without `type` describes, by its keywords.
ABOUT = {
    "object": (
        *("properties", "required", "additionalProperties", "patternProperties", "propertyNames"),
        *("minProperties", "maxProperties"),
    ),
    "array": ("items", "prefixItems", "minItems", "maxItems", "contains", "uniqueItems"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
TYPES = (*ABOUT, "integer", "boolean", "null")
NUMBER = (int, float)
KINDS: dict[str, Any] = {
    **{"object": Mapping, "array": list, "string": str, "number": NUMBER, "integer": NUMBER},
    **{"boolean": bool, "null": type(None)},
}


def _both(one: Any, other: Any) -> Any:
    return one if one == other else {"allOf": [one, other]}


def _first(one: Any, other: Any) -> Any:
    return one


def _union(one: list[Any], other: list[Any]) -> list[Any]:
    return [*one, *other]


def _common(one: list[Any], other: list[Any]) -> list[Any]:
    known = set(map(identity, other))
    return [value for value in one if identity(value) in known]


def _common_types(one: list[str], other: list[str]) -> list[str]:
    narrow = [type for type in one if type in other or (type == "integer" and "number" in other)]
    return narrow + [type for type in other if type == "integer" and "number" in one and type not in narrow]


def _coarser(one: float, other: float) -> float:
    """Returns the smallest number that is a multiple of both steps."""
    a, b = Fraction(str(one)), Fraction(str(other))
    multiple = math.lcm(a.numerator * b.denominator, b.numerator * a.denominator)
    step = Fraction(multiple, a.denominator * b.denominator)
    return step.numerator if step.denominator == 1 else float(step)


def _properties(one: Schema, other: Schema) -> Schema:
    return {**one, **{name: _both(one.get(name, inner), inner) for name, inner in other.items()}}


# keyword → the type that its value must have, and how to join two values that must both hold
JOINED: dict[str, tuple[Any, Callable[[Any, Any], Any]]] = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), (NUMBER, max)),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), (NUMBER, min)),
    **dict.fromkeys(("items", "additionalProperties", "contains", "propertyNames"), ((Mapping, bool), _both)),
    **dict.fromkeys(("pattern", "format"), (str, _first)),
    **dict.fromkeys(("prefixItems", "required"), (list, _union)),
    **dict.fromkeys(("patternProperties", "not"), (Mapping, _first)),
    "properties": (Mapping, _properties),
    "multipleOf": (NUMBER, _coarser),
    "uniqueItems": (bool, max),
    "enum": (list, _common),
    "type": (list, _common_types),
    "groups": (list, _union),
}
COMBINING = ("$ref", "allOf", "anyOf", "oneOf", "if", "const", "dependentRequired")
DEMANDING = frozenset((*JOINED, *COMBINING))
"""Every keyword that constrains a value; all others are annotations."""


def normalized(schema: Mapping[str, Any]) -> Schema:
    """Returns a schema's own keywords in one shape.

    Keywords of the wrong type are dropped, `const` becomes an `enum`, and each choice (`anyOf`, `oneOf`,
    `dependentRequired`) becomes one of the `groups`.
    """
    given = {name: value for name, value in schema.items() if name != "groups"}
    for bound, strict in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if given.get(strict) is True and bound in given:
            given[strict] = given.pop(bound)  # in draft 4, the strict bound is a flag
    if isinstance(given.get("items"), list):  # the form before draft 2020-12
        given["prefixItems"], given["items"] = given["items"], given.get("additionalItems", True)
    if _has_type(given.get("multipleOf"), NUMBER) and given["multipleOf"] <= 0:
        del given["multipleOf"]
    types = given.get("type")
    types = types if isinstance(types, list) else [types]
    given["type"] = [one for one in TYPES if one in types] or None
    out = {name: given[name] for name, (kind, _) in JOINED.items() if _has_type(given.get(name), kind)}
    if "const" in given:
        out["enum"] = _common([given["const"]], out.get("enum", [given["const"]]))
    groups = [given[name] for name in ("anyOf", "oneOf") if isinstance(given.get(name), list) and given[name]]
    needs = given.get("dependentRequired")
    for name, others in needs.items() if isinstance(needs, Mapping) else ():
        if isinstance(others, list):
            groups.append([{"required": [name, *others]}, {"properties": {name: False}}])
    return {**out, "groups": groups} if groups else out


def _has_type(value: Any, kind: Any) -> bool:
    if kind is not NUMBER:
        return isinstance(value, kind)
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


def join(one: Schema, other: Schema) -> Schema | None:
    """Returns the keywords of both schemas joined; None if no value can satisfy both."""
    out = dict(one)
    for name, value in other.items():
        out[name] = JOINED[name][1](out[name], value) if name in out else value
    return None if out.get("type") == [] or out.get("enum") == [] else out


def sole_reference(schema: Any) -> str | None:
    """Returns the pointer of a schema that is only a `$ref`; None if it is anything else.

    A `$ref` inside an `allOf` of one schema counts too.
    """
    while isinstance(schema, Mapping):
        demands = DEMANDING & schema.keys()
        if demands == {"$ref"} and isinstance(schema["$ref"], str):
            return str(schema["$ref"])
        if demands != {"allOf"} or not isinstance(schema["allOf"], list) or len(schema["allOf"]) != 1:
            return None
        schema = schema["allOf"][0]
    return None


def references(schema: Any) -> set[str]:
    """Returns the pointers of all `$ref` in a schema."""
    found: set[str] = set()
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Mapping):
            waiting += one.values()
            if isinstance(one.get("$ref"), str):
                found.add(one["$ref"])
        elif isinstance(one, list):
            waiting += one
    return found


def listed_values(schema: Any) -> list[Any]:
    """Returns the values of a schema's `const` or `enum`; an empty list if it has neither."""
    if not isinstance(schema, Mapping):
        return []
    listed = schema.get("enum")
    return [schema["const"]] if "const" in schema else list(listed) if isinstance(listed, list) else []


def is_a(value: Any, type: str) -> bool:
    if isinstance(value, bool) or type not in ("number", "integer"):
        return type == "boolean" if isinstance(value, bool) else isinstance(value, KINDS[type])
    return isinstance(value, NUMBER) and (type == "number" or isinstance(value, int) or value.is_integer())


def identity(value: Any) -> Hashable:
    """Returns a key to compare values as JSON Schema does: 1 equals 1.0, but `true` equals neither."""
    if isinstance(value, Mapping):
        return "object", frozenset((name, identity(inner)) for name, inner in value.items())
    if isinstance(value, list):
        return "array", tuple(map(identity, value))
    return isinstance(value, bool), value


# --- listed values ---
#
# The values of `enum` and `const` are checked against the bounds in the same schema. The client's patterns
# never run here.


def _is_multiple(value: float, step: float) -> bool:
    return (isinstance(value, int) or math.isfinite(value)) and _exact(value) % _exact(step) == 0


def _exact(value: float) -> Fraction:
    return Fraction(value if isinstance(value, int) else str(value))


def _is_long(value: Any, least: float) -> bool:
    return len(value) >= least


def _is_short(value: Any, most: float) -> bool:
    return len(value) <= most


# keyword → the type of values that it applies to, and a function: whether a value satisfies it
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
    "minProperties": ("object", _is_long),
    "maxProperties": ("object", _is_short),
    "uniqueItems": ("array", lambda value, unique: not unique or len(distinct(value)) == len(value)),
    "required": (
        "object",
        lambda value, names: all(name in value for name in names if isinstance(name, str)),
    ),
}
VALIDATOR_ONLY = {
    **dict.fromkeys(("pattern", "format"), "string"),
    **dict.fromkeys(("items", "prefixItems", "contains"), "array"),
    **dict.fromkeys(("properties", "additionalProperties", "patternProperties", "propertyNames"), "object"),
}
"""Keywords that only a validator can check, with the type of values that they apply to."""


def within_bounds(listed: Iterable[Any], keywords: Mapping[str, Any]) -> list[Any]:
    """Returns the listed values that satisfy every keyword in `BOUNDS`."""
    bounds = [(*BOUNDS[name], bound) for name, bound in keywords.items() if name in BOUNDS]
    return [one for one in listed if all(fits(one, bound) for type, fits, bound in bounds if is_a(one, type))]


def bounds_suffice(listed: Iterable[Any], keywords: Mapping[str, Any]) -> bool:
    """Whether `BOUNDS` is enough to check these values: no other keyword applies to any of them."""
    types = {type for name, type in VALIDATOR_ONLY.items() if name in keywords}
    return not any(is_a(one, type) for one in listed for type in types)


def distinct(listed: Iterable[Any]) -> list[Any]:
    """Returns the values without repetitions."""
    found: dict[Any, Any] = {}
    for one in listed:
        found.setdefault(identity(one), one)
    return list(found.values())


# --- numbers ---
#
# llguidance as llama.cpp ships it cannot generate a negative multiple: it drops the whole grammar without an
# error. A range of multiples below zero therefore becomes a list of values. (llguidance 1.9 generates them.)

LARGEST = 10**15 - 1
"""The largest number that every JSON reader keeps exactly."""
FINEST = Fraction(1, 10**6)
"""The `multipleOf` of numbers whose schema has none. Otherwise, a model can write digits without end."""
MOST_LISTED = 64


class Numbers:
    """The bounds of a number, computed exactly. A missing bound gets a default."""

    def __init__(self, keywords: Mapping[str, Any]) -> None:
        low, above = _fraction(keywords.get("minimum")), _fraction(keywords.get("exclusiveMinimum"))
        high, below = _fraction(keywords.get("maximum")), _fraction(keywords.get("exclusiveMaximum"))
        self.open_low = above is not None and (low is None or above >= low)
        self.open_high = below is not None and (high is None or below <= high)
        low = above if self.open_low else low
        high = below if self.open_high else high
        if low is None:
            low = Fraction(-LARGEST if high is None or high >= -LARGEST else high * 10)
        self.low = low
        self.high = Fraction(LARGEST if self.low <= LARGEST else self.low * 10) if high is None else high
        step = _fraction(keywords.get("multipleOf"))
        self.step = step if step and step > 0 else None

    def as_integer(self) -> dict[str, Any] | None:
        step = self.step.numerator if self.step else 1
        low, high = self._multiples(Fraction(step))
        if low > high:
            return None
        if high < 0 and step > 1:
            return _listed(low, high, Fraction(step))
        bounds = {"type": "integer", "minimum": low * step, "maximum": high * step}
        return {**bounds, "multipleOf": step} if step > 1 else bounds

    def as_number(self, portable: bool) -> dict[str, Any] | None:
        step = self.step or FINEST
        low, high = self._multiples(step)
        if low > high and self.step:
            return None
        if self.low > self.high or (self.low == self.high and (self.open_low or self.open_high)):
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
        """Returns the smallest and the largest integer whose product with `step` is within the bounds."""
        low, high = math.ceil(self.low / step), math.floor(self.high / step)
        low += self.open_low and low * step == self.low
        high -= self.open_high and high * step == self.high
        return low, high


def _listed(low: int, high: int, step: Fraction) -> dict[str, Any] | None:
    """Returns an `enum` of `step` times each integer from `low` to `high`.

    If there are too many numbers, the `enum` has a sample of them. Fractions that JSON readers would round
    are left out. Returns None if no value remains.
    """
    count = min(high - low + 1, MOST_LISTED)
    factors = {low + (high - low) * part // max(1, count - 1) for part in range(count)}
    multiples = [factor * step for factor in sorted(factors, reverse=True)]
    listed = [_plain(one) for one in multiples if one.denominator == 1 or one >= -LARGEST]
    return {"enum": listed} if listed else None


def _fraction(value: Any) -> Fraction | None:
    return None if value is None or isinstance(value, bool) else Fraction(str(value))


def _plain(value: Fraction) -> int | float:
    return value.numerator if value.denominator == 1 else float(value)


# --- patterns ---
#
# JSON Schema has ECMAScript's regular expressions, llguidance has Rust's. They agree on most patterns, and
# llguidance's `\d` and `\w` are ASCII as in ECMAScript. The rest is rewritten: Rust's dot matches more, and
# its classes nest and have operators. Patterns with lookaround or back references have no equivalent.

LONGEST_PATTERN = 400
_DOT = r"[^\n\r\u2028\u2029]"
_NO_EQUIVALENT = re.compile(r"\\[bBkpPAZzGcQE0-9]|\(\?(?![:<]|<[=!])|\(\?<[=!]|[*+?}]\+")
_UNBOUNDED = re.compile(r"(?<!\\)[*+]|,\}")

KEY = "^[A-Za-z_][A-Za-z0-9_]{0,23}$"
"""The pattern of keys in objects that allow any key."""


def rust_pattern(pattern: str) -> str | None:
    """Returns a pattern for llguidance that matches the same texts; None if there is no such pattern."""
    if len(pattern) > LONGEST_PATTERN or _NO_EQUIVALENT.search(pattern):
        return None
    out, inside, at = [], False, 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            out.append(pattern[at : at + 2])
            at += 2
            continue
        if char == "[" and inside:
            out.append("\\[")  # Rust would nest classes
        elif char in "&~-" and inside and pattern[at + 1 : at + 2] == char:
            out.append("\\" + char)  # an operator inside a class
        else:
            out.append(_DOT if char == "." and not inside else char)
            inside = (inside or char == "[") and char != "]"
        at += 1
    written = "".join(out)
    try:
        re.compile(written.replace("(?<", "(?P<"))
    except (re.error, OverflowError, RecursionError):
        return None
    return written


def portable_pattern(pattern: str) -> str | None:
    """Returns the pattern if engines other than llguidance can use it, else None.

    Some engines match only whole strings, so the pattern must begin with `^` and end with `$`.
    """
    is_whole = pattern[:1] == "^" and pattern[-1:] == "$" and pattern[-2:] != "\\$"
    return pattern if is_whole and rust_pattern(pattern) is not None else None


def key_pattern(pattern: str) -> str | None:
    """Returns the pattern of an object's keys for llguidance; None if it cannot be used.

    A pattern cannot be used if it matches keys of unlimited length, or if `rust_pattern` finds no equivalent.
    """
    is_bounded = pattern[:1] == "^" and pattern[-1:] == "$" and not _UNBOUNDED.search(pattern)
    return rust_pattern(pattern) if is_bounded else None

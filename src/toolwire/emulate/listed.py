"""Values that a schema lists (`enum`, `const`), judged by the bounds that stand beside them. Pure; standard library only.

What only a whole validator could judge (`BEYOND`) is left to the check of the complete call; a pattern of the client's is never run here.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any

from toolwire.emulate.keywords import identity, is_a


def _is_multiple(value: float, step: float) -> bool:
    return (isinstance(value, int) or math.isfinite(value)) and _fraction(value) % _fraction(step) == 0


def _fraction(value: float) -> Fraction:
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

"""The keywords of a JSON schema, read so that what holds together can be joined. Pure; standard library only."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from fractions import Fraction
from typing import Any

Schema = dict[str, Any]

# Which type a schema without one is about, by its keywords.
ABOUT = {
    "object": ("properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties", "propertyNames"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "contains", "uniqueItems"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
TYPES = (*ABOUT, "integer", "boolean", "null")
NUMBER = (int, float)
KINDS: dict[str, Any] = {"object": Mapping, "array": list, "string": str, "number": NUMBER, "integer": NUMBER, "boolean": bool, "null": type(None)}


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
    """The step that is a multiple of both."""
    a, b = Fraction(str(one)), Fraction(str(other))
    step = Fraction(math.lcm(a.numerator * b.denominator, b.numerator * a.denominator), a.denominator * b.denominator)
    return step.numerator if step.denominator == 1 else float(step)


def _properties(one: Schema, other: Schema) -> Schema:
    return {**one, **{name: _both(one[name], inner) if name in one else inner for name, inner in other.items()}}


# keyword → what its value must be to count, and how two values are joined where both must hold
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
"""Every keyword that is looked at; all others only annotate."""


def own(schema: Mapping[str, Any]) -> Schema:
    """A schema's own keywords in one shape: those of the right type; `const` as an `enum`; choices as `groups`."""
    given = {name: value for name, value in schema.items() if name != "groups"}
    for bound, strict in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):  # an older draft has them as flags
        if given.get(strict) is True and bound in given:
            given[strict] = given.pop(bound)
    if isinstance(given.get("items"), list):  # as older drafts have it
        given["prefixItems"], given["items"] = given["items"], given.get("additionalItems", True)
    if _counts(given.get("multipleOf"), NUMBER) and given["multipleOf"] <= 0:
        del given["multipleOf"]
    types = given.get("type")
    given["type"] = [one for one in TYPES if one == types or (isinstance(types, list) and one in types)] or None
    out = {name: given[name] for name, (kind, _) in JOINED.items() if _counts(given.get(name), kind)}
    if "const" in given:
        out["enum"] = _common([given["const"]], out.get("enum", [given["const"]]))
    groups = [given[name] for name in ("anyOf", "oneOf") if isinstance(given.get(name), list) and given[name]]
    needs = given.get("dependentRequired")
    for name, others in needs.items() if isinstance(needs, Mapping) else ():
        if isinstance(others, list):
            groups.append([{"required": [name, *others]}, {"properties": {name: False}}])
    return {**out, "groups": groups} if groups else out


def _counts(value: Any, kind: Any) -> bool:
    if kind is not NUMBER:
        return isinstance(value, kind)
    return isinstance(value, NUMBER) and not isinstance(value, bool) and (isinstance(value, int) or math.isfinite(value))


def join(one: Schema, other: Schema) -> Schema | None:
    """Both together; None where that can not be."""
    out = dict(one)
    for name, value in other.items():
        out[name] = JOINED[name][1](out[name], value) if name in out else value
    return None if out.get("type") == [] or out.get("enum") == [] else out


def reference(schema: Any) -> str | None:
    """The pointer of a schema that is nothing but a reference, alone or wrapped."""
    while isinstance(schema, Mapping):
        said = DEMANDING & schema.keys()
        if said == {"$ref"} and isinstance(schema["$ref"], str):
            return str(schema["$ref"])
        if said != {"allOf"} or not isinstance(schema["allOf"], list) or len(schema["allOf"]) != 1:
            return None
        schema = schema["allOf"][0]
    return None


def references(schema: Any) -> set[str]:
    """Every pointer in a schema."""
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


def values(schema: Any) -> list[Any]:
    """The values that a schema lists, if it lists any."""
    if not isinstance(schema, Mapping):
        return []
    listed = schema.get("enum")
    return [schema["const"]] if "const" in schema else list(listed) if isinstance(listed, list) else []


def is_a(value: Any, type: str) -> bool:
    if isinstance(value, bool) or type not in ("number", "integer"):
        return type == "boolean" if isinstance(value, bool) else isinstance(value, KINDS[type])
    return isinstance(value, NUMBER) and (type == "number" or isinstance(value, int) or value.is_integer())


def identity(value: Any) -> Hashable:
    """Equal for values that are the same to JSON schema: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, Mapping):
        return "object", frozenset((name, identity(inner)) for name, inner in value.items())
    if isinstance(value, list):
        return "array", tuple(map(identity, value))
    return isinstance(value, bool), value

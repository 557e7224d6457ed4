"""Varied JSON schemas of tools, drawn from a seed: from two strings to nested unions.

`tool_schemas(count)` returns the same list on every machine; its first entries have one of each kind. Used by
tests and by the evidence run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from toolwire.core.turn import ToolSpec

Schema = dict[str, Any]
Make = Callable[[random.Random, int], Schema]
SEED = 20260815
DEEPEST = 3

WORDS = (
    "city country title note query path folder tag name email phone price amount count limit offset page "
    "start end date time unit mode level kind "
    "status color size weight height priority owner author body text subject message reason url lang "
    "currency order item product address street zip"
).split()
VERBS = (
    "get set find list create update delete send move search convert book open schedule rate tag plan "
    "track share export"
).split()
CHOICES = (
    ["celsius", "fahrenheit"],
    ["low", "medium", "high", "urgent"],
    ["asc", "desc"],
    ["draft", "review", "done"],
    ["EUR", "USD", "GBP", "JPY"],
    ["Mon", "Tue", "Wed", "Thu", "Fri"],
    ["red", "green", "blue"],
    ["grün", "weiß", "日本"],
)


def _object(of: random.Random, depth: int) -> Schema:
    names = of.sample(WORDS, of.randint(1, 4))
    properties = {name: _value(of, depth + 1) for name in names}
    out: Schema = {"type": "object", "properties": properties}
    if of.random() < 0.85:
        out["required"] = [name for name in names if of.random() < 0.7]
    if of.random() < 0.5:
        out["additionalProperties"] = False
    return out


def _string(of: random.Random, depth: int) -> Schema:
    out: Schema = {"type": "string"}
    if of.random() < 0.4:
        out["description"] = "A few words."
    if of.random() < 0.3:
        out["maxLength"] = of.choice((5, 12, 40, 200))
    if of.random() < 0.15:
        out["minLength"] = of.randint(1, 4)
    return out


def _pattern(of: random.Random, depth: int) -> Schema:
    return {
        "type": "string",
        "pattern": of.choice(
            ("^[A-Z]{3}$", r"^\d{4}-\d{2}$", "^#[0-9a-f]{6}$", r"^v\d+\.\d+$", r"^[\w-]+\.md$", r"^\S+@\S+$")
        ),
    }


def _format(of: random.Random, depth: int) -> Schema:
    return {
        "type": "string",
        "format": of.choice(("date", "date-time", "time", "email", "uuid", "ipv4", "uri", "hostname")),
    }


def _enum(of: random.Random, depth: int) -> Schema:
    return {"type": "string", "enum": list(of.choice(CHOICES))}


def _const(of: random.Random, depth: int) -> Schema:
    return {"const": of.choice(("v1", 7, True, None))}


def _integer(of: random.Random, depth: int) -> Schema:
    out: Schema = {"type": "integer"}
    if of.random() < 0.7:
        out["minimum"] = of.choice((-273, 0, 1, 18))
        out["maximum"] = out["minimum"] + of.choice((1, 9, 99, 5000))
    if of.random() < 0.15:
        out["multipleOf"] = (
            of.choice((1, 5)) if "maximum" not in out or out["maximum"] - out["minimum"] < 5 else 5
        )
        if out["multipleOf"] == 5 and "maximum" in out and out["maximum"] - out["minimum"] < 5:
            del out["multipleOf"]
    return out


def _number(of: random.Random, depth: int) -> Schema:
    out: Schema = {"type": "number"}
    if of.random() < 0.7:
        out[of.choice(("minimum", "exclusiveMinimum"))] = of.choice((0, 0.5, -90))
        out[of.choice(("maximum", "exclusiveMaximum"))] = of.choice((1, 99.5, 180))
    return out


def _boolean(of: random.Random, depth: int) -> Schema:
    return {"type": "boolean"}


def _nullable(of: random.Random, depth: int) -> Schema:
    return {"type": [of.choice(("string", "integer", "boolean")), "null"]}


def _array(of: random.Random, depth: int) -> Schema:
    out: Schema = {"type": "array", "items": _value(of, depth + 1)}
    if of.random() < 0.4:
        out["minItems"] = of.randint(1, 3)
    if of.random() < 0.4:
        out["maxItems"] = out.get("minItems", 1) + of.randint(0, 3)
    return out


def _pair(of: random.Random, depth: int) -> Schema:
    return {
        "type": "array",
        "prefixItems": [_number(of, depth), _enum(of, depth)],
        "items": False,
        "minItems": 2,
    }


def _set(of: random.Random, depth: int) -> Schema:
    return {"type": "array", "items": _enum(of, depth), "uniqueItems": True, "minItems": of.randint(0, 2)}


def _union(of: random.Random, depth: int) -> Schema:
    return {"anyOf": [_string(of, depth), of.choice((_integer, _boolean, _object))(of, depth + 1)]}


def _variants(of: random.Random, depth: int) -> Schema:
    """Returns a union of objects that differ in a constant."""
    kinds = of.sample(WORDS, 2)
    options = []
    for kind in kinds:
        inner = _object(of, depth + 1)
        inner["properties"] = {"kind": {}} | inner["properties"] | {"kind": {"const": kind}}
        inner["required"] = ["kind", *(name for name in inner.get("required", []) if name != "kind")]
        options.append(inner)
    return {"oneOf": options}


def _map(of: random.Random, depth: int) -> Schema:
    return {"type": "object", "additionalProperties": of.choice((_integer, _boolean, _enum))(of, depth)}


def _joined(of: random.Random, depth: int) -> Schema:
    one, other = of.sample(WORDS, 2)
    return {
        "allOf": [
            {"type": "object", "properties": {one: _string(of, depth)}, "required": [one]},
            {"properties": {other: _integer(of, depth)}, "required": [other]},
        ]
    }


SIMPLE: tuple[Make, ...] = (_string, _enum, _integer, _number, _boolean, _nullable, _format, _pattern, _const)
NESTED: tuple[Make, ...] = (_object, _array, _union, _variants, _map, _pair, _set, _joined)


def _value(of: random.Random, depth: int) -> Schema:
    return of.choice(SIMPLE if depth >= DEEPEST or of.random() < 0.6 else NESTED)(of, depth)


def _with(of: random.Random, make: Make) -> Schema:
    """Returns an object with a required property that `make` creates."""
    schema = _object(of, 1)
    name = of.choice(WORDS)
    schema["properties"] = {
        name: make(of, 1),
        **{key: one for key, one in schema["properties"].items() if key != name},
    }
    schema["required"] = list(dict.fromkeys([name, *schema.get("required", [])]))
    return schema


def _defined(of: random.Random) -> Schema:
    """Returns an object whose parts are definitions, one of which is recursive."""
    node = {
        "type": "object",
        "properties": {"name": _string(of, 2), "parts": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
        "required": ["name"],
    }
    return {
        "type": "object",
        "$defs": {"place": _object(of, 2), "node": node},
        "properties": {
            "from": {"$ref": "#/$defs/place"},
            "to": {"$ref": "#/$defs/place"},
            "tree": {"$ref": "#/$defs/node"},
        },
        "required": of.choice((["from", "to"], ["tree"], ["from", "tree"])),
    }


def _generate(of: random.Random) -> Iterator[Schema]:
    for make in (*SIMPLE, *NESTED):
        yield _with(of, make)
    while True:
        yield _defined(of)
        for _ in range(12):
            yield _with(of, of.choice((*SIMPLE, *NESTED)))


def tool_schemas(count: int, seed: int = SEED) -> list[Schema]:
    """Returns `count` schemas of tool parameters."""
    made = _generate(random.Random(seed))
    return [next(made) for _ in range(count)]


def tools(count: int, seed: int = SEED) -> list[ToolSpec]:
    """Returns `count` tools, each with its own name and schema."""
    of = random.Random(seed)
    return [
        ToolSpec(
            f"{of.choice(VERBS)}_{of.choice(WORDS)}_{place}",
            f"{of.choice(VERBS).capitalize()} a {of.choice(WORDS)}.",
            schema,
        )
        for place, schema in enumerate(tool_schemas(count, seed))
    ]

"""Whether a decoder that is held to a schema is held to all of it.

Grammars keep the keywords of `KEPT`; a schema that says anything else is kept in part, so that calls must be checked once they are complete. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolwire.emulate.keywords import TYPES

ANNOTATIONS = frozenset(
    {
        "title",
        "description",
        "default",
        "examples",
        "example",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$comment",
        "$schema",
        "$id",
        "$defs",
        "definitions",
    }
)
"""Keywords that demand nothing."""
WIDE = frozenset({"exclusiveMinimum", "exclusiveMaximum", "multipleOf", "uniqueItems", "minProperties", "maxProperties"})
"""Keywords that are kept by narrowing, where the decoder is our own."""
VALUES = frozenset({"type", "enum", "const", "required", "$ref", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems"})
"""Keywords that are kept as they stand."""
ONE = frozenset({"items", "additionalProperties"})
MANY = frozenset({"anyOf", "prefixItems"})
NAMED = frozenset({"properties", "$defs", "definitions"})
KEPT = ANNOTATIONS | VALUES | ONE | MANY | NAMED
DEEPEST = 64


def exact(schema: Any, own: bool = False, depth: int = 0) -> bool:
    """Whether every keyword of this schema, and of the schemas inside it, is kept. `own`: the decoder is held by a grammar of ours."""
    if isinstance(schema, bool):
        return schema
    kept = KEPT | WIDE | {"allOf"} if own else KEPT
    if not isinstance(schema, Mapping) or depth > DEEPEST or not kept.issuperset(schema) or not _is_type(schema.get("type", "object")):
        return False
    many = [schema[key] for key in (*MANY, "allOf") if key in schema]
    named = [schema[key] for key in NAMED if key in schema]
    if not all(isinstance(one, list) for one in many) or not all(isinstance(one, Mapping) for one in named):
        return False
    inner = [schema[key] for key in ONE if key in schema and not isinstance(schema[key], bool)]
    inner += [one for group in many for one in group]
    inner += [one for group in named for one in group.values()]
    return all(exact(one, own, depth + 1) for one in inner)


def _is_type(given: Any) -> bool:
    """Whether this is a type, or several, that JSON schema knows."""
    return all(one in TYPES for one in given) and given != [] if isinstance(given, list) else given in TYPES

"""Whether a decoder that is held to a schema is held to all of it.

Grammars keep the keywords of `KEPT`; a schema that says anything else is kept in part, so that calls must be checked once they are complete. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
VALUES = frozenset({"type", "enum", "const", "required", "$ref", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems"})
"""Keywords that are kept as they stand."""
ONE = frozenset({"items", "additionalProperties"})
MANY = frozenset({"anyOf", "prefixItems"})
NAMED = frozenset({"properties", "$defs", "definitions"})
KEPT = ANNOTATIONS | VALUES | ONE | MANY | NAMED
DEEPEST = 64


def exact(schema: Any, depth: int = 0) -> bool:
    """Whether every keyword of this schema, and of the schemas inside it, is kept by a grammar."""
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, Mapping) or depth > DEEPEST or not KEPT.issuperset(schema):
        return False
    inner = [schema[key] for key in ONE if key in schema and not isinstance(schema[key], bool)]
    inner += [one for key in MANY for one in schema.get(key) or ()]
    inner += [one for key in NAMED for one in (schema.get(key) or {}).values()]
    return all(exact(one, depth + 1) for one in inner)

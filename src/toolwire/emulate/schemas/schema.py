"""The client's JSON schemas: compiled once a request, never fetched from anywhere.

`jsonschema-rs` judges; a `$ref` that leads out of the schema is refused instead of being followed (it would be a request that a client can name).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jsonschema_rs

from toolwire.core.errors import ToolwireError
from toolwire.core.turn import ToolSpec
from toolwire.emulate.schemas.keywords import TYPES

_MOST_ISSUES = 3


def _refuse(uri: str) -> Any:
    raise ValueError("a schema may only refer to its own definitions")


def compile_schema(schema: Mapping[str, Any], param: str) -> Any:
    """A validator, or a 400 that names the field."""
    try:
        return jsonschema_rs.validator_for(dict(schema), retriever=_refuse)
    except (ValueError, TypeError, RecursionError) as error:
        reason = str(error).splitlines()[0][:200]
        raise ToolwireError("invalid_value", f"Invalid schema: {reason}", param=param, code="invalid_json_schema") from None


def is_schema(schema: Mapping[str, Any]) -> bool:
    try:
        compile_schema(schema, "")
    except ToolwireError:
        return False
    return True


class SchemaCheck:
    """Judges complete arguments of strict tools: the `Check` that the scanner is given."""

    def __init__(self, tools: Iterable[ToolSpec]) -> None:
        self._validators = {
            tool.name: compile_schema(tool.parameters, f"tools[{place}].parameters")
            for place, tool in enumerate(tools)
            if tool.strict and tool.kind == "function" and tool.parameters
        }

    def __call__(self, tool: ToolSpec, arguments: str) -> Sequence[str]:
        validator = self._validators.get(tool.name)
        if validator is None:
            return ()
        try:
            value = json.loads(arguments)
        except (ValueError, RecursionError):
            return ("malformed_json",)
        issues = []
        for error in validator.iter_errors(value):
            place = "/".join(str(step) for step in error.instance_path)
            issues.append(f"schema: {'/' + place if place else 'arguments'}: {error.message[:200]}")
            if len(issues) == _MOST_ISSUES:
                break
        return issues


# --- exact ------------------------------------------------------------
#
# Whether a decoder that is held to a schema is held to all of it. Grammars keep the keywords of `KEPT`; a
# schema that says anything else is kept in part, so that calls must be checked once they are complete.
# Pure.

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

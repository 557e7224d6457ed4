"""Checks complete arguments against the client's JSON schemas, and whether a decoder enforces a schema fully.

`jsonschema-rs` compiles a schema once for each request. A `$ref` that leaves the schema is refused: following
it would let a client make the gateway send requests.
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
    """The validator of a schema; raises a 400 that names the field if it is not valid."""
    try:
        return jsonschema_rs.validator_for(dict(schema), retriever=_refuse)
    except (ValueError, TypeError, RecursionError) as error:
        reason = str(error).splitlines()[0][:200]
        raise ToolwireError(
            "invalid_value", f"Invalid schema: {reason}", param=param, code="invalid_json_schema"
        ) from None


def is_schema(schema: Mapping[str, Any]) -> bool:
    try:
        compile_schema(schema, "")
    except ToolwireError:
        return False
    return True


class SchemaCheck:
    """Checks the complete arguments of strict tools; the scanner's `Check`."""

    def __init__(self, tools: Iterable[ToolSpec]) -> None:
        self._validators = {
            tool.name: compile_schema(tool.parameters, f"tools[{index}].parameters")
            for index, tool in enumerate(tools)
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
            path = "/".join(str(step) for step in error.instance_path)
            issues.append(f"schema: {'/' + path if path else 'arguments'}: {error.message[:200]}")
            if len(issues) == _MOST_ISSUES:
                break
        return issues


# --- what decoders enforce ---
#
# Decoders enforce the keywords of `KEPT`. A schema with any other keyword is enforced only in part, so its
# calls are checked when they are complete.

ANNOTATIONS = frozenset(
    {
        *("title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly"),
        *("$comment", "$schema", "$id", "$defs", "definitions"),
    }
)
"""Keywords that constrain no value."""
WIDE = frozenset(
    {
        *("exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("uniqueItems", "minProperties", "maxProperties"),
    }
)
"""Keywords that a decoder enforces if it runs our own grammar."""
VALUES = frozenset(
    {
        *("type", "enum", "const", "required", "$ref", "minimum", "maximum"),
        *("minLength", "maxLength", "minItems", "maxItems"),
    }
)
"""Keywords without subschemas that every decoder enforces."""
ONE = frozenset({"items", "additionalProperties"})
MANY = frozenset({"anyOf", "prefixItems"})
NAMED = frozenset({"properties", "$defs", "definitions"})
KEPT = ANNOTATIONS | VALUES | ONE | MANY | NAMED
DEEPEST = 64


def exact(schema: Any, own: bool = False, depth: int = 0) -> bool:
    """Whether a decoder enforces every keyword of a schema and its subschemas.

    `own`: it runs our own grammar.
    """
    if isinstance(schema, bool):
        return schema
    kept = KEPT | WIDE | {"allOf"} if own else KEPT
    if (
        not isinstance(schema, Mapping)
        or depth > DEEPEST
        or not kept.issuperset(schema)
        or not _is_type(schema.get("type", "object"))
    ):
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
    """Whether this is one or several of JSON Schema's types."""
    return all(one in TYPES for one in given) and given != [] if isinstance(given, list) else given in TYPES

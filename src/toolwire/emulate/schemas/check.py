"""Checks complete arguments against the client's JSON schemas, and whether a decoder enforces a schema fully.

A `$ref` that leaves the schema is refused: following it would let a client make the gateway send requests.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
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
        message = f"Invalid schema: {str(error).splitlines()[0][:200]}"
        raise ToolwireError("invalid_value", message, param=param, code="invalid_json_schema") from None


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
        return [_issue(error) for error in islice(validator.iter_errors(value), _MOST_ISSUES)]


def _issue(error: Any) -> str:
    path = "".join(f"/{step}" for step in error.instance_path)
    return f"schema: {path or 'arguments'}: {error.message[:200]}"


# --- what decoders enforce ---
#
# A schema with a keyword outside of `ENFORCED` is enforced only in part, so its calls are checked when they are
# complete.

_ANNOTATIONS = """title description default examples example deprecated readOnly writeOnly
    $comment $schema $id"""
_VALUES = "type enum const required $ref minimum maximum minLength maxLength minItems maxItems"
_ONE, _MANY, _NAMED = (
    ("items", "additionalProperties"),
    ("anyOf", "prefixItems"),
    ("properties", "$defs", "definitions"),
)
ENFORCED = frozenset((*_ANNOTATIONS.split(), *_VALUES.split(), *_ONE, *_MANY, *_NAMED))
OWN = ENFORCED | set(
    "exclusiveMinimum exclusiveMaximum multipleOf uniqueItems minProperties maxProperties allOf".split()
)
"""Keywords that a decoder enforces if it runs our own grammar."""
DEEPEST = 64


def exact(schema: Any, own: bool = False, depth: int = 0) -> bool:
    """Whether a decoder enforces every keyword of a schema. `own`: it runs our own grammar."""
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, Mapping) or depth > DEEPEST or not _is_type(schema.get("type", "object")):
        return False
    many = [schema[key] for key in (*_MANY, "allOf") if key in schema]
    named = [schema[key] for key in _NAMED if key in schema]
    well_formed = all(isinstance(one, list) for one in many) and all(
        isinstance(one, Mapping) for one in named
    )
    if not well_formed or not (OWN if own else ENFORCED).issuperset(schema):
        return False
    inner = [schema[key] for key in _ONE if key in schema and not isinstance(schema[key], bool)]
    inner += [one for group in many for one in group]
    inner += [one for group in named for one in group.values()]
    return all(exact(one, own, depth + 1) for one in inner)


def _is_type(given: Any) -> bool:
    """Whether this is one or several of JSON Schema's types."""
    return all(one in TYPES for one in given) and given != [] if isinstance(given, list) else given in TYPES

"""The client's JSON schemas: compiled once a request, never fetched from anywhere.

`jsonschema-rs` judges; a `$ref` that leads out of the schema is refused instead of being followed (it would be a request that a client can name).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jsonschema_rs

from toolwire.errors import ToolwireError
from toolwire.turn import ToolSpec

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

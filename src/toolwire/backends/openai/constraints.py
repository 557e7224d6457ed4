"""`Turn.constraint` → the fields of the request by which a server holds its decoder to it.

A bare constraint (no opening marker) is one JSON schema for the whole answer. Any other is text with calls in it: a Lark grammar (llguidance), or
xgrammar's structural tags, where a tag's beginning is a call up to its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from toolwire.backends.openai.profiles import Grammar, SchemaField
from toolwire.emulate.bounding import arguments_schema
from toolwire.emulate.constrain import call_schema, lark
from toolwire.turn import Constraint

Body = dict[str, Any]
NAME = "tool_call"

SCHEMA_FIELDS: dict[SchemaField, Callable[[Mapping[str, Any], bool], Body]] = {
    "response_format": lambda schema, strict: {"response_format": json_schema(NAME, schema, strict)},
    "json_schema": lambda schema, strict: {"json_schema": schema},
    "structured_outputs": lambda schema, strict: {"structured_outputs": {"json": schema}},
    "guided_json": lambda schema, strict: {"guided_json": schema},
}


def json_schema(name: str, schema: Mapping[str, Any], strict: bool) -> Body:
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": strict}}


def constraint_fields(constraint: Constraint, schema: SchemaField, strict: bool, grammar: Grammar) -> Body:
    """What the body gets. Where text can not be held to a form nothing is sent: the plan asks only for what the capabilities say."""
    if not constraint.opening:
        return SCHEMA_FIELDS[schema](call_schema(constraint), strict)
    if grammar == "lark":
        return {"grammar": lark(constraint)}
    if grammar == "structural_tag":
        return {"response_format": structural_tag(constraint)}
    return {}


def structural_tag(constraint: Constraint) -> Body:
    """`tags_with_separator` holds the answer to calls alone, `triggered_tags` leaves it free until a call's opening marker stands there."""
    tags = [
        {
            "type": "tag",
            "begin": constraint.opening + constraint.head(tool),
            "content": {"type": "json_schema", "json_schema": arguments_schema(tool.parameters)},
            "end": "}" + constraint.closing,
        }
        for tool in constraint.tools
    ]
    once = constraint.calls == 1
    form: Body = {"tags": tags, "at_least_one": constraint.required, "stop_after_first": once}
    if constraint.required:
        form = {"type": "tags_with_separator", "separator": "\n", **form}
    else:
        form = {"type": "triggered_tags", "triggers": [constraint.opening], **form}
    return {"type": "structural_tag", "format": form}

"""The shape asked of the answer's text: chat's `response_format` and the Responses API's `text.format`.

OpenAI nests a schema under `json_schema` on chat and writes it flat on Responses; both are read on both.
"""

from __future__ import annotations

from typing import Any

from toolwire.decode.fields import Note, leftover, missing, not_one_of, object_, optional_string, required_name, required_string, wrong_type
from toolwire.turn import Api, OutputFormat

TYPES = ("text", "json_object", "json_schema")
TEXT = OutputFormat()
JSON_OBJECT = OutputFormat("json_object")
_OF_SCHEMA = frozenset({"type", "name", "schema", "strict", "description"})


def read(value: Any, path: str, api: Api, notes: list[Note]) -> OutputFormat:
    """The format. Members that nobody reads are added to `notes`."""
    object_(path, value)
    kind = required_string(value, "type", path)
    leftover(value, _OF_SCHEMA | {"json_schema"}, path, notes)
    if kind == "text":
        return TEXT
    if kind == "json_object":
        return JSON_OBJECT
    if kind != "json_schema":
        raise not_one_of(f"{path}.type", kind, TYPES)
    inner = value.get("json_schema")
    if inner is None:
        if api == "chat" and value.get("schema") is None:
            raise missing(f"{path}.json_schema")
        inner = value
    else:
        path = f"{path}.json_schema"
        object_(path, inner)
        leftover(inner, _OF_SCHEMA, path, notes)
    name = required_name(inner, path)
    schema = inner.get("schema")
    if schema is None:
        if api == "responses":
            raise missing(f"{path}.schema")
    else:
        object_(f"{path}.schema", schema)
    strict = inner.get("strict")
    if strict is not None and type(strict) is not bool:
        raise wrong_type(f"{path}.strict", "a boolean", strict)
    return OutputFormat("json_schema", name, schema, strict is True, optional_string(inner, "description", path))


def echo(output: OutputFormat) -> dict[str, Any]:
    """The format as a Responses object repeats it. A description that was not sent is left out, not null."""
    if output.type != "json_schema":
        return {"type": output.type}
    wire = {"type": "json_schema", "name": output.name, "schema": output.schema, "strict": output.strict}
    return wire if output.description is None else {**wire, "description": output.description}

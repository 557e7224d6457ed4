"""A schema of a server can fetch nothing, and cannot stop the process."""

from __future__ import annotations

import http.server
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from toolwire.tools.contract import ToolFailed
from toolwire.tools.executor import Toolbox
from toolwire.tools.mcp.schemas import SchemaCheck, SchemaRefused


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def test_arguments_that_do_not_fit_are_refused() -> None:
    check = SchemaCheck({**schema(a={"type": "integer"}), "required": ["a"]})
    check({"a": 1, "b": 2})
    for wrong in ({}, {"a": "x"}, {"a": 1.5}):
        with pytest.raises(ToolFailed):
            check(wrong)


def test_nothing_outside_of_the_schema_is_fetched_or_opened(tmp_path: Path) -> None:
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    file = tmp_path / "a.json"
    file.write_text('{"const": "s3cret"}')
    try:
        for uri in (f"http://127.0.0.1:{server.server_port}/a.json", file.as_uri(), "other.json"):
            for keyword in ("$ref", "$schema"):
                try:
                    SchemaCheck(schema(a={keyword: uri}))({"a": 1})
                except (SchemaRefused, ToolFailed) as error:
                    assert "s3cret" not in str(error)
            with pytest.raises(SchemaRefused, match="outside of it"):
                SchemaCheck(schema(a={"$ref": uri}))
    finally:
        server.shutdown()
        server.server_close()
    assert asked == []


@pytest.mark.parametrize(
    "bad", [{"type": "array"}, {"type": 5}, {"properties": []}, {"type": "object", "$ref": 5}]
)
def test_an_invalid_schema_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(SchemaRefused):
        SchemaCheck(bad)


def doubling(depth: int) -> dict[str, Any]:
    """Returns a schema of 2 * depth nodes, of which 2 ** depth are applied to one value."""
    twice = {
        f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]}
        for n in range(depth)
    }
    return {"type": "object", "$defs": {**twice, f"d{depth}": {"required": ["x"]}}, "$ref": "#/$defs/d0"}


def below(element: dict[str, Any]) -> dict[str, Any]:
    """Returns a schema of a list whose elements are checked by what a reference leads to."""
    return {**schema(x={"type": "array", "items": {"$ref": "#/$defs/e"}}), "$defs": {"e": element}}


MEMBERS = {"enum": [{"a": n} for n in range(4500)]}
HIDDEN = {"dependentSchemas": {"default": {"enum": [{"default": n} for n in range(4500)]}}}


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


TREE = {
    "type": "object",
    "$ref": "#/$defs/t",
    "$defs": {
        "t": {
            "anyOf": [{"properties": {"a": {"$ref": "#/$defs/t"}}, "required": [f"r{n}"]} for n in range(9)]
        }
    },
}


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        (doubling(40), {}),
        (TREE, nested(90)),
        (schema(x={"type": "string", "pattern": "^(a+)+$"}), {"x": "a" * 5000 + "!"}),
        (schema(x={"type": "string", "pattern": r"^(?=a)(a+)+\1$"}), {"x": "a" * 5000 + "!"}),
        (schema(x={"type": "string", "pattern": r"(?<!b)(a|aa)+$"}), {"x": "a" * 200_000 + "!"}),
        ({"type": "object", "anyOf": [{"required": ["x"]}] * 3000}, {"y": ["z"] * 50_000}),
        ({"type": "object", "additionalProperties": {"$ref": "#"}}, nested(90)),
        ({"type": "object", "$dynamicRef": "#x"}, {}),
        (below(MEMBERS), {"x": [{"a": 4499}] * 20_000}),
        (below(HIDDEN), {"x": [{"default": 4499}] * 15_000}),
    ],
    ids=[
        *("doubling", "tree", "backtracking", "back-reference", "look-behind", "wide", "itself", "dynamic"),
        *("enum", "enum-below-the-name-of-a-keyword"),
    ],
)
def test_no_schema_takes_long(written: dict[str, Any], arguments: dict[str, Any]) -> None:
    began = time.process_time()
    try:
        SchemaCheck(written)(arguments)
    except (SchemaRefused, ToolFailed):
        pass
    assert time.process_time() - began < 1


def test_a_schema_that_is_too_large_or_too_deep_is_refused() -> None:
    with pytest.raises(SchemaRefused, match="nodes"):
        SchemaCheck(schema(**{f"p{n}": {"type": "string"} for n in range(10_000)}))
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(200):
        deep = {"type": "object", "allOf": [deep]}
    with pytest.raises(SchemaRefused, match="deeply"):
        SchemaCheck(deep)


def test_a_recursive_schema_is_checked_where_that_is_cheap() -> None:
    tree = {"type": "object", "properties": {"child": {"$ref": "#"}, "name": {"type": "string"}}}
    check = SchemaCheck(tree)
    check({"child": {"child": {"name": "x"}}})
    with pytest.raises(ToolFailed, match="child/child/name"):
        check({"child": {"child": {"name": 1}}})


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ('{"a": 1, "a": 2}', "same key twice"),
        ('{"a": {"b": 1, "b": 1}}', "same key twice"),
        ('{"a": NaN}', "not a JSON number"),
        ('{"a": 1e999}', "not a JSON number"),
        ('{"a": -Infinity}', "not a JSON number"),
        ("[]", "not a JSON object"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('{"a": "\\ud800"}', "lone surrogate"),
    ],
)
def test_arguments_that_two_programs_may_read_differently_are_refused(written: str, problem: str) -> None:
    class Anything:
        name, title, purpose, description, parameters, effect = "t", "", "", "", {"type": "object"}, "read"

    toolbox = Toolbox([Anything()])  # type: ignore[list-item]
    with pytest.raises(ToolFailed, match=problem):
        toolbox.arguments("t", written)

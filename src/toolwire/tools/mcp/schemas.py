"""Checks arguments against a schema that a server wrote, within limits.

A schema that refers to something outside of itself is refused, so nothing is fetched. A schema has at most
`MOST_NODES` nodes. Regular expressions that need backtracking, and checks that would take too many steps, are
left to the server. Therefore no schema can block the process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from toolwire.core.errors import ToolwireError
from toolwire.emulate.schemas.constrain import compile_schema
from toolwire.tools.contract import Arguments, ToolFailed

MOST_NODES, DEEPEST = 10_000, 100
MOST_STEPS = 2_000_000
"""The maximum number of steps of a check. They take about 20 ms."""
DEEPEST_RECURSION = 8
"""If a schema has references, arguments that are nested deeper than this are not checked."""
_INSIDE = frozenset(
    """properties patternProperties additionalProperties items prefixItems contains propertyNames
    unevaluatedItems unevaluatedProperties additionalItems""".split()
)
"""Keywords whose schemas apply to a part of the value."""
_TABLES = frozenset(("properties", "patternProperties", "dependentSchemas", "dependencies"))
"""Keywords whose value is a table of schemas. The names in such a table are not keywords."""
_COMPARED = frozenset(("enum", "const"))
"""Keywords whose value is data with which the checked value is compared."""
_NEVER = frozenset("$defs definitions default examples example".split())
"""Keywords whose schemas are not applied, or only where a reference names them."""


class SchemaRefused(Exception):
    """Raised for a tool that cannot be offered, such as one with an invalid schema. The message says why."""


class SchemaCheck:
    """Checks arguments against one schema. Raises `SchemaRefused` if the schema cannot be used."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        nodes = sum(1 for _ in _nodes(schema))
        if nodes > MOST_NODES:
            raise SchemaRefused(f"its schema has more than {MOST_NODES:,} nodes")
        if schema.get("type", "object") != "object":
            raise SchemaRefused("its schema does not describe an object")
        self._validator = _compiled(schema)
        self._schema = schema
        self._refers = any(
            not _REFERENCES.isdisjoint(node) for node in _nodes(schema) if isinstance(node, dict)
        )
        self._plain = nodes
        self._costs: dict[int, float] = {}

    def __call__(self, arguments: Arguments) -> None:
        """Raises `ToolFailed` if the arguments do not fit the schema. Skips a check that would be slow."""
        text = json.dumps(dict(arguments))
        if self._cost(_depth(arguments)) * len(text) > MOST_STEPS:
            return
        for error in self._validator.iter_errors(dict(arguments)):
            path = "/".join(str(step) for step in error.instance_path)
            raise ToolFailed(f"{path or 'arguments'}: {error.message[:200]}")

    def _cost(self, depth: int) -> float:
        """Estimates the cost of a check: the most schemas that one value may be compared with."""
        if not self._refers:
            return self._plain
        if depth > DEEPEST_RECURSION:
            return float("inf")
        if depth not in self._costs:
            self._costs[depth] = _Costs(self._schema).of(self._schema, depth)
        return self._costs[depth]


def _compiled(schema: Mapping[str, Any]) -> Any:
    try:
        return compile_schema(schema, "", linear=True)
    except ToolwireError:
        pass
    try:
        return compile_schema(_without_patterns(schema), "", linear=True)
    except ToolwireError as error:
        text = str(error).removeprefix("Invalid schema: ")
        outside = "may only refer" in text or "retriev" in text
        raise SchemaRefused("its schema refers to something outside of it" if outside else text) from None


_OF_PATTERNS = {"pattern", "patternProperties", "additionalProperties", "unevaluatedProperties"}


def _without_patterns(node: Any) -> Any:
    """Returns the schema without regular expressions, and without keywords that depend on them."""
    if isinstance(node, list):
        return [_without_patterns(one) for one in node]
    if not isinstance(node, dict):
        return node
    kept = {name: _without_patterns(one) for name, one in node.items() if name not in _OF_PATTERNS}
    if isinstance(node.get("properties"), dict):  # the names of properties are not keywords
        kept["properties"] = {name: _without_patterns(one) for name, one in node["properties"].items()}
    return kept


_REFERENCES = {"$ref", "$dynamicRef", "$recursiveRef"}


class _Costs:
    """Counts the schemas that a check applies. A reference counts as the schema that it refers to."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._known: dict[tuple[int, int], float] = {}

    def of(self, node: Any, depth: int) -> float:
        if not isinstance(node, dict | list):
            return 0
        key = (id(node), depth)
        if key not in self._known:
            self._known[key] = float("inf")  # the result if the schema contains itself for the same value
            self._known[key] = 1 + sum(self._child(name, one, depth) for name, one in _items(node))
        return self._known[key]

    def _child(self, name: str, node: Any, depth: int) -> float:
        if name in _NEVER:
            return 0
        if name in _COMPARED:
            return sum(1 for _ in _nodes(node))
        if name in _REFERENCES:
            target = self._target(node) if name == "$ref" else None
            return float("inf") if target is None else self.of(target, depth)
        if name in _INSIDE:
            depth -= 1
        if depth < 0:
            return 0
        inner = node.values() if isinstance(node, dict) and name in _TABLES else [node]
        return sum(self.of(one, depth) for one in inner)

    def _target(self, reference: Any) -> Any:
        """Returns what a reference in the schema refers to; None if that is not known."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        node: Any = self._root
        for step in reference[1:].split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(node, list):
                node = node[int(step)] if step.isdigit() and int(step) < len(node) else None
            else:
                node = node.get(step) if isinstance(node, dict) else None
        return node if reference == "#" or reference.startswith("#/") else None


def _items(node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        yield from node.items()
    else:
        yield from (("", one) for one in node)


def _nodes(schema: Any) -> Iterator[Any]:
    """Yields every table, list and value of a schema. Raises an error if it is nested too deeply."""
    waiting = [(schema, 0)]
    while waiting:
        node, depth = waiting.pop()
        yield node
        if depth > DEEPEST:
            raise SchemaRefused("its schema is nested too deeply")
        if isinstance(node, dict | list):
            waiting += [(one, depth + 1) for _, one in _items(node)]


def _depth(value: Any) -> int:
    deepest, waiting = 0, [(value, 0)]
    while waiting:
        node, depth = waiting.pop()
        deepest = max(deepest, depth)
        if isinstance(node, dict | list):
            waiting += [(one, depth + 1) for _, one in _items(node)]
    return deepest

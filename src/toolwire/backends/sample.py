"""Small valid instances of a JSON schema, for the demo model's calls.

Pure. Patterns are tried by the schema library, whose engine can not be made to run long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jsonschema_rs

_DEEPEST = 12
_LONGEST = 10_000
_FORMATS = {
    "date": "2026-01-01",
    "date-time": "2026-01-01T00:00:00Z",
    "time": "00:00:00Z",
    "email": "someone@example.com",
    "uri": "https://example.com/",
    "url": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "ipv4": "127.0.0.1",
    "ipv6": "::1",
    "hostname": "example.com",
}


def sample(schema: Any, words: Sequence[str] = (), root: Mapping[str, Any] | None = None, depth: int = 0) -> Any:
    """An instance with the required keys only.

    `words` are preferred for free strings (a demo that echoes the person's own words is easier to follow).
    """
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return {} if depth == 0 else None
    root = root if root is not None else schema
    schema = _resolved(schema, root)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("enum", "examples"):
        if isinstance(schema.get(key), list) and schema[key]:
            return schema[key][0]
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list) and schema[key]:
            return sample(schema[key][0], words, root, depth + 1)
    return _typed(schema, words, root, depth)


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        target: Any = root
        for step in reference[2:].split("/"):
            target = target.get(step) if isinstance(target, Mapping) else None
        if isinstance(target, Mapping):
            return target
    for part in schema.get("allOf") or () if isinstance(schema.get("allOf"), list) else ():
        if isinstance(part, Mapping):
            schema = {**schema, **_resolved(part, root)}
    return schema


def _typed(schema: Mapping[str, Any], words: Sequence[str], root: Mapping[str, Any], depth: int) -> Any:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((one for one in kind if one != "null"), "null")
    if kind == "array":
        return [sample(schema.get("items"), words, root, depth + 1) for _ in range(min(_length(schema.get("minItems")), 16))]
    if kind == "boolean":
        return False
    if kind in ("integer", "number"):
        return _number(schema, kind)
    if kind == "string":
        return _string(schema, words)
    if kind == "null":
        return None
    properties = schema.get("properties") if isinstance(schema.get("properties"), Mapping) else {}
    required = schema.get("required") if isinstance(schema.get("required"), list) else []
    return {key: sample(properties.get(key), words, root, depth + 1) for key in required if isinstance(key, str)}  # type: ignore[union-attr]


def _number(schema: Mapping[str, Any], kind: str) -> float | int:
    least = schema.get("minimum", schema.get("exclusiveMinimum"))
    most = schema.get("maximum", schema.get("exclusiveMaximum"))
    value: float = 1
    if isinstance(least, int | float) and value <= least:
        value = least + (1 if "exclusiveMinimum" in schema else 0)
    elif isinstance(most, int | float) and value >= most:
        value = most - (1 if "exclusiveMaximum" in schema else 0)
    step = schema.get("multipleOf")
    if isinstance(step, int | float) and step:
        value = step * max(1, -(-value // step))
    return int(value) if kind == "integer" or float(value).is_integer() else value


def _string(schema: Mapping[str, Any], words: Sequence[str]) -> str:
    known = _FORMATS.get(str(schema.get("format")))
    if known:
        return known
    least = _length(schema.get("minLength"))
    most = schema.get("maxLength")
    pattern = schema.get("pattern")
    for word in (*words, "text"):
        if len(word) < least or (isinstance(most, int) and len(word) > most):
            continue
        if isinstance(pattern, str) and not _matches(pattern, word):
            continue
        return word
    return "x" * least


def _length(value: Any) -> int:
    """A length that a demo can honour."""
    return min(value, _LONGEST) if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _matches(pattern: str, word: str) -> bool:
    try:
        return bool(jsonschema_rs.is_valid({"type": "string", "pattern": pattern}, word))
    except (ValueError, RecursionError):
        return False

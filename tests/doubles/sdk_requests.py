"""Valid and damaged requests, which hypothesis draws from the types of the `openai` SDK.

`Requests().any(models)` is the strategy for every route that the gateway serves. The JSON schema of each type
becomes a strategy. Optional members are mostly omitted, so that requests stay small.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import quote, urlencode

from hypothesis import strategies as st
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from pydantic import TypeAdapter

_REF = "#/$defs/"
Drawn = st.SearchStrategy[Any]
DEEPEST = 12

TEXT = st.sampled_from(["look", "call_1", "What is there?"]) | st.text(
    st.characters(codec="utf-8"), max_size=12
)
SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | TEXT
ANYTHING: Drawn = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
PLAIN: dict[Any, Drawn] = {
    "string": TEXT,
    "boolean": st.booleans(),
    "null": st.none(),
    "integer": st.sampled_from([0, 1, 2]) | st.integers(),
    "number": st.sampled_from([0.0, 0.5, 1.0]) | st.floats(allow_nan=False, allow_infinity=False),
}
"""A strategy for each plain type. The SDK's types have no limits, so numbers are mostly 0, 1 or 2."""
IDS = TEXT | st.sampled_from(["resp_1", "../x", "%2e%2e", "a/b", "☃", "x" * 300])


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    body: bytes | None = None
    """The body, which is usually JSON."""


ROUTES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("GET", "/models", ()),
    ("GET", "/models/{id}", ()),
    ("GET", "/responses/{id}", ("include", "stream", "starting_after")),
    ("DELETE", "/responses/{id}", ()),
    ("POST", "/responses/{id}/cancel", ()),
    ("GET", "/responses/{id}/input_items", ("limit", "order", "after", "before", "include")),
)
BODIES: dict[str, Any] = {
    "/chat/completions": CompletionCreateParamsStreaming,
    "/responses": ResponseCreateParamsStreaming,
}
"""The SDK's type of each path's body. The variant without streaming has the same fields."""
_SAID = {"role": "user", "content": "Look, please."}
_CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
_CHAT = [
    _SAID,
    {"role": "assistant", "content": None, "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "42"},
]
_ITEMS = [
    _SAID,
    {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "call_1", "output": "42"},
]
HISTORIES: dict[str, list[dict[str, Any]]] = {
    "/chat/completions": [{}, {"messages": [_SAID]}, {"messages": _CHAT}],
    "/responses": [{"input": "Look, please."}, {"input": [_SAID]}, {"input": _ITEMS}, {}],
}
"""Valid histories, which replace the history of a drawn request.

Without them, most requests would be refused before their other fields are read.
"""


@cache
def body_schemas() -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the schema of each path's body, and the definitions that they refer to."""
    adapters = [(path, "validation", TypeAdapter(kind)) for path, kind in BODIES.items()]
    schemas, shared = TypeAdapter.json_schemas(adapters)  # type: ignore[arg-type]
    definitions: dict[str, Any] = shared["$defs"]
    return {
        path: definitions[schema["$ref"].removeprefix(_REF)] for (path, _), schema in schemas.items()
    }, definitions


class Requests:
    def __init__(self) -> None:
        self._bodies, self._definitions = body_schemas()
        self._made: dict[tuple[str, int], Drawn] = {}

    def any(self, models: Sequence[str]) -> st.SearchStrategy[Request]:
        """Draws any request. A request with a body asks for one of `models`."""
        turns = [self.turn(path, models) for path in BODIES]
        return st.one_of(*turns, *turns, *turns, self.cold())

    def turn(self, path: str, models: Sequence[str]) -> st.SearchStrategy[Request]:
        schema = self._bodies[path]
        model = st.sampled_from(list(models))
        history = st.sampled_from(HISTORIES[path])
        named = st.tuples(self.of(schema), history, model, st.booleans()).map(lambda drawn: _asking(*drawn))
        body = (named | named.flatmap(_spoiled) | ANYTHING).map(_written)
        return st.builds(Request, st.just("POST"), st.just("/v1" + path), body)

    def cold(self) -> st.SearchStrategy[Request]:
        return st.sampled_from(ROUTES).flatmap(
            lambda route: st.builds(Request, st.just(route[0]), _filled(route[1], route[2]), st.none())
        )

    # --- a schema as a strategy ---

    def of(self, schema: Any, depth: int = 0) -> Drawn:
        if not isinstance(schema, dict) or depth > DEEPEST:
            return ANYTHING
        if "$ref" in schema:
            return self._referred(schema["$ref"].removeprefix(_REF), depth)
        if "enum" in schema or "const" in schema:
            return st.sampled_from(schema.get("enum") or [schema["const"]])
        if "anyOf" in schema:
            return st.one_of([self.of(one, depth + 1) for one in schema["anyOf"]])
        return self._plain(schema, depth)

    def _referred(self, name: str, depth: int) -> Drawn:
        found = self._made.get((name, depth))
        if found is None:
            found = self._made[name, depth] = st.deferred(lambda: self.of(self._definitions[name], depth + 1))
        return found

    def _plain(self, schema: dict[str, Any], depth: int) -> Drawn:
        kind = schema.get("type")
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return st.lists(self.of(schema.get("items"), depth + 1), max_size=3)
        return PLAIN.get(kind, ANYTHING)

    def _object(self, schema: dict[str, Any], depth: int) -> Drawn:
        members = {name: self.of(one, depth + 1) for name, one in schema.get("properties", {}).items()}
        if not members:
            return st.dictionaries(TEXT, self.of(schema.get("additionalProperties"), depth + 1), max_size=3)
        wanted = {name for name in schema.get("required", ()) if name in members}
        needed = st.fixed_dictionaries({name: members[name] for name in wanted})
        optional = sorted(members.keys() - wanted)
        if not optional:
            return needed
        some = st.lists(st.sampled_from(optional), max_size=3, unique=True)
        added = some.flatmap(lambda names: st.fixed_dictionaries({name: members[name] for name in names}))
        return st.tuples(needed, added).map(lambda two: {**two[0], **two[1]})


def _asking(body: Any, history: dict[str, Any], model: str, streamed: bool) -> Any:
    return {**body, **history, "model": model, "stream": streamed} if isinstance(body, dict) else body


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, one in inner for place in _places(one, (*path, key)))]


def _spoiled(body: Any) -> Drawn:
    """Draws the body with one value replaced or removed."""
    places = [place for place in _places(body) if place and place != ("model",)]
    if not places:
        return st.just(body)
    return st.tuples(st.sampled_from(places), ANYTHING | st.just(_GONE)).map(lambda drawn: _put(body, *drawn))


_GONE = object()


def _put(value: Any, place: tuple[Any, ...], other: Any) -> Any:
    key, *rest = place
    inner = _put(value[key], tuple(rest), other) if rest else other
    if isinstance(value, dict):
        return {name: one for name, one in {**value, key: inner}.items() if one is not _GONE}
    return [one for one in [*value[:key], inner, *value[key + 1 :]] if one is not _GONE]


def _written(body: Any) -> bytes:
    """Returns the body as JSON. Lone surrogates and non-JSON numbers are written as Python does."""
    return json.dumps(body).encode()


def _filled(template: str, query: tuple[str, ...]) -> Drawn:
    asked = (
        st.dictionaries(st.sampled_from(query), TEXT | st.integers().map(str), max_size=3)
        if query
        else st.just({})
    )
    return st.tuples(IDS, asked).map(
        lambda drawn: (
            "/v1"
            + template.replace("{id}", quote(drawn[0], safe="") or "x")
            + (f"?{urlencode(drawn[1])}" if drawn[1] else "")
        )
    )

"""Bounded schemas: each value they allow fits the client's own schema, and none is endless."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema_rs
import pytest

from doubles.schemas import tool_schemas
from toolwire.core.turn import Constraint, ToolSpec
from toolwire.emulate.schemas.bounding import SchemaLimits, arguments_schema, bounded, is_held
from toolwire.emulate.schemas.constrain import call_schema, exact, json_lark, lark, probes
from toolwire.emulate.schemas.keywords import Numbers, rust_pattern

SAMPLES = ("ABC", "2024-10", "#00ff00", "v1.2", "a-b.md", "a@b", "http://ab.cd")
NODE = {
    "type": "object",
    "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
    "required": ["next"],
}
TREE = {
    "type": "object",
    "properties": {"parts": {"type": "array", "items": {"$ref": "#"}}, "name": {"type": "string"}},
}


def instance(schema: Any, root: Any, of: random.Random) -> Any:
    """A random value that a bounded schema allows, often at its limits."""
    if "$ref" in schema:
        return instance(root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root, of)
    if "enum" in schema:
        return of.choice(schema["enum"])
    if "anyOf" in schema:
        return instance(of.choice(schema["anyOf"]), root, of)
    return globals()[f"_{schema['type']}"](schema, root, of)


def _object(schema: Any, root: Any, of: random.Random) -> Any:
    if "properties" not in schema:
        inner = schema["additionalProperties"] or next(iter(schema["patternProperties"].values()))
        return {
            f"k{number}": instance(inner, root, of)
            for number in range(of.randint(schema.get("minProperties", 0), schema["maxProperties"]))
        }
    assert schema["additionalProperties"] is False
    return {
        name: instance(one, root, of)
        for name, one in schema["properties"].items()
        if name in schema["required"] or of.random() < 0.5
    }


def _array(schema: Any, root: Any, of: random.Random) -> Any:
    first = schema.get("prefixItems", [])
    size = of.choice((schema.get("minItems", 0), schema["maxItems"]))
    return [
        instance(first[place] if place < len(first) else schema["items"], root, of) for place in range(size)
    ]


def _string(schema: Any, root: Any, of: random.Random) -> Any:
    if "pattern" in schema:
        return next(text for text in SAMPLES if re.search(schema["pattern"], text))
    return "x" * of.choice((schema.get("minLength", 0), schema.get("maxLength", 36)))


def _integer(schema: Any, root: Any, of: random.Random) -> Any:
    step = schema.get("multipleOf", 1)
    return of.choice((-(-schema["minimum"] // step), schema["maximum"] // step)) * step


def _number(schema: Any, root: Any, of: random.Random) -> Any:
    low, high = (
        schema.get("minimum", schema.get("exclusiveMinimum")),
        schema.get("maximum", schema.get("exclusiveMaximum")),
    )
    assert low is not None and high is not None
    edges = [schema[name] for name in ("minimum", "maximum") if name in schema]
    return of.choice([*edges, (low + high) / 2]) if schema.get("multipleOf", 0) < 0.001 else edges[0]


def _boolean(schema: Any, root: Any, of: random.Random) -> Any:
    return of.random() < 0.5


def _null(schema: Any, root: Any, of: random.Random) -> Any:
    return None


def holds(schema: dict[str, Any], rounds: int = 8) -> None:
    validator = jsonschema_rs.validator_for(schema)
    of = random.Random(1)
    for portable in (True, False):
        narrow = bounded(schema, portable=portable)
        for _ in range(rounds):
            value = instance(narrow, narrow, of)
            assert not [error.message for error in validator.iter_errors(value)], (schema, narrow, value)


# --- soundness ---


def test_what_a_bounded_schema_allows_the_clients_own_allows_too() -> None:
    for schema in tool_schemas(400):
        holds(schema, rounds=4)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"description": "no type at all", "properties": {"a": {"minimum": 3}}, "required": ["a"]},
        {"type": ["string", "null", "integer"], "maxLength": 3},
        {"enum": ["a", 1, None, {"x": [1]}], "type": ["string", "null"]},
        {"const": {"a": 1}},
        {"type": "integer", "minimum": 1.5, "exclusiveMaximum": 4},
        {"type": "integer", "multipleOf": 1.5, "minimum": 1, "maximum": 10},
        {"type": "number", "minimum": 1e-9, "maximum": 1e-8},
        {"type": "number", "minimum": 5, "exclusiveMinimum": 5},
        {"type": "string", "minLength": 3000},
        {"type": "array", "minItems": 500, "items": {"type": "boolean"}},
        {"type": "array", "uniqueItems": True, "items": {"type": "string"}},
        {"type": "array", "uniqueItems": True, "minItems": 2, "items": {"enum": ["a", "b", "c"]}},
        {"type": "array", "uniqueItems": True, "minItems": 2, "items": {"enum": [1, 1.0, 2]}},
        {"type": "array", "uniqueItems": True, "minItems": 2, "items": {"enum": [True, 1, 1.0]}},
        {
            "type": "array",
            "uniqueItems": True,
            "minItems": 2,
            "items": {"enum": [{"a": [1, {}]}, {"a": [1.0, {}]}, {"a": [True, {}]}]},
        },
        {"type": "array", "contains": {"const": 7}, "items": {"type": "integer"}},
        {
            "type": "array",
            "prefixItems": [{"type": "integer"}, {"const": "a"}],
            "items": False,
            "minItems": 2,
        },
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "null"}},
            "minProperties": 1,
            "maxProperties": 1,
        },
        {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 2},
        {"type": "object", "properties": {"a": False, "b": True}},
        {"type": "object", "required": ["a"], "additionalProperties": {"type": "boolean"}},
        {"type": "object", "propertyNames": {"enum": ["x", "y"]}, "additionalProperties": {"type": "null"}},
        {"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}},
        {
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
        {
            "type": "object",
            "properties": {"k": {"enum": ["x", "y"]}},
            "if": {"properties": {"k": {"const": "x"}}},
            "then": {"required": ["k"]},
        },
        {
            "allOf": [
                {"type": "object", "properties": {"a": {"type": "number"}}},
                {"properties": {"a": {"type": "integer", "minimum": 1}}, "required": ["a"]},
            ]
        },
        {"enum": ["a", "b"], "not": {"const": "a"}},
        {"enum": [1, True, "b"], "not": {"const": 1.0}},
        {"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": {"const": 5}}},
        {"$defs": {"node": NODE}, "$ref": "#/$defs/node"},
        {
            "$defs": {"node": NODE},
            "type": "object",
            "properties": {"a": {"allOf": [{"$ref": "#/$defs/node"}], "description": "wrapped"}},
            "required": ["a"],
        },
        TREE,
        {
            "$defs": {
                "a": {"$ref": "#/$defs/b", "type": "object"},
                "b": {"properties": {"a": {"$ref": "#/$defs/a"}}},
            },
            "$ref": "#/$defs/a",
        },
    ],
)
def test_every_keyword_is_kept_or_said_more_narrowly(schema: dict[str, Any]) -> None:
    holds(schema)


@pytest.mark.parametrize(
    ("schema", "left"),
    [
        ({"type": "integer", "enum": [1, 50], "minimum": 10}, [50]),
        ({"enum": [1, 2.5, True, "1"], "maximum": 2}, [1, True, "1"]),
        ({"enum": [0, 1, 2], "exclusiveMinimum": 0, "exclusiveMaximum": 2}, [1]),
        ({"enum": [0.3, 0.35, 10**400, 1e400, "x"], "multipleOf": 0.1}, [0.3, 10**400, "x"]),
        ({"enum": ["", "ab", "abcd", 5], "minLength": 1, "maxLength": 3}, ["ab", 5]),
        (
            {"enum": [[], [1], [1, 1.0], [1, True]], "minItems": 1, "maxItems": 2, "uniqueItems": True},
            [[1], [1, True]],
        ),
        ({"enum": [{}, {"a": 1}, {"a": 1, "b": 2}], "required": ["a"], "maxProperties": 1}, [{"a": 1}]),
        ({"allOf": [{"enum": [1, 50]}, {"anyOf": [{"minimum": 10}]}]}, [50]),
        ({"$ref": "#/$defs/low", "minimum": 10, "$defs": {"low": {"enum": [1, 50]}}}, [50]),
        ({"anyOf": [{"const": 1}, {"enum": [2, 50]}], "minimum": 10}, [50]),
        ({"const": 1, "enum": [1.0, 2]}, [1]),
    ],
)
def test_values_that_are_listed_are_those_that_the_bounds_beside_them_allow(
    schema: dict[str, Any], left: list[Any]
) -> None:
    for portable in (True, False):
        values = bounded(schema, portable=portable)["enum"]
        assert values == left and list(map(type, values)) == list(map(type, left))


def test_a_list_of_which_the_bounds_leave_nothing_has_no_instance() -> None:
    none = {"type": "object", "properties": {"v": {"enum": [1, 2], "minimum": 10}}}
    assert arguments_schema(none)["properties"] == {} and not is_held({**none, "required": ["v"]})


@pytest.mark.parametrize(
    ("value", "held"),
    [
        ({"enum": ["a", "b"], "pattern": "^b$"}, False),
        ({"enum": [1, 2], "pattern": "^b$"}, True),
        ({"const": [1], "items": {"type": "string"}}, False),
        ({"const": {"a": 1}, "properties": {"a": {"type": "string"}}}, False),
        ({"const": {"a": 1}}, True),
        ({"type": "array", "uniqueItems": True, "items": {"type": "string"}}, True),
        ({"type": "array", "uniqueItems": True, "minItems": 2, "items": {"type": "string"}}, False),
        ({"type": "array", "uniqueItems": True, "minItems": 2, "items": {"enum": [1, 1.0]}}, False),
        ({"type": "array", "uniqueItems": True, "minItems": 2, "items": {"enum": [1, True]}}, True),
        (
            {"allOf": [{"type": "array", "uniqueItems": True, "items": {"type": "string"}}, {"minItems": 2}]},
            False,
        ),
    ],
)
def test_what_a_bounded_schema_does_not_keep_is_not_said_to_be_held(
    value: dict[str, Any], held: bool
) -> None:
    assert is_held({"type": "object", "properties": {"v": value}, "required": ["v"]}) == held


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "foo"},
        {
            "type": 3,
            "properties": [1],
            "required": "a",
            "items": 5,
            "enum": "x",
            "minimum": "1",
            "anyOf": [],
            "allOf": 1,
        },
        {"$ref": "#/nowhere"},
        {"$ref": "#/allOf/²", "allOf": [{}]},
        {"$ref": "#/allOf/" + "9" * 5000, "allOf": [{}]},
        {"$ref": "https://example.com/schema.json"},
        {"$ref": 5},
        {"type": "integer", "minimum": 10, "maximum": 5},
        {"type": "string", "minLength": 5, "maxLength": 2},
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        {"type": "object", "required": ["a"], "additionalProperties": False},
        {"type": "integer", "minimum": 8, "maximum": 13, "multipleOf": 7},
        {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"allOf": [{"$ref": "#"}]},
        {"multipleOf": 0},
        {"type": "string", "pattern": "(?=a)["},
    ],
)
def test_a_schema_that_means_nothing_is_taken_and_still_ends(schema: dict[str, Any]) -> None:
    narrow = arguments_schema(schema)
    value = instance(narrow, narrow, random.Random(1))
    assert isinstance(value, dict)
    assert len(json.dumps(value)) < 100_000


def test_an_endless_schema_ends_and_a_huge_one_does_not_explode() -> None:
    wide = {
        "$defs": {
            f"d{n}": {"type": "object", "properties": {f"p{m}": {"$ref": f"#/$defs/d{m}"} for m in range(40)}}
            for n in range(40)
        }
    }
    narrow = bounded({**wide, "$ref": "#/$defs/d0"})
    assert len(json.dumps(narrow)) < 2_000_000
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(200):
        deep = {"type": "object", "properties": {"a": deep}}
    assert bounded(deep)


def test_open_ends_are_closed_by_the_limits() -> None:
    limits = SchemaLimits(string=7, items=2, keys=3)
    assert bounded({"type": "string"}, limits) == {"type": "string", "maxLength": 7}
    assert bounded({"type": "string", "maxLength": 3}, limits)["maxLength"] == 3
    assert bounded({"type": "string", "maxLength": 3000}, limits)["maxLength"] == 7
    assert bounded({"type": "array", "items": {"const": 1}}, limits)["maxItems"] == 2
    assert bounded({"type": "object"}, limits)["maxProperties"] == 3
    assert bounded({"type": "object", "properties": {}})["properties"] == {}
    assert bounded({"type": "integer"})["maximum"] < 10**15


# --- patterns ---


def test_patterns_mean_the_same_to_the_grammar() -> None:
    assert rust_pattern(r"^\d{3}-[\w.]+\.$") == r"^\d{3}-[\w.]+\.$"
    assert rust_pattern(r"^[[]&&.$") == r"^[\[]&&[^\n\r\u2028\u2029]$"
    for given_up in (r"(?=a)b", r"(?<!a)b", r"\bword\b", r"(a)\1", "[", "(?i)a", "a" * 1000):
        assert rust_pattern(given_up) is None


# --- calls ---

WEATHER = ToolSpec(
    "weather",
    "",
    {
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/city"}},
        "required": ["city"],
        "$defs": {"city": {"enum": ["Oslo"]}},
    },
)
CLOCK = ToolSpec(
    "clock",
    "",
    {
        "type": "object",
        "properties": {"at": {"$ref": "#/$defs/city"}},
        "required": ["at"],
        "$defs": {"city": {"type": "null"}},
    },
)


def test_a_call_is_one_object_and_each_tool_keeps_its_own_definitions() -> None:
    schema = call_schema(Constraint((WEATHER, CLOCK), "", "", True))
    judge = jsonschema_rs.validator_for(schema)
    assert judge.is_valid({"name": "weather", "arguments": {"city": "Oslo"}})
    assert judge.is_valid({"name": "clock", "arguments": {"at": None}})
    assert not judge.is_valid({"name": "clock", "arguments": {"at": "Oslo"}})
    assert not judge.is_valid({"name": "other", "arguments": {}})
    assert not judge.is_valid({"name": "clock", "arguments": {"at": None}, "more": 1})


def test_a_property_called_like_a_keyword_is_still_a_property() -> None:
    tool = ToolSpec(
        "t",
        "",
        {
            "type": "object",
            "properties": {
                "$ref": {"type": "string"},
                "enum": {"$ref": "#/$defs/x"},
                "$defs": {"type": "null"},
            },
            "$defs": {"x": {"const": 1}},
        },
    )
    judge = jsonschema_rs.validator_for(call_schema(Constraint((tool,), "", "", True)))
    assert judge.is_valid({"name": "t", "arguments": {"$ref": "a", "enum": 1, "$defs": None}})
    assert not judge.is_valid({"name": "t", "arguments": {"enum": 2}})


def rules(grammar: str) -> dict[str, str]:
    assert grammar.startswith("%llguidance {}\n")
    return dict(line.split(": ", 1) for line in grammar.splitlines()[1:])


def test_a_grammar_continues_where_the_answer_has_begun() -> None:
    both = Constraint((WEATHER, CLOCK), "<<", ">>", True)
    assert (
        rules(lark(both))["first"]
        == r'"<<{\"name\": \"weather\", \"arguments\": " rest0 | "<<{\"name\": \"clock\", \"arguments\": '
        r'" rest1'
    )
    begun = Constraint((WEATHER, CLOCK), "<<", ">>", True, 1, '<<{"name": "')
    assert (
        rules(lark(begun))["first"]
        == r'"weather\", \"arguments\": " rest0 | "clock\", \"arguments\": " rest1'
    )
    single = Constraint((WEATHER,), "<<", ">>", True, 1, "<<" + Constraint.head(WEATHER))
    assert rules(lark(single))["first"] == "rest0"
    assert "body" not in rules(lark(single))


def test_a_grammar_limits_the_calls_and_allows_text_only_if_no_call_is_required() -> None:
    assert rules(lark(Constraint((WEATHER,), "<<", ">>", True, 3)))["start"] == r'first ("\n" "<<" body){0,2}'
    assert rules(lark(Constraint((WEATHER,), "<<", ">>", False, 1)))["start"] == "FREE | lead body"
    assert (
        rules(lark(Constraint((WEATHER,), "<<", ">>", False), answer={"type": "null"}))["start"]
        == 'answer | "<<" body'
    )
    assert rules(lark(Constraint((WEATHER,), "", "", False)))["start"] == "first"


def test_free_text_and_text_before_a_call_contain_nothing_that_is_barred() -> None:
    barring = Constraint((WEATHER,), "<<", ">>", False, barred=("<a", '<"b'))
    grammar = rules(lark(barring))
    assert grammar["FREE"] == r'/(?s:.*)/ & ~(/(?s:.*)/ ("<<" | "<a" | "<\"b") /(?s:.*)/)'
    assert grammar['lead[suffix="<<"]'] == r'/(?s:.*)/ & ~(/(?s:.*)/ ("<a" | "<\"b") /(?s:.*)/)'
    assert "~" not in rules(lark(Constraint((WEATHER,), "<<", ">>", False)))['lead[suffix="<<"]']


def test_text_comes_first_only_after_results_for_a_model_that_copies() -> None:
    def begins(answered: bool, copies: bool) -> set[bool]:
        grammar = rules(lark(Constraint((WEATHER,), "<<", ">>", False, answered=answered), copies=copies))
        return {grammar[rule].startswith(r"/(?s:[^<\s].*)/") for rule in ("FREE", 'lead[suffix="<<"]')}

    assert begins(True, True) == {True}
    assert begins(True, False) == begins(False, True) == begins(False, False) == {False}


def test_the_schemas_of_a_grammar_can_be_tried_apart() -> None:
    whole, single = probes(lark(Constraint((WEATHER, CLOCK), "<<", ">>", False)))
    assert rules(whole)["start"] == '"~" (arguments0 | arguments1)'
    assert list(single) == ["arguments0", "arguments1"]
    assert list(probes(json_lark({"type": "null"}))[1]) == ["answer"]


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": [1e400], "type": "integer"},
        {"type": "string", "maxLength": 10**400},
        {"minimum": 10**400, "type": "integer"},
    ],
)
def test_numbers_beyond_all_measure_are_taken(schema: Any) -> None:
    assert arguments_schema({"type": "object", "properties": {"a": schema}})["type"] == "object"


def _nested(depth: int) -> Any:
    return (
        {"type": "object", "properties": {"a": _nested(depth - 1)}, "required": ["a"]}
        if depth
        else {"type": "object"}
    )


def test_a_schema_that_is_too_large_or_has_no_instance_is_not_said_to_be_held() -> None:
    wide = {
        f"k{number}": {"type": "object", "properties": {"a": {"type": "string"}}} for number in range(2500)
    }
    assert is_held({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
    assert not is_held({"type": "object", "properties": wide, "required": list(wide)})
    assert not is_held(_nested(60))
    assert not is_held(
        {
            "type": "object",
            "properties": {"a": {"type": "integer", "minimum": 5, "maximum": 3}},
            "required": ["a"],
        }
    )


@pytest.mark.parametrize(
    "odd",
    [
        {"properties": [1]},
        {"anyOf": 5},
        {"allOf": {"a": 1}},
        {"$defs": [1]},
        {"prefixItems": 3},
        {"type": 3},
        {"type": []},
    ],
)
def test_a_keyword_of_the_wrong_type_is_not_kept(odd: Any) -> None:
    assert not exact(odd, own=True) and not exact({"properties": {"a": odd}})


@pytest.mark.parametrize("word", ["objekt", ["string", "objekt"]])
def test_a_type_that_no_schema_knows_is_not_kept(word: Any) -> None:
    assert not exact({"type": word}, own=True) and not exact({"properties": {"a": {"type": word}}})
    assert exact({"type": ["string", "null"]}) and exact({"type": "object"})


@pytest.mark.parametrize(
    ("schema", "listed"),
    [
        ({"type": "integer", "minimum": -273, "maximum": -264, "multipleOf": 5}, [-265, -270]),
        ({"type": "number", "minimum": -2, "exclusiveMaximum": -0.5, "multipleOf": 0.5}, [-1, -1.5, -2]),
        ({"type": "integer", "minimum": -10, "exclusiveMaximum": 0, "multipleOf": 5}, [-5, -10]),
    ],
)
def test_negative_multiples_are_enumerated_because_the_engine_supports_none(
    schema: dict[str, Any], listed: list[float]
) -> None:
    assert bounded(schema, portable=False) == {"enum": listed}


def test_a_long_range_below_zero_is_named_in_part_and_every_number_fits() -> None:
    schema = {"type": "number", "minimum": -1000, "maximum": -1.25}
    numbers = bounded(schema, portable=False)["enum"]
    assert 2 <= len(numbers) <= 64 and all(-1000 <= number <= -1.25 for number in numbers)


def test_a_multiple_that_no_reader_keeps_is_not_named() -> None:
    whole = bounded({"type": "number", "maximum": -1e308, "multipleOf": 3.5}, portable=False)["enum"]
    assert whole and all(one <= -1e308 and one * 2 % 7 == 0 for one in whole)
    assert Numbers({"maximum": -(10**400) - 1, "minimum": -(10**400) - 1, "multipleOf": 0.5}).as_number(
        portable=False
    ) == {"enum": [-(10**400) - 1]}
    none = {
        "minimum": -(10**400),
        "exclusiveMaximum": -(10**400) + 1,
        "exclusiveMinimum": -(10**400),
        "multipleOf": 0.5,
    }
    assert Numbers(none).as_number(portable=False) is None


def test_a_range_that_holds_zero_keeps_its_multiples() -> None:
    schema = {"type": "integer", "minimum": -10, "maximum": 10, "multipleOf": 5}
    assert bounded(schema, portable=False) == {
        "type": "integer",
        "minimum": -10,
        "maximum": 10,
        "multipleOf": 5,
    }

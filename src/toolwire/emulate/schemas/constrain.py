"""Enforces the client's schemas: constrains decoders to valid tool calls, and checks calls.

`Turn.constraint` names the tools and the markers of a call. `call_schema` turns it into one JSON schema,
`lark` into one grammar in llguidance's Lark. `bounding.py` limits the size of the arguments, so that a small
model cannot write without end. In a grammar, text is free up to a call's opening marker and constrained from
there on, and the answer ends after the last call. `SchemaCheck` checks what a decoder does not enforce.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import jsonschema_rs

from toolwire.core.errors import ToolwireError
from toolwire.core.turn import Constraint, ToolSpec
from toolwire.emulate.schemas.bounding import DEFAULT, SchemaLimits, arguments_schema, bounded, closed_object
from toolwire.emulate.schemas.keywords import TYPES, Schema

HEADER = "%llguidance {}\n"
_SEPARATORS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
GUIDANCE = {"x-guidance": {**_SEPARATORS, "lenient": True}}
"""Options of llguidance.

White space is fixed, so that a model cannot write it without end. Unknown keywords are no error.
"""
MOST_CALLS = 64
ANY = "/(?s:.*)/"
WORDS = r"/(?s:[^<\s].*)/"
"""A pattern of text that begins with neither white space nor `<`. Markers begin with `<`."""
ANY_OBJECT: Schema = {"type": "object"}
ANSWER, ARGUMENTS = "answer", "arguments"
"""Names of the grammar rules that contain a schema.

`answer`: the schema of a JSON answer. `arguments` and a number: the schema of a tool's arguments.
"""


# --- schemas ---


def call_schema(constraint: Constraint, limits: SchemaLimits = DEFAULT) -> Schema:
    """Returns one JSON schema for a call of any of the tools: `{"name": …, "arguments": …}`."""
    definitions: Schema = {}
    calls: list[Schema] = []
    for index, tool in enumerate(constraint.tools):
        arguments = _renamed(arguments_schema(tool.parameters, limits), f"t{index}_")
        definitions |= arguments.pop("$defs", {})
        calls.append(closed_object({"name": {"type": "string", "enum": [tool.name]}, "arguments": arguments}))
    whole: Schema = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return {**whole, "$defs": definitions} if definitions else whole


def _renamed(schema: Any, prefix: str) -> Any:
    """Returns a bounded schema with a prefix before the name of each definition."""
    if isinstance(schema, list):
        return [_renamed(one, prefix) for one in schema]
    if not isinstance(schema, dict):
        return schema
    out: Schema = {}
    for key, one in schema.items():
        if key == "$ref":
            out[key] = one.replace("#/$defs/", f"#/$defs/{prefix}")
        elif key in ("properties", "patternProperties", "$defs"):
            before = prefix if key == "$defs" else ""
            out[key] = {before + name: _renamed(inner, prefix) for name, inner in one.items()}
        else:
            out[key] = one if key == "enum" else _renamed(one, prefix)
    return out


# --- grammars ---


def lark(
    constraint: Constraint,
    limits: SchemaLimits = DEFAULT,
    *,
    loose: Collection[str] = (),
    answer: Mapping[str, Any] | None = None,
    copies: bool = False,
) -> str:
    """Returns the grammar of an answer.

    `loose`: tools whose arguments may be any object. `answer`: the schema of an answer without a call; None
    if such an answer is text. `copies`: the model is so small that it would repeat the last call instead of
    answering. So a text after tool results must begin with words.
    """
    opening, quoted = constraint.opening, json.dumps(constraint.opening)
    heads = [constraint.head(tool) for tool in constraint.tools]
    whole = [(at, opening + head) for at, head in enumerate(heads)]
    begun = [(at, text) for at, text in whole if text.startswith(constraint.begun)]
    more = min(constraint.calls, MOST_CALLS) - 1 if opening else 0
    following = f' ("\\n" {quoted} body){{0,{more}}}' if more > 0 else ""
    if begun and (constraint.required or constraint.begun or not opening):
        first = (_then(text[len(constraint.begun) :], f"rest{at}") for at, text in begun)
        rules = [f"start: first{following}", f"first: {' | '.join(first)}"]
    elif answer is not None:
        schema = bounded(answer, limits, portable=False)
        rules = [f"start: {ANSWER} | {quoted} body{following}", _json(ANSWER, schema)]
    else:
        text = WORDS if copies and constraint.answered else ANY
        barred = constraint.barred
        rules = [
            f"start: FREE | lead body{following}",
            f"FREE: {text} & {_without(opening, *barred)}",
            f"lead[suffix={quoted}]: {text}{' & ' + _without(*barred) if barred else ''}",
        ]
    if " body" in rules[0]:
        rules.append("body: " + " | ".join(_then(head, f"rest{at}") for at, head in enumerate(heads)))
    for at, tool in enumerate(constraint.tools):
        parameters = ANY_OBJECT if tool.name in loose else tool.parameters
        schema = arguments_schema(parameters, limits, portable=False)
        rules.append(f"rest{at}: {ARGUMENTS}{at} {json.dumps('}' + constraint.closing)}")
        rules.append(_json(f"{ARGUMENTS}{at}", schema))
    return HEADER + "\n".join(rules) + "\n"


def json_lark(schema: Mapping[str, Any], limits: SchemaLimits = DEFAULT) -> str:
    """Returns the grammar of an answer that is one JSON value."""
    return HEADER + f"start: {ANSWER}\n" + _json(ANSWER, bounded(schema, limits, portable=False)) + "\n"


def probes(grammar: str) -> tuple[str, dict[str, str]]:
    """Returns grammars that test whether llguidance accepts the schemas in `grammar`.

    The first grammar tests all schemas at once; each of the other grammars tests one rule. In all of them,
    the answer begins with a tilde (see `LocalModel.accepts`).
    """
    lines = {line.partition(":")[0]: line for line in grammar.splitlines() if ": %json " in line}
    single = {rule: f'{HEADER}start: "~" {rule}\n{line}\n' for rule, line in lines.items()}
    return HEADER + "\n".join([f'start: "~" ({" | ".join(lines)})', *lines.values()]) + "\n", single


def _then(text: str, rule: str) -> str:
    """Returns a literal followed by a rule.

    Without text, returns only the rule, because Lark has no empty literal.
    """
    return f"{json.dumps(text)} {rule}" if text else rule


def _without(*texts: str) -> str:
    """Returns an expression for any text that contains none of the given texts."""
    return f"~({ANY} ({' | '.join(map(json.dumps, texts))}) {ANY})"


def _json(rule: str, schema: Schema) -> str:
    return f"{rule}: %json {json.dumps({**schema, **GUIDANCE})}"


# --- the check of complete calls ---

_MOST_ISSUES = 3


def _refuse(uri: str) -> Any:
    # A reference to another document would allow a client to make the gateway send requests.
    raise ValueError("a schema may only refer to its own definitions")


def compile_schema(schema: Mapping[str, Any], param: str, *, linear: bool = False) -> Any:
    """Returns the validator of a schema. An invalid schema raises a `ToolwireError` that names `param`.

    `linear`: refuse regular expressions that need backtracking, because they may run without end.
    """
    engine = jsonschema_rs.RegexOptions() if linear else None
    try:
        return jsonschema_rs.validator_for(dict(schema), retriever=_refuse, pattern_options=engine)
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
    """Checks the complete arguments of strict tools. The scanner uses it as its `Check`."""

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
# If a schema has a keyword that is not in these sets, a decoder enforces the schema only in part. Calls with
# such a schema are checked when they are complete.

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
"""Keywords that a decoder enforces if it runs Toolwire's own grammar."""
DEEPEST = 64


def exact(schema: Any, own: bool = False, depth: int = 0) -> bool:
    """Whether a decoder enforces every keyword of a schema.

    `own`: the decoder runs Toolwire's own grammar.
    """
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
    """Whether the value is one type of JSON Schema, or a list of several."""
    return all(one in TYPES for one in given) and given != [] if isinstance(given, list) else given in TYPES

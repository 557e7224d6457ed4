"""Writes the schema or grammar that constrains a decoder to valid tool calls.

`Turn.constraint` names the tools and the markers of a call. `call_schema` makes one JSON schema of it, `lark`
one grammar in llguidance's Lark. `bounding.py` bounds the arguments, so that a small model cannot write
without end. In a grammar, text is free up to a call's opening marker and constrained from there on, and the
answer ends after the last call.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from toolwire.core.turn import Constraint
from toolwire.emulate.schemas.bounding import DEFAULT, SchemaLimits, arguments_schema, bounded, closed_object
from toolwire.emulate.schemas.keywords import Schema

HEADER = "%llguidance {}\n"
_SEPARATORS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
GUIDANCE = {"x-guidance": {**_SEPARATORS, "lenient": True}}
"""Options of llguidance: white space is fixed, so that it ends; unknown keywords are no error."""
MOST_CALLS = 64
ANY = "/(?s:.*)/"
WORDS = r"/(?s:[^<\s].*)/"
"""Text that does not begin with a marker."""
ANY_OBJECT: Schema = {"type": "object"}
ANSWER, ARGUMENTS = "answer", "arguments"
"""The rules of a grammar that contain a schema: of a JSON answer, and of each tool (with its number)."""


# --- schemas ---


def call_schema(constraint: Constraint, limits: SchemaLimits = DEFAULT) -> Schema:
    """One JSON schema whose instances are `{"name": …, "arguments": …}` for one of the tools."""
    definitions: Schema = {}
    calls: list[Schema] = []
    for index, tool in enumerate(constraint.tools):
        arguments = _renamed(arguments_schema(tool.parameters, limits), f"t{index}_")
        definitions |= arguments.pop("$defs", {})
        calls.append(closed_object({"name": {"type": "string", "enum": [tool.name]}, "arguments": arguments}))
    whole: Schema = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return {**whole, "$defs": definitions} if definitions else whole


def _renamed(schema: Any, prefix: str) -> Any:
    """A bounded schema whose definitions' names have a prefix."""
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
    """The grammar of an answer.

    `loose`: tools whose arguments may be any object. `answer`: the schema of an answer without a call; None:
    text. `copies`: the model is so small that it copies its prompt. Its text then contains none of the barred
    texts, and after tool results it begins with words, because it would otherwise copy the last call.
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
        barred = constraint.barred if copies else ()
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
    """The grammar of an answer that is one JSON value."""
    return HEADER + f"start: {ANSWER}\n" + _json(ANSWER, bounded(schema, limits, portable=False)) + "\n"


def probes(grammar: str) -> tuple[str, dict[str, str]]:
    """Grammars that test whether llguidance accepts a grammar's schemas: all at once, and each rule alone.

    The answer under each of them begins with a tilde.
    """
    lines = {line.partition(":")[0]: line for line in grammar.splitlines() if ": %json " in line}
    single = {rule: f'{HEADER}start: "~" {rule}\n{line}\n' for rule, line in lines.items()}
    return HEADER + "\n".join([f'start: "~" ({" | ".join(lines)})', *lines.values()]) + "\n", single


def _then(text: str, rule: str) -> str:
    """A literal followed by a rule. Lark has no empty literal."""
    return f"{json.dumps(text)} {rule}" if text else rule


def _without(*texts: str) -> str:
    """Any text that contains none of these."""
    return f"~({ANY} ({' | '.join(map(json.dumps, texts))}) {ANY})"


def _json(rule: str, schema: Schema) -> str:
    return f"{rule}: %json {json.dumps({**schema, **GUIDANCE})}"

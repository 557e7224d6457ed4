"""Writes calls in each dialect, for the history that a text-only model reads.

`parse(render(call)) == call` holds for all JSON arguments that the tool's schema allows, even if strings in
them contain markers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from toolwire.emulate.arguments import load_object
from toolwire.emulate.grammars.tag_values import wants_string

Schema = Mapping[str, Any]
Render = Callable[[str, str, Schema], str]
"""A function that writes a call as text of its dialect.

It takes the tool's name, the arguments as JSON text, and the tool's schema.
"""

_dumps = partial(json.dumps, ensure_ascii=False)

# --- JSON ---
#
# `{call}` is an object with name and arguments. A marker inside a JSON string does not end the arguments.

_JSON = {
    "hermes": "<tool_call>\n{call}\n</tool_call>",
    "bare": "{call}",
    "fenced": "```json\n{call}\n```",
    "llama_json": '<|python_tag|>{{"name": {quoted}, "parameters": {value}}}',
    "mistral": "[TOOL_CALLS] [{call}]",
    "cohere": (
        '<|START_ACTION|>[\n    {{"tool_call_id": "0", "tool_name": {quoted}, "parameters": {value}}}\n]'
        "<|END_ACTION|>"
    ),
    "granite": "<|tool_call|>[{call}]",
    "mistral_compact": "[TOOL_CALLS]{name}[ARGS]{arguments}",
    "deepseek_v3": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "deepseek_v31": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "kimi": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>"
        "{arguments}<|tool_call_end|><|tool_calls_section_end|>"
    ),
    "harmony": "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>",
}


def envelope(name: str, arguments: str) -> str:
    """Returns the call as `{"name": …, "arguments": …}`.

    Arguments that are valid JSON are copied verbatim; any other arguments become a JSON string.
    """
    return f'{{"name": {_dumps(name)}, "arguments": {_json(arguments)}}}'


def _json(arguments: str) -> str:
    try:
        json.loads(arguments)
    except (ValueError, RecursionError):
        return _dumps(arguments)
    return arguments


def _write_json(form: str, name: str, arguments: str, schema: Schema) -> str:
    if "{name}" in form:
        return form.format(name=name, arguments=arguments or "{}")
    return form.format(call=envelope(name, arguments), quoted=_dumps(name), value=_json(arguments))


# --- literals ---

_KEYWORD = re.compile(r"[A-Za-z_]\w{0,99}\Z", re.ASCII)
_WORDS = {True: "True", False: "False", None: "None"}
_QUOTE = '<|"|>'


def _python(value: Any) -> str:
    """Returns a value as a Python literal. JSON's strings and numbers are valid in Python."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_dumps(key)}: {_python(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_python, value)) + "]"
    return _WORDS[value] if value is None or isinstance(value, bool) else _dumps(value)


def _pythonic(name: str, arguments: str, schema: Schema) -> str:
    values = load_object(arguments or "{}")
    if values is None:
        return f"[{name}(**{arguments})]"
    if not all(map(_KEYWORD.match, values)):
        return f"[{name}(**{_python(values)})]"
    return f"[{name}(" + ", ".join(f"{key}={_python(value)}" for key, value in values.items()) + ")]"


def _lfm2(name: str, arguments: str, schema: Schema) -> str:
    return f"<|tool_call_start|>{_pythonic(name, arguments, schema)}<|tool_call_end|>"


def _gemma_value(value: Any) -> str:
    if isinstance(value, dict):
        keys = [key if _KEYWORD.match(key) else _dumps(key) for key in value]
        return "{" + ",".join(map("{}:{}".format, keys, map(_gemma_value, value.values()))) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_gemma_value, value)) + "]"
    return _QUOTE + value + _QUOTE if isinstance(value, str) and _QUOTE not in value else _dumps(value)


def _gemma(name: str, arguments: str, schema: Schema) -> str:
    values = load_object(arguments or "{}")
    return f"<|tool_call>call:{name}{arguments if values is None else _gemma_value(values)}<tool_call|>"


# --- tags ---

_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&apos;"})
_PLAIN_KEY = re.compile(r"[^<>\n\"'\s][^<>\n\"']*(?<!\s)\Z|[^<>\n\"'\s]\Z")
_XML_NAME = re.compile(r"[A-Za-z_][\w.-]*\Z", re.ASCII)

# For each dialect: the opening tags of a call, one parameter, and the closing tags. `{typed}` is an attribute
# that says whether the value is text, then the value.
_TAGGED = {
    "qwen_xml": (
        "<tool_call>\n<function={name}>\n",
        "<parameter={key}>\n{value}\n</parameter>\n",
        "</function>\n</tool_call>",
    ),
    "anthropic": (
        '<function_calls>\n<invoke name="{name}">\n',
        '<parameter name="{key}">{value}</parameter>\n',
        "</invoke>\n</function_calls>",
    ),
    "glm": (
        "<tool_call>{name}\n",
        "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n",
        "</tool_call>",
    ),
    "minimax": (
        '<minimax:tool_call>\n<invoke name="{name}">\n',
        '<parameter name="{key}">{value}</parameter>\n',
        "</invoke>\n</minimax:tool_call>",
    ),
    "dsml": (
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="{name}">\n',
        '<｜DSML｜parameter name="{key}" {typed}</｜DSML｜parameter>\n',
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    ),
}


def _no_angle(value: Any) -> str:
    """Returns a value as JSON without `<`, so that it contains no marker."""
    return _dumps(value).replace("<", "\\u003c")


def _is_plain(text: str, is_string: bool) -> bool:
    """Whether a text between tags cannot be mistaken for JSON.

    `is_string`: the schema allows only strings, so the text is JSON only if it begins with a quotation mark.
    """
    words = text.strip()
    like_json = words[:1] in tuple("-0123456789[{'tfnTFN") or text != words or not text
    return not words.startswith('"') and (is_string or not like_json)


def _value(value: Any, is_string: bool) -> str:
    """Returns what to write between tags: the text of an unambiguous string, otherwise JSON."""
    plain = isinstance(value, str) and "<" not in value and _is_plain(value, is_string)
    return value if plain else _no_angle(value)


def _typed(value: Any) -> str:
    if isinstance(value, str) and "<" not in value:
        return f'string="true">{value}'
    return f'string="false">{_no_angle(value)}'


def _members(arguments: str, fits: Callable[[str, Any], object]) -> dict[str, Any] | None:
    """Returns the arguments as a dict if `fits(key, value)` is true for every member, otherwise None."""
    values = load_object(arguments or "{}")
    return values if values is not None and all(fits(key, value) for key, value in values.items()) else None


def _write_tags(tags: tuple[str, str, str], name: str, arguments: str, schema: Schema) -> str:
    opening, parameter, closing = tags
    values = _members(arguments, lambda key, _: _PLAIN_KEY.match(key))
    if values is None:
        body = arguments.replace("<", "\\u003c") + "\n"
    else:
        body = "".join(
            parameter.format(key=key, value=_value(value, wants_string(schema, key)), typed=_typed(value))
            for key, value in values.items()
        )
    return opening.format(name=name) + body + closing


def _elements(arguments: str, schema: Schema) -> dict[str, str] | None:
    """Returns each argument as an XML element, by key; None if the arguments must be written as JSON."""
    values = _members(arguments, lambda key, _: _XML_NAME.match(key))
    return values and {key: _element(key, value, wants_string(schema, key)) for key, value in values.items()}


def _element(key: str, value: Any, is_string: bool) -> str:
    if not isinstance(value, str) or "<" not in value:
        text = _value(value, is_string)
    else:
        text = value if _is_plain(value, is_string) else _dumps(value)
    return f"<{key}>{text.translate(_ESCAPES)}</{key}>"


def _use_tool(name: str, arguments: str, schema: Schema) -> str:
    elements = _elements(arguments, schema)
    if elements is None or "use_tool" in elements:
        return f'<use_tool name="{name}">{arguments}</use_tool>'
    return "\n  ".join(["<use_tool>", f"<name>{name}</name>", *elements.values()]) + "\n</use_tool>"


def _tag_is_tool(name: str, arguments: str, schema: Schema) -> str:
    elements = _elements(arguments, schema)
    if elements is None or name in elements:  # a child with the tool's name could be read as another call
        body = arguments.replace("<", "\\u003c")
        return f"<{name}>\n{body}\n</{name}>"
    return "\n".join([f"<{name}>", *elements.values(), f"</{name}>"])


_XTML_TYPES = {bool: "boolean", str: "string", int: "number", float: "number", list: "array", dict: "object"}


def _kimi_k3(name: str, arguments: str, schema: Schema) -> str:
    values = _members(arguments, _xtml_fits)
    if values is None:
        body = arguments.replace("<", "\\u003c")
        body = f'<|open|>json type="object"<|sep|>{body}<|close|>json<|sep|>'
    else:
        body = "".join(_xtml_argument(key, value) for key, value in values.items())
    return (
        f'<|open|>tools<|sep|><|open|>call tool="{name}" index="1"<|sep|>{body}'
        "<|close|>call<|sep|><|close|>tools<|sep|>"
    )


def _xtml_fits(key: str, value: Any) -> bool:
    is_short = len(key) < 100 and "\n" not in key and "<" not in key
    return is_short and not (isinstance(value, str) and "<|" in value)


def _xtml_argument(key: str, value: Any) -> str:
    text = value if isinstance(value, str) else _no_angle(value)
    quoted = key.replace("&", "&amp;").replace('"', "&quot;")
    kind = _XTML_TYPES.get(type(value), "null")
    return f'<|open|>argument key="{quoted}" type="{kind}"<|sep|>{text}<|close|>argument<|sep|>'


RENDER: dict[str, Render] = {
    **{dialect: partial(_write_json, form) for dialect, form in _JSON.items()},
    "use_tool": _use_tool,
    **{dialect: partial(_write_tags, tags) for dialect, tags in _TAGGED.items()},
    "kimi_k3": _kimi_k3,
    "tag_is_tool": _tag_is_tool,
    "pythonic": _pythonic,
    "lfm2": _lfm2,
    "gemma": _gemma,
}


def render(dialect: str, name: str, arguments: str, *, schema: Schema | None = None, nonce: str = "") -> str:
    """Returns one call as text in this dialect.

    `arguments`: JSON text. `schema`: the tool's parameters. `nonce`: the request's token, for the sentinel
    dialect.
    """
    if dialect == "sentinel":
        return f"<tool_call:{nonce}>\n{envelope(name, arguments)}\n</tool_call:{nonce}>"
    return RENDER[dialect](name, arguments, schema or {})

"""Writes calls in each dialect, for the history that a text-only model reads.

`parse(render(call)) == call` holds for all JSON arguments that the tool's schema allows, also with markers
inside strings. Standard library only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from toolwire.emulate.arguments import load_object
from toolwire.emulate.grammars.tag_values import wants_string

# --- the name in a header ------------------------------------------------------------------------
#
# The arguments are plain JSON, so no marker inside a string can end them.

_HEADED = {
    "mistral_compact": "[TOOL_CALLS]{name}[ARGS]{arguments}",
    "deepseek_v3": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "deepseek_v31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "kimi": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{arguments}"
        "<|tool_call_end|><|tool_calls_section_end|>"
    ),
    "harmony": "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>",
}


def _render(form: str) -> Callable[[str, str, Mapping[str, Any]], str]:
    return lambda name, arguments, schema: form.format(name=name, arguments=arguments or "{}")


RENDER_HEADED = {name: _render(form) for name, form in _HEADED.items()}


# --- literals ------------------------------------------------------------------------------------

_KEYWORD = re.compile(r"[A-Za-z_]\w{0,99}\Z", re.ASCII)
_WORDS = {True: "True", False: "False", None: "None"}
_QUOTE = '<|"|>'


def _python(value: Any) -> str:
    """A value as a Python literal. JSON's strings and numbers are valid in Python."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key, ensure_ascii=False)}: {_python(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_python, value)) + "]"
    return _WORDS[value] if value is None or isinstance(value, bool) else json.dumps(value, ensure_ascii=False)


def _python_call(name: str, arguments: str) -> str:
    values = load_object(arguments or "{}")
    if values is None:
        return f"{name}(**{arguments})"
    if not all(map(_KEYWORD.match, values)):
        return f"{name}(**{_python(values)})"
    return f"{name}(" + ", ".join(f"{key}={_python(value)}" for key, value in values.items()) + ")"


def _pythonic(name: str, arguments: str, schema: Mapping[str, Any]) -> str:
    return f"[{_python_call(name, arguments)}]"


def _lfm2(name: str, arguments: str, schema: Mapping[str, Any]) -> str:
    return f"<|tool_call_start|>[{_python_call(name, arguments)}]<|tool_call_end|>"


def _gemma_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{_gemma_key(key)}:{_gemma_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_gemma_value, value)) + "]"
    if isinstance(value, str) and _QUOTE not in value:
        return _QUOTE + value + _QUOTE
    return json.dumps(value, ensure_ascii=False)


def _gemma_key(key: str) -> str:
    return key if _KEYWORD.match(key) else json.dumps(key, ensure_ascii=False)


def _gemma(name: str, arguments: str, schema: Mapping[str, Any]) -> str:
    values = load_object(arguments or "{}")
    return f"<|tool_call>call:{name}{arguments if values is None else _gemma_value(values)}<tool_call|>"


RENDER_LITERAL: dict[str, Callable[[str, str, Mapping[str, Any]], str]] = {"pythonic": _pythonic, "lfm2": _lfm2, "gemma": _gemma}


# --- tags ----------------------------------------------------------------------------------------

_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&apos;"}
_PLAIN_KEY = re.compile(r"[^<>\n\"'\s][^<>\n\"']*(?<!\s)\Z|[^<>\n\"'\s]\Z")
_XML_NAME = re.compile(r"[A-Za-z_][\w.-]*\Z", re.ASCII)


def _no_angle(text: str) -> str:
    """JSON without `<`, so that it contains no marker."""
    return text.replace("<", "\\u003c")


def _value(value: Any, is_string: bool) -> str:
    """A value between tags: text if it cannot be mistaken for JSON, else JSON."""
    if not isinstance(value, str):
        return _no_angle(json.dumps(value, ensure_ascii=False))
    plain = "<" not in value and not value.lstrip().startswith('"') and (is_string or not _looks_like_json(value))
    return value if plain else _no_angle(json.dumps(value, ensure_ascii=False))


def _looks_like_json(text: str) -> bool:
    return text.strip()[:1] in tuple("-0123456789[{'tfnTFN") or text != text.strip() or not text


def _members(arguments: str, fits: Callable[[str, Any], object]) -> dict[str, Any] | None:
    """The arguments, if all of them fit between tags; None: write them as JSON."""
    values = load_object(arguments or "{}")
    return values if values is not None and all(fits(key, value) for key, value in values.items()) else None


def _plain_key(key: str, value: Any) -> object:
    return _PLAIN_KEY.match(key)


def _xml_name(key: str, value: Any) -> object:
    return _XML_NAME.match(key)


def _dsml_value(value: Any, is_string: bool) -> str:
    """The rest of the parameter's tag, which says whether the value is text, and the value."""
    if isinstance(value, str) and "<" not in value:
        return f'string="true">{value}'
    return f'string="false">{_no_angle(json.dumps(value, ensure_ascii=False))}'


@dataclass(frozen=True, slots=True)
class _Form:
    """The tags of a call and its parameters. `value` writes the content of a parameter."""

    opening: str
    parameter: str
    closing: str
    value: Callable[[Any, bool], str] = _value

    def __call__(self, name: str, arguments: str, schema: Mapping[str, Any]) -> str:
        values = _members(arguments, _plain_key)
        if values is None:
            body = _no_angle(arguments) + "\n"
        else:
            body = "".join(self.parameter.format(key=key, value=self.value(value, wants_string(schema, key))) for key, value in values.items())
        return self.opening.format(name=name) + body + self.closing


_TAGGED = {
    "qwen_xml": _Form("<tool_call>\n<function={name}>\n", "<parameter={key}>\n{value}\n</parameter>\n", "</function>\n</tool_call>"),
    "anthropic": _Form('<function_calls>\n<invoke name="{name}">\n', '<parameter name="{key}">{value}</parameter>\n', "</invoke>\n</function_calls>"),
    "glm": _Form("<tool_call>{name}\n", "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n", "</tool_call>"),
    "minimax": _Form(
        '<minimax:tool_call>\n<invoke name="{name}">\n', '<parameter name="{key}">{value}</parameter>\n', "</invoke>\n</minimax:tool_call>"
    ),
    "dsml": _Form(
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="{name}">\n',
        '<｜DSML｜parameter name="{key}" {value}</｜DSML｜parameter>\n',
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        _dsml_value,
    ),
}


def _use_tool(name: str, arguments: str, schema: Mapping[str, Any]) -> str:
    values = _members(arguments, _xml_name)
    if values is None or "use_tool" in values:
        return f'<use_tool name="{name}">{arguments}</use_tool>'
    lines = [f"  <name>{name}</name>", *("  " + _child(key, value, schema) for key, value in values.items())]
    return "<use_tool>\n" + "\n".join(lines) + "\n</use_tool>"


def _child(key: str, value: Any, schema: Mapping[str, Any]) -> str:
    """An argument as an element, with entities."""
    text = _value(value, wants_string(schema, key)) if not isinstance(value, str) or "<" not in value else _quotable(value, schema, key)
    return f"<{key}>{''.join(_ESCAPES.get(char, char) for char in text)}</{key}>"


def _quotable(value: str, schema: Mapping[str, Any], key: str) -> str:
    """A text with `<`, which entities can express: it is written as JSON only if it looks like JSON."""
    plain = not value.lstrip().startswith('"') and (wants_string(schema, key) or not _looks_like_json(value))
    return value if plain else json.dumps(value, ensure_ascii=False)


_XTML_TYPES: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),
    (str, "string"),
    (int, "number"),
    (float, "number"),
    (list, "array"),
    (dict, "object"),
)


def _kimi_k3(name: str, arguments: str, schema: Mapping[str, Any]) -> str:
    values = _members(arguments, _xtml_fits)
    if values is None:
        body = f'<|open|>json type="object"<|sep|>{_no_angle(arguments)}<|close|>json<|sep|>'
    else:
        body = "".join(_xtml_argument(key, value) for key, value in values.items())
    return f'<|open|>tools<|sep|><|open|>call tool="{name}" index="1"<|sep|>{body}<|close|>call<|sep|><|close|>tools<|sep|>'


def _xtml_fits(key: str, value: Any) -> bool:
    return len(key) < 100 and "\n" not in key and "<" not in key and not (isinstance(value, str) and "<|" in value)


def _xtml_argument(key: str, value: Any) -> str:
    kind = next((word for type_, word in _XTML_TYPES if isinstance(value, type_)), "null")
    text = value if isinstance(value, str) else _no_angle(json.dumps(value, ensure_ascii=False))
    quoted = key.replace("&", "&amp;").replace('"', "&quot;")
    return f'<|open|>argument key="{quoted}" type="{kind}"<|sep|>{text}<|close|>argument<|sep|>'


def _tag_is_tool(name: str, arguments: str, schema: Mapping[str, Any]) -> str:
    values = _members(arguments, _xml_name)
    if values is None or name in values:  # a child with the call's own tag could be read as its beginning
        return f"<{name}>\n{_no_angle(arguments)}\n</{name}>"
    return f"<{name}>\n" + "".join(_child(key, value, schema) + "\n" for key, value in values.items()) + f"</{name}>"


RENDER_TAGGED: dict[str, Callable[[str, str, Mapping[str, Any]], str]] = {
    "use_tool": _use_tool,
    **_TAGGED,
    "kimi_k3": _kimi_k3,
    "tag_is_tool": _tag_is_tool,
}


# --- JSON objects with the name in them, and the table of all ------------------------------------

Render = Callable[[str, str, Mapping[str, Any]], str]
"""(name, arguments, the tool's schema) → the call in the dialect."""


def envelope(name: str, arguments: str, *, name_key: str = "name", arguments_key: str = "arguments") -> str:
    """`{"name": …, "arguments": …}` with the arguments verbatim if they are JSON, else as a string."""
    try:
        json.loads(arguments)
    except (ValueError, RecursionError):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return f'{{"{name_key}": {json.dumps(name, ensure_ascii=False)}, "{arguments_key}": {arguments or "{}"}}}'


def sentinel(name: str, arguments: str, nonce: str) -> str:
    return f"<tool_call:{nonce}>\n{envelope(name, arguments)}\n</tool_call:{nonce}>"


def _hermes(name: str, arguments: str, schema: Mapping[str, Any]) -> str:
    return f"<tool_call>\n{envelope(name, arguments)}\n</tool_call>"


def _bare(name: str, arguments: str, schema: Mapping[str, Any]) -> str:
    return envelope(name, arguments)


def _fenced(name: str, arguments: str, schema: Mapping[str, Any]) -> str:
    return f"```json\n{envelope(name, arguments)}\n```"


def _llama_json(name: str, arguments: str, schema: Mapping[str, Any]) -> str:
    return f"<|python_tag|>{envelope(name, arguments, arguments_key='parameters')}"


def _mistral(name: str, arguments: str, schema: Mapping[str, Any]) -> str:
    return f"[TOOL_CALLS] [{envelope(name, arguments)}]"


def _cohere(name: str, arguments: str, schema: Mapping[str, Any]) -> str:
    written = envelope(name, arguments, name_key="tool_name", arguments_key="parameters")
    return f'<|START_ACTION|>[\n    {{"tool_call_id": "0", {written[1:]}\n]<|END_ACTION|>'


def _granite(name: str, arguments: str, schema: Mapping[str, Any]) -> str:
    return f"<|tool_call|>[{envelope(name, arguments)}]"


RENDER: dict[str, Render] = {
    "hermes": _hermes,
    "bare": _bare,
    "fenced": _fenced,
    "llama_json": _llama_json,
    "mistral": _mistral,
    "cohere": _cohere,
    "granite": _granite,
    **RENDER_HEADED,
    **RENDER_TAGGED,
    **RENDER_LITERAL,
}


def render(dialect: str, name: str, arguments: str, *, schema: Mapping[str, Any] | None = None, nonce: str = "") -> str:
    """One call in this dialect."""
    if dialect == "sentinel":
        return sentinel(name, arguments, nonce)
    return RENDER[dialect](name, arguments, schema or {})

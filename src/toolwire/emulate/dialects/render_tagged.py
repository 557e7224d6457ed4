"""Calls between tags, written. Standard library only."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from toolwire.emulate.arguments import load_object
from toolwire.emulate.tag_values import wants_string

_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&apos;"}
_PLAIN_KEY = re.compile(r"[^<>\n\"'\s][^<>\n\"']*(?<!\s)\Z|[^<>\n\"'\s]\Z")
_XML_NAME = re.compile(r"[A-Za-z_][\w.-]*\Z", re.ASCII)


def _no_angle(text: str) -> str:
    """JSON without `<`: no marker can stand in it."""
    return text.replace("<", "\\u003c")


def _value(value: Any, is_string: bool) -> str:
    """A value between tags: text where it can not be mistaken for JSON, else JSON."""
    if not isinstance(value, str):
        return _no_angle(json.dumps(value, ensure_ascii=False))
    plain = "<" not in value and not value.lstrip().startswith('"') and (is_string or not _looks_like_json(value))
    return value if plain else _no_angle(json.dumps(value, ensure_ascii=False))


def _looks_like_json(text: str) -> bool:
    return text.strip()[:1] in tuple("-0123456789[{'tfnTFN") or text != text.strip() or not text


def _members(arguments: str, fits: Callable[[str, Any], object]) -> dict[str, Any] | None:
    """The arguments one by one, where all of them fit between tags; else None, and they are written as the JSON they are."""
    values = load_object(arguments or "{}")
    return values if values is not None and all(fits(key, value) for key, value in values.items()) else None


def _plain_key(key: str, value: Any) -> object:
    return _PLAIN_KEY.match(key)


def _xml_name(key: str, value: Any) -> object:
    return _XML_NAME.match(key)


def _dsml_value(value: Any, is_string: bool) -> str:
    """The rest of the parameter's tag and the value: the tag says whether it is text."""
    if isinstance(value, str) and "<" not in value:
        return f'string="true">{value}'
    return f'string="false">{_no_angle(json.dumps(value, ensure_ascii=False))}'


@dataclass(frozen=True, slots=True)
class _Form:
    """A call's tags around its parameters, or around JSON; `value` writes what stands in a parameter."""

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


_FORMS = {
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
    """Entities carry `<`, so only what looks like JSON needs to be JSON."""
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
    if values is None or name in values:  # a tag like the call's own could be its beginning
        return f"<{name}>\n{_no_angle(arguments)}\n</{name}>"
    return f"<{name}>\n" + "".join(_child(key, value, schema) + "\n" for key, value in values.items()) + f"</{name}>"


RENDER_TAGGED: dict[str, Callable[[str, str, Mapping[str, Any]], str]] = {
    "use_tool": _use_tool,
    **_FORMS,
    "kimi_k3": _kimi_k3,
    "tag_is_tool": _tag_is_tool,
}

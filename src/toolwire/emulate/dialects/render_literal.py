"""Calls with value grammars of their own, written. Standard library only."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from toolwire.emulate.arguments import load_object

_KEYWORD = re.compile(r"[A-Za-z_]\w{0,99}\Z", re.ASCII)
_WORDS = {True: "True", False: "False", None: "None"}
_QUOTE = '<|"|>'


def _python(value: Any) -> str:
    """A value as Python writes it. JSON's strings and numbers are Python's."""
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

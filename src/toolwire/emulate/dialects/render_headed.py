"""Calls with their name in a header, written. The arguments are JSON as they stand, so no marker in a string can end them. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_FORMS = {
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


RENDER_HEADED = {name: _render(form) for name, form in _FORMS.items()}

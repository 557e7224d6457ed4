"""Turn → what llama.cpp's chat completions are asked, and the grammar that the answer is held to."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from toolwire.backends.local.options import LocalOptions
from toolwire.emulate.constrain import ANSWER, ANY_OBJECT, ARGUMENTS, Limits, json_lark, lark
from toolwire.emulate.form import Form
from toolwire.emulate.transcript import transcript
from toolwire.errors import ToolwireError
from toolwire.turn import Message, OtherPart, TextPart, Turn

Body = dict[str, Any]
SAMPLED = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias")
FIELDS = frozenset(
    {
        "temperature",
        "top_p",
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "stop",
        "seed",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
    }
)
_SEEDS = 1 << 32
AGAINST_LOOPS = {"dry_multiplier": 0.8, "dry_allowed_length": 4, "dry_penalty_last_n": 64}
"""A small model that repeats itself is led out of it. Only what it has just written counts, so that it can copy from the prompt."""


def render(turn: Turn, options: LocalOptions, grammar: str, small: bool = True) -> bytes:
    """The request's body. A last message of the assistant's is continued."""
    sampling = turn.sampling
    body: Body = {
        "messages": [{"role": message.role, "content": _text(message)} for message in transcript(turn, (), Form("sentinel", ""))],
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_progress": True,  # a callback for every step of the prompt: there the run can be stopped
        "temperature": options.temperature,
        "top_p": options.top_p,
        "max_tokens": sampling.max_tokens if sampling.max_tokens is not None else _most(turn, options),
    }
    if small:
        body |= AGAINST_LOOPS
    body |= {name: value for name in SAMPLED if (value := getattr(sampling, name)) is not None}
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if sampling.seed is not None:
        body["seed"] = sampling.seed % _SEEDS
    if grammar:  # all of a held answer is its text: a model that would think first is told not to
        body |= {"grammar": grammar, "reasoning_format": "none", "chat_template_kwargs": {"enable_thinking": False}}
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


def _most(turn: Turn, options: LocalOptions) -> int:
    """Tokens of an answer where the client says nothing. A required call has an end of its own: it is not cut short of it."""
    required = turn.constraint is not None and turn.constraint.required
    return max(options.max_tokens, options.context // 2) if required else options.max_tokens


def grammar_of(turn: Turn, limits: Limits, refused: Collection[str] = (), small: bool = False) -> str:
    """What the answer is held to; empty: nothing. A schema in a rule that was refused becomes that of any object."""
    schema = turn.output.schema or ANY_OBJECT if turn.output.type != "text" else None
    if schema is not None and ANSWER in refused:
        schema = ANY_OBJECT
    if turn.constraint is not None:
        loose = [tool.name for place, tool in enumerate(turn.constraint.tools) if f"{ARGUMENTS}{place}" in refused]
        return lark(turn.constraint, limits, loose=loose, answer=schema, copies=small)
    return json_lark(schema, limits) if schema is not None else ""


def _text(message: Message) -> str:
    other = next((part.kind for part in message.parts if isinstance(part, OtherPart)), None)
    if other is not None:
        raise ToolwireError("unsupported_value", f"The embedded model does not take content of the type {other[:40]!r}: text only.")
    return "\n\n".join(part.text for part in message.parts if isinstance(part, TextPart))

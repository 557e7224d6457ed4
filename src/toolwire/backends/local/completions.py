"""Turn → what llama.cpp's chat completions are asked, and the grammar that the answer is held to."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from toolwire.backends.base import Batch
from toolwire.backends.local.model import Chunk
from toolwire.backends.local.options import LocalOptions
from toolwire.core.errors import ToolwireError
from toolwire.core.events import END_EVENTS, Event, Failure, Finish, Text, Thought, Usage
from toolwire.core.turn import Api, Message, OtherPart, TextPart, Turn
from toolwire.emulate.prompt import Form, transcript
from toolwire.emulate.schemas.bounding import SchemaLimits
from toolwire.emulate.schemas.constrain import ANSWER, ANY_OBJECT, ARGUMENTS, json_lark, lark

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
        "messages": [
            {"role": message.role, "content": _text(message)}
            for message in transcript(turn, (), Form("sentinel", ""))
        ],
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
        body |= {
            "grammar": grammar,
            "reasoning_format": "none",
            "chat_template_kwargs": {"enable_thinking": False},
        }
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


def _most(turn: Turn, options: LocalOptions) -> int:
    """Tokens of an answer where the client says nothing. A required call has an end of its own: it is not cut short of it."""
    required = turn.constraint is not None and turn.constraint.required
    return max(options.max_tokens, options.context // 2) if required else options.max_tokens


def grammar_of(turn: Turn, limits: SchemaLimits, refused: Collection[str] = (), small: bool = False) -> str:
    """What the answer is held to; empty: nothing. A schema in a rule that was refused becomes that of any object."""
    schema = turn.output.schema or ANY_OBJECT if turn.output.type != "text" else None
    if schema is not None and ANSWER in refused:
        schema = ANY_OBJECT
    if turn.constraint is not None:
        loose = [
            tool.name for place, tool in enumerate(turn.constraint.tools) if f"{ARGUMENTS}{place}" in refused
        ]
        return lark(turn.constraint, limits, loose=loose, answer=schema, copies=small)
    return json_lark(schema, limits) if schema is not None else ""


def _text(message: Message) -> str:
    other = next((part.kind for part in message.parts if isinstance(part, OtherPart)), None)
    if other is not None:
        raise ToolwireError(
            "unsupported_value",
            f"The embedded model does not take content of the type {other[:40]!r}: text only.",
        )
    return "\n\n".join(part.text for part in message.parts if isinstance(part, TextPart))


# --- reading ------------------------------------------------------------
#
# llama.cpp's chunks → events.


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details = msgspec.field(default_factory=_Details)


class _Error(msgspec.Struct):
    code: int = 500
    message: str = ""
    type: str = ""
    n_prompt_tokens: int = 0
    n_ctx: int = 0


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


_decode = msgspec.json.Decoder(_Chunk).decode
MESSAGES: dict[Api, str] = {"chat": "messages", "responses": "input"}


class LocalReader:
    """Reads one run. `ended`: its last event is out."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._reason: str | None = None
        self.ended = False

    def read(self, chunks: Iterable[Chunk]) -> Batch:
        batch: Batch = []
        for chunk in chunks:
            batch += self._events(chunk)
            if batch and isinstance(batch[-1], END_EVENTS):
                self.ended = True
                break
        return batch

    def _events(self, chunk: Chunk) -> list[Event]:
        if chunk is None:
            return (
                [Finish("length" if self._reason == "length" else "stop")]
                if self._reason
                else [Failure("backend_cut", "The model stopped answering.")]
            )
        if isinstance(chunk, ToolwireError):  # a refusal of our own, in its own words
            return [chunk.failure]
        if isinstance(chunk, Exception):
            return [Failure("invalid_request", f"The model can not take this request: {_line(chunk)}")]
        told = _decode(chunk)
        if told.error is not None:
            return [self._failure(told.error)]
        out: list[Event] = []
        for choice in told.choices:
            if choice.delta.reasoning_content:
                out.append(Thought(choice.delta.reasoning_content))
            if choice.delta.content:
                out.append(Text(choice.delta.content))
            self._reason = choice.finish_reason or self._reason
        if told.usage is not None:
            usage = told.usage
            out.append(
                Usage(usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens_details.cached_tokens)
            )
        return out

    def _failure(self, error: _Error) -> Failure:
        if error.type == "exceed_context_size_error":
            return Failure(
                "context_length",
                f"This model's maximum context length is {error.n_ctx} tokens. However, your messages resulted in {error.n_prompt_tokens} tokens. "
                "Please reduce the length of the messages.",
                MESSAGES[self._api],
            )
        kind = "invalid_request" if 400 <= error.code < 500 else "backend"
        return Failure(kind, f"The model refused the request: {_line(error.message)}")


def _line(said: Any) -> str:
    return " ".join(str(said).split())[:300] or "no reason was given"

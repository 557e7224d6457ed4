"""The embedded model as a backend: sends requests to llama.cpp, and converts its answers to events.

A batch contains all tokens that arrived while the event loop was busy. Closing the iterator of `run` stops
the decoding at the next token. While llama.cpp still reads the prompt, it stops after the current step
(`LocalOptions.batch`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Collection, Iterable
from typing import Any

import msgspec

from toolwire.backends.base import Batch, frame_tap
from toolwire.backends.local.model import (
    SMALL,
    Chunk,
    LocalModel,
    LocalOptions,
    Stream,
    give_back,
    lacking,
    take,
)
from toolwire.backends.local.repetition import RepetitionGuard
from toolwire.core.capabilities import Capabilities, Strategy
from toolwire.core.errors import ToolwireError
from toolwire.core.events import END_EVENTS, Event, Failure, Finish, Text, Thought, Usage
from toolwire.core.turn import Api, Message, OtherPart, TextPart, Turn
from toolwire.emulate.prompt import Form, transcript
from toolwire.emulate.schemas.bounding import SchemaLimits
from toolwire.emulate.schemas.constrain import ANSWER, ANY_OBJECT, ARGUMENTS, json_lark, lark

Body = dict[str, Any]
SAMPLED = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias")
LENGTH = ("max_tokens", "max_completion_tokens", "max_output_tokens")
FIELDS = frozenset({*SAMPLED, *LENGTH, "stop", "seed"})
_SEEDS = 1 << 32
AGAINST_LOOPS = {"dry_multiplier": 0.8, "dry_allowed_length": 4, "dry_penalty_last_n": 64}
"""Sampling options that keep a small model from repeating its last words.

The model may still copy from the prompt.
"""


def render(turn: Turn, options: LocalOptions, grammar: str, small: bool = True) -> bytes:
    """Returns the body of the request.

    If the last message is the assistant's, the model continues this message.
    """
    sampling = turn.sampling
    messages = transcript(turn, (), Form("sentinel", ""))
    body: Body = {
        "messages": [{"role": message.role, "content": _text(message)} for message in messages],
        "stream": True,
        "stream_options": {"include_usage": True},
        # llama.cpp then calls back after each step of the prompt, where the run can be stopped
        "return_progress": True,
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
    if grammar:  # the grammar covers the whole answer, so the model must not write thoughts first
        body |= {"grammar": grammar, "reasoning_format": "none"}
        body["chat_template_kwargs"] = {"enable_thinking": False}
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


def _most(turn: Turn, options: LocalOptions) -> int:
    """Returns how many tokens an answer may have if the request sets no limit.

    The limit is higher if a call is required, because the grammar makes sure that the call ends.
    """
    required = turn.constraint is not None and turn.constraint.required
    return max(options.max_tokens, options.context // 2) if required else options.max_tokens


def grammar_of(turn: Turn, limits: SchemaLimits, refused: Collection[str] = (), small: bool = False) -> str:
    """Returns the grammar of the answer, or "" if the answer is free text.

    `refused`: names of rules whose schema llguidance cannot read. These rules then accept any JSON object.
    """
    schema = turn.output.schema or ANY_OBJECT if turn.output.type != "text" else None
    if schema is not None and ANSWER in refused:
        schema = ANY_OBJECT
    if turn.constraint is not None:
        tools = enumerate(turn.constraint.tools)
        loose = [tool.name for index, tool in tools if f"{ARGUMENTS}{index}" in refused]
        return lark(turn.constraint, limits, loose=loose, answer=schema, copies=small)
    return json_lark(schema, limits) if schema is not None else ""


def _text(message: Message) -> str:
    other = next((part.kind for part in message.parts if isinstance(part, OtherPart)), None)
    if other is not None:
        problem = f"The embedded model does not take content of the type {other[:40]!r}: text only."
        raise ToolwireError("unsupported_value", problem)
    return "\n\n".join(part.text for part in message.parts if isinstance(part, TextPart))


# --- llama.cpp's chunks → events ---


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


class _Progress(msgspec.Struct):
    total: int = 0


class _Error(msgspec.Struct):
    code: int = 500
    message: str = ""
    type: str = ""
    n_prompt_tokens: int = 0
    n_ctx: int = 0


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    prompt_progress: _Progress | None = None
    error: _Error | None = None


_decode = msgspec.json.Decoder(_Chunk).decode
MESSAGES: dict[Api, str] = {"chat": "messages", "responses": "input", "messages": "messages"}


class LocalReader:
    """Reads the chunks of one run. `ended`: whether the last event has been returned."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._reason: str | None = None
        self._guard = RepetitionGuard()
        self._prompt = self._pieces = 0
        """The number of tokens in the prompt. `_pieces`: the number of tokens in the answer so far."""
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
        if chunk is None and self._reason:
            return [Finish("length" if self._reason == "length" else "stop")]
        if chunk is None:
            return [Failure("backend_cut", "The model stopped answering.")]
        if isinstance(chunk, ToolwireError):
            return [chunk.failure]
        if isinstance(chunk, Exception):
            return [Failure("invalid_request", f"The model cannot take this request: {_line(chunk)}")]
        read = _decode(chunk)
        if read.error is not None:
            return [self._failure(read.error)]
        if read.prompt_progress is not None:
            self._prompt = read.prompt_progress.total
        out: list[Event] = []
        for choice in read.choices:
            thought, text = choice.delta.reasoning_content, choice.delta.content
            if thought:
                out.append(Thought(thought))
            if text:
                out.append(Text(text))
            self._pieces += bool(thought or text)
            if self._guard.feed(f"{thought or ''}{text or ''}"):
                counted = Usage(self._prompt, self._pieces)  # llama.cpp reports no usage if it is stopped
                return [*out, counted, Finish("length", repeats=True)]
            self._reason = choice.finish_reason or self._reason
        if (usage := read.usage) is not None:
            cached = usage.prompt_tokens_details.cached_tokens
            out.append(Usage(usage.prompt_tokens, usage.completion_tokens, cached))
        return out

    def _failure(self, error: _Error) -> Failure:
        if error.type == "exceed_context_size_error":
            message = (
                f"This model's maximum context length is {error.n_ctx} tokens. However, your messages "
                f"resulted in {error.n_prompt_tokens} tokens. Please reduce the length of the messages."
            )
            return Failure("context_length", message, MESSAGES[self._api])
        kind = "invalid_request" if 400 <= error.code < 500 else "backend"
        return Failure(kind, f"The model refused the request: {_line(error.message)}")


def _line(said: Any) -> str:
    return " ".join(str(said).split())[:300] or "no reason was given"


# --- the backend ---

_CAPABILITIES = Capabilities(
    strict=True,
    schema=True,
    prefill=True,
    constrain=frozenset({"text", "call"}),
    reasoning=True,
    fields=FIELDS,
)


class LocalBackend:
    strategy: Strategy = "constrained"
    capabilities = _CAPABILITIES
    aliases: tuple[str, ...] = ()

    def __init__(self, id: str, options: LocalOptions | None = None) -> None:
        self.id = id
        self.options = options or LocalOptions()
        self._model: LocalModel | None = None

    def alias(self, name: str) -> str | None:
        return None

    async def prepare(self) -> None:
        pass

    async def ready(self) -> bool:
        return lacking(self.options) is None

    async def close(self) -> None:
        model, self._model = self._model, None
        if model is not None:
            await give_back(model)

    async def run(self, turn: Turn) -> AsyncGenerator[Batch, None]:
        if self._model is None:
            self._model = take(self.options)
        model = self._model
        await model.load()
        stream, reader = Stream(asyncio.get_running_loop()), LocalReader(turn.api)
        job = model.submit(lambda: self._body(turn, model), stream)
        tap = frame_tap()
        try:
            while not reader.ended:
                chunks = await stream.get()
                if tap is not None:
                    for chunk in chunks:
                        tap("chunk", chunk if isinstance(chunk, bytes) else repr(chunk))
                batch = reader.read(chunks)
                if batch:
                    yield batch
        finally:
            stream.cancelled = True
            job.cancel()

    def _body(self, turn: Turn, model: LocalModel) -> bytes:
        """Returns the request, with a grammar that llguidance can read.

        Runs in the decoding thread.
        """
        limits, small = self.options.limits(model.size), model.size < SMALL
        grammar = grammar_of(turn, limits, small=small)
        refused = model.refused(grammar) if grammar else set()
        if refused:
            grammar = grammar_of(turn, limits, refused, small)
        return render(turn, self.options, grammar, small=small)

"""llama.cpp's chunks → events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from toolwire.backends.base import Batch
from toolwire.backends.local.stream import Chunk
from toolwire.errors import ToolwireError
from toolwire.events import END_EVENTS, Event, Failure, Finish, Text, Thought, Usage
from toolwire.turn import Api


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


class Reader:
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
            out.append(Usage(usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens_details.cached_tokens))
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

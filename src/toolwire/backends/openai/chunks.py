"""The JSON that a chat completions server sends, as types, with two decoders.

`decode` (msgspec) reads chunks that follow OpenAI's API. `parse` also reads deviating chunks: content as a
list of parts, numbers as strings, an object in place of a list with one object, halves of surrogate pairs. In
texts and arguments, half of a surrogate pair is kept, because the other half may be in the next chunk. In
names and ids, it becomes U+FFFD.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from toolwire.core.events import TokenLogprob
from toolwire.wire.sse import scrub

T = TypeVar("T")
VERY_UNLIKELY = -9999.0
"""OpenAI's value for a very unlikely token. Other servers send -Infinity or null instead."""


class Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: Any = None
    input: Any = None


class ChunkToolCall(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: Function | None = None
    custom: Function | None = None
    name: str | None = None
    arguments: Any = None


class ChunkDelta(msgspec.Struct, gc=False):
    content: str | None = None
    tool_calls: list[ChunkToolCall] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    function_call: Function | None = None
    reasoning_details: Any = None


class PartsDelta(ChunkDelta, gc=False):
    """A delta whose content is a list of parts. Only `parse` creates it.

    Each part is a pair: whether the part is reasoning, and its text.
    """

    parts: list[tuple[bool, str]] = []


class Choice(msgspec.Struct, gc=False):
    delta: ChunkDelta | None = None
    finish_reason: str | None = None
    index: int = 0
    message: ChunkDelta | None = None
    logprobs: Any = None
    stop_reason: Any = None
    """The stop sequence that ended the answer (only vLLM and SGLang send it)."""


class Details(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class WireUsage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: Details | None = None
    completion_tokens_details: Details | None = None


class Chunk(msgspec.Struct, gc=False):
    choices: list[Choice] | None = None
    usage: WireUsage | None = None
    error: Any = None


decode = msgspec.json.Decoder(Chunk).decode
NOT_AS_EXPECTED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The exceptions of `decode` for data that is not JSON, or JSON of an unexpected shape."""


# --- any JSON ---


def parse(data: bytes) -> Chunk:
    """Parses a chunk or a body. Raises ValueError, or RecursionError if the JSON is nested too deeply."""
    value = json.loads(data.decode("utf-8", "replace"))
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, dict):
        raise ValueError("not an object")
    error = value.get("error")
    if error is None and value.get("object") == "error":
        error = value
    choices = [_choice(entry) for entry in _dicts(value.get("choices"))]
    return Chunk(choices, _object(value, "usage", _usage), error)


def _object(value: dict[str, Any], key: str, read: Callable[[dict[str, Any]], T]) -> T | None:
    inner = value.get(key)
    return read(inner) if isinstance(inner, dict) else None


def _dicts(value: Any) -> list[dict[str, Any]]:
    entries = value if isinstance(value, list) else [value]
    return [entry for entry in entries if isinstance(entry, dict)]


def _choice(value: dict[str, Any]) -> Choice:
    reason, index = _name(value.get("finish_reason")), _int(value.get("index")) or 0
    delta, message = _object(value, "delta", _delta), _object(value, "message", _delta)
    return Choice(delta, reason, index, message, value.get("logprobs"), value.get("stop_reason"))


def _delta(value: dict[str, Any]) -> ChunkDelta:
    content = value.get("content")
    parts = _parts(content) if isinstance(content, list) else []
    mixed = any(is_thought for is_thought, _ in parts)
    rest = (
        [_tool_call(entry) for entry in _dicts(value.get("tool_calls"))] or None,
        _text(value.get("reasoning_content")),
        _text(value.get("reasoning")),
        _text(value.get("refusal")),
        _object(value, "function_call", _function),
        value.get("reasoning_details"),
    )
    return PartsDelta(None, *rest, parts) if mixed else ChunkDelta(_text(content), *rest)


def _parts(content: list[Any]) -> list[tuple[bool, str]]:
    """Returns a pair for each content part with text: whether the part is reasoning, and its text.

    Mistral sends reasoning as parts of type `thinking`.
    """
    kinds = ("thinking", "reasoning")
    found = [(isinstance(part, dict) and part.get("type") in kinds, _text(part)) for part in content]
    return [(is_thought, text) for is_thought, text in found if text]


def details_text(details: Any) -> str:
    """Returns the readable texts and summaries in OpenRouter's `reasoning_details`."""
    texts = (entry.get(key) for entry in _dicts(details) for key in ("text", "summary"))
    return "".join(text for text in texts if isinstance(text, str))


def _tool_call(value: dict[str, Any]) -> ChunkToolCall:
    return ChunkToolCall(
        _int(value.get("index")),
        _name(value.get("id")),
        function=_object(value, "function", _function),
        custom=_object(value, "custom", _function),
        name=_name(value.get("name")),
        arguments=value.get("arguments"),
    )


def token_logprobs(entries: Any, most: int) -> list[TokenLogprob]:
    """Returns the tokens of `choices[].logprobs.content` or `.refusal`.

    Each token has at most `most` alternatives.
    """
    return [
        {**found, "top_logprobs": list(filter(None, map(_token, _dicts(entry.get("top_logprobs")))))[:most]}
        for entry in _dicts(entries)
        if (found := _token(entry)) is not None
    ]


def _token(entry: dict[str, Any]) -> dict[str, Any] | None:
    token, logprob, data = entry.get("token"), entry.get("logprob"), entry.get("bytes")
    if not isinstance(token, str):
        return None
    token = scrub(token)
    is_number = isinstance(logprob, int | float) and not isinstance(logprob, bool) and math.isfinite(logprob)
    is_data = isinstance(data, list) and all(isinstance(byte, int) and 0 <= byte < 256 for byte in data)
    return {
        "token": token,
        "logprob": logprob if is_number else VERY_UNLIKELY,
        "bytes": data if is_data else list(token.encode()),
    }


def _function(value: dict[str, Any]) -> Function:
    return Function(_name(value.get("name")), value.get("arguments"), value.get("input"))


def _usage(value: dict[str, Any]) -> WireUsage:
    return WireUsage(
        _int(value.get("prompt_tokens")),
        _int(value.get("completion_tokens")),
        _object(value, "prompt_tokens_details", _details),
        _object(value, "completion_tokens_details", _details),
    )


def _details(value: dict[str, Any]) -> Details:
    return Details(_int(value.get("cached_tokens")), _int(value.get("reasoning_tokens")))


def _text(value: Any) -> str | None:
    """Returns a text, or the joined texts of a list of parts; None for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(filter(None, map(_text, value)))
    if isinstance(value, dict):
        found = (value.get(key) for key in ("text", "content", "thinking"))
        return next((_text(text) for text in found if isinstance(text, str | list)), None)
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _int(value: Any) -> int | None:
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value.strip()[:18])
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number and abs(value) < 1e18 else None


def _name(value: Any) -> str | None:
    text = _text(value)
    return None if text is None else scrub(text)

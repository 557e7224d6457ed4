"""Sends a Messages request to Claude as the client wrote it, and converts Anthropic's stream to events.

The library pydantic-ai would lose parts of such a request, for example cache markers and betas. So
Anthropic's SDK sends the client's own request body (`Turn.body`), with the configured model and as a stream.

| Anthropic's stream                 | events                                                            |
|------------------------------------|-------------------------------------------------------------------|
| text                               | Text; at the end Citation and Border                              |
| thinking                           | Thought; at the end Signature, or Border without a signature      |
| redacted_thinking                  | Signature(redacted)                                               |
| tool_use                           | CallBegin, CallArgs, CallEnd                                      |
| any other (server_tool_use, …)     | one Block with the whole content                                  |
| usage                              | Usage, whose input includes cached tokens (Anthropic's does not)  |
| stop_reason                        | Finish; a stream without a stop_reason was cut off                |
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import httpx2
from anthropic import APIConnectionError, APIStatusError, APITimeoutError, AsyncAnthropic, AsyncStream
from pydantic_ai.exceptions import ModelConnectionError, ModelTimeoutError

from toolwire.backends.base import Batch, frame_tap
from toolwire.backends.hosted.read import CUT, RETRY_LIMIT_S, worded
from toolwire.core.assemble import EVERY_NAME, CallAssembler, Fragment
from toolwire.core.errors import ToolwireError
from toolwire.core.events import (
    Block,
    Border,
    Citation,
    Event,
    Failure,
    Finish,
    Signature,
    Text,
    Thought,
    Usage,
)
from toolwire.core.partial_call import partial_object
from toolwire.core.turn import Turn
from toolwire.emulate.native import NativeArguments
from toolwire.wire.sse import scrub

Json = Any
PATH = "/v1/messages"
COUNT_PATH = "/v1/messages/count_tokens"


class MessagesModel:
    """A Claude model, for clients of Anthropic's API. `secrets` never appear in an error."""

    def __init__(self, client: AsyncAnthropic, name: str, secrets: tuple[str, ...], timeout_s: float) -> None:
        self._client = client.with_options(max_retries=0, timeout=timeout_s)
        self._name, self._secrets = name, secrets

    async def ask(self, turn: Turn) -> AsyncGenerator[Batch, None]:
        """Yields the batches of one answer. The first batch is empty; it means that the answer has begun."""
        reader, tap = MessagesReader(), frame_tap()
        try:
            stream = await self._client.post(
                PATH,
                cast_to=object,
                body=self._body(turn) | {"stream": True},
                options={"headers": dict(turn.headers)},
                stream=True,
                stream_cls=AsyncStream[object],
            )
            yield []
            async with stream:
                async for event in stream:
                    assert isinstance(event, dict), event
                    if tap is not None:
                        tap(str(event.get("type")), event)
                    if batch := reader.feed(event):
                        yield batch
            yield reader.finish()
        except (APIStatusError, APIConnectionError, httpx2.TransportError) as error:
            raise self._raised(error) from error

    async def count(self, turn: Turn) -> int:
        try:
            body, headers = self._body(turn), dict(turn.headers)
            counted: Json = await self._client.post(
                COUNT_PATH, cast_to=object, body=body, options={"headers": headers}
            )
            return int(counted["input_tokens"])
        except (APIStatusError, APIConnectionError, httpx2.TransportError) as error:
            raise self._raised(error) from error

    def _body(self, turn: Turn) -> dict[str, Json]:
        assert turn.body is not None
        return {**turn.body, "model": self._name}

    def _raised(self, error: Exception) -> Exception:
        """Converts an exception of Anthropic's SDK.

        A failed connection becomes pydantic-ai's exception. An error from Anthropic becomes a
        `ToolwireError`.
        """
        if isinstance(error, APIStatusError):
            return ToolwireError.of(failure_of(error, self._secrets))
        cause = error.__cause__ if isinstance(error, APIConnectionError) else error
        if isinstance(error, APITimeoutError | httpx2.TimeoutException):
            return ModelTimeoutError(self._name, "timeout")
        never_sent = isinstance(cause, httpx2.ConnectError)
        return ModelConnectionError(self._name, "connection", phase="connect" if never_sent else None)


# --- events ---

STOPS: dict[str, Finish] = {
    "end_turn": Finish("stop"),
    "tool_use": Finish("tool_calls"),
    "max_tokens": Finish("length"),
    "model_context_window_exceeded": Finish("length", window=True),
    "refusal": Finish("content_filter"),
}
"""How an answer ends, by `stop_reason`. An unknown reason becomes `stop`; the client also gets its name."""
COUNTS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
ENDS = ("stop_details", "container", "context_management")
STREAMED = frozenset({"text", "thinking", "redacted_thinking", "tool_use"})


class MessagesReader:
    """Reads one answer of Anthropic: call `feed` with its events, then `finish`."""

    def __init__(self) -> None:
        self._blocks: dict[int, dict[str, Json]] = {}
        """The open blocks. Text, thoughts and calls are kept only until they are sent."""
        self._calls = CallAssembler(names=EVERY_NAME, repair=NativeArguments)
        self._held: list[Event] = []
        """Events that arrived while a call was open. They are sent after the call."""
        self._usage: dict[str, Json] = {}
        self._end: Finish | None = None

    def feed(self, event: Mapping[str, Json]) -> list[Event]:
        kind = event.get("type")
        if kind == "content_block_delta":
            return self._grow(event["index"], event["delta"])
        if kind == "content_block_start":
            return self._open(event["index"], dict(event["content_block"]))
        if kind == "content_block_stop":
            return self._close(event["index"])
        if kind == "message_start":
            return self._count(event["message"].get("usage"))
        if kind == "message_delta":
            self._end = _end({**event, **event["delta"]})
            return self._count(event.get("usage"))
        return []

    def finish(self) -> list[Event]:
        if self._end is None:
            return [CUT]
        ended = [event for index in tuple(self._blocks) for event in self._close(index)]
        return [*ended, *self._calls.finish(self._end.reason), *self._held, self._end]

    # --- blocks ---

    def _open(self, index: int, block: dict[str, Json]) -> list[Event]:
        self._blocks[index] = block
        kind = block.get("type")
        if kind == "text":
            return self._say(Text(scrub(block.get("text") or "")))
        if kind == "thinking":
            return self._say(Thought(scrub(block.get("thinking") or ""), summary=True))
        if kind == "redacted_thinking":
            return self._say(Signature(block["data"], redacted=True))
        if kind == "tool_use":
            return self._calls.add(
                Fragment(index, block["id"], scrub(block["name"]), block.get("input") or None, rough=True)
            )
        return []

    def _grow(self, index: int, delta: Mapping[str, Json]) -> list[Event]:
        block, kind = self._blocks.get(index, {}), delta.get("type")
        if kind == "text_delta":
            return self._say(Text(scrub(delta["text"])))
        if kind == "thinking_delta":
            return self._say(Thought(scrub(delta["thinking"]), summary=True))
        if kind == "signature_delta":
            block["signature"] = delta["signature"]
        elif kind == "citations_delta":
            block.setdefault("cited", []).append(delta["citation"])
        elif block.get("type") == "tool_use":
            return self._calls.add(Fragment(index, arguments=delta["partial_json"], rough=True))
        else:
            for name, value in delta.items():
                if name != "type" and isinstance(value, str):
                    block[name] = (block.get(name) or "") + value
        return []

    def _close(self, index: int) -> list[Event]:
        block = self._blocks.pop(index, {})
        kind = block.get("type")
        if kind == "thinking" and block.get("signature"):
            return self._say(Signature(block["signature"]))
        if kind in ("text", "thinking"):  # a citation may come before the text that it belongs to
            closing: list[Event] = [_citation(one) for one in block.get("cited", ())]
            return [event for one in (*closing, Border()) for event in self._say(one)]
        if kind == "tool_use":
            ended = self._calls.add(Fragment(index, block["id"], complete=True, rough=True))
            held, self._held = ([], self._held) if self._calls.open else (self._held, [])
            return ended + held
        return self._say(Block(_whole(block))) if block and kind not in STREAMED else []

    def _say(self, event: Event) -> list[Event]:
        if isinstance(event, Text | Thought) and not event.text:
            return []
        if not self._calls.open:
            return [event]
        self._held.append(event)
        return []

    # --- usage ---

    def _count(self, usage: Mapping[str, Json] | None) -> list[Event]:
        """Returns the usage so far, updated with these token counts.

        A later count replaces an earlier one.
        """
        self._usage |= {name: value for name, value in (usage or {}).items() if value is not None}
        given, said, read, written = (self._usage.get(name, 0) for name in COUNTS)
        thinking = (self._usage.get("output_tokens_details") or {}).get("thinking_tokens") or 0
        extra = {name: value for name, value in self._usage.items() if name not in COUNTS}
        return [Usage(given + read + written, said, read, thinking, written, extra or None)]


def _whole(block: dict[str, Json]) -> str:
    """Returns a streamed block as JSON.

    The input of a tool that ran on Anthropic's server was streamed as text, and is parsed here.
    """
    pieces = block.pop("partial_json", "")
    if pieces:
        block["input"] = partial_object(pieces)
    return json.dumps(block, ensure_ascii=False)


def _citation(raw: Json) -> Citation:
    return Citation(json.dumps(raw, ensure_ascii=False))


def _end(delta: Mapping[str, Json]) -> Finish | None:
    reason = delta.get("stop_reason")
    if not reason:
        return None
    extra = {name: delta[name] for name in ENDS if delta.get(name) is not None}
    if reason == "stop_sequence":
        return Finish("stop", stop=delta.get("stop_sequence"), extra=extra or None)
    known = STOPS.get(reason)
    if known is None:
        return Finish("stop", extra={"stop_reason": scrub(str(reason)), **extra})
    return Finish(known.reason, window=known.window, extra=extra or None)


# --- errors ---

TYPES: dict[str, str] = {
    "invalid_request_error": "invalid_request",
    "authentication_error": "backend_auth",
    "billing_error": "quota",
    "permission_error": "backend_auth",
    "not_found_error": "model_not_found",
    "conflict_error": "conflict",
    "request_too_large": "body_too_large",
    "rate_limit_error": "rate_limit",
    "timeout_error": "timeout",
    "overloaded_error": "overloaded",
    "api_error": "backend",
}
"""Kinds of failure by Anthropic's error types. For an unknown type, the HTTP status decides."""
STATUSES: dict[int, str] = {
    401: "backend_auth",
    402: "quota",
    403: "backend_auth",
    404: "model_not_found",
    408: "timeout",
    409: "conflict",
    413: "body_too_large",
    429: "rate_limit",
    503: "overloaded",
    504: "timeout",
    529: "overloaded",
}
WORDS: tuple[tuple[str, str], ...] = (
    ("prompt is too long", "context_length"),
    ("credit balance is too low", "quota"),
)
"""Texts in error messages, each with the kind of failure that replaces `invalid_request`."""


def failure_of(error: APIStatusError, secrets: tuple[str, ...]) -> Failure:
    """Returns the failure for an error response, or for an error event in a stream (status 200)."""
    status, body = error.status_code, error.body
    found = body.get("error") if isinstance(body, Mapping) else None
    found = found if isinstance(found, Mapping) else {}
    words = found["message"] if isinstance(found.get("message"), str) else ""
    kind = TYPES.get(str(found.get("type"))) or STATUSES.get(status)
    if kind is None:
        kind = "invalid_request" if 400 <= status < 500 else "backend"
    if kind == "invalid_request":
        kind = next((other for part, other in WORDS if part in words.lower()), kind)
    where = f"HTTP {status}" if status >= 400 else "while streaming"
    return worded(kind, words, where, secrets, _retry_after(error.response.headers))


def _retry_after(headers: httpx2.Headers) -> float | None:
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return min(max(0.0, float(headers[name]) * unit), RETRY_LIMIT_S)
        except (KeyError, ValueError):
            continue
    return None

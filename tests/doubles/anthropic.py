"""FakeAnthropic: a scripted server for tests, with the wire format of the Messages API.

    answer = Answer(Said("Let me look."), Use("toolu_1", "search", '{"q": "Rust"}'))
    async with FakeAnthropic(answer) as server:
        ...  # point the official SDK, or Toolwire, at server.base_url
        assert server.requests[0].body["messages"]

An answer is sent as a stream of events or as one body, as requested. The table `RULES` checks requests as the
real service does: a request that Anthropic would refuse gets Anthropic's error, and the script does not
advance.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from doubles.anthropic_rules import RULES, blocks_of
from doubles.provider import Body, FakeProvider, Problem, first_problem
from toolwire.testing.upstream import Recorded, Reply, pieces

DEFAULT_KEY = "sk-ant-api03-fake-key-0123456789"
COUNT_PATH = "/v1/messages/count_tokens"
TOKENS = 4321

STATUS_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}


# --- answers ---


@dataclass(frozen=True)
class Said:
    """A text block."""

    text: str


@dataclass(frozen=True)
class Thinking:
    """A thinking block. The service checks its signature when it is sent back."""

    text: str
    signature: str = "EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pkiMOYds"


@dataclass(frozen=True)
class Redacted:
    """A thinking block that only Anthropic can read."""

    data: str = "EmwKAhgBEgy3va3pzix/LafPsn4aDFIT2Xlxh0L5L8rLVyIwxtE3rAFBa8cr3qpP"


@dataclass(frozen=True)
class Use:
    """A tool_use block. `input` is sent verbatim, in chunks, as `input_json_delta` events."""

    id: str
    name: str
    input: str = "{}"


Block = Said | Thinking | Redacted | Use


class Answer:
    """A message: its blocks and how it ends.

    `stop` None: the reason that fits the blocks; "": the stream ends without a reason. `error`: the message
    ends with an error event, given as (type, message).
    """

    def __init__(
        self,
        *blocks: Block,
        stop: str | None = None,
        usage: Mapping[str, Any] | None = None,
        size: int = 4,
        pings: bool = True,
        error: tuple[str, str] | None = None,
        model: str = "claude-sonnet-4-5",
        **reply: Any,
    ) -> None:
        self.blocks = blocks
        self.stop = (
            ("tool_use" if any(isinstance(block, Use) for block in blocks) else "end_turn")
            if stop is None
            else stop
        )
        self.usage = {
            "input_tokens": 25,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 15,
            **(usage or {}),
        }
        self.size, self.pings, self.error, self.model, self.reply = size, pings, error, model, reply

    def message(self, blocks: list[Body], stop: str | None, usage: Mapping[str, Any]) -> Body:
        fixed = {
            "id": "msg_01XFDUDYJgAACzvnptvVoYEL",
            "type": "message",
            "role": "assistant",
            "model": self.model,
        }
        return {**fixed, "content": blocks, "stop_reason": stop, "stop_sequence": None, "usage": dict(usage)}

    def body(self) -> Body:
        return self.message([_whole(block) for block in self.blocks], self.stop or None, self.usage)

    def events(self) -> Iterator[Body]:
        """Yields the events of the stream, in Anthropic's order."""
        start = {**self.usage, "output_tokens": 1}
        start.pop("output_tokens_details", None)
        yield {"type": "message_start", "message": self.message([], None, start)}
        for index, block in enumerate(self.blocks):
            yield {"type": "content_block_start", "index": index, "content_block": _opening(block)}
            if index == 0 and self.pings:
                yield {"type": "ping"}
            for delta in _deltas(block, self.size):
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            if self.stop or self.error or index < len(self.blocks) - 1:
                yield {"type": "content_block_stop", "index": index}
        if self.error is not None:
            yield {"type": "error", "error": {"type": self.error[0], "message": self.error[1]}}
        elif self.stop:
            yield {
                "type": "message_delta",
                "delta": {"stop_reason": self.stop, "stop_sequence": None},
                "usage": dict(self.usage),
            }
            yield {"type": "message_stop"}

    def as_reply(self, stream: bool) -> Reply:
        if not stream:
            return Reply.body(self.body(), **self.reply)
        frames = tuple(
            f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in self.events()
        )
        return Reply(frames, headers={"Content-Type": "text/event-stream; charset=utf-8"}, **self.reply)


class Played(Answer):
    """A message given by the events of its stream."""

    def __init__(self, *events: Body, **reply: Any) -> None:
        super().__init__(**reply)
        self._events = events

    def events(self) -> Iterator[Body]:
        return iter(self._events)


def _whole(block: Block) -> Body:
    match block:
        case Said(text):
            return {"type": "text", "text": text, "citations": None}
        case Thinking(text, signature):
            return {"type": "thinking", "thinking": text, "signature": signature}
        case Redacted(data):
            return {"type": "redacted_thinking", "data": data}
        case Use(id, name, input):
            return {"type": "tool_use", "id": id, "name": name, "input": json.loads(input)}


def _opening(block: Block) -> Body:
    empty: dict[str, Body] = {
        "text": {"text": ""},
        "thinking": {"thinking": "", "signature": ""},
        "tool_use": {"input": {}},
    }
    whole: Body = (
        _whole(block)
        if not isinstance(block, Use)
        else {"type": "tool_use", "id": block.id, "name": block.name}
    )
    whole.pop("citations", None)
    return {**whole, **empty.get(whole["type"], {})}


def _deltas(block: Block, size: int) -> Iterator[Body]:
    if isinstance(block, Said):
        yield from ({"type": "text_delta", "text": piece} for piece in pieces(block.text, size))
    elif isinstance(block, Thinking):
        yield from ({"type": "thinking_delta", "thinking": piece} for piece in pieces(block.text, size))
        yield {"type": "signature_delta", "signature": block.signature}
    elif isinstance(block, Use):
        yield {"type": "input_json_delta", "partial_json": ""}
        yield from (
            {"type": "input_json_delta", "partial_json": piece} for piece in pieces(block.input, size)
        )


def error(status: int, message: str, type: str | None = None, **fields: Any) -> Reply:
    """Returns an error response in Anthropic's format."""
    found = {"type": type or STATUS_TYPES[status], "message": message}
    headers = {"request-id": "req_011CSHoEeqs5C35K2UUqR7Fy", **fields.pop("headers", {})}
    return Reply.body(
        {"type": "error", "error": found, "request_id": headers["request-id"]},
        status,
        headers=headers,
        **fields,
    )


# --- the server ---


@dataclass
class _Issued:
    """The blocks that the service has signed, so that it recognizes them later."""

    thinking: set[tuple[str, str]] = field(default_factory=set)
    redacted: set[str] = field(default_factory=set)

    def add(self, answer: Answer) -> None:
        for block in answer.blocks:
            if isinstance(block, Thinking):
                self.thinking.add((block.text, block.signature))
            elif isinstance(block, Redacted):
                self.redacted.add(block.data)

    def problem(self, body: Body) -> Problem:
        for at, message in enumerate(body["messages"]):
            for place, block in enumerate(blocks_of(message)):
                if (
                    block["type"] == "thinking"
                    and (block["thinking"], block["signature"]) not in self.thinking
                ):
                    return f"messages.{at}.content.{place}: Invalid `signature` in `thinking` block"
                if block["type"] == "redacted_thinking" and block["data"] not in self.redacted:
                    return f"messages.{at}.content.{place}: Invalid `data` in `redacted_thinking` block"
        return None


class FakeAnthropic(FakeProvider[Answer]):
    """A fake of the Messages API, with its list of models. Every count of tokens is `TOKENS`."""

    def __init__(
        self, *script: Answer | Reply, key: str = DEFAULT_KEY, models: tuple[str, ...] | None = None
    ) -> None:
        super().__init__(*script, key=key, models=models)
        self._issued = _Issued()

    def _respond(self, request: Recorded) -> Reply:
        if request.path == COUNT_PATH and self._refusal(request) is None:
            return Reply.body({"input_tokens": TOKENS})
        return super()._respond(request)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if request.method != "GET":
            return await super()._serve(request)
        names = self.models or ("claude-haiku-4-5",)
        data = [
            {"type": "model", "id": name, "display_name": name, "created_at": "2026-01-01T00:00:00Z"}
            for name in names
        ]
        return web.json_response(
            {"data": data, "has_more": False, "first_id": data[0]["id"], "last_id": data[-1]["id"]}
        )

    def _issue(self, answer: Answer) -> None:
        self._issued.add(answer)

    def _streams(self, request: Recorded) -> bool:
        return bool(request.body.get("stream"))

    def _refusal(self, request: Recorded) -> Reply | None:
        headers = {name.lower(): value for name, value in request.headers.items()}
        if request.path not in ("/v1/messages", COUNT_PATH):
            return error(404, "Not Found")
        if self.key not in (
            headers.get("x-api-key"),
            headers.get("authorization", "").removeprefix("Bearer "),
        ):
            return error(401, "invalid x-api-key")
        if "anthropic-version" not in headers:
            return error(400, "anthropic-version: header is required")
        unlimited = {"max_tokens": 1} if request.path == COUNT_PATH else {}
        problem = first_problem((*RULES, self._issued.problem), {**unlimited, **request.body})
        if problem is not None:
            return error(400, problem)
        if self.models is not None and request.body["model"] not in self.models:
            return error(404, f"model: {request.body['model']}")
        return None

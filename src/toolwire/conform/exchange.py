"""A request and its answer. The answer is read as a client would read it.

Reading an answer raises no exception, whatever the endpoint sends. The module has no side effects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from toolwire.conform.judge import Frame, fold, split_sse
from toolwire.core.turn import Api

Family = Literal["http", "chat", "responses", "messages"]
FAMILIES: tuple[Family, ...] = ("http", "chat", "responses", "messages")
EXCERPT = 160
BUSY = (429, 503, 529)
"""Statuses of an overloaded endpoint. 529 is Anthropic's."""
HOLDERS: Mapping[Api, str] = {"chat": "choices", "responses": "output", "messages": "content"}
"""For each API, the key that all of its answers have."""


def family_of(name: str) -> Family:
    """Returns the family of a check or a question, which is the first word of its name."""
    return next(family for family in FAMILIES if name.startswith(f"{family}."))


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """A request. `body`: a JSON value, or bytes.

    `leave`: disconnect after the first bytes of the answer. `bare`: send no API key. `x_api_key`: send the
    API key in the header `x-api-key` instead of `Authorization`.
    """

    path: str
    body: Any = None
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    leave: bool = False
    bare: bool = False
    x_api_key: bool = False
    query: str = ""

    @property
    def asked(self) -> Mapping[str, Any]:
        return self.body if isinstance(self.body, dict) else {}

    def but(self, **changes: Any) -> ProbeRequest:
        """Returns the request with other fields in its body. The value None removes a field."""
        merged = {key: value for key, value in {**self.asked, **changes}.items() if value is not None}
        return replace(self, body=merged)


@dataclass(frozen=True, slots=True)
class SeenCall:
    """A call as a client reads it. A call in the legacy format has no id."""

    id: str
    name: str
    arguments: str

    @property
    def object(self) -> Any:
        try:
            return json.loads(self.arguments)
        except (ValueError, RecursionError):
            return None


@dataclass(frozen=True, slots=True)
class ClientAnswer:
    """An answer as a client reads it, in the same form for all APIs, streamed or not."""

    text: str
    calls: tuple[SeenCall, ...]
    finish: str
    id: str


@dataclass(frozen=True)
class ProbeExchange:
    """A request and its answer. `status` is 0 if there is no answer.

    `trouble`: why the answer is missing or incomplete. `late`: whether the time limit was the reason.
    `wanting`: a sentence about what the model was asked to do and did not do in any attempt.
    """

    question: str
    request: ProbeRequest
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes = b""
    trouble: str = ""
    wanting: str = ""
    attempts: int = 1
    late: bool = False

    @property
    def family(self) -> Family:
        return family_of(self.question)

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300 and not self.trouble

    @property
    def busy(self) -> bool:
        return self.status in BUSY and not self.trouble

    @property
    def streamed(self) -> bool:
        return self.request.asked.get("stream") is True

    @property
    def api(self) -> Api:
        return "chat" if self.family == "http" else self.family

    @property
    def legacy(self) -> bool:
        return "functions" in self.request.asked

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @cached_property
    def json(self) -> Any:
        """The parsed body, or None if it is not JSON."""
        try:
            return json.loads(self.raw)
        except (ValueError, RecursionError):
            return None

    @cached_property
    def frames(self) -> list[Frame]:
        return split_sse(self.raw)[0]

    @cached_property
    def body(self) -> dict[str, Any]:
        """The body, or {} if there is none. For a stream: the body that a client assembles from it."""
        if not self.ok:
            return {}
        if not self.streamed:
            return self.json if isinstance(self.json, dict) else {}
        try:
            return fold(self.raw, self.api)
        except (RecursionError, TypeError, ValueError):
            return {}

    @property
    def foreign(self) -> bool:
        """Whether a successful answer has a body that is not an object of this API."""
        return self.ok and isinstance(self.json, dict) and HOLDERS[self.api] not in self.json

    @property
    def error(self) -> str:
        """The error message inside an answer with a success status; "" if there is none."""
        found = self.body.get("error")
        if found is None and self.foreign:  # the endpoint sent an object although a stream was requested
            found = self.json.get("error")
        return "" if found is None else _error_text(found)

    @cached_property
    def hollow(self) -> str:
        """Why there is nothing to check in the answer; "" if there is something to check."""
        if not self.raw or not (self.streamed or self.body):
            return "the answer is empty or cannot be read"
        if self.family == "http":
            return ""
        held = mappings(self.body.get(HOLDERS[self.api]))
        if self.api == "chat":
            held = [choice for choice in held if choice.get("finish_reason") or _says(choice.get("message"))]
        return "" if held else f"the answer contains no {HOLDERS[self.api]}"

    @cached_property
    def answer(self) -> ClientAnswer:
        return _READERS[self.api](self.body)

    @property
    def called(self) -> tuple[str, ...]:
        return tuple(call.name for call in self.answer.calls)

    def excerpt(self, position: int = -1) -> str:
        """Returns the beginning of the stream's frame at `position`, or else the beginning of the body."""
        if self.streamed and 0 <= position < len(self.frames):
            text = self.frames[position].data
            return _short(text[max(text.find('"choices"'), 0) :])
        return _short(self.raw[: 8 * EXCERPT].decode("utf-8", "replace"))

    @property
    def refusal(self) -> str:
        """The status and error message of the answer."""
        error = mapping(self.json).get("error")
        return f"HTTP {self.status}" if error is None else f"HTTP {self.status}: {_error_text(error)}"


def _says(message: Any) -> bool:
    return any(value is not None for value in mapping(message).values())


def _error_text(error: Any) -> str:
    """Returns the message of an error. Some servers send a string instead of the API's error object."""
    message = error.get("message") if isinstance(error, dict) else error
    return message[:200] if isinstance(message, str) and message else "an error without a message"


_LONG = re.compile(r"[\w-]{28,}")


def _short(text: str) -> str:
    """Returns the beginning of the text, with long ids shortened."""
    return _LONG.sub(lambda found: f"{found[0][:10]}…", text[: 8 * EXCERPT])[:EXCERPT]


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def mappings(value: Any) -> Sequence[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _call(id: Any, function: Mapping[str, Any]) -> SeenCall:
    """Reads a call.

    Arguments that are an object instead of a text are accepted here. Another check reports them.
    """
    arguments = function.get("arguments", function.get("input"))
    text = json.dumps(arguments) if isinstance(arguments, dict) else text_of(arguments)
    return SeenCall(text_of(id), text_of(function.get("name")), text)


def _read_chat(body: Mapping[str, Any]) -> ClientAnswer:
    choice = next(iter(mappings(body.get("choices"))), {})
    message = mapping(choice.get("message"))
    calls = [
        _call(call.get("id"), mapping(call.get("function"))) for call in mappings(message.get("tool_calls"))
    ]
    if isinstance(message.get("function_call"), dict):
        calls.append(_call("", message["function_call"]))
    text, finish = text_of(message.get("content")), text_of(choice.get("finish_reason"))
    return ClientAnswer(text, tuple(calls), finish, text_of(body.get("id")))


def _read_responses(body: Mapping[str, Any]) -> ClientAnswer:
    items = mappings(body.get("output"))
    messages = [item for item in items if item.get("type") == "message"]
    parts = [part for item in messages for part in mappings(item.get("content"))]
    kinds = ("function_call", "custom_tool_call")
    calls = [_call(item.get("call_id"), item) for item in items if item.get("type") in kinds]
    text = "".join(text_of(part.get("text")) for part in parts)
    return ClientAnswer(text, tuple(calls), text_of(body.get("status")), text_of(body.get("id")))


def _read_messages(body: Mapping[str, Any]) -> ClientAnswer:
    blocks = mappings(body.get("content"))
    calls = [_call(block.get("id"), block) for block in blocks if block.get("type") == "tool_use"]
    text = "".join(text_of(block.get("text")) for block in blocks if block.get("type") == "text")
    return ClientAnswer(text, tuple(calls), text_of(body.get("stop_reason")), text_of(body.get("id")))


_READERS: Mapping[Api, Callable[[Mapping[str, Any]], ClientAnswer]] = {
    "chat": _read_chat,
    "responses": _read_responses,
    "messages": _read_messages,
}

"""A request and what came back, read as a client reads it. Pure; whatever an endpoint sends, reading it never raises."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from toolwire.conform.judge import Frame, fold, split_sse
from toolwire.core.turn import Api

Family = Literal["http", "chat", "responses"]
EXCERPT = 160
BUSY = (429, 503)
"""Says nothing of the endpoint but that it has no time."""
HOLDERS: Mapping[Api, str] = {"chat": "choices", "responses": "output"}
"""The key without which an object is no answer."""


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """`body`: what becomes JSON, or the bytes as they are. `leave` hangs up after the first bytes of the answer. `bare`: without the key."""

    path: str
    body: Any = None
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    leave: bool = False
    bare: bool = False

    @property
    def asked(self) -> Mapping[str, Any]:
        return self.body if isinstance(self.body, dict) else {}

    def but(self, **changes: Any) -> ProbeRequest:
        """With other fields in its body; None takes one away."""
        merged = {key: value for key, value in {**self.asked, **changes}.items() if value is not None}
        return replace(self, body=merged)


@dataclass(frozen=True, slots=True)
class SeenCall:
    """A call as a client has it in hand. Legacy calls have no id."""

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
    """What the answer means to a client, whichever API and form it came in."""

    text: str
    calls: tuple[SeenCall, ...]
    finish: str
    id: str


@dataclass(frozen=True)
class ProbeExchange:
    """`trouble`: why there is no whole answer; `late`: because of the time limit. `wanting`: what the model was asked for and would
    not do, in as many attempts as there were.

    `status` 0: nothing came."""

    question: str
    family: Family
    request: ProbeRequest
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes = b""
    trouble: str = ""
    wanting: str = ""
    attempts: int = 1
    late: bool = False

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
        return "responses" if self.family == "responses" else "chat"

    @property
    def legacy(self) -> bool:
        return "functions" in self.request.asked

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @cached_property
    def json(self) -> Any:
        """The body, or None where it is no JSON."""
        try:
            return json.loads(self.raw)
        except (ValueError, RecursionError):
            return None

    @cached_property
    def frames(self) -> list[Frame]:
        return split_sse(self.raw)[0]

    @cached_property
    def body(self) -> dict[str, Any]:
        """The answer in the shape of a body: the body itself, or the fold of the stream. {} where there is none."""
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
        """A success whose body is an object, but none of this API."""
        return self.ok and isinstance(self.json, dict) and HOLDERS[self.api] not in self.json

    @property
    def error(self) -> str:
        """What an answer that counts as a success says of an error in it, whatever the error's shape; "": it has none."""
        found = self.body.get("error")
        if found is None and self.foreign:  # also in place of a stream
            found = self.json.get("error")
        return "" if found is None else _error_text(found)

    @cached_property
    def hollow(self) -> str:
        """Why there is nothing in the answer to look at; "": there is something."""
        if self.family == "http":
            return "" if self.body else "the answer is empty or can not be read"
        if not self.raw or not (self.streamed or self.body):
            return "the answer is empty or can not be read"
        held = mappings(self.body.get(HOLDERS[self.api]))
        if self.api == "chat":
            held = [
                choice
                for choice in held
                if choice.get("finish_reason")
                or any(value is not None for value in mapping(choice.get("message")).values())
            ]
        return "" if held else f"the answer holds no {HOLDERS[self.api]}"

    @cached_property
    def answer(self) -> ClientAnswer:
        return _read_chat(self.body) if self.api == "chat" else _read_responses(self.body)

    @property
    def called(self) -> tuple[str, ...]:
        return tuple(call.name for call in self.answer.calls)

    def excerpt(self, position: int = -1) -> str:
        """The frame at the position as it came, or the beginning of the body."""
        if self.streamed and 0 <= position < len(self.frames):
            text = self.frames[position].data
            return _short(text[max(text.find('"choices"'), 0) :])
        return _short(self.raw[: 8 * EXCERPT].decode("utf-8", "replace"))

    @property
    def refusal(self) -> str:
        """What an error says, in one sentence."""
        error = mapping(self.json).get("error")
        return f"HTTP {self.status}" if error is None else f"HTTP {self.status}: {_error_text(error)}"


def _error_text(error: Any) -> str:
    """Errors of OpenAI's shape have a message; other servers send a text in its place."""
    message = error.get("message") if isinstance(error, dict) else error
    return message[:200] if isinstance(message, str) and message else "an error without a message"


def _short(text: str) -> str:
    """The beginning of a frame, with what is long and says nothing (ids) cut."""
    return _LONG.sub(lambda found: f"{found[0][:10]}…", text[: 8 * EXCERPT])[:EXCERPT]


_LONG = re.compile(r"[\w-]{28,}")


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def mappings(value: Any) -> Sequence[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _read_chat(body: Mapping[str, Any]) -> ClientAnswer:
    choice = next(iter(mappings(body.get("choices"))), {})
    message = mapping(choice.get("message"))
    calls = [_chat_call(call) for call in mappings(message.get("tool_calls"))]
    if isinstance(message.get("function_call"), dict):
        calls.append(
            SeenCall(
                "",
                text_of(message["function_call"].get("name")),
                _arguments(message["function_call"].get("arguments")),
            )
        )
    return ClientAnswer(
        text_of(message.get("content")),
        tuple(calls),
        text_of(choice.get("finish_reason")),
        text_of(body.get("id")),
    )


def _arguments(value: Any) -> str:
    """An object where its text belongs is told by a check of its own; here it is read."""
    return json.dumps(value) if isinstance(value, dict) else text_of(value)


def _chat_call(call: Mapping[str, Any]) -> SeenCall:
    function = mapping(call.get("function"))
    return SeenCall(
        text_of(call.get("id")), text_of(function.get("name")), _arguments(function.get("arguments"))
    )


def _read_responses(body: Mapping[str, Any]) -> ClientAnswer:
    items = mappings(body.get("output"))
    parts = [
        part for item in items if item.get("type") == "message" for part in mappings(item.get("content"))
    ]
    calls = [
        SeenCall(
            text_of(item.get("call_id")),
            text_of(item.get("name")),
            _arguments(item.get("arguments", item.get("input"))),
        )
        for item in items
        if item.get("type") in ("function_call", "custom_tool_call")
    ]
    return ClientAnswer(
        "".join(text_of(part.get("text")) for part in parts),
        tuple(calls),
        text_of(body.get("status")),
        text_of(body.get("id")),
    )

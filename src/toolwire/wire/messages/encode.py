"""Encodes steps as Anthropic's Messages API: a stream of events (`MessagesEncoder`) or one body
(`MessagesBody`).

Law 3: a body is the fold of the same steps. Law 6: there is one `message_start`; content blocks are numbered
from 0 without a gap, and one is open at a time; arguments are increments. Law 7: a delta is a prepared
prefix, the text's JSON and a prepared suffix.

- `message_start` is sent with the first output, at the latest with the end. The number of input tokens is
  mostly unknown then; `message_delta` has it.
- `feed` never sends the last events. `finish` does: `message_delta` and `message_stop`, or `error`, which
  ends the stream. The block that an error breaks off is not closed.
- A thought without a signature has none: Anthropic itself would refuse it, other models do not need one.
- `input` is an object on this wire. A complete call whose arguments are not one ends the answer with an
  error; the arguments of a call that was cut off are read as far as they go.
- Toolwire's count of input tokens includes cached ones, Anthropic's does not.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from toolwire.core.errors import ToolwireError, status_of
from toolwire.core.events import Event, Failure, Signature, Text, Thought, Usage
from toolwire.core.ids import IdFactory
from toolwire.core.turn import Thoughts
from toolwire.wire.order import IN_TEXT, Close, Delta, End, Fail, Item, Open, Order, Sign, Step
from toolwire.wire.sse import comment_frame, encode, joined

PING = b'event: ping\ndata: {"type": "ping"}\n\n'
"""Keeps a silent stream alive."""

STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
DELTAS: dict[str, tuple[str, str]] = {
    "text": ("text_delta", "text"),
    "refusal": ("text_delta", "text"),
    "thought": ("thinking_delta", "thinking"),
    "summary": ("thinking_delta", "thinking"),
    "function": ("input_json_delta", "partial_json"),
    "custom": ("input_json_delta", "partial_json"),
}
"""The type of a delta, and the member with its text, by the kind of the open item."""
NOT_SENT: dict[Thoughts, tuple[type[Event], ...]] = {
    "shown": (),
    "signed": (Thought,),
    "hidden": (Thought, Signature),
}
"""The events that a client does not want."""
UNREADABLE = "The model called the tool '{}' with arguments that are not a JSON object."


# --- errors ---

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""Anthropic's error types by status. Other 4xx are `invalid_request_error`, other 5xx `api_error`."""
TOO_LONG = "prompt is too long"
"""Claude Code shortens the conversation when an error says this."""


def error_object(failure: Failure, request_id: str = "") -> dict[str, Any]:
    """Anthropic's error object, for an HTTP error body or the `error` event of a stream."""
    status = status_of(failure, "messages")
    message = failure.message
    if failure.kind == "context_length" and TOO_LONG not in message:
        message = f"{TOO_LONG}: {message}"
    default = "invalid_request_error" if status < 500 else "api_error"
    error: dict[str, Any] = {"type": ERROR_TYPES.get(status, default), "message": message}
    if failure.code is not None:
        error["details"] = {"error_code": failure.code}
    body: dict[str, Any] = {"type": "error", "error": error}
    return {**body, "request_id": request_id} if request_id else body


# --- answers ---


def usage_object(usage: Usage | None) -> dict[str, int]:
    usage = usage or Usage(0, 0)
    return {
        "input_tokens": max(0, usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens),
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
    }


def partial_object(text: str) -> dict[str, Any]:
    """The members of a JSON object that was cut off, as far as they are complete.

    The SDKs read the same from a stream that ends there.
    """
    closers: list[str] = []
    best, in_string, is_key, escaped = "", False, False, False
    for place, char in enumerate(text):
        if in_string:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == '"':
                in_string = False
                if not is_key:
                    best = text[: place + 1] + "".join(reversed(closers))
        elif char == '"':
            in_string = True
            before = text[:place].rstrip()[-1:]
            is_key = bool(closers) and closers[-1] == "}" and before in "{,"
        elif char in "{[":
            closers.append("}" if char == "{" else "]")
            best = text[: place + 1] + "".join(reversed(closers))
        elif char in "}]" and closers:
            closers.pop()
            best = text[: place + 1] + "".join(reversed(closers))
        elif char == ",":
            best = text[:place] + "".join(reversed(closers))
    for candidate in (
        text + "".join(reversed(closers)),
        best,
    ):  # the first one ends in a whole number, or not
        try:
            found = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        return found if isinstance(found, dict) else {}
    return {}


class _MessagesAnswer:
    """The state of a stream or body."""

    stored = True
    keep = None
    """Messages are not stored."""

    def __init__(self, model: str, *, id: str, ids: IdFactory, thoughts: Thoughts = "shown") -> None:
        self.id = id
        self.failure: Failure | None = None
        self._model = model
        self._dropped = NOT_SENT[thoughts]
        self._order = Order(ids, signed=True)
        self._refused = False
        self._parts: list[str] = []  # the text of the open call
        self._end: dict[str, Any] = {}

    @property
    def usage(self) -> Usage | None:
        return self._order.usage

    @property
    def dropped(self) -> dict[str, int]:
        """What was dropped, by kind."""
        return self._order.dropped

    def _steps(self, events: Sequence[Event]) -> list[Step]:
        if self._dropped:
            events = [event for event in events if not isinstance(event, self._dropped)]
        return self._order.feed(events)

    def _message(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }

    def _ended(self, step: End) -> None:
        """The members of the message that its end sets."""
        reason = STOP_REASONS[step.reason]
        if step.reason == "stop" and self._refused:
            reason = "refusal"
        elif step.reason == "stop" and step.stop is not None:
            reason = "stop_sequence"
        elif step.reason == "length" and step.window:
            reason = "model_context_window_exceeded"
        self._end = {"stop_reason": reason, "stop_sequence": step.stop if reason == "stop_sequence" else None}
        if reason == "refusal":
            self._end["stop_details"] = {"type": "refusal", "category": None, "explanation": None}

    def _arguments(self, step: Close) -> dict[str, Any] | None:
        """The arguments of the call that closes; None, and a failure, if they are no JSON object."""
        text = joined(self._parts)
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            return found
        if step.status == "incomplete":
            return partial_object(text)
        self._fail(Failure("invalid_tool_call", UNREADABLE.format(step.item.name[:80])))
        return None

    def _fail(self, failure: Failure) -> None:
        self.failure = failure
        self._order.stop()


def _block(item: Item) -> dict[str, Any]:
    """The content block of an item before its text."""
    if item.kind in ("function", "custom"):
        return {"type": "tool_use", "id": item.call_id, "name": item.name, "input": {}}
    if item.kind in ("thought", "summary"):
        return {"type": "thinking", "thinking": "", "signature": ""}
    if item.kind == "redacted":
        return {"type": "redacted_thinking", "data": ""}
    return {"type": "text", "text": ""}


class MessagesEncoder(_MessagesAnswer):
    """A streamed response. `feed` returns the frames of a batch as one block; `finish` ends the stream."""

    def __init__(self, model: str, *, id: str, ids: IdFactory, thoughts: Thoughts = "shown") -> None:
        super().__init__(model, id=id, ids=ids, thoughts=thoughts)
        self._begun = False
        self._before = b""  # the bytes before the text of the open block's deltas

    def feed(self, events: Sequence[Event], choice: int = 0) -> bytes:
        """The frames of a batch of events, possibly none."""
        return self._frames(self._steps(events))

    def say(self, text: str) -> bytes:
        """As `feed` for one text, which is nearly every batch of a stream."""
        if self._order.row is not IN_TEXT or not text:
            return self.feed([Text(text)])
        return b"%b%b}}\n\n" % (self._before, encode(text))

    def finish(self, comment: str | None = None) -> bytes:
        """The end of the stream: comment, `message_delta` and `message_stop`; or the error that ended it."""
        frames = [self._frames(self._order.finish())]
        if comment is not None:
            frames.append(comment_frame(comment))
        if self.failure is not None:
            frames.append(_frame("error", error_object(self.failure)))
        else:
            self._begin(frames)
            usage = usage_object(self.usage)
            frames.append(
                _frame("message_delta", {"type": "message_delta", "delta": self._end, "usage": usage})
            )
            frames.append(_frame("message_stop", {"type": "message_stop"}))
        return b"".join(frames)

    def _begin(self, frames: list[bytes]) -> None:
        if not self._begun:
            self._begun = True
            message = {**self._message(), "usage": {**usage_object(self.usage), "output_tokens": 0}}
            frames.append(_frame("message_start", {"type": "message_start", "message": message}))

    def _frames(self, steps: list[Step]) -> bytes:
        frames: list[bytes] = []
        for step in steps:
            if type(step) is Delta:
                frames += (self._before, encode(step.text), b"}}\n\n")
                if step.item.kind == "function":
                    self._parts.append(step.text)
            elif type(step) is Open:
                self._begin(frames)
                self._open(step.item, frames)
            elif type(step) is Sign:
                self._sign(step, frames)
            elif type(step) is Close:
                if step.status == "incomplete" and type(steps[-1]) is Fail:
                    continue  # a client would take the block as whole, and run a call
                if step.item.kind == "function" and self._arguments(step) is None:
                    break
                index = step.item.index
                frames.append(_frame("content_block_stop", {"type": "content_block_stop", "index": index}))
            elif type(step) is End:
                self._ended(step)
            elif type(step) is Fail:
                self._fail(step.failure)
        return b"".join(frames)

    def _open(self, item: Item, frames: list[bytes]) -> None:
        self._parts = []
        self._refused = self._refused or item.kind == "refusal"
        if item.kind == "redacted":  # its block is sent whole
            return
        start = {"type": "content_block_start", "index": item.index, "content_block": _block(item)}
        frames.append(_frame("content_block_start", start))
        kind, member = DELTAS[item.kind]
        self._before = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
            b'"delta":{"type":"%b","%b":' % (item.index, kind.encode(), member.encode())
        )

    def _sign(self, step: Sign, frames: list[bytes]) -> None:
        index = step.item.index
        if step.item.kind == "redacted":
            block = {**_block(step.item), "data": step.text}
            start = {"type": "content_block_start", "index": index, "content_block": block}
            frames.append(_frame("content_block_start", start))
            return
        delta = {"type": "signature_delta", "signature": step.text}
        signed = {"type": "content_block_delta", "index": index, "delta": delta}
        frames.append(_frame("content_block_delta", signed))


class MessagesBody(_MessagesAnswer):
    """A response in one piece: `feed` every batch, then `body`, which raises the failure of the run."""

    def __init__(self, model: str, *, id: str, ids: IdFactory, thoughts: Thoughts = "shown") -> None:
        super().__init__(model, id=id, ids=ids, thoughts=thoughts)
        self._content: list[dict[str, Any]] = []

    def feed(self, events: Sequence[Event], choice: int = 0) -> bytes:
        """Returns nothing: the body is sent whole."""
        self._fold(self._steps(events))
        return b""

    def say(self, text: str) -> bytes:
        return self.feed([Text(text)])

    def body(self) -> dict[str, Any]:
        """The message object."""
        self._fold(self._order.finish())
        if self.failure is not None:
            raise ToolwireError.of(self.failure)
        return {**self._message(), "content": self._content, **self._end, "usage": usage_object(self.usage)}

    def finish(self, comment: str | None = None) -> bytes:
        """The body. JSON has no comments, so `comment` is not sent."""
        return encode(self.body())

    def _fold(self, steps: list[Step]) -> None:
        for step in steps:
            if type(step) is Delta:
                self._parts.append(step.text)
            elif type(step) is Open:
                self._parts = []
                self._refused = self._refused or step.item.kind == "refusal"
                self._content.append(_block(step.item))
            elif type(step) is Sign:
                member = "data" if step.item.kind == "redacted" else "signature"
                self._content[-1][member] = step.text
            elif type(step) is Close:
                self._close(step)
            elif type(step) is End:
                self._ended(step)
            elif type(step) is Fail:
                self._fail(step.failure)

    def _close(self, step: Close) -> None:
        kind, block = step.item.kind, self._content[-1]
        if kind == "function":
            block["input"] = self._arguments(step)
        elif kind != "redacted":
            block[DELTAS[kind][1]] = joined(self._parts)


def _frame(event: str, body: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event.encode(), encode(body))

"""Encodes steps for Anthropic's Messages API, as a stream or as one body.

A body is built from the same steps as the stream (law 3). No event contradicts an earlier one (law 6): there
is one `message_start`; content blocks are numbered from 0 without a gap, and one is open at a time; arguments
are increments. The cost of an event does not grow with the answer, because most of its JSON is prepared (law
7). The laws are in docs/architecture.md.

- `message_start` is sent with the first output, or with the end if there is no output. At that time, the
  number of input tokens is usually not known; `message_delta` has this number.
- `feed` never sends the last events. `finish` sends them: `message_delta` and `message_stop`, or `error`,
  which ends the stream. If an error breaks off a block, this block is not closed.
- A thought without a signature is sent with an empty signature. Anthropic would refuse such a thought if a
  client sent it back; other models do not need a signature.
- `input` is an object in this API. A complete call whose arguments are not an object ends the answer with an
  error. If a call was cut off, its `input` in a body has only the members that are complete.
- Toolwire's count of input tokens includes cached tokens, Anthropic's count does not.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NoReturn

import msgspec

from toolwire.core.errors import ToolwireError, status_of
from toolwire.core.events import Event, Failure, Signature, Text, Thought, Usage
from toolwire.core.ids import IdFactory
from toolwire.core.partial_call import partial_object
from toolwire.core.turn import Thoughts
from toolwire.wire.order import (
    CALL_KINDS,
    IN_TEXT,
    WHOLE_KINDS,
    Close,
    Delta,
    End,
    Fail,
    Item,
    Open,
    Order,
    Sign,
    Step,
)
from toolwire.wire.sse import comment_frame, encode, joined

PING = b'event: ping\ndata: {"type": "ping"}\n\n'
"""An event that keeps a silent stream alive."""

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
"""For each kind of item: the type of its deltas, and the member of a delta that holds the text."""
NOT_SENT: dict[Thoughts, tuple[type[Event], ...]] = {
    "shown": (),
    "signed": (Thought,),
    "hidden": (Thought, Signature),
}
"""The events that the client does not receive, by the value of `Turn.thoughts`."""
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
"""Anthropic's error types by HTTP status. Other 4xx: `invalid_request_error`; other 5xx: `api_error`."""
TOO_LONG = "prompt is too long"
"""A text in an error message that makes Claude Code shorten the conversation."""


def error_object(failure: Failure, request_id: str = "") -> dict[str, Any]:
    """Returns Anthropic's error object.

    This object is the body of an HTTP error, or the data of a stream's `error` event.
    """
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


def usage_object(usage: Usage | None) -> dict[str, Any]:
    usage = usage or Usage(0, 0)
    return {
        "input_tokens": max(0, usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens),
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
        **(usage.extra or {}),
    }


class _MessagesAnswer:
    """The state of a message, streamed or whole."""

    stored = True
    keep = None
    """Always None, because Toolwire does not store messages."""

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
        """What was dropped: a count for each `Dropped.kind`."""
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
        """Sets the members of the message that depend on how the run ended."""
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
        self._end |= step.extra or {}

    def _arguments(self, step: Close) -> msgspec.Raw | None:
        """Returns the arguments of the call that closes, as JSON.

        If the arguments are not a JSON object, records a failure and returns None.
        """
        text = joined(self._parts)
        if _is_object(text):
            return msgspec.Raw(text.encode())
        if step.status == "incomplete":
            return msgspec.Raw(json.dumps(partial_object(text)).encode())
        self._fail(Failure("invalid_tool_call", UNREADABLE.format(step.item.name[:80])))
        return None

    def _fail(self, failure: Failure) -> None:
        self.failure = self.failure or failure
        self._order.stop()


def _is_object(text: str) -> bool:
    """Whether the text is one JSON object. JSON has no NaN and Infinity, which Python would accept."""
    try:
        return isinstance(json.loads(text, parse_constant=_refuse), dict)
    except (ValueError, RecursionError):
        return False


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _block(item: Item) -> dict[str, Any]:
    """Returns the content block with which an item begins, still without text."""
    if item.kind in CALL_KINDS:
        return {"type": "tool_use", "id": item.call_id, "name": item.name, "input": {}}
    if item.kind in ("thought", "summary"):
        return {"type": "thinking", "thinking": "", "signature": ""}
    if item.kind == "redacted":
        return {"type": "redacted_thinking", "data": ""}
    if item.kind == "block":
        return {}
    return {"type": "text", "text": ""}


def _whole(step: Sign) -> dict[str, Any]:
    """Returns the content block of an item whose whole content is in one `Sign`."""
    found: dict[str, Any]
    found = json.loads(step.text) if step.item.kind == "block" else {**_block(step.item), "data": step.text}
    return found


class MessagesEncoder(_MessagesAnswer):
    """A streamed message.

    `feed` returns the server-sent events for a batch of events; `finish` ends the stream.
    """

    def __init__(self, model: str, *, id: str, ids: IdFactory, thoughts: Thoughts = "shown") -> None:
        super().__init__(model, id=id, ids=ids, thoughts=thoughts)
        self._begun = False
        self._before = b""  # the bytes before the text in a delta of the open block

    def feed(self, events: Sequence[Event], choice: int = 0) -> bytes:
        """Returns the server-sent events for a batch of events, joined to one block, which may be empty."""
        return self._frames(self._steps(events))

    def say(self, text: str) -> bytes:
        """Encodes one text. Does the same as `feed` with a single `Text`, but faster."""
        if self._order.row is not IN_TEXT or not text:
            return self.feed([Text(text)])
        return b"%b%b}}\n\n" % (self._before, encode(text))

    def finish(self, comment: str | None = None) -> bytes:
        """Returns the end of the stream: the comment, `message_delta` and `message_stop`.

        If the run failed, the event `error` replaces `message_delta` and `message_stop`.
        """
        frames = [self._frames(self._order.finish())]
        if comment is not None:
            frames.append(comment_frame(comment))
        if self.failure is not None:
            frames.append(_frame("error", error_object(self.failure)))
        else:
            self._begin(frames)
            end: dict[str, Any] = {"type": "message_delta", "delta": self._end}
            if "context_management" in self._end:
                end["context_management"] = self._end.pop("context_management")
            frames.append(_frame("message_delta", {**end, "usage": usage_object(self.usage)}))
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
                if step.item.kind in CALL_KINDS:
                    self._parts.append(step.text)
            elif type(step) is Open:
                self._begin(frames)
                self._open(step.item, frames)
            elif type(step) is Sign:
                self._sign(step, frames)
            elif type(step) is Close:
                if step.status == "incomplete" and type(steps[-1]) is Fail:
                    continue  # a client would take a closed block for complete, and run its call
                if step.item.kind in CALL_KINDS and self._arguments(step) is None:
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
        if item.kind in WHOLE_KINDS:  # `_sign` sends its whole block
            return
        start = {"type": "content_block_start", "index": item.index, "content_block": _block(item)}
        frames.append(_frame("content_block_start", start))
        kind, member = DELTAS[item.kind]
        self._before = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
            b'"delta":{"type":"%b","%b":' % (item.index, kind.encode(), member.encode())
        )

    def _sign(self, step: Sign, frames: list[bytes]) -> None:
        if step.item.kind == "text":
            citation = json.loads(step.text)
            frames.append(_delta(step.item, {"type": "citations_delta", "citation": citation}))
            return
        if step.item.kind not in WHOLE_KINDS:
            frames.append(_delta(step.item, {"type": "signature_delta", "signature": step.text}))
            return
        block = _whole(step)
        given = block.get("input")
        if given is not None:  # clients read `input` only from deltas, as they do for a call
            block["input"] = {}
        start = {"type": "content_block_start", "index": step.item.index, "content_block": block}
        frames.append(_frame("content_block_start", start))
        if given:
            arguments = json.dumps(given, ensure_ascii=False)
            frames.append(_delta(step.item, {"type": "input_json_delta", "partial_json": arguments}))


class MessagesBody(_MessagesAnswer):
    """A message in one piece.

    `feed` takes the batches of events. Then `body` returns the message, or raises the failure of the run.
    """

    def __init__(self, model: str, *, id: str, ids: IdFactory, thoughts: Thoughts = "shown") -> None:
        super().__init__(model, id=id, ids=ids, thoughts=thoughts)
        self._content: list[dict[str, Any]] = []

    def feed(self, events: Sequence[Event], choice: int = 0) -> bytes:
        """Takes a batch of events. Returns no bytes, because the body is sent whole."""
        self._fold(self._steps(events))
        return b""

    def say(self, text: str) -> bytes:
        return self.feed([Text(text)])

    def body(self) -> dict[str, Any]:
        """Returns the message object, or raises the run's failure."""
        self._fold(self._order.finish())
        if self.failure is not None:
            raise ToolwireError.of(self.failure)
        return {**self._message(), "content": self._content, **self._end, "usage": usage_object(self.usage)}

    def finish(self, comment: str | None = None) -> bytes:
        """Returns the body as JSON. `comment` is not sent, because JSON has no comments."""
        return encode(self.body())

    def _fold(self, steps: list[Step]) -> None:
        for step in steps:
            if type(step) is Delta:
                self._parts.append(step.text)
            elif type(step) is Open:
                self._parts = []
                self._refused = self._refused or step.item.kind == "refusal"
                self._content.append(_block(step.item))
            elif type(step) is Sign and step.item.kind == "text":
                self._content[-1].setdefault("citations", []).append(json.loads(step.text))
            elif type(step) is Sign:
                whole = step.item.kind in WHOLE_KINDS
                self._content[-1] |= _whole(step) if whole else {"signature": step.text}
            elif type(step) is Close:
                self._close(step)
                if self.failure is not None:
                    break
            elif type(step) is End:
                self._ended(step)
            elif type(step) is Fail:
                self._fail(step.failure)

    def _close(self, step: Close) -> None:
        kind, block = step.item.kind, self._content[-1]
        if kind in CALL_KINDS:
            block["input"] = self._arguments(step)
        elif kind not in WHOLE_KINDS:
            block[DELTAS[kind][1]] = joined(self._parts)


def _delta(item: Item, delta: dict[str, Any]) -> bytes:
    body = {"type": "content_block_delta", "index": item.index, "delta": delta}
    return _frame("content_block_delta", body)


def _frame(event: str, body: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event.encode(), encode(body))

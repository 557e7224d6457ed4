"""Encodes steps for the Responses API: a stream of events, and the Response that ends it.

`response()` returns the object of the terminal event. It is also the body of a response that is not streamed,
and the stored response (law 3). No event contradicts an earlier one (law 6): sequence numbers count from 0
without a gap, and the deltas of an item add up to the text of its `.done` event. The cost of an event does
not grow with the answer, because most of its JSON is prepared (law 7). The laws are in docs/architecture.md.

- `response.created` and `response.in_progress` are sent with the first output, or with the end if there is no
  output.
- `feed` never sends the terminal event; `finish` does.
- A failure closes the open item as incomplete and ends the stream with `response.failed`.
- As at OpenAI, a reasoning item has no status unless it was cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolwire.core.errors import response_error
from toolwire.core.events import Event, Failure, McpAsk, McpCall, McpTools, Text, TokenLogprob, Usage
from toolwire.core.ids import IdFactory
from toolwire.core.turn import Turn
from toolwire.wire.order import IN_TEXT, Close, Delta, End, Fail, Item, Open, Order, Step
from toolwire.wire.responses import mcp
from toolwire.wire.sse import comment_frame, encode, joined, json_bytes, scrub

# --- shapes of items ---


@dataclass(frozen=True, slots=True)
class ItemPart:
    """A part of an item, such as a message's text.

    - `events`: the type of the part's events, without the suffix `.added` or `.done`.
    - `index`: the member of these events that has the part's position.
    - `field`: the member of the part that has the part's text.
    """

    events: str
    index: str
    part: dict[str, Any]
    field: str


@dataclass(frozen=True, slots=True)
class ItemShape:
    """How items of one kind look on the wire.

    - `events`: the type of the text's events, without the suffix `.delta` or `.done`.
    - `also`: further members of these events.
    - `text_field`: the member of the `.done` event that has the whole text.
    - `holder`: the member of the item that is the list of its parts, such as `content`.
    - `names_call`: whether the `.done` event has the call's name.
    """

    id_prefix: str
    item: dict[str, Any]
    events: str
    text_field: str
    part: ItemPart | None = None
    holder: str = ""
    also: dict[str, Any] | None = None
    names_call: bool = False


_MESSAGE = {"id": "", "type": "message", "status": "in_progress", "role": "assistant", "content": []}
_CALL = {"call_id": "", "name": "", "status": "in_progress"}


def _content(part: dict[str, Any], field: str = "text") -> ItemPart:
    return ItemPart("response.content_part", "content_index", part, field)


SHAPES: dict[str, ItemShape] = {
    "text": ItemShape(
        "msg_",
        _MESSAGE,
        "response.output_text",
        "text",
        _content({"type": "output_text", "annotations": [], "logprobs": [], "text": ""}),
        "content",
        {"logprobs": []},
    ),
    "refusal": ItemShape(
        "msg_",
        _MESSAGE,
        "response.refusal",
        "refusal",
        _content({"type": "refusal", "refusal": ""}, "refusal"),
        "content",
    ),
    "thought": ItemShape(
        "rs_",
        {"id": "", "type": "reasoning", "summary": [], "content": []},
        "response.reasoning_text",
        "text",
        _content({"type": "reasoning_text", "text": ""}),
        "content",
    ),
    "summary": ItemShape(
        "rs_",
        {"id": "", "type": "reasoning", "summary": []},
        "response.reasoning_summary_text",
        "text",
        ItemPart(
            "response.reasoning_summary_part", "summary_index", {"type": "summary_text", "text": ""}, "text"
        ),
        "summary",
    ),
    "function": ItemShape(
        "fc_",
        {"id": "", "type": "function_call", **_CALL, "arguments": ""},
        "response.function_call_arguments",
        "arguments",
        names_call=True,
    ),
    "custom": ItemShape(
        "ctc_",
        {"id": "", "type": "custom_tool_call", **_CALL, "input": ""},
        "response.custom_tool_call_input",
        "input",
    ),
}

INCOMPLETE_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}

OPEN_RESPONSES: Mapping[str, Any] = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "usage": None}


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


def response_template(turn: Turn, id: str, created: int) -> dict[str, Any]:
    """Returns the Response object before any output, with keys in OpenAI's order.

    Keys that may not be null in OpenAI's schema (`user`, `usage`) are omitted. For clients of the Open
    Responses specification, the members of `OPEN_RESPONSES` are added.
    """
    echo, sampling = turn.echo, turn.sampling
    response: dict[str, Any] = {
        "id": id,
        "object": "response",
        "created_at": created,
        "status": "in_progress",
        "background": False,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": echo.get("instructions", turn.instructions),
        "max_output_tokens": sampling.max_tokens,
        "max_tool_calls": echo.get("max_tool_calls"),
        "model": turn.model,
        "output": [],
        "parallel_tool_calls": turn.parallel,
        "previous_response_id": turn.previous_response_id,
        "prompt_cache_key": echo.get("prompt_cache_key"),
        "reasoning": {"effort": sampling.effort, "summary": sampling.summary, **echo.get("reasoning", {})},
        "safety_identifier": echo.get("safety_identifier"),
        "service_tier": "default",
        "store": turn.store,
        "temperature": 1.0 if sampling.temperature is None else sampling.temperature,
        "text": echo.get("text", {"format": {"type": "text"}, "verbosity": "medium"}),
        "tool_choice": echo.get("tool_choice", "auto"),
        "tools": echo.get("tools", []),
        "top_logprobs": echo.get("top_logprobs", 0),
        "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
        "truncation": echo.get("truncation", "disabled"),
        **(OPEN_RESPONSES if turn.open_responses else {}),
        "metadata": dict(turn.metadata),
    }
    if turn.user is not None:
        response["user"] = turn.user
    return response


def _brief(token: TokenLogprob) -> dict[str, Any]:
    """Returns a token's log probability without `bytes`, as OpenAI sends it in the events of a text."""
    top = [{"token": one["token"], "logprob": one["logprob"]} for one in token["top_logprobs"]]
    return {"token": token["token"], "logprob": token["logprob"], "top_logprobs": top}


# --- encoder ---


class ResponsesEncoder:
    """A streamed response of the Responses API.

    `feed` returns the server-sent events for a batch of events, `finish` ends the stream, and `response`
    returns the object with which the stream ended.
    """

    def __init__(
        self, turn: Turn, *, id: str, created: int, ids: IdFactory, clock: Callable[[], float] | None = None
    ) -> None:
        self.failure: Failure | None = None
        self._order = Order(ids)
        self._ids = ids
        self._clock = clock or (lambda: created)
        self._response = response_template(turn, id, created)
        self._namespaces = {tool.name: tool.namespace for tool in turn.tools if tool.namespace is not None}
        self._sequence = 0
        self._terminal = ""
        self._item: dict[str, Any] = {}  # the open item; `_shape` is its shape, `_parts` its text so far
        self._shape = SHAPES["text"]
        self._parts: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._around = (b"", b"", b"")  # the bytes around the sequence number and the text in a delta

    @property
    def usage(self) -> Usage | None:
        return self._order.usage

    @property
    def dropped(self) -> dict[str, int]:
        """What was dropped: a count for each `Dropped.kind`."""
        return self._order.dropped

    def feed(self, events: Sequence[Event], choice: int = 0) -> bytes:
        """Returns the server-sent events for a batch of events, joined to one block, which may be empty."""
        return self._frames(self._order.feed(events))

    def say(self, text: str) -> bytes:
        """Encodes one text. Does the same as `feed` with a single `Text`, but faster."""
        return b"".join(self._delta(text)) if self._order.row is IN_TEXT and text else self.feed([Text(text)])

    def finish(self, comment: str | None = None) -> bytes:
        """Returns the end of the stream: the open item's end, the comment and the terminal event."""
        frames = [self._frames(self._order.finish())]
        if not self._sequence:
            self._begin(frames)
        if comment is not None:
            frames.append(comment_frame(comment))
        frames.append(self._frame(f"response.{self._terminal}", {"response": self.response()}))
        return b"".join(frames)

    def response(self) -> dict[str, Any]:
        """Returns the Response so far; after the end, the object of the terminal event."""
        response = {**self._response, "output": list(self._response["output"])}
        if self._terminal and self.usage is not None:
            response["usage"] = usage_object(self.usage)
        return response

    def _frames(self, steps: list[Step]) -> bytes:
        frames: list[bytes] = []
        for step in steps:
            if type(step) is Delta:
                frames += self._delta(step.text)
                if step.logprobs and self._shape.also:  # refusals have no log probabilities in this API
                    self._logprobs += step.logprobs
                    frames[-1] = frames[-1].replace(b"[]", encode(list(map(_brief, step.logprobs))), 1)
            elif type(step) is Open:
                self._open(step.item, frames)
            elif type(step) is Close:
                self._close(step, frames)
            elif type(step) is End:
                self._end(step)
            elif type(step) is Fail:
                self._fail(step.failure)
        return b"".join(frames)

    def _delta(self, text: str) -> tuple[bytes, ...]:
        number, self._sequence = self._sequence, self._sequence + 1
        try:
            piece = json_bytes(text)
        except UnicodeEncodeError:
            text = scrub(text)
            piece = json_bytes(text)
        self._parts.append(text)
        before, between, after = self._around
        return before, b"%d" % number, between, piece, after

    def _frame(self, event: str, body: dict[str, Any]) -> bytes:
        data = encode({"type": event, "sequence_number": self._sequence, **body})
        self._sequence += 1
        return b"event: %b\ndata: %b\n\n" % (event.encode(), data)

    def _begin(self, frames: list[bytes]) -> None:
        ended = {"error": None, "incomplete_details": None, "completed_at": None}
        fresh = {**self._response, "status": "in_progress", "output": [], **ended}
        for event in ("response.created", "response.in_progress"):
            frames.append(self._frame(event, {"response": fresh}))

    def _open(self, item: Item, frames: list[bytes]) -> None:
        if not self._sequence:
            self._begin(frames)
        if item.mcp is not None:
            self._open_mcp(item, item.mcp, frames)
            return
        shape = self._shape = SHAPES[item.kind]
        self._parts, self._logprobs = [], []
        self._item = {**shape.item, "id": self._ids(shape.id_prefix)}
        if item.name or item.call_id:
            self._item.update(call_id=item.call_id, name=item.name)
            if item.name in self._namespaces:
                self._item["namespace"] = self._namespaces[item.name]
        added = {"output_index": item.index, "item": self._item}
        frames.append(self._frame("response.output_item.added", added))
        where = self._where(item)
        if shape.part is not None:
            frames.append(self._frame(f"{shape.part.events}.added", {**where, "part": shape.part.part}))
        event = f"{shape.events}.delta"
        self._around = (
            f'event: {event}\ndata: {{"type":"{event}","sequence_number":'.encode(),
            b"," + encode(where)[1:-1] + b',"delta":',
            (b"," + encode(shape.also)[1:] if shape.also else b"}") + b"\n\n",
        )

    def _open_mcp(self, item: Item, event: McpTools | McpAsk | McpCall, frames: list[bytes]) -> None:
        self._item = mcp.added(event)
        added = {"output_index": item.index, "item": self._item}
        frames.append(self._frame("response.output_item.added", added))
        where = {"item_id": event.id, "output_index": item.index}
        frames += [self._frame(kind, {**where, **more}) for kind, more in mcp.opening(event)]

    def _close_mcp(self, step: Close, event: McpTools | McpAsk | McpCall, frames: list[bytes]) -> None:
        done, before = mcp.done(self._item, event, step.result, step.status)
        where = {"item_id": event.id, "output_index": step.item.index}
        frames += [self._frame(kind, {**where, **more}) for kind, more in before]
        ended = {"output_index": step.item.index, "item": done}
        frames.append(self._frame("response.output_item.done", ended))
        self._response["output"].append(done)

    def _close(self, step: Close, frames: list[bytes]) -> None:
        if step.item.mcp is not None:
            self._close_mcp(step, step.item.mcp, frames)
            return
        item, shape, where = step.item, self._shape, self._where(step.item)
        text = joined(self._parts)
        name = {"name": item.name} if shape.names_call else {}
        whole = {**where, **name, shape.text_field: text, **(shape.also or {})}
        if self._logprobs:
            whole["logprobs"] = list(map(_brief, self._logprobs))
        frames.append(self._frame(f"{shape.events}.done", whole))
        done = dict(self._item)
        if shape.part is None:
            done[shape.text_field] = text
        else:
            part = {**shape.part.part, shape.part.field: text}
            if self._logprobs:
                part["logprobs"] = self._logprobs
            frames.append(self._frame(f"{shape.part.events}.done", {**where, "part": part}))
            done[shape.holder] = [part]
        if "status" in done or step.status == "incomplete":
            done["status"] = step.status
        frames.append(self._frame("response.output_item.done", {"output_index": item.index, "item": done}))
        self._response["output"].append(done)
        self._parts = []

    def _where(self, item: Item) -> dict[str, Any]:
        where: dict[str, Any] = {"item_id": self._item["id"], "output_index": item.index}
        if self._shape.part is not None:
            where[self._shape.part.index] = 0
        return where

    def _end(self, step: End) -> None:
        cut = INCOMPLETE_REASONS.get(step.reason)
        self._terminal = "incomplete" if cut else "completed"
        self._response["status"] = self._terminal
        if cut:
            self._response["incomplete_details"] = {"reason": cut}
        else:
            self._response["completed_at"] = int(self._clock())

    def _fail(self, failure: Failure) -> None:
        self.failure = failure
        self._terminal = "failed"
        self._response["status"] = "failed"
        self._response["error"] = response_error(failure)

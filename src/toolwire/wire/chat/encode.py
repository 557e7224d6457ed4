"""Encodes steps as chat completions: chunks (`ChatEncoder`) or one body (`ChatBody`).

Both classes consume the steps of `order.py`, so a body equals what a client accumulates from the chunks (law
3). No chunk contradicts an earlier one (law 6): the id, the type and the name of a call are sent once, and
the arguments follow in pieces. The cost of a chunk does not grow with the answer, because most of its JSON is
prepared (law 7). The laws are in docs/architecture.md.

- The first chunk of a choice has the role. Its `content` is null if a call or a refusal comes first, else "".
- `feed` never sends the last event. `finish` sends it: `[DONE]`, or the error object, which ends the stream
  without `[DONE]`.
- Reasoning is sent as `reasoning_content`, the field that servers and clients of open models use. OpenAI's
  API has no field for it.
- A custom tool's call has `type: "custom"`, and `name` and `input` in `custom`, also in a stream. OpenAI
  streams such calls too, although its chunk schema lists only `function` (openai-openapi issue 576).
- `service_tier` is omitted if the client asked for a tier, because only the upstream knows the tier that was
  used.
- Each choice is a separate run. The output tokens of all choices are added up, the prompt's tokens count
  once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from toolwire.core.errors import ToolwireError, error_object
from toolwire.core.events import Event, Failure, FinishReason, Text, TokenLogprob, Usage
from toolwire.core.ids import IdFactory
from toolwire.wire.order import CALL_KINDS, ENDED, IN_TEXT, Delta, End, Fail, Item, Open, Order, Step
from toolwire.wire.sse import DONE, comment_frame, data_frame, encode, joined

SERVICE_TIER = "default"
FINISH_REASONS: dict[FinishReason, str] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
}
LEGACY_REASONS = {**FINISH_REASONS, "tool_calls": "function_call"}
"""The names of the reasons for a client that uses legacy functions."""
DELTA_FIELDS = {
    "text": "content",
    "refusal": "refusal",
    "thought": "reasoning_content",
    "summary": "reasoning_content",
}
"""The field that holds an item's text, in a delta and in a message, by the kind of the item."""

ROLE: dict[str, dict[str, Any]] = {
    "text": {"role": "assistant", "content": "", "refusal": None},
    "refusal": {"role": "assistant", "content": None, "refusal": ""},
    **{kind: {"role": "assistant", "content": None, "refusal": None} for kind in CALL_KINDS},
}
"""The delta of a choice's first chunk, by the kind of its first item."""


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def logprobs_object(tokens: Mapping[str, Sequence[TokenLogprob]]) -> dict[str, Any]:
    """Returns the `logprobs` object of a choice.

    `tokens` has the tokens of the text as `content`, and those of the refusal as `refusal`. Both may be
    missing.
    """
    return {"content": tokens.get("content"), "refusal": tokens.get("refusal")}


def _with_logprobs(after: bytes, step: Delta) -> bytes:
    """Returns `after`, the bytes that follow a delta's text, with the step's log probabilities inserted."""
    logprobs = encode(logprobs_object({DELTA_FIELDS[step.item.kind]: step.logprobs}))
    return after.replace(b'"logprobs":null', b'"logprobs":' + logprobs, 1)


class _ChatAnswer:
    """The state of a stream or body: an `Order` for each choice, and the failure of the answer."""

    stored = True
    keep = None
    """Always None, because Toolwire does not store chat completions."""

    def __init__(self, id: str, ids: IdFactory, *, legacy: bool, choices: int) -> None:
        self.id = id
        self.failure: Failure | None = None
        self._legacy = legacy
        self._wire_reasons = LEGACY_REASONS if legacy else FINISH_REASONS
        self._orders = [Order(ids, single_call=legacy) for _ in range(choices)]

    @property
    def usage(self) -> Usage | None:
        """Returns the tokens of all choices together; None if no backend counted tokens."""
        total: Usage | None = None
        for order in self._orders:
            if order.usage is not None:
                total = order.usage if total is None else total.beside(order.usage)
        return total

    @property
    def dropped(self) -> dict[str, int]:
        """What was dropped: a count for each `Dropped.kind`."""
        total: Counter[str] = Counter()
        for order in self._orders:
            total.update(order.dropped)
        return total

    def _fail(self, failure: Failure) -> None:
        """Records the failure of one choice and ends all choices."""
        self.failure = failure
        for order in self._orders:
            order.stop()


class ChatEncoder(_ChatAnswer):
    """A streamed chat completion.

    `feed` returns the server-sent events for a batch of events; `finish` ends the stream.
    """

    def __init__(
        self,
        turn_model: str,
        *,
        id: str,
        created: int,
        ids: IdFactory,
        include_usage: bool = False,
        legacy: bool = False,
        choices: int = 1,
        tier: str | None = SERVICE_TIER,
    ) -> None:
        super().__init__(id, ids, legacy=legacy, choices=choices)
        self._first = self._orders[0]
        self._include_usage = include_usage
        envelope = {"id": id, "object": "chat.completion.chunk", "created": created, "model": turn_model}
        if tier is not None:
            envelope["service_tier"] = tier
        self._envelope = b"data: " + encode(envelope)[:-1]
        self._heads = [
            self._envelope + b',"choices":[{"index":%d,"delta":' % choice for choice in range(choices)
        ]
        self._close = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._tail = b',"logprobs":null,"finish_reason":null}]' + self._close
        self._around = [(b"", b"")] * choices
        """For each choice, the bytes before and after the text in a delta of its open item."""
        self._begun = [False] * choices

    def feed(self, events: Sequence[Event], choice: int = 0) -> bytes:
        """Returns the server-sent events for a batch of events, joined to one block, which may be empty."""
        return self._frames(self._orders[choice].feed(events), choice)

    def say(self, text: str) -> bytes:
        """Encodes one text of choice 0. Does the same as `feed` with a single `Text`, but faster."""
        if self._first.row is not IN_TEXT or not text:
            return self.feed([Text(text)])
        before, after = self._around[0]
        return b"%b%b%b" % (before, encode(text), after)

    def finish(self, comment: str | None = None) -> bytes:
        """Returns the end of the stream: the comment, the usage if requested, and `[DONE]`.

        If the run failed, the error replaces the usage and `[DONE]`.
        """
        frames: list[bytes] = []
        for choice, order in enumerate(self._orders):
            if order.row is not ENDED:
                frames.append(self._frames(order.finish(), choice))
        if comment is not None:
            frames.append(comment_frame(comment))
        if self.failure is not None:
            frames.append(data_frame(error_object(self.failure)))
        else:
            if self._include_usage:
                usage = encode(usage_object(self.usage or Usage(0, 0)))
                frames.append(self._envelope + b',"choices":[],"usage":%b}\n\n' % usage)
            frames.append(DONE)
        return b"".join(frames)

    def _frames(self, steps: list[Step], choice: int) -> bytes:
        frames: list[bytes] = []
        before, after = self._around[choice]
        for step in steps:
            if type(step) is Delta:
                frames += (before, encode(step.text), _with_logprobs(after, step) if step.logprobs else after)
            elif type(step) is Open:
                self._open(step.item, choice, frames)
                before, after = self._around[choice]
            elif type(step) is End:
                if not self._begun[choice]:
                    frames.append(self._chunk(ROLE["text"], choice))
                reason = self._wire_reasons[step.reason].encode()
                end = b'{},"logprobs":null,"finish_reason":"%b"}]' % reason
                frames.append(self._heads[choice] + end + self._close)
            elif type(step) is Fail:
                self._fail(step.failure)
        return b"".join(frames)

    def _open(self, item: Item, choice: int, frames: list[bytes]) -> None:
        first: dict[str, Any] = {} if self._begun[choice] else dict(ROLE.get(item.kind, ROLE["text"]))
        self._begun[choice] = True
        if item.kind not in CALL_KINDS:
            open_, close = b'{"%b":' % DELTA_FIELDS[item.kind].encode(), b"}"
        elif self._legacy:
            first["function_call"] = {"name": item.name, "arguments": ""}
            open_, close = b'{"function_call":{"arguments":', b"}}"
        else:
            first["tool_calls"] = [{"index": item.call_index, **_call(item, "")}]
            inner = b'"custom":{"input":' if item.kind == "custom" else b'"function":{"arguments":'
            open_, close = b'{"tool_calls":[{"index":%d,%b' % (item.call_index, inner), b"}}]}"
        if first:
            frames.append(self._chunk(first, choice))
        self._around[choice] = (self._heads[choice] + open_, close + self._tail)

    def _chunk(self, delta: dict[str, Any], choice: int) -> bytes:
        return self._heads[choice] + encode(delta) + self._tail


class ChatBody(_ChatAnswer):
    """A chat completion in one piece.

    `feed` takes the batches of events. Then `body` returns the completion, or raises the failure of the run.
    """

    def __init__(
        self,
        turn_model: str,
        *,
        id: str,
        created: int,
        ids: IdFactory,
        legacy: bool = False,
        choices: int = 1,
        tier: str | None = SERVICE_TIER,
    ) -> None:
        super().__init__(id, ids, legacy=legacy, choices=choices)
        self._tier = tier
        self._envelope = {"id": id, "object": "chat.completion", "created": created, "model": turn_model}
        self._items: dict[int, list[tuple[Item, list[str]]]] = defaultdict(list)
        """For each choice, its items, each with the parts of its text."""
        self._reasons: list[FinishReason] = ["stop"] * choices
        self._logprobs: dict[int, dict[str, list[TokenLogprob]]] = defaultdict(dict)
        """For each choice, the tokens of its text and of its refusal."""

    def feed(self, events: Sequence[Event], choice: int = 0) -> bytes:
        """Takes a batch of events. Returns no bytes, because the body is sent whole."""
        self._fold(self._orders[choice].feed(events), choice)
        return b""

    def say(self, text: str) -> bytes:
        return self.feed([Text(text)])

    def body(self) -> dict[str, Any]:
        """Returns the chat completion object, or raises the run's failure."""
        for choice, order in enumerate(self._orders):
            if order.row is not ENDED:
                self._fold(order.finish(), choice)
        if self.failure is not None:
            raise ToolwireError.of(self.failure)
        choices = []
        for index, reason in enumerate(self._reasons):
            tokens = self._logprobs[index]
            choices.append(
                {
                    "index": index,
                    "message": self._message(self._items[index]),
                    "logprobs": logprobs_object(tokens) if tokens else None,
                    "finish_reason": self._wire_reasons[reason],
                }
            )
        body: dict[str, Any] = {**self._envelope, "choices": choices}
        if (usage := self.usage) is not None:
            body["usage"] = usage_object(usage)
        if self._tier is not None:
            body["service_tier"] = self._tier
        return body

    def finish(self, comment: str | None = None) -> bytes:
        """Returns the body as JSON. `comment` is not sent, because JSON has no comments."""
        return encode(self.body())

    def _fold(self, steps: list[Step], choice: int) -> None:
        items = self._items[choice]
        for step in steps:
            if type(step) is Delta:
                items[-1][1].append(step.text)
                if step.logprobs:
                    self._logprobs[choice].setdefault(DELTA_FIELDS[step.item.kind], []).extend(step.logprobs)
            elif type(step) is Open:
                items.append((step.item, []))
            elif type(step) is End:
                self._reasons[choice] = step.reason
            elif type(step) is Fail:
                self._fail(step.failure)

    def _message(self, items: list[tuple[Item, list[str]]]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None, "annotations": []}
        calls: list[dict[str, Any]] = []
        for item, parts in items:
            text = joined(parts)
            if item.kind in CALL_KINDS and self._legacy:
                message["function_call"] = {"name": item.name, "arguments": text}
            elif item.kind in CALL_KINDS:
                calls.append(_call(item, text))
            else:
                field = DELTA_FIELDS[item.kind]
                message[field] = (message.get(field) or "") + text
        if calls:
            message["tool_calls"] = calls
        elif message["refusal"] is None and message["content"] is None and "function_call" not in message:
            message["content"] = ""  # an empty answer is an empty text, as in the stream's first chunk
        return message


def _call(item: Item, text: str) -> dict[str, Any]:
    body = {"name": item.name, "input" if item.kind == "custom" else "arguments": text}
    return {"id": item.call_id, "type": item.kind, item.kind: body}

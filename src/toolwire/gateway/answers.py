"""Builds the answer of a turn from its events: one class for each API, streamed or whole.

`feed` takes a batch of events and returns the next bytes of a stream. For a whole answer, `feed` returns no
bytes, and `finish` returns the body. Stream and body are built from the same events, so they cannot disagree
(law 3 in docs/architecture.md).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec

from toolwire.core.errors import ToolwireError
from toolwire.core.events import Event, Failure, Text
from toolwire.core.ids import IdFactory
from toolwire.core.turn import Turn
from toolwire.gateway.records import Memory
from toolwire.store.store import Store, StoredResponse
from toolwire.wire.chat.encode import SERVICE_TIER, ChatBody, ChatEncoder
from toolwire.wire.messages.encode import MessagesBody, MessagesEncoder
from toolwire.wire.responses import decode as decode_responses
from toolwire.wire.responses.encode import ResponsesEncoder
from toolwire.wire.sse import comment_frame

log = logging.getLogger("toolwire.gateway")
_encode = msgspec.json.Encoder().encode


class Answering(Protocol):
    """An answer that is being written: a stream or a whole body.

    `finish` returns the last bytes of the stream, or the body. If `keep` is not None, the caller must pass
    these bytes to `keep`, which stores the answer and returns the bytes to send. `stored` is False if storing
    the answer failed.
    """

    @property
    def id(self) -> str: ...

    @property
    def stored(self) -> bool: ...

    @property
    def keep(self) -> Callable[[bytes], Awaitable[bytes]] | None: ...

    @property
    def failure(self) -> Failure | None: ...

    def feed(self, events: list[Event], choice: int) -> bytes: ...

    def say(self, text: str) -> bytes: ...

    def finish(self, comment: str) -> bytes: ...


class ResponsesAnswer(ResponsesEncoder):
    """A response of the Responses API, as a stream.

    The response is stored before its end is sent, so a client that has received the end can refer to the
    response.
    """

    def __init__(
        self,
        turn: Turn,
        body: dict[str, Any],
        store: Store | None,
        key_id: str,
        ids: IdFactory,
        clock: Callable[[], float],
        memory: Memory | None = None,
    ) -> None:
        self._turn = turn
        self._memory = memory
        self._body = body
        self._store = store if turn.store else None
        self.stored = True
        self._key_id = key_id
        self.id = ids("resp_")
        self._created = int(clock())
        super().__init__(turn, id=self.id, created=self._created, ids=ids, clock=clock)

    async def keep(self, last: bytes) -> bytes:
        """Stores the response, and remembers it for the client's WebSocket if there is one.

        Returns the bytes to send. If storing failed, a stream also gets a comment that says so.
        """
        whole = self.response()
        if self._store is not None:
            try:
                await self._store.put(self._record(whole, _encode(whole) if self._turn.stream else last))
            except ToolwireError as error:
                log.error("response %s could not be stored: %s", self.id, error)
                self.stored = False
        if self._memory is not None and self.failure is None:
            stored = self._store is not None and self.stored
            self._memory.keep(self.id, decode_responses.stored_items(self._body, whole["output"]), stored)
        return last if self.stored or not self._turn.stream else comment_frame('{"stored":false}') + last

    def _record(self, whole: dict[str, Any], response: bytes) -> StoredResponse:
        before = (
            self._memory.loose if self._memory is not None else ()
        )  # the conversation before this response, if the store does not have that conversation
        return StoredResponse(
            id=self.id,
            key_id=self._key_id,
            created_at=self._created,
            model=self._turn.model,
            status=whole["status"],
            previous_response_id=None if before else self._turn.previous_response_id,
            response=response,
            input_items=_input_items(self._body, self._ids),
            items=(*before, *decode_responses.stored_items(self._body, whole["output"])),
        )


class ResponsesBody(ResponsesAnswer):
    """A response of the Responses API, as a whole body."""

    def feed(self, events: Sequence[Event], choice: int = 0) -> bytes:
        super().feed(events)
        return b""

    def say(self, text: str) -> bytes:
        super().say(text)
        return b""

    def finish(self, comment: str | None = None) -> bytes:
        super().finish()
        if self.failure is not None:
            raise ToolwireError.of(self.failure)
        return _encode(self.response())


def _input_items(body: dict[str, Any], ids: IdFactory) -> list[dict[str, Any]]:
    """Returns the input of this request as the API lists it: items with ids."""
    given = body.get("input")
    if isinstance(given, str):
        given = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": given}]}]
    out = []
    for item in given or ():
        item = dict(item)
        item.setdefault("type", "message")
        if isinstance(item.get("content"), str):
            kind = "output_text" if item.get("role") == "assistant" else "input_text"
            item["content"] = [{"type": kind, "text": item["content"]}]
        if not item.get("id"):
            item["id"] = ids(_PREFIXES.get(item["type"], "item_"))
        out.append(item)
    return out


_PREFIXES = {
    "message": "msg_",
    "function_call": "fc_",
    "function_call_output": "fco_",
    "reasoning": "rs_",
    "custom_tool_call": "ctc_",
    "mcp_approval_response": "mcpa_",
}


class EventsAnswer:
    """Collects the events of an answer, for callers in this process. Another object writes the bytes."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._answer: Answering | None = None

    def beside(self, answer: Answering) -> EventsAnswer:
        """Sets the `Answering` that writes the bytes, and returns this object.

        The journal records the bytes, even if the caller uses only the events.
        """
        self._answer = answer
        self.id, self.finish, self.keep = answer.id, answer.finish, answer.keep
        return self

    @property
    def failure(self) -> Failure | None:
        return None if self._answer is None else self._answer.failure

    @property
    def stored(self) -> bool:
        return self._answer is None or self._answer.stored

    def feed(self, events: list[Event], choice: int) -> bytes:
        assert self._answer is not None
        self.events += events
        return self._answer.feed(events, choice)

    def say(self, text: str) -> bytes:
        assert self._answer is not None
        self.events.append(Text(text))
        return self._answer.say(text)

    def taken(self) -> list[Event]:
        """Returns the events since the last call of `taken`."""
        events, self.events = self.events, []
        return events


def open_answer(
    turn: Turn,
    body: dict[str, Any],
    store: Store | None,
    key_id: str,
    ids: IdFactory,
    clock: Callable[[], float],
    memory: Memory | None = None,
) -> Answering:
    if turn.api == "responses":
        kind = ResponsesAnswer if turn.stream else ResponsesBody
        return kind(turn, body, store, key_id, ids, clock, memory)
    if turn.api == "messages":
        answer = MessagesEncoder if turn.stream else MessagesBody
        return answer(turn.model, id=ids("msg_"), ids=ids, thoughts=turn.thoughts)
    shared: dict[str, Any] = {
        "id": ids("chatcmpl-"),
        "created": int(clock()),
        "ids": ids,
        "legacy": turn.legacy_functions,
        "choices": turn.n,
        "tier": SERVICE_TIER if "service_tier" not in turn.sent else None,
    }
    if turn.stream:
        return ChatEncoder(turn.model, include_usage=turn.include_usage, **shared)
    return ChatBody(turn.model, **shared)

"""The answers that a turn can be written as, one for each API, streamed or whole.

`feed` takes the events of a batch and returns the bytes of a stream; a whole answer returns nothing before its `end`, which
then is the body (law 3: it is the fold of the same events).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from toolwire.core.errors import ToolwireError
from toolwire.core.events import Event, Failure, Text
from toolwire.core.ids import IdFactory
from toolwire.core.turn import Turn
from toolwire.gateway.records import Memory
from toolwire.store.store import Store, StoredResponse
from toolwire.wire.chat.encode import SERVICE_TIER, ChatBody, ChatEncoder
from toolwire.wire.responses import decode as decode_responses
from toolwire.wire.responses.encode import ResponsesEncoder
from toolwire.wire.sse import comment_frame

log = logging.getLogger("toolwire.gateway")
_encode = msgspec.json.Encoder().encode


class ChatAnswer:
    stored = True

    def __init__(self, turn: Turn, ids: IdFactory, created: int) -> None:
        self.id = id = ids("chatcmpl-")
        tier = SERVICE_TIER if "service_tier" not in turn.sent else None
        shared: dict[str, Any] = {
            "id": id,
            "created": created,
            "ids": ids,
            "legacy": turn.legacy_functions,
            "choices": turn.n,
        }
        self._body = None if turn.stream else ChatBody(turn.model, tier=tier, **shared)
        self._stream = (
            ChatEncoder(turn.model, tier=tier, include_usage=turn.include_usage, **shared)
            if turn.stream
            else None
        )
        writer = self._stream or self._body
        assert writer is not None
        self._writer = writer
        self.feed, self.say = writer.feed, writer.say

    @property
    def failure(self) -> Failure | None:
        return self._writer.failure

    async def end(self, comment: str) -> bytes:
        if self._stream is not None:
            return self._stream.finish(comment)
        assert self._body is not None
        return self._body.bytes()


class ResponsesAnswer:
    """Stored, where the client wants that, before its end is sent: a client that sees it complete can refer to it."""

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
        """False: it should have been stored and could not be. The answer goes out all the same, and says so."""
        self._key_id = key_id
        self._ids = ids
        self.id = ids("resp_")
        self._created = int(clock())
        self._encoder = ResponsesEncoder(turn, id=self.id, created=self._created, ids=ids, clock=clock)

    @property
    def failure(self) -> Failure | None:
        return self._encoder.failure

    def feed(self, events: list[Event], choice: int) -> bytes:
        frames = self._encoder.feed(events)
        return frames if self._turn.stream else b""

    def say(self, text: str) -> bytes:
        frames = self._encoder.say(text)
        return frames if self._turn.stream else b""

    async def end(self, comment: str) -> bytes:
        last = self._encoder.finish(comment)
        if not self._turn.stream:
            if self._encoder.failure is not None:
                raise ToolwireError.of(self._encoder.failure)
            last = _encode(self._encoder.response())
            await self._keep(last)
            return last
        await self._keep(_encode(self._encoder.response()) if self._store is not None else b"")
        return last if self.stored else comment_frame('{"stored":false}') + last

    async def _keep(self, response: bytes) -> None:
        if self._store is not None:
            try:
                await self._store.put(self._stored(response))
            except ToolwireError as error:
                log.error("response %s could not be stored: %s", self.id, error)
                self.stored = False
        if self._memory is not None and self._encoder.failure is None:
            stored = self._store is not None and self.stored
            self._memory.keep(
                self.id, decode_responses.stored_items(self._body, self._encoder.response()["output"]), stored
            )

    def _stored(self, response: bytes) -> StoredResponse:
        told = self._encoder.response()
        before = (
            self._memory.loose if self._memory is not None else ()
        )  # what the store could not find is stored with it
        return StoredResponse(
            id=self.id,
            key_id=self._key_id,
            created_at=self._created,
            model=self._turn.model,
            status=told["status"],
            previous_response_id=None if before else self._turn.previous_response_id,
            response=response,
            input_items=_input_items(self._body, self._ids),
            items=(*before, *decode_responses.stored_items(self._body, told["output"])),
        )


def _input_items(body: dict[str, Any], ids: IdFactory) -> list[dict[str, Any]]:
    """This request's own input as wire items, each with an id, as the API lists it."""
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
}


class EventsAnswer:
    """An answer whose events are kept too, for the tool runtime, which talks to models in this process."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._answer: ChatAnswer | ResponsesAnswer | None = None

    def beside(self, answer: ChatAnswer | ResponsesAnswer) -> EventsAnswer:
        """`answer` is written all the same: the journal shows it."""
        self._answer = answer
        self.id, self.end = answer.id, answer.end
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
        """The events since the last time."""
        events, self.events = self.events, []
        return events


Answering = ChatAnswer | ResponsesAnswer | EventsAnswer


def open_answer(
    turn: Turn,
    body: dict[str, Any],
    store: Store | None,
    key_id: str,
    ids: IdFactory,
    clock: Callable[[], float],
    memory: Memory | None = None,
) -> ChatAnswer | ResponsesAnswer:
    if turn.api == "chat":
        return ChatAnswer(turn, ids, int(clock()))
    return ResponsesAnswer(turn, body, store, key_id, ids, clock, memory)

"""The two answers that a run can be written as, behind one face: `fold` and `body` for a whole one, `writer` and `end` for a stream.

A Responses answer is stored, where the client wants it stored, before its end is sent: who sees it complete can refer to it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from toolwire.core.errors import ToolwireError
from toolwire.core.events import Event, Failure
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
    kept = True

    def __init__(self, turn: Turn, ids: IdFactory, created: int) -> None:
        self.id = id = ids("chatcmpl-")
        tier = SERVICE_TIER if "service_tier" not in turn.sent else None
        legacy, choices = turn.legacy_functions, turn.n
        self._writer = self._folded = None
        if turn.stream:
            usage = turn.include_usage
            self._writer = ChatEncoder(turn.model, id=id, created=created, ids=ids, include_usage=usage, legacy=legacy, choices=choices, tier=tier)
        else:
            self._folded = ChatBody(turn.model, id=id, created=created, ids=ids, legacy=legacy, choices=choices, tier=tier)

    @property
    def failure(self) -> Failure | None:
        return (self._writer or self._folded).failure  # type: ignore[union-attr]

    def fold(self, batch: list[Event], choice: int) -> None:
        self._folded.feed(batch, choice)  # type: ignore[union-attr]

    async def body(self) -> bytes:
        return self._folded.bytes()  # type: ignore[union-attr]

    @property
    def writer(self) -> Callable[[list[Event], int], bytes]:
        """For a stream: what makes a batch of a choice into bytes."""
        return self._writer.feed  # type: ignore[union-attr]

    @property
    def say(self) -> Callable[[str], bytes]:
        """As `writer`, for a piece of text of the only choice."""
        return self._writer.say  # type: ignore[union-attr]

    async def end(self, comment: str | None) -> bytes:
        return self._writer.finish(comment)  # type: ignore[union-attr]


class ResponsesAnswer:
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
        self.kept = True
        """False: it should have been stored and could not be. The answer goes out all the same, and says so."""
        self._key_id = key_id
        self._ids = ids
        self.id = ids("resp_")
        self._created = int(clock())
        self._encoder = ResponsesEncoder(turn, id=self.id, created=self._created, ids=ids, clock=clock)

    @property
    def failure(self) -> Failure | None:
        return self._encoder.failure

    def fold(self, batch: list[Event], choice: int) -> None:
        self._encoder.feed(batch)

    async def body(self) -> bytes:
        self._encoder.finish()
        if self._encoder.failure is not None:
            raise ToolwireError.of(self._encoder.failure)
        response = _encode(self._encoder.response())
        await self._keep(response)
        return response

    @property
    def writer(self) -> Callable[[list[Event], int], bytes]:
        return self._encoder.feed

    @property
    def say(self) -> Callable[[str], bytes]:
        return self._encoder.say

    async def end(self, comment: str | None) -> bytes:
        last = self._encoder.finish(comment)
        await self._keep(_encode(self._encoder.response()) if self._store is not None else b"")
        return last if self.kept else comment_frame('{"stored":false}') + last

    async def _keep(self, response: bytes) -> None:
        if self._store is not None:
            try:
                await self._store.put(self._stored(response))
            except ToolwireError as error:
                log.error("response %s could not be stored: %s", self.id, error)
                self.kept = False
        if self._memory is not None and self._encoder.failure is None:
            stored = self._store is not None and self.kept
            self._memory.keep(self.id, decode_responses.stored_items(self._body, self._encoder.response()["output"]), stored)

    def _stored(self, response: bytes) -> StoredResponse:
        told = self._encoder.response()
        before = self._memory.loose if self._memory is not None else ()  # what the store could not find is stored with it
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


_PREFIXES = {"message": "msg_", "function_call": "fc_", "function_call_output": "fco_", "reasoning": "rs_", "custom_tool_call": "ctc_"}


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

"""Parked runs: a backend's blocking call waits for the client's result, and the same run continues when it
arrives.

- A response that ends with calls of a live run parks the run under the ids of these calls. Toolwire mints the
  ids: they are random and opaque.
- The request that brings all results, with the same key and the history that led to the park, resumes the
  run. Results are matched by id, never by argument text.
- If results are missing, or the history, the tools or the tool choice differ, the run is cancelled and the
  turn is replayed from the request's history. A park that no longer exists is replayed too: it cannot be
  distinguished from one that never existed.
- Results that are sent to a model that cannot park end the run too, because they will not be sent again.
- Of two continuations at the same time, the second gets 409, unless the first client has just disconnected.
- A park has a time to live, and a key has a limit: its oldest park is dropped first. With several choices,
  continuing one cancels the others.
- With several nodes, the `board` announces the waiting calls to the other nodes.

Law 8: a parked run belongs to this table, never to an HTTP request. Only `LiveRun` is used of the backend.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Protocol

from toolwire.backends.base import LiveRun
from toolwire.core.errors import ToolwireError
from toolwire.core.turn import (
    Call,
    ImagePart,
    Item,
    Message,
    OtherPart,
    Part,
    Reasoning,
    Result,
    TextPart,
    ToolSpec,
    Turn,
)
from toolwire.settings.types import ParkedSettings
from toolwire.wire.history import NO_RESULT

NOTICE_S = 0.5
"""How long a continuation waits for another one of the same run to be abandoned."""
_NOTHING = (TextPart(NO_RESULT),)


class Board(Protocol):
    """Where nodes announce which calls wait with them."""

    async def announce(self, calls: Collection[str], key_id: str, left_s: float) -> None: ...

    def withdraw(self, calls: Collection[str]) -> None: ...


@dataclass(slots=True, eq=False)
class Park:
    """A parked run. `calls` maps the client's call ids to the backend's, in model order.

    `turn_id` is the journal's id of the turn that ended with these calls.
    """

    live: LiveRun
    calls: dict[str, str]
    key_id: str
    digest: bytes
    siblings: object
    busy: bool = False
    timer: asyncio.TimerHandle | None = None
    turn_id: str = ""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the park leaves the table."""
    given_up: bool = False
    """Whether the response that continued it was not completed."""
    parked_at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class Claim:
    """A park whose results have arrived.

    Give `live` the `results`, by the backend's ids, and `release` the park after the response.
    """

    park: Park
    results: Mapping[str, Result]

    @property
    def live(self) -> LiveRun:
        return self.park.live

    @property
    def waited_s(self) -> float:
        return time.monotonic() - self.park.parked_at


class Parking:
    """The table of parked runs of one process."""

    def __init__(self, settings: ParkedSettings) -> None:
        self._settings = settings
        self._parks: dict[str, Park] = {}  # by the id of each waiting call
        self._ending: set[asyncio.Task[None]] = set()
        self._own: dict[str, int] = {}
        self.outcomes = {"resumed": 0, "expired": 0, "dropped": 0}
        """Number of parks by outcome."""
        self.closed = False
        self.board: Board | None = None

    def __len__(self) -> int:
        """The number of parked runs."""
        return len(set(map(id, self._parks.values())))

    def park(
        self,
        live: LiveRun,
        calls: dict[str, str],
        key_id: str,
        turn: Turn,
        said: str,
        names: Mapping[str, str],
        siblings: object,
        turn_id: str = "",
    ) -> None:
        """Parks a run whose response ended with `calls`. `said` is that response's text, `names` the calls'
        names by id.
        """
        most = min(self._settings.max_per_key, self._own.get(key_id, self._settings.max_per_key))
        if self.closed or most < 1:
            self._cancel(live)
            return
        own = [
            park for park in dict.fromkeys(self._parks.values()) if park.key_id == key_id and not park.busy
        ]
        for oldest in own[: max(0, len(own) + 1 - most)]:
            self.drop(oldest)
        park = Park(
            live, calls, key_id, _digest(turn, _told(turn, calls, said, names)), siblings, turn_id=turn_id
        )
        park.timer = asyncio.get_running_loop().call_later(self._settings.ttl_s, self._expire, park)
        for call_id in calls:
            self._parks[call_id] = park

    def allow(self, key_id: str, most: int) -> None:
        """Sets a key's own limit; 0: the limit for all keys applies."""
        if most:
            self._own[key_id] = most
        else:
            self._own.pop(key_id, None)

    async def announce(self, calls: Collection[str], key_id: str) -> None:
        """Announces new parked calls to the other nodes."""
        if self.board is not None and self.holds(calls):
            await self.board.announce(calls, key_id, self._settings.ttl_s)

    def holds(self, calls: Iterable[str]) -> bool:
        """Whether a run waits here for one of these calls."""
        return any(call_id in self._parks for call_id in calls)

    def waiting(self) -> list[tuple[Collection[str], str, float]]:
        """Every park: the ids of its calls, its key, and the seconds it has left."""
        now = time.monotonic()
        return [
            (tuple(park.calls), park.key_id, max(1.0, park.parked_at + self._settings.ttl_s - now))
            for park in dict.fromkeys(self._parks.values())
        ]

    async def claim_once_free(self, turn: Turn, key_id: str, resumable: bool = True) -> Claim | None:
        """As `claim`, but waits a moment for a run whose client was lost.

        A client that repeats its request at once is not refused.
        """
        try:
            return self.claim(turn, key_id, resumable)
        except ToolwireError:
            busy = self._answered(turn, key_id)
            assert busy is not None
            with suppress(TimeoutError):
                async with asyncio.timeout(NOTICE_S):
                    await busy.over.wait()
            if not busy.given_up:
                raise
            return self.claim(turn, key_id, resumable)

    def claim(self, turn: Turn, key_id: str, resumable: bool = True) -> Claim | None:
        """The parked run that this request continues. None: the turn runs from its own history.

        A live run keeps the tool_choice it began with. A request with another choice, or one that requires a
        call, is not resumed, and neither is one that is not `resumable`.
        """
        park = self._answered(turn, key_id)
        if park is None:
            return None
        if park.busy:
            raise ToolwireError(
                "conflict", "These tool results are already being continued by another request."
            )
        items = _with_notes_in_results(turn.items) if turn.api == "messages" else turn.items
        before, answers = _split(items, park.calls)
        fits = resumable and turn.tool_choice.mode != "required" and set(answers) == set(park.calls)
        if not fits or _digest(turn, before) != park.digest:
            self.drop(park)
            return None
        park.busy = True
        self.outcomes["resumed"] += 1
        if park.timer is not None:
            park.timer.cancel()
        for sibling in {
            one for one in self._parks.values() if one.siblings is park.siblings and one is not park
        }:
            self.drop(sibling)
        return Claim(park, {park.calls[call_id]: result for call_id, result in answers.items()})

    def awaits(self, turn: Turn, key_id: str) -> bool:
        """Whether a run of this key waits for a result in this request, for any model."""
        park = self._answered(turn, key_id) if self._parks else None
        return park is not None and not park.busy and bool(_split(turn.items, park.calls)[1])

    def _answered(self, turn: Turn, key_id: str) -> Park | None:
        """The park of the last answered call in this request's history."""
        if not self._parks:
            return None
        answered = (item.call_id for item in reversed(turn.items) if isinstance(item, Result))
        park = next((self._parks[call_id] for call_id in answered if call_id in self._parks), None)
        return park if park is not None and park.key_id == key_id else None

    def release(self, park: Park) -> None:
        """Removes a park from the table: its run continues or ends elsewhere."""
        park.over.set()
        if park.timer is not None:
            park.timer.cancel()
        for call_id in park.calls:
            if self._parks.get(call_id) is park:
                del self._parks[call_id]
        if self.board is not None:
            self.board.withdraw(park.calls)

    def _expire(self, park: Park) -> None:
        self.drop(park, "expired")

    def drop(self, park: Park, outcome: str = "dropped") -> None:
        """Ends a parked run whose results will not come."""
        if not park.busy:
            self.outcomes[outcome] += 1
        park.given_up = True
        self.release(park)
        self._cancel(park.live)

    def drop_all(self) -> None:
        """Drops all parks when the server drains: continuations are replayed elsewhere, or later."""
        self.closed = True
        for park in {park for park in self._parks.values() if not park.busy}:
            self.drop(park)

    async def close(self) -> None:
        self.drop_all()
        for park in set(self._parks.values()):
            self.drop(park)
        if self._ending:
            await asyncio.gather(*self._ending, return_exceptions=True)

    def _cancel(self, live: LiveRun) -> None:
        task = asyncio.ensure_future(live.cancel())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


# --- the history before a park ---


def _told(turn: Turn, calls: Iterable[str], said: str, names: Mapping[str, str]) -> tuple[Item, ...]:
    """The history as the client will send it, up to the results."""
    text = (Message("assistant", (TextPart(said),)),) if said else ()
    return (*turn.items, *text, *(Call(call_id, names[call_id], "") for call_id in calls))


def brings_results(items: Sequence[Item]) -> bool:
    """Whether this request brings new results: no user message follows the last assistant message.

    Assistant text at the very end does not count: it may be a prefill.
    """
    own: bool | None = None
    for item in reversed(items):
        if isinstance(item, Result):
            if item.parts != _NOTHING:
                return True
        elif isinstance(item, Call):
            return False
        elif isinstance(item, Message):
            spoke = item.role == "assistant"
            if own is None:
                own = spoke
            elif own is not spoke:
                return False
    return False


def _split(items: Iterable[Item], calls: Collection[str]) -> tuple[list[Item], dict[str, Result]]:
    """The history without the results of these calls, and these results."""
    before: list[Item] = []
    results: dict[str, Result] = {}
    for item in items:
        if not isinstance(item, Result) or item.call_id not in calls:
            before.append(item)
        elif item.parts != _NOTHING:
            results[item.call_id] = item
    return before, results


def _with_notes_in_results(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """The history with texts after the last results moved into the last of them.

    Clients of the Messages API add their own notes after the results: in the same message, or as a message
    of the system. A parked run can only take results.
    """
    end = len(items)
    while end and isinstance(note := items[end - 1], Message) and note.role != "assistant":
        end -= 1
    notes = [part for note in items[end:] if isinstance(note, Message) for part in note.parts]
    last = items[end - 1] if end else None
    if not isinstance(last, Result) or not all(isinstance(part, TextPart) for part in notes):
        return items
    return (*items[: end - 1], replace(last, parts=(*last.parts, *notes)))


def _digest(turn: Turn, items: Iterable[Item]) -> bytes:
    """What must be equal for a run to continue.

    Model, effort, instructions, tools, tool choice, output format and history, without argument text, empty
    content and `name` fields.
    """
    choice = turn.tool_choice
    asked = [turn.output.type, turn.output.schema, turn.sampling.effort]
    may = [choice.mode, choice.name, choice.allowed and sorted(choice.allowed), turn.parallel]
    facts = [turn.model, turn.instructions or "", sorted(map(_tool, turn.tools)), may, asked, *_facts(items)]
    return hashlib.sha256(json.dumps(facts, ensure_ascii=True, sort_keys=True, default=str).encode()).digest()


def _tool(tool: ToolSpec) -> str:
    given = [tool.name, tool.namespace, tool.kind, tool.description, dict(tool.parameters), tool.format]
    return json.dumps(given, sort_keys=True, default=str)


def _facts(items: Iterable[Item]) -> Iterator[list[Any]]:
    """Merges consecutive texts and calls into one answer: its texts first, then its calls.

    Responses lists them in the model's order, chat completions as one message.
    """
    said: list[Any] = []
    calls: list[list[Any]] = []
    for item in items:
        if isinstance(item, Message) and item.role == "assistant":
            said += _parts(item.parts)
        elif isinstance(item, Call):
            calls.append(["call", item.call_id, item.name])
        elif isinstance(item, Result):
            yield from _answer(said, calls)
            said, calls = [], []
            yield ["result", item.call_id, *_joined(_parts(item.parts))]
        elif isinstance(item, Message):
            if parts := list(_parts(item.parts)):
                yield from _answer(said, calls)
                said, calls = [], []
                yield ["system" if item.role == "developer" else item.role, *_joined(parts)]
        else:
            assert isinstance(item, Reasoning)
    yield from _answer(said, calls)


def _answer(said: Iterable[Any], calls: Iterable[list[Any]]) -> Iterator[list[Any]]:
    """White space does not count: some clients drop the blank texts of an answer."""
    words = ["".join(part.split()) if isinstance(part, str) else part for part in _joined(said)]
    if any(words):
        yield ["assistant", *filter(None, words)]
    yield from calls


def _joined(said: Iterable[Any]) -> list[Any]:
    """The parts with adjacent texts joined: clients send a text as a string once, and as blocks later."""
    words: list[Any] = []
    for is_text, group in groupby(said, lambda part: isinstance(part, str)):
        parts = list(group)
        words += ["".join(parts)] if is_text else parts
    return words


def _parts(parts: tuple[Part, ...]) -> Iterator[Any]:
    for part in parts:
        if isinstance(part, TextPart):
            if part.text:
                yield part.text
        elif isinstance(part, ImagePart):
            yield [part.url, part.file_id]
        else:
            assert isinstance(part, OtherPart)
            yield [part.kind, dict(part.raw)]

"""Parked runs: a run waits for the results of its calls until the client sends them.

- If a response ends with tool calls and the backend's run can wait for their results (`LiveRun`), the run is
  parked. The ids of the calls identify the parked run (`Park`). Toolwire creates these ids: they are random
  and opaque.
- A later request resumes the run if it has the same API key, the same history up to the calls, and the
  results of all calls. Results are matched by call id, never by argument text.
- If results are missing, or the history, the tools or the tool choice differ, the run is cancelled and the
  turn is replayed: the backend starts a new run from the history in the request. The turn is also replayed if
  the parked run no longer exists.
- If the client sends the results to a model whose runs cannot be parked, the parked run is cancelled.
- If two requests continue the same run at the same time, the second gets 409, unless the client of the first
  has just disconnected.
- A parked run has a time to live (`parked.ttl_s`), and a key has a limit of parked runs
  (`parked.max_per_key`): above the limit, a new parked run replaces the oldest one.
- If an answer has several choices, the run of each choice can be parked. When a request continues one of
  these runs, the others are cancelled.
- If there are several nodes, the `board` announces the waiting calls to the other nodes.

A parked run belongs to the table `Parking`, never to an HTTP request (law 8 in docs/architecture.md).
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
"""How many seconds a request waits for another request that already continues the same run."""
_NOTHING = (TextPart(NO_RESULT),)


class Board(Protocol):
    """Announces to the other nodes which calls wait for their results on this node."""

    async def announce(self, calls: Collection[str], key_id: str, left_s: float) -> None: ...

    def withdraw(self, calls: Collection[str]) -> None: ...


@dataclass(slots=True, eq=False)
class Park:
    """A parked run. `calls` maps the client's call ids to the backend's, in the model's order.

    `digest`: a request can continue the run only if its `_digest` is the same. If an answer has several
    choices, their parked runs have the same `siblings` object. `busy`: a request is continuing the run.
    `turn_id`: the journal's id of the turn that ended with these calls.
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
    """Set when the parked run has been removed from the table."""
    given_up: bool = False
    """Whether the run was dropped, or the response that continued it did not complete."""
    parked_at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class Claim:
    """A parked run that a request continues.

    `results` has the tool results by the backend's call ids. Send them to `live`, and call `release` after
    the response.
    """

    parking: Parking
    park: Park
    results: Mapping[str, Result]

    def release(self, is_complete: bool) -> None:
        """Removes the parked run from the table, after the response of the continued run has ended.

        `is_complete`: the response was sent to its end.
        """
        self.park.given_up = not is_complete
        self.parking.release(self.park)

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
        self.parks: dict[str, Park] = {}
        """The parked runs, by the id of each waiting call."""
        self._ending: set[asyncio.Task[None]] = set()
        self._own: dict[str, int] = {}
        self.outcomes = {"resumed": 0, "expired": 0, "dropped": 0}
        """How many parked runs ended in each of these ways."""
        self.closed = False
        self.board: Board | None = None

    def __len__(self) -> int:
        """Returns the number of parked runs."""
        return len(set(map(id, self.parks.values())))

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
        """Parks a run whose response ended with `calls`.

        `calls` maps the client's call ids to the backend's. `said` is the text of that response, and `names`
        are the names of the calls by the client's ids.
        """
        most = min(self._settings.max_per_key, self._own.get(key_id, self._settings.max_per_key))
        if self.closed or most < 1:
            self._cancel(live)
            return
        own = [park for park in dict.fromkeys(self.parks.values()) if park.key_id == key_id and not park.busy]
        for oldest in own[: max(0, len(own) + 1 - most)]:
            self.drop(oldest)
        park = Park(
            live, calls, key_id, _digest(turn, _history(turn, calls, said, names)), siblings, turn_id=turn_id
        )
        park.timer = asyncio.get_running_loop().call_later(self._settings.ttl_s, self._expire, park)
        for call_id in calls:
            self.parks[call_id] = park

    def allow(self, key_id: str, most: int) -> None:
        """Sets a key's own limit of parked runs. With 0, only the limit for all keys applies."""
        if most:
            self._own[key_id] = most
        else:
            self._own.pop(key_id, None)

    async def announce(self, calls: Collection[str], key_id: str) -> None:
        """Announces newly parked calls to the other nodes."""
        if self.board is not None and self.holds(calls):
            await self.board.announce(calls, key_id, self._settings.ttl_s)

    def holds(self, calls: Iterable[str]) -> bool:
        """Whether a run on this node waits for the result of one of these calls."""
        return any(call_id in self.parks for call_id in calls)

    def waiting(self) -> list[tuple[Collection[str], str, float]]:
        """Returns a tuple for each parked run: its call ids, its key's id, the seconds until it expires."""
        now = time.monotonic()
        return [
            (tuple(park.calls), park.key_id, max(1.0, park.parked_at + self._settings.ttl_s - now))
            for park in dict.fromkeys(self.parks.values())
        ]

    async def claim_once_free(self, turn: Turn, key_id: str, resumable: bool = True) -> Claim | None:
        """Does what `claim` does, but waits a moment if another request is already continuing the run.

        If it turns out that the client of that other request has disconnected, `turn` continues the run. So a
        client that disconnects and repeats its request at once gets no error 409.
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
        """Returns the parked run that this request continues; None if no run can be continued.

        If the request brings results for a parked run but cannot continue it, the run is dropped. This
        happens if results are missing, if the request is not `resumable` or requires a call, or if something
        in `_digest` has changed, such as the tool choice. Raises an error with status 409 if another request
        continues the run.
        """
        park = self._answered(turn, key_id)
        if park is None:
            return None
        if park.busy:
            raise ToolwireError(
                "conflict", "Another request with these tool results is already continuing the run."
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
            one for one in self.parks.values() if one.siblings is park.siblings and one is not park
        }:
            self.drop(sibling)
        return Claim(self, park, {park.calls[call_id]: result for call_id, result in answers.items()})

    def awaits(self, turn: Turn, key_id: str) -> bool:
        """Whether a parked run of this key, of any model, waits for a result that this request brings."""
        park = self._answered(turn, key_id)
        return park is not None and not park.busy and bool(_split(turn.items, park.calls)[1])

    def _answered(self, turn: Turn, key_id: str) -> Park | None:
        """Returns the parked run whose tool results this history contains; None if there is no such run.

        If there are several, the last result decides. A parked run of another key is not returned.
        """
        if not self.parks:
            return None
        answered = (item.call_id for item in reversed(turn.items) if isinstance(item, Result))
        park = next((self.parks[call_id] for call_id in answered if call_id in self.parks), None)
        return park if park is not None and park.key_id == key_id else None

    def release(self, park: Park) -> None:
        """Removes a parked run from the table without cancelling the run."""
        park.over.set()
        if park.timer is not None:
            park.timer.cancel()
        for call_id in park.calls:
            if self.parks.get(call_id) is park:
                del self.parks[call_id]
        if self.board is not None:
            self.board.withdraw(park.calls)

    def _expire(self, park: Park) -> None:
        self.drop(park, "expired")

    def drop(self, park: Park, outcome: str = "dropped") -> None:
        """Cancels a parked run and removes it from the table, because the results will not arrive."""
        if not park.busy:
            self.outcomes[outcome] += 1
        park.given_up = True
        self.release(park)
        self._cancel(park.live)

    def drop_all(self) -> None:
        """Drops all parked runs when the server drains. Later requests start new runs from their history."""
        self.closed = True
        for park in {park for park in self.parks.values() if not park.busy}:
            self.drop(park)

    async def close(self) -> None:
        self.drop_all()
        for park in set(self.parks.values()):
            self.drop(park)
        if self._ending:
            await asyncio.gather(*self._ending, return_exceptions=True)

    def _cancel(self, live: LiveRun) -> None:
        task = asyncio.ensure_future(live.cancel())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


# --- the history before a park ---


def _history(turn: Turn, calls: Iterable[str], said: str, names: Mapping[str, str]) -> tuple[Item, ...]:
    """Returns the history that the client is expected to send, up to the results."""
    text = (Message("assistant", (TextPart(said),)),) if said else ()
    return (*turn.items, *text, *(Call(call_id, names[call_id], "") for call_id in calls))


def brings_results(items: Sequence[Item]) -> bool:
    """Whether this request brings new tool results.

    User messages, or assistant text that may be a prefill, can follow the results. If both follow, the model
    has already answered the results, and they are not new.
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
    """Returns the history without the results of `calls`, and these results by call id."""
    before: list[Item] = []
    results: dict[str, Result] = {}
    for item in items:
        if not isinstance(item, Result) or item.call_id not in calls:
            before.append(item)
        elif item.parts != _NOTHING:
            results[item.call_id] = item
    return before, results


def _with_notes_in_results(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """Returns the history with the texts after the last result moved into that result.

    Some clients of the Messages API add text of their own after the results, in the same message or as a
    system message. A parked run can only take results.
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
    """Returns a hash. A request can continue a parked run only if both have the same hash.

    The hash covers the model, effort, instructions, tools, tool choice, output format and history. Argument
    text, empty content and `name` fields are left out, because clients change them.
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
    """Yields the history in a form that is the same for all APIs.

    Consecutive assistant texts and calls become one answer: its texts first, then its calls. This is
    necessary because the Responses API lists texts and calls in the model's order, but chat completions has
    all of them in one message.
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
    """Yields the texts of an answer, without white space, and its calls.

    White space does not count, because some clients drop the blank texts of an answer.
    """
    words = ["".join(part.split()) if isinstance(part, str) else part for part in _joined(said)]
    if any(words):
        yield ["assistant", *filter(None, words)]
    yield from calls


def _joined(said: Iterable[Any]) -> list[Any]:
    """Returns the parts with adjacent texts joined.

    Some clients send a text as a string at first and as several blocks later.
    """
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

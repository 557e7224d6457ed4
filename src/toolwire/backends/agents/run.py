"""A run of an agent: owned by a background task, never by an HTTP request.

The agent's side (`text`, `thought`, `usage`, `call`) is told what happens while it happens, whether or not anybody reads. The gateway's side is a
`LiveRun`. A call waits until the client has answered; calls that come within `settle_s` of each other, with nothing else between them, belong to one
response. An agent that makes the same call over and over is stopped: somebody pays for it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

from toolwire.backends.agents.history import Entry, call_entry, entries, result_entry
from toolwire.backends.base import Batch, FrameTap, LiveRun, frame_tap
from toolwire.core.errors import ToolwireError
from toolwire.core.events import (
    CallArgs,
    CallBegin,
    CallEnd,
    Event,
    Failure,
    Finish,
    FinishReason,
    Text,
    Thought,
    Usage,
)
from toolwire.core.turn import Call, Item, Message, Result, TextPart, Turn

log = logging.getLogger("toolwire.agents")
STOP_S = 5.0
LONGEST_SETTLE_S = 10.0
"""So long calls wait at most for an agent that does not fall silent after them."""
UNREAD_LIMIT, UNREAD_EACH = 32 * 2**20, 128
"""So many characters may wait to be read, where each piece counts for some more."""
Work = Callable[["AgentRun"], Awaitable[None]]


@dataclass(slots=True)
class _Call:
    id: str
    name: str
    arguments: str
    place: float
    answer: asyncio.Future[Result] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class AgentRun:
    """`work` drives the agent to the end of its answer and returns; what it raises becomes the run's failure. `stop` interrupts the agent.

    `repeats`: an identical call may be made so often in one run. `timeout_s`: the longest silence of an agent that is not waiting for the client.
    """

    def __init__(
        self,
        turn: Turn,
        work: Work,
        stop: Callable[[], Awaitable[None]],
        *,
        settle_s: float,
        repeats: int,
        timeout_s: float,
    ) -> None:
        self.turn = turn
        self._told: list[Entry] = entries(turn.items)
        self._saying: list[str] = []
        self.called = False
        self.finished = False
        """The agent came to the end of its answer by itself …"""
        self.reason: FinishReason = "stop"
        """… and why, as its work found out."""
        self._work = work
        self._stop = stop
        self._settle_s = settle_s
        self._repeats = repeats
        self._timeout_s = timeout_s
        self._task: asyncio.Task[None] | None = None
        self._events: list[Event] = []
        self._unread = 0
        self._news = asyncio.Event()
        self._asked: list[_Call] = []
        """Calls that the client has not been told yet …"""
        self._open: dict[str, _Call] = {}
        """… and those that wait for its results."""
        self._seen: Counter[Entry] = _repeated(turn.items)
        self._index = 0
        self._numbers = itertools.count(1)
        self._end: Finish | Failure | None = None
        self._over: asyncio.Future[None] | None = None
        self.tap: FrameTap | None = None
        """What takes the raw frames of the response that is being read."""

    @property
    def told(self) -> list[Entry]:
        """The conversation so far, as the client will repeat it. Pieces of one answer follow each other without a break."""
        if self._saying:
            said, self._saying = "".join(self._saying), []
            if self._told and self._told[-1][0] == "assistant":
                said = self._told.pop()[1] + said
            self._told.append(("assistant", said))
        return self._told

    # --- the agent's side ----------------------------------------------------------------------------------------------------------------------

    def text(self, text: str) -> None:
        if not text or self._end is not None:
            return
        self._saying.append(text)
        self._push(Text(text))

    def thought(self, text: str, summary: bool = False) -> None:
        if text:
            self._push(Thought(text, summary))

    def usage(self, usage: Usage) -> None:
        self._push(usage)

    @property
    def lacks_call(self) -> bool:
        """A call is required, and none was made yet."""
        return self.turn.tool_choice.mode == "required" and bool(self.turn.offered()) and not self.called

    @property
    def failed(self) -> bool:
        """The run was ended from outside, or for what the agent did: what it says from now on is told to nobody."""
        return isinstance(self._end, Failure)

    def alive(self) -> None:
        """The agent gave a sign of life that says nothing else."""
        self._news.set()

    async def call(
        self, name: str, arguments: str, id: str | None = None, place: float | None = None
    ) -> Result:
        """The agent calls a client's tool; returns with the client's result. `place` orders calls of one response where arrival does not.

        Raises `ToolwireError` when the run is over; is cancelled when the run is. In a run that has failed it waits for that: an agent whose call is
        refused would ask its model how to go on.
        """
        if isinstance(self._end, Finish) or (self._over is not None and self._over.done()):
            raise ToolwireError("backend_cut", "The run is over.")
        entry = call_entry(name, arguments)
        self._seen[entry] += 1
        if self._seen[entry] > self._repeats:
            words = f"The agent called the tool '{name}' with the same arguments {self._seen[entry]} times; the run was stopped."
            self.fail(Failure("invalid_tool_call", words))
        number = next(self._numbers)
        asked = _Call(id or f"agent-{number}", name, arguments, number if place is None else place)
        if asked.id in self._open or any(asked.id == one.id for one in self._asked):
            asked.id = f"{asked.id}-{number}"
        self._asked.append(asked)
        self.called = True
        self._news.set()
        return await asked.answer

    def fail(self, failure: Failure) -> None:
        if self._end is None:
            self._end = failure
            self._news.set()

    def _push(self, event: Event) -> None:
        if self._end is not None:
            return
        self._events.append(event)
        self._unread += UNREAD_EACH + (len(event.text) if isinstance(event, Text | Thought) else 0)
        self._news.set()
        if self._unread > UNREAD_LIMIT:
            self.fail(
                Failure("backend", "The agent said more than could wait to be read; the run was stopped.")
            )

    async def _drive(self) -> None:
        try:
            await self._work(self)
            self.finished = True
            if self._end is None:
                self._end = Finish(self.reason)
        except ToolwireError as error:
            self.fail(error.failure)
        except asyncio.CancelledError:
            self.fail(Failure("backend_cut", "The run was cancelled."))
            raise
        except Exception:
            log.exception("an agent's run failed")
            self.fail(Failure("backend", "The agent's backend failed."))
        finally:
            self._news.set()

    # --- the gateway's side --------------------------------------------------------------------------------------------------------------------

    @property
    def pending(self) -> tuple[str, ...]:
        return tuple(self._open)

    async def segment(self) -> AsyncGenerator[Batch, None]:
        """One response, up to its calls or to the end of the answer."""
        self.tap = frame_tap()
        if self._task is None:
            self._task = asyncio.ensure_future(self._drive())
        self._index = 0
        clock = asyncio.get_running_loop().time
        latest = 0.0
        while True:
            batch, self._events, self._unread = self._events, [], 0
            latest = (latest or clock() + LONGEST_SETTLE_S) if self._asked else 0.0
            overdue = 0.0 < latest < clock()
            if batch:
                yield batch
                if not overdue:
                    continue
            if self._end is not None:
                yield [self._end]
                return
            waiting = bool(self._asked)
            heard = not overdue and await self._heard(self._settle_s if waiting else self._timeout_s)
            self._asked = [
                asked for asked in self._asked if not asked.answer.done()
            ]  # the agent may have given up on a call
            if self._asked and waiting and not heard:
                yield self._calls()
                return
            if not waiting and not heard:
                self.fail(Failure("timeout", f"The agent was silent for {self._timeout_s:g} s."))

    async def _heard(self, within_s: float) -> bool:
        self._news.clear()
        if self._events or self._end is not None:
            return True
        try:
            async with asyncio.timeout(within_s):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    def _calls(self) -> Batch:
        """All that were made, or the first: a client that wants one call at a time gets the others in its next responses."""
        batch: Batch = []
        ordered = sorted(self._asked, key=lambda one: one.place)
        now = len(ordered) if self.turn.parallel else 1
        for asked in ordered[:now]:
            self._open[asked.id] = asked
            batch += [CallBegin(self._index, asked.name, asked.id)]
            batch += [CallArgs(self._index, asked.arguments)] if asked.arguments else []
            batch += [CallEnd(self._index)]
            self.told.append(call_entry(asked.name, asked.arguments))
            self._index += 1
        self._asked = ordered[now:]
        return [*batch, Finish("tool_calls")]

    async def answer(self, results: Mapping[str, Result]) -> None:
        """Hands every waiting call its result, in the order the calls were told. Calls that came meanwhile are told in the next response."""
        waiting, self._open = self._open, {}
        for id, asked in waiting.items():
            result = results.get(id) or Result(
                id, (TextPart("error: the client gave no result for this call"),)
            )
            self.told.append(result_entry(result))
            if not asked.answer.done():
                asked.answer.set_result(result)

    async def cancel(self) -> None:
        """Ends the run at any time; safe to call twice. A run that has come to its end is only let go."""
        if self._over is None:
            self._over = asyncio.ensure_future(self._cancelled())
        await asyncio.wait({self._over}, timeout=STOP_S)

    async def _cancelled(self) -> None:
        unfinished = not self.finished
        self.fail(Failure("backend_cut", "The run was cancelled."))
        waiting, self._open = self._open, {}
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            if unfinished:
                await self._stop()
        finally:  # not before: an agent whose call is given up would go on too
            for asked in (*waiting.values(), *self._asked):
                asked.answer.cancel()
            self._asked.clear()


async def one_response(
    open: Callable[[Turn], LiveRun], turn: Turn, prepare: Callable[[], Awaitable[None]] | None = None
) -> AsyncGenerator[Batch, None]:
    """The first response of a run that is not parked. The run begins with the first read and ends with it."""
    if prepare is not None:
        await prepare()
    live = open(turn)
    try:
        async with aclosing(live.segment()) as batches:
            async for batch in batches:
                yield batch
    finally:
        await live.cancel()


def _repeated(items: Iterable[Item]) -> Counter[Entry]:
    """The calls since the person spoke last: an agent that begins anew after each of them may still go round in circles."""
    seen: Counter[Entry] = Counter()
    for item in items:
        if isinstance(item, Message) and item.role == "user":
            seen.clear()
        elif isinstance(item, Call):
            seen[call_entry(item.name, item.arguments)] += 1
    return seen

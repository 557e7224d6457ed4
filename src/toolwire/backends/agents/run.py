"""A run of an agent: owned by a background task, never by an HTTP request.

The agent's side (`text`, `thought`, `usage`, `call`) is told what happens while it happens, whether or not anybody reads. The gateway's side is a
`LiveRun`. A call waits until the client has answered; calls that come within `settle_s` of each other, with nothing else between them, belong to one
response. An agent that makes the same call over and over is stopped: somebody pays for it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from toolwire.backends.agents.history import Entry, add, call_entry, entries, words
from toolwire.backends.base import Batch
from toolwire.errors import ToolwireError
from toolwire.events import CallArgs, CallBegin, CallEnd, Dropped, Event, Failure, Finish, Text, Thought, Usage
from toolwire.turn import Result, TextPart, Turn

STOP_S = 5.0
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

    def __init__(self, turn: Turn, work: Work, stop: Callable[[], Awaitable[None]], *, settle_s: float, repeats: int, timeout_s: float) -> None:
        self.turn = turn
        self.told: list[Entry] = entries(turn.items)
        """The conversation so far, as the client will repeat it."""
        self.called = False
        self.finished = False
        """The agent came to the end of its answer by itself."""
        self._work = work
        self._stop = stop
        self._settle_s = settle_s
        self._repeats = repeats
        self._timeout_s = timeout_s
        self._task: asyncio.Task[None] | None = None
        self._events: list[Event] = []
        self._news = asyncio.Event()
        self._asked: list[_Call] = []
        self._open: dict[str, _Call] = {}
        self._seen: Counter[Entry] = Counter()
        self._index = 0
        self._numbers = itertools.count(1)
        self._end: Finish | Failure | None = None
        self._required = turn.tool_choice.mode == "required" and bool(turn.offered())
        self._held = 0
        self._over: asyncio.Future[None] | None = None

    # --- the agent's side ----------------------------------------------------------------------------------------------------------------------

    def text(self, text: str) -> None:
        if not text or self._end is not None:
            return
        if self._required and not self.called:
            self._held += len(text)  # a call must come first: what is said before it is dropped, and counted
            return
        add_text(self.told, text)
        self._push(Text(text))

    def thought(self, text: str, summary: bool = False) -> None:
        if text:
            self._push(Thought(text, summary))

    def usage(self, usage: Usage) -> None:
        self._push(usage)

    @property
    def lacks_call(self) -> bool:
        """A call is required, and none was made yet: the agent is worth asking once more."""
        return self._required and not self.called

    def alive(self) -> None:
        """The agent gave a sign of life that says nothing else."""
        self._news.set()

    async def call(self, name: str, arguments: str, id: str | None = None, place: float | None = None) -> Result:
        """The agent calls a client's tool; returns with the client's result. `place` orders calls of one response where arrival does not."""
        entry = call_entry(name, arguments)
        self._seen[entry] += 1
        if self._seen[entry] > self._repeats:
            words = f"The agent called the tool '{name}' with the same arguments {self._seen[entry]} times; the run was stopped."
            self.fail(Failure("invalid_tool_call", words))
            raise ToolwireError("invalid_tool_call", words)
        number = next(self._numbers)
        asked = _Call(id or f"agent-{number}", name, arguments, number if place is None else place)
        if asked.id in self._open:
            asked.id = f"{asked.id}-{number}"
        self._asked.append(asked)
        self._open[asked.id] = asked
        self.called = True
        self._news.set()
        return await asked.answer

    def fail(self, failure: Failure) -> None:
        if self._end is None:
            self._end = failure
            self._news.set()

    def _push(self, event: Event) -> None:
        if self._end is None:
            self._events.append(event)
            self._news.set()

    async def _drive(self) -> None:
        try:
            await self._work(self)
            self.finished = True
            if self.lacks_call:
                words = "tool_choice requires a call, but the agent did not make one, also when asked again."
                self.fail(Failure("no_tool_call", words, param="tool_choice"))
            elif self._end is None:
                self._end = Finish("stop")
        except ToolwireError as error:
            self.fail(error.failure)
        except asyncio.CancelledError:
            self.fail(Failure("backend_cut", "The run was cancelled."))
            raise
        finally:
            if self._end is None:
                self.fail(Failure("backend", "The agent's backend failed."))
            self._news.set()

    # --- the gateway's side --------------------------------------------------------------------------------------------------------------------

    @property
    def pending(self) -> tuple[str, ...]:
        return tuple(self._open) if not self._asked else ()

    async def segment(self) -> AsyncGenerator[Batch, None]:
        """One response, up to its calls or to the end of the answer."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._drive())
        self._index = 0
        while True:
            batch, self._events = self._events, []
            if batch:
                yield batch
                continue
            if self._end is not None:
                if self._held:
                    yield [Dropped("retry", self._held)]
                    self._held = 0
                yield [self._end]
                return
            if self._asked and not await self._heard(self._settle_s):
                yield self._calls()
                return
            if not self._asked and not await self._heard(self._timeout_s):
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
        batch: Batch = []
        for asked in sorted(self._asked, key=lambda one: one.place):
            batch += [CallBegin(self._index, asked.name, asked.id)]
            batch += [CallArgs(self._index, asked.arguments)] if asked.arguments else []
            batch += [CallEnd(self._index)]
            self.told.append(call_entry(asked.name, asked.arguments))
            self._index += 1
        self._asked = []
        return [*batch, Finish("tool_calls")]

    async def answer(self, results: Mapping[str, Result]) -> None:
        """Hands every waiting call its result, in the order the calls were told."""
        waiting, self._open = self._open, {}
        for id, asked in sorted(waiting.items(), key=lambda pair: pair[1].place):
            result = results.get(id) or Result(id, (TextPart("error: the client gave no result for this call"),))
            self.told.append(("result", words(result.parts)))
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
        for asked in self._open.values():
            asked.answer.cancel()
        self._open.clear()
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if unfinished:
            await self._stop()


def add_text(told: list[Entry], text: str) -> None:
    """Pieces of one answer follow each other without a break."""
    if told and told[-1][0] == "assistant":
        told[-1] = ("assistant", told[-1][1] + text)
    else:
        add(told, "assistant", text)

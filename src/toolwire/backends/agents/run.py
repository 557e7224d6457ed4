"""A run of an agent. A background task drives the run, so the run can outlive an HTTP request.

The agent's backend reports events (`text`, `thought`, `usage`, `call`) even while no request reads them. The
gateway reads these events through the interface `LiveRun`. Calls that come within `settle_s` seconds of each
other belong to one response. An agent that repeats the same call too often is stopped, because every call
costs tokens.
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
"""How long after a call its response waits for further calls at most, if the agent is never silent."""
UNREAD_LIMIT, UNREAD_EACH = 32 * 2**20, 128
"""The limit for unread events, in characters of their text. Each event counts `UNREAD_EACH` more."""
Work = Callable[["AgentRun"], Awaitable[None]]
CANCELLED = Failure("backend_cut", "The run was cancelled.")


@dataclass(slots=True)
class _Call:
    id: str
    name: str
    arguments: str
    order: float
    result: asyncio.Future[Result] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class AgentRun:
    """A run of an agent. `work` drives the agent until its answer is complete. `stop` interrupts the agent.

    An error in `work` makes the run fail. `repeats`: how often the agent may make the same call. `timeout_s`:
    how long the agent may be silent while it works.
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
        self.called = False
        self.finished = False
        """Whether the agent has completed its answer. `reason` is then its finish reason."""
        self.reason: FinishReason = "stop"
        self.tap: FrameTap | None = None
        """The function that records raw messages (frames) during the current response, or None."""
        self._work = work
        self._stop = stop
        self._settle_s = settle_s
        self._repeats = repeats
        self._timeout_s = timeout_s
        self._conversation: list[Entry] = entries(turn.items)
        self._said: list[str] = []
        self._task: asyncio.Task[None] | None = None
        self._events: list[Event] = []
        self._unread = 0
        self._news = asyncio.Event()
        self._new_calls: list[_Call] = []
        self._sent_calls: dict[str, _Call] = {}
        self._seen: Counter[Entry] = _repeated(turn.items)
        self._numbers = itertools.count(1)
        self._end: Finish | Failure | None = None
        self._over: asyncio.Future[None] | None = None

    @property
    def conversation(self) -> list[Entry]:
        """The conversation so far, as the client will send it next time. Consecutive texts are joined."""
        if self._said:
            text, self._said = "".join(self._said), []
            if self._conversation and self._conversation[-1][0] == "assistant":
                text = self._conversation.pop()[1] + text
            self._conversation.append(("assistant", text))
        return self._conversation

    # --- the agent's side ---

    def text(self, text: str) -> None:
        if text and self._end is None:
            self._said.append(text)
            self._push(Text(text))

    def thought(self, text: str) -> None:
        if text:
            self._push(Thought(text))

    def usage(self, usage: Usage) -> None:
        self._push(usage)

    @property
    def lacks_call(self) -> bool:
        """Whether the turn requires a call and the agent has not made one yet."""
        return self.turn.tool_choice.mode == "required" and bool(self.turn.offered()) and not self.called

    @property
    def failed(self) -> bool:
        return isinstance(self._end, Failure)

    def alive(self) -> None:
        """Restarts `timeout_s`. Called when the agent works but has no event to report."""
        self._news.set()

    async def call(
        self, name: str, arguments: str, id: str | None = None, order: float | None = None
    ) -> Result:
        """Calls a client's tool and returns the client's result.

        `order` sorts the calls of one response. Raises `ToolwireError` if the run has finished or was
        cancelled. In a failed run, the call waits until it is cancelled, because the agent would continue
        after an error.
        """
        if isinstance(self._end, Finish) or (self._over is not None and self._over.done()):
            raise ToolwireError("backend_cut", "The run is over.")
        entry = call_entry(name, arguments)
        self._seen[entry] += 1
        if self._seen[entry] > self._repeats:
            did = f"The agent called the tool '{name}' with the same arguments {self._seen[entry]} times"
            self.fail(Failure("invalid_tool_call", f"{did}; the run was stopped."))
        number = next(self._numbers)
        call = _Call(id or f"agent-{number}", name, arguments, number if order is None else order)
        if call.id in self._sent_calls or any(call.id == one.id for one in self._new_calls):
            call.id = f"{call.id}-{number}"
        self._new_calls.append(call)
        self.called = True
        self._news.set()
        return await call.result

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
            problem = "The agent sent more than the limit for unread output; the run was stopped."
            self.fail(Failure("backend", problem))

    async def _drive(self) -> None:
        try:
            await self._work(self)
            self.finished = True
            if self._end is None:
                self._end = Finish(self.reason)
        except ToolwireError as error:
            self.fail(error.failure)
        except asyncio.CancelledError:
            self.fail(CANCELLED)
            raise
        except Exception:
            log.exception("an agent's run failed")
            self.fail(Failure("backend", "The agent's backend failed."))
        finally:
            self._news.set()

    # --- the gateway's side ---

    @property
    def pending(self) -> tuple[str, ...]:
        return tuple(self._sent_calls)

    async def segment(self) -> AsyncGenerator[Batch, None]:
        self.tap = frame_tap()
        if self._task is None:
            self._task = asyncio.ensure_future(self._drive())
        clock = asyncio.get_running_loop().time
        latest = 0.0
        while True:
            batch, self._events, self._unread = self._events, [], 0
            latest = (latest or clock() + LONGEST_SETTLE_S) if self._new_calls else 0.0
            overdue = 0.0 < latest < clock()
            if batch:
                yield batch
                if not overdue:
                    continue
            if self._end is not None:
                yield [self._end]
                return
            settling = bool(self._new_calls)
            has_news = not overdue and await self._has_news(self._settle_s if settling else self._timeout_s)
            # the agent may have cancelled a call in the meantime
            self._new_calls = [call for call in self._new_calls if not call.result.done()]
            if self._new_calls and settling and not has_news:
                yield self._send_calls()
                return
            if not settling and not has_news:
                self.fail(Failure("timeout", f"The agent was silent for {self._timeout_s:g} s."))

    async def _has_news(self, within_s: float) -> bool:
        self._news.clear()
        if self._events or self._end is not None:
            return True
        try:
            async with asyncio.timeout(within_s):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    def _send_calls(self) -> Batch:
        """Returns the events of the new calls, or only of the first call if parallel calls are off."""
        batch: Batch = []
        ordered = sorted(self._new_calls, key=lambda call: call.order)
        count = len(ordered) if self.turn.parallel else 1
        for index, call in enumerate(ordered[:count]):
            self._sent_calls[call.id] = call
            arguments = [CallArgs(index, call.arguments)] if call.arguments else []
            batch += [CallBegin(index, call.name, call.id), *arguments, CallEnd(index)]
            self.conversation.append(call_entry(call.name, call.arguments))
        self._new_calls = ordered[count:]
        return [*batch, Finish("tool_calls")]

    async def answer(self, results: Mapping[str, Result]) -> None:
        """Gives each waiting call its result. A call without a result gets an error."""
        waiting, self._sent_calls = self._sent_calls, {}
        for id, call in waiting.items():
            missing = Result(id, (TextPart("error: the client gave no result for this call"),))
            result = results.get(id) or missing
            self.conversation.append(result_entry(result))
            if not call.result.done():
                call.result.set_result(result)

    async def cancel(self) -> None:
        """Ends the run; may be called twice.

        An agent that has completed its answer is not interrupted.
        """
        if self._over is None:
            self._over = asyncio.ensure_future(self._cancel())
        await asyncio.wait({self._over}, timeout=STOP_S)

    async def _cancel(self) -> None:
        unfinished = not self.finished
        self.fail(CANCELLED)
        waiting, self._sent_calls = self._sent_calls, {}
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            if unfinished:
                await self._stop()
        finally:  # only now, because an agent whose call is cancelled would continue
            for call in (*waiting.values(), *self._new_calls):
                call.result.cancel()
            self._new_calls.clear()


async def one_response(
    open: Callable[[Turn], LiveRun], turn: Turn, prepare: Callable[[], Awaitable[None]] | None = None
) -> AsyncGenerator[Batch, None]:
    """Starts a run, yields the events of its first response, and then ends the run.

    The run starts when the caller reads the first event. It never waits for the results of its calls.
    """
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
    """Counts how often each call was made since the user's last message.

    This includes the calls of earlier runs, because an agent may start a new run for each result.
    """
    seen: Counter[Entry] = Counter()
    for item in items:
        if isinstance(item, Message) and item.role == "user":
            seen.clear()
        elif isinstance(item, Call):
            seen[call_entry(item.name, item.arguments)] += 1
    return seen

"""A tool call under way. It is a task of its own, so that a request that asks about it may end while it waits for a person.

A protocol before 2026-07-28 puts a question while the call's request is open; since then a request ends with its question, and the client calls again
with the answer. Both look here for what there is to do: a question to put, a wait, or the outcome. A request that is cancelled cancels its call, and
closing cancels all: nothing is left pending that nobody waits for (law 11).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from toolwire.core.errors import ToolwireError
from toolwire.tools.approvals import Approvals
from toolwire.tools.contract import Approval, Asking, Decision, Outcome, ToolCall
from toolwire.tools.executor import Executor, Toolbox

MOST_OPEN = 64
"""So many calls may be under way. A further one is refused: nobody answers that many questions."""


@dataclass(frozen=True, slots=True)
class AskChannels:
    """How a person can be asked: by a form that the client shows, by the approvals inbox."""

    form: bool
    inbox: bool


class McpCall:
    """A call, and the surface its questions go to."""

    def __init__(
        self, toolbox: Toolbox, approvals: Approvals, call: ToolCall, asking: Asking, ways: AskChannels
    ) -> None:
        self.call = call
        self.ways = ways
        self.key = ""
        """What the client's next request for this call must carry; fresh for every question."""
        self.open: Approval | None = None
        """The question that a form is to be shown for."""
        self.left: Approval | None = None
        """The question that waits in the inbox."""
        self._approvals = approvals
        self._answer: asyncio.Future[Decision | None] | None = None
        self._changed = asyncio.Event()
        self.task = asyncio.ensure_future(self._run(Executor(toolbox, approvals, self), asking))

    async def _run(self, executor: Executor, asking: Asking) -> Outcome:
        return (await executor.execute([self.call], asking))[0]

    async def ask(self, approvals: Sequence[Approval]) -> bool:
        left = False
        for approval in approvals:
            decision = await self._by_form(approval) if self.ways.form else None
            if decision is None:
                left = True
                self.left = approval
                self._changed.set()
                continue
            try:
                await self._approvals.decide(approval.id, approval.token, decision, by="mcp form")
            except ToolwireError as error:
                if error.failure.kind != "conflict":  # else: decided elsewhere, a moment before
                    raise
        return left and self.ways.inbox

    async def _by_form(self, approval: Approval) -> Decision | None:
        self._answer = asyncio.get_running_loop().create_future()
        self.open, self.key = approval, secrets.token_urlsafe(24)
        self._changed.set()
        try:
            return await self._answer
        finally:
            self.open, self._answer = None, None
            self._changed.set()

    def answer(self, id: str, decision: Decision | None) -> None:
        """The form's answer to the question with that id; None: the client could not show it. An answer to any other question is dropped."""
        if (
            self.open is not None
            and self.open.id == id
            and self._answer is not None
            and not self._answer.done()
        ):
            self.open = None
            self._answer.set_result(decision)

    async def news(self, within_s: float) -> None:
        """Returns when there is something to look at, or when the time is over."""
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait({self.task, changed}, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
            self._changed.clear()


class McpCalls:
    """All calls under way, and those that wait for their client to come back."""

    def __init__(self) -> None:
        self._running: set[McpCall] = set()
        self._waiting: dict[str, McpCall] = {}

    def begin(
        self, toolbox: Toolbox, approvals: Approvals, call: ToolCall, asking: Asking, ways: AskChannels
    ) -> McpCall | None:
        """None: too many are open."""
        if len(self._running) >= MOST_OPEN:
            return None
        begun = McpCall(toolbox, approvals, call, asking, ways)
        self._running.add(begun)
        begun.task.add_done_callback(lambda task: self._running.discard(begun))
        return begun

    def wait(self, call: McpCall) -> str:
        """Lets the request end with the call's question; gives what brings the call back."""
        while len(self._waiting) >= MOST_OPEN:  # the oldest first: its client has not come back
            self._waiting.pop(next(iter(self._waiting))).task.cancel()
        self._waiting[call.key] = call
        return call.key

    def resume(self, key: str, call: ToolCall) -> McpCall | None:
        """The call that waits under this key, once. It must be the very call that was asked about."""
        waiting = self._waiting.get(key)
        if waiting is None or (waiting.call.name, waiting.call.arguments) != (call.name, call.arguments):
            return None
        return self._waiting.pop(key)

    async def close(self) -> None:
        """Ends every call; their questions are expired when this returns."""
        self._waiting.clear()
        tasks = [call.task for call in self._running]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

"""Tool calls in progress.

Each call runs in its own task, so that the client's request can end while the call waits for a person. Before
protocol 2026-07-28, the server sends a question while the request for the call is open. Since that version,
the request ends with the question as its result, and the client sends the request again with the answer. In
both cases, `McpCall` shows what the server must do next: send a question, wait, or return the outcome. If a
request is cancelled, its call is cancelled. `McpCalls.close` cancels all calls. The question of a cancelled
call expires, unless it is in the inbox and `toolwire mcp --wait` keeps it pending.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mcp.server import ServerRequestContext

from toolwire.tools.approvals import Approvals
from toolwire.tools.contract import Approval, Asking, Decision, Outcome, ToolCall
from toolwire.tools.executor import Executor, Toolbox

MOST_OPEN = 64
"""How many calls may be in progress. Further calls are refused: nobody answers that many questions."""
REPORT_EVERY_S = 0.02
"""The shortest time between two progress reports of a server that are sent to the client."""


@dataclass(frozen=True, slots=True)
class AskChannels:
    """How a person can be asked: by a form that the client shows, or in the approvals inbox."""

    form: bool
    inbox: bool


@dataclass(frozen=True, slots=True)
class Reported:
    """The last progress report of an MCP server for a call."""

    progress: float
    total: float | None
    message: str | None


class McpCall:
    """A tool call in progress. It is also the `Surface` that asks the questions of the call.

    `wait_s`: how long the call waits for a decision in the inbox before its client has to call again; None:
    until the question expires.
    """

    def __init__(
        self,
        toolbox: Toolbox,
        approvals: Approvals,
        call: ToolCall,
        asking: Asking,
        channels: AskChannels,
        wait_s: float | None = None,
    ) -> None:
        self.call = call
        self.channels = channels
        self.key = ""
        """The key in the client's next request that resumes this call. Each question has a new key."""
        self.open: Approval | None = None
        """The question that the client must show as a form; None if there is none."""
        self.left: Approval | None = None
        """The question that no form has decided, and that waits in the inbox if that is allowed."""
        self.reported: Reported | None = None
        self.toolbox = toolbox
        self._approvals = approvals
        self._answer: asyncio.Future[Decision | None] | None = None
        self._changed = asyncio.Event()
        self._woken_at = 0.0
        wait_s = None if channels.form else wait_s
        executor = Executor(toolbox, approvals, self, progress=self.report, wait_s=wait_s)
        self.task = asyncio.ensure_future(self._run(executor, asking))

    async def _run(self, executor: Executor, asking: Asking) -> Outcome:
        return (await executor.execute([self.call], asking))[0]

    async def ask(self, approvals: Sequence[Approval]) -> bool:
        left = False
        for approval in approvals:
            decision = await self._by_form(approval) if self.channels.form else None
            if decision is not None:
                await self._approvals.decide_unless_decided(approval, decision, by="mcp form")
                continue
            left = True
            self.left = approval
            self._changed.set()
        return left and self.channels.inbox

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
        """Answers the open question, if it has this id.

        `decision` is None if the client could not show the form.
        """
        answer = self._answer
        if self.open is not None and self.open.id == id and answer is not None and not answer.done():
            self.open = None
            answer.set_result(decision)

    async def report(self, progress: float, total: float | None, message: str | None) -> None:
        """Stores a progress report. Wakes the waiting request at most once every `REPORT_EVERY_S`."""
        self.reported = Reported(progress, total, message)
        now = time.monotonic()
        if now - self._woken_at >= REPORT_EVERY_S:
            self._woken_at = now
            self._changed.set()

    async def news(self, within_s: float, *also: asyncio.Future[Any]) -> None:
        """Waits until the call has changed or ended, one of `also` is done, or `within_s` have passed."""
        changed = asyncio.ensure_future(self._changed.wait())
        waiting: set[asyncio.Future[Any]] = {self.task, changed, *also}
        try:
            await asyncio.wait(waiting, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
            self._changed.clear()


class McpCalls:
    """All calls in progress, including calls that wait until the client sends their request again."""

    def __init__(self) -> None:
        self._running: set[McpCall] = set()
        self._waiting: dict[str, McpCall] = {}

    def begin(
        self,
        toolbox: Toolbox,
        approvals: Approvals,
        call: ToolCall,
        asking: Asking,
        channels: AskChannels,
        wait_s: float | None = None,
    ) -> McpCall | None:
        """Starts a call and returns it. Returns None if too many calls are in progress."""
        if len(self._running) >= MOST_OPEN:
            return None
        begun = McpCall(toolbox, approvals, call, asking, channels, wait_s)
        self._running.add(begun)
        begun.task.add_done_callback(lambda task: self._running.discard(begun))
        return begun

    def wait(self, call: McpCall) -> str:
        """Keeps a call whose request ends with a question. Returns the key that resumes the call."""
        while len(self._waiting) >= MOST_OPEN:  # cancel the oldest: its client has not sent the request again
            self._waiting.pop(next(iter(self._waiting))).task.cancel()
        self._waiting[call.key] = call
        return call.key

    def resume(self, key: str, call: ToolCall) -> McpCall | None:
        """Returns the call that waits under this key, and removes it from the waiting calls.

        Returns None if no call has this key, or if that call's name or arguments differ from those of `call`.
        """
        waiting = self._waiting.get(key)
        if waiting is None or (waiting.call.name, waiting.call.arguments) != (call.name, call.arguments):
            return None
        return self._waiting.pop(key)

    async def close(self) -> None:
        """Cancels every call, and waits until the calls have ended."""
        self._waiting.clear()
        tasks = [call.task for call in self._running]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Progress:
    """Sends the progress of one request, as a number that always rises.

    While a person decides, the number counts seconds. After that, it follows the server's own reports.
    """

    def __init__(self, context: ServerRequestContext[Any, Any]) -> None:
        self._context = context
        self._began = time.monotonic()
        self._last = 0.0
        self._sent: Reported | None = None
        self._offset = 0.0

    async def wait(self, status: str) -> None:
        """Reports what the call waits for, so that the client does not time out.

        Does nothing after the first report of the server.
        """
        if self._sent is not None:
            return  # the server's own reports have begun
        self._last = self._offset = time.monotonic() - self._began
        await self._context.session.report_progress(self._last, message=status)

    async def of_server(self, call: McpCall) -> bool:
        """Sends the server's last report to the client. Returns whether the report was new."""
        reported = call.reported
        if reported is None or reported is self._sent:
            return False
        self._sent = reported
        value = self._offset + reported.progress
        if value > self._last:
            self._last = value
            total = reported.total + self._offset if reported.total is not None else None
            await self._context.session.report_progress(value, total, reported.message)
        return True

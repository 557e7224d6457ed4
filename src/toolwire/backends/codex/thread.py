"""One Codex thread: its messages in order, its tool calls and their answers, and its end.

A thread serves one turn. After an interruption it is never used again, because Codex records the interruption
in the history. Codex asks for the result of each tool call, before or after the client sends the result.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from toolwire.backends.codex import protocol
from toolwire.backends.codex.protocol import RpcMessage
from toolwire.backends.codex.worker import CodexWorker
from toolwire.core.errors import ToolwireError
from toolwire.core.events import Failure

STOP_S = 5.0


class Seat:
    """A worker process in a `Pool`. `busy`: how many runs use it.

    `release` must be called exactly once for each `Pool.lease`.
    """

    def __init__(self, worker: CodexWorker, released: Callable[[Seat, bool], None]) -> None:
        self.worker = worker
        self.busy = 0
        self.retired = False
        """Whether the worker gets no more threads. The worker ends when its last thread has ended."""
        self.measured = 0.0
        self._released = released

    def release(self, served: bool) -> None:
        """Ends one lease. `served`: whether the worker has served the leased thread."""
        self._released(self, served)


class Thread:
    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self.worker = seat.worker
        self.id = ""
        self.turn_id = ""
        self._path: str | None = None
        self.inbox: deque[RpcMessage] = deque()
        self._news = asyncio.Event()
        self._failure: Failure | None = None
        self._asked: dict[str, RpcMessage] = {}
        self._answers: dict[str, Mapping[str, Any]] = {}
        self._beginning: asyncio.Task[bytes] | None = None
        self.running = False
        """Whether the turn has started and Codex has not reported its end."""
        self._stuck = False
        self._over: asyncio.Task[None] | None = None

    async def start(self, method: str, params: Mapping[str, Any]) -> None:
        started = protocol.decode(protocol.ThreadStarted, await self.worker.request(method, params))
        if started is None:
            raise ToolwireError("backend", f"Codex answered {method} in an unknown format.")
        self.id, self._path = started.thread.id, started.thread.path
        self.worker.attach(self.id, self)

    async def inject(self, items: list[dict[str, Any]]) -> None:
        await self.worker.request("thread/inject_items", {"threadId": self.id, "items": items})

    async def begin(self, params: Mapping[str, Any]) -> None:
        """Starts a turn. Messages that arrive before this method returns are kept in `inbox`."""
        self.turn_id = ""
        self.running = True
        request = self.worker.request("turn/start", {"threadId": self.id, **params})
        self._beginning = self.worker.background(request)
        began = protocol.decode(protocol.TurnNews, await asyncio.shield(self._beginning))
        if began is not None:
            self.turn_id = began.turn.id

    def answer(self, call_id: str, answer: Mapping[str, Any]) -> None:
        """Sends the result of a tool call, or keeps it until Codex asks for it."""
        request = self._asked.pop(call_id, None)
        if request is not None:
            self.worker.reply(request, answer)
        else:
            self._answers[call_id] = answer

    # --- messages ---

    async def receive(self, timeout_s: float) -> RpcMessage:
        """Returns the next message.

        Raises `TimeoutError` if no message arrives within `timeout_s`. If the Codex process has died, raises
        the error that says so.
        """
        while not self.inbox:
            if self._failure is not None:
                raise ToolwireError.of(self._failure)
            self._news.clear()
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        return self.inbox.popleft()

    def deliver(self, message: RpcMessage) -> None:
        if message.id is not None:
            self._serve(message)
        elif self._over is None:
            self.inbox.append(message)
            self._news.set()

    def lost(self, failure: Failure) -> None:
        self._failure = failure
        self._news.set()

    def _serve(self, request: RpcMessage) -> None:
        call = protocol.decode(protocol.CodexToolCall, request.params)
        if call is None:
            self.worker.refuse(request, "Toolwire cannot read this tool call")
        elif self._over is not None:
            pass  # any answer, even a refusal, would make the model continue before the interruption arrives
        elif call.call_id in self._answers:
            self.worker.reply(request, self._answers.pop(call.call_id))
        else:
            self._asked[call.call_id] = request

    # --- the end ---

    def stuck(self) -> None:
        """Interrupts a turn whose end Codex does not report. The worker process gets no more threads."""
        self._stuck = True
        self.worker.notify("turn/interrupt", {"threadId": self.id, "turnId": self.turn_id})
        self._seat.retired = True

    async def end(self, served: bool) -> None:
        """Interrupts the turn if it runs, removes the thread and releases its `Seat`. May be called twice."""
        if self._over is None:
            self._over = self.worker.background(self._end(served))
        await asyncio.wait({self._over}, timeout=STOP_S)

    async def _end(self, served: bool) -> None:
        try:
            if self.running and self.worker.alive:
                await self._interrupt()
            if self.worker.alive and self.id and not self._stuck:
                await self._forget()
        finally:
            self._remove()
            self.worker.detach(self.id)
            self.inbox.clear()
            self._seat.release(served and self.worker.alive)

    async def _interrupt(self) -> None:
        with suppress(ToolwireError):
            if self._beginning is not None and not self.turn_id:
                began = protocol.decode(protocol.TurnNews, await self._beginning)
                self.turn_id = began.turn.id if began is not None else ""
            await self.worker.request("turn/interrupt", {"threadId": self.id, "turnId": self.turn_id}, STOP_S)

    async def _forget(self) -> None:
        """Removes the thread from Codex.

        Codex removes idle ephemeral threads by itself. A thread on disk must be archived.
        """
        if self._path is None:
            self.worker.notify("thread/unsubscribe", {"threadId": self.id})
            return
        with suppress(ToolwireError):
            await self.worker.request("thread/archive", {"threadId": self.id}, STOP_S)

    def _remove(self) -> None:
        if self._path is None:
            return
        path, home = Path(self._path), self.worker.home.path
        for file in (path, home / "archived_sessions" / path.name):
            if file.is_relative_to(home):
                file.unlink(missing_ok=True)

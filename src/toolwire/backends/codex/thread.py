"""One Codex thread: its messages in order, its tool calls and their answers, and its end.

A thread serves one conversation turn and is never used again after an interruption: Codex keeps traces of one in the history. A tool call may be
asked for before or after its answer is known; both orders are served, also while nobody reads the thread's messages.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from toolwire.backends.codex import protocol
from toolwire.backends.codex.pool import Seat
from toolwire.backends.codex.protocol import Notification, ServerRequest
from toolwire.core.errors import ToolwireError
from toolwire.core.events import Failure

STOP_S = 5.0


class Thread:
    """One thread on a leased worker."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self.worker = seat.worker
        self.id = ""
        self.turn_id = ""
        self._path: str | None = None
        self._inbox: deque[Notification] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self._failure: Failure | None = None
        self._asked: dict[str, ServerRequest] = {}
        self._answers: dict[str, Mapping[str, Any]] = {}
        self._beginning: asyncio.Task[bytes] | None = None
        self._running = False
        self._stuck = False
        self._over: asyncio.Task[None] | None = None

    # --- asking --------------------------------------------------------------------------------------------------------------------------------

    async def start(self, method: str, params: Mapping[str, Any]) -> None:
        """By thread/start or thread/resume."""
        started = protocol.decode(protocol.ThreadStarted, await self.worker.request(method, params))
        if started is None:
            raise ToolwireError("backend", f"Codex answered {method} in a way that Toolwire does not know.")
        self.id, self._path = started.thread.id, started.thread.path
        self.worker.attach(self.id, self)

    async def inject(self, items: list[dict[str, Any]]) -> None:
        await self.worker.request("thread/inject_items", {"threadId": self.id, "items": items})

    async def begin(self, params: Mapping[str, Any]) -> None:
        """Starts a turn. Its messages may come before this returns; they wait."""
        self.turn_id = ""
        self._running = True
        self._beginning = self.worker.background(
            self.worker.request("turn/start", {"threadId": self.id, **params})
        )
        began = protocol.decode(protocol.TurnNews, await asyncio.shield(self._beginning))
        if began is not None:
            self.turn_id = began.turn.id

    def answer(self, call_id: str, answer: Mapping[str, Any]) -> None:
        """The answer to a tool call, now or when Codex asks for it."""
        request = self._asked.pop(call_id, None)
        if request is not None:
            self.worker.reply(request, answer)
        else:
            self._answers[call_id] = answer

    # --- hearing -------------------------------------------------------------------------------------------------------------------------------

    async def receive(self, timeout_s: float) -> Notification:
        """The next message. Raises TimeoutError after so long a silence, and the worker's failure once it is lost."""
        while not self._inbox:
            if self._failure is not None:
                raise ToolwireError.of(self._failure)
            await self._silence(timeout_s)
        return self._inbox.popleft()

    async def _silence(self, timeout_s: float) -> None:
        """Until there is news. One timer serves the whole thread: a message only moves the deadline, which the timer looks at when it is due."""
        loop = asyncio.get_running_loop()
        self._deadline = loop.time() + timeout_s
        if self._timer is None or self._timer.when() > self._deadline:
            self._stop_timer()
            self._timer = loop.call_at(self._deadline, self._look)
        self._waiter = loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _look(self) -> None:
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        loop = asyncio.get_running_loop()
        if loop.time() >= self._deadline:
            self._waiter.set_exception(TimeoutError())
        else:
            self._timer = loop.call_at(self._deadline, self._look)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def waiting(self) -> bool:
        """Whether a message is there already."""
        return bool(self._inbox)

    def deliver(self, message: Notification | ServerRequest) -> None:
        if isinstance(message, ServerRequest):
            self._serve(message)
        elif self._over is None:
            self._inbox.append(message)
            self._wake()

    def lost(self, failure: Failure) -> None:
        self._failure = failure
        self._wake()

    def _serve(self, request: ServerRequest) -> None:
        call = protocol.decode(protocol.CodexToolCall, request.params)
        if call is None:
            self.worker.refuse(request, "this is no tool call that Toolwire can read")
        elif self._over is not None:
            pass  # any answer, also a refusal, would make the model go on before the interruption arrives
        elif call.call_id in self._answers:
            self.worker.reply(request, self._answers.pop(call.call_id))
        else:
            self._asked[call.call_id] = request

    # --- ending --------------------------------------------------------------------------------------------------------------------------------

    def completed(self) -> None:
        """Codex has said that the turn is over."""
        self._running = False

    def stuck(self) -> None:
        """Codex does not end the turn: no answer of this thread's is waited for any more, and its process takes no further ones."""
        self._stuck = True
        self.worker.tell("turn/interrupt", {"threadId": self.id, "turnId": self.turn_id})
        self._seat.retired = True

    async def end(self, served: bool) -> None:
        """Interrupts what still runs, forgets the thread and gives its place back. Safe to call twice."""
        if self._over is None:
            self._over = self.worker.background(self._end(served))
        await asyncio.wait({self._over}, timeout=STOP_S)

    async def _end(self, served: bool) -> None:
        try:
            if self._running and self.worker.alive:
                await self._interrupt()
            if self.worker.alive and self.id and not self._stuck:
                await self._forget()
        finally:
            self._stop_timer()
            self._remove()
            self.worker.detach(self.id)
            self._inbox.clear()
            self._seat.release(served and self.worker.alive)

    async def _interrupt(self) -> None:
        with suppress(ToolwireError):
            if self._beginning is not None and not self.turn_id:
                began = protocol.decode(protocol.TurnNews, await self._beginning)
                self.turn_id = began.turn.id if began is not None else ""
            await self.worker.request("turn/interrupt", {"threadId": self.id, "turnId": self.turn_id}, STOP_S)

    async def _forget(self) -> None:
        """An ephemeral thread is left to Codex, which drops it when idle; one that was written to disk is removed from there."""
        if self._path is None:
            self.worker.tell("thread/unsubscribe", {"threadId": self.id})
            return
        with suppress(ToolwireError):
            await self.worker.request("thread/archive", {"threadId": self.id}, STOP_S)

    def _remove(self) -> None:
        if self._path is None:
            return
        path = Path(self._path)
        for file in (path, self.worker.home.path / "archived_sessions" / path.name):
            if file.is_relative_to(self.worker.home.path):
                file.unlink(missing_ok=True)

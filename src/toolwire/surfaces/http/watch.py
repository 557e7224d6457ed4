"""What is known of the connection that a request came by, and whether its client has left while the answer is made.

Our own protocol says it by a call (`Connection` in the scope), which costs nothing while nobody leaves; any other server says it only to who waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from starlette.types import Receive, Scope

CONNECTION = "toolwire.connection"


class Wire(Protocol):
    """What can be had of a connection without waiting."""

    def take(self) -> bytes | None:
        """The request's body, where all of it is there."""

    def answer(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> bool:
        """Sends a whole answer, or says that it has to be sent in another way."""

    def write(self, block: bytes) -> bool:
        """Sends a piece of a stream, or says that it has to be sent, and waited for."""


class _Silent:
    """Of a connection of which nothing is known, or that was answered."""

    def take(self) -> bytes | None:
        return None

    def answer(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> bool:
        return False

    def write(self, block: bytes) -> bool:
        return False


SILENT = _Silent()


class Connection:
    """One request's connection. `task` answers it. `gone`: it is over; `tell` is called when that happens."""

    __slots__ = ("gone", "task", "tell", "wire")

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.task: asyncio.Task[Any] | None = None
        self.gone = False
        self.tell: Callable[[], None] | None = None

    def left(self) -> None:
        self.gone = True
        if self.tell is not None:
            self.tell()

    def answered(self) -> None:
        """Nothing more will be said: what it refers to refers to it, and would otherwise wait for the garbage collector."""
        self.wire, self.task, self.tell = SILENT, None, None


NO_CONNECTION = Connection(SILENT)
"""Where the server is not ours, and tells of none."""


class Watch:
    """Cancels the task that made it when the client goes away. `gone` tells this cancellation from the server's own."""

    __slots__ = ("_connection", "_task", "_watched", "gone")

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.gone = False
        self._connection: Connection | None = scope.get(CONNECTION)
        self._watched = asyncio.current_task() if self._connection is None else self._connection.task
        self._task: asyncio.Task[Any] | None = None
        if self._connection is None:
            self._task = asyncio.get_running_loop().create_task(self._run(receive))
        elif self._connection.gone:
            self._left()
        else:
            self._connection.tell = self._left

    async def _run(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._left()

    def _left(self) -> None:
        self.gone = True
        if self._watched is not None:
            self._watched.cancel()

    def stop(self) -> None:
        if self._connection is not None:
            self._connection.tell = None
        elif self._task is not None:
            self._task.cancel()

"""What is known of the connection that a request came by, and whether its client has left while the answer is made.

Our own protocol says it by a call (`Connection` in the scope), which costs nothing while nobody leaves; any other server says it only to who waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.types import Receive, Scope

CONNECTION = "toolwire.connection"


def not_written(block: bytes) -> bool:
    return False


def _nothing_to_come() -> bool:
    return True


class Connection:
    """One request's connection. `task` answers it. `gone`: it is over; `tell` is called when that happens. `body_is_here`: nothing more of the body
    has to come. `write` takes a piece of a stream at once, or says that it has to be sent, and waited for.
    """

    __slots__ = ("body_is_here", "gone", "task", "tell", "write")

    def __init__(self, body_is_here: Callable[[], bool], write: Callable[[bytes], bool] = not_written) -> None:
        self.body_is_here = body_is_here
        self.write = write
        self.task: asyncio.Task[Any] | None = None
        self.gone = False
        self.tell: Callable[[], None] | None = None

    def left(self) -> None:
        self.gone = True
        if self.tell is not None:
            self.tell()

    def answered(self) -> None:
        """Nothing more will be said: what it refers to refers to it, and would otherwise wait for the garbage collector."""
        self.body_is_here, self.write, self.task, self.tell = _nothing_to_come, not_written, None, None


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

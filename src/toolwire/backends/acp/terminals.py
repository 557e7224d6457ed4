"""Terminals that an agent asks its client for: each is one call of the client's own shell tool, whose result comes when the person's machine is done.

Nothing runs here. A terminal has no output until the client has answered; then it has all of it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from typing import Any

Json = Any
LIMIT = 1024 * 1024


class Terminal:
    def __init__(self, work: Coroutine[Any, Any, dict[str, Json]], limit: int | None) -> None:
        self._task = asyncio.ensure_future(work)
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())  # looked at, whether or not the agent asks
        self._limit = limit if limit is not None else LIMIT

    async def wait(self) -> dict[str, Json]:
        """`exitCode` and `signal`."""
        await asyncio.wait({self._task})
        return self._status()

    def output(self) -> dict[str, Json]:
        """What there is now. Cut from the beginning where it is more than was asked for."""
        if not self._task.done():
            return {"output": "", "truncated": False}
        whole = self._words().encode("utf-8", "replace")
        kept = whole[max(0, len(whole) - self._limit) :].decode("utf-8", "ignore")
        return {"output": kept, "truncated": len(whole) > self._limit, "exitStatus": self._status()}

    def kill(self) -> None:
        self._task.cancel()

    def _status(self) -> dict[str, Json]:
        if self._task.cancelled():
            return {"exitCode": None, "signal": "SIGKILL"}
        return {"exitCode": 1 if self._task.exception() is not None else self._task.result()["exitCode"], "signal": None}

    def _words(self) -> str:
        if self._task.cancelled():
            return ""
        error = self._task.exception()
        if error is not None:
            return f"error: {error}"
        done = self._task.result()
        return "\n".join(filter(None, (done["stdout"], done["stderr"])))


class Terminals:
    """Those of one session, by id."""

    def __init__(self) -> None:
        self._open: dict[str, Terminal] = {}
        self._numbers = itertools.count(1)

    def create(self, work: Coroutine[Any, Any, dict[str, Json]], limit: int | None) -> str:
        id = f"terminal-{next(self._numbers)}"
        self._open[id] = Terminal(work, limit)
        return id

    def find(self, id: Json) -> Terminal | None:
        return self._open.get(str(id))

    def release(self, id: Json) -> None:
        terminal = self._open.pop(str(id), None)
        if terminal is not None:
            terminal.kill()

    def close(self) -> None:
        for id in list(self._open):
            self.release(id)

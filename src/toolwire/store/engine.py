"""Where the store's rows lie: SQLite for one machine, PostgreSQL for several nodes. One schema and one SQL for both.

Rules for SQL: `?` for parameters; ON CONFLICT, never INSERT OR …; booleans are integers; the types of `translate.TYPES` and no others. What must
happen whole stands in `with connection.transaction():`. SQLite lets one writer in at a time, PostgreSQL many: what depends on a row changes it by one
statement (`UPDATE … SET n = n + ? WHERE …`, ON CONFLICT, RETURNING), never by reading first and writing later.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from toolwire.core.errors import ToolwireError

log = logging.getLogger("toolwire.store")
T = TypeVar("T")

NOT_WHAT_WAS_WRITTEN = (ValueError, KeyError, TypeError)
"""What work raises over a row that it can not read."""


class Cursor(Protocol):
    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """What work is handed. Outside of a transaction every statement is its own."""

    def execute(self, query: str, parameters: Sequence[Any] = ..., /) -> Cursor: ...
    def executemany(self, query: str, rows: Iterable[Sequence[Any]], /) -> Any: ...
    def transaction(self) -> AbstractContextManager[Any]: ...


class Engine(ABC):
    """Threads that own connections; callers await them, so the event loop never waits for a disk or a network."""

    name: str
    """For messages: the file, or the address without its password."""
    path: str
    """The file; ":memory:" where there is none on this machine."""
    reachable = True
    """False from a connection that could not be made until one that could."""

    def __init__(self, threads: int) -> None:
        self._count = threads
        self._executor: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._closed = False

    async def run(self, work: Callable[[Connection], T], action: str) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor or self._threads(), self._call, work, action)

    async def close(self) -> None:
        """Lets end what was begun, then closes every connection."""
        with self._lock:
            executor, self._executor, self._closed = self._executor, None, True
        if executor is not None:
            await asyncio.to_thread(self._end, executor)

    def _threads(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._closed:
                raise ToolwireError("server", "The store is closed.")
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self._count, "toolwire-store")
            return self._executor

    def _end(self, executor: ThreadPoolExecutor) -> None:
        executor.shutdown()
        self._disconnect()

    def _failure(self, error: BaseException, action: str, *, passing: bool, reason: str = "") -> ToolwireError:
        """What the caller is told. `passing`: the cause lies outside and may go away, so the same request may be sent again."""
        log.error("store %s: %s failed: %s", self.name, action, error)
        message = f"The gateway's store could not {action}: {reason or first_line(error)}."
        return ToolwireError("overloaded", message, retry_after_s=1) if passing else ToolwireError("server", message)

    @abstractmethod
    def _call(self, work: Callable[[Connection], T], action: str) -> T:
        """In one of the threads."""

    @abstractmethod
    def _disconnect(self) -> None:
        """When no thread runs any more."""


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def engine_of(url: str) -> Engine:
    """`sqlite:///PATH` (absolute: four slashes, or `~`), `sqlite://` for memory, `postgresql://…`. Touches nothing yet."""
    scheme = url.partition(":")[0]
    if scheme in ("postgresql", "postgres"):
        from toolwire.store.postgres import PostgresEngine

        return PostgresEngine(url)
    from toolwire.store.sqlite import SqliteEngine

    if url in ("sqlite://", "sqlite:///:memory:", ":memory:"):
        return SqliteEngine(":memory:")
    if url.startswith("sqlite:///") and len(url) > len("sqlite:///"):
        return SqliteEngine(url.removeprefix("sqlite:///"))
    raise ToolwireError("server", "store.url: expected sqlite:///PATH or postgresql://USER:PASSWORD@HOST/DATABASE")

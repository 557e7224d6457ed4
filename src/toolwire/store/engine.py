"""The interface of the two engines: SQLite for one machine, PostgreSQL for several nodes.

Both run the same SQL on the same schema. Rules for that SQL:

- `?` marks a parameter. Use ON CONFLICT, not INSERT OR …. Booleans are integers. Column types are those of
  `postgres.TYPES`.
- Statements that must be atomic are in `with connection.transaction():`.
- SQLite allows one writer at a time, PostgreSQL many. A change that depends on a row's value is therefore one
  statement (`UPDATE … SET n = n + ? WHERE …`, ON CONFLICT, RETURNING), never a read followed by a write.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from toolwire.core.errors import ToolwireError
from toolwire.settings.extras import add_extra

log = logging.getLogger("toolwire.store")
T = TypeVar("T")

UNREADABLE = (ValueError, KeyError, TypeError)
FULL = "the disk is full"
_DISK_ERRORS = {errno.ENOSPC: FULL, errno.EDQUOT: FULL, errno.EROFS: "the disk is read-only"}
IN_MEMORY = ("sqlite://", "sqlite:///:memory:", ":memory:")
EXPECTED = "store.url: expected sqlite:///PATH or postgresql://USER:PASSWORD@HOST/DATABASE"


class Cursor(Protocol):
    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """The connection that `Engine.run` passes to its work function.

    Outside a transaction, each statement commits by itself.
    """

    def execute(self, query: str, parameters: Sequence[Any] = ..., /) -> Cursor: ...
    def executemany(self, query: str, rows: Iterable[Sequence[Any]], /) -> Any: ...
    def transaction(self) -> AbstractContextManager[Any]: ...


class Engine(ABC):
    """Runs work in threads, so that the event loop never waits for a disk or a network.

    `run` gets the work as a function. If this function cannot decode a row, it raises one of `UNREADABLE`.
    """

    name: str
    """The store's name in messages: the file, or the server's address without the password."""
    path: str
    """The path of the file; ":memory:" if there is no file on this machine."""
    reachable = True
    """Whether the last attempt to connect was successful."""

    def __init__(self, threads: int) -> None:
        self._count = threads
        self._executor: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._closed = False

    @abstractmethod
    async def run(self, work: Callable[[Connection], T], action: str) -> T:
        """Runs `work` in a thread and returns its result, or None if the result is a cursor.

        `action`: a verb for error messages. If the action is "read", `work` may run a second time after an
        error.
        """

    @abstractmethod
    def check(self) -> str:
        """Returns where the store is. Raises `ToolwireError` if it cannot be opened.

        Blocks, and changes nothing in the store.
        """

    @abstractmethod
    def _disconnect(self) -> None:
        """Closes the connections. Called when no thread uses them any more."""

    async def close(self) -> None:
        """Finishes work that has started, then closes every connection."""
        with self._lock:
            executor, self._executor, self._closed = self._executor, None, True
        if executor is not None:
            await asyncio.to_thread(self._end, executor)

    def _submit(self, call: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads(), call, *arguments)

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

    def _failure(self, error: Exception, action: str, *, temporary: bool, reason: str = "") -> ToolwireError:
        """Returns the error for the caller. `temporary`: the same request may succeed later."""
        log.error("store %s: %s failed: %s", self.name, action, error)
        message = f"The gateway's store could not {action}: {reason or first_line(error)}."
        if temporary:
            return ToolwireError("overloaded", message, retry_after_s=1)
        return ToolwireError("server", message)


def disk_error(error: OSError) -> str:
    """Returns a readable reason why a file could not be written."""
    return _DISK_ERRORS.get(error.errno or 0) or error.strerror or str(error)


def not_opened(name: str, why: object) -> ToolwireError:
    return ToolwireError("server", f"store {name}: cannot be opened: {why}")


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, without the number of a system error."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    return _ERROR_NUMBER.sub("", text)


_ERROR_NUMBER = re.compile(r"\[Errno -?\d+\] ")


def engine_of(url: str) -> Engine:
    """Returns the engine for a URL, without connecting.

    URLs are `sqlite:///PATH`, `sqlite://` (in memory) and `postgresql://…`.
    """
    scheme = url.partition(":")[0]
    if scheme in ("postgresql", "postgres"):
        try:
            from toolwire.store.postgres import PostgresEngine
        except ImportError as error:
            message = f"store.url: PostgreSQL needs the extra 'service': {add_extra('service')}"
            raise ToolwireError("server", message) from error
        return PostgresEngine(url)
    from toolwire.store.sqlite import SqliteEngine

    if url in IN_MEMORY:
        return SqliteEngine(":memory:")
    if url.startswith("sqlite:///") and len(url) > len("sqlite:///"):
        return SqliteEngine(url.removeprefix("sqlite:///"))
    raise ToolwireError("server", EXPECTED)

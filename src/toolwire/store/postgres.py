"""The store in PostgreSQL, for several nodes: threads share a small pool of connections.

- A connection that PostgreSQL has closed is replaced before it is used, so no request fails after a restart
  of PostgreSQL.
- While PostgreSQL cannot be reached, there is no pool, and callers get an error at once. After
  `LOOK_AGAIN_S` seconds, the next caller tries to connect again.
- A caller and its thread wait at most `ANSWER_S` seconds. Only the first connection may take longer, up to
  `OPENING_S` seconds.
- Only reads are tried again, so nothing is written twice.
- The first node creates or migrates the tables, under a lock. The other nodes wait until it has finished.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import select
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from toolwire.core.errors import ToolwireError
from toolwire.store import schema
from toolwire.store.engine import UNREADABLE, Connection, Engine, first_line, log, not_opened

if TYPE_CHECKING:
    from psycopg.abc import PQGen

T = TypeVar("T")
Pool: TypeAlias = "ConnectionPool[_DeadlineConnection]"

CONNECTIONS = 4
"""Connections of one process. The sum over all nodes must stay below `max_connections`."""
CONNECT_S = 3
STATEMENT_S = 8.0
ANSWER_S = 10.0
OPENING_S = 300.0
"""The time limit of the first connection, in place of `ANSWER_S`.

This connection may migrate the tables, or wait for another node that does.
"""
LOOK_AGAIN_S = 0.5
MALFORMED = (
    "store.url: expected postgresql://USER:PASSWORD@HOST:PORT/DATABASE; write special characters as %XX"
)
_MIGRATING = 0x746F6F6C77697265  # the number of the advisory lock: "toolwire" in ASCII
_DEFAULTS: dict[str, Any] = {
    "connect_timeout": CONNECT_S,
    "application_name": "toolwire",
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": int(ANSWER_S * 1000),
}

# The pool logs every request and every attempt to connect. The engine itself logs what an operator needs.
logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)


class PostgresEngine(Engine):
    path = ":memory:"

    def __init__(self, url: str) -> None:
        super().__init__(threads=CONNECTIONS)
        given = _parsed(url)
        host, port = given.get("host", ""), given.get("port", "5432")
        self.name = f"postgresql://{given.get('user', '')}@{host}:{port}/{given.get('dbname', '')}"
        self._given = {**_DEFAULTS, **given, "client_encoding": "UTF8", "autocommit": True}
        self._pool: Pool | None = None
        self._connecting = threading.Lock()
        self._first: _DeadlineConnection | None = None
        self._opened = False
        self._newer_logged = False
        self._try_after = 0.0

    async def run(self, work: Callable[[Connection], T], action: str) -> T:
        limit = ANSWER_S if self._opened else OPENING_S
        try:
            async with asyncio.timeout(limit):
                return await self._submit(self._call, work, action, time.monotonic() + limit)
        except TimeoutError:
            raise self._failure(TimeoutError("PostgreSQL does not answer"), action, temporary=True) from None

    def check(self) -> str:
        try:
            _DeadlineConnection.connect(**self._given).close()
        except psycopg.Error as error:
            raise not_opened(self.name, first_line(error)) from error
        return self.name

    # --- in a thread ----------------------------------------------------------------------------------------

    def _call(self, work: Callable[[Connection], T], action: str, deadline: float) -> T:
        retry = action == "read"
        while True:
            pool, raw = self._connection(deadline)
            try:
                result = work(PostgresConnection(raw))
                return None if isinstance(result, psycopg.Cursor) else result  # type: ignore[return-value]
            except psycopg.Error as error:
                if not raw.broken:
                    raise self._failure(error, action, temporary=_temporary(error)) from error
                if not retry or time.monotonic() >= deadline:
                    log.error("store %s: %s failed: %s", self.name, action, first_line(error))
                    raise _unreachable() from error
                retry = False
            except UNREADABLE as error:
                raise self._failure(error, action, temporary=False) from error
            finally:
                pool.putconn(raw)

    def _connection(self, deadline: float) -> tuple[Pool, _DeadlineConnection]:
        while True:
            pool = self._open_pool()
            try:
                raw = pool.getconn(timeout=deadline - time.monotonic())
            except PoolClosed:  # closed by `_not_reconnected`
                continue
            except PoolTimeout as error:
                raise _unreachable() from error
            if not raw.ended():
                raw.deadline = deadline
                return pool, raw
            # The pool's own `check` is not used: after a second bad connection it waits for a second or more.
            raw.close()
            pool.putconn(raw)

    def _disconnect(self) -> None:
        if self._pool is not None:
            self._pool.close(timeout=1)

    def _end(self, executor: ThreadPoolExecutor) -> None:
        if self._first is not None:  # if PostgreSQL does not answer, this process must still end soon
            self._first.deadline = min(self._first.deadline, time.monotonic() + ANSWER_S)
        super()._end(executor)

    # --- connecting -----------------------------------------------------------------------------------------

    def _open_pool(self) -> Pool:
        """Returns the pool. If there is none, connects first; other threads wait for the result."""
        with self._connecting:
            if self._pool is not None and not self._pool.closed:
                return self._pool
            if self._opened and time.monotonic() < self._try_after:
                raise _unreachable()
            try:
                self._pool = self._connected()
            except psycopg.Error as error:
                raise self._not_connected(error) from error
            if not self.reachable:
                log.warning("store %s: reached again", self.name)
            self.reachable = self._opened = True
            return self._pool

    def _connected(self) -> Pool:
        """Opens one connection, then the pool.

        An error of the first connection shows why it failed. The pool would not report this, because it
        connects in its own threads.
        """
        with _DeadlineConnection.connect(**self._given) as self._first:
            self._prepare(self._first)
        pool = ConnectionPool(
            connection_class=_DeadlineConnection,
            kwargs=self._given,
            min_size=1,
            max_size=CONNECTIONS,
            configure=self._prepare,
            reconnect_timeout=0,
            reconnect_failed=self._not_reconnected,
            open=False,
        )
        pool.open(wait=True, timeout=ANSWER_S)
        return pool

    def _not_connected(self, error: BaseException) -> ToolwireError:
        """Returns the error for a failed connection.

        At the start of the server, the error contains the reason. Later the reason is logged once, and the
        error is short.
        """
        if not self._opened:
            kind = "overloaded" if _temporary(error) else "server"
            return ToolwireError(kind, str(not_opened(self.name, first_line(error))))
        self._try_after = time.monotonic() + LOOK_AGAIN_S
        if self.reachable:
            log.error("store %s: cannot be reached: %s", self.name, first_line(error))
        self.reachable = False
        return _unreachable()

    def _not_reconnected(self, pool: ConnectionPool[Any]) -> None:
        """Closes a pool that could not connect.

        This wakes callers that wait for a connection of an empty pool.
        """
        if pool.get_stats()["pool_size"] == 0:
            # In a thread: `close` waits for the pool's threads, and this is one of them.
            threading.Thread(target=pool.close, kwargs={"timeout": 0}, daemon=True).start()

    def _prepare(self, raw: _DeadlineConnection) -> None:
        """Configures a new connection, and creates or migrates the tables if necessary."""
        raw.deadline = time.monotonic() + (ANSWER_S if self._opened or self._closed else OPENING_S)
        raw.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        raw.execute("SELECT set_config('statement_timeout', %s, false)", (str(int(STATEMENT_S * 1000)),))
        query = "SELECT current_setting('server_encoding'), to_regclass('toolwire_schema') IS NOT NULL"
        encoding, created = raw.execute(query).fetchone() or ("", False)
        if encoding != "UTF8":
            message = f"store {self.name}: the database's encoding is {encoding}, it must be UTF8"
            raise ToolwireError("server", message)
        version = _version(raw) if created else 0
        if version > schema.newest() and self._opened:
            # A newer node has migrated the tables while this node was running: this node continues.
            if not self._newer_logged:
                message = "a newer Toolwire has migrated the schema to version"
                log.warning("store %s: %s %d; upgrade and restart this node", self.name, message, version)
                self._newer_logged = True
        elif schema.missing(version, self.name):
            self._migrate(raw)

    def _migrate(self, raw: _DeadlineConnection) -> None:
        with raw.transaction():
            raw.execute("SET LOCAL statement_timeout = 0")
            raw.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATING,))
            raw.execute("CREATE TABLE IF NOT EXISTS toolwire_schema (version BIGINT NOT NULL)")
            # Read the version again: another node may have migrated in the meantime.
            for statement in schema.missing(_version(raw), self.name):
                raw.execute(definition(statement))
            raw.execute("DELETE FROM toolwire_schema")
            raw.execute("INSERT INTO toolwire_schema VALUES (%s)", (schema.newest(),))


def _version(raw: _DeadlineConnection) -> int:
    row = raw.execute("SELECT version FROM toolwire_schema").fetchone()
    return int(row[0]) if row is not None else 0


def _parsed(url: str) -> dict[str, Any]:
    """Returns the parts of the URL. Errors do not quote the URL, because it may contain a password."""
    try:
        given = conninfo_to_dict(url)
    except psycopg.Error:
        raise ToolwireError("server", MALFORMED) from None
    if not all(part.isdigit() for part in str(given.get("port", "0")).split(",") if part):
        raise ToolwireError("server", MALFORMED)
    return dict(given)


def _temporary(error: BaseException) -> bool:
    """Returns whether a later attempt may succeed: PostgreSQL is unreachable, busy, full or read-only."""
    return isinstance(error, psycopg.OperationalError | psycopg.errors.ReadOnlySqlTransaction)


def _unreachable() -> ToolwireError:
    message = "The gateway's store cannot be reached; try again in a moment."
    return ToolwireError("overloaded", message, retry_after_s=1)


# --- one connection -----------------------------------------------------------------------------------------


class _DeadlineConnection(psycopg.Connection[Any]):
    """A connection that waits for replies only until `deadline`. psycopg has no such limit."""

    deadline = math.inf

    def wait(self, gen: PQGen[T], *arguments: Any, **named: Any) -> T:
        return super().wait(self._limited(gen), *arguments, **named)

    def _limited(self, gen: PQGen[T]) -> PQGen[T]:
        """Runs psycopg's generator until the deadline.

        psycopg resumes the generator when there is data, and every 0.1 s.
        """
        ready: Any = None
        try:
            while time.monotonic() < self.deadline:
                ready = yield gen.send(ready)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        self.pgconn.finish()
        raise psycopg.OperationalError("PostgreSQL does not answer")

    def ended(self) -> bool:
        """Returns True if the idle connection is closed, or if PostgreSQL has sent something on it.

        Usually, PostgreSQL sends something on an idle connection only before it closes the connection.
        """
        if self.closed:
            return True
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        return bool(poll.poll(0))


class PostgresConnection:
    """A connection that translates the store's SQL."""

    def __init__(self, raw: _DeadlineConnection) -> None:
        self._raw = raw

    def execute(self, query: str, parameters: Sequence[Any] = (), /) -> psycopg.Cursor[Any]:
        return self._raw.execute(translated(query), [_value(each) for each in parameters])

    def executemany(self, query: str, rows: Iterable[Sequence[Any]], /) -> None:
        with self._raw.cursor() as cursor:
            cursor.executemany(translated(query), [[_value(each) for each in row] for row in rows])

    def transaction(self) -> AbstractContextManager[Any]:
        return self._raw.transaction()


def _value(value: Any) -> Any:
    if value.__class__ is str:
        # text in PostgreSQL cannot contain NUL
        return value.replace("\0", "\ufffd") if "\0" in value else value
    return int(value) if value.__class__ is bool else value


# --- SQL ----------------------------------------------------------------------------------------------------

TYPES = {
    "INTEGER PRIMARY KEY AUTOINCREMENT": "BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY",
    "WITHOUT ROWID": "",
    "INTEGER": "BIGINT",
    "REAL": "DOUBLE PRECISION",
    "BLOB": "BYTEA",
    "TEXT": 'TEXT COLLATE "C"',  # compared by bytes, as in SQLite, whatever the database's locale is
}
_QUOTED = r"'(?:[^']|'')*'|\"[^\"]*\""
_TYPE = re.compile(rf"{_QUOTED}|\b(?:{'|'.join(TYPES)})\b")
_TABLE = re.compile(r"\s*(CREATE|ALTER) TABLE\b")
_MARK = re.compile(rf"{_QUOTED}|\?|%")


def definition(statement: str) -> str:
    """Returns a statement of the schema with PostgreSQL's types. Quoted text is not changed."""
    if not _TABLE.match(statement):
        return statement
    return _TYPE.sub(lambda found: TYPES.get(found[0], found[0]), statement)


@lru_cache(1024)
def translated(query: str) -> str:
    """Returns a statement with psycopg's `%s` in place of `?`. Quoted text is not changed."""
    return _MARK.sub(lambda found: "%s" if found[0] == "?" else found[0].replace("%", "%%"), query)

"""The store in PostgreSQL, for several nodes. A few threads, each working with one connection of a small pool.

Rules: a connection is used only if nothing has come in on it while it lay idle, so a server that was restarted costs no request. A server that is
gone costs each caller one clear error, soon: who asks while it is known to be gone does not wait for it, and who waits too long for an answer is let
go and the connection is cut. Nothing is written twice: only reads are tried again. The first node to come brings the schema forward, under a lock;
the others wait for it.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from toolwire.errors import ToolwireError
from toolwire.gateway import schema
from toolwire.gateway.engines import NOT_WHAT_WAS_WRITTEN, Connection, Engine, first_line, log, translate

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")

CONNECTIONS = 4
"""Of one process at most. All nodes together must stay below the server's `max_connections`."""
CONNECT_S = 3
STATEMENT_S = 8.0
"""The server ends a statement that takes longer."""
ANSWER_S = 10.0
"""How long a caller waits for a server that says nothing."""
OPENING_S = 300.0
"""The same while the schema may still be brought forward."""
LOOK_AGAIN_S = 0.5
"""For how long a server that could not be reached is not tried again."""
NEEDED = "store.url: PostgreSQL needs the extra 'service': pip install 'toolwire[service]'"
MALFORMED = "store.url: expected postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with special characters as %XX"
_MIGRATING = 0x746F6F6C77697265  # the advisory lock's number, "toolwire"
_DEFAULTS: dict[str, Any] = {
    "connect_timeout": CONNECT_S,
    "application_name": "toolwire",
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": int(ANSWER_S * 1000),
}


class PostgresEngine(Engine):
    path = ":memory:"

    def __init__(self, url: str) -> None:
        super().__init__(threads=CONNECTIONS)
        self._driver = _driver()
        given = _parsed(self._driver, url)
        self.name = f"postgresql://{given.get('user', '')}@{given.get('host', '')}:{given.get('port', '5432')}/{given.get('dbname', '')}"
        self._given = {**_DEFAULTS, **given, "client_encoding": "UTF8"}
        self._idle: list[PostgresConnection] = []
        self._opened = False
        self._newer_told = False
        self._try_after = 0.0
        self._leases: set[_Lease] = set()

    async def run(self, work: Callable[[Connection], T], action: str) -> T:
        lease = _Lease()
        future = asyncio.get_running_loop().run_in_executor(self._executor or self._threads(), self._call, work, action, lease)
        try:
            done, _ = await asyncio.wait((future,), timeout=ANSWER_S if self._opened else OPENING_S)
        except asyncio.CancelledError:
            future.cancel()
            raise
        if done:
            return future.result()
        future.cancel()
        lease.cut()
        raise self._failure(TimeoutError("PostgreSQL does not answer"), action, passing=True)

    # --- in a thread ---------------------------------------------------------------------------------------------------------------------------

    def _call(self, work: Callable[[Connection], T], action: str, lease: _Lease | None = None) -> T:
        lease = lease or _Lease()
        self._leases.add(lease)
        try:
            return self._attempted(work, action, lease)
        finally:
            self._leases.discard(lease)

    def _attempted(self, work: Callable[[Connection], T], action: str, lease: _Lease) -> T:
        again = action == "read"
        while True:
            connection = self._taken()
            try:
                lease.hold(connection)
                return work(connection)
            except self._driver.Error as error:
                if again and connection.broken and not lease.over:
                    again = False
                    continue
                if connection.broken:
                    log.error("store %s: %s failed: %s", self.name, action, first_line(error))
                    raise self._unreachable() from error
                raise self._failure(error, action, passing=_passing(self._driver, error)) from error
            except NOT_WHAT_WAS_WRITTEN as error:
                raise self._failure(error, action, passing=False) from error
            finally:
                lease.release()
                self._put_back(connection, lease)

    def _taken(self) -> PostgresConnection:
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread was quicker
                break
            if not connection.spoiled():
                return connection
            connection.close()
        return self._connected()

    def _put_back(self, connection: PostgresConnection, lease: _Lease) -> None:
        if lease.over or not connection.at_rest:
            connection.close()
        else:
            self._idle.append(connection)

    def _disconnect(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _end(self, executor: ThreadPoolExecutor) -> None:
        """A server that does not answer must not keep this process from ending."""
        cut = threading.Timer(ANSWER_S, self._cut)
        cut.daemon = True
        cut.start()
        super()._end(executor)
        cut.cancel()

    def _cut(self) -> None:
        for lease in tuple(self._leases):
            lease.cut()

    # --- connecting ----------------------------------------------------------------------------------------------------------------------------

    def _connected(self) -> PostgresConnection:
        if self._opened and time.monotonic() < self._try_after:
            raise self._unreachable()
        connection = None
        try:
            connection = PostgresConnection(self._driver.connect(**self._given, autocommit=True))
            self._prepare(connection)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, self._driver.Error):
                raise self._not_connected(error) from error
            raise
        if not self.reachable:
            log.warning("store %s: reached again", self.name)
        self.reachable = self._opened = True
        return connection

    def _not_connected(self, error: BaseException) -> ToolwireError:
        """At the start the operator is told all; later the log is, once, and callers only what concerns them."""
        if not self._opened:
            kind = "overloaded" if _passing(self._driver, error) else "server"
            return ToolwireError(kind, f"store {self.name}: can not be opened: {first_line(error)}")
        self._try_after = time.monotonic() + LOOK_AGAIN_S
        if self.reachable:
            log.error("store %s: can not be reached: %s", self.name, first_line(error))
        self.reachable = False
        return self._unreachable()

    def _unreachable(self) -> ToolwireError:
        return ToolwireError("overloaded", "The gateway's store can not be reached; try again in a moment.", retry_after_s=1)

    def _prepare(self, connection: PostgresConnection) -> None:
        raw = connection.raw
        raw.isolation_level = self._driver.IsolationLevel.READ_COMMITTED
        found = raw.execute(
            "SELECT current_setting('server_encoding'), to_regclass('toolwire_schema') IS NOT NULL, set_config('statement_timeout', %s, false)",
            (str(int(STATEMENT_S * 1000)),),
        ).fetchone()
        assert found is not None
        if found[0] != "UTF8":
            raise ToolwireError("server", f"store {self.name}: the database's encoding is {found[0]}, it must be UTF8")
        version = _version(connection) if found[1] else 0
        if version > len(schema.MIGRATIONS) and self._opened:
            if not self._newer_told:  # a newer node brought it forward while this one runs: additions do not hurt it
                log.warning("store %s: a newer Toolwire has brought the schema forward to %d; restart this node with it", self.name, version)
                self._newer_told = True
        elif schema.missing(version, self.name):
            self._migrate(connection)

    def _migrate(self, connection: PostgresConnection) -> None:
        with connection.transaction():
            connection.raw.execute("SET LOCAL statement_timeout = 0")
            connection.raw.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATING,))
            connection.raw.execute("CREATE TABLE IF NOT EXISTS toolwire_schema (version BIGINT NOT NULL)")
            version = _version(connection)
            for statements in schema.missing(version, self.name):
                for statement in statements:
                    connection.raw.execute(translate.definition(statement))
            connection.raw.execute("DELETE FROM toolwire_schema")
            connection.raw.execute("INSERT INTO toolwire_schema VALUES (%s)", (max(version, len(schema.MIGRATIONS)),))


def _version(connection: PostgresConnection) -> int:
    row = connection.raw.execute("SELECT version FROM toolwire_schema").fetchone()
    return int(row[0]) if row is not None else 0


def _driver() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise ToolwireError("server", NEEDED) from error
    return psycopg


def _parsed(driver: Any, url: str) -> dict[str, Any]:
    """The parts of the URL. What is wrong with it is not repeated: it may be a part of the password."""
    from psycopg.conninfo import conninfo_to_dict

    try:
        given = conninfo_to_dict(url)
    except driver.Error:
        raise ToolwireError("server", MALFORMED) from None
    if not all(part.isdigit() for part in str(given.get("port", "0")).split(",") if part):
        raise ToolwireError("server", MALFORMED)
    return given


def _passing(driver: Any, error: BaseException) -> bool:
    """Whether it lies at the server's state, not at the statement: gone, full, busy, shutting down, a replica for the moment."""
    return isinstance(error, driver.OperationalError | driver.errors.ReadOnlySqlTransaction)


# --- one connection ----------------------------------------------------------------------------------------------------------------------------


class PostgresConnection:
    """The driver's connection, for SQL as the store writes it."""

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self.raw = raw

    def execute(self, query: str, parameters: Sequence[Any] = (), /) -> psycopg.Cursor[Any]:
        return self.raw.execute(translate.query(query), [_value(each) for each in parameters])

    def executemany(self, query: str, rows: Iterable[Sequence[Any]], /) -> None:
        with self.raw.cursor() as cursor:
            cursor.executemany(translate.query(query), [[_value(each) for each in row] for row in rows])

    def transaction(self) -> AbstractContextManager[Any]:
        return self.raw.transaction()

    @property
    def broken(self) -> bool:
        return self.raw.broken

    @property
    def at_rest(self) -> bool:
        return not self.raw.closed and self.raw.info.transaction_status == 0

    def spoiled(self) -> bool:
        """Whether something came in on the idle connection: nothing should, unless the server goes away."""
        if self.raw.closed:
            return True
        poll = select.poll()
        poll.register(self.raw.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        self.raw.close()

    def cut(self) -> None:
        """Ends it from another thread: whoever waits for an answer on it gets an error at once."""
        try:
            with socket.socket(fileno=os.dup(self.raw.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)
        except Exception as error:  # it has just ended by itself
            log.debug("a connection could not be cut: %s", error)


def _value(value: Any) -> Any:
    if value.__class__ is str:
        return value.replace("\0", "\ufffd") if "\0" in value else value  # PostgreSQL's text has no NUL
    return int(value) if value.__class__ is bool else value


class _Lease:
    """One caller's hold on a connection, which the caller may end."""

    __slots__ = ("_connection", "_lock", "over")

    def __init__(self) -> None:
        self.over = False
        self._connection: PostgresConnection | None = None
        self._lock = threading.Lock()

    def hold(self, connection: PostgresConnection) -> None:
        with self._lock:
            if self.over:
                raise ToolwireError("overloaded", "The caller waits no more.")
            self._connection = connection

    def release(self) -> None:
        with self._lock:
            self._connection = None

    def cut(self) -> None:
        with self._lock:
            self.over = True
            if self._connection is not None:
                self._connection.cut()

"""The store in one file. One thread owns the connection; other processes on this machine may have the same file open, readers never wait (WAL).

Conversations are private: the folder is made 0700 and the file 0600. A write that finds no room changes nothing, and succeeds again once there
is room.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from toolwire.core.errors import ToolwireError
from toolwire.store import schema
from toolwire.store.engine import NOT_WHAT_WAS_WRITTEN, Connection, Engine

T = TypeVar("T")
LOCKED_S = 2.0
"""How long a file that another process holds is waited for."""


class SqliteEngine(Engine):
    def __init__(self, path: str) -> None:
        super().__init__(threads=1)
        self.path = self.name = os.path.expanduser(path)
        self._connection: SqliteConnection | None = None

    def _call(self, work: Callable[[Connection], T], action: str) -> T:
        if self._connection is None:
            self._connection = _opened(self.path)
        try:
            return work(self._connection)
        except sqlite3.Error as error:
            raise self._failure(error, action, passing=_outside(error), reason=_NO_ROOM.get(_named(error), "")) from error
        except NOT_WHAT_WAS_WRITTEN as error:
            raise self._failure(error, action, passing=False) from error

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class SqliteConnection(sqlite3.Connection):
    """SQLite's own, with transactions that take the writer's place at once and always end."""

    def transaction(self) -> _Transaction:
        return _Transaction(self)


class _Transaction:
    __slots__ = ("_connection",)

    def __init__(self, connection: SqliteConnection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:  # a full disk may have ended it already
                self._connection.execute("ROLLBACK")


# --- opening -----------------------------------------------------------------------------------------------------------------------------------


def _opened(path: str) -> SqliteConnection:
    try:
        if path != ":memory:":
            _prepare_file(Path(path))
        # One thread works with it, and another closes it when that one has ended.
        connection = sqlite3.connect(path, isolation_level=None, timeout=LOCKED_S, factory=SqliteConnection, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        raise ToolwireError("server", f"store {path}: can not be opened: {getattr(error, 'strerror', None) or error}") from error
    try:
        schema.missing(_version(connection), path)
        _write_ahead(connection)
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        _migrate(connection, path)
        _try_to_write(connection)
    except sqlite3.Error as error:
        connection.close()
        reason = "can not be opened" if _outside(error) else "is not a Toolwire database, or it is damaged"
        raise ToolwireError("server", f"store {path}: {reason}: {error}") from error
    except BaseException:
        connection.close()
        raise
    return connection


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Waits for another process that opens a new file at the same moment: SQLite itself does not wait here."""
    until = time.monotonic() + LOCKED_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if _named(error) != "SQLITE_BUSY" or time.monotonic() >= until:
                raise
            time.sleep(0.01)


def _try_to_write(connection: SqliteConnection) -> None:
    """Where the side files are there already, a full disk lets the file be opened: it is said now, not by the first thing that has to be stored."""
    try:
        with connection.transaction():
            connection.execute(f"PRAGMA user_version = {_version(connection)}")
    except sqlite3.OperationalError as error:
        if not _named(error).startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):  # another process writes, so there is room
            raise


_NO_ROOM = {"SQLITE_FULL": "the disk is full", "SQLITE_IOERR_WRITE": "the disk is full or can not be written"}
_OUTSIDE_CAUSES = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL", "SQLITE_READONLY", "SQLITE_IOERR", "SQLITE_CANTOPEN")


def _outside(error: sqlite3.Error) -> bool:
    """Whether not the file is at fault, but its disk, its rights, or another process."""
    return _named(error).startswith(_OUTSIDE_CAUSES)


def _named(error: sqlite3.Error) -> str:
    return str(getattr(error, "sqlite_errorname", ""))


def _prepare_file(path: Path) -> None:
    """SQLite gives its side files the mode of the file."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)


def _migrate(connection: SqliteConnection, path: str) -> None:
    if not schema.missing(_version(connection), path):
        return
    with connection.transaction():
        for statements in schema.missing(_version(connection), path):  # again: another process may have been first
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(schema.MIGRATIONS)}")

"""The store in one SQLite file, with one thread that owns the connection.

Other processes on this machine may open the same file. In WAL mode, readers never wait. The folder gets mode
0700 and the file 0600, because conversations are private.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from toolwire.core.errors import ToolwireError
from toolwire.store import schema
from toolwire.store.engine import FULL, UNREADABLE, Connection, Engine, not_opened

T = TypeVar("T")
LOCKED_S = 2.0
"""How long to wait for a file that another process has locked."""
ROOM = 1024 * 1024
"""How many bytes must be free on the disk before the store is opened, which creates -wal and -shm files."""


class SqliteEngine(Engine):
    def __init__(self, path: str) -> None:
        super().__init__(threads=1)
        self.path = self.name = os.path.expanduser(path)
        self._connection: SqliteConnection | None = None

    async def run(self, work: Callable[[Connection], T], action: str) -> T:
        return await self._submit(self._call, work, action)

    def _call(self, work: Callable[[Connection], T], action: str) -> T:
        if self._connection is None:
            self._connection = _opened(self.path)
        try:
            result = work(self._connection)
            # A cursor must not leave this thread. Another thread would reset its statement when it frees the
            # cursor, although this thread may already use the same, cached statement again.
            return None if isinstance(result, sqlite3.Cursor) else result  # type: ignore[return-value]
        except sqlite3.Error as error:
            reason = _NO_ROOM.get(_code(error), "")
            raise self._failure(error, action, temporary=_external(error), reason=reason) from error
        except UNREADABLE as error:
            raise self._failure(error, action, temporary=False) from error

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def check(self) -> str:
        if self.path == ":memory:":
            return "in memory, lost when the server stops"
        path = Path(self.path)
        if reason := not_writable(path):
            raise not_opened(self.path, reason)
        if not os.path.lexists(path):
            return f"{path}, created at first use"
        try:
            with closing(
                sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=LOCKED_S)
            ) as connection:
                schema.missing(_version(connection), self.path)
        except sqlite3.Error as error:
            raise not_opened(self.path, error) from error
        return self.path


class SqliteConnection(sqlite3.Connection):
    """A connection. Each transaction takes the write lock at its start, and is rolled back after an error."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.execute("COMMIT")
        finally:
            if self.in_transaction:  # SQLite itself rolls back in some cases, for example if the disk is full
                self.execute("ROLLBACK")


# --- opening ------------------------------------------------------------------------------------------------


def _opened(path: str) -> SqliteConnection:
    try:
        if path != ":memory:":
            _prepare_file(Path(path))
        # check_same_thread: the engine's thread uses the connection, but another thread closes it at the end.
        connection = sqlite3.connect(
            path, isolation_level=None, timeout=LOCKED_S, factory=SqliteConnection, check_same_thread=False
        )
    except (OSError, sqlite3.Error) as error:
        raise not_opened(path, getattr(error, "strerror", None) or error) from error
    try:
        schema.missing(_version(connection), path)
        _enable_wal(connection)
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        _migrate(connection, path)
        _try_to_write(connection)
    except sqlite3.Error as error:
        connection.close()
        raise _explained(error, path) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _explained(error: sqlite3.Error, path: str) -> ToolwireError:
    """Returns the error to report.

    SQLite reports a full or read-only disk only as an I/O error, so this looks for the real reason.
    """
    if isinstance(error, sqlite3.OperationalError) and (reason := not_writable(Path(path))):
        return not_opened(path, reason)
    if _external(error):
        return not_opened(path, error)
    return ToolwireError("server", f"store {path}: is not a Toolwire database, or it is damaged: {error}")


def not_writable(path: Path, room: int = ROOM) -> str:
    """Returns why this file cannot be written, or "" if it can be written.

    Reasons are missing permissions, or less than `room` free bytes. If the file does not exist, the nearest
    existing folder is checked.
    """
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir():
        return f"{folder} is not a folder"
    if path.exists() and not os.access(path, os.R_OK | os.W_OK):
        return "the file cannot be written"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"the folder {folder} cannot be written"
    return FULL if shutil.disk_usage(folder).free < room else ""


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _enable_wal(connection: sqlite3.Connection) -> None:
    """Enables WAL mode. Retries while another process opens the same new file.

    SQLite's own timeout does not apply in this case.
    """
    until = time.monotonic() + LOCKED_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if _code(error) != "SQLITE_BUSY" or time.monotonic() >= until:
                raise
            time.sleep(0.01)


def _try_to_write(connection: SqliteConnection) -> None:
    """Writes to the store, so that a full disk is noticed now.

    Opening a store is no test: nothing is written if the store's -wal and -shm files exist already.
    """
    try:
        with connection.transaction():
            connection.execute(f"PRAGMA user_version = {_version(connection)}")
    except sqlite3.OperationalError as error:
        if not _code(error).startswith(_IN_USE):  # if the file is in use, another process is writing
            raise


_NO_ROOM = {"SQLITE_FULL": FULL, "SQLITE_IOERR_WRITE": "the disk is full or cannot be written"}
_IN_USE = ("SQLITE_BUSY", "SQLITE_LOCKED")
_EXTERNAL = (*_IN_USE, "SQLITE_FULL", "SQLITE_READONLY", "SQLITE_IOERR", "SQLITE_CANTOPEN")


def _external(error: sqlite3.Error) -> bool:
    """Returns whether the disk, permissions or another process caused the error.

    In all other cases, the file or the statement caused it.
    """
    return _code(error).startswith(_EXTERNAL)


def _code(error: sqlite3.Error) -> str:
    return str(getattr(error, "sqlite_errorname", ""))


_CREATING = threading.Lock()


def _prepare_file(path: Path) -> None:
    """Creates the file with mode 0600. SQLite gives its -wal and -shm files the same mode.

    An existing file is not opened here: closing it would release every lock that this process has on it,
    including those of other connections.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _CREATING, suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)


def _migrate(connection: SqliteConnection, path: str) -> None:
    if not schema.missing(_version(connection), path):
        return
    with connection.transaction():
        # Read the version again: another process may have migrated in the meantime.
        for statement in schema.missing(_version(connection), path):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {schema.newest()}")

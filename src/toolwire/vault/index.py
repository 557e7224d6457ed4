"""The index: a vault's notes in SQLite, kept up with the files by their times and sizes.

A file that is no database, of another format or damaged is replaced by a new one and built again; what is damaged is found when it is used. One
writer at a time among all processes (`place.py`); readers never wait. `refresh.py` says what is in it.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from toolwire.vault.paths import Vault
from toolwire.vault.place import Place
from toolwire.vault.refresh import COLUMNS, INCOMPLETE, SCHEMA, SHIFT, Progress, Refresh, Refresher, fingerprint

APPLICATION = 0x74776976
MALFORMED = (*(f"no such table: {table}" for table in ("meta", "notes", "words")), INCOMPLETE)
"""What SQLite takes for a mistake of the question, and what is missing where it can not be."""
OUTSIDE = tuple(f"SQLITE_{name}" for name in ("FULL", "READONLY", "IOERR", "CANTOPEN", "PERM", "BUSY", "LOCKED", "CORRUPT", "NOTADB", "NOMEM"))
"""Errors that come from the folder, the disk or another process, not from a mistake of this code."""
BUSY_MS = 10_000
_SETTINGS = ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL", "PRAGMA temp_store = MEMORY", f"PRAGMA busy_timeout = {BUSY_MS}")

__all__ = ["COLUMNS", "SHIFT", "Index", "Progress", "Refresh"]


class Index:
    """The index of one vault. `search.py` and `graph.py` ask it; `refresh` keeps it up. May be used by several threads."""

    def __init__(self, vault: Vault, cache: Path | None = None) -> None:
        self.vault = vault
        self.place = Place(vault, cache)
        self._reading = threading.RLock()
        self._reader: sqlite3.Connection | None = None
        self._path: Path | None = None

    def close(self) -> None:
        with self._reading:
            if self._reader is not None:
                self._reader.close()
            self._reader = self._path = None

    def __enter__(self) -> Index:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # --- asking ----------------------------------------------------------------------------------------------------------------------------------

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection to ask, within one state of the index."""
        with self._reading:
            connection = self._connected()
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                with suppress(sqlite3.Error):
                    connection.rollback()

    def ask(self, question: Callable[[sqlite3.Connection], Any]) -> Any:
        """Asks; when the index turns out to be damaged it is built again, once, and asked again. Raises `PathRefused` where none can be kept."""
        with self._usable():
            try:
                with self.reading() as connection:
                    return question(connection)
            except sqlite3.DatabaseError as error:
                if not damaged(error):
                    raise
                self._discard()
                self.refresh()
                with self.reading() as connection:
                    return question(connection)

    @contextmanager
    def _usable(self) -> Iterator[None]:
        """Tells what the folder or the disk does not let be done as one line."""
        try:
            yield
        except OSError as error:
            raise self.place.unusable(error) from None
        except sqlite3.DatabaseError as error:
            if not str(getattr(error, "sqlite_errorname", "")).startswith(OUTSIDE):
                raise
            raise self.place.unusable(error) from None

    def _connected(self) -> sqlite3.Connection:
        path = self.place.current()
        if self._reader is not None and path == self._path:
            return self._reader
        self.close()
        if path is None or not self._sound(path):
            with self.place.writing():
                path = self._ensure()
        self._reader, self._path = connect(path), path
        return self._reader

    def _sound(self, path: Path) -> bool:
        """Whether the file is an index of this vault and this code."""
        if not path.exists():
            return False
        try:
            with closing(connect(path)) as connection:
                known = dict(connection.execute("SELECT key, value FROM meta"))
                application = connection.execute("PRAGMA application_id").fetchone()[0]
        except sqlite3.DatabaseError as error:
            if not damaged(error):
                raise
            return False
        return application == APPLICATION and known == self._identity()

    def _identity(self) -> dict[str, str]:
        return {"root": str(self.vault.root), "policy": self.vault.policy.described(), "fingerprint": fingerprint()}

    def _ensure(self) -> Path:
        """The sound database in force, made if need be. Call it under the lock."""
        path = self.place.current()
        if path is not None and self._sound(path):
            return path
        path = self.place.begin()
        try:
            with closing(connect(path)) as connection:
                connection.executescript(f"PRAGMA application_id = {APPLICATION}; BEGIN; {SCHEMA}")
                connection.executemany("INSERT INTO meta VALUES (?, ?)", self._identity().items())
                connection.execute("INSERT INTO words (words, rank) VALUES ('hashsize', 16777216)")
                connection.commit()
            self.place.publish(path)
        except BaseException:
            self.place.drop(path)
            raise
        return path

    def _discard(self) -> None:
        """Forgets the database in force, unless another process has replaced it already."""
        with self.place.writing():
            if self.place.current() == self._path:
                with suppress(OSError):
                    os.unlink(self.place.folder / "current")
        self.close()

    # --- keeping up ------------------------------------------------------------------------------------------------------------------------------

    def refresh(self, progress: Progress | None = None, cancelled: Callable[[], bool] | None = None, wait: bool = True) -> Refresh:
        """Brings the index up to the files. `wait=False`: returns at once, `busy`, when another process is at it. Raises `PathRefused` where no index
        can be kept."""
        with self._usable():
            return self._refreshed(progress, cancelled, wait)

    def _refreshed(self, progress: Progress | None, cancelled: Callable[[], bool] | None, wait: bool) -> Refresh:
        began = time.monotonic()
        done = Refresh()
        for attempt in (1, 2):
            with self.place.writing(wait, cancelled) as held:
                if not held:
                    return Refresh(busy=True, cancelled=bool(cancelled and cancelled()))
                before = self.place.current()
                path = self._ensure()
                done = Refresh(rebuilt=done.rebuilt or path != before)
                try:
                    with closing(connect(path)) as connection:
                        Refresher(self.vault, connection, done, progress, cancelled).run()
                    break
                except sqlite3.DatabaseError as error:
                    if attempt == 2 or not damaged(error):
                        raise
                    os.unlink(self.place.folder / "current")
        done.seconds = time.monotonic() - began
        return done

    def count(self) -> int:
        """How many notes are indexed."""
        return int(self.ask(lambda connection: connection.execute("SELECT count(*) FROM notes").fetchone()[0]))


def connect(path: Path) -> sqlite3.Connection:
    """Opens an existing file; transactions are begun by hand."""
    connection = sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, isolation_level=None, check_same_thread=False, timeout=BUSY_MS / 1000)
    try:
        for setting in _SETTINGS:
            connection.execute(setting)
    except BaseException:
        connection.close()
        raise
    return connection


def damaged(error: sqlite3.DatabaseError) -> bool:
    """Whether an error speaks of the file itself: not of a lock, a full disk or a wrong question."""
    name = str(getattr(error, "sqlite_errorname", ""))
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL", "SQLITE_READONLY", "SQLITE_INTERRUPT", "SQLITE_NOMEM", "SQLITE_IOERR_WRITE")):
        return False
    return name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_CANTOPEN", "SQLITE_IOERR", "SQLITE_FORMAT")) or str(error) in MALFORMED

"""An index of a vault's notes in SQLite. The files' times and sizes show which notes have changed.

A database that is damaged or has another format is replaced by a new one. Damage is noticed when a query
fails. Only one process writes at a time, and readers never wait. `refresh.py` defines the tables.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import logging
import os
import re
import secrets
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from toolwire.vault.paths import Vault
from toolwire.vault.policy import PathRefused
from toolwire.vault.refresh import INCOMPLETE, SCHEMA, Cancelled, Progress, Refresh, Refresher, fingerprint

T = TypeVar("T")

# --- location ---
#
# An index has a private folder in the user's cache, named after the vault and its policy. The name of a
# database is never used twice: a rebuild creates a new file and writes its name to the file `current`. A
# process that still has the old database open can continue to read it and cannot harm the new one. Only the
# process that holds the lock on the file `lock` writes; the system releases the lock when the process ends.

_GENERATION = re.compile(r"index-[0-9a-f]{16}\.db")
FORGOTTEN_S = 7 * 24 * 3600.0
"""An index that was made for other patterns of the same vault is removed at this age in seconds.

It may contain notes that the patterns exclude now.
"""
LOOK_S = 0.05


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "toolwire" / "vaults"


class Location:
    """The folder of one index, with its database files and its lock."""

    def __init__(self, vault: Vault, cache: Path | None = None) -> None:
        root = hashlib.sha256(os.fsencode(vault.root)).hexdigest()[:20]
        policy = hashlib.sha256(vault.policy.described().encode()).hexdigest()[:8]
        self.folder = (cache or cache_folder()) / f"{root}-{policy}"
        self._root = root
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.chmod(self.folder, 0o700)
        except OSError as error:
            raise self.unusable(error) from None

    def unusable(self, error: Exception) -> PathRefused:
        """Returns the error for a folder in which the index cannot be stored."""
        why = getattr(error, "strerror", None) or error
        reason = f"the index cannot be stored here: {why} (XDG_CACHE_HOME can name another folder)"
        return PathRefused(str(self.folder), reason, "index")

    def current(self) -> Path | None:
        """Returns the path of the current database; None if there is none yet."""
        try:
            name = (self.folder / "current").read_text().strip()
        except (OSError, ValueError):
            return None
        return self.folder / name if _GENERATION.fullmatch(name) else None

    def begin(self) -> Path:
        """Creates an empty database file that only its owner can read, and returns its path."""
        path = self.folder / f"index-{secrets.token_hex(8)}.db"
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        return path

    def drop(self, path: Path) -> None:
        """Removes a database that was not finished."""
        with suppress(OSError):
            for file in self.folder.glob(f"{path.name}*"):
                file.unlink(missing_ok=True)

    def publish(self, path: Path) -> None:
        """Makes a database the current one and removes all others. The caller holds the lock."""
        pointer = self.folder / f"current-{secrets.token_hex(4)}"
        fd = os.open(pointer, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(path.name)
            file.flush()
            os.fsync(file.fileno())
        os.replace(pointer, self.folder / "current")
        for other in self.folder.iterdir():
            if other.name not in ("current", "lock") and not other.name.startswith(path.name):
                other.unlink(missing_ok=True)
        for other in self.folder.parent.glob(f"{self._root}-*"):
            if other != self.folder and time.time() - _newest(other) > FORGOTTEN_S:
                shutil.rmtree(other, ignore_errors=True)

    @contextmanager
    def writing(self, wait: bool = True, cancelled: Cancelled = lambda: False) -> Iterator[bool]:
        """Holds the lock inside the `with` block. Yields whether it got the lock.

        `wait`: waits while another process has the lock, until `cancelled()` is true.
        """
        fd = os.open(self.folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            while not (held := _lock(fd)) and wait and not cancelled():
                time.sleep(LOOK_S)
            yield held
        finally:
            os.close(fd)


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _newest(folder: Path) -> float:
    return max((file.stat().st_mtime for file in folder.glob("*") if file.exists()), default=0.0)


def _named(names: str) -> tuple[str, ...]:
    return tuple(f"SQLITE_{name}" for name in names.split())


MALFORMED = (*(f"no such table: {table}" for table in ("meta", "notes", "words")), INCOMPLETE)
"""Errors that look like a wrong query but mean that the database is damaged."""
OUTSIDE = _named("FULL READONLY IOERR CANTOPEN PERM BUSY LOCKED CORRUPT NOTADB NOMEM")
"""Errors of the folder, the disk or another process, not of this code."""
INTACT = _named("BUSY LOCKED FULL READONLY INTERRUPT NOMEM IOERR_WRITE")
DAMAGED = _named("CORRUPT NOTADB CANTOPEN IOERR FORMAT")
BUSY_S = 10.0
_SETTINGS = ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL", "PRAGMA temp_store = MEMORY")


class Index:
    """The index of one vault.

    `search.py` and `graph.py` query the index, and `refresh` updates it. Safe for several threads.
    """

    def __init__(self, vault: Vault, cache: Path | None = None) -> None:
        self.vault = vault
        self.location = Location(vault, cache)
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

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- queries ---

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yields a connection. All its queries see the same state of the index."""
        with self._reading:
            connection = self._connected()
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                with suppress(sqlite3.Error):
                    connection.rollback()

    def ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """Runs a query and returns its result.

        If the index is damaged, it is rebuilt once, and the query runs again. Raises `PathRefused` if the
        index cannot be stored.
        """
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
        """Turns errors of the folder or the disk into a `PathRefused` with a one-line message."""
        try:
            yield
        except OSError as error:
            raise self.location.unusable(error) from None
        except sqlite3.DatabaseError as error:
            if not str(getattr(error, "sqlite_errorname", "")).startswith(OUTSIDE):
                raise
            raise self.location.unusable(error) from None

    def _connected(self) -> sqlite3.Connection:
        path = self.location.current()
        if self._reader is not None and path == self._path:
            return self._reader
        self.close()
        if path is None or not self._sound(path):
            with self.location.writing():
                path = self._ensure()
        self._reader, self._path = connect(path), path
        return self._reader

    def _sound(self, path: Path) -> bool:
        """Whether the file is an index of this vault, written by this version of the code."""
        if not path.exists():
            return False
        try:
            with closing(connect(path)) as connection:
                return dict(connection.execute("SELECT key, value FROM meta")) == self._identity()
        except sqlite3.DatabaseError as error:
            if not damaged(error):
                raise
            return False

    def _identity(self) -> dict[str, str]:
        policy = self.vault.policy.described()
        return {"root": str(self.vault.root), "policy": policy, "fingerprint": fingerprint()}

    def _ensure(self) -> Path:
        """Returns the current database. Creates the database if it is missing or unusable.

        The caller holds the lock.
        """
        path = self.location.current()
        if path is not None and self._sound(path):
            return path
        path = self.location.begin()
        try:
            with closing(connect(path)) as connection:
                connection.executescript(f"BEGIN; {SCHEMA}")
                connection.executemany("INSERT INTO meta VALUES (?, ?)", self._identity().items())
                connection.execute("INSERT INTO words (words, rank) VALUES ('hashsize', 16777216)")
                connection.commit()
            self.location.publish(path)
        except BaseException:
            self.location.drop(path)
            raise
        return path

    def _discard(self) -> None:
        """Drops the current database, unless another process has already replaced it."""
        with self.location.writing():
            if self.location.current() == self._path:
                with suppress(OSError):
                    os.unlink(self.location.folder / "current")
        self.close()

    # --- updates ---

    def refresh(
        self, progress: Progress | None = None, cancelled: Cancelled = lambda: False, wait: bool = True
    ) -> Refresh:
        """Updates the index from the files. Raises `PathRefused` if the index cannot be stored.

        `cancelled`: the refresh stops when this returns True. `wait=False`: if another process is updating
        the index, returns at once with `busy`.
        """
        began = time.monotonic()
        with self._usable(), self.location.writing(wait, cancelled) as held:
            if not held:
                return Refresh(busy=True, cancelled=cancelled())
            before = self.location.current()
            try:
                done = self._refreshed(before, progress, cancelled)
            except sqlite3.DatabaseError as error:
                if not damaged(error):
                    raise
                os.unlink(self.location.folder / "current")
                done = self._refreshed(before, progress, cancelled)
        done.seconds = time.monotonic() - began
        return done

    def _refreshed(self, before: Path | None, progress: Progress | None, cancelled: Cancelled) -> Refresh:
        path = self._ensure()
        done = Refresh(rebuilt=path != before)
        with closing(connect(path)) as connection:
            Refresher(self.vault, connection, done, progress, cancelled).run()
        return done

    def count(self) -> int:
        """Returns the number of indexed notes."""
        row = self.ask(lambda connection: connection.execute("SELECT count(*) FROM notes").fetchone())
        return int(row[0])


def connect(path: Path) -> sqlite3.Connection:
    """Opens an existing database. Transactions begin explicitly."""
    uri = f"{path.as_uri()}?mode=rw"
    connection = sqlite3.connect(uri, BUSY_S, uri=True, isolation_level=None, check_same_thread=False)
    try:
        for setting in _SETTINGS:
            connection.execute(setting)
    except BaseException:
        connection.close()
        raise
    return connection


def damaged(error: sqlite3.DatabaseError) -> bool:
    """Whether an error means a damaged file, as opposed to a lock, a full disk or a wrong query."""
    name = str(getattr(error, "sqlite_errorname", ""))
    return not name.startswith(INTACT) and (name.startswith(DAMAGED) or str(error) in MALFORMED)


# --- watch ---
#
# Updates an index while a program runs, by polling. It needs no system service and no dependency. A poll
# walks the folder's entries; the pause after a poll grows with its duration, so polling uses little CPU.

log = logging.getLogger("toolwire.vault")
INTERVAL_S = 2.0
SHARE = 0.05


async def watch(
    index: Index, changed: Callable[[Refresh], None] | None = None, interval_s: float = INTERVAL_S
) -> None:
    """Refreshes the index at intervals until the task is cancelled.

    Calls `changed` after each refresh that found changes. A cancelled refresh ends soon and leaves the index
    consistent.
    """
    stop = threading.Event()
    try:
        while True:
            pause = interval_s
            try:
                done = await stoppable(lambda: index.refresh(cancelled=stop.is_set, wait=False), stop)
                pause = max(interval_s, done.seconds / SHARE)
                if done.touched and changed is not None:
                    changed(done)
            except (OSError, sqlite3.Error, PathRefused) as error:
                # An error of the kind `index` is raised by every query too, so the user sees it anyway.
                known = isinstance(error, PathRefused) and error.kind == "index"
                level = logging.INFO if known else logging.WARNING
                log.log(level, "the index of the vault could not be updated: %s", error)
            await asyncio.sleep(pause)
    finally:
        stop.set()


async def stoppable(refresh: Callable[[], T], stop: threading.Event) -> T:
    """Runs `refresh` in a thread and returns its result.

    If the caller is cancelled, this sets `stop` and waits until `refresh` has returned. `refresh` must check
    `stop` often, for example at each note.
    """
    work = asyncio.ensure_future(asyncio.to_thread(refresh))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait([work])
        raise

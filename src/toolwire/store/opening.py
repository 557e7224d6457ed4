"""The store, as a command opens it. Where that fails, the error says what a person can mend: SQLite itself only says that the disk failed."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

from toolwire.core.errors import ToolwireError
from toolwire.store import disk, schema
from toolwire.store.engine import engine_of, first_line
from toolwire.store.store import Store

ROOM = 1024 * 1024
"""With fewer bytes free a disk is full, for a store that is to be opened: it writes side files of its own."""
CONNECT_S = 3


@asynccontextmanager
async def opened(store: Store) -> AsyncIterator[Store]:
    """The store, open; leaving closes it."""
    try:
        try:
            await store.open()
        except ToolwireError as error:
            raise _explained(error, store.path) from error
        yield store
    finally:
        await store.close()


def _explained(error: ToolwireError, path: str) -> ToolwireError:
    hindrance = disk.hindrance(Path(path), ROOM) if isinstance(error.__cause__, sqlite3.OperationalError) else ""
    return _closed(path, hindrance, error.failure.kind) if hindrance else error


def _closed(name: str, why: str, kind: str = "server") -> ToolwireError:
    return ToolwireError(kind, f"store {name}: can not be opened: {why}")


def look(url: str) -> str:
    """Where the store is, in words. Raises `ToolwireError` where it could not be opened. It is not made by this, nor brought forward."""
    engine = engine_of(url)
    if not url.startswith("sqlite"):
        return _look_at_server(url, engine.name)
    return _look_at_file(Path(engine.path)) if engine.path != ":memory:" else "in memory, gone at the end"


def _look_at_file(path: Path) -> str:
    if hindrance := disk.hindrance(path, ROOM):
        raise _closed(str(path), hindrance)
    if not path.exists():
        return f"{path}, made when it is first needed"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as connection:
            schema.missing(connection.execute("PRAGMA user_version").fetchone()[0], str(path))
    except sqlite3.Error as error:
        raise _closed(str(path), str(error)) from error
    return str(path)


def _look_at_server(url: str, name: str) -> str:
    import psycopg

    try:
        psycopg.connect(url, connect_timeout=CONNECT_S).close()
    except psycopg.Error as error:
        raise _closed(name, first_line(error)) from error
    return name

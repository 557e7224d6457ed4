"""What outlives a request, in SQLite: stored responses, and, by `run`, whatever else has its tables in `schema.MIGRATIONS`.

Rules: one thread owns the connection and callers await it, so the event loop never waits for a disk. A key sees only its own rows. A write that fails
raises; nothing is lost in silence. The schema moves only forward, by the statements of `MIGRATIONS`; a file of newer code is refused, never changed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from toolwire.errors import ToolwireError
from toolwire.gateway.schema import MIGRATIONS

if TYPE_CHECKING:
    import sqlite3

    from toolwire.turn import Item

log = logging.getLogger("toolwire.store")
T = TypeVar("T")

MAX_CHAIN = 1000
"""How many responses a conversation by `previous_response_id` may have; longer ones are refused, not cut."""
MAX_CHAIN_BYTES = 64 * 1024 * 1024
LOCKED_S = 2.0
"""How long a file that another process holds is waited for."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response as the client may ask for it again.

    `response` is the Response object's JSON as it was sent; `input_items` are this request's own items as wire objects with ids; `items` are the same
    input and then the output as canonical items, which is what a later turn replays.
    """

    id: str
    key_id: str
    created_at: int
    model: str
    status: str
    previous_response_id: str | None
    response: bytes
    input_items: Sequence[dict[str, Any]]
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """A slice of a list, as OpenAI pages: `has_more` beyond it, in the order asked for."""

    data: list[dict[str, Any]]
    has_more: bool


class Store:
    """`sqlite:///PATH` (absolute: four slashes, or `~`), `sqlite://` for memory. Opens at first use, or by `open`, which says early what is wrong."""

    def __init__(self, url: str) -> None:
        self.path = _sqlite_path(url)
        self._executor: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.Lock()
        self._closed = False

    async def open(self) -> None:
        await self._run(lambda connection: None, "open")

    async def close(self) -> None:
        with self._lock:
            executor, self._executor, self._closed = self._executor, None, True
        if executor is not None:
            await asyncio.get_running_loop().run_in_executor(executor, self._close)
            executor.shutdown(wait=False)

    async def run(self, work: Callable[[sqlite3.Connection], T], action: str) -> T:
        """Work on the connection, in the thread that owns it. `action` is a word for what failed."""
        return await self._run(work, action)

    async def put(self, stored: StoredResponse) -> None:
        await self._run(lambda connection: _put(connection, stored), "write")

    async def get(self, id: str, key_id: str) -> StoredResponse | None:
        return await self._run(lambda connection: _get(connection, id, key_id), "read")

    async def delete(self, id: str, key_id: str) -> bool:
        return await self._run(lambda connection: _delete(connection, id, key_id), "write")

    async def chain(self, id: str, key_id: str) -> tuple[Item, ...] | None:
        """Every item of the conversation that ends in this response, oldest first. None: a link is missing, or belongs to another key."""
        return await self._run(lambda connection: _chain(connection, id, key_id), "read")

    async def referenced(self, ids: Sequence[str], key_id: str) -> dict[str, dict[str, Any]]:
        """Items of stored responses, input or output, as wire objects by their ids; what is not there is left out."""
        return await self._run(lambda connection: _referenced(connection, ids, key_id), "read")

    async def input_items(
        self, id: str, key_id: str, *, limit: int = 20, order: Literal["asc", "desc"] = "desc", after: str | None = None
    ) -> Page | None:
        """The request's own items, paged. None: no such response. An `after` that is not there raises `invalid_value`."""
        stored = await self.get(id, key_id)
        if stored is None:
            return None
        items = list(stored.input_items) if order == "asc" else list(reversed(stored.input_items))
        if after is not None:
            places = [place for place, item in enumerate(items) if item.get("id") == after]
            if not places:
                raise ToolwireError("invalid_value", f"No item with id '{after}' in this response's input.", param="after")
            items = items[places[0] + 1 :]
        return Page(items[:limit], len(items) > limit)

    # --- the thread ------------------------------------------------------------------------------------------------------------------------

    async def _run(self, work: Callable[[sqlite3.Connection], T], action: str) -> T:
        with self._lock:
            if self._closed:
                raise ToolwireError("server", "The store is closed.")
            if self._executor is None:
                self._executor = ThreadPoolExecutor(1, "toolwire-store")
            executor = self._executor
        return await asyncio.get_running_loop().run_in_executor(executor, self._guarded, work, action)

    def _guarded(self, work: Callable[[sqlite3.Connection], T], action: str) -> T:
        import sqlite3

        if self._connection is None:
            self._connection = _open(self.path)
        try:
            return work(self._connection)
        except (sqlite3.Error, ValueError, KeyError, TypeError) as error:  # the latter: a row that is not what was written
            log.error("store %s: %s failed: %s", self.path, action, error)
            raise ToolwireError("server", f"The gateway's store could not {action}: {error}.") from error

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


# --- opening -----------------------------------------------------------------------------------------------------------------------------------


def _sqlite_path(url: str) -> str:
    if url in ("sqlite://", "sqlite:///:memory:", ":memory:"):
        return ":memory:"
    if url.startswith("sqlite:///") and len(url) > len("sqlite:///"):
        return os.path.expanduser(url.removeprefix("sqlite:///"))
    scheme = url.partition(":")[0]
    if scheme in ("postgresql", "postgres"):
        raise ToolwireError("server", "store.url: postgresql is not supported yet, use sqlite:///PATH")
    raise ToolwireError("server", "store.url: expected sqlite:///PATH")


def _open(path: str) -> sqlite3.Connection:
    import sqlite3

    try:
        if path != ":memory:":
            _prepare_file(Path(path))
        connection = sqlite3.connect(path, isolation_level=None, timeout=LOCKED_S)
    except (OSError, sqlite3.Error) as error:
        raise ToolwireError("server", f"store {path}: can not be opened: {getattr(error, 'strerror', None) or error}") from error
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > len(MIGRATIONS):
            raise ToolwireError("server", f"store {path}: written by a newer Toolwire (schema {version}, this one knows {len(MIGRATIONS)})")
        _write_ahead(connection)
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        _migrate(connection)
    except sqlite3.Error as error:
        connection.close()
        reason = "can not be opened" if _not_the_files_fault(error) else "is not a Toolwire database, or it is damaged"
        raise ToolwireError("server", f"store {path}: {reason}: {error}") from error
    except BaseException:
        connection.close()
        raise
    return connection


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Waits for another process that opens a new file at the same moment: SQLite itself does not wait here."""
    import sqlite3

    until = time.monotonic() + LOCKED_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorname", "") != "SQLITE_BUSY" or time.monotonic() >= until:
                raise
            time.sleep(0.01)


_OUTSIDE_CAUSES = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL", "SQLITE_READONLY", "SQLITE_IOERR", "SQLITE_CANTOPEN")


def _not_the_files_fault(error: sqlite3.Error) -> bool:
    return str(getattr(error, "sqlite_errorname", "")).startswith(_OUTSIDE_CAUSES)


def _prepare_file(path: Path) -> None:
    """Conversations are private: the folder is made 0700 and the file 0600. SQLite gives its side files the mode of the file."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)


def _migrate(connection: sqlite3.Connection) -> None:
    if connection.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]  # again: another process may have been first
        for statements in MIGRATIONS[version:]:
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


# --- rows --------------------------------------------------------------------------------------------------------------------------------------

_COLUMNS = "id, key_id, created_at, model, status, previous_response_id, response, input_items, turn_items"


def _put(connection: sqlite3.Connection, stored: StoredResponse) -> None:
    """One transaction: a crash leaves the whole response or none of it. Putting an id again replaces it, but never another key's."""
    import msgspec

    connection.execute("BEGIN IMMEDIATE")
    try:
        _put_response(connection, stored)
        output = msgspec.json.decode(stored.response).get("output") or ()
        ids = {item["id"] for item in (*stored.input_items, *output) if isinstance(item.get("id"), str)}
        connection.executemany(
            "INSERT OR IGNORE INTO items (key_id, id, response_id) VALUES (?, ?, ?)", [(stored.key_id, id, stored.id) for id in sorted(ids)]
        )
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _put_response(connection: sqlite3.Connection, stored: StoredResponse) -> None:
    import msgspec

    from toolwire.gateway.items import encode_items

    cursor = connection.execute(
        f"INSERT INTO responses ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET created_at = excluded.created_at,"
        " model = excluded.model, status = excluded.status, previous_response_id = excluded.previous_response_id, response = excluded.response,"
        " input_items = excluded.input_items, turn_items = excluded.turn_items WHERE responses.key_id = excluded.key_id",
        (
            stored.id,
            stored.key_id,
            stored.created_at,
            stored.model,
            stored.status,
            stored.previous_response_id,
            stored.response,
            msgspec.json.encode(list(stored.input_items)),
            encode_items(stored.items),
        ),
    )
    if cursor.rowcount != 1:
        raise ToolwireError("conflict", f"A response with id '{stored.id}' exists already.")


def _get(connection: sqlite3.Connection, id: str, key_id: str) -> StoredResponse | None:
    import msgspec

    from toolwire.gateway.items import decode_items

    row = connection.execute(f"SELECT {_COLUMNS} FROM responses WHERE id = ? AND key_id = ?", (id, key_id)).fetchone()
    if row is None:
        return None
    id, key_id, created_at, model, status, previous, response, input_items, turn_items = row
    return StoredResponse(id, key_id, created_at, model, status, previous, response, msgspec.json.decode(input_items), decode_items(turn_items))


def _referenced(connection: sqlite3.Connection, ids: Sequence[str], key_id: str) -> dict[str, dict[str, Any]]:
    import msgspec

    wanted: dict[str, set[str]] = {}  # by the response that holds them, which is read once
    for id in dict.fromkeys(ids):
        row = connection.execute("SELECT response_id FROM items WHERE key_id = ? AND id = ?", (key_id, id)).fetchone()
        if row is not None:
            wanted.setdefault(row[0], set()).add(id)
    found: dict[str, dict[str, Any]] = {}
    size = 0
    for response_id, among in wanted.items():
        row = connection.execute("SELECT response, input_items FROM responses WHERE id = ? AND key_id = ?", (response_id, key_id)).fetchone()
        if row is None:
            continue
        size += len(row[0]) + len(row[1])
        if size > MAX_CHAIN_BYTES:
            raise ToolwireError("context_length", "The items that the input refers to are too large.", param="input")
        items = (*msgspec.json.decode(row[0]).get("output", ()), *msgspec.json.decode(row[1]))
        found.update((item["id"], item) for item in items if item.get("id") in among)
    return found


def _delete(connection: sqlite3.Connection, id: str, key_id: str) -> bool:
    return connection.execute("DELETE FROM responses WHERE id = ? AND key_id = ?", (id, key_id)).rowcount == 1


def _chain(connection: sqlite3.Connection, id: str, key_id: str) -> tuple[Item, ...] | None:
    from toolwire.gateway.items import decode_items

    blobs: list[bytes] = []
    size = 0
    link: str | None = id
    while link is not None:
        row = connection.execute("SELECT previous_response_id, turn_items FROM responses WHERE id = ? AND key_id = ?", (link, key_id)).fetchone()
        if row is None:
            return None
        link = row[0]
        blobs.append(row[1])
        size += len(row[1])
        if len(blobs) > MAX_CHAIN or size > MAX_CHAIN_BYTES:
            raise ToolwireError("context_length", "The conversation behind previous_response_id is too long.", param="previous_response_id")
    return tuple(item for blob in reversed(blobs) for item in decode_items(blob))

"""The store: runs SQL for all stored data, and stores the responses of the Responses API.

Keys, usage, approvals, conversations and sessions have their own modules, which run their SQL through
`Store.run` on the tables of `schema.py`.

- A request can read and change only the rows of its own API key.
- A write that fails raises an error.
- Responses and conversations are deleted when they are older than `retention_days`. 0 means never.
- Decided approval requests are always deleted after 30 days (`tools/approvals.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from toolwire.core.errors import ToolwireError
from toolwire.store.engine import Connection, engine_of

if TYPE_CHECKING:
    from toolwire.core.items import StoredItem

log = logging.getLogger("toolwire.store")
T = TypeVar("T")

MAX_CHAIN = 1000
"""The longest chain of `previous_response_id`."""
MAX_CHAIN_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response that a client may retrieve or continue.

    `response`: the JSON as it was sent. `input_items`: the items of the request, as JSON objects of the API.
    `items`: the items of input and output in Toolwire's own form, which later turns use as history.
    """

    id: str
    key_id: str
    created_at: int
    model: str
    status: str
    previous_response_id: str | None
    response: bytes
    input_items: Sequence[dict[str, Any]]
    items: tuple[StoredItem, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list, as in OpenAI's API."""

    data: list[dict[str, Any]]
    has_more: bool


class Store:
    """The store at `url`.

    It is opened when it is used for the first time, or at once with `async with Store(url) as store:`.
    """

    def __init__(
        self, url: str, *, retention_days: float = 0, clock: Callable[[], float] = time.time
    ) -> None:
        self._engine = engine_of(url)
        self._retention = Retention(self.run, retention_days, clock)

    async def __aenter__(self) -> Self:
        try:
            await self.open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Connects, and starts to delete old rows."""
        await self.run(lambda c: None, "open")
        self._retention.start()

    async def close(self) -> None:
        await self._retention.close()
        await self._engine.close()

    def check(self) -> str:
        """Returns where the store is. Raises `ToolwireError` if it cannot be opened.

        Blocks, and changes nothing in the store.
        """
        return self._engine.check()

    async def sweep(self) -> int:
        """Deletes rows that are older than `retention_days`. Returns the number of deleted rows."""
        return await self._retention.sweep()

    async def run(self, work: Callable[[Connection], T], action: str) -> T:
        """Runs `work` in a thread and returns its result.

        `action`: a verb for error messages. If the action is "read", `work` may run a second time after an
        error.
        """
        return await self._engine.run(work, action)

    @property
    def path(self) -> str:
        """The path of the file; ":memory:" if there is no file on this machine."""
        return self._engine.path

    @property
    def reachable(self) -> bool:
        """Whether the last attempt to reach the store was successful."""
        return self._engine.reachable

    async def put(self, stored: StoredResponse) -> None:
        await self.run(lambda c: _put(c, stored), "write")

    async def get(self, id: str, key_id: str) -> StoredResponse | None:
        return await self.run(lambda c: _get(c, id, key_id), "read")

    async def delete(self, id: str, key_id: str) -> bool:
        query = "DELETE FROM responses WHERE id = ? AND key_id = ?"
        return await self.run(lambda c: c.execute(query, (id, key_id)).rowcount == 1, "write")

    async def chain(self, id: str, key_id: str) -> tuple[StoredItem, ...] | None:
        """Returns all items of the conversation that ends with this response, oldest first.

        Returns None if a response of the conversation is missing, or belongs to another key.
        """
        return await self.run(lambda c: _chain(c, id, key_id), "read")

    async def referenced(self, ids: Sequence[str], key_id: str) -> dict[str, dict[str, Any]]:
        """Returns the stored items with these ids, by id, as JSON objects of the API.

        Unknown ids are left out.
        """
        return await self.run(lambda c: _referenced(c, ids, key_id), "read")

    async def input_items(
        self,
        id: str,
        key_id: str,
        *,
        limit: int = 20,
        order: Literal["asc", "desc"] = "desc",
        after: str | None = None,
    ) -> Page | None:
        """Returns a page of the items of a stored request, or None if there is no such response.

        Raises an error if no item has the id `after`.
        """
        stored = await self.get(id, key_id)
        if stored is None:
            return None
        items = list(stored.input_items) if order == "asc" else list(reversed(stored.input_items))
        if after is not None:
            positions = [position for position, item in enumerate(items) if item.get("id") == after]
            if not positions:
                message = f"No item with id '{after}' in this response's input."
                raise ToolwireError("invalid_value", message, param="after")
            items = items[positions[0] + 1 :]
        return Page(items[:limit], len(items) > limit)


# --- responses ----------------------------------------------------------------------------------------------

_COLUMNS = "id, key_id, created_at, model, status, previous_response_id, response, input_items, turn_items"
_UPDATED = ", ".join(f"{each} = excluded.{each}" for each in _COLUMNS.split(", ")[2:])
_PUT = f"""
INSERT INTO responses ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET {_UPDATED} WHERE responses.key_id = excluded.key_id
"""
_PUT_ITEM = """
INSERT INTO items (key_id, id, response_id) VALUES (?, ?, ?)
ON CONFLICT (key_id, id) DO UPDATE SET response_id = excluded.response_id
"""


@cache
def _output_ids() -> Any:
    """Returns a decoder that reads only the ids in a response's output."""
    import msgspec

    item: Any = msgspec.defstruct("item", [("id", str | None, None)])
    return msgspec.json.Decoder(msgspec.defstruct("response", [("output", list[item] | None, None)]))


def _put(connection: Connection, stored: StoredResponse) -> None:
    """Writes the response and its items in one transaction.

    A stored response with the same id is replaced if it belongs to the same key. If it belongs to another
    key, an error is raised.
    """
    import msgspec

    from toolwire.core.items import encode_items

    columns = (getattr(stored, name) for name in _COLUMNS.split(", ")[:-2])
    row = (*columns, msgspec.json.encode(list(stored.input_items)), encode_items(stored.items))
    with connection.transaction():
        if connection.execute(_PUT, row).rowcount != 1:
            raise ToolwireError("conflict", f"A response with id '{stored.id}' exists already.")
        ids = {item["id"] for item in stored.input_items if isinstance(item.get("id"), str)}
        output = _output_ids().decode(stored.response).output or ()
        ids.update(item.id for item in output if item.id is not None)
        # Several responses can contain an item. The item refers to the newest of them, because that response
        # is deleted last. The ids are sorted, so that writers cannot deadlock.
        connection.executemany(_PUT_ITEM, [(stored.key_id, id, stored.id) for id in sorted(ids)])


def _get(connection: Connection, id: str, key_id: str) -> StoredResponse | None:
    import msgspec

    from toolwire.core.items import decode_items

    query = f"SELECT {_COLUMNS} FROM responses WHERE id = ? AND key_id = ?"
    row = connection.execute(query, (id, key_id)).fetchone()
    if row is None:
        return None
    values = (*row[:-2], msgspec.json.decode(row[-2]), decode_items(row[-1]))
    return StoredResponse(*values)


def _referenced(connection: Connection, ids: Sequence[str], key_id: str) -> dict[str, dict[str, Any]]:
    import msgspec

    wanted: dict[str, set[str]] = {}  # item ids by response id
    for id in dict.fromkeys(ids):
        query = "SELECT response_id FROM items WHERE key_id = ? AND id = ?"
        row = connection.execute(query, (key_id, id)).fetchone()
        if row is not None:
            wanted.setdefault(row[0], set()).add(id)
    found: dict[str, dict[str, Any]] = {}
    size = 0
    for response_id, among in wanted.items():
        query = "SELECT response, input_items FROM responses WHERE id = ? AND key_id = ?"
        row = connection.execute(query, (response_id, key_id)).fetchone()
        if row is None:
            continue
        size += len(row[0]) + len(row[1])
        if size > MAX_CHAIN_BYTES:
            message = "The items that the input refers to are too large."
            raise ToolwireError("context_length", message, param="input")
        items = (*msgspec.json.decode(row[0]).get("output", ()), *msgspec.json.decode(row[1]))
        found.update((item["id"], item) for item in items if item.get("id") in among)
    return found


def _chain(connection: Connection, id: str, key_id: str) -> tuple[StoredItem, ...] | None:
    from toolwire.core.items import decode_items

    query = "SELECT previous_response_id, turn_items FROM responses WHERE id = ? AND key_id = ?"
    blobs: list[bytes] = []
    size = 0
    link: str | None = id
    while link is not None:
        row = connection.execute(query, (link, key_id)).fetchone()
        if row is None:
            return None
        link = row[0]
        blobs.append(row[1])
        size += len(row[1])
        if len(blobs) > MAX_CHAIN or size > MAX_CHAIN_BYTES:
            message = "The conversation before previous_response_id is too long."
            raise ToolwireError("context_length", message, param="previous_response_id")
    return tuple(item for blob in reversed(blobs) for item in decode_items(blob))


# --- retention ----------------------------------------------------------------------------------------------

Run = Callable[[Callable[[Connection], Any], str], Awaitable[Any]]

DAY_S = 86400.0
SWEEP_EVERY_S = 3600.0
BATCH = 100
"""How many rows are deleted in one step, so that requests can run between two steps."""

_CONTINUES = "later.previous_response_id = responses.id AND later.id <> responses.id"
_DUE = f"created_at < ? AND NOT EXISTS (SELECT 1 FROM responses AS later WHERE {_CONTINUES})"
_ENDS = f"SELECT id FROM responses WHERE {_DUE} LIMIT ?"
_DELETE = f"DELETE FROM responses WHERE id = ? AND {_DUE} RETURNING previous_response_id"
_UNTOUCHED = "SELECT id FROM conversations WHERE updated_at < ? LIMIT ?"


class Retention:
    """Deletes old responses and old conversations every hour.

    A response is old if it was created more than `days` ago, a conversation if its last change was more than
    `days` ago. A response is kept as long as a younger response continues it. Several nodes may run this at
    the same time.
    """

    def __init__(self, run: Run, days: float, clock: Callable[[], float]) -> None:
        self._run = run
        self._days = days
        self._clock = clock
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._days > 0 and self._task is None:
            self._task = asyncio.ensure_future(self._forever())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def sweep(self) -> int:
        if self._days <= 0:
            return 0
        before = self._clock() - self._days * DAY_S
        deleted = 0
        for delete in (_delete_responses, _delete_conversations):
            while count := await self._run(partial(delete, before=before), "delete old rows"):
                deleted += count
        return deleted

    async def _forever(self) -> None:
        while True:
            try:
                deleted = await self.sweep()
                if deleted:
                    log.info("%d stored rows older than %g days deleted", deleted, self._days)
            except ToolwireError as error:
                log.warning("old rows could not be deleted, the next attempt is in an hour: %s", error)
            await asyncio.sleep(SWEEP_EVERY_S)


def _delete_responses(connection: Connection, before: float) -> int:
    """Deletes old responses: in each chain of `previous_response_id`, the newest response first.

    Returns the number of deleted rows.
    """
    deleted = 0
    for (id,) in connection.execute(_ENDS, (before, BATCH)).fetchall():
        link: str | None = id
        while link is not None and deleted < BATCH:
            rows = connection.execute(_DELETE, (link, before)).fetchall()
            deleted += len(rows)
            link = rows[0][0] if rows else None
    return deleted


def _delete_conversations(connection: Connection, before: float) -> int:
    query = f"DELETE FROM conversations WHERE id IN ({_UNTOUCHED})"
    return connection.execute(query, (before, BATCH)).rowcount

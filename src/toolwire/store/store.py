"""What outlives a request: stored responses, and, by `run`, whatever else has its tables in `schema.MIGRATIONS`.

Rules: the engine's threads do the work and callers await it, so the event loop never waits for a disk. A key sees only its own rows. A write that
fails raises; nothing is lost in silence. The schema moves only forward, by the statements of `MIGRATIONS`; a store of newer code is refused, never
changed. Nothing is removed by itself, unless it is older than `retention_days`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from toolwire.core.errors import ToolwireError
from toolwire.store.engine import Connection, engine_of

if TYPE_CHECKING:
    from toolwire.core.turn import Item

# --- retention ------------------------------------------------------------
#
# What is older than `store.retention_days` goes: stored responses by when they were made, conversations by
# when they were last touched. Rules: a response that a younger one continues stays, so a conversation that
# is still used stays whole. Every statement removes by itself and may be repeated, so several nodes may
# sweep at once; between handfuls others get their turn.

log = logging.getLogger("toolwire.store")
Run = Callable[[Callable[[Connection], Any], str], Awaitable[Any]]

DAY_S = 86400.0
SWEEP_EVERY_S = 3600.0
HANDFUL = 100
"""How many rows go before others get their turn."""

_DUE = "created_at < ? AND NOT EXISTS (SELECT 1 FROM responses AS later WHERE later.previous_response_id = responses.id AND later.id <> responses.id)"
_ENDS = f"SELECT id FROM responses WHERE {_DUE} LIMIT ?"
_REMOVE = f"DELETE FROM responses WHERE id = ? AND {_DUE} RETURNING previous_response_id"
_UNTOUCHED = "DELETE FROM conversations WHERE id IN (SELECT id FROM conversations WHERE updated_at < ? LIMIT ?)"


class Retention:
    """The background sweep of one store."""

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
        removed = 0
        for remove in (_responses, _conversations):
            while count := await self._run(partial(remove, before=before), "remove what is too old"):
                removed += count
        return removed

    async def _forever(self) -> None:
        while True:
            try:
                removed = await self.sweep()
                if removed:
                    log.info("%d stored rows older than %g days removed", removed, self._days)
            except ToolwireError as error:
                log.warning("what is too old could not be removed, it is tried again later: %s", error)
            await asyncio.sleep(SWEEP_EVERY_S)


def _responses(connection: Connection, before: float) -> int:
    """From the ends of conversations backwards."""
    removed = 0
    for (id,) in connection.execute(_ENDS, (before, HANDFUL)).fetchall():
        link: str | None = id
        while link is not None and removed < HANDFUL:
            gone = connection.execute(_REMOVE, (link, before)).fetchall()
            removed += len(gone)
            link = gone[0][0] if gone else None
    return removed


def _conversations(connection: Connection, before: float) -> int:
    return connection.execute(_UNTOUCHED, (before, HANDFUL)).rowcount


T = TypeVar("T")

MAX_CHAIN = 1000
"""How many responses a conversation by `previous_response_id` may have; longer ones are refused, not cut."""
MAX_CHAIN_BYTES = 64 * 1024 * 1024


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
    """`sqlite:///PATH`, `sqlite://` for memory, or `postgresql://…`. Opens at first use, or by `open`, which says early what is wrong."""

    def __init__(self, url: str, *, retention_days: float = 0, clock: Callable[[], float] = time.time) -> None:
        self._engine = engine_of(url)
        self._retention = Retention(self.run, retention_days, clock)

    async def open(self) -> None:
        """Also begins to remove what is too old, if anything ever is."""
        await self._engine.run(lambda connection: None, "open")
        self._retention.start()

    async def close(self) -> None:
        await self._retention.close()
        await self._engine.close()

    async def sweep(self) -> int:
        """Removes now what is older than `retention_days`; how many rows that were."""
        return await self._retention.sweep()

    async def run(self, work: Callable[[Connection], T], action: str) -> T:
        """Work on a connection, in a thread that owns it. `action` says what failed; `read` is work that changes nothing and may be tried again."""
        return await self._engine.run(work, action)

    @property
    def path(self) -> str:
        """The file; ":memory:" where there is none on this machine."""
        return self._engine.path

    @property
    def reachable(self) -> bool:
        """False while the last attempt to reach the store's server failed."""
        return self._engine.reachable

    async def put(self, stored: StoredResponse) -> None:
        await self._engine.run(lambda connection: _put(connection, stored), "write")

    async def get(self, id: str, key_id: str) -> StoredResponse | None:
        return await self._engine.run(lambda connection: _get(connection, id, key_id), "read")

    async def delete(self, id: str, key_id: str) -> bool:
        return await self._engine.run(lambda connection: _delete(connection, id, key_id), "write")

    async def chain(self, id: str, key_id: str) -> tuple[Item, ...] | None:
        """Every item of the conversation that ends in this response, oldest first. None: a link is missing, or belongs to another key."""
        return await self._engine.run(lambda connection: _chain(connection, id, key_id), "read")

    async def referenced(self, ids: Sequence[str], key_id: str) -> dict[str, dict[str, Any]]:
        """Items of stored responses, input or output, as wire objects by their ids; what is not there is left out."""
        return await self._engine.run(lambda connection: _referenced(connection, ids, key_id), "read")

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


# --- rows --------------------------------------------------------------------------------------------------------------------------------------

_COLUMNS = "id, key_id, created_at, model, status, previous_response_id, response, input_items, turn_items"


@cache
def _named_output() -> Any:
    """Reads of a response only the ids of its output."""
    import msgspec

    named = msgspec.defstruct("named", [("id", str | None, None)])
    return msgspec.json.Decoder(msgspec.defstruct("told", [("output", list[named] | None, None)]))  # type: ignore[valid-type]


def _put(connection: Connection, stored: StoredResponse) -> None:
    """One transaction: a crash leaves the whole response or none of it. Putting an id again replaces it, but never another key's."""
    with connection.transaction():
        _put_response(connection, stored)
        ids = {item["id"] for item in stored.input_items if isinstance(item.get("id"), str)}
        ids.update(item.id for item in _named_output().decode(stored.response).output or () if item.id is not None)
        connection.executemany(
            # the newest response that holds an item is the one that is kept longest
            "INSERT INTO items (key_id, id, response_id) VALUES (?, ?, ?) ON CONFLICT (key_id, id) DO UPDATE SET response_id = excluded.response_id",
            [(stored.key_id, id, stored.id) for id in sorted(ids)],  # sorted: two writers never wait for each other in a ring
        )


def _put_response(connection: Connection, stored: StoredResponse) -> None:
    import msgspec

    from toolwire.core.items import encode_items

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


def _get(connection: Connection, id: str, key_id: str) -> StoredResponse | None:
    import msgspec

    from toolwire.core.items import decode_items

    row = connection.execute(f"SELECT {_COLUMNS} FROM responses WHERE id = ? AND key_id = ?", (id, key_id)).fetchone()
    if row is None:
        return None
    id, key_id, created_at, model, status, previous, response, input_items, turn_items = row
    return StoredResponse(id, key_id, created_at, model, status, previous, response, msgspec.json.decode(input_items), decode_items(turn_items))


def _referenced(connection: Connection, ids: Sequence[str], key_id: str) -> dict[str, dict[str, Any]]:
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


def _delete(connection: Connection, id: str, key_id: str) -> bool:
    return connection.execute("DELETE FROM responses WHERE id = ? AND key_id = ?", (id, key_id)).rowcount == 1


def _chain(connection: Connection, id: str, key_id: str) -> tuple[Item, ...] | None:
    from toolwire.core.items import decode_items

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

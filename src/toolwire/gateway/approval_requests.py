"""Stores the approval requests that clients of the Responses API receive.

A request belongs to one key, and to exactly the call that the client was shown. It can be answered once. Its
row contains the arguments of the call. `add` deletes the rows of expired requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol

from toolwire.store.store import Store

if TYPE_CHECKING:
    from toolwire.store.engine import Connection

LIFETIME_S = 86_400.0
"""How many seconds a client has to answer a request."""


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A call that waits for the client's approval. `pin`: the hash of the tool's definition."""

    id: str
    key_id: str
    expires_at: float
    server: str
    tool: str
    pin: str
    arguments: str
    used_at: float | None = None


_COLUMNS = ", ".join(field.name for field in fields(ApprovalRequest))
_ADD = f"INSERT INTO mcp_requests ({_COLUMNS}) VALUES ({', '.join('?' * len(fields(ApprovalRequest)))})"
_READ = f"SELECT {_COLUMNS} FROM mcp_requests WHERE id = ? AND key_id = ? AND expires_at > ?"
_USE = (
    "UPDATE mcp_requests SET used_at = ? WHERE id = ? AND key_id = ? AND used_at IS NULL AND expires_at > ?"
)
_FORGET = "DELETE FROM mcp_requests WHERE expires_at <= ?"


class RequestTable(Protocol):
    """The methods of a table of approval requests."""

    async def add(self, requests: Sequence[ApprovalRequest], now: float) -> None: ...

    async def read(self, ids: Sequence[str], key_id: str, now: float) -> dict[str, ApprovalRequest]: ...

    async def use(self, id: str, key_id: str, now: float) -> bool: ...


class ApprovalRequests:
    """The table of approval requests in the store. Every method is one transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def add(self, requests: Sequence[ApprovalRequest], now: float) -> None:
        """Stores requests, and deletes those that have expired."""

        def work(connection: Connection) -> None:
            with connection.transaction():
                connection.execute(_FORGET, (now,))
                connection.executemany(_ADD, [_row(one) for one in requests])

        await self._store.run(work, "write")

    async def read(self, ids: Sequence[str], key_id: str, now: float) -> dict[str, ApprovalRequest]:
        """Returns the requests with these ids that belong to the key and have not expired."""

        def work(connection: Connection) -> dict[str, ApprovalRequest]:
            rows = (connection.execute(_READ, (id, key_id, now)).fetchone() for id in dict.fromkeys(ids))
            return {row[0]: ApprovalRequest(*row) for row in rows if row is not None}

        return await self._store.run(work, "read")

    async def use(self, id: str, key_id: str, now: float) -> bool:
        """Marks a request as answered.

        Returns False if the request is unknown, belongs to another key, was answered before, or has expired.
        """

        def work(connection: Connection) -> bool:
            return connection.execute(_USE, (now, id, key_id, now)).rowcount == 1

        return await self._store.run(work, "write")


def _row(request: ApprovalRequest) -> tuple[Any, ...]:
    return tuple(getattr(request, field.name) for field in fields(ApprovalRequest))

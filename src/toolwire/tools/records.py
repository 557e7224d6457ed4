"""Approvals, grants and the audit log as rows of the store.

An approval is stored before anyone is asked, and is decided once. One transaction stores the decision, the
line of the audit log about it, and the grant.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, fields
from typing import TYPE_CHECKING, Any

from msgspec import convert

from toolwire.store.store import Store
from toolwire.tools.consent import LinkKey
from toolwire.tools.contract import Approval, Decision, Grant, Status

if TYPE_CHECKING:
    from toolwire.store.engine import Connection

# The columns are in the order of the fields of `Approval` and `Grant`.
_APPROVAL = (
    "id, created_at, expires_at, owner, session, surface, model, tool, stage, arguments, shown, token, "
    "status, decided_at, decided_by, decision, source, pin, asker, used_at, proof"
)
_GRANT = (
    "id, created_at, owner, scope, tool, stage, target, approval_id, revoked_at, source, pin, model, proof"
)
_AUDIT = (
    "at, owner, event, approval_id, session, surface, model, tool, "
    "arguments_sha256, result_sha256, bytes, note, source, pin, decided_by"
)
MOST_LISTED = 200
Line = Callable[[Approval], Sequence[Any]]
"""A function that returns the line of the audit log for a decided approval."""


def _insert(table: str, columns: str) -> str:
    return f"INSERT INTO {table} ({columns}) VALUES ({', '.join('?' * len(columns.split(', ')))})"


_NOTE = _insert("audit", _AUDIT)


class Records:
    """Approvals, grants and the audit log in the store. Every method is one transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def _rows(self, query: str, *values: Any) -> list[Any]:
        return await self._store.run(lambda c: c.execute(query, values).fetchall(), "read")

    async def add(self, approvals: Sequence[Approval], most: int | None = None) -> int:
        """Stores the questions of one session, in order, and returns how many it stored.

        `most`: how many questions of the session may wait at once; None: any number.
        """
        return await self._store.run(lambda connection: _add(connection, approvals, most), "write")

    async def add_decided(self, approvals: Sequence[Approval], line: Line) -> None:
        """Stores approvals that a grant or a rule has decided, with their lines of the audit log."""
        await self._store.run(lambda connection: _add_decided(connection, approvals, line), "write")

    async def get(self, id: str) -> Approval | None:
        found = await self._rows(f"SELECT {_APPROVAL} FROM approvals WHERE id = ?", id)
        return _approval(found[0]) if found else None

    async def listed(self, status: Status | None = None, limit: int = MOST_LISTED) -> list[Approval]:
        """Returns the approvals with this status, newest first. Without a status, returns all approvals."""
        where, values = ("WHERE status = ?", [status]) if status else ("", [])
        query = f"SELECT {_APPROVAL} FROM approvals {where} ORDER BY created_at DESC, id LIMIT ?"
        return [_approval(row) for row in await self._rows(query, *values, limit)]

    async def decide(
        self,
        id: str,
        token: str,
        status: Status,
        at: float,
        by: str,
        decision: Decision | None,
        line: Line,
        grant: Grant | None = None,
        proof: str = "",
        link: LinkKey | None = None,
    ) -> bool:
        """Decides a pending approval and stores its grant. Returns whether this was possible.

        It is not possible if the approval is no longer pending, if the token is wrong, or if the `link` is
        wrong, expired or already used.
        """
        values = (status, at, by, None if decision is None else json.dumps(asdict(decision)), proof)
        where = "id = ? AND token = ? AND status = 'pending'"
        which: list[Any] = [id, token]
        if link is not None:
            where = f"{where} AND {_OPEN_LINK}"
            which += [link.id, link.sha256, at]

        def work(connection: Connection) -> bool:
            return _settle(connection, values, where, which, line, grant, link) == 1

        return await self._store.run(work, "write")

    async def kept(self, like: Approval, now: float) -> list[Approval]:
        """Returns earlier questions about the same tool as `like`, whose decisions no call has used yet.

        Returns only questions that may wait longer than their calls (`Approvals.ask` with `wait_s`). The
        caller compares the arguments and the previews.
        """
        same = ("owner", "surface", "model", "source", "pin", "tool", "stage")
        where = " AND ".join(f"{name} = ?" for name in same)
        open = "status IN ('pending', 'approved', 'denied') AND used_at IS NULL AND asker = ''"
        query = f"SELECT {_APPROVAL} FROM approvals WHERE {where} AND {open} AND expires_at > ? "
        query += "ORDER BY created_at, id LIMIT ?"
        values = [getattr(like, name) for name in same]
        return [_approval(row) for row in await self._rows(query, *values, now, MOST_LISTED)]

    async def take(self, id: str, at: float) -> bool:
        """Marks a decision as used by a call. Returns False if another call has already used it."""
        query = "UPDATE approvals SET used_at = ? WHERE id = ? AND used_at IS NULL"
        return await self._store.run(lambda c: c.execute(query, (at, id)).rowcount == 1, "write")

    async def expire(self, now: float, line: Line) -> int:
        """Expires every pending approval whose lifetime is over. Returns the number of expired approvals."""
        values, where = ("expired", now, None, None, ""), "status = 'pending' AND expires_at <= ?"
        return await self._store.run(lambda c: _settle(c, values, where, (now,), line), "write")

    async def void(self, id: str, at: float, line: Line) -> None:
        """Expires an approval that has no valid proof."""
        values = ("expired", at, None, None, "")
        await self._store.run(lambda c: _settle(c, values, "id = ?", (id,), line), "write")

    async def forget(self, before: float) -> int:
        """Deletes the approvals that were decided before this time. Returns their number.

        Also deletes links that expired before this time. The audit log keeps its lines.
        """
        query = "DELETE FROM approvals WHERE status != 'pending' AND decided_at < ?"

        def work(connection: Connection) -> int:
            connection.execute("DELETE FROM notice_links WHERE expires_at < ?", (before,))
            return connection.execute(query, (before,)).rowcount

        return await self._store.run(work, "write")

    async def grants(self, revoked: bool = False) -> list[Grant]:
        where = "" if revoked else "WHERE revoked_at IS NULL"
        rows = await self._rows(f"SELECT {_GRANT} FROM grants {where} ORDER BY created_at, id")
        return [Grant(*row) for row in rows]

    async def revoke(self, id: str, at: float) -> bool:
        query = "UPDATE grants SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL"
        return await self._store.run(lambda c: c.execute(query, (at, id)).rowcount == 1, "write")

    async def note(self, entry: Sequence[Any]) -> None:
        await self._store.run(lambda c: c.execute(_NOTE, tuple(entry)), "write")

    async def audit(self, limit: int = MOST_LISTED) -> list[dict[str, Any]]:
        """Returns the lines of the audit log, the newest first."""
        rows = await self._rows(f"SELECT number, {_AUDIT} FROM audit ORDER BY number DESC LIMIT ?", limit)
        return [dict(zip(["number", *_AUDIT.split(", ")], row, strict=True)) for row in rows]


_OPEN_LINK = (
    "EXISTS (SELECT 1 FROM notice_links AS link WHERE link.id = ? AND link.sha256 = ? "
    "AND link.approval_id = approvals.id AND link.used_at IS NULL AND link.expires_at > ?)"
)
_WAITING = (
    "SELECT COUNT(*) FROM approvals WHERE status = 'pending' AND owner = ? AND session = ? AND expires_at > ?"
)


def _add(connection: Connection, approvals: Sequence[Approval], most: int | None) -> int:
    with connection.transaction():
        if most is not None:
            first = approvals[0]
            row = connection.execute(_WAITING, (first.owner, first.session, first.created_at)).fetchone()
            approvals = approvals[: max(0, most - int(row[0]))]
        if approvals:
            connection.executemany(_insert("approvals", _APPROVAL), [_row(one) for one in approvals])
    return len(approvals)


def _add_decided(connection: Connection, approvals: Sequence[Approval], line: Line) -> None:
    with connection.transaction():
        connection.executemany(_insert("approvals", _APPROVAL), [_row(one) for one in approvals])
        connection.executemany(_NOTE, [tuple(line(one)) for one in approvals])


def _settle(
    connection: Connection,
    values: Sequence[Any],
    where: str,
    which: Sequence[Any],
    line: Line,
    grant: Grant | None = None,
    link: LinkKey | None = None,
) -> int:
    """Decides the matching approvals and logs the decisions. Returns the number of approvals.

    `values`: the new values of the columns. `where` and `which`: the SQL condition and its values.
    """
    if connection.execute(f"SELECT 1 FROM approvals WHERE {where} LIMIT 1", which).fetchone() is None:
        return 0
    columns = "status = ?, decided_at = ?, decided_by = ?, decision = ?, proof = ?"
    query = f"UPDATE approvals SET {columns} WHERE {where} RETURNING {_APPROVAL}"
    with connection.transaction():
        settled = [_approval(row) for row in connection.execute(query, (*values, *which)).fetchall()]
        connection.executemany(_NOTE, [tuple(line(one)) for one in settled])
        if grant is not None and settled:
            connection.execute(_insert("grants", _GRANT), astuple(grant))
        if link is not None and settled:
            used = "UPDATE notice_links SET used_at = ? WHERE id = ?"
            connection.execute(used, (settled[0].decided_at, link.id))
    return len(settled)


def _row(approval: Approval) -> tuple[Any, ...]:
    values = asdict(approval).values()
    return tuple(json.dumps(value) if isinstance(value, dict) else value for value in values)


def _approval(row: Sequence[Any]) -> Approval:
    named = {field.name: value for field, value in zip(fields(Approval), row, strict=True)}
    parsed = {name: json.loads(named[name] or "null") for name in ("arguments", "shown", "decision")}
    return convert(named | parsed, Approval)

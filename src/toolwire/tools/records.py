"""Approvals, grants and the audit log as rows of the store.

An approval is stored before anyone is asked, and is decided once. One transaction stores the decision, its
line of the audit log and the grant, whoever decides and whether or not someone still waits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from toolwire.store.store import Store
from toolwire.tools.contract import Approval, Decision, Grant, Preview, Status

if TYPE_CHECKING:
    from toolwire.store.engine import Connection

_APPROVAL = (
    "id, created_at, expires_at, owner, session, surface, model, tool, stage, arguments, shown, token, status, decided_at, decided_by, decision,"
    " vault, asker"
)
_GRANT = "id, created_at, owner, scope, tool, stage, target, approval_id, revoked_at, vault, model"
_AUDIT = "at, owner, event, approval_id, session, surface, model, tool, arguments_sha256, result_sha256, bytes, note"
MOST = 200
_NOTE = f"INSERT INTO audit ({_AUDIT}) VALUES ({', '.join('?' * len(_AUDIT.split(', ')))})"
Line = Callable[[Approval], Sequence[Any]]
"""The line of the audit log for a decided approval."""


class Records:
    """The rows of the store. Every method is one transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def add(self, approvals: Sequence[Approval], most: int | None = None) -> int:
        """Stores the questions of one session, in order, and returns how many.

        `most`: how many may wait at once.
        """
        return await self._store.run(lambda connection: _insert(connection, approvals, most), "write")

    async def get(self, id: str) -> Approval | None:
        found = await self._store.run(lambda c: c.execute(f"SELECT {_APPROVAL} FROM approvals WHERE id = ?", (id,)).fetchone(), "read")
        return _approval(found) if found else None

    async def listed(self, status: Status | None = None, limit: int = MOST) -> list[Approval]:
        """Newest first."""
        where, values = ("WHERE status = ?", (status,)) if status else ("", ())
        query = f"SELECT {_APPROVAL} FROM approvals {where} ORDER BY created_at DESC, id LIMIT ?"
        return [_approval(row) for row in await self._store.run(lambda c: c.execute(query, (*values, limit)).fetchall(), "read")]

    async def decide(
        self, id: str, token: str, status: Status, at: float, by: str, decision: Decision | None, line: Line, grant: Grant | None = None
    ) -> bool:
        """Decides a pending approval and stores its grant.

        False: it is no longer pending, or the token is wrong.
        """
        written = None if decision is None else json.dumps(decision.to_json())
        where = "id = ? AND token = ? AND status = 'pending'"
        return await self._store.run(lambda c: _settle(c, (status, at, by, written), where, (id, token), line, grant) == 1, "write")

    async def expire(self, now: float, line: Line) -> int:
        """Expires every pending approval whose time is over."""
        where = "status = 'pending' AND expires_at <= ?"
        return await self._store.run(lambda c: _settle(c, ("expired", now, None, None), where, (now,), line), "write")

    async def forget(self, before: float) -> int:
        """Deletes approvals decided before then, with all that they showed; the audit log keeps its lines."""
        query = "DELETE FROM approvals WHERE status != 'pending' AND decided_at < ?"
        return await self._store.run(lambda c: c.execute(query, (before,)).rowcount, "write")

    async def grants(self, revoked: bool = False) -> list[Grant]:
        query = f"SELECT {_GRANT} FROM grants {'' if revoked else 'WHERE revoked_at IS NULL'} ORDER BY created_at, id"
        return [Grant(*row) for row in await self._store.run(lambda c: c.execute(query).fetchall(), "read")]

    async def revoke(self, id: str, at: float) -> bool:
        query = "UPDATE grants SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL"
        return await self._store.run(lambda c: c.execute(query, (at, id)).rowcount == 1, "write")

    async def note(self, entry: Sequence[Any]) -> None:
        await self._store.run(lambda c: c.execute(_NOTE, tuple(entry)), "write")

    async def audit(self, limit: int = MOST) -> list[dict[str, Any]]:
        """Newest first."""
        names = ["number", *_AUDIT.split(", ")]
        query = f"SELECT number, {_AUDIT} FROM audit ORDER BY number DESC LIMIT ?"
        return [dict(zip(names, row, strict=True)) for row in await self._store.run(lambda c: c.execute(query, (limit,)).fetchall(), "read")]


_WAITING = "SELECT COUNT(*) FROM approvals WHERE status = 'pending' AND owner = ? AND session = ? AND expires_at > ?"


def _insert(connection: Connection, approvals: Sequence[Approval], most: int | None) -> int:
    with connection.transaction():
        if most is not None:
            first = approvals[0]
            waiting = connection.execute(_WAITING, (first.owner, first.session, first.created_at)).fetchone()[0]
            approvals = approvals[: max(0, most - int(waiting))]
        rows = [_row(approval) for approval in approvals]
        if rows:
            connection.executemany(f"INSERT INTO approvals ({_APPROVAL}) VALUES ({', '.join('?' * len(rows[0]))})", rows)
    return len(rows)


def _settle(connection: Connection, values: Sequence[Any], where: str, which: Sequence[Any], line: Line, grant: Grant | None = None) -> int:
    """Decides the matching approvals, adds their lines to the audit log, and returns how many there were."""
    if connection.execute(f"SELECT 1 FROM approvals WHERE {where} LIMIT 1", which).fetchone() is None:
        return 0
    with connection.transaction():
        query = f"UPDATE approvals SET status = ?, decided_at = ?, decided_by = ?, decision = ? WHERE {where} RETURNING {_APPROVAL}"
        settled = [_approval(row) for row in connection.execute(query, (*values, *which)).fetchall()]
        connection.executemany(_NOTE, [tuple(line(one)) for one in settled])
        if grant is not None and settled:
            remembered = tuple(getattr(grant, name) for name in _GRANT.split(", "))
            connection.execute(f"INSERT INTO grants ({_GRANT}) VALUES ({', '.join('?' * len(remembered))})", remembered)
    return len(settled)


def _row(approval: Approval) -> tuple[Any, ...]:
    return (
        approval.id,
        approval.created_at,
        approval.expires_at,
        approval.owner,
        approval.session,
        approval.surface,
        approval.model,
        approval.tool,
        approval.stage,
        json.dumps(dict(approval.arguments)),
        json.dumps(approval.shown.to_json()),
        approval.token,
        approval.status,
        approval.decided_at,
        approval.decided_by,
        None if approval.decision is None else json.dumps(approval.decision.to_json()),
        approval.vault,
        approval.asker,
    )


def _approval(row: Sequence[Any]) -> Approval:
    named = dict(zip(_APPROVAL.split(", "), row, strict=True))
    decision = named["decision"]
    named["arguments"] = json.loads(named["arguments"])
    named["shown"] = Preview.of(json.loads(named["shown"]))
    named["decision"] = None if decision is None else Decision.of(json.loads(decision))
    return Approval(**named)

"""`toolwire approvals`: decide from a shell what any surface asks, over the same store; list and revoke grants; read the audit log."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from toolwire.core.display import as_json, one_line
from toolwire.settings.load import load
from toolwire.settings.types import ConfigError
from toolwire.store.store import Store
from toolwire.surfaces import cards
from toolwire.surfaces.tables import table
from toolwire.tools.approvals import Approvals
from toolwire.tools.contract import Approval, Arguments, Decision, Grant, folder_of

BY = "shell"


def run_approvals(arguments: argparse.Namespace) -> int:
    if arguments.action in ("show", "approve", "deny", "revoke") and not arguments.id:
        raise ConfigError(f"approvals {arguments.action}: an id is missing, see toolwire approvals list")
    return asyncio.run(_run(arguments, Store(load(arguments.config, os.environ, {}).store.url)))


async def _run(arguments: argparse.Namespace, store: Store) -> int:
    async with store:
        value, lines = await _DO[arguments.action](Approvals(store), arguments)
    print(as_json(value) if arguments.json else "\n".join(lines))
    return 0


Told = tuple[Any, Sequence[str]]


async def _list(approvals: Approvals, arguments: argparse.Namespace) -> Told:
    await approvals.lapse()
    pending = await approvals.pending()
    listed = await approvals.records.listed() if arguments.all else pending
    rows = [("ID", "AGE", "STATUS", "MODEL", "TOOL", "STAGE", "ARGUMENTS")]
    for one in listed:
        written = one_line(json.dumps(dict(one.arguments), ensure_ascii=False), 60)
        rows.append(
            (
                one.id,
                _age(one.created_at),
                one.status,
                one_line(one.model, 30),
                one_line(one.tool, 30),
                one.stage,
                written,
            )
        )
    return [_public(one) for one in listed], table(rows) if listed else ["nothing is pending"]


async def _show(approvals: Approvals, arguments: argparse.Namespace) -> Told:
    found = await _found(approvals, arguments.id)
    lines = [
        cards.plain(cards.card(found, None, whole=True)),
        f"{found.status}{f' by {found.decided_by}' if found.decided_by else ''}",
    ]
    if found.status == "pending":
        lines.append(
            f"expires in {max(0, found.expires_at - time.time()):.0f} s; toolwire approvals approve {found.id}{' --pick …' * found.shown.pick}"
        )
    return _public(found), lines


async def _approve(approvals: Approvals, arguments: argparse.Namespace) -> Told:
    found = await _found(approvals, arguments.id)
    edited: Arguments | None = _edited(arguments.arguments) if arguments.arguments is not None else None
    picked = _picked(found, arguments.pick) if arguments.pick is not None else None
    folder = arguments.folder or folder_of(found.shown)
    decision = Decision(
        True,
        arguments=edited,
        picked=picked,
        remember=arguments.remember or "once",
        folder=folder if arguments.remember == "folder" else "",
    )
    return _told(await approvals.decide(found.id, found.token, decision, by=BY))


async def _deny(approvals: Approvals, arguments: argparse.Namespace) -> Told:
    found = await _found(approvals, arguments.id)
    return _told(
        await approvals.decide(found.id, found.token, Decision(False, reason=arguments.reason), by=BY)
    )


def _told(decided: Approval) -> Told:
    return _public(decided), [f"{decided.id}: {decided.status}"]


async def _grants(approvals: Approvals, arguments: argparse.Namespace) -> Told:
    grants = await approvals.records.grants()
    return [asdict(grant) for grant in grants], grant_lines(grants) if grants else ["nothing is remembered"]


def grant_lines(grants: Sequence[Grant]) -> list[str]:
    """Remembered grants as a table."""
    rows = [("ID", "AGE", "TOOL", "STAGE", "SCOPE", "TARGET", "MODEL", "VAULT")]
    for one in grants:
        what = (one_line(one.tool, 40), one.stage, one.scope, one_line(one.target, 60))
        rows.append((one.id, _age(one.created_at), *what, one_line(one.model, 40), one_line(one.vault, 80)))
    return table(rows)


async def _revoke(approvals: Approvals, arguments: argparse.Namespace) -> Told:
    id = _only([grant.id for grant in await approvals.records.grants()], arguments.id, "grant")
    await approvals.revoke(id)
    return {"id": id, "revoked": True}, [f"{id}: revoked"]


async def _audit(approvals: Approvals, arguments: argparse.Namespace) -> Told:
    entries = list(reversed(await approvals.records.audit(max(1, arguments.limit))))
    lines = [
        f"{datetime.fromtimestamp(one['at']).isoformat(' ', 'seconds')}  {one['event']:<8}  {one_line(one['tool'], 40)}  {one_line(one['model'], 40)}"
        f"  {one['surface']}  {one['bytes']} B  {one['approval_id']}{'  ' + one_line(one['note']) if one['note'] else ''}"
        for one in entries
    ]
    return entries, lines or ["nothing was decided yet"]


_DO: dict[str, Callable[[Approvals, argparse.Namespace], Awaitable[Told]]] = {
    "list": _list,
    "show": _show,
    "approve": _approve,
    "deny": _deny,
    "grants": _grants,
    "revoke": _revoke,
    "audit": _audit,
}


# --- finding ---------------------------------------------------------------------------------------------------------------------------------------


async def _found(approvals: Approvals, named: str) -> Approval:
    await approvals.lapse()  # what is over is over, also for whoever looks; so is what nobody waits for
    exact = await approvals.records.get(named)
    if exact is not None:
        return exact
    id = _only([one.id for one in await approvals.records.listed()], named, "approval")
    found = await approvals.records.get(id)
    assert found is not None
    return found


def _only(ids: Sequence[str], named: str, what: str) -> str:
    fitting = [
        id for id in ids if id == named or id.startswith(named) or id.partition("_")[2].startswith(named)
    ]
    if len(fitting) != 1:
        raise ConfigError(
            f"{what} {named}: {'there is none' if not fitting else f'{len(fitting)} begin like this'}"
        )
    return fitting[0]


def _picked(approval: Approval, named: Sequence[str]) -> tuple[str, ...]:
    """Numbers are places in the list as it is shown; anything else is a path."""
    touched = approval.shown.touched
    if list(named) == ["all"]:
        return tuple(one.key for one in touched if not one.missing)
    if list(named) == ["none"]:
        return ()
    out = []
    for name in named:
        if name.isdigit():
            found = touched[int(name) - 1] if 0 < int(name) <= len(touched) else None
        else:
            found = next((one for one in touched if name in (one.key, one.path)), None)
        if found is None:
            raise ConfigError(f"--pick {name}: not among the {len(touched)} shown")
        out.append(found.key)
    return tuple(dict.fromkeys(out))


def _edited(written: str) -> Arguments:
    try:
        value = json.loads(written)
    except ValueError as error:
        raise ConfigError(f"--arguments: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError("--arguments: not a JSON object")
    return value


def _public(approval: Approval) -> dict[str, Any]:
    """Without the token: it belongs to whoever decides, not into logs."""
    told = asdict(approval)
    del told["token"]
    return told


def _age(at: float) -> str:
    seconds = max(0, int(time.time() - at))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"

"""`toolwire approvals`: decides pending questions, revokes grants, and shows the audit log.

A question asks whether a tool call may run, or whether its result may be shared with the model. Agents and
other programs can also run this command. So an approval needs the approval code, which is read from the
terminal and never from a pipe, an argument or the environment. A denial needs no code.
"""

from __future__ import annotations

import argparse
import asyncio
import getpass
import json
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from toolwire.core.display import as_json, one_line
from toolwire.core.errors import ToolwireError
from toolwire.settings.load import load
from toolwire.settings.types import ConfigError, Settings
from toolwire.store.store import Store
from toolwire.surfaces import cards
from toolwire.surfaces.tables import table
from toolwire.tools.approvals import Approvals
from toolwire.tools.consent import NEEDS_CODE, ApprovalCode, Proofs, Signer
from toolwire.tools.contract import DENY, LATER, Approval, Decision, Grant, Scope, approve_label, folder_of
from toolwire.tools.mcp.policy import read_arguments

BY = "shell"
WRONG_CODE_S = 1.0


def run_approvals(arguments: argparse.Namespace) -> int:
    if arguments.action in ("show", "approve", "deny", "revoke") and not arguments.id:
        raise ConfigError(f"approvals {arguments.action}: an id is missing; see toolwire approvals list")
    return asyncio.run(_run(arguments, load(arguments.config, os.environ, {})))


async def _run(arguments: argparse.Namespace, settings: Settings) -> int:
    async with Store(settings.store.url) as store:
        # With "open", an approval needs no proof here. The process that asks accepts it only if its own
        # settings say "open", too.
        proofs = Proofs(store, unproven=settings.approvals.command_line == "open")
        value, lines = await _DO[arguments.action](Approvals(store, proofs=proofs), arguments)
    print(as_json(value) if arguments.json else "\n".join(lines))
    return 0


Output = tuple[Any, Sequence[str]]
"""What an action prints: the value for --json, and the lines without --json."""


async def _list(approvals: Approvals, arguments: argparse.Namespace) -> Output:
    await approvals.lapse()
    pending = await approvals.pending()
    listed = await approvals.records.listed() if arguments.all else pending
    rows = [("ID", "AGE", "STATUS", "WHO ASKS", "TOOL", "APPROVING WOULD", "ARGUMENTS")]
    for one in listed:
        ran = one.decision.arguments if one.decision is not None else None
        written = one_line(json.dumps(dict(one.arguments if ran is None else ran), ensure_ascii=False), 60)
        label = approve_label(one.shown, one.stage)
        names = (cards.who(one), one_line(one.tool, 30), one_line(label, 30))
        rows.append((one.id, _age(one.created_at), one.status, *names, written))
    return [_public(one) for one in listed], table(rows) if listed else ["no approval request is pending"]


async def _show(approvals: Approvals, arguments: argparse.Namespace) -> Output:
    found = await _found(approvals, arguments.id)
    by = f" by {found.decided_by}" if found.decided_by else ""
    lines = [cards.plain(cards.card(found, None, whole=True)), f"{found.status}{by}"]
    if found.status == "pending":
        left = max(0, found.expires_at - time.time())
        pick = " --pick …" if found.shown.pick else ""
        label = one_line(approve_label(found.shown, found.stage), 60)
        lines.append(f"{label}: toolwire approvals approve {found.id}{pick}")
        lines.append(f"{DENY}: toolwire approvals deny {found.id} --reason …")
        lines.append(f"{LATER}: do nothing; it expires in {left:.0f} s")
    return _public(found), lines


async def _approve(approvals: Approvals, arguments: argparse.Namespace) -> Output:
    found = await _found(approvals, arguments.id)
    edited = read_arguments(arguments.arguments) if arguments.arguments is not None else None
    picked = _picked(found, arguments.pick) if arguments.pick is not None else None
    remember: Scope = arguments.remember or "once"
    folder = (arguments.folder or folder_of(found.shown)) if remember == "folder" else ""
    decision = Decision(True, "", edited, picked, remember, folder)
    try:
        return await _decide(approvals, found, decision)
    except ToolwireError as error:
        if error.failure.code != NEEDS_CODE:
            raise
    question = f"{_asked(found, decision)}\n\nApproval code: "
    return await _decide(approvals, found, decision, await entered_code(approvals.proofs.code, question))


def _asked(found: Approval, decision: Decision) -> str:
    """Returns the text above the prompt for the approval code: the call and the options of the command.

    The command shows this text even if the person has just run `show`, because another program can change the
    question in the store between the two commands.
    """
    lines = [cards.plain(cards.card(found, None, whole=True))]
    if decision.arguments is not None:
        lines.append(f"with these arguments instead: {json.dumps(decision.arguments)}")
    if decision.picked is not None:
        paths = {one.key: one.path for one in found.shown.touched}
        picked = [one_line(paths[key], 200) for key in decision.picked]
        lines.append(f"only: {', '.join(picked) or 'nothing'}")
    if decision.remember != "once":
        of = f" {one_line(decision.folder, 200)}" if decision.folder else ""
        lines.append(f"remembered for: {decision.remember}{of}")
    return "\n".join(lines)


async def _deny(approvals: Approvals, arguments: argparse.Namespace) -> Output:
    found = await _found(approvals, arguments.id)
    return await _decide(approvals, found, Decision(False, reason=arguments.reason))


async def _decide(
    approvals: Approvals, found: Approval, decision: Decision, signer: Signer | None = None
) -> Output:
    decided = await approvals.decide(found, decision, by=BY, signer=signer)
    return _public(decided), [f"{decided.id}: {decided.status}"]


async def _grants(approvals: Approvals, arguments: argparse.Namespace) -> Output:
    grants = await approvals.records.grants()
    value = [one.to_json() | {"lasts": await approvals.proofs.lasts(one)} for one in grants]
    return value, await grant_lines(grants, approvals.proofs) if grants else ["there are no grants"]


LASTS = {"until_revoked": "until revoked", "until_exit": "until its program exits", "never": "not valid"}


async def grant_lines(grants: Sequence[Grant], proofs: Proofs) -> list[str]:
    """Returns the lines of a table of grants, which are remembered approvals."""
    rows = [("ID", "AGE", "TOOL", "STAGE", "SCOPE", "TARGET", "LASTS", "MODEL", "SOURCE")]
    for one in grants:
        what = (one_line(one.tool, 40), one.stage, one.scope, one_line(one.target, 60))
        lasts = LASTS[await proofs.lasts(one)]
        where = (one_line(one.model, 40), one_line(one.source, 80))
        rows.append((one.id, _age(one.created_at), *what, lasts, *where))
    return table(rows)


async def _revoke(approvals: Approvals, arguments: argparse.Namespace) -> Output:
    id = _only([grant.id for grant in await approvals.records.grants()], arguments.id, "grant")
    await approvals.revoke(id)
    return {"id": id, "revoked": True}, [f"{id}: revoked"]


# --- the approval code ---

NO_TERMINAL = "an approval from the command line needs a terminal, where you enter your approval code"
NO_CODE = "no approval code is set: set one on the Settings page, or run toolwire approvals code"


async def _code(approvals: Approvals, arguments: argparse.Namespace) -> Output:
    """Sets the approval code, or changes it."""
    code = approvals.proofs.code
    old = await entered_code(code, "Current approval code: ") if await code.record() is not None else None
    new = _read_secret("New approval code, at least 8 characters: ")
    if new != _read_secret("The new code again: "):
        raise ConfigError("approvals code: the two codes differ; nothing was changed")
    await code.set(new, BY, old=old)
    lines = [
        "The approval code is set. A server that already runs accepts it after you enter it on its page."
    ]
    return {"set": True}, lines


async def entered_code(code: ApprovalCode, question: str = "Approval code: ") -> Signer:
    """Reads the approval code from the terminal. Returns a `Signer` that signs decisions with it."""
    if await code.record() is None:
        raise ConfigError(NO_CODE)
    signer = await code.signer(_read_secret(question))
    if signer is None:
        await asyncio.sleep(WRONG_CODE_S)
        raise ConfigError("this is not the approval code")
    return signer


def _read_secret(question: str) -> str:
    """Reads a line from the terminal of this process, without showing what the person types."""
    try:
        with open("/dev/tty", "r+b", buffering=0) as terminal:
            if not os.isatty(terminal.fileno()):
                raise ConfigError(NO_TERMINAL)
    except OSError:
        raise ConfigError(NO_TERMINAL) from None
    try:
        return getpass.getpass(question)
    except EOFError:
        raise ConfigError("no approval code was entered") from None


async def _audit(approvals: Approvals, arguments: argparse.Namespace) -> Output:
    entries = list(reversed(await approvals.records.audit(max(1, arguments.limit))))
    return entries, [_audit_line(**one) for one in entries] or ["nothing has been decided yet"]


def _audit_line(
    at: float,
    event: str,
    tool: str,
    model: str,
    surface: str,
    bytes: int,
    approval_id: str,
    note: str,
    **_: Any,
) -> str:
    when = datetime.fromtimestamp(at).isoformat(" ", "seconds")
    call = f"{when}  {event:<8}  {one_line(tool, 40)}  {one_line(model, 40)}"
    return f"{call}  {surface}  {bytes} B  {approval_id}" + (f"  {one_line(note)}" if note else "")


_DO: dict[str, Callable[[Approvals, argparse.Namespace], Awaitable[Output]]] = {
    "list": _list,
    "show": _show,
    "approve": _approve,
    "deny": _deny,
    "grants": _grants,
    "revoke": _revoke,
    "audit": _audit,
    "code": _code,
}


# --- arguments ---


async def _found(approvals: Approvals, named: str) -> Approval:
    await approvals.lapse()  # expires the questions of processes that have ended
    exact = await approvals.records.get(named)
    if exact is not None:
        return exact
    listed = {one.id: one for one in await approvals.records.listed()}
    return listed[_only(list(listed), named, "approval")]


def _only(ids: Sequence[str], named: str, what: str) -> str:
    found = [id for id in ids if id.startswith(named) or id.partition("_")[2].startswith(named)]
    if len(found) != 1:
        problem = f"{len(found)} ids begin with this text" if found else "there is no such id"
        raise ConfigError(f"{what} {named}: {problem}")
    return found[0]


def _picked(approval: Approval, named: Sequence[str]) -> tuple[str, ...]:
    """Returns the keys of the files or results that a person named with --pick.

    A name is a number in the list that `show` prints, or a path. Instead of names, the person may write `all`
    or `none`.
    """
    touched = approval.shown.touched
    if list(named) == ["all"]:
        return approval.shown.pickable
    if list(named) == ["none"]:
        return ()
    out = []
    for name in named:
        if name.isdigit():
            found = touched[int(name) - 1] if 0 < int(name) <= len(touched) else None
        else:
            found = next((one for one in touched if name in (one.key, one.path)), None)
        if found is None:
            raise ConfigError(f"--pick {name}: not one of the {len(touched)} files or results shown")
        out.append(found.key)
    return tuple(dict.fromkeys(out))


def _public(approval: Approval) -> dict[str, Any]:
    """Returns the approval as JSON, without its token and its proof, because the output may get into logs."""
    public = asdict(approval)
    del public["token"], public["proof"]
    public["asker"] = public.pop("requester")
    return public


def _age(at: float) -> str:
    seconds = max(0, int(time.time() - at))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"

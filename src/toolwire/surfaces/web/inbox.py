"""The API of the inbox: approval requests of all processes, grants, and the audit log.

While a tab is open, `InboxApi` looks for changes in the store twice per second, because other processes also
change the store.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, get_args

from starlette.requests import Request

from toolwire.core.display import escaped
from toolwire.core.errors import ToolwireError
from toolwire.surfaces.web.code import NO_AUTHORITY
from toolwire.surfaces.web.context import PageApi, Row, body, field, invalid, number
from toolwire.surfaces.web.servers import called, edited, rule_for, saved_rule
from toolwire.surfaces.web.sessions import Authority
from toolwire.tools.approvals import NOT_AS_SHOWN
from toolwire.tools.consent import NEEDS_CODE, OTHER_PROGRAM, Signer, is_as_shown, shown_token
from toolwire.tools.contract import (
    Approval,
    Decision,
    Scope,
    Status,
    Tool,
    ToolFailed,
    folder_of,
    place_of,
    privacy_note,
    problem_note,
    server_tool_words,
    source_of_vault,
)
from toolwire.tools.executor import Toolbox
from toolwire.tools.tour import hint

log = logging.getLogger("toolwire.web")
LOOK_EVERY_S = 0.5
MOST = 500
PRIVACY = "This tool will access your vault data. Only approve if you understand and trust this action."
_SHOWN: dict[str, tuple[Status, ...]] = {
    "pending": ("pending",),
    "decided": ("approved", "denied"),
    "expired": ("expired",),
}
_UNDECIDED = "SELECT COUNT(*) FROM mcp_withheld WHERE kept = 0"
_STATE = (
    "SELECT (SELECT COUNT(*) FROM approvals WHERE status = 'pending'), "
    "(SELECT MAX(created_at) FROM approvals), (SELECT MAX(decided_at) FROM approvals), "
    "(SELECT MAX(number) FROM audit), (SELECT COUNT(*) FROM grants WHERE revoked_at IS NULL), "
    f"({_UNDECIDED})"
)


_AS_STORED = (
    "id created_at expires_at session surface model source pin tool stage status decided_at decided_by"
)


class InboxApi(PageApi):
    _watching: asyncio.Task[None] | None = None

    def routes(self) -> list[Row]:
        return [
            ("GET", "/approvals", self.listed),
            ("GET", "/approvals/{id}", self.one),
            ("POST", "/approvals/{id}/preview", self.preview),
            ("POST", "/approvals/{id}/decision", self.decide),
            ("GET", "/grants", self.grants),
            ("DELETE", "/grants/{id}", self.revoke),
            ("GET", "/audit", self.audit),
        ]

    async def start(self) -> None:
        self._watching = asyncio.ensure_future(self._watch())

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    async def _watch(self) -> None:
        last: Any = None
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if not self._web.hub.watched:
                continue
            try:
                await self._web.approvals.pending()  # ends questions whose call no longer waits
                state = await self._web.store.run(lambda c: c.execute(_STATE).fetchone(), "read")
            except ToolwireError as error:
                log.warning("the inbox could not be read: %s", error)
                continue
            if state != last:
                last = state
                self._web.hub.publish("approvals", {"pending": state[0] + state[-1]})

    # --- questions

    async def listed(self, request: Request) -> dict[str, Any]:
        which = request.query_params.get("status", "pending")
        if which not in _SHOWN:
            raise invalid("Expected pending, decided or expired.", "status")
        approvals, limit = self._web.approvals, number(request, "limit", 100, MOST)
        found = pending = await approvals.pending()
        if which != "pending":
            found = [one for status in _SHOWN[which] for one in await approvals.records.listed(status, limit)]
        found = sorted(found, key=lambda one: one.decided_at or one.created_at, reverse=True)[:limit]
        needs_code = await self._code_check(request)
        waiting = len(pending) + await self._definitions()
        return {"approvals": [self.shown(one, needs_code(one)) for one in found], "pending": waiting}

    async def _definitions(self) -> int:
        """Returns the number of withheld definitions of MCP servers that wait for a decision."""
        (found,) = await self._web.store.run(lambda c: c.execute(_UNDECIDED).fetchone(), "read")
        return int(found)

    async def one(self, request: Request) -> dict[str, Any]:
        approval = await self._get(request)
        return self.shown(approval, (await self._code_check(request))(approval))

    async def _code_check(self, request: Request) -> Callable[[Approval], str]:
        """Returns a function that says why an approval needs the code; it returns "" if it needs none."""
        authority: Authority = request.state.authority
        signer, proofs = await self._signer(authority), self._web.approvals.proofs

        def reason(approval: Approval) -> str:
            if approval.status != "pending":
                return ""
            if not authority.decides:
                return NO_AUTHORITY
            is_own = signer is not None or proofs.unproven or proofs.is_own(approval)
            return "" if is_own else OTHER_PROGRAM

        return reason

    async def _signer(self, authority: Authority) -> Signer | None:
        """Returns the signer with the approval code that the person entered in this session.

        Returns None if no code was entered, or if the code was changed after that.
        """
        if authority.signer is None:
            return None
        record = await self._web.approvals.proofs.code.record()
        is_current = record is not None and record.public == authority.signer.public
        return authority.signer if is_current else None

    async def preview(self, request: Request) -> dict[str, Any]:
        """Returns what a call with edited arguments would do, as its tool describes it."""
        approval, given = await self._get(request), await body(request)
        if (written := field(given, "arguments_json", str)) is not None and called(approval) is not None:
            arguments = edited(self._web, approval, written)
            # Only the server knows what the edited call would touch, so the preview stays the same.
            same = {"shown": approval.shown.to_json(), "digest": approval.shown.digest, "problem_note": ""}
            return {**same, "rule": rule_for(self._web, approval, arguments)}
        arguments = field(given, "arguments", dict, required=True)
        toolbox = self._toolbox(approval)
        if toolbox is None:
            message = "The vault of this call is not open here, so you cannot edit the arguments of the call."
            raise ToolwireError("invalid_request", message)
        try:
            shown = await toolbox.preview(approval.tool, toolbox.checked(approval.tool, arguments))
        except ToolFailed as error:
            raise invalid(str(error), "arguments") from None
        note = problem_note(shown, approval.model)
        return {"shown": shown.to_json(), "digest": shown.digest, "problem_note": note, "rule": ""}

    async def decide(self, request: Request) -> dict[str, Any]:
        given = await body(request)
        remember, picked = field(given, "remember", str, "once"), field(given, "picked", list)
        if remember not in get_args(Scope):
            raise invalid(f"Expected one of {', '.join(get_args(Scope))}.", "remember")
        if picked is not None and not all(isinstance(key, str) for key in picked):
            raise ToolwireError("invalid_type", "'picked' is not a list of strings.", param="picked")
        approval = await self._get(request)
        arguments = field(given, "arguments", dict)
        if (written := field(given, "arguments_json", str)) is not None and called(approval) is not None:
            arguments = dict(edited(self._web, approval, written))
        decision = Decision(
            approved=field(given, "approved", bool, required=True),
            reason=field(given, "reason", str, "")[:1000],
            arguments=arguments,
            picked=None if picked is None else tuple(picked),
            remember=remember,
            folder=field(given, "folder", str, ""),
            seen=field(given, "seen", str, ""),
        )
        rule = field(given, "rule", str, "") if decision.approved else ""
        runs = approval.arguments if arguments is None else arguments
        if rule and rule != rule_for(self._web, approval, runs):
            raise invalid("The rule is not the one that allows exactly the call that was shown.", "rule")
        if decision.arguments is not None and decision.approved and not decision.seen:
            message = "To approve edited arguments, send the digest of their preview as 'seen'."
            raise ToolwireError("missing", message, param="seen")
        if not is_as_shown(approval, field(given, "token", str, required=True)):
            raise ToolwireError("conflict", NOT_AS_SHOWN)
        authority: Authority = request.state.authority
        if decision.approved and not authority.decides:
            raise ToolwireError("permission", NO_AUTHORITY, code=NEEDS_CODE)
        signer = await self._signer(authority)
        if rule and (reason := (await self._code_check(request))(approval)):
            raise ToolwireError("permission", reason, code=NEEDS_CODE)
        async with saved_rule(self._web, approval, rule):
            decided = await self._web.approvals.decide(approval, decision, by="web", signer=signer)
        await self.changed()
        return self.shown(decided)

    async def changed(self) -> None:
        pending = len(await self._web.approvals.pending()) + await self._definitions()
        self._web.hub.publish("approvals", {"pending": pending})

    async def _get(self, request: Request) -> Approval:
        approval = await self._web.approvals.records.get(request.path_params["id"])
        if approval is None:
            raise ToolwireError(
                "not_found", f"There is no approval request {request.path_params['id'][:80]}."
            )
        return approval

    # --- grants and the log

    async def grants(self, request: Request) -> dict[str, Any]:
        approvals = self._web.approvals
        grants = reversed(await approvals.records.grants())
        return {"grants": [one.to_json() | {"lasts": await approvals.proofs.lasts(one)} for one in grants]}

    async def revoke(self, request: Request) -> dict[str, Any]:
        if not await self._web.approvals.revoke(request.path_params["id"]):
            raise ToolwireError("not_found", "There is no such grant, or it was already revoked.")
        await self.changed()
        return {}

    async def audit(self, request: Request) -> dict[str, Any]:
        return {"audit": await self._web.approvals.records.audit(number(request, "limit", 200, 5000))}

    # --- how a question is shown

    def shown(self, approval: Approval, needs_code: str = "") -> dict[str, Any]:
        toolbox = self._toolbox(approval)
        tool = (toolbox.tools if toolbox is not None else self._described).get(approval.tool)
        about: dict[str, Any] = {"title": approval.tool, "purpose": "", "effect": "", "schema": {}}
        note, is_pending = PRIVACY, approval.status == "pending"
        if (names := called(approval)) is not None:
            title, purpose = server_tool_words(*names)
            about |= {"title": title, "purpose": purpose, "effect": "call"}
            note = privacy_note("call", approval.stage, approval.model)
        elif tool is not None:
            about = {name: getattr(tool, name) for name in ("title", "purpose", "effect")}
            about["schema"] = dict(tool.parameters)
            note = f"{PRIVACY} {privacy_note(tool.effect, approval.stage, approval.model)}".strip()
        return {
            **{name: getattr(approval, name) for name in _AS_STORED.split()},
            **about,
            "token": shown_token(approval),
            "arguments": dict(approval.arguments),
            "arguments_json": escaped(json.dumps(dict(approval.arguments), ensure_ascii=False, indent=2)),
            "shown": approval.shown.to_json(),
            "digest": approval.shown.digest,
            "problem_note": problem_note(approval.shown, approval.model),
            "decision": approval.decision.to_json() if approval.decision is not None else None,
            "editable": (toolbox is not None or names is not None) and approval.stage == "run" and is_pending,
            "rule": rule_for(self._web, approval, approval.arguments) if is_pending else "",
            "folder": folder_of(approval.shown),
            "note": note,
            "place": place_of(approval.surface),
            "needs_code": needs_code,
            "hint": hint(approval) if self._web.tours.is_tour(approval.session) else "",
            "scripted": self._web.scripted(approval.model, approval.session),
        }

    def _toolbox(self, approval: Approval) -> Toolbox | None:
        """Returns the open toolbox with the question's tool and vault; None if there is none."""
        web = self._web
        own = approval.source == source_of_vault(str(web.tools.root.resolve()))
        toolbox = web.tools.toolbox if own else web.tours.toolbox(approval.source.removeprefix("vault:"))
        return toolbox if toolbox is not None and approval.tool in toolbox.tools else None

    @cached_property
    def _described(self) -> Mapping[str, Tool]:
        from toolwire.tools.vault_tools import described

        return described()

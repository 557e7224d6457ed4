"""Links in notices. With a link, a person can decide one question, once.

The process that asks derives a link's secret from its own key (`consent.py`); the store has only the hash of
the secret. Anyone who has the secret can read the question and decide it. After `MOST_WRONG` attempts with
wrong secrets, a link is void. A decision by a link cannot edit the call and creates no grant for later calls.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields, replace
from typing import Any, Literal

from toolwire.core.display import one_line
from toolwire.core.errors import ToolwireError
from toolwire.core.ids import random_id
from toolwire.store.store import Store
from toolwire.tools.approvals import Approvals
from toolwire.tools.consent import LinkKey, is_as_shown
from toolwire.tools.contract import Approval, Decision
from toolwire.tools.requester import has_ended

LinkKind = Literal["link", "button", "webhook"]
"""How a link is used: the person opens its page or presses a button in a message, or a webhook answers."""
_IN_MESSAGES = ("button", "webhook")
"""The kinds that answer without the link's page.

A secret is valid for one kind only, even if another program changes the kind in the store.
"""
MOST_WRONG = 5
WRONG_S = 0.5
"""The delay before the answer to a wrong secret."""
NOT_VALID = "This link is not valid. Open it again from the message, or decide in the inbox."
NOT_AS_SHOWN_HERE = "This is not the call that the page showed, so nothing was decided. Reload the page."
VOID = "This link no longer works, because somebody tried wrong secrets. Decide in the inbox."


@dataclass(frozen=True, slots=True)
class Link:
    """A link as the store has it. `notice`: the name of the notice (`[notices.NAME]`) that contains it."""

    id: str
    approval_id: str
    approval_token: str
    kind: LinkKind
    notice: str
    approves: int
    sha256: str
    created_at: float
    expires_at: float
    used_at: float | None = None
    wrong: int = 0

    @property
    def by(self) -> str:
        """The name of the link in the audit log, such as "link phone"."""
        return f"{self.kind} {self.notice}"


_COLUMNS = ", ".join(one.name for one in fields(Link))
_ADD = f"INSERT INTO notice_links ({_COLUMNS}) VALUES ({', '.join('?' * len(fields(Link)))})"
_GET = f"SELECT {_COLUMNS} FROM notice_links WHERE id = ?"
_WRONG = f"UPDATE notice_links SET wrong = wrong + 1 WHERE id = ? AND wrong < {MOST_WRONG} RETURNING wrong"


class Links:
    """The links of one store."""

    def __init__(self, store: Store, approvals: Approvals, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._approvals = approvals
        self._clock = clock

    async def add(self, approval: Approval, kind: LinkKind, notice: str, approves: bool) -> LinkKey:
        """Stores a new link to a question of this process and returns its secret."""
        key = self._approvals.proofs.link(approval, f"{kind} {notice}", approves)
        key = replace(key, id=random_id("link_"))
        what = (approval.id, approval.token, kind, notice, int(approves), key.sha256)
        link = Link(key.id, *what, self._clock(), approval.expires_at)
        await self._store.run(lambda c: c.execute(_ADD, astuple(link)), "write")
        return key

    async def opened(self, id: str, secret: str) -> tuple[Link, Approval]:
        """Returns the link and its open question. Raises `ToolwireError` if the link cannot be used."""
        row: Any = await self._store.run(lambda c: c.execute(_GET, (id[:80],)).fetchone(), "read")
        if row is None:
            await asyncio.sleep(WRONG_S)
            raise ToolwireError("permission", NOT_VALID)
        link = Link(*row)
        if link.wrong >= MOST_WRONG:
            raise ToolwireError("gone", VOID)
        if not hmac.compare_digest(LinkKey(secret, "").sha256, link.sha256):
            await self.tried(link)
            raise ToolwireError("permission", NOT_VALID)
        approval = await self._approvals.records.get(link.approval_id)
        if approval is None or approval.token != link.approval_token:
            raise ToolwireError("gone", "This approval request no longer exists.")
        if approval.status == "pending" and self._clock() < approval.expires_at:
            if not has_ended(approval.requester):
                return link, approval
            await self._approvals.lapse()
            nothing = "nothing is shared" if approval.stage == "share" else "the call does not run"
            raise ToolwireError("gone", f"The Toolwire program that asked you has ended, so {nothing}.")
        raise ToolwireError("gone", over(approval))

    async def tried(self, link: Link) -> None:
        """Counts a wrong secret or a wrong signature. After `MOST_WRONG` of them, the link is void."""
        row = await self._store.run(lambda c: c.execute(_WRONG, (link.id,)).fetchone(), "write")
        if row is not None and row[0] == MOST_WRONG:
            approval = await self._approvals.records.get(link.approval_id)
            if approval is not None:
                note = f"{link.by}: {MOST_WRONG} wrong answers"
                await self._approvals.log_result(approval, "voided", note=note)
        await asyncio.sleep(WRONG_S)

    async def decide(
        self, link: Link, approval: Approval, secret: str, decision: Decision, shown: str = ""
    ) -> Approval:
        """Decides a question by a link that `opened` has returned.

        `shown`: the token of the question as the link's page showed it. It is needed to approve on this page,
        but not to approve by a button in a message or by a webhook.
        """
        if decision.approved and not link.approves:
            raise ToolwireError("permission", "This button can only deny. Open the link, or use the inbox.")
        if not decision.is_plain:
            raise ToolwireError("permission", "A link can only approve or deny this call, as it was shown.")
        if decision.approved and link.kind not in _IN_MESSAGES and not is_as_shown(approval, shown):
            raise ToolwireError("conflict", NOT_AS_SHOWN_HERE)
        key = LinkKey(secret, link.by, link.id)
        try:
            return await self._approvals.decide(approval, decision, by=link.by, signer=key)
        except ToolwireError as error:
            if error.failure.kind != "conflict":
                raise
            now = await self._approvals.records.get(approval.id)
            if now is not None and now.status == "pending" and self._clock() < now.expires_at:
                raise ToolwireError("conflict", NOT_AS_SHOWN_HERE) from None
            raise ToolwireError("gone", over(now or approval)) from None


def over(approval: Approval) -> str:
    """Returns how a question ended, for a person who opens its link."""
    if approval.status in ("approved", "denied"):
        by = one_line(approval.decided_by or "", 80)
        return f"This approval request was already {approval.status}{f' ({by})' if by else ''}."
    nothing = "nothing was shared" if approval.stage == "share" else "the call did not run"
    return f"This approval request has expired, so {nothing}."

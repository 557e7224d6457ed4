"""The API of links: a caller with the secret of a link can read and decide one question.

The API needs no session. Reading decides nothing, so a program that opens a link before the person does
cannot approve or deny the call. The receiver of a webhook must also sign its answer.
"""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request

from toolwire.core.errors import ToolwireError
from toolwire.surfaces.notices import signature
from toolwire.surfaces.notices.messages import TEST_LINK
from toolwire.surfaces.web.context import Row, Web, as_object, field, raw_body
from toolwire.surfaces.web.inbox import InboxApi
from toolwire.tools.contract import Decision
from toolwire.tools.links import Link, Links

SECRET = "x-toolwire-link"
"""The request header that contains the link's secret when the question is read."""
MOST_ANSWER = 64 * 1024
MOST_REASON = 500
_LEFT_OUT = ("schema", "session", "needs_code")


class LinkApi:
    def __init__(self, web: Web, inbox: InboxApi) -> None:
        self._web = web
        self._inbox = inbox
        self._links = Links(web.store, web.approvals)

    def routes(self) -> list[Row]:
        return [("GET", "/link/{id}", self.read), ("POST", "/link/{id}", self.decide)]

    async def read(self, request: Request) -> dict[str, Any]:
        """Returns the whole question.

        The question contains a token. A request that approves must send this token back in its field `shown`.
        """
        if request.path_params["id"] == TEST_LINK:
            return {"test": True}
        link, approval = await self._links.opened(
            request.path_params["id"], request.headers.get(SECRET, "")[:200]
        )
        if link.kind != "link":
            raise ToolwireError(
                "permission", "This link is for a button in a notification, so it cannot show the call."
            )
        shown = {key: value for key, value in self._inbox.shown(approval).items() if key not in _LEFT_OUT}
        return {"approval": shown | {"editable": False, "once": True, "schema": {}, "needs_code": ""}}

    async def decide(self, request: Request) -> dict[str, Any]:
        """Decides the question. A question can be decided only once."""
        raw = await raw_body(request, MOST_ANSWER)
        given = as_object(raw)
        secret = field(given, "token", str, required=True)[:200]
        approved = field(given, "approved", bool, required=True)
        picked = field(given, "picked", list)
        if picked is not None and not all(isinstance(key, str) for key in picked):
            raise ToolwireError("invalid_type", "'picked' is not a list of strings.", param="picked")
        link, approval = await self._links.opened(request.path_params["id"], secret)
        if field(given, "id", str, approval.id) != approval.id:
            raise ToolwireError("invalid_value", "'id' is not the id of the link's question.", param="id")
        if link.kind == "webhook":
            await self._check_signature(request, link, raw)
        reason = field(given, "reason", str, "")[:MOST_REASON]
        decision = Decision(approved, reason, picked=None if picked is None else tuple(picked))
        shown = field(given, "shown", str, "")[:200]
        decided = await self._links.decide(link, approval, secret, decision, shown)
        await self._inbox.changed()
        return {"id": decided.id, "status": decided.status}

    async def _check_signature(self, request: Request, link: Link, raw: bytes) -> None:
        notices = {one.name: one for one in self._web.settings.notices if one.kind == "webhook"}
        notice = notices.get(link.notice)
        if notice is None or notice.problem:
            message = (
                f"The settings of this server have no webhook {link.notice}, so the answer cannot be checked."
            )
            raise ToolwireError("permission", message)
        header = request.headers.get(signature.HEADER, "")[:200]
        if problem := signature.wrong(notice.secret, header, raw, time.time()):
            await self._links.tried(link)
            raise ToolwireError("permission", problem)

"""The API of the approval code: a session enters the code once, or sets a new code.

A session that may approve calls (`Authority.decides`) may set the code. Any other session must enter the code
before it can approve calls. After a wrong code, all sessions must wait before they can try again.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from starlette.requests import Request

from toolwire.core.errors import ToolwireError
from toolwire.surfaces.web.context import Row, body, field
from toolwire.surfaces.web.sessions import Authority, Sessions
from toolwire.tools.consent import NEEDS_CODE, ApprovalCode

NO_AUTHORITY = (
    "This browser session cannot approve anything yet. Enter your approval code, or open the link that "
    "toolwire serve printed when it started."
)
NOT_TRUSTED = (
    "Another program set this code. Open the link that toolwire serve printed, and enter the code there."
)
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0


class CodeApi:
    def __init__(self, sessions: Sessions, code: ApprovalCode) -> None:
        self._sessions = sessions
        self._code = code
        self._checking = asyncio.Lock()
        self._wrong = 0
        self._not_before = 0.0

    def routes(self) -> list[Row]:
        return [("POST", "/session/code", self.enter), ("PUT", "/session/code", self.set)]

    async def state(self, request: Request) -> dict[str, Any]:
        """Returns whether the session may approve, who set the code, and whether the code was entered."""
        authority: Authority = request.state.authority
        record = await self._code.record()
        return {
            "decides": authority.decides,
            "code": {"set_at": record.set_at, "set_by": record.set_by} if record is not None else None,
            "entered": record is not None and await self._current(authority, record.public),
        }

    async def _current(self, authority: Authority, public: str) -> bool:
        return authority.signer is not None and authority.signer.public == public

    async def enter(self, request: Request) -> dict[str, Any]:
        """Checks the code.

        If the code is right, the session may approve calls of all programs that use this store.
        """
        given = field(await body(request), "code", str, required=True)
        authority: Authority = request.state.authority
        async with self._checking:
            wait = self._not_before - time.monotonic()
            if wait > 0:
                message = f"The last code was wrong. Wait {wait:.0f} s before you try again."
                raise ToolwireError("rate_limit", message, retry_after_s=wait)
            signer = await self._code.signer(given[:1000])
            if signer is None:
                self._wrong += 1
                pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self._wrong - 1, 16))
                self._not_before = time.monotonic() + pause
                raise ToolwireError("permission", "This is not the approval code.", param="code")
            self._wrong = 0
        if authority.decides:
            await self._code.confirm()
        elif await self._code.trusted() != signer.public:
            raise ToolwireError("permission", NOT_TRUSTED, param="code")
        await self._sessions.authorize(request.state.token, signer)
        return {}

    async def set(self, request: Request) -> dict[str, Any]:
        given = field(await body(request), "code", str, required=True)
        authority: Authority = request.state.authority
        if not authority.decides:
            raise ToolwireError("permission", NO_AUTHORITY, code=NEEDS_CODE)
        signer = await self._code.set(given, "page", replace=True)
        await self._sessions.authorize(request.state.token, signer)
        return {}

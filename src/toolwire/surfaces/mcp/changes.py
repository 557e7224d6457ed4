"""Notifies clients when the list of tools, prompts or resources has changed.

With protocol 2026-07-28 or newer, a client is notified if it has subscribed. With an older protocol, every
client that has a session is notified.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import suppress
from typing import Any

import mcp_types as types
from mcp.server import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ToolsListChanged,
)

MOST_SESSIONS = 256
"""How many sessions are notified. If there are more, the oldest are dropped, as their clients may be gone."""
SEND_S = 5.0
_EVENTS = (ToolsListChanged(), PromptsListChanged(), ResourcesListChanged())
_NOTIFICATIONS = (
    types.ToolListChangedNotification,
    types.PromptListChangedNotification,
    types.ResourceListChangedNotification,
)


class ListChanges:
    """The clients to notify, and the task that notifies them."""

    def __init__(self) -> None:
        self._bus = InMemorySubscriptionBus()
        self._sessions: OrderedDict[str, ServerSession] = OrderedDict()
        self._telling: asyncio.Task[None] | None = None
        self._again = False
        self.listen = ListenHandler(self._bus, max_subscriptions=MOST_SESSIONS)

    async def joined(self, context: ServerRequestContext[Any, Any], params: types.NotificationParams) -> None:
        """Adds the session of a client that has completed the handshake."""
        header = context.request.headers.get("mcp-session-id") if context.request is not None else None
        self._sessions[header or ""] = context.session
        while len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)

    def announce(self) -> None:
        """Notifies all clients. Changes that come while this runs cause only one further notification."""
        if self._telling is None or self._telling.done():
            self._telling = asyncio.ensure_future(self._tell())
        else:
            self._again = True

    async def _tell(self) -> None:
        while True:
            self._again = False
            for event in _EVENTS:
                await self._bus.publish(event)
            await asyncio.gather(*(_notify(session) for session in self._sessions.values()))
            if not self._again:
                return

    async def close(self) -> None:
        self.listen.close()
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)


async def _notify(session: ServerSession) -> None:
    with suppress(TimeoutError):  # a client that does not read
        async with asyncio.timeout(SEND_S):
            for notification in _NOTIFICATIONS:
                await session.send_notification(notification())

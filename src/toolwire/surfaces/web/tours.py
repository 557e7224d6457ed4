"""The tours on the chat page: conversations with a scripted model and a vault of their own.

A tour uses the same tool loop, executor and approvals as any other conversation. It needs no settings, and it
cannot access the person's vault.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from toolwire.backends.scripted.tour import tour_model
from toolwire.core.ids import random_id
from toolwire.gateway.pipeline import Gateway
from toolwire.tools.executor import Toolbox
from toolwire.tools.tour import SampleVault, sample_vault

OPEN = 4
"""The most open sample vaults, unless running turns use more."""
_PREFIX = "tour_"


@dataclass(slots=True)
class _Open:
    vault: SampleVault
    closing: AsyncExitStack
    users: int = 0


class Tours:
    """The open sample vaults, each with the id of its conversation."""

    def __init__(self, gateway: Gateway) -> None:
        gateway.catalog.add_unlisted(tour_model(), "scripted")
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._lock = asyncio.Lock()

    def new_id(self) -> str:
        return random_id(_PREFIX)

    def is_tour(self, conversation: str) -> bool:
        return conversation.startswith(_PREFIX)

    @asynccontextmanager
    async def using(self, conversation: str) -> AsyncIterator[SampleVault]:
        """Yields the sample vault of a tour: a new vault if the tour's vault is no longer open."""
        async with self._lock:
            one = self._open.get(conversation) or await self._opened(conversation)
            self._open.move_to_end(conversation)
            one.users += 1
        try:
            yield one.vault
        finally:
            one.users -= 1

    async def _opened(self, conversation: str) -> _Open:
        idle = [id for id, one in self._open.items() if not one.users]
        for id in idle[: max(0, len(self._open) - OPEN + 1)]:
            await self._open.pop(id).closing.aclose()
        closing = AsyncExitStack()
        one = _Open(await closing.enter_async_context(sample_vault()), closing)
        self._open[conversation] = one
        return one

    def toolbox(self, vault: str) -> Toolbox | None:
        """Returns the tools of the sample vault at this path; None if it is not open."""
        return next((one.vault.toolbox for one in self._open.values() if str(one.vault.root) == vault), None)

    async def forget(self, conversation: str) -> None:
        """Deletes the sample vault of a tour whose turn has ended."""
        async with self._lock:
            one = self._open.pop(conversation, None)
            if one is not None:
                await one.closing.aclose()

    async def close(self) -> None:
        for conversation in tuple(self._open):
            await self.forget(conversation)

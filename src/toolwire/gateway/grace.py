"""The grace time of a burst: a run that has made its calls and stays silent is ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from toolwire.backends.base import Batch
from toolwire.core.policy import Policy


async def with_grace(source: AsyncGenerator[Batch, None], policy: Policy, grace: float) -> AsyncGenerator[Batch, None]:
    """Ends a burst of calls when no further one came for so long."""
    following: asyncio.Future[Batch] | None = None
    try:
        while True:
            if policy.between_calls:
                following = asyncio.ensure_future(anext(source))
                done, _ = await asyncio.wait({following}, timeout=grace)
                if not done:
                    policy.stop()
                    yield []
                    return
            try:
                batch = await anext(source) if following is None else following.result()
            except StopAsyncIteration:
                return
            following = None
            yield batch
    finally:
        if following is not None and not following.done():
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        await source.aclose()

"""A stream whose first block is there: until then a failure could still be an HTTP error."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator


class Opened:
    """The first block and those that follow. Closing it ends the run, also when nobody has read anything yet."""

    __slots__ = ("_first", "_rest")

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes, None]) -> None:
        self._first: bytes | None = first
        self._rest = rest

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Who has the first block gets the others from where they come from."""
        return self if self._first is not None else self._rest

    async def __anext__(self) -> bytes:
        first, self._first = self._first, None
        return await anext(self._rest) if first is None else first

    async def aclose(self) -> None:
        await self._rest.aclose()

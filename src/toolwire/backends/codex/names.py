"""Tool names that Codex does not take: some it refuses, some it drops without a word because they are its own. They travel under another name,
there and back. Pure.

Measured on 0.166: `exec_command` and `shell_command` as dynamic tools never reach the provider; `mcp__…` is refused; the rest must fit its pattern.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace

from toolwire.backends.base import Batch, LiveRun
from toolwire.events import CallBegin
from toolwire.turn import Call, Item, Result, Turn

OWN = frozenset({"exec_command", "shell_command"})
_TAKEN = re.compile(r"(?!mcp__)[a-zA-Z0-9_-]{1,64}\Z")
_STRANGE = re.compile(r"[^a-zA-Z0-9_-]")


def renamed(turn: Turn) -> tuple[Turn, Mapping[str, str]]:
    """The turn with names that Codex takes, and the client's names by these."""
    names = {tool.name for tool in turn.tools}
    there = {name: _other(name, names) for name in sorted(names) if name in OWN or not _TAKEN.match(name)}
    if not there:
        return turn, {}
    choice = turn.tool_choice
    allowed = None if choice.allowed is None else tuple(there.get(name, name) for name in choice.allowed)
    return (
        replace(
            turn,
            tools=tuple(replace(tool, name=there.get(tool.name, tool.name)) for tool in turn.tools),
            tool_choice=replace(choice, name=there.get(choice.name, choice.name) if choice.name else None, allowed=allowed),
            items=tuple(_item(item, there) for item in turn.items),
        ),
        {other: name for name, other in there.items()},
    )


def _other(name: str, names: set[str]) -> str:
    base = other = "client_" + _STRANGE.sub("_", name)[:48]
    number = 2
    while other in names:
        other, number = f"{base}_{number}", number + 1
    names.add(other)
    return other


def _item(item: Item, there: Mapping[str, str]) -> Item:
    return replace(item, name=there[item.name]) if isinstance(item, Call) and item.name in there else item


class RenamedRun:
    """A live run whose calls bear the client's own names again."""

    def __init__(self, live: LiveRun, back: Mapping[str, str]) -> None:
        self._live = live
        self._back = back

    @property
    def pending(self) -> tuple[str, ...]:
        return self._live.pending

    async def segment(self) -> AsyncGenerator[Batch, None]:
        segment = self._live.segment()
        try:
            async for batch in segment:
                yield [
                    replace(event, name=self._back[event.name]) if isinstance(event, CallBegin) and event.name in self._back else event
                    for event in batch
                ]
        finally:
            await segment.aclose()

    async def answer(self, results: Mapping[str, Result]) -> None:
        await self._live.answer(results)

    async def cancel(self) -> None:
        await self._live.cancel()

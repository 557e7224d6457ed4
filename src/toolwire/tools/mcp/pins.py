"""Pins: the definitions of tools that a person has agreed to.

The first list of a server is agreed to as it is. After that, a tool that is new, or whose definition has
changed, is withheld until a person agrees to it, with the difference before them. A renamed tool is new.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import mcp_types as types

from toolwire.store.store import Store

_ADD = "INSERT INTO mcp_pins (server, tool, pin, definition, agreed_at) VALUES (?, ?, ?, ?, ?) "
_FIRST = _ADD + "ON CONFLICT (server, tool) DO NOTHING"
_AGREE = _ADD + (
    "ON CONFLICT (server, tool) DO UPDATE SET pin = excluded.pin, definition = excluded.definition, "
    "agreed_at = excluded.agreed_at"
)


@dataclass(frozen=True, slots=True)
class Pinned:
    """A definition as it is pinned. `text`: the definition as readable JSON."""

    tool: str
    pin: str
    text: str


@dataclass(frozen=True, slots=True)
class Withheld:
    """A tool that is not offered until a person agrees to its definition. `before`: "" if it is new."""

    server: str
    tool: str
    pin: str
    why: Literal["new", "changed"]
    before: str
    after: str

    @property
    def diff(self) -> str:
        """The change, line by line. It contains text of the server: show it cleaned."""
        lines = (self.before.splitlines(), self.after.splitlines())
        return "\n".join(difflib.unified_diff(*lines, "agreed", "now", lineterm="", n=2))


def pinned(tool: types.Tool, instructions: str) -> Pinned:
    """Returns the pin of a definition: a hash of all that the server says of the tool and of itself."""
    definition: dict[str, Any] = tool.model_dump(by_alias=True, mode="json", exclude_none=True)
    if instructions:
        definition["instructions of the server"] = instructions
    written = json.dumps(definition, sort_keys=True, separators=(",", ":"))
    text = json.dumps(definition, sort_keys=True, indent=2, ensure_ascii=False)
    return Pinned(tool.name, f"sha256:{hashlib.sha256(written.encode()).hexdigest()}", text)


class Pins:
    """The pins in the store, by the `source` of a server."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    async def all(self) -> dict[str, dict[str, str]]:
        """Returns every pin, by server and tool."""
        query = "SELECT server, tool, pin FROM mcp_pins"
        rows = await self._store.run(lambda c: c.execute(query).fetchall(), "read")
        found: dict[str, dict[str, str]] = {}
        for server, tool, pin in rows:
            found.setdefault(server, {})[tool] = pin
        return found

    async def text(self, server: str, tool: str) -> str:
        """Returns the definition that was agreed to; "" if there is none."""
        query = "SELECT definition FROM mcp_pins WHERE server = ? AND tool = ?"
        row = await self._store.run(lambda c: c.execute(query, (server, tool)).fetchone(), "read")
        return str(row[0]) if row is not None else ""

    async def first(self, server: str, tools: Sequence[Pinned]) -> Mapping[str, str]:
        """Pins the first list of a server, and returns its pins. Another process may have been faster."""
        await self._put(_FIRST, server, tools)
        return (await self.all()).get(server, {})

    async def agree(self, server: str, tools: Sequence[Pinned]) -> None:
        await self._put(_AGREE, server, tools)

    async def _put(self, query: str, server: str, tools: Sequence[Pinned]) -> None:
        rows = [(server, one.tool, one.pin, one.text, self._clock()) for one in tools]
        await self._store.run(lambda c: c.executemany(query, rows), "write")

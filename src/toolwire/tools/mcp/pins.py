"""Pins: the definitions of tools that a person has agreed to.

The first list of tools that a server sends is pinned without asking. After that, a tool that is new, or whose
definition has changed, is withheld until a person has seen the difference and agreed to it. A renamed tool
counts as new. Withheld tools are in the store, so that the inbox shows the withheld tools of all processes.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import mcp_types as types

from toolwire.store.store import Store

if TYPE_CHECKING:
    from toolwire.store.engine import Connection

LARGEST_DEFINITION = 256 * 1024
MOST_COMPARED = 4000
"""Two definitions that have more lines together are not compared line by line."""
_ADD = "INSERT INTO mcp_pins (server, tool, pin, definition, agreed_at) VALUES (?, ?, ?, ?, ?) "
_FIRST = _ADD + "ON CONFLICT (server, tool) DO NOTHING"
_AGREE = _ADD + (
    "ON CONFLICT (server, tool) DO UPDATE SET pin = excluded.pin, definition = excluded.definition, "
    "agreed_at = excluded.agreed_at"
)


@dataclass(frozen=True, slots=True)
class Pinned:
    """The definition of a tool, with its hash (`pin`). `text`: the definition as readable JSON."""

    tool: str
    pin: str
    text: str


@dataclass(frozen=True, slots=True)
class Withheld:
    """A tool that is not offered until a person agrees to its definition.

    `diff`: the change, line by line. It contains text of the server: clean it before you show it.
    `after`: the definition, as readable JSON.
    `kept`: whether the person has seen this definition and decided to keep the tool withheld.
    """

    server: str
    tool: str
    pin: str
    why: Literal["new", "changed"]
    diff: str
    after: str
    kept: bool = False


def difference(before: str, after: str) -> str:
    """Returns how a definition has changed, line by line. May take a while: run it in a thread."""
    # `splitlines` would also drop U+2028 and the like, so that a change of these would not be seen.
    old, new = before.split("\n") if before else [], after.split("\n")
    if old and len(old) + len(new) > MOST_COMPARED:
        whole = [f"-{line}" for line in old] + [f"+{line}" for line in new]
        return "\n".join(("--- agreed", "+++ now", "@@ too long to compare: all of both @@", *whole))
    return "\n".join(difflib.unified_diff(old, new, "agreed", "now", lineterm="", n=2))


def is_too_large(tool: types.Tool, instructions: str) -> bool:
    """Whether a definition is larger than `LARGEST_DEFINITION`. Fast even for the largest message."""
    written = tool.model_dump_json(by_alias=True, exclude_none=True)
    return len(written) + len(instructions) > LARGEST_DEFINITION


def pin_of(tool: types.Tool, instructions: str) -> str:
    """Returns the pin of a definition: a hash of the tool's definition and the server's instructions."""
    written = json.dumps(_definition(tool, instructions), sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(written.encode()).hexdigest()}"


def pinned(tool: types.Tool, instructions: str) -> Pinned:
    """Returns a tool's definition in the form that is stored as a pin."""
    text = json.dumps(_definition(tool, instructions), sort_keys=True, indent=2, ensure_ascii=False)
    return Pinned(tool.name, pin_of(tool, instructions), text)


def _definition(tool: types.Tool, instructions: str) -> dict[str, Any]:
    definition: dict[str, Any] = tool.model_dump(by_alias=True, mode="json", exclude_none=True)
    return definition | ({"instructions of the server": instructions} if instructions else {})


class Pins:
    """The pins in the store. Each server is identified by its `source`, such as "mcp:files"."""

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
        """Pins the tools in the first list that a server sends, and returns the server's pins.

        If another process has just pinned some of these tools, its pins stay.
        """
        await self._put(_FIRST, server, tools)
        return (await self.all()).get(server, {})

    async def agree(self, server: str, tools: Sequence[Pinned]) -> None:
        await self._put(_AGREE, server, tools)

    # --- withheld tools ---

    async def withhold(self, source: str, withheld: Sequence[Withheld]) -> None:
        """Stores the withheld tools of a server. They replace the withheld tools that were stored before."""
        rows = [(source, one.tool, one.pin, one.why, one.diff, one.after) for one in withheld]
        await self._store.run(lambda c: _withhold(c, source, rows), "write")

    async def waiting(self) -> dict[str, list[Withheld]]:
        """Returns the withheld tools of all servers, by their source."""
        query = "SELECT server, tool, pin, why, diff, after, kept FROM mcp_withheld ORDER BY server, tool"
        rows = await self._store.run(lambda c: c.execute(query).fetchall(), "read")
        found: dict[str, list[Withheld]] = {}
        for source, tool, pin, why, diff, after, kept in rows:
            one = Withheld(name_of(source), tool, pin, why, diff, after, bool(kept))
            found.setdefault(source, []).append(one)
        return found

    async def keep(self, source: str, tool: str, pin: str) -> bool:
        """Keeps a tool withheld without asking again. Returns False if this definition is not withheld."""
        query = "UPDATE mcp_withheld SET kept = 1 WHERE server = ? AND tool = ? AND pin = ?"
        values = (source, tool, pin)
        return await self._store.run(lambda c: c.execute(query, values).rowcount == 1, "write")

    async def agree_to(self, source: str, tool: str, pin: str) -> bool:
        """Pins a withheld definition. Returns False if this definition is not withheld."""
        at = self._clock()
        return await self._store.run(lambda c: _agree_to(c, (source, tool, pin), at), "write")

    async def _put(self, query: str, server: str, tools: Sequence[Pinned]) -> None:
        rows = [(server, one.tool, one.pin, one.text, self._clock()) for one in tools]
        await self._store.run(lambda c: c.executemany(query, rows), "write")


def name_of(source: str) -> str:
    """Returns the name of the server in a source: "files" for "mcp:files" and "mcp:files@3f2a…"."""
    return source.removeprefix("mcp:").partition("@")[0]


def _withhold(connection: Connection, source: str, rows: Sequence[tuple[str, ...]]) -> None:
    columns = "server, tool, pin, why, diff, after"
    with connection.transaction():
        query = "SELECT tool, pin FROM mcp_withheld WHERE server = ? AND kept = 1"
        kept = {tuple(row) for row in connection.execute(query, (source,)).fetchall()}
        connection.execute("DELETE FROM mcp_withheld WHERE server = ?", (source,))
        add = f"INSERT INTO mcp_withheld ({columns}, kept) VALUES (?, ?, ?, ?, ?, ?, ?)"
        connection.executemany(add, [(*row, int((row[1], row[2]) in kept)) for row in rows])


def _agree_to(connection: Connection, which: tuple[str, str, str], at: float) -> bool:
    with connection.transaction():
        where = "WHERE server = ? AND tool = ? AND pin = ?"
        row = connection.execute(f"SELECT after FROM mcp_withheld {where}", which).fetchone()
        if row is None:
            return False
        connection.execute(_AGREE, (*which, row[0], at))
        connection.execute(f"DELETE FROM mcp_withheld {where}", which)
    return True

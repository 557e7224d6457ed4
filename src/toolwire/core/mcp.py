"""What a Responses request says about MCP servers whose tools the gateway calls.

The wire has no place for a server's name in a call of the history, so a call of such a tool has the name that
`call_name` makes of both. Frozen; standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

LONGEST_NAME = 64
"""The longest name of a tool that every model's API accepts."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


def call_name(server: str, tool: str) -> str:
    """Returns the name of a past call of a server's tool, as every model's API accepts it."""
    return f"{_UNSAFE.sub('_', server)}__{_UNSAFE.sub('_', tool)}"[:LONGEST_NAME]


@dataclass(frozen=True, slots=True)
class McpFilter:
    """Which tools of a server are meant: those with these names, and those that say they only read.

    None: the client did not restrict this.
    """

    names: tuple[str, ...] | None = None
    read_only: bool | None = None

    def fits(self, name: str, read_only: bool) -> bool:
        by_name = self.names is None or name in self.names
        return by_name and (self.read_only is None or self.read_only is read_only)


@dataclass(frozen=True, slots=True)
class McpServer:
    """A tool of the type `mcp`: a server that the client names.

    `url`: "" if the label names a server of the settings. `headers` are meant for the server at `url` alone.
    """

    label: str
    path: str
    """The path of the tool in the request, for error messages."""
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    allowed: McpFilter | None = None
    """The tools that are offered to the model; None: all."""
    always: McpFilter | None = None
    """The tools whose calls the client approves."""
    never: McpFilter | None = None
    """The tools whose calls need no approval of the client, unless `always` has them too."""

    def offers(self, name: str, read_only: bool) -> bool:
        return self.allowed is None or self.allowed.fits(name, read_only)

    def asks(self, name: str, read_only: bool) -> bool:
        """Whether the client wants to approve calls of this tool. It does, unless it says otherwise."""
        if self.always is not None and self.always.fits(name, read_only):
            return True
        return self.never is None or not self.never.fits(name, read_only)


@dataclass(frozen=True, slots=True)
class McpQuestion:
    """An approval request as the client sends it back."""

    id: str
    server: str
    name: str
    arguments: str
    path: str


@dataclass(frozen=True, slots=True)
class McpAnswer:
    """The client's answer to an approval request."""

    id: str
    approve: bool
    path: str


@dataclass(frozen=True, slots=True)
class McpListed:
    """A server's tools were listed in this conversation. Only stored: a turn's items never contain it."""

    server: str


@dataclass(frozen=True, slots=True)
class McpPart:
    """Everything that a request says about MCP servers."""

    servers: tuple[McpServer, ...] = ()
    listed: frozenset[str] = frozenset()
    """The labels of servers whose tools the conversation already lists."""
    questions: tuple[McpQuestion, ...] = ()
    answers: tuple[McpAnswer, ...] = ()
    """Approval requests and answers that no call has followed yet."""
    chosen: tuple[tuple[str, str | None], ...] = ()
    """The label and tool of each `tool_choice` of the type `mcp`; no tool: all of the server."""

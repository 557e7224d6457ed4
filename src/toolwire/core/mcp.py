"""What a Responses request says about MCP servers whose tools the gateway calls.

All classes are frozen. Imports the standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

LONGEST_NAME = 64
"""Every model's API accepts tool names of up to this many characters."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


def call_name(server: str, tool: str) -> str:
    """Returns one name for a past call, made of the server's and the tool's name.

    The model's history has no field for the server. The API of every model accepts this name.
    """
    return f"{_UNSAFE.sub('_', server)}__{_UNSAFE.sub('_', tool)}"[:LONGEST_NAME]


@dataclass(frozen=True, slots=True)
class McpFilter:
    """Selects tools of a server by their names, and by whether they declare themselves read-only.

    `fits` checks both fields. A field that is None fits every tool.
    """

    names: tuple[str, ...] | None = None
    read_only: bool | None = None

    def fits(self, name: str, read_only: bool) -> bool:
        by_name = self.names is None or name in self.names
        return by_name and (self.read_only is None or self.read_only is read_only)


@dataclass(frozen=True, slots=True)
class McpServer:
    """A tool of the type `mcp` in a request. It offers the tools of an MCP server to the model.

    `url`: "" if `label` is the name of a server in the settings. `headers`: sent only to the server at `url`.
    """

    label: str
    path: str
    """The position of this tool in the request, such as `tools[0]`, for error messages."""
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    allowed: McpFilter | None = None
    """The tools that are offered to the model; None: all."""
    always: McpFilter | None = None
    """The tools whose calls always need the client's approval."""
    never: McpFilter | None = None
    """The tools whose calls need no approval of the client, unless `always` selects them too."""

    def offers(self, name: str, read_only: bool) -> bool:
        return self.allowed is None or self.allowed.fits(name, read_only)

    def asks(self, name: str, read_only: bool) -> bool:
        """Whether calls of the tool need the client's approval.

        False only if `never` selects the tool and `always` does not.
        """
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
    """A stored item: it records that the conversation has listed the tools of an MCP server.

    `Turn.items` never contains such an item.
    """

    server: str


@dataclass(frozen=True, slots=True)
class McpPart:
    """Everything that a request says about MCP servers."""

    servers: tuple[McpServer, ...] = ()
    listed: frozenset[str] = frozenset()
    """The labels of servers whose tools the conversation already lists."""
    questions: tuple[McpQuestion, ...] = ()
    answers: tuple[McpAnswer, ...] = ()
    """`questions` and `answers`: approval requests whose calls have not run yet, and the client's answers."""
    chosen: tuple[tuple[str, str | None], ...] = ()
    """Each `tool_choice` of the type `mcp`: the label of a server and the name of its tool.

    None instead of a name means all tools of the server.
    """

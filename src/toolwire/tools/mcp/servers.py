"""All configured MCP servers: their tools, and which of these tools are offered.

A server is started when its tools are first needed. A server that fails or is slow never affects the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal

import mcp_types as types

from toolwire.core.display import hides, one_line, size
from toolwire.settings.types import ConfigError, McpServerSettings, McpSettings
from toolwire.store.store import Store
from toolwire.tools.mcp.connection import Connection, HttpClient, UpstreamFailed, address
from toolwire.tools.mcp.pins import (
    LARGEST_DEFINITION,
    Pinned,
    Pins,
    Withheld,
    difference,
    is_too_large,
    pin_of,
    pinned,
)
from toolwire.tools.mcp.policy import Policy
from toolwire.tools.mcp.schemas import SchemaCheck, SchemaRefused
from toolwire.tools.mcp.tool import McpTool
from toolwire.tools.mcp.upstream import State, Upstream

log = logging.getLogger("toolwire.mcp")
PATIENCE_S = 4.0
"""How long a list of tools waits for servers that are still starting."""
LONGEST_TOOL_NAME = 128
CHANGED = "the tool has changed since it was agreed to"


@dataclass(frozen=True, slots=True)
class ServerState:
    """The state of a server, for pages and commands.

    `unusable`: tools that cannot be offered, each with the reason. `warnings`: problems of the server's
    rules.
    """

    name: str
    address: str
    state: State
    error: str
    tools: tuple[str, ...] = ()
    withheld: tuple[Withheld, ...] = ()
    unusable: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(slots=True)
class Server:
    """One server: its connection, its rules, and its tools as they were last listed."""

    settings: McpServerSettings
    upstream: Upstream
    policy: Policy | None
    listed: list[types.Tool] | None = None
    """The list of tools from which the fields below were computed; None if there is no list."""
    pins: Mapping[str, str] = field(default_factory=dict)
    definitions: dict[str, Pinned] = field(default_factory=dict)
    tools: dict[str, McpTool] = field(default_factory=dict)
    withheld: list[Withheld] = field(default_factory=list)
    unusable_tools: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    refreshing: asyncio.Task[None] | None = None

    def warn(self, warnings: list[str]) -> None:
        """Stores the warnings about the rules, and logs the new ones."""
        for line in warnings:
            if line not in self.warnings:
                log.warning("[mcp.%s] %s", self.settings.name, line)
        self.warnings = warnings

    def policy_now(self, given: Policy) -> Policy:
        return self.policy or given

    def unusable(self, tool: McpTool) -> str:
        """Returns why a tool may not be called, as far as that is known without asking its server."""
        if self.listed is None:  # the server is not running: `confirm` finds out
            return ""
        now = self.tools.get(tool.definition.name)
        return "" if now is not None and now.pin == tool.pin else CHANGED

    async def confirm(self, tool: McpTool) -> Connection:
        """Checks that the tool has not changed, and returns the connection on which this was checked.

        The call may be sent only on this connection. Lists the server's tools again if they may have changed.
        Raises `UpstreamFailed` if the tool has changed.
        """
        connection, listed = await self.upstream.listing()
        if listed is self.listed:
            reason = self.unusable(tool)
        else:
            now = next((one for one in listed if one.name == tool.definition.name), None)
            said = connection.instructions
            is_same = now is not None and not is_too_large(now, said) and pin_of(now, said) == tool.pin
            reason = "" if is_same else CHANGED
        if reason:
            raise UpstreamFailed(f"{self.settings.name}: {reason}; the call did not run")
        return connection


class McpServers:
    """The configured servers. `on_change` is called when tools or states may have changed."""

    def __init__(
        self,
        settings: McpSettings,
        store: Store,
        *,
        http: HttpClient | None = None,
        pins: Pins | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`pins`: replaces the pins in the store."""
        self.on_change: list[Callable[[], None]] = []
        self._pins = pins or Pins(store)
        self._patience_s = patience_s
        self._servers = {one.name: self._server(one, http) for one in settings.servers}

    def _server(self, settings: McpServerSettings, http: HttpClient | None) -> Server:
        policy, problem = None, settings.problem
        try:
            policy = Policy.of(settings)
        except ConfigError as error:
            problem = problem or str(error)
        return Server(settings, Upstream(settings, changed=self._changed, http=http, problem=problem), policy)

    def _changed(self) -> None:
        for each in list(self.on_change):
            each()

    # --- looking ---

    def settings(self, name: str) -> McpServerSettings | None:
        server = self._servers.get(name)
        return server.settings if server is not None else None

    def usable(self) -> list[McpServerSettings]:
        """Returns the settings of the servers, in order, except settings with a mistake."""
        return [one.settings for one in self._servers.values() if not one.upstream.problem]

    def upstream(self, name: str) -> Upstream:
        return self._servers[name].upstream

    def find(self, public_name: str) -> McpTool | None:
        """Returns an offered tool by its public name."""
        tools = (tool for server in self._servers.values() for tool in server.tools.values())
        return next((tool for tool in tools if tool.name == public_name), None)

    def states(self) -> list[ServerState]:
        return [
            ServerState(
                name,
                address(one.settings),
                "failed" if one.upstream.problem else one.upstream.state,
                one.upstream.problem or one.upstream.error,
                tuple(one.tools),
                tuple(one.withheld),
                tuple(one.unusable_tools.items()),
                tuple(one.warnings),
            )
            for name, one in self._servers.items()
        ]

    def withheld(self) -> list[Withheld]:
        """Returns the tools that a person has not agreed to."""
        return [one for server in self._servers.values() for one in server.withheld]

    def set_page_rules(self, name: str, rules: Sequence[str]) -> None:
        """Replaces the allow rules that were saved on the pages. The new rules count from now on."""
        server = self._servers[name]
        settings = replace(server.settings, page_allow=tuple(rules))
        server.policy, server.settings = Policy.of(settings), settings
        if server.listed is not None:
            server.warn(server.policy.dead(server.listed))
        self._changed()

    # --- tools ---

    async def tools(self, names: Iterable[str] | None = None, *, wait: bool = False) -> list[McpTool]:
        """Returns the offered tools of the servers in `names` (None: all servers).

        Starts servers that are not running. Without `wait`, the tools of a server that takes long to start
        are left out; `on_change` is called when the server is ready.
        """
        chosen = [one for name, one in self._servers.items() if names is None or name in names]
        pins = await self._pins.all() if chosen else {}
        waiting = [task for one in chosen if (task := self._refresh(one, pins)) is not None]
        if waiting:
            await asyncio.wait(waiting, timeout=None if wait else self._patience_s)
        return [tool for one in chosen for tool in one.tools.values()]

    def _refresh(self, server: Server, pins: Mapping[str, Mapping[str, str]]) -> asyncio.Task[None] | None:
        """Returns the task that updates the tools of a server; None if they are up to date."""
        if server.upstream.problem:
            return None
        stored = pins.get(server.settings.source, {})
        is_current = server.listed is not None and server.upstream.listed is server.listed
        if is_current and (server.pins == stored or not stored):
            return None
        if server.refreshing is None or server.refreshing.done():
            server.refreshing = asyncio.ensure_future(self._refreshed(server))
        return server.refreshing

    async def _refreshed(self, server: Server) -> None:
        began = server.listed
        try:
            connection, listed = await server.upstream.listing()
            await self._take(server, listed, connection.instructions)
        except UpstreamFailed as error:
            server.upstream.error = f"{error} It said: {error.said}" if error.said else str(error)
            server.listed, server.tools, server.withheld = None, {}, []
        except Exception as error:
            log.exception("the tools of %s could not be processed", server.settings.name)
            server.upstream.error = f"{type(error).__name__}: {error}"
            server.listed, server.tools, server.withheld = None, {}, []
        if server.listed is not began:
            self._changed()

    async def _take(self, server: Server, listed: list[types.Tool], instructions: str) -> None:
        """Decides which of the listed tools are offered."""
        assert server.policy is not None
        source = server.settings.source
        unusable: dict[str, str] = {}
        usable: dict[str, tuple[types.Tool, Pinned, SchemaCheck]] = {}
        for tool in listed:
            try:
                usable[tool.name] = (tool, *await asyncio.to_thread(_checked, tool, instructions))
            except SchemaRefused as refused:
                unusable[one_line(tool.name, 80)] = str(refused)
        stored: Mapping[str, str] = (await self._pins.all()).get(source, {})
        definitions = {name: definition for name, (_, definition, _) in usable.items()}
        if not stored and definitions:
            stored = await self._pins.first(source, list(definitions.values()))
        tools: dict[str, McpTool] = {}
        withheld: list[Withheld] = []
        for name, (tool, definition, check) in usable.items():
            if not any(
                fnmatchcase(name, pattern) for pattern in server.settings.tools
            ) or server.policy.never(name):
                continue
            if stored.get(name) == definition.pin:
                known = server.tools.get(name)
                is_same = known is not None and known.pin == definition.pin
                tools[name] = (
                    known
                    if is_same and known
                    else McpTool(server, tool, definition.pin, server.policy, check)
                )
            else:
                before = await self._pins.text(source, name) if name in stored else ""
                why: Literal["changed", "new"] = "changed" if name in stored else "new"
                diff = await asyncio.to_thread(difference, before, definition.text)
                withheld.append(
                    Withheld(server.settings.name, name, definition.pin, why, diff, definition.text)
                )
        await self._pins.withhold(source, withheld)
        server.listed, server.pins, server.definitions = listed, stored, definitions
        server.tools, server.withheld, server.unusable_tools = tools, withheld, unusable
        server.warn(server.policy.dead(listed))

    async def agree(self, agreed: Sequence[Withheld]) -> None:
        """Pins the definitions that a person has agreed to, and offers their tools."""
        for one in agreed:
            server = self._servers[one.server]
            await self._pins.agree(server.settings.source, [Pinned(one.tool, one.pin, one.after)])
        await self.tools({one.server for one in agreed})
        self._changed()

    async def close(self) -> None:
        """Ends every server."""
        tasks = [one.refreshing for one in self._servers.values() if one.refreshing is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(
            *(one.upstream.close() for one in self._servers.values()), *tasks, return_exceptions=True
        )


def _checked(tool: types.Tool, instructions: str) -> tuple[Pinned, SchemaCheck]:
    """Returns a tool's definition and the check of its arguments. May take long: run it in a thread.

    Raises `SchemaRefused` if the tool cannot be offered.
    """
    name = tool.name
    if not 0 < len(name) <= LONGEST_TOOL_NAME or "/" in name or not name.isprintable() or hides(name):
        raise SchemaRefused("its name is not one that MCP allows")
    definition = None if is_too_large(tool, instructions) else pinned(tool, instructions)
    if definition is None or len(definition.text) > LARGEST_DEFINITION:
        raise SchemaRefused(f"its definition is larger than {size(LARGEST_DEFINITION)}")
    return definition, SchemaCheck(tool.input_schema)

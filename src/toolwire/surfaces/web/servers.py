"""MCP servers on the pages: their state, saved rules, and tool definitions that wait for a decision.

The pages cannot add a server, because the command that starts a server may come only from the owner's
settings. Only a session that may approve calls may agree to a definition.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from toolwire.core.errors import ToolwireError
from toolwire.settings import page_file
from toolwire.settings.extras import add_extra
from toolwire.settings.mcp import with_page_rules
from toolwire.settings.types import ConfigError, McpServerSettings
from toolwire.surfaces.web.code import NO_AUTHORITY
from toolwire.surfaces.web.context import PageApi, Row, Web, body, field, invalid
from toolwire.surfaces.web.page_settings import locked, page_change, restart_needed
from toolwire.surfaces.web.sessions import Authority
from toolwire.tools.approvals import AGREED, KEPT
from toolwire.tools.consent import NEEDS_CODE
from toolwire.tools.contract import SERVER, TOOL_NAME, Approval, Arguments, Asking, ToolFailed
from toolwire.tools.mcp.policy import Policy, exact_rule, read_arguments

if TYPE_CHECKING:
    from toolwire.tools.mcp.pins import Pins
    from toolwire.tools.mcp.servers import ServerState

MOST_RULES = 500
CHECK_S = 60.0
NOT_WITHHELD = "This definition no longer waits for a decision. It may have changed again."


class ServersApi(PageApi):
    """The API for the MCP servers on the settings page, and for definitions in the inbox."""

    def routes(self) -> list[Row]:
        return [
            ("GET", "/servers", self.all),
            ("POST", "/servers/{name}/check", self.check),
            ("POST", "/servers/{name}/rules/remove", self.remove_rule),
            ("GET", "/definitions", self.definitions),
            ("POST", "/definitions", self.decide),
        ]

    async def start(self) -> None:
        if (servers := self._web.tools.servers) is not None:
            servers.on_change.append(self._changed)

    def _changed(self) -> None:
        self._web.hub.publish("servers", {})

    # --- servers

    async def all(self, request: Request) -> dict[str, Any]:
        settings, servers = self._web.settings, self._web.tools.servers
        waiting = await waiting_definitions(self._web)
        states = {one.name: one for one in servers.states()} if servers is not None else {}
        return {
            "servers": [
                self._row(one, states.get(one.name), waiting.get(one.source, ()))
                for one in settings.mcp.servers
            ],
            "lacks": "" if servers is not None or not settings.mcp.servers else add_extra("mcp"),
            "locked": locked(settings),
            "restart": restart_needed(settings),
        }

    def _row(
        self, server: McpServerSettings, state: ServerState | None, waiting: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        return {
            "name": server.name,
            "address": state.address if state is not None else server.url,
            "where": server.where,
            "state": state.state if state is not None else "failed" if server.problem else "idle",
            "error": state.error if state is not None else server.problem,
            "tools": list(state.tools) if state is not None else [],
            "withheld": len(waiting),
            "unusable": dict(state.unusable) if state is not None else {},
            "warnings": list(state.warnings) if state is not None else [],
            "rules": {name: list(getattr(server, name)) for name in ("deny", "ask", "allow")},
            "saved": list(server.page_allow),
            "default": server.default,
            "share": server.share,
        }

    async def check(self, request: Request) -> dict[str, Any]:
        """Starts a server, if it is not running, and lists its tools."""
        name, servers = request.path_params["name"], self._web.tools.servers
        if servers is None or servers.settings(name) is None:
            raise ToolwireError("not_found", f"There is no MCP server {name[:80]}.")
        try:
            async with asyncio.timeout(CHECK_S):
                await servers.tools({name}, wait=True)
        except TimeoutError:
            raise ToolwireError("timeout", f"{name} did not answer within {CHECK_S:g} s.") from None
        return await self.all(request)

    async def remove_rule(self, request: Request) -> dict[str, Any]:
        rule = field(await body(request), "rule", str, required=True)
        await change_rules(self._web, request.path_params["name"], remove=rule)
        return await self.all(request)

    # --- definitions

    async def definitions(self, request: Request) -> dict[str, Any]:
        waiting = await waiting_definitions(self._web)
        return {"definitions": [one for found in waiting.values() for one in found]}

    async def decide(self, request: Request) -> dict[str, Any]:
        given = await body(request)
        source, tool, pin = (field(given, name, str, required=True) for name in ("source", "tool", "pin"))
        agreed = field(given, "agreed", bool, required=True)
        authority: Authority = request.state.authority
        if agreed and not authority.decides:
            raise ToolwireError("permission", NO_AUTHORITY, code=NEEDS_CODE)
        pins = self._pins
        if pins is None or not await (pins.agree_to if agreed else pins.keep)(source, tool, pin):
            raise ToolwireError("conflict", NOT_WITHHELD)
        asking = Asking("", "", "web", source=source, pin=pin)
        await self._web.approvals.noted(asking, AGREED if agreed else KEPT, tool)
        await self._renew(source)
        self._web.hub.publish("approvals", {})
        self._changed()
        return await self.definitions(request)

    async def _renew(self, source: str) -> None:
        """Reads a running server's list of tools again.

        After a person has agreed to the definition of a tool, this makes the tool available.
        """
        servers = self._web.tools.servers
        for one in servers.states() if servers is not None else ():
            settings = servers.settings(one.name) if servers is not None else None
            if (
                servers is not None
                and settings is not None
                and settings.source == source
                and one.state == "ready"
            ):
                await servers.tools({one.name})

    @cached_property
    def _pins(self) -> Pins | None:
        return pins_of(self._web)


def pins_of(web: Web) -> Pins | None:
    """Returns the pins in the store; None if the optional packages `mcp` are not installed."""
    if find_spec("mcp_types") is None:
        return None
    from toolwire.tools.mcp.pins import Pins

    return Pins(web.store)


async def waiting_definitions(web: Web) -> dict[str, list[dict[str, Any]]]:
    """Returns the withheld tool definitions in the form that the pages show.

    The keys are the identities of the MCP servers (`source`, such as `mcp:files`).
    """
    pins = pins_of(web)
    found = await pins.waiting() if pins is not None else {}
    return {
        source: [
            {
                "id": f"{source} {one.tool} {one.pin}",
                "source": source,
                "server": one.server,
                "tool": one.tool,
                "pin": one.pin,
                "why": one.why,
                "diff": one.diff,
                "kept": one.kept,
            }
            for one in withheld
        ]
        for source, withheld in found.items()
    }


# --- questions about calls of MCP servers


def called(approval: Approval) -> tuple[str, str] | None:
    """Returns the names of the server and the tool of a question; None if it is not an MCP tool.

    Returns None if the question shows another server than the one in its `source`, because another program
    may have stored such a question.
    """
    facts = dict(approval.shown.facts)
    server = approval.source.removeprefix("mcp:").partition("@")[0]
    if not approval.source.startswith("mcp:") or facts.get(SERVER) != server or TOOL_NAME not in facts:
        return None
    return server, facts[TOOL_NAME]


def configured(web: Web, approval: Approval) -> McpServerSettings | None:
    """Returns the settings of the server that a question is about; None if there are none."""
    return next((one for one in web.settings.mcp.servers if one.source == approval.source), None)


def edited(web: Web, approval: Approval, written: str) -> Arguments:
    """Returns the edited arguments of a call as an object.

    Raises an error if they are not a JSON object, or if the call cannot run with them.
    """
    try:
        arguments = read_arguments(written)
    except ConfigError as error:
        raise invalid(f"{str(error)[:1].upper()}{str(error)[1:]}.", "arguments_json") from None
    names, server, servers = called(approval), configured(web, approval), web.tools.servers
    tool = servers.find(approval.tool) if servers is not None else None
    if tool is not None and (tool.source, tool.pin) == (approval.source, approval.pin):
        try:
            tool.check(arguments)
        except ToolFailed as error:
            raise invalid(f"{error}", "arguments_json") from None
    if names is not None and server is not None:
        ruling = Policy.of(server).decide(names[1], arguments)
        if ruling.action == "deny":
            raise invalid(f"The rule {ruling.rule} refuses a call with these arguments.", "arguments_json")
    return arguments


def rule_for(web: Web, approval: Approval, arguments: Arguments) -> str:
    """Returns the rule that would allow exactly this call from now on; "" if no rule could."""
    names, server = called(approval), configured(web, approval)
    if names is None or server is None or approval.stage != "run" or locked(web.settings):
        return ""
    rule = exact_rule(names[1], arguments)
    try:
        policy = Policy.of(replace(server, page_allow=(*server.page_allow, rule)))
    except ConfigError:
        return ""
    return rule if policy.decide(names[1], arguments).action == "allow" else ""


@asynccontextmanager
async def saved_rule(web: Web, approval: Approval, rule: str) -> AsyncIterator[None]:
    """Saves a rule before the decision. Removes the rule if the decision fails."""
    names = called(approval)
    if not rule or names is None:
        yield
        return
    is_new = all(rule not in one.page_allow for one in web.settings.mcp.servers if one.name == names[0])
    await change_rules(web, names[0], add=rule)
    try:
        yield
    except ToolwireError:
        if is_new:
            await change_rules(web, names[0], remove=rule)
        raise


async def change_rules(web: Web, name: str, *, add: str = "", remove: str = "") -> None:
    """Adds a rule to the file that the settings page writes, or removes one. The change applies at once."""
    if not any(one.name == name for one in web.settings.mcp.servers):
        raise ToolwireError("not_found", f"There is no MCP server {name[:80]}.")
    async with page_change(web) as (path, kept):
        rules = [one for one in kept.rules.get(name, ()) if one not in (add, remove)]
        if remove and len(rules) == len(kept.rules.get(name, ())):
            raise ToolwireError("not_found", "There is no such rule, or it was already removed.")
        kept.rules[name] = [*rules, *([add] if add else [])]
        if len(kept.rules[name]) > MOST_RULES:
            raise invalid(f"The page keeps at most {MOST_RULES} rules of a server.", "rule")
        await asyncio.to_thread(page_file.write, path, kept)
        web.settings = replace(web.settings, mcp=with_page_rules(web.settings.mcp, kept.rules))
        if web.tools.servers is not None:
            web.tools.servers.set_page_rules(name, kept.rules[name])
    web.hub.publish("servers", {})

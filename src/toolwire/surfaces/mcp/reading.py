"""Prompts and resources of the MCP servers that Toolwire wraps.

The rules of a server apply to its prompts and resources, under the names of MCP's methods:
`prompts/get name=review *` and `resources/read uri=file:///srv/docs/**`. Prompts and resources that the rules
deny are not listed. Reading any other prompt or resource needs an approval, unless a rule allows it. The name
of a prompt begins with the server's name, like the name of a tool. A resource keeps its URI: it is read from
the first server that lists the resource or has a template for it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import mcp_types as types
from mcp.server import ServerRequestContext
from mcp.shared.exceptions import MCPError
from pydantic import TypeAdapter

from toolwire.core.display import counted, one_line, size
from toolwire.settings.types import McpServerSettings
from toolwire.tools.contract import Arguments, Effect, Preview, Ran, ToolFailed
from toolwire.tools.mcp.policy import Policy, Ruling
from toolwire.tools.mcp.servers import PATIENCE_S, McpServers
from toolwire.tools.mcp.upstream import MOST_PAGES, UpstreamFailed

log = logging.getLogger("toolwire.mcp")

GET_PROMPT, READ_RESOURCE = "prompts/get", "resources/read"
MOST_LISTED = 1000
"""How many prompts of one server are listed at most. The limit is the same for resources and templates."""
MOST_LISTED_BYTES = 4 * 1024 * 1024
LONGEST_URI = 4096
"""A resource or template with a longer URI is not listed."""
_EXPRESSION = re.compile(r"\{[^{}]*\}")

Context = ServerRequestContext[Any, Any]
Page = types.PaginatedRequestParams | None
Result = TypeVar("Result", bound=types.Result)
Paged = TypeVar("Paged", bound=types.PaginatedResult)
Entry = TypeVar("Entry")


class Reading:
    """A tool that reads a prompt or a resource, so that the reading is decided and logged like a call."""

    effect: Effect = "call"
    pin = ""

    def __init__(
        self,
        server: McpServerSettings,
        method: str,
        arguments: Mapping[str, Any],
        fixed: str,
        send: Callable[[Arguments], Awaitable[Any]],
    ) -> None:
        """`arguments`: the request's arguments. `fixed`: the argument that an edit may not change."""
        self.name = f"{server.name}__{method}"
        self.source = server.source
        self.method = method
        what = "prompt" if method == GET_PROMPT else "resource"
        self.title = f"Read a {what} of {server.name}"
        self.purpose = f"The client wants to read a {what} of the MCP server {server.name}."
        self.description = self.purpose
        self.parameters: Mapping[str, Any] = {"type": "object"}
        self._facts = (("Server", server.name),)
        self.arguments = arguments
        self._fixed = fixed
        self._send = send
        self._policy = Policy.of(server)
        self._share = server.share

    def ruling(self, arguments: Arguments) -> Ruling:
        return self._policy.decide(self.method, arguments)

    def check(self, arguments: Arguments) -> None:
        if arguments.get(self._fixed) != self.arguments[self._fixed]:
            raise ToolFailed(f"not run: the {self._fixed} cannot be changed here")
        given = arguments.get("arguments", {})
        if not isinstance(given, Mapping) or not all(isinstance(one, str) for one in given.values()):
            raise ToolFailed("not run: the arguments of a prompt must be texts")
        if arguments.keys() - self.arguments.keys():
            raise ToolFailed("not run: no arguments can be added to this request")

    async def preview(self, arguments: Arguments) -> Preview:
        return Preview(action="Read", facts=self._facts)

    async def run(self, arguments: Arguments, picked: Sequence[str] | None, shown: Preview) -> Ran:
        try:
            raw = await self._send(arguments)
        except UpstreamFailed as failed:
            its_own = failed.error is not None and self._share == "ask"  # its error may quote the contents
            message = "the server answered with an error, which is not shared" if its_own else str(failed)
            raise ToolFailed(message, str(failed)) from None
        value = _as_json(raw)
        if self._share == "run":
            return Ran(value, raw=raw)
        text = json.dumps(value, ensure_ascii=False, indent=2)
        summary = f"The result has {counted(len(text), 'character')}."
        found = Preview(summary=summary, action="Share the result", facts=self._facts, content=text)
        return Ran({}, found=found, raw=raw)

    def share(self, ran: Ran, picked: Sequence[str]) -> Any:
        return _as_json(ran.raw)


def _as_json(result: types.Result) -> Any:
    return result.model_dump(by_alias=True, mode="json", exclude_none=True)


class Prompts:
    """The prompts of all servers."""

    def __init__(self, servers: McpServers) -> None:
        self._servers = servers

    async def listed(self, context: Context, params: Page) -> types.ListPromptsResult:
        found = await _of_every(self._servers, "prompts", self._of)
        return types.ListPromptsResult(prompts=found)

    async def _of(self, server: McpServerSettings) -> list[types.Prompt]:
        method, answer = types.ListPromptsRequest, types.ListPromptsResult
        policy, found = Policy.of(server), []
        for one in await _pages(self._servers, server, method, answer, lambda page: page.prompts):
            arguments = {"name": one.name, "arguments": {}}
            if policy.decide(GET_PROMPT, arguments).action != "deny":
                found.append(one.model_copy(update={"name": f"{server.name}__{one.name}"}))
        return found

    async def found(self, name: str, arguments: Mapping[str, str] | None) -> Reading:
        """Returns the tool that reads a prompt."""
        of, _, prompt = name.partition("__")
        server = next((one for one in self._servers.usable() if one.name == of), None)
        if server is None or not prompt:
            raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {one_line(name, 80)}")

        async def send(arguments: Arguments) -> types.GetPromptResult:
            params = types.GetPromptRequestParams(name=prompt, arguments=arguments.get("arguments", {}))
            request = types.GetPromptRequest(params=params)
            return await _sent(self._servers, server, request, types.GetPromptResult)

        return Reading(server, GET_PROMPT, {"name": prompt, "arguments": arguments or {}}, "name", send)


class Resources:
    """The resources of all servers, and their templates."""

    def __init__(self, servers: McpServers) -> None:
        self._servers = servers
        self._uris: dict[str, set[str]] = {}
        """For each server: the URIs in its last list."""
        self._templates: dict[str, set[str]] = {}

    async def listed(self, context: Context, params: Page) -> types.ListResourcesResult:
        found = await _of_every(self._servers, "resources", self._of)
        kept = [one for server, one in found if self._lists(self._uris, one.uri) == server]
        return types.ListResourcesResult(resources=kept)

    async def templates(self, context: Context, params: Page) -> types.ListResourceTemplatesResult:
        found = await _of_every(self._servers, "resources", self._templates_of)
        kept = [one for server, one in found if self._lists(self._templates, one.uri_template) == server]
        return types.ListResourceTemplatesResult(resource_templates=kept)

    async def _of(self, server: McpServerSettings) -> list[tuple[str, types.Resource]]:
        method, answer = types.ListResourcesRequest, types.ListResourcesResult
        policy = Policy.of(server)
        every = await _pages(self._servers, server, method, answer, lambda page: page.resources)
        short = [one for one in every if len(one.uri) <= LONGEST_URI]
        found = [one for one in short if policy.decide(READ_RESOURCE, {"uri": one.uri}).action != "deny"]
        self._uris[server.name] = {one.uri for one in found}
        return [(server.name, one) for one in found]

    async def _templates_of(self, server: McpServerSettings) -> list[tuple[str, types.ResourceTemplate]]:
        method, answer = types.ListResourceTemplatesRequest, types.ListResourceTemplatesResult
        every = await _pages(self._servers, server, method, answer, lambda page: page.resource_templates)
        found = [one for one in every if len(one.uri_template) <= LONGEST_URI]
        self._templates[server.name] = {one.uri_template for one in found}
        return [(server.name, one) for one in found]

    async def found(self, uri: str) -> Reading:
        """Returns the tool that reads a resource."""
        server = self._server_of(uri)
        if server is None:  # the client may know a URI that no list had so far
            await _of_every(self._servers, "resources", self._of)
            await _of_every(self._servers, "resources", self._templates_of)
            server = self._server_of(uri)
        if server is None:
            raise MCPError(types.INVALID_PARAMS, f"No server lists this resource: {one_line(uri, 200)}")

        async def send(arguments: Arguments) -> types.ReadResourceResult:
            request = types.ReadResourceRequest(params=types.ReadResourceRequestParams(uri=uri))
            return await _sent(self._servers, server, request, types.ReadResourceResult)

        return Reading(server, READ_RESOURCE, {"uri": uri}, "uri", send)

    def _lists(self, known: Mapping[str, set[str]], text: str) -> str | None:
        """Returns the first server that has listed this URI or template."""
        names = (one.name for one in self._servers.usable())
        return next((name for name in names if text in known.get(name, ())), None)

    def _server_of(self, uri: str) -> McpServerSettings | None:
        """Returns the current settings of the server that reads this resource; None if there is none."""
        name = self._lists(self._uris, uri)
        for server in self._servers.usable():
            templates = self._templates.get(server.name, ()) if name is None else ()
            if server.name == name or any(matches(one, uri) for one in templates):
                return server
        return None


def matches(template: str, uri: str) -> bool:
    """Whether a URI can come from a template, in which each expression such as `{name}` means any text.

    The time is linear in the length of the URI.
    """
    first, *rest = _EXPRESSION.split(template)
    if not rest:
        return uri == first
    if not uri.startswith(first) or len(uri) < len(first) + len(rest[-1]) or not uri.endswith(rest[-1]):
        return False
    place, end = len(first), len(uri) - len(rest[-1])
    for literal in rest[:-1]:
        found = uri.find(literal, place, end)
        if found < 0:
            return False
        place = found + len(literal)
    return True


async def _of_every(
    servers: McpServers, capability: str, read: Callable[[McpServerSettings], Awaitable[list[Entry]]]
) -> list[Entry]:
    """Returns the entries that `read` returns for each server with this capability.

    Failing and slow servers are left out.
    """

    async def one(server: McpServerSettings) -> list[Entry]:
        upstream = servers.upstream(server.name)
        await upstream.connected()
        return await read(server) if getattr(upstream.capabilities, capability, None) is not None else []

    configured = servers.usable()
    tasks = [asyncio.ensure_future(one(server)) for server in configured]
    try:
        if tasks:
            await asyncio.wait(tasks, timeout=PATIENCE_S)
    finally:
        for task in tasks:
            task.cancel()
    listed = await asyncio.gather(*tasks, return_exceptions=True)
    found: list[Entry] = []
    for server, entries in zip(configured, listed, strict=True):
        if isinstance(entries, BaseException):
            log.warning("the %s of %s are left out: %s", capability, server.name, entries or "it is slow")
        else:
            found += entries
    return found


async def _pages(
    servers: McpServers,
    server: McpServerSettings,
    request: Callable[..., types.Request[Any, Any]],
    answer: type[Paged],
    entries: Callable[[Paged], Sequence[Entry]],
) -> list[Entry]:
    """Returns the entries of a server's list, up to a limit of their number and of their size."""
    found: list[Entry] = []
    cursor: str | None = None
    length = 0
    for _ in range(MOST_PAGES):
        params = types.PaginatedRequestParams(cursor=cursor)
        page = await servers.upstream(server.name).request(request(params=params), answer)
        length += len(page.model_dump_json())
        if length > MOST_LISTED_BYTES:
            log.warning("a list of %s is cut: it is larger than %s", server.name, size(MOST_LISTED_BYTES))
            break
        found += entries(page)
        cursor = page.next_cursor
        if cursor is None or len(found) >= MOST_LISTED:
            break
    return found[:MOST_LISTED]


async def _sent(
    servers: McpServers, server: McpServerSettings, request: types.Request[Any, Any], answer: type[Result]
) -> Result:
    """Sends a request that reads a prompt or a resource.

    Raises `UpstreamFailed` if the server asks for more input.
    """
    either: Any = answer | types.InputRequiredResult
    adapter: TypeAdapter[Any] = TypeAdapter(either)
    found = await servers.upstream(server.name).request(request, adapter)
    if isinstance(found, types.InputRequiredResult) or found.result_type != "complete":
        raise UpstreamFailed(f"{server.name} asks for more input, which Toolwire does not pass on")
    assert isinstance(found, answer)
    return found

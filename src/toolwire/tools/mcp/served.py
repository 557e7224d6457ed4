"""The MCP servers that clients of the Responses API may use.

Implements `ServedTools` of `gateway/served.py`. A client may use two kinds of servers:

- a server in the settings with `api = true`, which the client names by its label;
- a server that `[mcp] urls` allows, which the client names by a `server_url`.

Every call takes the same path as any other tool call: the rules, the questions and the audit log of the
executor. The client's approval answers a question only if the client's key may approve.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import mcp_types as types

from toolwire.core.errors import ToolwireError
from toolwire.core.events import McpResult
from toolwire.core.mcp import McpServer
from toolwire.gateway.images import is_public, problem
from toolwire.gateway.records import Caller
from toolwire.gateway.served import Action, Purpose, ServedCall, ServedTool, refused_result
from toolwire.settings.types import McpServerSettings, McpSettings
from toolwire.store.store import Store
from toolwire.tools.approvals import Approvals
from toolwire.tools.contract import Approval, Asking, Decision, Outcome, ToolCall
from toolwire.tools.executor import Executor, Toolbox
from toolwire.tools.mcp.pins import Pinned, Pins, Withheld
from toolwire.tools.mcp.public import Allowed, check_patterns, may_name, public_client
from toolwire.tools.mcp.servers import McpServers
from toolwire.tools.mcp.tool import McpTool

log = logging.getLogger("toolwire.mcp")
SURFACE = "api"
"""The surface that is stored with questions about calls for API clients."""
IDLE_S = 300.0
"""How long the connection to a server that a client named is kept after its last use."""
MOST_NAMED = 32
"""The maximum number of open connections to servers that clients named."""
MOST_OF_KEY = MOST_NAMED // 2
"""The maximum number of open connections to servers that clients with the same API key named."""
LARGEST_OUTPUT = 1_000_000
"""The most characters of a call's output."""


class ServedServers:
    """The servers that API clients may use.

    `allowed` and `plain` decide which addresses and URLs are public; tests replace them.
    """

    def __init__(
        self,
        servers: McpServers | None,
        settings: McpSettings,
        approvals: Approvals,
        store: Store,
        *,
        allowed: Allowed = is_public,
        plain: Any = problem,
    ) -> None:
        check_patterns(settings.urls)
        self._servers, self._settings, self._approvals = servers, settings, approvals
        self._named = NamedServers(store, allowed)
        self._plain = plain

    async def close(self) -> None:
        """Ends the connections to servers that clients named."""
        await self._named.close()

    # --- tools ---

    async def offered(self, server: McpServer, caller: Caller) -> Sequence[ServedTool] | None:
        known = self._servers.settings(server.label) if self._servers is not None else None
        if self._servers is not None and known is not None and known.api and server.url in ("", known.url):
            return await self._tools(self._servers, known.name, server.label)
        if server.url and may_name(server.url, self._settings.urls, self._plain):
            named = self._named.get(server, caller.key_id)
            with self._named.used(named):
                return await self._tools(named.servers, server.label, server.label, named)
        return None

    async def _tools(
        self, servers: McpServers, name: str, label: str, named: Named | None = None
    ) -> list[ServedTool]:
        tools = await servers.tools([name], wait=True)
        state = next(one for one in servers.states() if one.name == name)
        if state.state == "failed" or (state.error and not tools):
            log.warning("the MCP server %s cannot be used for an API client: %s", label, state.error)
            why = "It is not available; the log of Toolwire says why." if named is None else state.error
            message = f"Error retrieving tool list from MCP server: '{label}'. {why}"
            raise ToolwireError("external_connector", message, param="tools")
        return [_served(tool, label, named) for tool in tools]

    def action(self, tool: ServedTool, arguments: Mapping[str, Any]) -> Action:
        return _handle(tool).tool.ruling(arguments).action

    # --- calls ---

    async def run(self, calls: Sequence[ServedCall], purpose: Purpose) -> Sequence[McpResult]:
        caller = purpose.caller
        handles = {call.tool.name: _handle(call.tool) for call in calls}
        toolbox = Toolbox(handle.tool for handle in handles.values())
        surface = ClientsYes(self._approvals, caller.key_name) if all(it.granted for it in calls) else None
        asking = Asking(f"{SURFACE} {caller.key_id}", f"{purpose.model}, for {client_of(caller)}", SURFACE)
        asked = [ToolCall(call.id, call.tool.name, call.arguments) for call in calls]
        with ExitStack() as stack:
            try:
                for handle in handles.values():
                    stack.enter_context(self._named.used(handle.named) if handle.named else nullcontext())
            except ToolwireError as error:
                return [refused_result(f"Not run: {error}") for _ in calls]
            outcomes = await Executor(toolbox, self._approvals, surface).execute(asked, asking)
        return [result_of(outcome) for outcome in outcomes]


def client_of(caller: Caller) -> str:
    """Returns the client's name for the person. It is unique, because a grant is for one client only."""
    if not caller.key_id:
        return "API clients without a key"
    id = f"{caller.key_name} ({caller.key_id})" if caller.key_name else caller.key_id
    return f"the API key {id}"


class Handle(NamedTuple):
    """The tool behind a `ServedTool`. `named`: the tool's server, if a client named the server."""

    tool: McpTool
    named: Named | None


def _handle(tool: ServedTool) -> Handle:
    assert isinstance(tool.handle, Handle)
    return tool.handle


def _served(tool: McpTool, label: str, named: Named | None) -> ServedTool:
    """Returns a tool as the gateway offers it.

    If a client named the server, the pin (the hash of the definition) is valid only for the URL of this
    server.
    """
    hints, definition = tool.definition.annotations, tool.definition
    pin = hashlib.sha256(f"{named.url} {tool.pin}".encode()).hexdigest() if named else tool.pin
    return ServedTool(
        tool.name,
        label,
        definition.name,
        tool.description,
        tool.parameters,
        hints is not None and hints.read_only_hint is True,
        pin,
        Handle(tool, named),
    )


class ClientsYes:
    """A surface for a client whose key may approve: approves the calls that the client approved.

    The question whether to share a result waits in the inbox.
    """

    def __init__(self, approvals: Approvals, key_name: str) -> None:
        self._approvals, self._by = approvals, f"API key {key_name}"

    async def ask(self, approvals: Sequence[Approval]) -> bool:
        for one in approvals:
            if one.stage == "run":
                await self._approvals.decide_unless_decided(one, Decision(True), by=self._by)
        return True


# --- results ---


def result_of(outcome: Outcome) -> McpResult:
    """Returns the outcome of a call in the format of the Responses API."""
    raw = outcome.raw
    if outcome.status != "done":
        message = str(outcome.result.get("error") or "The call failed.")
        if reason := outcome.result.get("reason"):
            message = f"{message}. The reason: {reason}"
        if isinstance(raw, types.ErrorData):
            error = {"type": "mcp_protocol_error", "code": raw.code, "message": message}
            return McpResult(None, error)
        return refused_result(message)
    assert isinstance(raw, types.CallToolResult)
    blocks = [block.model_dump(by_alias=True, mode="json", exclude_none=True) for block in raw.content]
    if note := outcome.result.get("note"):
        blocks.append({"type": "text", "text": str(note)})
    if not blocks and raw.structured_content is not None:
        blocks = [{"type": "text", "text": json.dumps(raw.structured_content, ensure_ascii=False)}]
    if raw.is_error:
        return McpResult(None, {"type": "mcp_tool_execution_error", "content": _bounded(blocks)})
    if len(blocks) == 1 and blocks[0]["type"] == "text":
        return McpResult(_cut(blocks[0]["text"]))
    return McpResult(json.dumps(_bounded(blocks), ensure_ascii=False) if blocks else "")


def _bounded(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the first blocks that fit into `LARGEST_OUTPUT`, and a note if blocks are left out."""
    out: list[dict[str, Any]] = []
    size = 0
    for block in blocks:
        size += len(json.dumps(block))
        if size > LARGEST_OUTPUT:
            left = (
                f"[cut: the result has {len(blocks)} parts and is larger than {LARGEST_OUTPUT:,} characters]"
            )
            return [*out, {"type": "text", "text": left}]
        out.append(block)
    return out


def _cut(text: str) -> str:
    if len(text) <= LARGEST_OUTPUT:
        return text
    return f"{text[:LARGEST_OUTPUT]}\n[cut: the result has {len(text):,} characters]"


# --- servers that clients name ---


class Unpinned(Pins):
    """Replaces `Pins` for servers that clients named, and stores nothing.

    Such a server needs no stored pins, because a client's approval is for exactly one definition of a tool.
    """

    async def all(self) -> dict[str, dict[str, str]]:
        return {}

    async def first(self, server: str, tools: Sequence[Pinned]) -> Mapping[str, str]:
        return {one.tool: one.pin for one in tools}

    async def withhold(self, source: str, withheld: Sequence[Withheld]) -> None:
        pass


@dataclass(slots=True, eq=False, weakref_slot=True)
class Named:
    """A server that a client named.

    `uses`: how many requests to the server run now.
    """

    id: str
    key_id: str
    label: str
    url: str
    servers: McpServers
    uses: int = 0
    timer: asyncio.TimerHandle | None = None


class NamedServers:
    """Connections to servers whose URL a client sent.

    Clients share a connection only if their API key, the URL, the label and all headers are equal. The
    `headers` and `authorization` of a client stay in memory, and are sent only to the server that the client
    named. A connection is closed only while it is not used. The next call of one of the server's tools opens
    it again.
    """

    def __init__(self, store: Store, allowed: Allowed) -> None:
        self._store, self._http = store, public_client(allowed)
        self._known: WeakValueDictionary[str, Named] = WeakValueDictionary()
        self._open: dict[str, Named] = {}
        """The servers that may have a connection. The most recently used server is last."""
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    def get(self, server: McpServer, key_id: str) -> Named:
        given = json.dumps([key_id, server.label, server.url, sorted(server.headers.items())])
        id = hashlib.sha256(given.encode()).hexdigest()
        found = self._known.get(id)
        if found is None:
            settings = McpServerSettings(
                name=server.label,
                url=server.url,
                headers=dict(server.headers),
                secret=tuple(server.headers.values()),
                api=True,
                ad_hoc=True,
            )
            servers = McpServers(
                McpSettings((settings,)), self._store, http=self._http, pins=Unpinned(self._store)
            )
            found = self._known[id] = Named(id, key_id, server.label, server.url, servers)
        return found

    @contextmanager
    def used(self, named: Named) -> Iterator[None]:
        """Keeps a connection open in the `with` block. Raises `ToolwireError` if too many are in use."""
        if named.id not in self._open:
            self._make_room(named.key_id)
        self._open.pop(named.id, None)
        self._open[named.id] = named
        named.uses += 1
        if named.timer is not None:
            named.timer.cancel()
        try:
            yield
        finally:
            named.uses -= 1
            if not named.uses and not self._closed:
                named.timer = asyncio.get_running_loop().call_later(IDLE_S, self._drop, named)

    def _make_room(self, key_id: str) -> None:
        """Closes an unused connection if there are too many.

        If this key has `MOST_OF_KEY` connections, closes one of them. If there are `MOST_NAMED` in all,
        closes one of the key that has the most. Raises `ToolwireError` if no connection can be closed,
        because all are in use.
        """
        if self._closed:
            raise ToolwireError("external_connector", "Toolwire is stopping.", param="tools")
        held = Counter(one.key_id for one in self._open.values())
        idle = [one for one in self._open.values() if not one.uses]
        if held[key_id] >= MOST_OF_KEY:
            idle = [one for one in idle if one.key_id == key_id]
        elif len(self._open) < MOST_NAMED:
            return
        if not idle:
            message = "There are too many connections to MCP servers in use. Try again later."
            raise ToolwireError("external_connector", message, param="tools")
        self._drop(max(idle, key=lambda one: held[one.key_id]))

    def _drop(self, named: Named) -> None:
        """Closes a connection that is not used."""
        del self._open[named.id]
        if named.timer is not None:
            named.timer.cancel()
        task = asyncio.ensure_future(named.servers.upstream(named.label).restart())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Closes all connections, and so ends their calls."""
        self._closed = True
        for named in self._open.values():
            if named.timer is not None:
                named.timer.cancel()
        ending = [one.servers.close() for one in self._open.values()]
        self._open.clear()
        await asyncio.gather(*ending, *self._closing, return_exceptions=True)

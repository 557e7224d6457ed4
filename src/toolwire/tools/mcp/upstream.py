"""One MCP server. Connects when the server is first needed, and again after a lost connection.

- A call is sent once. It is never repeated, whatever happens to the connection (law 11 in
  `docs/architecture.md`).
- Every wait has a time limit: for the start, for an answer, for a server that does not read. If the server
  reports progress, the time limit of the call is extended, up to `LONGEST_CALL_S`.
- Structured results are not checked against the server's output schema, because regular expressions in the
  schema could block the process. `Client.call_tool` would check them, and would repeat calls, so calls are
  sent by `ClientSession.send_request`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Literal, TypeVar

import mcp_types as types
from mcp import Client, MCPError
from pydantic import BaseModel, TypeAdapter, ValidationError

from toolwire.backends.agents.processes import Backoff
from toolwire.core.display import one_line, size
from toolwire.core.errors import ToolwireError
from toolwire.settings.types import McpServerSettings
from toolwire.tools.contract import Progress
from toolwire.tools.mcp.connection import (
    LONGEST_CALL_S,
    Connection,
    HttpClient,
    UpstreamFailed,
    address,
    http_client,
)
from toolwire.tools.mcp.stdio import LARGEST

State = Literal["idle", "starting", "ready", "failed"]
MOST_TOOLS, MOST_PAGES, MOST_LISTINGS = 1000, 100, 3
_ANSWER: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)
T = TypeVar("T", bound=BaseModel)


class Upstream:
    """One MCP server.

    `changed`: a function that is called when the server's lists may have changed. `http`: a function that
    creates the server's HTTP client. `problem`: a mistake in the settings of the server; if there is one, the
    server is never started.
    """

    def __init__(
        self,
        settings: McpServerSettings,
        *,
        changed: Callable[[], None] = lambda: None,
        http: HttpClient | None = None,
        problem: str = "",
    ) -> None:
        self.settings = settings
        self.problem = problem or settings.problem
        self.name = settings.name
        self.error = ""
        """Why the server is not ready, for a person; "" if there is no problem."""
        self._changed = changed
        self._http = http or http_client
        self._backoff = Backoff()
        self._legacy = False
        self._connection: Connection | None = None
        self._listing = asyncio.Lock()
        self._closed = False

    # --- the connection ---

    @property
    def state(self) -> State:
        connection = self._connection
        if connection is None or connection.over:
            return "failed" if self.error else "idle"
        return "ready" if connection.client is not None else "starting"

    async def connected(self) -> Connection:
        """Returns the connection. Opens a new one if there is none. Raises `UpstreamFailed`."""
        if self._closed:
            raise UpstreamFailed(f"{self.name} is not in use any more")
        if self.problem:
            raise UpstreamFailed(f"{self.name} cannot be used: {self.problem}")
        if self._connection is None or self._connection.over:
            try:
                self._backoff.check()
            except ToolwireError as error:
                raise UpstreamFailed(str(error)) from None
            self._connection = Connection(self)
        connection = self._connection
        await asyncio.wait({connection.ready})
        problem = connection.ready.result()
        if problem is not None:
            raise problem
        return connection

    async def close(self) -> None:
        """Ends the server and all its calls."""
        self._closed = True
        if self._connection is not None:
            await self._connection.close()

    async def restart(self) -> None:
        """Ends the server. The next call starts it again, without a pause."""
        self._backoff.succeeded()
        if self._connection is not None:
            await self._connection.close()

    # --- what the server says about itself ---

    @property
    def capabilities(self) -> types.ServerCapabilities | None:
        client = self._connection.client if self._connection is not None else None
        return client.server_capabilities if client is not None else None

    @property
    def listed(self) -> list[types.Tool] | None:
        """The tools as they were last listed on this connection; None if they must be listed again."""
        connection = self._connection
        return connection.tools if connection is not None and not connection.over else None

    async def tools(self) -> list[types.Tool]:
        """Returns the server's tools."""
        return (await self.listing())[1]

    async def listing(self) -> tuple[Connection, list[types.Tool]]:
        """Returns the server's tools, and the connection on which they were listed.

        On another connection, the server may have other tools. Lists the tools only if they may have changed
        since the last time. Raises `UpstreamFailed` if the list does not end, is too large, or has two tools
        with the same name.
        """
        async with self._listing:
            connection = await self.connected()
            found, tries = connection.tools, 0
            while found is None:
                changes, tries = connection.changes, tries + 1
                found = await self._list(connection)
                if connection.changes != changes and tries < MOST_LISTINGS:
                    found = None  # the list changed while it was read
            connection.tools = found
            return connection, found

    async def _list(self, connection: Connection) -> list[types.Tool]:
        found: list[types.Tool] = []
        cursor: str | None = None
        seen = set[str]()
        client = connection.client
        if client is not None and client.server_capabilities.tools is None:
            return found
        read = 0
        deadline = _Deadline(self.settings.call_s)
        for _ in range(MOST_PAGES):
            params = types.PaginatedRequestParams(cursor=cursor)
            page: types.ListToolsResult = await self._send(connection, partial(_list_tools, params), deadline)
            found += page.tools
            read += len(page.model_dump_json(exclude_none=True))
            if read + len(found) * len(connection.instructions) > LARGEST:
                raise UpstreamFailed(f"{self.name} sends a list of tools that is larger than {size(LARGEST)}")
            cursor = page.next_cursor
            if cursor is None or cursor in seen or len(found) > MOST_TOOLS:
                break
            seen.add(cursor)
        if cursor is not None or len(found) > MOST_TOOLS:
            raise UpstreamFailed(f"{self.name} lists more than {MOST_TOOLS} tools, or does not end its list")
        names = Counter(one.name for one in found).most_common(1)
        if names and names[0][1] > 1:
            raise UpstreamFailed(f"{self.name} lists the tool {one_line(names[0][0], 80)} twice")
        return found

    # --- requests ---

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        progress: Progress | None = None,
        on: Connection | None = None,
    ) -> types.CallToolResult:
        """Calls a tool, once. Raises `UpstreamFailed`. If the caller is cancelled, the server is notified."""
        params = types.CallToolRequestParams(name=tool, arguments=dict(arguments))
        answer = await self.request(types.CallToolRequest(params=params), _ANSWER, progress=progress, on=on)
        if isinstance(answer, types.InputRequiredResult) or answer.result_type != "complete":
            problem = f"{self.name} asks for more input during the call, which Toolwire does not pass on"
            raise UpstreamFailed(problem, may_have_run=True)
        return answer

    async def request(
        self,
        request: types.ClientRequest | types.Request[Any, Any],
        result: type[T] | TypeAdapter[T],
        *,
        progress: Progress | None = None,
        on: Connection | None = None,
    ) -> T:
        """Sends a request, once, and returns its result. Raises `UpstreamFailed`.

        `on`: the only connection on which the request may be sent; if it is closed or lost, the request is
        not sent.
        """
        connection = on or await self.connected()
        deadline = _Deadline(self.settings.call_s, progress)
        try:
            answer: T = await self._send(
                connection,
                lambda client: client.session.send_request(
                    request, result, progress_callback=deadline.report
                ),
                deadline,
            )
            return answer
        finally:
            deadline.close()

    async def _send(self, connection: Connection, send: Callable[[Client], Any], deadline: _Deadline) -> Any:
        if connection.client is None or connection.over:
            raise await connection.lost(sent=False)
        sent = asyncio.ensure_future(send(connection.client))
        try:
            while not sent.done() and not connection.over and deadline.left > 0:
                await asyncio.wait(
                    {sent, connection.task}, timeout=deadline.left, return_when=asyncio.FIRST_COMPLETED
                )
        except asyncio.CancelledError:
            await connection.abandon(sent)
            raise
        if not sent.done():
            gone = connection.over
            await connection.abandon(sent)
            if gone:
                raise await connection.lost()
            why = f"{self.name} did not answer within {deadline.seconds:g} s; the call may have run"
            raise UpstreamFailed(why, may_have_run=True)
        try:
            answer = sent.result()
        except MCPError as error:
            raise await connection.refused(error) from None
        except (ValidationError, RuntimeError, ValueError, RecursionError) as error:
            what = f"{self.name} sent an answer that is not valid MCP ({type(error).__name__})"
            raise UpstreamFailed(f"{what}; the call may have run", may_have_run=True) from None
        self._backoff.succeeded()
        self.error = ""
        return answer


async def _list_tools(params: types.PaginatedRequestParams, client: Client) -> types.ListToolsResult:
    return await client.session.list_tools(params=params)


class _Deadline:
    """The time limit of a request. Each report of progress extends it, and is passed on to `progress`.

    If many reports arrive at once, only the last one is passed on.
    """

    def __init__(self, seconds: float, progress: Progress | None = None) -> None:
        self.seconds = seconds
        self._latest = time.monotonic() + max(seconds, LONGEST_CALL_S)
        self._until = time.monotonic() + seconds
        self._report = progress
        self._news: tuple[float, float | None, str | None] | None = None
        self._passing: asyncio.Task[None] | None = None

    @property
    def left(self) -> float:
        return max(0.0, self._until - time.monotonic())

    async def report(self, progress: float, total: float | None, message: str | None) -> None:
        self._until = min(time.monotonic() + self.seconds, self._latest)
        self._news = (progress, total, message)
        if self._report is not None and (self._passing is None or self._passing.done()):
            self._passing = asyncio.ensure_future(self._pass_on())

    async def _pass_on(self) -> None:
        while self._news is not None and self._report is not None:
            news, self._news = self._news, None
            with suppress(Exception):
                await self._report(*news)

    def close(self) -> None:
        self._report = None


__all__ = ["Upstream", "UpstreamFailed", "address"]

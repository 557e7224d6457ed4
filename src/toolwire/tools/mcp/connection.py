"""A connection to an MCP server, by stdio or HTTP.

Each connection has a task that opens and closes it. Callers run in other tasks, so that a failing connection
does not cancel them. Toolwire declares no capability, so a server cannot use elicitation, sampling or roots.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx2
import mcp_types as types
from mcp import Client, MCPError
from mcp.client import IncomingMessage
from mcp.client.streamable_http import streamable_http_client
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from toolwire.core.display import one_line, size
from toolwire.settings.mcp import stated_folder
from toolwire.settings.types import MASK, McpServerSettings
from toolwire.tools.mcp.stdio import LARGEST, UNREADABLE, ServerProcess, stdio

if TYPE_CHECKING:
    from toolwire.tools.mcp.upstream import Upstream

PASSED_ON = ("PATH", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LC_MESSAGES", "TZ")
"""Environment variables of Toolwire that are passed on to a server's command."""
CANCEL_S = 1.0
"""How long to wait until a server has read that a call is cancelled, or until its process has ended."""
LONGEST_CALL_S = 3600.0
SLOW_PROBE_S = 9.0
"""A server that took this long for its first answer ignores `server/discover`, which the SDK sends first."""
COALESCE_S = 0.1
_NO_ANSWER = (
    "Connection closed",
    "SSE stream",
    "Failed to parse",
    "Unexpected content type",
    "server answered",
)
"""How the SDK's error messages begin if an HTTP request got no answer. A server may send the same words."""
HttpClient = Callable[[McpServerSettings], httpx2.AsyncClient]


class UpstreamFailed(Exception):
    """Raised if a server cannot be used or a call has failed. The message is one line for a person.

    `error`: the error that the server sent, if any. `said`: the last lines of the server's stderr.
    `may_have_run`: whether the call may have taken effect. `status`: the HTTP status of an error response.
    """

    def __init__(
        self,
        message: str,
        *,
        error: types.ErrorData | None = None,
        said: str = "",
        may_have_run: bool = False,
        status: int = 0,
    ) -> None:
        super().__init__(message)
        self.error = error
        self.said = said
        self.may_have_run = may_have_run
        self.status = status


class Connection:
    """One connection to a server. The same task opens and closes it."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._settings = upstream.settings
        self._closing = asyncio.Event()
        self.ready: asyncio.Future[UpstreamFailed | None] = asyncio.get_running_loop().create_future()
        self.client: Client | None = None
        self.instructions = ""
        self.tools: list[types.Tool] | None = None
        self.changes = 0
        """How often the server has reported a change."""
        self.process: ServerProcess | None = None
        self.status = 0
        """The status of the last HTTP response if it was an error; otherwise 0."""
        self._failure = ""
        self._began = time.monotonic()
        self._coalescing = False
        self.task = asyncio.ensure_future(self._own())

    @property
    def over(self) -> bool:
        """Whether the connection cannot be used any more."""
        ended = self.process is not None and self.process.ended.is_set()
        return self.task.done() or self._closing.is_set() or ended

    async def _own(self) -> None:
        """Opens the connection, waits until it is lost or closed, and closes it."""
        name, seconds = self._settings.name, self._settings.start_s
        timer = asyncio.get_running_loop().call_later(seconds, self._too_slow)
        failure = ""
        try:
            async with self._transport() as transport:
                client = Client(
                    transport,
                    mode="legacy" if self._upstream._legacy else "auto",
                    message_handler=self._heard,
                    client_info=_client_info(),
                    cache=None,
                )
                async with client:
                    timer.cancel()
                    self._opened(client)
                    async with self._listening(client):
                        await self._until_over()
                    failure = self._how_it_ended()
        except asyncio.CancelledError:
            failure = self._how_it_ended()
        except BaseException as error:
            failure = self._how_it_ended() or self._readable(error)
        finally:
            timer.cancel()
            self._settle(failure or f"{name} is closed")

    def _opened(self, client: Client) -> None:
        upstream, took = self._upstream, time.monotonic() - self._began
        upstream._legacy = took > SLOW_PROBE_S and client.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS
        upstream.error = ""
        self.client, self.instructions = client, client.instructions or ""
        self.ready.set_result(None)

    def _settle(self, failure: str) -> None:
        """Records the end of the connection."""
        self._failure = failure
        self.client = None
        upstream = self._upstream
        if not self._closing.is_set():
            upstream.error = failure
            upstream._backoff.failed(failure, free=1)
            if self.ready.done():
                upstream._changed()
        if not self.ready.done():
            self.ready.set_result(self._failed(failure))

    def _failed(self, message: str, *, may_have_run: bool = False) -> UpstreamFailed:
        said = self.process.said if self.process is not None else ""
        return UpstreamFailed(message, said=said, may_have_run=may_have_run, status=self.status)

    def _too_slow(self) -> None:
        self._failure = f"{self._settings.name} did not start within {self._settings.start_s:g} s"
        if self.process is not None:
            self.process.end_because(self._failure)
        self.task.cancel()

    async def _until_over(self) -> None:
        waiting = [asyncio.ensure_future(self._closing.wait())]
        if self.process is not None:
            waiting.append(asyncio.ensure_future(self.process.ended.wait()))
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not self._closing.is_set():
                await self._exit_status()
        finally:
            for each in waiting:
                each.cancel()

    async def _exit_status(self) -> None:
        """Waits for the exit status of the server's process, for at most `CANCEL_S` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_S):
                if self.process is not None:
                    await self.process.gone.wait()

    def _how_it_ended(self) -> str:
        if self._failure or self._closing.is_set() or self.process is None:
            return self._failure
        return self.process.end_message() if self.process.ended.is_set() else ""

    async def lost(self, *, sent: bool = True) -> UpstreamFailed:
        """Returns the error of a call whose server is gone.

        `sent`: whether the server may have received the call.
        """
        await self._exit_status()
        how = self._how_it_ended() or self._failure or f"{self._settings.name} is gone"
        ran = "may have run" if sent else "did not run"
        return self._failed(f"{how.rstrip('.')}; the call {ran}", may_have_run=sent)

    async def refused(self, error: MCPError) -> UpstreamFailed:
        """Returns the error to raise for a call to which the server or the SDK answered with `error`."""
        if error.error.code == types.CONNECTION_CLOSED:
            await asyncio.sleep(0)
            if self.over:
                return await self.lost()
        text = one_line(self._masked(error.error.message), 300)
        if self.status and self.process is None:
            ran = self.status >= 500
            message = f"{self._settings.name} answered with HTTP {self.status}"
            return UpstreamFailed(
                f"{message}; the call may have run" if ran else message,
                error=self._without_secrets(error.error),
                may_have_run=ran,
                status=self.status,
            )
        if self.process is None and text.startswith(_NO_ANSWER):
            problem = f"{self._settings.name} sent no valid answer; the call may have run"
            return UpstreamFailed(problem, said=text, may_have_run=True)
        if text == UNREADABLE:
            problem = f"{self._settings.name}: {text}; the call may have run"
            return UpstreamFailed(problem, may_have_run=True)
        problem = f"{self._settings.name} answered with an error: {text}"
        return UpstreamFailed(problem, error=self._without_secrets(error.error))

    async def abandon(self, sent: asyncio.Future[Any]) -> None:
        """Cancels a request and notifies the server. Ends a server process that does not read its stdin."""
        sent.cancel()
        await asyncio.wait({sent}, timeout=CANCEL_S)
        if self.process is not None and not self.over and (self.process.is_stuck or not sent.done()):
            self.process.end_because(f"{self._settings.name} does not read its input")

    async def close(self) -> None:
        self._closing.set()
        if self.client is None:
            self.task.cancel()
        await asyncio.wait({self.task})

    # --- the two transports ---

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[Any]:
        settings = self._settings
        if settings.command:
            self.process = ServerProcess(settings.name, settings.secret)
            folder = str(stated_folder(settings))
            yield stdio(self.process, settings.command, environment(settings), folder)
            return
        async with self._upstream._http(settings) as http:
            http.max_redirects = 0  # the SDK follows some redirects, whatever `follow_redirects` says
            http.event_hooks["response"].append(self._look)
            yield streamable_http_client(settings.url, http_client=http, max_sse_event_size=LARGEST)

    async def _look(self, response: httpx2.Response) -> None:
        """Records the status of an error response, and limits the size of a body that is not a stream."""
        self.status = response.status_code if response.status_code >= 400 else 0
        if response.headers.get("content-encoding", "identity").lower() not in ("", "identity"):
            raise httpx2.DecodingError("the server's answer is compressed, which was not asked for")
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _Bounded(response.stream)

    # --- notifications from the server ---

    @asynccontextmanager
    async def _listening(self, client: Client) -> AsyncIterator[None]:
        """Listens for reports that the server's lists have changed.

        Servers with an older protocol version report changes to `_heard`.
        """
        listening = asyncio.ensure_future(self._listen(client))
        try:
            yield
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _listen(self, client: Client) -> None:
        has = client.server_capabilities
        tools, prompts, resources = (
            bool(one and one.list_changed) for one in (has.tools, has.prompts, has.resources)
        )
        is_older = client.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS
        if is_older or not (tools or prompts or resources):
            return
        with suppress(Exception):
            listening = client.listen(
                tools_list_changed=tools, prompts_list_changed=prompts, resources_list_changed=resources
            )
            async with listening as events:
                async for _ in events:
                    self._note_change()

    async def _heard(self, message: IncomingMessage) -> None:
        if isinstance(message, _LIST_CHANGES):
            self._note_change()

    def _note_change(self) -> None:
        """Discards the list of tools, so that it is requested again.

        Several changes within `COALESCE_S` are reported once.
        """
        self.tools = None
        self.changes += 1
        if not self._coalescing:
            self._coalescing = True
            asyncio.get_running_loop().call_later(COALESCE_S, self._report_change)

    def _report_change(self) -> None:
        self._coalescing = False
        if not self.over:
            self._upstream._changed()

    # --- messages ---

    def _readable(self, error: BaseException) -> str:
        text = f"{self._settings.name} cannot be used: {_words(error)}"
        if self.status:
            text = f"{self._settings.name} answered with HTTP {self.status}"
        return one_line(self._masked(text), 300)

    def _without_secrets(self, error: types.ErrorData) -> types.ErrorData:
        """Returns the error that clients get: the server's error, with secrets masked."""
        written = error.model_dump_json()
        masked = self._masked(written)
        if masked == written:
            return error
        try:
            return types.ErrorData.model_validate_json(masked)
        except ValueError:  # the secret was a number or JSON, so the masked text is not valid JSON
            return types.ErrorData(code=error.code, message=self._masked(error.message))

    def _masked(self, text: str) -> str:
        """Returns a text without secrets, and without the token of a header such as `Bearer TOKEN`."""
        secrets = self._settings.secret
        tokens = (one.partition(" ")[2].strip() for one in secrets)
        for secret in sorted({*secrets, *tokens} - {""}, key=len, reverse=True):
            text = text.replace(secret, MASK)
        return text


_LIST_CHANGES = (
    types.ToolListChangedNotification,
    types.PromptListChangedNotification,
    types.ResourceListChangedNotification,
)


class _Bounded(httpx2.AsyncByteStream):
    """A response body. Reading more than `LARGEST` bytes of it raises an error."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = 0
        async for piece in self._stream:
            read += len(piece)
            if read > LARGEST:
                raise httpx2.DecodingError(f"the server's answer is larger than {size(LARGEST)}")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


def _words(error: BaseException) -> str:
    """Returns an exception as one readable line. The SDK nests exceptions in groups."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(_words(one) for one in error.exceptions))
    if isinstance(error, MCPError):
        return error.error.message
    return str(error) or type(error).__name__


@cache
def _client_info() -> types.Implementation:
    return types.Implementation(name="toolwire", version=version("toolwire"))


def environment(settings: McpServerSettings, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns all environment variables of a server's command."""
    return {name: environ[name] for name in PASSED_ON if name in environ} | dict(settings.env)


def http_client(settings: McpServerSettings) -> httpx2.AsyncClient:
    """Returns the HTTP client for a server. The client waits as long as the longest call may take."""
    headers = {"Accept-Encoding": "identity", **settings.headers}
    timeout = httpx2.Timeout(30.0, connect=min(settings.start_s, 30.0), read=LONGEST_CALL_S)
    return httpx2.AsyncClient(headers=headers, timeout=timeout)


def address(settings: McpServerSettings) -> str:
    """Returns the command or URL of a server, for a person. Its secrets are masked."""
    if settings.command:
        text = shlex.join(settings.command)
        for secret in settings.secret:
            text = text.replace(secret, MASK) if secret else text
        return text
    parts = urlsplit(settings.url)
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=host, query=MASK if parts.query else "", fragment="").geturl()

"""A bridge that serves many agents: attached to, or started when it is needed and again when it died.

Backends that mean the same bridge share it, for a bridge is a large process, and an attached one knows one callback server only. A bridge that can
not start is tried again after a growing pause; a request that comes during the pause gets one clear error, with what the bridge said.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from aiohttp import web

from toolwire.backends.agents.loopback import LoopbackServer
from toolwire.backends.cursor.client import CONTROL, PROTOCOL, BridgeClient, BridgeUnreachable, ConnectError, Malformed, clean, parse
from toolwire.backends.cursor.find import Where
from toolwire.backends.cursor.process import BridgeHome, Process
from toolwire.core.errors import ToolwireError

# --- callback ------------------------------------------------------------
#
# The server that the bridge brings the agent's tool calls to: loopback only, with a token of its own.
# Every call is answered. One for a tool of the client's is held open until the client's result is there;
# anything else gets an error result at once.

METHOD = "sdk.v1.SdkCustomToolCallbackService/CallCustomTool"
LARGEST = 64 * 2**20
Answer = Callable[[str, str, dict[str, Any], str | None], Awaitable[dict[str, Any]]]
"""Agent, tool, arguments and the call's id → the result."""


class CallbackServer(LoopbackServer):
    def __init__(self, answer: Answer) -> None:
        super().__init__(LARGEST, handler_cancellation=True)
        self._answer = answer
        self.token = secrets.token_urlsafe(32)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/"

    async def _serve(self, request: web.Request) -> web.Response:
        given = request.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), f"Bearer {self.token}".encode()):
            return _error(401, "unauthenticated", "Unauthorized")
        if request.path.lstrip("/") != METHOD or request.method != "POST":
            return _error(404, "unimplemented", "This server has CallCustomTool only.")
        try:
            asked = parse(await request.read())
        except Malformed as error:
            return _error(400, "invalid_argument", f"The request is {error}.")
        arguments = asked.get("args")
        call_id = asked.get("toolCallId")
        result = await self._answer(
            str(asked.get("agentId") or ""),
            str(asked.get("toolName") or ""),
            arguments if isinstance(arguments, dict) else {},
            call_id if isinstance(call_id, str) and call_id else None,
        )
        return web.json_response({"result": result}, dumps=lambda value: json.dumps(value))


def _error(status: int, code: str, message: str) -> web.Response:
    return web.json_response({"code": code, "message": message}, status=status)


FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
Called = Callable[[str, dict[str, Any], str | None], Awaitable[dict[str, Any]]]
"""Tool, arguments and the call's id → the result: what an agent's calls are given to."""


class BridgeConnection:
    """A bridge that answers, as long as it does. `work` is the empty folder that agents live in."""

    def __init__(self, client: BridgeClient, work: Path, process: Process | None, home: BridgeHome | None) -> None:
        self.client = client
        self.work = work
        self.process = process
        self._home = home
        self._broken = False

    @property
    def alive(self) -> bool:
        return not self._broken and (self.process is None or self.process.alive)

    async def lost(self, error: BridgeUnreachable) -> ToolwireError:
        """The bridge did not answer, or broke off: what is to be told of it."""
        if self.process is None:
            self._broken = True
            return error
        try:
            async with asyncio.timeout(2.0):
                await self.process.gone.wait()  # the connection breaks a moment before the process is known to be dead
        except TimeoutError:
            return error
        return ToolwireError(error.failure.kind if error.failure.kind != "timeout" else "backend_cut", self.process.how())

    async def close(self) -> None:
        self._broken = True
        await self.client.close()
        if self.process is not None:
            await self.process.close()
        if self._home is not None:
            self._home.remove()


class Bridge:
    """`share` gives one; `release` it once. `agents` are those whose calls are taken, by id."""

    def __init__(self, where: Where, start_timeout_s: float, request_timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.where = where
        self.loop = asyncio.get_running_loop()
        self.users = 0
        self.starts = 0
        self.agents: dict[str, Called] = {}
        self._start_timeout_s = start_timeout_s
        self._request_timeout_s = request_timeout_s
        self._clock = clock
        self._line: BridgeConnection | None = None
        self._callbacks: CallbackServer | None = None
        self._starting = asyncio.Lock()
        self._failures = 0
        self._not_before = 0.0
        self._why = ""
        self._closed = False
        self._later: set[asyncio.Future[None]] = set()

    @property
    def alive(self) -> bool:
        return self._line is not None and self._line.alive

    @property
    def process(self) -> Process | None:
        return self._line.process if self._line is not None else None

    async def line(self) -> BridgeConnection:
        """A bridge that answers now."""
        if self._line is not None and self._line.alive:
            return self._line
        async with self._starting:
            if self._closed:
                raise ToolwireError("backend_unavailable", "The gateway is closing.")
            if self._line is not None and self._line.alive:
                return self._line
            wait = self._not_before - self._clock()
            if wait > 0:
                raise ToolwireError("backend_unavailable", f"{self._why} It is tried again in {wait:.1f} s.", retry_after_s=wait)
            if self._line is not None:
                old, self._line = self._line, None
                await old.close()
            try:
                self._line = await self._opened()
            except ToolwireError as error:
                self._failures += 1
                self._why = error.failure.message
                self._not_before = self._clock() + min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self._failures - 1, 16))
                raise
            self._failures = 0
            return self._line

    async def _opened(self) -> BridgeConnection:
        if self._callbacks is None:
            callbacks = CallbackServer(self._called)
            await callbacks.start()
            self._callbacks = callbacks
        self.starts += 1
        if self.where.url:
            home = BridgeHome()
            line = BridgeConnection(BridgeClient(self.where.url, self.where.token, self._request_timeout_s), home.work, None, home)
        else:
            process = Process(self.where.command, os.environ)
            ready = await process.start(self._start_timeout_s)
            assert process.home is not None
            line = BridgeConnection(BridgeClient(ready.url, ready.token, self._request_timeout_s), process.home.work, process, None)
        try:
            await self._checked(line)
            await self.listen(line)
        except BaseException:
            await line.close()
            raise
        return line

    async def _checked(self, line: BridgeConnection) -> None:
        """The bridge takes our token and speaks our protocol."""
        try:
            version = await line.client.unary(f"{CONTROL}/GetVersion", {})
        except BridgeUnreachable as error:
            raise await line.lost(error) from error
        except ConnectError as error:
            if error.code == "unauthenticated":
                raise ToolwireError("backend_auth", "Cursor's bridge did not accept its token: look at bridge_token.") from error
            raise ToolwireError("backend_unavailable", f"Cursor's bridge does not work: {clean(error.message)}") from error
        spoken = str(version.get("protocolVersion") or "")
        if spoken != PROTOCOL:
            raise ToolwireError(
                "backend_unavailable", f"Cursor's bridge speaks {clean(spoken) or 'an unknown protocol'}; Toolwire speaks {PROTOCOL}."
            )

    async def listen(self, line: BridgeConnection) -> None:
        """Tells the bridge where its agents' calls go."""
        assert self._callbacks is not None
        try:
            await line.client.unary(f"{CONTROL}/SetToolCallback", {"url": self._callbacks.url, "authToken": self._callbacks.token})
        except BridgeUnreachable as error:
            raise await line.lost(error) from error
        except ConnectError as error:
            raise ToolwireError("backend_unavailable", f"Cursor's bridge takes no tools: {clean(error.message)}") from error

    async def _called(self, agent: str, tool: str, arguments: dict[str, Any], call_id: str | None) -> dict[str, Any]:
        called = self.agents.get(agent)
        if called is None:
            return refusal("This agent has no tools here any more.")
        return await called(tool, arguments, call_id)

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Work that nobody waits for, but the bridge's end."""
        task = asyncio.ensure_future(work)
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*self._later, return_exceptions=True)
        async with self._starting:
            line, self._line = self._line, None
        if line is not None:
            await line.close()
        if self._callbacks is not None:
            await self._callbacks.close()

    async def release(self) -> None:
        self.users -= 1
        if self.users == 0:
            for key in [key for key, one in _SHARED.items() if one is self]:
                del _SHARED[key]
            await self.close()


_SHARED: dict[tuple[int, Where], Bridge] = {}


def share(where: Where, start_timeout_s: float, request_timeout_s: float) -> Bridge:
    """The bridge that this means, in this event loop."""
    key = (id(asyncio.get_running_loop()), where)
    bridge = _SHARED.get(key)
    if bridge is None or bridge.loop is not asyncio.get_running_loop():  # a loop that is gone may have left one
        bridge = _SHARED[key] = Bridge(where, start_timeout_s, request_timeout_s)
    bridge.users += 1
    return bridge


def refusal(message: str) -> dict[str, Any]:
    """The error result of a call that is not the client's to answer."""
    return {"content": [{"type": "text", "text": message}], "isError": True}

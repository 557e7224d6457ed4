"""Cursor's bridge, a process that serves many agents.

Toolwire attaches to a running bridge, or starts a bridge when one is needed and starts it again after it
died. Backends with the same bridge share it, because a bridge is a large process, and because a bridge can
call back only one server. After a failed start, the next attempt waits for a pause that grows with each
failure.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from toolwire.backends.agents.mcp_server import LoopbackServer, error_result
from toolwire.backends.agents.processes import (
    PASSED_ON,
    Backoff,
    Child,
    Lines,
    clean,
    in_memory,
    private_folder,
)
from toolwire.backends.cursor.client import (
    CONTROL,
    LARGEST,
    PROTOCOL,
    BridgeClient,
    BridgeUnreachable,
    ConnectError,
    Malformed,
    parse,
)
from toolwire.backends.cursor.options import BridgeTarget, check_address
from toolwire.core.errors import ToolwireError, unavailable

PREFIX = "toolwire-cursor-"
READY = "cursor-sdk-bridge ready "
METHOD = "sdk.v1.SdkCustomToolCallbackService/CallCustomTool"
ToolHandler = Callable[[str, dict[str, Any], str | None], Awaitable[dict[str, Any]]]
"""A function that handles the calls of one agent. Arguments: the tool, the call's arguments and its id."""


class CallbackServer(LoopbackServer):
    """Receives the agents' tool calls.

    A call of a client's tool stays open until the client's result arrives. Any other call gets an error.
    """

    def __init__(self, agents: Mapping[str, ToolHandler]) -> None:
        super().__init__(LARGEST, handler_cancellation=True)
        self._agents = agents

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/"

    async def _serve(self, request: web.Request) -> web.Response:
        if not self._accepts(request):
            return _error(401, "unauthenticated", "Unauthorized")
        if request.path.lstrip("/") != METHOD or request.method != "POST":
            return _error(404, "unimplemented", "This server has only the method CallCustomTool.")
        try:
            call = parse(await request.read())
        except Malformed as error:
            return _error(400, "invalid_argument", f"The request cannot be read: it is {error}.")
        arguments, call_id = call.get("args"), call.get("toolCallId")
        handler = self._agents.get(str(call.get("agentId") or ""))
        if handler is None:
            return web.json_response({"result": error_result("This agent has no tools here any more.")})
        result = await handler(
            str(call.get("toolName") or ""),
            arguments if isinstance(arguments, dict) else {},
            call_id if isinstance(call_id, str) and call_id else None,
        )
        return web.json_response({"result": result})


def _error(status: int, code: str, message: str) -> web.Response:
    return web.json_response({"code": code, "message": message}, status=status)


# --- the bridge's process ---


class BridgeHome:
    """A bridge's private folder, in memory if possible, because a bridge stores conversations.

    `work` is the empty working folder of the agents.
    """

    def __init__(self) -> None:
        self.path = private_folder(PREFIX, in_memory())
        self.work, self.home, self.state, self.temporary = folders = [
            self.path / name for name in ("work", "home", "state", "tmp")
        ]
        for folder in folders:
            folder.mkdir(mode=0o700)

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        passed_on = {name: environ[name] for name in PASSED_ON if name in environ}
        return {**passed_on, "HOME": str(self.home), "TMPDIR": str(self.temporary)}

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


class BridgeProcess(Child):
    """The process of a bridge. Call `start` first. Always call `end` at the end."""

    LOG = logging.getLogger("toolwire.cursor")
    END = ((0.0, signal.SIGTERM), (1.0, signal.SIGKILL), (5.0, signal.SIGKILL))

    def __init__(self, command: str, environ: Mapping[str, str]) -> None:
        super().__init__("Cursor's bridge")
        self._command = command
        self._environ = environ
        self.home: BridgeHome | None = None
        self._ready: asyncio.Future[BridgeTarget] = asyncio.get_running_loop().create_future()
        self._lines = Lines(64 * 1024)

    async def start(self, timeout_s: float) -> BridgeTarget:
        """Starts the bridge. Returns its address and token once it is ready."""
        try:
            self.home = home = BridgeHome()
            await self._spawn(
                *(self._command, "--workspace", str(home.work), "--state-root", str(home.state)),
                *("--host", "127.0.0.1", "--port", "0"),
                env=home.environment(self._environ),
                guarded=True,
                cwd=home.work,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
            )
            async with asyncio.timeout(timeout_s):
                ready = await self._ready
        except BaseException as error:
            problem = ""
            if isinstance(error, TimeoutError):
                problem = self.report(f"Cursor's bridge was not ready within {timeout_s:g} s.")
            elif isinstance(error, OSError):
                problem = f"Cursor's bridge could not be started: {error.strerror or error}"
            await self.end()
            if not problem:
                raise
            raise unavailable(problem) from error
        self._serves_many = True
        return ready

    def clean(self, text: str) -> str:
        return clean(text)

    async def end(self) -> None:
        await super().end()
        if not self._ready.cancel() and not self._ready.cancelled():
            # retrieve the exception, otherwise asyncio warns about it if no task has waited
            self._ready.exception()
        if self.home is not None:
            self.home.remove()

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        assert isinstance(data, bytes)
        for line in self._lines.feed(data):
            self._stderr_line(line.decode("utf-8", "replace"))

    def _over(self) -> None:
        self.pipe_data_received(2, b"\n")  # handle a last line that has no newline
        if not self._ready.done():
            self._ready.set_exception(unavailable(self.end_message()))

    def _stderr_line(self, line: str) -> None:
        """Handles a line of stderr.

        The line that says that the bridge is ready may contain the bridge's token, so this line is never kept
        or logged.
        """
        if not line.startswith(READY):
            super()._stderr_line(line)
        elif not self._ready.done():
            try:
                self._ready.set_result(read_ready(line[len(READY) :]))
            except ToolwireError as error:
                self._ready.set_exception(error)


def read_ready(words: str) -> BridgeTarget:
    try:
        given: Any = json.loads(words)
        version = (given["schemaVersion"], given["transport"], given["protocol"])
        if version != (1, "tcp", "connect"):
            problem = f"Cursor's bridge speaks an unknown protocol: {version}."
            raise unavailable(problem)
        host = str(given.get("host") or "")
        url = str(given.get("url") or f"http://{f'[{host}]' if ':' in host else host}:{given['port']}")
        check_address(url)
        token = str(given.get("authToken") or "") or Path(given["authTokenFile"]).read_text("utf-8")
    except (ValueError, KeyError, TypeError, OSError):  # do not quote the line: it may contain a token
        problem = "Cursor's bridge is ready, but its ready line is in an unknown format."
        raise unavailable(problem) from None
    if not token.strip():
        raise unavailable("Cursor's bridge is ready, but gave no token.")
    return BridgeTarget(url.rstrip("/"), token.strip())


# --- connections ---


class BridgeConnection:
    """A connection to a bridge that has answered. `process`: None if Toolwire did not start the bridge."""

    def __init__(self, client: BridgeClient, home: BridgeHome, process: BridgeProcess | None) -> None:
        self.client = client
        self.work = home.work
        self.process = process
        self._home = home
        self._broken = False

    @property
    def alive(self) -> bool:
        return not self._broken and (self.process is None or self.process.alive)

    async def ask(self, method: str, message: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return await self.client.unary(method, message)
        except BridgeUnreachable as error:
            raise await self.lost(error) from error

    async def lost(self, error: BridgeUnreachable) -> ToolwireError:
        """Returns the error to report if the bridge did not answer or closed the connection."""
        if self.process is None:
            self._broken = True
            return error
        try:
            async with asyncio.timeout(2.0):  # the connection closes a moment before the process has ended
                await self.process.gone.wait()
        except TimeoutError:
            return error
        kind = error.failure.kind
        return ToolwireError("backend_cut" if kind == "timeout" else kind, self.process.end_message())

    async def close(self) -> None:
        self._broken = True
        await self.client.close()
        if self.process is not None:
            await self.process.end()
        self._home.remove()


class Bridge:
    """A bridge that several backends share. Call `release` once for each call of `share`.

    `agents`: the handlers of tool calls, by agent id.
    """

    def __init__(self, target: BridgeTarget, start_timeout_s: float, request_timeout_s: float) -> None:
        self.target = target
        self.users = 0
        self.starts = 0
        self.agents: dict[str, ToolHandler] = {}
        self._start_timeout_s = start_timeout_s
        self._request_timeout_s = request_timeout_s
        self._connection: BridgeConnection | None = None
        self._callbacks: CallbackServer | None = None
        self._starting = asyncio.Lock()
        self._backoff = Backoff()
        self._closed = False
        self._background: set[asyncio.Future[None]] = set()

    @property
    def alive(self) -> bool:
        return self._connection is not None and self._connection.alive

    @property
    def process(self) -> BridgeProcess | None:
        return self._connection.process if self._connection is not None else None

    async def connect(self) -> BridgeConnection:
        """Returns the existing connection to the bridge if it works, otherwise opens a new connection."""
        if self._connection is not None and self._connection.alive:
            return self._connection
        async with self._starting:
            if self._closed:
                raise unavailable("The gateway is closing.")
            if self._connection is not None and self._connection.alive:
                return self._connection
            self._backoff.check()
            old, self._connection = self._connection, None
            if old is not None:
                await old.close()
            try:
                self._connection = await self._open()
            except ToolwireError as error:
                self._backoff.failed(error.failure.message)
                raise
            self._backoff.succeeded()
            return self._connection

    async def _open(self) -> BridgeConnection:
        if self._callbacks is None:
            callbacks = CallbackServer(self.agents)
            await callbacks.start()
            self._callbacks = callbacks
        self.starts += 1
        process, home, target = None, None, self.target
        if not target.url:
            process = BridgeProcess(target.command, os.environ)
            target, home = await process.start(self._start_timeout_s), process.home
        client = BridgeClient(target.url, target.token, self._request_timeout_s)
        connection = BridgeConnection(client, home or BridgeHome(), process)
        try:
            await self._check(connection)
            await self.set_callback(connection)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _check(self, connection: BridgeConnection) -> None:
        """Raises an error unless the bridge accepts the token and speaks the expected protocol."""
        try:
            version = await connection.ask(f"{CONTROL}/GetVersion", {})
        except ConnectError as error:
            if error.code == "unauthenticated":
                problem = "Cursor's bridge did not accept its token: check bridge_token."
                raise ToolwireError("backend_auth", problem) from error
            problem = f"Cursor's bridge does not work: {clean(error.message)}"
            raise unavailable(problem) from error
        spoken = str(version.get("protocolVersion") or "")
        if spoken != PROTOCOL:
            spoken = clean(spoken) or "an unknown protocol"
            problem = f"Cursor's bridge speaks {spoken}; Toolwire speaks {PROTOCOL}."
            raise unavailable(problem)

    async def set_callback(self, connection: BridgeConnection) -> None:
        """Sends the bridge the address of the callback server, which receives the agents' calls."""
        assert self._callbacks is not None
        callback = {"url": self._callbacks.url, "authToken": self._callbacks.token}
        try:
            await connection.ask(f"{CONTROL}/SetToolCallback", callback)
        except ConnectError as error:
            problem = f"Cursor's bridge does not accept tools: {clean(error.message)}"
            raise unavailable(problem) from error

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts a task for the work. `close` waits until the task has ended."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*self._background, return_exceptions=True)
        async with self._starting:
            connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
        if self._callbacks is not None:
            await self._callbacks.close()

    async def release(self) -> None:
        self.users -= 1
        if self.users == 0:
            _SHARED.pop((asyncio.get_running_loop(), self.target), None)
            await self.close()


_SHARED: dict[tuple[asyncio.AbstractEventLoop, BridgeTarget], Bridge] = {}


def share(target: BridgeTarget, start_timeout_s: float, request_timeout_s: float) -> Bridge:
    key = (asyncio.get_running_loop(), target)
    bridge = _SHARED.get(key)
    if bridge is None:
        bridge = _SHARED[key] = Bridge(target, start_timeout_s, request_timeout_s)
    bridge.users += 1
    return bridge

"""One `codex app-server` process, and the routing of its messages.

- The process ends when its stdin closes, so it cannot outlive the gateway.
- The messages of a thread go to the `Sink` that is attached under the thread's id. Responses and
  notifications arrive in any order.
- Tool calls are answered by their thread. All other requests from Codex (approvals, questions) are refused.
- When the process dies, every waiting request and every attached thread fails at once.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import shutil
import signal
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from toolwire.backends.agents.processes import Child, Lines
from toolwire.backends.codex import protocol
from toolwire.backends.codex.home import CodexHome, scratch
from toolwire.backends.codex.options import Version, parse_version
from toolwire.backends.codex.protocol import METHOD_NOT_FOUND, OVERLOADED, RpcMessage, line, read_message
from toolwire.backends.codex.reading import NOTIFICATIONS, refused
from toolwire.core.errors import ToolwireError, unavailable
from toolwire.core.events import Failure

T = TypeVar("T")
REQUEST_S = 30.0
OVERLOAD_DELAYS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
LOG_IN = "Log in with: codex login"


class Sink(Protocol):
    """Receives the messages of a Codex thread.

    `deliver` gets each message. If the message is a request of Codex, the sink must answer it or end the
    turn. `lost` is called when the process has died.
    """

    def deliver(self, message: RpcMessage) -> None: ...

    def lost(self, failure: Failure) -> None: ...


class RequestError(ToolwireError):
    """Raised if Codex refused a request."""


class CodexWorker(Child):
    """A `codex app-server` process. Call `start` first. Always call `close` at the end."""

    LOG = logging.getLogger("toolwire.codex")
    END = ((1.0, signal.SIGTERM), (2.0, signal.SIGKILL), (5.0, signal.SIGKILL))

    def __init__(self, home: CodexHome) -> None:
        public = ("PATH", "HOME", "CODEX_HOME")
        super().__init__("Codex", (value for name, value in home.env.items() if value and name not in public))
        self.home = home
        self.version: Version = home.version
        self.failure: Failure | None = None
        self.threads = 0
        """The number of Codex threads that this process has started."""
        self.logged_in = False
        """Whether a login was found. Until then, `require_login` asks Codex before each new thread."""
        self._lines = Lines()
        self._ids = itertools.count(1)
        self._waiting: dict[int | str, asyncio.Future[RpcMessage]] = {}
        self._sinks: dict[str, Sink] = {}
        self._scratch: Path | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._login: protocol.Login | None = None

    async def start(self, timeout_s: float) -> None:
        """Starts and initializes the process. Raises an error that contains Codex's message."""
        try:
            self._scratch = scratch()
            env = {**self.home.env, "CODEX_SQLITE_HOME": str(self._scratch)}
            await self._spawn(self.home.binary, "app-server", env=env, cwd=self.home.cwd)
        except OSError as error:
            self._remove_scratch()
            problem = f"Codex could not be started: {error.strerror or error}"
            raise unavailable(problem) from error
        params: dict[str, Any] = {"clientInfo": {"name": "toolwire", "title": "Toolwire", "version": "1"}}
        if self.home.features.capabilities:
            ignored = ["account/rateLimits/updated"]
            params["capabilities"] = {"experimentalApi": True, "optOutNotificationMethods": ignored}
        try:
            result = await self.request("initialize", params, timeout_s)
            self._write(line(method="initialized"))
        except BaseException:
            await self.close()
            raise
        self._serves_many = True
        hello = protocol.decode(protocol.Initialized, result)
        self.version = (parse_version(hello.user_agent) if hello else None) or self.version

    def _without_paths(self, text: str) -> str:
        return super()._without_paths(text.replace(str(self.home.path), "$CODEX_HOME"))

    def rss_mb(self) -> float:
        """Returns the memory of the process and its children in MB, or 0 if it is unknown."""
        pages = sum(map(_rss_pages, _family(self.pid))) if self.alive else 0
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    async def close(self) -> None:
        if self._transport is None:
            return
        await self.end()
        self._remove_scratch()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _remove_scratch(self) -> None:
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    # --- requests ---

    async def request(self, method: str, params: Any, timeout_s: float = REQUEST_S) -> bytes:
        """Sends a request and returns the result as JSON.

        Retries with delays if Codex is overloaded.
        """
        delays = iter(OVERLOAD_DELAYS)
        while True:
            response = await self._ask(method, params, timeout_s)
            fault = response.fault
            if fault is None:
                return bytes(response.result)
            delay = next(delays, None) if fault.code == OVERLOADED else None
            if delay is None:
                raise RequestError.of(refused(method, fault.message))
            await asyncio.sleep(delay)

    async def _ask(self, method: str, params: Any, timeout_s: float) -> RpcMessage:
        if self.failure is not None:
            raise ToolwireError.of(self.failure)
        id = next(self._ids)
        waiting: asyncio.Future[RpcMessage] = asyncio.get_running_loop().create_future()
        self._waiting[id] = waiting
        try:
            self._write(line(method=method, id=id, params=params))
            async with asyncio.timeout(timeout_s):
                return await waiting
        except TimeoutError:
            problem = self.report(f"Codex did not answer {method} within {timeout_s:g} s.")
            raise ToolwireError("timeout", problem) from None
        finally:
            self._waiting.pop(id, None)

    def notify(self, method: str, params: Any) -> None:
        """Sends a request and ignores its answer."""
        if self.alive:
            self._write(line(method=method, id=next(self._ids), params=params))

    def reply(self, request: RpcMessage, result: Any) -> None:
        if self.alive:
            self._write(line(id=request.id, result=result))

    def refuse(self, request: RpcMessage, message: str) -> None:
        if self.alive:
            self._write(line(id=request.id, error={"code": METHOD_NOT_FOUND, "message": message}))

    def attach(self, thread_id: str, sink: Sink) -> None:
        self._sinks[thread_id] = sink
        if self.failure is not None:
            sink.lost(self.failure)

    def detach(self, thread_id: str) -> None:
        self._sinks.pop(thread_id, None)

    def background(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs a task that is cancelled when the process ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- the login ---

    async def account(self) -> protocol.CodexAccount:
        found = protocol.decode(protocol.CodexAccount, await self.request("account/read", {}))
        return found or protocol.CodexAccount()

    async def login_url(self, timeout_s: float = 2.0) -> str:
        """Returns a URL where the person can log in, or "" if Codex does not answer quickly.

        Only one login is started at a time.
        """
        if self._login is None:
            with suppress(ToolwireError):
                result = await self.request("account/login/start", {"type": "chatgpt"}, timeout_s)
                self._login = protocol.decode(protocol.Login, result)
        return self._login.auth_url if self._login is not None else ""

    async def require_login(self) -> None:
        """Raises an error if nobody is logged in. Codex itself would send requests without a login."""
        if self.logged_in:
            return
        account = await self.account()
        self.logged_in = account.account is not None or not account.requires_openai_auth
        if not self.logged_in:
            raise ToolwireError("backend_auth", await self._with_login("Codex is not logged in."))

    async def explained(self, failure: Failure, provider: Mapping[str, Any] | None) -> Failure:
        if failure.kind != "backend_auth":
            return failure
        if provider is None:
            self.logged_in = False
            return Failure(failure.kind, await self._with_login(failure.message))
        key = provider.get("env_key")
        hint = f" Check the key in the environment variable {key}." if key else ""
        return Failure(failure.kind, failure.message + hint)

    async def _with_login(self, problem: str) -> str:
        url = await self.login_url()
        return f"{problem} {LOG_IN}" + (f", or open {url}" if url else "")

    # --- messages from the process ---

    def _read(self, data: bytes) -> None:
        for message in filter(None, map(read_message, self._lines.feed(data))):
            if not message.method:
                waiting = self._waiting.get(message.id or 0)
                if waiting is not None and not waiting.done():
                    waiting.set_result(message)
            elif message.id is not None:
                sink = self._sink(message) if message.method == protocol.TOOL_CALL else None
                if sink is not None:
                    sink.deliver(message)
                else:
                    self.refuse(message, f"Toolwire does not grant {message.method}")
            elif message.method in NOTIFICATIONS:
                sink = self._sink(message)
                if sink is not None:
                    sink.deliver(message)
            elif message.method == "account/login/completed":
                self._login = None

    def _sink(self, message: RpcMessage) -> Sink | None:
        route = protocol.decode(protocol.Route, message.params)
        return self._sinks.get(route.thread_id) if route is not None else None

    def _over(self) -> None:
        self.failure = Failure("backend_unavailable", self.end_message())
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(ToolwireError.of(self.failure))
        for sink in list(self._sinks.values()):
            sink.lost(self.failure)


def _family(pid: int) -> list[int]:
    children: list[str] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            children += task.read_text().split()
    return [pid, *(one for child in children for one in _family(int(child)))]


def _rss_pages(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0

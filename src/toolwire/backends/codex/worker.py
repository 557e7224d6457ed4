"""One `codex app-server` process: its life, and who gets which of its messages.

- It runs in a process group of its own, with a minimal environment, and ends with our end of its stdin: nothing outlives the gateway.
- What belongs to a thread goes to the thread that was attached under its id; responses and notifications come in any order.
- A request of Codex's is always answered: a tool call by its thread, unless that is being ended, anything else (approvals, questions) by a refusal
  at once.
- When the process dies, every waiting request and every attached thread learns it at once, with one clear failure.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from toolwire.backends.agents.processes import Talker, end_words
from toolwire.backends.codex import protocol
from toolwire.backends.codex.failures import refused
from toolwire.backends.codex.home import CodexHome, scratch
from toolwire.backends.codex.options import Version, parse_version
from toolwire.backends.codex.protocol import (
    METHOD_NOT_FOUND,
    OVERLOADED,
    Notification,
    Response,
    RpcPeer,
    ServerRequest,
)
from toolwire.core.errors import ToolwireError
from toolwire.core.events import Failure

log = logging.getLogger("toolwire.codex")
T = TypeVar("T")
REQUEST_S = 30.0
END = ((1.0, signal.SIGTERM), (2.0, signal.SIGKILL), (5.0, signal.SIGKILL))
"""How long the process may take to end after its stdin closed, after SIGTERM, after SIGKILL, and what it gets then."""
OVERLOAD_DELAYS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
HOW = "Log in with: codex login"


class Sink(Protocol):
    """Who gets a thread's messages. `deliver` must answer a `ServerRequest`, now or later, or end the turn that it belongs to."""

    def deliver(self, message: Notification | ServerRequest) -> None: ...

    def lost(self, failure: Failure) -> None: ...


class RequestError(ToolwireError):
    """Codex refused a request."""


class CodexWorker(Talker):
    """`start` before anything else; `close` at the end, whatever happened."""

    LOG = log

    def __init__(self, home: CodexHome) -> None:
        super().__init__()
        self.home = home
        self.version: Version = home.version
        self.failure: Failure | None = None
        self.threads = 0
        """How many threads this process has begun."""
        self.logged_in = False
        """Whether a login was seen; asked again until it was."""
        self._peer = RpcPeer()
        self._waiting: dict[int | str, asyncio.Future[Response]] = {}
        self._sinks: dict[str, Sink] = {}
        self._scratch: Path | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._login: protocol.Login | None = None

    # --- life ----------------------------------------------------------------------------------------------------------------------------------

    async def start(self, timeout_s: float) -> None:
        """Starts the process and shakes hands; raises a clear error, with what Codex said, where that fails."""
        try:
            self._scratch = scratch()
            env = {**self.home.env, "CODEX_SQLITE_HOME": str(self._scratch)}
            await self._spawn(self.home.binary, "app-server", env=env, cwd=self.home.cwd)
        except OSError as error:
            self._clean()
            raise ToolwireError(
                "backend_unavailable", f"Codex could not be started: {error.strerror or error}"
            ) from error
        params: dict[str, Any] = {"clientInfo": {"name": "toolwire", "title": "Toolwire", "version": "1"}}
        if self.home.features.capabilities:
            params["capabilities"] = {
                "experimentalApi": True,
                "optOutNotificationMethods": ["account/rateLimits/updated"],
            }
        try:
            result = await self.request("initialize", params, timeout_s)
            self._write(self._peer.notify("initialized"))
        except BaseException:
            await self.close()
            raise
        self._serves_many = True
        hello = protocol.decode(protocol.Initialized, result)
        self.version = (parse_version(hello.user_agent) if hello else None) or self.version

    @property
    def alive(self) -> bool:
        return self._transport is not None and self.failure is None and not self._dying

    def _without_secrets(self, words: str) -> str:
        """What was said, without the provider's key."""
        for name, value in self.home.env.items():
            if value and name not in ("PATH", "HOME", "CODEX_HOME"):
                words = words.replace(value, "***")
        return words

    def _without_paths(self, words: str) -> str:
        return super()._without_paths(words.replace(str(self.home.path), "$CODEX_HOME"))

    def rss_mb(self) -> float:
        """Memory of the process and its children, where the system tells it (Linux)."""
        return (
            sum(map(_rss_pages, _family(self.pid))) * os.sysconf("SC_PAGE_SIZE") / 2**20
            if self.alive
            else 0.0
        )

    async def close(self) -> None:
        """Ends the process: stdin first, then SIGTERM and SIGKILL to its group."""
        if self._transport is None:
            return
        await self._end(END)
        self._clean()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _clean(self) -> None:
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    # --- talking -------------------------------------------------------------------------------------------------------------------------------

    async def request(self, method: str, params: Any, timeout_s: float = REQUEST_S) -> bytes:
        """The result, as JSON. An overloaded Codex is asked again, a little later each time."""
        delays = iter(OVERLOAD_DELAYS)
        while True:
            response = await self._ask(method, params, timeout_s)
            if response.fault is None:
                return response.result
            delay = next(delays, None) if response.fault.code == OVERLOADED else None
            if delay is None:
                raise RequestError.of(refused(method, response.fault.message))
            await asyncio.sleep(delay)

    async def _ask(self, method: str, params: Any, timeout_s: float) -> Response:
        if self.failure is not None:
            raise ToolwireError.of(self.failure)
        id, line = self._peer.request(method, params)
        waiting: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiting[id] = waiting
        try:
            self._write(line)
            async with asyncio.timeout(timeout_s):
                return await waiting
        except TimeoutError:
            raise ToolwireError(
                "timeout", self.told(f"Codex did not answer {method} within {timeout_s:g} s.")
            ) from None
        finally:
            self._waiting.pop(id, None)

    def tell(self, method: str, params: Any) -> None:
        """A request whose answer does not matter."""
        if self.alive:
            self._write(self._peer.request(method, params)[1])

    def reply(self, request: ServerRequest, result: Any) -> None:
        if self.alive:
            self._write(self._peer.reply(request.id, result))

    def refuse(self, request: ServerRequest, message: str) -> None:
        if self.alive:
            self._write(self._peer.refuse(request.id, METHOD_NOT_FOUND, message))

    def attach(self, thread_id: str, sink: Sink) -> None:
        self._sinks[thread_id] = sink
        if self.failure is not None:
            sink.lost(self.failure)

    def detach(self, thread_id: str) -> None:
        self._sinks.pop(thread_id, None)

    def background(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task that lives no longer than the process."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- who is logged in ----------------------------------------------------------------------------------------------------------------------

    async def account(self) -> protocol.CodexAccount:
        return (
            protocol.decode(protocol.CodexAccount, await self.request("account/read", {}))
            or protocol.CodexAccount()
        )

    async def login_url(self, timeout_s: float = 2.0) -> str:
        """Where the person can log in; empty where Codex does not say so quickly. One login is begun at a time."""
        if self._login is None:
            with suppress(ToolwireError):
                self._login = protocol.decode(
                    protocol.Login, await self.request("account/login/start", {"type": "chatgpt"}, timeout_s)
                )
        return self._login.auth_url if self._login is not None else ""

    async def require_login(self) -> None:
        """Reports a missing login at once: Codex would ask the provider without one, too."""
        if self.logged_in:
            return
        account = await self.account()
        self.logged_in = account.account is not None or not account.requires_openai_auth
        if not self.logged_in:
            raise ToolwireError("backend_auth", await self._how_to_log_in("Codex is not logged in."))

    async def explained(self, failure: Failure, provider: Mapping[str, Any] | None) -> Failure:
        """The failure, with what the user can do about it."""
        if failure.kind != "backend_auth":
            return failure
        if provider is None:
            self.logged_in = False
            return Failure(failure.kind, await self._how_to_log_in(failure.message))
        key = provider.get("env_key")
        hint = f" Check the key in the environment variable {key}." if key else ""
        return Failure(failure.kind, failure.message + hint)

    async def _how_to_log_in(self, words: str) -> str:
        url = await self.login_url()
        return f"{words} {HOW}" + (f", or open {url}" if url else "")

    # --- what the process says -----------------------------------------------------------------------------------------------------------------

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        assert isinstance(data, bytes)
        if fd == 2:
            self._hear(data)
            return
        for message in self._peer.feed(data):
            if isinstance(message, Response):
                waiting = self._waiting.get(message.id)
                if waiting is not None and not waiting.done():
                    waiting.set_result(message)
            elif isinstance(message, ServerRequest):
                self._asked(message)
            elif message.method in protocol.NEWS:
                sink = self._sink(message.params)
                if sink is not None:
                    sink.deliver(message)
            elif message.method == "account/login/completed":
                self._login = None

    def _asked(self, message: ServerRequest) -> None:
        sink = self._sink(message.params) if message.method == protocol.TOOL_CALL else None
        if sink is not None:
            sink.deliver(message)
        else:
            self.refuse(message, f"Toolwire does not grant {message.method}")

    def _sink(self, params: bytes) -> Sink | None:
        route = protocol.decode(protocol.Route, params)
        return self._sinks.get(route.thread_id) if route is not None else None

    def _over(self) -> None:
        assert self._transport is not None
        what = f"Codex {end_words(self._transport.get_returncode() or 0)}."
        self.failure = Failure("backend_unavailable", self.told(what))
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(ToolwireError.of(self.failure))
        for sink in list(self._sinks.values()):
            sink.lost(self.failure)


def _family(pid: int) -> list[int]:
    """A process and all below it."""
    below: list[str] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            below += task.read_text().split()
    return [pid, *(one for child in below for one in _family(int(child)))]


def _rss_pages(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0

"""One session of one agent: a process, its folder, and the MCP server with the client's tools.

Each session has its own process: the client's tools decide the agent's configuration, a cancelled run can be
ended for sure, and no conversation can reach another. Calls between turns get an error. Nothing runs here.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from acp.connection import Connection
from acp.exceptions import RequestError

from toolwire.backends.acp.process import AgentProcess, Workspace
from toolwire.backends.acp.profiles import (
    SERVER,
    AcpOptions,
    AgentProfile,
    find,
    launch,
    listed_names,
    shown_names,
)
from toolwire.backends.acp.requests import AgentRequests
from toolwire.backends.acp.updates import (
    AUTH_REQUIRED,
    STOP_REASONS,
    AgentCalls,
    failure_of,
    text_of,
    usage_of,
)
from toolwire.backends.agents.mcp_server import ToolServer
from toolwire.backends.agents.native import tools_of
from toolwire.backends.agents.run import AgentRun
from toolwire.core.errors import ToolwireError
from toolwire.core.events import FinishReason
from toolwire.core.turn import Part, ToolSpec

Json = Any
Params = Mapping[str, Json]
PROTOCOL = 1
HOLD_S = 15.0
"""How long a call waits for its own announcement, and for other calls announced with it."""
LIST_S = 5.0
_CANCELLED = "The agent ended its turn as cancelled."


class Lost(ToolwireError):
    """The process is gone."""


class AcpSession:
    """`open` it, `prompt` it turn by turn with a run attached, `close` it."""

    def __init__(self, options: AcpOptions, profile: AgentProfile, tools: Sequence[ToolSpec]) -> None:
        self._options = options
        self._profile = profile
        self._listed = listed_names(profile, [tool.name for tool in tools])
        self._names = shown_names(profile, tuple(self._listed))
        self._tools = tools
        self._declared = frozenset(tool.name for tool in tools)
        called = {own: listed for listed, own in self._listed.items()}
        self._server = (
            ToolServer([replace(tool, name=called[tool.name]) for tool in tools], self._called)
            if tools
            else None
        )
        self._place: Workspace | None = None
        self._process: AgentProcess | None = None
        self._connection: Connection | None = None
        self._id = ""
        self.takes_images = False
        self._run: AgentRun | None = None
        self._calls = AgentCalls(self._names)
        self._changed = asyncio.Event()
        self._prompting = False
        self._closing: asyncio.Future[None] | None = None
        self._opener: asyncio.Task[Any] | None = None
        self._asked = AgentRequests(
            profile, self._names, self._declared, self._running, lambda id: self._calls.seen(id)
        )

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.alive and self._closing is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def folder(self) -> Path:
        assert self._place is not None
        return self._place.path

    async def open(self) -> None:
        """Starts the agent and opens its session; raises an error with the agent's own words."""
        self._opener = asyncio.current_task()
        try:
            async with asyncio.timeout(self._options.start_timeout_s):
                await self._open()
        except BaseException as error:
            late = self._late() if isinstance(error, TimeoutError) else ""
            if self._closing is None:  # else whoever closes the session waits for this to end
                self._opener = None
                await self.close()
            if not late:
                raise
            raise ToolwireError("timeout", late) from None
        self._opener = None

    def _late(self) -> str:
        what = f"{self._profile.title} did not open a session within {self._options.start_timeout_s:g} s."
        return self._process.told(what) if self._process is not None else what

    async def _open(self) -> None:
        program = find(self._options, self._profile)
        try:
            self._place = place = Workspace(self._options.cwd)
            started = launch(
                self._options,
                self._profile,
                program,
                str(place.home),
                str(place.tmp),
                os.environ,
                tuple(self._listed),
            )
            place.write(started.files)
            if "HOME" not in self._options.env:
                place.link(self._profile.login, Path.home())
        except OSError as error:
            raise ToolwireError(
                "backend_unavailable",
                f"A folder for {self._profile.title} cannot be made: {error.strerror or error}",
            ) from error
        if self._server is not None:
            await self._server.start()
        self._process = AgentProcess(started, self._profile.title, self._sign_of_life)
        await self._process.start(str(place.cwd))
        self._connection = Connection(self._handle, self._process)
        hello = await self._ask("initialize", self._greeting())
        await self._new_session(hello, str(place.cwd), started.env)

    def _greeting(self) -> dict[str, Json]:
        """Only what the client declared is offered."""

        def has(kind: str) -> bool:
            return not self._declared.isdisjoint(tools_of(kind))

        return {
            "protocolVersion": PROTOCOL,
            "clientCapabilities": {
                "fs": {"readTextFile": has("fs/read_text_file"), "writeTextFile": has("fs/write_text_file")},
                "terminal": has("terminal/create"),
            },
            "clientInfo": {"name": "toolwire", "title": "Toolwire", "version": "1"},
        }

    async def _new_session(self, hello: Params, cwd: str, env: Mapping[str, str]) -> None:
        capabilities = _table(hello, "agentCapabilities")
        self.takes_images = _table(capabilities, "promptCapabilities").get("image") is True
        servers = []
        if self._server is not None:
            if _table(capabilities, "mcpCapabilities").get("http") is not True:
                raise ToolwireError(
                    "backend",
                    f"{self._profile.title} takes no MCP servers over HTTP, and so not the client's tools.",
                )
            headers = [{"name": name, "value": value} for name, value in self._server.headers.items()]
            servers = [{"type": "http", "name": SERVER, "url": self._server.url, "headers": headers}]
        asked: dict[str, Json] = {"cwd": cwd, "mcpServers": servers}
        if self._profile.meta:
            asked["_meta"] = self._profile.meta
        opened = await self._authenticated(asked, hello.get("authMethods"), env)
        self._id = str(opened.get("sessionId") or "")
        if not self._id:
            raise ToolwireError("backend", f"{self._profile.title} opened a session without an id.")
        await self._set_up(opened)
        if self._server is not None:  # agents connect while the session opens, or soon after
            try:
                async with asyncio.timeout(LIST_S):
                    await self._server.listed.wait()
            except TimeoutError:
                assert self._process is not None
                self._process.told(
                    f"{self._profile.title} has not asked for the client's tools: it may know none of them."
                )

    async def _authenticated(self, asked: dict[str, Json], methods: Json, env: Mapping[str, str]) -> Params:
        """A session; where the agent wants a login first, by a way that needs no person."""
        try:
            return await self._ask("session/new", asked)
        except _Refusal as refusal:
            method = usable_method(self._profile, methods, env) if refusal.code == AUTH_REQUIRED else None
            if method is None:
                raise
        await self._ask("authenticate", {"methodId": method})
        return await self._ask("session/new", asked)

    async def _set_up(self, opened: Params) -> None:
        """The mode and the model, where the session has them as options of its own."""
        modes = [
            mode.get("id")
            for mode in _table(opened, "modes").get("availableModes") or ()
            if isinstance(mode, Mapping)
        ]
        if self._profile.mode and self._profile.mode in modes:
            await self._ask("session/set_mode", {"sessionId": self._id, "modeId": self._profile.mode})
        if self._options.model and self._profile.model_by[0] == "session":
            options = [
                one
                for one in opened.get("configOptions") or ()
                if isinstance(one, Mapping) and one.get("category") == "model"
            ]
            if options:
                value = {
                    "sessionId": self._id,
                    "configId": options[0].get("id"),
                    "value": self._options.model,
                }
                await self._ask("session/set_config_option", value)
            else:
                await self._ask("session/set_model", {"sessionId": self._id, "modelId": self._options.model})

    async def close(self) -> None:
        """Ends everything of the session; safe to call twice."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._run = None
        if self._opener is not None:  # it may be about to start a process
            self._opener.cancel()
            await asyncio.wait({self._opener})
        self._asked.close()
        if (
            self._connection is not None
            and self._prompting
            and self._process is not None
            and self._process.alive
        ):
            with suppress(Exception):
                await self._connection.send_notification("session/cancel", {"sessionId": self._id})
        if self._process is not None:  # before its calls get an answer: it shall not go on with them
            await self._process.end()
        if self._server is not None:
            await self._server.close()
        if self._connection is not None:
            await self._connection.close()
        if self._place is not None:
            await asyncio.to_thread(self._place.close)

    async def prompt(self, run: AgentRun, blocks: Sequence[Mapping[str, Json]]) -> FinishReason:
        """Sends one prompt, and reports to `run` what happens until its end."""
        self._run = run
        self._calls = AgentCalls(self._names)
        self._prompting = True
        try:
            result = await self._ask("session/prompt", {"sessionId": self._id, "prompt": list(blocks)})
        finally:
            self._run = None
        self._prompting = False
        usage = usage_of(result)
        if usage is not None:
            run.usage(usage)
        reason = str(result.get("stopReason"))
        if reason == "cancelled":
            raise ToolwireError("backend_cut", _CANCELLED)
        return STOP_REASONS.get(reason, "stop")

    @property
    def saw_tools(self) -> bool:
        """Whether the agent has asked which tools there are."""
        return self._server is None or self._server.listed.is_set()

    def _sign_of_life(self) -> None:
        if self._run is not None:
            self._run.alive()

    async def _ask(self, method: str, params: Params) -> Params:
        assert self._connection is not None and self._process is not None
        try:
            result = await self._connection.send_request(method, dict(params))
        except RequestError as error:
            raise _Refusal(error, self._profile, self._process.clean) from error
        except ConnectionError:
            raise Lost(
                "backend_cut" if self._prompting else "backend_unavailable", self._process.end_words()
            ) from None
        return result if isinstance(result, Mapping) else {}

    async def _handle(self, method: str, params: Json, is_notification: bool) -> Json:
        given: Params = params if isinstance(params, Mapping) else {}
        if is_notification:
            if method == "session/update":
                self._update(_table(given, "update"))
            return None
        return await self._asked.answer(method, given)

    def _update(self, update: Params) -> None:
        """Does not wait: updates are handled in the order of their arrival."""
        run = self._run
        kind = update.get("sessionUpdate")
        if run is None:
            return
        if run.tap is not None:
            run.tap(str(kind), update)
        if kind == "agent_message_chunk":
            run.text(text_of(update))
        elif kind == "agent_thought_chunk":
            run.thought(text_of(update))
        elif kind in ("tool_call", "tool_call_update"):
            self._calls.announce(update)
            self._changed.set()

    def _running(self) -> AgentRun:
        if self._run is None:
            raise ToolwireError("backend", "No turn is under way: the client's tools cannot be called now.")
        return self._run

    async def _called(self, listed: str, arguments: dict[str, Json]) -> Sequence[Part]:
        """A call by MCP. The run gets it together with the calls announced with it."""
        run = self._running()
        id, place = self._calls.called(listed, arguments)
        self._changed.set()
        if self._profile.announces:
            await self._together()
        result = await run.call(self._listed[listed], json.dumps(arguments, ensure_ascii=False), id, place)
        return result.parts

    async def _together(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(HOLD_S):
                while self._calls.expected:
                    self._changed.clear()
                    await self._changed.wait()


class _Refusal(ToolwireError):
    """The agent answered a request of ours with an error."""

    def __init__(self, error: RequestError, profile: AgentProfile, clean: Callable[[str], str]) -> None:
        data = json.loads(clean(json.dumps(error.data, default=str)))
        failure = failure_of(error.code, clean(str(error)), data, profile.title, profile.log_in)
        super().__init__(failure.kind, failure.message)
        self.code = error.code


def usable_method(profile: AgentProfile, methods: Json, env: Mapping[str, str]) -> str | None:
    """A way to authenticate that needs no person: its variables are there."""
    for method in methods if isinstance(methods, Sequence) else ():
        if not isinstance(method, Mapping):
            continue
        id = str(method.get("id") or "")
        told = (
            [str(one.get("name")) for one in method.get("vars") or () if isinstance(one, Mapping)]
            if method.get("type") == "env_var"
            else []
        )
        needed = told or ([profile.authenticate[id]] if id in profile.authenticate else [])
        if needed and all(env.get(name) for name in needed):
            return id
    return None


def _table(given: Params, key: str) -> Params:
    value = given.get(key)
    return value if isinstance(value, Mapping) else {}

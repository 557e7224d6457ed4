"""One session of an agent: a process, its folder, and an MCP server for the client's tools.

Each session has its own process for three reasons: the agent's configuration depends on the client's tools, a
cancelled run can be ended reliably, and conversations cannot reach each other. A call that the agent makes
between two turns gets an error. No tool runs on the gateway's host.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from acp.connection import Connection
from acp.exceptions import RequestError

from toolwire.backends.acp.process import AgentProcess, Launch, Workspace, find, launch
from toolwire.backends.acp.profiles import SERVER, AcpOptions, AgentProfile, listed_names, shown_names
from toolwire.backends.acp.requests import AgentRequests
from toolwire.backends.acp.updates import (
    AUTH_REQUIRED,
    STOP_REASONS,
    AgentCalls,
    failure_of,
    text_of,
    usage_of,
)
from toolwire.backends.agents.history import images, inline, news
from toolwire.backends.agents.mcp_server import ToolServer
from toolwire.backends.agents.run import AgentRun
from toolwire.core.errors import ToolwireError, unavailable
from toolwire.core.turn import ImagePart, Result, ToolSpec, Turn

Json = Any
Params = Mapping[str, Json]
PROTOCOL = 1
HOLD_S = 15.0
"""How long a call waits for its announcement and for the other announced calls of the same answer."""
LIST_S = 5.0
"""How long the agent may take to list the client's tools before Toolwire logs a warning."""


class AcpSession:
    """An ACP session: call `open`, then `prompt` for each turn, and `close` at the end."""

    def __init__(self, options: AcpOptions, profile: AgentProfile, tools: Sequence[ToolSpec]) -> None:
        self._options = options
        self._profile = profile
        self._listed = listed_names(profile, [tool.name for tool in tools])
        self._names = shown_names(profile, tuple(self._listed))
        listed = {own: name for name, own in self._listed.items()}
        renamed = [replace(tool, name=listed[tool.name]) for tool in tools]
        self._server = ToolServer(renamed, self._called) if tools else None
        self._workspace: Workspace | None = None
        self._process: AgentProcess | None = None
        self._connection: Connection | None = None
        self._id = ""
        self._takes_images = False
        self._run: AgentRun | None = None
        self._calls = AgentCalls(self._names)
        self._changed = asyncio.Event()
        self._prompting = False
        self._closing: asyncio.Future[None] | None = None
        self._opener: asyncio.Task[Any] | None = None
        self._requests = AgentRequests(
            profile, self._names, frozenset(listed), self._running, lambda id: self._calls.seen(id)
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
        assert self._workspace is not None
        return self._workspace.path

    # --- opening and closing ---

    async def open(self) -> None:
        """Starts the agent and opens its session.

        Raises an error that contains the agent's message.
        """
        self._opener = asyncio.current_task()
        try:
            async with asyncio.timeout(self._options.start_timeout_s):
                await self._open()
        except BaseException as error:
            late = self._late() if isinstance(error, TimeoutError) else ""
            if self._closing is None:  # otherwise `close` already waits for this task
                self._opener = None
                await self.close()
            if not late:
                raise
            raise ToolwireError("timeout", late) from None
        self._opener = None

    def _late(self) -> str:
        problem = f"{self._profile.title} did not open a session within {self._options.start_timeout_s:g} s."
        return self._process.report(problem) if self._process is not None else problem

    async def _open(self) -> None:
        title = self._profile.title
        start, workspace = self._prepare(find(self._options, self._profile))
        if self._server is not None:
            await self._server.start()
        self._process = AgentProcess(start, title, self._on_message)
        await self._process.start(str(workspace.cwd))
        self._connection = Connection(self._handle, self._process)
        serves = self._requests.serves
        files = {"readTextFile": serves("fs/read_text_file"), "writeTextFile": serves("fs/write_text_file")}
        hello = await self._ask(
            "initialize",
            {
                "protocolVersion": PROTOCOL,
                "clientCapabilities": {"fs": files, "terminal": serves("terminal/create")},
                "clientInfo": {"name": "toolwire", "title": "Toolwire", "version": "1"},
            },
        )
        capabilities = _table(hello, "agentCapabilities")
        self._takes_images = _table(capabilities, "promptCapabilities").get("image") is True
        if self._server is not None and _table(capabilities, "mcpCapabilities").get("http") is not True:
            problem = f"{title} accepts no MCP servers over HTTP, so it cannot use the client's tools."
            raise ToolwireError("backend", problem)
        params: dict[str, Json] = {"cwd": str(workspace.cwd), "mcpServers": self._servers()}
        if self._profile.meta:
            params["_meta"] = self._profile.meta
        opened = await self._new_session(params, hello.get("authMethods"), start.env)
        self._id = str(opened.get("sessionId") or "")
        if not self._id:
            raise ToolwireError("backend", f"{title} opened a session without an id.")
        await self._set_up(opened)
        if self._server is not None:  # agents connect while the session opens, or soon after
            try:
                async with asyncio.timeout(LIST_S):
                    await self._server.listed.wait()
            except TimeoutError:
                self._process.report(f"{title} has not listed the client's tools: it may know none of them.")

    def _prepare(self, program: str) -> tuple[Launch, Workspace]:
        options, profile = self._options, self._profile
        try:
            self._workspace = workspace = Workspace(options.cwd)
            home, tmp = str(workspace.home), str(workspace.tmp)
            start = launch(options, profile, program, home, tmp, os.environ, tuple(self._listed))
            workspace.write(start.files)
            if "HOME" not in options.env:
                workspace.link(profile.login, Path.home())
        except OSError as error:
            problem = f"Cannot create a folder for {profile.title}: {error.strerror or error}"
            raise unavailable(problem) from error
        return start, workspace

    def _servers(self) -> list[dict[str, Json]]:
        if self._server is None:
            return []
        headers = [{"name": name, "value": value} for name, value in self._server.headers.items()]
        return [{"type": "http", "name": SERVER, "url": self._server.url, "headers": headers}]

    async def _new_session(self, params: dict[str, Json], methods: Json, env: Mapping[str, str]) -> Params:
        """Opens the session.

        If a login is required, an authentication method that needs no person is used.
        """
        try:
            return await self._ask("session/new", params)
        except _Refusal as refusal:
            method = usable_method(self._profile, methods, env) if refusal.code == AUTH_REQUIRED else None
            if method is None:
                raise
        await self._ask("authenticate", {"methodId": method})
        return await self._ask("session/new", params)

    async def _set_up(self, opened: Params) -> None:
        """Sets the session's mode and model, if the agent offers these options."""
        mode, model = self._profile.mode, self._options.model
        modes = _tables(_table(opened, "modes").get("availableModes"))
        if mode and any(one.get("id") == mode for one in modes):
            await self._ask("session/set_mode", {"sessionId": self._id, "modeId": mode})
        if not model or self._profile.model_by[0] != "session":
            return
        for option in _tables(opened.get("configOptions")):
            if option.get("category") == "model":
                params = {"sessionId": self._id, "configId": option.get("id"), "value": model}
                await self._ask("session/set_config_option", params)
                return
        await self._ask("session/set_model", {"sessionId": self._id, "modelId": model})

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._run = None
        if self._opener is not None:  # `open` may be about to start a process
            self._opener.cancel()
            await asyncio.wait({self._opener})
        self._requests.close()
        process, connection = self._process, self._connection
        if connection is not None and self._prompting and process is not None and process.alive:
            with suppress(Exception):
                await connection.send_notification("session/cancel", {"sessionId": self._id})
        # end the process before its calls get an error, otherwise the agent would continue
        if process is not None:
            await process.end()
        if self._server is not None:
            await self._server.close()
        if connection is not None:
            await connection.close()
        if self._workspace is not None:
            await asyncio.to_thread(self._workspace.close)

    # --- prompts ---

    async def prompt(self, run: AgentRun, text: str, images: Sequence[ImagePart]) -> None:
        prompt = [*self._image_blocks(run.turn, images), {"type": "text", "text": text}]
        self._run = run
        self._calls = AgentCalls(self._names)
        self._prompting = True
        try:
            result = await self._ask("session/prompt", {"sessionId": self._id, "prompt": prompt})
        finally:
            self._run = None
        self._prompting = False
        usage = usage_of(result)
        if usage is not None:
            run.usage(usage)
        reason = str(result.get("stopReason"))
        if reason == "cancelled":
            raise ToolwireError("backend_cut", "The agent reported that its turn was cancelled.")
        run.reason = STOP_REASONS.get(reason, "stop")
        if run.lacks_call and self._server is not None and not self._server.listed.is_set():
            did = f"{self._profile.title} did not list the client's tools"
            problem = f"{did}: it seems to ignore the MCP servers of a session."
            raise ToolwireError("no_tool_call", problem, param="tool_choice")

    def _image_blocks(self, turn: Turn, given: Sequence[ImagePart]) -> list[dict[str, Json]]:
        """Returns ACP content blocks for the images.

        If the agent takes no images, new images raise an error, and images of earlier turns are left out.
        """
        if given and not self._takes_images:
            if images(news(turn.items)):
                raise ToolwireError("unsupported_value", "This agent takes no images.")
            return []
        found = filter(None, map(inline, given))
        return [{"type": "image", "data": data, "mimeType": kind} for data, kind in found]

    def _on_message(self) -> None:
        if self._run is not None:
            self._run.alive()

    async def _ask(self, method: str, params: Params) -> Params:
        assert self._connection is not None and self._process is not None
        try:
            result = await self._connection.send_request(method, dict(params))
        except RequestError as error:
            raise _Refusal(error, self._profile, self._process) from error
        except ConnectionError:
            kind = "backend_cut" if self._prompting else "backend_unavailable"
            raise ToolwireError(kind, self._process.end_message()) from None
        return result if isinstance(result, Mapping) else {}

    # --- what the agent sends ---

    async def _handle(self, method: str, params: Json, is_notification: bool) -> Json:
        given: Params = params if isinstance(params, Mapping) else {}
        if not is_notification:
            return await self._requests.answer(method, given)
        if method == "session/update":
            self._update(_table(given, "update"))
        return None

    def _update(self, update: Params) -> None:
        """Handles a session update. Not async, so that updates are handled in their order."""
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
            raise ToolwireError("backend", "No turn is in progress: the client's tools cannot be called now.")
        return self._run

    async def _called(self, listed: str, arguments: dict[str, Json]) -> Result:
        """Handles a call of the agent: passes it to the run, and returns the client's result.

        If the agent announces its calls, this method waits for the other announced calls, so that one
        response contains all of them.
        """
        run = self._running()
        id, order = self._calls.called(listed, arguments)
        self._changed.set()
        if self._profile.announces:
            with suppress(TimeoutError):
                async with asyncio.timeout(HOLD_S):
                    while self._calls.expected:
                        self._changed.clear()
                        await self._changed.wait()
        return await run.call(self._listed[listed], json.dumps(arguments, ensure_ascii=False), id, order)


class _Refusal(ToolwireError):
    def __init__(self, error: RequestError, profile: AgentProfile, process: AgentProcess) -> None:
        failure = failure_of(error.code, str(error), error.data, profile.title, profile.log_in, process.clean)
        super().__init__(failure.kind, failure.message)
        self.code = error.code


def usable_method(profile: AgentProfile, methods: Json, env: Mapping[str, str]) -> str | None:
    """Returns the id of the first authentication method whose environment variables are set, or None."""
    for method in _tables(methods):
        id = str(method.get("id") or "")
        needed = [profile.authenticate[id]] if id in profile.authenticate else []
        if method.get("type") == "env_var" and method.get("vars"):
            needed = [str(one.get("name")) for one in _tables(method["vars"])] or needed
        if needed and all(env.get(name) for name in needed):
            return id
    return None


def _table(given: Params, key: str) -> Params:
    value = given.get(key)
    return value if isinstance(value, Mapping) else {}


def _tables(given: Json) -> Iterable[Params]:
    return [one for one in given if isinstance(one, Mapping)] if isinstance(given, list | tuple) else []

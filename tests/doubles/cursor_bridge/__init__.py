"""A scripted Cursor bridge for tests: it implements the published protocol `sdk.v1` without Cursor.

The official client accepts it as a bridge.

In a test:      steps = [{"call": "look", "args": {}}, {"text": "It was {result}."}]
                async with FakeCursorBridge(steps) as bridge: bridge.url, bridge.token
As a process:   python -m doubles.cursor_bridge --script FILE [--log FILE] …

A script is a list. Each request `Send` plays the next entry that is a list of steps; the last such entry is
repeated. An entry {"when": PATTERN, "steps": […]} is played for every `Send` whose text matches. A step is an
object whose first key says what the agent does:

{"text": "…"} · {"think": "…"}              speaks; {prompt}, {tools}, {result} and {results} are filled in
{"call": NAME, "args": {…}, "id": ID}       calls a tool and waits, at most "within" seconds
{"calls": [{"call": …}, …]}                 several calls at once
{"usage": {…}}                              reports tokens
{"own": NAME}                               reports that the agent uses a built-in tool
{"status": "ERROR", "message", "code"}      ends the run with this status
{"error": CODE, "message", "sdk", "retry"}  ends the stream with an error
{"sleep": S} · {"hang": true}               waits, with keep-alives
{"drop": true} · {"die": true}              cuts the stream, or kills the process
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import secrets
import uuid
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from aiohttp import web

from doubles.cursor_bridge.steps import Agent, Dropped, Player, Refused, Run, Step, Stream, sdk_message

Script = Sequence[Any]
VERSION = "0.0.0-fake"
STATUS = "RUN_LIFECYCLE_STATUS_"
HTTP_STATUS = {
    "unauthenticated": 401,
    "invalid_argument": 400,
    "not_found": 404,
    "resource_exhausted": 429,
    "failed_precondition": 400,
}
DEFAULT: Script = ([{"text": "Hello from the fake bridge."}],)
__all__ = ["DEFAULT", "VERSION", "FakeCursorBridge", "Refused"]


class FakeCursorBridge:
    """A scripted bridge. `seen`: every request as (method, body). `cancelled`: the ids of cancelled runs."""

    def __init__(
        self,
        *script: Any,
        models: Sequence[str] = ("auto", "composer-2"),
        api_key: str = "",
        protocol: str = "sdk.v1",
        keepalive_s: float = 15.0,
        callback: tuple[str, str] = ("", ""),
        log: str = "",
    ) -> None:
        self.script: list[Any] = list(script or DEFAULT)
        self.models = list(models)
        self.token = secrets.token_urlsafe(24)
        self.url = ""
        self.callback = callback
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self.agents: dict[str, Agent] = {}
        self.runs: dict[str, Run] = {}
        self.cancelled: list[str] = []
        self.refusing: Refused | None = None
        """If set, the error with which requests to create agents or to list models are answered."""
        self.stopped = asyncio.Event()
        self._api_key = api_key
        self._protocol = protocol
        self._keepalive_s = keepalive_s
        self._log = log
        self._runner: web.AppRunner | None = None
        self._player: Player | None = None

    def play(self, *script: Any) -> None:
        """Replaces the script."""
        self.script = list(script)

    def bodies(self, method: str) -> list[dict[str, Any]]:
        """Returns the bodies of all requests of one method."""
        return [body for name, body in self.seen if name == method]

    # --- start and stop ---

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_post("/{service}/{method}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        self._player = Player(self.callback)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        self.url = f"http://{host}:{self._runner.addresses[0][1]}"

    async def close(self) -> None:
        for run in self.runs.values():
            if run.task is not None:
                run.task.cancel()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._player is not None:
            await self._player.close()

    async def __aenter__(self) -> FakeCursorBridge:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- requests ---

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        method = request.match_info["method"]
        if not hmac.compare_digest(
            request.headers.get("Authorization", "").encode(), f"Bearer {self.token}".encode()
        ):
            return _unary_error(Refused("unauthenticated", "Unauthorized"))
        raw = await request.read()
        streamed = request.content_type == "application/connect+json"
        body: dict[str, Any] = json.loads((raw[5:] if streamed else raw) or b"{}")
        self._note(method, body)
        if method == "Send":
            return await self._send(request, body)
        handler = getattr(self, f"_on_{method}", None)
        if handler is None:
            return web.Response(status=404)
        try:
            return web.json_response(handler(body))
        except Refused as refused:
            return _unary_error(refused)

    def _note(self, method: str, body: dict[str, Any]) -> None:
        if self._log:
            with open(self._log, "a", encoding="utf-8") as file:
                file.write(json.dumps([method, body]) + "\n")
        else:
            self.seen.append((method, body))

    def _on_Ping(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"message": "pong"}

    def _on_GetVersion(self, body: dict[str, Any]) -> dict[str, Any]:
        return {
            "bridgeVersion": VERSION,
            "protocolVersion": self._protocol,
            "capabilities": ["agent.create", "agent.send", "run.cancel"],
        }

    def _on_SetToolCallback(self, body: dict[str, Any]) -> dict[str, Any]:
        self.callback = (str(body.get("url") or ""), str(body.get("authToken") or ""))
        if self._player is not None:
            self._player.callback = self.callback
        return {}

    def _on_Shutdown(self, body: dict[str, Any]) -> dict[str, Any]:
        self.stopped.set()
        return {}

    def _on_ListModels(self, body: dict[str, Any]) -> dict[str, Any]:
        self._allowed((body.get("options") or {}).get("apiKey"), needed=True)
        return {"items": [{"id": id, "displayName": id.title()} for id in self.models]}

    def _on_CreateAgent(self, body: dict[str, Any]) -> dict[str, Any]:
        options = body.get("options") or {}
        self._allowed(options.get("apiKey"))
        if (options.get("local") or {}).get("customTools") and not self.callback[0]:
            raise Refused("failed_precondition", "local.custom_tools requires a host tool callback server")
        model = options.get("model") or {}
        if model and model.get("id") not in self.models:
            raise Refused(
                "invalid_argument", f"Unknown model: {model.get('id')}", "SDK_ERROR_CODE_INVALID_MODEL"
            )
        agent = Agent(str(options.get("agentId") or f"agent-{uuid.uuid4()}"), options)
        self.agents[agent.id] = agent
        return {"agentId": agent.id, **({"model": model} if model else {})}

    def _on_CloseAgent(self, body: dict[str, Any]) -> dict[str, Any]:
        self._agent(body)
        return {}

    def _on_DeleteAgent(self, body: dict[str, Any]) -> dict[str, Any]:
        del self.agents[self._agent(body).id]
        self.runs = {id: run for id, run in self.runs.items() if run.agent.id in self.agents}
        return {}

    def _on_ListRuns(self, body: dict[str, Any]) -> dict[str, Any]:
        runs = [run for run in self.runs.values() if run.agent.id == body.get("agentId")]
        return {
            "items": [
                {"runId": run.id, "agentId": run.agent.id, "status": STATUS + run.status}
                for run in reversed(runs)
            ]
        }

    def _on_CancelRun(self, body: dict[str, Any]) -> dict[str, Any]:
        run = self.runs.get(str(body.get("runId")))
        if run is None:
            raise Refused("invalid_argument", f"Run {body.get('runId')} not found")
        self.cancelled.append(run.id)
        if run.task is not None and run.status == "RUNNING":
            run.status = "CANCELLED"
            run.task.cancel()
        return {}

    def _allowed(self, key: Any, needed: bool = False) -> None:
        if self.refusing is not None:
            raise self.refusing
        if self._api_key and key != self._api_key:
            raise Refused("unauthenticated", "Invalid API key", "SDK_ERROR_CODE_UNAUTHORIZED")
        if needed and not key:
            raise Refused("unauthenticated", "API key is required for cloud catalog calls.")

    def _agent(self, body: dict[str, Any]) -> Agent:
        agent = self.agents.get(str(body.get("agentId")))
        if agent is None:
            raise Refused("not_found", f"Unknown agent: {body.get('agentId')}")
        return agent

    # --- runs ---

    async def _send(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/connect+json"})
        await response.prepare(request)
        stream = Stream(response, self._keepalive_s)
        try:
            agent = self._agent(body)
            assert self._player is not None
            if agent.busy:
                raise Refused("failed_precondition", "The agent is busy.", "SDK_ERROR_CODE_AGENT_BUSY")
            run = Run(
                f"run-{uuid.uuid4()}",
                agent,
                str(body["message"].get("text", "")),
                bool((body.get("options") or {}).get("enableDeltas")),
            )
            agent.prompts.append(run.prompt)
            self.runs[run.id] = run
            agent.busy = True
            run.task = asyncio.ensure_future(self._player.play(run, stream, self._steps(run)))
            try:
                await asyncio.shield(run.task)  # a client that disconnects ends nothing; CancelRun does
            except asyncio.CancelledError:
                if not run.task.cancelled() and not run.task.done():
                    raise
            finally:
                agent.busy = False
        except Refused as refused:
            await stream.end(refused.body)
            return response
        except Dropped:
            assert request.transport is not None
            request.transport.abort()
            return response
        for message in self._ending(run):
            await stream.send(message)
        await stream.end(None)
        return response

    def _ending(self, run: Run) -> list[dict[str, Any]]:
        status, _, rest = run.status.partition(" ")
        code, _, message = rest.partition(" ")
        facts = {"agentId": run.agent.id, "runId": run.id, "status": STATUS + status}
        failed = {**({"errorCode": code} if code else {}), **({"errorMessage": message} if message else {})}
        result = {**facts, "durationMs": "5", "result": run.said, **failed}
        return [
            sdk_message(run, "status", status=status, **({"message": message} if message else {})),
            {"result": {**facts, "result": result}, "offset": "2"},
            {"done": {"agentId": run.agent.id, "runId": run.id}, "offset": "3"},
        ]

    def _steps(self, run: Run) -> Sequence[Step]:
        for entry in self.script:
            if isinstance(entry, Mapping) and re.search(entry["when"], run.prompt, re.DOTALL):
                found: Sequence[Step] = entry["steps"]
                return found
        plain = [entry for entry in self.script if not isinstance(entry, Mapping)]
        if not plain:
            raise Refused("internal", "The script has no entry for this.")
        if len(plain) > 1:
            self.script.remove(plain[0])
        steps: Sequence[Step] = plain[0]
        return steps


def _unary_error(refused: Refused) -> web.Response:
    return web.json_response(refused.body, status=HTTP_STATUS.get(refused.code, 500))

"""One agent on a bridge: its requests, the reader of its streams, and its session.

Toolwire gives each agent the client's tools as custom tools, and none of Cursor's own tools. The agent does
not read the person's settings, and works in an empty folder.
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

from toolwire.backends.agents.history import inline
from toolwire.backends.agents.mcp_server import error_result, tool_result
from toolwire.backends.agents.processes import clean
from toolwire.backends.agents.run import AgentRun
from toolwire.backends.cursor.bridge import Bridge, BridgeConnection
from toolwire.backends.cursor.client import AGENT, BridgeUnreachable, ConnectError, run_failure
from toolwire.backends.cursor.options import CursorOptions
from toolwire.core.errors import ToolwireError
from toolwire.core.events import Failure, Usage
from toolwire.core.turn import ImagePart, ToolSpec

CLOSING_S = 2.0
STATUS = "RUN_LIFECYCLE_STATUS_"
RUNNING = (f"{STATUS}RUNNING", f"{STATUS}CREATING")


def create_agent(
    id: str, options: CursorOptions, key: str, tools: Iterable[ToolSpec], work: Path
) -> dict[str, Any]:
    """Returns the body of the request CreateAgent."""
    custom = {
        tool.name: {
            "inputSchema": dict(tool.parameters) or {"type": "object", "properties": {}},
            **({"description": tool.description} if tool.description else {}),
        }
        for tool in tools
    }
    model: dict[str, Any] = {"id": options.model}
    if options.params:
        model["params"] = [{"id": id, "value": value} for id, value in options.params.items()]
    local: dict[str, Any] = {"cwd": [str(work)], "sandboxOptions": {"enabled": options.sandbox}}
    if custom:
        local["customTools"] = custom
    agent = {
        "agentId": id,
        "model": model,
        "local": local,
        "tools": {"names": ["mcp"] if custom else []},  # the group of tools that contains custom tools
    }
    return {"options": {**agent, "apiKey": key} if key else agent}


def send(agent: str, text: str, images: Iterable[ImagePart] = ()) -> dict[str, Any]:
    message: dict[str, Any] = {"text": text}
    found = [{"data": {"data": data, "mimeType": kind}} for data, kind in filter(None, map(inline, images))]
    if found:
        message["images"] = found
    return {"agentId": agent, "message": message, "options": {"enableDeltas": True}}


# --- reading ---

ENDS: dict[str, tuple[str, str]] = {
    "CANCELLED": ("backend_cut", "Cursor cancelled the run."),
    "EXPIRED": ("timeout", "Cursor ended the run because it had expired."),
}
OWN_TOOLS = frozenset(
    (
        "shell writeshellstdin read write edit delete ls glob grep readlints semsearch applyagentdiff "
        "fetch webfetch websearch xsearch task computeruse recordscreen generateimage generatevideo "
        "createagent sendtoagent stopagent writecanvas setactivebranch setupvmenvironment prmanagement "
        "connectscm"
    ).split()
)
"""Cursor's tools that access files, processes or the network, in the spelling of `_plain`."""


NOTHING = [0, 0, 0, 0]


class _TwoChannels:
    """Joins two channels that deliver the same text: one in deltas, one in whole messages."""

    def __init__(self) -> None:
        self._counts = {"delta": 0, "message": 0}
        self.sent = 0

    def news(self, channel: str, text: str) -> str:
        """Takes the next `text` of a channel. Returns only what no channel has delivered before."""
        self._counts[channel] += len(text)
        fresh = max(0, self._counts[channel] - self.sent)
        self.sent += fresh
        return text[len(text) - fresh :]


class SendReader:
    """Reads the stream of one Send request. Call `feed` with every message, and `check` at the end.

    An empty message is a keep-alive. A keep-alive restarts the run's timeout, except while the agent waits
    for an approval that nobody can give. If the agent uses one of `OWN_TOOLS`, `feed` raises an error, which
    ends the run.
    """

    def __init__(self, run: AgentRun, tools: frozenset[str]) -> None:
        self.run_id = ""
        self.over = False
        self.heard = False
        """Whether the run has sent anything other than keep-alives."""
        self._run = run
        self._tools = tools
        self._text = _TwoChannels()
        self._thoughts = _TwoChannels()
        self._order: dict[str, int] = {}
        self._waits_for_consent = False
        self._failure: Failure | None = None
        self._status = ""
        self._usages: dict[str, list[int]] = {}
        self._reported = NOTHING

    def feed(self, message: Mapping[str, Any]) -> None:
        kinds = ("sdkMessage", "interactionUpdate", "result", "done")
        kind = next((name for name in kinds if isinstance(message.get(name), Mapping)), None)
        if kind is None:
            if not self._waits_for_consent:
                self._run.alive()
            return
        self.heard = True
        self._waits_for_consent = False
        inner: Mapping[str, Any] = message[kind]
        self.run_id = self.run_id or _string(inner, "runId", "run_id")
        if kind == "sdkMessage":
            self._message(_payload(inner, "message"))
        elif kind == "interactionUpdate":
            self._update(_payload(inner, "update"))
        elif kind == "result":
            self._result(inner)
        self._run.alive()

    def check(self) -> None:
        if self._failure is not None:
            raise ToolwireError.of(self._failure)
        if not self.over:
            problem = "Cursor's bridge ended the stream before the agent's answer was complete."
            raise ToolwireError("backend_cut", problem)

    def order(self, call_id: str | None) -> int:
        """Returns the position of a call among the calls of a response.

        Calls are ordered by the first message that mentions each call.
        """
        return self._order.setdefault(call_id or f" {len(self._order)}", len(self._order) + 1)

    def answered(self) -> None:
        """Records the usage that was reported so far.

        Called when the calls of a response have been answered.
        """
        self._reported = self._used()

    def _message(self, payload: Mapping[str, Any]) -> None:
        kind = payload.get("type")
        self.run_id = self.run_id or _string(payload, "run_id", "runId")
        if kind == "assistant":
            for block in _blocks(payload):
                if block.get("type") == "text":
                    self._run.text(self._text.news("message", _string(block, "text")))
        elif kind == "thinking":
            self._run.thought(self._thoughts.news("message", _string(payload, "text")))
        elif kind == "tool_call":
            self._tool(payload)
        elif kind == "status":
            self._status = _string(payload, "message") or self._status
        elif kind == "usage":
            self._use("message", payload.get("usage"))
        elif kind == "request":
            self._waits_for_consent = True

    def _update(self, payload: Mapping[str, Any]) -> None:
        kind = payload.get("type")
        if kind == "text-delta":
            self._run.text(self._text.news("delta", _string(payload, "text")))
        elif kind == "thinking-delta":
            self._run.thought(self._thoughts.news("delta", _string(payload, "text")))
        elif kind in ("tool-call-started", "partial-tool-call"):
            if call_id := _string(payload, "callId"):
                self.order(call_id)
        elif kind == "turn-ended":
            self._use("turn", payload.get("usage"))

    def _tool(self, payload: Mapping[str, Any]) -> None:
        name = _string(payload, "name")
        if call_id := _string(payload, "call_id", "callId"):
            self.order(call_id)
        if name not in self._tools and _plain(name) in OWN_TOOLS:
            problem = f"Cursor's agent used its own tool '{clean(name)}', which is not allowed."
            raise ToolwireError("backend", f"{problem} The run stopped.")

    def _result(self, inner: Mapping[str, Any]) -> None:
        nested = inner.get("result")
        result = nested if isinstance(nested, Mapping) else inner
        status = (_string(inner, "status") or _string(result, "status")).removeprefix(STATUS)
        self.over = True
        self._use("result", result.get("usage"))
        if status == "FINISHED":
            if not self._text.sent:
                self._run.text(self._text.news("message", _string(result, "result")))
        elif status in ENDS:
            self._failure = Failure(*ENDS[status])
        else:
            code = _string(result, "errorCode") or _string(inner, "errorCode")
            self._failure = run_failure(code, _string(result, "errorMessage") or self._status)

    def _use(self, source: str, usage: Any) -> None:
        counts = _counts(usage) if isinstance(usage, Mapping) else None
        if counts is None:
            return
        if source != "result":  # a result already contains the sum
            counts = [a + b for a, b in zip(self._usages.get(source, NOTHING), counts, strict=True)]
        self._usages[source] = counts
        pairs = zip(self._used(), self._reported, strict=True)
        total, output, cached, reasoning = (max(0, now - before) for now, before in pairs)
        self._run.usage(Usage(max(0, total - output), output, cached, reasoning))

    def _used(self) -> list[int]:
        """Returns the usage of the whole run, from the most reliable source that is available."""
        found = (self._usages[one] for one in ("result", "message", "turn") if one in self._usages)
        return next(found, NOTHING)


def _counts(usage: Mapping[str, Any]) -> list[int] | None:
    """Returns the total, output, cached and reasoning tokens, or None if there are no counts."""
    given, output, cached, reasoning, total = (
        _number(usage, f"{name}Tokens", f"{name.replace('R', '_r')}_tokens")
        for name in ("input", "output", "cacheRead", "reasoning", "total")
    )
    if given is None and output is None:
        return None
    return [max(total or 0, (given or 0) + (output or 0)), output or 0, cached or 0, reasoning or 0]


def _number(value: Mapping[str, Any], *names: str) -> int | None:
    """Returns the first valid number under these names. Protobuf's JSON may write a number as a string."""
    for name in names:
        try:
            return max(0, int(value[name]))
        except (KeyError, TypeError, ValueError):
            continue
    return None


def _plain(name: str) -> str:
    """Returns the same spelling for all forms of a name: `shell_tool_call`, `shellToolCall`, `Shell`."""
    return re.sub(r"tool(?:call)?$", "", re.sub(r"[^a-z]", "", name.lower()))


def _string(value: Mapping[str, Any], *names: str) -> str:
    return next((value[name] for name in names if isinstance(value.get(name), str)), "")


def _payload(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Returns the message or update itself.

    Some bridges wrap a message in an object. In this object, `name` is the key of the message.
    """
    inner = value.get(name)
    if isinstance(inner, Mapping) and (name == "update" or "type" in inner):
        return {"type": value.get("type"), **inner}
    return value


def _blocks(payload: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    message = payload.get("message")
    blocks = message.get("content") if isinstance(message, Mapping) else None
    return [block for block in blocks if isinstance(block, Mapping)] if isinstance(blocks, list) else []


class CursorSession:
    def __init__(self, bridge: Bridge, connection: BridgeConnection, id: str, tools: frozenset[str]) -> None:
        self.id = id
        self._bridge = bridge
        self._connection = connection
        self._tools = tools
        self._run: AgentRun | None = None
        self._reader: SendReader | None = None
        self._sending = False
        bridge.agents[id] = self._called

    @classmethod
    async def create(
        cls, bridge: Bridge, options: CursorOptions, key: str, tools: Iterable[ToolSpec]
    ) -> CursorSession:
        tools = tuple(tools)
        connection = await bridge.connect()
        session = cls(bridge, connection, f"agent-{uuid.uuid4()}", frozenset(tool.name for tool in tools))
        try:
            if connection.process is None and tools:
                # another client of this bridge may have changed the callback
                await bridge.set_callback(connection)
            body = create_agent(session.id, options, key, tools, connection.work)
            made = await connection.ask(f"{AGENT}/CreateAgent", body)
            if made.get("agentId") != session.id:
                raise ToolwireError("backend", "Cursor's bridge gave the agent an unexpected id.")
        except BaseException:
            bridge.in_background(session.close())  # the bridge may have created the agent
            raise
        return session

    @property
    def alive(self) -> bool:
        return self._connection.alive and self._bridge.agents.get(self.id) == self._called

    async def prompt(self, run: AgentRun, text: str, images: Sequence[ImagePart] = ()) -> None:
        self._run = run
        self._reader = reader = SendReader(run, self._tools)
        self._sending = True
        try:
            stream = self._connection.client.stream(f"{AGENT}/Send", send(self.id, text, images))
            async with aclosing(stream) as messages:
                async for message in messages:
                    if run.tap is not None:
                        run.tap("message", message)
                    reader.feed(message)
        except BridgeUnreachable as error:
            if not reader.over:
                raise await self._connection.lost(error) from error
        except ConnectError as error:
            if error.code == "not_found" and not reader.heard:  # the bridge does not know the agent any more
                self._sending = False
                self._bridge.agents.pop(self.id, None)
            raise
        finally:
            self._run = None
        reader.check()
        self._sending = False

    async def close(self) -> None:
        """Cancels the current run, closes the agent and deletes what the bridge stores about it."""
        if self._sending and self._connection.alive:
            self._sending = False
            with suppress(ToolwireError):
                for run_id in await self._current_runs():
                    await self._request("CancelRun", {"runId": run_id})
        self._bridge.agents.pop(self.id, None)
        if self._connection.alive:
            with suppress(ToolwireError):
                await self._request("CloseAgent", {})
            with suppress(ToolwireError):
                await self._request("DeleteAgent", {"options": {"cwd": str(self._connection.work)}})

    async def _current_runs(self) -> list[str]:
        if self._reader is not None and self._reader.run_id:
            return [self._reader.run_id]
        options = {"runtime": "RUNTIME_LOCAL", "cwd": str(self._connection.work)}
        items = (await self._request("ListRuns", {"options": options})).get("items") or ()
        running = (run for run in items if isinstance(run, dict) and run.get("status") in RUNNING)
        return [run["runId"] for run in running if "runId" in run]

    async def _request(self, method: str, body: dict[str, Any]) -> dict[str, Any]:
        client = self._connection.client
        return await client.unary(f"{AGENT}/{method}", {**body, "agentId": self.id}, CLOSING_S)

    async def _called(self, tool: str, arguments: dict[str, Any], call_id: str | None) -> dict[str, Any]:
        run, reader = self._run, self._reader
        if run is None or reader is None:
            return error_result("No turn is in progress: nobody can answer this call.")
        if tool not in self._tools:
            known = ", ".join(sorted(self._tools)) or "none"
            return error_result(f"There is no tool '{tool}' here. There are: {known}.")
        try:
            encoded = json.dumps(arguments, ensure_ascii=False)
            result = await run.call(tool, encoded, call_id, reader.order(call_id))
        except ToolwireError as error:
            return error_result(error.failure.message)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # the bridge closed the connection
            return error_result("The run was cancelled.")
        reader.answered()
        return tool_result(result)

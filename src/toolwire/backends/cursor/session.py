"""One agent on a bridge. It gets the client's tools as custom tools, and none of Cursor's own.

It reads no settings of the person's, and works in an empty folder.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import uuid
from collections.abc import Iterable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from toolwire.backends.agents.history import words
from toolwire.backends.agents.run import AgentRun
from toolwire.backends.cursor.bridge import Bridge, BridgeConnection, error_result
from toolwire.backends.cursor.client import AGENT, BridgeUnreachable, ConnectError
from toolwire.backends.cursor.options import CursorOptions
from toolwire.backends.cursor.reading import SendReader
from toolwire.core.errors import ToolwireError
from toolwire.core.turn import ImagePart, Part, Result, ToolSpec

GOODBYE_S = 2.0
RUNNING = ("RUN_LIFECYCLE_STATUS_RUNNING", "RUN_LIFECYCLE_STATUS_CREATING")
_DATA = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[\w.+-]+=[^;,]*)*(;base64)?,(.*)", re.DOTALL)


def create_agent(
    id: str, options: CursorOptions, key: str, tools: Iterable[ToolSpec], work: Path
) -> dict[str, Any]:
    """The body of CreateAgent. Toolwire chooses the id, so that it can assign the agent's first call."""
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
        "tools": {"names": ["mcp"] if custom else []},  # the group that custom tools belong to
    }
    return {"options": {**agent, "apiKey": key} if key else agent}


def send(agent: str, text: str, images: Iterable[ImagePart] = ()) -> dict[str, Any]:
    """The body of Send."""
    message: dict[str, Any] = {"text": text}
    pictures = [
        {"data": {"data": data, "mimeType": kind}} for data, kind in filter(None, map(inline, images))
    ]
    if pictures:
        message["images"] = pictures
    return {"agentId": agent, "message": message, "options": {"enableDeltas": True}}


def content(result: Result) -> dict[str, Any]:
    """A client's result as the result of the agent's call."""
    parts = [_part(part) for part in result.parts] or [{"type": "text", "text": ""}]
    return {"content": parts, "isError": False}


def _part(part: Part) -> dict[str, Any]:
    found = inline(part) if isinstance(part, ImagePart) else None
    if found is None:
        return {"type": "text", "text": words((part,))}
    return {"type": "image", "data": found[0], "mimeType": found[1]}


def inline(image: ImagePart) -> tuple[str, str] | None:
    """Base64 and MIME type of a data URL; None for any other image."""
    found = _DATA.fullmatch(image.url or "")
    if found is None:
        return None
    kind, encoded, data = found.groups()
    if not encoded:
        return base64.b64encode(unquote_to_bytes(data)).decode(), kind
    try:
        base64.b64decode(data, validate=True)
    except ValueError:
        return None
    return data, kind


class AgentUnknown(ToolwireError):
    """The bridge no longer knows the agent: a fresh one needs the whole conversation."""


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
                await bridge.set_callback(connection)  # another client of this bridge may have changed it
            body = create_agent(session.id, options, key, tools, connection.work)
            made = await connection.ask(f"{AGENT}/CreateAgent", body)
            if made.get("agentId") != session.id:
                raise ToolwireError("backend", "Cursor's bridge gave the agent an id that was not asked for.")
        except BaseException:
            bridge.in_background(session.close())  # the bridge may have made the agent
            raise
        return session

    @property
    def alive(self) -> bool:
        return self._connection.alive and self._bridge.agents.get(self.id) == self._called

    async def prompt(self, run: AgentRun, text: str, images: Iterable[ImagePart] = ()) -> None:
        """Sends a prompt and reads the agent's answer to its end; raises the failure of the run."""
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
            if error.code == "not_found" and not reader.heard:
                raise AgentUnknown(error.failure.kind, error.failure.message) from error
            raise
        finally:
            self._run = None
        reader.check()
        self._sending = False

    async def stop(self) -> None:
        """Cancels the current run, and closes the agent."""
        if self._sending and self._connection.alive:
            with suppress(ToolwireError):
                for run_id in await self._current_runs():
                    await self._goodbye("CancelRun", {"runId": run_id})
        await self.close()

    async def _current_runs(self) -> list[str]:
        if self._reader is not None and self._reader.run_id:
            return [self._reader.run_id]
        options = {"runtime": "RUNTIME_LOCAL", "cwd": str(self._connection.work)}
        found = await self._goodbye("ListRuns", {"options": options})
        return [
            run["runId"]
            for run in found.get("items") or ()
            if isinstance(run, dict) and run.get("status") in RUNNING and "runId" in run
        ]

    async def _goodbye(self, method: str, body: dict[str, Any]) -> dict[str, Any]:
        client = self._connection.client
        return await client.unary(f"{AGENT}/{method}", {**body, "agentId": self.id}, GOODBYE_S)

    async def close(self) -> None:
        """Closes the agent and deletes what the bridge stores about it."""
        self._bridge.agents.pop(self.id, None)
        if self._connection.alive:
            with suppress(ToolwireError):
                await self._goodbye("CloseAgent", {})
            with suppress(ToolwireError):
                await self._goodbye("DeleteAgent", {"options": {"cwd": str(self._connection.work)}})

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
                raise  # the bridge hung up
            return error_result("The run was cancelled.")
        reader.answered()
        return content(result)

"""One agent on a bridge: told something, its calls answered, cancelled, closed."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import re
import uuid
from collections.abc import Iterable, Mapping
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from toolwire.backends.agents.history import words
from toolwire.backends.agents.run import AgentRun
from toolwire.backends.cursor.bridge import Bridge, BridgeConnection, refusal
from toolwire.backends.cursor.client import AGENT, BridgeUnreachable, ConnectError, of_error
from toolwire.backends.cursor.options import CursorOptions
from toolwire.backends.cursor.reading import SendReader
from toolwire.core.errors import ToolwireError
from toolwire.core.turn import ImagePart, Part, Result, ToolSpec

# --- wire ------------------------------------------------------------
#
# Turn → what the bridge takes, and a client's result → what an agent gets. Pure. The client's tools go in
# as they are, as custom tools. Cursor's own tools are left out: the group `mcp` is what reaches custom
# tools, and without tools the list is empty. No settings of the person's are read, and the folder is
# empty.

CUSTOM_TOOLS = "mcp"
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
_DATA = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[\w.+-]+=[^;,]*)*(;base64)?,(.*)", re.DOTALL)


def create_agent(id: str, options: CursorOptions, key: str, tools: Iterable[ToolSpec], work: Path) -> dict[str, Any]:
    """The body of CreateAgent. The agent's id is ours, so that its calls are known from the first on."""
    custom = {tool.name: _tool(tool) for tool in tools}
    model: dict[str, Any] = {"id": options.model}
    if options.params:
        model["params"] = [{"id": id, "value": value} for id, value in options.params.items()]
    local: dict[str, Any] = {"cwd": [str(work)], "sandboxOptions": {"enabled": options.sandbox}}
    if custom:
        local["customTools"] = custom
    agent = {"agentId": id, "model": model, "local": local, "tools": {"names": [CUSTOM_TOOLS] if custom else []}}
    return {"options": {**agent, "apiKey": key} if key else agent}


def _tool(tool: ToolSpec) -> dict[str, Any]:
    definition: dict[str, Any] = {"inputSchema": dict(tool.parameters) or dict(NO_PARAMETERS)}
    if tool.description:
        definition["description"] = tool.description
    return definition


def send(agent: str, text: str, images: Iterable[ImagePart] = ()) -> dict[str, Any]:
    """The body of Send."""
    message: dict[str, Any] = {"text": text}
    pictures = [{"data": {"data": data, "mimeType": kind}} for data, kind in filter(None, map(inline, images))]
    if pictures:
        message["images"] = pictures
    return {"agentId": agent, "message": message, "options": {"enableDeltas": True}}


def content(result: Result) -> dict[str, Any]:
    """What the agent gets as its call's result."""
    return {"content": [_part(part) for part in result.parts] or [_text("")], "isError": False}


def _part(part: Part) -> dict[str, Any]:
    found = inline(part) if isinstance(part, ImagePart) else None
    return {"type": "image", "data": found[0], "mimeType": found[1]} if found else _text(words((part,)))


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def inline(image: ImagePart) -> tuple[str, str] | None:
    """Base64 and MIME type of an image that is there; None for one that lies elsewhere."""
    found = _DATA.fullmatch(image.url or "")
    if found is None:
        return None
    if found[2]:
        try:
            base64.b64decode(found[3], validate=True)
        except (binascii.Error, ValueError):
            return None
        return found[3], found[1]
    return base64.b64encode(unquote_to_bytes(found[3])).decode(), found[1]


GOODBYE_S = 2.0
RUNNING = ("RUN_LIFECYCLE_STATUS_RUNNING", "RUN_LIFECYCLE_STATUS_CREATING")


class Forgotten(ToolwireError):
    """The bridge does not know the agent any more: the conversation has to be told anew."""


class CursorSession:
    def __init__(self, bridge: Bridge, line: BridgeConnection, id: str, tools: frozenset[str]) -> None:
        self.id = id
        self._bridge = bridge
        self._line = line
        self._tools = tools
        self._run: AgentRun | None = None
        self._reader: SendReader | None = None
        self._sending = False
        bridge.agents[id] = self._called

    @classmethod
    async def create(cls, bridge: Bridge, options: CursorOptions, key: str, tools: Iterable[ToolSpec]) -> CursorSession:
        tools = tuple(tools)
        line = await bridge.line()
        session = cls(bridge, line, f"agent-{uuid.uuid4()}", frozenset(tool.name for tool in tools))
        try:
            if line.process is None and tools:
                await bridge.listen(line)  # somebody else may have told this bridge another place since
            made = await line.client.unary(f"{AGENT}/CreateAgent", create_agent(session.id, options, key, tools, line.work))
            if made.get("agentId") != session.id:
                raise ToolwireError("backend", "Cursor's bridge made an agent with another id than was asked for.")
        except BaseException as error:
            bridge.later(session.close())  # it may have been made nevertheless
            if isinstance(error, BridgeUnreachable):
                raise await line.lost(error) from error
            if isinstance(error, ConnectError):
                raise ToolwireError.of(of_error(error)) from error
            raise
        return session

    @property
    def alive(self) -> bool:
        return self._line.alive and self._bridge.agents.get(self.id) == self._called

    async def say(self, run: AgentRun, text: str, images: Iterable[ImagePart] = ()) -> None:
        """Tells the agent something, and reads its answer to the end. Raises what it failed with."""
        self._run = run
        self._reader = reader = SendReader(run, self._tools)
        self._sending = True
        try:
            async with aclosing(self._line.client.stream(f"{AGENT}/Send", send(self.id, text, images))) as messages:
                async for message in messages:
                    if run.tap is not None:
                        run.tap("message", message)
                    reader.feed(message)
        except BridgeUnreachable as error:
            if not reader.over:
                raise await self._line.lost(error) from error
        except ConnectError as error:
            failure = of_error(error)
            if error.code == "not_found" and not reader.heard:
                raise Forgotten(failure.kind, failure.message) from error
            raise ToolwireError.of(failure) from error
        finally:
            self._run = None
        reader.check()
        self._sending = False

    async def stop(self) -> None:
        """Ends what is under way, and the agent."""
        if self._sending and self._line.alive:
            with suppress(ToolwireError, ConnectError):
                for run_id in await self._under_way():
                    await self._line.client.unary(f"{AGENT}/CancelRun", {"runId": run_id, "agentId": self.id}, GOODBYE_S)
        await self.close()

    async def _under_way(self) -> list[str]:
        if self._reader is not None and self._reader.run_id:
            return [self._reader.run_id]
        options = {"runtime": "RUNTIME_LOCAL", "cwd": str(self._line.work)}
        found = await self._line.client.unary(f"{AGENT}/ListRuns", {"agentId": self.id, "options": options}, GOODBYE_S)
        return [run["runId"] for run in found.get("items") or () if isinstance(run, dict) and run.get("status") in RUNNING and "runId" in run]

    async def close(self) -> None:
        """Lets the agent go, and what the bridge keeps of it."""
        self._bridge.agents.pop(self.id, None)
        if self._line.alive:
            for method, options in (("CloseAgent", {}), ("DeleteAgent", {"options": {"cwd": str(self._line.work)}})):
                with suppress(ToolwireError, ConnectError):
                    await self._line.client.unary(f"{AGENT}/{method}", {"agentId": self.id, **options}, GOODBYE_S)

    async def _called(self, tool: str, arguments: dict[str, Any], call_id: str | None) -> dict[str, Any]:
        run, reader = self._run, self._reader
        if run is None or reader is None:
            return refusal("No turn is under way: nobody could answer this call.")
        if tool not in self._tools:
            return refusal(f"There is no tool '{tool}' here. There are: {', '.join(sorted(self._tools)) or 'none'}.")
        try:
            result = await run.call(tool, json.dumps(arguments, ensure_ascii=False), call_id, reader.place(call_id))
        except ToolwireError as error:
            return refusal(error.failure.message)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # the bridge hung up
            return refusal("The run was cancelled.")
        reader.answered()
        return content(result)

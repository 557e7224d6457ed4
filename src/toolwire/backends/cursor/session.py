"""One agent on a bridge: told something, its calls answered, cancelled, closed."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterable
from contextlib import aclosing, suppress
from typing import Any

from toolwire.backends.agents.run import AgentRun
from toolwire.backends.cursor.bridge import Bridge, Line
from toolwire.backends.cursor.client import AGENT, Unreachable
from toolwire.backends.cursor.connect import ConnectError
from toolwire.backends.cursor.failures import of_error
from toolwire.backends.cursor.options import CursorOptions
from toolwire.backends.cursor.reading import Reader
from toolwire.backends.cursor.wire import content, create_agent, refusal, send
from toolwire.errors import ToolwireError
from toolwire.turn import ImagePart, ToolSpec

GOODBYE_S = 2.0
RUNNING = ("RUN_LIFECYCLE_STATUS_RUNNING", "RUN_LIFECYCLE_STATUS_CREATING")


class Forgotten(ToolwireError):
    """The bridge does not know the agent any more: the conversation has to be told anew."""


class Session:
    def __init__(self, bridge: Bridge, line: Line, id: str, tools: frozenset[str]) -> None:
        self.id = id
        self._bridge = bridge
        self._line = line
        self._tools = tools
        self._run: AgentRun | None = None
        self._reader: Reader | None = None
        self._sending = False
        bridge.agents[id] = self._called

    @classmethod
    async def create(cls, bridge: Bridge, options: CursorOptions, key: str, tools: Iterable[ToolSpec]) -> Session:
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
            if isinstance(error, Unreachable):
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
        self._reader = reader = Reader(run, self._tools)
        self._sending = True
        try:
            async with aclosing(self._line.client.stream(f"{AGENT}/Send", send(self.id, text, images))) as messages:
                async for message in messages:
                    if run.tap is not None:
                        run.tap("message", message)
                    reader.feed(message)
        except Unreachable as error:
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

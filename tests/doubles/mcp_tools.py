"""Fake MCP servers for tests of the gateway: tools in this process, and rules for their calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolwire.core.errors import ToolwireError
from toolwire.core.events import McpResult
from toolwire.core.mcp import McpServer, call_name
from toolwire.gateway.records import Caller
from toolwire.gateway.served import Action, Purpose, ServedCall, ServedTool, refused_result

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


@dataclass
class FakeServers:
    """The server `files`, with the tools `read` and `write`.

    `rules`: for each tool, the action of the operator's rules. `ran`: every call that reached the server.
    """

    rules: dict[str, Action] = field(default_factory=lambda: {"read": "allow", "write": "ask"})
    answers: Callable[[str, Mapping[str, Any]], str] = lambda tool, arguments: (
        f"contents of {arguments['path']}"
    )
    pin: str = "sha256:1"
    problem: str = ""
    person: bool = True
    """Whether the person approves the calls about which the rules ask."""
    ran: list[tuple[str, str]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    """The tools about whose calls the person was asked."""
    gate: asyncio.Event | None = None
    cancelled: bool = False

    async def offered(self, server: McpServer, caller: Caller) -> Sequence[ServedTool] | None:
        if server.label != "files" or server.url:
            return None
        if self.problem:
            raise ToolwireError("external_connector", self.problem, param="tools")
        return [
            ServedTool(
                call_name("files", name), "files", name, f"{name}s a file", SCHEMA, name == "read", self.pin
            )
            for name in self.rules
        ]

    def _tool(self, name: str) -> ServedTool:
        public, description = call_name("files", name), f"{name}s a file"
        return ServedTool(public, "files", name, description, SCHEMA, name == "read", self.pin)

    def action(self, tool: ServedTool, arguments: Mapping[str, Any]) -> Action:
        return self.rules[tool.tool]

    async def run(self, calls: Sequence[ServedCall], purpose: Purpose) -> Sequence[McpResult]:
        try:
            if self.gate is not None:
                await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return [self._run(call) for call in calls]

    def _run(self, call: ServedCall) -> McpResult:
        action = self.rules[call.tool.tool]
        if action == "ask" and not call.granted:
            self.asked.append(call.tool.tool)
            action = "allow" if self.person else "deny"
        if action == "deny":
            return refused_result("The operator's rules deny this call.")
        self.ran.append((call.tool.tool, call.arguments))
        text = self.answers(call.tool.tool, json.loads(call.arguments))
        return refused_result(text) if text.startswith("error:") else McpResult(text)

"""The MCP servers of a recorded turn: what they offered and returned, and what the client had approved.

These classes replace the servers and the store when the turn is computed or run again. They call no server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolwire.access.keys import KeyGrant
from toolwire.core.events import Event, McpCall, McpResult
from toolwire.core.ids import IdFactory
from toolwire.core.mcp import McpServer
from toolwire.core.turn import Turn
from toolwire.gateway.approval_requests import ApprovalRequest
from toolwire.gateway.records import Caller
from toolwire.gateway.rounds import Round, ServedTurn, Step
from toolwire.gateway.served import Action, Purpose, ServedCall, ServedTool, TakenCalls, refused_result

TOOLS = "tools"
"""The value of `RecordedRun.how` for a round: the gateway calls MCP tools between two runs of the model."""


Batches = Sequence[tuple[float, int, list[dict[str, Any]]]]
"""Rows with the time, the number of the run, and its events."""


class RecordedServers:
    """The servers and the approval requests of a recorded turn."""

    def __init__(
        self, served: Mapping[str, Any], batches: Sequence[tuple[float, int, list[dict[str, Any]]]]
    ) -> None:
        self._tools = {
            label: [ServedTool(**tool) for tool in tools] for label, tools in served.get("tools", {}).items()
        }
        self._known = {row["id"]: ApprovalRequest(**row) for row in served.get("known", ())}
        self._actions: list[Action] = list(served.get("actions", ()))
        self.caller_grant = KeyGrant(approve=True) if served.get("approve") else None
        self._results: dict[str, McpResult] = {}
        called = ""
        for _, _, events in batches:
            for event in events:
                if event["type"] == "McpCall":
                    called = event["id"]
                elif event["type"] == "McpResult":
                    self._results[called] = McpResult(event.get("output"), event.get("error"))

    def lists(self, turn: Turn) -> list[Sequence[ServedTool] | None]:
        return [self._tools.get(one.label) for one in (turn.mcp.servers if turn.mcp is not None else ())]

    @property
    def known(self) -> dict[str, ApprovalRequest]:
        return self._known

    # --- as the tool runtime ---

    async def offered(self, server: McpServer, caller: Caller) -> Sequence[ServedTool] | None:
        return self._tools.get(server.label)

    def action(self, tool: ServedTool, arguments: Mapping[str, Any]) -> Action:
        return self._actions.pop(0) if self._actions else "allow"

    async def run(self, calls: Sequence[ServedCall], purpose: Purpose) -> Sequence[McpResult]:
        lost = refused_result("The recording has no result of this call.")
        return [self._results.get(call.id, lost) for call in calls]

    # --- as the approval requests ---

    async def add(self, requests: Sequence[ApprovalRequest], now: float) -> None:
        pass

    async def read(self, ids: Sequence[str], key_id: str, now: float) -> dict[str, ApprovalRequest]:
        return self._known

    async def use(self, id: str, key_id: str, now: float) -> bool:
        return True


class RecordedRounds:
    """The rounds of MCP calls in a recorded turn, computed from its events.

    A round is the MCP calls that the gateway makes between two runs of the model. Pure: no server is called.
    """

    def __init__(self, served: Mapping[str, Any], batches: Batches, ids: IdFactory) -> None:
        self._servers = RecordedServers(served, batches)
        self._served = ServedTurn(self._servers, self._servers, Caller(grant=self._servers.caller_grant), ids)
        self._round: Round | None = None
        self._ended: Round | None = None
        self._left: list[Step] = []

    @property
    def opening(self) -> list[Event]:
        return self._served.opening

    def arranged(self, turn: Turn) -> Turn:
        turn = self._served.arranged(turn, self._servers.lists(turn), self._servers.known)
        self._round = self._served.approved
        return turn

    @property
    def begins_with_run(self) -> bool:
        return self._round is None

    def taken(self) -> TakenCalls:
        """Returns the `TakenCalls` that collects the MCP calls of the model's next run."""
        return TakenCalls(self._served.names)

    def begins(self, turn: Turn) -> Turn:
        """Returns the turn for the model's next run."""
        ended, self._ended = self._ended, None
        return turn if ended is None else self._served.extended(turn, ended)

    def calls(self, before: TakenCalls | None) -> TakenCalls:
        """Begins a round of MCP calls, and returns the `TakenCalls` for the events of the round.

        `before`: the MCP calls of the preceding run; None for the calls that the client approved.
        """
        round = self._round if before is None else self._served.following(before)
        self._round, self._ended = None, round or Round()
        self._left = list(self._ended.steps)
        return TakenCalls(holds=self._ended.finish is None and not self._ended.asked)

    def feed(self, events: Sequence[Event]) -> None:
        """Reads the events of a round of MCP calls."""
        for event in events:
            if isinstance(event, McpCall) and self._left:
                self._left[0].id = event.id
            elif isinstance(event, McpResult) and self._left and self._ended is not None:
                self._ended.got(self._left.pop(0), event)

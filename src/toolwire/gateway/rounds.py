"""Calls tools of MCP servers during one response, in rounds.

    [approved calls] ─▶ model ─▶ its calls ─▶ model ─▶ … ─▶ end

A round runs the calls that the model made in one run; then the model continues. A round ends the response if
the client has to do something: approve a call, or run one of the client's own tools. An approval is bound to
exactly the call that the client was shown (`approval_requests.py`).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from toolwire.backends.base import Batch
from toolwire.core.errors import ToolwireError
from toolwire.core.events import Event, Failure, Finish, McpAsk, McpCall, McpResult, McpTools
from toolwire.core.ids import IdFactory
from toolwire.core.mcp import McpAnswer, McpPart, McpServer, call_name
from toolwire.core.turn import Call, Item, Result, TextPart, ToolChoice, ToolSpec, Turn
from toolwire.gateway.approval_requests import LIFETIME_S, ApprovalRequest, RequestTable
from toolwire.gateway.records import Caller
from toolwire.gateway.served import (
    Action,
    Purpose,
    ServedCall,
    ServedTool,
    ServedTools,
    TakenCall,
    TakenCalls,
    plain,
    refused_result,
)
from toolwire.wire.responses.mcp import PREFIX, error_text, for_model

if TYPE_CHECKING:
    from toolwire.observe.trace import Trace

MOST_ROUNDS = 16
"""After this many rounds of calls in one response, the model must answer without further calls."""
MOST_CALLS = 128
"""The most calls of MCP servers in one response."""
LARGEST_LIST = 1_000_000
"""The maximum size of all servers' tool definitions together in one response, in characters."""
TOO_MANY = "Not run: this response has reached its limit of calls. Answer with what you have."
CHANGED = "Not run: the tool has changed, or is no longer offered, since the call was approved."
UNKNOWN_REQUEST = (
    "this approval request is unknown, belongs to another API key, was changed, has expired, or was already "
    "answered."
)


@dataclass(slots=True, eq=False)
class Step:
    """A call of a `Round`.

    `approval`: the id of the request that the client approved. `refused`: why the call does not run; None if
    it runs.
    """

    tool: ServedTool
    arguments: str
    approval: str | None = None
    granted: bool = False
    refused: str | None = None
    id: str = ""


@dataclass(slots=True)
class Round:
    """A round: the calls `steps`, which run together.

    `asked`: calls that the client must approve first. `said`: what the model wrote before the calls.
    `finish`: the end of the response; None if the model's next run follows.
    """

    steps: list[Step] = field(default_factory=list)
    asked: list[Step] = field(default_factory=list)
    said: list[Item] = field(default_factory=list)
    finish: Finish | None = None
    results: dict[str, Result] = field(default_factory=dict)
    """The results so far, by call id."""

    def got(self, step: Step, result: McpResult) -> None:
        id = step.approval or step.id
        text = error_text(result.error) if result.error is not None else result.output or ""
        parts = (TextPart(for_model(id, step.tool.server, text)),)
        self.results[id] = Result(id, parts, is_error=result.error is not None)


class ServedTurn:
    """The MCP servers of one response. Call `begin` first."""

    def __init__(
        self,
        tools: ServedTools,
        requests: RequestTable,
        caller: Caller,
        ids: IdFactory,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._tools, self._requests, self._caller = tools, requests, caller
        self._ids, self._clock = ids, clock
        self._may_approve = caller.grant is not None and caller.grant.approve
        self._servers: dict[str, McpServer] = {}
        self._offered: dict[str, ServedTool] = {}
        self._own: tuple[str, ...] = ()
        self._left = MOST_CALLS
        self._actions: list[Action] = []
        self.rounds = 0
        """How many rounds of calls the model has made."""
        self.opening: list[Event] = []
        """The events with which the answer begins: for each server, the list of its tools."""
        self.has_run = False
        """Whether a call may have run. If so, no run of the model may be repeated."""
        self.approved: Round | None = None
        """The calls that the client approved with this request."""

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._offered)

    # --- before the first run ---

    async def begin(self, turn: Turn, trace: Trace | None = None) -> Turn:
        """Returns the turn with the servers' tools. Also reads the client's answers to approval requests.

        Raises `ToolwireError` if the tools of a server cannot be listed, or if an answer is not valid.
        """
        part, now, key_id = turn.mcp, self._clock(), self._caller.key_id
        assert part is not None
        lists = await asyncio.gather(*(self._tools.offered(one, self._caller) for one in part.servers))
        lists = _chosen(part.servers, lists)
        ids = [*(one.id for one in part.questions), *(one.id for one in part.answers)]
        known = await self._requests.read(ids, key_id, now) if ids else {}
        if trace is not None:
            trace.looked_up(served=recorded(part.servers, lists, known, self._may_approve, self._actions))
        turn = self.arranged(turn, lists, known)
        for answer in part.answers:  # a denial is final
            if not answer.approve and (row := known.get(answer.id)) is not None and row.used_at is None:
                await self._requests.use(row.id, key_id, now)
        return turn

    def arranged(
        self, turn: Turn, lists: Sequence[Sequence[ServedTool] | None], known: Mapping[str, ApprovalRequest]
    ) -> Turn:
        """Returns the turn with the servers' tools.

        `lists`: the tools of each server. `known`: the approval requests in the store, by id. Does no I/O.
        """
        part = turn.mcp
        assert part is not None
        served = [(one, tools) for one, tools in zip(part.servers, lists, strict=True) if tools is not None]
        if len(served) < len(part.servers):
            turn = unserved(turn)
        declared = {tool.name for tool in turn.tools}
        renamed: dict[str, str] = {}
        for server, tools in served:
            self._servers[server.label] = server
            for tool in tools:
                if tool.name in declared:
                    raise _invalid(server.path, f"its tool '{tool.name}' has the name of another tool.")
                declared.add(tool.name)
                self._offered[tool.name] = tool
                renamed[call_name(tool.server, tool.tool)] = tool.name
            if server.label not in part.listed:
                self.opening.append(McpTools(self._ids("mcpl_"), server.label, tuple(map(_listed, tools))))
        self._check_questions(part, known)
        steps = [self._answered(one, known.get(one.id)) for one in part.answers if one.approve]
        self.approved = Round(steps) if steps else None
        self._own = tuple(tool.name for tool in turn.tools)
        specs = (ToolSpec(it.name, it.description, it.parameters) for it in self._offered.values())
        turn = replace(turn, tools=(*turn.tools, *specs), items=tuple(_renamed(turn.items, renamed)))
        limit = turn.echo.get("max_tool_calls")
        if limit is not None and self._offered:
            self._left = min(self._left, limit)
            turn = replace(turn, sent=turn.sent - {"max_tool_calls"})  # honoured here
        return replace(turn, tool_choice=self._choice(turn, part))

    def _choice(self, turn: Turn, part: McpPart) -> ToolChoice:
        """Returns the tool choice with the names by which the model knows the tools."""
        choice = turn.tool_choice
        if not part.chosen:
            if choice.mode == "required" and not turn.tools:
                raise _invalid(
                    "tool_choice", "a call is required, but this server can offer none of the tools."
                )
            return choice
        names = list(choice.allowed or ())
        for label, name in part.chosen:
            if label not in self._servers:
                continue
            found = [it for it in self._offered.values() if it.server == label and name in (None, it.tool)]
            if not found:
                raise _invalid("tool_choice", "the server has no such tool, or 'allowed_tools' excludes it.")
            names += [tool.name for tool in found]
        if not names:  # the choice names only tools of servers that are not served
            return ToolChoice("auto" if turn.tools else "none")
        if choice.allowed is None and len(names) == 1:
            return ToolChoice("required", names[0])
        return ToolChoice(choice.mode, None, tuple(names))

    def _check_questions(self, part: McpPart, known: Mapping[str, ApprovalRequest]) -> None:
        """Raises an error if an approval request that the client sends back is unknown or was changed."""
        denied = {one.id for one in part.answers if not one.approve}
        for question in part.questions:
            row = known.get(question.id)
            if row is None and question.id in denied:
                continue  # the client denies a request that has expired
            sent = (question.server, question.name, question.arguments)
            if row is None or sent != (row.server, row.tool, row.arguments):
                raise _invalid(f"{question.path}.id", UNKNOWN_REQUEST)

    def _answered(self, answer: McpAnswer, row: ApprovalRequest | None) -> Step:
        """Returns the call that the client approved."""
        if row is None or row.used_at is not None:
            raise _invalid(answer.path, UNKNOWN_REQUEST)
        if row.server not in self._servers:
            raise _invalid(answer.path, f"'tools' must declare the MCP server '{row.server}' again.")
        named = (row.server, row.tool)
        found = next((it for it in self._offered.values() if (it.server, it.tool) == named), None)
        tool = found or ServedTool(call_name(row.server, row.tool), row.server, row.tool)
        refused = None if found is not None and found.pin == row.pin else CHANGED
        return Step(tool, row.arguments, row.id, self._may_approve, refused)

    # --- the calls of a run ---

    def following(self, taken: TakenCalls) -> Round:
        """Returns the `Round` that runs the calls in `taken`."""
        over = self.is_over
        self.rounds += 1
        steps = [self._step(call, over) for call in taken.calls]
        out = Round([one for one in steps if not self._asks(one)], said=taken.said)
        out.asked = [one for one in steps if one not in out.steps]
        if out.asked or taken.has_others or over:
            out.finish = taken.held
        return out

    @property
    def is_over(self) -> bool:
        """Whether the model must answer without further calls of MCP servers' tools."""
        return self.rounds >= MOST_ROUNDS or not self._left

    def _step(self, call: TakenCall, over: bool) -> Step:
        tool = self._offered[call.name]
        step = Step(tool, call.arguments or "{}")
        if over or not self._left:
            step.refused = TOO_MANY
        else:
            self._left -= 1
            try:
                step.arguments = plain(step.arguments)
            except ValueError as error:
                step.refused = f"Not run: {error}."
        return step

    def _asks(self, step: Step) -> bool:
        """Whether the client must approve this call before the call can run."""
        if step.refused is not None:
            return False
        action = self._tools.action(step.tool, json.loads(step.arguments))
        self._actions.append(action)
        if action == "deny":
            return False  # the tool runtime refuses the call and records the refusal
        wanted = self._servers[step.tool.server].asks(step.tool.tool, step.tool.read_only)
        return wanted or (action == "ask" and self._may_approve)

    async def events(self, round: Round, response: str, model: str) -> AsyncGenerator[Batch, None]:
        """Runs the calls of a round. Yields the events of these calls."""
        now = self._clock()
        for step in round.steps:
            if step.approval and not await self._requests.use(step.approval, self._caller.key_id, now):
                yield [Failure("invalid_value", f"Invalid 'input': {UNKNOWN_REQUEST}", "input")]
                return
            step.id = self._ids("mcp_")
        runs = [one for one in round.steps if one.refused is None]
        calls = [ServedCall(it.id, it.tool, it.arguments, it.granted) for it in runs]
        purpose = Purpose(self._caller, response, model)
        self.has_run = True
        work = asyncio.ensure_future(self._tools.run(calls, purpose)) if calls else None
        try:
            for step in round.steps:
                yield [McpCall(step.id, step.tool.server, step.tool.tool, step.arguments, step.approval)]
                if step.refused is not None or work is None:
                    result = refused_result(step.refused or "")
                else:
                    result = (await work)[runs.index(step)]
                round.got(step, result)
                yield [result]
        finally:
            if work is not None:
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
        if round.asked:
            yield await self._ask(round.asked)
        yield [round.finish or Finish("stop")]

    async def _ask(self, steps: Sequence[Step]) -> Batch:
        """Stores the calls that the client must approve. Returns the events that ask the client."""
        now, key_id = self._clock(), self._caller.key_id
        rows = [
            ApprovalRequest(
                *(self._ids(PREFIX), key_id, now + LIFETIME_S, it.tool.server, it.tool.tool, it.tool.pin),
                it.arguments,
            )
            for it in steps
        ]
        await self._requests.add(rows, now)
        return [McpAsk(row.id, row.server, row.tool, row.arguments) for row in rows]

    def extended(self, turn: Turn, round: Round) -> Turn:
        """Returns the turn for the model's next run: with the calls and the results of the round."""
        results = dict(round.results)
        items = [results.pop(it.call_id, it) if isinstance(it, Result) else it for it in turn.items]
        steps = [step for step in round.steps if (step.approval or step.id) in results]
        calls = [Call(step.id, step.tool.name, step.arguments) for step in steps]
        choice = turn.tool_choice
        if self.is_over:
            own = tuple(name for name in self._own if choice.allowed is None or name in choice.allowed)
            choice = ToolChoice("auto", None, own) if own else ToolChoice("none")
        elif choice.mode == "required":  # the client required one call, not one in each round
            choice = ToolChoice("auto", None, choice.allowed)
        return replace(turn, items=(*items, *round.said, *calls, *results.values()), tool_choice=choice)


def unserved(turn: Turn) -> Turn:
    """Returns the turn with a note that the MCP servers in the request are ignored."""
    if turn.mcp is None or not turn.mcp.servers:
        return turn
    notes = [("tools.mcp", "ignored")]
    if turn.mcp.chosen:
        notes.append(("tool_choice", "ignored:hosted_tool"))
    return replace(turn, notes=(*turn.notes, *notes))


def _chosen(
    servers: Sequence[McpServer], lists: Sequence[Sequence[ServedTool] | None]
) -> list[Sequence[ServedTool] | None]:
    """Returns the tools that the client wants of each server.

    Raises an error if the definitions of all these tools together are too large.
    """
    left = LARGEST_LIST
    out: list[Sequence[ServedTool] | None] = []
    for server, tools in zip(servers, lists, strict=True):
        chosen = [one for one in tools or () if server.offers(one.tool, one.read_only)]
        for tool in chosen:
            left -= len(json.dumps(_listed(tool)))
            if left < 0:
                most = f"more than {LARGEST_LIST:,} characters"
                raise _invalid(server.path, f"its tools have {most}; choose fewer with 'allowed_tools'.")
        out.append(None if tools is None else chosen)
    return out


def _renamed(items: Sequence[Item], names: Mapping[str, str]) -> list[Item]:
    return [
        replace(item, name=names[item.name]) if type(item) is Call and item.name in names else item
        for item in items
    ]


def _listed(tool: ServedTool) -> dict[str, Any]:
    return {
        "name": tool.tool,
        "description": tool.description,
        "input_schema": dict(tool.parameters),
        "annotations": {"read_only": tool.read_only},
    }


def _invalid(path: str, reason: str) -> ToolwireError:
    return ToolwireError("invalid_value", f"Invalid '{path}': {reason}", param=path)


_OF_TOOL = [one.name for one in fields(ServedTool) if one.name != "handle"]


def recorded(
    servers: Sequence[McpServer],
    lists: Sequence[Sequence[ServedTool] | None],
    known: Mapping[str, ApprovalRequest],
    may_approve: bool,
    actions: list[Action],
) -> dict[str, Any]:
    """Returns what the journal records about the servers, so that the turn can be replayed.

    `actions` is a list that grows while the turn runs.
    """
    tools = {
        server.label: [{name: getattr(tool, name) for name in _OF_TOOL} for tool in offered]
        for server, offered in zip(servers, lists, strict=True)
        if offered is not None
    }
    rows = [asdict(row) for row in known.values()]
    return {"tools": tools, "known": rows, "approve": may_approve, "actions": actions}

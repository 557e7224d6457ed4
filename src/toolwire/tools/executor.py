"""One turn's tool calls: asked for together, run in order, told truly.

Law 11: what is granted is exactly what runs. A call that was edited runs as edited, and the model is told so; of what was found, the model sees what
the person picked, and is told that there was more. Every decision and every run goes into the audit log.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jsonschema_rs

from toolwire.tools.approvals import Approvals, Surface
from toolwire.tools.contract import Approval, Arguments, Asking, Decision, Narrowing, Outcome, Preview, Tool, ToolCall, ToolFailed

log = logging.getLogger("toolwire.tools")

CANCELLED = "User cancelled tool execution"
NO_DECISION = "Nobody decided about this tool call in time; it did not run"


class Toolbox:
    """The tools that may be offered, by name."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self.tools: dict[str, Tool] = {tool.name: tool for tool in tools}
        self._validators = {tool.name: jsonschema_rs.validator_for(dict(tool.parameters)) for tool in self.tools.values()}

    def definitions(self) -> list[dict[str, Any]]:
        """As a chat request offers them."""
        return [
            {"type": "function", "function": {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}}
            for tool in self.tools.values()
        ]

    def arguments(self, name: str, written: str) -> Arguments:
        """A call's arguments, with the defaults of its schema. Raises `ToolFailed` when they do not fit."""
        try:
            value = json.loads(written or "{}")
        except (ValueError, RecursionError):
            raise ToolFailed("the arguments are not valid JSON") from None
        if not isinstance(value, dict):
            raise ToolFailed("the arguments are not a JSON object")
        return self.checked(name, value)

    def checked(self, name: str, value: Mapping[str, Any]) -> Arguments:
        try:
            json.dumps(dict(value), ensure_ascii=False).encode()
        except UnicodeEncodeError:  # it would go back to the model with the result, in a request that no server takes
            raise ToolFailed("the arguments hold half a character (a lone surrogate)") from None
        for error in self._validators[name].iter_errors(dict(value)):
            place = "/".join(str(step) for step in error.instance_path)
            raise ToolFailed(f"{place or 'arguments'}: {error.message[:200]}")
        properties = self.tools[name].parameters.get("properties") or {}
        return {**{key: one["default"] for key, one in properties.items() if "default" in one}, **value}


@dataclass(slots=True)
class _Planned:
    """A call that could run: what it would touch."""

    call: ToolCall
    tool: Tool
    arguments: Arguments
    shown: Preview


class Executor:
    def __init__(self, toolbox: Toolbox, approvals: Approvals, surface: Surface | None) -> None:
        """`surface` None: the questions wait in the inbox."""
        self.toolbox = toolbox
        self.approvals = approvals
        self.surface = surface

    async def execute(self, calls: Sequence[ToolCall], asking: Asking) -> list[Outcome]:
        """Every call's outcome, in order. Never raises for what a tool or a model did wrong."""
        planned = [await self._plan(call) for call in calls]
        runnable = [one for one in planned if isinstance(one, _Planned)]
        questions = [(one.tool.name, "run", one.arguments, one.shown) for one in runnable]
        decided = iter(await self.approvals.ask(asking, questions, self.surface) if questions else ())  # type: ignore[arg-type]
        return [await self._run(one, next(decided), asking) if isinstance(one, _Planned) else one for one in planned]

    async def _plan(self, call: ToolCall) -> _Planned | Outcome:
        tool = self.toolbox.tools.get(call.name)
        if tool is None:
            words = f"Unknown tool: {call.name[:80]}"
            return Outcome(call, {"error": words}, "unknown", words)
        try:
            arguments = self.toolbox.arguments(call.name, call.arguments)
            return _Planned(call, tool, arguments, await tool.preview(arguments))
        except ToolFailed as error:
            return _failed(call, error)
        except Exception as error:
            log.exception("the tool %s could not be planned", call.name)
            return _failed(call, error)

    async def _run(self, planned: _Planned, approval: Approval, asking: Asking) -> Outcome:
        call, tool = planned.call, planned.tool
        if approval.status != "approved" or approval.decision is None:
            return _refused(call, approval)
        decision = approval.decision
        try:
            arguments, shown, picked = planned.arguments, planned.shown, decision.picked
            if decision.arguments is not None:
                arguments = self.toolbox.checked(tool.name, decision.arguments)
                shown = await tool.preview(arguments)
                if decision.seen and decision.seen != shown.digest:
                    raise ToolFailed("not run: what it would touch has changed since the person was asked")
                picked = _all_of(shown, decision.picked) if shown.pick else None
            if decision.within and isinstance(tool, Narrowing):
                tool = tool.within(decision.within)
            ran = await tool.run(arguments, picked, shown)
            value, told = ran.value, _truth(planned, decision, shown, picked)
            granted = tuple(one.path for one in shown.touched if picked is None or one.key in picked)
            shared = granted if ran.shared is None else ran.shared
            if ran.found is not None:
                share = (await self.approvals.ask(asking, [(tool.name, "share", arguments, ran.found)], self.surface))[0]
                if share.status != "approved" or share.decision is None:
                    await self.approvals.tell(approval, "ran", note="nothing shared")
                    return _refused(call, share)
                chosen = share.decision.picked or ()
                value = tool.share(ran, chosen)
                shared = tuple(one.path for one in ran.found.touched if one.key in chosen)
                told |= {"found": len(ran.found.touched), "shared": len(chosen)}
        except asyncio.CancelledError:
            await asyncio.shield(self.approvals.tell(approval, "stopped"))  # it may have run: a thread is not stopped
            raise
        except Exception as error:
            if not isinstance(error, ToolFailed):
                log.exception("the tool %s failed", call.name)
            await self.approvals.tell(approval, "failed", note=type(error).__name__)  # its words may tell contents
            return _failed(call, error)
        result = {"result": value, **told}
        await self.approvals.tell(approval, "ran", result)
        return Outcome(call, result, "done", shared=shared, unread=ran.unread)


def _all_of(shown: Preview, picked: Sequence[str] | None) -> tuple[str, ...]:
    """What edited arguments grant: all that they name, unless the person picked too."""
    return tuple(one.key for one in shown.touched if not one.missing and (picked is None or one.key in picked))


def _truth(planned: _Planned, decision: Decision, shown: Preview, picked: Sequence[str] | None) -> dict[str, Any]:
    """What the model must know about how its call was changed."""
    told: dict[str, Any] = {}
    edited = decision.arguments
    if decision.within and isinstance(planned.tool, Narrowing):
        told["note"] = f"Only notes that fit {' or '.join(decision.within)} were looked at."
    elif edited is not None and dict(edited) != dict(planned.arguments):
        told["note"] = f"The person changed the arguments to: {json.dumps(dict(edited), ensure_ascii=False)}"
    elif picked is not None and len(picked) < (there := sum(not one.missing for one in shown.touched)):
        told["note"] = f"The person allowed {len(picked)} of the {there} that were asked for."
    return told


def _refused(call: ToolCall, approval: Approval) -> Outcome:
    notice = f"Tool execution cancelled: {call.name}"
    if approval.status == "denied":
        reason = approval.decision.reason if approval.decision is not None else ""
        return Outcome(call, {"error": CANCELLED, **({"reason": reason} if reason else {})}, "denied", notice)
    return Outcome(call, {"error": NO_DECISION}, "expired", notice)


def _failed(call: ToolCall, error: Exception) -> Outcome:
    words = str(error) or type(error).__name__
    return Outcome(call, {"error": words}, "failed", f"Tool execution error: {error.person if isinstance(error, ToolFailed) else words}")

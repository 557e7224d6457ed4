"""Runs one turn's tool calls: asks for all of them together, then runs them in order.

Law 11: what is granted is exactly what runs. The audit log has every decision, every run, and every call that
was refused without a question. Before a grant the model learns nothing about the notes. Under a standing
grant (a remembered one, or a rule) no person looks at the call. A change that fails then gets the same answer
whatever the cause, because the cause could reveal content.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jsonschema_rs

from toolwire.tools.approvals import Approvals, Question, Surface
from toolwire.tools.contract import (
    Approval,
    Arguments,
    Asking,
    Decision,
    Naming,
    Narrowing,
    Outcome,
    Preview,
    Tool,
    ToolCall,
    ToolFailed,
    Touched,
)

log = logging.getLogger("toolwire.tools")

CANCELLED = "User cancelled tool execution"
NO_DECISION = "Nobody decided about this tool call in time; it did not run"
TOO_MANY = "Too many tool calls wait for a decision; this one was refused without asking and did not run"
UNEXPECTED = "The tool failed unexpectedly; the details are in Toolwire's log"
NOT_CHANGED = (
    "The change could not be made to the note as it is now. "
    "Read the note with file_read, then send the change again."
)


class Toolbox:
    """The tools that may be offered, by name."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self.tools: dict[str, Tool] = {tool.name: tool for tool in tools}
        self._validators = {
            name: jsonschema_rs.validator_for(dict(tool.parameters)) for name, tool in self.tools.items()
        }

    def definitions(self) -> list[dict[str, Any]]:
        """Returns the tools in the form of a chat request."""
        functions = (
            {"name": one.name, "description": one.description, "parameters": dict(one.parameters)}
            for one in self.tools.values()
        )
        return [{"type": "function", "function": one} for one in functions]

    def arguments(self, name: str, written: str) -> Arguments:
        """Returns the arguments of a call, with the schema's defaults filled in.

        `written`: the JSON text that the model wrote. Raises `ToolFailed` if it is invalid.
        """
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
        except UnicodeEncodeError:  # the result would repeat this text, and no server accepts such a request
            raise ToolFailed("the arguments hold half a character (a lone surrogate)") from None
        for error in self._validators[name].iter_errors(dict(value)):
            path = "/".join(str(step) for step in error.instance_path)
            raise ToolFailed(f"{path or 'arguments'}: {error.message[:200]}")
        properties = self.tools[name].parameters.get("properties") or {}
        return {**{key: one["default"] for key, one in properties.items() if "default" in one}, **value}

    async def preview(self, name: str, arguments: Arguments) -> Preview:
        """Returns the preview of a call. If the call cannot work, the preview says why.

        Raises `ToolFailed` only if the text of the call alone shows that the call cannot work.
        """
        tool = self.tools[name]
        paths = tool.paths(arguments) if isinstance(tool, Naming) else ()
        try:
            return await tool.preview(arguments)
        except ToolFailed as error:
            problem = str(error)
        except Exception:
            log.exception("the tool %s could not show what it would touch", name)
            problem = UNEXPECTED
        return Preview(tuple(Touched(path, path) for path in paths), problem=problem)


@dataclass(slots=True)
class _Planned:
    """A call that could run, with its preview."""

    call: ToolCall
    tool: Tool
    arguments: Arguments
    shown: Preview


@dataclass(slots=True)
class Executor:
    """Runs the calls of a turn.

    `surface`: where the person is asked; None if the questions wait in the inbox.
    """

    toolbox: Toolbox
    approvals: Approvals
    surface: Surface | None

    async def execute(self, calls: Sequence[ToolCall], asking: Asking) -> list[Outcome]:
        """Returns the outcome of every call, in order. Mistakes of a tool or a model never raise."""
        planned = [await self._plan(call, asking) for call in calls]
        questions: list[Question] = [
            (one.tool.name, "run", one.arguments, one.shown) for one in planned if isinstance(one, _Planned)
        ]
        decided = iter(await self.approvals.ask(asking, questions, self.surface) if questions else ())
        return [
            await self._run(one, next(decided), asking) if isinstance(one, _Planned) else one
            for one in planned
        ]

    async def _plan(self, call: ToolCall, asking: Asking) -> _Planned | Outcome:
        tool = self.toolbox.tools.get(call.name)
        if tool is None:
            message = f"Unknown tool: {call.name[:80]}"
            await self.approvals.refused(asking, call.name, call.arguments, "unknown tool")
            return Outcome(call, {"error": message}, "unknown", message)
        try:
            arguments = self.toolbox.arguments(call.name, call.arguments)
            return _Planned(call, tool, arguments, await self.toolbox.preview(call.name, arguments))
        except Exception as error:
            if not isinstance(error, ToolFailed):
                log.exception("the tool %s could not be planned", call.name)
            await self.approvals.refused(asking, call.name, call.arguments, "the call does not fit the tool")
            return _failed(call, error)

    async def _run(self, planned: _Planned, approval: Approval, asking: Asking) -> Outcome:
        call, tool, decision = planned.call, planned.tool, approval.decision
        if approval.status != "approved" or decision is None:
            return await self._refused(call, approval, asking)
        was_seen = not decision.standing and (decision.arguments is None or bool(decision.seen))
        edited = None
        if decision.arguments is not None and dict(decision.arguments) != dict(planned.arguments):
            edited = (planned.arguments, decision.arguments)
        try:
            arguments, shown, picked = planned.arguments, planned.shown, decision.picked
            if decision.arguments is not None:
                arguments = self.toolbox.checked(tool.name, decision.arguments)
                shown = await self.toolbox.preview(tool.name, arguments)
                if decision.seen and decision.seen != shown.digest:
                    raise ToolFailed("not run: what it would touch has changed since the person was asked")
                # Edited arguments grant all that they name, unless the person picked some.
                keys = (key for key in shown.pickable if decision.picked is None or key in decision.picked)
                picked = tuple(keys) if shown.pick else None
            if shown.problem:
                raise ToolFailed(shown.problem if was_seen else UNEXPECTED, person=shown.problem)
            if decision.within and isinstance(tool, Narrowing):
                tool = tool.within(decision.within)
            ran = await tool.run(arguments, picked, shown)
            result = {"result": ran.value, **_note(planned, decision, shown, picked)}
            shared = ran.shared
            if shared is None:
                shared = tuple(one.path for one in shown.touched if picked is None or one.key in picked)
            if ran.found is not None:
                question: Question = (tool.name, "share", arguments, ran.found)
                (share,) = await self.approvals.ask(asking, [question], self.surface)
                if share.status != "approved" or share.decision is None:
                    await self.approvals.log_result(approval, "ran", note="nothing shared")
                    return replace(await self._refused(call, share, asking), edited=edited)
                chosen = share.decision.picked or ()
                shared = tuple(one.path for one in ran.found.touched if one.key in chosen)
                # A rule for a folder must not reveal how many results are outside of it. A person may do so.
                found = len(chosen if share.decision.standing else ran.found.touched)
                result |= {"result": tool.share(ran, chosen), "found": found, "shared": len(chosen)}
        except asyncio.CancelledError:  # the call may have run: a thread cannot be stopped
            await asyncio.shield(self.approvals.log_result(approval, "stopped"))
            raise
        except Exception as error:
            if not isinstance(error, ToolFailed):
                log.exception("the tool %s failed", call.name)
            # The log gets only the type: the message may contain content.
            await self.approvals.log_result(approval, "failed", note=type(error).__name__)
            for_model = NOT_CHANGED if tool.effect == "write" and not was_seen else ""
            return replace(_failed(call, error, for_model), edited=edited)
        await self.approvals.log_result(approval, "ran", result)
        return Outcome(call, result, "done", shared=shared, unread=ran.unread, edited=edited)

    async def _refused(self, call: ToolCall, approval: Approval, asking: Asking) -> Outcome:
        notice = f"Tool execution cancelled: {call.name}"
        if approval.status == "refused":
            await self.approvals.refused(asking, call.name, call.arguments, "too many questions wait")
            return Outcome(call, {"error": TOO_MANY}, "failed", f"Tool execution error: {TOO_MANY}")
        if approval.status == "denied":
            reason = approval.decision.reason if approval.decision is not None else ""
            result = {"error": CANCELLED} | ({"reason": reason} if reason else {})
            return Outcome(call, result, "denied", notice)
        return Outcome(call, {"error": NO_DECISION}, "expired", notice)


def _note(
    planned: _Planned, decision: Decision, shown: Preview, picked: Sequence[str] | None
) -> dict[str, str]:
    """Returns a note for the model about changes of its call; no note if nothing was changed."""
    edited = decision.arguments
    if decision.within and isinstance(planned.tool, Narrowing):
        return {"note": f"Only notes that match {' or '.join(decision.within)} were searched."}
    if edited is not None and dict(edited) != dict(planned.arguments):
        written = json.dumps(dict(edited), ensure_ascii=False)
        return {"note": f"The person changed the arguments to: {written}"}
    if picked is not None and len(picked) < (there := len(shown.pickable)):
        return {"note": f"The person allowed {len(picked)} of the {there} that were asked for."}
    return {}


def _failed(call: ToolCall, error: Exception, for_model: str = "") -> Outcome:
    """Returns the outcome of a call that failed.

    Only the person sees the text of an unexpected error, because it may contain content. `for_model`: what
    the model sees instead of the error's message.
    """
    if isinstance(error, ToolFailed):
        message, person = str(error), error.person
    else:
        message, person = UNEXPECTED, str(error) or type(error).__name__
    return Outcome(call, {"error": for_model or message}, "failed", f"Tool execution error: {person}")

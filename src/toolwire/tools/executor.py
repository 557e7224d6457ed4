"""Runs one turn's tool calls: asks for all of them together, then runs them in order.

What is granted is exactly what runs (law 11 in `docs/architecture.md`). The rules of a tool judge a call
before the person is asked, and again just before the call runs: a call that a rule denies never runs, even if
a person has approved it.

The audit log has every decision, every run, and every call that was refused without a question. Before a
grant, the model learns nothing about the notes. Nobody looks at a call that a remembered grant or a rule
allows. If such a call fails to change a note, the model gets the same error for every cause, because the
cause could reveal content.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from toolwire.emulate.schemas.constrain import compile_schema
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
    Progress,
    Reporting,
    Ruled,
    Stage,
    Tool,
    ToolCall,
    ToolFailed,
    Touched,
    same_arguments,
)

log = logging.getLogger("toolwire.tools")

CANCELLED = "User cancelled tool execution"
NO_DECISION = "Nobody decided about this tool call in time; it did not run"
UNDECIDED = (
    "Waiting for the person's decision ({}). The call has not run. Send the same call again, with exactly "
    "the same arguments, to get its result"
)
TOO_MANY = "Too many tool calls wait for a decision; this one was refused without asking and did not run"
UNEXPECTED = "The tool failed unexpectedly; the details are in Toolwire's log"
NOT_CHANGED = (
    "The change could not be made to the note as it is now. "
    "Read the note with file_read, then send the change again."
)
RULED_OUT = "Refused by a rule of the person's settings; it did not run"
NOT_SHARED = "The call ran, but the person did not share its result"


class Toolbox:
    """The tools that may be offered, by name."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self.tools: dict[str, Tool] = {tool.name: tool for tool in tools}
        self._validators = {
            name: compile_schema(tool.parameters, name)
            for name, tool in self.tools.items()
            if not isinstance(tool, Ruled)
        }

    def joined(self, tools: Iterable[Tool]) -> Toolbox:
        """Returns a toolbox that also has these tools of MCP servers.

        These tools check arguments themselves.
        """
        other = copy(self)
        other.tools = {**self.tools, **{tool.name: tool for tool in tools}}
        return other

    def definitions(self) -> list[dict[str, Any]]:
        """Returns the tools as the `tools` of a chat completions request."""
        functions = (
            {"name": one.name, "description": one.description, "parameters": dict(one.parameters)}
            for one in self.tools.values()
        )
        return [{"type": "function", "function": one} for one in functions]

    def arguments(self, name: str, written: str) -> Arguments:
        """Returns the arguments of a call. For Toolwire's own tools, the schema's defaults are filled in.

        `written`: the JSON text that the model wrote. Raises `ToolFailed` if it is invalid.
        """
        try:
            value = json.loads(
                written or "{}", object_pairs_hook=_object, parse_constant=_finite, parse_float=_finite
            )
        except (ValueError, RecursionError):
            raise ToolFailed("the arguments are not valid JSON") from None
        if not isinstance(value, dict):
            raise ToolFailed("the arguments are not a JSON object")
        return self.checked(name, value)

    def checked(self, name: str, value: Mapping[str, Any]) -> Arguments:
        try:
            json.dumps(dict(value), ensure_ascii=False, allow_nan=False).encode()
        except UnicodeEncodeError:  # the result would repeat this text, and no server accepts such a request
            raise ToolFailed("the arguments contain half a character (a lone surrogate)") from None
        except RecursionError:
            raise ToolFailed("the arguments are nested too deeply") from None
        except ValueError:  # it would be sent as null
            raise ToolFailed("the arguments contain a number that JSON does not have") from None
        tool = self.tools[name]
        if isinstance(tool, Ruled):
            tool.check(value)
            return dict(value)
        for error in self._validators[name].iter_errors(dict(value)):
            path = "/".join(str(step) for step in error.instance_path)
            raise ToolFailed(f"{path or 'arguments'}: {error.message[:200]}")
        properties = tool.parameters.get("properties") or {}
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


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object. Raises `ToolFailed` if it has the same key twice.

    Programs differ in which of the two values they use.
    """
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ToolFailed("the arguments have the same key twice")
    return found


def _finite(written: str) -> float:
    value = float(written)
    if not math.isfinite(value):
        raise ToolFailed(f"the arguments contain {written[:40]}, which is not a JSON number")
    return value


class _RuledOut(ToolFailed):
    """Raised if a rule forbids a call that was already approved. `rule`: the rule as it is written."""

    def __init__(self, rule: str, why: str) -> None:
        super().__init__(RULED_OUT, why)
        self.rule = rule


@dataclass(slots=True)
class _Planned:
    """A call that could run, and what it would touch. `rule`: the rule that allows the call, or ""."""

    call: ToolCall
    tool: Tool
    arguments: Arguments
    shown: Preview
    rule: str = ""

    def question(self) -> Question:
        return _question(self.tool, "run", self.arguments, self.shown, self.rule)


def _question(tool: Tool, stage: Stage, arguments: Arguments, shown: Preview, rule: str = "") -> Question:
    where = (tool.source, tool.pin) if isinstance(tool, Ruled) else ("", "")
    return Question(tool.name, stage, arguments, shown, *where, rule)


@dataclass(slots=True)
class Executor:
    """Runs the calls of a turn.

    `surface`: where the person is asked; None if the questions wait in the inbox. `progress` gets the
    progress that tools report.
    """

    toolbox: Toolbox
    approvals: Approvals
    surface: Surface | None
    progress: Progress | None = None
    wait_s: float | None = None
    """How long a call waits for its decision; a later, identical call can then use it (`Approvals.ask`)."""

    async def execute(self, calls: Sequence[ToolCall], asking: Asking) -> list[Outcome]:
        """Returns the outcome of every call, in order. A mistake of a tool or a model raises no error."""
        planned = [await self._plan(call, asking) for call in calls]
        questions = [one.question() for one in planned if isinstance(one, _Planned)]
        decided = iter(await self._ask(asking, questions) if questions else ())
        return [
            await self._run(one, next(decided), asking) if isinstance(one, _Planned) else one
            for one in planned
        ]

    async def _ask(self, asking: Asking, questions: Sequence[Question]) -> list[Approval]:
        return await self.approvals.ask(asking, questions, self.surface, self.wait_s)

    async def _plan(self, call: ToolCall, asking: Asking) -> _Planned | Outcome:
        tool = self.toolbox.tools.get(call.name)
        if tool is None:
            message = f"Unknown tool: {call.name[:80]}"
            await self.approvals.refused(asking, call.name, call.arguments, "unknown tool")
            return Outcome(call, {"error": message}, "unknown", message)
        try:
            arguments = self.toolbox.arguments(call.name, call.arguments)
            rule = ""
            if isinstance(tool, Ruled):
                ruling = tool.ruling(arguments)
                rule = (ruling.rule or "default") if ruling.action == "allow" else ""
                if ruling.action == "deny":
                    return await self._denied(call, tool, ruling.rule, asking)
            return _Planned(call, tool, arguments, await self.toolbox.preview(call.name, arguments), rule)
        except Exception as error:
            if not isinstance(error, ToolFailed):
                log.exception("a call of the tool %s could not be planned", call.name)
            if isinstance(tool, Ruled):
                asking = replace(asking, source=tool.source, pin=tool.pin)
            await self.approvals.refused(asking, call.name, call.arguments, "the call is not valid")
            return _failed(call, error)

    async def _denied(self, call: ToolCall, tool: Ruled, rule: str, asking: Asking) -> Outcome:
        """Refuses a call that a rule denies. Nobody is asked."""
        where = replace(asking, source=tool.source, pin=tool.pin)
        await self.approvals.refused(where, call.name, call.arguments, "a rule denies it", f"rule {rule}")
        notice = f"Tool execution cancelled: {call.name}: denied by the rule {rule}"
        return Outcome(call, {"error": RULED_OUT}, "denied", notice)

    async def _run(self, planned: _Planned, approval: Approval, asking: Asking) -> Outcome:
        call, tool, decision = planned.call, planned.tool, approval.decision
        if approval.status != "approved" or decision is None:
            return await self._refused(call, approval, asking)
        was_seen = not decision.standing and (decision.arguments is None or bool(decision.seen))
        edited = None
        if decision.arguments is not None and not same_arguments(decision.arguments, planned.arguments):
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
            _judge(tool, arguments, planned.rule)
            if decision.within and isinstance(tool, Narrowing):
                tool = tool.within(decision.within)
            elif self.progress is not None and isinstance(tool, Reporting):
                tool = tool.reporting(self.progress)
            ran = await tool.run(arguments, picked, shown)
            result = {"result": ran.value, **_note(planned, decision, shown, picked)}
            shared = ran.shared
            if shared is None:
                shared = tuple(one.path for one in shown.touched if picked is None or one.key in picked)
            if ran.found is not None:
                question = _question(tool, "share", arguments, ran.found)
                (share,) = await self._ask(asking, [question])
                if share.status != "approved" or share.decision is None:
                    await self.approvals.log_result(approval, "ran", note="nothing shared")
                    return replace(await self._unshared(call, tool, share, asking), edited=edited)
                chosen = share.decision.picked or ()
                shared = tuple(one.path for one in ran.found.touched if one.key in chosen)
                result |= {"result": tool.share(ran, chosen), **_counts(ran.found, share.decision)}
        except asyncio.CancelledError:  # the call may have run: a thread cannot be stopped
            await asyncio.shield(self.approvals.log_result(approval, "stopped"))
            raise
        except Exception as error:
            if not isinstance(error, ToolFailed):
                log.exception("the tool %s failed", call.name)
            await self.approvals.log_result(approval, *_logged(error))
            for_model = NOT_CHANGED if tool.effect == "write" and not was_seen else ""
            return replace(_failed(call, error, for_model), edited=edited)
        await self.approvals.log_result(approval, "ran", result)
        return Outcome(call, result, "done", shared=shared, unread=ran.unread, raw=ran.raw, edited=edited)

    async def _unshared(self, call: ToolCall, tool: Tool, share: Approval, asking: Asking) -> Outcome:
        """Returns the outcome of a call that ran, but whose result the person did not share."""
        refused = await self._refused(call, share, asking)
        if tool.effect != "call":
            return refused
        return replace(refused, result={**refused.result, "error": NOT_SHARED})

    async def _refused(self, call: ToolCall, approval: Approval, asking: Asking) -> Outcome:
        notice = f"Tool execution cancelled: {call.name}"
        if approval.status == "refused":
            where = replace(asking, source=approval.source, pin=approval.pin)
            await self.approvals.refused(where, call.name, call.arguments, "too many requests wait")
            return Outcome(call, {"error": TOO_MANY}, "failed", f"Tool execution error: {TOO_MANY}")
        if approval.status == "pending":
            return Outcome(call, {"error": UNDECIDED.format(approval.id)}, "waiting", notice)
        if approval.status == "denied":
            reason = approval.decision.reason if approval.decision is not None else ""
            result = {"error": CANCELLED} | ({"reason": reason} if reason else {})
            return Outcome(call, result, "denied", notice)
        return Outcome(call, {"error": NO_DECISION}, "expired", notice)


def _judge(tool: Tool, arguments: Arguments, rule: str) -> None:
    """Applies the rules to a call again, because rules or arguments may have changed since the question.

    `rule`: the rule that allowed the call when it was planned. Raises if the call may not run.
    """
    if not isinstance(tool, Ruled):
        return
    ruling = tool.ruling(arguments)
    if ruling.action == "deny":
        raise _RuledOut(ruling.rule, f"denied by the rule {ruling.rule}")
    if rule and ruling.action == "ask":
        raise _RuledOut(ruling.rule, f"not run: the rule {rule} does not allow it any more")


def _logged(error: Exception) -> tuple[str, None, str]:
    """Returns what the audit log records about a failed call: the event, the result (None) and a note.

    The note is not the error's message, because a message may contain content.
    """
    if isinstance(error, _RuledOut):
        return "refused", None, f"rule {error.rule}"
    may_have_run = isinstance(error, ToolFailed) and error.may_have_run
    return "stopped" if may_have_run else "failed", None, type(error).__name__


def _counts(found: Preview, decision: Decision) -> dict[str, int]:
    """Returns how many results there were and how many the model gets; empty if there was no choice.

    If a remembered grant or a rule decided, both numbers count only the shared results. Otherwise a rule for
    a folder would reveal how many results are in other folders.
    """
    if not found.pick:
        return {}
    shared = len(decision.picked or ())
    return {"found": shared if decision.standing else len(found.touched), "shared": shared}


def _note(
    planned: _Planned, decision: Decision, shown: Preview, picked: Sequence[str] | None
) -> dict[str, str]:
    """Returns a note for the model about changes to the model's call; empty if nothing was changed."""
    edited = decision.arguments
    if decision.within and isinstance(planned.tool, Narrowing):
        return {"note": f"Only notes that match {' or '.join(decision.within)} were searched."}
    if edited is not None and not same_arguments(edited, planned.arguments):
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
    raw = error.raw if isinstance(error, ToolFailed) else None
    notice = f"Tool execution error: {person}"
    return Outcome(call, {"error": for_model or message}, "failed", notice, raw=raw)

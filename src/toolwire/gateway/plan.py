"""The plan of a turn: capabilities × request × settings → what the backend is asked, how its answer is read, and a report of every field.

Law 10, no field is ignored in silence: each known field of a request is `honoured`, `emulated`, `ignored` or `refused`, by the table `FIELDS` and
the capabilities of the backend; the report names those that were not plainly honoured, never a client's own words. Pure, but for the ids that are
handed in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from toolwire.backends.base import Backend, Capabilities, Strategy
from toolwire.config import ToolSettings
from toolwire.decode.tools import HOSTED
from toolwire.emulate import freeform, prompt
from toolwire.emulate.registry import ToolRegistry
from toolwire.emulate.scanner import ToolCallParser
from toolwire.emulate.transcript import text_only, transcript
from toolwire.ids import IdFactory
from toolwire.policy import PolicyRules
from toolwire.turn import Api, Call, Item, Message, OutputFormat, Result, TextPart, ToolChoice, ToolSpec, Turn

Disposition = Literal["honoured", "emulated", "ignored", "refused"]
Rule = Literal["gateway", "backend", "tools", "choice", "format", "chat_only", "responses_only"]

# How each known field of both APIs is served. `gateway`: by Toolwire itself, whatever stands behind. `backend`: where the backend lists it.
# `tools`, `choice`, `format`: by the strategy of the plan. `chat_only`, `responses_only`: by Toolwire on that API, else nowhere.
FIELDS: dict[str, Rule] = {
    "model": "gateway",
    "messages": "gateway",
    "input": "gateway",
    "instructions": "gateway",
    "stream": "gateway",
    "stream_options": "gateway",
    "n": "chat_only",
    "previous_response_id": "responses_only",
    "store": "responses_only",
    "metadata": "responses_only",
    "tools": "tools",
    "functions": "tools",
    "tool_choice": "choice",
    "function_call": "choice",
    "parallel_tool_calls": "gateway",
    "response_format": "format",
    "text": "format",
    **dict.fromkeys(
        (
            "temperature",
            "top_p",
            "max_tokens",
            "max_completion_tokens",
            "max_output_tokens",
            "stop",
            "seed",
            "presence_penalty",
            "frequency_penalty",
            "logit_bias",
            "logprobs",
            "top_logprobs",
            "reasoning_effort",
            "reasoning",
            "verbosity",
            "user",
            "safety_identifier",
            "prompt_cache_key",
            "prompt_cache_retention",
            "service_tier",
            "truncation",
            "include",
            "max_tool_calls",
            "modalities",
            "audio",
            "prediction",
            "web_search_options",
            "prompt_cache_options",
            "context_management",
            "moderation",
        ),
        "backend",
    ),
    "background": "gateway",
    "conversation": "gateway",
    "prompt": "gateway",
}
ONLY: dict[str, Api] = {
    **dict.fromkeys(
        (
            "messages",
            "functions",
            "function_call",
            "response_format",
            "max_tokens",
            "max_completion_tokens",
            "stop",
            "seed",
            "presence_penalty",
            "frequency_penalty",
            "logit_bias",
            "logprobs",
            "reasoning_effort",
            "verbosity",
            "modalities",
            "audio",
            "prediction",
            "web_search_options",
            "n",
        ),
        "chat",
    ),
    **dict.fromkeys(
        (
            "input",
            "instructions",
            "text",
            "reasoning",
            "max_output_tokens",
            "max_tool_calls",
            "truncation",
            "include",
            "previous_response_id",
            "background",
            "conversation",
            "prompt",
            "context_management",
        ),
        "responses",
    ),
}
"""Fields that only one API has; sent to the other they mean nothing there."""
_NOTE = re.compile(r"[a-z][a-z0-9_.]{0,63}\Z")
_NONE = ToolChoice("none")


@dataclass(frozen=True, slots=True)
class Plan:
    """`turn` is what the backend runs. `scanner`: makes the reader of a text-only backend's answer; None: the backend's own events hold."""

    strategy: Strategy
    turn: Turn
    rules: PolicyRules
    report: tuple[tuple[str, str], ...] = ()
    scanner: Callable[[], ToolCallParser] | None = None
    customs: frozenset[str] = frozenset()
    required: bool = False
    choice: ToolChoice = _NONE
    nonce: str = ""
    prefill: str = ""
    hold_calls: bool = False
    declared: ToolRegistry | None = None
    """The tools that may be called; None: whatever the backend calls goes out."""
    unknown: Literal["text", "error"] = "text"
    known_ids: frozenset[str] = field(default_factory=frozenset)

    def report_header(self) -> str:
        return "; ".join(f"{name}={what}" for name, what in self.report)

    def retry(self, answer: str, issues: Sequence[str]) -> Turn:
        """The same turn once more, with what the model wrote and one corrective message."""
        said = (Message("assistant", (TextPart(answer),)),) if answer.strip() else ()
        items = self.turn.items[:-1] if self.prefill else self.turn.items
        asked = Message("user", (TextPart(prompt.retry_prompt(self.choice, issues, self.nonce)),))
        again = (*items, *said, asked)
        if self.prefill:
            again = (*again, Message("assistant", (TextPart(self.prefill),)))
        return replace(self.turn, items=again)


def make_plan(turn: Turn, backend: Backend, settings: ToolSettings, ids: IdFactory) -> Plan:
    """Decides how this turn is served."""
    capabilities = backend.capabilities
    offered = turn.offered()
    emulated = backend.strategy == "emulated"
    strategy: Strategy = backend.strategy if offered else "none"
    rules = _rules(turn, settings, emulated) if offered else PolicyRules()
    plan = Plan(
        strategy,
        turn,
        rules,
        report=_report(turn, capabilities, strategy),
        choice=turn.tool_choice,
        declared=None if settings.unknown_tool == "forward" else ToolRegistry(turn.tools if offered else ()),
        unknown="error" if settings.unknown_tool == "error" else "text",
        known_ids=frozenset(item.call_id for item in turn.items if isinstance(item, Call)),
    )
    return _emulate(plan, turn, offered, capabilities, settings, ids, backend) if emulated else _pass_on(plan, turn, capabilities, settings)


def _rules(turn: Turn, settings: ToolSettings, emulated: bool) -> PolicyRules:
    stop_after = settings.stop_after if settings.stop_after != "auto" else "burst" if emulated else "off"
    return PolicyRules(
        stop_after=stop_after,
        max_calls=settings.max_calls,
        dedup=settings.dedup,
        suppress_tail=emulated if settings.suppress_tail == "auto" else settings.suppress_tail == "on",
        parallel=turn.parallel and settings.parallel,
        legacy=turn.legacy_functions,
    )


# --- backends with tools of their own ----------------------------------------------------------------------------------------------------------


def _pass_on(plan: Plan, turn: Turn, capabilities: Capabilities, settings: ToolSettings) -> Plan:
    customs = frozenset() if capabilities.custom_tools else frozenset(tool.name for tool in turn.tools if tool.kind == "custom")
    if customs:
        turn = replace(turn, tools=tuple(map(freeform.as_function, turn.tools)), items=tuple(map(_as_function_item, turn.items)))
    if turn.output.type != "text" and not capabilities.schema:
        asked = Message("system", (TextPart(prompt.output_prompt(turn.output)),))
        turn = replace(turn, items=(asked, *turn.items), output=OutputFormat())
    return replace(plan, turn=turn, customs=customs, hold_calls=settings.arguments == "validated")


def _as_function_item(item: Item) -> Item:
    if isinstance(item, Call) and item.kind == "custom":
        return replace(item, kind="function", arguments=freeform.wrap(item.arguments))
    if isinstance(item, Result) and item.kind == "custom":
        return replace(item, kind="function")
    return item


# --- backends without ------------------------------------------------------------------------------------------------------------------------


def _emulate(
    plan: Plan, turn: Turn, offered: tuple[ToolSpec, ...], capabilities: Capabilities, settings: ToolSettings, ids: IdFactory, backend: Backend
) -> Plan:
    output = prompt.output_prompt(turn.output) if not capabilities.schema else ""
    has_calls = any(isinstance(item, Call | Result) for item in turn.items)
    if not offered and not output and not has_calls:
        return replace(plan, turn=replace(turn, tools=(), tool_choice=ToolChoice("none")))
    nonce = prompt.mint_nonce(ids, turn)
    tools = tuple(map(freeform.as_function, offered))
    choice = turn.tool_choice
    teaching = prompt.tools_prompt(tools, choice, parallel=plan.rules.parallel and not plan.rules.legacy, nonce=nonce) if tools else ""
    asked = text_only(turn, transcript(turn, (teaching, output), nonce))
    if output:
        asked = replace(asked, output=OutputFormat())
    if not tools:
        return replace(plan, turn=asked, nonce=nonce)
    required = choice.mode == "required"
    prefill = prompt.prefill(choice, nonce) if required and capabilities.prefill else ""
    if prefill:
        asked = replace(asked, items=(*asked.items, Message("assistant", (TextPart(prefill),))))
    return replace(
        plan,
        turn=asked,
        scanner=_scanner(tools, turn, settings, nonce, getattr(getattr(backend, "options", None), "dialects", None)),
        customs=frozenset(tool.name for tool in offered if tool.kind == "custom"),
        required=required,
        nonce=nonce,
        prefill=prefill,
    )


def _scanner(
    tools: tuple[ToolSpec, ...], turn: Turn, settings: ToolSettings, nonce: str, dialects: Sequence[str] | None
) -> Callable[[], ToolCallParser]:
    check = None
    if any(tool.strict for tool in tools):
        from toolwire.emulate.schema import SchemaCheck

        check = SchemaCheck(tools)
    quoted = turn.texts()
    chosen = ("sentinel",) if settings.strict_sentinel else dialects

    def make() -> ToolCallParser:
        return ToolCallParser(
            tools,
            chosen,
            "eager" if settings.arguments == "eager" else "validated",
            nonce,
            quoted,
            unknown_tool=settings.unknown_tool,
            check=check,
        )

    return make


# --- the report ----------------------------------------------------------------------------------------------------------------------------------


def _report(turn: Turn, capabilities: Capabilities, strategy: Strategy) -> tuple[tuple[str, str], ...]:
    out: dict[str, str] = {}
    for name in sorted(turn.sent):
        if name not in FIELDS:
            out["unknown_fields"] = "ignored"
            continue
        disposition = _disposition(name, FIELDS[name], turn, capabilities, strategy)
        if disposition != "honoured":
            out[name] = disposition
    if strategy in ("native", "parked") and not capabilities.strict and any(tool.strict for tool in turn.offered()):
        out["tools.strict"] = "ignored"
    for name, what in turn.notes:
        group, _, rest = name.partition(".")
        if rest and group == "tools" and rest not in HOSTED and rest not in ("namespace", "unknown"):
            name = "tools.unknown"
        if _NOTE.match(name):
            out[name] = what
    return tuple(out.items())


def _disposition(name: str, rule: Rule, turn: Turn, capabilities: Capabilities, strategy: Strategy) -> Disposition:
    if ONLY.get(name, turn.api) != turn.api:
        return "ignored"
    if rule == "backend":
        return "honoured" if name in capabilities.fields else "ignored"
    if rule in ("tools", "choice"):
        if strategy == "none":
            return "honoured"
        if strategy != "native":
            return "emulated" if strategy == "emulated" else "honoured"
        return "honoured" if rule == "tools" or capabilities.tool_choice or turn.tool_choice.mode == "auto" else "ignored"
    if rule == "format":
        return "honoured" if turn.output.type == "text" or capabilities.schema else "emulated"
    if rule == "chat_only":
        return "honoured" if turn.api == "chat" else "ignored"
    if rule == "responses_only":
        return "honoured" if turn.api == "responses" else "ignored"
    return "honoured"

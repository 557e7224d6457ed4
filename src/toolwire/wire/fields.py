"""The request fields of both APIs, and the report on how each was served.

Law 10, no field is ignored in silence: by the table `FIELDS` and the backend's capabilities, each known field
is `honoured`, `constrained` or `emulated` (by Toolwire instead of the backend), `ignored` or `refused`. An
unknown field is `passed` to a server that accepts it, or `ignored`. The report names the fields that were not
simply honoured. It names unknown fields only in a safe alphabet, and at most `MOST_NOTES` of them. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from toolwire.core.capabilities import Capabilities, Strategy
from toolwire.core.turn import Api, Reasoning, Turn
from toolwire.wire.checks import MOST_NOTES, is_safe

Disposition = Literal["honoured", "constrained", "emulated", "ignored", "refused", "passed"]
Rule = Literal["gateway", "backend", "tools", "choice", "format", "chat_only", "responses_only"]

# How each known field of both APIs is served. `gateway`: by Toolwire itself, whatever stands behind.
# `backend`: where the backend lists it. `tools`, `choice`, `format`: by the strategy of the plan.
# `chat_only`, `responses_only`: by Toolwire on that API, on the other one by the backend.
FIELDS: dict[str, Rule] = {
    "model": "gateway",
    "messages": "gateway",
    "input": "gateway",
    "instructions": "gateway",
    "stream": "gateway",
    "stream_options": "gateway",
    "stream_options.include_obfuscation": "backend",
    "n": "chat_only",
    "previous_response_id": "responses_only",
    "generate": "responses_only",
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
            "reasoning.summary",
            "reasoning.generate_summary",
            "reasoning.context",
            "reasoning.mode",
            "verbosity",
            "text.verbosity",
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
            "access_programs",
            "image",
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
            "text.verbosity",
            "reasoning",
            "reasoning.summary",
            "reasoning.generate_summary",
            "reasoning.context",
            "reasoning.mode",
            "max_output_tokens",
            "max_tool_calls",
            "truncation",
            "include",
            "previous_response_id",
            "generate",
            "background",
            "conversation",
            "prompt",
            "context_management",
            "access_programs",
            "image",
        ),
        "responses",
    ),
}
"""Fields that only one API has. The other API ignores them."""
ALIKE = {"text.verbosity": "verbosity", "reasoning.generate_summary": "reasoning.summary"}
"""A backend that honours the value also honours the key."""
_KNOWN = frozenset(FIELDS)
HEALED = "healed:"
"""The prefix of a note on a repair. A report joins several repairs of one field."""
_NOTE = re.compile(r"[a-zA-Z][a-zA-Z0-9_.]{0,95}\Z")
UNKNOWN = "unknown_fields"
"""The report's name for unknown fields that are too many or not safe to name."""


class _Case(NamedTuple):
    """Everything about a turn and its backend that decides how a field is served."""

    api: Api
    mode: str
    output: str
    strategy: Strategy
    fields: frozenset[str]
    tool_choice: bool
    allowed: bool
    allowed_tools: bool
    schema: bool
    strict: bool


def _case(turn: Turn, can: Capabilities, strategy: Strategy) -> _Case:
    choice = turn.tool_choice
    allowed = choice.allowed is not None, can.allowed_tools
    return _Case(
        turn.api,
        choice.mode,
        turn.output.type,
        strategy,
        can.fields,
        can.tool_choice,
        *allowed,
        can.schema,
        can.strict,
    )


def report(turn: Turn, capabilities: Capabilities, strategy: Strategy) -> tuple[tuple[str, str], ...]:
    """How each sent field was served, for fields that were not simply honoured."""
    can, known = capabilities, turn.sent & _KNOWN
    case = _case(turn, can, strategy)
    own = strategy in ("native", "parked")
    strict = own and not can.strict and any(tool.strict for tool in turn.offered())
    custom = own and not can.custom_tools and any(tool.kind == "custom" for tool in turn.offered())
    if len(known) == len(turn.sent) and not strict and not custom and not turn.notes:  # nearly always
        return _told(known, case)
    out = unknown(turn.sent - _KNOWN, can.passes) if len(known) < len(turn.sent) else {}
    out.update(_told(known, case))
    if strict:
        out["tools.strict"] = "ignored"
    if custom:
        out["tools.custom"] = "emulated"
    for name, what in turn.notes:
        if _NOTE.match(name):
            before, heal = out.get(name, ""), what.removeprefix(HEALED)
            both = before.startswith(HEALED) and heal != what
            out[name] = f"{before},{heal}" if both else what
    return tuple(out.items())


def unknown(names: Iterable[str], passes: frozenset[str] = frozenset()) -> dict[str, str]:
    """How unknown fields are served."""
    safe = sorted(filter(is_safe, names))[:MOST_NOTES]
    out = {name: "passed" if is_passed(name, passes) else "ignored" for name in safe}
    return {**out, UNKNOWN: "ignored"} if len(out) < len(set(names)) else out


def is_passed(name: str, passes: frozenset[str]) -> bool:
    return name in passes or ("*" in passes and "." not in name)


def passed(turn: Turn, capabilities: Capabilities) -> Mapping[str, Any]:
    """The unread fields that the backend forwards: those that the report calls honoured or passed."""
    told = dict(_told(turn.sent & _KNOWN, _case(turn, capabilities, "none")))
    named = unknown(turn.sent - _KNOWN, capabilities.passes)
    return {
        name: value
        for name, value in turn.rest.items()
        if (name not in told if name in FIELDS else named.get(name) == "passed")
    }


def thoughts(turn: Turn, asked: Turn, capabilities: Capabilities) -> tuple[tuple[str, str], ...]:
    """The report on reasoning that the client sent back and the backend does not get.

    `asked` is the turn that the backend runs.
    """
    sent = [item for item in turn.items if type(item) is Reasoning]
    given = {id(item) for item in asked.items}
    text, sealed = "text" in capabilities.recalls, "sealed" in capabilities.recalls
    for item in sent:
        reaches = id(item) in given and (
            (text and (item.content or item.summary)) or (sealed and item.encrypted)
        )
        if not reaches and (item.content or item.summary or item.encrypted):
            return (("messages.reasoning_content" if turn.api == "chat" else "input.reasoning", "ignored"),)
    return ()


@lru_cache(1024)
def _told(sent: frozenset[str], case: _Case) -> tuple[tuple[str, str], ...]:
    """The fields that are not simply honoured. Cached, because most requests send the same fields."""
    found = {name: _disposition(name, FIELDS[name], case) for name in sorted(sent)}
    return tuple(
        (name, what)
        for name, what in found.items()
        if what != "honoured" and (found.get(name.partition(".")[0]) != what or "." not in name)
    )


def _disposition(name: str, rule: Rule, case: _Case) -> Disposition:
    api, mode, strategy = case.api, case.mode, case.strategy
    if ONLY.get(name, api) != api:
        return "ignored"
    if rule == "backend":
        return "honoured" if ALIKE.get(name, name) in case.fields else "ignored"
    if rule in ("tools", "choice"):
        if strategy == "none":
            return "honoured"
        if strategy == "emulated" or (strategy == "constrained" and rule == "tools"):
            return strategy
        if strategy != "native":
            return "honoured"
        if rule == "tools":
            return "honoured"
        told = case.allowed_tools if case.allowed else case.tool_choice or mode == "auto"
        return "honoured" if told else "emulated"  # the gateway checks the answer and retries
    if rule == "format":
        as_text = strategy in ("emulated", "constrained")
        if case.output == "text" or (as_text and mode == "required"):
            return "honoured"  # a required call leaves no text to format
        held = case.schema and (not as_text or (strategy == "constrained" and case.strict))
        return "honoured" if held else "emulated"
    if rule == "chat_only":
        return "honoured" if api == "chat" else "ignored"
    if rule == "responses_only":
        return "honoured" if api == "responses" or name in case.fields else "ignored"
    return "honoured"

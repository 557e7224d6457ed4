"""The fields of both APIs, and what becomes of each.

Law 10, no field is ignored in silence: each known field of a request is `honoured`, `constrained` or `emulated` (served in another way than the
backend's own), `ignored` or `refused`, by the table `FIELDS` and the capabilities of the backend. The report names those that were not plainly
honoured, never a client's own words. Pure.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, NamedTuple

from toolwire.backends.base import Capabilities, Strategy
from toolwire.decode.tools import HOSTED
from toolwire.turn import Api, Turn

Disposition = Literal["honoured", "constrained", "emulated", "ignored", "refused"]
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
        ),
        "responses",
    ),
}
"""Fields that only one API has; sent to the other they mean nothing there."""
ALIKE = {"text.verbosity": "verbosity"}
"""What a backend that lists the one does with the other."""
_KNOWN = frozenset(FIELDS)
HEALED = "healed:"
"""How a note on what was put right begins. There may be several on one field; one report names them all."""
_NOTE = re.compile(r"[a-z][a-z0-9_.]{0,63}\Z")


class _Case(NamedTuple):
    """All of a turn, and of what its backend can do, that decides what becomes of a field."""

    api: Api
    mode: str
    output: str
    strategy: Strategy
    fields: frozenset[str]
    tool_choice: bool
    schema: bool
    strict: bool


def report(turn: Turn, capabilities: Capabilities, strategy: Strategy) -> tuple[tuple[str, str], ...]:
    can, known = capabilities, turn.sent & _KNOWN
    case = _Case(turn.api, turn.tool_choice.mode, turn.output.type, strategy, can.fields, can.tool_choice, can.schema, can.strict)
    own = strategy in ("native", "parked")
    strict = own and not can.strict and any(tool.strict for tool in turn.offered())
    custom = own and not can.custom_tools and any(tool.kind == "custom" for tool in turn.offered())
    if len(known) == len(turn.sent) and not strict and not custom and not turn.notes:  # nearly always
        return _told(known, case)
    out = {"unknown_fields": "ignored"} if len(known) < len(turn.sent) else {}
    out.update(_told(known, case))
    if strict:
        out["tools.strict"] = "ignored"
    if custom:
        out["tools.custom"] = "emulated"
    for name, what in turn.notes:
        group, _, rest = name.partition(".")
        if rest and group == "tools" and rest not in HOSTED and rest not in ("namespace", "unknown"):
            name = "tools.unknown"
        if _NOTE.match(name):
            before, heal = out.get(name, ""), what.removeprefix(HEALED)
            both = before.startswith(HEALED) and heal != what
            out[name] = f"{before},{heal}" if both else what
    return tuple(out.items())


@lru_cache(1024)
def _told(sent: frozenset[str], case: _Case) -> tuple[tuple[str, str], ...]:
    """Which of these fields are not plainly honoured: most requests have the same ones."""
    found = {name: _disposition(name, FIELDS[name], case) for name in sorted(sent)}
    return tuple(
        (name, what) for name, what in found.items() if what != "honoured" and (found.get(name.partition(".")[0]) != what or "." not in name)
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
        return "honoured" if rule == "tools" or case.tool_choice or mode == "auto" else "ignored"
    if rule == "format":
        as_text = strategy in ("emulated", "constrained")
        if case.output == "text" or (as_text and mode == "required"):
            return "honoured"  # where a call is required there is no text
        held = case.schema and (not as_text or (strategy == "constrained" and case.strict))
        return "honoured" if held else "emulated"
    if rule == "chat_only":
        return "honoured" if api == "chat" else "ignored"
    if rule == "responses_only":
        return "honoured" if api == "responses" else "ignored"
    return "honoured"

"""The request fields of all APIs, and the report on how each was served.

No field is ignored silently (law 10 in docs/architecture.md). The table `FIELDS` and the backend's
capabilities decide how a known field is served: `honoured`, `constrained` (the model's decoder enforces it),
`emulated` (Toolwire does what the field asks for, instead of the backend), `ignored` or `refused`. An unknown
field is `passed` to a server that accepts it; otherwise it is `ignored`. The report names the fields that
were not simply honoured. It names at most `MOST_NOTES` unknown fields, and only those whose names are safe
for a header. Pure.
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
Rule = Literal["gateway", "stored", "tools", "choice", "format", "backend", "tokens"]

ALL: tuple[Api, ...] = ("chat", "responses", "messages")
OPENAI: tuple[Api, ...] = ("chat", "responses")
_SERVED: tuple[tuple[Rule, tuple[Api, ...], str], ...] = (
    ("gateway", ALL, "model stream"),
    ("gateway", OPENAI, "stream_options parallel_tool_calls"),
    ("gateway", ("chat", "messages"), "messages"),
    ("gateway", ("chat",), "n"),
    ("gateway", ("messages",), "system thread"),
    (
        "gateway",
        ("responses",),
        "input instructions previous_response_id generate background conversation prompt",
    ),
    ("stored", OPENAI, "store metadata"),
    ("tools", ALL, "tools"),
    ("tools", ("chat",), "functions"),
    ("choice", ALL, "tool_choice"),
    ("choice", ("chat",), "function_call"),
    ("format", ("chat",), "response_format"),
    ("format", ("responses",), "text"),
    ("format", ("messages",), "output_config.format output_format"),
    ("backend", ALL, "temperature top_p"),
    ("backend", OPENAI, "stream_options.include_obfuscation user safety_identifier"),
    ("backend", OPENAI, "prompt_cache_key prompt_cache_retention prompt_cache_options moderation"),
    ("backend", OPENAI, "service_tier"),
    ("backend", ("chat", "messages"), "max_tokens"),
    ("backend", ("chat",), "max_completion_tokens stop seed presence_penalty frequency_penalty"),
    ("backend", ("chat",), "logit_bias reasoning_effort verbosity modalities audio prediction"),
    ("backend", ("chat",), "web_search_options"),
    ("backend", ("responses",), "max_output_tokens reasoning reasoning.summary reasoning.generate_summary"),
    ("backend", ("responses",), "reasoning.context reasoning.mode text.verbosity truncation include"),
    ("backend", ("responses",), "max_tool_calls access_programs image"),
    ("backend", ("responses", "messages"), "context_management"),
    ("backend", ("messages",), "stop_sequences thinking output_config.effort metadata.user_id"),
    ("backend", ("messages",), "speed inference_geo container mcp_servers cache_control compaction betas"),
    ("backend", ("messages",), "fallbacks diagnostics safeguards user_profile_id workspace_id"),
    ("tokens", OPENAI, "top_logprobs"),
    ("tokens", ("chat",), "logprobs"),
    ("tokens", ("responses",), "include.message.output_text.logprobs"),
)
FIELDS = {name: (rule, apis) for rule, apis, names in _SERVED for name in names.split()}
"""How each known field is served, and the APIs that have it. On any other API the field is ignored.

- `gateway`: by Toolwire.
- `stored`: on Responses by Toolwire; on chat by a backend whose capabilities list the field.
- `tools`, `choice`, `format`: the tool-calling strategy of the plan decides.
- `backend`: by a backend whose capabilities list the field.
- `tokens`: by a backend whose capabilities list `logprobs`, if the text is not scanned for calls.
"""
TOKENS = frozenset(name for name, (rule, _) in FIELDS.items() if rule == "tokens")
ALIKE = {
    "text.verbosity": "verbosity",
    "reasoning.generate_summary": "reasoning.summary",
    "stop_sequences": "stop",
    "thinking": "reasoning_effort",
    "output_config.effort": "reasoning_effort",
    "metadata.user_id": "user",
}
"""Pairs of fields with the same meaning. A backend that honours the second also honours the first."""
_KNOWN = frozenset(FIELDS)
_THOUGHTS: dict[Api, str] = {
    "chat": "messages.reasoning_content",
    "responses": "input.reasoning",
    "messages": "messages.thinking",
}
"""For each API, the field in which the client sends reasoning back."""
NEVER_PASSED = frozenset({"model", "fallbacks"})
"""Fields that name a model. Only Toolwire decides which models a key may use."""
REPAIRED = "healed:"
"""The prefix of a note on a repair. The report joins several repairs of one field."""
_NOTE = re.compile(r"[a-zA-Z][a-zA-Z0-9_.]{0,95}\Z")
UNKNOWN = "unknown_fields"
"""The report's name for all unknown fields whose names are unsafe, or that are too many to name."""


class _Case(NamedTuple):
    """Everything about a turn and its backend that decides how its fields are served."""

    api: Api
    mode: str
    output: str
    allowed: bool
    strategy: Strategy
    can: Capabilities


def _case(turn: Turn, can: Capabilities, strategy: Strategy) -> _Case:
    choice = turn.tool_choice
    return _Case(turn.api, choice.mode, turn.output.type, choice.allowed is not None, strategy, can)


def report(turn: Turn, capabilities: Capabilities, strategy: Strategy) -> tuple[tuple[str, str], ...]:
    """Returns (field, disposition) for each sent field that was not simply honoured."""
    can, known = capabilities, turn.sent & _KNOWN
    if turn.api in can.speaks:  # the backend gets the client's own body, without the fields in NEVER_PASSED
        return tuple(note for note in turn.notes if note[0] in NEVER_PASSED)
    served = _served(known, _case(turn, can, strategy))
    strict = custom = False
    if strategy in ("native", "parked"):
        offered = turn.offered()
        strict = not can.strict and any(tool.strict for tool in offered)
        custom = not can.custom_tools and any(tool.kind == "custom" for tool in offered)
    if len(known) == len(turn.sent) and not strict and not custom and not turn.notes:  # nearly always
        return served
    out = {**unknown(turn.sent - _KNOWN, can.passes), **dict(served)}
    if strict:
        out["tools.strict"] = "ignored"
    if custom:
        out["tools.custom"] = "emulated"
    for name, what in turn.notes:
        if _NOTE.match(name):
            before, repair = out.get(name, ""), what.removeprefix(REPAIRED)
            both = before.startswith(REPAIRED) and repair != what
            out[name] = f"{before},{repair}" if both else what
    return tuple(out.items())


def unknown(names: Iterable[str], passes: frozenset[str] = frozenset()) -> dict[str, str]:
    """Returns the disposition of each unknown field. `passes`: fields that the backend forwards."""
    safe = sorted(filter(is_safe, names))[:MOST_NOTES]
    out = {
        name: "passed" if name in passes or ("*" in passes and "." not in name) else "ignored"
        for name in safe
    }
    return {**out, UNKNOWN: "ignored"} if len(out) < len(set(names)) else out


def passed(turn: Turn, capabilities: Capabilities) -> Mapping[str, Any]:
    """Returns the fields that the decoder did not read and the backend forwards, with their values."""
    served = dict(_served(turn.sent & _KNOWN, _case(turn, capabilities, "none")))
    named = unknown(turn.sent - _KNOWN, capabilities.passes)
    return {
        name: value
        for name, value in turn.rest.items()
        if (name not in served if name in FIELDS else named.get(name) == "passed")
    }


def thoughts(turn: Turn, asked: Turn, capabilities: Capabilities) -> tuple[tuple[str, str], ...]:
    """Returns a report entry if reasoning that the client sent back does not reach the model.

    `turn`: the client's request. `asked`: the turn that the backend runs.
    """
    given = {id(item) for item in asked.items}
    for item in turn.items:
        if type(item) is not Reasoning:
            continue
        text = bool(item.content or item.summary)
        sealed = item.encrypted or item.redacted
        reaches = (text and "text" in capabilities.recalls) or (sealed and "sealed" in capabilities.recalls)
        if (text or sealed) and not (reaches and id(item) in given):
            return ((_THOUGHTS[turn.api], "ignored"),)
    return ()


def keeps_logprobs(capabilities: Capabilities, strategy: Strategy) -> bool:
    """Returns True if the answer can have log probabilities.

    The backend must return them, and the answer's text must stay as the model wrote it.
    """
    return "logprobs" in capabilities.fields and strategy not in ("emulated", "constrained")


@lru_cache(1024)
def _served(sent: frozenset[str], case: _Case) -> tuple[tuple[str, str], ...]:
    """Returns the name and disposition of each field whose disposition is not `honoured`.

    Cached, because most requests send the same fields.
    """
    found = {name: _disposition(name, case) for name in sorted(sent)}
    return tuple(
        (name, what)
        for name, what in found.items()
        if what != "honoured" and (found.get(name.partition(".")[0]) != what or "." not in name)
    )


def _disposition(name: str, case: _Case) -> Disposition:
    """Returns how a known field is served in this case."""
    (rule, apis), strategy, can = FIELDS[name], case.strategy, case.can
    if case.api not in apis:
        return "ignored"
    if rule == "backend" or (rule == "stored" and case.api == "chat"):
        return "honoured" if ALIKE.get(name, name) in can.fields else "ignored"
    if rule == "tokens":
        return "honoured" if keeps_logprobs(can, strategy) else "ignored"
    if rule == "tools" and strategy in ("emulated", "constrained"):
        return strategy
    if rule == "choice":
        sent = can.allowed_tools if case.allowed else can.tool_choice or case.mode == "auto"
        # If the server does not accept the choice, the gateway checks the answer and retries.
        return "emulated" if strategy == "emulated" or (strategy == "native" and not sent) else "honoured"
    if rule == "format":
        as_text = strategy in ("emulated", "constrained")
        if case.output == "text" or (as_text and case.mode == "required"):
            return "honoured"  # if a call is required, there is no text to format
        held = can.schema and (not as_text or (strategy == "constrained" and can.strict))
        return "honoured" if held else "emulated"
    return "honoured"

"""How much a request thinks, and when it may not.

A client's `reasoning_effort` comes before the model's options; neither: the provider's own habit. Claude with a budget of thoughts (the models before
its adaptive thinking) refuses four things, each of which decides here for the rest of the request:
  - a forced call: the call comes first, without thoughts;
  - a tool loop that goes on without the signed thoughts that began it (the gateway has forgotten them): it goes on without thoughts;
  - `max_tokens` that leave no room behind the thoughts: a smaller budget, or none;
  - a `temperature` other than 1: refused where the client asked for both; dropped, and reported, where the options make the model think.
Pure; standard library only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from toolwire.backends.hosted.options import SMALLEST_BUDGET, HostedOptions
from toolwire.core.errors import ToolwireError
from toolwire.core.turn import Turn

LEVELS = ("minimal", "low", "medium", "high", "xhigh", "max")
OFF = ("none", "off")
BUDGETS: Mapping[str, int] = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384, "xhigh": 32768, "max": 32768}
"""Tokens of thought for Claude models that take a number."""
EFFORTS: Mapping[str, str] = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "max"}
"""Levels of Claude models that decide by themselves how much they think."""


@dataclass(frozen=True, slots=True)
class Thinking:
    """`settings` for the library. `replay`: signed thoughts of earlier calls go back. `drop_sampling`: temperature and top_p do not go along."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    replay: bool = True
    drop_sampling: bool = False


def decide(turn: Turn, options: HostedOptions, profile: Mapping[str, Any], signed: bool) -> Thinking:
    """`signed`: every call of a tool loop that goes on has its signed thoughts, or there is no such loop."""
    effort = turn.sampling.effort if turn.sampling.effort is not None else options.thinking
    if effort and effort not in (*LEVELS, *OFF):
        raise ToolwireError("unsupported_value", f"This reasoning effort is not known; known: {', '.join(LEVELS)}.", param=_param(turn))
    if options.provider == "anthropic":
        return _claude(turn, options, profile, effort, signed)
    if not effort and not options.thinking_budget:
        return Thinking()
    if effort in OFF:
        return Thinking({"thinking": False})
    own_budget = options.thinking_budget if turn.sampling.effort is None else 0
    if options.provider == "google" and own_budget and not profile.get("google_supports_thinking_level", True):
        return Thinking({"google_thinking_config": {"include_thoughts": True, "thinking_budget": options.thinking_budget}})
    return Thinking({"thinking": effort or True})


def _claude(turn: Turn, options: HostedOptions, profile: Mapping[str, Any], effort: str, signed: bool) -> Thinking:
    if effort in OFF:
        return Thinking({"thinking": False}, replay=bool(profile.get("thinking_always_enabled")))
    if not effort and not options.thinking_budget:
        return Thinking(replay=bool(profile.get("thinking_enabled_by_default")))
    if profile.get("anthropic_supports_adaptive_thinking"):
        settings: dict[str, Any] = {"anthropic_thinking": {"type": "adaptive", "display": "summarized"}}
        if effort and profile.get("anthropic_supports_effort"):
            settings["anthropic_effort"] = _effort(effort, profile)
        return Thinking(settings, drop_sampling=_sampling(turn))
    budget = BUDGETS[effort] if effort and (turn.sampling.effort is not None or not options.thinking_budget) else options.thinking_budget
    if turn.sampling.max_tokens is not None:
        budget = min(budget, turn.sampling.max_tokens - 1)
    if budget < SMALLEST_BUDGET or not signed or (turn.tools and turn.tool_choice.mode == "required"):
        return Thinking(replay=False)
    drop = _sampling(turn)
    return Thinking({"anthropic_thinking": {"type": "enabled", "budget_tokens": budget}}, drop_sampling=drop)


def _effort(level: str, profile: Mapping[str, Any]) -> str:
    effort = EFFORTS[level]
    if effort == "xhigh" and not profile.get("anthropic_supports_xhigh_effort"):
        effort = "max"
    if effort == "max" and not profile.get("anthropic_supports_max_effort", True):
        effort = "high"
    return effort


def _sampling(turn: Turn) -> bool:
    """Whether the request's sampling does not go with thoughts; refused where the client itself asked for them."""
    for name, value, fits in (("temperature", turn.sampling.temperature, 1.0), ("top_p", turn.sampling.top_p, 0.95)):
        if value is not None and (value != 1 if name == "temperature" else value < fits):
            if turn.sampling.effort is None:
                return True
            raise ToolwireError("unsupported_value", f"{name} can not be set together with {_param(turn)} for this model.", param=name)
    return False


def _param(turn: Turn) -> str:
    return "reasoning_effort" if turn.api == "chat" else "reasoning.effort"


# --- memory ------------------------------------------------------------
#
# Signed thoughts, kept until their call comes back. Anthropic and Google sign what a model thought before
# a call, and want it back, unchanged, beside the call and its result. OpenAI's wire has no place for it,
# so the backend remembers it by the call's id, in memory, with limits: the calls that came back least
# recently go first. What is forgotten is made up for in `thinking.py` (Anthropic) and by the library's
# documented dummy signature (Google). Standard library only.

MOST_CALLS = 4096
MOST_CHARACTERS = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SignedThought:
    """A thought of the library's kind. `after_text`: the model had said something before it, since its last call."""

    part: Any
    after_text: bool = False

    @property
    def size(self) -> int:
        return len(self.part.content) + len(self.part.signature or "")


@dataclass(frozen=True, slots=True)
class Signed:
    """What was signed for a call: the thoughts before it, and details of the call itself. `name` is the tool's, which must be the same again."""

    name: str
    thoughts: tuple[SignedThought, ...] = ()
    details: Mapping[str, Any] | None = None
    provider_name: str | None = None

    @property
    def size(self) -> int:
        return 200 + sum(thought.size for thought in self.thoughts) + sum(len(str(value)) for value in (self.details or {}).values())


class CallMemory:
    """By call id. One for each configured model, so that a key of one provider never meets a signature of another."""

    def __init__(self, most_calls: int = MOST_CALLS, most_characters: int = MOST_CHARACTERS) -> None:
        self._kept: OrderedDict[str, Signed] = OrderedDict()
        self._most_calls, self._most_characters = most_calls, most_characters
        self._size = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, call_id: str, signed: Signed) -> None:
        old = self._kept.pop(call_id, None)
        self._size += signed.size - (old.size if old is not None else 0)
        self._kept[call_id] = signed
        while self._kept and (len(self._kept) > self._most_calls or self._size > self._most_characters):
            self._size -= self._kept.popitem(last=False)[1].size

    def recall(self, call_id: str, name: str) -> Signed | None:
        found = self._kept.get(call_id)
        if found is None or found.name != name:
            return None
        self._kept.move_to_end(call_id)
        return found

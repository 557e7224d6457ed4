"""How much a model thinks in a request, and the signed thoughts of earlier calls.

A client's `reasoning_effort` overrides the model's options. If neither is set, the provider decides. Claude's
API refuses thinking with a budget in three cases: a call is forced, the signed thoughts of the tool loop are
lost, or `max_tokens` leaves no room for thoughts. Toolwire then switches thinking off. With thinking, the API
also refuses some sampling fields, see `_drops_sampling`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from toolwire.backends.hosted.options import SMALLEST_BUDGET, HostedOptions
from toolwire.core.errors import ToolwireError
from toolwire.core.turn import Api, Turn

OFF = ("none", "off")
EFFORT_FIELDS: dict[Api, str] = {
    "chat": "reasoning_effort",
    "responses": "reasoning.effort",
    "messages": "output_config.effort",
}
BUDGETS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384, "xhigh": 32768, "max": 32768}
"""Thinking budgets in tokens by effort, for Claude models that take a number instead of an effort."""


@dataclass(frozen=True, slots=True)
class Thinking:
    """How the model thinks in a request. `settings`: the settings of pydantic-ai for this.

    `replay`: whether signed thoughts of earlier calls are sent back. `drop_sampling`: whether `temperature`
    and `top_p` are left out.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    replay: bool = True
    drop_sampling: bool = False


def decide(turn: Turn, options: HostedOptions, profile: Mapping[str, Any], signed: bool) -> Thinking:
    """Returns how the model thinks in this request.

    `signed`: False if the request continues a tool loop whose signed thoughts are lost.
    """
    effort = turn.sampling.effort if turn.sampling.effort is not None else options.thinking
    if effort and effort not in (*BUDGETS, *OFF):
        message = f"This reasoning effort is not known; known: {', '.join(BUDGETS)}."
        raise ToolwireError("unsupported_value", message, param=_param(turn))
    if options.provider == "anthropic":
        return _claude(turn, options, profile, effort, signed)
    if not effort and not options.thinking_budget:
        return Thinking()
    if effort in OFF:
        return Thinking({"thinking": False})
    budget = options.thinking_budget if turn.sampling.effort is None else 0
    if options.provider == "google" and budget and not profile.get("google_supports_thinking_level", True):
        return Thinking({"google_thinking_config": {"include_thoughts": True, "thinking_budget": budget}})
    return Thinking({"thinking": effort or True})


def _claude(
    turn: Turn, options: HostedOptions, profile: Mapping[str, Any], effort: str, signed: bool
) -> Thinking:
    if effort in OFF:
        return Thinking({"thinking": False}, replay=bool(profile.get("thinking_always_enabled")))
    if not effort and not options.thinking_budget:
        return Thinking(replay=bool(profile.get("thinking_enabled_by_default")))
    if profile.get("anthropic_supports_adaptive_thinking"):
        settings: dict[str, Any] = {"anthropic_thinking": {"type": "adaptive", "display": "summarized"}}
        if effort and profile.get("anthropic_supports_effort"):
            settings["anthropic_effort"] = _effort(effort, profile)
        return Thinking(settings, drop_sampling=_drops_sampling(turn))
    budget = options.thinking_budget
    if effort and (turn.sampling.effort is not None or not budget):
        budget = BUDGETS[effort]
    if turn.sampling.max_tokens is not None:
        budget = min(budget, turn.sampling.max_tokens - 1)
    if budget < SMALLEST_BUDGET or not signed or (turn.tools and turn.tool_choice.mode == "required"):
        return Thinking(replay=False)
    enabled = {"anthropic_thinking": {"type": "enabled", "budget_tokens": budget}}
    return Thinking(enabled, drop_sampling=_drops_sampling(turn))


def _effort(level: str, profile: Mapping[str, Any]) -> str:
    effort = "low" if level == "minimal" else level
    if effort == "xhigh" and not profile.get("anthropic_supports_xhigh_effort"):
        effort = "max"
    if effort == "max" and not profile.get("anthropic_supports_max_effort", True):
        effort = "high"
    return effort


def _drops_sampling(turn: Turn) -> bool:
    """Whether the request sets a `temperature` or `top_p` that Claude refuses when it thinks.

    Raises an error if such a request also sets a reasoning effort.
    """
    temperature, top_p = turn.sampling.temperature, turn.sampling.top_p
    name = "temperature" if temperature not in (None, 1) else ""
    if not name and top_p is not None and top_p < 0.95:
        name = "top_p"
    if name and turn.sampling.effort is not None:
        message = f"{name} cannot be set together with {_param(turn)} for this model."
        raise ToolwireError("unsupported_value", message, param=name)
    return bool(name)


def _param(turn: Turn) -> str:
    return EFFORT_FIELDS[turn.api]


# --- memory ------------------------------------------------------------
#
# Anthropic and Google sign the thoughts of a model before a call, and want these thoughts back unchanged with
# the call's result. OpenAI's API has no field for signed thoughts, so the backend remembers them by call id.
# If they are lost, Claude continues without thoughts, and pydantic-ai sends Google its documented dummy
# signature.

MOST_CALLS = 4096
MOST_CHARACTERS = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SignedThought:
    """A signed thought. `part`: the thought as a message part of pydantic-ai.

    `after_text`: whether the model wrote text between its previous call and this thought.
    """

    part: Any
    after_text: bool = False

    @property
    def size(self) -> int:
        return len(self.part.content) + len(self.part.signature or "")


@dataclass(frozen=True, slots=True)
class Signed:
    """The signed thoughts before a call, and the signed details of the call itself.

    `name` is the name of the called tool.
    """

    name: str
    thoughts: tuple[SignedThought, ...] = ()
    details: Mapping[str, Any] | None = None
    provider_name: str | None = None

    @property
    def size(self) -> int:
        details = sum(len(str(value)) for value in (self.details or {}).values())
        return 200 + sum(thought.size for thought in self.thoughts) + details


class CallMemory:
    """Stores a model's signed thoughts under the id of the call that came next.

    If the thoughts need too much space, the least recently used ones are forgotten first.
    """

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

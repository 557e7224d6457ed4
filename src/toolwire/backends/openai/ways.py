"""Which way a model's tools go: native, constrained or emulated, and what follows from that.

The way is the setting's; `auto` begins with the server's own tools. What a server refuses, or is known not to have, is left for `FORGET_S`: a server
that was restarted in the meantime, or a model that was replaced, gets its chance again. Capabilities are data: profile × way × what was refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from toolwire.backends.base import Capabilities, Constrained, Recalled, Strategy
from toolwire.backends.openai.options import OpenAIOptions
from toolwire.backends.openai.profiles import PASSABLE, Choice, Profile
from toolwire.backends.openai.refusals import Refused
from toolwire.backends.openai.render import PASSED_ON, TOOL_FIELDS
from toolwire.emulate.dialects.families import dialects_of

FORGET_S = 3600.0
BOTH: frozenset[Constrained] = frozenset({"text", "call"})
CALL: frozenset[Constrained] = frozenset({"call"})
RECALLED: frozenset[Recalled] = frozenset({"text"})


@dataclass(frozen=True, slots=True)
class Facts:
    """What a server told of a model. `tools` None: nothing; `lark`: it takes a Lark grammar."""

    tools: bool | None = None
    lark: bool = False


class Ways:
    """The state of one model: its profile, what is known, what was refused."""

    def __init__(self, options: OpenAIOptions, model: str, clock: Callable[[], float]) -> None:
        self._options = options
        self._dialects = dialects_of(model, options.dialects)
        self._clock = clock
        self._refused: dict[Refused, float] = {}
        self._found = options.server
        self.facts = Facts()
        self._settle()

    @property
    def profile(self) -> Profile:
        """The server as it is used now: without what it has refused, with what the options say."""
        if self._refused:
            self._forget()
        return self._profile

    @property
    def strategy(self) -> Strategy:
        if self._refused:
            self._forget()
        return self._strategy

    @property
    def capabilities(self) -> Capabilities:
        if self._refused:
            self._forget()
        return self._capabilities

    def learn(self, profile: Profile, facts: Facts | None = None) -> None:
        """The server has said what it is, and what the model can do."""
        self._found, self.facts = profile, facts or self.facts
        self._settle()

    def refuse(self, what: Refused) -> None:
        """The server has refused this: it is not asked for again for a while."""
        self._refused[what] = self._clock() + FORGET_S
        self._settle()

    def heals(self, what: Refused) -> bool:
        """Whether another way is open when this is refused; else the refusal is an error like any other."""
        return what == "constraint" or self._options.tools == "auto"

    def _forget(self) -> None:
        """What was refused long ago may be asked for again."""
        now = self._clock()
        gone = [what for what, until in self._refused.items() if until <= now]
        for what in gone:
            del self._refused[what]
        if gone:
            self._settle()

    def _settle(self) -> None:
        options, found = self._options, self._found
        grammar = found.grammar if options.grammar == "auto" else options.grammar
        if grammar == "lark" and options.grammar == "auto" and not self.facts.lark:
            grammar = "none"
        self._profile = replace(
            found,
            grammar=grammar,
            schema=found.schema if options.schema_field == "auto" else options.schema_field,
            choices=found.choices - self._refused_choices(),
        )
        constrain = frozenset() if "constraint" in self._refused else CALL if grammar == "none" else BOTH
        self._strategy = self._way(bool(constrain))
        self._capabilities = self._able(self._profile, self._strategy, constrain)

    def _refused_choices(self) -> frozenset[Choice]:
        if "choice" in self._refused:
            return frozenset({"required", "named", "allowed"})
        return frozenset({"allowed"}) if "allowed" in self._refused else frozenset()

    def _way(self, constrain: bool) -> Strategy:
        tools = self._options.tools
        if tools in ("native", "emulated"):
            return tools
        if tools == "auto" and self._found.tools and "tools" not in self._refused and self.facts.tools is not False:
            return "native"
        return "constrained" if constrain else "emulated"

    def _able(self, profile: Profile, strategy: Strategy, constrain: frozenset[Constrained]) -> Capabilities:
        native = strategy == "native"
        chosen = frozenset(self._options.pass_fields)
        fields = (PASSED_ON | profile.takes | (chosen & PASSABLE)) - profile.ignores
        if self._options.tools in ("native", "emulated"):
            constrain = frozenset()
        return Capabilities(
            tools=native,
            tool_choice=native and "required" in profile.choices and (profile.firm or not constrain),
            allowed_tools=native and "allowed" in profile.choices,
            strict=native and profile.strict,
            parallel=profile.parallel if native else strategy == "constrained",
            schema=True,
            images=profile.images,
            image_urls=profile.image_urls,
            prefill=strategy == "emulated" and profile.prefill,
            constrain=constrain,
            dialects=self._dialects,
            reasoning=True,
            usage=self._options.stream_usage,
            fields=fields | TOOL_FIELDS if native else fields,
            passes=profile.vendor | chosen,
            recalls=RECALLED if self._options.reasoning_history else frozenset(),
        )

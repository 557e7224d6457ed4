"""The plan of a turn: its strategy, how its answer is read, and the report on its fields.

The plan follows from the backend's capabilities, the request and the settings. The strategies `native` and
`parked` use the backend's own tool calling. With `constrained`, the decoder is restricted so that every call
fits its tool's schema. With `emulated`, the prompt teaches the model to write calls as text. Pure: ids are
passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import msgspec

from toolwire.backends.base import Backend
from toolwire.core.capabilities import Capabilities, Strategy
from toolwire.core.errors import ToolwireError
from toolwire.core.ids import IdFactory
from toolwire.core.policy import NO_RULES, PolicyRules
from toolwire.core.turn import (
    Call,
    Constraint,
    Item,
    Message,
    OutputFormat,
    Reasoning,
    Result,
    TextPart,
    ToolChoice,
    ToolSpec,
    Turn,
)
from toolwire.emulate import prompt
from toolwire.emulate.dialects import DEFAULT
from toolwire.emulate.prompt import BARE, MARKUP, Form, text_only, transcript
from toolwire.emulate.scanner import ToolCallParser
from toolwire.emulate.schemas.bounding import is_held
from toolwire.emulate.schemas.constrain import exact
from toolwire.emulate.thoughts import Mentions
from toolwire.emulate.tools import ToolRegistry, as_function, wrap
from toolwire.settings.types import ToolSettings
from toolwire.wire.fields import TOKENS, keeps_logprobs, passed, report, thoughts
from toolwire.wire.messages.decode import extended

_NONE, _AUTO = ToolChoice("none"), ToolChoice("auto")
_NO_FORM = Form("sentinel", "")
_NO_TOOLS = ToolRegistry(())
_NOBODY: frozenset[str] = frozenset()
MOST_CALLS = 8
"""How many calls a constrained decoder may write in one answer."""


class Plan(msgspec.Struct, frozen=True):
    """How one turn is served. `turn` is the turn as the backend runs it.

    `scanner` creates the parser that finds calls in the answer's text; None if the backend sends calls as
    events.
    """

    strategy: Strategy
    turn: Turn
    rules: PolicyRules
    report: tuple[tuple[str, str], ...] = ()
    scanner: Callable[[], ToolCallParser] | None = None
    customs: frozenset[str] = _NOBODY
    required: bool = False
    strict: bool = False
    """Whether complete calls are checked against their schemas.

    True if a tool is strict and the decoder does not enforce its whole schema.
    """
    choice: ToolChoice = _NONE
    form: Form = _NO_FORM
    begun: str = ""
    """The beginning of the answer, which is known before the backend writes anything."""
    prefilled: bool = False
    """Whether the last message of `turn` is the beginning of the answer."""
    hold_calls: bool = False
    declared: ToolRegistry | None = None
    """The tools that may be called; None if calls of any tool are sent to the client."""
    unknown: Literal["text", "forward", "error"] = "text"
    """What happens to a call of a tool that is not in `declared`."""
    known_ids: frozenset[str] = _NOBODY
    stops: tuple[str, ...] = ()
    """The stop sequences that the gateway looks for in the answer's text."""
    thoughts: bool = False
    """Whether reasoning is separated from the answer's text."""
    offer: tuple[Strategy, Capabilities] = ("native", Capabilities())
    """The strategy and the capabilities that the backend had when the plan was made."""

    def report_header(self) -> str:
        return "; ".join([f"{name}={what}" for name, what in self.report])

    def retried(self) -> Plan:
        """Returns the plan with one more entry in its report: Toolwire asked the model a second time."""
        choice = "function_call" if self.turn.legacy_functions else "tool_choice"
        return msgspec.structs.replace(
            self,
            report=tuple(
                {**dict(self.report), choice if self.required else "tools.strict": "retried"}.items()
            ),
        )

    def by_fallback(self) -> Plan:
        """Returns the plan with one more entry in its report: a fallback model answers."""
        return msgspec.structs.replace(self, report=tuple({**dict(self.report), "model": "fallback"}.items()))

    def as_answered(self, drops_logprobs: bool, repeats: bool) -> Plan:
        """Returns the plan with the report entries that are only known after the answer.

        `drops_logprobs`: log probabilities of the answer were dropped. `repeats`: Toolwire ended the answer,
        because the answer repeated itself.
        """
        known = dict.fromkeys(sorted(self.turn.sent & TOKENS) if drops_logprobs else (), "ignored")
        ended = {"answer": "repetition"} if repeats else {}
        return msgspec.structs.replace(self, report=tuple({**dict(self.report), **known, **ended}.items()))

    def retry(self, answer: str, issues: Sequence[str]) -> Turn:
        """Returns the turn for the second attempt, with the first answer and a corrective message.

        `issues` says what was wrong with the call. Only the tools that `tool_choice` allows are offered.
        """
        said = (Message("assistant", (TextPart(answer),)),) if answer.strip() else ()
        items, begun = (
            (self.turn.items[:-1], self.turn.items[-1:]) if self.prefilled else (self.turn.items, ())
        )
        form = self.form if self.scanner is not None else None
        asked = Message("user", (TextPart(prompt.retry_prompt(self.choice, issues, form)),))
        body = None if self.turn.body is None else extended(self.turn.body, (*said, asked))
        return replace(self.turn, items=(*items, *said, asked, *begun), tools=self.turn.offered(), body=body)


def make_plan(turn: Turn, backend: Backend, settings: ToolSettings, ids: IdFactory) -> Plan:
    """Decides how a turn is served.

    Raises `ToolwireError` if the backend cannot serve the request.
    """
    offer = backend.strategy, backend.capabilities
    capabilities = offer[1]
    if not capabilities.images and turn.images():
        raise ToolwireError(
            "unsupported_value",
            f"The model '{turn.model[:80]}' does not take images.",
            param="input" if turn.api == "responses" else "messages",
        )
    speaks = turn.api in capabilities.speaks
    if turn.only_spoken is not None and not speaks:
        raise ToolwireError.of(turn.only_spoken)
    if turn.rest:
        turn = replace(turn, rest=passed(turn, capabilities))
    offered = turn.offered() if turn.tools else ()
    kinds = set(map(type, turn.items))
    way = _way(turn, *offer)
    as_text = way in ("emulated", "constrained")
    strategy: Strategy = way if offered else "none"
    rules = _rules(turn, settings, as_text) if offered else NO_RULES
    if turn.sampling.logprobs is not None and not keeps_logprobs(capabilities, strategy):
        turn = replace(turn, sampling=replace(turn.sampling, logprobs=None))
    plan = Plan(
        strategy,
        turn,
        rules,
        report=report(turn, capabilities, strategy),
        choice=turn.tool_choice,
        declared=_declared(turn, offered, settings, speaks, as_text),
        required=bool(offered) and turn.tool_choice.mode == "required" and not _has_own_tools(turn, speaks),
        unknown=_unknown(turn, settings),
        known_ids=frozenset([item.call_id for item in turn.items if type(item) is Call])
        if Call in kinds
        else _NOBODY,
        hold_calls=not as_text and settings.arguments == "validated",
        thoughts=settings.reasoning == "split" and not speaks,
        offer=offer,
    )
    if speaks:  # nothing is rewritten: the backend sends `turn.body`
        return plan
    if as_text:
        plan = _as_text(plan, turn, offered, capabilities, settings, ids)
    elif turn.tools or plan.known_ids or turn.output.type != "text":
        plan = _pass_on(plan, turn, capabilities)
    if Reasoning in kinds:
        plan = msgspec.structs.replace(plan, report=(*plan.report, *thoughts(turn, plan.turn, capabilities)))
    return plan


def _has_own_tools(turn: Turn, speaks: bool) -> bool:
    """Whether the backend runs some of the tools itself.

    A required call may then be a call of such a tool, which the client does not see.
    """
    declared = len(turn.tools) + len(turn.hidden_tools)
    return speaks and turn.body is not None and len(turn.body.get("tools") or ()) > declared


def _declared(
    turn: Turn, offered: tuple[ToolSpec, ...], settings: ToolSettings, speaks: bool, as_text: bool
) -> ToolRegistry | None:
    """Returns the tools that may be called; None if calls of any tool are sent to the client.

    With `unknown_tool = "forward"` any tool may be called, unless `tool_choice` restricts the tools. If the
    model writes calls as text, the function `_as_text` later sets the tools.
    """
    if speaks and turn.tool_choice.name is None:
        return None
    if settings.unknown_tool == "forward" and len(offered) == len(turn.tools):
        return None
    return ToolRegistry((*offered, *turn.hidden_tools)) if offered and not as_text else _NO_TOOLS


def _unknown(turn: Turn, settings: ToolSettings) -> Literal["text", "forward", "error"]:
    """Returns what happens to a call of an undeclared tool.

    A client that declares tools which the model does not see yet (`Turn.hidden_tools`) may also name further
    tools in its messages. Calls of these undeclared tools are sent to the client.
    """
    if settings.unknown_tool == "error":
        return "error"
    return "forward" if turn.hidden_tools and turn.tool_choice == _AUTO else "text"


def mentions(turn: Turn, text: str) -> bool:
    """Whether the client's messages or instructions contain `text`.

    Tool results are ignored, because they are untrusted.
    """
    messages = (
        part.text
        for item in turn.items
        if isinstance(item, Message)
        for part in item.parts
        if isinstance(part, TextPart)
    )
    return text in (turn.instructions or "") or any(text in said for said in messages)


def _way(turn: Turn, strategy: Strategy, capabilities: Capabilities) -> Strategy:
    """Returns the strategy for this turn, which is usually the strategy of the backend."""
    required = turn.tool_choice.mode == "required"
    if strategy == "native" and required and not capabilities.tool_choice and capabilities.constrain:
        return "constrained"
    if strategy == "constrained" and not required and "text" not in capabilities.constrain:
        return "emulated"
    return strategy


def _rules(turn: Turn, settings: ToolSettings, as_text: bool) -> PolicyRules:
    stop_after = settings.stop_after if settings.stop_after != "auto" else "burst" if as_text else "off"
    return PolicyRules(
        stop_after=stop_after,
        max_calls=settings.max_calls,
        dedup=settings.dedup,
        suppress_tail=as_text if settings.suppress_tail == "auto" else settings.suppress_tail == "on",
        parallel=turn.parallel and settings.parallel,
        legacy=turn.legacy_functions,
    )


# --- backends with tools ---


def _pass_on(plan: Plan, turn: Turn, capabilities: Capabilities) -> Plan:
    custom = [] if capabilities.custom_tools else [tool.name for tool in turn.tools if tool.kind == "custom"]
    customs = frozenset(custom) if custom else _NOBODY
    if customs or (
        plan.known_ids and not capabilities.custom_tools and any(map(_is_custom, turn.items))
    ):  # the history may contain calls of custom tools that are no longer offered
        turn = replace(
            turn, tools=tuple(map(as_function, turn.tools)), items=tuple(map(_as_function_item, turn.items))
        )
    if turn.output.type != "text" and not capabilities.schema:
        asked = Message("system", (TextPart(prompt.output_prompt(turn.output)),))
        turn = replace(turn, items=(asked, *turn.items), output=OutputFormat())
    return plan if turn is plan.turn else msgspec.structs.replace(plan, turn=turn, customs=customs)


def _is_custom(item: Item) -> bool:
    return isinstance(item, Call | Result) and item.kind == "custom"


def _as_function_item(item: Item) -> Item:
    if isinstance(item, Call) and item.kind == "custom":
        return replace(item, kind="function", arguments=wrap(item.arguments))
    if isinstance(item, Result) and item.kind == "custom":
        return replace(item, kind="function")
    return item


# --- backends without tools ---


def _as_text(
    plan: Plan,
    turn: Turn,
    offered: tuple[ToolSpec, ...],
    capabilities: Capabilities,
    settings: ToolSettings,
    ids: IdFactory,
) -> Plan:
    """Plans a turn as plain messages: tools and calls become text, and the answer is scanned."""
    constrained, required = plan.strategy == "constrained", plan.required
    # `worded`: the prompt describes the output format, and the decoder does not enforce it. An enforced
    # format would prevent calls, unless Toolwire's own grammar restricts the decoder. If a call is
    # required, there is no text that could have a format.
    worded = (
        not capabilities.schema or plan.strategy == "emulated" or (constrained and not capabilities.strict)
    )
    output = prompt.output_prompt(turn.output) if worded and not required else ""
    if not (offered or output or any(isinstance(item, Call | Result) for item in turn.items)):
        return msgspec.structs.replace(plan, turn=replace(turn, tools=(), tool_choice=ToolChoice("none")))
    dialects = capabilities.dialects or DEFAULT
    texts = turn.texts()
    form = Form(_taught(dialects, capabilities, constrained), prompt.mint_nonce(ids, texts))
    tools = tuple(map(as_function, offered))
    choice = turn.tool_choice
    parallel = plan.rules.parallel and not plan.rules.legacy
    teaching = prompt.tools_prompt(tools, choice, form, parallel=parallel, held=constrained) if tools else ""
    asked = text_only(turn, transcript(turn, (teaching, output), form))
    if worded or required:
        asked = replace(asked, output=OutputFormat())
    if not tools:
        return msgspec.structs.replace(plan, turn=asked, form=form)
    stops = turn.sampling.stop if "stop" in capabilities.fields else ()
    if turn.sampling.stop:
        asked = replace(asked, sampling=replace(turn.sampling, stop=()))
    begun = prompt.prefill(choice, form) if required and capabilities.prefill else ""
    if constrained:  # complete calls are checked if the schema requires more than the decoder enforces
        begun = _begun(tools, form, required and capabilities.prefill)
        asked = replace(
            asked, constraint=_constraint(tools, turn, texts, form, plan.rules, capabilities, begun)
        )
        tools = tuple(replace(tool, strict=_is_checked(tool, capabilities.strict)) for tool in tools)
    prefilled = bool(begun) and form.dialect != BARE
    if prefilled:
        asked = replace(asked, items=(*asked.items, Message("assistant", (TextPart(begun),))))
    registry = ToolRegistry((*tools, *map(as_function, turn.hidden_tools)))
    return msgspec.structs.replace(
        plan,
        turn=asked,
        declared=None if plan.declared is None else registry,
        scanner=_scanner(
            registry,
            texts,
            settings,
            form,
            dialects if form.dialect != BARE else ("sentinel",),
            constrained,
            partial(mentions, turn) if plan.thoughts else None,
        ),
        customs=frozenset(tool.name for tool in offered if tool.kind == "custom"),
        strict=any(tool.strict for tool in tools),
        form=form,
        begun=begun,
        prefilled=prefilled,
        stops=stops if not required else (),
    )


def _taught(dialects: Sequence[str], capabilities: Capabilities, constrained: bool) -> str:
    """Returns the dialect (the format of calls in text) that the prompt teaches.

    If the decoder is constrained, this is a dialect that the decoder can enforce.
    """
    if constrained:
        return "sentinel" if "text" in capabilities.constrain else BARE
    return "sentinel" if "sentinel" in dialects else dialects[0]


def _begun(tools: tuple[ToolSpec, ...], form: Form, prefill: bool) -> str:
    """Returns the known beginning of the answer; "" if it is not known.

    An answer in the dialect `BARE` has no opening marker, and is read as if it began with one.
    """
    if form.dialect == BARE:
        return form.opening
    if not prefill:
        return ""
    return form.opening + (Constraint.head(tools[0]) if len(tools) == 1 else "")


def _constraint(
    tools: tuple[ToolSpec, ...],
    turn: Turn,
    texts: Sequence[str],
    form: Form,
    rules: PolicyRules,
    capabilities: Capabilities,
    begun: str,
) -> Constraint:
    if form.dialect == BARE:
        return Constraint(tools, "", "", True)
    one = not (rules.parallel and capabilities.parallel) or rules.legacy or rules.stop_after == "first"
    calls = 1 if one else min(rules.max_calls or MOST_CALLS, MOST_CALLS)
    # If the model begins a marker, the decoder completes it with this turn's token. But it does not do so if
    # the request contains such markup, because a quotation must not become a call.
    quotable = any(mark in text for mark in MARKUP for text in texts)
    answered = bool(turn.items) and isinstance(turn.items[-1], Result)
    required = turn.tool_choice.mode == "required"
    return Constraint(
        tools, form.opening, form.closing, required, calls, begun, () if quotable else MARKUP, answered
    )


def _is_checked(tool: ToolSpec, own: bool) -> bool:
    """Whether complete calls of a tool must be checked against its schema.

    True if the schema requires more than the decoder enforces. `own`: the decoder runs Toolwire's own
    grammar. If the schema is invalid, calls are checked only for a strict tool: the check then reports the
    invalid schema as an error.
    """
    held = exact(tool.parameters, own=own) and is_held(tool.parameters)
    if held and not tool.strict:
        return False
    from toolwire.emulate.schemas.constrain import is_schema

    return not is_schema(tool.parameters) if held else tool.strict or is_schema(tool.parameters)


def _scanner(
    registry: ToolRegistry,
    quoted: Sequence[str],
    settings: ToolSettings,
    form: Form,
    dialects: Sequence[str],
    eager: bool,
    thoughts: Mentions | None,
) -> Callable[[], ToolCallParser]:
    check, tools = None, registry.tools.values()
    if any(tool.strict for tool in tools):
        from toolwire.emulate.schemas.constrain import SchemaCheck

        check = SchemaCheck(tools)
    chosen = ("sentinel",) if settings.strict_sentinel and form.dialect == "sentinel" else dialects
    mode: Literal["eager", "validated"] = (
        "eager" if settings.arguments == "eager" or (eager and settings.arguments == "auto") else "validated"
    )

    def make() -> ToolCallParser:
        return ToolCallParser(
            registry,
            chosen,
            mode,
            form.nonce,
            quoted,
            unknown_tool=settings.unknown_tool,
            check=check,
            thoughts=thoughts,
        )

    return make

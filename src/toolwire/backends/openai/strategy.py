"""Chooses a model's tool calling strategy (native, constrained or emulated) and its capabilities.

The option `tools` decides. With `auto`, Toolwire first uses the server's own tool calling. If the server
refuses a feature, Toolwire does not use this feature for `FORGET_S` seconds, and then tries it again, because
the server may have been restarted or its model replaced. The capabilities depend on the profile, the strategy
and the refusals.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from toolwire.backends.openai.options import OpenAIOptions
from toolwire.backends.openai.profiles import OLLAMA_OPTIONS, PASSABLE, Choice, ServerProfile
from toolwire.backends.openai.render import PASSED_ON, TOOL_FIELDS
from toolwire.core.capabilities import Capabilities, Constrained, Recalled, Strategy
from toolwire.emulate.dialects import dialects_of

# --- refusals ---
#
# `refused` recognizes errors with which servers refuse tools, a `tool_choice`, a schema or a grammar. After
# such a refusal, the turn uses another strategy. The client gets any other error. The structure of an error
# decides first: the field that the error names (`param`, or `loc` of pydantic) and its code. If the structure
# does not decide, the wording does. An error in the definition of a tool (`tools[0].function.parameters`), or
# in the size or number of tools, is not a refusal.

Refused = Literal["tools", "choice", "allowed", "constraint"]
"""A feature that a server can refuse.

`choice`: a `tool_choice` that requires a call. `allowed`: a `tool_choice` that lists allowed tools.
"""

STATUSES = frozenset({400, 404, 405, 422, 500, 501})
"""HTTP statuses that can be refusals. A response with status 200 and an error can be a refusal too."""

_LISTED = r"does not support parameters: [\[{{][^\]}}]*['\"](?:{0})['\"]"

_UNKNOWN = (
    r"(?:unknown|unsupported|unrecogni[sz]ed|unexpected|extraneous)(?: request| keyword| input)? "
    r"(?:param(?:eter)?|argument|field|key|property|option)s?(?: supplied| name)?:? ?"
    r"(?:[`'\"]?\w+[`'\"]?, ){{0,9}}[`'\"]?(?:{0})[`'\"]?(?![\w.\[])"
)

# The first pattern that matches decides: feature, server, pattern.
REFUSALS: tuple[tuple[Refused, str, str], ...] = (
    ("tools", "openrouter", r"no endpoints found that support tool use"),  # 404
    ("choice", "openrouter", r"no endpoints found that support the provided 'tool_choice'"),  # 404
    # 404, with require_parameters
    ("constraint", "openrouter", r"no endpoints found that can handle the requested parameters"),
    ("tools", "vllm", r'"auto" tool choice requires --enable-auto-tool-choice'),  # 400
    ("tools", "vllm", r"tool_choice=.{0,200} requires --tool-call-parser to be set"),  # 400
    ("tools", "llamacpp", r"\b(?:tools|tool_choice) param requires --jinja flag"),  # 500
    ("choice", "lmstudio", r"invalid tool_choice type: '?object"),  # 400
    ("choice", "llamacpp", r"\binvalid tool_choice: "),  # 400
    ("tools", "litellm", _LISTED.format("tools|functions")),  # 400
    ("choice", "litellm", _LISTED.format("tool_choice")),
    ("constraint", "litellm", _LISTED.format("response_format")),
    # "Unrecognized request argument supplied: tools", "Unsupported param: tools", "got an unexpected
    # keyword argument 'tools'"
    ("tools", "others", _UNKNOWN.format("tools|functions")),
    ("choice", "openai", r"unsupported (?:parameter|value): 'tool_choice'"),
    ("choice", "groq", r"only allowed string values for 'tool_choice'"),  # 400
    # 400: "Thinking mode does not support this tool_choice"
    ("choice", "deepseek", r"does not support this tool_choice"),
    (
        "choice",
        "others",
        r"tool[_ ]choice[`'\"]?(?: [\w`'\"=]{1,40})? is (?:not (?:yet |currently )?supported|unsupported)",
    ),
    ("choice", "others", _UNKNOWN.format("tool_choice")),
    ("tools", "azure", r"functions are not supported for this api version or this model"),  # 400
    ("tools", "google", r"tool use with function calling is unsupported"),  # 400
    ("tools", "google", r"function calling is not enabled for"),  # 400
    ("tools", "nvidia", r"tool use has not been enabled"),  # 400
    ("tools", "pydantic", r"extra_forbidden'?, 'loc': \('body', 'tools'\)"),
    ("tools", "pydantic", r"(?<![\w.])tools:?\s+extra (?:inputs|fields) (?:are )?not permitted"),
    ("tools", "jsonschema", r"additional properties are not allowed \([^)]{0,200}'tools'"),
    # "tools are not supported for this model", "property 'tools' is unsupported", "tools is not supported
    # in this model"
    (
        "tools",
        "others",
        r"(?<![\w.\]])[`'\"]?tools[`'\"]?(?: (?:field|param(?:eter)?|argument|property|option))? "
        r"(?:(?:is|are) (?:currently )?)?"
        r"(?:not (?:yet )?(?:supported|permitted|allowed|enabled|implemented|available)|unsupported)\b",
    ),
    # "Tool calling is not supported for model: x", "tool calls not implemented", "model features function
    # calling not support"
    (
        "tools",
        "others",
        r"(?<![\w.])(?:tool|function)[ _-]?(?:call(?:ing|s)?|use|usage)[`'\"]? "
        r"(?:(?:is|are) )?(?:currently )?not (?:yet )?(?:support(?:ed)?|enabled|implemented|available)\b",
    ),
    # "x does not support tools", "This model doesn't support tool use in streaming mode", "x does not
    # support Function Calling"
    (
        "tools",
        "others",
        r"(?:does|do)(?: not|n['’`]?t) (?:currently )?support (?:the )?[`'\"]?"
        r"(?:tools|functions|(?:tool|function)[ _-]?(?:call(?:ing|s)?|use|usage))[`'\"]?(?![\w\[])",
    ),
    ("constraint", "openai", r"invalid parameter: 'response_format' of type 'json_schema' is not supported"),
    ("constraint", "openai", r"invalid schema for response_format"),
    ("constraint", "deepseek", r"response_format type is unavailable"),
    ("constraint", "lmstudio", r"'?response_format(?:\.\w+)*'? must be"),
    ("constraint", "llamacpp", r"response_format type must be one of|json_schema_to_grammar"),
    ("constraint", "llamacpp", r"failed to (?:parse|initialize) (?:grammar|samplers)"),
    ("constraint", "ollama", r"\binvalid (?:json )?schema in format"),
    ("constraint", "ollama", r"failed to load model vocabulary required for format"),
    ("constraint", "vllm", r"structural[_ ]tag"),
    ("constraint", "vllm", r"structured[_ ]outputs?.{0,80}(?:not supported|unsupported|invalid)"),
    ("constraint", "vllm", r"grammar error|failed to convert the grammar"),
    (
        "constraint",
        "others",
        r"(?:response_format|json_schema|grammar)\b.{0,80}"
        r"(?:not supported|unsupported|unavailable|not available|not allowed)",
    ),
    (
        "constraint",
        "others",
        r"(?:not support|unsupported|unrecognized|unknown).{0,60}"
        r"\b(?:response[_ ]format|json_schema|grammar|structured out)",
    ),
)
_PATTERNS = tuple((what, re.compile(pattern, re.IGNORECASE)) for what, _, pattern in REFUSALS)
WORDS_LIMIT = 8192
MOST_DEPTH = 6
MOST_NODES = 200


def refused(words: str, asked: frozenset[Refused], error: Any = None) -> Refused | None:
    """Returns the feature that an error refuses, or None if the error means something else.

    `words`: the error's message. `asked`: the features that the request used. `error`: the error as JSON, or
    None.
    """
    looked_for: set[Refused] = {"choice" if what == "allowed" else what for what in asked}
    nodes = list(_nodes(error))
    found = _by_structure(nodes, words, looked_for)
    if found is None:
        texts = [words, *(node.message for node in nodes if node.message not in words)]
        found = _by_words("\n".join(texts)[:WORDS_LIMIT], looked_for)
    return None if found == "client" else "allowed" if found == "choice" and "allowed" in asked else found


def _by_words(words: str, looked_for: set[Refused]) -> Refused | None:
    if CLIENTS_FAULT.search(words):
        looked_for = looked_for - {"tools"}
    return next((what for what, pattern in _PATTERNS if what in looked_for and pattern.search(words)), None)


# --- by structure ---

_FIELDS: dict[Refused, str] = {
    "tools": "tools functions",
    "choice": "tool_choice function_call",
    "constraint": "response_format json_schema grammar structured_outputs guided_json",
}
FIELDS = {name: what for what, names in _FIELDS.items() for name in names.split()}
UNSUPPORTED_CODES = re.compile(
    r"(?:unknown|unsupported|unrecogni[sz]ed|unexpected|unpermitted)"
    r"(?:[_ .-](?:parameter|argument|field|property|feature|value|keyword.*))?"
    r"|extra_forbidden|value_error\.extra|not_(?:supported|implemented)|additional_?properties",
    re.IGNORECASE,
)
UNSUPPORTED_WORDS = re.compile(
    r"not (?:yet |currently )?(?:supported|permitted|allowed|enabled|implemented|available|recogni[sz]ed)"
    r"|does(?: not|n't) support"
    r"|\bunsupported|\bunknown|unrecogni[sz]ed|unexpected|extra (?:inputs|fields)",
    re.IGNORECASE,
)
CLIENTS_FAULT = re.compile(
    r"invalid (?:json )?schema for function"
    r"|invalid (?:tool|function)[ _](?:name|schema|definition|parameters)|has invalid 'parameters'"
    r"|too (?:many|long|large)|more than \d|at (?:most|least) \d|maximum (?:of|number|length|context)"
    r"|exceed|duplicate|must (?:be|have|match|contain)"
    r"|in context=\(|\btools?[.\[]\d+\]?\.\w|parallel (?:tool|function)",
    re.IGNORECASE,
)
"""A pattern for errors in the client's tools. Another strategy would only hide these errors."""
_INDEX = re.compile(r"\[(\d+)\]")


class _Node(NamedTuple):
    """An error object: the path of the field that it names, its codes and types, and its message."""

    path: tuple[str, ...]
    codes: tuple[str, ...]
    message: str


def _nodes(value: Any) -> Iterator[_Node]:
    """Yields all error objects in a JSON value.

    Strings that contain JSON are searched too, because routers quote the errors of their providers.
    """
    waiting, seen = [(value, 0)], 0
    while waiting and seen < MOST_NODES:
        (one, depth), seen = waiting.pop(0), seen + 1
        if depth > MOST_DEPTH:
            continue
        if isinstance(one, str) and one[:1] in ("{", "["):
            try:
                one = json.loads(one)
            except (ValueError, RecursionError):
                continue
        if isinstance(one, list):
            waiting += [(entry, depth + 1) for entry in one]
        elif isinstance(one, dict):
            inner = [entry for key, entry in one.items() if key not in ("input", "ctx")]
            waiting += [(entry, depth + 1) for entry in inner if isinstance(entry, dict | list | str)]
            texts = {key: text for key, text in one.items() if isinstance(text, str)}
            codes = tuple(texts[key] for key in ("code", "type") if key in texts)
            messages = (texts[key] for key in ("message", "msg", "detail", "error") if key in texts)
            message = next(messages, "")
            path = _path(one.get("loc") or one.get("param") or "")
            if path or message:
                yield _Node(path, codes, message)


def _path(named: Any) -> tuple[str, ...]:
    """Returns the path of a request field as a tuple. `named`: a string or a list, as the server wrote it."""
    if isinstance(named, str):
        named = _INDEX.sub(r".\1", named).split(".")
    path = [str(step) for step in named] if isinstance(named, list) else []
    return tuple(path[1:] if path[:1] == ["body"] else path)


def _by_structure(
    nodes: list[_Node], words: str, looked_for: set[Refused]
) -> Refused | Literal["client"] | None:
    """Returns the refused feature, found by the fields and codes of the error objects.

    Returns "client" if the error is in the client's tools, and None if the fields and codes do not show the
    cause.
    """
    for node in nodes:
        what = FIELDS.get(node.path[0]) if node.path else None
        if what not in looked_for:
            continue
        if what != "tools":  # Toolwire checked or created this field, so the server does not support it
            return what
        within = [step for step in node.path[1:] if not step.isdecimal()]
        if within or CLIENTS_FAULT.search(node.message):
            return "client"
        by_code = any(UNSUPPORTED_CODES.fullmatch(code) for code in node.codes)
        if by_code or UNSUPPORTED_WORDS.search(node.message or words):
            return what
    return None


# --- what a model supports ---

FORGET_S = 3600.0
THINKING = frozenset({"reasoning_effort", "reasoning"})
"""Fields that are not sent to a model without reasoning. Ollama would refuse a request with them."""
BOTH: frozenset[Constrained] = frozenset({"text", "call"})
CALL: frozenset[Constrained] = frozenset({"call"})
RECALLED: frozenset[Recalled] = frozenset({"text"})


@dataclass(frozen=True, slots=True)
class Facts:
    """What a server says about a model. A fact is None if it is unknown; an unknown `loaded` is 0.

    `tools`: whether the model supports tools. `lark`: whether the server supports Lark grammars. `window`:
    the largest possible context length, in tokens. `loaded`: the current context length. `own_api`: whether
    the server has Ollama's own API. `thinks`: whether the model can reason.
    """

    tools: bool | None = None
    lark: bool = False
    window: int | None = None
    loaded: int = 0
    own_api: bool = False
    thinks: bool | None = None


class ToolSupport:
    """What one model supports.

    This depends on the kind of server, on what the server says about the model, and on what the server has
    refused. `profile`: the server's profile, changed by the options and the refusals. Call `refresh` before
    each turn. `changed` is called with this object when `strategy` or `capabilities` may have changed.
    """

    profile: ServerProfile
    strategy: Strategy
    capabilities: Capabilities

    def __init__(
        self,
        options: OpenAIOptions,
        model: str,
        clock: Callable[[], float],
        changed: Callable[[ToolSupport], None] = lambda support: None,
    ) -> None:
        self._options = options
        self._changed = changed
        self._dialects = dialects_of(model, options.dialects)
        self._clock = clock
        self.refused: dict[Refused, float] = {}
        self._found = options.server
        self.facts = Facts()
        self._update()

    def learn(self, profile: ServerProfile, facts: Facts | None = None) -> None:
        self._found, self.facts = profile, facts or self.facts
        self._update()

    def refuse(self, what: Refused) -> None:
        """Remembers for `FORGET_S` that the server refuses a feature."""
        self.refused[what] = self._clock() + FORGET_S
        self._update()

    def has_fallback(self, what: Refused) -> bool:
        """Returns True if the settings allow another strategy after the server has refused this feature."""
        return what == "constraint" or self._options.tools == "auto"

    def refresh(self) -> None:
        """Forgets refusals that are older than `FORGET_S`."""
        now = self._clock()
        if any(until <= now for until in self.refused.values()):
            self.refused = {what: until for what, until in self.refused.items() if until > now}
            self._update()

    def _update(self) -> None:
        options, found = self._options, self._found
        grammar = found.grammar if options.grammar == "auto" else options.grammar
        if grammar == "lark" and options.grammar == "auto" and not self.facts.lark:
            grammar = "none"
        self.profile = replace(
            found,
            grammar=grammar,
            schema=found.schema if options.schema_field == "auto" else options.schema_field,
            choices=found.choices - self._refused_choices(),
            vendor=OLLAMA_OPTIONS if self.facts.own_api else found.vendor,
            ignores=found.ignores | THINKING if self.facts.thinks is False else found.ignores,
        )
        constrain = frozenset() if "constraint" in self.refused else CALL if grammar == "none" else BOTH
        self.strategy = self._choose(bool(constrain))
        self.capabilities = self._describe(self.profile, self.strategy, constrain)
        self._changed(self)

    def _refused_choices(self) -> frozenset[Choice]:
        if "choice" in self.refused:
            return frozenset({"required", "named", "allowed"})
        return frozenset({"allowed"}) if "allowed" in self.refused else frozenset()

    def _choose(self, constrain: bool) -> Strategy:
        tools = self._options.tools
        if tools in ("native", "emulated"):
            return tools
        has_tools = self._found.tools and self.facts.tools is not False and "tools" not in self.refused
        if tools == "auto" and has_tools:
            return "native"
        return "constrained" if constrain else "emulated"

    def _describe(
        self, profile: ServerProfile, strategy: Strategy, constrain: frozenset[Constrained]
    ) -> Capabilities:
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

"""The normalized request: what both APIs, in all their shapes, become before anything else looks at them.

`decode/` makes a `Turn`, everything behind it reads only the Turn. Frozen; standard library only.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from toolwire.core.events import CallKind

Json = Any
Role = Literal["system", "developer", "user", "assistant"]
Api = Literal["chat", "responses"]
_DATA_URL = re.compile(r"data:[^,]*;base64,", re.IGNORECASE)


# --- parts: what a message or a tool result is made of -------------------------------------------


@dataclass(frozen=True, slots=True)
class TextPart:
    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """`url` is https:, http: or data:. `file_id` for images that live at the provider."""

    url: str | None
    detail: str | None = None
    file_id: str | None = None


@dataclass(frozen=True, slots=True)
class OtherPart:
    """Audio, files and parts yet unknown: kept as they came, so that a backend which speaks the same wire can pass them on."""

    kind: str
    raw: Mapping[str, Json]


Part = TextPart | ImagePart | OtherPart


# --- items: the history, in order ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    parts: tuple[Part, ...]
    name: str | None = None
    refusal: str | None = None
    phase: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A call the assistant made. `arguments` is the client's text, verbatim; for a custom tool it is the input."""

    call_id: str
    name: str
    arguments: str
    kind: CallKind = "function"
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What the client's tool answered. After `wire/history.py` every Result has the Call it answers before it."""

    call_id: str
    parts: tuple[Part, ...]
    kind: CallKind = "function"
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A reasoning item that the client replays. `encrypted` only means something to the provider that made it."""

    summary: tuple[str, ...] = ()
    content: tuple[str, ...] = ()
    encrypted: str | None = None
    id: str | None = None


Item = Message | Call | Result | Reasoning


# --- what may be called --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A client's tool. `parameters` is its JSON schema ({} accepts any object); for a custom tool `format` is its input format.

    `namespace` is the Responses namespace that the tool stood in.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Json] = field(default_factory=dict)
    strict: bool = False
    kind: CallKind = "function"
    format: Mapping[str, Json] | None = None
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`mode` as OpenAI has it; `name` set: exactly this tool (mode is `required`); `allowed`: only these names may be called."""

    mode: Literal["none", "auto", "required"] = "auto"
    name: str | None = None
    allowed: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """How the answer's text is shaped."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    schema: Mapping[str, Json] | None = None
    strict: bool = False
    description: str | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """Fields that only the backend can honour. None: not sent by the client."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[str, float] | None = None
    effort: str | None = None
    summary: str | None = None
    verbosity: str | None = None


NO_SAMPLING = Sampling()
"""What nearly every request says of it: nothing."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the decoder of a model is held to: `tools` are those that may be called, each call written as

        opening {"name": NAME, "arguments": ARGUMENTS} closing

    `required`: at least one call and no text; else text, with calls in it. `calls`: so many at most. `begun` is what the answer already begins with:
    nothing, `opening`, or, for a single tool, all of `head` too. `barred`: what the text must not hold,
    where a model would copy it. `answered`: the results of the last calls have just been told.
    """

    tools: tuple[ToolSpec, ...]
    opening: str
    closing: str
    required: bool
    calls: int = 1
    begun: str = ""
    barred: tuple[str, ...] = ()
    answered: bool = False

    @staticmethod
    def head(tool: ToolSpec) -> str:
        """What stands between the opening and the arguments."""
        return f'{{"name": {json.dumps(tool.name)}, "arguments": '


@dataclass(frozen=True, slots=True)
class Turn:
    """One request, whole. `sent` names every top-level field of the client's body (law 10: each gets a disposition in the report)."""

    api: Api
    model: str
    items: tuple[Item, ...]
    instructions: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: ToolChoice = ToolChoice("none")
    parallel: bool = True
    output: OutputFormat = OutputFormat()
    sampling: Sampling = NO_SAMPLING
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    legacy_functions: bool = False
    store: bool = False
    generate: bool = True
    """False: nothing is asked of the model; what was sent is only taken as the beginning of a conversation."""
    open_responses: bool = False
    """The answer has the keys that Open Responses demands beyond OpenAI's."""
    previous_response_id: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    sent: frozenset[str] = frozenset()
    notes: tuple[tuple[str, str], ...] = ()
    """Dispositions that decode itself decided, as (field, disposition), e.g. ("tools.web_search", "ignored")."""
    echo: Mapping[str, Json] = field(default_factory=dict)
    """Request fields as the client wrote them that a Responses object repeats (tools, tool_choice, text, reasoning, truncation, …)."""
    rest: Mapping[str, Json] = field(default_factory=dict)
    """Top-level fields that decode does not read, as the client wrote them. The plan leaves only those that the backend passes on."""
    caller: str = ""
    """Whose request it is: what an agent keeps of one caller's conversation is not another's."""
    constraint: Constraint | None = None
    """Set by the plan, for backends that can hold their decoder to it."""

    def offered(self) -> tuple[ToolSpec, ...]:
        """The tools that may be called in this turn."""
        choice = self.tool_choice
        if choice.mode == "none":
            return ()
        names = (choice.name,) if choice.name else choice.allowed
        return self.tools if names is None else tuple(tool for tool in self.tools if tool.name in names)

    def images(self) -> bool:
        """Whether an image stands anywhere in the request."""
        return any(
            isinstance(part, ImagePart)
            for item in self.items
            if isinstance(item, Message | Result)
            for part in item.parts
        )

    def words(self) -> list[str]:
        """The texts of its instructions, messages and results."""
        out = [self.instructions] if self.instructions else []
        for item in self.items:
            if isinstance(item, Message | Result):
                out += [part.text for part in item.parts if isinstance(part, TextPart)]
        return out

    def texts(self) -> list[str]:
        """Every text of the request's own input, for law 12: a block that stands here verbatim is a quotation, not a call.

        Of a call only the texts in its arguments: it may be made again, and its arguments may be what another tool is called with.
        """
        out = self.words()
        for tool in self.tools:
            out += (tool.description, _joined(dict(tool.parameters)), _joined(dict(tool.format or {})))
        out += (self.output.description or "", _joined(dict(self.output.schema or {})))
        for item in self.items:
            if isinstance(item, Call):
                out.append(_joined(_arguments(item)))
            elif isinstance(item, Message | Result):
                out += [
                    _opened(text)
                    for part in item.parts
                    if isinstance(part, OtherPart)
                    for text in _strings(dict(part.raw))
                ]
                out.append(item.refusal or "" if isinstance(item, Message) else "")
        return [text for text in out if text]


def _arguments(call: Call) -> Json:
    try:
        return json.loads(call.arguments) if call.kind == "function" else call.arguments
    except (ValueError, RecursionError):
        return call.arguments


def _strings(value: Json) -> Iterator[str]:
    """Every text in a JSON value, keys too."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            yield from one
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one


def _joined(value: Json) -> str:
    return "\n".join(_strings(value))


def _opened(text: str) -> str:
    """What a file's data URL holds, where that is text; any other text as it is."""
    found = _DATA_URL.match(text)
    try:
        return b64decode(text[found.end() :]).decode() if found else text
    except ValueError:
        return ""

"""The normalized request: what a request of any API becomes before anything else reads it.

`wire/*/decode.py` creates a `Turn`; everything after it reads only the Turn. Frozen; standard library only.
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
Api = Literal["chat", "responses", "messages"]
Thoughts = Literal["shown", "signed", "hidden"]
"""What the client gets of the model's reasoning.

`signed`: only the signatures, which the provider wants back. `hidden`: the client did not ask for any.
"""
_DATA_URL = re.compile(r"data:[^,]*;base64,", re.IGNORECASE)


# --- parts of a message or a tool result ---


@dataclass(frozen=True, slots=True)
class TextPart:
    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image by `url` (https:, http: or data:), or by `file_id` if the provider stores it."""

    url: str | None
    detail: str | None = None
    file_id: str | None = None


@dataclass(frozen=True, slots=True)
class OtherPart:
    """Audio, files and unknown parts: kept unchanged for backends that speak the same API."""

    kind: str
    raw: Mapping[str, Json]


Part = TextPart | ImagePart | OtherPart


# --- items of the history ---


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    parts: tuple[Part, ...]
    name: str | None = None
    refusal: str | None = None
    phase: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A call that the assistant made. `arguments` is the client's text, verbatim; for a custom tool, its
    input.
    """

    call_id: str
    name: str
    arguments: str
    kind: CallKind = "function"
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a call. After `wire/history.py` every Result follows the Call that it answers."""

    call_id: str
    parts: tuple[Part, ...]
    kind: CallKind = "function"
    name: str | None = None
    is_error: bool = False
    """The tool failed, and the parts say why."""


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A reasoning item that the client sends back. Only the provider that made it can read `encrypted`
    (OpenAI) and `redacted` (Anthropic), and check `signature`.
    """

    summary: tuple[str, ...] = ()
    content: tuple[str, ...] = ()
    encrypted: str | None = None
    id: str | None = None
    signature: str | None = None
    redacted: str | None = None


Item = Message | Call | Result | Reasoning


# --- tools and options ---


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A client's tool. `parameters` is its JSON schema ({} accepts any object).

    For a custom tool, `format` is the format of its input. `namespace` is its Responses namespace.
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
    """The tool choice. `name`: exactly this tool (`mode` is `required`). `allowed`: only these tools."""

    mode: Literal["none", "auto", "required"] = "auto"
    name: str | None = None
    allowed: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """The format of the answer's text."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    schema: Mapping[str, Json] | None = None
    strict: bool = False
    description: str | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling fields, which only the backend can honour. None: the client did not send the field."""

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


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a model's decoder is limited to.

    Each call is written as `opening {"name": NAME, "arguments": ARGUMENTS} closing`.
    """

    tools: tuple[ToolSpec, ...]
    """The tools that may be called."""
    opening: str
    """The marker before a call."""
    closing: str
    """The marker after a call."""
    required: bool
    """The answer has at least one call and no text. Otherwise it is text that may contain calls."""
    calls: int = 1
    """The most calls in one answer."""
    begun: str = ""
    """How the answer already begins: with nothing, `opening`, or, for a single tool, `opening` and `head`."""
    barred: tuple[str, ...] = ()
    """Texts of the prompt that a small model would copy: its answer must not contain them."""
    answered: bool = False
    """The history ends with a tool result."""

    @staticmethod
    def head(tool: ToolSpec) -> str:
        """The text between the opening and the arguments."""
        return f'{{"name": {json.dumps(tool.name)}, "arguments": '


@dataclass(frozen=True, slots=True)
class Turn:
    """One request. `sent` names every top-level field of the client's body; law 10 reports on each."""

    api: Api
    model: str
    items: tuple[Item, ...]
    instructions: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    hidden_tools: tuple[ToolSpec, ...] = ()
    """Tools that the client has not shown to the model yet. The model may call them all the same."""
    tool_choice: ToolChoice = ToolChoice("none")
    parallel: bool = True
    output: OutputFormat = OutputFormat()
    sampling: Sampling = NO_SAMPLING
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    legacy_functions: bool = False
    store: bool = False
    thoughts: Thoughts = "shown"
    generate: bool = True
    """False: the model is not asked; the input only starts a conversation."""
    open_responses: bool = False
    """The response has the keys that Open Responses requires in addition to OpenAI's."""
    previous_response_id: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    sent: frozenset[str] = frozenset()
    notes: tuple[tuple[str, str], ...] = ()
    """Dispositions that the decoder decided, as (field, disposition), e.g. ("tools.web_search", "ignored").
    """
    echo: Mapping[str, Json] = field(default_factory=dict)
    """Request fields that a Responses object repeats (tools, text, reasoning, …), as the client wrote them.
    """
    rest: Mapping[str, Json] = field(default_factory=dict)
    """Top-level fields that the decoder does not read. The plan keeps only those that the backend forwards.
    """
    body: Mapping[str, Json] | None = field(default=None, compare=False)
    """The request as the client wrote it, for a backend that speaks the same API (Messages alone)."""
    caller: str = ""
    """The key that made the request. An agent's conversations are kept apart by it."""
    constraint: Constraint | None = None
    """Set by the plan for backends that can constrain their decoder."""

    def offered(self) -> tuple[ToolSpec, ...]:
        """The tools that may be called in this turn."""
        choice = self.tool_choice
        if choice.mode == "none":
            return ()
        names = (choice.name,) if choice.name else choice.allowed
        return self.tools if names is None else tuple(tool for tool in self.tools if tool.name in names)

    def images(self) -> bool:
        """Whether the request contains an image."""
        return any(isinstance(part, ImagePart) for part in self._parts())

    def words(self) -> list[str]:
        """The texts of the instructions, messages and results."""
        out = [self.instructions] if self.instructions else []
        return out + [part.text for part in self._parts() if isinstance(part, TextPart)]

    def texts(self) -> list[str]:
        """Every text of the request. Law 12: a block that appears here verbatim is a quotation, not a call.

        A call contributes only the texts in its arguments: the model may make the same call again, and may
        pass its arguments to another tool.
        """
        out = self.words()
        for tool in self.tools:
            out += (tool.description, _joined(dict(tool.parameters)), _joined(dict(tool.format or {})))
        out += (self.output.description or "", _joined(dict(self.output.schema or {})))
        for part in self._parts():
            if isinstance(part, OtherPart):
                out += map(_opened, _strings(dict(part.raw)))
        for item in self.items:
            if isinstance(item, Call):
                out.append(_joined(_arguments(item)))
            elif isinstance(item, Message):
                out.append(item.refusal or "")
        return list(filter(None, out))

    def _parts(self) -> Iterator[Part]:
        for item in self.items:
            if isinstance(item, Message | Result):
                yield from item.parts


def _arguments(call: Call) -> Json:
    try:
        return json.loads(call.arguments) if call.kind == "function" else call.arguments
    except (ValueError, RecursionError):
        return call.arguments


def _strings(value: Json) -> Iterator[str]:
    """Every text in a JSON value, including keys."""
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
    """The text in a file's data URL, "" if it is not text; any other text unchanged."""
    found = _DATA_URL.match(text)
    try:
        return b64decode(text[found.end() :]).decode() if found else text
    except ValueError:
        return ""

"""The normalized request: a request of any API becomes a `Turn`.

`wire/*/decode.py` creates the turn, and later stages read only the turn. All classes are frozen. Imports the
standard library only.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from toolwire.core.events import CallKind, Failure
from toolwire.core.mcp import McpPart

Json = Any
Role = Literal["system", "developer", "user", "assistant"]
Api = Literal["chat", "responses", "messages"]
Thoughts = Literal["shown", "signed", "hidden"]
"""How much of the model's reasoning the client gets.

`shown`: the reasoning and its signatures. `signed`: only the signatures, which the client must send back to
the provider. `hidden`: nothing, because the client did not ask for reasoning.
"""
_DATA_URL = re.compile(r"data:[^,]*;base64,", re.IGNORECASE)


# --- parts of a message or a tool result ---


@dataclass(frozen=True, slots=True)
class TextPart:
    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image: a `url` (https:, http: or data:), or a `file_id` if the provider stores it."""

    url: str | None
    detail: str | None = None
    file_id: str | None = None


@dataclass(frozen=True, slots=True)
class OtherPart:
    """Audio, a file or a part of unknown type, kept unchanged for backends that speak the same API."""

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
    """A tool call of the assistant in the history.

    `arguments`: the text of the call's arguments, exactly as the client sent it. For a custom tool, it is the
    tool's input.
    """

    call_id: str
    name: str
    arguments: str
    kind: CallKind = "function"
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a call. `wire/history.py` places every Result after the Call that it answers."""

    call_id: str
    parts: tuple[Part, ...]
    kind: CallKind = "function"
    name: str | None = None
    is_error: bool = False
    """Whether the tool failed. If so, `parts` contain the error message."""


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A reasoning item that the client sends back.

    Only the provider that created the item can read `encrypted` (OpenAI) or `redacted` (Anthropic), or check
    `signature`.
    """

    summary: tuple[str, ...] = ()
    content: tuple[str, ...] = ()
    encrypted: str | None = None
    id: str | None = None
    signature: str | None = None
    redacted: str | None = None


Item = Message | Call | Result | Reasoning
_SAYING = (Message, Result)


# --- tools and options ---


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool that the client declares. `parameters` is its JSON schema ({} accepts any object).

    `format`: the input format of a custom tool. `namespace`: the tool's namespace in the Responses API.
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
    """Which tools the model may or must call.

    `name`: the model must call this tool; `mode` is then `required`. `allowed`: the tools that the model may
    call; None allows all tools.
    """

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
    logprobs: int | None = None
    """How many alternatives to return for each token; None: the client did not ask for log probabilities."""


NO_SAMPLING = Sampling()


@dataclass(frozen=True, slots=True)
class Constraint:
    """Limits the model's output to text and valid calls.

    Each call is written as `opening {"name": NAME, "arguments": ARGUMENTS} closing`.
    """

    tools: tuple[ToolSpec, ...]
    """The tools that may be called."""
    opening: str
    """The marker before a call."""
    closing: str
    """The marker after a call."""
    required: bool
    """Whether the answer must consist of calls, without text. If not, it is text that may contain calls."""
    calls: int = 1
    """The maximum number of calls in one answer."""
    begun: str = ""
    """The prefilled beginning of the answer: "", `opening`, or `opening` and the `head` of the only tool."""
    barred: tuple[str, ...] = ()
    """Texts that may not appear outside of calls: the beginnings of the markup that the prompt teaches."""
    answered: bool = False
    """Whether the history ends with a tool result."""

    @staticmethod
    def head(tool: ToolSpec) -> str:
        """Returns the beginning of a call: the text between `opening` and the arguments."""
        return f'{{"name": {json.dumps(tool.name)}, "arguments": '


@dataclass(frozen=True, slots=True)
class Turn:
    """One request, as the decoder read it.

    `sent`: the names of all top-level fields in the client's body. Toolwire reports what became of each of
    these fields.
    """

    api: Api
    model: str
    items: tuple[Item, ...]
    instructions: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    hidden_tools: tuple[ToolSpec, ...] = ()
    """Tools that the client declared without showing them to the model yet. The model may still call them."""
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
    """Whether the model runs. If not, the request only stores its input as the start of a conversation."""
    open_responses: bool = False
    """Whether the response has the fields that the Open Responses specification adds to OpenAI's."""
    previous_response_id: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    sent: frozenset[str] = frozenset()
    notes: tuple[tuple[str, str], ...] = ()
    """How the decoder treated request fields: pairs such as `("tools.web_search", "ignored")`."""
    echo: Mapping[str, Json] = field(default_factory=dict)
    """Request fields that a Responses object repeats (tools, text, reasoning, …), as the client sent them."""
    rest: Mapping[str, Json] = field(default_factory=dict)
    """Top-level fields that the decoder does not read. The plan keeps those that the backend forwards."""
    body: Mapping[str, Json] | None = field(default=None, compare=False)
    """The client's request body, for a backend that speaks the client's API; None except in the Messages API.

    The body must agree with `items` and `tools`, because such a backend reads only the body.
    """
    only_spoken: Failure | None = None
    """The error for a backend that does not speak the request's API; None: every backend is allowed."""
    headers: Mapping[str, str] = field(default_factory=dict, compare=False)
    """The headers `anthropic-version` and `anthropic-beta`, for a backend that speaks the client's API."""
    mcp: McpPart | None = None
    """What the request says about MCP servers whose tools the gateway calls; None if it says nothing."""
    caller: str = ""
    """The id of the request's API key. Agent backends keep the conversations of different keys apart."""
    constraint: Constraint | None = None
    """The limit on the model's output. `gateway/plan.py` sets it if the backend can constrain its decoder."""

    def offered(self) -> tuple[ToolSpec, ...]:
        """Returns the tools that may be called in this turn, after `tool_choice` is applied."""
        choice = self.tool_choice
        if choice.mode == "none":
            return ()
        names = (choice.name,) if choice.name else choice.allowed
        return self.tools if names is None else tuple(tool for tool in self.tools if tool.name in names)

    def has_media(self) -> bool:
        """Returns True if the request contains anything other than text, such as an image or a file."""
        for item in self.items:
            if isinstance(item, _SAYING):
                for part in item.parts:
                    if not isinstance(part, TextPart):
                        return True
        return False

    def images(self) -> bool:
        """Returns True if the request contains an image."""
        return any(isinstance(part, ImagePart) for part in self._parts())

    def words(self) -> list[str]:
        """Returns the texts of the instructions, messages and results."""
        out = [self.instructions] if self.instructions else []
        return out + [part.text for part in self._parts() if isinstance(part, TextPart)]

    def texts(self) -> list[str]:
        """Returns every text of the request, to find quotations.

        If a call in the answer's text also appears in one of these texts, it is a quotation and is not made.
        For earlier calls, only the strings in their arguments are returned. So the model can make the same
        call again.
        """
        parts = self._parts()
        out = [self.instructions or "", *[part.text for part in parts if isinstance(part, TextPart)]]
        for tool in self.tools:
            out += (tool.description, _joined(dict(tool.parameters)))
            if tool.format:
                out.append(_joined(dict(tool.format)))
        out.append(self.output.description or "")
        if self.output.schema:
            out.append(_joined(dict(self.output.schema)))
        for part in parts:
            if isinstance(part, OtherPart):
                out += map(_opened, _strings(dict(part.raw)))
        for item in self.items:
            if isinstance(item, Call):
                out.append(_joined(_arguments(item)))
            elif isinstance(item, Message):
                out.append(item.refusal or "")
        return list(filter(None, out))

    def _parts(self) -> list[Part]:
        return [part for item in self.items if isinstance(item, _SAYING) for part in item.parts]


def _arguments(call: Call) -> Json:
    try:
        return json.loads(call.arguments) if call.kind == "function" else call.arguments
    except (ValueError, RecursionError):
        return call.arguments


def _strings(value: Json) -> list[str]:
    """Returns every string in a JSON value, including keys."""
    found: list[str] = []
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            found.append(one)
        elif isinstance(one, dict):
            found += one
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    return found


def _joined(value: Json) -> str:
    return "\n".join(_strings(value))


def _opened(text: str) -> str:
    """Returns the content of a base64 data URL, or "" if the content is not UTF-8.

    Returns any other text unchanged.
    """
    found = _DATA_URL.match(text)
    try:
        return b64decode(text[found.end() :]).decode() if found else text
    except ValueError:
        return ""

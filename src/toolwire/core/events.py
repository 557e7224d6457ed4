"""The events that a run may produce.

Every backend produces these events and every encoder consumes them (law 2 in docs/architecture.md). A run is
a sequence of events that ends with exactly one `Finish` or `Failure`; `wire/order.py` defines which sequences
are legal. Imports the standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

CallStatus = Literal["ok", "repaired", "truncated", "invalid"]
CallKind = Literal["function", "custom"]
FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]
TokenLogprob = Mapping[str, Any]
"""The log probability of a token, with the members that chat completions has for it."""


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the answer's text. `logprobs`: the tokens' log probabilities, if the client asked for them.

    One character can consist of several tokens. If the answer ends within a character, `text` can be empty
    and `logprobs` not.
    """

    text: str
    logprobs: tuple[TokenLogprob, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of the model's reasoning.

    `summary`: the piece belongs to OpenAI's summary of the reasoning, not to the reasoning itself.
    """

    text: str
    summary: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """The provider's signature of the preceding thought. The client must send it back unchanged.

    With `redacted`, there is no preceding thought: `text` is a thought that only the provider can read.
    """

    text: str
    redacted: bool = False


@dataclass(frozen=True, slots=True)
class Block:
    """A content block that only Anthropic's API has: a call that Anthropic's server ran, or its result.

    `json` is the block as JSON. Clients of other APIs do not get the block.
    """

    json: str


@dataclass(frozen=True, slots=True)
class Citation:
    """A citation in Anthropic's API: a source of the preceding text. `json` is the citation as JSON."""

    json: str


@dataclass(frozen=True, slots=True)
class Border:
    """The text or thought before this event is complete. A later piece of the same kind is a new block.

    Only clients of Anthropic's API can see the boundary between the two blocks.
    """


@dataclass(frozen=True, slots=True)
class Refusal:
    """A piece of the model's refusal, which OpenAI's APIs send separately from the text."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A tool call begins. `index` numbers the calls of a run from 0.

    `id` is the backend's id for the call; if it is None, the gateway creates one.
    """

    index: int
    name: str
    id: str | None = None
    kind: CallKind = "function"


@dataclass(frozen=True, slots=True)
class CallArgs:
    """The next piece of a call's arguments, or of a custom tool's input. Clients append the pieces."""

    index: int
    delta: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """A tool call ends.

    `issues` are short codes for what was wrong with its arguments, such as `trailing_comma`.
    """

    index: int
    status: CallStatus = "ok"
    issues: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class McpTools:
    """The tools of an MCP server that are offered to the model. `tools` are objects of the Responses API."""

    id: str
    server: str
    tools: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class McpAsk:
    """A call of an MCP server's tool that needs the client's approval before it can run."""

    id: str
    server: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class McpCall:
    """The gateway calls a tool of an MCP server.

    `approval`: the id of the request with which the client approved the call; None if none was needed.
    """

    id: str
    server: str
    name: str
    arguments: str
    approval: str | None = None


@dataclass(frozen=True, slots=True)
class McpResult:
    """The result of the preceding `McpCall`. If there is an `error`, `output` is None."""

    output: str | None
    error: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """Something that was deliberately not sent to the client.

    What `count` counts depends on `kind`:

    - Calls: `cap`, `duplicate`, `parallel` and `first` (dropped by the rules of `core/policy.py`), `phantom`
      (the call never got a name), `cut` (a call of an MCP server in an answer that was cut off), `unknown`
      and `malformed` (refused by the Codex backend).
    - Characters: `tail` (text after a call), `retry` (a rejected first attempt).
    - `late`: characters of arguments that arrive after the end of their call. With the rule `burst` of
      `core/policy.py`, calls that arrive after the run was stopped.
    - Events: `block` and `citation`, which only Anthropic's API can express.
    """

    kind: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the backend counted them. If a run has several `Usage` events, the last one counts."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cache_write_tokens: int = 0
    extra: Mapping[str, Any] | None = None
    """Further counts of Anthropic's API, for clients of this API."""

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
        )

    def beside(self, other: Usage) -> Usage:
        """Returns the usage of two choices of one answer.

        Both choices have the same input; each has its own output.
        """
        return Usage(
            max(self.input_tokens, other.input_tokens),
            self.output_tokens + other.output_tokens,
            max(self.cached_tokens, other.cached_tokens),
            self.reasoning_tokens + other.reasoning_tokens,
            max(self.cache_write_tokens, other.cache_write_tokens),
        )

    def __sub__(self, before: Usage) -> Usage:
        """Returns what was used since the usage `before`; no number is below 0."""
        return Usage(
            max(0, self.input_tokens - before.input_tokens),
            max(0, self.output_tokens - before.output_tokens),
            max(0, self.cached_tokens - before.cached_tokens),
            max(0, self.reasoning_tokens - before.reasoning_tokens),
            max(0, self.cache_write_tokens - before.cache_write_tokens),
        )


@dataclass(frozen=True, slots=True)
class Finish:
    """The run ended normally.

    A backend may send `stop` even if there was a call: `wire/order.py` changes it to `tool_calls`.
    """

    reason: FinishReason = "stop"
    stop: str | None = None
    """The stop sequence that ended the answer; None if no sequence did, or if it is unknown."""
    window: bool = False
    """Whether the reason is `length` because the context window was full, not because of `max_tokens`."""
    repeats: bool = False
    """Whether Toolwire ended the answer (reason `length`) because the answer repeated itself without end."""
    extra: Mapping[str, Any] | None = None
    """Further fields for clients of Anthropic's API, sent in the `message_delta` event or in the body:
    `stop_details`, `container`, `context_management`, or a `stop_reason` that no other API has, such as
    `pause_turn`."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The run ended in an error. `kind` is a key of `errors.KINDS`."""

    kind: str
    message: str
    param: str | None = None
    code: str | None = None
    retry_after_s: float | None = None


Event = (
    Text
    | Thought
    | Signature
    | Block
    | Citation
    | Border
    | Refusal
    | CallBegin
    | CallArgs
    | CallEnd
    | McpTools
    | McpAsk
    | McpCall
    | McpResult
    | Dropped
    | Usage
    | Finish
    | Failure
)
END_EVENTS = (Finish, Failure)

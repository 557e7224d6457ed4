"""FakeAnthropic: a server on loopback that speaks the wire of Anthropic's Messages API and plays a script, for tests.

    async with FakeAnthropic(Answer(Said("Let me look."), Use("toolu_1", "search", '{"q": "Rust"}'))) as server:
        ...  # point the official SDK, or Toolwire, at server.base_url
        assert server.requests[0].body["messages"]

An answer goes out as a stream of events or as one body, as the request asks. What comes in is judged as the real service judges it, by the table
`RULES`: a request that Anthropic would refuse gets the error that Anthropic would send, and the script does not move on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

from toolwire.testing.upstream import FakeUpstream, Recorded, Reply, pieces

Body = dict[str, Any]
DEFAULT_KEY = "sk-ant-api03-fake-key-0123456789"

STATUS_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}


# --- answers -----------------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Said:
    """A text block."""

    text: str


@dataclass(frozen=True)
class Thinking:
    """A thinking block. Its signature is checked when it comes back."""

    text: str
    signature: str = "EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pkiMOYds"


@dataclass(frozen=True)
class Redacted:
    """A thinking block that only Anthropic can read."""

    data: str = "EmwKAhgBEgy3va3pzix/LafPsn4aDFIT2Xlxh0L5L8rLVyIwxtE3rAFBa8cr3qpP"


@dataclass(frozen=True)
class Use:
    """A tool_use block. `input` goes out verbatim, in pieces, as `input_json_delta` events."""

    id: str
    name: str
    input: str = "{}"


Block = Said | Thinking | Redacted | Use


class Answer:
    """A message: its blocks and how it ends. `stop` None: what the blocks call for; "": the stream ends before it says. `error`: an error event,
    as (type, message), takes the place of the end."""

    def __init__(
        self,
        *blocks: Block,
        stop: str | None = None,
        usage: Mapping[str, Any] | None = None,
        size: int = 4,
        pings: bool = True,
        error: tuple[str, str] | None = None,
        model: str = "claude-sonnet-4-5",
        **reply: Any,
    ) -> None:
        self.blocks = blocks
        self.stop = ("tool_use" if any(isinstance(block, Use) for block in blocks) else "end_turn") if stop is None else stop
        self.usage = {"input_tokens": 25, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 15, **(usage or {})}
        self.size, self.pings, self.error, self.model, self.reply = size, pings, error, model, reply

    def message(self, blocks: list[Body], stop: str | None, usage: Mapping[str, Any]) -> Body:
        fixed = {"id": "msg_01XFDUDYJgAACzvnptvVoYEL", "type": "message", "role": "assistant", "model": self.model}
        return {**fixed, "content": blocks, "stop_reason": stop, "stop_sequence": None, "usage": dict(usage)}

    def body(self) -> Body:
        return self.message([_whole(block) for block in self.blocks], self.stop or None, self.usage)

    def events(self) -> Iterator[Body]:
        """The events of the stream, in Anthropic's order."""
        start = {**self.usage, "output_tokens": 1}
        start.pop("output_tokens_details", None)
        yield {"type": "message_start", "message": self.message([], None, start)}
        for index, block in enumerate(self.blocks):
            yield {"type": "content_block_start", "index": index, "content_block": _opening(block)}
            if index == 0 and self.pings:
                yield {"type": "ping"}
            for delta in _deltas(block, self.size):
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            if self.stop or self.error or index < len(self.blocks) - 1:
                yield {"type": "content_block_stop", "index": index}
        if self.error is not None:
            yield {"type": "error", "error": {"type": self.error[0], "message": self.error[1]}}
        elif self.stop:
            yield {"type": "message_delta", "delta": {"stop_reason": self.stop, "stop_sequence": None}, "usage": dict(self.usage)}
            yield {"type": "message_stop"}

    def as_reply(self, stream: bool) -> Reply:
        if not stream:
            return Reply.body(self.body(), **self.reply)
        frames = tuple(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in self.events())
        return Reply(frames, headers={"Content-Type": "text/event-stream; charset=utf-8"}, **self.reply)


def _whole(block: Block) -> Body:
    match block:
        case Said(text):
            return {"type": "text", "text": text, "citations": None}
        case Thinking(text, signature):
            return {"type": "thinking", "thinking": text, "signature": signature}
        case Redacted(data):
            return {"type": "redacted_thinking", "data": data}
        case Use(id, name, input):
            return {"type": "tool_use", "id": id, "name": name, "input": json.loads(input)}


def _opening(block: Block) -> Body:
    empty: dict[str, Body] = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}, "tool_use": {"input": {}}}
    whole: Body = _whole(block) if not isinstance(block, Use) else {"type": "tool_use", "id": block.id, "name": block.name}
    whole.pop("citations", None)
    return {**whole, **empty.get(whole["type"], {})}


def _deltas(block: Block, size: int) -> Iterator[Body]:
    if isinstance(block, Said):
        yield from ({"type": "text_delta", "text": piece} for piece in pieces(block.text, size))
    elif isinstance(block, Thinking):
        yield from ({"type": "thinking_delta", "thinking": piece} for piece in pieces(block.text, size))
        yield {"type": "signature_delta", "signature": block.signature}
    elif isinstance(block, Use):
        yield {"type": "input_json_delta", "partial_json": ""}
        yield from ({"type": "input_json_delta", "partial_json": piece} for piece in pieces(block.input, size))


def error(status: int, message: str, type: str | None = None, **fields: Any) -> Reply:
    """An error answer in Anthropic's shape."""
    found = {"type": type or STATUS_TYPES[status], "message": message}
    headers = {"request-id": "req_011CSHoEeqs5C35K2UUqR7Fy", **fields.pop("headers", {})}
    return Reply.body({"type": "error", "error": found, "request_id": headers["request-id"]}, status, headers=headers, **fields)


# --- what the service asks of a request --------------------------------------------------------------------------------------------------------

FIELDS = frozenset(
    "model messages max_tokens system tools tool_choice stream temperature top_p top_k stop_sequences metadata thinking output_config container "
    "context_management mcp_servers service_tier cache_control diagnostics speed".split()
)
IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
SYSTEM_ROLE = ("claude-opus-4-8", "claude-opus-5", "claude-sonnet-5-5", "claude-haiku-5-5")
"""Models that take instructions in the middle of a conversation."""
_ID = re.compile(r"[a-zA-Z0-9_-]+")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_DOCS = "https://docs.claude.com/en/docs/build-with-claude/extended-thinking"
Problem = str | None


def _blocks(message: Body) -> list[Body]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _turns(body: Body) -> list[tuple[str, list[Body]]]:
    """The messages with consecutive ones of a role joined, as the service reads them."""
    turns: list[tuple[str, list[Body]]] = []
    for message in body["messages"]:
        if turns and turns[-1][0] == message["role"]:
            turns[-1][1].extend(_blocks(message))
        else:
            turns.append((message["role"], list(_blocks(message))))
    return turns


def _of(kind: str, blocks: list[Body]) -> list[Body]:
    return [block for block in blocks if block["type"] == kind]


def fields_known(body: Body) -> Problem:
    for name in ("model", "messages", "max_tokens"):
        if name not in body:
            return f"{name}: Field required"
    if body["max_tokens"] < 1:
        return "max_tokens: must be greater than or equal to 1"
    unknown = sorted(set(body) - FIELDS)
    return f"{unknown[0]}: Extra inputs are not permitted" if unknown else None


def roles(body: Body) -> Problem:
    if not body["messages"]:
        return "messages: at least one message is required"
    for message in body["messages"]:
        if message["role"] not in ("user", "assistant", *(("system",) if body["model"].startswith(SYSTEM_ROLE) else ())):
            return f'messages: Unexpected role "{message["role"]}". The Messages API accepts a top-level `system` parameter.'
    return 'messages: first message must use the "user" role' if body["messages"][0]["role"] != "user" else None


def contents(body: Body) -> Problem:
    system = body.get("system")
    for text in system if isinstance(system, list) else ():
        if not text["text"].strip():
            return "system: text content blocks must contain non-whitespace text"
    for at, message in enumerate(body["messages"]):
        if not message["content"]:
            return f"messages.{at}: all messages must have non-empty content except for the optional final assistant message"
        for block in _blocks(message):
            if block["type"] == "text" and not block["text"].strip():
                return "messages: text content blocks must contain non-whitespace text"
            inner = block.get("content") if block["type"] == "tool_result" else None
            if isinstance(inner, list) and any(part["type"] == "text" and not part["text"].strip() for part in inner):
                return f"messages.{at}.content.0.tool_result: text content blocks must contain non-whitespace text"
            source = block.get("source") or {}
            if block["type"] == "image" and source.get("type") == "base64" and source["media_type"] not in IMAGE_TYPES:
                return f"messages.{at}.content.0.image.source.base64.media_type: Input should be {', '.join(IMAGE_TYPES)}"
    role, blocks = _turns(body)[-1]
    if role == "assistant" and blocks[-1]["type"] == "text" and blocks[-1]["text"] != blocks[-1]["text"].rstrip():
        return "messages: final assistant content cannot end with trailing whitespace"
    return None


def pairs(body: Body) -> Problem:
    """Every tool_use is answered at the start of the next user message, and nothing else is."""
    turns = _turns(body)
    ids: list[str] = []
    asked: list[str] = []
    for at, (role, blocks) in enumerate(turns):
        answered = []
        for block in blocks:
            if block["type"] != "tool_result":
                break
            answered.append(block["tool_use_id"])
        strange = [block["tool_use_id"] for block in _of("tool_result", blocks) if block["tool_use_id"] not in asked]
        if strange:
            return (
                f"messages.{at}.content.0: unexpected `tool_use_id` found in `tool_result` blocks: {strange[0]}. Each `tool_result` block must have "
                "a corresponding `tool_use` block in the previous message."
            )
        missing = [id for id in asked if id not in answered]
        if missing:
            return (
                f"messages.{at - 1}: `tool_use` ids were found without `tool_result` blocks immediately after: {', '.join(missing)}. Each `tool_use` "
                "block must have a corresponding `tool_result` block in the next message."
            )
        asked = [block["id"] for block in _of("tool_use", blocks)] if role == "assistant" else []
        ids += asked
        for block in _of("tool_use", blocks):
            if not _ID.fullmatch(block["id"]):
                return f"messages.{at}.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
            if not isinstance(block["input"], dict):
                return f"messages.{at}.content.0.tool_use.input: Input should be a valid dictionary"
    if asked:
        return f"messages.{len(turns) - 1}: `tool_use` ids were found without `tool_result` blocks immediately after: {', '.join(asked)}."
    return "messages: `tool_use` ids must be unique" if len(set(ids)) != len(ids) else None


def tools(body: Body) -> Problem:
    declared = body.get("tools") or []
    names = [tool["name"] for tool in declared]
    used = any(_of("tool_use", blocks) or _of("tool_result", blocks) for _, blocks in _turns(body))
    if used and not declared:
        return "Requests which include `tool_use` or `tool_result` blocks must define tools"
    if len(set(names)) != len(names):
        return "tools: Tool names must be unique."
    for at, tool in enumerate(declared):
        if not _NAME.fullmatch(tool["name"]):
            return f"tools.{at}.custom.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"
        if tool["input_schema"].get("type") != "object":
            return f"tools.{at}.custom.input_schema.type: Field required"
    choice = body.get("tool_choice")
    if choice is not None and not declared:
        return "tool_choice may only be specified while providing tools."
    if choice is not None and choice["type"] == "tool" and choice["name"] not in names:
        return f"Tool '{choice['name']}' not found in provided tools"
    return None


def sampling(body: Body) -> Problem:
    if not 0 <= body.get("temperature", 1) <= 1:
        return "temperature: range: 0..1"
    if "temperature" in body and "top_p" in body and "-4-5" in body["model"]:
        return "`temperature` and `top_p` cannot both be specified for this model. Please use only one."
    if any(not text.strip() for text in body.get("stop_sequences") or ()):
        return "stop_sequences: each stop sequence must contain non-whitespace"
    return None


def thinking_rules(body: Body) -> Problem:
    thinking = body.get("thinking") or {"type": "disabled"}
    if thinking["type"] == "adaptive" and "-4-5" in body["model"]:
        return "adaptive thinking is not supported on this model"
    if thinking["type"] == "disabled" and "-4-5" in body["model"]:
        assistants = [(at, blocks) for at, (role, blocks) in enumerate(_turns(body)) if role == "assistant"]
        if assistants and (_of("thinking", assistants[-1][1]) or _of("redacted_thinking", assistants[-1][1])):
            return (
                f"messages.{assistants[-1][0]}.content.0: When thinking is disabled, an `assistant` message in the final position cannot contain "
                "`thinking`. To use thinking blocks, enable `thinking` in your request."
            )
    if thinking["type"] != "enabled":
        return None
    if thinking["budget_tokens"] < 1024:
        return "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024"
    if body["max_tokens"] <= thinking["budget_tokens"]:
        return f"`max_tokens` must be greater than `thinking.budget_tokens`. Please consult our documentation at {_DOCS}"
    if body.get("temperature", 1) != 1:
        return f"`temperature` may only be set to 1 when thinking is enabled. Please consult our documentation at {_DOCS}#important-considerations"
    if body.get("top_p", 1) < 0.95:
        return "`top_p` must be greater than or equal to 0.95 or unset when thinking is enabled."
    if (body.get("tool_choice") or {}).get("type") in ("any", "tool"):
        return "Thinking may not be enabled when tool_choice forces tool use."
    return _turn_begins_with_thinking(_turns(body))


def _turn_begins_with_thinking(turns: list[tuple[str, list[Body]]]) -> Problem:
    """A tool loop is one turn of the assistant's: it begins behind the last user message that answers no tool."""
    begin = max((at for at, (role, blocks) in enumerate(turns) if role == "user" and not _of("tool_result", blocks)), default=0) + 1
    if begin >= len(turns) - 1:
        return None
    found = turns[begin][1][0]["type"]
    if found in ("thinking", "redacted_thinking"):
        return None
    return (
        f"messages.{begin}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{found}`. When `thinking` is enabled, a final "
        "`assistant` message must start with a thinking block (preceeding the lastmost set of `tool_use` and `tool_result` blocks). We recommend you "
        "include thinking blocks from previous turns. To avoid this requirement, disable `thinking`. Please consult our documentation at "
        f"{_DOCS}"
    )


RULES: tuple[Callable[[Body], Problem], ...] = (fields_known, roles, contents, pairs, tools, sampling, thinking_rules)
"""What the service asks of a request, in the order it is asked. Each rule gives the service's own words, or None."""


# --- the server --------------------------------------------------------------------------------------------------------------------------------


@dataclass
class _Issued:
    """What the service has signed: it knows its own blocks again."""

    thinking: set[tuple[str, str]] = field(default_factory=set)
    redacted: set[str] = field(default_factory=set)

    def add(self, answer: Answer) -> None:
        for block in answer.blocks:
            if isinstance(block, Thinking):
                self.thinking.add((block.text, block.signature))
            elif isinstance(block, Redacted):
                self.redacted.add(block.data)

    def problem(self, body: Body) -> Problem:
        for at, message in enumerate(body["messages"]):
            for place, block in enumerate(_blocks(message)):
                if block["type"] == "thinking" and (block["thinking"], block["signature"]) not in self.thinking:
                    return f"messages.{at}.content.{place}: Invalid `signature` in `thinking` block"
                if block["type"] == "redacted_thinking" and block["data"] not in self.redacted:
                    return f"messages.{at}.content.{place}: Invalid `data` in `redacted_thinking` block"
        return None


class FakeAnthropic(FakeUpstream):
    """Plays its answers in order and repeats the last one. `refused` holds what it refused, and why. `models`: the names it knows."""

    def __init__(self, *script: Answer | Reply, key: str = DEFAULT_KEY, models: tuple[str, ...] | None = None) -> None:
        super().__init__(self._respond)
        self.answers = list(script)
        self.key, self.models = key, models
        self.refused: list[tuple[Recorded, str]] = []
        self._issued = _Issued()

    @property
    def base_url(self) -> str:
        return super().base_url.removesuffix("/v1")

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        return self

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if request.method != "GET":
            return await super()._serve(request)
        names = self.models or ("claude-haiku-4-5",)
        data = [{"type": "model", "id": name, "display_name": name, "created_at": "2026-01-01T00:00:00Z"} for name in names]
        return web.json_response({"data": data, "has_more": False, "first_id": data[0]["id"], "last_id": data[-1]["id"]})

    def _respond(self, request: Recorded) -> Reply:
        refusal = self._refusal(request)
        if refusal is not None:
            self.refused.append((request, json.loads(refusal.frames[0])["error"]["message"]))
            return refusal
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Reply):
            return answer
        self._issued.add(answer)
        return answer.as_reply(bool(request.body.get("stream")))

    def _refusal(self, request: Recorded) -> Reply | None:
        headers = {name.lower(): value for name, value in request.headers.items()}
        if request.path != "/v1/messages":
            return error(404, "Not Found")
        if self.key not in (headers.get("x-api-key"), headers.get("authorization", "").removeprefix("Bearer ")):
            return error(401, "invalid x-api-key")
        if "anthropic-version" not in headers:
            return error(400, "anthropic-version: header is required")
        for rule in (*RULES, self._issued.problem):
            problem = rule(request.body)
            if problem is not None:
                return error(400, problem)
        if self.models is not None and request.body["model"] not in self.models:
            return error(404, f"model: {request.body['model']}")
        return None

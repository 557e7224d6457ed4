"""The rules by which Anthropic's Messages API checks a request, in the order of `RULES`. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable

from doubles.provider import Body, Problem

FIELDS = frozenset(
    "model messages max_tokens system tools tool_choice stream temperature top_p top_k stop_sequences "
    "metadata thinking output_config container "
    "context_management mcp_servers service_tier cache_control diagnostics speed thread compaction "
    "fallbacks inference_geo user_profile_id workspace_id safeguards".split()
)
IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
SYSTEM_ROLE = ("claude-opus-4-8", "claude-opus-5", "claude-sonnet-5-5", "claude-haiku-5-5")
"""Models that accept system messages in the middle of a conversation."""
_ID = re.compile(r"[a-zA-Z0-9_-]+")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_DOCS = "https://docs.claude.com/en/docs/build-with-claude/extended-thinking"


def blocks_of(message: Body) -> list[Body]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _turns(body: Body) -> list[tuple[str, list[Body]]]:
    """Returns the messages as (role, blocks). Consecutive messages of the same role are joined."""
    turns: list[tuple[str, list[Body]]] = []
    for message in body["messages"]:
        if turns and turns[-1][0] == message["role"]:
            turns[-1][1].extend(blocks_of(message))
        else:
            turns.append((message["role"], list(blocks_of(message))))
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
        if message["role"] not in (
            "user",
            "assistant",
            *(("system",) if body["model"].startswith(SYSTEM_ROLE) else ()),
        ):
            return (
                f'messages: Unexpected role "{message["role"]}". The Messages API accepts a top-level '
                "`system` parameter."
            )
    return (
        'messages: first message must use the "user" role' if body["messages"][0]["role"] != "user" else None
    )


def contents(body: Body) -> Problem:
    system = body.get("system")
    for text in system if isinstance(system, list) else ():
        if not text["text"].strip():
            return "system: text content blocks must contain non-whitespace text"
    for at, message in enumerate(body["messages"]):
        if not message["content"] and message["role"] != "system":
            return (
                f"messages.{at}: all messages must have non-empty content except for the optional final "
                "assistant message"
            )
        for block in blocks_of(message):
            if block["type"] == "text" and not block["text"].strip():
                return "messages: text content blocks must contain non-whitespace text"
            inner = block.get("content") if block["type"] == "tool_result" else None
            if isinstance(inner, list) and any(
                part["type"] == "text" and not part["text"].strip() for part in inner
            ):
                return (
                    f"messages.{at}.content.0.tool_result: text content blocks must contain non-whitespace "
                    "text"
                )
            source = block.get("source") or {}
            if (
                block["type"] == "image"
                and source.get("type") == "base64"
                and source["media_type"] not in IMAGE_TYPES
            ):
                return (
                    f"messages.{at}.content.0.image.source.base64.media_type: Input should be "
                    f"{', '.join(IMAGE_TYPES)}"
                )
    role, blocks = _turns(body)[-1]
    if (
        role == "assistant"
        and blocks[-1]["type"] == "text"
        and blocks[-1]["text"] != blocks[-1]["text"].rstrip()
    ):
        return "messages: final assistant content cannot end with trailing whitespace"
    return None


def pairs(body: Body) -> Problem:
    """Checks calls and results.

    The user message after `tool_use` blocks must begin with the results of these blocks, and must have no
    other results.
    """
    turns = _turns(body)
    ids: list[str] = []
    asked: list[str] = []
    for at, (role, blocks) in enumerate(turns):
        answered = []
        for block in blocks:
            if block["type"] != "tool_result":
                break
            answered.append(block["tool_use_id"])
        strange = [
            block["tool_use_id"] for block in _of("tool_result", blocks) if block["tool_use_id"] not in asked
        ]
        if strange:
            return (
                f"messages.{at}.content.0: unexpected `tool_use_id` found in `tool_result` blocks: "
                f"{strange[0]}. Each `tool_result` block must have "
                "a corresponding `tool_use` block in the previous message."
            )
        missing = [id for id in asked if id not in answered]
        if missing:
            return (
                f"messages.{at - 1}: `tool_use` ids were found without `tool_result` blocks immediately "
                f"after: {', '.join(missing)}. Each `tool_use` "
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
        return (
            f"messages.{len(turns) - 1}: `tool_use` ids were found without `tool_result` blocks "
            f"immediately after: {', '.join(asked)}."
        )
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
        if tool.get("type", "custom") == "custom" and tool["input_schema"].get("type") != "object":
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
                f"messages.{assistants[-1][0]}.content.0: When thinking is disabled, an `assistant` "
                "message in the final position cannot contain "
                "`thinking`. To use thinking blocks, enable `thinking` in your request."
            )
    if thinking["type"] != "enabled":
        return None
    if thinking["budget_tokens"] < 1024:
        return "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024"
    if body["max_tokens"] <= thinking["budget_tokens"]:
        return (
            "`max_tokens` must be greater than `thinking.budget_tokens`. Please consult our documentation "
            f"at {_DOCS}"
        )
    if body.get("temperature", 1) != 1:
        return (
            "`temperature` may only be set to 1 when thinking is enabled. Please consult our "
            f"documentation at {_DOCS}#important-considerations"
        )
    if body.get("top_p", 1) < 0.95:
        return "`top_p` must be greater than or equal to 0.95 or unset when thinking is enabled."
    if (body.get("tool_choice") or {}).get("type") in ("any", "tool"):
        return "Thinking may not be enabled when tool_choice forces tool use."
    return _turn_begins_with_thinking(_turns(body))


def _turn_begins_with_thinking(turns: list[tuple[str, list[Body]]]) -> Problem:
    """Checks that the last assistant turn begins with a thinking block.

    A tool loop is one assistant turn: it begins after the last user message without a tool result.
    """
    begin = (
        max(
            (
                at
                for at, (role, blocks) in enumerate(turns)
                if role == "user" and not _of("tool_result", blocks)
            ),
            default=0,
        )
        + 1
    )
    if begin >= len(turns) - 1:
        return None
    found = turns[begin][1][0]["type"]
    if found in ("thinking", "redacted_thinking"):
        return None
    return (
        f"messages.{begin}.content.0.type: Expected `thinking` or `redacted_thinking`, but found "
        f"`{found}`. When `thinking` is enabled, a final "
        "`assistant` message must start with a thinking block (preceeding the lastmost set of `tool_use` "
        "and `tool_result` blocks). We recommend you "
        "include thinking blocks from previous turns. To avoid this requirement, disable `thinking`. "
        "Please consult our documentation at "
        f"{_DOCS}"
    )


RULES: tuple[Callable[[Body], Problem], ...] = (
    fields_known,
    roles,
    contents,
    pairs,
    tools,
    sampling,
    thinking_rules,
)
"""The checks of a request, in the service's order. Each returns the service's message, or None."""

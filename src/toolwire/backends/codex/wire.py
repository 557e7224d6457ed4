"""What Codex sends, as types, by method. Keys that are not listed are skipped; a message that does not fit its type is no news."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from toolwire.events import Usage

T = TypeVar("T")
_camel: dict[str, Any] = {"rename": "camel", "gc": False}


class Delta(msgspec.Struct, **_camel):
    delta: str
    item_id: str = ""
    turn_id: str = ""
    summary_index: int = 0


class TurnError(msgspec.Struct, **_camel):
    """`codex_error_info` is a word, or an object with one key."""

    message: str = ""
    codex_error_info: Any = None
    additional_details: Any = None


class TurnState(msgspec.Struct, **_camel):
    id: str = ""
    status: str = ""
    error: TurnError | None = None


class TurnNews(msgspec.Struct, **_camel):
    """turn/started, turn/completed, and the result of turn/start."""

    turn: TurnState


class ErrorNews(msgspec.Struct, **_camel):
    error: TurnError
    will_retry: bool = False


class RawPart(msgspec.Struct, gc=False):
    text: str = ""


class RawItem(msgspec.Struct, gc=False):
    """A Responses item as the provider sent it."""

    type: str
    role: str = ""
    name: str = ""
    arguments: str = ""
    call_id: str = ""
    summary: tuple[RawPart, ...] | None = None
    content: tuple[RawPart, ...] | None = None


class RawItemNews(msgspec.Struct, **_camel):
    item: RawItem
    turn_id: str = ""


class Tokens(msgspec.Struct, **_camel):
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    reasoning_output_tokens: int = 0


class RawResponseNews(msgspec.Struct, **_camel):
    turn_id: str = ""
    usage: Tokens | None = None


class Totals(msgspec.Struct, **_camel):
    total: Tokens


class TokenNews(msgspec.Struct, **_camel):
    token_usage: Totals


class ToolCall(msgspec.Struct, **_camel):
    """item/tool/call: Codex waits for its answer."""

    call_id: str
    turn_id: str = ""


class Thread(msgspec.Struct, **_camel):
    id: str
    path: str | None = None


class ThreadStarted(msgspec.Struct, **_camel):
    """The result of thread/start and thread/resume."""

    thread: Thread


class Route(msgspec.Struct, **_camel):
    """Whose message it is."""

    thread_id: str = ""


class Initialized(msgspec.Struct, **_camel):
    user_agent: str = ""


class Account(msgspec.Struct, **_camel):
    """account/read. `account` is None where nobody is logged in."""

    account: Any = None
    requires_openai_auth: bool = False


class Login(msgspec.Struct, **_camel):
    auth_url: str = ""
    login_id: str = ""


NEWS: dict[str, type[Any]] = {
    "item/agentMessage/delta": Delta,
    "item/reasoning/summaryTextDelta": Delta,
    "item/reasoning/textDelta": Delta,
    "rawResponseItem/completed": RawItemNews,
    "rawResponse/completed": RawResponseNews,
    "thread/tokenUsage/updated": TokenNews,
    "turn/started": TurnNews,
    "turn/completed": TurnNews,
    "error": ErrorNews,
}
"""The notifications of a thread that a run reads; the others are dropped unread."""

TOOL_CALL = "item/tool/call"

_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}


def decode(kind: type[T], data: bytes) -> T | None:
    """The message as its type, or None where it does not fit."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        found: T = decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return found


def difference(now: Tokens, before: Tokens) -> Usage:
    """Tokens since an earlier total."""
    return Usage(
        max(0, now.input_tokens - before.input_tokens),
        max(0, now.output_tokens - before.output_tokens),
        max(0, now.cached_input_tokens - before.cached_input_tokens),
        max(0, now.reasoning_output_tokens - before.reasoning_output_tokens),
    )

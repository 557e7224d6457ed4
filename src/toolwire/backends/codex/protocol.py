"""The messages of Codex as types, and its JSON-RPC without I/O.

A message is one JSON object per line, without the field `jsonrpc`. Unknown keys are skipped. A message that
does not match its type is ignored.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from toolwire.core.events import Usage

T = TypeVar("T")
_BAD_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class _Camel(msgspec.Struct, rename="camel", gc=False):
    """Base of messages whose keys are in camelCase."""


class CodexDelta(_Camel):
    delta: str
    item_id: str = ""
    summary_index: int = 0


class TurnError(_Camel):
    """A turn's error. `codex_error_info` is a string, or an object with one key."""

    message: str = ""
    codex_error_info: Any = None


class TurnState(_Camel):
    id: str = ""
    status: str = ""
    error: TurnError | None = None


class TurnNews(_Camel):
    """The notifications turn/started and turn/completed, and the result of turn/start."""

    turn: TurnState


class ErrorNews(_Camel):
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


class RawItemNews(_Camel):
    item: RawItem
    turn_id: str = ""


class Tokens(_Camel):
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    reasoning_output_tokens: int = 0

    def usage(self) -> Usage:
        return Usage(
            self.input_tokens, self.output_tokens, self.cached_input_tokens, self.reasoning_output_tokens
        )


class RawResponseNews(_Camel):
    turn_id: str = ""
    usage: Tokens | None = None


class Totals(_Camel):
    total: Tokens


class TokenNews(_Camel):
    token_usage: Totals


class CodexToolCall(_Camel):
    """The request item/tool/call. Codex waits for the result."""

    call_id: str


class ThreadInfo(_Camel):
    id: str
    path: str | None = None


class ThreadStarted(_Camel):
    """The result of thread/start and thread/resume."""

    thread: ThreadInfo


class Route(_Camel):
    thread_id: str = ""


class Initialized(_Camel):
    user_agent: str = ""


class CodexAccount(_Camel):
    """The result of account/read. `account` is None if nobody is logged in."""

    account: Any = None
    requires_openai_auth: bool = False


class Login(_Camel):
    auth_url: str = ""


TOOL_CALL = "item/tool/call"


def decode(kind: type[T], data: bytes) -> T | None:
    """Returns the message as the given type, or None if it does not match the type."""
    try:
        return msgspec.json.decode(data, type=kind)
    except _BAD_JSON:
        return None


# --- JSON-RPC ---

OVERLOADED = -32001
METHOD_NOT_FOUND = -32601


class Fault(msgspec.Struct, gc=False):
    code: int = 0
    message: str = "unknown error"


class RpcMessage(msgspec.Struct, gc=False):
    """A response (with an id), a request from Codex (with id and method), or a notification (with a method).

    Parameters and results are not decoded yet, because most notifications are never read.
    """

    id: int | str | None = None
    method: str = ""
    params: msgspec.Raw = msgspec.Raw(b"null")
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: Any = None

    @property
    def fault(self) -> Fault | None:
        try:
            return None if self.error is None else msgspec.convert(self.error, Fault)
        except msgspec.ValidationError:
            return Fault()


def read_message(line: bytes) -> RpcMessage | None:
    """Parses a line. Returns None if it is not a message."""
    message = decode(RpcMessage, line)
    return message if message is not None and (message.method or message.id is not None) else None


def line(**message: Any) -> bytes:
    return msgspec.json.encode(message) + b"\n"

"""What Codex sends, as types, and its JSON-RPC without I/O: one JSON object a line, no `jsonrpc` field.

Unknown keys are skipped. A message that does not fit its type is ignored.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from toolwire.backends.agents.processes import LINE_LIMIT, Lines
from toolwire.core.events import Usage

T = TypeVar("T")
_BAD_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class _Camel(msgspec.Struct, rename="camel", gc=False):
    """Codex writes its keys in camelCase."""


class CodexDelta(_Camel):
    delta: str
    item_id: str = ""
    summary_index: int = 0


class TurnError(_Camel):
    """`codex_error_info` is a word, or an object with one key."""

    message: str = ""
    codex_error_info: Any = None


class TurnState(_Camel):
    id: str = ""
    status: str = ""
    error: TurnError | None = None


class TurnNews(_Camel):
    """turn/started, turn/completed, and the result of turn/start."""

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
    """item/tool/call: Codex waits for the result."""

    call_id: str


class ThreadInfo(_Camel):
    id: str
    path: str | None = None


class ThreadStarted(_Camel):
    """The result of thread/start and thread/resume."""

    thread: ThreadInfo


class Route(_Camel):
    """The thread that a message belongs to."""

    thread_id: str = ""


class Initialized(_Camel):
    user_agent: str = ""


class CodexAccount(_Camel):
    """account/read. `account` is None if nobody is logged in."""

    account: Any = None
    requires_openai_auth: bool = False


class Login(_Camel):
    auth_url: str = ""


TOOL_CALL = "item/tool/call"


def decode(kind: type[T], data: bytes) -> T | None:
    """The message as its type, or None if it does not fit."""
    try:
        return msgspec.json.decode(data, type=kind)
    except _BAD_JSON:
        return None


# --- JSON-RPC ---

OVERLOADED = -32001
METHOD_NOT_FOUND = -32601
Id = int | str


class Fault(msgspec.Struct, gc=False):
    """The error of a response."""

    code: int = 0
    message: str = "unknown error"


class Response(msgspec.Struct, gc=False):
    """The response to one of our requests. `result` is JSON."""

    id: Id
    result: bytes
    fault: Fault | None = None


class ServerRequest(msgspec.Struct, gc=False):
    """A request of Codex, which waits for the response. `params` is JSON."""

    id: Id
    method: str
    params: bytes


class Notification(msgspec.Struct, gc=False):
    method: str
    params: bytes


Message = Response | ServerRequest | Notification


class _Envelope(msgspec.Struct, gc=False):
    """Parameters and results stay undecoded: most notifications are never read."""

    id: int | str | None = None
    method: str | None = None
    params: msgspec.Raw = msgspec.Raw(b"null")
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: Any = None


_decode = msgspec.json.Decoder(_Envelope).decode
_encode = msgspec.json.Encoder().encode


class RpcPeer:
    """Our side of the connection: returns the lines to write, and reads messages from bytes in any pieces.

    A line that is no message, or is longer than the limit, is skipped.
    """

    def __init__(self, line_limit: int = LINE_LIMIT) -> None:
        self._lines = Lines(line_limit)
        self._next_id = 0

    def request(self, method: str, params: Any) -> tuple[int, bytes]:
        """A fresh id and the line of the request."""
        self._next_id += 1
        return self._next_id, _line({"method": method, "id": self._next_id, "params": params})

    def notify(self, method: str) -> bytes:
        return _line({"method": method})

    def reply(self, id: Id, result: Any) -> bytes:
        return _line({"id": id, "result": result})

    def refuse(self, id: Id, code: int, message: str) -> bytes:
        return _line({"id": id, "error": {"code": code, "message": message}})

    def feed(self, data: bytes) -> list[Message]:
        """The messages whose lines are complete with this piece."""
        found = map(_message, self._lines.feed(data))
        return [message for message in found if message is not None]


def _message(line: bytes) -> Message | None:
    try:
        envelope = _decode(line)
    except _BAD_JSON:
        return None
    if envelope.method is None:
        if envelope.id is None:
            return None
        return Response(envelope.id, bytes(envelope.result), _fault(envelope.error))
    params = bytes(envelope.params)
    if envelope.id is None:
        return Notification(envelope.method, params)
    return ServerRequest(envelope.id, envelope.method, params)


def _line(message: dict[str, Any]) -> bytes:
    return _encode(message) + b"\n"


def _fault(error: Any) -> Fault | None:
    try:
        return None if error is None else msgspec.convert(error, Fault)
    except msgspec.ValidationError:
        return Fault()

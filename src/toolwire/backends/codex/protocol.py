"""What Codex sends, as types, by method. Keys that are not listed are skipped; a message that does not fit its type is no news."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from toolwire.core.events import Usage

T = TypeVar("T")
_camel: dict[str, Any] = {"rename": "camel", "gc": False}


class CodexDelta(msgspec.Struct, **_camel):
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


class CodexToolCall(msgspec.Struct, **_camel):
    """item/tool/call: Codex waits for its answer."""

    call_id: str
    turn_id: str = ""


class ThreadInfo(msgspec.Struct, **_camel):
    id: str
    path: str | None = None


class ThreadStarted(msgspec.Struct, **_camel):
    """The result of thread/start and thread/resume."""

    thread: ThreadInfo


class Route(msgspec.Struct, **_camel):
    """Whose message it is."""

    thread_id: str = ""


class Initialized(msgspec.Struct, **_camel):
    user_agent: str = ""


class CodexAccount(msgspec.Struct, **_camel):
    """account/read. `account` is None where nobody is logged in."""

    account: Any = None
    requires_openai_auth: bool = False


class Login(msgspec.Struct, **_camel):
    auth_url: str = ""
    login_id: str = ""


NEWS: dict[str, type[Any]] = {
    "item/agentMessage/delta": CodexDelta,
    "item/reasoning/summaryTextDelta": CodexDelta,
    "item/reasoning/textDelta": CodexDelta,
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


# --- rpc ------------------------------------------------------------
#
# JSON-RPC as `codex app-server` speaks it, without I/O: one JSON object a line, no `jsonrpc` field. -
# Bytes in, in any pieces; the same messages come out however they were cut. - Keys that are not known are
# skipped. A line that is no message is counted, never fatal; so is a line longer than the limit, of which
# nothing is kept. - Parameters and results stay undecoded until someone asks for them: most notifications
# are of no interest. - The ids of our requests and those of the server's are two spaces.

LINE_LIMIT = 64 * 1024 * 1024
OVERLOADED = -32001
METHOD_NOT_FOUND = -32601
Id = int | str


@dataclass(frozen=True, slots=True)
class Fault:
    """The error of a response."""

    code: int
    message: str


@dataclass(frozen=True, slots=True)
class Response:
    """The answer to one of our requests. `result` is JSON."""

    id: Id
    result: bytes
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class ServerRequest:
    """What the server asks of us: it waits until it is answered. `params` is JSON."""

    id: Id
    method: str
    params: bytes


@dataclass(frozen=True, slots=True)
class Notification:
    method: str
    params: bytes


Message = Response | ServerRequest | Notification


class _Envelope(msgspec.Struct, gc=False):
    id: int | str | None = None
    method: str | None = None
    params: msgspec.Raw = msgspec.Raw(b"null")
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: Any = None


_decode = msgspec.json.Decoder(_Envelope).decode
_encode = msgspec.json.Encoder().encode


class RpcPeer:
    """Our side of the conversation. What the methods return is to be written; what `feed` returns came in."""

    def __init__(self, line_limit: int = LINE_LIMIT) -> None:
        self._limit = line_limit
        self._rest: list[bytes] = []
        self._held = 0
        self._skipping = False
        self._next_id = 0
        self.garbage = 0

    # --- out -----------------------------------------------------------------------------------------------------------------------------------

    def request(self, method: str, params: Any) -> tuple[int, bytes]:
        """A fresh id and the line that asks."""
        self._next_id += 1
        return self._next_id, _line({"method": method, "id": self._next_id, "params": params})

    def notify(self, method: str) -> bytes:
        return _line({"method": method})

    def reply(self, id: Id, result: Any) -> bytes:
        return _line({"id": id, "result": result})

    def refuse(self, id: Id, code: int, message: str) -> bytes:
        return _line({"id": id, "error": {"code": code, "message": message}})

    # --- in ------------------------------------------------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> list[Message]:
        """The messages whose lines are complete with this piece."""
        out: list[Message] = []
        *lines, rest = data.split(b"\n")
        for line in lines:
            if self._skipping or self._held + len(line) > self._limit:
                self.garbage += not self._skipping
                self._forget()
                continue
            if self._rest:
                line = b"".join((*self._rest, line))
                self._forget()
            message = self._read(line)
            if message is not None:
                out.append(message)
        if rest and not self._skipping:
            self._rest.append(rest)
            self._held += len(rest)
            if self._held > self._limit:
                self.garbage += 1
                self._forget()
                self._skipping = True
        return out

    def _forget(self) -> None:
        self._rest.clear()
        self._held = 0
        self._skipping = False

    def _read(self, line: bytes) -> Message | None:
        if not line or line.isspace():
            return None
        try:
            envelope = _decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self.garbage += 1
            return None
        if envelope.method is not None:
            params = bytes(envelope.params)
            return Notification(envelope.method, params) if envelope.id is None else ServerRequest(envelope.id, envelope.method, params)
        if envelope.id is not None:
            return Response(envelope.id, bytes(envelope.result), _fault(envelope.error))
        self.garbage += 1
        return None


def _line(message: dict[str, Any]) -> bytes:
    return _encode(message) + b"\n"


def _fault(error: Any) -> Fault | None:
    if error is None:
        return None
    found = error if isinstance(error, dict) else {}
    code, message = found.get("code"), found.get("message")
    return Fault(code if isinstance(code, int) else 0, message if isinstance(message, str) else "unknown error")

"""The bridge's services over loopback HTTP. `ConnectError`: the bridge said no. `BridgeUnreachable`: it said nothing."""

from __future__ import annotations

import asyncio
import json
import re
import struct
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any

import aiohttp

from toolwire.core.errors import ToolwireError
from toolwire.core.events import Failure

# --- connect ------------------------------------------------------------
#
# Connect's JSON wire without I/O: envelopes of a server stream, and errors. An envelope is one byte of
# flags, four bytes of length, and JSON. The one with `END` among its flags is the last, and may hold an
# error.

END = 2
LARGEST = 64 * 2**20
HEADERS = {"Connect-Protocol-Version": "1"}
UNARY, STREAM = "application/json", "application/connect+json"


class ConnectError(Exception):
    """An error as the wire has it. `details` are those of `sdk.v1.SdkErrorDetails`, as far as they are there."""

    def __init__(self, code: str, message: str, details: Mapping[str, Any] | None = None, status: int | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.details: Mapping[str, Any] = details or {}
        self.status = status


class Malformed(ValueError):
    """What came is no Connect."""


def envelope(message: Any, flags: int = 0) -> bytes:
    body = json.dumps(message).encode()
    return struct.pack(">BI", flags, len(body)) + body


class Envelopes:
    """Bytes as they come → messages. `ended`: the last one was read."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.ended = False

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Raises `ConnectError` when the stream ended with one."""
        self._buffer += data
        while not self.ended and len(self._buffer) >= 5:
            flags, length = struct.unpack_from(">BI", self._buffer)
            if length > LARGEST or flags & ~END:
                raise Malformed("an envelope that is too large or compressed")
            if len(self._buffer) < 5 + length:
                return
            message = parse(bytes(self._buffer[5 : 5 + length]))
            del self._buffer[: 5 + length]
            if flags & END:
                self.ended = True
                if isinstance(message.get("error"), Mapping):
                    raise error_of(message["error"])
                return
            yield message


def parse(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body) if body.strip() else {}
    except (ValueError, RecursionError) as error:
        raise Malformed("no JSON") from error
    if not isinstance(value, dict):
        raise Malformed("no JSON object")
    return value


def error_of(value: Mapping[str, Any], status: int | None = None) -> ConnectError:
    """The error object of a unary response or of a stream's end."""
    inner = value.get("error")
    value = inner if isinstance(inner, Mapping) else value
    details = _sdk_details(value.get("details"))
    message = details.get("message") or value.get("message") or ""
    return ConnectError(str(value.get("code") or "unknown"), str(message), details, status)


def _sdk_details(details: Any) -> Mapping[str, Any]:
    """A detail comes as an `Any`: its readable form stands under `debug`."""
    found: Mapping[str, Any] = {}
    for detail in details if isinstance(details, list) else ():
        for one in (detail, detail.get("debug"), detail.get("value")) if isinstance(detail, Mapping) else ():
            if isinstance(one, Mapping) and ("sdkErrorCode" in one or (not found and "message" in one)):
                found = one
    return found


PROTOCOL = "sdk.v1"
CONTROL, CURSOR, AGENT = (f"{PROTOCOL}.{name}" for name in ("SdkBridgeControlService", "SdkCursorService", "SdkAgentService"))
CHUNK = 64 * 1024


class BridgeUnreachable(ToolwireError):
    """The bridge is not there, or broke off."""


class BridgeClient:
    def __init__(self, url: str, token: str, timeout_s: float) -> None:
        self._url = url
        self._timeout_s = timeout_s
        headers = {**HEADERS, "Authorization": f"Bearer {token}"}
        self._session = aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0), trust_env=False)

    async def close(self) -> None:
        await self._session.close()

    async def unary(self, method: str, message: Mapping[str, Any], timeout_s: float | None = None) -> dict[str, Any]:
        """`method` is SERVICE/METHOD."""
        seconds = timeout_s or self._timeout_s
        name = method.rpartition("/")[2]
        try:
            async with self._session.post(
                f"{self._url}/{method}",
                data=json.dumps(message).encode(),
                headers={"Content-Type": UNARY},
                timeout=aiohttp.ClientTimeout(total=seconds),
            ) as response:
                body = await response.read()
                if response.status != 200:
                    raise _refused(name, response.status, body)
                return parse(body)
        except TimeoutError:
            raise BridgeUnreachable("timeout", f"Cursor's bridge did not answer {name} within {seconds:g} s.") from None
        except aiohttp.ClientError as error:
            raise BridgeUnreachable("backend_unavailable", f"Cursor's bridge does not answer {name}: {_words(error)}") from error
        except Malformed as error:
            raise ToolwireError("backend", f"Cursor's bridge answered {name} with {error}.") from error

    async def stream(self, method: str, message: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """The messages as they come; an empty one is a sign of life. A stream that breaks off raises `BridgeUnreachable`. Closing it hangs up."""
        name = method.rpartition("/")[2]
        envelopes = Envelopes()
        try:
            async with self._session.post(
                f"{self._url}/{method}",
                data=envelope(message),
                headers={"Content-Type": STREAM},
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._timeout_s),
            ) as response:
                if response.status != 200:
                    raise _refused(name, response.status, await response.read())
                async for data in response.content.iter_any():
                    for one in envelopes.feed(data):
                        yield one
                    if envelopes.ended:
                        return
        except (aiohttp.ClientError, asyncio.IncompleteReadError) as error:
            raise BridgeUnreachable("backend_cut", f"Cursor's bridge broke off: {_words(error)}") from error
        except Malformed as error:
            raise ToolwireError("backend", f"Cursor's bridge streamed {error}.") from error
        raise BridgeUnreachable("backend_cut", "Cursor's bridge broke off.")


def _refused(name: str, status: int, body: bytes) -> Exception:
    try:
        error = parse(body)
    except Malformed:
        error = {}
    if "code" in error or "error" in error:
        return error_of(error, status)
    if status == 401:
        return ConnectError("unauthenticated", "", status=status)
    return ToolwireError("backend", f"Cursor's bridge answered {name} with HTTP {status}.")


def _words(error: BaseException) -> str:
    """aiohttp's messages hold the address at most; it is on this machine."""
    return str(error) or type(error).__name__


# --- failures ------------------------------------------------------------
#
# What the bridge reports of a failure → one kind of `errors.KINDS`. The tables decide; the first that
# knows the failure holds. Pure.

MESSAGE_LIMIT = 500
PREFIX = "SDK_ERROR_CODE_"

SDK_KINDS: dict[str, str] = {
    "UNAUTHORIZED": "backend_auth",
    "API_KEY_NOT_FOUND": "backend_auth",
    "PLAN_REQUIRED": "backend_auth",
    "ROLE_FORBIDDEN": "backend_auth",
    "FEATURE_UNAVAILABLE": "backend",
    "AGENT_NOT_FOUND": "backend_cut",
    "RUN_NOT_FOUND": "backend_cut",
    "VALIDATION_ERROR": "invalid_request",
    "INVALID_MODEL": "model_not_found",
    "USAGE_LIMIT_EXCEEDED": "quota",
    "AGENT_BUSY": "overloaded",
    "RATE_LIMIT_EXCEEDED": "rate_limit",
    "UPSTREAM_ERROR": "backend",
    "INTERNAL_ERROR": "backend",
    "CLIENT_CANCELLED": "backend_cut",
}
"""By the bridge's own code, which stands in an error's details."""

WORD_KINDS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), kind)
    for pattern, kind in (
        (r"network request failed|fetch failed|failed to connect|ECONNREFUSED|ENOTFOUND|EAI_AGAIN", "backend_unavailable"),
        (r"usage limit|out of (?:credits|usage)|spend limit|billing", "quota"),
        (r"rate.?limit|too many requests", "rate_limit"),
        (r"(?:unknown|invalid|unsupported|no such) model|model .*(?:not found|not available|does not exist)", "model_not_found"),
        (r"api key|unauthori[sz]ed|not logged in|authentication", "backend_auth"),
        (r"context (?:window|length)|too many tokens|prompt is too long", "context_length"),
    )
)
"""By the message, where there is no code of its own."""

CONNECT_KINDS: dict[str, str] = {
    "unauthenticated": "backend_auth",
    "permission_denied": "backend_auth",
    "resource_exhausted": "rate_limit",
    "invalid_argument": "invalid_request",
    "not_found": "backend_cut",
    "failed_precondition": "backend",
    "unavailable": "backend_unavailable",
    "deadline_exceeded": "timeout",
    "canceled": "backend_cut",
    "aborted": "backend_cut",
}
"""By Connect's code. Else it is the backend's failure."""

OWN_WORDS: dict[str, str] = {
    "backend_auth": "Cursor did not accept the API key, or does not allow it this.",
    "backend_unavailable": "Cursor could not be reached.",
    "backend_cut": "The agent's answer broke off before it was complete.",
    "rate_limit": "Cursor's rate limit is reached.",
    "quota": "Cursor's usage limit is reached.",
}
_URL = re.compile(r"\(?https?://[^\s,)]+\)?")
_KEY = re.compile(r"\b(?:crsr|cursor|key|sk)[-_][A-Za-z0-9_\-*]{8,}")
_CODE = re.compile(r"^\[(\w+)\]\s*")


def of_error(error: ConnectError) -> Failure:
    """The failure that an error of the bridge's means."""
    code = str(error.details.get("sdkErrorCode") or "")
    return _failure(code, error.code, error.message, _seconds(error.details.get("retryAfter")))


def of_run(code: str, message: str) -> Failure:
    """The failure that a run's own end means. The message may begin with Connect's code in brackets."""
    found = _CODE.match(message)
    return _failure(code, found[1] if found else "", message[found.end() :] if found else message, None)


def _failure(sdk_code: str, connect_code: str, message: str, retry_after_s: float | None) -> Failure:
    kind = SDK_KINDS.get(sdk_code.removeprefix(PREFIX).upper()) or CONNECT_KINDS.get(sdk_code.lower())
    kind = kind or next((kind for pattern, kind in WORD_KINDS if pattern.search(message)), None)
    kind = kind or CONNECT_KINDS.get(connect_code.lower(), "backend")
    return Failure(kind, told(kind, message), retry_after_s=retry_after_s if kind in ("rate_limit", "quota", "overloaded") else None)


def told(kind: str, message: str) -> str:
    """One line for the person at the client: no address, no key."""
    words = clean(message)
    own = OWN_WORDS.get(kind)
    return f"{own} Cursor said: {words}" if own and words else own or (f"Cursor said: {words}" if words else "Cursor's agent failed without a word.")


def clean(message: str) -> str:
    return _KEY.sub("***", _URL.sub("", " ".join(message.split())))[:MESSAGE_LIMIT].strip()


def _seconds(duration: Any) -> float | None:
    """Protobuf's JSON of a duration: `1.5s`."""
    try:
        return float(str(duration).removesuffix("s"))
    except ValueError:
        return None

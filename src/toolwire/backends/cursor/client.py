"""The client of the bridge's services, over loopback HTTP, with the JSON format of the Connect protocol.

`ConnectError`: the bridge answered with an error. `BridgeUnreachable`: the bridge did not answer, or closed
the connection.
"""

from __future__ import annotations

import asyncio
import json
import re
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from toolwire.backends.agents.backend import kind_by_words
from toolwire.backends.agents.processes import clean
from toolwire.core.errors import ToolwireError
from toolwire.core.events import Failure

PROTOCOL = "sdk.v1"
CONTROL, CURSOR, AGENT = (
    f"{PROTOCOL}.{name}" for name in ("SdkBridgeControlService", "SdkCursorService", "SdkAgentService")
)

# --- failures ---
#
# The tables map an error of the bridge to a kind of `errors.KINDS`. The first table with this error decides.

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
"""Error kinds by the bridge's own code, which is in the details of an error."""

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
"""Error kinds by Connect's code. Any other code is `backend`."""

EXPLANATIONS: dict[str, str] = {
    "backend_auth": "Cursor rejected the API key, or the key's plan does not permit this request.",
    "backend_unavailable": "Cursor could not be reached.",
    "backend_cut": "The agent's answer broke off before it was complete.",
    "rate_limit": "Cursor's rate limit is reached.",
    "quota": "Cursor's usage limit is reached.",
}
_CODE = re.compile(r"^\[(\w+)\]\s*")


def run_failure(code: str, message: str) -> Failure:
    """Returns the failure of a run. `message` may begin with Connect's code in brackets."""
    found = _CODE.match(message)
    return _failure(code, found[1] if found else "", message[found.end() :] if found else message)


def _failure(sdk_code: str, connect_code: str, message: str, retry_after: Any = None) -> Failure:
    kind = (
        SDK_KINDS.get(sdk_code.removeprefix("SDK_ERROR_CODE_").upper())
        or CONNECT_KINDS.get(sdk_code.lower())
        or kind_by_words(message)
        or CONNECT_KINDS.get(connect_code.lower(), "backend")
    )
    words = clean(message)
    readable = " ".join(filter(None, (EXPLANATIONS.get(kind), words and f"Cursor said: {words}")))
    seconds = _seconds(retry_after) if kind in ("rate_limit", "quota", "overloaded") else None
    return Failure(kind, readable or "Cursor's agent failed without a message.", retry_after_s=seconds)


def _seconds(duration: Any) -> float | None:
    """Returns the seconds of a duration in Protobuf's JSON (`1.5s`), or None if it is invalid."""
    try:
        return float(str(duration).removesuffix("s"))
    except ValueError:
        return None


class ConnectError(ToolwireError):
    """An error that the bridge sent, with its `code` and `message`."""

    def __init__(self, code: str, message: str, details: Mapping[str, Any]) -> None:
        sdk_code = str(details.get("sdkErrorCode") or "")
        failure = _failure(sdk_code, code, message, details.get("retryAfter"))
        super().__init__(failure.kind, failure.message, retry_after_s=failure.retry_after_s)
        self.code = code
        self.message = message

    @classmethod
    def read(cls, value: Mapping[str, Any]) -> ConnectError:
        """Reads the error object of a unary response or of the end of a stream."""
        inner = value.get("error")
        value = inner if isinstance(inner, Mapping) else value
        details = _sdk_details(value.get("details"))
        message = details.get("message") or value.get("message") or ""
        return cls(str(value.get("code") or "unknown"), str(message), details)


def _sdk_details(details: Any) -> Mapping[str, Any]:
    """Returns the `sdk.v1.SdkErrorDetails` of an error, or {} if it has none.

    Each detail is a Protobuf `Any`, with its readable form under `debug`.
    """
    found: Mapping[str, Any] = {}
    for detail in details if isinstance(details, list) else ():
        for one in (detail, detail.get("debug"), detail.get("value")) if isinstance(detail, Mapping) else ():
            if isinstance(one, Mapping) and ("sdkErrorCode" in one or (not found and "message" in one)):
                found = one
    return found


# --- envelopes ---
#
# A stream consists of envelopes: one byte of flags, four bytes of length, and JSON. The last envelope has the
# flag `END` and may contain an error.

END = 2
LARGEST = 64 * 2**20


class Malformed(ValueError):
    """Raised if the bytes do not follow Connect's format."""


def envelope(message: Any, flags: int = 0) -> bytes:
    body = json.dumps(message).encode()
    return struct.pack(">BI", flags, len(body)) + body


class Envelopes:
    """Splits a byte stream into messages. `ended`: whether the last message has been read."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.ended = False

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Yields the complete messages. Raises `ConnectError` if the stream ends with an error."""
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
                    raise ConnectError.read(message)
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


# --- the client ---


class BridgeUnreachable(ToolwireError):
    """Raised if the bridge did not answer, or closed the connection."""


class BridgeClient:
    """Calls the services of a bridge. The argument `method` always has the form SERVICE/METHOD."""

    def __init__(self, url: str, token: str, timeout_s: float) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._session = aiohttp.ClientSession(
            headers={"Connect-Protocol-Version": "1", "Authorization": f"Bearer {token}"},
            connector=aiohttp.TCPConnector(limit=0),
            trust_env=False,
        )

    async def close(self) -> None:
        await self._session.close()

    @asynccontextmanager
    async def _post(
        self, method: str, body: bytes, kind: str, timeout: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        url, name = f"{self._url}/{method}", method.rpartition("/")[2]
        try:
            async with self._session.post(
                url, data=body, headers={"Content-Type": kind}, timeout=timeout
            ) as response:
                if response.status != 200:
                    raise _refused(name, response.status, await response.read())
                yield response
        except Malformed as error:
            raise ToolwireError("backend", f"Cursor's bridge answered {name} with {error}.") from error

    async def unary(
        self, method: str, message: Mapping[str, Any], timeout_s: float | None = None
    ) -> dict[str, Any]:
        seconds, name = timeout_s or self._timeout_s, method.rpartition("/")[2]
        timeout, body = aiohttp.ClientTimeout(total=seconds), json.dumps(message).encode()
        try:
            async with self._post(method, body, "application/json", timeout) as response:
                return parse(await response.read())
        except TimeoutError:
            problem = f"Cursor's bridge did not answer {name} within {seconds:g} s."
            raise BridgeUnreachable("timeout", problem) from None
        except aiohttp.ClientError as error:
            problem = f"Cursor's bridge does not answer {name}: {str(error) or type(error).__name__}"
            raise BridgeUnreachable("backend_unavailable", problem) from error

    async def stream(self, method: str, message: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Yields the messages of a stream as they arrive; an empty message is a keep-alive.

        Closing the generator closes the connection.
        """
        envelopes = Envelopes()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout_s)
        try:
            async with self._post(method, envelope(message), "application/connect+json", timeout) as response:
                async for data in response.content.iter_any():
                    for one in envelopes.feed(data):
                        yield one
                    if envelopes.ended:
                        return
        except (aiohttp.ClientError, asyncio.IncompleteReadError) as error:
            problem = f"Cursor's bridge ended its answer too early: {str(error) or type(error).__name__}"
            raise BridgeUnreachable("backend_cut", problem) from error
        raise BridgeUnreachable("backend_cut", "Cursor's bridge ended its answer too early.")


def _refused(name: str, status: int, body: bytes) -> ToolwireError:
    try:
        error = parse(body)
    except Malformed:
        error = {}
    if "code" in error or "error" in error:
        return ConnectError.read(error)
    if status == 401:
        return ConnectError("unauthenticated", "", {})
    return ToolwireError("backend", f"Cursor's bridge answered {name} with HTTP {status}.")

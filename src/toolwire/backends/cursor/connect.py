"""Connect's JSON wire without I/O: envelopes of a server stream, and errors.

An envelope is one byte of flags, four bytes of length, and JSON. The one with `END` among its flags is the last, and may hold an error.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any

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

"""Converts errors of a server or a connection to a `Failure`, whose message contains no secrets.

The message is one line. It quotes the server's own message, except if the error is about credentials or the
account's quota.
"""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from toolwire.core.errors import ToolwireError
from toolwire.core.events import Failure
from toolwire.wire.sse import scrub

# --- faults of a connection ---


class TransportFault(Exception):
    """A fault of the connection to a server. Each subclass is one kind of fault."""


class Unreachable(TransportFault):
    """The connection could not be opened."""


class NameUnknown(Unreachable):
    """The host name could not be resolved."""


class TlsRefused(Unreachable):
    """The TLS handshake failed, or the server's certificate was not accepted."""


class TooLate(TransportFault):
    """The server sent nothing in time. `connecting`: True if not even the connection was opened in time."""

    def __init__(self, *, connecting: bool = False) -> None:
        super().__init__()
        self.connecting = connecting


class Disconnected(TransportFault):
    """The server closed the connection before it answered."""


class CutOff(TransportFault):
    """The response ended before it was complete."""


class NotHttp(TransportFault):
    """The server sent something that is not HTTP."""


MESSAGE_LIMIT = 500
TEXT_LIMIT = 64 * 1024
RETRY_LIMIT_S = 86_400.0

STATUS_KINDS: dict[int, str] = {
    401: "backend_auth",
    402: "quota",
    403: "backend_auth",
    404: "backend",
    408: "timeout",
    409: "backend",
    413: "body_too_large",
    429: "rate_limit",
}
"""Kinds of failures by HTTP status. Other statuses: 4xx is `invalid_request`, all others are `backend`."""

CODE_KINDS: dict[str, str] = {
    "context_length_exceeded": "context_length",
    "exceed_context_size_error": "context_length",
    "content_filter": "content_filter",
    "content_policy_violation": "content_filter",
    "insufficient_quota": "quota",
    "rate_limit_exceeded": "rate_limit",
    "rate_limit_error": "rate_limit",
    "model_not_found": "model_not_found",
    "invalid_api_key": "backend_auth",
    "authentication_error": "backend_auth",
    "invalid_request_error": "invalid_request",
    "overloaded_error": "overloaded",
}
CONTEXT_LENGTH = re.compile(
    r"context[ _](?:length|window|size)|maximum (?:context|sequence|prompt) length"
    r"|(?:too many|exceeds?).{0,40}tokens|prompt is too long",
    re.IGNORECASE,
)
UNKNOWN_MODEL = re.compile(
    r"\bmodel\b.{0,80}(?:not (?:be )?found|does not exist|doesn't exist|unknown|not loaded)"
    r"|(?:unknown|no such) model",
    re.IGNORECASE,
)
_MARKUP = re.compile(r"<[^>]*>|\s+")
_KEY = re.compile(r"\b(?:sk|pk|key|gsk|xai|hf)[-_][A-Za-z0-9_\-*]{8,}")

CERTAIN_KINDS = ("context_length", "content_filter", "quota", "model_not_found", "overloaded")
"""Kinds of failures for which the code in the error takes precedence over the HTTP status."""
ABOUT_THE_REQUEST = ("invalid_request", "context_length", "content_filter", "model_not_found")
OWN_MESSAGES: dict[str, str] = {
    "backend_auth": "The upstream server did not accept the gateway's credentials.",
    "quota": "The upstream account has no quota left.",
}

NOTHING_CAME = "The upstream server sent nothing for too long."
FAULT_MESSAGES: dict[type[TransportFault], tuple[str, str]] = {
    TlsRefused: (
        "backend_unavailable",
        "The upstream server's TLS certificate or handshake was not accepted.",
    ),
    NameUnknown: ("backend_unavailable", "The upstream server's name could not be resolved."),
    Unreachable: ("backend_unavailable", "The upstream server could not be reached."),
    Disconnected: ("backend_unavailable", "The upstream server closed the connection without an answer."),
    NotHttp: ("backend", "The upstream server did not speak HTTP as expected."),
}


def http_failure(
    status: int, headers: Mapping[str, str], body: bytes, secrets: tuple[str, ...] = ()
) -> Failure:
    """Returns the failure for a response with a status other than 200."""
    if 300 <= status < 400:
        redirected = f"The upstream server answered with a redirect (HTTP {status}), which is not followed."
        return Failure("backend", f"{redirected} Check base_url.")
    error = _error_in(body)
    words = _message(error, body)
    kind = _kind(status, error, words)
    if kind == "backend" and status == 404 and not error.get("message"):
        return Failure(kind, "The upstream server does not know this address (HTTP 404). Check base_url.")
    retry = retry_after(headers) if status in (429, 503) else None
    return _failure(kind, words, error, f"HTTP {status}", retry, secrets)


def stream_failure(error: Any, secrets: tuple[str, ...] = ()) -> Failure:
    """Returns the failure for an error object in a stream, or in a body with status 200."""
    found: Mapping[str, Any] = error if isinstance(error, Mapping) else {"message": error}
    code = found.get("code")
    status = code if isinstance(code, int) and not isinstance(code, bool) and 400 <= code < 600 else 500
    words = _message(found, b"")
    return _failure(_kind(status, found, words), words, found, "while streaming", None, secrets)


def transport_failure(error: TransportFault | ToolwireError, started: bool) -> Failure:
    """Returns the failure for a fault of the connection. `started`: whether the response had begun."""
    if isinstance(error, ToolwireError):
        return error.failure
    if isinstance(error, TooLate):
        connecting = "The upstream server could not be reached in time."
        return Failure("timeout", connecting if error.connecting else NOTHING_CAME)
    if started or isinstance(error, CutOff):
        return Failure("backend_cut", "The upstream server's answer broke off before it was complete.")
    return Failure(*FAULT_MESSAGES[type(error)])


def connection_error(error: BaseException) -> str:
    """Returns the reason why a connection failed, in readable words, without names of exceptions."""
    cause = getattr(error, "os_error", None) or error  # aiohttp wraps the error of the system
    if isinstance(cause, TimeoutError):
        return "no answer in time"
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"the TLS certificate was not accepted: {cause.verify_message}"
    if isinstance(cause, ssl.SSLError):
        return "the TLS handshake failed"
    if isinstance(cause, socket.gaierror):
        return "the host name could not be resolved"
    if isinstance(cause, OSError) and cause.errno:
        return os.strerror(cause.errno)
    return _OTHER_FAULTS.get(type(cause).__name__, "the server did not speak HTTP as expected")


_OTHER_FAULTS = {
    **dict.fromkeys(
        ("ServerDisconnectedError", "RemoteDisconnected"),
        "the server closed the connection without an answer",
    ),
    **dict.fromkeys(("ClientPayloadError", "IncompleteRead"), "the answer broke off"),
}
"""Errors of aiohttp and `http.client`, by name, so that this module need not import them."""


def error_message(body: bytes) -> str:
    """Returns the server's own message from the body of an error."""
    return _message(_error_in(body), body)


def _kind(status: int, error: Mapping[str, Any], words: str) -> str:
    """Returns the kind of failure, from the error's code and type, its wording and the status."""
    is_too_long = CONTEXT_LENGTH.search(words)
    for word in (error.get("code"), error.get("type")):
        kind = CODE_KINDS.get(word) if isinstance(word, str) else None
        if kind in CERTAIN_KINDS or (kind and status == 500):
            return "context_length" if kind == "invalid_request" and is_too_long else kind
    if status in (400, 413, 422, 500) and is_too_long:
        return "context_length"
    if status in (400, 404) and UNKNOWN_MODEL.search(words):
        return "model_not_found"
    return STATUS_KINDS.get(status, "invalid_request" if 400 <= status < 500 else "backend")


def _failure(
    kind: str, words: str, error: Mapping[str, Any], where: str, retry: float | None, secrets: tuple[str, ...]
) -> Failure:
    """Creates the failure. `where`: when the error occurred, such as "HTTP 500" or "while streaming"."""
    param, code = error.get("param"), error.get("code")
    if kind in OWN_MESSAGES:
        return Failure(kind, f"{OWN_MESSAGES[kind][:-1]} ({where}).", retry_after_s=retry)
    if not words:
        did = "refused the request" if kind == "invalid_request" else "failed"
        message = f"The upstream server {did} ({where})."
    else:
        message = words if kind in ABOUT_THE_REQUEST else f"Upstream ({where}): {words}"
    param = presentable(param, secrets) if isinstance(param, str) else None
    code = presentable(code, secrets) if isinstance(code, str) and kind == "invalid_request" else None
    return Failure(kind, presentable(message, secrets), param, code, retry)


def presentable(text: str, secrets: tuple[str, ...]) -> str:
    """Returns the text as one short line of valid Unicode, without secrets."""
    text = " ".join(scrub(text[:TEXT_LIMIT]).split())
    for secret in filter(None, secrets):
        text = text.replace(secret, "…")
    text = _KEY.sub("…", text)
    return text if len(text) <= MESSAGE_LIMIT else text[: MESSAGE_LIMIT - 1] + "…"


def _error_in(body: bytes) -> Mapping[str, Any]:
    """Returns the error object in a body, or {} if there is none.

    Servers send `{"error": {…}}`, `{"error": "…"}`, `{"message": …}`, or one of these in a list. If the text
    in `{"error": "…"}` is itself JSON, it is an error of llama.cpp that Ollama forwards.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, dict):
        return {}
    error = value.get("error", value)
    if isinstance(error, str) and error.lstrip().startswith("{"):
        return _error_in(error.encode()) or {"message": error}
    return error if isinstance(error, dict) else {"message": error}


def _message(error: Mapping[str, Any], body: bytes) -> str:
    """Returns the server's message on one line. HTML is reduced to its text."""
    message = next((error[key] for key in ("message", "detail", "msg", "error") if error.get(key)), None)
    if message is None and not error:
        text = body[:4096].decode("utf-8", "replace")
        text = re.sub(r"(?is)<(script|style)\b.*?</\1>", " ", text)
        message = _MARKUP.sub(" ", text)
    if message is not None and not isinstance(message, str):
        try:
            message = json.dumps(message, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError):
            message = ""
    return " ".join((message or "")[:TEXT_LIMIT].split())


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Returns the header `Retry-After` in seconds, at most a day; None if there is no such header.

    If `Retry-After` is a date, the result is the time from the response's `Date` to that date.
    """
    for name, factor in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name, "").strip()
        if re.fullmatch(r"\d+(\.\d+)?", value):
            return min(float(value) * factor, RETRY_LIMIT_S)
    try:
        until = parsedate_to_datetime(headers.get("retry-after", ""))
        now = parsedate_to_datetime(headers.get("date", ""))
        return min(max(0.0, (until - now).total_seconds()), RETRY_LIMIT_S)
    except (ValueError, TypeError, OverflowError):
        return None

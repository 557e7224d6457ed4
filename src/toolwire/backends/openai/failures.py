"""What can go wrong at an upstream → one `Failure`. The tables decide; the message is one line that holds no secret.

An upstream's own words are passed on where they help the person at the client, which is what it says of the request. What it says of credentials
stays here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from toolwire.core.errors import ToolwireError
from toolwire.core.events import Failure
from toolwire.wire.sse import scrub

# --- faults ------------------------------------------------------------
#
# What can go wrong between us and an upstream server, whichever way the bytes travel.


class TransportFault(Exception):
    """The connection failed."""


class Unreachable(TransportFault):
    """No connection could be made."""


class NameUnknown(Unreachable):
    """The host's name could not be resolved."""


class TlsRefused(Unreachable):
    """The certificate or the handshake was not accepted."""


class TooLate(TransportFault):
    """Nothing came in time; `connecting`: not even a connection."""

    def __init__(self, *, connecting: bool = False) -> None:
        super().__init__()
        self.connecting = connecting


class Disconnected(TransportFault):
    """The server closed the connection before it answered."""


class CutOff(TransportFault):
    """The answer broke off."""


class NotHttp(TransportFault):
    """What came is not HTTP."""


MESSAGE_LIMIT = 500
WORDS_LIMIT = 64 * 1024
RETRY_LIMIT_S = 86_400.0

STATUS_KINDS: dict[int, str] = {
    400: "invalid_request",
    401: "backend_auth",
    402: "quota",
    403: "backend_auth",
    404: "backend",
    408: "timeout",
    409: "backend",
    413: "body_too_large",
    422: "invalid_request",
    429: "rate_limit",
}
"""Other 4xx are `invalid_request`, the rest is `backend`."""

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
    r"context[ _](?:length|window|size)|maximum (?:context|sequence|prompt) length|(?:too many|exceeds?).{0,40}tokens|prompt is too long",
    re.IGNORECASE,
)
UNKNOWN_MODEL = re.compile(
    r"\bmodel\b.{0,80}(?:not (?:be )?found|does not exist|doesn't exist|unknown|not loaded)|(?:unknown|no such) model", re.IGNORECASE
)
_MARKUP = re.compile(r"<[^>]*>|\s+")
_KEY = re.compile(r"\b(?:sk|pk|key|gsk|xai|hf)[-_][A-Za-z0-9_\-*]{8,}")

OWN_WORDS: dict[str, str] = {
    "backend_auth": "The upstream server did not accept the gateway's credentials.",
    "quota": "The upstream account has no quota left.",
}


NOTHING_CAME = "The upstream server sent nothing for too long."
FAULT_WORDS: dict[type[TransportFault], tuple[str, str]] = {
    TlsRefused: ("backend_unavailable", "The upstream server's TLS certificate or handshake was not accepted."),
    NameUnknown: ("backend_unavailable", "The upstream server's name could not be resolved."),
    Unreachable: ("backend_unavailable", "The upstream server could not be reached."),
    Disconnected: ("backend_unavailable", "The upstream server closed the connection without an answer."),
    NotHttp: ("backend", "The upstream server did not speak HTTP as expected."),
}


def http_failure(status: int, headers: Mapping[str, str], body: bytes, secrets: tuple[str, ...] = ()) -> Failure:
    """The failure that an HTTP answer other than 200 means."""
    if 300 <= status < 400:
        return Failure("backend", f"The upstream server answered with a redirect (HTTP {status}), which is not followed. Check base_url.")
    error = _error_in(body)
    words = _words(error, body)
    kind = _kind(status, error, words)
    if kind == "backend" and status == 404 and not error.get("message"):
        return Failure("backend", "The upstream server does not know this address (HTTP 404). Check base_url.")
    retry = retry_after(headers) if status in (429, 503) else None
    return _failure(kind, words, error, f"HTTP {status}", retry, secrets)


def stream_failure(error: Any, secrets: tuple[str, ...] = ()) -> Failure:
    """The failure that an error object inside a stream, or in a body with status 200, means."""
    found: Mapping[str, Any] = error if isinstance(error, Mapping) else {"message": error}
    code = found.get("code")
    status = code if isinstance(code, int) and not isinstance(code, bool) and 400 <= code < 600 else 500
    words = _words(found, b"")
    return _failure(_kind(status, found, words), words, found, "while streaming", None, secrets)


def transport_failure(error: TransportFault | ToolwireError, started: bool) -> Failure:
    """The failure that a broken connection means; `started`: the answer had begun."""
    if isinstance(error, ToolwireError):
        return error.failure
    if isinstance(error, TooLate):
        return Failure("timeout", "The upstream server could not be reached in time." if error.connecting else NOTHING_CAME)
    if started or isinstance(error, CutOff):
        return Failure("backend_cut", "The upstream server's answer broke off before it was complete.")
    kind, words = FAULT_WORDS[type(error)]
    return Failure(kind, words)


def error_message(body: bytes) -> str:
    """The upstream's own words in an error's body."""
    return _words(_error_in(body), body)


def _kind(status: int, error: Mapping[str, Any], words: str) -> str:
    for key in ("code", "type"):
        word = error.get(key)
        kind = CODE_KINDS.get(word) if isinstance(word, str) else None
        if kind in ("context_length", "content_filter", "quota", "model_not_found", "overloaded") or (kind and status == 500):
            if kind == "invalid_request" and CONTEXT_LENGTH.search(words):
                return "context_length"
            return kind
    if status in (400, 413, 422, 500) and CONTEXT_LENGTH.search(words):
        return "context_length"
    if status in (400, 404) and UNKNOWN_MODEL.search(words):
        return "model_not_found"
    return STATUS_KINDS.get(status, "invalid_request" if 400 <= status < 500 else "backend")


def _failure(kind: str, words: str, error: Mapping[str, Any], where: str, retry: float | None, secrets: tuple[str, ...]) -> Failure:
    param, code = error.get("param"), error.get("code")
    if kind in OWN_WORDS:
        return Failure(kind, f"{OWN_WORDS[kind][:-1]} ({where}).", retry_after_s=retry)
    if not words:
        message = f"The upstream server refused the request ({where})." if kind == "invalid_request" else f"The upstream server failed ({where})."
    else:
        message = words if kind in ("invalid_request", "context_length", "content_filter", "model_not_found") else f"Upstream ({where}): {words}"
    shown = param if isinstance(param, str) else None, code if kind == "invalid_request" and isinstance(code, str) else None
    param, code = (None if text is None else presentable(text, secrets) for text in shown)
    return Failure(kind, presentable(message, secrets), param, code, retry)


def presentable(text: str, secrets: tuple[str, ...]) -> str:
    """One short line of valid text without secrets."""
    text = " ".join(scrub(text[:WORDS_LIMIT]).split())
    for secret in filter(None, secrets):
        text = text.replace(secret, "…")
    text = _KEY.sub("…", text)
    return text if len(text) <= MESSAGE_LIMIT else text[: MESSAGE_LIMIT - 1] + "…"


def _error_in(body: bytes) -> Mapping[str, Any]:
    """The error object of a body, in the shapes servers use: `{"error": {…}}`, `{"error": "…"}`, `{"message": …}`, or a list of one."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, dict):
        return {}
    error = value.get("error", value)
    if isinstance(error, dict):
        return error
    return {"message": error}


def _words(error: Mapping[str, Any], body: bytes) -> str:
    """The upstream's message on one line. A page of HTML is reduced to its text."""
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
    return " ".join((message or "")[:WORDS_LIMIT].split())


def retry_after(headers: Mapping[str, str]) -> float | None:
    """`Retry-After` in seconds, a day at most; a date is read as the time from the server's own `Date`."""
    for name, factor in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name, "").strip()
        if re.fullmatch(r"\d+(\.\d+)?", value):
            return min(float(value) * factor, RETRY_LIMIT_S)
    try:
        until, now = parsedate_to_datetime(headers.get("retry-after", "")), parsedate_to_datetime(headers.get("date", ""))
        return min(max(0.0, (until - now).total_seconds()), RETRY_LIMIT_S)
    except (ValueError, TypeError, OverflowError):
        return None

"""What the bridge reports of a failure → one kind of `errors.KINDS`. The tables decide; the first that knows the failure holds. Pure."""

from __future__ import annotations

import re
from typing import Any

from toolwire.backends.cursor.connect import ConnectError
from toolwire.events import Failure

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

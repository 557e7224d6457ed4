"""What Codex reports of a failed turn → one kind of `errors.KINDS`, or a way to finish. The tables decide; the first row that fits holds. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

from toolwire.backends.codex.protocol import TurnError
from toolwire.core.events import Failure, Finish

MESSAGE_LIMIT = 500

INFO_KINDS: dict[str, str] = {
    "contextWindowExceeded": "context_length",
    "usageLimitExceeded": "quota",
    "sessionBudgetExceeded": "quota",
    "rateLimitExceeded": "rate_limit",
    "serverOverloaded": "overloaded",
    "internalServerError": "backend",
    "unauthorized": "backend_auth",
    "badRequest": "invalid_request",
    "cyberPolicy": "content_filter",
    "responseStreamDisconnected": "backend_cut",
    "responseStreamConnectionFailed": "backend_unavailable",
}
"""By `codexErrorInfo`, where it is plain. `httpConnectionFailed` and `responseTooManyFailedAttempts` are judged by their HTTP status."""

STATUS_KINDS: dict[int, str] = {
    400: "invalid_request",
    401: "backend_auth",
    402: "quota",
    403: "backend_auth",
    404: "model_not_found",
    408: "timeout",
    413: "body_too_large",
    422: "invalid_request",
    429: "rate_limit",
    503: "overloaded",
    529: "overloaded",
}

WORD_KINDS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), kind)
    for pattern, kind in (
        (r"missing environment variable", "backend_auth"),
        (r"stream disconnected before completion: .*rate limit", "rate_limit"),
        (r"idle timeout waiting", "timeout"),
        (r"stream (?:disconnected|closed) before", "backend_cut"),
        (r"error sending request|connection (?:refused|failed)|dns error", "backend_unavailable"),
        (r"selected model is at capacity|server is overloaded", "overloaded"),
        (r"context (?:window|length)", "context_length"),
    )
)
"""By the message, where `codexErrorInfo` is `other`."""

REQUEST_KINDS: tuple[tuple[re.Pattern[str], str, str | None], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), kind, param)
    for pattern, kind, param in (
        (r"overloaded; retry later", "overloaded", None),
        (r"effort|unknown variant `[^`]*`, expected one of `(?:none|minimal|low)`", "unsupported_value", "reasoning_effort"),
        (r"reasoning.?summary|expected one of `auto`", "unsupported_value", "reasoning.summary"),
        (r"dynamic.?tool|tool name", "invalid_request", "tools"),
        (r"input.?too.?large|exceeds the maximum length", "context_length", None),
        (r"remote image|image", "unsupported_value", None),
    )
)
"""By the message with which Codex refuses a request of ours: kind and request field. Else it is the backend's failure."""

INCOMPLETE = re.compile(r"incomplete response returned, reason: (\w+)", re.IGNORECASE)
FINISHES = {"max_output_tokens": Finish("length"), "content_filter": Finish("content_filter")}
_STATUS = re.compile(r"unexpected status (\d{3})")
_URL = re.compile(r",? ?(?:url: )?\(?https?://[^\s,)]+\)?")
_KEY = re.compile(r"\b(?:sk|pk|key)[-_][A-Za-z0-9_\-*]{8,}")
_RETRY = re.compile(r"try again in (\d+(?:\.\d+)?) ?(ms|s)\b")

OWN_WORDS: dict[str, str] = {
    "backend_auth": "The provider did not accept Codex's credentials.",
    "backend_cut": "The model's answer broke off before it was complete.",
    "overloaded": "The provider is overloaded.",
}


def end_of(error: TurnError) -> Finish | Failure:
    """How a failed turn ends."""
    found = INCOMPLETE.search(error.message)
    if found and found[1] in FINISHES:
        return FINISHES[found[1]]
    kind = kind_of(error)
    retry = _RETRY.search(error.message) if kind == "rate_limit" else None
    seconds = float(retry[1]) / (1000 if retry[2] == "ms" else 1) if retry else None
    return Failure(kind, _message(kind, error), code=_code(error) if kind == "invalid_request" else None, retry_after_s=seconds)


def refused(method: str, message: str) -> Failure:
    """The failure that a refused request of ours means."""
    for pattern, kind, param in REQUEST_KINDS:
        if pattern.search(message):
            return Failure(kind, f"Codex refused {method}: {message[:MESSAGE_LIMIT]}", param)
    return Failure("backend", f"Codex refused {method}: {message[:MESSAGE_LIMIT]}")


def kind_of(error: TurnError) -> str:
    word, status = _info(error.codex_error_info)
    if word in INFO_KINDS:
        return INFO_KINDS[word]
    if status is None and (found := _STATUS.search(error.message)):
        status = int(found[1])
    if status is not None:
        return STATUS_KINDS.get(status, "invalid_request" if 400 <= status < 500 else "backend")
    for pattern, kind in WORD_KINDS:
        if pattern.search(error.message):
            return kind
    return "invalid_request" if _body(error.message) else "backend"  # the body of a 400 comes as it is


def _info(info: Any) -> tuple[str, int | None]:
    if isinstance(info, str):
        return info, None
    if isinstance(info, dict) and len(info) == 1:
        word, facts = next(iter(info.items()))
        status = facts.get("httpStatusCode") if isinstance(facts, dict) else None
        return str(word), status if isinstance(status, int) else None
    return "", None


def _body(message: str) -> dict[str, Any]:
    """The error object that a provider's 400 holds, where the message is such a body."""
    try:
        value = json.loads(message)
    except (ValueError, RecursionError):
        return {}
    inner = value.get("error", value.get("detail")) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {"message": str(inner)} if inner else {}


def _code(error: TurnError) -> str | None:
    code = _body(error.message).get("code")
    return code if isinstance(code, str) else None


def _message(kind: str, error: TurnError) -> str:
    """One line for the person at the client: no address, no key, no markup."""
    words = str(_body(error.message).get("message") or error.message)
    words = _KEY.sub("***", _URL.sub("", " ".join(words.split())))[:MESSAGE_LIMIT]
    own = OWN_WORDS.get(kind)
    return f"{own} Codex said: {words}" if own and words else own or words or "Codex failed without a word."

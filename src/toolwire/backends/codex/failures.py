"""A failed turn of Codex → one kind of `errors.KINDS`, or a reason to finish. In each table the first row that fits decides."""

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
"""By `codexErrorInfo`. The HTTP status decides for `httpConnectionFailed` and `responseTooManyFailedAttempts`."""

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

WORD_KINDS: tuple[tuple[str, str], ...] = (
    (r"missing environment variable", "backend_auth"),
    (r"stream disconnected before completion: .*rate limit", "rate_limit"),
    (r"idle timeout waiting", "timeout"),
    (r"stream (?:disconnected|closed) before", "backend_cut"),
    (r"error sending request|connection (?:refused|failed)|dns error", "backend_unavailable"),
    (r"selected model is at capacity|server is overloaded", "overloaded"),
    (r"context (?:window|length)", "context_length"),
)
"""By the message, if `codexErrorInfo` is `other`."""

_EFFORT = r"effort|unknown variant `[^`]*`, expected one of `(?:none|minimal|low)`"
REQUEST_KINDS: tuple[tuple[str, str, str | None], ...] = (
    (r"overloaded; retry later", "overloaded", None),
    (_EFFORT, "unsupported_value", "reasoning_effort"),
    (r"reasoning.?summary|expected one of `auto`", "unsupported_value", "reasoning.summary"),
    (r"dynamic.?tool|tool name", "invalid_request", "tools"),
    (r"input.?too.?large|exceeds the maximum length", "context_length", None),
    (r"remote image|image", "unsupported_value", None),
)
"""By the message with which Codex refuses a request: kind and request field."""

INCOMPLETE = re.compile(r"incomplete response returned, reason: (\w+)", re.IGNORECASE)
FINISHES = {"max_output_tokens": Finish("length"), "content_filter": Finish("content_filter")}
_STATUS = re.compile(r"unexpected status (\d{3})")
_URL = re.compile(r",? ?(?:url: )?\(?https?://[^\s,)]+\)?")
_KEY = re.compile(r"\b(?:sk|pk|key)[-_][A-Za-z0-9_\-*]{8,}")
_RETRY = re.compile(r"try again in (\d+(?:\.\d+)?) ?(ms|s)\b")

SUMMARIES: dict[str, str] = {
    "backend_auth": "The provider did not accept Codex's credentials.",
    "backend_cut": "The model's answer broke off before it was complete.",
    "overloaded": "The provider is overloaded.",
}


def end_of(error: TurnError) -> Finish | Failure:
    """How a failed turn ends."""
    found = INCOMPLETE.search(error.message)
    if found and found[1] in FINISHES:
        return FINISHES[found[1]]
    body = _body(error.message)
    kind = _kind(error, body)
    retry = _RETRY.search(error.message) if kind == "rate_limit" else None
    seconds = float(retry[1]) / (1000 if retry[2] == "ms" else 1) if retry else None
    code = body.get("code") if kind == "invalid_request" else None
    message = _message(kind, str(body.get("message") or error.message))
    return Failure(kind, message, code=code if isinstance(code, str) else None, retry_after_s=seconds)


def refused(method: str, message: str) -> Failure:
    """The failure of a request that Codex refused."""
    said = f"Codex refused {method}: {message[:MESSAGE_LIMIT]}"
    for pattern, kind, param in REQUEST_KINDS:
        if re.search(pattern, message, re.IGNORECASE):
            return Failure(kind, said, param)
    return Failure("backend", said)


def _kind(error: TurnError, body: dict[str, Any]) -> str:
    word, status = _info(error.codex_error_info)
    if word in INFO_KINDS:
        return INFO_KINDS[word]
    if status is None and (found := _STATUS.search(error.message)):
        status = int(found[1])
    if status is not None:
        return STATUS_KINDS.get(status, "invalid_request" if 400 <= status < 500 else "backend")
    for pattern, kind in WORD_KINDS:
        if re.search(pattern, error.message, re.IGNORECASE):
            return kind
    return "invalid_request" if body else "backend"  # Codex passes on the body of a 400 as the message


def _info(info: Any) -> tuple[str, int | None]:
    if isinstance(info, str):
        return info, None
    if isinstance(info, dict) and len(info) == 1:
        word, facts = next(iter(info.items()))
        status = facts.get("httpStatusCode") if isinstance(facts, dict) else None
        return str(word), status if isinstance(status, int) else None
    return "", None


def _body(message: str) -> dict[str, Any]:
    """The error object of a provider's 400, if the message is its body."""
    try:
        value = json.loads(message)
    except (ValueError, RecursionError):
        return {}
    inner = value.get("error", value.get("detail")) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {"message": str(inner)} if inner else {}


def _message(kind: str, said: str) -> str:
    """One line without addresses and keys."""
    said = _KEY.sub("***", _URL.sub("", " ".join(said.split())))[:MESSAGE_LIMIT]
    summary = SUMMARIES.get(kind)
    return (
        f"{summary} Codex said: {said}" if summary and said else summary or said or "Codex failed silently."
    )

"""Errors of a provider → one `Failure`. Its message is one line without secrets.

The client gets the provider's own message if it is about the request, never if it is about credentials.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_ai import exceptions

from toolwire.core.errors import ToolwireError
from toolwire.core.events import Failure
from toolwire.wire.sse import scrub

KINDS: tuple[tuple[type[Exception], str], ...] = (
    (exceptions.ModelContextWindowExceededError, "context_length"),
    (exceptions.ModelQuotaExceededError, "quota"),
    (exceptions.ModelRateLimitError, "rate_limit"),
    (exceptions.ModelOverloadedError, "overloaded"),
    (exceptions.ModelUnavailableError, "backend_unavailable"),
    (exceptions.ModelAuthenticationError, "backend_auth"),
    (exceptions.ModelNotFoundError, "model_not_found"),
    (exceptions.ModelTimeoutError, "timeout"),
    (exceptions.ModelRequestTimeout, "timeout"),
    (exceptions.ModelConnectionError, "backend_unavailable"),
    (exceptions.ModelRequestRejectedError, "invalid_request"),
    (exceptions.ModelServerError, "backend"),
    (exceptions.ContentFilterError, "content_filter"),
    (exceptions.UserError, "invalid_request"),
)
"""The library's errors, subclasses first. Other HTTP errors go by `STATUS_KINDS`, the rest is `backend`."""

STATUS_KINDS: dict[int, str] = {408: "timeout", 413: "body_too_large", 504: "timeout"}

OWN_WORDS: dict[str, str] = {
    "backend_auth": "The provider did not accept the gateway's credentials.",
    "quota": "The account at the provider has no quota left.",
    "timeout": "The provider sent nothing for too long.",
}
PASSED_ON = ("invalid_request", "context_length", "content_filter", "model_not_found", "body_too_large")
MESSAGE_LIMIT = 500
RETRY_LIMIT_S = 86_400.0
_KEY = re.compile(r"\b(?:sk|pk|key|AIza)[-_A-Za-z0-9*]{12,}")
_SECONDS = re.compile(r"(\d+(?:\.\d+)?)s")


def failure_of(error: BaseException, started: bool, secrets: tuple[str, ...] = ()) -> Failure:
    """`started`: a part of the answer has arrived."""
    if isinstance(error, ToolwireError):
        return error.failure
    status = error.status_code if isinstance(error, exceptions.ModelHTTPError) else None
    kind = next((kind for kinds, kind in KINDS if isinstance(error, kinds)), None)
    if kind is None or status in STATUS_KINDS:
        kind = STATUS_KINDS.get(status or 0, "invalid_request" if 400 <= (status or 0) < 500 else "backend")
    if isinstance(error, exceptions.ModelConnectionError) and kind != "timeout":
        if started:
            return Failure("backend_cut", "The provider's answer broke off before it was complete.")
        reached = error.phase not in ("connect", "pool")
        did = "closed the connection" if reached else "could not be reached"
        return Failure(kind, f"The provider {did}.")
    in_stream = started or bool(getattr(error, "in_stream", False))
    where = "while streaming" if in_stream else f"HTTP {status}" if status is not None else "no answer"
    if kind in OWN_WORDS:
        return Failure(kind, f"{OWN_WORDS[kind][:-1]} ({where}).", retry_after_s=_retry_after(error))
    words = _words(error)
    if not words:
        did = "refused the request" if kind in PASSED_ON else "failed"
        return Failure(kind, f"The provider {did} ({where}).")
    message = words if kind in PASSED_ON else f"Provider ({where}): {words}"
    return Failure(kind, presentable(message, secrets), retry_after_s=_retry_after(error))


def presentable(text: str, secrets: tuple[str, ...]) -> str:
    """One short line of valid text without secrets."""
    text = " ".join(scrub(text[: MESSAGE_LIMIT * 4]).split())
    for secret in filter(None, secrets):
        text = text.replace(secret, "…")
    text = _KEY.sub("…", text)
    return text if len(text) <= MESSAGE_LIMIT else text[: MESSAGE_LIMIT - 1] + "…"


def _words(error: BaseException) -> str:
    """The provider's message, or that of the library's own error, which is better than none."""
    body = getattr(error, "body", None)
    for place in (body.get("error") if isinstance(body, Mapping) else None, body):
        if isinstance(place, Mapping) and isinstance(place.get("message"), str):
            return str(place["message"])
        if isinstance(place, str):
            return place
    return str(getattr(error, "message", "")) if isinstance(error, exceptions.UserError) else ""


def _retry_after(error: BaseException) -> float | None:
    """Seconds: from the header, or from the details of a Google error."""
    seconds = getattr(error, "retry_after", None)
    if seconds is None:
        found = next((_SECONDS.fullmatch(delay) for delay in _delays(getattr(error, "body", None))), None)
        seconds = float(found[1]) if found else None
    return None if seconds is None else min(max(0.0, float(seconds)), RETRY_LIMIT_S)


def _delays(body: Any) -> Iterator[str]:
    error = body.get("error") if isinstance(body, Mapping) else None
    details = error.get("details") if isinstance(error, Mapping) else None
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, Mapping) and isinstance(detail.get("retryDelay"), str):
            yield detail["retryDelay"]

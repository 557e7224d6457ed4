"""What an agent's error means → one kind of `errors.KINDS`. The first row that fits holds. Pure."""

from __future__ import annotations

import re
from typing import Any

from toolwire.events import Failure

AUTH_REQUIRED = -32000
MESSAGE_LIMIT = 400

WORD_KINDS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), kind)
    for pattern, kind in (
        (r"insufficient.quota|quota|usage limit|credit balance|billing", "quota"),
        (r"rate.?limit|too many requests|\b429\b|resource.?exhausted", "rate_limit"),
        (r"context.?(?:window|length)|prompt is too long|maximum context", "context_length"),
        (r"\b401\b|\b403\b|unauthori[sz]ed|authenticat|api.?key|not logged in|log ?in\b|credential", "backend_auth"),
        (r"model.{0,60}(?:not found|does not exist|unknown|not supported)|unknown model|ProviderModelNotFound", "model_not_found"),
        (r"overloaded|\b503\b|\b529\b|at capacity", "overloaded"),
        (r"content.?filter|safety|blocked", "content_filter"),
        (r"timed? ?out|timeout", "timeout"),
        (r"econnrefused|enotfound|connection (?:refused|failed|error)|unable to connect|cannot connect|fetch failed|dns", "backend_unavailable"),
    )
)
OWN_WORDS: dict[str, str] = {
    "backend_auth": "{title} is not logged in, or its key was not accepted. Log in with: {log_in}.",
    "backend_unavailable": "{title} can not reach its model.",
}
_URL = re.compile(r"https?://[^\s,)\"']+")


def kind_of(code: int, words: str) -> str:
    if code == AUTH_REQUIRED:
        return "backend_auth"
    return next((kind for pattern, kind in WORD_KINDS if pattern.search(words)), "backend")


def words_of(message: str, data: Any) -> str:
    """All that an error says, as one line."""
    told = [message, *_texts(data)]
    return " ".join(" ".join(dict.fromkeys(filter(None, told))).split())


def _texts(data: Any, depth: int = 0) -> list[str]:
    if isinstance(data, str):
        return [data]
    if depth > 3:
        return []
    if isinstance(data, dict):
        wanted = [data[key] for key in ("name", "message", "details", "error", "data", "errorKind") if key in data]
        return [text for value in wanted for text in _texts(value, depth + 1)]
    return []


def failure_of(code: int, message: str, data: Any, title: str, log_in: str) -> Failure:
    """`message` and `data` are those of the JSON-RPC error, without secrets."""
    words = words_of(message, data)
    kind = kind_of(code, words)
    said = _URL.sub("(address)", words).removeprefix("Internal error: ")[:MESSAGE_LIMIT]
    own = OWN_WORDS.get(kind, "").format(title=title, log_in=log_in or "its own command")
    return Failure(kind, f"{own} It said: {said}" if own and said else f"{title} failed: {said}" if said else own or f"{title} failed.")

"""One failure taxonomy: every failure has a kind, and the kind decides HTTP status, OpenAI error type and code.

Anything that can go wrong is raised as `ToolwireError` before the first byte of an answer, or travels as `events.Failure` after it; both name a
kind of `KINDS`. The message speaks to the person at the client and never holds a secret or a traceback. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from toolwire.core.events import Failure


@dataclass(frozen=True, slots=True)
class Kind:
    """How a kind of failure shows on the wire. `response_code` is the code of Responses' `response.failed`, an enum of OpenAI's."""

    status: int
    type: str
    code: str | None
    response_code: str = "server_error"


KINDS: dict[str, Kind] = {
    # the request
    "invalid_request": Kind(400, "invalid_request_error", None, "invalid_prompt"),
    "invalid_json": Kind(400, "invalid_request_error", "invalid_json", "invalid_prompt"),
    "invalid_value": Kind(400, "invalid_request_error", "invalid_value", "invalid_prompt"),
    "invalid_type": Kind(400, "invalid_request_error", "invalid_type", "invalid_prompt"),
    "missing": Kind(400, "invalid_request_error", "missing_required_parameter", "invalid_prompt"),
    "unsupported": Kind(400, "invalid_request_error", "unsupported_parameter", "invalid_prompt"),
    "unsupported_value": Kind(400, "invalid_request_error", "unsupported_value", "invalid_prompt"),
    "context_length": Kind(400, "invalid_request_error", "context_length_exceeded", "invalid_prompt"),
    "content_filter": Kind(400, "invalid_request_error", "content_filter", "invalid_prompt"),
    "previous_response": Kind(400, "invalid_request_error", "previous_response_not_found", "invalid_prompt"),
    "body_too_large": Kind(413, "invalid_request_error", "request_too_large", "invalid_prompt"),
    "content_type": Kind(415, "invalid_request_error", "unsupported_media_type", "invalid_prompt"),
    # the caller
    "authentication": Kind(401, "invalid_request_error", "invalid_api_key"),
    "permission": Kind(403, "invalid_request_error", "permission_denied"),
    "forbidden_origin": Kind(403, "invalid_request_error", "forbidden_origin"),
    "forbidden_host": Kind(403, "invalid_request_error", "forbidden_host"),
    # what was asked for
    "not_found": Kind(404, "invalid_request_error", "not_found"),
    "unknown_url": Kind(404, "invalid_request_error", "unknown_url"),
    "model_not_found": Kind(404, "invalid_request_error", "model_not_found", "invalid_prompt"),
    "method": Kind(405, "invalid_request_error", "method_not_supported"),
    "conflict": Kind(409, "invalid_request_error", "conflict"),
    # limits
    "rate_limit": Kind(429, "rate_limit_error", "rate_limit_exceeded", "rate_limit_exceeded"),
    "requests_limit": Kind(429, "requests", "rate_limit_exceeded", "rate_limit_exceeded"),
    "tokens_limit": Kind(429, "tokens", "rate_limit_exceeded", "rate_limit_exceeded"),
    "quota": Kind(429, "insufficient_quota", "insufficient_quota", "rate_limit_exceeded"),
    # the model and what stands behind it
    "no_tool_call": Kind(502, "server_error", "tool_call_not_produced"),
    "invalid_tool_call": Kind(502, "server_error", "invalid_tool_call"),
    "tools_unsupported": Kind(502, "server_error", "tools_unsupported"),
    "backend": Kind(502, "server_error", "backend_error"),
    "backend_cut": Kind(502, "server_error", "stream_interrupted"),
    "backend_auth": Kind(502, "server_error", "backend_authentication"),
    "backend_unavailable": Kind(503, "server_error", "backend_unavailable"),
    "overloaded": Kind(503, "server_error", "overloaded"),
    "timeout": Kind(504, "server_error", "timeout"),
    "server": Kind(500, "server_error", None),
}


class ToolwireError(Exception):
    """A failure with a kind. `param` names the request field by path, e.g. `messages[3].tool_call_id`."""

    def __init__(self, kind: str, message: str, *, param: str | None = None, code: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.failure = Failure(kind, message, param, code, retry_after_s)

    @classmethod
    def of(cls, failure: Failure) -> ToolwireError:
        return cls(failure.kind, failure.message, param=failure.param, code=failure.code, retry_after_s=failure.retry_after_s)


def status_of(failure: Failure) -> int:
    return KINDS[failure.kind].status


def error_object(failure: Failure) -> dict[str, Any]:
    """OpenAI's error object, as it stands in an HTTP error body and in a chat stream that failed after its first byte."""
    kind = KINDS[failure.kind]
    return {"error": {"message": failure.message, "type": kind.type, "param": failure.param, "code": failure.code or kind.code}}


def response_error(failure: Failure) -> dict[str, str]:
    """The `error` of a Responses object with status `failed`."""
    return {"code": KINDS[failure.kind].response_code, "message": failure.message}

"""Every kind of failure, with its HTTP status, OpenAI error type and code.

Before the first byte of a response, a failure is raised as a `ToolwireError`. After that byte, it becomes the
event `events.Failure`. The message is for the person at the client and never contains a secret or a
traceback.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from toolwire.core.events import Failure
from toolwire.core.turn import Api


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of failure. `response_code` is OpenAI's error code in a `response.failed` event."""

    status: int
    type: str
    code: str | None
    response_code: str = "server_error"


def _prompt(status: int, code: str | None) -> Kind:
    return Kind(status, "invalid_request_error", code, "invalid_prompt")


def _request(status: int, code: str) -> Kind:
    return Kind(status, "invalid_request_error", code)


def _server(status: int, code: str | None) -> Kind:
    return Kind(status, "server_error", code)


KINDS: dict[str, Kind] = {
    # the request
    "invalid_request": _prompt(400, None),
    "invalid_json": _prompt(400, "invalid_json"),
    "invalid_value": _prompt(400, "invalid_value"),
    "invalid_type": _prompt(400, "invalid_type"),
    "missing": _prompt(400, "missing_required_parameter"),
    "unsupported": _prompt(400, "unsupported_parameter"),
    "unsupported_value": _prompt(400, "unsupported_value"),
    "context_length": _prompt(400, "context_length_exceeded"),
    "content_filter": _prompt(400, "content_filter"),
    "previous_response": _prompt(400, "previous_response_not_found"),
    "body_too_large": _prompt(413, "request_too_large"),
    "content_type": _prompt(415, "unsupported_media_type"),
    # the caller
    "authentication": _request(401, "invalid_api_key"),
    "permission": _request(403, "permission_denied"),
    "forbidden_origin": _request(403, "forbidden_origin"),
    "forbidden_host": _request(403, "forbidden_host"),
    # models, URLs and stored objects that the request names
    "not_found": _request(404, "not_found"),
    "unknown_url": _request(404, "unknown_url"),
    "model_not_found": _prompt(404, "model_not_found"),
    "method": _request(405, "method_not_supported"),
    "conflict": _request(409, "conflict"),
    "gone": _request(410, "gone"),
    # limits
    "rate_limit": Kind(429, "rate_limit_error", "rate_limit_exceeded", "rate_limit_exceeded"),
    "requests_limit": Kind(429, "requests", "rate_limit_exceeded", "rate_limit_exceeded"),
    "tokens_limit": Kind(429, "tokens", "rate_limit_exceeded", "rate_limit_exceeded"),
    "quota": Kind(429, "insufficient_quota", "insufficient_quota", "rate_limit_exceeded"),
    # the model, its server, and other servers
    "external_connector": Kind(424, "external_connector_error", "http_error"),
    "no_tool_call": _server(502, "tool_call_not_produced"),
    "invalid_tool_call": _server(502, "invalid_tool_call"),
    "tools_unsupported": _server(502, "tools_unsupported"),
    "backend": _server(502, "backend_error"),
    "backend_cut": _server(502, "stream_interrupted"),
    "backend_auth": _server(502, "backend_authentication"),
    "backend_unavailable": _server(503, "backend_unavailable"),
    "overloaded": _server(503, "overloaded"),
    "timeout": _server(504, "timeout"),
    "server": _server(500, None),
}


FALLS_BACK = frozenset(name for name, kind in KINDS.items() if kind.status == 429 or kind.status >= 500) - {
    "no_tool_call",
    "invalid_tool_call",
    "tools_unsupported",
}
"""Kinds of failures of a model or its server. After such a failure, a fallback model may answer."""


class ToolwireError(Exception):
    """An error of one of the kinds in `KINDS`.

    `param` is the path of the request field at fault, e.g. `messages[3].tool_call_id`.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.failure = Failure(kind, message, param, code, retry_after_s)

    @classmethod
    def of(cls, failure: Failure) -> ToolwireError:
        error = cls(failure.kind, failure.message)
        error.failure = failure
        return error


def unavailable(message: str) -> ToolwireError:
    """Creates the error for a backend that cannot serve requests at the moment."""
    return ToolwireError("backend_unavailable", message)


def status_of(failure: Failure, api: Api = "chat") -> int:
    """Returns the HTTP status of a failure. Anthropic's API has 529 for an overloaded server."""
    return 529 if api == "messages" and failure.kind == "overloaded" else KINDS[failure.kind].status


def error_object(failure: Failure) -> dict[str, Any]:
    """Returns OpenAI's error object.

    This object is the body of an HTTP error, or the last chunk of a chat stream that fails after its first
    byte.
    """
    kind = KINDS[failure.kind]
    return {
        "error": {
            "message": failure.message,
            "type": kind.type,
            "param": failure.param,
            "code": failure.code or kind.code,
        }
    }


def response_error(failure: Failure) -> dict[str, str]:
    """Returns the `error` object of a Responses object with status `failed`."""
    return {"code": KINDS[failure.kind].response_code, "message": failure.message}

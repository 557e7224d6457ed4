"""Converts the events and errors of the library pydantic-ai to Toolwire's events.

- Only one call is open at a time, and calls are numbered from 0. `assemble.CallAssembler` orders calls that
  an API sends all at once or interleaved. Text and thoughts that arrive while a call is open are sent after
  the call.
- A stream that ends without a finish reason was cut off. This is a failure, never a `stop`.
- The client gets the provider's error message if it is about the request, never if it is about credentials.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_ai import exceptions
from pydantic_ai.messages import (
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)
from pydantic_ai.models import StreamedResponse

from toolwire.backends.hosted.thinking import CallMemory, Signed, SignedThought
from toolwire.core.assemble import EVERY_NAME, CallAssembler, Fragment
from toolwire.core.errors import ToolwireError
from toolwire.core.events import Event, Failure, Finish, FinishReason, Text, Thought, Usage
from toolwire.emulate.native import NativeArguments
from toolwire.wire.sse import scrub

FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content_filter",
    "tool_call": "tool_calls",
}
REASONING_DETAILS = ("reasoning_tokens", "thoughts_tokens", "thinking_tokens")
CUT = Failure("backend_cut", "The provider's answer broke off before it was complete.")
FAILED: dict[str, str] = {
    "MALFORMED_FUNCTION_CALL": "The model wrote a tool call that the provider could not read.",
    "UNEXPECTED_TOOL_CALL": "The model called a tool that the request does not declare.",
}


class HostedReader:
    """Reads one answer of a provider: call `feed` with pydantic-ai's events, then `finish`."""

    def __init__(self, memory: CallMemory, summaries: bool = False) -> None:
        self._memory = memory
        self._summaries = summaries
        self._calls = CallAssembler(names=EVERY_NAME, repair=NativeArguments)
        self._held: list[Event] = []
        """Events that arrived while a call was open. They are sent after the call."""
        self._thoughts: list[SignedThought] = []
        """The signed thoughts since the last call."""
        self._text_since_call = False

    def feed(self, event: ModelResponseStreamEvent, response: StreamedResponse) -> list[Event]:
        if isinstance(event, PartDeltaEvent):
            delta = event.delta
            if isinstance(delta, TextPartDelta):
                return self._say(Text(scrub(delta.content_delta)))
            if isinstance(delta, ThinkingPartDelta):
                return self._say(Thought(scrub(delta.content_delta or ""), self._summaries))
            if isinstance(delta, ToolCallPartDelta):
                return self._calls.add(
                    Fragment(event.index, arguments=delta.args_delta, name=delta.tool_name_delta, rough=True)
                )
        elif isinstance(event, PartStartEvent):
            return self._start(event.index, event.part)
        elif isinstance(event, PartEndEvent):
            return self._end(event.index, event.part, response)
        return []

    def _start(self, index: int, part: Any) -> list[Event]:
        if isinstance(part, TextPart):
            return self._say(Text(scrub(part.content)))
        if isinstance(part, ThinkingPart):
            return self._say(Thought(scrub(part.content), self._summaries))
        if isinstance(part, ToolCallPart):
            return self._calls.add(
                Fragment(index, part.tool_call_id, scrub(part.tool_name), part.args, rough=True)
            )
        return []

    def _end(self, index: int, part: Any, response: StreamedResponse) -> list[Event]:
        if isinstance(part, ThinkingPart):
            if part.signature:
                self._thoughts.append(SignedThought(part, self._text_since_call))
        elif isinstance(part, ToolCallPart):
            if self._thoughts or part.provider_details:
                thoughts, details = tuple(self._thoughts), part.provider_details
                self._memory.keep(
                    part.tool_call_id, Signed(part.tool_name, thoughts, details, part.provider_name)
                )
            self._thoughts, self._text_since_call = [], False
            self._calls.reason = _finish_reason(response) or ""
            ended = self._calls.add(
                Fragment(index, part.tool_call_id, arguments=part.args, complete=True, rough=True)
            )
            return ended + self._release()
        return []

    def _say(self, event: Text | Thought) -> list[Event]:
        if not event.text:
            return []
        self._text_since_call = self._text_since_call or isinstance(event, Text)
        if not self._calls.open:
            return [event]
        self._held.append(event)
        return []

    def _release(self) -> list[Event]:
        if self._calls.open:
            return []
        out, self._held = self._held, []
        return out

    def finish(self, response: StreamedResponse) -> list[Event]:
        details = response.provider_details or {}
        reason = _finish_reason(response)
        if reason is None:
            return [*usage(response), _failed(response.finish_reason, details)]
        out = self._calls.finish(reason)
        out += self._held
        if reason == "content_filter" and "block_reason" in details:
            why = scrub(str(details["block_reason"]))[:80]
            return [*usage(response), Failure(reason, f"The provider refused the request ({why}).")]
        if self._calls.truncated and reason in ("stop", "tool_calls"):
            reason = "length"
        elif reason == "tool_calls" and not self._calls.calls:
            reason = "stop"
        return [*out, *usage(response), Finish(reason)]


def _finish_reason(response: StreamedResponse) -> FinishReason | None:
    """Returns the reason why the answer ended; None if the answer failed or has not ended."""
    if response.finish_reason is not None:
        return FINISH_REASONS.get(response.finish_reason)
    return "stop" if (response.provider_details or {}).get("finish_reason") else None


def _failed(reason: str | None, details: dict[str, Any]) -> Failure:
    if reason is None:
        return CUT
    message = FAILED.get(str(details.get("finish_reason")), "The provider ended its answer with an error.")
    return Failure("backend", message)


def usage(response: StreamedResponse) -> list[Event]:
    counted = response.usage
    if not counted.input_tokens and not counted.output_tokens:
        return []
    reasoning = counted.output_reasoning_tokens or next(
        (counted.details[key] for key in REASONING_DETAILS if counted.details.get(key)), 0
    )
    return [Usage(counted.input_tokens, counted.output_tokens, counted.cache_read_tokens, reasoning)]


# --- errors ---

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
"""Kinds of failure by class of pydantic-ai's error, subclasses first. `STATUS_KINDS` takes precedence."""

STATUS_KINDS: dict[int, str] = {408: "timeout", 413: "body_too_large", 504: "timeout"}

EXPLANATIONS: dict[str, str] = {
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
    """Returns the failure for an error of pydantic-ai. `started`: whether some of the answer has arrived."""
    if isinstance(error, ToolwireError):
        return error.failure
    status = error.status_code if isinstance(error, exceptions.ModelHTTPError) else None
    kind = next((kind for kinds, kind in KINDS if isinstance(error, kinds)), None)
    if kind is None or status in STATUS_KINDS:
        kind = STATUS_KINDS.get(status or 0, "invalid_request" if 400 <= (status or 0) < 500 else "backend")
    if isinstance(error, exceptions.ModelConnectionError) and kind != "timeout":
        if started:
            return CUT
        reached = error.phase not in ("connect", "pool")
        did = "closed the connection" if reached else "could not be reached"
        return Failure(kind, f"The provider {did}.")
    in_stream = started or bool(getattr(error, "in_stream", False))
    where = "while streaming" if in_stream else f"HTTP {status}" if status is not None else "no answer"
    return worded(kind, _words(error), where, secrets, _retry_after(error))


def worded(
    kind: str, words: str, where: str, secrets: tuple[str, ...], retry_after_s: float | None
) -> Failure:
    """Returns the failure, with the provider's message if the client may see it."""
    if kind in EXPLANATIONS:
        message = f"{EXPLANATIONS[kind][:-1]} ({where})."
    elif not words:
        did = "refused the request" if kind in PASSED_ON else "failed"
        message = f"The provider {did} ({where})."
    else:
        message = presentable(words if kind in PASSED_ON else f"Provider ({where}): {words}", secrets)
    return Failure(kind, message, retry_after_s=retry_after_s)


def presentable(text: str, secrets: tuple[str, ...]) -> str:
    """Returns the text as one short line of valid Unicode, without secrets."""
    text = " ".join(scrub(text[: MESSAGE_LIMIT * 4]).split())
    for secret in filter(None, secrets):
        text = text.replace(secret, "…")
    text = _KEY.sub("…", text)
    return text if len(text) <= MESSAGE_LIMIT else text[: MESSAGE_LIMIT - 1] + "…"


def _words(error: BaseException) -> str:
    """Returns the provider's message, or pydantic-ai's message about a wrong request, or ""."""
    body = getattr(error, "body", None)
    for place in (body.get("error") if isinstance(body, Mapping) else None, body):
        if isinstance(place, Mapping) and isinstance(place.get("message"), str):
            return str(place["message"])
        if isinstance(place, str):
            return place
    return str(getattr(error, "message", "")) if isinstance(error, exceptions.UserError) else ""


def _retry_after(error: BaseException) -> float | None:
    """Returns the seconds to wait, from the header `retry-after` or from the details of a Google error."""
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

"""The library's events → events.

Rules:
  - One call is open at a time, calls are numbered from 0; a call's arguments go on as they come. Calls that an API sends at once or mixed are put in
    order by `assemble.CallAssembler`. What is said while a call is open comes out behind it.
  - A call is over when the library starts its next part or ends. A call without an id gets one of the library's own: what is signed for it is
    remembered by it.
  - The end needs a reason. A stream that ends without one has been cut, which is a failure, never `stop`.
"""

from __future__ import annotations

from typing import Any

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
from toolwire.core.events import Event, Failure, Finish, FinishReason, Text, Thought, Usage
from toolwire.emulate.native import NativeArguments
from toolwire.wire.sse import scrub

FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content_filter",
    "tool_call": "tool_calls",
}
CUT = Failure("backend_cut", "The provider's answer broke off before it was complete.")
FAILED: dict[str, str] = {
    "MALFORMED_FUNCTION_CALL": "The model wrote a tool call that the provider could not read.",
    "UNEXPECTED_TOOL_CALL": "The model called a tool that the request does not declare.",
}


class HostedReader:
    """Reads one answer: `feed` its events, then `finish`."""

    def __init__(self, memory: CallMemory, summaries: bool = False) -> None:
        self._memory = memory
        self._summaries = summaries
        self._calls = CallAssembler(names=EVERY_NAME, repair=NativeArguments)
        self._behind: list[Event] = []  # said while a call was open
        self._thoughts: list[SignedThought] = []  # since the last call
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
                signed = Signed(
                    part.tool_name, tuple(self._thoughts), part.provider_details, part.provider_name
                )
                self._memory.keep(part.tool_call_id, signed)
            self._thoughts, self._text_since_call = [], False
            self._calls.reason = _finish_reason(response) or ""
            ended = self._calls.add(
                Fragment(index, part.tool_call_id, arguments=part.args, complete=True, rough=True)
            )
            return ended + self._put_behind()
        return []

    def _say(self, event: Text | Thought) -> list[Event]:
        if not event.text:
            return []
        self._text_since_call = self._text_since_call or isinstance(event, Text)
        if not self._calls.open:
            return [event]
        self._behind.append(event)
        return self._put_behind()

    def _put_behind(self) -> list[Event]:
        if self._calls.open:
            return []
        out, self._behind = self._behind, []
        return out

    def finish(self, response: StreamedResponse) -> list[Event]:
        """The stream ended by itself."""
        details = response.provider_details or {}
        reason = _finish_reason(response)
        if reason is None:
            return [*usage(response), _failed(response.finish_reason, details)]
        out = self._calls.finish(reason)
        out += self._behind
        if reason == "content_filter" and "block_reason" in details:
            return [
                *usage(response),
                Failure(
                    "content_filter",
                    f"The provider refused the request ({scrub(str(details['block_reason']))[:80]}).",
                ),
            ]
        if self._calls.truncated and reason in ("stop", "tool_calls"):
            reason = "length"
        elif reason == "tool_calls" and not self._calls.calls:
            reason = "stop"
        return [*out, *usage(response), Finish(reason)]


def _finish_reason(response: StreamedResponse) -> FinishReason | None:
    """None: it failed, or there is none yet."""
    if response.finish_reason is not None:
        return FINISH_REASONS.get(response.finish_reason)
    return "stop" if (response.provider_details or {}).get("finish_reason") else None


def _failed(reason: str | None, details: dict[str, Any]) -> Failure:
    if reason is None:
        return CUT
    return Failure(
        "backend",
        FAILED.get(str(details.get("finish_reason")), "The provider ended its answer with an error."),
    )


def usage(response: StreamedResponse) -> list[Event]:
    """What was counted so far, where anything was."""
    counted = response.usage
    if not counted.input_tokens and not counted.output_tokens:
        return []
    reasoning = counted.output_reasoning_tokens or next(
        (counted.details[key] for key in REASONING_DETAILS if counted.details.get(key)), 0
    )
    return [Usage(counted.input_tokens, counted.output_tokens, counted.cache_read_tokens, reasoning)]


REASONING_DETAILS = ("reasoning_tokens", "thoughts_tokens", "thinking_tokens")

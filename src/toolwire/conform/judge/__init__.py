"""The judge: checks whether a stream or body follows OpenAI's or Anthropic's format.

The judge is independent of Toolwire's encoders and imports only the standard library. It reads an answer
frame by frame. It accepts what the API's own server may send in answer to the client's request, and reports
every deviation with its position. `toolwire conform` and the tests use the judge.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Unpack

from toolwire.conform.judge.chat import ChatJudge, check_completion
from toolwire.conform.judge.fold import DONE, Frame, fold, frames_of, split_sse
from toolwire.conform.judge.messages import ERROR as ANTHROPIC_ERROR
from toolwire.conform.judge.messages import ERROR_BODY as ANTHROPIC_ERROR_BODY
from toolwire.conform.judge.messages import MessagesJudge, check_message
from toolwire.conform.judge.responses import ResponsesJudge, check_response
from toolwire.conform.judge.shape import ERROR, ERROR_BODY, Findings, JudgeOptions, Options, Problem
from toolwire.core.turn import Api

__all__ = [
    "DONE",
    "Frame",
    "JudgeOptions",
    "Options",
    "OrderJudge",
    "Problem",
    "fold",
    "frames_of",
    "judge_body",
    "judge_error",
    "judge_sse",
    "split_sse",
]


_JUDGES: dict[Api, Callable[[Options, Findings], ChatJudge | ResponsesJudge | MessagesJudge]] = {
    "chat": ChatJudge,
    "responses": ResponsesJudge,
    "messages": MessagesJudge,
}
_BODIES: dict[Api, Callable[[Findings, Options, dict[str, Any]], None]] = {
    "chat": check_completion,
    "responses": check_response,
    "messages": check_message,
}


class OrderJudge:
    """Judges one stream of any API, frame by frame. The options are those of `JudgeOptions`."""

    def __init__(self, api: Api, **options: Unpack[JudgeOptions]) -> None:
        self._api = api
        self._findings = Findings()
        self._judge = _JUDGES[api](Options(**options), self._findings)

    def feed(self, frame: dict[str, Any] | str, event: str | None = None) -> list[Problem]:
        """Returns the problems of the next frame. `frame`: an object, its JSON text, or `[DONE]`.

        `event`: the name on the SSE `event:` line; None: the name is not checked.
        """
        self._findings.position += 1
        try:
            self._frame(frame, event)
        except RecursionError:
            self._findings.add("not_json", "a frame is nested too deeply to be read")
        return self._findings.take()

    def _frame(self, frame: dict[str, Any] | str, event: str | None) -> None:
        if frame == DONE:
            if event is not None:
                self._findings.add("event_name", f"[DONE] has the event name {event!r}")
            self._judge.done()
            return
        if isinstance(frame, str):
            try:
                frame = json.loads(frame)
            except ValueError as error:
                self._findings.add("not_json", f"a frame is not JSON: {error}")
                return
        if not isinstance(frame, dict):
            self._findings.add("not_json", f"a frame is not an object: {str(frame)[:80]}")
            return
        if event is not None and (self._api == "chat" or event != frame.get("type")):
            self._findings.add(
                "event_name", f"the event is named {event!r}, its type is {frame.get('type')!r}"
            )
        self._judge.feed(frame)

    def finish(self) -> list[Problem]:
        """Returns the problems that can only be seen at the end of the stream. Call it once."""
        self._findings.position += 1
        self._judge.end()
        return self._findings.take()


def judge_sse(
    raw: bytes | str, api: Api, *, whole_standard: bool = False, **options: Unpack[JudgeOptions]
) -> list[Problem]:
    """Checks a whole stream, including its SSE syntax. For `whole_standard` see `split_sse`."""
    judge = OrderJudge(api, **options)
    frames, problems = split_sse(raw, whole_standard=whole_standard)
    for position, frame in enumerate(frames):
        if api != "chat" and frame.event is None and frame.data != DONE:
            problems.append(Problem("event_name", "an event has no name", position))
        problems += judge.feed(frame.data, frame.event)
    return problems + judge.finish()


def judge_body(body: dict[str, Any], api: Api, **options: Unpack[JudgeOptions]) -> list[Problem]:
    """Checks the body of an answer that was not streamed. Options about streams have no effect."""
    findings = Findings()
    _BODIES[api](findings, Options(**options), body)
    return findings.take()


def judge_error(status: int, body: dict[str, Any], api: Api = "chat") -> list[Problem]:
    """Checks an HTTP error: its status, and the error object of OpenAI or, for Messages, of Anthropic."""
    findings = Findings()
    findings.check(400 <= status <= 599, "status", f"an error object came with HTTP status {status}")
    outer, inner = (ANTHROPIC_ERROR_BODY, ANTHROPIC_ERROR) if api == "messages" else (ERROR_BODY, ERROR)
    if findings.fits(outer, body):
        findings.fits(inner, body["error"])
    return findings.take()

"""The judge of wire streams: independent of the encoders, standard library only.

It is told what a client asked for and looks at what came back, frame by frame. It accepts what OpenAI's own API may send and nothing else, and
says of every departure what it is and where. `toolwire conform` and the tests judge by it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from toolwire.conform.judge.chat import ChatJudge, check_completion
from toolwire.conform.judge.fold import DONE, Frame, fold, frames_of, same, split_sse
from toolwire.conform.judge.responses import ResponsesJudge, check_response
from toolwire.conform.judge.shape import ERROR, ERROR_BODY, Findings, Options, Problem
from toolwire.core.turn import Api

__all__ = [
    "DONE",
    "Frame",
    "OrderJudge",
    "Problem",
    "fold",
    "frames_of",
    "judge_body",
    "judge_error",
    "judge_sse",
    "same",
    "split_sse",
]


class OrderJudge:
    """Judges one stream of either API, frame by frame. `tools`: the names that the client declared; None: any name is right.

    `may_stop`: where there are calls `finish_reason` may be `stop`, as OpenAI sends it when the request names the tool."""

    def __init__(
        self,
        api: Api,
        *,
        include_usage: bool = False,
        legacy: bool = False,
        tools: Sequence[str] | None = None,
        allow_done_on_responses: bool = False,
        may_stop: bool = False,
    ) -> None:
        options = Options(include_usage, legacy, tools, allow_done_on_responses, may_stop)
        self._api = api
        self._findings = Findings()
        self._judge = (
            ChatJudge(options, self._findings) if api == "chat" else ResponsesJudge(options, self._findings)
        )

    def feed(self, frame: dict[str, Any] | str, event: str | None = None) -> list[Problem]:
        """The problems of the next frame: an object, its JSON text, or `[DONE]`. `event` is the name on the SSE `event:` line; judged by `judge_sse`
        in any case, and here when it is given."""
        self._findings.position += 1
        try:
            self._look(frame, event)
        except RecursionError:
            self._findings.add("not_json", "a frame is nested too deeply to be read")
        return self._findings.take()

    def _look(self, frame: dict[str, Any] | str, event: str | None) -> None:
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
            self._findings.add("not_json", f"a frame is no object: {str(frame)[:80]}")
            return
        if event is not None and (self._api == "chat" or event != frame.get("type")):
            self._findings.add(
                "event_name", f"the event is named {event!r}, its type is {frame.get('type')!r}"
            )
        self._judge.feed(frame)

    def finish(self) -> list[Problem]:
        """The problems that only the end of the stream shows. To be called once."""
        self._findings.position += 1
        self._judge.end()
        return self._findings.take()


def judge_sse(
    raw: bytes | str,
    api: Api,
    *,
    include_usage: bool = False,
    legacy: bool = False,
    tools: Sequence[str] | None = None,
    allow_done_on_responses: bool = False,
    may_stop: bool = False,
    whole_standard: bool = False,
) -> list[Problem]:
    """Judges a whole stream as it was sent, its SSE syntax included; `whole_standard` as in `split_sse`."""
    judge = OrderJudge(
        api,
        include_usage=include_usage,
        legacy=legacy,
        tools=tools,
        allow_done_on_responses=allow_done_on_responses,
        may_stop=may_stop,
    )
    frames, problems = split_sse(raw, whole_standard=whole_standard)
    for position, frame in enumerate(frames):
        if api == "responses" and frame.event is None and frame.data != DONE:
            problems.append(Problem("event_name", "an event has no name", position))
        problems += judge.feed(frame.data, frame.event)
    return problems + judge.finish()


def judge_body(
    body: dict[str, Any],
    api: Api,
    *,
    include_usage: bool = False,
    legacy: bool = False,
    tools: Sequence[str] | None = None,
    allow_done_on_responses: bool = False,
    may_stop: bool = False,
) -> list[Problem]:
    """Judges an answer that was not streamed. Takes the same options as a stream; those about the stream change nothing."""
    findings = Findings()
    check = check_completion if api == "chat" else check_response
    check(findings, Options(include_usage, legacy, tools, allow_done_on_responses, may_stop), body)
    return findings.take()


def judge_error(status: int, body: dict[str, Any]) -> list[Problem]:
    """Judges an HTTP error: the status and OpenAI's error object."""
    findings = Findings()
    findings.check(400 <= status <= 599, "status", f"an error object came with HTTP status {status}")
    if findings.fits(ERROR_BODY, body):
        findings.fits(ERROR, body["error"])
    return findings.take()

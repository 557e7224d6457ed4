"""What the wire judges say of an exchange, each departure under one topic, so that every topic belongs to one check. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import lru_cache
from typing import Any

from toolwire.conform.asking import TOOL_NAMES
from toolwire.conform.exchange import ProbeExchange
from toolwire.conform.judge import OrderJudge, Problem, judge_body, judge_sse, split_sse
from toolwire.conform.questions import QUESTIONS
from toolwire.conform.repair import NAMELESS, Dropped, mend_body, mend_stream
from toolwire.core.turn import Api

SHAPE = ("missing_key", "wrong_value", "unknown_key")
AS_SENT = (*SHAPE, "sse_syntax", "encoding", "unterminated_event", "event_name", "not_json")
"""Codes that are looked for in the answer as it came; all others in the mended one."""

OF_CALLS = ("call_shape", "call_id")
"""In a stream, one delta of a call that is not understood makes the next look like an opener: these are told by mending."""

SUBJECTS = {
    **dict.fromkeys(("usage",), "usage_shape"),
    **dict.fromkeys(
        (
            "prompt_tokens_details",
            "completion_tokens_details",
            "input_tokens_details",
            "output_tokens_details",
        ),
        "usage_details",
    ),
    **dict.fromkeys(("error", "error body", "response.error"), "error_shape"),
    **dict.fromkeys(("call opener", "call fragment", "call.function", "call.custom", "call"), "call_shape"),
}
"""Misfits by the object they are found in; the rest is `shape`."""
_SUBJECT = re.compile(
    r"(?P<name>.+?)(?: lacks '(?P<lacks>\w+)'| has the unknown key |\.(?P<key>\w+) must be | must be )"
)
UNREADABLE = "unreadable"
MOST_FRAMES = 5000
MOST_PROBLEMS = 1000


def problems_of(exchange: ProbeExchange) -> tuple[tuple[str, Problem], ...]:
    """Every departure with its topic, in the order in which a reader meets them."""
    if not exchange.ok:
        return ()
    question = QUESTIONS.get(exchange.question)
    asked = exchange.request.asked
    tools = TOOL_NAMES if question is not None and question.tools else None
    options = asked.get("stream_options")
    usage = isinstance(options, dict) and options.get("include_usage") is True
    if exchange.streamed and exchange.raw.count(b"\n\n") > MOST_FRAMES:
        return ((UNREADABLE, Problem(UNREADABLE, f"the stream has more than {MOST_FRAMES:,} events")),)
    # an object names the tool, but for one of the kind `allowed_tools`, which is like `required`
    named = any(
        isinstance(choice, dict) and choice.get("type") != "allowed_tools"
        for choice in (asked.get("tool_choice"), asked.get("function_call"))
    )
    judge = _stream if exchange.streamed else _body
    return judge(exchange.raw, exchange.api, usage, exchange.legacy, tools, named)


@lru_cache(maxsize=16)
def _stream(
    raw: bytes, api: Api, usage: bool, legacy: bool, tools: tuple[str, ...] | None, named: bool
) -> tuple[tuple[str, Problem], ...]:
    options: dict[str, Any] = {
        "include_usage": usage,
        "legacy": legacy,
        "tools": tools,
        "allow_done_on_responses": True,
        "may_stop": named,
    }
    try:
        as_sent = judge_sse(raw, api, whole_standard=True, **options)
        as_sent = [problem for problem in as_sent if topic(problem) not in OF_CALLS]
        made = mend_stream(split_sse(raw)[0], api)
        judge = OrderJudge(api, **{**options, "tools": None if tools is None else (*tools, NAMELESS)})
        mended = [
            replace(problem, position=position)
            for frame, position in zip(made.frames, made.order, strict=True)
            for problem in judge.feed(frame.data, frame.event)
        ]
        mended += judge.finish()
    except Exception as error:  # a judge that an answer can break: the answer is what is wrong
        return ((UNREADABLE, Problem(UNREADABLE, f"the stream can not be read: {type(error).__name__}")),)
    return _sorted(as_sent, mended, made.problems, made.dropped)


@lru_cache(maxsize=16)
def _body(
    raw: bytes, api: Api, usage: bool, legacy: bool, tools: tuple[str, ...] | None, named: bool
) -> tuple[tuple[str, Problem], ...]:
    try:
        value = json.loads(raw)
        if not isinstance(value, dict):
            raise ValueError("no object")
        as_sent = judge_body(value, api, legacy=legacy, tools=tools, may_stop=named)
        mended, slips, dropped = mend_body(value, api)
        again = judge_body(mended, api, legacy=legacy, tools=tools, may_stop=named)
    except Exception as error:
        return ((UNREADABLE, Problem(UNREADABLE, f"the body can not be read: {type(error).__name__}")),)
    return _sorted(as_sent, again, slips, dropped)


def _sorted(
    as_sent: list[Problem], mended: list[Problem], slips: list[Problem], dropped: Dropped
) -> tuple[tuple[str, Problem], ...]:
    kept = [
        problem
        for problem in as_sent
        if problem.code in AS_SENT and (problem.position, _key(problem)) not in dropped
    ]
    seen = dict.fromkeys([*slips, *kept, *mended])
    return tuple(
        (topic(problem), problem)
        for problem in sorted(seen, key=lambda problem: problem.position)[:MOST_PROBLEMS]
    )


def _key(problem: Problem) -> str:
    """The key whose value is wrong, where it is one that says nothing: null or empty."""
    found = (
        _SUBJECT.match(problem.message)
        if problem.message.endswith((", not None", ", not []", ", not ''"))
        else None
    )
    return (found["key"] or "") if found is not None else ""


def topic(problem: Problem) -> str:
    """The code, but for misfits: those are told apart by what they are found in."""
    if problem.code == "unknown_key" or problem.code not in SHAPE:
        return problem.code
    found = _SUBJECT.match(problem.message)
    if found is None:
        return "shape"
    if found["name"] in ("call opener", "call") and "id" in (found["lacks"], found["key"]):
        return "call_id"
    if found["key"] == "arguments":
        return "invalid_arguments"
    inner = SUBJECTS.get(found["lacks"] or found["key"] or "") if found["name"] == "usage" else None
    return inner or SUBJECTS.get(found["name"], "shape")

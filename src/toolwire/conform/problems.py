"""The deviations that the judge finds in an exchange, each with a topic. No side effects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any

from toolwire.conform.exchange import ProbeExchange, mapping, mappings
from toolwire.conform.judge import Options, OrderJudge, Problem, judge_body, judge_sse, split_sse
from toolwire.conform.repair import NAMELESS, Dropped, repair_body, repair_stream
from toolwire.core.turn import Api

SHAPE = ("missing_key", "wrong_value", "unknown_key")
AS_SENT = (*SHAPE, "sse_syntax", "encoding", "unterminated_event", "event_name", "not_json")
"""Codes of problems that are looked for in the answer as it was sent.

Problems with other codes are looked for in the answer that `repair` has repaired.
"""

OF_CALLS = ("call_shape", "call_id")
"""Topics of problems that `repair` reports for a stream, so that the judge's own reports are left out.

After a malformed delta of a call, the judge would mistake the next delta for the start of a call.
"""

SUBJECTS = {
    "usage": "usage_shape",
    **dict.fromkeys(("prompt_tokens_details", "completion_tokens_details"), "usage_details"),
    **dict.fromkeys(("input_tokens_details", "output_tokens_details"), "usage_details"),
    **dict.fromkeys(("error", "error body", "error event", "response.error"), "error_shape"),
    "thinking": "thought_shape",
    **dict.fromkeys(("call opener", "call fragment", "call.function", "call.custom", "call"), "call_shape"),
}
"""The topic of a missing or wrong key, by its object. For other objects, the topic is `shape`."""
UNREADABLE = "unreadable"
MOST_FRAMES = 5000
MOST_PROBLEMS = 1000
Found = tuple[tuple[str, Problem], ...]


def problems_of(exchange: ProbeExchange) -> Found:
    """Returns the deviations with their topics, in the order of the frames, at most `MOST_PROBLEMS`."""
    if not exchange.ok:
        return ()
    asked = exchange.request.asked
    if exchange.streamed and exchange.raw.count(b"\n\n") > MOST_FRAMES:
        return _unreadable(f"the stream has more than {MOST_FRAMES:,} events")
    options = Options(
        include_usage=mapping(asked.get("stream_options")).get("include_usage") is True,
        legacy="functions" in asked,
        tools=_declared(asked, exchange.api),
        allow_done_on_responses=True,
        may_stop=any(_names_tool(asked.get(key)) for key in ("tool_choice", "function_call")),
    )
    judge = _stream if exchange.streamed else _body
    try:
        return judge(exchange.raw, exchange.api, options)
    except Exception as error:  # an answer that makes the judge fail is invalid itself
        form = "stream" if exchange.streamed else "body"
        return _unreadable(f"the {form} cannot be read: {type(error).__name__}")


def _names_tool(choice: Any) -> bool:
    """Returns whether the choice requires a tool by name.

    Such a choice is an object, but not of the type `allowed_tools`.
    """
    return isinstance(choice, dict) and choice.get("type") != "allowed_tools"


def _declared(asked: Mapping[str, Any], api: Api) -> tuple[str, ...] | None:
    """Returns the names of the tools that the model may call; None if every name is accepted.

    Every name is accepted if the request declares no tools, or a tool that is not a function.
    """
    tools = mappings(asked.get("tools"))
    plain = None if api == "messages" else "function"
    if not tools or any(tool.get("type") != plain for tool in tools):
        return None
    return tuple(str(mapping(tool.get("function", tool)).get("name")) for tool in tools)


def _unreadable(message: str) -> Found:
    return ((UNREADABLE, Problem(UNREADABLE, message)),)


@lru_cache(maxsize=16)
def _stream(raw: bytes, api: Api, options: Options) -> Found:
    as_sent = judge_sse(raw, api, whole_standard=True, **asdict(options))
    as_sent = [problem for problem in as_sent if topic(problem) not in OF_CALLS]
    made = repair_stream(split_sse(raw)[0], api)
    judge = OrderJudge(api, **asdict(_with_nameless(options)))
    repaired = [
        replace(problem, position=position)
        for (frame, event), position in zip(made.frames, made.order, strict=True)
        for problem in judge.feed(frame, event)
    ]
    return _sorted(as_sent, [*repaired, *judge.finish()], made.problems, made.dropped)


def _with_nameless(options: Options) -> Options:
    return options if options.tools is None else replace(options, tools=(*options.tools, NAMELESS))


@lru_cache(maxsize=16)
def _body(raw: bytes, api: Api, options: Options) -> Found:
    value = json.loads(raw)
    if not isinstance(value, dict):
        raise ValueError("no object")
    repaired, repairs, dropped = repair_body(value, api)
    as_sent, again = (judge_body(body, api, **asdict(options)) for body in (value, repaired))
    return _sorted(as_sent, again, repairs, dropped)


def _sorted(
    as_sent: list[Problem], repaired: list[Problem], repairs: list[Problem], dropped: Dropped
) -> Found:
    kept = [problem for problem in as_sent if problem.code in AS_SENT]
    kept = [one for one in kept if not (one.empty and (one.position, one.key) in dropped)]
    problems = sorted(dict.fromkeys([*repairs, *kept, *repaired]), key=lambda problem: problem.position)
    return tuple((topic(problem), problem) for problem in problems[:MOST_PROBLEMS])


def topic(problem: Problem) -> str:
    """Returns the problem's topic, which is usually its code.

    If a key is missing or wrong, the topic is usually that of the object with this key.
    """
    if problem.code not in ("missing_key", "wrong_value"):
        return problem.code
    if problem.subject in ("call opener", "call") and problem.key == "id":
        return "call_id"
    if problem.code == "wrong_value" and problem.key in ("arguments", "input"):
        return "invalid_arguments"
    if problem.key == "usage":
        return "usage_shape"
    inner = SUBJECTS.get(problem.key) if problem.subject == "usage" else None
    return inner or SUBJECTS.get(problem.subject, "shape")

"""The verdicts of the checks: pure functions from the exchanges of a check to pass, fail or not-run.

- A departure that is seen is a failure, with what was seen and the frame it was seen in.
- What could not be seen is not run: the model would not do it, there is nothing in the answer, the endpoint has no time, or it declines the request
  in OpenAI's own words.
- An exchange that broke, or an error that is no error object, is a failure of whichever check needs it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import jsonschema_rs

from toolwire.conform.asking import CITY, SCHEMA, SECRET
from toolwire.conform.exchange import ProbeExchange, mapping
from toolwire.conform.judge import judge_error
from toolwire.conform.problems import UNREADABLE, problems_of

Result = Literal["pass", "fail", "not-run"]
Seen = Sequence[ProbeExchange]
Judge = Callable[[Seen], "Verdict"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """`seen`: one sentence. `question` and `excerpt` say where: the name of the request, and the beginning of the frame or body. `kept`: not run
    because the endpoint had no time, so that another run may tell more."""

    result: Result
    seen: str = ""
    question: str = ""
    excerpt: str = ""
    kept: bool = False


PASS = Verdict("pass")


def failed(exchange: ProbeExchange, seen: str, position: int = -1) -> Verdict:
    return Verdict("fail", seen, exchange.question, exchange.excerpt(position))


def not_run(exchange: ProbeExchange, seen: str) -> Verdict:
    return Verdict("not-run", seen, exchange.question)


def busy(exchange: ProbeExchange) -> Verdict:
    return replace(not_run(exchange, f"the endpoint has no time: {exchange.refusal}"), kept=True)


def declined(exchange: ProbeExchange) -> Verdict:
    return not_run(exchange, f"the endpoint declines: {exchange.error}")


def broken(exchange: ProbeExchange) -> Verdict | None:
    """What there is to say of an exchange that brought no answer; None: it did. A model may be slow: that fails only the checks that are about it."""
    if exchange.late:
        return not_run(exchange, exchange.trouble)
    if exchange.trouble:
        return failed(exchange, exchange.trouble)
    if exchange.ok:
        return declined(exchange) if exchange.foreign and exchange.error else None
    if not exchange.status:
        return not_run(exchange, exchange.wanting or "it was not asked")
    if exchange.busy:
        return busy(exchange)
    if isinstance(exchange.json, dict) and not judge_error(exchange.status, exchange.json):
        return not_run(exchange, f"the endpoint declines: {exchange.refusal}")
    return failed(exchange, f"HTTP {exchange.status} without OpenAI's error object")


def unanswered(exchange: ProbeExchange) -> Verdict | None:
    """As `broken`; and where the answer itself ends in an error."""
    verdict = broken(exchange)
    return declined(exchange) if verdict is None and exchange.error else verdict


def unseen(exchange: ProbeExchange) -> Verdict | None:
    """As `unanswered`; and where there is nothing in the answer."""
    verdict = unanswered(exchange)
    return not_run(exchange, exchange.hollow) if verdict is None and exchange.hollow else verdict


def missing(exchange: ProbeExchange) -> Verdict | None:
    """As `unanswered`; and where the model would not do what it was asked for."""
    verdict = unanswered(exchange)
    if verdict is None and exchange.wanting:
        return not_run(exchange, exchange.wanting)
    return verdict


def each(judge: Callable[[ProbeExchange], Verdict], *, lenient: bool = False) -> Judge:
    """All exchanges must pass; one failure is enough. `lenient`: those that passed count although others could not be run."""

    def verdict(seen: Seen) -> Verdict:
        verdicts = [judge(exchange) for exchange in seen]
        for wanted in ("fail", "not-run"):
            found = next((verdict for verdict in verdicts if verdict.result == wanted), None)
            if found is not None and not (
                wanted == "not-run" and lenient and any(one.result == "pass" for one in verdicts)
            ):
                return found
        return PASS

    return verdict


# --- the wire ---


@dataclass(frozen=True, slots=True)
class WireVerdict:
    """None of these departures in any of the answers. Whether a model did what was asked does not matter here, only what came.

    `of_calls`: only answers that hold calls are looked at. `of_errors`: an error is something to look at, too."""

    topics: tuple[str, ...]
    of_calls: bool = False
    of_errors: bool = False

    def __call__(self, seen: Seen) -> Verdict:
        if not self.of_calls:
            return each(self._judge, lenient=True)(seen)
        with_calls = [
            exchange
            for exchange in seen
            if exchange.trouble or not exchange.ok or exchange.answer.calls or _may_hold(exchange)
        ]
        return each(self._judge, lenient=True)(with_calls) if with_calls else _no_call(seen[0])

    def _judge(self, exchange: ProbeExchange) -> Verdict:
        verdict = broken(exchange)
        if verdict is not None:
            return verdict
        found = problems_of(exchange)
        hits = [problem for topic, problem in found if topic in self.topics]
        if not hits:
            return self._unhurt(
                exchange, next((problem.message for topic, problem in found if topic == UNREADABLE), "")
            )
        more = f" (and {len(hits) - 1} more)" if len(hits) > 1 else ""
        return failed(exchange, hits[0].message + more, hits[0].position)

    def _unhurt(self, exchange: ProbeExchange, unreadable: str) -> Verdict:
        """None of the departures was seen: that is a pass where they could have been."""
        if unreadable:
            return not_run(exchange, unreadable)
        if self.of_errors and exchange.error:
            return PASS
        verdict = unseen(exchange)
        if verdict is None and self.of_calls and not exchange.answer.calls:
            return _no_call(exchange)
        return PASS if verdict is None else verdict


def wire(*topics: str) -> WireVerdict:
    return WireVerdict(topics)


def wire_of_calls(*topics: str) -> WireVerdict:
    return WireVerdict(topics, of_calls=True)


def _no_call(exchange: ProbeExchange) -> Verdict:
    return not_run(exchange, exchange.wanting or "no answer holds a call")


def _may_hold(exchange: ProbeExchange) -> bool:
    return b"tool_calls" in exchange.raw or b"function_call" in exchange.raw


OF_USAGE = ("usage_shape", "usage_total", "usage_early", "after_finish", "usage_missing", "after_usage")


def usage_given(*keys: str) -> Judge:
    """Usage is there and in order."""
    ordered = WireVerdict(OF_USAGE)

    def verdict(seen: Seen) -> Verdict:
        for exchange in seen:
            said = unseen(exchange)
            if said is not None:
                return said
            usage = mapping(exchange.body.get("usage"))
            lacking = [key for key in keys if not isinstance(usage.get(key), int)]
            if lacking:
                return failed(exchange, f"usage lacks {', '.join(lacking)}")
        return ordered(seen)

    return verdict


def content_type(expected: str) -> Judge:
    def judge(exchange: ProbeExchange) -> Verdict:
        verdict = unseen(exchange)
        if verdict is not None:
            return verdict
        return (
            PASS
            if exchange.content_type == expected
            else failed(exchange, f"content-type is {exchange.content_type or 'missing'!r}")
        )

    return each(judge, lenient=True)


def answered(exchange: ProbeExchange) -> Verdict:
    """An answer came, whatever it says."""
    if not exchange.status and not exchange.trouble:
        return not_run(exchange, exchange.wanting or "it was not asked")
    if exchange.trouble:
        return failed(exchange, exchange.trouble)
    if exchange.busy:
        return busy(exchange)
    if not exchange.ok:
        return failed(exchange, exchange.refusal)
    if exchange.error:
        return failed(exchange, f"the answer ends in an error: {exchange.error}")
    return failed(exchange, exchange.hollow) if exchange.hollow else PASS


def clean(exchange: ProbeExchange) -> Verdict:
    """An answer came, and its calls can be read and run; envelopes and extras have checks of their own."""
    verdict = answered(exchange)
    return WireVerdict(GRAVE)([exchange]) if verdict.result == "pass" else verdict


GRAVE = (
    *(
        "call_shape",
        "call_id",
        "call_index",
        "call_repeated",
        "call_id_repeated",
        "cumulative_arguments",
        "invalid_arguments",
    ),
    *(
        "empty_arguments",
        "untruthful_finish",
        "finish_missing",
        "after_finish",
        "wrong_dialect",
        "undeclared_tool",
        "terminal_missing",
    ),
    *(
        "item_open",
        "not_open",
        "text_open",
        "text_differs",
        "output",
        "id_repeated",
        "output_index",
        "item_id",
        "done_missing",
        "null_content",
    ),
)


# --- errors ---


def refused(*statuses: int) -> Judge:
    """An HTTP error of one of these statuses, with OpenAI's error object and nothing before it."""

    def judge(exchange: ProbeExchange) -> Verdict:
        if exchange.trouble:
            return failed(exchange, exchange.trouble)
        if exchange.busy:
            return busy(exchange)
        if exchange.status not in statuses:
            return failed(exchange, f"HTTP {exchange.status}, expected {' or '.join(map(str, statuses))}")
        if not isinstance(exchange.json, dict):
            return failed(exchange, f"HTTP {exchange.status}, but the body is no JSON object")
        problems = [
            problem
            for problem in judge_error(exchange.status, exchange.json)
            if problem.code != "unknown_key"
        ]
        if problems:
            return failed(exchange, problems[0].message)
        return (
            PASS
            if exchange.content_type == "application/json"
            else failed(exchange, f"content-type is {exchange.content_type or 'missing'!r}")
        )

    return each(judge)


def refuses_strangers(seen: Seen) -> Verdict:
    exchange = seen[0]
    if exchange.ok and not exchange.error:
        return not_run(exchange, "the endpoint asks for no key")
    return refused(401, 403)(seen)


# --- what models do with tools ---


def calls(*names: str) -> Judge:
    """Calls, and only of these tools."""

    def judge(exchange: ProbeExchange) -> Verdict:
        verdict = unanswered(exchange)
        if verdict is not None:
            return verdict
        if not exchange.answer.calls:
            return failed(exchange, "the answer holds no call")
        wrong = [name for name in exchange.called if name not in names]
        return failed(exchange, f"the answer calls {wrong[0]!r}") if wrong else clean(exchange)

    return each(judge)


def calls_nothing(exchange: ProbeExchange) -> Verdict:
    verdict = unanswered(exchange)
    if verdict is not None:
        return verdict
    return (
        failed(exchange, f"the answer calls {exchange.called[0]!r}") if exchange.called else clean(exchange)
    )


def calls_once(exchange: ProbeExchange) -> Verdict:
    verdict = unanswered(exchange)
    if verdict is not None:
        return verdict
    count = len(exchange.called)
    return failed(exchange, f"{count} calls where one was allowed") if count > 1 else clean(exchange)


def done_well(exchange: ProbeExchange) -> Verdict:
    """The model did what it was asked for, and the answer that tells of it is in order."""
    verdict = missing(exchange)
    return verdict if verdict is not None else clean(exchange)


def arguments_fit(exchange: ProbeExchange) -> Verdict:
    verdict = missing(exchange) or unseen(exchange)
    if verdict is not None:
        return verdict
    for call in exchange.answer.calls:
        value = call.object
        if not isinstance(value, dict) or not jsonschema_rs.is_valid(CITY, value):
            return failed(
                exchange, f"the arguments of {call.name!r} do not fit its schema: {call.arguments[:80]!r}"
            )
    return PASS


MARKUP = (
    "<tool_call",
    "<use_tool",
    "<function=",
    "<|tool",
    "<|python_tag|>",
    "[TOOL_CALLS]",
    "functools[",
    "```tool",
    "<invoke",
    "<|channel|>",
)


def no_markup(exchange: ProbeExchange) -> Verdict:
    verdict = missing(exchange) or unseen(exchange)
    if verdict is not None:
        return verdict
    mark = next((mark for mark in MARKUP if mark in exchange.answer.text), None)
    return PASS if mark is None else failed(exchange, f"the text of the answer holds {mark!r}")


def fresh_ids(seen: Seen) -> Verdict:
    """No id of a call or an answer comes twice, in whichever answer."""
    known: dict[str, str] = {}
    for exchange in seen:
        own = [exchange.answer.id, *(call.id for call in exchange.answer.calls)]
        for id in filter(None, own):
            if id in known:
                return failed(exchange, f"the id {id[:60]!r} was used by {known[id]} already")
        known |= dict.fromkeys(filter(None, own), exchange.question)
    if any(exchange.answer.calls for exchange in seen):
        return PASS
    return next(filter(None, map(missing, seen)), _no_call(seen[0]))


def told_again(exchange: ProbeExchange) -> Verdict:
    """The result of the tool reached the model."""
    verdict = answered(exchange)
    if verdict.result != "pass":
        return verdict
    if SECRET not in exchange.answer.text:
        return failed(
            exchange, f"the answer never repeats the result, {SECRET!r}, in {exchange.attempts} attempts"
        )
    return clean(exchange)


def fits_schema(exchange: ProbeExchange) -> Verdict:
    verdict = unanswered(exchange)
    if verdict is not None:
        return verdict
    try:
        fits = bool(jsonschema_rs.validator_for(SCHEMA).is_valid(_parsed(exchange.answer.text)))
    except ValueError:
        return failed(exchange, f"the answer is no JSON: {exchange.answer.text[:80]!r}")
    return (
        clean(exchange)
        if fits
        else failed(exchange, f"the answer does not fit the schema: {exchange.answer.text[:80]!r}")
    )


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("too deep") from None


def same_meaning(seen: Seen) -> Verdict:
    """Pairs of one question, not streamed and streamed: the same calls with the same arguments, text or none, and the same end."""
    verdicts = [_same(body, stream) for body, stream in zip(seen[::2], seen[1::2], strict=True)]
    found = next((verdict for verdict in verdicts if verdict.result == "fail"), None)
    if found is not None:
        return found
    return PASS if any(verdict.result == "pass" for verdict in verdicts) else verdicts[0]


def _same(body: ProbeExchange, stream: ProbeExchange) -> Verdict:
    for exchange in (body, stream):
        verdict = unseen(exchange)
        if verdict is not None:
            return verdict
    if bool(body.wanting) != bool(stream.wanting) and not (body.answer.calls or stream.answer.calls):
        return not_run(stream, body.wanting or stream.wanting)
    for what, told, streamed in (
        (
            "calls",
            [(call.name, call.object) for call in body.answer.calls],
            [(call.name, call.object) for call in stream.answer.calls],
        ),
        ("the end", body.answer.finish, stream.answer.finish),
        ("whether there is text", bool(body.answer.text), bool(stream.answer.text)),
    ):
        if told != streamed:
            return failed(stream, f"{what}: {str(streamed)[:80]} when streamed, {str(told)[:80]} when not")
    return PASS


OF_ERRORS = (
    "done_missing",
    "terminal_missing",
    "error_shape",
    "after_error",
    "error_after_finish",
    "error_event",
)


def ends_in_band(seen: Seen) -> Verdict:
    """No stream ends without its end mark or an error object, and an error object is whole and last."""
    for exchange in seen:
        if exchange.trouble:
            return failed(exchange, exchange.trouble)
    return WireVerdict(OF_ERRORS, of_errors=True)(seen)

"""The judges: functions that get the exchanges of a check and return a `Verdict`. No side effects.

- A deviation is a failure. The verdict says what the answer contains, and in which frame.
- A check counts as not run if the answer has nothing to evaluate: the model did not do what it was asked to
  do, the answer is empty, the endpoint is busy or slow, or it refuses the request with a valid error object.
- A check fails if one of its exchanges was interrupted, or ended with an HTTP error that has no valid error
  object. The error object is OpenAI's or Anthropic's, depending on the API.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import jsonschema_rs

from toolwire.conform.asking import CITY, SCHEMA, SECRET
from toolwire.conform.exchange import ProbeExchange, mapping
from toolwire.conform.judge import judge_error
from toolwire.conform.problems import UNREADABLE, problems_of

Result = Literal["pass", "fail", "not-run"]
Seen = Sequence[ProbeExchange]
Judge = Callable[[Seen], "Verdict"]
JudgeOne = Callable[[ProbeExchange], "Verdict"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check.

    `seen`: one sentence about the answer to `question`. `excerpt`: the beginning of the frame or body that
    `seen` is about. `busy`: the check was not run because the endpoint was overloaded or too slow.
    """

    result: Result
    seen: str = ""
    question: str = ""
    excerpt: str = ""
    busy: bool = False


PASS = Verdict("pass")


def failed(exchange: ProbeExchange, seen: str, position: int = -1) -> Verdict:
    return Verdict("fail", seen, exchange.question, exchange.excerpt(position))


def expect(condition: bool, exchange: ProbeExchange, otherwise: str) -> Verdict:
    return PASS if condition else failed(exchange, otherwise)


def not_run(exchange: ProbeExchange, seen: str, *, busy: bool = False) -> Verdict:
    return Verdict("not-run", seen, exchange.question, busy=busy)


def busy(exchange: ProbeExchange) -> Verdict:
    return not_run(exchange, f"the endpoint is busy: {exchange.refusal}", busy=True)


# --- reasons why an exchange cannot be checked: each function returns a verdict, or None if it can ---


def broken(exchange: ProbeExchange) -> Verdict | None:
    """Returns a verdict if there is no answer that can be judged, otherwise None.

    A timeout is "not run", because it only means that the model is slow.
    """
    if exchange.late:
        return not_run(exchange, exchange.trouble)
    if exchange.trouble:
        return failed(exchange, exchange.trouble)
    if exchange.ok:
        return _declined(exchange) if exchange.foreign and exchange.error else None
    if not exchange.status:
        return not_run(exchange, exchange.wanting or "the request was not sent")
    if exchange.busy:
        return busy(exchange)
    if isinstance(exchange.json, dict) and not judge_error(exchange.status, exchange.json, exchange.api):
        return not_run(exchange, f"the endpoint declines: {exchange.refusal}")
    whose = "Anthropic's" if exchange.api == "messages" else "OpenAI's"
    return failed(exchange, f"HTTP {exchange.status} without {whose} error object")


def _declined(exchange: ProbeExchange) -> Verdict:
    return not_run(exchange, f"the endpoint declines: {exchange.error}")


def unanswered(exchange: ProbeExchange) -> Verdict | None:
    """Returns a verdict if there is no answer, or if the answer ends in an error; otherwise None."""
    return broken(exchange) or (_declined(exchange) if exchange.error else None)


def unseen(exchange: ProbeExchange) -> Verdict | None:
    """Returns a verdict if there is no answer, if it ends in an error, or if it is empty; otherwise None."""
    return unanswered(exchange) or (not_run(exchange, exchange.hollow) if exchange.hollow else None)


def missing(exchange: ProbeExchange) -> Verdict | None:
    """Returns a verdict if there is no answer, or if the model did not do as asked; otherwise None."""
    return unanswered(exchange) or (not_run(exchange, exchange.wanting) if exchange.wanting else None)


def each(judge: JudgeOne, *, lenient: bool = False) -> Judge:
    """Returns a judge that applies `judge` to each exchange. All exchanges must pass.

    `lenient`: some exchanges may count as not run, if at least one exchange passes and none fails.
    """

    return lambda seen: _together([judge(exchange) for exchange in seen], lenient)


def _together(verdicts: Sequence[Verdict], lenient: bool) -> Verdict:
    order: tuple[Result, ...] = ("fail", "pass", "not-run") if lenient else ("fail", "not-run", "pass")
    return min(verdicts, key=lambda verdict: order.index(verdict.result), default=PASS)


# --- the format of answers ---


@dataclass(frozen=True, slots=True)
class WireVerdict:
    """Passes if no answer has a deviation of one of `topics`, whatever the model did.

    `of_calls`: check only answers with calls. `of_errors`: an answer that ends in an error passes (without
    this option, it counts as not run).
    """

    topics: tuple[str, ...]
    of_calls: bool = False
    of_errors: bool = False

    def __call__(self, seen: Seen) -> Verdict:
        if self.of_calls:
            seen = [exchange for exchange in seen if self._concerns(exchange)] or seen[:1]
        return each(self._judge, lenient=True)(seen)

    def _concerns(self, exchange: ProbeExchange) -> bool:
        may_call = any(mark in exchange.raw for mark in (b"tool_calls", b"function_call", b"tool_use"))
        return not exchange.ok or bool(exchange.answer.calls) or may_call

    def _judge(self, exchange: ProbeExchange) -> Verdict:
        verdict = broken(exchange)
        if verdict is not None:
            return verdict
        found = problems_of(exchange)
        hits = [problem for topic, problem in found if topic in self.topics]
        if hits:
            more = f" (and {len(hits) - 1} more)" if len(hits) > 1 else ""
            return failed(exchange, hits[0].message + more, hits[0].position)
        for topic, problem in found:
            if topic == UNREADABLE:
                return not_run(exchange, problem.message)
        if self.of_errors and exchange.error:
            return PASS
        no_call = self.of_calls and not exchange.answer.calls
        return unseen(exchange) or (_no_call(exchange) if no_call else PASS)


def wire(*topics: str) -> WireVerdict:
    return WireVerdict(topics)


def wire_of_calls(*topics: str) -> WireVerdict:
    return WireVerdict(topics, of_calls=True)


def _no_call(exchange: ProbeExchange) -> Verdict:
    return not_run(exchange, exchange.wanting or "no answer contains a call")


OF_USAGE = ("usage_shape", "usage_total", "usage_early", "after_finish", "usage_missing", "after_usage")


def usage_given(*keys: str) -> Judge:
    def judge(exchange: ProbeExchange) -> Verdict:
        usage = mapping(exchange.body.get("usage"))
        lacking = [key for key in keys if not isinstance(usage.get(key), int)]
        return unseen(exchange) or expect(not lacking, exchange, f"usage lacks {', '.join(lacking)}")

    def verdict(seen: Seen) -> Verdict:
        given = each(judge)(seen)
        return WireVerdict(OF_USAGE)(seen) if given.result == "pass" else given

    return verdict


def _has_type(exchange: ProbeExchange, expected: str) -> Verdict:
    found = exchange.content_type
    return expect(found == expected, exchange, f"content-type is {found or 'missing'!r}")


def content_type(expected: str) -> Judge:
    return each(lambda exchange: unseen(exchange) or _has_type(exchange, expected), lenient=True)


def unmet(exchange: ProbeExchange) -> Verdict | None:
    """Returns a verdict if the request was not answered, otherwise None.

    If the endpoint refuses the request, the verdict is "fail".
    """
    if not exchange.status and not exchange.trouble:
        return not_run(exchange, exchange.wanting or "the request was not sent")
    if exchange.busy:
        return busy(exchange)
    fault = exchange.trouble or ("" if exchange.ok else exchange.refusal)
    if not fault and exchange.error:
        fault = f"the answer ends in an error: {exchange.error}"
    fault = fault or exchange.hollow
    return failed(exchange, fault) if fault else None


def answered(exchange: ProbeExchange) -> Verdict:
    return unmet(exchange) or PASS


GRAVE = tuple(
    """call_shape call_id call_index call_repeated call_id_repeated cumulative_arguments invalid_arguments
    empty_arguments untruthful_finish finish_missing after_finish wrong_dialect undeclared_tool
    terminal_missing item_open not_open text_open text_differs output id_repeated output_index item_id
    done_missing null_content start_missing start_repeated block_index block_open block_content
    delta_type""".split()
)


def clean(exchange: ProbeExchange) -> Verdict:
    """Passes if the request was answered, with calls that can be read and run.

    Other checks report wrong envelopes and extra keys.
    """
    return unmet(exchange) or WireVerdict(GRAVE)([exchange])


# --- errors ---


def refused(*statuses: int) -> Judge:
    """Passes if the answer is an error with one of these statuses and the API's error object."""
    expected = " or ".join(map(str, statuses))

    def judge(exchange: ProbeExchange) -> Verdict:
        if exchange.trouble:
            return failed(exchange, exchange.trouble)
        if exchange.busy:
            return busy(exchange)
        if exchange.status not in statuses:
            return failed(exchange, f"HTTP {exchange.status}, expected {expected}")
        if not isinstance(exchange.json, dict):
            return failed(exchange, f"HTTP {exchange.status}, but the body is not a JSON object")
        for problem in judge_error(exchange.status, exchange.json, exchange.api):
            if problem.code != "unknown_key":
                return failed(exchange, problem.message)
        return _has_type(exchange, "application/json")

    return each(judge)


def needs_key(seen: Seen) -> Verdict:
    exchange = seen[0]
    if exchange.ok and not exchange.error:
        return not_run(exchange, "the endpoint asks for no key")
    return refused(401, 403)(seen)


# --- tool calls ---


def calls(*names: str, may_decline: bool = True) -> Judge:
    """Passes if the answer has at least one call, and only calls of these tools.

    If the endpoint refuses the request, the verdict is "not-run" if `may_decline` is set, otherwise "fail".
    """
    missed = unanswered if may_decline else unmet

    def judge(exchange: ProbeExchange) -> Verdict:
        wrong = [name for name in exchange.called if name not in names]
        fault = f"the answer calls {wrong[0]!r}" if wrong else "the answer contains no call"
        return missed(exchange) or _clean_if(bool(exchange.called) and not wrong, exchange, fault)

    return each(judge)


def _clean_if(condition: bool, exchange: ProbeExchange, otherwise: str) -> Verdict:
    return clean(exchange) if condition else failed(exchange, otherwise)


def calls_nothing(exchange: ProbeExchange) -> Verdict:
    fault = f"the answer calls {next(iter(exchange.called), '')!r}"
    return unanswered(exchange) or _clean_if(not exchange.called, exchange, fault)


def calls_once(exchange: ProbeExchange) -> Verdict:
    count = len(exchange.called)
    return unanswered(exchange) or _clean_if(count <= 1, exchange, f"{count} calls where one was allowed")


def done_well(exchange: ProbeExchange) -> Verdict:
    """Passes if the model did what it was asked to do, and the answer has no deviations."""
    return missing(exchange) or clean(exchange)


def arguments_fit(exchange: ProbeExchange) -> Verdict:
    misfits = [
        f"the arguments of {call.name!r} do not fit its schema: {call.arguments[:80]!r}"
        for call in exchange.answer.calls
        if not jsonschema_rs.is_valid(CITY, call.object)
    ]
    return missing(exchange) or unseen(exchange) or expect(not misfits, exchange, "".join(misfits[:1]))


MARKUP = (
    *("<tool_call", "<use_tool", "<function=", "<|tool", "<|python_tag|>", "[TOOL_CALLS]", "functools["),
    *("```tool", "<invoke", "<|channel|>"),
)


def no_markup(exchange: ProbeExchange) -> Verdict:
    found = [mark for mark in MARKUP if mark in exchange.answer.text]
    fault = f"the text of the answer contains {next(iter(found), '')!r}"
    return missing(exchange) or unseen(exchange) or expect(not found, exchange, fault)


THOUGHT_MARKUP = ("<think", "</think", "<reasoning", "<|channel|>")


def thinks_apart(exchange: ProbeExchange) -> Verdict:
    found = [mark for mark in THOUGHT_MARKUP if mark in exchange.answer.text]
    if found:
        return failed(exchange, f"the text of the answer contains {found[0]!r}")
    blocks = WireVerdict(("delta_type", "thought_shape"))([exchange])
    return blocks if blocks.result == "fail" else done_well(exchange)


def fresh_ids(seen: Seen) -> Verdict:
    """Passes if no call and no answer has an id from an earlier exchange."""
    known: dict[str, str] = {}
    for exchange in seen:
        answer = exchange.answer
        own = [id for id in (answer.id, *(call.id for call in answer.calls)) if id]
        for id in own:
            if id in known:
                return failed(exchange, f"the id {id[:60]!r} was used by {known[id]} already")
        known |= dict.fromkeys(own, exchange.question)
    if any(exchange.answer.calls for exchange in seen):
        return PASS
    return next(filter(None, map(missing, seen)), _no_call(seen[0]))


def result_reached_model(exchange: ProbeExchange) -> Verdict:
    fault = f"the answer never repeats the result, {SECRET!r}, in {exchange.attempts} attempts"
    return unmet(exchange) or _clean_if(SECRET in exchange.answer.text, exchange, fault)


def fits_schema(exchange: ProbeExchange) -> Verdict:
    text = exchange.answer.text
    fault = f"the answer does not fit the schema: {text[:80]!r}"
    try:
        fits = jsonschema_rs.is_valid(SCHEMA, json.loads(text))
    except (ValueError, RecursionError):
        fits, fault = False, f"the answer is not JSON: {text[:80]!r}"
    return unanswered(exchange) or _clean_if(fits, exchange, fault)


def same_meaning(seen: Seen) -> Verdict:
    """Passes if the body and the stream of each question have the same meaning.

    The meaning is the calls, whether there is text, and the reason why the answer ended.
    """
    pairs = zip(seen[::2], seen[1::2], strict=True)
    return _together([_same(body, stream) for body, stream in pairs], lenient=True)


def _same(body: ProbeExchange, stream: ProbeExchange) -> Verdict:
    verdict = unseen(body) or unseen(stream)
    if verdict is not None:
        return verdict
    if bool(body.wanting) != bool(stream.wanting) and not (body.answer.calls or stream.answer.calls):
        return not_run(stream, body.wanting or stream.wanting)
    streamed = _meaning(stream)
    for what, whole in _meaning(body).items():
        if whole != streamed[what]:
            fault = f"{what}: {str(streamed[what])[:80]} when streamed, {str(whole)[:80]} when not"
            return failed(stream, fault)
    return PASS


def _meaning(exchange: ProbeExchange) -> dict[str, object]:
    answer = exchange.answer
    made = [(call.name, call.object) for call in answer.calls]
    return {"calls": made, "the end": answer.finish, "whether there is text": bool(answer.text)}


OF_ERRORS = (
    "done_missing",
    "terminal_missing",
    "error_shape",
    "after_error",
    "error_after_finish",
    "error_event",
)


def ends_in_band(seen: Seen) -> Verdict:
    """Passes if every stream ends with its end mark or with a complete error object."""
    for exchange in seen:
        if exchange.trouble:
            return failed(exchange, exchange.trouble)
    return WireVerdict(OF_ERRORS, of_errors=True)(seen)

"""Asks each question once and evaluates each check with the answers.

The engine asks a question when the first check needs it. Later checks use the same answer. There are four
families of checks: http, and one for each API (chat, responses, messages). If the endpoint does not support
an API, or refuses the key there, the checks of its family are not run, and the report gives the reason once.
An API counts as not supported if the endpoint answers every request with HTTP 404, 405 or 501, or with HTTP
200 and a web page or an object of another format. After several timeouts the engine asks no more questions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from toolwire.conform.asking import request
from toolwire.conform.checks_chat import CHAT
from toolwire.conform.checks_http import HTTP
from toolwire.conform.checks_messages import MESSAGES
from toolwire.conform.checks_responses import RESPONSES
from toolwire.conform.checks_shared import Check, alike
from toolwire.conform.exchange import ProbeExchange, ProbeRequest, mapping, mappings, text_of
from toolwire.conform.judging import Verdict
from toolwire.conform.probe import Probe
from toolwire.conform.questions import QUESTIONS, Question
from toolwire.core.turn import Api

ABSENT = (404, 405, 501)
REFUSED = (401, 403)
MOST_TIMEOUTS = 3
"""The number of timeouts in a row after which no more questions are asked."""
MOST_LATE = 8
"""The number of timeouts in a run after which no more questions are asked."""


class NothingToJudge(Exception):
    """Raised if the run cannot start. The message says why in one line."""


@dataclass(frozen=True, slots=True)
class Absence:
    """Why an API cannot be checked: it is missing, refuses the key (`refused`), or is overloaded (`busy`)."""

    why: str
    refused: bool = False
    busy: bool = False


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """The result of a check. `absent`: it was not run, because its API cannot be checked (see `Absence`)."""

    check: Check
    verdict: Verdict
    absent: bool = False


@dataclass(frozen=True, slots=True)
class ConformOutcome:
    """The result of a run. `absent`: the reason for each family that cannot be checked."""

    base: str
    model: str
    findings: tuple[CheckFinding, ...]
    absent: Mapping[str, str]
    requests: int

    def count(self, result: str, level: str = "") -> int:
        found = [finding for finding in self.findings if finding.verdict.result == result]
        return sum(level in ("", finding.check.level) for finding in found)

    @property
    def busy(self) -> int:
        """The number of checks that did not run because the endpoint was overloaded or too slow."""
        return sum(finding.verdict.busy for finding in self.findings)


class ConformEngine:
    def __init__(self, probe: Probe, model: str) -> None:
        self._probe = probe
        self._model = model
        self._exchanges: dict[str, ProbeExchange] = {}
        self._timeouts = self._late = 0

    @property
    def _gave_up(self) -> bool:
        return self._timeouts >= MOST_TIMEOUTS or self._late >= MOST_LATE

    async def judge(self, check: Check) -> Verdict:
        exchanges = [await self._exchange(name) for name in check.asks]
        if self._gave_up and any(exchange.status == 0 and not exchange.trouble for exchange in exchanges):
            in_a_row = self._timeouts >= MOST_TIMEOUTS
            late = f"{self._timeouts} answers in a row" if in_a_row else f"{self._late} answers"
            return Verdict("not-run", f"not asked, because {late} took longer than the time limit", busy=True)
        try:
            return check.judge(exchanges)
        except Exception as error:  # the run continues, whatever an endpoint sends
            seen = f"the answer cannot be judged: {type(error).__name__}"
            return Verdict("fail", seen, exchanges[0].question, exchanges[0].excerpt())

    async def _exchange(self, name: str) -> ProbeExchange:
        if name not in self._exchanges:
            question = QUESTIONS[name]
            earlier = {other: await self._exchange(other) for other in question.after}
            self._exchanges[name] = await self._asked(question, earlier)
        return self._exchanges[name]

    async def _asked(self, question: Question, earlier: Mapping[str, ProbeExchange]) -> ProbeExchange:
        request = question.build(self._model, earlier)
        if request is None:
            reasons = [exchange.wanting for exchange in earlier.values() if exchange.wanting]
            because = (reasons or ["an earlier answer lacks what this request needs"])[0]
            return ProbeExchange(question.name, ProbeRequest(""), wanting=because)
        if self._gave_up:
            return ProbeExchange(question.name, request)
        best: ProbeExchange | None = None
        for attempt, fields in enumerate(question.variants, 1):
            tried = request.but(**fields) if fields else request
            exchange = replace(await self._probe.ask(question.name, tried), attempts=attempt)
            self._timeouts = self._timeouts + 1 if exchange.late else 0
            self._late += exchange.late
            done = exchange.ok and (question.done is None or question.done(exchange))
            if exchange.late or exchange.busy or done:
                return exchange
            best = exchange if best is None or exchange.ok or not best.ok else best
        assert best is not None
        if question.done is None or not best.ok or best.hollow:
            return best
        attempts = len(question.variants)
        wanting = f"the model did not {question.wants}, in {attempts} attempts"
        return replace(best, wanting=wanting, attempts=attempts)


async def choose_model(probe: Probe, model: str) -> str:
    """Returns `model`; if that is "", the first model that the endpoint lists.

    Raises an error if the endpoint cannot be reached or lists no model.
    """
    exchange = await probe.ask("http.models", ProbeRequest("/models", method="GET"))
    if exchange.status == 0:
        raise NothingToJudge(f"{exchange.trouble}")
    if model:
        return model
    if exchange.status in REFUSED:
        raise NothingToJudge(_refused(probe, exchange))
    ids = [text_of(entry.get("id")) for entry in mappings(mapping(exchange.json).get("data"))]
    first = next(filter(None, ids), "")
    if not first:
        said = probe.masked(exchange.refusal) if not exchange.ok else "HTTP 200"
        raise NothingToJudge(f"/models lists no model ({said}); name one with --model")
    if probe.masked(first) != first:
        raise NothingToJudge("/models lists the key instead of a model; name one with --model")
    return first


async def conform(
    probe: Probe, model: str, checks: Sequence[Check], found: Callable[[CheckFinding], Any] | None = None
) -> ConformOutcome:
    """Runs the checks in order. Calls `found` with each finding as soon as it exists."""
    wanted: list[Api] = sorted({check.family for check in checks if check.family != "http"})
    absences: dict[str, Absence] = {
        family: absence for family in wanted if (absence := await _absent(probe, family, model))
    }
    absent: dict[str, str] = {family: absence.why for family, absence in absences.items()}
    refused = next((absence.why for absence in absences.values() if absence.refused), "")
    if wanted and len(absent) == len(wanted) and (refused or len(wanted) > 1):
        raise NothingToJudge(refused or f"no API can be judged: {'; '.join(absent.values())}")
    engine = ConformEngine(probe, model)
    findings = []
    for check in checks:
        absence = absences.get(check.family)
        if absence is None:
            verdict = await engine.judge(check)
        else:
            verdict = Verdict("not-run", absence.why, busy=absence.busy)
        masked = replace(verdict, seen=probe.masked(verdict.seen), excerpt=probe.masked(verdict.excerpt))
        findings.append(CheckFinding(check, masked, absence is not None))
        if found is not None:
            found(findings[-1])
    return ConformOutcome(probe.base, model, tuple(findings), absent, probe.requests)


async def _absent(probe: Probe, api: Api, model: str) -> Absence | None:
    """Returns why the API cannot be checked, or None if it can.

    Sends up to three requests, until an answer shows that the API can be checked.
    """
    absence = None
    for asked in (
        request(api, {"model": model}),
        request(api, {}),
        QUESTIONS[f"{api}.text.body"].build(model, {}),
    ):
        assert asked is not None
        absence = _absence(probe, await probe.ask(f"{api}.there", asked))
        if absence is None:
            return None
    return absence


def _absence(probe: Probe, exchange: ProbeExchange) -> Absence | None:
    """Returns the reason in this answer why the API cannot be checked; None if there is no reason."""
    if exchange.trouble:
        return None
    if exchange.status in REFUSED:
        return Absence(_refused(probe, exchange), True)
    said = f"{exchange.request.path}: {probe.masked(exchange.refusal)}"
    if exchange.busy:
        return Absence(f"the endpoint is busy: {said}", busy=True)
    page = exchange.ok and exchange.content_type == "text/html" and exchange.json is None
    absent = exchange.status in ABSENT or exchange.foreign or page
    return Absence(f"the endpoint has no {said}") if absent else None


def _refused(probe: Probe, exchange: ProbeExchange) -> str:
    what, which = ("the key", "the right one") if probe.has_key else ("a request without a key", "one")
    refusal = f"{exchange.request.path} ({probe.masked(exchange.refusal)})"
    return f"{what} is refused at {refusal}; give {which} with --api-key"


# --- the catalogue: each check has a test in which it passes and one in which it fails ---

CATALOGUE: tuple[Check, ...] = (
    *HTTP,
    *(*alike("chat"), *CHAT),
    *(*alike("responses"), *RESPONSES),
    *(*alike("messages"), *MESSAGES),
)
BY_ID = {check.id: check for check in CATALOGUE}
assert len(BY_ID) == len(CATALOGUE)
assert all(name in QUESTIONS for check in CATALOGUE for name in check.asks)


def chosen(patterns: str, api: str = "") -> tuple[Check, ...]:
    """Returns the checks that match `patterns`: ids or beginnings of ids, such as `chat.stream,http`.

    "" matches every check. `api`: only the checks of this API. Raises KeyError if a pattern matches no check.
    """
    checks = tuple(check for check in CATALOGUE if api in ("", check.family))
    wanted = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    for pattern in wanted:
        if not any(_matches(check.id, pattern) for check in checks):
            raise KeyError(pattern)
    if not wanted:
        return checks
    return tuple(check for check in checks if any(_matches(check.id, pattern) for pattern in wanted))


def _matches(id: str, pattern: str) -> bool:
    return id == pattern or id.startswith(pattern.removesuffix("*").removesuffix(".") + ".")

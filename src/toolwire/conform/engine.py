"""Asks each question once and judges each check by what came back.

Questions that a check needs are asked when it is its turn, and kept for the checks after it. A family whose path is not there is told once: whatever
it is asked, it says HTTP 404, 405 or 501, or with HTTP 200 an error, a web page or another object than the API's. So is one that refuses the key. An
endpoint that runs into the time limit several times in a row is not asked any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from toolwire.conform.asking import PATHS, Question
from toolwire.conform.check import Check
from toolwire.conform.checks_both import HTTP, alike
from toolwire.conform.checks_chat import CHAT
from toolwire.conform.checks_responses import RESPONSES
from toolwire.conform.exchange import Family, ProbeExchange, ProbeRequest, mapping, mappings
from toolwire.conform.judging import Verdict
from toolwire.conform.probe import Probe
from toolwire.conform.questions import QUESTIONS

ABSENT = (404, 405, 501)
REFUSED = (401, 403)
MOST_TIMEOUTS = 3
MOST_LATE = 8
"""So many late answers in all, however many quick ones came between."""


class NothingToJudge(Exception):
    """The run can not begin; one line that says why."""


@dataclass(frozen=True, slots=True)
class Absence:
    """Why an API can not be judged. `refused`: the key is what keeps it from that; `busy`: that the endpoint has no time."""

    why: str
    refused: bool = False
    busy: bool = False


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """`absent`: not run because the endpoint does not have the API at all, or lets nobody in."""

    check: Check
    verdict: Verdict
    absent: bool = False


@dataclass(frozen=True, slots=True)
class ConformOutcome:
    """`absent`: the families that the endpoint does not have, and what it said."""

    base: str
    model: str
    findings: tuple[CheckFinding, ...]
    absent: Mapping[str, str]
    requests: int

    def count(self, result: str, level: str = "") -> int:
        return sum(
            finding.verdict.result == result and level in ("", finding.check.level)
            for finding in self.findings
        )

    @property
    def kept(self) -> int:
        """How many checks were not run because the endpoint had no time."""
        return sum(finding.verdict.kept for finding in self.findings)


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
        for name in check.asks:
            await self._exchange(name)
        if self._gave_up and any(
            self._exchanges[name].status == 0 and not self._exchanges[name].trouble for name in check.asks
        ):
            why = (
                f"{self._timeouts} answers in a row"
                if self._timeouts >= MOST_TIMEOUTS
                else f"{self._late} answers"
            )
            return Verdict("not-run", f"asked no more: {why} ran into the time limit", kept=True)
        try:
            return check.judge([self._exchanges[name] for name in check.asks])
        except Exception as error:  # whatever an endpoint sends, the run goes on
            first = self._exchanges[check.asks[0]]
            return Verdict(
                "fail",
                f"the answer can not be judged: {type(error).__name__}",
                first.question,
                first.excerpt(),
            )

    async def _exchange(self, name: str) -> ProbeExchange:
        if name not in self._exchanges:
            question = QUESTIONS[name]
            earlier = {other: await self._exchange(other) for other in question.after}
            self._exchanges[name] = await self._asked(question, earlier)
        return self._exchanges[name]

    async def _asked(self, question: Question, earlier: Mapping[str, ProbeExchange]) -> ProbeExchange:
        request = question.build(self._model, earlier)
        if request is None:
            because = next(
                (exchange.wanting for exchange in earlier.values() if exchange.wanting),
                "the answer before it has not what this needs",
            )
            return ProbeExchange(question.name, question.family, ProbeRequest(""), wanting=because)
        if self._gave_up:
            return ProbeExchange(question.name, question.family, request)
        best: ProbeExchange | None = None
        for attempt, way in enumerate(question.ways, 1):
            tried = request.but(**way) if way else request
            exchange = replace(await self._probe.ask(question.name, question.family, tried), attempts=attempt)
            self._timeouts = self._timeouts + 1 if exchange.late else 0
            self._late += exchange.late
            if exchange.late or exchange.busy:
                return exchange
            if exchange.ok and (question.done is None or question.done(exchange)):
                return exchange
            best = exchange if best is None or exchange.ok or not best.ok else best
        assert best is not None
        if question.done is None or not best.ok or best.hollow:
            return best
        return replace(
            best,
            wanting=f"the model would not {question.wants}, in {len(question.ways)} attempts",
            attempts=len(question.ways),
        )


async def choose_model(probe: Probe, model: str) -> str:
    """The model that is asked for, or the first that the endpoint lists. Raises where the endpoint can not be reached or lists none."""
    exchange = await probe.ask("http.models", "http", ProbeRequest("/models", method="GET"))
    if exchange.status == 0:
        raise NothingToJudge(f"{exchange.trouble}")
    if model:
        return model
    if exchange.status in REFUSED:
        raise NothingToJudge(_refused(probe, exchange))
    entries = mappings(mapping(exchange.json).get("data"))
    first = next((entry["id"] for entry in entries if isinstance(entry.get("id"), str) and entry["id"]), "")
    if not first:
        said = probe.masked(exchange.refusal) if not exchange.ok else "HTTP 200"
        raise NothingToJudge(f"/models lists no model ({said}); name one with --model")
    if probe.masked(first) != first:
        raise NothingToJudge("/models lists the key in place of a model; name one with --model")
    return first


async def conform(
    probe: Probe, model: str, checks: Sequence[Check], heard: Callable[[CheckFinding], Any] | None = None
) -> ConformOutcome:
    """Judges the endpoint by the checks, in their order. `heard` is told of each finding as it is made."""
    wanted = sorted({check.family for check in checks} - {"http"})
    found = {family: absence for family in wanted if (absence := await _absent(probe, family, model))}
    absent: dict[str, str] = {family: absence.why for family, absence in found.items()}
    busy = {family for family, absence in found.items() if absence.busy}
    refused = next((absence.why for absence in found.values() if absence.refused), "")
    if wanted and len(absent) == len(wanted) and (refused or len(wanted) == 2):
        raise NothingToJudge(refused or f"neither API can be judged: {'; '.join(absent.values())}")
    engine = ConformEngine(probe, model)
    findings = []
    for check in checks:
        missing = absent.get(check.family, "")
        verdict = (
            Verdict("not-run", missing, kept=check.family in busy) if missing else await engine.judge(check)
        )
        told = replace(verdict, seen=probe.masked(verdict.seen), excerpt=probe.masked(verdict.excerpt))
        findings.append(CheckFinding(check, told, bool(missing)))
        if heard is not None:
            heard(findings[-1])
    return ConformOutcome(probe.base, model, tuple(findings), absent, probe.requests)


async def _absent(probe: Probe, family: Family, model: str) -> Absence | None:
    """Why the API can not be judged, if it is not there. Two requests that are refused anywhere else, and one that is answered, must all say so."""
    absence = None
    for request in (
        ProbeRequest(PATHS[family], {"model": model}),
        ProbeRequest(PATHS[family], {}),
        QUESTIONS[f"{family}.text.body"].build(model, {}),
    ):
        assert request is not None
        absence = _absence(probe, await probe.ask(f"{family}.there", family, request))
        if absence is None:
            return None
    return absence


def _absence(probe: Probe, exchange: ProbeExchange) -> Absence | None:
    """What one answer says of the API as a whole; None: nothing, or that it is there."""
    if exchange.trouble:
        return None
    if exchange.status in REFUSED:
        return Absence(_refused(probe, exchange), True)
    said = f"{exchange.request.path}: {probe.masked(exchange.refusal)}"
    if exchange.busy:
        return Absence(f"the endpoint has no time for {said}", busy=True)
    page = exchange.ok and exchange.content_type == "text/html" and exchange.json is None
    return (
        Absence(f"the endpoint has no {said}")
        if exchange.status in ABSENT or exchange.foreign or page
        else None
    )


def _refused(probe: Probe, exchange: ProbeExchange) -> str:
    what, which = ("the key", "the right one") if probe.has_key else ("a request without a key", "one")
    return f"{what} is refused at {exchange.request.path} ({probe.masked(exchange.refusal)}); give {which} with --api-key"


# --- catalogue ---
#
# The checks. Each is a row: its id, what it demands, where the demand comes from, how a client suffers
# when it fails, what is asked, how it is judged. A row of level `required` breaks clients when it fails;
# `optional` rows are the finish. The tests use the same table as their manifest: every row has a test that
# it passes and a test that it can fail.

CATALOGUE: tuple[Check, ...] = (*HTTP, *alike("chat"), *CHAT, *alike("responses"), *RESPONSES)
BY_ID = {check.id: check for check in CATALOGUE}
assert len(BY_ID) == len(CATALOGUE)
assert all(name in QUESTIONS for check in CATALOGUE for name in check.asks)


def chosen(patterns: str) -> tuple[Check, ...]:
    """The checks whose id is named, or begins with what is named and a dot: `chat.stream,http`. Raises KeyError for what fits none."""
    wanted = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    for pattern in wanted:
        if not any(_fits(check.id, pattern) for check in CATALOGUE):
            raise KeyError(pattern)
    return tuple(
        check for check in CATALOGUE if not wanted or any(_fits(check.id, pattern) for pattern in wanted)
    )


def _fits(id: str, pattern: str) -> bool:
    return id == pattern or id.startswith(pattern.removesuffix("*").removesuffix(".") + ".")

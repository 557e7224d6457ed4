"""An outcome, shown: a table for people, JSON and JUnit for machines. Foreign text is made safe to show. Pure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from toolwire.conform.catalogue import CATALOGUE
from toolwire.conform.engine import Finding, Outcome
from toolwire.conform.probe import shown
from toolwire.surfaces.shown import one_line

WIDTH = 100
MARKS = {"pass": "pass", "fail": "FAIL", "not-run": "-"}
_IDS = max(len(check.id) for check in CATALOGUE)
_INDENT = " " * 6
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Table:
    """The lines of the table, finding by finding, so that they can be shown as they come."""

    def __init__(self) -> None:
        self._absent: set[str] = set()

    def head(self, base: str, model: str) -> list[str]:
        return [one_line(f"{shown(base)}  model {model}", WIDTH), ""]

    def lines(self, finding: Finding) -> Iterator[str]:
        check, verdict = finding.check, finding.verdict
        if finding.absent:
            if check.family not in self._absent:
                self._absent.add(check.family)
                yield one_line(f"{MARKS['not-run']:<4}  {check.family + '.*':<{_IDS}}  not run: {verdict.seen}", WIDTH)
            return
        start = f"{MARKS[verdict.result]:<4}  {check.id:<{_IDS}}  "
        if verdict.result == "not-run":
            yield from textwrap.wrap(one_line(f"not run: {verdict.seen}", 3 * WIDTH), WIDTH, initial_indent=start, subsequent_indent=" " * len(start))
            return
        yield one_line(start + check.demands, WIDTH)
        if verdict.result != "fail":
            return
        level = "" if check.level == "required" else " (optional)"
        rows = [("demands", check.demands + level), ("seen", verdict.seen)]
        if verdict.excerpt:
            rows.append(("in", f"{verdict.question}: {verdict.excerpt}"))
        for word, text in rows:
            flat = one_line(text, 4 * WIDTH)
            yield from textwrap.wrap(flat, WIDTH, initial_indent=f"{_INDENT}{word:<8}", subsequent_indent=f"{_INDENT}{'':<8}")


def summary(outcome: Outcome) -> str:
    """The last line: the score, and what it is made of."""
    passed, failed = outcome.count("pass"), outcome.count("fail")
    required = (outcome.count("pass", "required"), outcome.count("pass", "required") + outcome.count("fail", "required"))
    return (
        f"score {score(outcome)} %: {passed} of {passed + failed} checks pass ({required[0]} of {required[1]} required), "
        f"{failed} fail, {outcome.count('not-run')} not run"
    )


def score(outcome: Outcome) -> int:
    """Of the checks that could be run, how many in a hundred pass; 100 only when all do."""
    passed, failed = outcome.count("pass"), outcome.count("fail")
    return 100 * passed // (passed + failed) if passed + failed else 0


def as_json(outcome: Outcome, version: str) -> dict[str, Any]:
    """Stable: keys are only added."""
    levels = {level: {result: outcome.count(result, level) for result in ("pass", "fail", "not-run")} for level in ("required", "optional")}
    return {
        "toolwire": version,
        "url": shown(outcome.base),
        "model": outcome.model,
        "score": score(outcome),
        "summary": {**{result: outcome.count(result) for result in ("pass", "fail", "not-run")}, "kept": outcome.kept, **levels},
        "absent": dict(outcome.absent),
        "requests": outcome.requests,
        "checks": [_row(finding) for finding in outcome.findings],
    }


def _row(finding: Finding) -> dict[str, Any]:
    check, verdict = finding.check, finding.verdict
    return {
        "id": check.id,
        "api": check.family,
        "level": check.level,
        "result": verdict.result,
        "demands": check.demands,
        "source": check.source,
        "fails": check.fails,
        "asks": list(check.asks),
        "seen": verdict.seen,
        "question": verdict.question,
        "excerpt": verdict.excerpt,
    }


def junit(outcome: Outcome) -> str:
    """JUnit XML: a suite for each family, a case for each check; not-run is skipped."""
    lines = ['<?xml version="1.0" encoding="utf-8"?>', f"<testsuites name={_attribute('toolwire conform ' + shown(outcome.base))}>"]
    for family in ("http", "chat", "responses"):
        own = [finding for finding in outcome.findings if finding.check.family == family]
        if own:
            fails = sum(finding.verdict.result == "fail" for finding in own)
            skipped = sum(finding.verdict.result == "not-run" for finding in own)
            lines.append(f'  <testsuite name="{family}" tests="{len(own)}" failures="{fails}" errors="0" skipped="{skipped}">')
            lines += [line for finding in own for line in _case(finding)]
            lines.append("  </testsuite>")
    return "\n".join([*lines, "</testsuites>", ""])


def _case(finding: Finding) -> Iterator[str]:
    check, verdict = finding.check, finding.verdict
    opening = f'    <testcase classname="toolwire.conform.{check.family}" name="{check.id}"'
    if verdict.result == "pass":
        yield f"{opening}/>"
        return
    yield f"{opening}>"
    if verdict.result == "fail":
        text = _plain(f"demands: {check.demands}\nseen: {verdict.seen}\nin {verdict.question}: {verdict.excerpt}\nsource: {check.source}")
        yield f"      <failure message={_attribute(verdict.seen)}>{escape(text)}</failure>"
    else:
        yield f"      <skipped message={_attribute(verdict.seen)}/>"
    yield "    </testcase>"


def _plain(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def _attribute(text: str) -> str:
    return quoteattr(_plain(one_line(text, 400)))

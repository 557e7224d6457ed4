"""`toolwire conform URL`: the command.

Exit status 0: every check that ran passes; 1: some fail; 2: the run could not begin or was not complete.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape, quoteattr

from toolwire.conform.engine import CATALOGUE, CheckFinding, ConformOutcome
from toolwire.conform.probe import shown
from toolwire.core.display import one_line

if TYPE_CHECKING:
    from toolwire.conform.checks_both import Check
    from toolwire.conform.engine import CheckFinding, ConformOutcome
    from toolwire.conform.probe import Probe

PASSED, FAILED, NOT_RUN = 0, 1, 2
LIMIT_S = 60.0


def conform_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="the endpoint's base, such as http://127.0.0.1:8788/v1")
    parser.add_argument(
        "--model",
        metavar="M",
        default="",
        help="the model to ask; default: the first that the endpoint lists",
    )
    parser.add_argument(
        "--api-key",
        metavar="K",
        default="",
        help="the key, or env:NAME for a variable that holds it; never shown",
    )
    parser.add_argument(
        "--only",
        metavar="IDS",
        default="",
        help="only these checks, by id or its beginning: chat.stream,http.cors",
    )
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=float,
        default=LIMIT_S,
        help="seconds that one answer may take; default: 60",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object in place of the table")
    parser.add_argument("--junit", metavar="FILE", help="write the findings as JUnit XML, too")


def run_conform(arguments: argparse.Namespace) -> int:
    import asyncio
    from importlib.metadata import version

    from toolwire.conform.engine import NothingToJudge, chosen
    from toolwire.conform.probe import AddressError, Probe, base_of, shown

    try:
        base, key, checks = (
            base_of(arguments.url),
            key_of(arguments.api_key, os.environ),
            chosen(arguments.only),
        )
    except KeyError as error:
        return _said(f"no check is called {error.args[0]!r}; the list stands in docs/conform.md")
    except (AddressError, LookupError) as error:
        return _said(str(error))
    if not 0 < arguments.timeout < float("inf"):
        return _said("--timeout: expected a number of seconds above 0")
    table = Table()
    probe = Probe(base, key, arguments.timeout, waiting=_waits)
    try:
        outcome = asyncio.run(_judge(probe, arguments.model, checks, None if arguments.json else table))
        print(
            json.dumps(as_json(outcome, version("toolwire"))) if arguments.json else f"\n{summary(outcome)}",
            flush=True,
        )
    except NothingToJudge as error:
        return _said(f"{shown(base)}: {error}")
    if arguments.junit:
        try:
            Path(arguments.junit).write_text(junit(outcome), "utf-8")
        except OSError as error:
            return _said(f"{arguments.junit}: {error.strerror or error}")
    if outcome.count("fail"):
        return FAILED
    return (
        _said(f"{shown(base)} had no time for {outcome.busy} of the checks: this is not its whole score")
        if outcome.busy
        else PASSED
    )


async def _judge(probe: Probe, model: str, checks: Sequence[Check], table: Table | None) -> ConformOutcome:
    from toolwire.conform.engine import choose_model, conform

    async with probe:
        model = await choose_model(probe, model)
        if table is None:
            return await conform(probe, model, checks)
        lines = table.head(probe.base, model)  # shown with the first finding: without one there is no table

        def show(finding: CheckFinding) -> None:
            lines.extend(table.lines(finding))
            if lines:
                print("\n".join(lines), flush=True)
            lines.clear()

        return await conform(probe, model, checks, show)


def key_of(given: str, environment: Mapping[str, str]) -> str:
    """The key itself. Raises LookupError where `env:NAME` names a variable that is not set."""
    if not given.startswith("env:"):
        return given
    name = given.removeprefix("env:")
    if not environment.get(name):
        raise LookupError(f"--api-key: the variable {name} is not set")
    return environment[name]


def _waits(status: int, wait_s: float) -> None:
    print(f"toolwire: HTTP {status}: the endpoint asks to wait {wait_s:.3g} s", file=sys.stderr, flush=True)


def _said(line: str) -> int:
    from toolwire.core.display import one_line

    print(f"toolwire: {one_line(line, 400)}", file=sys.stderr)
    return NOT_RUN


# --- report
#
# An outcome, shown: a table for people, JSON and JUnit for machines. Foreign text is made safe to show.
# Pure.

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

    def lines(self, finding: CheckFinding) -> Iterator[str]:
        check, verdict = finding.check, finding.verdict
        if finding.absent:
            if check.family not in self._absent:
                self._absent.add(check.family)
                yield one_line(
                    f"{MARKS['not-run']:<4}  {check.family + '.*':<{_IDS}}  not run: {verdict.seen}", WIDTH
                )
            return
        start = f"{MARKS[verdict.result]:<4}  {check.id:<{_IDS}}  "
        if verdict.result == "not-run":
            yield from textwrap.wrap(
                one_line(f"not run: {verdict.seen}", 3 * WIDTH),
                WIDTH,
                initial_indent=start,
                subsequent_indent=" " * len(start),
            )
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
            yield from textwrap.wrap(
                flat, WIDTH, initial_indent=f"{_INDENT}{word:<8}", subsequent_indent=f"{_INDENT}{'':<8}"
            )


def summary(outcome: ConformOutcome) -> str:
    """The last line: the score, and what it is made of."""
    passed, failed = outcome.count("pass"), outcome.count("fail")
    required = (
        outcome.count("pass", "required"),
        outcome.count("pass", "required") + outcome.count("fail", "required"),
    )
    return (
        f"score {score(outcome)} %: {passed} of {passed + failed} checks pass "
        f"({required[0]} of {required[1]} required), "
        f"{failed} fail, {outcome.count('not-run')} not run"
    )


def score(outcome: ConformOutcome) -> int:
    """Of the checks that could be run, how many in a hundred pass; 100 only when all do."""
    passed, failed = outcome.count("pass"), outcome.count("fail")
    return 100 * passed // (passed + failed) if passed + failed else 0


def as_json(outcome: ConformOutcome, version: str) -> dict[str, Any]:
    """Stable: keys are only added."""
    levels = {
        level: {result: outcome.count(result, level) for result in ("pass", "fail", "not-run")}
        for level in ("required", "optional")
    }
    return {
        "toolwire": version,
        "url": shown(outcome.base),
        "model": outcome.model,
        "score": score(outcome),
        "summary": {
            **{result: outcome.count(result) for result in ("pass", "fail", "not-run")},
            "kept": outcome.busy,
            **levels,
        },
        "absent": dict(outcome.absent),
        "requests": outcome.requests,
        "checks": [_row(finding) for finding in outcome.findings],
    }


def _row(finding: CheckFinding) -> dict[str, Any]:
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


def junit(outcome: ConformOutcome) -> str:
    """JUnit XML: a suite for each family, a case for each check; not-run is skipped."""
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        f"<testsuites name={_attribute('toolwire conform ' + shown(outcome.base))}>",
    ]
    for family in ("http", "chat", "responses"):
        own = [finding for finding in outcome.findings if finding.check.family == family]
        if own:
            fails = sum(finding.verdict.result == "fail" for finding in own)
            skipped = sum(finding.verdict.result == "not-run" for finding in own)
            lines.append(
                f'  <testsuite name="{family}" tests="{len(own)}" failures="{fails}" '
                f'errors="0" skipped="{skipped}">'
            )
            lines += [line for finding in own for line in _case(finding)]
            lines.append("  </testsuite>")
    return "\n".join([*lines, "</testsuites>", ""])


def _case(finding: CheckFinding) -> Iterator[str]:
    check, verdict = finding.check, finding.verdict
    opening = f'    <testcase classname="toolwire.conform.{check.family}" name="{check.id}"'
    if verdict.result == "pass":
        yield f"{opening}/>"
        return
    yield f"{opening}>"
    if verdict.result == "fail":
        text = _plain(
            f"demands: {check.demands}\nseen: {verdict.seen}\n"
            f"in {verdict.question}: {verdict.excerpt}\nsource: {check.source}"
        )
        yield f"      <failure message={_attribute(verdict.seen)}>{escape(text)}</failure>"
    else:
        yield f"      <skipped message={_attribute(verdict.seen)}/>"
    yield "    </testcase>"


def _plain(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def _attribute(text: str) -> str:
    return quoteattr(_plain(one_line(text, 400)))

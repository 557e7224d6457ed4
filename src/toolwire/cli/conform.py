"""`toolwire conform URL`: checks an endpoint, and prints a table, JSON or JUnit XML.

Exit status 0: every check that ran passed; 1: a check failed; 2: the run could not start, or no check failed
but some did not run because the endpoint was busy.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from toolwire.conform.engine import CATALOGUE, CheckFinding, ConformOutcome
from toolwire.conform.exchange import FAMILIES
from toolwire.conform.probe import shown
from toolwire.core.display import one_line
from toolwire.settings.load import secret
from toolwire.settings.types import ConfigError

if TYPE_CHECKING:
    from toolwire.conform.checks_shared import Check
    from toolwire.conform.probe import Probe

LIMIT_S = 60.0


def conform_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("url", metavar="URL", help="the endpoint's base URL, such as http://127.0.0.1:8788/v1")
    add("--model", metavar="M", default="", help="the model; default: the first that the endpoint lists")
    add("--api-key", metavar="K", default="", help="the API key, as env:NAME or file:PATH")
    api = "run only the checks of this API; default: the checks of all APIs, of model lists and of CORS"
    add("--api", choices=FAMILIES[1:], default="", help=api)
    only = "run only the checks with these ids or beginnings of ids, such as chat.stream,http.cors"
    add("--only", metavar="IDS", default="", help=only)
    timeout = "seconds that one answer may take; default: 60"
    add("--timeout", metavar="S", type=float, default=LIMIT_S, help=timeout)
    add("--json", action="store_true", help="one JSON object instead of the table")
    add("--junit", metavar="FILE", help="also write the findings to this file, as JUnit XML")


def run_conform(arguments: argparse.Namespace) -> int:
    import asyncio
    from importlib.metadata import version

    from toolwire.conform.engine import NothingToJudge, chosen
    from toolwire.conform.probe import AddressError, Probe, base_of

    try:
        base, checks = base_of(arguments.url), chosen(arguments.only, arguments.api)
    except KeyError as error:
        of = f" of {arguments.api}" if arguments.api else ""
        raise ConfigError(f"no check{of} is called {error.args[0]!r}; docs/conform.md lists them") from None
    except AddressError as error:
        raise ConfigError(str(error)) from None
    key = secret(arguments.api_key, "--api-key", os.environ) or arguments.api_key
    if not 0 < arguments.timeout < float("inf"):
        raise ConfigError("--timeout: expected a number of seconds above 0")
    probe = Probe(base, key, arguments.timeout, waiting=_waits)
    try:
        outcome = asyncio.run(_judge(probe, arguments.model, checks, None if arguments.json else Table()))
    except NothingToJudge as error:
        raise ConfigError(one_line(f"{shown(base)}: {error}", 400)) from None
    if arguments.json:
        print(json.dumps(as_json(outcome, version("toolwire"))), flush=True)
    else:
        print(f"\n{summary(outcome)}", flush=True)
    if arguments.junit:
        try:
            Path(arguments.junit).write_text(junit(outcome), "utf-8")
        except OSError as error:
            raise ConfigError(f"{arguments.junit}: {error.strerror or error}") from None
    if outcome.count("fail"):
        return 1
    if outcome.busy:
        missing = f"was too busy for {outcome.busy} of the checks: the score is not complete"
        raise ConfigError(f"{shown(base)} {missing}")
    return 0


async def _judge(probe: Probe, model: str, checks: Sequence[Check], table: Table | None) -> ConformOutcome:
    from toolwire.conform.engine import choose_model, conform

    async with probe:
        model = await choose_model(probe, model)
        if table is None:
            return await conform(probe, model, checks)
        lines = table.head(probe.base, model)  # printed together with the first finding

        def show(finding: CheckFinding) -> None:
            lines.extend(table.lines(finding))
            if lines:
                print("\n".join(lines), flush=True)
            lines.clear()

        return await conform(probe, model, checks, show)


def _waits(status: int, wait_s: float) -> None:
    print(
        f"toolwire: busy (HTTP {status}): waiting {wait_s:.3g} s, as Retry-After says",
        file=sys.stderr,
        flush=True,
    )


# --- reports

WIDTH = 100
LEVELS = ("required", "optional")
MARKS = {"pass": "pass", "fail": "FAIL", "not-run": "-"}
_IDS = max(len(check.id) for check in CATALOGUE)
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Table:
    """Formats the table line by line, as findings arrive."""

    def __init__(self) -> None:
        self._absent: set[str] = set()

    def head(self, base: str, model: str) -> list[str]:
        return [one_line(f"{shown(base)}  model {model}", WIDTH), ""]

    def lines(self, finding: CheckFinding) -> Iterator[str]:
        check, verdict = finding.check, finding.verdict
        if finding.absent:
            if check.family not in self._absent:
                self._absent.add(check.family)
                start = f"{MARKS['not-run']:<4}  {check.family + '.*':<{_IDS}}  "
                yield one_line(f"{start}not run: {verdict.seen}", WIDTH)
            return
        start = f"{MARKS[verdict.result]:<4}  {check.id:<{_IDS}}  "
        if verdict.result == "not-run":
            yield from _wrapped(start, f"not run: {verdict.seen}")
            return
        yield one_line(start + check.demands, WIDTH)
        if verdict.result == "fail":
            level = "" if check.level == "required" else " (optional)"
            yield from _wrapped("      demands ", check.demands + level)
            yield from _wrapped("      seen    ", verdict.seen)
            if verdict.excerpt:
                yield from _wrapped("      in      ", f"{verdict.question}: {verdict.excerpt}")


def _wrapped(start: str, text: str) -> list[str]:
    flat = one_line(text, 4 * WIDTH)
    return textwrap.wrap(flat, WIDTH, initial_indent=start, subsequent_indent=" " * len(start))


def summary(outcome: ConformOutcome) -> str:
    """Returns the line with the score and with the numbers of checks that passed, failed and did not run."""
    passed, failed = outcome.count("pass"), outcome.count("fail")
    required = outcome.count("pass", "required")
    of_required = required + outcome.count("fail", "required")
    passes = f"{passed} of {passed + failed} checks pass ({required} of {of_required} required)"
    return f"score {score(outcome)} %: {passes}, {failed} fail, {outcome.count('not-run')} not run"


def score(outcome: ConformOutcome) -> int:
    """Returns which percentage of the checks that ran have passed, rounded down; 0 if none ran."""
    passed, failed = outcome.count("pass"), outcome.count("fail")
    return 100 * passed // (passed + failed) if passed + failed else 0


def as_json(outcome: ConformOutcome, version: str) -> dict[str, Any]:
    """Returns the result as JSON. The format is stable: new versions only add keys."""
    counts: dict[str, Any] = {result: outcome.count(result) for result in MARKS}
    levels = {level: {result: outcome.count(result, level) for result in MARKS} for level in LEVELS}
    return {
        "toolwire": version,
        "url": shown(outcome.base),
        "model": outcome.model,
        "score": score(outcome),
        "summary": {**counts, "kept": outcome.busy, **levels},
        "absent": dict(outcome.absent),
        "requests": outcome.requests,
        "checks": [_row(finding) for finding in outcome.findings],
    }


def _row(finding: CheckFinding) -> dict[str, Any]:
    check, verdict = finding.check, finding.verdict
    head = {"id": check.id, "api": check.family, "level": check.level, "result": verdict.result}
    about = {"demands": check.demands, "source": check.source, "fails": check.fails, "asks": list(check.asks)}
    found = {"seen": verdict.seen, "question": verdict.question, "excerpt": verdict.excerpt}
    return {**head, **about, **found}


def junit(outcome: ConformOutcome) -> str:
    """Returns JUnit XML: a suite for each family of checks, a case for each check.

    A check that did not run counts as skipped.
    """
    root = Element("testsuites", name=_plain(f"toolwire conform {shown(outcome.base)}"))
    for family in FAMILIES:
        own = [finding for finding in outcome.findings if finding.check.family == family]
        if own:
            results = Counter(finding.verdict.result for finding in own)
            counts = {"tests": len(own), "failures": results["fail"], "skipped": results["not-run"]}
            suite = SubElement(root, "testsuite", name=family, errors="0")
            suite.attrib.update({name: str(count) for name, count in counts.items()})
            for finding in own:
                _add_case(suite, finding)
    indent(root)
    return tostring(root, "unicode", xml_declaration=True) + "\n"


def _add_case(suite: Element, finding: CheckFinding) -> None:
    check, verdict = finding.check, finding.verdict
    case = SubElement(suite, "testcase", classname=f"toolwire.conform.{check.family}", name=check.id)
    seen = _plain(one_line(verdict.seen, 400))
    if verdict.result == "fail":
        text = f"demands: {check.demands}\nseen: {verdict.seen}\n"
        text += f"in {verdict.question}: {verdict.excerpt}\nsource: {check.source}"
        SubElement(case, "failure", message=seen).text = _plain(text)
    elif verdict.result == "not-run":
        SubElement(case, "skipped", message=seen)


def _plain(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)

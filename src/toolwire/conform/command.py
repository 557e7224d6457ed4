"""`toolwire conform URL`: the command.

Exit status 0: every check that could be run passes; 1: some fail; 2: the run could not begin, or the endpoint had no time for all of it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from toolwire.conform.check import Check
    from toolwire.conform.engine import Finding, Outcome
    from toolwire.conform.probe import Probe
    from toolwire.conform.report import Table

PASSED, FAILED, NOT_RUN = 0, 1, 2
LIMIT_S = 60.0


def conform_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="the endpoint's base, such as http://127.0.0.1:8788/v1")
    parser.add_argument("--model", metavar="M", default="", help="the model to ask; default: the first that the endpoint lists")
    parser.add_argument("--api-key", metavar="K", default="", help="the key, or env:NAME for a variable that holds it; never shown")
    parser.add_argument("--only", metavar="IDS", default="", help="only these checks, by id or its beginning: chat.stream,http.cors")
    parser.add_argument("--timeout", metavar="S", type=float, default=LIMIT_S, help="seconds that one answer may take; default: 60")
    parser.add_argument("--json", action="store_true", help="one JSON object in place of the table")
    parser.add_argument("--junit", metavar="FILE", help="write the findings as JUnit XML, too")


def run_conform(arguments: argparse.Namespace) -> int:
    import asyncio
    from importlib.metadata import version

    from toolwire.conform.catalogue import chosen
    from toolwire.conform.engine import NothingToJudge
    from toolwire.conform.probe import AddressError, Probe, base_of, shown
    from toolwire.conform.report import Table, as_json, junit, summary

    try:
        base, key, checks = base_of(arguments.url), key_of(arguments.api_key, os.environ), chosen(arguments.only)
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
        print(json.dumps(as_json(outcome, version("toolwire"))) if arguments.json else f"\n{summary(outcome)}", flush=True)
    except NothingToJudge as error:
        return _said(f"{shown(base)}: {error}")
    if arguments.junit:
        try:
            Path(arguments.junit).write_text(junit(outcome), "utf-8")
        except OSError as error:
            return _said(f"{arguments.junit}: {error.strerror or error}")
    if outcome.count("fail"):
        return FAILED
    return _said(f"{shown(base)} had no time for {outcome.kept} of the checks: this is not its whole score") if outcome.kept else PASSED


async def _judge(probe: Probe, model: str, checks: Sequence[Check], table: Table | None) -> Outcome:
    from toolwire.conform.engine import choose_model, conform

    async with probe:
        model = await choose_model(probe, model)
        if table is None:
            return await conform(probe, model, checks)
        lines = table.head(probe.base, model)  # shown with the first finding: without one there is no table

        def show(finding: Finding) -> None:
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
    from toolwire.surfaces.shown import one_line

    print(f"toolwire: {one_line(line, 400)}", file=sys.stderr)
    return NOT_RUN

"""`toolwire doctor`: shows what works, what is missing, and the command that fixes it."""

from __future__ import annotations

import argparse
import asyncio
import json
import os

from toolwire.cli.checks import CHECKS, Finding, problem
from toolwire.core.display import one_line
from toolwire.settings.load import load
from toolwire.settings.types import DEFAULT_MODELS, ConfigError, Settings
from toolwire.store.engine import first_line

LOOK_S = 30.0
WIDEST = 1000


def doctor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="a JSON list, for scripts")


def run_doctor(arguments: argparse.Namespace) -> int:
    """Prints the report. Returns exit status 1 if there is a problem."""
    settings, findings = _loaded(arguments.config)
    findings += asyncio.run(examine(settings))
    print(json.dumps([_as_json(finding) for finding in findings]) if arguments.json else report(findings))
    return 1 if any(finding.mark == "problem" for finding in findings) else 0


def _as_json(finding: Finding) -> dict[str, str]:
    """Returns a finding with the keys that scripts rely on."""
    return {"subject": finding.subject, "mark": finding.mark, "told": finding.text, "fix": finding.fix}


def _loaded(config: str | None) -> tuple[Settings, list[Finding]]:
    """Loads the settings with defaults for invalid values. Also returns a finding for each mistake."""
    problems: list[str] = []
    try:
        settings = load(config, os.environ, {}, exposed=False, problems=problems)
    except Exception as error:
        settings = Settings(models=DEFAULT_MODELS)
        problems.append(first_line(error))
    findings = [problem("settings", line, _settings_fix(line)) for line in problems]
    if settings.page_problem:
        fix = f"correct or delete {settings.page_file}; then use the settings page again"
        findings.append(problem("settings page", settings.page_problem, fix))
    return settings, findings


def _settings_fix(line: str) -> str:
    """Returns what to do about a mistake in the settings, depending on where the mistake is."""
    where = line.partition(": ")[0]
    if where.startswith("environment "):
        return f"correct or unset the variable {where.removeprefix('environment ')}"
    if where in ("--config", "TOOLWIRE_CONFIG"):
        return f"name the settings file with {where}"
    if "environment variable" in line:
        return f"set the variable, or correct {where}"
    if not os.path.exists(where):
        return "correct the settings; docs/configuration.md has every key"
    if "cannot be read" in line:
        return f"make the file readable, for example with: chmod u+r {where}"
    return f"correct {where}; docs/configuration.md has every key"


async def examine(settings: Settings) -> list[Finding]:
    """Returns all findings, in the order of the checks.

    A check that fails or takes too long becomes a finding.
    """
    out: list[Finding] = []
    for check in CHECKS:
        name = check.__name__.strip("_")
        try:
            async with asyncio.timeout(LOOK_S):
                async for finding in check(settings):
                    out.append(finding)
        except TimeoutError:
            out.append(problem(name, f"no answer within {LOOK_S:g} s", "start it again, or disable it"))
        except ConfigError as error:
            out.append(problem(name, str(error), f"correct {settings.file or 'the settings'}"))
        except Exception as error:
            out.append(
                problem(name, f"{type(error).__name__}: {first_line(error)}", "toolwire --debug doctor")
            )
    return out


def report(findings: list[Finding]) -> str:
    """Returns the findings as text. Control characters are escaped, as some texts come from servers."""
    signs = {"ok": "✓", "missing": "–", "problem": "✗"}
    subjects = [one_line(finding.subject) for finding in findings]
    width = max(map(len, subjects), default=0)
    lines = []
    for subject, finding in zip(subjects, findings, strict=True):
        lines.append(f"{signs[finding.mark]} {subject.ljust(width)}  {one_line(finding.text, WIDEST)}")
        if finding.fix:
            lines.append(f"  {' ' * width}  → {one_line(finding.fix, WIDEST)}")
    return "\n".join(lines)

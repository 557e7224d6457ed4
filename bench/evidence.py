"""`make evidence`: runs the long versions of what the tests show in short, and writes docs/evidence.md.

The sections are data: a name, a title, a command and a reader of what it left. `--only NAME` runs one of them again and keeps the others on the
page; `--quick` runs short versions, to see that everything works. Exit status: 0 all went well, 1 something failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:1] = [str(ROOT)]

from bench.report import Row, machine, markdown, today  # noqa: E402

PAGE = ROOT / "docs" / "evidence.md"
WORK = Path("bench") / "work"
JOBS = str(len(os.sched_getaffinity(0)))


class Reading(NamedTuple):
    """What a section showed: figures in a line, whether it went well (None: nothing to judge), and Markdown for the page."""

    figures: str
    passed: bool | None
    details: str


@dataclass(frozen=True, slots=True)
class Section:
    """`command` and `quick` are arguments of the project's Python, run in the checkout; `left` is the file it leaves, given to `read` as JSON."""

    name: str
    title: str
    command: tuple[str, ...]
    quick: tuple[str, ...]
    left: Path
    read: Callable[[Any], Reading]


# --- readers -------------------------------------------------------------------------------------------------------------------------------------


def read_fuzz(told: Any) -> Reading:
    failures = told["failures"]
    figures = f"{told['cases']:,} cases of {len(told['laws'])} laws in {told['seconds']:,.0f} s, seed {told['seed']}: {len(failures)} failed"
    failed = {name: sum(failure["law"] == name for failure in failures) for name in told["laws"]}
    lines = ["| law | says | cases | failed |", "|---|---|---|---|"]
    lines += [f"| {name} | {told['says'].get(name, '')} | {count:,} | {failed[name]} |" for name, count in told["laws"].items()]
    shown = [f"- `{failure['law']}`, case {failure['number']}: `{failure['case'][:400]}`" for failure in failures[:10]]
    return Reading(figures, not failures, "\n".join([*lines, *([""] if shown else []), *shown]))


def read_rows(told: Any) -> Reading:
    rows = [Row(**row) for row in told["rows"]]
    judged = [row for row in rows if row.sense]
    met = sum(row.verdict == "pass" for row in judged)
    notes = [f"- {note}" for note in told["notes"]]
    return Reading(f"{met} of {len(judged)} targets met", met == len(judged), "\n".join([markdown(rows), *([""] if notes else []), *notes]))


# --- what is run ---------------------------------------------------------------------------------------------------------------------------------

FUZZ, SCANNER, GATEWAY = WORK / "fuzz.json", WORK / "scanner.json", WORK / "gateway.json"
SECTIONS: tuple[Section, ...] = (
    Section(
        "fuzz",
        "Random cases of the laws",
        ("fuzz/run.py", "--cases", "1000000", "--jobs", JOBS, "--json", str(FUZZ)),
        ("fuzz/run.py", "--cases", "20000", "--jobs", JOBS, "--json", str(FUZZ)),
        FUZZ,
        read_fuzz,
    ),
    Section(
        "scanner",
        "The scanner's cost, by size and on hostile texts",
        ("-m", "bench", "scanner", "--rounds", "3", "--json", str(SCANNER)),
        ("-m", "bench", "scanner", "--quick", "--json", str(SCANNER)),
        SCANNER,
        read_rows,
    ),
    Section(
        "gateway",
        "The gateway beside its baselines",
        ("-m", "bench", "gateway", "--rounds", "7", "--json", str(GATEWAY)),
        ("-m", "bench", "gateway", "--quick", "--json", str(GATEWAY)),
        GATEWAY,
        read_rows,
    ),
)


def run(section: Section, quick: bool) -> tuple[dict[str, Any], str]:
    """Runs a section; its line of the table of contents, and its block on the page."""
    words = section.quick if quick else section.command
    left = ROOT / section.left
    left.parent.mkdir(exist_ok=True)
    left.unlink(missing_ok=True)
    print(f"== {section.title}: python {' '.join(words)}", flush=True)
    began = time.monotonic()
    status = subprocess.run([sys.executable, *words], cwd=ROOT, check=False).returncode
    took = time.monotonic() - began
    if left.exists():
        reading = section.read(json.loads(left.read_text()))
    else:
        reading = Reading(f"the command ended with status {status} and left nothing", False, "")
    verdict = {True: "pass", False: "FAIL" if section.name == "fuzz" or not left.exists() else "some missed", None: ""}[reading.passed]
    line = {"name": section.name, "title": section.title, "figures": reading.figures, "verdict": verdict, "date": today(), "seconds": round(took)}
    line |= {"command": f".venv/bin/python {' '.join(words)}", "machine": machine()}
    return line, reading.details


# --- the page ------------------------------------------------------------------------------------------------------------------------------------

_BLOCK = re.compile(r"<!-- evidence (\{.*?\}) -->\n(.*?)(?=\n<!-- evidence |\Z)", re.S)
INTRODUCTION = """# Evidence

The long versions of what `make test` shows in short. `make evidence` runs them all; a line's command runs one of them alone."""


def existing(page: Path) -> dict[str, tuple[dict[str, Any], str]]:
    """The sections that the page holds already, by name."""
    if not page.exists():
        return {}
    found = [(json.loads(head), body) for head, body in _BLOCK.findall(page.read_text())]
    return {head["name"]: (head, body.split("\n\n", 2)[-1].strip()) for head, body in found}


def compose(sections: Sequence[tuple[dict[str, Any], str]]) -> str:
    out = [INTRODUCTION, "", "| what | figures | verdict | when | took | command |", "|---|---|---|---|---|---|"]
    for head, _ in sections:
        out.append(f"| {head['title']} | {head['figures']} | {head['verdict']} | {head['date']} | {head['seconds']} s | `{head['command']}` |")
    for head, details in sections:
        out += [
            "",
            f"<!-- evidence {json.dumps(head, ensure_ascii=False)} -->",
            f"## {head['title']}",
            "",
            f"Run {head['date']} on {head['machine']}.",
        ]
        out += ["", details]
    return "\n".join(out).rstrip() + "\n"


def main(argv: list[str] | None = None) -> int:
    names = [section.name for section in SECTIONS]
    parser = argparse.ArgumentParser(description="Runs the long checks and writes docs/evidence.md.")
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help=f"one of {', '.join(names)}; the page keeps the others")
    parser.add_argument("--quick", action="store_true", help="short versions")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page to write")
    arguments = parser.parse_args(argv)
    held = existing(arguments.page)
    for section in SECTIONS:
        if not arguments.only or section.name in arguments.only:
            held[section.name] = run(section, arguments.quick)
            arguments.page.parent.mkdir(exist_ok=True)
            arguments.page.write_text(compose([held[name] for name in names if name in held]))  # after each: a long run may be cut short
    failed = [name for name, (head, _) in held.items() if head["verdict"] == "FAIL"]
    print(f"written to {arguments.page.name}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

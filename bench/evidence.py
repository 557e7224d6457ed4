"""`make evidence`: runs long versions of tests and benchmarks, writes docs/evidence.md.

A section of the page has a name, a title, a command, and a function that reads the file that the command
writes. `--only NAME` runs one section again and keeps the other sections on the page. `--quick` runs short
versions, to check that everything works. Exit status: 1 if a section failed, otherwise 0.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:1] = [str(ROOT)]

from bench.__main__ import EXPLAINED  # noqa: E402
from bench.report import Row, machine, markdown, today  # noqa: E402

PAGE = ROOT / "docs" / "evidence.md"
WORK = Path("bench") / "work"
JOBS = str(len(os.sched_getaffinity(0)))


class Reading(NamedTuple):
    """A section's result: a line of figures, whether it passed (None: not judged), details as Markdown."""

    figures: str
    passed: bool | None
    details: str


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the page, and how its figures are made.

    `about` explains on the page what the command tests or measures.

    `command` and `quick` (the short version) are arguments for Python, which runs in the checkout. `left` is
    the file that the command writes. `read` gets the content of this file: parsed if it is JSON, otherwise as
    text.
    """

    name: str
    title: str
    command: tuple[str, ...]
    quick: tuple[str, ...]
    left: Path
    read: Callable[[Any], Reading]
    variables: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Environment variables: a value for `command` and one for `quick`."""
    must: bool = False
    """If True, a missed target is a failure. If False, the page only reports that some were missed."""
    about: str = ""


# --- readers ---


def read_fuzz(data: Any) -> Reading:
    failures = data["failures"]
    figures = (
        f"{data['cases']:,} cases of {len(data['laws'])} laws in {data['seconds']:,.0f} s, seed "
        f"{data['seed']}: {len(failures)} failed"
    )
    failed = {name: sum(failure["law"] == name for failure in failures) for name in data["laws"]}
    lines = ["| law | what must hold | cases | failed |", "|---|---|---|---|"]
    lines += [
        f"| {name} | {data['says'].get(name, '')} | {count:,} | {failed[name]} |"
        for name, count in data["laws"].items()
    ]
    shown = [
        f"- `{failure['law']}`, case {failure['number']}: `{failure['case'][:400]}`"
        for failure in failures[:10]
    ]
    return Reading(figures, not failures, "\n".join([*lines, *([""] if shown else []), *shown]))


def read_dialects(data: Any) -> Reading:
    """Reads the results of `bench/dialects.py`.

    A call that was cut off was read as text, as a truncated call, or (because only its closing markup was
    missing) as a complete call.
    """
    lines = [
        "| dialect | texts | calls read back | texts cut | cuts | read as text | read as truncated | read as "
        "complete | failed |",
        "|" + "---|" * 9,
    ]
    for one in data["dialects"]:
        cells = (one["texts"], one["calls"], one["cut"], sum(one["told"]), *one["told"], len(one["failures"]))
        lines.append(f"| `{one['dialect']}` | " + " | ".join(f"{cell:,}" for cell in cells) + " |")
    failures = [(one["dialect"], failure) for one in data["dialects"] for failure in one["failures"]]
    shown = [
        f"- `{name}`, {failure['law']} {failure['number']}: `{failure['case'][:400]}`"
        for name, failure in failures[:10]
    ]
    texts, cuts = (
        sum(counts)
        for counts in zip(*((one["texts"], sum(one["told"])) for one in data["dialects"]), strict=True)
    )
    figures = (
        f"{len(data['dialects'])} dialects, {texts:,} texts read back at random splits, {cuts:,} cuts, "
        f"seed {data['seed']}"
    )
    return Reading(
        f"{figures}: {len(failures)} failed",
        not failures,
        "\n".join([*lines, *([""] if shown else []), *shown]),
    )


def read_rows(data: Any) -> Reading:
    rows = [Row(**row) for row in data["rows"]]
    judged = [row for row in rows if row.sense]
    met = sum(row.verdict == "pass" for row in judged)
    notes = [f"- {note}" for note in data["notes"]]
    passed = met == len(judged) if judged else None
    figures = f"{met} of {len(judged)} targets met" if judged else "nothing measured"
    return Reading(figures, passed, "\n".join([markdown(rows), *([""] if notes else []), *notes]))


def read_tables(data: Any) -> Reading:
    """Reads the tables that `bench/bfcl.py` writes. The first row of a table has its headings."""
    tables = []
    for head, *rows in data["tables"]:
        lines = [head, ["---"] * len(head), *rows]
        tables.append("\n".join(f"| {' | '.join(cells)} |" for cells in lines))
    notes = "\n".join(f"- {note}" for note in data["notes"])
    return Reading(data["figures"], None, "\n\n".join([*tables, notes]))


OUTCOMES = "outcomes: "
"""The beginning of a line that a test prints for the page."""


def read_tests(data: str) -> Reading:
    """Reads pytest's XML report, which includes the lines that a test printed."""
    suite = ElementTree.fromstring(data).find("testsuite")
    assert suite is not None
    counts = {name: int(suite.get(name, "0")) for name in ("tests", "skipped", "failures", "errors")}
    lost = counts["failures"] + counts["errors"]
    ran = counts["tests"] - counts["skipped"]
    notes = [
        (note.get("message") or "").strip()
        for kind in ("skipped", "failure", "error")
        for note in suite.iter(kind)
    ]
    printed = [
        line.removeprefix(OUTCOMES)
        for out in suite.iter("system-out")
        for line in (out.text or "").splitlines()
        if line.startswith(OUTCOMES)
    ]
    figures = f"{ran} test{'s' * (ran != 1)} ran, {lost} failed" if ran else "skipped"
    return Reading(
        "; ".join([figures, *notes]),
        lost == 0 if ran else None,
        "\n".join([*(f"- `{note}`" for note in notes if note), *(f"- {line}" for line in printed)]),
    )


def read_steps(data: Any) -> Reading:
    """Reads the steps of a new user's first minute, with their times."""
    steps = data["steps"]
    called, arguments = data["call"]
    lines = [
        "| step | time |",
        "|---|---|",
        *(f"| {name} | {seconds:.1f} s |" for name, seconds in steps.items()),
    ]
    began = (data["answer"].strip().splitlines() or [""])[0][
        :120
    ]  # shortened: the model's text may contain Markdown
    said = (
        f"- The model `{data['model']}` called `{called}({json.dumps(arguments)})`, and the answer began: "
        f"{began}"
    )
    return Reading(
        f"{sum(steps.values()):.0f} s from nothing to an answer that uses a tool's result",
        True,
        "\n".join([*lines, "", said]),
    )


# --- what is run ---

FUZZ, SCANNER, GATEWAY, CODEX = (
    WORK / "fuzz.json",
    WORK / "scanner.json",
    WORK / "gateway.json",
    WORK / "codex.json",
)
DIALECTS = WORK / "dialects.json"
HOSTILE, ONE_HOSTILE = WORK / "hostile.json", WORK / "one-hostile.json"
FAULTS, FIRST = WORK / "faults.json", WORK / "first-minute.json"
LOCAL, LOCAL_CALLS, VAULT = WORK / "local.json", WORK / "local-calls.json", WORK / "vault.json"
PROXY = WORK / "proxy.json"
BFCL = WORK / "bfcl.json"


def tested(
    name: str, title: str, file: str, which: str, variables: Mapping[str, tuple[str, str]], about: str
) -> Section:
    """Returns a section for tests that have a long version.

    `variables` enable the long version. The time limit is long enough for the long version.
    """
    left = WORK / f"{name}.xml"
    report = ("--timeout=1800", "-o", "junit_logging=system-out", f"--junitxml={left}")
    command = ("-m", "pytest", "-q", f"tests/{file}", "-k", which, *report)
    return Section(name, title, command, command, left, read_tests, variables, True, about)


SECTIONS: tuple[Section, ...] = (
    Section(
        "first-minute",
        "A new user's path: clone, make serve, the first tool call by an SDK",
        ("bench/first_minute.py", "--json", str(FIRST)),
        ("bench/first_minute.py", "--json", str(FIRST)),
        FIRST,
        read_steps,
        must=True,
        about="""\
In an empty folder: clone the repository, run `make serve`, install the package `openai` in a separate
environment, and run a program that lets the model call a tool.""",
    ),
    Section(
        "fuzz",
        "The laws with random input",
        ("fuzz/run.py", "--cases", "1000000", "--jobs", JOBS, "--json", str(FUZZ)),
        ("fuzz/run.py", "--cases", "20000", "--jobs", JOBS, "--json", str(FUZZ)),
        FUZZ,
        read_fuzz,
        must=True,
        about="""\
The tests check [the laws of the design](architecture.md#the-laws) with random input. Each row is one property
that must hold.""",
    ),
    Section(
        "dialects",
        "Every dialect: calls at random splits, and cut off at every position",
        ("bench/dialects.py", "--cases", "1000", "--cuts", "50", "--jobs", JOBS, "--json", str(DIALECTS)),
        ("bench/dialects.py", "--cases", "50", "--cuts", "2", "--jobs", JOBS, "--json", str(DIALECTS)),
        DIALECTS,
        read_dialects,
        must=True,
        about="""\
A *dialect* is a format in which models write calls. First, random calls are written in each dialect, the
text is split into chunks at random, and the scanner must read the same calls back. Then texts are cut off at
every position. A call that was cut off must be read as text or as a truncated call. It may be read as
complete only if nothing but its closing markup is missing.""",
    ),
    Section(
        "scanner",
        "The scanner's cost, by size and on hostile texts",
        ("-m", "bench", "scanner", "--rounds", "3", "--json", str(SCANNER)),
        ("-m", "bench", "scanner", "--quick", "--json", str(SCANNER)),
        SCANNER,
        read_rows,
        about=EXPLAINED["scanner"],
    ),
    Section(
        "gateway",
        "The gateway compared with its baselines",
        ("-m", "bench", "gateway", "--rounds", "3", "--json", str(GATEWAY)),
        ("-m", "bench", "gateway", "--quick", "--json", str(GATEWAY)),
        GATEWAY,
        read_rows,
        about=f"""{EXPLAINED["gateway"]}

In rows such as *relay: plain*, the *result* is the CPU time per request. The *figures* are the times that the
clients waited: until the end of the answer (p50 and p99), and until the first token.""",
    ),
    tested(
        "codex-park",
        "A parked Codex turn continues after a long wait",
        "backends/codex/test_codex_gateway.py",
        "long_park",
        {"TOOLWIRE_LONG_PARK_S": ("360", "5")},
        """\
Codex calls a tool, and the client sends the result six minutes later. The same run must continue
([parked turns](parked.md)).""",
    ),
    tested(
        "codex-kills",
        "Codex killed at random moments",
        "backends/codex/test_codex_gateway.py",
        "kill_9",
        {"TOOLWIRE_KILL_ROUNDS": ("50", "3")},
        """\
In 50 rounds, all processes of Codex are killed at a random moment of a tool loop. The client must get an
answer or one clear error, and the next request must work.""",
    ),
    tested(
        "claude-code",
        "Claude Code with every strategy for tools, in different scenarios and configurations",
        "conform/test_claude_code.py",
        "claude",
        {"TOOLWIRE_CLAUDE_CODE": ("all", "few")},
        """\
Claude Code works on files through Toolwire. The model is scripted or is Codex, so that every
[strategy](architecture.md#strategies) is tested. The tests check what Claude Code's tools did, what arrived
at the gateway, and what Claude Code answered.""",
    ),
    Section(
        "codex-bench",
        "Codex through Toolwire, compared with Codex used directly",
        ("-m", "bench", "codex", "--rounds", "9", "--json", str(CODEX)),
        ("-m", "bench", "codex", "--quick", "--json", str(CODEX)),
        CODEX,
        read_rows,
        about=EXPLAINED["codex"],
    ),
    Section(
        "local-calls",
        "Required calls of the embedded model, with 200 different schemas",
        ("-m", "bench.local_calls", "--count", "200", "--json", str(LOCAL_CALLS)),
        ("-m", "bench.local_calls", "--count", "10", "--json", str(LOCAL_CALLS)),
        LOCAL_CALLS,
        read_rows,
        must=True,
        about="""\
The embedded model [runs inside Toolwire](local.md). Each request has one tool with its own schema, and
requires a call of this tool. The same requests also go to llama.cpp's own tool calling, with the same
model.""",
    ),
    Section(
        "local",
        "The embedded model compared with llama.cpp's own server",
        ("-m", "bench", "local", "--rounds", "9", "--json", str(LOCAL)),
        ("-m", "bench", "local", "--quick", "--json", str(LOCAL)),
        LOCAL,
        read_rows,
        about=EXPLAINED["local"],
    ),
    Section(
        "bfcl",
        "The embedded models: cases of BFCL, speed, memory, and tasks in a vault",
        ("-m", "bench.bfcl", "--per", "5", "--json", str(BFCL)),
        ("-m", "bench.bfcl", "--per", "1", "--json", str(BFCL)),
        BFCL,
        read_tables,
        about="""\
BFCL is a public collection of test cases for tool calls. The first table shows how many cases of each
category are right. In the category *irrelevance*, the right answer has no call. The tasks at the end are
about a small vault of notes.""",
    ),
    tested(
        "cursor-park",
        "A parked Cursor turn continues after a long wait",
        "backends/cursor/test_cursor_gateway.py",
        "long_park",
        {"TOOLWIRE_LONG_PARK_S": ("330", "5")},
        """\
An agent of Cursor calls a tool, and the client sends the result 330 seconds later. The same run must
continue. A script replaces Cursor's *bridge*, the [program that runs Cursor's agents](cursor.md).""",
    ),
    tested(
        "cursor-sdk-park",
        "Cursor's official client with the script that replaces Cursor's bridge",
        "backends/cursor/test_cursor_contract.py",
        "parallel_parked",
        {"TOOLWIRE_LONG_PARK_S": ("330", "5")},
        """\
Toolwire's tests replace Cursor's bridge by a script. This test shows that Cursor's official client works
with the script: two calls run in parallel, and their results come after 330 seconds.""",
    ),
    tested(
        "cursor-rounds",
        "Cursor's bridge started and killed",
        "backends/cursor/test_cursor_life.py",
        "rounds_of",
        {"TOOLWIRE_CURSOR_ROUNDS": ("100", "5")},
        """\
In 100 rounds, a bridge is started, and then closed, cancelled or killed. No process or folder may remain.""",
    ),
    tested(
        "cursor-memory",
        "Memory over many Cursor turns",
        "backends/cursor/test_cursor_life.py",
        "memory_does",
        {"TOOLWIRE_CURSOR_TURNS": ("500", "60")},
        """\
Toolwire's memory must not grow over 500 turns of a Cursor agent.""",
    ),
    tested(
        "acp-rounds",
        "ACP agents started and killed",
        "backends/acp/test_acp_life.py",
        "rounds_of_starts",
        {"TOOLWIRE_ACP_ROUNDS": ("100", "5")},
        """\
In 100 rounds, an agent is started. Then it exits with an error, receives a signal that kills or stops it, or
is closed by Toolwire. No process or folder may remain.""",
    ),
    tested(
        "acp-memory",
        "Memory over many turns of an ACP agent",
        "backends/acp/test_acp_life.py",
        "memory_is_flat",
        {"TOOLWIRE_ACP_TURNS": ("500", "60")},
        """\
Toolwire's memory must not grow over 500 tool loops of an agent, most of them in a new session.""",
    ),
    tested(
        "acp-park",
        "A parked OpenCode turn continues after a long wait",
        "backends/acp/test_acp_real.py",
        "opencode_parks",
        {"TOOLWIRE_ACP_PARK_S": ("330", "5")},
        """\
The real OpenCode, with a scripted model, calls tools; the clients send the results 330 seconds later. The
same runs must continue, with chat completions and with Responses.""",
    ),
    Section(
        "proxy",
        "An MCP server behind Toolwire, compared with the same server used directly",
        ("-m", "bench", "proxy", "--json", str(PROXY)),
        ("-m", "bench", "proxy", "--quick", "--json", str(PROXY)),
        PROXY,
        read_rows,
        about=EXPLAINED["proxy"],
    ),
    Section(
        "vault",
        "Search in a vault, compared with a scan and ripgrep",
        ("-m", "bench", "vault", "--json", str(VAULT)),
        ("-m", "bench", "vault", "--quick", "--json", str(VAULT)),
        VAULT,
        read_rows,
        about=EXPLAINED["vault"],
    ),
    tested(
        "web",
        "Long turns in the web pages, compared with a plain page with the same text",
        "web/test_smooth.py",
        "stays_smooth",
        {"TOOLWIRE_SMOOTH_ROUNDS": ("15", "1")},
        """\
In a real browser, a long answer arrives in the chat, and a long turn is opened on the wire page. The test
measures the longest task that blocks the page. It may take at most three times as long as on a plain page
that only shows the same text. (Times below 50 ms count as 50 ms.)""",
    ),
    Section(
        "faults",
        "Two nodes, nginx, Redis and PostgreSQL: 200 streams of tool loops, and each fault in turn",
        ("-m", "bench.faults", "--json", str(FAULTS)),
        ("-m", "bench.faults", "--quick", "--json", str(FAULTS)),
        FAULTS,
        read_rows,
        must=True,
        about="""\
Two nodes behind nginx serve streams of tool loops, while one fault after the other happens. Every request
must end with the right answer, or with one clear error that a fault explains. In the rows *right answers
again after*, the *result* is the time from the end of a fault until everything works again. The *figures* say
how long the fault lasted, and how the requests during the fault and this time ended. *Cut* means that the
connection broke off, and *in-band* that the error was part of a stream.""",
    ),
    tested(
        "web-axe",
        "axe-core on every page and state, in every theme and width",
        "web/test_axe.py",
        "axe",
        {"TOOLWIRE_AXE_LOOKS": ("4", "1")},
        """\
axe-core checks web pages for accessibility. It must find no violation on any page of Toolwire, in the light
and the dark theme, on a wide screen and on a phone.""",
    ),
    tested(
        "vault-kills",
        "Writers and indexers killed at random moments",
        "vault",
        "killed",
        {"TOOLWIRE_KILL_ROUNDS": ("200", "3")},
        """\
A process is killed at a random moment while it writes notes or builds the index of a vault, 200 times each.
Every note must have its old or its new content, and the next build must complete the index.""",
    ),
    Section(
        "hostile",
        "Honest clients among slow, silent, half-open and flooding ones",
        ("-m", "bench.hostile", "--seconds", "60", "--json", str(HOSTILE)),
        ("-m", "bench.hostile", "--seconds", "5", "--json", str(HOSTILE)),
        HOSTILE,
        read_rows,
        about="""\
Ten honest clients run tool loops, first alone and then beside 340 hostile clients. These send or read slowly,
send nothing, leave connections half open, or send too many requests.""",
    ),
    Section(
        "one-hostile",
        "Other clients beside one hostile WebSocket or one hostile key, without limits",
        ("-m", "bench.one_hostile", "--seconds", "20", "--json", str(ONE_HOSTILE)),
        ("-m", "bench.one_hostile", "--seconds", "2", "--rounds", "1", "--json", str(ONE_HOSTILE)),
        ONE_HOSTILE,
        read_rows,
        about="""\
Four clients run tool loops while another client is hostile: it floods a WebSocket, or uses its key to fill
memory or to flood the server with requests. The server has no limits. *Time* is the time of a tool loop.
In the rows *beside …*, the result is the ratio to the row *no hostile client*.""",
    ),
    tested(
        "soak",
        "Fifty streams with tool loops for ten minutes",
        "service/test_soak.py",
        "soak",
        {"TOOLWIRE_SOAK_S": ("600", "20")},
        """\
Fifty clients run tool loops for ten minutes; some of them disconnect in the middle of an answer. Memory must
stay flat, and no task, parked run, connection or process may be left at the end.""",
    ),
    tested(
        "schema-fuzz",
        "Random requests from OpenAI's schema, and random bytes for the decoders",
        "service/test_schema_fuzz.py",
        "no_",
        {"TOOLWIRE_FUZZ_REQUESTS": ("10000", "100"), "TOOLWIRE_FUZZ_INPUTS": ("1000000", "10000")},
        """\
Random requests that follow OpenAI's schema go to a running server. None may cause an error of the server
itself. Random bytes go to the decoders of requests, which must accept or refuse them. The memory in use must
not grow.""",
    ),
)


def run(section: Section, quick: bool) -> tuple[dict[str, Any], str]:
    """Runs a section. Returns its line in the table of contents, and its block of the page."""
    words = section.quick if quick else section.command
    chosen = {name: values[quick] for name, values in section.variables.items()}
    shown = "".join(f"{name}={value} " for name, value in chosen.items())
    left = ROOT / section.left
    left.parent.mkdir(exist_ok=True)
    left.unlink(missing_ok=True)
    print(f"== {section.title}: {shown}python {' '.join(words)}", flush=True)
    began = time.monotonic()
    status = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env={**os.environ, **chosen}, check=False
    ).returncode
    took = time.monotonic() - began
    if left.exists():
        data = left.read_text()
        reading = section.read(json.loads(data) if left.suffix == ".json" else data)
    else:
        reading = Reading(f"the command ended with status {status} and left nothing", False, "")
    verdict = {True: "pass", False: "FAIL" if section.must or not left.exists() else "some missed", None: ""}[
        reading.passed
    ]
    line = {
        "name": section.name,
        "figures": reading.figures,
        "verdict": verdict,
        "date": today(),
        "seconds": round(took),
    }
    line |= {"command": f"{shown}.venv/bin/python {' '.join(words)}", "machine": machine()}
    return line, reading.details


# --- the page ---

_DETAILS = re.compile(r"^<!-- details of ([\w-]+) -->\n(.*?)^<!-- end of details -->$", re.M | re.S)
_LINES = re.compile(r"^<!-- the lines of the table, for bench/evidence.py\n(.*?)^-->$", re.M | re.S)
_OWN_VERSION = re.compile(r"toolwire ([^,]+), ")
INTRODUCTION = """# Evidence

> **What you get:** the results of long tests and measurements of Toolwire, such as a million random cases, or
> clients that are killed at random moments.
>
> **Use it when** you want to know how a guarantee was tested, or want to repeat a test.

Each row of the table has a section below, with the command that repeats it. `make evidence` repeats all of
them. A *target* is a limit for a measured figure; *some missed* means that at least one figure is outside its
limit."""


def existing(page: Path) -> dict[str, tuple[dict[str, Any], str]]:
    """Returns the sections that the page already has, by name.

    A section consists of its line in the table, and of its details as Markdown.
    """
    text = page.read_text() if page.exists() else ""
    details = {name: body.strip() for name, body in _DETAILS.findall(text)}
    lines = [json.loads(line) for found in _LINES.findall(text) for line in found.splitlines()]
    return {line["name"]: (line, details.get(line["name"], "")) for line in lines}


def compose(sections: Sequence[tuple[dict[str, Any], str]]) -> str:
    abouts = {section.name: section.about for section in SECTIONS}
    titles = {section.name: section.title for section in SECTIONS}
    machines = {_OWN_VERSION.sub("", head["machine"]) for head, _ in sections}
    out = [INTRODUCTION, ""]
    if len(machines) == 1:
        out += [f"All of this ran on {machines.pop()}.", ""]
        machines = set()
    out += ["| what | result | verdict |", "|---|---|---|"]
    out += [f"| {titles[head['name']]} | {head['figures']} | {head['verdict']} |" for head, _ in sections]
    for head, details in sections:
        found = _OWN_VERSION.search(head["machine"])
        own = f" with Toolwire {found[1]}" if found else ""
        where = f", on {head['machine']}" if machines else ""
        out += [
            "",
            f"## {titles[head['name']]}",
            "",
            *([abouts[head["name"]], ""] if abouts[head["name"]] else []),
        ]
        out += [f"Run {head['date']}{own}, in {head['seconds']} s{where}:", ""]
        out += ["```text", head["command"], "```"]
        if details:
            marks = f"<!-- details of {head['name']} -->", "<!-- end of details -->"
            out += ["", marks[0], "", details, "", marks[1]]
    lines = [json.dumps(head, ensure_ascii=False) for head, _ in sections]
    out += ["", "<!-- the lines of the table, for bench/evidence.py", *lines, "-->"]
    return "\n".join(out).rstrip() + "\n"


def main(argv: list[str] | None = None) -> int:
    names = [section.name for section in SECTIONS]
    parser = argparse.ArgumentParser(description="Runs the long checks and writes docs/evidence.md.")
    parser.add_argument(
        "--only",
        action="append",
        choices=names,
        metavar="NAME",
        help=f"one of {', '.join(names)}; the page keeps the other sections",
    )
    parser.add_argument("--quick", action="store_true", help="short versions")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page to write")
    arguments = parser.parse_args(argv)
    held = existing(arguments.page)
    for section in SECTIONS:
        if not arguments.only or section.name in arguments.only:
            held[section.name] = run(section, arguments.quick)
            arguments.page.parent.mkdir(exist_ok=True)
            arguments.page.write_text(
                compose([held[name] for name in names if name in held])
            )  # written after each section, because a long run may be interrupted
    failed = [name for name, (head, _) in held.items() if head["verdict"] == "FAIL"]
    print(f"written to {arguments.page.name}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m bench.versions COMMIT`: the CPU time of this Toolwire, compared with that of an older commit.

Both versions run in front of the same upstream, with the same packages and settings. They take turns at each
kind of load, so that other work of the machine affects both alike. Each version is first in every other
round.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median

from bench import report
from bench.gateway import MEASURES, Failed, Measure, load, warm
from bench.process import HERE, LOAD_CORE, WORK, Process, answer, answers, free_port, tool
from bench.report import Row, figure
from bench.targets import Target, start_toolwire

TITLES = {
    "plain one by one": "plain request, one at a time",
    "plain": "plain request, 32 at once",
    "paced": "paced stream of 200 chunks",
    "burst": "burst of 200 chunks",
    "prose, tools native": "paced stream with native tools",
    "prose, tools emulated": "paced stream with emulated tools",
    "call, native": "native call",
    "call, emulated": "emulated call",
    "responses paced": "paced stream of the Responses API",
    "messages paced": "paced stream of the Messages API",
}


def source_of(commit: str) -> Path:
    """Extracts the package as it was at a commit. Returns the folder that contains it."""
    folder = WORK / f"at-{commit.replace('/', '-')}"
    if not folder.exists():
        archive = subprocess.run(
            ["git", "archive", commit, "src"], cwd=HERE.parent, check=True, capture_output=True
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
            packed.extractall(folder, filter="data")
    return folder / "src"


def compare(commit: str, rounds: int, loads: Sequence[str] = tuple(TITLES)) -> tuple[list[Row], list[str]]:
    """Returns a row for each kind of load, and a note for everything that went wrong."""
    wanted = [measure for measure in MEASURES if measure.name in loads]
    upstream_port = free_port()
    upstream = Process([*tool("upstream"), str(upstream_port)], core=LOAD_CORE, log="upstream")
    targets: list[Target] = []
    costs: dict[tuple[str, str], list[float]] = {}
    notes: list[str] = []
    try:
        upstream.wait_until(lambda: answers(upstream_port, "/v1/models"))
        for start in (
            start_toolwire,
            partial(start_toolwire, name="toolwire-before", source=source_of(commit)),
        ):
            targets.append(start(upstream_port))
        measures = [measure for measure in wanted if _is_served(measure, targets, notes)]
        for target in targets:
            warm(target)
        for number in range(rounds):
            print(f"  round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            order = targets if number % 2 else targets[::-1]
            for measure in measures:
                for target in order:
                    try:
                        cost = load(target, measure)["cpu_ms"]
                    except Failed as error:
                        notes.append(f"failed: {error}")
                        continue
                    costs.setdefault((target.name, measure.name), []).append(cost)
    finally:
        for target in targets:
            target.stop()
        upstream.stop()
    return [_row(measure, costs) for measure in wanted], notes


def _is_served(measure: Measure, targets: Sequence[Target], notes: list[str]) -> bool:
    """Whether both versions answer a request of this kind. If not, adds a note."""
    for target in targets:
        status, said = answer(target.port, measure.path, target.headers, measure.body)
        if status != 200 or measure.holds not in said:
            notes.append(f"{TITLES[measure.name]}: {target.name} answers with {status}, {said[:120]!r}")
            return False
    return True


def _row(measure: Measure, costs: dict[tuple[str, str], list[float]]) -> Row:
    now, before = (costs.get((name, measure.name)) for name in ("toolwire", "toolwire-before"))
    if not now or not before:
        return Row(TITLES[measure.name], None, unit="")
    ratio = median(now) / median(before)
    spread = f"{figure(min(now))} to {figure(max(now))} and {figure(min(before))} to {figure(max(before))}"
    detail = f"{figure(median(now))} ms now, {figure(median(before))} ms before; {spread}"
    return Row(TITLES[measure.name], 100 * (ratio - 1), detail, unit="%")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.versions", description="Compares the CPU time with that of an older commit."
    )
    parser.add_argument("commit", help="the last commit of version 0.1 is 4f7b0ce")
    parser.add_argument("--rounds", type=int, default=9, help="the median of this many rounds counts")
    parser.add_argument(
        "--load", action="append", choices=tuple(TITLES), metavar="LOAD", help="only this load; default: all"
    )
    parser.add_argument("--json", metavar="FILE", help="write the rows as JSON")
    arguments = parser.parse_args(argv)
    rows, notes = compare(arguments.commit, arguments.rounds, arguments.load or tuple(TITLES))
    print(report.table(rows))
    for note in notes:
        print(f"- {note}")
    if arguments.json:
        written = {"rows": [asdict(row) for row in rows], "notes": notes}
        Path(arguments.json).write_text(json.dumps(written, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Checks that each dialect reads random calls back exactly and never completes a call that was cut off.

`python bench/dialects.py --cases 1000 --cuts 100 --json FILE` reads 1000 random texts of each dialect back,
in randomly split pieces, and cuts 100 texts of each dialect at every position. The laws that must hold are in
`fuzz/dialect_laws.py`. Seed, dialect and number identify a case. Exit status: 0 if all laws held, otherwise
1.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

sys.path[:1] = [str(Path(__file__).resolve().parent.parent)]

from fuzz import dialect_laws, shrink  # noqa: E402
from fuzz.law import Law  # noqa: E402

from toolwire.emulate.dialects import DIALECTS  # noqa: E402

Work = tuple[str, int, int, int]
"""A dialect, the seed, the number of texts to read back and the number of texts to cut."""
ROUND_TRIP, CUT_OFF = "round_trip", "cut_off"


def try_dialect(work: Work) -> dict[str, Any]:
    """Tests one dialect and returns its line of the table."""
    dialect, seed, cases, cuts = work
    failures: list[dict[str, Any]] = []
    calls = 0
    outcomes = [0, 0, 0]

    def everywhere(case: dict[str, Any]) -> None:
        for kind, count in enumerate(dialect_laws.judge_every_cut(case)):
            outcomes[kind] += count

    for number in range(cases):
        case = dialect_laws.draw_calls(Random(f"{seed}/{dialect}/{number}"), dialect)
        calls += len(case["calls"])
        failures += _failure(dialect_laws.LAWS[ROUND_TRIP], case, ROUND_TRIP, number)
    every_cut = Law(dialect_laws.draw_cut, everywhere, dialect_laws.LAWS[CUT_OFF].says, dialect_laws.CALLS)
    for number in range(cuts):
        failures += _failure(
            every_cut,
            dialect_laws.draw_cut(Random(f"{seed}/{dialect}/cut/{number}"), dialect),
            CUT_OFF,
            number,
        )
    return {
        "dialect": dialect,
        "texts": cases,
        "calls": calls,
        "cut": cuts,
        "told": outcomes,
        "failures": failures,
    }


def _failure(law: Law, case: dict[str, Any], name: str, number: int) -> list[dict[str, Any]]:
    found = shrink.failure_of(law.judge, case)
    if found is None:
        return []
    return [
        {"law": name, "number": number, "told": str(found[1])[:2000], "case": repr(shrink.shrink(law, case))}
    ]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Tries every dialect with random calls, random splits and every cut."
    )
    parser.add_argument("--cases", type=int, default=1000, help="texts of each dialect that are read back")
    parser.add_argument(
        "--cuts", type=int, default=100, help="texts of each dialect that are cut at every position"
    )
    parser.add_argument("--only", action="append", choices=sorted(DIALECTS), metavar="DIALECT")
    parser.add_argument("--seed", type=int, default=None, help="default: from the clock, and printed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", metavar="FILE", help="write what was done as JSON")
    arguments = parser.parse_args(argv)
    seed = arguments.seed if arguments.seed is not None else int(time.time())
    work = [(dialect, seed, arguments.cases, arguments.cuts) for dialect in arguments.only or DIALECTS]
    began = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        lines = []
        for line in pool.imap(try_dialect, work):
            lines.append(line)
            outcomes, failures = line["told"], line["failures"]
            print(
                f"{line['dialect']:16} {line['calls']:>6,} calls read back, {sum(outcomes):>8,} cuts, "
                f"{len(failures)} failed",
                flush=True,
            )
            for failure in failures[:3]:
                print(
                    f"  {failure['law']}, case {failure['number']}: {failure['told']}\n"
                    f"  case = {failure['case']}",
                    flush=True,
                )
    failed = sum(len(line["failures"]) for line in lines)
    print(f"{len(lines)} dialects in {time.monotonic() - began:.0f} s, seed {seed}: {failed} failed")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"seed": seed, "dialects": lines}, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Tries every law in turn with random cases: `fuzz/run.py --cases 100000 --seed 1 --jobs 2`.

Seed, law and number identify a case: `--only LAW --seed S --case N` repeats a failure. A failing case is made
smaller and printed as a Python literal. Exit status: 0 if all laws held, otherwise 1.
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

_ROOT = Path(__file__).resolve().parent.parent
sys.path[:1] = [str(_ROOT), str(_ROOT / "tests")]

from fuzz.properties import PROPERTIES  # noqa: E402
from fuzz.shrink import failure_of, shrink  # noqa: E402

SLICE = 250
MOST_FAILURES = 5  # per law; more of them would show nothing new

Slice = tuple[str, int, int, int]
"""A law's name, the seed, the number of the first case, and the number of cases."""


def try_slice(work: Slice) -> tuple[str, int, float, list[dict[str, Any]]]:
    name, seed, first, count = work
    law = PROPERTIES[name]
    failures: list[dict[str, Any]] = []
    began = time.process_time()
    for number in range(first, first + count):
        rng = Random(f"{seed}/{name}/{number}")
        try:
            law(rng)
        except Exception:
            case = law.draw(Random(f"{seed}/{name}/{number}"))
            small = shrink(law, case)
            found = failure_of(law.judge, small)
            message = str(found[1]) if found else "it failed once and not again"
            kind = found[0] if found else ("flaky", "")
            failures.append(
                {
                    "law": name,
                    "seed": seed,
                    "number": number,
                    "kind": list(kind),
                    "told": message,
                    "case": repr(small),
                }
            )
            if len(failures) >= MOST_FAILURES:
                break
    return name, count, time.process_time() - began, failures


def _slices(names: list[str], seed: int, cases: int) -> list[Slice]:
    whole = sum(1 / PROPERTIES[name].cost for name in names)
    each = {name: max(1, round(cases / PROPERTIES[name].cost / whole)) for name in names}
    found = [
        (name, seed, first, min(SLICE, total - first))
        for name, total in each.items()
        for first in range(0, total, SLICE)
    ]
    return sorted(found, key=lambda work: work[2])  # in turns: an early stop has tried all laws


def _report(failure: dict[str, Any]) -> str:
    repeat = f"fuzz/run.py --only {failure['law']} --seed {failure['seed']} --case {failure['number']}"
    return (
        f"\nFAILED {failure['law']} ({failure['kind'][0]}): {failure['told']}\n  repeat: {repeat}\n"
        f"  case = {failure['case']}\n"
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Tries the laws with random cases.", epilog="example: fuzz/run.py --cases 100000 --jobs 2"
    )
    parser.add_argument("--cases", type=int, default=20_000, help="how many in all, shared among the laws")
    parser.add_argument("--seed", type=int, default=None, help="default: from the clock, and printed")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processes; default: one for each core"
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=sorted(PROPERTIES),
        metavar="LAW",
        help=f"one of {', '.join(PROPERTIES)}",
    )
    parser.add_argument("--case", type=int, help="try only the case of this number")
    parser.add_argument("--json", metavar="FILE", help="write the results as JSON")
    arguments = parser.parse_args(argv)
    seed = arguments.seed if arguments.seed is not None else int(time.time())
    names = arguments.only or list(PROPERTIES)
    work = (
        [(name, seed, arguments.case, 1) for name in names]
        if arguments.case is not None
        else _slices(names, seed, arguments.cases)
    )
    began = time.monotonic()
    counts: dict[str, int] = dict.fromkeys(names, 0)
    costs: dict[str, float] = dict.fromkeys(names, 0.0)
    failures: list[dict[str, Any]] = []
    kinds: set[tuple[str, str]] = set()
    tty = sys.stderr.isatty()
    with (
        multiprocessing.get_context("spawn").Pool(arguments.jobs) if arguments.jobs > 1 else _Inline() as pool
    ):
        for done, (name, count, cost, found) in enumerate(pool.imap_unordered(try_slice, work), 1):
            counts[name] += count
            costs[name] += cost
            for failure in found:
                failures.append(failure)
                if (
                    name,
                    failure["kind"][1],
                ) not in kinds:  # the first failure of a kind is printed, later ones are only counted
                    kinds.add((name, failure["kind"][1]))
                    print(_report(failure), flush=True)
            if tty or done % 40 == 0 or done == len(work):
                took = time.monotonic() - began
                line = (
                    f"{sum(counts.values()):>9,} cases, {len(failures)} failed, "
                    f"{sum(counts.values()) / took:,.0f} a second, seed {seed}"
                )
                print(line, end="\r" if tty and done < len(work) else "\n", file=sys.stderr, flush=True)
    for name in names:
        failed = sum(failure["law"] == name for failure in failures)
        cost = 1e6 * costs[name] / max(1, counts[name])
        print(
            f"{name:22} {counts[name]:>9,} cases  {cost:>7.0f} µs each  "
            f"{f'FAILED {failed}' if failed else 'ok'}"
        )
    took = time.monotonic() - began
    print(
        f"{sum(counts.values()):,} cases of {len(names)} laws in {took:.0f} s, seed {seed}: "
        f"{len(failures)} failed"
    )
    if arguments.json:
        report = {
            "cases": sum(counts.values()),
            "laws": counts,
            "says": {name: PROPERTIES[name].says for name in names},
            "seconds": round(took, 1),
            "seed": seed,
            "failures": failures,
        }
        Path(arguments.json).write_text(json.dumps(report, indent=1) + "\n")
    return 1 if failures else 0


class _Inline:
    """Runs the work in this process, with the interface of a pool."""

    def __enter__(self) -> _Inline:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def imap_unordered(self, function: Any, work: list[Slice]) -> Any:
        return map(function, work)


if __name__ == "__main__":
    sys.exit(main())

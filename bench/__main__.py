"""`python -m bench [scanner] [gateway] [codex] [local] [vault]`: the benchmarks, side by side with their baselines, judged against the targets.

Exit status: 0 measured, whatever the verdicts; with `--strict` 1 when a target was missed or could not be measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from bench import report
from bench.report import Row

TITLES = {
    "scanner": "The scanner",
    "gateway": "The gateway",
    "codex": "Codex, through Toolwire and driven directly",
    "local": "The embedded model, beside llama.cpp's own server",
    "vault": "Search in a vault",
}


def page(parts: dict[str, list[Row]], notes: list[str]) -> str:
    """The Markdown page of a run."""
    out = ["# Benchmarks", "", f"Measured {report.today()} by `make bench` on {report.machine()}.", ""]
    out += ["Everything runs on loopback. Ratios come first: absolute figures belong to the machine.", ""]
    for name, rows in parts.items():
        if rows:
            out += [f"## {TITLES[name]}", "", report.markdown(rows), ""]
    return "\n".join([*out, *(f"- {note}" for note in notes)]).rstrip() + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measures Toolwire beside its baselines.")
    parser.add_argument("parts", nargs="*", help=f"{', '.join(TITLES)}; default: all")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--rounds", type=int, help="the median of so many counts; default: 3 for the gateway, 5 for Codex, 1 for hostile texts")
    parser.add_argument(
        "--peers", action="append", choices=("litellm", "portkey", "all"), help="measure this gateway too; installs it into bench/work"
    )
    parser.add_argument("--write", metavar="FILE", help="write the tables as Markdown, e.g. docs/benchmarks.md")
    parser.add_argument("--json", metavar="FILE", help="write the rows as JSON")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a target is missed or not measured")
    arguments = parser.parse_args(argv)
    unknown = set(arguments.parts) - TITLES.keys()
    if unknown:
        parser.error(f"unknown part: {', '.join(sorted(unknown))}; known: {', '.join(TITLES)}")
    peers = ("litellm", "portkey") if "all" in (arguments.peers or ()) else tuple(arguments.peers or ())
    parts: dict[str, list[Row]] = {}
    notes: list[str] = []
    for name in arguments.parts or TITLES:
        print(f"{TITLES[name]} …", file=sys.stderr, flush=True)
        if name == "scanner":
            from bench import scanner

            parts[name] = scanner.run(arguments.quick, arguments.rounds or 1)
        elif name == "gateway":
            from bench import gateway

            parts[name], found = gateway.run(1 if arguments.quick else arguments.rounds or 3, peers)
            notes += found
        elif name == "codex":
            from bench import codex

            parts[name], found = codex.run(1 if arguments.quick else arguments.rounds or 5)
            notes += found
        elif name == "vault":
            from bench import vault

            parts[name], found = vault.run(arguments.quick)
            notes += found
        else:
            from bench import local

            parts[name], found = local.run(1 if arguments.quick else arguments.rounds or 5)
            notes += found
        if parts[name]:
            print(f"\n{report.table(parts[name])}\n", flush=True)
    for note in notes:
        print(f"- {note}")
    if arguments.write:
        Path(arguments.write).write_text(page(parts, notes))
        print(f"written to {arguments.write}")
    if arguments.json:
        rows = [asdict(row) for part in parts.values() for row in part]
        Path(arguments.json).write_text(json.dumps({"rows": rows, "notes": notes}, indent=1) + "\n")
    verdicts = [row.verdict for rows in parts.values() for row in rows]
    lost = {words: verdicts.count(verdict) for verdict, words in (("MISS", "missed"), ("not measured", "not measured")) if verdict in verdicts}
    print("; ".join(f"{count} target(s) {words}" for words, count in lost.items()) or ("all targets met" if any(verdicts) else "nothing judged"))
    return 1 if arguments.strict and lost else 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m bench [scanner] [gateway] [path] [codex] [local] [vault] [proxy]`: runs benchmarks.

Exit status: 0 if everything was measured, even if targets were missed. With `--strict`, 1 if a target was
missed or not measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bench import report, side
from bench.published import PAGE as PUBLISHED
from bench.report import Row
from bench.side import Side

PICTURE = "pictures/benchmarks.svg"
ABOUT = """\
> **What you get:** what Toolwire costs, compared with nginx, with other gateways, and with a program that
> only copies bytes (the relay).
>
> **Use it when** you want to judge the cost, or to repeat the measurement with `make bench`. See also [Where
> the time goes](performance.md).

Everything runs on one machine over loopback: the gateways on one core, the simulated model server (the
*upstream*) and the clients on the other core. Absolute figures depend on the machine, so most results are
ratios (×). A *target* is the limit for a result. *MISS* means that the result is outside this limit."""
TIMES = """\
The measured values. The *result* is the CPU time per request. The *figures* are the times that the clients
waited: until the end of the answer (p50 and p99), and until the first token."""
EXPLAINED = {
    "scanner": """\
The scanner finds tool calls in the text of a model. Here it reads the text in *chunks* of 4 characters, about
a token. It sends the arguments of a call as they arrive (*eager*), or when they are complete and valid
(*validated*). The *figures* are the cost per chunk, in µs, for texts of different lengths. Rows such as
“`<` × 1 M” measure texts that are made to be expensive, here a million times `<`: the cost per character must
not grow with the length. A *dialect* is a format in which models write calls.""",
    "gateway": """\
The *relay* only copies bytes between client and model server (the *upstream*). *CPU* is the CPU time that all
processes of a gateway need for a request. A *plain* request is not streamed. A *paced* stream has 200 chunks,
10 ms apart; a *burst* has 200 chunks without pauses. 32 requests run at the same time, except in the rows
*one by one*. *Just started* means that the gateway was not warmed up. A *delay* is the time that the gateway
adds.""",
    "path": """\
The CPU time of a request inside the gateway, without HTTP server, HTTP client and system calls. The cost of a
part, such as the log line, is how much less CPU time a request takes when this part is switched off.""",
    "codex": """\
Both sides use the same Codex binary and the same simulated model. One side is a small JSON-RPC client of
Codex, the other is an HTTP client of Toolwire. *First token* is the time to the first token, *wall time* the
time until all turns have ended. A *pair* is one measurement of each side. *Resampled* is a bootstrap interval
of the ratio, from the 5th to the 95th percentile. A target inside this interval is neither clearly met nor
clearly missed.""",
    "local": """\
Both sides use the same model file. The *result* is Toolwire's speed, divided by the speed of llama.cpp's
server.""",
    "vault": """\
How fast Toolwire builds the index of a vault, and how many times faster its search is than two other methods:
a linear scan of all notes, and ripgrep.""",
    "proxy": """\
The same client calls a tool of an MCP server directly, and through `toolwire mcp`.""",
}
TITLES = {
    "scanner": "The scanner",
    "gateway": "The gateway",
    "path": "Inside the gateway",
    "codex": "Codex through Toolwire, compared with Codex used directly",
    "local": "The embedded model, compared with llama.cpp's own server",
    "vault": "Search in a vault",
    "proxy": "An MCP server behind Toolwire, compared with the same server used directly",
}


def page(parts: dict[str, list[Row]], sides: Sequence[Side], picture: str, notes: list[str]) -> str:
    """Returns the Markdown page of a run. `picture`: the chart's path relative to the page, or ""."""
    out = ["# Benchmarks", "", ABOUT, ""]
    out += [f"Measured {report.today()} by `make bench` on {report.machine()}.", ""]
    if picture:
        out += [f"![CPU time of each gateway relative to a byte relay: shorter is better]({picture})", ""]
    for name, rows in parts.items():
        if not rows:
            continue
        judged, shown = [row for row in rows if row.sense], [row for row in rows if not row.sense]
        out += [f"## {TITLES[name]}", "", EXPLAINED[name], "", report.markdown(judged or shown), ""]
        if name == "gateway" and sides:
            out += ["All gateways, with the ratio to the relay in brackets:", "", side.markdown(sides), ""]
        if judged and shown:
            out += [
                TIMES if name == "gateway" else "Values without a target:",
                "",
                report.markdown(shown),
                "",
            ]
        if name == "scanner":
            out += [PUBLISHED, ""]
    if notes:
        out += ["## Notes", "", *(f"- {note}" for note in notes)]
    return "\n".join(out).rstrip() + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measures Toolwire, compared with its baselines."
    )
    parser.add_argument("parts", nargs="*", help=f"{', '.join(TITLES)}; default: all")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument(
        "--rounds",
        type=int,
        help="the median of this many rounds counts; default: 5, and 3 for hostile texts",
    )
    parser.add_argument(
        "--peers",
        action="append",
        choices=("litellm", "portkey", "none"),
        help="only this other gateway; default: all, installed into bench/work",
    )
    parser.add_argument(
        "--write",
        metavar="FILE",
        help="write the tables as Markdown, and a chart beside it, e.g. docs/benchmarks.md",
    )
    parser.add_argument("--json", metavar="FILE", help="write the rows as JSON")
    parser.add_argument(
        "--strict", action="store_true", help="exit 1 when a target is missed or not measured"
    )
    arguments = parser.parse_args(argv)
    unknown = set(arguments.parts) - TITLES.keys()
    if unknown:
        parser.error(f"unknown part: {', '.join(sorted(unknown))}; known: {', '.join(TITLES)}")
    peers = tuple(peer for peer in arguments.peers or ("litellm", "portkey") if peer != "none")
    sides: list[Side] = []
    parts: dict[str, list[Row]] = {}
    notes: list[str] = []
    for name in arguments.parts or TITLES:
        print(f"{TITLES[name]} …", file=sys.stderr, flush=True)
        if name == "scanner":
            from bench import scanner

            parts[name] = scanner.run(arguments.quick, 1 if arguments.quick else arguments.rounds or 3)
        elif name == "gateway":
            from bench import gateway

            parts[name], sides, found = gateway.run(
                1 if arguments.quick else arguments.rounds or gateway.ROUNDS, peers
            )
            print(f"\n{side.markdown(sides)}", flush=True)
            notes += found
        elif name == "path":
            from bench import path

            parts[name] = path.run(2 if arguments.quick else 8)
        elif name == "codex":
            from bench import codex

            parts[name], found = codex.run(1 if arguments.quick else arguments.rounds or 5)
            notes += found
        elif name == "vault":
            from bench import vault

            parts[name], found = vault.run(arguments.quick)
            notes += found
        elif name == "proxy":
            from bench import proxy

            parts[name] = proxy.run(arguments.quick)
        else:
            from bench import local

            parts[name], found = local.run(1 if arguments.quick else arguments.rounds or 5)
            notes += found
        if parts[name]:
            print(f"\n{report.table(parts[name])}\n", flush=True)
    for note in notes:
        print(f"- {note}")
    if arguments.write:
        target, drawn = Path(arguments.write), side.picture(sides)
        if drawn:
            (target.parent / PICTURE).write_text(drawn)
        target.write_text(page(parts, sides, PICTURE if drawn else "", notes))
        print(f"written to {arguments.write}")
    if arguments.json:
        rows = [asdict(row) for part in parts.values() for row in part]
        Path(arguments.json).write_text(json.dumps({"rows": rows, "notes": notes}, indent=1) + "\n")
    verdicts = [row.verdict for rows in parts.values() for row in rows]
    lost = {
        words: verdicts.count(verdict)
        for verdict, words in (("MISS", "missed"), ("not measured", "not measured"))
        if verdict in verdicts
    }
    print(
        "; ".join(f"{count} target(s) {words}" for words, count in lost.items())
        or ("all targets met" if any(verdicts) else "nothing judged")
    )
    return 1 if arguments.strict and lost else 0


if __name__ == "__main__":
    sys.exit(main())

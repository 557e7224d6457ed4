"""`python -m bench.one_hostile`: times tool loops while one other client is hostile.

The server has no limits. Each client that is timed has its own key and sends few requests, so that the server
is mostly idle when there is no hostile client (the calm). The calm and each kind of hostile client take turns
in every round, so that other load on the machine affects all alike. The server runs on one core, and all
clients run on the other core. The hostile client is a separate process with a lower priority.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median, quantiles

from bench import report
from bench.process import GATEWAY_CORE, LOAD_CORE
from bench.report import Row, Sense
from doubles.clients import (
    SOCKET_FLOODS,
    Harm,
    SocketFlood,
    ToolLoop,
    floods,
    floods_streams,
    harass,
    holds_memory,
)
from doubles.watched import Watched

KEYS = tuple(f"other-{number}" for number in range(4))
"""The keys of the clients that are timed, one for each."""
PAUSE_S = 0.02
"""How long each client that is timed waits between two loops."""
CALM = "calm"
TIMES_CALM = 4
MARGIN_S = 3.0
"""How long after the start of a hostile client the measurement begins."""
SETTINGS = f"""
[server]
keys = {json.dumps([*KEYS, "hostile"])}
[journal]
max_mb = 8
[store]
url = "sqlite://"
[models.loop]
backend = "scripted"
script = '''
call look {{"at": "the door"}}
---
say It is {{result}}.
'''
"""


async def _crowd(harm: Harm, count: int, port: int) -> None:
    await asyncio.gather(*(harass(harm, port, "hostile") for _ in range(count)))


async def _socket(kind: str, port: int) -> None:
    SocketFlood(port, kind, "hostile").start()
    await asyncio.Event().wait()


HOSTILE: dict[str, Callable[[int], Awaitable[None]]] = {
    **{
        f"a WebSocket, {kind}": lambda port, kind=kind: _socket(kind, port)  # type: ignore[misc]
        for kind in SOCKET_FLOODS
    },
    "a key that holds memory, 16 connections": lambda port: _crowd(holds_memory, 16, port),
    "a key that floods requests, 16 connections": lambda port: _crowd(floods, 16, port),
    "a key that floods streams, 16 connections": lambda port: _crowd(floods_streams, 16, port),
}


class Part:
    """The loops of the timed clients in all rounds, beside one kind of hostile client or in the calm."""

    def __init__(self) -> None:
        self.loops: list[ToolLoop] = []
        self.cpu_s = self.seconds = self.most_mb = 0.0

    async def time(self, server: Watched, seconds: float) -> None:
        began, cpu = time.monotonic(), server.cpu_s()
        loops = [
            ToolLoop(server.port, ("loop",), key, pause_s=PAUSE_S, cpu_s=server.loop_cpu_s) for key in KEYS
        ]
        await asyncio.gather(*(loop.run(began + seconds) for loop in loops))
        self.loops += loops
        self.cpu_s += server.cpu_s() - cpu
        self.seconds += time.monotonic() - began
        self.most_mb = max(self.most_mb, server.rss_mb())

    def times_ms(self) -> list[float]:
        return [1000 * one for loop in self.loops for one in loop.times]

    def cpu_ms(self) -> list[float]:
        return [1000 * one for loop in self.loops for one in loop.cpu_times]


def p99(times: list[float]) -> float | None:
    return quantiles(times, n=100)[98] if len(times) > 1 else None


async def measure(seconds: float, rounds: int, kinds: list[str]) -> dict[str, Part]:
    parts = {name: Part() for name in (CALM, *kinds)}
    with tempfile.TemporaryDirectory() as folder, Watched(Path(folder) / "server", SETTINGS) as server:
        server.pin(sorted(GATEWAY_CORE))
        os.sched_setaffinity(0, LOAD_CORE)
        await Part().time(server, 1)
        for number in range(rounds):
            print(f"  round {number + 1} of {rounds}", file=sys.stderr, flush=True)
            await parts[CALM].time(server, seconds / rounds)
            for kind in kinds:
                enemy = subprocess.Popen(
                    [sys.executable, "-m", "bench.one_hostile", "--harm", str(server.port), "--kind", kind],
                    preexec_fn=lambda: os.nice(10),
                )
                try:
                    await asyncio.sleep(MARGIN_S)
                    await parts[kind].time(server, seconds / rounds)
                finally:
                    enemy.terminate()
                    enemy.wait(10)
    return parts


def rows_of(parts: dict[str, Part]) -> list[Row]:
    rows: list[Row] = []
    for name, part in parts.items():
        detail = f"server's core {part.cpu_s / part.seconds:.0%} busy, its memory {part.most_mb:.0f} MB"
        for kind, calm, times in (
            ("time", parts[CALM].times_ms(), part.times_ms()),
            ("server's CPU time", parts[CALM].cpu_ms(), part.cpu_ms()),
        ):
            least, most = p99(calm), p99(times)
            shown = "" if most is None else f"p99 {most:.1f}, median {median(times):.1f} ms"
            shown += f"; {len(times):,} loops; {detail}" if kind == "time" else ""
            if part is parts[CALM]:
                rows.append(Row(f"no hostile client: {kind}, p99", most, shown, unit="ms"))
            else:
                ratio = most / least if most is not None and least else None
                sense: Sense = "at most" if kind == "time" else ""
                rows.append(Row(f"beside {name}: {kind}, p99", ratio, shown, sense, TIMES_CALM))
    wrong = sum(len(loop.wrong) for part in parts.values() for loop in part.loops)
    return [*rows, Row("wrong answers to other clients", wrong, "", "at most", 0, "")]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.one_hostile", description="Times other clients beside one hostile client."
    )
    parser.add_argument("--seconds", type=float, default=30, help="for the calm and for each hostile client")
    parser.add_argument("--rounds", type=int, default=5, help="how often the calm and all kinds take turns")
    parser.add_argument(
        "--kind", action="append", choices=tuple(HOSTILE), metavar="KIND", help="only this kind; default: all"
    )
    parser.add_argument(
        "--harm", type=int, metavar="PORT", help="only be the hostile client of this port, until stopped"
    )
    parser.add_argument("--json", metavar="FILE", help="write the rows as JSON")
    arguments = parser.parse_args(argv)
    kinds = arguments.kind or list(HOSTILE)
    if arguments.harm:
        asyncio.run(HOSTILE[kinds[0]](arguments.harm))  # type: ignore[arg-type]
        return 0
    parts = asyncio.run(measure(arguments.seconds, arguments.rounds, kinds))
    rows = rows_of(parts)
    notes = [wrong for part in parts.values() for loop in part.loops for wrong in loop.wrong][:5]
    print(report.table(rows))
    for note in notes:
        print(f"- {note}")
    if arguments.json:
        written = {"rows": [asdict(row) for row in rows], "notes": notes}
        Path(arguments.json).write_text(json.dumps(written, indent=1) + "\n")
    return 1 if report.missed(rows) else 0


if __name__ == "__main__":
    sys.exit(main())

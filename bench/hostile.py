"""`python -m bench.hostile`: the same tool loops, timed alone and beside hostile clients.

The server runs on one core, all clients run on the other core. The hostile clients are in a separate process
with a lower priority.
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
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median, quantiles

from bench import report
from bench.process import GATEWAY_CORE, LOAD_CORE
from bench.report import Row
from doubles.clients import HOSTILE, ToolLoop, harass
from doubles.watched import Watched

KEYS = tuple(f"honest-{number}" for number in range(10))
"""The API keys of the honest clients, whose loops are timed: one key for each client."""
NAMES = {
    "dribbles_head": "send the headers byte by byte",
    "dribbles_body": "send the body byte by byte",
    "says_nothing": "send nothing",
    "half_open": "close their sending side",
    "never_reads": "never read the answer",
    "floods": "send one request after the other",
    "pipelines": "send thousands of requests at once",
}
COUNTS = {
    "dribbles_head": 100,
    "dribbles_body": 50,
    "says_nothing": 100,
    "half_open": 20,
    "never_reads": 50,
    "floods": 10,
    "pipelines": 10,
}
GROWTH_MB = 150
ROUNDS = 3
MARGIN_S = 3.0
"""How long after the start of the hostile clients the measurement begins."""

SETTINGS = """
[server]
keys = [KEYS]
[limits]
requests_per_minute = 1200
concurrent = 60
slow_reader_s = 5
[journal]
max_mb = 8
[store]
url = "sqlite://"
[models.loop]
backend = "scripted"
script = '''
pause 30ms
say Let me
pause 20ms
say look.
pause 20ms
call look {"at": "the door"}
---
pause 30ms
say It is
pause 20ms
say {result}
pause 20ms
say indeed.
'''
[models.long]
backend = "scripted"
script = "LONG"
"""


async def time_loops(port: int, seconds: float) -> list[ToolLoop]:
    loops = [ToolLoop(port, ("loop",), key) for key in KEYS]
    until = time.monotonic() + seconds
    await asyncio.gather(*(loop.run(until) for loop in loops))
    return loops


async def harm(port: int) -> None:
    await asyncio.gather(
        *(harass(HOSTILE[name], port, "hostile") for name, count in COUNTS.items() for _ in range(count))
    )


async def settled(server: Watched, wanted: int) -> int:
    """Returns how many file descriptors more than `wanted` stay open after all clients have left."""
    until = time.monotonic() + 20
    while (extra := server.held().descriptors - wanted) > 0 and time.monotonic() < until:
        await asyncio.sleep(0.2)
    return max(0, extra)


class Part:
    """The loops of the honest clients in all rounds, and the server's CPU time meanwhile."""

    def __init__(self) -> None:
        self.loops: list[ToolLoop] = []
        self.cpu_s = 0.0
        self.seconds = 0.0
        self.most_mb = 0.0

    async def time(self, server: Watched, seconds: float) -> None:
        began, cpu = time.monotonic(), server.cpu_s()
        timing = asyncio.ensure_future(time_loops(server.port, seconds))
        while not timing.done():
            self.most_mb = max(self.most_mb, server.rss_mb())
            await asyncio.wait({timing}, timeout=0.2)
        self.loops += await timing
        self.seconds += time.monotonic() - began
        self.cpu_s += server.cpu_s() - cpu


async def measure(seconds: float) -> tuple[list[Row], list[str]]:
    calm, hostile, descriptors, left = Part(), Part(), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        long = Path(folder) / "long.txt"
        long.write_text(f"raw {'x' * 4096}\n" * 5000)
        with Watched(
            Path(folder) / "server",
            SETTINGS.replace("LONG", str(long)).replace("KEYS", json.dumps([*KEYS, "hostile"])[1:-1]),
        ) as server:
            server.pin(sorted(GATEWAY_CORE))
            os.sched_setaffinity(0, LOAD_CORE)
            await time_loops(server.port, 1)
            held, before = server.held(), server.rss_mb()
            for _ in range(ROUNDS):  # in turns, so that other load on the machine affects both alike
                await calm.time(server, seconds / ROUNDS)
                enemy = subprocess.Popen(
                    [sys.executable, "-m", "bench.hostile", "--harm", str(server.port)],
                    preexec_fn=lambda: os.nice(10),
                )
                try:
                    await asyncio.sleep(MARGIN_S)
                    await hostile.time(server, seconds / ROUNDS)
                    descriptors = max(descriptors, server.held().descriptors)
                finally:
                    enemy.terminate()
                    enemy.wait(10)
                left = await settled(server, held.descriptors)
            traced = server.logged().count("Traceback")
    return _rows(calm, hostile, before, left, traced), _notes(calm, hostile, descriptors)


def _times(loops: Sequence[ToolLoop]) -> tuple[float, float, int]:
    """Returns the median and p99 in milliseconds, and the number of loops."""
    times = [1000 * one for loop in loops for one in loop.times]
    return (
        (median(times), quantiles(times, n=100)[98], len(times))
        if len(times) > 1
        else (float("inf"), float("inf"), len(times))
    )


def _rows(calm: Part, hostile: Part, before: float, left: int, traced: int) -> list[Row]:
    (calm_median, calm_p99, calm_count), (median_ms, p99, count) = _times(calm.loops), _times(hostile.loops)
    wrong = sum(len(loop.wrong) for loop in (*calm.loops, *hostile.loops))
    return [
        Row(
            "tool loop of an honest client, median: compared with no hostile clients",
            median_ms / calm_median,
            f"{median_ms:.1f} ms, without hostile clients {calm_median:.1f} ms",
            "at most",
            2,
        ),
        Row(
            "tool loop of an honest client, p99: compared with no hostile clients",
            p99 / calm_p99,
            f"{p99:.1f} ms, without hostile clients {calm_p99:.1f} ms",
            "at most",
            4,
        ),
        Row(
            "wrong answers to honest clients",
            wrong,
            f"in {count + calm_count:,} loops of two streams each",
            "at most",
            0,
            "",
        ),
        Row(
            "additional memory of the server",
            hostile.most_mb - before,
            f"{before:.0f} MB before",
            "at most",
            GROWTH_MB,
            "MB",
        ),
        Row("file descriptors left open at the end", left, "", "at most", 0, ""),
        Row("tracebacks in the log", traced, "", "at most", 0, ""),
    ]


def _notes(calm: Part, hostile: Part, descriptors: int) -> list[str]:
    who = ", ".join(f"{count} {NAMES[name]}" for name, count in COUNTS.items())
    busy = " and ".join(
        f"{part.cpu_s / part.seconds:.0%} {name}"
        for name, part in (("of the time without hostile clients", calm), ("with them", hostile))
    )
    wrong = [one for loop in hostile.loops for one in loop.wrong]
    return [
        f"Hostile clients: {who}. Honest clients: {len(KEYS)}. At most {descriptors} file descriptors were "
        f"open. {ROUNDS} rounds, each without and with hostile clients.",
        f"The server's core was busy for {busy}. Limits: 1,200 requests per minute and 60 at once for each "
        "key; slow readers are cut off after 5 s.",
        *wrong[:5],
    ]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.hostile", description="Times honest clients among hostile ones."
    )
    parser.add_argument(
        "--seconds", type=float, default=30, help="with hostile clients, and the same without them"
    )
    parser.add_argument(
        "--harm", type=int, metavar="PORT", help="only send hostile requests to this port, until stopped"
    )
    parser.add_argument("--json", metavar="FILE", help="write the rows as JSON")
    arguments = parser.parse_args(argv)
    if arguments.harm:
        asyncio.run(harm(arguments.harm))
        return 0
    rows, notes = asyncio.run(measure(arguments.seconds))
    print(report.table(rows))
    for note in notes:
        print(f"- {note}")
    if arguments.json:
        Path(arguments.json).write_text(
            json.dumps({"rows": [asdict(row) for row in rows], "notes": notes}, indent=1) + "\n"
        )
    return 1 if report.missed(rows) else 0


if __name__ == "__main__":
    sys.exit(main())

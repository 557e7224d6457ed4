"""Fifty clients run tool loops: answers are right, memory is flat, and nothing is left over.

`TOOLWIRE_SOAK_S` sets the duration. `make evidence` runs it for ten minutes.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path
from statistics import linear_regression

import pytest

from doubles.clients import ToolLoop
from doubles.watched import Held, Watched
from toolwire.observe.journal import MOST_RECORDS
from toolwire.observe.journal_files import Segments, TurnRecord

SECONDS = float(os.environ.get("TOOLWIRE_SOAK_S", "20"))
WARM_S = min(60.0, 0.4 * SECONDS)
STREAMS = 50
FLAT_MB = 10.0
"""How much the regression line through all memory samples may rise from start to end."""
SETTLED_S = 30.0
MODELS = {"native": "native", "parked": "parked", "emulated": "emulated"}
SCRIPT = """
say Let me
pause 150ms
say look.
pause 150ms
call look {"at": "the door"}
---
chunk 4
think It was opened.
pause 150ms
say It is {result}, and that is all there is to say about it.
pause 150ms
"""
SETTINGS = """
[parked]
ttl_s = 2
max_per_key = 1000
[journal]
max_mb = 64
[store]
url = "sqlite:///soak.db"
""" + "".join(
    f"[models.{name}]\nbackend = \"scripted\"\ntools = \"{tools}\"\nscript = '''{SCRIPT}'''\n"
    for name, tools in MODELS.items()
)


@pytest.mark.timeout(SECONDS + 180)
async def test_memory_stays_flat_and_nothing_is_left_over(tmp_path: Path) -> None:
    fill_journal(tmp_path / "journal")
    with Watched(tmp_path, SETTINGS) as server:
        loops = [
            ToolLoop(server.port, tuple(MODELS), leaves=0.05, chance=random.Random(number))
            for number in range(STREAMS)
        ]
        await ToolLoop(server.port, tuple(MODELS)).run(time.monotonic() + 2)
        before = await settled(server, None)
        samples, began = [], time.monotonic()
        running = asyncio.gather(*(loop.run(began + SECONDS) for loop in loops))
        while not running.done():
            await asyncio.wait({running}, timeout=0.5)
            if time.monotonic() - began > WARM_S:
                samples.append((time.monotonic() - began, server.rss_mb()))
        await running
        after = await settled(server, before)
        log = server.logged()
    times, sizes = zip(*samples, strict=True)
    rise = linear_regression(times, sizes).slope * (times[-1] - times[0])
    turns, left = sum(len(loop.times) for loop in loops), sum(loop.left for loop in loops)
    size = f"{sizes[0]:.0f} MB after {WARM_S:.0f} s, {sizes[-1]:.0f} MB at the end"
    print(
        f"outcomes: {turns:,} tool loops, {left:,} clients disconnected in the middle. Memory: {size}, trend "
        f"{rise:+.1f} MB. Resources before: {listed(before)}; afterwards: {listed(after)}"
    )
    assert [wrong for loop in loops for wrong in loop.wrong] == []
    assert all(loop.times for loop in loops)
    assert after == before
    assert rise < FLAT_MB
    assert "Traceback" not in log


def listed(held: Held) -> str:
    return (
        f"tasks {held.tasks}, parked runs {held.parks}, requests in queues {held.in_line}, file descriptors "
        f"{held.descriptors}, child processes {held.children}"
    )


def fill_journal(folder: Path) -> None:
    """Fills the journal as after a long run, so that it does not grow during the test."""
    said = {
        "api": "responses",
        "model": "emulated",
        "backend": "scripted",
        "report": "tools=emulated; stream=honoured",
        "calls": ("look",),
    }
    past = (
        TurnRecord(f"turn_{n:032x}", at=1e9 + n, request_id=f"req_{n:032x}", **said)  # type: ignore[arg-type]
        for n in range(MOST_RECORDS)
    )
    Segments(folder, 64 * 1024 * 1024).append(past)


async def settled(server: Watched, wanted: Held | None) -> Held:
    """Waits until the server is idle and returns what it holds.

    The server is idle if it has no parks and holds the same as `wanted`. If `wanted` is None, it must hold
    the same twice in a row.
    """
    until, last = time.monotonic() + SETTLED_S, None
    while time.monotonic() < until:
        held = server.held()
        if held == (wanted or last) and not held.parks:
            return held
        last = held
        await asyncio.sleep(0.5)
    return server.held()

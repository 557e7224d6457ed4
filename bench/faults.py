"""`python -m bench.faults`: puts a cluster under load, and causes one fault after the other.

The cluster has two nodes, nginx, Redis and PostgreSQL. The table `FAULTS` has the faults: what begins and
ends each fault, which requests it may affect, which errors these requests may get, and how its effect and the
recovery are recognized. A run passes if every request ended with a right answer or with one clear error that
a fault explains, no stored response is lost, a key's limit holds over both nodes, and no server ended by
itself. Exit status: 0 passed, 1 failed, 2 a program is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import aiohttp

from bench.fault_load import PATIENCE_S, Ended, Kind, Limited, Load, lost
from bench.fault_servers import LOAD_KEYS, Servers, lacking
from bench.fault_upstream import SWIFT
from bench.report import Row, figure, table

JUMP_S = 3600
GRACE_S = 1.0
"""How long after the recovery a request may begin that the fault still affects."""
FELT_WITHIN_S = 40.0
BACK_WITHIN_S = 60.0
KEY = LOAD_KEYS[0]
CHAT, STORED, PASSED_ON = (
    Kind("chat", SWIFT),
    Kind("responses", SWIFT, store=True),
    Kind("chat", f"upstream-{SWIFT}"),
)


@dataclass
class Scene:
    """What a fault can affect: the servers, and the load.

    `probe` sends requests too, which show whether something works. Errors of these requests are not judged.
    """

    servers: Servers
    load: Load
    probe: Load
    during: list[Ended] = field(default_factory=list)
    """The requests that have ended since the fault began."""
    unkept_before: int = 0
    workers_before: frozenset[str] = frozenset()
    killed: tuple[float, float] = (0.0, 0.0)
    """When a node was killed: the times before and after the kill."""

    async def answers(self, url: str, kind: Kind = CHAT, second_url: str = "") -> bool:
        return await self.probe.loop(kind, KEY, url, second_url)

    async def at_each_node(self, kind: Kind) -> bool:
        before = len(self.probe.kept)
        right = await asyncio.gather(*(self.answers(node.url, kind) for node in self.servers.nodes))
        return all(right) and (not kind.store or len(self.probe.kept) - before == 2 * len(right))

    async def kept_alone(self) -> bool:
        before = len(self.probe.kept)
        return await self.answers(self.servers.alone.url, STORED_ALONE) and len(self.probe.kept) - before == 2

    async def passes_on(self) -> bool:
        first, second = self.servers.nodes
        return await self.answers(first.url, CHAT, second.url) and self.probe.ends[-1].turn == "resumed"

    async def clock_is_set(self) -> bool:
        """Returns True if an answer of the second node has the time that its clock was set to."""
        body = {"model": "quick", "messages": [{"role": "user", "content": "go"}]}
        headers = {"authorization": f"Bearer {KEY}"}
        async with self.probe.client.post(
            f"{self.servers.nodes[1].url}/v1/chat/completions", json=body, headers=headers
        ) as response:
            created: int = (await response.json())["created"]
        return abs(created - time.time() - self.servers.clock.ahead) < JUMP_S / 2

    async def clock_is_right(self) -> bool:
        return await self.clock_is_set() and await self.answers(self.servers.nodes[1].url, STORED)


STORED_ALONE = Kind("responses", SWIFT, store=True, place="alone")
Check = Callable[[Scene], Awaitable[bool]]


async def _errors(scene: Scene) -> bool:
    return any(not one.right for one in scene.during)


async def _silent(scene: Scene) -> bool:
    return not await scene.answers(scene.servers.nodes[0].url)


async def _replayed(scene: Scene) -> bool:
    """Returns True if a new run answered tool results whose own run could not be reached."""
    await scene.passes_on()
    return any(one.turn == "replayed" for one in (*scene.during, scene.probe.ends[-1]))


async def _not_kept(scene: Scene) -> bool:
    return scene.load.unkept > scene.unkept_before


async def _new_workers(scene: Scene) -> bool:
    return bool(_workers(scene.servers) - scene.workers_before)


def _workers(servers: Servers) -> frozenset[str]:
    pid = servers.nginx.pid
    return frozenset(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


@dataclass(frozen=True)
class Fault:
    """A fault. `begin`, `halfway` and `end` run while the load continues.

    `felt` is true once the fault shows an effect, `back` once everything that it affected works again.
    `touches`: whether the fault may affect a kind of request. `errors`: the errors that such requests may
    get.
    """

    name: str
    begin: Callable[[Scene], None]
    end: Callable[[Scene], None]
    felt: Check
    back: Check
    touches: Callable[[Kind], bool] = lambda kind: False
    errors: frozenset[str] = frozenset()
    halfway: Callable[[Scene], None] | None = None


def _kill(scene: Scene) -> None:
    before = time.monotonic()
    scene.servers.nodes[0].kill()
    scene.killed = (before, time.monotonic())


def _reload(scene: Scene) -> None:
    scene.workers_before = _workers(scene.servers)
    scene.servers.nginx.reload()


NO_STORE = frozenset({"503 overloaded", "400 previous_response_not_found"})
"""The errors that a Responses loop may get if its stored response could not be read or written."""
FAULTS: tuple[Fault, ...] = (
    Fault(
        "node kill -9",
        _kill,
        lambda scene: _done(scene.servers.nodes[0].start()),
        _silent,
        lambda scene: scene.at_each_node(CHAT),
        touches=lambda kind: kind.place == "balanced",
        errors=frozenset({"cut", "in-band stream_interrupted", "in-band server_error", "409 conflict"}),
    ),
    Fault(
        "Redis down",
        lambda scene: scene.servers.redis.kill(),
        lambda scene: _done(scene.servers.redis.start()),
        _replayed,
        lambda scene: scene.passes_on(),
    ),
    Fault(
        "PostgreSQL down",
        lambda scene: scene.servers.postgres.kill(),
        lambda scene: scene.servers.postgres.start(),
        _not_kept,
        lambda scene: scene.at_each_node(STORED),
        touches=lambda kind: kind.store and kind.place == "balanced",
        errors=NO_STORE,
    ),
    Fault(
        "nginx reload",
        _reload,
        lambda scene: None,
        _new_workers,
        lambda scene: scene.answers(scene.servers.nginx.url),
    ),
    Fault(
        "backend gone",
        lambda scene: scene.servers.upstream.kill(),
        lambda scene: _done(scene.servers.upstream.start()),
        _errors,
        lambda scene: scene.at_each_node(PASSED_ON),
        touches=lambda kind: kind.model == "upstream",
        errors=frozenset(
            {
                "503 backend_unavailable",
                "502 stream_interrupted",
                "in-band stream_interrupted",
                "in-band server_error",
            }
        ),
    ),
    Fault(
        "disk full",
        lambda scene: scene.servers.disk.fill(scene.servers.alone.pid),
        lambda scene: scene.servers.disk.free(scene.servers.alone.pid),
        _not_kept,
        lambda scene: scene.kept_alone(),
        touches=lambda kind: kind.store and kind.place == "alone",
        errors=NO_STORE,
    ),
    Fault(
        "clock jump",
        lambda scene: scene.servers.clock.set(JUMP_S),
        lambda scene: scene.servers.clock.set(0),
        lambda scene: scene.clock_is_set(),
        lambda scene: scene.clock_is_right(),
        halfway=lambda scene: scene.servers.clock.set(-JUMP_S),
    ),
)


def _done(_: object) -> None:
    pass


@dataclass(frozen=True)
class Window:
    """The period of a fault, from `began` to `ended`. From `back` on, everything worked again."""

    fault: Fault
    began: float
    ended: float
    back: float
    felt: bool

    def holds(self, end: Ended) -> bool:
        return end.began < self.back + GRACE_S and end.ended > self.began

    def excuses(self, end: Ended) -> bool:
        return self.holds(end) and self.fault.touches(end.kind) and end.how in self.fault.errors


async def suffer(fault: Fault, scene: Scene, hold_s: float) -> Window:
    """Keeps up the fault for `hold_s`, and longer if its effect has not shown yet."""
    scene.unkept_before = scene.load.unkept
    at, began = len(scene.load.ends), time.monotonic()
    await asyncio.to_thread(fault.begin, scene)
    await asyncio.sleep(hold_s / 2 if fault.halfway is not None else hold_s)
    felt = await _until(lambda: _felt(fault, scene, at), FELT_WITHIN_S)
    if fault.halfway is not None:
        await asyncio.to_thread(fault.halfway, scene)
        await asyncio.sleep(hold_s / 2)
        felt = felt and await _until(lambda: _felt(fault, scene, at), FELT_WITHIN_S)
    await asyncio.to_thread(fault.end, scene)
    ended = time.monotonic()
    back = await _until(lambda: fault.back(scene), BACK_WITHIN_S)
    return Window(fault, began, ended, time.monotonic() if back else float("inf"), felt)


async def _felt(fault: Fault, scene: Scene, at: int) -> bool:
    scene.during = scene.load.ends[at:]
    return await fault.felt(scene)


async def _until(true: Callable[[], Awaitable[bool]], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while not await true():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.05)
    return True


# --- the judgement ---


def ways(ends: Sequence[Ended]) -> str:
    """Returns one line with the number of requests for each outcome, the right ones first."""
    counts = Counter(end.how if not end.how.startswith("wrong") else "wrong" for end in ends)
    right = counts.pop("right", 0)
    return ", ".join([f"{right:,} right", *(f"{count:,} × {how}" for how, count in counts.most_common())])


def elsewhere(ends: Sequence[Ended], scene: Scene) -> list[Ended]:
    """Returns the requests whose connection was lost although their node was not killed.

    Either nginx had sent these requests to the other node, or they were not in progress at the kill.
    """
    killed, other = (node.log.read_text() for node in scene.servers.nodes)
    before, after = scene.killed

    def excused(end: Ended) -> bool:
        mark = f"request_id={end.request_id} "
        passed_on = any(
            mark in line for line in killed.splitlines() if " passed_on " in line
        )  # the killed node had passed the request on to the other node, where it also is in the log
        return (mark not in other or passed_on) and end.began <= after and end.ended >= before

    return [end for end in ends if end.how == "cut" and not excused(end)]


def judged(
    scene: Scene, windows: Sequence[Window], limited: Limited, gone: Sequence[str], within_s: float
) -> tuple[list[Row], list[str]]:
    ends, notes = scene.load.ends, []
    wrong = [end for end in ends if end.how == "hung" or end.how.startswith("wrong")]
    unexplained = [
        end
        for end in ends
        if not end.right and end not in wrong and not any(window.excuses(end) for window in windows)
    ]
    cut = elsewhere(ends, scene)
    rows = [
        Row(
            "requests with a wrong answer or none",
            len(wrong),
            f"{len(ends):,} requests: {ways(ends)}",
            "at most",
            0,
            "",
        ),
        Row(
            "errors that no fault explains",
            len(unexplained),
            ways(unexplained) if unexplained else "",
            "at most",
            0,
            "",
        ),
        Row(
            "requests that lost their connection although their node was not killed",
            len(cut),
            "",
            "at most",
            0,
            "",
        ),
    ]
    for window in windows:
        during = [end for end in ends if window.began <= end.ended <= window.back]
        detail = (
            f"fault of {window.ended - window.began:.1f} s{'' if window.felt else ', without effect'}; "
            f"{ways(during)}"
        )
        taken = window.back - window.ended if window.felt and window.back != float("inf") else None
        rows.append(
            Row(f"{window.fault.name}: right answers again after", taken, detail, "at most", within_s, "s")
        )
    kept = len(scene.load.kept) + len(scene.probe.kept)
    detail = f"{kept:,} stored; {scene.load.unkept:,} other responses reported that they were not stored"
    rows.append(Row("stored responses not found again", len(gone), detail, "at most", 0, ""))
    refused = (
        f"limit: {limited.rate} requests per minute, {limited.due:,.0f} in all; {limited.allowed:,} allowed, "
        f"{limited.refused:,} refused"
    )
    rows.append(
        Row(
            "a key's limit over both nodes: requests allowed, compared with the limit",
            limited.allowed / limited.due,
            refused,
            "at most",
            1.05,
        )
    )
    rows.append(Row("the same ratio: lower bound", limited.allowed / limited.due, "", "at least", 0.95))
    rows.append(
        Row(
            "servers that ended by themselves",
            len(scene.servers.ended()),
            ", ".join(scene.servers.ended()),
            "at most",
            0,
            "",
        )
    )
    rows.append(Row("tracebacks in the nodes' logs", scene.servers.tracebacks(), "", "at most", 0, ""))
    turns = Counter(end.turn for end in ends if end.right)
    went = ", ".join(f"{count:,} {turn}" for turn, count in turns.most_common() if turn)
    notes.append(
        f"At most {scene.load.most_under_way} requests were active at once. Turns ([parked "
        f"turns](parked.md)): {went}."
    )
    notes.append(
        f"The full disk was {scene.servers.disk.name}. Other results of the requests with the limited key: "
        f"{', '.join(f'{count} × {how}' for how, count in limited.other.items()) or 'none'}."
    )
    notes += [
        f"`{end.kind.name}` {end.request_id}: {end.how[:600]}"
        for end in (*wrong[:5], *unexplained[:5], *cut[:5])
    ]
    notes += [f"lost: `{one}`" for one in gone[:5]]
    return rows, notes


@dataclass(frozen=True)
class Length:
    """The length of a run.

    A fault lasts `hold_s`, with `calm_s` between two faults. The two answers of a loop have three pauses of
    `pause_ms`. `rate` is the number of requests per minute that the limited key may send.
    """

    streams: int
    hold_s: float
    calm_s: float
    pause_ms: int
    rate: int
    within_s: float
    """How soon after a fault there must be right answers again."""


LONG = Length(200, 12.0, 6.0, 1500, 300, 15.0)
QUICK = Length(40, 0.8, 0.2, 800, 120, 30.0)


async def run(how: Length, folder: Path) -> tuple[list[Row], list[str]]:
    before, began = os.getloadavg()[0], time.monotonic()
    with Servers(folder, how.pause_ms).running() as servers:
        connector, timeout = (
            aiohttp.TCPConnector(limit=0, force_close=True, ssl=False),
            aiohttp.ClientTimeout(total=PATIENCE_S),
        )
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as client:
            load, probe = (Load(name, client, servers.places, LOAD_KEYS) for name in ("load", "probe"))
            scene = Scene(servers, load, probe)
            _say(f"everything runs after {time.monotonic() - began:.1f} s")
            limited = Limited(
                client, [node.url for node in servers.nodes], await servers.limited_key(how.rate), how.rate
            )
            load.start(how.streams)
            await limited.start()
            await asyncio.sleep(how.calm_s)
            windows = []
            for fault in FAULTS:
                windows.append(await suffer(fault, scene, how.hold_s))
                _say(
                    f"{fault.name}: felt {windows[-1].felt}, back after "
                    f"{windows[-1].back - windows[-1].ended:.2f} s"
                )
                await asyncio.gather(asyncio.sleep(how.calm_s), limited.known_everywhere())
            await asyncio.gather(load.stop(), limited.stop())
            _say(f"{len(load.ends):,} requests: {ways(load.ends)}")
            gone = await lost(client, servers.places, [*load.kept, *probe.kept])
            rows, notes = judged(scene, windows, limited, gone, how.within_s)
    after = os.getloadavg()[0]
    notes.insert(
        0,
        f"{how.streams} streams; the machine's load was {figure(before)} before and {figure(after)} at the "
        f"end, on {os.cpu_count()} cores.",
    )
    return rows, notes


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.faults", description="Faults under load, against the real services."
    )
    parser.add_argument("--quick", action="store_true", help="40 streams, and short faults")
    parser.add_argument("--folder", type=Path, help="keep the logs in this folder")
    parser.add_argument("--json", metavar="FILE", help="write the rows as JSON")
    arguments = parser.parse_args(argv)
    if absent := lacking():
        _say(f"missing: {', '.join(absent)}")
        return 2
    with tempfile.TemporaryDirectory(prefix="toolwire-faults-") as scratch:
        folder = arguments.folder or Path(scratch)
        rows, notes = asyncio.run(run(QUICK if arguments.quick else LONG, folder))
    print(table(rows), *notes, sep="\n")
    if arguments.json:
        Path(arguments.json).write_text(
            json.dumps({"rows": [asdict(row) for row in rows], "notes": notes}, indent=1) + "\n"
        )
    return 0 if all(row.verdict == "pass" for row in rows if row.sense) else 1


if __name__ == "__main__":
    sys.exit(main())

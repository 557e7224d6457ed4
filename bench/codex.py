"""Compares Codex used directly with Codex behind Toolwire, in one run.

Both sides use the same Codex binary, Codex home, parameters and model provider. One side is a lean JSON-RPC
client of Codex, the other an HTTP client of Toolwire.

- Both sides are restarted for every round and warmed by a turn that does not count, so that their Codex
  processes have the same age.
- A wave is a number of concurrent turns. Within a round, every wave runs on both sides, in random order, so
  that a disturbance of the machine affects both. No process is pinned to a core.
- A ratio is the ratio of the medians of all waves. Its range comes from resampling the pairs of waves. A
  target inside that range is neither clearly met nor clearly missed.
- Times are measured from the request (`thread/start`, or the HTTP request) to the first text delta, and to
  the end of the turn.
- Every answer is compared with what the provider sent, after the clock has stopped.

A run has three kinds of processes: the provider (`python -m bench.codex provider PORT`), and for each side a
driver (`direct PORT` or `client PORT`). A driver reads one load per line from stdin, and writes a line of
figures for each load.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from bench.process import HERE, WORK, Process, answers, free_port
from bench.report import Row, figure
from bench.targets import ALL_CORES, AUTHORIZATION, Target, codex_options, start_toolwire_codex

BINARY = HERE.parent / "tests" / "codex" / "new" / "node_modules" / ".bin" / "codex"
STEP_S = 0.01
MARK = "Zz00"
"""A mark in the first piece of every answer."""
FIRST_TARGET, WALL_TARGET = 1.15, 1.10
LOAD_S = 60.0


@dataclass(frozen=True, slots=True)
class Load:
    """A load: `turns` concurrent turns of `pieces` pieces each, `waves` times in a round."""

    name: str
    turns: int
    pieces: int = 100
    waves: int = 1


ONE, EIGHT, MANY, SHORT = LOADS = (
    Load("1 turn", 1, waves=6),
    Load("8 turns", 8, waves=3),
    Load("32 turns", 32, waves=3),
    Load("32 short turns", 32, 1),
)
"""The loads of a round: fewer turns than Toolwire's Codex process serves before it is replaced."""
WARM = Load("warming", 1, 1)
TOOL = {
    "name": "get_weather",
    "description": "The weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def question(pieces: int) -> dict[str, Any]:
    """Returns the request. Its last message says how many pieces the answer has."""
    messages = [
        {"role": "system", "content": "You are helpful."},
        {"role": "user", "content": f"Say something of {pieces} pieces."},
    ]
    return {
        "model": "codex",
        "messages": messages,
        "tools": [{"type": "function", "function": TOOL}],
        "stream": True,
    }


def words(pieces: int) -> list[str]:
    return [MARK, *(f" w{number:03d}" for number in range(1, pieces))]


# --- the provider ---

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_COUNT = re.compile(rb"of (\d+) pieces")


def _event(type: str, **content: Any) -> bytes:
    raw = f"event: {type}\ndata: {json.dumps({'type': type, **content})}\n\n".encode()
    return f"{len(raw):x}\r\n".encode() + raw + b"\r\n"


def writes(pieces: int) -> list[bytes]:
    """Returns the blocks of an answer that are written one by one: one for each piece, and the end."""
    said = words(pieces)
    message: dict[str, Any] = {"type": "message", "id": "msg_1", "role": "assistant"}
    usage = {
        "input_tokens": 20,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": pieces,
        "total_tokens": 20 + pieces,
    }
    usage["output_tokens_details"] = {"reasoning_tokens": 0}
    out = [
        _event("response.output_text.delta", item_id="msg_1", output_index=0, content_index=0, delta=word)
        for word in said
    ]
    begun = {**message, "status": "in_progress", "content": []}
    done = {
        **message,
        "status": "completed",
        "content": [{"type": "output_text", "text": "".join(said), "annotations": []}],
    }
    before = _event("response.created", response={"id": "resp_1"}) + _event(
        "response.output_item.added", output_index=0, item=begun
    )
    out[0] = _HEAD + before + out[0]
    after = _event("response.output_item.done", output_index=0, item=done)
    return [
        *out,
        after + _event("response.completed", response={"id": "resp_1", "usage": usage}) + b"0\r\n\r\n",
    ]


async def provide(port: int) -> None:
    ready = {pieces: writes(pieces) for pieces in {load.pieces for load in (*LOADS, WARM)}}
    loop = asyncio.get_running_loop()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(
                    int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
                )
                counts = _COUNT.findall(body)
                if not head.startswith(b"POST") or not counts:
                    writer.write(
                        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
                    )
                    continue
                due = loop.time()
                for write in ready[int(counts[-1])]:
                    writer.write(write)
                    due += STEP_S
                    await asyncio.sleep(max(0.0, due - loop.time()))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port, backlog=1024, limit=1 << 22)
    await server.serve_forever()


# --- one turn on each side ---


@dataclass(slots=True)
class Times:
    first_s: float
    said: Callable[[], str]
    """Returns the whole text. Called after the clock has stopped."""


Ask = Callable[[int], Awaitable[Times]]


class Listener:
    """Collects the messages of a thread in the order of arrival."""

    def __init__(self) -> None:
        self.first = 0.0
        self.deltas: list[bytes] = []
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def deliver(self, message: Any) -> None:
        if message.method == "item/agentMessage/delta":
            self.first = self.first or time.perf_counter()
            self.deltas.append(message.params)
        elif message.method == "turn/completed":
            self.over.set_result(None)

    def lost(self, failure: Any) -> None:
        if not self.over.done():
            self.over.set_exception(RuntimeError(failure.message))

    def said(self) -> str:
        return "".join(json.loads(bytes(params))["delta"] for params in self.deltas)


async def directly(port: int) -> tuple[Ask, Callable[[], Awaitable[None]]]:
    """Returns a function that asks `codex app-server` directly, and one that closes it.

    The client sends what Toolwire sends for the same request.
    """
    from toolwire.backends.codex import items
    from toolwire.backends.codex.home import prepare_home
    from toolwire.backends.codex.options import CodexOptions
    from toolwire.backends.codex.runs import thread_params, turn_params
    from toolwire.backends.codex.worker import CodexWorker
    from toolwire.wire.chat import decode as chat

    options = CodexOptions(**codex_options(port, BINARY))
    home = await prepare_home(options)
    worker = CodexWorker(home)
    async with home.warming():
        await worker.start(options.start_timeout_s)

    @cache  # the direct client translates each request only once
    def asked(pieces: int) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
        turn = chat.decode(question(pieces))
        bare = {
            **thread_params(turn, options, str(home.cwd), home.features),
            "experimentalRawEvents": True,
            "environments": [],
        }
        return (
            {**bare, "dynamicTools": [items.tool_json(tool) for tool in turn.tools]},
            items.history(turn),
            turn_params(turn, options),
        )

    async def ask(pieces: int) -> Times:
        params, injected, begin = asked(pieces)
        heard = Listener()
        began = time.perf_counter()
        thread = {"threadId": json.loads(await worker.request("thread/start", params))["thread"]["id"]}
        worker.attach(thread["threadId"], heard)
        await worker.request("thread/inject_items", {**thread, "items": injected})
        await worker.request("turn/start", {**thread, **begin})
        await heard.over
        worker.notify("thread/unsubscribe", thread)
        worker.detach(thread["threadId"])
        return Times(heard.first - began, heard.said)

    return ask, worker.close


def content(raw: bytes) -> str:
    """Returns the text of a chat stream."""
    chunks = [json.loads(line[6:]) for line in raw.decode().split("\n") if line.startswith("data: {")]
    return "".join(
        choice["delta"].get("content") or "" for chunk in chunks for choice in chunk.get("choices", ())
    )


async def by_http(port: int) -> tuple[Ask, Callable[[], Awaitable[None]]]:
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None)
    session = aiohttp.ClientSession(
        f"http://127.0.0.1:{port}",
        connector=aiohttp.TCPConnector(limit=0),
        timeout=timeout,
        headers=AUTHORIZATION,
    )
    mark = MARK.encode()

    async def ask(pieces: int) -> Times:
        body = json.dumps(question(pieces)).encode()
        blocks: list[bytes] = []
        first, tail = 0.0, b""
        began = time.perf_counter()
        async with session.post(
            "/v1/chat/completions", data=body, headers={"Content-Type": "application/json"}
        ) as response:
            while block := await response.content.readany():
                blocks.append(block)
                if not first:
                    tail = tail[-len(mark) :] + block
                    first = time.perf_counter() if mark in tail else 0.0
        return Times(first - began, lambda: content(b"".join(blocks)))

    return ask, session.close


async def drive(
    side: Callable[[int], Awaitable[tuple[Ask, Callable[[], Awaitable[None]]]]], port: int
) -> None:
    """Reads loads from stdin, runs them and writes their figures to stdout."""
    ask, close = await side(port)
    loop = asyncio.get_running_loop()
    try:
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            load = Load(**json.loads(line))
            cpu, began = time.process_time(), time.perf_counter()
            async with asyncio.timeout(LOAD_S):
                times = await asyncio.gather(*(ask(load.pieces) for _ in range(load.turns)))
            report: dict[str, Any] = {
                "wall_ms": 1000 * (time.perf_counter() - began),
                "cpu_s": time.process_time() - cpu,
            }
            report["first_ms"] = [1000 * one.first_s for one in times]
            report["wrong"] = sum(one.said() != "".join(words(load.pieces)) for one in times)
            print(json.dumps(report), flush=True)
    finally:
        await close()


# --- the sides, as processes ---


def cpu_s(pids: Sequence[int]) -> float:
    """Returns the CPU seconds of whole processes, including threads that have ended."""
    ticks = 0
    for pid in pids:
        try:
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
        except OSError:
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Figures:
    """The result of a wave.

    The CPU times of the driver, of Toolwire and of Codex are in seconds, for all turns of the wave.
    """

    first_ms: float
    slow_ms: float
    wall_ms: float
    driver_s: float
    toolwire_s: float
    codex_s: float


class Failed(RuntimeError):
    """A side gave a wrong answer, so its figures are worthless."""


class Side:
    """One side of the comparison.

    `direct`: the driver starts Codex itself. `gateway`: the driver is a client of Toolwire, which starts
    Codex.
    """

    def __init__(self, name: str, provider: int) -> None:
        self.name = name
        self.target: Target | None = start_toolwire_codex(provider, BINARY) if name == "gateway" else None
        role, port = ("client", self.target.port) if self.target else ("direct", provider)
        self._log = (WORK / f"codex-{role}.log").open("wb")
        self._driver = subprocess.Popen(
            [sys.executable, "-m", "bench.codex", role, str(port)],
            cwd=HERE.parent,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )

    def run(self, load: Load) -> Figures:
        assert self._driver.stdin is not None and self._driver.stdout is not None
        toolwire, codex = self._pids()
        before = cpu_s(toolwire), cpu_s(codex)
        try:
            self._driver.stdin.write(json.dumps(asdict(load)) + "\n")
            self._driver.stdin.flush()
            line = self._driver.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise Failed(
                f"{self.name}, {load.name}: {Path(self._log.name).read_text(errors='replace').strip()[-500:]}"
            )
        report = json.loads(line)
        if report["wrong"]:
            raise Failed(
                f"{self.name}, {load.name}: {report['wrong']} answers are not what the provider sent"
            )
        first = sorted(report["first_ms"])
        slow = first[int(0.95 * (len(first) - 1))]
        return Figures(
            median(first),
            slow,
            report["wall_ms"],
            report["cpu_s"],
            cpu_s(toolwire) - before[0],
            cpu_s(codex) - before[1],
        )

    def _pids(self) -> tuple[list[int], list[int]]:
        """Returns the ids of Toolwire's processes, if any, and of Codex's processes."""
        if self.target is not None and self.target.process is not None:
            own, *below = self.target.process._tree()
            return [own], below
        below = [self._driver.pid]
        for pid in below:
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                below += map(int, task.read_text().split())
        return [], below[1:]

    def stop(self) -> None:
        assert self._driver.stdin is not None
        self._driver.stdin.close()
        try:
            self._driver.wait(10)
        except subprocess.TimeoutExpired:
            self._driver.kill()
            self._driver.wait(5)
        self._log.close()
        if self.target is not None:
            self.target.stop()


# --- the rounds ---

Found = dict[tuple[str, str], list[Figures]]
"""The figures of each wave, by side and load.

The two waves at the same position, one of each side, ran directly after each other: they are a pair.
"""


def measure(provider: int, rounds: int, chance: random.Random) -> Found:
    found: Found = {}
    for number in range(-1, rounds):  # the first round warms the home and does not count
        print(
            f"  round {number + 1} of {rounds}" if number >= 0 else "  warming", file=sys.stderr, flush=True
        )
        sides: list[Side] = []
        try:
            for name in chance.sample(("direct", "gateway"), 2):
                sides.append(Side(name, provider))
                sides[-1].run(WARM)
            for load in (one for one in LOADS for _ in range(one.waves) if number >= 0):
                for side in chance.sample(sides, 2):
                    found.setdefault((side.name, load.name), []).append(side.run(load))
        finally:
            for side in sides:
                side.stop()
    return found


def resampled(
    pairs: Sequence[tuple[float, float]], chance: random.Random, draws: int = 2000
) -> tuple[float, float]:
    """Returns the range of the ratio of medians over resampled pairs, without the outer 5 % on each side."""
    found = sorted(_ratio(chance.choices(pairs, k=len(pairs))) for _ in range(draws))
    return found[draws // 20], found[-draws // 20]


def _ratio(pairs: Sequence[tuple[float, float]]) -> float:
    return median(mine for mine, _ in pairs) / median(other for _, other in pairs)


def ratio_row(found: Found, load: Load, field: str, title: str, target: float = 0.0) -> Row:
    mine, other = ([getattr(one, field) for one in found[side, load.name]] for side in ("gateway", "direct"))
    pairs = list(zip(mine, other, strict=True))
    low, high = resampled(pairs, random.Random(0))
    detail = (
        f"{figure(median(mine))} against {figure(median(other))} ms; {len(pairs)} pairs, resampled: "
        f"{figure(low)} to {figure(high)}"
    )
    return Row(title, _ratio(pairs), detail, "at most" if target else "", target)


def time_rows(found: Found) -> list[Row]:
    rows = [
        ratio_row(found, load, "first_ms", f"first token, {load.name} at once", FIRST_TARGET)
        for load in (ONE, EIGHT, MANY)
    ]
    for load, target in ((ONE, 0.0), (EIGHT, 0.0), (MANY, WALL_TARGET)):
        rows.append(ratio_row(found, load, "wall_ms", f"wall time, {load.name} at once", target))
    rows.append(ratio_row(found, MANY, "slow_ms", "first token, 32 turns at once, 95th percentile"))
    rows.append(ratio_row(found, SHORT, "wall_ms", "wall time, 32 turns of one delta"))
    return rows


def cpu_rows(found: Found) -> list[Row]:
    """Returns the rows on CPU time.

    Turns of one delta show the cost of a turn. The additional cost of longer turns shows the cost of a delta.
    """

    def taken(side: str, load: Load, name: str) -> float:
        spent: list[float] = [getattr(one, name) for one in found[side, load.name]]
        return 1e6 * sum(spent) / len(spent) / load.turns

    rows = []
    for side, name, title in (
        ("gateway", "toolwire_s", "Toolwire"),
        ("direct", "driver_s", "the direct client"),
        ("gateway", "driver_s", "the HTTP client"),
        ("gateway", "codex_s", "Codex behind Toolwire"),
        ("direct", "codex_s", "Codex used directly"),
    ):
        turn = taken(side, SHORT, name)
        delta = (taken(side, MANY, name) - turn) / (MANY.pieces - SHORT.pieces)
        rows.append(
            Row(f"CPU per delta: {title}", delta, f"plus {figure(turn / 1000)} ms per turn", unit="µs")
        )
    return rows


def missing() -> str:
    """Returns one line that says which program is missing; empty if none is."""
    if not BINARY.exists():
        return "the Codex benchmark is left out: Codex is missing; npm ci --prefix tests/codex/new"
    return "" if shutil.which("node") else "the Codex benchmark is left out: node is missing"


def run(rounds: int = 5, seed: int | None = None) -> tuple[list[Row], list[str]]:
    """Returns the rows of the table and the notes under it."""
    if lacking := missing():
        return [], [lacking]
    seed = random.randrange(1 << 16) if seed is None else seed
    shutil.rmtree(
        WORK / "codex-home", ignore_errors=True
    )  # a home is made for one provider, and the provider has another port in each run
    port = free_port()
    provider = Process(
        [sys.executable, "-m", "bench.codex", "provider", str(port)],
        core=ALL_CORES,
        log="codex-provider",
        cwd=HERE.parent,
    )
    try:
        provider.wait_until(lambda: answers(port, "/v1/models"))
        found = measure(port, rounds, random.Random(seed))
    except RuntimeError as error:
        return [Row("Codex through Toolwire against directly", None, "", "at most", FIRST_TARGET)], [
            f"failed: {error}"
        ]
    finally:
        provider.stop()
    turns = f"{MANY.pieces} deltas {1000 * STEP_S:g} ms apart"
    notes = [
        f"Codex: {rounds} rounds, in random order (seed {seed}). A turn has {turns}. Each ratio "
        "compares medians."
    ]
    return [*time_rows(found), *cpu_rows(found)], notes


ROLES: dict[str, Callable[[int], Awaitable[None]]] = {
    "provider": provide,
    "direct": lambda port: drive(directly, port),
    "client": lambda port: drive(by_http, port),
}

if __name__ == "__main__":
    import uvloop

    async def play() -> None:
        await ROLES[sys.argv[1]](int(sys.argv[2]))

    uvloop.run(play())

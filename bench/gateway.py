"""Compares Toolwire with a byte relay, with the upstream alone, and with other gateways.

All servers are started once, and every round measures all of them, so that a disturbance of the machine
affects all. Each round begins with another server, so that no server always follows the busiest one. The
rounds begin when all servers have reached a steady cost. A gateway on Node halves its cost in its first ten
seconds of load. Therefore, the cost of plain requests is also measured on freshly started gateways, with the
same target. CPU time is the time of the gateway's processes per request, from /proc. The median of all loads
counts, and ratios are ratios of medians.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from bench import peers as other_gateways
from bench.load import MARKS
from bench.process import LOAD_CORE, WORK, Process, answer, answers, free_port, is_compiled, tool
from bench.report import Row, figure
from bench.side import Side
from bench.targets import MESSAGES_MODEL, STARTS, TITLES, Target, start_toolwire

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
ROUNDS = 5
PIECES = 200
_TOOL = {
    "name": "get_weather",
    "description": "The weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
_MESSAGES = [{"role": "system", "content": "You are helpful."}, {"role": "user", "content": "Say hi."}]


def chat(model: str, *, stream: bool = True, tools: bool = False) -> dict[str, Any]:
    body: dict[str, Any] = {"model": model, "messages": _MESSAGES}
    if stream:
        body["stream"] = True
    if tools:
        body["tools"] = [{"type": "function", "function": _TOOL}]
    return body


@dataclass(frozen=True, slots=True)
class Measure:
    """One kind of load. If `requests` is 0, it has as many requests as fit into `seconds`.

    `only`: the names of the targets that run this load; if empty, all targets run it.
    """

    name: str
    body: dict[str, Any]
    connections: int
    seconds: float
    requests: int = 0
    path: str = CHAT
    only: tuple[str, ...] = ()
    holds: str = ""
    """A text that a right answer contains. The figures of wrong answers would be worthless."""
    again: int = 0
    """How many more times the targets in `BESIDE` run this load in a round."""


BESIDE = ("upstream", "toolwire", "relay")
"""Targets whose paced streams are compared, with ratios near 1.

On a busy machine, such ratios need more samples.
"""
FRESH = ", just started"
STEADY, MOST_WARM = 4, 20
"""When a gateway is warm: STEADY loads in a row were not at least 5 % cheaper than the cheapest before.

After MOST_WARM loads, the benchmark begins in any case.
"""
CALLED = '"finish_reason":"tool_calls"'
MEASURES = (
    Measure("plain one by one", chat("bench-plain", stream=False), 1, 0.8),
    Measure("plain", chat("bench-plain", stream=False), 32, 1.2),
    Measure("paced", chat("bench-paced"), 32, 1.0, 32, again=4),
    Measure("burst", chat("bench-burst"), 32, 1.0),
    Measure("prose, tools native", chat("bench-paced", tools=True), 32, 1.0, 32, only=("toolwire",), again=4),
    Measure(
        "prose, tools emulated", chat("emulated-paced", tools=True), 32, 1.0, 32, only=("toolwire",), again=4
    ),
    Measure(
        "call, native", chat("bench-native-paced", tools=True), 32, 1.0, 32, only=("toolwire",), holds=CALLED
    ),
    Measure(
        "call, emulated",
        chat("emulated-written-paced", tools=True),
        32,
        1.0,
        32,
        only=("toolwire",),
        holds=CALLED,
    ),
    Measure(
        "responses paced",
        {"model": "bench-paced", "input": "Say hi.", "stream": True, "store": False},
        32,
        1.0,
        32,
        RESPONSES,
        ("toolwire",),
        again=4,
    ),
    Measure(
        "messages paced",
        {
            "model": MESSAGES_MODEL,
            "max_tokens": 1000,
            "messages": [{"role": "user", "content": "Say hi."}],
            "stream": True,
        },
        32,
        1.0,
        32,
        MESSAGES,
        ("toolwire", "litellm"),
        again=4,
    ),
)
ONE, PLAIN, BURST = MEASURES[0], MEASURES[1], MEASURES[3]
FIRST = (
    replace(PLAIN, connections=4, seconds=0.7),
    replace(BURST, connections=4, seconds=0.7),
    *[replace(ONE, seconds=0.6)] * 3,
)
"""The load on a freshly started gateway before it is measured."""
CROWD = Measure("crowd", chat("bench-paced"), 256, 1.0, 256)


class Failed(RuntimeError):
    """A target gave a wrong answer, so its figures are worthless."""


def stream_text(stream: str) -> str:
    """Returns the text of a complete stream of any of the three APIs; "" if it broke off."""
    text = ""
    for line in stream.splitlines():
        if not line.startswith("data: {"):
            continue
        data = json.loads(line[6:])
        text += "".join(choice["delta"].get("content") or "" for choice in data.get("choices", ()))
        delta = data.get("delta")
        if data.get("type") == "response.output_text.delta":
            text += delta
        elif data.get("type") == "content_block_delta":
            text += delta.get("text", "")
    return text if any(mark.decode() in stream for mark in MARKS) else ""


def problem(target: Target, measure: Measure, expected: str) -> str:
    """Returns what is wrong with a target's answer, or "". `expected` is the text of every right stream."""
    status, said = answer(target.port, measure.path, target.headers, measure.body)
    if status != 200:
        return f"the answer has status {status}: {said[:200]}"
    if measure.holds:
        return "" if measure.holds in said else f"the answer does not hold {measure.holds}"
    if measure.body.get("stream") and stream_text(said) != expected:
        return f"the stream is not complete, or its text is not the upstream's: …{said[-200:]}"
    return ""


def load(target: Target, measure: Measure, *, watch: Any = None) -> dict[str, float]:
    """Runs one load.

    Returns the generator's report, with the target's CPU time in milliseconds per request.
    """
    body = WORK / "request.json"
    body.write_text(json.dumps(measure.body))
    before = target.process.cpu_s() if target.process else 0.0
    command = [
        *tool("load"),
        str(target.port),
        measure.path,
        str(measure.connections),
        str(measure.seconds),
        str(measure.requests),
        str(body),
    ]
    command += [f"{name}: {value}" for name, value in target.headers.items()]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, preexec_fn=lambda: os.sched_setaffinity(0, LOAD_CORE)
    ) as running:
        while watch is not None and running.poll() is None:
            time.sleep(0.2)
            watch()
        output, _ = running.communicate()
    report: dict[str, float] = json.loads(output)
    if not report["requests"] or report["errors"] or report["broken"] or report["unfinished"]:
        raise Failed(f"{target.name}, {measure.name}: {output.strip()}")
    report["cpu_ms"] = (
        1000 * ((target.process.cpu_s() if target.process else 0.0) - before) / report["requests"]
    )
    return report


Figures = dict[tuple[str, str], dict[str, float]]
"""The medians of the rounds, by target and measure."""


def measure_all(targets: Sequence[Target], rounds: int) -> tuple[Figures, list[str]]:
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    notes: list[str] = []
    lost: set[tuple[str, str]] = set()
    upstream = next(target for target in targets if target.name == "upstream")
    expected = stream_text(answer(upstream.port, CHAT, upstream.headers, chat("bench-burst"))[1])
    for target in targets:
        for measure in MEASURES:
            if measure.only and target.name not in measure.only:
                continue
            if wrong := problem(target, measure, expected):
                lost.add((target.name, measure.name))
                notes.append(f"failed: {target.name}, {measure.name}: {wrong}")
    for target in targets:
        try:
            warm(target)
        except Failed as error:
            notes.append(f"failed while it warmed up: {error}")
    for number in range(rounds):
        print(f"  round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        place = number % len(targets)
        for measure in MEASURES:
            order = (*targets[place:], *targets[:place])
            once_more = [target for target in order if target.name in BESIDE] * measure.again
            for target in (*order, *once_more):
                key = (target.name, measure.name)
                if (measure.only and target.name not in measure.only) or key in lost:
                    continue
                try:
                    found.setdefault(key, []).append(load(target, measure))
                except Failed as error:
                    lost.add(key)
                    notes.append(f"failed: {error}")
    return {key: _medians(loads) for key, loads in found.items()}, notes


def _medians(loads: list[dict[str, float]]) -> dict[str, float]:
    return {name: median(one[name] for one in loads) for name in loads[0]}


def warm(target: Target) -> None:
    """Sends plain requests until their cost no longer falls, then a burst."""
    cheapest, since = load(target, PLAIN)["cpu_ms"], 0
    for _ in range(MOST_WARM if target.process else 0):
        cost = load(target, PLAIN)["cpu_ms"]
        since = since + 1 if cost > 0.95 * cheapest else 0
        cheapest = min(cheapest, cost)
        if since == STEADY:
            break
    load(target, BURST)


def just_started(
    starts: Mapping[str, Callable[[int], Target]], upstream: int, rounds: int
) -> tuple[Figures, list[str]]:
    """Measures plain requests in the first seconds after the start of each gateway.

    The gateways are restarted for each round.
    """
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    notes: list[str] = []
    for number in range(rounds):
        print(f"  just started, round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        for name, start in starts.items():
            try:
                target = start(upstream)
            except (RuntimeError, OSError, subprocess.CalledProcessError):
                continue  # reported when all targets are started
            try:
                for measure in FIRST:
                    load(target, measure)
                found.setdefault((name, PLAIN.name + FRESH), []).append(
                    _medians([load(target, PLAIN) for _ in range(3)])
                )
            except Failed as error:
                notes.append(f"failed when it was just started: {error}")
            finally:
                target.stop()
    return {key: _medians(loads) for key, loads in found.items()}, notes


def crowd(target: Target, rounds: int) -> list[float]:
    """Returns the largest resident memory in each of `rounds` loads of 256 concurrent streams."""
    peaks = []
    assert target.process is not None
    process = target.process
    for _ in range(rounds):
        seen = [0.0]
        load(target, CROWD, watch=lambda seen=seen: seen.append(process.rss_mb()))
        peaks.append(max(seen))
    return peaks


# --- the table ---

PEER_TARGETS = {
    ("litellm", "plain"): 25.0,
    ("portkey", "plain"): 6.0,
    ("litellm", "paced"): 8.0,
    ("litellm", "messages paced"): 8.0,
    ("portkey", "paced"): 1.6,
}


def _ratio_row(
    title: str,
    figures: Figures,
    ours: str,
    theirs: tuple[str, str],
    target: float,
    field: str = "cpu_ms",
    unit: str = "ms",
) -> Row:
    mine, other = figures.get(("toolwire", ours)), figures.get(theirs)
    if mine is None or other is None or not other[field]:
        return Row(title, None, "", "at most", target)
    return Row(
        title,
        mine[field] / other[field],
        f"{figure(mine[field])} against {figure(other[field])} {unit}",
        "at most",
        target,
    )


def _peer_rows(figures: Figures, peers: Sequence[str]) -> list[Row]:
    rows = []
    for peer in peers:
        for name, when, words in (
            ("plain", "", "plain request"),
            ("plain", FRESH, "plain request"),
            ("paced", "", "paced stream"),
            ("messages paced", "", "paced stream of the Messages API"),
        ):
            if (peer, name) not in PEER_TARGETS:
                continue
            mine, other = figures.get(("toolwire", name + when)), figures.get((peer, name + when))
            title = f"{words}{when}: CPU of {TITLES[peer]}, compared with Toolwire"
            target = PEER_TARGETS[peer, name]
            if mine is None or other is None:
                rows.append(Row(title, None, "", "at least", target))
                continue
            detail = f"{figure(other['cpu_ms'])} against {figure(mine['cpu_ms'])} ms"
            rows.append(Row(title, other["cpu_ms"] / mine["cpu_ms"], detail, "at least", target))
    return rows


def _first_token_row(figures: Figures) -> Row:
    title = "delay of the first token at 32 streams, compared with the relay"
    trio = [figures.get((name, "paced")) for name in ("toolwire", "relay", "upstream")]
    if None in trio:
        return Row(title, None, "", "at most", 1.5)
    mine, relay, bare = (one["first_p50"] / 1000 for one in trio if one)
    added, added_by_relay = mine - bare, max(relay - bare, 1e-6)
    return Row(
        title,
        added / added_by_relay,
        f"{figure(added)} against {figure(added_by_relay)} ms (p50); the upstream alone: {figure(bare)} ms",
        "at most",
        1.5,
    )


def ratio_rows(figures: Figures, peers: Sequence[str]) -> list[Row]:
    return [
        _ratio_row("plain request: CPU, compared with the relay", figures, "plain", ("relay", "plain"), 2.0),
        _ratio_row("paced stream: CPU, compared with the relay", figures, "paced", ("relay", "paced"), 1.4),
        *_peer_rows(figures, peers),
        _ratio_row(
            "paced text, request with tools: CPU of emulated tools, compared with native",
            figures,
            "prose, tools emulated",
            ("toolwire", "prose, tools native"),
            1.25,
        ),
        _ratio_row(
            "paced call: CPU of emulated tools, compared with native",
            figures,
            "call, emulated",
            ("toolwire", "call, native"),
            1.25,
        ),
        _ratio_row(
            "CPU per chunk: Responses, compared with chat",
            figures,
            "responses paced",
            ("toolwire", "paced"),
            1.3,
        ),
        _ratio_row(
            "CPU per chunk: Messages, compared with chat",
            figures,
            "messages paced",
            ("toolwire", "paced"),
            1.2,
        ),
        _first_token_row(figures),
    ]


def memory_rows(ours: Target, peaks: list[float], cold: list[float]) -> list[Row]:
    output = ", ".join(figure(peak) for peak in peaks)
    return [
        Row("memory, idle", ours.idle_mb, "resident memory", "at most", 70, "MB"),
        Row(
            "memory, at 256 streams",
            max(peaks) if peaks else None,
            f"per round: {output}",
            "at most",
            130,
            "MB",
        ),
        Row(
            "memory, at 256 streams: growth from the first to the third round",
            100 * (peaks[-1] / peaks[0] - 1) if peaks else None,
            "",
            "at most",
            5,
            "%",
        ),
        Row(
            "time from start to ready",
            median(cold),
            f"{len(cold)} starts: {', '.join(figure(one) for one in cold)}",
            "at most",
            1,
            "s",
        ),
    ]


def absolute_rows(figures: Figures) -> list[Row]:
    """Returns rows with the absolute figures from which the ratios are computed."""
    rows = []
    for (target, name), one in figures.items():
        times = f"p50 {figure(one['total_p50'] / 1000)}, p99 {figure(one['total_p99'] / 1000)} ms"
        times += f"; first token p50 {figure(one['first_p50'] / 1000)} ms"
        chunk = (
            f"; {figure(1000 * one['cpu_ms'] / PIECES)} µs CPU per chunk"
            if "plain" not in name and one["cpu_ms"]
            else ""
        )
        rows.append(Row(f"{target}: {name}", one["cpu_ms"] or None, f"{times}{chunk}", unit="ms CPU"))
    return rows


def side(target: Target, figures: Figures, peaks: list[float] | None) -> Side:
    """Returns one gateway's row of the comparison."""

    def of(measure: str, field: str, scale: float = 1.0, beyond: bool = False) -> float | None:
        one, bare = figures.get((target.name, measure)), figures.get(("upstream", measure))
        if one is None or (beyond and (bare is None or target.process is None)):
            return None
        return (one[field] - (bare[field] if beyond and bare is not None else 0.0)) * scale

    burst, plain, mine = (
        figures.get((target.name, "burst")),
        figures.get((target.name, "plain")),
        target.process is not None,
    )
    return Side(
        TITLES[target.name],
        plain_rps=plain["requests"] / plain["seconds"] if plain else None,
        plain_added_ms=of("plain one by one", "total_p50", 0.001, beyond=True),
        plain_cpu_ms=of("plain", "cpu_ms") if mine else None,
        paced_cpu_ms=of("paced", "cpu_ms") if mine else None,
        burst_chunks=burst["events"] / burst["seconds"] if burst else None,
        first_added_ms=of("paced", "first_p50", 0.001, beyond=True),
        idle_mb=target.idle_mb if mine else None,
        crowd_mb=max(peaks) if peaks else None,
        start_s=target.cold_s if mine else None,
    )


def run(rounds: int = ROUNDS, peers: Sequence[str] = ()) -> tuple[list[Row], list[Side], list[str]]:
    """Returns the rows of the table, the comparison of the gateways, and the notes."""
    upstream_port = free_port()
    upstream = Process([*tool("upstream"), str(upstream_port)], core=LOAD_CORE, log="upstream")
    targets = [Target("upstream", upstream_port)]
    notes = (
        []
        if is_compiled()
        else [
            "no C compiler: upstream and load generator are the Python versions, which take more time of the "
            "machine"
        ]
    )
    try:
        upstream.wait_until(lambda: answers(upstream_port, "/v1/models"))
        cold = []
        for _ in range(3):
            trial = start_toolwire(upstream_port)
            cold.append(trial.cold_s)
            trial.stop()
        starts = {**STARTS, **{peer: other_gateways.STARTS[peer] for peer in peers}}
        begun, failed = just_started(
            {name: start for name, start in starts.items() if name != "nginx"}, upstream_port, rounds
        )
        notes += failed
        for name, start in starts.items():
            try:
                targets.append(start(upstream_port))
            except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
                if name == "toolwire":
                    raise
                notes.append(f"{name} could not be measured: {str(error)[-300:]}")
        time.sleep(0.5)
        for target in targets:
            target.idle_mb = target.process.rss_mb() if target.process else 0.0
        ours = next(target for target in targets if target.name == "toolwire")
        figures, failed = measure_all(targets, rounds)
        figures |= begun
        notes += failed
        peaks: dict[str, list[float]] = {}
        for target in targets[1:]:
            try:
                peaks[target.name] = crowd(target, 3 if target is ours else 1)
            except Failed as error:
                notes.append(f"failed: {error}")
    finally:
        for target in targets:
            target.stop()
        upstream.stop()
    ours.cold_s = median(cold)
    notes.append(
        "Versions: "
        + ", ".join(filter(None, (other_gateways.version_of(target.name) for target in targets[2:])))
    )
    sides = [side(target, figures, peaks.get(target.name)) for target in targets]
    return (
        [
            *ratio_rows(figures, peers),
            *memory_rows(ours, peaks.get("toolwire", []), cold),
            *absolute_rows(figures),
        ],
        sides,
        notes,
    )

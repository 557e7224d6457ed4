"""The gateways of one run: a table of their costs, and a chart.

The chart shows the cost of a request and of a stream.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from bench.report import figure

WIDTH, LEFT, ROW, TOP = 760, 190, 26, 46
COLOURS = {"plain": "#2563eb", "paced": "#0d9488"}


@dataclass(frozen=True, slots=True)
class Side:
    """The figures of one gateway. A figure is None if it was not measured or the measurement failed."""

    name: str
    plain_rps: float | None = None
    plain_added_ms: float | None = None
    plain_cpu_ms: float | None = None
    paced_cpu_ms: float | None = None
    burst_chunks: float | None = None
    first_added_ms: float | None = None
    idle_mb: float | None = None
    crowd_mb: float | None = None
    start_s: float | None = None


COLUMNS = (
    ("plain_cpu_ms", "CPU per plain request, ms"),
    ("paced_cpu_ms", "CPU per paced stream, ms"),
    ("plain_rps", "plain requests per second"),
    ("plain_added_ms", "delay of a plain request, ms"),
    ("first_added_ms", "delay of the first token at 32 streams, ms"),
    ("burst_chunks", "chunks per second"),
    ("idle_mb", "memory when idle, MB"),
    ("crowd_mb", "memory at 256 streams, MB"),
    ("start_s", "time to start, s"),
)


def markdown(sides: Sequence[Side]) -> str:
    """Returns the table as Markdown.

    If the relay was measured, each CPU time has its ratio to the relay's CPU time in brackets.
    """
    relay = next((side for side in sides if side.name.startswith("byte relay")), None)
    lines = [
        "| gateway | " + " | ".join(words for _, words in COLUMNS) + " |",
        "|---|" + "---:|" * len(COLUMNS),
    ]
    for side in sides:
        cells = []
        for name, _ in COLUMNS:
            value, base = (
                getattr(side, name),
                getattr(relay, name) if relay is not None and relay is not side else None,
            )
            ratio = (
                f" ({figure(value / base)} ×)"
                if value is not None and base and name in ("plain_cpu_ms", "paced_cpu_ms")
                else ""
            )
            cells.append("–" if value is None else figure(value) + ratio)
        lines.append(f"| {side.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def picture(sides: Sequence[Side]) -> str:
    """Returns a chart as SVG, or "" if the relay was not measured.

    The chart shows the CPU time of a plain request and of a paced stream relative to the relay, on a
    logarithmic scale.
    """
    relay = next((side for side in sides if side.name.startswith("byte relay")), None)
    shown = [
        (side.name, side.plain_cpu_ms, side.paced_cpu_ms)
        for side in sides
        if side.plain_cpu_ms and side.paced_cpu_ms
    ]
    if relay is None or not relay.plain_cpu_ms or not relay.paced_cpu_ms:
        return ""
    bars = [
        (name, {"plain": plain / relay.plain_cpu_ms, "paced": paced / relay.paced_cpu_ms})
        for name, plain, paced in shown
    ]
    low = min(0.1, *(min(values.values()) for _, values in bars))
    high = max(10.0, *(max(values.values()) for _, values in bars))
    span = math.log10(high) - math.log10(low)

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - 70) * (math.log10(value) - math.log10(low)) / span

    description = "; ".join(
        f"{name}: {figure(values['plain'])} and {figure(values['paced'])}" for name, values in bars
    )
    height = TOP + len(bars) * (2 * ROW // 2 + 16) + 20
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'aria-labelledby="title desc" font-family="sans-serif">',
        "<title id='title'>CPU time relative to a byte relay</title>",
        "<desc id='desc'>Times the relay's CPU for a plain request and for a paced stream. "
        f"{html.escape(description)}</desc>",
        "<style>text{fill:#1f2937;font-size:13px}.axis{stroke:#9ca3af}@media(prefers-color-scheme:dark){tex"
        "t{fill:#e5e7eb}}</style>",
    ]
    for at, (kind, words) in enumerate((("plain", "a plain request"), ("paced", "a paced stream"))):
        out.append(f'<rect x="{LEFT + at * 150}" y="10" width="12" height="12" fill="{COLOURS[kind]}"/>')
        out.append(f'<text x="{LEFT + at * 150 + 18}" y="21">{words}</text>')
    out.append(
        f'<line class="axis" x1="{x(1):.1f}" y1="{TOP - 10}" x2="{x(1):.1f}" y2="{height - 14}" '
        'stroke-dasharray="3 3"/>'
    )
    for number, (name, values) in enumerate(bars):
        y = TOP + number * (2 * ROW // 2 + 16)
        out.append(f'<text x="{LEFT - 10}" y="{y + 17}" text-anchor="end">{html.escape(name)}</text>')
        for at, kind in enumerate(("plain", "paced")):
            begin, end = sorted((x(1), x(values[kind])))
            out.append(
                f'<rect x="{begin:.1f}" y="{y + at * 13}" width="{max(1.0, end - begin):.1f}" height="11" '
                f'fill="{COLOURS[kind]}"/>'
            )
            out.append(
                f'<text x="{end + 5:.1f}" y="{y + at * 13 + 10}" '
                f'style="font-size:11px">{figure(values[kind])} ×</text>'
            )
    return "\n".join([*out, "</svg>"]) + "\n"

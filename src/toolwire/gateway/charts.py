"""The journal's lines as numbers over time. Pure: the clock is handed in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from toolwire.gateway.segments import TurnRecord

WINDOWS: dict[str, tuple[int, int]] = {"1h": (3600, 60), "24h": (24 * 3600, 1800), "7d": (7 * 24 * 3600, 4 * 3600)}
"""How far back a window looks, and how long each of its buckets is, in seconds."""


def charts(records: Iterable[TurnRecord], window: str, now: float, model: str = "") -> dict[str, Any]:
    """Turns of the window that have ended, by time, by model and by tool. Buckets begin at whole multiples of their length; the last holds now."""
    length, bucket = WINDOWS[window]
    last = int(now // bucket)
    first = last - length // bucket + 1
    recent = [record for record in records if record.state == "ended" and first * bucket <= record.at < (last + 1) * bucket]
    chosen = [record for record in recent if not model or record.model == model]
    by_bucket: dict[int, list[TurnRecord]] = {}
    for record in chosen:
        by_bucket.setdefault(int(record.at // bucket), []).append(record)
    models: dict[str, list[TurnRecord]] = {}
    for record in recent:
        models.setdefault(record.model, []).append(record)
    tools = Counter(name for record in chosen for name in record.calls)
    return {
        "window": window,
        "bucket_s": bucket,
        "buckets": [{"at": place * bucket, **_totals(by_bucket.get(place, ()))} for place in range(first, last + 1)],
        "by_model": [
            {"model": name, "requests": len(own), "errors": _errors(own), "ttft_ms_p50": _percentile(own, 0.5)}
            for name, own in sorted(models.items(), key=lambda pair: (-len(pair[1]), pair[0]))
        ],
        "by_tool": [{"tool": name, "calls": count} for name, count in sorted(tools.items(), key=lambda pair: (-pair[1], pair[0]))],
        "totals": _totals(chosen),
    }


def _totals(records: Sequence[TurnRecord]) -> dict[str, Any]:
    return {
        "requests": len(records),
        "errors": _errors(records),
        "calls": sum(len(record.calls) for record in records),
        "parked": sum(record.parked for record in records),
        "ttft_ms_p50": _percentile(records, 0.5),
        "ttft_ms_p95": _percentile(records, 0.95),
        "tokens_in": sum(record.input_tokens for record in records),
        "tokens_out": sum(record.output_tokens for record in records),
    }


def _errors(records: Iterable[TurnRecord]) -> int:
    return sum(record.error is not None for record in records)


def _percentile(records: Iterable[TurnRecord], part: float) -> float | None:
    """Of the times to the first byte of those that got one without an error: the smallest that so large a part of them does not exceed."""
    times = sorted(record.first_byte_ms for record in records if record.first_byte_ms is not None and record.error is None)
    return times[max(0, -int(-part * len(times) // 1) - 1)] if times else None

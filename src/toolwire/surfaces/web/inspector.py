"""The API of the wire page: turns of the gateway's journal, and their numbers over time.

Everything is masked. A turn whose contents are deleted still has its line.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from toolwire.core.errors import ToolwireError
from toolwire.observe.fixture import write
from toolwire.observe.journal import Journal
from toolwire.observe.journal_files import TurnRecord
from toolwire.observe.masking import Mask
from toolwire.observe.recording import Recording, RecordingError, got, masked, wrote
from toolwire.observe.replay import replay
from toolwire.settings.types import MASK
from toolwire.surfaces.web.context import Row, Web, number

# --- charts
#
# The journal's lines as numbers over time. Pure: the clock is handed in.

WINDOWS: dict[str, tuple[int, int]] = {
    "1h": (3600, 60),
    "24h": (24 * 3600, 1800),
    "7d": (7 * 24 * 3600, 4 * 3600),
}
"""How far back a window looks, and how long each of its buckets is, in seconds."""


def charts(records: Iterable[TurnRecord], window: str, now: float, model: str = "") -> dict[str, Any]:
    """The turns of the window that have ended, by time, by model and by tool.

    Buckets begin at whole multiples of their length; the last one contains `now`.
    """
    length, bucket = WINDOWS[window]
    last = int(now // bucket)
    first = last - length // bucket + 1
    recent = [
        record
        for record in records
        if record.state == "ended" and first * bucket <= record.at < (last + 1) * bucket
    ]
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
        "buckets": [
            {"at": place * bucket, **_totals(by_bucket.get(place, ()))} for place in range(first, last + 1)
        ],
        "by_model": [
            {
                "model": name,
                "requests": len(own),
                "errors": _errors(own),
                "ttft_ms_p50": _percentile(own, 0.5),
            }
            for name, own in sorted(models.items(), key=lambda pair: (-len(pair[1]), pair[0]))
        ],
        "by_tool": [
            {"tool": name, "calls": count}
            for name, count in sorted(tools.items(), key=lambda pair: (-pair[1], pair[0]))
        ],
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
    """A percentile of the time to the first byte, over the turns without an error."""
    times = sorted(
        record.first_byte_ms
        for record in records
        if record.first_byte_ms is not None and record.error is None
    )
    return times[max(0, -int(-part * len(times) // 1) - 1)] if times else None


MOST_TURNS = 500
MOST_ROWS = 5000
LONGEST_ROW = 20_000
KINDS = ("frames", "events", "wire")
PATHS = {"chat": "/chat/completions", "responses": "/responses"}
Shown = list[Any]
"""Milliseconds, label, text."""


class WireApi:
    def __init__(self, web: Web) -> None:
        self._web = web
        self._watched: Journal | None = getattr(web.gateway, "journal", None)
        web.hub.on_watched = self._listen

    def routes(self) -> list[Row]:
        return [
            ("GET", "/turns", self.turns),
            ("GET", "/turns/{id}", self.turn),
            ("GET", "/turns/{id}/frames", self.frames),
            ("GET", "/turns/{id}/curl", self.curl),
            ("GET", "/turns/{id}/fixture", self.fixture),
            ("POST", "/turns/{id}/replay", self.replay),
            ("GET", "/charts", self.charts),
        ]

    async def close(self) -> None:
        self._listen(False)

    def _listen(self, watched: bool) -> None:
        """Listens to the journal while a tab is open."""
        if self._watched is None:
            return
        if watched:
            self._watched.listeners.append(self._tell)
        elif self._tell in self._watched.listeners:
            self._watched.listeners.remove(self._tell)

    def _tell(self, turn: Callable[[], dict[str, Any]]) -> None:
        self._web.hub.publish("turn", {"turn": turn()})

    # --- many

    async def turns(self, request: Request) -> dict[str, Any]:
        """Newest first. `before` is the id of a turn, or seconds since 1970."""
        journal, asked = await self._journal(), request.query_params
        limit = max(1, number(request, "limit", 100, MOST_TURNS))
        found = journal.records()
        before = asked.get("before", "")
        if before:
            at = next((at for at, record in enumerate(found) if record.id == before), None)
            if at is None:
                found = [record for record in found if record.at < _seconds(before)]
            else:
                found = found[at + 1 :]
        model, tool, status = asked.get("model", ""), asked.get("tool", ""), asked.get("status", "")
        found = [
            one
            for one in found
            if (not model or one.model == model)
            and (not tool or tool in one.calls)
            and (not status or _has_status(one, status))
        ]
        return {"turns": [journal.line(record) for record in found[:limit]], "more": len(found) > limit}

    async def charts(self, request: Request) -> dict[str, Any]:
        window = request.query_params.get("window", "24h")
        if window not in WINDOWS:
            raise ToolwireError("invalid_value", f"'window' is one of {', '.join(WINDOWS)}.", param="window")
        journal = await self._journal()
        drawn = await asyncio.to_thread(
            charts, journal.records(), window, time.time(), request.query_params.get("model", "")
        )
        return {**drawn, **{names: journal.mask.value(drawn[names]) for names in ("by_model", "by_tool")}}

    # --- one

    async def turn(self, request: Request) -> dict[str, Any]:
        journal, record = await self._found(request)
        recording = await journal.shown(record.id)
        told = {
            **journal.line(record),
            "contents": journal.contents(record.id),
            "parked": _parked(journal, record, recording),
        }
        if recording is None:
            nothing = {"request": None, "turn": None, "plan": None, "wrote": "", "got": None, "cut": False}
            return {**told, **nothing, "counts": dict.fromkeys(KINDS, 0)}
        return {**told, **await asyncio.to_thread(described, recording)}

    async def frames(self, request: Request) -> dict[str, Any]:
        kind = request.query_params.get("kind", "frames")
        if kind not in KINDS:
            raise ToolwireError("invalid_value", f"'kind' is one of {', '.join(KINDS)}.", param="kind")
        found = await asyncio.to_thread(rows, await self._shown(request), kind)
        start, count = number(request, "from", 0, 10**9), number(request, "count", 1000, MOST_ROWS)
        return {
            "rows": [[ms, label, _shortened(text)] for ms, label, text in found[start : start + count]],
            "total": len(found),
        }

    async def curl(self, request: Request) -> dict[str, Any]:
        recording = await self._shown(request)
        keys = self._web.settings.server
        return {
            "curl": curl(recording, self._web.base_url(request), needs_key=bool(keys.keys or keys.admin_keys))
        }

    async def fixture(self, request: Request) -> Response:
        recording = await self._shown(request)
        content = await asyncio.to_thread(lambda: "".join(write(recording)))
        name = f"{request.path_params['id']}.jsonl"
        return Response(
            content,
            media_type="application/x-ndjson",
            headers={"content-disposition": f'attachment; filename="{name}"'},
        )

    async def replay(self, request: Request) -> dict[str, Any]:
        journal, record = await self._found(request)
        recording = await journal.recording(record.id)
        if recording is None:
            raise _gone()
        try:
            return await asyncio.to_thread(replayed, recording, journal.mask)
        except RecordingError as error:
            raise ToolwireError("unsupported", str(error)) from None

    # --- finding

    async def _journal(self) -> Journal:
        if self._watched is None:
            raise ToolwireError("not_found", 'The journal is switched off (journal.contents = "off").')
        await self._watched.loaded()
        return self._watched

    async def _found(self, request: Request) -> tuple[Journal, TurnRecord]:
        journal = await self._journal()
        record = journal.record(request.path_params["id"])
        if record is None:
            raise ToolwireError("not_found", "There is no such turn in the journal.")
        return journal, record

    async def _shown(self, request: Request) -> Recording:
        journal, record = await self._found(request)
        recording = await journal.shown(record.id)
        if recording is None:
            raise _gone()
        return recording


def _gone() -> ToolwireError:
    return ToolwireError("not_found", "What was said in this turn is not kept any more; only how it went.")


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ToolwireError(
            "invalid_value", "'before' is neither a turn of the journal nor a time.", param="before"
        ) from None


def _has_status(record: TurnRecord, status: str) -> bool:
    """`running`, `ok`, `error`, `cancelled`, `parked`, or an HTTP status."""
    if status == "error":
        return record.error is not None
    if status == "ok":
        return record.state == "ended" and record.error is None and not record.cancelled
    flags = {"running": record.state == "running", "cancelled": record.cancelled, "parked": record.parked}
    return flags.get(status, str(record.status) == status)


def _parked(journal: Journal, record: TurnRecord, recording: Recording | None) -> list[dict[str, Any]]:
    """When the run was parked, in milliseconds of this turn: before it and after it.

    `turn` is the other turn; `to_ms` None: the run still waits.
    """
    out: list[dict[str, Any]] = []
    if record.parked_ms is not None:
        out.append({"from_ms": -record.parked_ms, "to_ms": 0, "turn": record.resumed_from})
    if record.parked:
        since = (recording.end.get("parked_ms") if recording is not None else None) or record.duration_ms or 0
        later = next((one for one in journal.records() if one.resumed_from == record.id), None)
        until = (
            round(since + later.parked_ms, 3) if later is not None and later.parked_ms is not None else None
        )
        out.append({"from_ms": since, "to_ms": until, "turn": later.id if later is not None else None})
    return out


def described(recording: Recording) -> dict[str, Any]:
    """A turn without its rows."""
    asked = recording.request
    return {
        "request": asked.get("body", asked.get("raw")),
        "turn": asked.get("turn"),
        "plan": recording.plans[-1] if recording.plans else None,
        "wrote": wrote(recording),
        "got": got(recording),
        "counts": {kind: len(rows(recording, kind)) for kind in KINDS},
        "cut": recording.end["cut"],
        "message": (recording.end.get("failure") or {}).get("message"),
    }


# --- rows


def rows(recording: Recording, kind: str) -> list[Shown]:
    """The rows of the timeline. A backend without a wire of its own shows its batches as frames."""
    if kind == "frames":
        if recording.frames:
            return [list(row) for row in recording.frames]
        many = len(recording.end.get("runs", ())) > 1
        return [
            [ms, f"run {run + 1}" if many else "batch", _text(events)]
            for ms, run, events in recording.batches
        ]
    if kind == "events":
        many = len({choice for _, choice, _ in recording.events}) > 1
        return [
            [
                ms,
                f"{event['type']} {choice}" if many else event["type"],
                _text({name: value for name, value in event.items() if name != "type"}),
            ]
            for ms, choice, event in recording.events
        ]
    return [[ms, *frame] for ms, label, text in recording.wire for frame in _wire_frames(label, text)]


def _wire_frames(label: str, text: str) -> Iterator[tuple[str, str]]:
    if label != "stream":
        yield label, text
        return
    for frame in text.split("\n\n"):
        if frame:
            head = frame.partition("\n")[0]
            yield (
                head[7:] if head.startswith("event: ") else "comment" if frame.startswith(":") else "data",
                frame,
            )


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True)


def _shortened(text: str) -> str:
    more = len(text) - LONGEST_ROW
    return text if more <= 0 else f"{text[:LONGEST_ROW]}… ({more} more characters)"


def replayed(recording: Recording, mask: Mask) -> dict[str, Any]:
    """The result of a replay, masked. A secret may be split over chunks; then no bytes are shown at all."""
    told = replay(recording)
    if masked(recording, mask).wire == recording.wire:
        shown: dict[str, Any] = mask.value(told.as_json())
        return shown
    hidden = [{**one, "then": MASK, "now": MASK} for one in told.differences]
    return {"same": told.same, "differences": hidden, "wire_then": MASK, "wire_now": MASK}


def curl(recording: Recording, base_url: str, needs_key: bool) -> str:
    """The request as a command for a shell."""
    asked = recording.request
    if "body" not in asked and "raw" not in asked:
        raise _gone()
    body = json.dumps(asked["body"], ensure_ascii=False) if "body" in asked else asked["raw"]
    stream = isinstance(asked.get("body"), dict) and asked["body"].get("stream") is True
    lines = [
        f"curl {'-N ' if stream else ''}{shlex.quote(base_url + PATHS[asked['api']])}",
        "-H 'Content-Type: application/json'",
    ]
    if needs_key:
        lines.append('-H "Authorization: Bearer $TOOLWIRE_API_KEY"')
    if asked.get("output_mode"):
        lines.append(f"-H {shlex.quote('X-Proxy-Output-Mode: ' + asked['output_mode'])}")
    return " \\\n  ".join([*lines, f"--data-raw {shlex.quote(body)}"])

"""The API of the wire page: the turns in the gateway's journal, and charts of these turns.

Secrets are masked in every response. A turn is listed even if its contents were deleted.
"""

from __future__ import annotations

import asyncio
import json
import math
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from toolwire.core.display import counted
from toolwire.core.errors import ToolwireError
from toolwire.observe.fixture import masked, write
from toolwire.observe.journal import Journal
from toolwire.observe.journal_files import TurnRecord
from toolwire.observe.masking import Mask
from toolwire.observe.recording import Recording, RecordingError, got, wrote
from toolwire.observe.replay import replay
from toolwire.settings.types import MASK
from toolwire.surfaces.web.context import PageApi, Row, Web, invalid, number

# --- charts

WINDOWS = {"1h": (3600, 60), "24h": (24 * 3600, 1800), "7d": (7 * 24 * 3600, 4 * 3600)}
"""For each time window of the charts: the length of the window and of its buckets, in seconds."""


def charts(records: Iterable[TurnRecord], window: str, now: float, model: str = "") -> dict[str, Any]:
    """Returns numbers about the ended turns of a time window: by time, by model and by tool.

    The numbers by time are in buckets of equal length, which begin at multiples of this length. The last
    bucket contains `now`.
    """
    length, bucket = WINDOWS[window]
    last = int(now // bucket)
    buckets = range(last - length // bucket + 1, last + 1)
    recent = [one for one in records if one.state == "ended" and one.at // bucket in buckets]
    chosen = [one for one in recent if not model or one.model == model]
    by_bucket = _grouped(chosen, lambda one: int(one.at // bucket))
    by_model = _grouped(recent, lambda one: one.model)
    tools = Counter(name for one in chosen for name in one.calls)
    in_table = ("requests", "errors", "ttft_ms_p50")
    model_totals = [{"model": name, **_totals(own)} for name, own in by_model.items()]
    model_totals.sort(key=lambda row: (-row["requests"], row["model"]))
    return {
        "window": window,
        "bucket_s": bucket,
        "buckets": [{"at": at * bucket, **_totals(by_bucket.get(at, ()))} for at in buckets],
        "by_model": [{name: row[name] for name in ("model", *in_table)} for row in model_totals],
        "by_tool": [
            {"tool": name, "calls": count}
            for name, count in sorted(tools.items(), key=lambda pair: (-pair[1], pair[0]))
        ],
        "totals": _totals(chosen),
    }


def _grouped(records: Iterable[TurnRecord], key: Callable[[TurnRecord], Any]) -> dict[Any, list[TurnRecord]]:
    groups: dict[Any, list[TurnRecord]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return groups


def _totals(records: Sequence[TurnRecord]) -> dict[str, Any]:
    good = (one.first_byte_ms for one in records if one.error is None)
    times = sorted(ms for ms in good if ms is not None)
    return {
        "requests": len(records),
        "errors": sum(one.error is not None for one in records),
        "calls": sum(len(one.calls) for one in records),
        "parked": sum(one.parked for one in records),
        "ttft_ms_p50": _percentile(times, 50),
        "ttft_ms_p95": _percentile(times, 95),
        "tokens_in": sum(one.input_tokens for one in records),
        "tokens_out": sum(one.output_tokens for one in records),
    }


def _percentile(times: Sequence[float], percent: int) -> float | None:
    """Returns the nearest-rank percentile of sorted times; None if the list is empty."""
    return times[max(0, math.ceil(percent * len(times) / 100) - 1)] if times else None


DELETED = "The journal no longer has the contents of this turn, only its metadata."
MOST_TURNS = 500
MOST_ROWS = 5000
LONGEST_ROW = 20_000
KINDS = ("frames", "events", "wire")
PATHS = {"chat": "/chat/completions", "responses": "/responses", "messages": "/messages"}
WireRow = list[Any]
"""A row of a turn: milliseconds since the request, label, text."""


class WireApi(PageApi):
    def __init__(self, web: Web) -> None:
        super().__init__(web)
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
        """Starts or stops listening to the journal. `watched`: whether any tab is open."""
        if self._watched is None:
            return
        if watched:
            self._watched.listeners.append(self._publish)
        elif self._publish in self._watched.listeners:
            self._watched.listeners.remove(self._publish)

    def _publish(self, turn: Callable[[], dict[str, Any]]) -> None:
        self._web.hub.publish("turn", {"turn": turn()})

    async def turns(self, request: Request) -> dict[str, Any]:
        """Returns the turns, newest first.

        `before` in the query limits them to turns before a certain turn (its id) or time (Unix seconds).
        """
        journal, asked = await self._journal(), request.query_params
        limit = max(1, number(request, "limit", 100, MOST_TURNS))
        found = journal.records()
        if before := asked.get("before"):
            at = next((at for at, record in enumerate(found) if record.id == before), None)
            older = (one for one in found if one.at < _seconds(before))
            found = list(older) if at is None else found[at + 1 :]
        if model := asked.get("model"):
            found = [one for one in found if one.model == model]
        if tool := asked.get("tool"):
            found = [one for one in found if tool in one.calls]
        if status := asked.get("status"):
            found = [one for one in found if _has_status(one, status)]
        return {"turns": [journal.line(record) for record in found[:limit]], "more": len(found) > limit}

    async def charts(self, request: Request) -> dict[str, Any]:
        window = request.query_params.get("window", "24h")
        if window not in WINDOWS:
            raise invalid(f"'window' is one of {', '.join(WINDOWS)}.", "window")
        journal, model = await self._journal(), request.query_params.get("model", "")
        drawn = await asyncio.to_thread(charts, journal.records(), window, time.time(), model)
        return {**drawn, **{names: journal.mask.value(drawn[names]) for names in ("by_model", "by_tool")}}

    async def turn(self, request: Request) -> dict[str, Any]:
        journal, record = await self._found(request)
        recording = await journal.shown(record.id)
        shown = {**journal.line(record), "contents": journal.contents(record.id)}
        shown["parked"] = _parked(journal, record, recording)
        if recording is None:
            nothing = {"request": None, "turn": None, "plan": None, "wrote": "", "got": None, "cut": False}
            return {**shown, **nothing, "counts": dict.fromkeys(KINDS, 0)}
        return {**shown, **await asyncio.to_thread(described, recording)}

    async def frames(self, request: Request) -> dict[str, Any]:
        kind = request.query_params.get("kind", "frames")
        if kind not in KINDS:
            raise invalid(f"'kind' is one of {', '.join(KINDS)}.", "kind")
        found = await asyncio.to_thread(rows, await self._shown(request), kind)
        start, count = number(request, "from", 0, 10**9), number(request, "count", 1000, MOST_ROWS)
        page = [[ms, label, _shortened(text)] for ms, label, text in found[start : start + count]]
        return {"rows": page, "total": len(found)}

    async def curl(self, request: Request) -> dict[str, Any]:
        recording, server = await self._shown(request), self._web.settings.server
        needs_key = bool(server.keys or server.admin_keys)
        return {"curl": curl(recording, self._web.base_url(request), needs_key)}

    async def fixture(self, request: Request) -> Response:
        recording = await self._shown(request)
        content = await asyncio.to_thread(lambda: "".join(write(recording)))
        headers = {"content-disposition": f'attachment; filename="{request.path_params["id"]}.jsonl"'}
        return Response(content, media_type="application/x-ndjson", headers=headers)

    async def replay(self, request: Request) -> dict[str, Any]:
        journal, record = await self._found(request)
        recording = _existing(await journal.recording(record.id))
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
        return _existing(await journal.shown(record.id))


def _existing(recording: Recording | None) -> Recording:
    if recording is None:
        raise ToolwireError("not_found", DELETED)
    return recording


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise invalid(
            "'before' must be the id of a turn in the journal, or a time in seconds.", "before"
        ) from None


def _has_status(record: TurnRecord, status: str) -> bool:
    """Returns whether the turn has a status that the filter names.

    A status is `running`, `ok`, `error`, `cancelled`, `parked`, or an HTTP status.
    """
    if status == "error":
        return record.error is not None
    if status == "ok":
        return record.state == "ended" and record.error is None and not record.cancelled
    flags = {"running": record.state == "running", "cancelled": record.cancelled, "parked": record.parked}
    return flags.get(status, str(record.status) == status)


def _parked(journal: Journal, record: TurnRecord, recording: Recording | None) -> list[dict[str, Any]]:
    """Returns the periods before and after this turn in which its run waited for the client's tool results.

    Times are milliseconds from the start of this turn; `to_ms` is None if the run still waits. `turn`: the id
    of the previous or next turn of the run.
    """
    out: list[dict[str, Any]] = []
    if record.parked_ms is not None:
        out.append({"from_ms": -record.parked_ms, "to_ms": 0, "turn": record.resumed_from})
    if record.parked:
        since = (recording.end.get("parked_ms") if recording is not None else None) or record.duration_ms or 0
        later = next((one for one in journal.records() if one.resumed_from == record.id), None)
        waited = later.parked_ms if later is not None else None
        until = round(since + waited, 3) if waited is not None else None
        out.append({"from_ms": since, "to_ms": until, "turn": later.id if later is not None else None})
    return out


def described(recording: Recording) -> dict[str, Any]:
    """Returns a turn as the page shows it, without the turn's rows (see `rows`)."""
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


def rows(recording: Recording, kind: str) -> list[WireRow]:
    """Returns the rows of one kind (`KINDS`): milliseconds, label, text.

    If the kind is `frames` and no raw frames were recorded, the rows are the backend's batches of events.
    """
    if kind == "wire":
        return [[ms, *frame] for ms, label, text in recording.wire for frame in _wire_frames(label, text)]
    if kind == "events":
        many = len({choice for _, choice, _ in recording.events}) > 1
        return [_event_row(ms, event, f" {choice}" if many else "") for ms, choice, event in recording.events]
    if recording.frames:
        return [list(row) for row in recording.frames]
    many = len(recording.end.get("runs", ())) > 1
    return [
        [ms, f"run {run + 1}" if many else "batch", json.dumps(events)]
        for ms, run, events in recording.batches
    ]


def _event_row(ms: float, event: dict[str, Any], suffix: str) -> WireRow:
    fields = {name: value for name, value in event.items() if name != "type"}
    return [ms, event["type"] + suffix, json.dumps(fields)]


def _wire_frames(label: str, text: str) -> Iterator[tuple[str, str]]:
    if label != "stream":
        yield label, text
        return
    for frame in filter(None, text.split("\n\n")):
        head = frame.partition("\n")[0]
        if head.startswith("event: "):
            yield head.removeprefix("event: "), frame
        else:
            yield "comment" if head.startswith(":") else "data", frame


def _shortened(text: str) -> str:
    more = len(text) - LONGEST_ROW
    return text if more <= 0 else f"{text[:LONGEST_ROW]}… ({counted(more, 'more character')})"


def replayed(recording: Recording, mask: Mask) -> dict[str, Any]:
    """Replays a turn and returns the result with secrets masked.

    If a secret may be split over several chunks, all bytes that the client received are masked.
    """
    result = replay(recording)
    if masked(recording, mask).wire == recording.wire:
        shown: dict[str, Any] = mask.value(result.as_json())
        return shown
    hidden = [{**one, "then": MASK, "now": MASK} for one in result.differences]
    return {"same": result.same, "differences": hidden, "wire_then": MASK, "wire_now": MASK}


def curl(recording: Recording, base_url: str, needs_key: bool) -> str:
    """Returns the request as a shell command."""
    asked = recording.request
    if "body" not in asked and "raw" not in asked:
        raise ToolwireError("not_found", DELETED)
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

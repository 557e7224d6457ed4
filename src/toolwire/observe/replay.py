"""Runs a recorded turn with the current code, and with the recorded backend output, ids and clock.

It compares what the client received with what the client would receive now. If the client disconnected, only
the part that it had received is compared. A replay contacts no backend, fetches nothing and stores nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from toolwire.backends.base import Batch
from toolwire.core.capabilities import Capabilities, Strategy
from toolwire.core.errors import ToolwireError, error_object
from toolwire.core.events import Failure
from toolwire.core.items import StoredItem
from toolwire.core.turn import Result, Turn
from toolwire.gateway.compaction import Seals
from toolwire.gateway.images import ImageFetcher
from toolwire.gateway.pipeline import Caller, Gateway
from toolwire.observe.recorded_servers import TOOLS, RecordedServers
from toolwire.observe.recording import (
    STOPPED,
    UNFIT,
    Recording,
    RecordingError,
    event_of,
    minted,
    offers_of,
    previous_of,
    tool_settings,
    with_images,
)
from toolwire.settings.types import (
    MASK,
    JournalSettings,
    ModelSettings,
    ParkedSettings,
    ServerSettings,
    Settings,
)
from toolwire.store.store import Store
from toolwire.wire.responses.decode import SUMMARY_OF
from toolwire.wire.sse import encode

MOST_DIFFERENCES = 50
LONGEST = 4000
LONGEST_WIRE = 2_000_000
LONGEST_S = 30.0
"""The time limit of a replay in seconds. A recording from an unknown author could be made to run forever."""
MASKED_TOKEN = f'"token":"{MASK}"'
"""How a masked recording shows the tokens of log probabilities: `token` counts as the name of a secret."""
STALLED_S = 1.0
"""How long a turn may continue after the last recorded output of the backend."""


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of a replay.

    `wire_then`: what the client received. `wire_now`: what it would receive now.
    """

    differences: list[dict[str, str]] = field(default_factory=list)
    wire_then: str = ""
    wire_now: str = ""

    @property
    def same(self) -> bool:
        return not self.differences

    def as_json(self) -> dict[str, Any]:
        return {"same": self.same, **asdict(self)}


def replay(recording: Recording) -> Replay:
    """Runs the turn in its own event loop.

    Raises `RecordingError` if the recording is incomplete.
    """
    if recording.end.get("cut") or not ("body" in recording.request or "raw" in recording.request):
        raise RecordingError("the turn was too large to be recorded completely, so it cannot be replayed")
    if any(text == MASK or MASKED_TOKEN in str(text) for _, _, text in recording.wire):
        masked = "tokens with log probabilities, or a secret that was sent in pieces"
        raise RecordingError(f"the recording cannot be compared, because it masks {masked}")
    try:
        return _judged(recording, *asyncio.run(_run(recording)))
    except RecordingError:
        raise
    except UNFIT as error:
        unfit = "the recording is incomplete or invalid"
        raise RecordingError(f"{unfit}: {type(error).__name__}: {error}") from None


def _judged(recording: Recording, kind: str, now: str, report: str | None) -> Replay:
    then_kind = recording.wire[-1][1] if recording.wire else "stream"
    then = "".join(text for _, _, text in recording.wire)
    found = list(_report(recording, report))
    if kind != then_kind and (now or then):
        found.append(_difference("answer", then_kind, kind))
    found += _compared(then_kind, then, now, whole=not _interrupted(recording))
    return Replay(found[:MOST_DIFFERENCES], then[:LONGEST_WIRE], now[:LONGEST_WIRE])


# --- running ---


async def _run(recording: Recording) -> tuple[str, str, str | None]:
    """Returns the kind and the text of the response, and the report of the request fields."""
    request = recording.request
    played = _ReplayedBackend(recording)
    gateway = Gateway(
        _settings(recording),
        store=cast(Store, _RecordedStore(request, _unstored(recording))) if request.get("stored") else None,
        backends={played.id: played} if played.id else None,
        ids=minted(recording.end["ids"]),
        clock=_clock(recording.end["clock"]),
    )
    images = _RecordedImages(request.get("images") or {}, None if played.runs else played.failure)
    gateway.images = cast(ImageFetcher, images)
    grant = None
    if request.get("served"):
        servers = RecordedServers(request["served"], recording.batches)
        gateway.served_tools = gateway.approval_requests = servers
        grant = servers.caller_grant
    gateway.seals = cast(Seals, _RecordedSeals(request.get("references") or {}))
    caller = Caller(output_mode=request.get("output_mode"), grant=grant)
    raw = json.dumps(request["body"]).encode() if "body" in request else request["raw"].encode()
    blocks: list[bytes] = []
    reports: list[str] = []

    async def answered() -> str:
        answer = await gateway.respond(request["api"], raw, caller)
        reports.append(dict(answer.headers)[b"x-toolwire-report"].decode())
        if answer.stream is None:
            blocks.append(answer.body or b"")
            return "body"
        async for block in answer.stream:
            blocks.append(block)
        return "stream"

    task = asyncio.ensure_future(answered())
    stalled = asyncio.ensure_future(played.stalled.wait())
    try:
        await asyncio.wait({task, stalled}, timeout=LONGEST_S, return_when=asyncio.FIRST_COMPLETED)
        if not (task.done() or stalled.done()):
            raise RecordingError(f"the replay did not end within {LONGEST_S:g} s")
        if not task.done():  # the client disconnected, or the gateway ended the run
            rest_s = 0.05 if _interrupted(recording) else STALLED_S + _grace(recording)
            await asyncio.wait({task}, timeout=rest_s)
        expected = "stream" if request.get("body", {}).get("stream") else "body"
        kind = task.result() if task.done() else expected
        return kind, b"".join(blocks).decode(), reports[0] if reports else None
    except ToolwireError as error:
        return "error", encode(error_object(error.failure)).decode(), None
    finally:
        stalled.cancel()
        task.cancel()
        with suppress(BaseException):
            await task
        await gateway.close()


def _settings(recording: Recording) -> Settings:
    return Settings(
        server=ServerSettings(
            commit_after_s=0 if recording.end.get("committed") else 3600,
            open_responses=bool(recording.request.get("open_responses")),
        ),
        tools=tool_settings(recording.request),
        parked=ParkedSettings(max_per_key=0),
        journal=JournalSettings(contents="off"),
        models=_replaced(recording),
    )


def _replaced(recording: Recording) -> tuple[ModelSettings, ...]:
    """Returns settings that make the requested model unavailable, if a fallback model had answered."""
    request, report = recording.request, str(recording.end["turn"].get("report") or "")
    if "model=fallback" not in report.split("; "):
        return ()
    asked = str((request.get("body") or {}).get("model"))
    return (ModelSettings(asked, "", fallback=(request.get("backend") or "",), problem="It had failed."),)


def _interrupted(recording: Recording) -> bool:
    turn = recording.end["turn"]
    return bool(turn.get("cancelled")) or turn.get("state") == "running"


def _grace(recording: Recording) -> float:
    return min(float(recording.request.get("tools", {}).get("stop_grace_ms", 0)) / 1000, LONGEST_S)


def _clock(recorded: list[float]) -> Callable[[], float]:
    left = deque(recorded or [0.0])
    return lambda: left.popleft() if len(left) > 1 else left[0]


class _ReplayedBackend:
    """A backend that repeats its recorded output, with runs and batches in the recorded order."""

    aliases: tuple[str, ...] = ()

    def __init__(self, recording: Recording) -> None:
        request, end = recording.request, recording.end
        self.id: str = request.get("backend") or ""
        self.failure = cast("Failure | None", event_of(end["failure"])) if end.get("failure") else None
        self.stalled = asyncio.Event()
        """Set when a recorded run has no more batches and no end."""
        self._effort: str | None = request.get("effort")
        self._offers = offers_of(request)
        self._place = 0
        self._committed = bool(end.get("committed"))
        runs = [run["how"] for run in end["runs"]]
        died = {
            number
            for number, how in enumerate(runs)
            if how == "failed" or (how == "resume" and "open" in runs[number + 1 :])
        }
        not_ours = died | {number for number, how in enumerate(runs) if how == TOOLS}
        self.runs = deque(number for number in range(len(runs)) if number not in not_ours)
        rows = [row for row in recording.batches if row[1] not in not_ours and row[2] != [STOPPED]]
        self._rows = deque((run, [event_of(event) for event in events]) for _, run, events in rows)
        self._left = Counter(run for run, _ in self._rows)
        self._over: set[int] = set()
        self._moved = asyncio.Event()

    @property
    def strategy(self) -> Strategy:
        return self._offers[self._place].strategy if self._offers else "native"

    @property
    def capabilities(self) -> Capabilities:
        return self._offers[self._place].capabilities if self._offers else Capabilities(images=True)

    def alias(self, name: str) -> str | None:
        return self._effort or ""

    async def prepare(self) -> None:
        if not self._offers and self.failure is not None:
            raise ToolwireError.of(self.failure)

    async def ready(self) -> bool:
        return True

    async def close(self) -> None:
        pass

    def open(self, turn: Turn) -> _ReplayedRun:
        return _ReplayedRun(self, turn)

    async def run(self, turn: Turn) -> AsyncGenerator[Batch, None]:
        if not self.runs and self.failure is not None:
            raise ToolwireError.of(self.failure)  # the gateway refused the turn before it used its backend
        number = self.runs.popleft() if self.runs else -1
        if self._committed:
            await asyncio.sleep(0.02)
        try:
            while (batch := await self._next(number)) is not None:
                first = batch[0] if batch else None
                if isinstance(first, Failure) and first.kind == "tools_unsupported":
                    self._place = min(self._place + 1, len(self._offers) - 1)
                yield batch
            self.stalled.set()
            await asyncio.Event().wait()
        finally:
            self._over.add(number)
            self._move()

    async def _next(self, run: int) -> Batch | None:
        while self._left[run]:
            while self._rows and self._rows[0][0] in self._over:
                self._rows.popleft()
            if self._rows and self._rows[0][0] == run:
                self._left[run] -= 1
                batch = self._rows.popleft()[1]
                self._move()
                return list(batch)
            await self._moved.wait()
        return None

    def _move(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()


class _ReplayedRun:
    """A replayed run of the backend. It is never parked."""

    pending: tuple[str, ...] = ()

    def __init__(self, played: _ReplayedBackend, turn: Turn) -> None:
        self._played = played
        self._turn = turn

    def segment(self) -> AsyncGenerator[Batch, None]:
        return self._played.run(self._turn)

    async def answer(self, results: Mapping[str, Result]) -> None:
        pass

    async def cancel(self) -> None:
        pass


class _RecordedStore:
    """A store that has only the recorded contents. With `full`, storing fails, as it did in the turn."""

    path = ":memory:"

    def __init__(self, request: dict[str, Any], full: bool) -> None:
        self._request, self._full = request, full

    async def chain(self, id: str, key_id: str) -> tuple[StoredItem, ...] | None:
        return previous_of(self._request) if "previous" in self._request else None

    async def referenced(self, ids: list[str], key_id: str) -> dict[str, Any]:
        return dict(self._request.get("references") or {})

    async def put(self, stored: Any) -> None:
        if self._full:
            raise ToolwireError("overloaded", "It could not be stored then.")

    async def run(self, work: object, action: str) -> dict[str, Any]:
        """Does nothing, because the usage of a replay is not counted."""
        return {}


def _unstored(recording: Recording) -> bool:
    """Returns whether the stream reported that its response could not be stored."""
    return bool(recording.wire) and recording.wire[-1][2].startswith(': {"stored":false}')


class _RecordedImages:
    """An image fetcher that returns the images of the recorded turn."""

    def __init__(self, fetched: dict[str, str], failure: Failure | None) -> None:
        self._fetched, self._failure = fetched, failure

    async def inline(self, turn: Turn) -> Turn:
        if self._failure is not None and not self._fetched and turn.images():
            raise ToolwireError.of(self._failure)
        return with_images(turn, self._fetched)


class _RecordedSeals:
    """Opens sealed summaries of conversations from a recording: those that the recorded turn opened."""

    def __init__(self, references: dict[str, Any]) -> None:
        self._references = references

    async def open(self, sealed: str, key_id: str) -> str | None:
        item = self._references.get(sealed)
        return None if item is None else str(item["content"][0]["text"]).removeprefix(SUMMARY_OF)


# --- comparing ---


def _difference(where: str, then: str, now: str) -> dict[str, str]:
    return {"where": where, "then": then[:LONGEST], "now": now[:LONGEST]}


def _report(recording: Recording, now: str | None) -> Iterator[dict[str, str]]:
    then = recording.end["turn"].get("report")
    if now is not None and then is not None and now.removesuffix("store=failed").removesuffix("; ") != then:
        yield _difference("report", then, now)


def _compared(kind: str, then: str, now: str, whole: bool) -> Iterator[dict[str, str]]:
    if then == now:
        return
    if kind == "stream":
        before, after = then.split("\n\n"), now.split("\n\n")
        count = max(len(before), len(after)) if whole else max(0, len(before) - 1)
        for place in range(count):
            old, new = (side[place] if place < len(side) else "" for side in (before, after))
            if old != new:
                yield _difference(f"wire {place + 1}", old, new)
    else:
        try:
            yield from _json_differences(kind, json.loads(then or "null"), json.loads(now or "null"))
        except ValueError:
            yield _difference(kind, then, now)


def _json_differences(where: str, then: Any, now: Any) -> Iterator[dict[str, str]]:
    if isinstance(then, dict) and isinstance(now, dict):
        for key in {**then, **now}:
            yield from _json_differences(f"{where}.{key}", then.get(key), now.get(key))
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        for place, (old, new) in enumerate(zip(then, now, strict=True)):
            yield from _json_differences(f"{where}[{place}]", old, new)
    elif then != now:
        yield _difference(where, json.dumps(then), json.dumps(now))

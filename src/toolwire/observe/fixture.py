"""Writes and reads fixtures, and masks recorded turns. A fixture is a recorded turn as a file.

A fixture consists of JSON lines. `Recording` describes the rows `frame`, `batch` and `wire`.

    {"toolwire": "journal", "version": 1}
    {"kind": "request", …}
    {"kind": "frame", "ms": …}  {"kind": "batch", "run": n, "events": […]}  {"kind": "wire", …}
    {"kind": "end", …}

Unknown kinds and members are skipped. A fixture of another version is refused. Pure.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Any

from toolwire.observe.masking import Mask
from toolwire.observe.recording import EVENTS, SAID, STOPPED, Json, Recording, RecordingError, computed
from toolwire.settings.types import MASK

HEADER = {"toolwire": "journal", "version": 1}


def write(recording: Recording) -> Iterator[str]:
    """Yields the lines of a fixture."""
    yield _line(HEADER)
    request = {name: value for name, value in recording.request.items() if name != "turn"}
    yield _line({"kind": "request", **request})
    frames = [
        {"kind": "frame", "ms": ms, "label": label, "text": text} for ms, label, text in recording.frames
    ]
    batches = [{"kind": "batch", "ms": ms, "run": run, "events": some} for ms, run, some in recording.batches]
    wire = [{"kind": "wire", "ms": ms, "as": label, "text": text} for ms, label, text in recording.wire]
    yield from map(_line, merge(frames, batches, wire, key=itemgetter("ms")))
    yield _line({"kind": "end", **recording.end})


def _line(value: dict[str, Json]) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"  # ASCII, so that lone surrogates are preserved


def read(lines: Iterable[str | bytes]) -> Recording:
    """Reads a recording from the lines of a fixture. Raises `RecordingError`."""
    out = Recording()
    for number, line in enumerate(lines, 1):
        try:
            given = json.loads(line)
            kind = given.pop("kind", None)
            if number == 1:
                _check_header(given)
            elif kind in _READERS:
                _READERS[kind](out, given)
        except RecordingError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RecordingError(f"line {number}: {type(error).__name__}: {error}") from None
    if not out.request:
        raise RecordingError("not a fixture of Toolwire's journal: it contains no request")
    if not out.end:
        raise RecordingError("the fixture is incomplete: its last line, the end of the turn, is missing")
    runs = out.end.get("runs", ())
    out.end["runs"] = [{"how": run, "choice": 0, "plan": 0} if isinstance(run, str) else run for run in runs]
    return out if out.plans or out.events else computed(out)  # older fixtures contain plans and events


def _check_header(given: dict[str, Json]) -> None:
    if given.get("toolwire") != HEADER["toolwire"]:
        raise RecordingError("not a fixture of Toolwire's journal")
    if given.get("version") != HEADER["version"]:
        raise RecordingError(
            f"the fixture has version {given.get('version')}; this Toolwire reads version {HEADER['version']}"
        )


def _known(events: list[dict[str, Json]]) -> list[dict[str, Json]]:
    return [event for event in events if event["type"] in EVENTS or event == STOPPED]


_READERS: dict[str, Any] = {
    "request": lambda out, given: out.request.update(given),
    "plan": lambda out, given: out.plans.append(given),
    "frame": lambda out, given: out.frames.append((given["ms"], given["label"], given["text"])),
    "batch": lambda out, given: out.batches.append((given["ms"], given["run"], _known(given["events"]))),
    "event": lambda out, given: out.events.append((given["ms"], given["choice"], given["event"])),
    "wire": lambda out, given: out.wire.append((given["ms"], given["as"], given["text"])),
    "end": lambda out, given: out.end.update(given),
}


# --- masking ---
#
# Recordings are masked before they are shown on a page, written to a file or exported.


def masked(recording: Recording, mask: Mask) -> Recording:
    """Returns the recording with secrets masked.

    If a secret is split over several pieces, every raw frame of the backend and every block for the client
    that contains a part of the secret is masked completely.
    """
    rows = [(ms, run, event) for ms, run, events in recording.batches for event in events]
    batched, held, _ = _masked_pieces(rows, mask)
    events, _, parts = _masked_pieces(recording.events, mask)
    left = iter(batched)
    return Recording(
        mask.value(recording.request),
        [mask.value(plan) for plan in recording.plans],
        _masked_frames(recording, held, mask),
        [
            (ms, run, [event for _, _, event in islice(left, len(some))])
            for ms, run, some in recording.batches
        ],
        events,
        _masked_wire(recording, parts, mask),
        mask.value(recording.end),
    )


Said = tuple[float, int, dict[str, Json]]


def _masked_pieces(rows: list[Said], mask: Mask) -> tuple[list[Said], set[float], set[float]]:
    """Masks the pieces of text in events.

    Returns:

    - the masked rows;
    - the times of the rows that contain a secret or a part of one;
    - the times of the rows that contain only a part of a secret, or a secret together with log probabilities.
    """
    channels: dict[tuple[Any, ...], list[int]] = {}
    for place, (_, who, event) in enumerate(rows):
        if event["type"] in SAID:
            channels.setdefault((who, event["type"], event.get("index")), []).append(place)
    out = list(rows)
    held: set[float] = set()
    partial: set[float] = set()
    for places in channels.values():
        pieces = [rows[place][2][SAID[rows[place][2]["type"]]] for place in places]
        changed, touched = mask.pieces(pieces)
        for number in touched:
            ms, who, event = rows[places[number]]
            has_tokens = "logprobs" in event  # their tokens spell the secret
            event = {key: value for key, value in event.items() if key != "logprobs"}
            out[places[number]] = (ms, who, {**event, SAID[event["type"]]: changed[number]})
            held.add(ms)
            if has_tokens or mask.text(pieces[number]) != changed[number]:
                partial.add(ms)
    whole = [(ms, who, event if event["type"] in SAID else mask.value(event)) for ms, who, event in out]
    return whole, held, partial


def _masked_wire(recording: Recording, parts: set[float], mask: Mask) -> list[tuple[float, str, str]]:
    """Returns the blocks that were sent to the client, with secrets masked.

    `parts`: the third result of `_masked_pieces`: the times of events that contain only a part of a secret,
    or a secret with log probabilities. Blocks that were sent between such an event and the next event are
    masked completely. Unless `parts` is empty, all blocks with log probabilities are masked completely.
    """
    times = sorted({ms for ms, _, _ in recording.batches} | {ms for ms, _, _ in recording.events})
    out: list[tuple[float, str, str]] = []
    for ms, label, text in recording.wire:
        place = bisect_right(times, ms) - 1
        is_part = label == "stream" and place >= 0 and times[place] in parts
        is_part = is_part or (bool(parts) and '"top_logprobs":[' in text)
        out.append((ms, label, MASK if is_part else mask.text(text)))
    return out


def _masked_frames(recording: Recording, held: set[float], mask: Mask) -> list[tuple[float, str, str]]:
    """Returns the raw frames of the backend, with secrets masked.

    `held`: the times of batches that contain a secret or a part of one. Before such a batch, all frames since
    the preceding batch are masked completely.
    """
    out: list[tuple[float, str, str]] = []
    times = iter([ms for ms, _, _ in recording.batches])
    until = next(times, float("inf"))
    for ms, label, text in recording.frames:
        while ms > until:
            until = next(times, float("inf"))
        out.append((ms, label, MASK if until in held else mask.text(text)))
    return out

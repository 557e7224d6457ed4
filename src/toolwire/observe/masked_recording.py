"""A recording without its secrets, for pages, files and exports. Pure."""

from __future__ import annotations

from bisect import bisect_right
from itertools import islice
from typing import Any

from toolwire.observe.masking import Mask
from toolwire.observe.recording import SAID, Json, Recording
from toolwire.settings.types import MASK


def masked(recording: Recording, mask: Mask) -> Recording:
    """Returns the recording with secrets masked.

    A frame or block that contains only a part of a secret is masked completely.
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

    Returns the masked rows, the times of those with a secret or a part of one, and the times of those with
    only a part.
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
            has_tokens = "logprobs" in event  # they spell the secret
            event = {key: value for key, value in event.items() if key != "logprobs"}
            out[places[number]] = (ms, who, {**event, SAID[event["type"]]: changed[number]})
            held.add(ms)
            if has_tokens or mask.text(pieces[number]) != changed[number]:
                partial.add(ms)
    whole = [(ms, who, event if event["type"] in SAID else mask.value(event)) for ms, who, event in out]
    return whole, held, partial


def _masked_wire(recording: Recording, parts: set[float], mask: Mask) -> list[tuple[float, str, str]]:
    """Returns the sent blocks with secrets masked.

    `parts`: the times of events that contain only a part of a secret. The block that was sent after such an
    event is masked completely, and so are all blocks with log probabilities, because the end of a response
    repeats them.
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
    """Returns the frames with secrets masked.

    `held`: the times of batches that contain a secret. The frames before such a batch are masked completely.
    """
    out: list[tuple[float, str, str]] = []
    times = iter([ms for ms, _, _ in recording.batches])
    until = next(times, float("inf"))
    for ms, label, text in recording.frames:
        while ms > until:
            until = next(times, float("inf"))
        out.append((ms, label, MASK if until in held else mask.text(text)))
    return out

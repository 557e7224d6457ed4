"""Writes and reads a recorded turn as a fixture, a file of JSON lines that can be replayed.

    {"toolwire": "journal", "version": 1}
    {"kind": "request", …}
    {"kind": "frame", "ms": …}  {"kind": "batch", "run": n, "events": […]}  {"kind": "wire", …}
    {"kind": "end", …}

Unknown kinds and members are skipped. A fixture of another version is refused. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from heapq import merge
from operator import itemgetter
from typing import Any

from toolwire.observe.recording import EVENTS, STOPPED, Json, Recording, RecordingError, computed

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
        raise RecordingError("not a fixture of Toolwire's journal: it holds no request")
    if not out.end:
        raise RecordingError("the fixture has no end: it was not written to its last line")
    runs = out.end.get("runs", ())
    out.end["runs"] = [{"how": run, "choice": 0, "plan": 0} if isinstance(run, str) else run for run in runs]
    return out if out.plans or out.events else computed(out)  # version 0.1 stored plans and events


def _check_header(given: dict[str, Json]) -> None:
    if given.get("toolwire") != HEADER["toolwire"]:
        raise RecordingError("not a fixture of Toolwire's journal")
    if given.get("version") != HEADER["version"]:
        raise RecordingError(
            f"a fixture of version {given.get('version')}; this Toolwire reads version {HEADER['version']}"
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

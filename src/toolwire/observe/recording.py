"""A turn's trace as plain data, and that data as a fixture: JSON lines that can be kept, read and replayed.

    {"toolwire": "journal", "version": 1}
    {"kind": "request", …}  {"kind": "plan", …}
    {"kind": "frame", "ms": …}  {"kind": "batch", "run": n, "events": […]}  {"kind": "event", …}  {"kind": "wire", …}      as they happened
    {"kind": "end", …}

What leaves memory goes through `masked`. Unknown kinds and members of later versions are skipped; another version is refused. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from heapq import merge
from typing import Any, cast

import msgspec

from toolwire.backends.base import Backend
from toolwire.core.capabilities import Capabilities, Strategy
from toolwire.core.errors import ToolwireError, error_object
from toolwire.core.events import CallArgs, CallBegin, CallEnd, Dropped, Event, Failure, Finish, Refusal, Text, Thought, Usage
from toolwire.core.items import encode_items
from toolwire.core.turn import ImagePart, Message, Part, Result, Turn
from toolwire.gateway.plan import Plan, make_plan
from toolwire.observe.masking import Mask
from toolwire.observe.tape import FRAME, OUT, RUN, batch_of, passing
from toolwire.observe.trace import READ, Trace
from toolwire.settings.types import MASK, ToolSettings
from toolwire.wire.body import parse
from toolwire.wire.chat import decode as decode_chat
from toolwire.wire.responses import decode as decode_responses
from toolwire.wire.sse import encode

Json = Any
HEADER = {"toolwire": "journal", "version": 1}
EVENTS: dict[str, type[Any]] = {cls.__name__: cls for cls in (Text, Thought, Refusal, CallBegin, CallArgs, CallEnd, Dropped, Usage, Finish, Failure)}
SAID = {"Text": "text", "Thought": "text", "Refusal": "text", "CallArgs": "delta"}
"""The events that are a piece of something longer, and where the piece stands."""
NOTES = {
    "honoured": "as the request says",
    "constrained": "the decoder is held to it",
    "emulated": "served in another way than the backend's own",
    "ignored": "has no effect on this backend",
    "refused": "not possible here",
    "retried": "the model was asked once more",
}


class RecordingError(ValueError):
    """A fixture that can not be read: one line that says why."""


@dataclass(slots=True)
class Recording:
    """Rows begin with milliseconds since the request came: `frames` are label and text, `batches` the number of the run and its events, `events` the
    choice and one event, `wire` what it is (`stream`, `body`, `error`) and the text that went out.
    """

    request: dict[str, Json] = field(default_factory=dict)
    plans: list[dict[str, Json]] = field(default_factory=list)
    frames: list[tuple[float, str, str]] = field(default_factory=list)
    batches: list[tuple[float, int, list[dict[str, Json]]]] = field(default_factory=list)
    events: list[tuple[float, int, dict[str, Json]]] = field(default_factory=list)
    wire: list[tuple[float, str, str]] = field(default_factory=list)
    end: dict[str, Json] = field(default_factory=dict)


# --- from a trace ------------------------------------------------------------------------------------------------------------------------------


def recording_of(trace: Trace, turn: dict[str, Json], tools: ToolSettings) -> Recording:
    """`trace` has ended, or is a snapshot. `turn` is the turn's line in the journal; `tools` the settings in force."""

    def ms(at: float) -> float:
        return round((at - trace.started) * 1000, 3)

    if trace.again:
        _tell_again(trace, tools)
    out = Recording(_request(trace, tools), [_plan(plan, trace.turn) for plan in trace.plans])
    through = [(run.began, number) for number, run in enumerate(trace.runs) if run.through]
    remade, told_at = list(trace.remade), -1.0
    for at, kind, what, became in trace.tape.all():
        if kind == FRAME:
            out.frames.append((ms(at), *_frame(what)))
            continue
        choice, events = batch_of(what)
        batch = [event_json(event) for event in events]
        if kind != OUT:
            out.batches.append((ms(at), kind - RUN, batch))
            continue
        out.events += [(ms(at), choice, event) for event in batch]
        if became:
            out.wire.append((ms(at), "stream", _text(became)))
        while remade and remade[0] <= at:
            remade, told_at = remade[1:], at  # its batch was kept
        if through and events and passing(events) and at != told_at:
            out.batches.append((ms(at), next((number for began, number in reversed(through) if began <= at), 0), batch))
    last = turn.get("duration_ms") or 0.0
    if trace.whole is not None:
        out.wire.append((last, "body", _text(trace.whole)))
    elif trace.failure is not None and not out.wire:
        out.wire.append((last, "error", encode(error_object(trace.failure)).decode()))
    out.end = {
        "turn": turn,
        "runs": [run.how for run in trace.runs],
        "ids": list(trace.minted),
        "clock": list(trace.clock_readings),
        "failure": event_json(trace.failure) if trace.failure is not None else None,
        "committed": trace.committed,
        "cut": trace.cut,
        "parked_ms": None if trace.parked_at is None else ms(trace.parked_at),
        "waiting": list(trace.called),
    }
    return out


@dataclass(frozen=True, slots=True)
class _Offer:
    """A backend as far as a plan looks at it."""

    strategy: Strategy
    capabilities: Capabilities


def _tell_again(trace: Trace, tools: ToolSettings) -> None:
    """Gives a snapshot the turn and the plan that the trace did not keep."""
    assert trace.raw is not None
    body, key_id = parse(trace.raw), trace.caller.key_id
    trace.turn = trace.decoded = (
        decode_chat.decode(body, key_id) if trace.api == "chat" else decode_responses.decode(body, (), key_id, trace.open_responses)
    )
    minted = iter(trace.minted)  # what a plan mints comes first
    trace.plans = (make_plan(trace.turn, cast(Backend, _Offer(*trace.offers[-1])), tools, lambda _: next(minted, "")),)


def _request(trace: Trace, tools: ToolSettings) -> dict[str, Json]:
    raw, turn = trace.raw, trace.turn
    out: dict[str, Json] = {"api": trace.api, "at": trace.at, "backend": trace.backend_id, "output_mode": trace.caller.output_mode}
    if raw is not None:
        try:
            out["body"] = parse(raw)
        except ToolwireError:  # what the gateway refused to read is not read here either: nothing below runs out of stack, and all of it can be told
            out["raw"] = raw.decode("utf-8", "backslashreplace")
    out |= {"stored": trace.stored, "tools": asdict(tools)}
    if trace.decoded is not None and trace.decoded.open_responses:
        out["open_responses"] = True
    out["offers"] = [{"strategy": strategy, "capabilities": _differing(able)} for strategy, able in trace.offers]
    if trace.previous is not None:
        out["previous"] = json.loads(encode_items(trace.previous))
    if trace.references:
        out["references"] = dict(trace.references)
    if turn is not None:
        out["effort"] = turn.sampling.effort
        out["images"] = _fetched(trace.decoded, turn)
        out["turn"] = turn_json(turn)
    return out


def _fetched(before: Turn | None, after: Turn) -> dict[str, str]:
    """The images that the gateway fetched, by the URL that they were named by."""
    if before is None or before.items is after.items:
        return {}
    pairs = zip(_images(before), _images(after), strict=False)
    return {old.url: new.url for old, new in pairs if old.url and new.url and old.url != new.url}


def _images(turn: Turn) -> Iterator[ImagePart]:
    parts: Iterator[Part] = (part for item in turn.items if isinstance(item, Message | Result) for part in item.parts)
    return (part for part in parts if isinstance(part, ImagePart))


def _plan(plan: Plan, turn: Turn | None) -> dict[str, Json]:
    told = dict(plan.report)
    sent = sorted(turn.sent) if turn is not None else []
    report = [*told.items(), *((name, "honoured") for name in sent if name not in told and "unknown_fields" not in told)]
    return {
        "strategy": plan.strategy,
        "report": [{"field": name, "how": how, "note": NOTES.get(how, "")} for name, how in report],
        "told": plan.report_header(),
        "dialect": plan.form.dialect if plan.form.nonce else "",
        "nonce": plan.form.nonce,
        "required": plan.required,
        "begun": plan.begun,
        "stops": list(plan.stops),
        "rules": asdict(plan.rules),
        "asked": turn_json(plan.turn) if turn is not None and plan.turn is not turn else None,
    }


def turn_json(turn: Turn) -> dict[str, Json]:
    out = {one.name: getattr(turn, one.name) for one in fields(turn) if one.name not in ("items", "echo")}
    plain = msgspec.to_builtins({**out, "sent": sorted(turn.sent)})
    return {**plain, "items": json.loads(encode_items(turn.items))}


def event_json(event: Event) -> dict[str, Json]:
    return {"type": type(event).__name__, **_differing(event)}


def _differing(value: Any) -> dict[str, Json]:
    """The fields that do not hold their default."""
    out = {}
    for one in fields(value):
        held = getattr(value, one.name)
        if one.default is MISSING or held != one.default:
            out[one.name] = sorted(held) if isinstance(held, frozenset) else list(held) if isinstance(held, tuple) else held
    return out


def event_of(given: dict[str, Json]) -> Event:
    cls = EVENTS[given["type"]]
    known = {one.name for one in fields(cls)}
    event: Event = cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items() if name in known})
    return event


def _frame(row: Any) -> tuple[str, str]:
    if isinstance(row, bytes):
        return READ, _text(row)
    label, data = row
    return label, _text(data) if isinstance(data, bytes | str) else json.dumps(data, ensure_ascii=False, default=_plain)


def _text(data: bytes | str) -> str:
    return data.decode("utf-8", "replace") if isinstance(data, bytes) else data


def _plain(value: Any) -> Json:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


# --- what was said -----------------------------------------------------------------------------------------------------------------------------


def wrote(recording: Recording) -> str:
    """What the model wrote, before anything was made of it. Calls that were no text stand on lines of their own."""
    out: list[str] = []
    for run, how in enumerate(recording.end.get("runs", ())):
        if run:
            out.append(f"\n\n--- {how} {run + 1} ---\n\n")
        for _, number, events in recording.batches:
            for event in events if number == run else ():
                if event["type"] == "CallBegin":
                    out.append(("\n" if out else "") + f"[call {event['name']}] ")
                elif event["type"] in ("Text", "Refusal", "CallArgs"):
                    out.append(event[SAID[event["type"]]])
    return "".join(out)


def got(recording: Recording) -> dict[str, Json]:
    """What the client got: text, thoughts and calls, of all choices."""
    texts: dict[int, list[str]] = {}
    thoughts: list[str] = []
    calls: dict[tuple[int, int], dict[str, Json]] = {}
    for _, choice, event in recording.events:
        kind = event["type"]
        if kind in ("Text", "Refusal"):
            texts.setdefault(choice, []).append(event["text"])
        elif kind == "Thought":
            thoughts.append(event["text"])
        elif kind == "CallBegin":
            calls[choice, event["index"]] = {"id": event.get("id") or "", "name": event["name"], "arguments": []}
        elif kind == "CallArgs" and (choice, event["index"]) in calls:
            calls[choice, event["index"]]["arguments"].append(event["delta"])
    said = ["".join(texts[choice]) for choice in sorted(texts)]
    text = said[0] if len(said) == 1 else "\n\n".join(f"--- choice {number + 1} ---\n{one}" for number, one in enumerate(said))
    return {"text": text, "thoughts": "".join(thoughts), "calls": [{**call, "arguments": "".join(call["arguments"])} for call in calls.values()]}


# --- masked ------------------------------------------------------------------------------------------------------------------------------------


def masked(recording: Recording, mask: Mask) -> Recording:
    """The same without its secrets, also those that came in pieces: a frame or block that carries a part of one is left out whole."""
    batches, held, _ = _masked_pieces([(ms, run, event) for ms, run, events in recording.batches for event in events], mask)
    events, _, parts = _masked_pieces(recording.events, mask)
    regrouped, place = [], 0
    for ms, run, inner in recording.batches:
        regrouped.append((ms, run, [event for _, _, event in batches[place : place + len(inner)]]))
        place += len(inner)
    return Recording(
        mask.value(recording.request),
        [mask.value(plan) for plan in recording.plans],
        _masked_frames(recording, held, mask),
        regrouped,
        events,
        [(ms, label, MASK if ms in parts and label == "stream" else mask.text(text)) for ms, label, text in recording.wire],
        mask.value(recording.end),
    )


Said = tuple[float, int, dict[str, Json]]


def _masked_pieces(rows: list[Said], mask: Mask) -> tuple[list[Said], set[float], set[float]]:
    """Events masked by what they make together; the times of those that hold a secret, and of those that hold only a part of one."""
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
            out[places[number]] = (ms, who, {**event, SAID[event["type"]]: changed[number]})
            held.add(ms)
            if mask.text(pieces[number]) != changed[number]:
                partial.add(ms)
    return [(ms, who, event if event["type"] in SAID else mask.value(event)) for ms, who, event in out], held, partial


def _masked_frames(recording: Recording, held: set[float], mask: Mask) -> list[tuple[float, str, str]]:
    """A frame belongs to the next batch. Those of a batch that holds a secret may hold it in pieces."""
    out: list[tuple[float, str, str]] = []
    times = iter([ms for ms, _, _ in recording.batches])
    until = next(times, float("inf"))
    for ms, label, text in recording.frames:
        while ms > until:
            until = next(times, float("inf"))
        out.append((ms, label, MASK if until in held else mask.text(text)))
    return out


# --- as a fixture ------------------------------------------------------------------------------------------------------------------------------


def write(recording: Recording) -> Iterator[str]:
    """The lines of a fixture."""
    yield _line(HEADER)
    yield _line({"kind": "request", **recording.request})
    for plan in recording.plans:
        yield _line({"kind": "plan", **plan})
    frames = ((ms, 0, {"kind": "frame", "ms": ms, "label": label, "text": text}) for ms, label, text in recording.frames)
    batches = ((ms, 1, {"kind": "batch", "ms": ms, "run": run, "events": events}) for ms, run, events in recording.batches)
    events = ((ms, 2, {"kind": "event", "ms": ms, "choice": choice, "event": event}) for ms, choice, event in recording.events)
    wire = ((ms, 3, {"kind": "wire", "ms": ms, "as": label, "text": text}) for ms, label, text in recording.wire)
    for _, _, line in merge(frames, batches, events, wire, key=lambda row: row[:2]):
        yield _line(line)
    yield _line({"kind": "end", **recording.end})


def _line(value: dict[str, Json]) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"  # ASCII: a lone surrogate stays what it is


def read(lines: Iterable[str | bytes]) -> Recording:
    """A fixture's recording. Raises `RecordingError`."""
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
    return out


def _check_header(given: dict[str, Json]) -> None:
    if given.get("toolwire") != HEADER["toolwire"]:
        raise RecordingError("not a fixture of Toolwire's journal")
    if given.get("version") != HEADER["version"]:
        raise RecordingError(f"a fixture of version {given.get('version')}; this Toolwire reads version {HEADER['version']}")


_READERS: dict[str, Any] = {
    "request": lambda out, given: out.request.update(given),
    "plan": lambda out, given: out.plans.append(given),
    "frame": lambda out, given: out.frames.append((given["ms"], given["label"], given["text"])),
    "batch": lambda out, given: out.batches.append((given["ms"], given["run"], [one for one in given["events"] if one["type"] in EVENTS])),
    "event": lambda out, given: out.events.append((given["ms"], given["choice"], given["event"])),
    "wire": lambda out, given: out.wire.append((given["ms"], given["as"], given["text"])),
    "end": lambda out, given: out.end.update(given),
}

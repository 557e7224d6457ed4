"""A recorded turn as plain data: its two ends, and what `computed` adds between them.

`masked` removes secrets before anything leaves memory. Pure.
"""

from __future__ import annotations

import json
import logging
from bisect import bisect_right
from collections import Counter
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from itertools import islice
from typing import Any, cast

import msgspec

from toolwire.backends.base import Backend
from toolwire.core.capabilities import Capabilities, Strategy
from toolwire.core.errors import ToolwireError, error_object
from toolwire.core.events import (
    Block,
    Border,
    CallArgs,
    CallBegin,
    CallEnd,
    Citation,
    Dropped,
    Event,
    Failure,
    Finish,
    Refusal,
    Signature,
    Text,
    Thought,
    Usage,
)
from toolwire.core.ids import IdFactory
from toolwire.core.items import decode_items, encode_items
from toolwire.core.turn import ImagePart, Item, Message, Result, Turn
from toolwire.gateway.account import Account
from toolwire.gateway.plan import Plan, make_plan
from toolwire.gateway.stages import Stages
from toolwire.observe.masking import Mask
from toolwire.observe.trace import FRAME, SENT, Trace
from toolwire.settings.types import MASK, ToolSettings
from toolwire.wire.body import parse
from toolwire.wire.chat import decode as decode_chat
from toolwire.wire.messages import decode as decode_messages
from toolwire.wire.obsidian import ObsidianXml
from toolwire.wire.responses import decode as decode_responses
from toolwire.wire.sse import encode

log = logging.getLogger("toolwire.journal")
Json = Any
EVENTS: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        *(Text, Thought, Signature, Block, Citation, Border, Refusal, CallBegin, CallArgs, CallEnd),
        *(Dropped, Usage, Finish, Failure),
    )
}
STOPPED = {"type": "Stopped"}
"""Marks a batch: the gateway ended the run because it stayed silent after its calls."""
SAID = {"Text": "text", "Thought": "text", "Refusal": "text", "CallArgs": "delta"}
"""Events that are a piece of something longer, and the member that holds the piece."""
NOTES = {
    "honoured": "as the request says",
    "constrained": "the decoder is held to it",
    "emulated": "served in another way than the backend's own",
    "ignored": "has no effect on this backend",
    "refused": "not possible here",
    "retried": "the model was asked once more",
}


UNFIT = (
    *(LookupError, TypeError, ValueError, AttributeError, ArithmeticError, AssertionError, RecursionError),
)
"""What is raised if a recording, which may come from anywhere, does not hold what a turn needs."""


class RecordingError(ValueError):
    """A fixture that cannot be read; the message says why in one line."""


@dataclass(slots=True)
class Recording:
    """A recorded turn. Rows begin with the milliseconds since the request.

    `frames` have a label and a text, `batches` the number of the run and its events, `events` the choice and
    one event, and `wire` a kind (`stream`, `body`, `error`) and the text that was sent.
    """

    request: dict[str, Json] = field(default_factory=dict)
    plans: list[dict[str, Json]] = field(default_factory=list)
    frames: list[tuple[float, str, str]] = field(default_factory=list)
    batches: list[tuple[float, int, list[dict[str, Json]]]] = field(default_factory=list)
    events: list[tuple[float, int, dict[str, Json]]] = field(default_factory=list)
    wire: list[tuple[float, str, str]] = field(default_factory=list)
    end: dict[str, Json] = field(default_factory=dict)


# --- from a trace ---


def recording_of(trace: Trace, turn: dict[str, Json], tools: ToolSettings) -> Recording:
    """`trace` has ended, or is a snapshot. `turn` is the turn's line; `tools` the settings in force."""

    def ms(at: float) -> float:
        return round((at - trace.started) * 1000, 3)

    out = Recording(_request(trace, tools))
    label = "stream" if trace.stream else "body"
    for at, kind, what in trace.rows:
        if kind == FRAME:
            out.frames.append((ms(at), what[0], _text(what[1])))
        elif kind == SENT:
            out.wire.append((ms(at), label, _text(what)))
        else:
            out.batches.append((ms(at), kind, [STOPPED] if what is None else list(map(event_json, what))))
    if trace.failure is not None and not out.wire:
        error = encode(error_object(trace.failure)).decode()
        out.wire.append((turn.get("duration_ms") or 0.0, "error", error))
    out.end = {
        "turn": turn,
        "runs": [run._asdict() for run in trace.runs],
        "ids": list(trace.minted),
        "clock": list(trace.clock_readings),
        "failure": event_json(trace.failure) if trace.failure is not None else None,
        "committed": trace.committed,
        "cut": trace.cut,
        "parked_ms": None if trace.parked_at is None else ms(trace.parked_at),
        "waiting": list(trace.waiting),
    }
    return computed(out)


def _request(trace: Trace, tools: ToolSettings) -> dict[str, Json]:
    out: dict[str, Json] = {
        "api": trace.api,
        "at": trace.at,
        "backend": trace.backend_id,
        "output_mode": trace.caller.output_mode,
    }
    if trace.raw is not None:
        try:
            out["body"] = parse(trace.raw)
        except ToolwireError:  # the gateway refused it too: nested too deeply, or not JSON
            out["raw"] = trace.raw.decode("utf-8", "backslashreplace")
    out |= {"stored": trace.stored, "tools": asdict(tools)}
    if trace.open_responses:
        out["open_responses"] = True
    out["offers"] = [{"strategy": how, "capabilities": _differing(able)} for how, able in trace.offers]
    if trace.previous is not None:
        out["previous"] = json.loads(encode_items(trace.previous))
    if trace.references:
        out["references"] = dict(trace.references)
    if trace.offers:
        out["effort"], out["images"] = trace.effort, dict(trace.images or {})
    return out


# --- between the two ends ---


@dataclass(frozen=True, slots=True)
class Offer:
    """What a plan needs of a backend."""

    strategy: Strategy
    capabilities: Capabilities


def computed(recording: Recording) -> Recording:
    """Adds what the two ends do not contain: the decoded turn, the plans, and the events of the answer.

    They are computed by the same pure code that served the turn. If this version cannot, they are left out.
    """
    try:
        turn = turn_of(recording.request)
        if turn is not None:
            recording.request["turn"] = turn_json(turn)
            _compute(recording, turn)
    except (ToolwireError, *UNFIT) as error:
        log.debug("a recorded turn cannot be computed: %s", error)
    return recording


def turn_of(request: dict[str, Json]) -> Turn | None:
    """The turn that a recorded request decodes into; None if decoding failed."""
    body = request.get("body")
    if body is None or not request.get("offers"):
        return None
    if request["api"] == "chat":
        turn = decode_chat.decode(body)
    elif request["api"] == "messages":
        turn = decode_messages.decode(body)
    else:
        references = request.get("references")
        body = decode_responses.resolved(body, references) if references else body
        previous = previous_of(request)
        turn = decode_responses.decode(body, previous, "", bool(request.get("open_responses")))
    if request.get("effort") != turn.sampling.effort:  # an alias of the model may set the effort
        turn = replace(turn, sampling=replace(turn.sampling, effort=request.get("effort")))
    return with_images(turn, request.get("images") or {})


def previous_of(request: dict[str, Json]) -> tuple[Item, ...]:
    """The conversation that a recorded request refers to."""
    return decode_items(json.dumps(request["previous"]).encode()) if request.get("previous") else ()


def with_images(turn: Turn, fetched: dict[str, str]) -> Turn:
    """The turn with the images that were fetched for it."""

    def item(one: Item) -> Item:
        if not isinstance(one, Message | Result):
            return one
        parts = (
            replace(part, url=fetched.get(part.url or "", part.url)) if isinstance(part, ImagePart) else part
            for part in one.parts
        )
        return replace(one, parts=tuple(parts))

    return replace(turn, items=tuple(map(item, turn.items))) if fetched else turn


def tool_settings(request: dict[str, Json]) -> ToolSettings:
    """The recorded settings, as far as this version has them."""
    known = {one.name for one in fields(ToolSettings)}
    return ToolSettings(**{name: value for name, value in request.get("tools", {}).items() if name in known})


def offers_of(request: dict[str, Json]) -> list[Offer]:
    offers = request.get("offers", ())
    return [Offer(offer["strategy"], _capabilities(offer["capabilities"])) for offer in offers]


def _capabilities(given: dict[str, Json]) -> Capabilities:
    kinds = {one.name: type(getattr(Capabilities(), one.name)) for one in fields(Capabilities)}
    known = {name: value for name, value in given.items() if name in kinds}
    return Capabilities(
        **{name: kinds[name](value) if isinstance(value, list) else value for name, value in known.items()}
    )


def minted(recorded: list[str]) -> IdFactory:
    """The recorded ids in order, by prefix. Further ids are recognizable as new."""
    left, extra = list(recorded), Counter[str]()

    def mint(prefix: str) -> str:
        for place, id in enumerate(left):
            if id.startswith(prefix):
                return left.pop(place)
        extra[prefix] += 1
        return f"{prefix}replay{extra[prefix]}"

    return mint


class _Events:
    """A writer that keeps the events of a turn, each with the time of its batch."""

    def __init__(self, out: list[tuple[float, int, dict[str, Json]]]) -> None:
        self.now = 0.0
        self._out = out

    def feed(self, events: list[Event], choice: int) -> bytes:
        self._out += [(self.now, choice, event_json(event)) for event in events]
        return b""

    def say(self, text: str) -> bytes:
        return self.feed([Text(text)], 0)


def _compute(recording: Recording, turn: Turn) -> None:
    """Plans the turn for each recorded offer, and feeds its batches through the stages."""
    request, runs, settings = recording.request, recording.end["runs"], tool_settings(recording.request)
    ids, account, writer = minted(recording.end["ids"]), Account(0.0, None), _Events(recording.events)
    offers = offers_of(request)
    xml = (request.get("output_mode") or settings.output_mode) == "obsidian-xml"
    last = {run["choice"]: number for number, run in enumerate(runs)}
    plans: list[Plan] = []
    stages: dict[int, Stages] = {}
    heard: set[int] = set()

    def planned(number: int) -> Plan:
        while len(plans) <= number:
            plans.append(make_plan(turn, cast(Backend, offers[len(plans)]), settings, ids))
            recording.plans.append(_plan(plans[-1], turn))
        return plans[number]

    def begin(how: str, choice: int, plan: int) -> None:
        chosen = planned(plan)
        if how == "retry":
            recording.plans.append(_plan(chosen.retried(), turn))
            stages[choice].ask_again(parks=chosen.strategy == "parked")
            return
        if choice not in stages or stages[choice].plan is not chosen:
            mode = ObsidianXml(settings.delimiter) if xml else None
            stages[choice] = Stages(chosen, writer, account, ids, choice, turn.n == 1, mode)
        stages[choice].begin(parks=how != "run")

    planned(0)
    for ms, number, events in recording.batches:
        choice, writer.now, is_first = runs[number]["choice"], ms, number not in heard
        if is_first:
            heard.add(number)
            begin(**runs[number])
        if events == [STOPPED]:
            stages[choice].stop()
            continue
        batch = [event_of(event) for event in events]
        is_last = last[choice] == number
        if is_first and not is_last and batch and isinstance(batch[0], Failure):
            continue  # another run was read instead
        stages[choice].feed(batch)
        rejected = stages[choice].rejected
        if rejected is not None and is_last and not stages[choice].may_ask_again:
            stages[choice].fail(rejected.failure)


def _plan(plan: Plan, turn: Turn) -> dict[str, Json]:
    report = dict(plan.report)
    if "unknown_fields" not in report:
        report = {**report, **{name: "honoured" for name in sorted(turn.sent) if name not in report}}
    return {
        "strategy": plan.strategy,
        "report": [{"field": name, "how": how, "note": NOTES.get(how, "")} for name, how in report.items()],
        "told": plan.report_header(),
        "dialect": plan.form.dialect if plan.form.nonce else "",
        "nonce": plan.form.nonce,
        "required": plan.required,
        "begun": plan.begun,
        "stops": list(plan.stops),
        "rules": asdict(plan.rules),
        "asked": turn_json(plan.turn) if plan.turn is not turn else None,
    }


def turn_json(turn: Turn) -> dict[str, Json]:
    out = {one.name: getattr(turn, one.name) for one in fields(turn) if one.name not in ("items", "echo")}
    plain = msgspec.to_builtins({**out, "sent": sorted(turn.sent)})
    return {**plain, "items": json.loads(encode_items(turn.items))}


def event_json(event: Event) -> dict[str, Json]:
    return {"type": type(event).__name__, **_differing(event)}


def _differing(value: Any) -> dict[str, Json]:
    """The fields that do not have their default value."""
    out = {}
    for one in fields(value):
        held = getattr(value, one.name)
        if one.default is MISSING or held != one.default:
            held = sorted(held) if isinstance(held, frozenset) else held
            out[one.name] = list(held) if isinstance(held, tuple) else held
    return out


def event_of(given: dict[str, Json]) -> Event:
    cls = EVENTS[given["type"]]
    held = {one.name: given[one.name] for one in fields(cls) if one.name in given}
    event: Event = cls(**{name: tuple(one) if isinstance(one, list) else one for name, one in held.items()})
    return event


def _text(data: Any) -> str:
    if isinstance(data, bytes):
        return data.decode("utf-8", "replace")
    return data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Json:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


# --- texts ---


def wrote(recording: Recording) -> str:
    """What the model wrote, before it was interpreted. Native calls are on separate lines."""
    out: list[str] = []
    for run, about in enumerate(recording.end.get("runs", ())):
        if run:
            out.append(f"\n\n--- {about['how']} {run + 1} ---\n\n")
        for _, number, events in recording.batches:
            for event in events if number == run else ():
                if event["type"] == "CallBegin":
                    out.append(("\n" if out else "") + f"[call {event['name']}] ")
                elif event["type"] in ("Text", "Refusal", "CallArgs"):
                    out.append(event[SAID[event["type"]]])
    return "".join(out)


def got(recording: Recording) -> dict[str, Json]:
    """What the client received: text, thoughts and calls of all choices."""
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
            id, name = event.get("id") or "", event["name"]
            calls[choice, event["index"]] = {"id": id, "name": name, "arguments": []}
        elif kind == "CallArgs" and (choice, event["index"]) in calls:
            calls[choice, event["index"]]["arguments"].append(event["delta"])
    said = ["".join(texts[choice]) for choice in sorted(texts)]
    if len(said) > 1:
        said = [f"--- choice {number} ---\n{text}" for number, text in enumerate(said, 1)]
    return {
        "text": "\n\n".join(said),
        "thoughts": "".join(thoughts),
        "calls": [{**call, "arguments": "".join(call["arguments"])} for call in calls.values()],
    }


# --- masking ---


def masked(recording: Recording, mask: Mask) -> Recording:
    """The recording without secrets. A frame or block with a part of a split secret is left out."""
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
    """Events masked as joined text, and the times of those with a whole secret or a part of one."""
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
    whole = [(ms, who, event if event["type"] in SAID else mask.value(event)) for ms, who, event in out]
    return whole, held, partial


def _masked_wire(recording: Recording, parts: set[float], mask: Mask) -> list[tuple[float, str, str]]:
    """The blocks of a stream, which follow their batch. Those with a part of a secret are left out."""
    times = sorted({ms for ms, _, _ in recording.batches} | {ms for ms, _, _ in recording.events})
    out: list[tuple[float, str, str]] = []
    for ms, label, text in recording.wire:
        place = bisect_right(times, ms) - 1
        is_part = label == "stream" and place >= 0 and times[place] in parts
        out.append((ms, label, MASK if is_part else mask.text(text)))
    return out


def _masked_frames(recording: Recording, held: set[float], mask: Mask) -> list[tuple[float, str, str]]:
    """The frames, which precede their batch. Those of a batch with a secret are left out."""
    out: list[tuple[float, str, str]] = []
    times = iter([ms for ms, _, _ in recording.batches])
    until = next(times, float("inf"))
    for ms, label, text in recording.frames:
        while ms > until:
            until = next(times, float("inf"))
        out.append((ms, label, MASK if until in held else mask.text(text)))
    return out

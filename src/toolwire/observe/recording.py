"""A recorded turn as plain data.

A `Trace` has the output of the backend and what the client received. `computed` adds the steps in between. A
recording contains secrets: `fixture.py` masks them before anything leaves memory. Pure.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
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
    McpAsk,
    McpCall,
    McpResult,
    McpTools,
    Refusal,
    Signature,
    Text,
    Thought,
    Usage,
)
from toolwire.core.ids import IdFactory
from toolwire.core.items import StoredItem, decode_items, encode_items
from toolwire.core.policy import NO_RULES
from toolwire.core.turn import ImagePart, Item, Message, Result, Turn
from toolwire.gateway.account import Account
from toolwire.gateway.plan import Plan, make_plan
from toolwire.gateway.stages import Stages
from toolwire.observe.recorded_servers import TOOLS, RecordedRounds
from toolwire.observe.trace import FRAME, SENT, Trace
from toolwire.settings.types import ToolSettings
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
        *(McpTools, McpAsk, McpCall, McpResult, Dropped, Usage, Finish, Failure),
    )
}
STOPPED = {"type": "Stopped"}
"""Replaces the events of a batch if the gateway ended the run, because the run was silent after its calls."""
SAID = {"Text": "text", "Thought": "text", "Refusal": "text", "CallArgs": "delta"}
"""Events that contain a piece of a longer text, and the member that contains it."""
NOTES = {
    "honoured": "done as requested",
    "constrained": "enforced by the model's decoder",
    "emulated": "done by Toolwire instead of the backend",
    "ignored": "has no effect with this backend",
    "refused": "refused with an error",
    "passed": "unknown to Toolwire, sent to the backend unchanged",
    "healed": "repaired by Toolwire: the word after “healed:” names the repair, and a number after that word "
    "counts the repairs",
    "retried": "the model's first answer lacked a required call or had an invalid one, so Toolwire asked "
    "once more",
    "repetition": "ended by Toolwire, because the model repeated itself without end",
    "fallback": "the requested model could not answer, so a model in its fallback list did",
}
"""Explanations on the journal page, by how a field was served: `healed` explains `healed:moved_call:2`."""


UNFIT = (
    *(LookupError, TypeError, ValueError, AttributeError, ArithmeticError, AssertionError, RecursionError),
)
"""The exceptions that an incomplete or invalid recording may cause.

A recording can come from an unknown author.
"""


class RecordingError(ValueError):
    """Raised if a recording cannot be read or replayed. The message says why in one line."""


@dataclass(slots=True)
class Recording:
    """A recorded turn. Each row starts with the milliseconds since the request.

    After the time, the rows have:

    - `frames` (the raw output of the backend): a label and a text;
    - `batches` (the events of the backend's runs): the number of the run and some of its events;
    - `events` (the events of the answer): the index of the choice, and one event;
    - `wire` (what the client received): a kind (`stream`, `body`, `error`) and the text.
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
    """Returns the recording of a trace that has ended, or of a snapshot of a running trace.

    `turn`: the fields of the turn's `TurnRecord`. `tools`: the server's settings `[tools]`.
    """

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
        except ToolwireError:  # the gateway refused the body too: nested too deeply, or not JSON
            out["raw"] = trace.raw.decode("utf-8", "backslashreplace")
    out |= {"stored": trace.stored, "tools": asdict(tools)}
    if trace.open_responses:
        out["open_responses"] = True
    out["offers"] = [{"strategy": how, "capabilities": _differing(able)} for how, able in trace.offers]
    if trace.previous is not None:
        out["previous"] = json.loads(encode_items(trace.previous))
    if trace.references:
        out["references"] = dict(trace.references)
    if trace.served:
        out["served"] = json.loads(json.dumps(trace.served, default=str))
    if trace.offers:
        out["effort"], out["images"] = trace.effort, dict(trace.images or {})
    return out


# --- between request and answer ---


@dataclass(frozen=True, slots=True)
class Offer:
    """The part of a backend that is needed to plan a turn."""

    strategy: Strategy
    capabilities: Capabilities


def computed(recording: Recording) -> Recording:
    """Adds the decoded turn, the plans, and the events of the answer to the recording, and returns it.

    The same pure code that served the turn computes them. If the current code cannot compute them, the
    recording stays without them.
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
    """Returns the turn that the recorded request decodes to, or None if the gateway refused it."""
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


def previous_of(request: dict[str, Json]) -> tuple[StoredItem, ...]:
    """Returns the earlier conversation that a recorded request refers to."""
    return decode_items(json.dumps(request["previous"]).encode()) if request.get("previous") else ()


def with_images(turn: Turn, fetched: dict[str, str]) -> Turn:
    """Returns the turn with the images that were fetched for it. `fetched` maps URLs to data URLs."""

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
    """Returns the recorded settings, without settings that this version does not know."""
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
    """Returns an id factory that returns the recorded ids in order, by prefix.

    When no recorded id is left, it creates ids that contain the word "replay".
    """
    left, extra = list(recorded), Counter[str]()

    def mint(prefix: str) -> str:
        for place, id in enumerate(left):
            if id.startswith(prefix) and (prefix or id.isalnum()):
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
    """Plans the turn for each recorded `Offer`, and feeds the recorded batches to the gateway's `Stages`."""
    runs, computing = recording.end["runs"], _Computing(recording, turn)
    last = {run["choice"]: number for number, run in enumerate(runs)}
    heard: set[int] = set()
    for ms, number, events in recording.batches:
        choice, computing.writer.now, is_first = runs[number]["choice"], ms, number not in heard
        if is_first:
            heard.add(number)
            computing.begin(**runs[number])
        stages = computing.stages[choice]
        if events == [STOPPED]:
            stages.stop()
            continue
        batch = [event_of(event) for event in events]
        is_last = last[choice] == number
        if is_first and not is_last and batch and isinstance(batch[0], Failure):
            continue  # this run failed before it began to answer, and another one replaced it
        computing.feed(runs[number]["how"], stages, batch)
        if stages.rejected is not None and is_last and not stages.may_ask_again:
            stages.fail(stages.rejected.failure)
    computing.end()


class _Computing:
    """Computes the plans of a recorded turn, and the events of its answer."""

    def __init__(self, recording: Recording, turn: Turn) -> None:
        request = recording.request
        self._recording, self._settings = recording, tool_settings(request)
        self._ids, self._account = minted(recording.end["ids"]), Account(0.0, None)
        self._offers = offers_of(request)
        self._xml = (request.get("output_mode") or self._settings.output_mode) == "obsidian-xml"
        self._plans: list[Plan] = []
        self.writer = _Events(recording.events)
        self.stages: dict[int, Stages] = {}
        self._rounds: RecordedRounds | None = None
        if request.get("served"):
            self._rounds = RecordedRounds(request["served"], recording.batches, self._ids)
            turn = self._rounds.arranged(turn)
        self._turn = turn
        if self._rounds is None or self._rounds.begins_with_run:
            self._planned(0)

    def begin(self, how: str, choice: int, plan: int) -> None:
        """Begins a run."""
        if self._rounds is not None:
            if how == TOOLS:
                self._begin_round(self._rounds, choice)
                return
            self._turn = self._rounds.begins(self._turn)
        chosen = self._planned(plan)
        if how == "retry":
            self._recording.plans.append(_plan(chosen.retried(), self._turn))
            self.stages[choice].ask_again(parks=chosen.strategy == "parked")
            return
        if choice not in self.stages or self.stages[choice].plan is not chosen:
            mode = ObsidianXml(self._settings.delimiter) if self._xml else None
            alone = self._turn.n == 1
            more = () if self._rounds is None else (self._rounds.taken(), self._rounds.opening)
            shared = (chosen, self.writer, self._account, self._ids, choice, alone, mode)
            self.stages[choice] = Stages(*shared, *more)
        self.stages[choice].begin(parks=how not in ("run", "failed"))

    def _begin_round(self, rounds: RecordedRounds, choice: int) -> None:
        """Begins a round of calls of MCP tools, which the gateway made itself."""
        before = self.stages.get(choice)
        taken = rounds.calls(None if before is None else before.taken)
        shared = (Plan("none", self._turn, NO_RULES), self.writer, self._account, self._ids, choice)
        self.stages[choice] = Stages(*shared, taken=taken, opening=rounds.opening, part=1)
        self.stages[choice].begin()

    def feed(self, how: str, stages: Stages, batch: list[Event]) -> None:
        if self._rounds is not None and how == TOOLS:
            self._rounds.feed(batch)
        stages.feed(batch)

    def end(self) -> None:
        account = self._account
        if account.drops_logprobs or account.repeats:
            answered = self._plans[-1].as_answered(account.drops_logprobs, account.repeats)
            self._recording.plans.append(_plan(answered, self._turn))

    def _planned(self, number: int) -> Plan:
        while len(self._plans) <= number:
            offer = cast(Backend, self._offers[len(self._plans)])
            self._plans.append(make_plan(self._turn, offer, self._settings, self._ids))
            self._recording.plans.append(_plan(self._plans[-1], self._turn))
        return self._plans[number]


def _plan(plan: Plan, turn: Turn) -> dict[str, Json]:
    report = dict(plan.report)
    if "unknown_fields" not in report:
        report = {**report, **{name: "honoured" for name in sorted(turn.sent) if name not in report}}
    return {
        "strategy": plan.strategy,
        "report": [
            {"field": name, "how": how, "note": NOTES.get(how.partition(":")[0], "")}
            for name, how in report.items()
        ],
        "told": plan.report_header(),
        "dialect": plan.form.dialect if plan.form.nonce else "",
        "nonce": plan.form.nonce,
        "required": plan.required,
        "begun": plan.begun,
        "stops": list(plan.stops),
        "rules": asdict(plan.rules),
        "asked": turn_json(plan.turn) if plan.turn is not turn else None,
    }


NOT_SHOWN = ("items", "echo", "body")
"""Fields of a turn that are shown in another form, or that repeat the request."""


def turn_json(turn: Turn) -> dict[str, Json]:
    out = {one.name: getattr(turn, one.name) for one in fields(turn) if one.name not in NOT_SHOWN}
    plain = msgspec.to_builtins({**out, "sent": sorted(turn.sent)})
    return {**plain, "items": json.loads(encode_items(turn.items))}


def event_json(event: Event) -> dict[str, Json]:
    return {"type": type(event).__name__, **_differing(event)}


def _differing(value: Any) -> dict[str, Json]:
    """Returns the fields of a dataclass that do not have their default value."""
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
    """Returns what the model wrote, before Toolwire interpreted it. Native calls are on separate lines."""
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
    """Returns what the client received: text, thoughts and calls of all choices."""
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
        elif kind in ("McpCall", "McpAsk"):
            name, key = f"{event['server']}: {event['name']}", (choice, -1 - len(calls))
            calls[key] = {"id": event["id"], "name": name, "arguments": [event["arguments"]]}
    said = ["".join(texts[choice]) for choice in sorted(texts)]
    if len(said) > 1:
        said = [f"--- choice {number} ---\n{text}" for number, text in enumerate(said, 1)]
    return {
        "text": "\n\n".join(said),
        "thoughts": "".join(thoughts),
        "calls": [{**call, "arguments": "".join(call["arguments"])} for call in calls.values()],
    }

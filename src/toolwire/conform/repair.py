"""Small slips put right, so that one of them does not hide everything after it.

The judge stops looking at an object that lacks a key it needs. An endpoint that leaves out `logprobs` would so be told nothing of its calls. Here
what is missing is filled in and what says nothing is taken away; the shape is judged on the answer as it came, the order on the mended one. What
only mending can see (`null_key`, a wrong index or sequence number) is reported here. Pure.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from toolwire.conform.exchange import mapping, mappings
from toolwire.conform.judge import DONE, Frame, Problem
from toolwire.core.turn import Api

NULLABLE = ("content", "refusal")
"""Keys that a first delta and a message may well hold as null."""
ENVELOPE: Mapping[str, Any] = {"id": "mended", "created": 1, "model": "mended"}
"""What stands around choices, where none of it can be read."""
NAMELESS = "mended tool"
"""Stands for a name that is missing; no tool can be called so."""
COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")
"""Keys of a usage that can not be left out."""

RESPONSE_DEFAULTS: Mapping[str, Any] = {
    **{
        "object": "response",
        "created_at": 0,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "tools": [],
        "output": [],
    },
    **{
        "parallel_tool_calls": True,
        "metadata": {},
        "tool_choice": "auto",
        "temperature": None,
        "top_p": None,
    },
}
PART_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "output_text": {"text": "", "annotations": [], "logprobs": []},
    "refusal": {"refusal": ""},
    "summary_text": {"text": ""},
    "reasoning_text": {"text": ""},
}
EVENT_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "response.output_text.delta": {"logprobs": []},
    "response.output_text.done": {"logprobs": []},
}


Dropped = set[tuple[int, str]]
"""Keys that were null or empty and are gone, by the position of their frame."""


@dataclass(frozen=True, slots=True)
class Mended:
    """The frames as they should have been, what was amiss, and where each frame stood in the stream as it came."""

    frames: list[Frame]
    problems: list[Problem]
    dropped: Dropped
    order: list[int]


def mend_stream(frames: Sequence[Frame], api: Api) -> Mended:
    mender = _Chat() if api == "chat" else _Responses()
    values = [_loaded(frame) for frame in frames]
    for mender.position, value in enumerate(values):
        if value is not None:
            mender.frame(value)
    order = _in_order([None if value is None else mender.place(value) for value in values])
    moved = [position for at, position in enumerate(order) if at != position]
    if moved:
        mender.position = min(moved)
        mender.say(mender.mixed, "one of two calls or items goes on after the other has begun")
    mended, numbers = [], count()
    for position in order:
        value = values[position]
        if value is not None and "sequence_number" in value:
            value["sequence_number"] = next(numbers)
        mended.append(frames[position] if value is None else _written(value, frames[position]))
    return Mended(mended, mender.problems, mender.dropped, order)


def _in_order(places: Sequence[int | None]) -> list[int]:
    """The positions of the frames, those that belong to a call or an item sorted by it; all others stay."""
    slots = [position for position, place in enumerate(places) if place is not None]
    order = list(range(len(places)))
    for slot, position in zip(slots, sorted(slots, key=lambda position: places[position] or 0), strict=True):
        order[slot] = position
    return order


def mend_body(body: Mapping[str, Any], api: Api) -> tuple[dict[str, Any], list[Problem], Dropped]:
    value = copy.deepcopy(dict(body))
    mender = _Chat() if api == "chat" else _Responses()
    mender.body(value)
    return value, mender.problems, mender.dropped


def _loaded(frame: Frame) -> dict[str, Any] | None:
    if frame.data == DONE:
        return None
    try:
        value = json.loads(frame.data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _written(value: Any, frame: Frame) -> Frame:
    try:
        return Frame(json.dumps(value), frame.event)
    except RecursionError:  # it could just be read
        return frame


class _Mender:
    def __init__(self) -> None:
        self.position = -1
        self.problems: list[Problem] = []
        self.dropped: Dropped = set()

    def say(self, code: str, message: str) -> None:
        self.problems.append(Problem(code, message, self.position))

    def drop(self, value: dict[str, Any], where: str, key: str) -> None:
        self.dropped.add((self.position, key))
        self.say("null_key", f"{where}.{key} is {json.dumps(value.pop(key))} where it should be left out")

    def drop_nulls(self, value: Any, where: str, keep: Sequence[str] = ()) -> None:
        if isinstance(value, dict):
            for key in [key for key, entry in value.items() if entry is None and key not in keep]:
                self.drop(value, where, key)

    mixed = ""
    """What it is called when frames of different places are mixed."""

    def place(self, value: Mapping[str, Any]) -> int | None:
        """The call or item that a frame belongs to."""
        raise NotImplementedError

    def frame(self, value: dict[str, Any]) -> None:
        raise NotImplementedError

    def body(self, value: dict[str, Any]) -> None:
        raise NotImplementedError


def _fill(value: Any, defaults: Mapping[str, Any]) -> None:
    if isinstance(value, dict):
        for key, default in defaults.items():
            value.setdefault(key, copy.deepcopy(default))


def _write_arguments(holder: Any) -> None:
    """As the text that they should have been; that they are none is told by the shape."""
    if isinstance(holder, dict) and isinstance(holder.get("arguments"), dict):
        holder["arguments"] = json.dumps(holder["arguments"])


class _Opened:
    """The calls of one choice, numbered anew in the order in which they open, whatever indexes they are sent with."""

    def __init__(self) -> None:
        self.ids: list[Any] = []
        self._numbers: dict[str, int] = {}
        """By the index as it was sent."""
        self._without = False

    def place(self, call: Mapping[str, Any], named: bool) -> tuple[int, str]:
        """The number of the call that a delta belongs to, and what is amiss with its index, where that is not said yet. `named`: it names a tool."""
        due, sent, id = len(self.ids), call.get("index"), call.get("id")
        if sent is None:
            said, self._without = self._without, True
            number = due if id or not due else due - 1
            self._numbers.setdefault(str(number), number)
            return number, "" if said else "a call delta has no index"
        shown = json.dumps(sent)[:40]
        number = self._numbers.setdefault(shown, due)
        if number < due and named and id and id != self.ids[number]:
            self._numbers[shown] = due
            return due, f"the index {shown} is given to two calls"
        if number < due:
            return number, ""
        if isinstance(sent, bool) or not isinstance(sent, int):
            return number, f"the index of a call is {shown}, not a whole number"
        return number, "" if sent == due else f"a call has the index {shown} where {due} was due"


class _Chat(_Mender):
    mixed = "calls_mixed"

    def place(self, value: Mapping[str, Any]) -> int | None:
        choices = mappings(value.get("choices"))
        delta = mapping(choices[0].get("delta")) if len(choices) == 1 and choices[0].get("index") == 0 else {}
        calls = (
            mappings(delta.get("tool_calls"))
            if set(delta) <= {"tool_calls", "role", "content", "refusal"} and not delta.get("content")
            else []
        )
        index = calls[0].get("index") if len(calls) == 1 else None
        return index if isinstance(index, int) else None

    def __init__(self) -> None:
        super().__init__()
        self._opened: dict[int, _Opened] = {}
        """The calls that are open, by choice."""
        self._envelope: dict[str, Any] = dict(ENVELOPE)

    def frame(self, value: dict[str, Any]) -> None:
        if value.get("error") is not None:
            return
        if "error" in value:
            self.drop(value, "chunk", "error")
        self.drop_nulls(value.get("usage"), "usage", COUNTS)
        self._enclose(value, "chat.completion.chunk")
        for choice in mappings(value.get("choices")):
            assert isinstance(choice, dict)
            _fill(choice, {"index": 0, "finish_reason": None, "delta": {}})
            choice["finish_reason"] = choice["finish_reason"] or None
            if choice["delta"] is None:
                choice["delta"] = {}
            delta = choice["delta"]
            if isinstance(delta, dict):
                self.drop_nulls(delta, "delta", NULLABLE if isinstance(delta.get("role"), str) else ())
                if delta.get("tool_calls") == []:
                    self.drop(delta, "delta", "tool_calls")
                for call in mappings(delta.get("tool_calls")):
                    self._call(choice["index"] if isinstance(choice["index"], int) else 0, call)

    def _enclose(self, value: dict[str, Any], object: str) -> None:
        """An envelope that can not be read gets what the last one said, so that what is in it can be."""
        value["object"] = object
        for key, known in self._envelope.items():
            if type(value.get(key)) is type(known) and value[key]:
                self._envelope[key] = value[key]
            else:
                value[key] = known

    def _call(self, choice: int, call: Any) -> None:
        self.drop_nulls(call, "call", ("index",))
        function = call.get("function")
        self.drop_nulls(function, "call.function")
        _write_arguments(function)
        opened = self._opened.setdefault(choice, _Opened())
        call["index"], amiss = opened.place(call, bool(mapping(function).get("name")))
        if amiss:
            self.say("call_index", amiss)
        if call["index"] < len(opened.ids):
            self._later(call, function, opened.ids[call["index"]])
            return
        if not call.get("id"):
            call["id"] = f"mended_{choice}_{call['index']}"
            self.say("call_id", "a call opens without an id")
        opened.ids.append(call["id"])
        self._complete(call, {"type": "function"}, "call opener")
        self._complete(function, {"name": NAMELESS, "arguments": ""}, "call.function")

    def _complete(self, value: Any, defaults: Mapping[str, Any], where: str) -> None:
        if isinstance(value, dict):
            for key in [key for key in defaults if key not in value]:
                self.say("call_shape", f"{where} lacks {key!r}")
        _fill(value, defaults)

    def _later(self, call: dict[str, Any], function: Any, id: Any) -> None:
        """A later delta of a call names neither id nor type nor name."""
        for holder, key in ((call, "id"), (call, "type"), (function, "name")):
            if not isinstance(holder, dict) or key not in holder:
                continue
            if holder[key] == "":
                self.drop(holder, "call", key)
                continue
            told = holder.pop(key)
            if key == "id" and told != id:
                self.say("call_id", f"the id of a call changes from {str(id)[:40]!r} to {str(told)[:40]!r}")
            self.say(
                "type_repeated" if key == "type" else "call_repeated",
                f"{key} {str(told)[:40]!r} of a call is sent again",
            )
        self._complete(function, {"arguments": ""}, "call.function")

    def body(self, value: dict[str, Any]) -> None:
        self.drop_nulls(value, "completion", ("service_tier", "system_fingerprint"))
        self.drop_nulls(value.get("usage"), "usage", COUNTS)
        self._enclose(value, "chat.completion")
        for choice in mappings(value.get("choices")):
            _fill(choice, {"logprobs": None, "index": 0})
            message = choice.get("message")
            self.drop_nulls(message, "message", (*NULLABLE, "audio", "reasoning_content"))
            _fill(message, {"content": None, "refusal": None})
            calls = mapping(message).get("tool_calls")
            if isinstance(message, dict) and calls == []:
                self.drop(message, "message", "tool_calls")
            for number, call in enumerate(mappings(calls)):
                assert isinstance(call, dict)
                if not call.get("id"):
                    call["id"] = f"mended_{number}"
                    self.say("call_id", "a call has no id")
                _fill(call, {"type": "function"})
                _write_arguments(call.get("function"))


class _Responses(_Mender):
    mixed = "items_mixed"

    def place(self, value: Mapping[str, Any]) -> int | None:
        return value["output_index"] if isinstance(value.get("output_index"), int) else None

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[str, str] = {}
        self._numbers = count()

    def frame(self, value: dict[str, Any]) -> None:
        kind, due = str(value.get("type")), next(self._numbers)
        if value.get("sequence_number") != due:
            self.say(
                "sequence_number",
                f"sequence_number of {kind} is {str(value.get('sequence_number', 'missing'))[:20]}, {due} was due",
            )
        value["sequence_number"] = due
        _fill(value, EVENT_DEFAULTS.get(kind, {}))
        if kind.startswith("response.output_item"):
            self._item(value.get("item"), "in_progress" if kind.endswith(".added") else "completed")
            self._names[str(value.get("output_index"))] = str(mapping(value.get("item")).get("name") or "")
        elif kind == "response.function_call_arguments.done":
            _fill(value, {"name": self._names.get(str(value.get("output_index")), "")})
        elif isinstance(value.get("part"), dict):
            self._part(value["part"])
        elif isinstance(value.get("response"), dict):
            self.body(value["response"])

    def body(self, value: dict[str, Any]) -> None:
        _fill(value, RESPONSE_DEFAULTS)
        usage = value.get("usage")
        if isinstance(usage, dict):
            for key, inner in (
                ("input_tokens_details", ("cached_tokens", "cache_write_tokens")),
                ("output_tokens_details", ("reasoning_tokens",)),
            ):
                usage[key] = {**dict.fromkeys(inner, 0), **mapping(usage.get(key))}
        for item in mappings(value.get("output")):
            self._item(item, "completed")

    def _item(self, item: Any, status: str) -> None:
        if not isinstance(item, dict):
            return
        self.drop_nulls(item, "item", ("encrypted_content", "phase", "status"))
        if item.get("type") in ("message", "function_call"):
            _fill(item, {"status": status})
        _write_arguments(item)
        for key in ("content", "summary"):
            for part in mappings(item.get(key)):
                self._part(part)

    def _part(self, part: Any) -> None:
        if isinstance(part, dict):
            _fill(part, PART_DEFAULTS.get(str(part.get("type")), {}))

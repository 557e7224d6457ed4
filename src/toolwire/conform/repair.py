"""Repairs small deviations of an answer, so that they do not hide other deviations.

The judge does not look into an object that lacks a required key. For example, it does not check the calls in
a choice without `logprobs`. So this module creates a copy of the answer, adds missing keys to the copy, and
removes empty keys from it. The judge then checks each object in the original, and the order of the objects in
the copy.

Some repairs hide a deviation from the judge: `null_key`, wrong indexes and wrong sequence numbers. This
module itself reports these deviations. In answers of the Messages API, it only adds missing keys. The module
has no side effects.
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
"""Keys that may be null in a first delta and in a message."""
ENVELOPE: Mapping[str, Any] = {"id": "repaired", "created": 1, "model": "repaired"}
"""The values that replace the id, time and model of a chunk if these are missing or have a wrong type."""
NAMELESS = "repaired tool"
"""The name that replaces a missing tool name. No tool can have this name."""
COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")
"""The required keys of a usage object."""

RESPONSE_DEFAULTS: Mapping[str, Any] = {
    **dict.fromkeys(("error", "incomplete_details", "instructions", "temperature", "top_p")),
    **{"object": "response", "created_at": 0, "tools": [], "output": [], "metadata": {}},
    **{"parallel_tool_calls": True, "tool_choice": "auto"},
}
PART_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "output_text": {"text": "", "annotations": [], "logprobs": []},
    "refusal": {"refusal": ""},
    "summary_text": {"text": ""},
    "reasoning_text": {"text": ""},
}
USAGE_DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 0},
}
MESSAGE_DEFAULTS: Mapping[str, Any] = {
    **{"id": "repaired", "type": "message", "role": "assistant", "model": "repaired", "content": []},
    **dict.fromkeys(("stop_reason", "stop_sequence")),
    "usage": {"input_tokens": 0, "output_tokens": 0},
}
BLOCK_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "text": {"text": ""},
    "tool_use": {"input": {}},
    "thinking": {"thinking": "", "signature": ""},
}
EVENT_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "response.output_text.delta": {"logprobs": []},
    "response.output_text.done": {"logprobs": []},
}


Dropped = set[tuple[int, str]]
"""The position of the frame and the name of each key that was removed because it was null or empty."""


@dataclass(frozen=True, slots=True)
class Repaired:
    """The repaired frames and the problems. `order`: the original position of each frame."""

    frames: list[tuple[dict[str, Any] | str, str | None]]
    problems: list[Problem]
    dropped: Dropped
    order: list[int]


def repair_stream(frames: Sequence[Frame], api: Api) -> Repaired:
    repairer = _REPAIRERS[api]()
    values = [_loaded(frame) for frame in frames]
    for repairer.position, value in enumerate(values):
        if value is not None:
            repairer.frame(value)
    order = _in_order([None if value is None else repairer.place(value) for value in values])
    moved = [position for at, position in enumerate(order) if at != position]
    if moved:
        repairer.position = min(moved)
        repairer.say(repairer.mixed, "a call or item continues after the next one has begun")
    numbers = count()
    for position in order:
        value = values[position]
        if value is not None and "sequence_number" in value:
            value["sequence_number"] = next(numbers)
    repaired = [(values[at] or frames[at].data, frames[at].event) for at in order]
    return Repaired(repaired, repairer.problems, repairer.dropped, order)


def _in_order(places: Sequence[int | None]) -> list[int]:
    """Returns the order of the frames in the repaired stream, as a list of their old positions.

    `places`: for each frame, the index of its call or item, or None. Frames with an index are sorted by the
    index. Frames without an index keep their position.
    """
    slots = [position for position, place in enumerate(places) if place is not None]
    order = list(range(len(places)))
    for slot, position in zip(slots, sorted(slots, key=lambda position: places[position] or 0), strict=True):
        order[slot] = position
    return order


def repair_body(body: Mapping[str, Any], api: Api) -> tuple[dict[str, Any], list[Problem], Dropped]:
    value = copy.deepcopy(dict(body))
    repairer = _REPAIRERS[api]()
    repairer.body(value)
    return value, repairer.problems, repairer.dropped


def _loaded(frame: Frame) -> dict[str, Any] | None:
    if frame.data == DONE:
        return None
    try:
        value = json.loads(frame.data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


class _Repairer:
    mixed = ""
    """The code that reports interleaved calls or items."""

    def __init__(self) -> None:
        self.position = -1
        self.problems: list[Problem] = []
        self.dropped: Dropped = set()

    def place(self, value: Mapping[str, Any]) -> int | None:
        """Returns the index of the call or item that a frame belongs to, or None."""
        return None

    def frame(self, value: dict[str, Any]) -> None:
        raise NotImplementedError

    def body(self, value: dict[str, Any]) -> None:
        raise NotImplementedError

    def say(self, code: str, message: str) -> None:
        self.problems.append(Problem(code, message, self.position))

    def drop(self, value: dict[str, Any], where: str, key: str) -> None:
        self.dropped.add((self.position, key))
        self.say("null_key", f"{where}.{key} is {json.dumps(value.pop(key))} where it should be left out")

    def drop_nulls(self, value: Any, where: str, keep: Sequence[str] = ()) -> None:
        if isinstance(value, dict):
            for key in [key for key, entry in value.items() if entry is None and key not in keep]:
                self.drop(value, where, key)


def _fill(value: Any, defaults: Mapping[str, Any]) -> None:
    if isinstance(value, dict):
        for key, default in defaults.items():
            value.setdefault(key, copy.deepcopy(default))


def _write_arguments(holder: Any) -> None:
    """Replaces arguments that are an object by their JSON text."""
    if isinstance(holder, dict) and isinstance(holder.get("arguments"), dict):
        holder["arguments"] = json.dumps(holder["arguments"])


class _Opened:
    """Numbers the calls of one choice in the order in which they open.

    The calls need correct numbers because the indexes in the stream may be wrong.
    """

    def __init__(self) -> None:
        self.ids: list[Any] = []
        self._numbers: dict[str, int] = {}
        """The number of each call, by the index that the endpoint sent."""
        self._without = False

    def place(self, call: Mapping[str, Any], named: bool) -> tuple[int, str]:
        """Returns the number of the call that a delta belongs to, and what is wrong with the sent index.

        The second value is "" if the index is right, or if the problem was reported before. `named`: whether
        the delta has a tool's name.
        """
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
        return number, "" if sent == due else f"a call has the index {shown} where {due} was expected"


class _Chat(_Repairer):
    mixed = "calls_mixed"

    def place(self, value: Mapping[str, Any]) -> int | None:
        """Returns the index of the call if the frame has one call and no other content, otherwise None."""
        choices = mappings(value.get("choices"))
        delta = mapping(choices[0].get("delta")) if len(choices) == 1 and choices[0].get("index") == 0 else {}
        only_calls = set(delta) <= {"tool_calls", "role", "content", "refusal"} and not delta.get("content")
        calls = mappings(delta.get("tool_calls")) if only_calls else []
        index = calls[0].get("index") if len(calls) == 1 else None
        return index if isinstance(index, int) else None

    def __init__(self) -> None:
        super().__init__()
        self._opened: dict[int, _Opened] = {}
        """The calls of each choice."""
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
            delta = choice["delta"] = {} if choice["delta"] is None else choice["delta"]
            if isinstance(delta, dict):
                self.drop_nulls(delta, "delta", NULLABLE if isinstance(delta.get("role"), str) else ())
                self._drop_no_calls(delta, "delta")
                for call in mappings(delta.get("tool_calls")):
                    self._call(choice["index"] if isinstance(choice["index"], int) else 0, call)

    def _drop_no_calls(self, value: Any, where: str) -> None:
        if isinstance(value, dict) and value.get("tool_calls") == []:
            self.drop(value, where, "tool_calls")

    def _enclose(self, value: dict[str, Any], object: str) -> None:
        """Corrects the envelope of a chunk or body, so that the judge can check the choices in it.

        A missing or wrong value becomes the last correct value of the same key. `object`: the correct value
        of the key `object`.
        """
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
        call["index"], wrong = opened.place(call, bool(mapping(function).get("name")))
        if wrong:
            self.say("call_index", wrong)
        if call["index"] < len(opened.ids):
            self._later(call, function, opened.ids[call["index"]])
            return
        if not call.get("id"):
            call["id"] = f"repaired_{choice}_{call['index']}"
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
        """Removes id, type and name from a later delta of a call, and reports them."""
        for holder, key in ((call, "id"), (call, "type"), (function, "name")):
            if not isinstance(holder, dict) or key not in holder:
                continue
            if holder[key] == "":
                self.drop(holder, "call", key)
                continue
            value = holder.pop(key)
            sent = str(value)[:40]
            if key == "id" and value != id:
                self.say("call_id", f"the id of a call changes from {str(id)[:40]!r} to {sent!r}")
            code = "type_repeated" if key == "type" else "call_repeated"
            self.say(code, f"{key} {sent!r} of a call is sent again")
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
            self._drop_no_calls(message, "message")
            for number, call in enumerate(mappings(mapping(message).get("tool_calls"))):
                assert isinstance(call, dict)
                if not call.get("id"):
                    call["id"] = f"repaired_{number}"
                    self.say("call_id", "a call has no id")
                _fill(call, {"type": "function"})
                _write_arguments(call.get("function"))


class _Responses(_Repairer):
    mixed = "items_mixed"

    def place(self, value: Mapping[str, Any]) -> int | None:
        """Returns the index of the item that a frame belongs to, or None."""
        return value["output_index"] if isinstance(value.get("output_index"), int) else None

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[str, str] = {}
        self._numbers = count()

    def frame(self, value: dict[str, Any]) -> None:
        kind, due = str(value.get("type")), next(self._numbers)
        if value.get("sequence_number") != due:
            sent = str(value.get("sequence_number", "missing"))[:20]
            self.say("sequence_number", f"sequence_number of {kind} is {sent}, {due} was expected")
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
            for key, defaults in USAGE_DEFAULTS.items():
                usage[key] = {**defaults, **mapping(usage.get(key))}
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


class _Messages(_Repairer):
    def frame(self, value: dict[str, Any]) -> None:
        kind = value.get("type")
        if kind == "message_start":
            self.body(value.get("message"))
        elif kind == "content_block_start":
            self._block(value.get("content_block"))
        elif kind == "message_delta":
            _fill(value, {"delta": {}, "usage": {"output_tokens": 0}})
            _fill(value["delta"], {"stop_sequence": None})

    def body(self, value: Any) -> None:
        _fill(value, MESSAGE_DEFAULTS)
        for block in mappings(mapping(value).get("content")):
            self._block(block)

    def _block(self, block: Any) -> None:
        _fill(block, BLOCK_DEFAULTS.get(str(mapping(block).get("type")), {}))


_REPAIRERS: Mapping[Api, type[_Repairer]] = {"chat": _Chat, "responses": _Responses, "messages": _Messages}

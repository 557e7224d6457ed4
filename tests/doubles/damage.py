"""Damages streams, to create the inputs that a judge must reject.

A kind of damage is a `Mutation`: a name, an API, and a function that returns the damaged frames, or None if
this damage is not possible in the stream. Most functions in this module create such functions. After a change
of the order, the sequence numbers of a Responses stream are corrected, so that the judge must notice the
wrong order itself.
"""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from toolwire.conform.judge.channels import ITEM_ADDED
from toolwire.conform.judge.fold import DONE, split_sse
from toolwire.core.turn import Api

Frames = list[Any]
"""Each frame is the object in its data line, or `[DONE]`."""
Mutate = Callable[[Frames], Frames | None]
"""Returns the damaged frames, or None. May change its argument, because `Mutation` passes a copy."""
Test = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Mutation:
    """A kind of damage. `api` is the API whose streams it damages; None means both APIs."""

    name: str
    api: Api | None
    mutate: Mutate

    def on(self, frames: Frames, api: Api) -> Frames | None:
        """Returns the damaged frames, or None if there is nothing to damage."""
        if self.api not in (None, api):
            return None
        damaged = self.mutate(pickle.loads(pickle.dumps(frames)))  # a copy, faster than deepcopy's
        return None if damaged == frames else damaged


def parse(raw: bytes) -> Frames:
    """Returns the frames of a correct stream."""
    return [DONE if frame.data == DONE else json.loads(frame.data) for frame in split_sse(raw)[0]]


def render(frames: Frames) -> bytes:
    lines = []
    for frame in frames:
        if isinstance(frame, dict) and "type" in frame:
            lines.append(f"event: {frame['type']}\n")
        lines.append(f"data: {frame if frame == DONE else json.dumps(frame)}\n\n")
    return "".join(lines).encode()


def renumbered(frames: Frames) -> Frames:
    """Sets the sequence numbers of the frames to their positions."""
    counted = [isinstance(frame, dict) and "sequence_number" in frame for frame in frames]
    return [
        {**frame, "sequence_number": number} if counted[number] else frame
        for number, frame in enumerate(frames)
    ]


def structural(mutate: Mutate) -> Mutate:
    def renumbering(frames: Frames) -> Frames | None:
        damaged = mutate(frames)
        return None if damaged is None else renumbered(damaged)

    return renumbering


# --- damages to a field ---

DROP = object()
"""As the value of `field`: deletes the key."""


def _parent(frame: Any, path: list[str]) -> Any:
    for step in path[:-1]:
        if isinstance(frame, dict) and step in frame:
            frame = frame[step]
        elif isinstance(frame, list) and step.isdigit() and int(step) < len(frame):
            frame = frame[int(step)]
        else:
            return None
    return frame if isinstance(frame, dict) else None


def field(path: str, value: Any, *, at: int = 0, kind: str = "", add: bool = False) -> Mutate:
    """Sets the member at `path` to `value`, in the first frame that has that member.

    `at`: the frame's number among the frames that have the member; negative numbers count from the end.
    `add`: the frame must only have the parent of the member. `kind`: only frames of this type count. A
    callable `value` returns the new value for the old value.
    """
    steps = path.split(".")

    def mutate(frames: Frames) -> Frames | None:
        holders = [
            _parent(frame, steps)
            for frame in frames
            if isinstance(frame, dict) and (not kind or frame.get("type") == kind)
        ]
        having = [holder for holder in holders if holder is not None and (add or steps[-1] in holder)]
        if not -len(having) <= at < len(having):
            return None
        if value is DROP:
            del having[at][steps[-1]]
        else:
            having[at][steps[-1]] = value(having[at].get(steps[-1])) if callable(value) else value
        return frames

    return mutate


def other(value: Any) -> Any:
    """Returns a different value of the same type."""
    return value + 1 if isinstance(value, int) else f"{value}x"


# --- damages to the order ---


def find(frames: Frames, test: Test) -> int | None:
    return next(
        (position for position, frame in enumerate(frames) if isinstance(frame, dict) and test(frame)), None
    )


def without(test: Test, *, every: bool = False) -> Mutate:
    """Drops the first frame that passes the test or, with `every`, all such frames."""

    def mutate(frames: Frames) -> Frames | None:
        hits = [position for position, frame in enumerate(frames) if isinstance(frame, dict) and test(frame)]
        gone = hits if every else hits[:1]
        return [frame for position, frame in enumerate(frames) if position not in gone] if hits else None

    return mutate


def doubled(test: Test) -> Mutate:
    def mutate(frames: Frames) -> Frames | None:
        first = find(frames, test)
        return (
            None
            if first is None
            else [*frames[: first + 1], copy.deepcopy(frames[first]), *frames[first + 1 :]]
        )

    return mutate


def moved(test: Test, to: int) -> Mutate:
    """Moves the first frame that passes the test to the front (0) or to the end (-1)."""

    def mutate(frames: Frames) -> Frames | None:
        first = find(frames, test)
        if first is None:
            return None
        rest = [*frames[:first], *frames[first + 1 :]]
        return [frames[first], *rest] if to == 0 else [*rest, frames[first]]

    return mutate


def typed(ending: str) -> Callable[[Any], bool]:
    return lambda frame: str(frame.get("type", "")).endswith(ending)


def finishes(frame: Any) -> bool:
    return any(choice["finish_reason"] for choice in frame.get("choices", []))


def calls_of(frame: Any) -> list[Any]:
    return (
        [call for choice in frame.get("choices", []) for call in choice["delta"].get("tool_calls", [])]
        if isinstance(frame, dict)
        else []
    )


def is_fragment(frame: Any) -> bool:
    return any("id" not in call for call in calls_of(frame))


def is_opener(frame: Any) -> bool:
    return any("id" in call for call in calls_of(frame))


def is_terminal(frame: Any) -> bool:
    return frame.get("type") in ("response.completed", "response.incomplete", "response.failed")


def text_after_finish(frames: Frames) -> Frames | None:
    finish = find(frames, finishes)
    if finish is None:
        return None
    late = copy.deepcopy(frames[finish])
    late["choices"][0] |= {"delta": {"content": "late"}, "finish_reason": None}
    return [*frames[: finish + 1], late, *frames[finish + 1 :]]


def finish_wrong(frames: Frames) -> Frames | None:
    finish = find(frames, finishes)
    if finish is not None:
        choice = frames[finish]["choices"][0]
        choice["finish_reason"] = "tool_calls" if choice["finish_reason"] != "tool_calls" else "stop"
    return frames


def cumulative_arguments(frames: Frames) -> Frames | None:
    """Splits the first call's arguments into two fragments; the second one repeats the first."""
    fragments = [
        n for n, frame in enumerate(frames) if is_fragment(frame) and calls_of(frame)[0]["index"] == 0
    ]
    if not fragments:
        return None
    whole = "".join(calls_of(frames[n])[0]["function"]["arguments"] for n in fragments)
    first, second = copy.deepcopy(frames[fragments[0]]), copy.deepcopy(frames[fragments[0]])
    calls_of(first)[0]["function"]["arguments"] = whole[: len(whole) // 2]
    calls_of(second)[0]["function"]["arguments"] = whole
    return [*frames[: fragments[0]], first, second, *frames[fragments[-1] + 1 :]]


def cumulative_deltas(frames: Frames) -> Frames | None:
    deltas = [
        n for n, frame in enumerate(frames) if frame["type"].endswith(".delta") and frame["output_index"] == 0
    ]
    if not deltas:
        return None
    whole = "".join(frames[n]["delta"] for n in deltas)
    first, second = ({**frames[deltas[0]], "delta": text} for text in (whole[: len(whole) // 2], whole))
    return [*frames[: deltas[0]], first, second, *frames[deltas[-1] + 1 :]]


def second_call(**change: Any) -> Mutate:
    def mutate(frames: Frames) -> Frames | None:
        later = [call for frame in frames for call in calls_of(frame) if call["index"] == 1]
        for call in later:
            call.update(change)
        return frames if later else None

    return mutate


def fragments_interleaved(frames: Frames) -> Frames | None:
    first = find(frames, is_fragment)
    later = [n for n, frame in enumerate(frames) if is_opener(frame)]
    if first is None or len(later) < 2:
        return None
    fragment = frames[first]
    return [
        frame
        for n, old in enumerate(frames)
        if n != first
        for frame in ([old, fragment] if n == later[1] else [old])
    ]


def items_interleaved(frames: Frames) -> Frames | None:
    added = [n for n, frame in enumerate(frames) if frame["type"] == ITEM_ADDED]
    if len(added) < 2:
        return None
    rest = [frame for n, frame in enumerate(frames) if n != added[1]]
    return [*rest[: added[0] + 1], frames[added[1]], *rest[added[0] + 1 :]]


def error_event_only(frames: Frames) -> Frames:
    return [
        *frames[:-1],
        {"type": "error", "sequence_number": 0, "code": None, "message": "died", "param": None},
    ]


def everywhere(key: str, value: Callable[[Any], Any], inside: tuple[str, ...] = ()) -> Mutate:
    """Changes the value of `key` in every object whose type is in `inside`.

    The frames then still agree with each other, so a comparison of frames cannot reveal the damage.
    """

    def change(entry: Any) -> Any:
        if isinstance(entry, list):
            return [change(part) for part in entry]
        if isinstance(entry, dict):
            hit = key in entry and entry.get("type") in inside
            return {
                name: value(entry) if hit and name == key else change(part) for name, part in entry.items()
            }
        return entry

    return lambda frames: change(frames)


def consistently_invalid(frames: Frames) -> Frames | None:
    """Replaces arguments by a text that is not JSON. All events have the same text."""
    fragments = [frame for frame in frames if frame["type"] == "response.function_call_arguments.delta"]
    complete = [
        item
        for item in frames[-1]["response"]["output"]
        if item["type"] == "function_call" and item["status"] == "completed"
    ]
    if len(fragments) != 1 or not complete:
        return None
    fragments[0]["delta"] = "{]"
    return everywhere(
        "arguments",
        lambda item: "{]" if item["arguments"] else "",
        ("function_call", "response.function_call_arguments.done"),
    )(frames)

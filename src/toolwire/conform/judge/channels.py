"""The kinds of text that grow in a Responses stream, and the shapes of the stream's events.

A `Channel` describes one kind of text that grows by deltas: the type of its item, the names of its events,
and the key that contains the text. The arguments of a call are directly in the item. The text of a message is
in a part of the item, and the part has its own events.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NoReturn

from toolwire.conform.judge import mcp
from toolwire.conform.judge.shape import (
    BRIEF_LOGPROBS,
    COUNT,
    FILLED,
    OBJECT,
    TEXT,
    ObjectShape,
    ValueCheck,
    or_null,
)


@dataclass(frozen=True, slots=True)
class Channel:
    """One kind of text that grows by deltas, in an item or in a part of an item.

    - `item`: the type of the item. `part`: the type of the part, or "" if there are no parts.
    - `field`: the key of the text in its last event and in the part or item.
    - `stem`: the name of the text's events without the suffix `.delta` or `.done`.
    - `frame`: the name of the part's events without the suffix `.added` or `.done`.
    - `list`: the item's key for its parts. `index`: the events' key for the position of the part.
    - `logprobs`: whether the events have log probabilities.
    - `name`: whether the text's last event has the name of the tool.
    - `bare`: whether the part's events may be missing; the part then begins with the first delta.
    """

    item: str
    field: str
    stem: str
    part: str = ""
    frame: str = ""
    list: str = ""
    index: str = ""
    logprobs: bool = False
    name: bool = False
    bare: bool = False

    @property
    def delta(self) -> str:
        return f"{self.stem}.delta"

    @property
    def done(self) -> str:
        return f"{self.stem}.done"


_CONTENT = ("response.content_part", "content", "content_index")
_SUMMARY = ("response.reasoning_summary_part", "summary", "summary_index")

CHANNELS: tuple[Channel, ...] = (
    Channel("message", "text", "response.output_text", "output_text", *_CONTENT, logprobs=True),
    Channel("message", "refusal", "response.refusal", "refusal", *_CONTENT),
    Channel("reasoning", "text", "response.reasoning_summary_text", "summary_text", *_SUMMARY),
    Channel("reasoning", "text", "response.reasoning_text", "reasoning_text", *_CONTENT, bare=True),
    Channel("function_call", "arguments", "response.function_call_arguments", name=True),
    Channel("custom_tool_call", "input", "response.custom_tool_call_input"),
    Channel(mcp.CALLED, "arguments", "response.mcp_call_arguments"),
)

CALL_CHANNELS = {channel.item: channel for channel in CHANNELS if not channel.part}
PART_CHANNELS = {(channel.item, channel.frame, channel.part): channel for channel in CHANNELS if channel.part}
DELTAS = {channel.delta: channel for channel in CHANNELS}
DONES = {channel.done: channel for channel in CHANNELS}
PART_ADDED = {f"{channel.frame}.added": channel.frame for channel in CHANNELS if channel.part}
PART_DONE = {f"{channel.frame}.done": channel.frame for channel in CHANNELS if channel.part}
PART_INDEX = {channel.frame: channel.index for channel in CHANNELS if channel.part}

OPENING = ("response.created", "response.in_progress")
TERMINALS = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
}
ITEM_ADDED, ITEM_DONE, ERROR_EVENT = "response.output_item.added", "response.output_item.done", "error"


def _events() -> dict[str, ObjectShape]:
    common: dict[str, ValueCheck] = {"type": FILLED, "sequence_number": COUNT}
    place: dict[str, ValueCheck] = {"item_id": FILLED, "output_index": COUNT}
    shapes = {event: ObjectShape(event, {**common, "response": OBJECT}) for event in (*OPENING, *TERMINALS)}
    shapes |= {
        event: ObjectShape(event, {**common, "output_index": COUNT, "item": OBJECT})
        for event in (ITEM_ADDED, ITEM_DONE)
    }
    shapes[ERROR_EVENT] = ObjectShape(
        "error", {**common, "message": FILLED, "code": or_null(TEXT), "param": or_null(TEXT)}
    )
    for event, frame in (PART_ADDED | PART_DONE).items():
        shapes[event] = ObjectShape(event, {**common, **place, PART_INDEX[frame]: COUNT, "part": OBJECT})
    shapes |= {event: ObjectShape(event, {**common, **place}) for event in mcp.MARKS}
    for channel in CHANNELS:
        where = {**common, **place}
        if channel.index:
            where[channel.index] = COUNT
        if channel.logprobs:
            where["logprobs"] = BRIEF_LOGPROBS
        named: dict[str, ValueCheck] = {"name": FILLED} if channel.name else {}
        shapes[channel.delta] = ObjectShape(channel.delta, {**where, "delta": TEXT}, {"obfuscation": TEXT})
        shapes[channel.done] = ObjectShape(channel.done, {**where, **named, channel.field: TEXT})
    return shapes


EVENTS: dict[str, ObjectShape] = _events()


class Growing:
    """A text that grows by increments.

    Some endpoints wrongly repeat the earlier text in each fragment. `verdict` reports this.
    """

    def __init__(self, text: str = "") -> None:
        self.text = text
        self._repeats = False

    def add(self, fragment: str) -> None:
        if self.text and len(fragment) > len(self.text) and fragment.startswith(self.text):
            self._repeats = True
        self.text += fragment

    def verdict(self, *, json_expected: bool, cut: bool) -> tuple[str, str] | None:
        """Returns what is wrong with the whole text as (code, message), or None.

        `json_expected`: whether the text must be JSON. `cut`: whether the text may be incomplete, because the
        model was interrupted.
        """
        if not json_expected:
            return None
        if self.text == "":
            return (
                None if cut else ("empty_arguments", "a function call has no arguments; it needs at least {}")
            )
        if is_json(self.text):
            return None
        if self._repeats and not (cut and self._may_nest()):
            return "cumulative_arguments", f"a fragment repeats what was sent before it: {self.text[:80]!r}"
        return None if cut else ("invalid_arguments", f"the arguments are not JSON: {self.text[:80]!r}")

    def _may_nest(self) -> bool:
        # `{"a":` followed by `{"a":1` is an incomplete nested object, not a repetition
        half = self.text[: self.text.find(self.text[0], 1)].rstrip()
        return half.endswith((":", ",", "["))


def is_json(text: str) -> bool:
    """Returns whether the text is one JSON value. NaN and Infinity, which Python accepts, are not JSON."""
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)

"""The texts that grow in a Responses stream, as a table, and from it the shape of every event.

A channel is one kind of growing text: which item it lives in, which events open, extend, complete and close it, and where it ends up in the item.
A call's arguments are opened with the item itself; the text of a message lives in a part, which has events of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from toolwire.judge.shape import COUNT, FILLED, LIST, OBJECT, TEXT, Check, Shape, or_null


@dataclass(frozen=True, slots=True)
class Channel:
    """`stem` + .delta/.done are the events of the text, `frame` + .added/.done those of its part. `field` holds the text in event, part and item."""

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
    """The part's own events may be left out: the text opens with its first delta."""

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
)

CALL_CHANNELS = {channel.item: channel for channel in CHANNELS if not channel.part}
PART_CHANNELS = {(channel.item, channel.frame, channel.part): channel for channel in CHANNELS if channel.part}
DELTAS = {channel.delta: channel for channel in CHANNELS}
DONES = {channel.done: channel for channel in CHANNELS}
PART_ADDED = {f"{channel.frame}.added": channel.frame for channel in CHANNELS if channel.part}
PART_DONE = {f"{channel.frame}.done": channel.frame for channel in CHANNELS if channel.part}
PART_INDEX = {channel.frame: channel.index for channel in CHANNELS if channel.part}

OPENING = ("response.created", "response.in_progress")
TERMINALS = {"response.completed": "completed", "response.incomplete": "incomplete", "response.failed": "failed"}
ITEM_ADDED, ITEM_DONE, ERROR_EVENT = "response.output_item.added", "response.output_item.done", "error"


def _events() -> dict[str, Shape]:
    common: dict[str, Check] = {"type": FILLED, "sequence_number": COUNT}
    place: dict[str, Check] = {"item_id": FILLED, "output_index": COUNT}
    shapes = {event: Shape(event, {**common, "response": OBJECT}) for event in (*OPENING, *TERMINALS)}
    shapes |= {event: Shape(event, {**common, "output_index": COUNT, "item": OBJECT}) for event in (ITEM_ADDED, ITEM_DONE)}
    shapes[ERROR_EVENT] = Shape("error", {**common, "message": FILLED, "code": or_null(TEXT), "param": or_null(TEXT)})
    for event, frame in (PART_ADDED | PART_DONE).items():
        shapes[event] = Shape(event, {**common, **place, PART_INDEX[frame]: COUNT, "part": OBJECT})
    for channel in CHANNELS:
        where = {**common, **place} | ({channel.index: COUNT} if channel.index else {}) | ({"logprobs": LIST} if channel.logprobs else {})
        named: dict[str, Check] = {"name": FILLED} if channel.name else {}
        shapes[channel.delta] = Shape(channel.delta, {**where, "delta": TEXT}, {"obfuscation": TEXT})
        shapes[channel.done] = Shape(channel.done, {**where, **named, channel.field: TEXT})
    return shapes


EVENTS: dict[str, Shape] = _events()

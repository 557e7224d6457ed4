"""The order of a Responses stream.

`response.created`, `response.in_progress`, then items one after the other, each nested exactly: item added, part added, deltas, text done, part done,
item done. What the deltas add up to is what every later event repeats, up to the terminal response's output. Indexes count from 0 without a gap, ids
are given once. One terminal event ends the stream and tells the truth about error, incompleteness and usage.
"""

from __future__ import annotations

from typing import Any

from toolwire.conform.judge.channels import (
    CALL_CHANNELS,
    CHANNELS,
    DELTAS,
    DONES,
    ERROR_EVENT,
    EVENTS,
    ITEM_ADDED,
    ITEM_DONE,
    OPENING,
    PART_ADDED,
    PART_CHANNELS,
    PART_DONE,
    TERMINALS,
    Channel,
    Growing,
)
from toolwire.conform.judge.shape import (
    INCOMPLETE_DETAILS,
    ITEMS,
    PARTS,
    RESPONSE,
    RESPONSE_ERROR,
    RESPONSE_USAGE_SHAPES,
    Findings,
    Options,
    check_usage,
    declared,
)

# --- responses body ---
#
# What must hold for a Responses object, its items and parts wherever they stand: in an event or as the
# body of an answer.

ECHO_MAY_CHANGE = ("status", "output", "usage", "error", "incomplete_details", "completed_at", "service_tier")
"""Keys of a response that may differ between its first and its last event."""

LISTS = {(channel.item, channel.list) for channel in CHANNELS if channel.list}


def check_item(findings: Findings, item: dict[str, Any]) -> bool:
    """The item's own keys. False: it can not be looked at further."""
    shape = ITEMS.get(str(item.get("type")))
    if shape is None:
        findings.add("item_type", f"there is no item {item.get('type')!r} here")
        return False
    if not findings.fits(shape, item):
        return False
    findings.check(item.get("call_id") != item["id"], "call_id", "id and call_id are the same")
    return True


def check_part(findings: Findings, channel: Channel, part: dict[str, Any]) -> bool:
    findings.check(
        part.get("type") == channel.part,
        "part_type",
        f"the part is {part.get('type')!r}, not {channel.part!r}",
    )
    return findings.fits(PARTS[channel.part], part)


def check_outcome(findings: Findings, response: dict[str, Any], status: str) -> None:
    """Error, incompleteness, time of completion and usage stand there exactly when the status says so."""
    due = {"error": status == "failed", "incomplete_details": status == "incomplete"}
    for key, shape in (("error", RESPONSE_ERROR), ("incomplete_details", INCOMPLETE_DETAILS)):
        if not due[key]:
            findings.check(
                response[key] is None, "outcome", f"{key} is set although the status is {status!r}"
            )
        elif response[key] is None:
            findings.add("outcome", f"{key} is null although the status is {status!r}")
        else:
            findings.fits(shape, response[key])
    if status != "completed":
        findings.check(
            response.get("completed_at") is None,
            "outcome",
            f"completed_at is set although the status is {status!r}",
        )
    if isinstance(response.get("usage"), dict):
        check_usage(findings, RESPONSE_USAGE_SHAPES, response["usage"], ("input_tokens", "output_tokens"))


def check_response(findings: Findings, options: Options, response: dict[str, Any]) -> None:
    """A whole answer, not streamed."""
    if not findings.fits(RESPONSE, response):
        return
    status = response["status"]
    findings.check(
        status not in ("in_progress", "queued"), "status", f"the answer is there but its status is {status!r}"
    )
    check_outcome(findings, response, status)
    ids: set[str] = set()
    last = len(response["output"]) - 1
    for index, item in enumerate(response["output"]):
        if not isinstance(item, dict):
            findings.add("item_type", f"item {index} is no object")
        elif check_item(findings, item):
            _finished_item(findings, options, item, may_be_cut=index == last and status != "completed")
            own: set[str] = {item[key] for key in ("id", "call_id") if key in item}
            findings.check(not own & ids, "id_repeated", f"{sorted(own & ids)} used before item {index}")
            ids |= own


def _finished_item(findings: Findings, options: Options, item: dict[str, Any], *, may_be_cut: bool) -> None:
    cut = item.get("status") == "incomplete"
    findings.check(item.get("status") != "in_progress", "status", f"item {item['id']!r} is still in_progress")
    findings.check(
        may_be_cut or not cut,
        "status",
        f"item {item['id']!r} is incomplete, though not the last of a cut response",
    )
    call = CALL_CHANNELS.get(item["type"])
    if call is not None:
        declared(findings, options, item["name"])
        verdict = Growing(item[call.field]).verdict(json_expected=item["type"] == "function_call", cut=cut)
        if verdict:
            findings.add(verdict[0], f"call {item['name']!r}: {verdict[1]}")
    for owner, key in LISTS:
        for part in item.get(key, []) if owner == item["type"] else []:
            _finished_part(findings, item["type"], key, part)


def _finished_part(findings: Findings, item: str, key: str, part: Any) -> None:
    kinds = [channel for channel in CHANNELS if channel.item == item and channel.list == key]
    for channel in kinds:
        if isinstance(part, dict) and part.get("type") == channel.part:
            check_part(findings, channel, part)
            return
    findings.add("part_type", f"{str(part)[:60]} does not belong into {key} of {item!r}")


GROWS = ("status", "content", "summary", "arguments", "input", "encrypted_content")
"""Keys of an item that differ between its first and its last event."""


class OpenText:
    """A channel in use. `done` is set by the event that repeats the whole text."""

    def __init__(self, channel: Channel, index: int | None, part: dict[str, Any] | None = None) -> None:
        self.channel = channel
        self.index = index
        self.part = part
        self.growing = Growing()
        self.done = False


class OpenItem:
    def __init__(self, index: int, item: dict[str, Any]) -> None:
        self.index = index
        self.item = item
        self.lists: dict[str, list[Any]] = {"content": [], "summary": []}
        channel = CALL_CHANNELS.get(item["type"])
        self.text: OpenText | None = OpenText(channel, None) if channel else None
        self.is_call = channel is not None


class ResponsesJudge:
    """Judges the frames of one stream, already parsed."""

    def __init__(self, options: Options, findings: Findings) -> None:
        self._options = options
        self._findings = findings
        self._frames = 0
        self._first: dict[str, Any] | None = None
        self._items: list[dict[str, Any]] = []
        self._open: OpenItem | None = None
        self._ids: set[str] = set()
        self._failing = False
        self._terminal = False
        self._done = False

    def feed(self, frame: dict[str, Any]) -> None:
        number, self._frames = self._frames, self._frames + 1
        kind = frame.get("type")
        if self._terminal:
            self._findings.add("after_terminal", f"{kind!r} follows the terminal event")
            return
        if not isinstance(kind, str) or kind not in EVENTS:
            self._findings.add("unknown_event", f"there is no event {kind!r}")
            return
        usable = self._findings.fits(EVENTS[kind], frame)
        self._findings.check(
            frame.get("sequence_number") == number,
            "sequence_number",
            f"{frame.get('sequence_number')!r} where {number} was due",
        )
        if number < len(OPENING) or kind in OPENING:
            due = OPENING[number] if number < len(OPENING) else "no opening event"
            self._findings.check(kind == due, "opening", f"{kind!r} where {due!r} was due")
        if kind in TERMINALS:
            self._terminal = True
        if usable:
            self._dispatch(kind, frame)

    def _dispatch(self, kind: str, frame: dict[str, Any]) -> None:
        if kind in OPENING or kind in TERMINALS:
            self._response(kind, frame["response"])
        elif kind == ITEM_ADDED:
            self._item_added(frame["output_index"], frame["item"])
        elif kind == ITEM_DONE:
            self._item_done(frame["output_index"], frame["item"])
        elif kind in PART_ADDED:
            self._part_added(PART_ADDED[kind], frame)
        elif kind in PART_DONE:
            self._part_done(PART_DONE[kind], frame)
        elif kind in DELTAS:
            self._delta(DELTAS[kind], frame)
        elif kind in DONES:
            self._text_done(DONES[kind], frame)
        else:
            assert kind == ERROR_EVENT
            self._failing = True

    def done(self) -> None:
        allowed = self._options.allow_done_on_responses and self._terminal and not self._done
        self._findings.check(allowed, "done_marker", "[DONE] is no part of this stream, or not at this place")
        self._done = True

    def end(self) -> None:
        self._findings.check(
            self._terminal,
            "terminal_missing",
            "the stream ends without response.completed, .incomplete or .failed",
        )

    # --- the response itself ---

    def _response(self, kind: str, response: dict[str, Any]) -> None:
        if not self._findings.fits(RESPONSE, response):
            return
        self._same_echo(response)
        if kind in OPENING:
            status, output, early = (
                "in_progress",
                [],
                [key for key in ("usage", "completed_at") if response.get(key) is not None],
            )
            self._findings.check(not early, "usage_early", f"{' and '.join(early)} before the terminal event")
        else:
            status, output = TERMINALS[kind], self._items
            self._findings.check(self._open is None, "item_open", "the response ends while an item is open")
            self._findings.check(
                not self._failing or status == "failed",
                "error_event",
                "after an error event the response must fail",
            )
        self._findings.check(
            response["status"] == status, "status", f"status {response['status']!r} in {kind}"
        )
        if self._findings.check(
            len(response["output"]) == len(output),
            "output",
            f"{kind} lists {len(response['output'])} items, not {len(output)}",
        ):
            for index, (told, streamed) in enumerate(zip(response["output"], output, strict=True)):
                self._findings.check(
                    told == streamed, "output", f"item {index} of {kind} is not the item that was streamed"
                )
        check_outcome(self._findings, response, status)
        if status == "completed":
            open_ended = [item["id"] for item in self._items if item.get("status") == "incomplete"]
            self._findings.check(
                not open_ended, "status", f"a completed response holds the incomplete items {open_ended}"
            )

    def _same_echo(self, response: dict[str, Any]) -> None:
        if self._first is None:
            self._first = response
        for key in self._first.keys() | response.keys():
            if key not in ECHO_MAY_CHANGE and self._first.get(key) != response.get(key):
                self._findings.add(
                    "envelope_changed",
                    f"{key} changes from {str(self._first.get(key))[:60]} to {str(response.get(key))[:60]}",
                )

    # --- items ---

    def _item_added(self, index: int, item: dict[str, Any]) -> None:
        if self._open is not None:
            self._findings.add("item_open", f"item {index} opens before item {self._open.index} is done")
        due = len(self._items) + (self._open is not None)
        self._findings.check(index == due, "output_index", f"output_index {index} where {due} was due")
        if self._items and self._items[-1].get("status") == "incomplete":
            self._findings.add("status", "an item opens after one that was left incomplete")
        if not check_item(self._findings, item):
            return
        self._findings.check(
            item.get("status", "in_progress") == "in_progress",
            "status",
            f"an item opens with status {item.get('status')!r}",
        )
        filled = [key for key in GROWS if key not in ("status", "encrypted_content") and item.get(key)]
        self._findings.check(
            not filled, "opened_full", f"an item opens with {' and '.join(filled)} already in it"
        )
        self._fresh_ids(item)
        if "name" in item:
            declared(self._findings, self._options, item["name"])
        self._open = OpenItem(index, item)

    def _fresh_ids(self, item: dict[str, Any]) -> None:
        for key in ("id", "call_id"):
            if key in item:
                self._findings.check(
                    item[key] not in self._ids, "id_repeated", f"{key} {item[key]!r} was used before"
                )
                self._ids.add(item[key])

    def _item_done(self, index: int, item: dict[str, Any]) -> None:
        opened, self._open = self._open, None
        if opened is None:
            self._findings.add("not_open", f"item {index} is done without having been added")
            return
        text = opened.text
        if text is not None:
            self._findings.check(
                text.done and opened.is_call, "text_open", f"item {index} is done before its text or part"
            )
        self._findings.check(
            index == opened.index, "output_index", f"output_index {index} where {opened.index} was due"
        )
        if not check_item(self._findings, item):
            return
        for key in opened.item.keys() | item.keys():
            if key not in GROWS and opened.item.get(key) != item.get(key):
                self._findings.add(
                    "item_changed",
                    f"{key} of item {index} changes from {opened.item.get(key)!r} to {item.get(key)!r}",
                )
        self._findings.check(
            item.get("status") != "in_progress", "status", f"item {index} is done but still in_progress"
        )
        lost = "status" in opened.item and "status" not in item
        self._findings.check(not lost, "status", f"item {index} loses its status")
        if text is not None and opened.is_call and item["type"] == opened.item["type"]:
            self._same_text(item[text.channel.field], text, f"item {index}")
            self._judge_call(item, text)
        for key, parts in opened.lists.items():
            self._findings.check(
                item.get(key, []) == parts,
                "text_differs",
                f"{key} of item {index} is not what its parts were",
            )
        self._items.append(item)

    def _judge_call(self, item: dict[str, Any], text: OpenText) -> None:
        verdict = text.growing.verdict(
            json_expected=item["type"] == "function_call", cut=item.get("status") == "incomplete"
        )
        if verdict:
            self._findings.add(verdict[0], f"call {item['name']!r}: {verdict[1]}")

    # --- parts and texts ---

    def _part_added(self, frame_name: str, frame: dict[str, Any]) -> None:
        opened = self._open
        part = frame["part"]
        if opened is None or opened.text is not None:
            self._findings.add(
                "not_open" if opened is None else "text_open", f"{frame['type']} where no part may begin"
            )
            return
        channel = PART_CHANNELS.get((opened.item["type"], frame_name, str(part.get("type"))))
        if channel is None:
            self._findings.add(
                "part_type", f"a part {part.get('type')!r} does not belong into {opened.item['type']!r}"
            )
            return
        text = OpenText(channel, len(opened.lists[channel.list]), part)
        opened.text = text
        self._at_place(frame, text)
        if check_part(self._findings, channel, part):
            self._findings.check(
                part[channel.field] == "", "opened_full", "a part opens with text already in it"
            )

    def _delta(self, channel: Channel, frame: dict[str, Any]) -> None:
        opened = self._open
        if (
            channel.bare
            and opened is not None
            and opened.text is None
            and opened.item["type"] == channel.item
        ):
            opened.text = OpenText(channel, len(opened.lists[channel.list]))
        text = self._text_of(channel, frame)
        if text is not None:
            self._findings.check(
                not text.done, "delta_after_done", f"{frame['type']} after the text was done"
            )
            text.growing.add(frame["delta"])

    def _text_done(self, channel: Channel, frame: dict[str, Any]) -> None:
        text = self._text_of(channel, frame)
        if text is None or self._open is None:
            return
        self._findings.check(not text.done, "done_repeated", f"{frame['type']} comes twice")
        self._same_text(frame[channel.field], text, frame["type"])
        if channel.name:
            self._findings.check(
                frame["name"] == self._open.item["name"],
                "item_changed",
                f"{frame['type']} names {frame['name']!r}",
            )
        text.done = True
        if channel.bare and text.part is None:
            self._open.lists[channel.list].append({"type": channel.part, channel.field: text.growing.text})
            self._open.text = None

    def _part_done(self, frame_name: str, frame: dict[str, Any]) -> None:
        text = self._open.text if self._open is not None else None
        if text is None or self._open is None or text.channel.frame != frame_name or text.part is None:
            self._findings.add("not_open", f"{frame['type']} for a part that is not open")
            return
        self._at_place(frame, text)
        self._findings.check(text.done, "text_open", f"{frame['type']} before {text.channel.done}")
        part = frame["part"]
        if check_part(self._findings, text.channel, part):
            self._same_text(part[text.channel.field], text, frame["type"])
        self._open.lists[text.channel.list].append(part)
        self._open.text = None

    def _text_of(self, channel: Channel, frame: dict[str, Any]) -> OpenText | None:
        text = self._open.text if self._open is not None else None
        if text is None or text.channel is not channel:
            self._findings.add("not_open", f"{frame['type']} where nothing of its kind is open")
            return None
        self._at_place(frame, text)
        return text

    def _at_place(self, frame: dict[str, Any], text: OpenText) -> None:
        assert self._open is not None
        due: list[tuple[str, Any]] = [("item_id", self._open.item["id"]), ("output_index", self._open.index)]
        if text.channel.index:
            due.append((text.channel.index, text.index))
        for key, value in due:
            self._findings.check(frame[key] == value, key, f"{key} {frame[key]!r} where {value!r} was due")

    def _same_text(self, told: str, text: OpenText, where: str) -> None:
        streamed = text.growing.text
        self._findings.check(
            told == streamed, "text_differs", f"{where} says {told[:60]!r}, the deltas were {streamed[:60]!r}"
        )

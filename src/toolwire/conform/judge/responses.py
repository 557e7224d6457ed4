"""The order of a Responses stream.

`response.created` and `response.in_progress` come first. Then the items come one after the other, each in
this order: item added, part added, deltas, text done, part done, item done. Later events repeat the whole
text, which must be equal to the joined deltas. Indexes count from 0 without gaps, and ids are unique. One
terminal event ends the stream: `response.completed`, `.incomplete` or `.failed`. In the response of this
event, error and incomplete_details match the status.
"""

from __future__ import annotations

from typing import Any

from toolwire.conform.judge import mcp
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
    RESPONSE_USAGE,
    Findings,
    Options,
    check_arguments,
    check_declared,
    check_usage,
)

# --- a response with its items and parts, in an event or in the body of an answer ---

ECHO_MAY_CHANGE = ("status", "output", "usage", "error", "incomplete_details", "completed_at", "service_tier")
"""Keys of a response that may differ between its first and its last event."""

SHAPES = {**ITEMS, **mcp.ITEMS}
JSON_CALLS = ("function_call", mcp.CALLED)
LISTS = {(channel.item, channel.list) for channel in CHANNELS if channel.list}


def check_item(findings: Findings, item: dict[str, Any]) -> bool:
    """Checks the item's own keys. Returns whether the content of the item can be checked."""
    shape = SHAPES.get(str(item.get("type")))
    if shape is None:
        findings.add("item_type", f"{item.get('type')!r} is not a known type of item")
        return False
    if not findings.fits(shape, item):
        return False
    findings.check(item.get("call_id") != item["id"], "call_id", "id and call_id are the same")
    return True


def check_part(findings: Findings, channel: Channel, part: dict[str, Any]) -> bool:
    kind = part.get("type")
    findings.check(kind == channel.part, "part_type", f"the part is {kind!r}, not {channel.part!r}")
    return findings.fits(PARTS[channel.part], part)


def check_outcome(findings: Findings, response: dict[str, Any], status: str) -> None:
    """Checks that error, incomplete_details and completed_at match the status, and checks usage."""
    due = {"failed": "error", "incomplete": "incomplete_details"}.get(status)
    for key, shape in (("error", RESPONSE_ERROR), ("incomplete_details", INCOMPLETE_DETAILS)):
        if key == due and response[key] is not None:
            findings.fits(shape, response[key])
        elif key == due:
            findings.add("outcome", f"{key} is null although the status is {status!r}")
        elif response[key] is not None:
            findings.add("outcome", f"{key} is set although the status is {status!r}")
    if status != "completed" and response.get("completed_at") is not None:
        findings.add("outcome", f"completed_at is set although the status is {status!r}")
    if isinstance(response.get("usage"), dict):
        check_usage(findings, RESPONSE_USAGE, response["usage"])


def check_response(findings: Findings, options: Options, response: dict[str, Any]) -> None:
    """Checks a whole response that was not streamed."""
    if not findings.fits(RESPONSE, response):
        return
    status = response["status"]
    over = status not in ("in_progress", "queued")
    findings.check(over, "status", f"the response has arrived, but its status is {status!r}")
    check_outcome(findings, response, status)
    ids: set[str] = set()
    last = len(response["output"]) - 1
    for index, item in enumerate(response["output"]):
        if not isinstance(item, dict):
            findings.add("item_type", f"item {index} is not an object")
        elif check_item(findings, item):
            _finished_item(findings, options, item, may_be_cut=index == last and status != "completed")
            own: set[str] = {item[key] for key in ("id", "call_id") if key in item}
            findings.check(not own & ids, "id_repeated", f"item {index} repeats ids: {sorted(own & ids)}")
            ids |= own


def _finished_item(findings: Findings, options: Options, item: dict[str, Any], *, may_be_cut: bool) -> None:
    cut = item.get("status") == "incomplete"
    findings.check(item.get("status") != "in_progress", "status", f"item {item['id']!r} is still in_progress")
    misplaced = f"item {item['id']!r} is incomplete, though not the last of a cut response"
    findings.check(may_be_cut or not cut, "status", misplaced)
    call = CALL_CHANNELS.get(item["type"])
    if call is not None:
        if item["type"] not in mcp.ITEMS:
            check_declared(findings, options, item["name"])
        verdict = Growing(item[call.field]).verdict(json_expected=item["type"] in JSON_CALLS, cut=cut)
        check_arguments(findings, item["name"], verdict)
    mcp.finished(findings, item)
    for key in [key for owner, key in LISTS if owner == item["type"]]:
        for part in item.get(key, []):
            _finished_part(findings, item["type"], key, part)


def _finished_part(findings: Findings, item: str, key: str, part: Any) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    for channel in CHANNELS:
        if (channel.item, channel.list, channel.part) == (item, key, kind):
            check_part(findings, channel, part)
            return
    findings.add("part_type", f"{str(part)[:60]} does not belong in {key} of {item!r}")


GROWS = (
    *("status", "content", "summary", "arguments", "input", "encrypted_content"),
    *("output", "error", "tools"),
)
"""Keys of an item that may differ between its first and its last event."""


class OpenText:
    """A text of the open item. `done`: whether the text's last event, with the whole text, has arrived."""

    def __init__(self, channel: Channel, index: int | None, part: dict[str, Any] | None = None) -> None:
        self.channel = channel
        self.index = index
        self.part = part
        self.growing = Growing()
        self.tokens: list[str] = []  # the tokens in the log probabilities of the deltas
        self.done = False


class OpenItem:
    def __init__(self, index: int, item: dict[str, Any]) -> None:
        self.index = index
        self.item = item
        self.lists: dict[str, list[Any]] = {"content": [], "summary": []}
        channel = CALL_CHANNELS.get(item["type"])
        self.text: OpenText | None = OpenText(channel, None) if channel else None
        self.is_call = channel is not None
        self.marked: mcp.Marked | None = None


class ResponsesJudge:
    """Checks the parsed frames of one stream."""

    def __init__(self, options: Options, findings: Findings) -> None:
        self._options = options
        self._findings = findings
        self._add, self._check, self._fits = findings.add, findings.check, findings.fits
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
            self._add("after_terminal", f"{kind!r} follows the terminal event")
            return
        if not isinstance(kind, str) or kind not in EVENTS:
            self._add("unknown_event", f"there is no event {kind!r}")
            return
        usable = self._fits(EVENTS[kind], frame)
        sent = frame.get("sequence_number")
        wrong = f"sequence_number of {kind!r} is {sent!r}, {number} was expected"
        self._check(sent == number, "sequence_number", wrong)
        if number < len(OPENING) or kind in OPENING:
            due = OPENING[number] if number < len(OPENING) else "no opening event"
            self._check(kind == due, "opening", f"{kind!r} where {due!r} was expected")
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
        elif kind in mcp.MARKS:
            self._mark(kind, frame)
        elif kind in DELTAS:
            self._delta(DELTAS[kind], frame)
        elif kind in DONES:
            self._text_done(DONES[kind], frame)
        else:
            assert kind == ERROR_EVENT
            self._failing = True

    def done(self) -> None:
        allowed = self._options.allow_done_on_responses and self._terminal and not self._done
        self._check(allowed, "done_marker", "[DONE] is not allowed here")
        self._done = True

    def end(self) -> None:
        cut = "the stream ends without response.completed, .incomplete or .failed"
        self._check(self._terminal, "terminal_missing", cut)

    # --- the response itself ---

    def _response(self, kind: str, response: dict[str, Any]) -> None:
        if not self._fits(RESPONSE, response):
            return
        self._same_echo(response)
        status, output = TERMINALS.get(kind, "in_progress"), self._items if kind in TERMINALS else []
        if kind in OPENING:
            early = [key for key in ("usage", "completed_at") if response.get(key) is not None]
            self._check(not early, "usage_early", f"{' and '.join(early)} set before the terminal event")
        else:
            self._check(self._open is None, "item_open", "the response ends while an item is open")
            fails = not self._failing or status == "failed"
            self._check(fails, "error_event", "the response did not fail after an error event")
        self._check(response["status"] == status, "status", f"{kind} has the status {response['status']!r}")
        listed = response["output"]
        if self._check(
            len(listed) == len(output), "output", f"{kind} lists {len(listed)} items instead of {len(output)}"
        ):
            for index, (item, streamed) in enumerate(zip(listed, output, strict=True)):
                other = f"item {index} of {kind} is not the item that was streamed"
                self._check(item == streamed, "output", other)
        check_outcome(self._findings, response, status)
        if status == "completed":
            cut = [item["id"] for item in self._items if item.get("status") == "incomplete"]
            self._check(not cut, "status", f"a completed response has the incomplete items {cut}")

    def _same_echo(self, response: dict[str, Any]) -> None:
        if self._first is None:
            self._first = response
        for key in (self._first.keys() | response.keys()) - set(ECHO_MAY_CHANGE):
            first, now = self._first.get(key), response.get(key)
            changed = f"{key} changes from {str(first)[:60]} to {str(now)[:60]}"
            self._check(first == now, "envelope_changed", changed)

    # --- items ---

    def _item_added(self, index: int, item: dict[str, Any]) -> None:
        if self._open is not None:
            self._add("item_open", f"item {index} opens before item {self._open.index} is done")
        due = len(self._items) + (self._open is not None)
        self._check(index == due, "output_index", f"output_index {index} where {due} was expected")
        if self._items and self._items[-1].get("status") == "incomplete":
            self._add("status", "an item opens after one that was left incomplete")
        if not check_item(self._findings, item):
            return
        status = item.get("status", "in_progress")
        self._check(status == "in_progress", "status", f"an item opens with status {status!r}")
        filled = [key for key in GROWS if key not in ("status", "encrypted_content") and item.get(key)]
        self._check(
            not filled or item["type"] == mcp.ASKED,
            "opened_full",
            f"an item opens with {' and '.join(filled)} already in it",
        )
        self._fresh_ids(item)
        if "name" in item and item["type"] not in mcp.ITEMS:
            check_declared(self._findings, self._options, item["name"])
        self._open = OpenItem(index, item)
        if item["type"] in mcp.ITEMS:
            self._open.marked = mcp.Marked(item, self._findings)

    def _fresh_ids(self, item: dict[str, Any]) -> None:
        for key in ("id", "call_id"):
            if key in item:
                fresh = item[key] not in self._ids
                self._check(fresh, "id_repeated", f"{key} {item[key]!r} was used before")
                self._ids.add(item[key])

    def _item_done(self, index: int, item: dict[str, Any]) -> None:
        opened, self._open = self._open, None
        if opened is None:
            self._add("not_open", f"item {index} is done without having been added")
            return
        text = opened.text
        if text is not None:
            whole = text.done and opened.is_call
            self._check(whole, "text_open", f"item {index} is done before its text or part")
        due = opened.index
        self._check(index == due, "output_index", f"output_index {index} where {due} was expected")
        if not check_item(self._findings, item):
            return
        for key in (opened.item.keys() | item.keys()) - set(GROWS):
            first, now = opened.item.get(key), item.get(key)
            changed = f"{key} of item {index} changes from {first!r} to {now!r}"
            self._check(first == now, "item_changed", changed)
        running = item.get("status") == "in_progress"
        self._check(not running, "status", f"item {index} is done but still in_progress")
        lost = "status" in opened.item and "status" not in item
        self._check(not lost, "status", f"item {index} loses its status")
        if text is not None and opened.is_call and item["type"] == opened.item["type"]:
            self._same_text(item[text.channel.field], text, f"item {index}")
            is_json, cut = item["type"] in JSON_CALLS, item.get("status") == "incomplete"
            verdict = text.growing.verdict(json_expected=is_json, cut=cut)
            check_arguments(self._findings, item["name"], verdict)
        for key, parts in opened.lists.items():
            same = item.get(key, []) == parts
            self._check(same, "text_differs", f"{key} of item {index} differs from its parts")
        if opened.marked is not None and item["type"] == opened.item["type"]:
            opened.marked.done(item)
        self._items.append(item)

    def _mark(self, kind: str, frame: dict[str, Any]) -> None:
        """Checks an event about the progress of an item of the tool `mcp`."""
        opened = self._open
        if opened is None or opened.marked is None:
            self._add("not_open", f"{kind} for an item that is not open")
            return
        for key, value in (("item_id", opened.item["id"]), ("output_index", opened.index)):
            self._check(frame[key] == value, key, f"{key} {frame[key]!r} where {value!r} was expected")
        opened.marked.feed(*mcp.MARKS[kind], opened.text is not None and opened.text.done)

    # --- parts and texts ---

    def _part_added(self, frame_name: str, frame: dict[str, Any]) -> None:
        opened, part = self._open, frame["part"]
        if opened is None or opened.text is not None:
            code = "not_open" if opened is None else "text_open"
            self._add(code, f"{frame['type']} where no part may begin")
            return
        kind, owner = part.get("type"), opened.item["type"]
        channel = PART_CHANNELS.get((owner, frame_name, str(kind)))
        if channel is None:
            self._add("part_type", f"a part {kind!r} does not belong in {owner!r}")
            return
        text = OpenText(channel, len(opened.lists[channel.list]), part)
        opened.text = text
        self._at_place(frame, text)
        if check_part(self._findings, channel, part):
            self._check(part[channel.field] == "", "opened_full", "a part opens with text already in it")

    def _delta(self, channel: Channel, frame: dict[str, Any]) -> None:
        opened = self._open
        starts = opened is not None and opened.text is None and opened.item["type"] == channel.item
        if channel.bare and opened is not None and starts:
            opened.text = OpenText(channel, len(opened.lists[channel.list]))
        text = self._text_of(channel, frame)
        if text is not None:
            if opened is not None and opened.marked is not None:
                opened.marked.arguments()
            self._check(not text.done, "delta_after_done", f"{frame['type']} after the text was done")
            text.growing.add(frame["delta"])
            text.tokens += [one["token"] for one in frame.get("logprobs", ())]

    def _text_done(self, channel: Channel, frame: dict[str, Any]) -> None:
        text = self._text_of(channel, frame)
        if text is None or self._open is None:
            return
        self._check(not text.done, "done_repeated", f"{frame['type']} comes twice")
        self._same_text(frame[channel.field], text, frame["type"])
        self._same_tokens(frame, text, frame["type"])
        if channel.name:
            same = frame["name"] == self._open.item["name"]
            self._check(same, "item_changed", f"{frame['type']} names {frame['name']!r}")
        text.done = True
        if channel.bare and text.part is None:
            self._open.lists[channel.list].append({"type": channel.part, channel.field: text.growing.text})
            self._open.text = None

    def _part_done(self, frame_name: str, frame: dict[str, Any]) -> None:
        text = self._open.text if self._open is not None else None
        if text is None or self._open is None or text.channel.frame != frame_name or text.part is None:
            self._add("not_open", f"{frame['type']} for a part that is not open")
            return
        self._at_place(frame, text)
        self._check(text.done, "text_open", f"{frame['type']} before {text.channel.done}")
        part = frame["part"]
        if check_part(self._findings, text.channel, part):
            self._same_text(part[text.channel.field], text, frame["type"])
            self._same_tokens(part, text, frame["type"])
        self._open.lists[text.channel.list].append(part)
        self._open.text = None

    def _text_of(self, channel: Channel, frame: dict[str, Any]) -> OpenText | None:
        text = self._open.text if self._open is not None else None
        if text is None or text.channel is not channel:
            self._add("not_open", f"{frame['type']} for a text that is not open")
            return None
        self._at_place(frame, text)
        return text

    def _at_place(self, frame: dict[str, Any], text: OpenText) -> None:
        assert self._open is not None
        due: list[tuple[str, Any]] = [("item_id", self._open.item["id"]), ("output_index", self._open.index)]
        if text.channel.index:
            due.append((text.channel.index, text.index))
        for key, value in due:
            self._check(frame[key] == value, key, f"{key} {frame[key]!r} where {value!r} was expected")

    def _same_text(self, whole: str, text: OpenText, where: str) -> None:
        streamed = text.growing.text
        differs = f"{where} has the text {whole[:60]!r}, but the deltas have {streamed[:60]!r}"
        self._check(whole == streamed, "text_differs", differs)

    def _same_tokens(self, holder: dict[str, Any], text: OpenText, where: str) -> None:
        same = [one["token"] for one in holder.get("logprobs", ())] == text.tokens
        self._check(same, "text_differs", f"{where} has other log probabilities than the deltas")

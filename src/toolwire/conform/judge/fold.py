"""Assembles a body from the frames of a stream, as a client does.

Assembling checks nothing and raises no exception. If a later event contains a text that differs from the
deltas, the body has the text of the deltas, because that is the text that a client shows or runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from toolwire.conform.judge.channels import (
    CALL_CHANNELS,
    DELTAS,
    ERROR_EVENT,
    ITEM_ADDED,
    ITEM_DONE,
    TERMINALS,
)
from toolwire.conform.judge.messages import fold_messages
from toolwire.conform.judge.shape import Problem
from toolwire.core.turn import Api

# --- server-sent events as the APIs use them ---
#
# An event is a block of lines that ends with a blank line and contains exactly one `data:` line. In Responses
# and Messages, an `event:` line with the frame's type comes before the `data:` line. Chat has no `event:`
# lines. Comments are between events, never inside one. The SSE standard also allows other fields and forms,
# and some servers use them: `split_sse` reads these, as clients do, and reports them unless `whole_standard`
# is set.

DONE = "[DONE]"
BYTE_ORDER_MARK = "\ufeff"
OF_THE_STANDARD = ("id", "retry")
"""SSE fields that OpenAI's and Anthropic's APIs do not use."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One event of a stream: the text of its `data:` line and the name of its `event:` line."""

    data: str
    event: str | None = None


def split_sse(raw: bytes | str, *, whole_standard: bool = False) -> tuple[list[Frame], list[Problem]]:
    """Returns the frames of a stream and its syntax problems.

    A problem does not end the reading. `whole_standard`: accept `id`, `retry`, a byte order
    mark and comments inside an event, which the SSE standard allows.
    """
    problems: list[Problem] = []
    if isinstance(raw, bytes):
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            wrong = f"the stream is not UTF-8: {error.reason} at byte {error.start}"
            problems.append(Problem("encoding", wrong))
            text = raw.decode("utf-8", "replace")
    else:
        text = raw
    if text.startswith(BYTE_ORDER_MARK):
        text = text.removeprefix(BYTE_ORDER_MARK)
        if not whole_standard:
            problems.append(Problem("sse_syntax", "the stream begins with a byte order mark"))
    frames: list[Frame] = []
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for block, ended in _blocks(lines if lines[-1] else lines[:-1]):
        position = len(frames)
        frame, faults = _read(block, whole_standard)
        problems += [Problem("sse_syntax", fault, position) for fault in faults]
        if frame is None:
            continue
        if not ended:
            wrong = "the last event is not ended by a blank line"
            problems.append(Problem("unterminated_event", wrong, position))
        frames.append(frame)
    return frames, problems


def _blocks(lines: Iterable[str]) -> Iterator[tuple[list[str], bool]]:
    block: list[str] = []
    for line in lines:
        if line:
            block.append(line)
        elif block:
            yield block, True
            block = []
    if block:
        yield block, False


def _read(block: list[str], whole_standard: bool) -> tuple[Frame | None, list[str]]:
    faults: list[str] = []
    fields: dict[str, list[str]] = {"event": [], "data": []}
    for line in block:
        name, colon, value = line.partition(":")
        if name == "":
            if any(fields.values()) and not whole_standard:
                faults.append(f"a comment is inside an event: {line[:80]!r}")
        elif name in OF_THE_STANDARD and whole_standard:
            continue
        elif name not in fields or not colon:
            faults.append(f"neither event, data nor comment: {line[:80]!r}")
        else:
            fields[name].append(value.removeprefix(" "))
    events, data = fields["event"], fields["data"]
    if not events and not data:
        return None, faults
    if len(events) > 1:
        faults.append("an event has two names")
    if len(data) != 1:
        faults.append(f"an event has {len(data)} data lines, not one")
    return Frame("\n".join(data), events[-1] if events else None), faults


ENVELOPE = ("id", "created", "model", "service_tier", "system_fingerprint")
TEXTS = ("content", "refusal", "reasoning_content")


def frames_of(raw: bytes | str) -> list[dict[str, Any]]:
    """Returns the JSON objects in a stream, without `[DONE]` and other data that is not a JSON object."""
    found = []
    for frame in split_sse(raw)[0]:
        try:
            value = json.loads(frame.data)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def fold(raw: bytes | str, api: Api | None = None) -> dict[str, Any]:
    """Assembles the body from a stream. If the stream contains an error, the body's `error` has it.

    If `api` is None, the API is determined from the frames.
    """
    frames = frames_of(raw)
    if api is None:
        api = _api_of(frames)
    if api == "messages":
        return fold_messages(frames)
    return fold_chat(frames) if api == "chat" else _fold_responses(frames)


def _api_of(frames: list[dict[str, Any]]) -> Api:
    if any("sequence_number" in frame for frame in frames):
        return "responses"
    return "messages" if any(frame.get("type") == "message_start" for frame in frames) else "chat"


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


# --- chat ---


def fold_chat(frames: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Assembles the body from the chunks of a chat completion."""
    body: dict[str, Any] = {"object": "chat.completion"}
    choices: dict[Any, dict[str, Any]] = {}
    places: dict[str, dict[str, int]] = {}
    for frame in frames:
        if frame.get("error") is not None:
            body["error"] = frame["error"]
            break
        for key in ENVELOPE:
            if key in frame:
                body.setdefault(key, frame[key])
        if isinstance(frame.get("usage"), dict):
            body["usage"] = frame["usage"]
        for choice in _objects(frame.get("choices")):
            index = str(choice.get("index"))
            message = {"role": None, "content": None, "refusal": None}
            new = {"index": choice.get("index"), "message": message, "logprobs": None, "finish_reason": None}
            held = choices.setdefault(index, new)
            _add_delta(held["message"], _object(choice.get("delta")), places.setdefault(index, {}))
            _add_logprobs(held, _object(choice.get("logprobs")))
            held["finish_reason"] = choice.get("finish_reason") or held["finish_reason"]
    body["choices"] = list(choices.values())
    return body


def _add_logprobs(held: dict[str, Any], logprobs: dict[str, Any]) -> None:
    for key, tokens in logprobs.items():
        held["logprobs"] = held["logprobs"] or {"content": None, "refusal": None}
        if isinstance(tokens, list):
            held["logprobs"][key] = (held["logprobs"].get(key) or []) + tokens


def _add_delta(message: dict[str, Any], delta: dict[str, Any], places: dict[str, int]) -> None:
    """Adds a delta to the message. `places`: the position of each call, by the index in the stream."""
    message["role"] = delta.get("role") or message["role"]
    for key in TEXTS:
        if isinstance(delta.get(key), str):
            message[key] = (message.get(key) or "") + delta[key]
    for fragment in _objects(delta.get("tool_calls")):
        calls = message.setdefault("tool_calls", [])
        place = _place(places, fragment, len(calls))
        if place == len(calls):
            calls.append({})
        _merge(calls[place], fragment)
    if isinstance(delta.get("function_call"), dict):
        _merge(message.setdefault("function_call", {}), delta["function_call"])


def _place(places: dict[str, int], fragment: dict[str, Any], count: int) -> int:
    """Returns the position of the call that a fragment belongs to.

    A fragment without an index starts a new call if it has an id. A fragment with neither extends the last
    call.
    """
    if fragment.get("index") is not None:
        return places.setdefault(str(fragment["index"]), count)
    place = count if fragment.get("id") or not count else count - 1
    places.setdefault(str(place), place)
    return place


def _merge(call: dict[str, Any], fragment: dict[str, Any]) -> None:
    for key, value in fragment.items():
        if key == "index":
            continue
        if isinstance(value, dict):
            inner = call.setdefault(key, {})
            if isinstance(inner, dict):
                _merge(inner, value)
        elif key in ("arguments", "input") and isinstance(value, str):
            call[key] = str(call.get(key, "")) + value
        elif value or not call.get(key):  # an empty value does not replace a value
            call[key] = value


# --- Responses ---


def _fold_responses(frames: list[dict[str, Any]]) -> dict[str, Any]:
    body: dict[str, Any] = {}
    items: dict[Any, dict[str, Any]] = {}
    texts: dict[tuple[str, str, str], str] = {}
    error: Any = None
    for frame in frames:
        kind, index = str(frame.get("type")), str(frame.get("output_index"))
        if kind in (ITEM_ADDED, ITEM_DONE):
            items[index] = {**items.get(index, {}), **_object(frame.get("item"))}
        elif kind in DELTAS:
            channel = DELTAS[kind]
            key = (index, channel.list, str(frame.get(channel.index)) if channel.index else "")
            texts[key] = texts.get(key, "") + str(frame.get("delta"))
        elif kind == ERROR_EVENT or frame.get("error") is not None:
            error = frame.get("error") or {key: frame.get(key) for key in ("code", "message", "param")}
        elif kind in TERMINALS or not body:
            body = _object(frame.get("response"))
    if error is not None and body.get("error") is None:
        body = {**body, "error": error}
    return {**body, "output": [_with_text(item, index, texts) for index, item in items.items()]}


def _with_text(item: dict[str, Any], index: str, texts: dict[tuple[str, str, str], str]) -> dict[str, Any]:
    call = CALL_CHANNELS.get(str(item.get("type")))
    if call is not None:
        return {**item, call.field: texts.get((index, "", ""), "")}
    rebuilt = dict(item)
    for key in ("content", "summary"):
        if key in item:
            rebuilt[key] = []
            for number, part in enumerate(_objects(item[key])):
                field = "refusal" if part.get("type") == "refusal" else "text"
                rebuilt[key].append({**part, field: texts.get((index, key, str(number)), "")})
    return rebuilt

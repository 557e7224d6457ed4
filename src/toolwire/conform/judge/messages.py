"""The order of a Messages stream, and the shapes of its objects.

`message_start` comes first and once, with usage and no content. Content blocks are numbered from 0 without a
gap. Only one block is open at a time, and it grows only by deltas of its own type. The arguments of a call
grow by increments; together these are a JSON object. After the blocks, one `message_delta` gives the correct
reason why the answer ended, and the number of tokens. `message_stop` is the last event. If there is an error,
an `error` event ends the stream instead. `ping` may come anywhere before the end.
"""

from __future__ import annotations

import json
from typing import Any

from toolwire.conform.judge.channels import Growing
from toolwire.conform.judge.shape import (
    ANY,
    COUNT,
    FILLED,
    LIST,
    OBJECT,
    TEXT,
    Findings,
    ObjectShape,
    Options,
    ValueCheck,
    check_arguments,
    check_declared,
    only,
    or_null,
)
from toolwire.core.partial_call import partial_object

STOP_REASONS = (
    *("end_turn", "max_tokens", "stop_sequence", "tool_use", "pause_turn", "refusal"),
    *("model_context_window_exceeded", "compaction"),
)
CUT = ("max_tokens", "refusal", "model_context_window_exceeded")
"""Values of `stop_reason` after which the answer's last call may be incomplete."""

_COUNTS: dict[str, ValueCheck] = dict.fromkeys(
    ("cache_creation_input_tokens", "cache_read_input_tokens"), or_null(COUNT)
)
_USAGE_EXTRAS: dict[str, ValueCheck] = {
    **_COUNTS,
    **dict.fromkeys(("cache_creation", "output_tokens_details", "server_tool_use"), or_null(OBJECT)),
    **dict.fromkeys(("service_tier", "speed", "inference_geo"), or_null(TEXT)),
}
USAGE = ObjectShape("usage", {"input_tokens": COUNT, "output_tokens": COUNT}, _USAGE_EXTRAS)
DELTA_USAGE = ObjectShape(
    "usage", {"output_tokens": COUNT}, {"input_tokens": or_null(COUNT), **_USAGE_EXTRAS}
)
_MESSAGE: dict[str, ValueCheck] = {
    "id": FILLED,
    "type": only("message"),
    "role": only("assistant"),
    "model": FILLED,
    "content": LIST,
    "usage": OBJECT,
}
_MESSAGE_EXTRAS: dict[str, ValueCheck] = {
    **dict.fromkeys(("stop_details", "container", "context_management", "diagnostics"), or_null(OBJECT))
}
STARTED = ObjectShape(
    "message", {**_MESSAGE, "stop_reason": only(None), "stop_sequence": only(None)}, _MESSAGE_EXTRAS
)
MESSAGE = ObjectShape(
    "message",
    {**_MESSAGE, "stop_reason": only(*STOP_REASONS), "stop_sequence": or_null(TEXT)},
    _MESSAGE_EXTRAS,
)
BLOCKS = {
    "text": ObjectShape("text", {"type": ANY, "text": TEXT}, {"citations": or_null(LIST)}),
    "tool_use": ObjectShape(
        "tool_use",
        {"type": ANY, "id": FILLED, "name": FILLED, "input": OBJECT},
        {"caller": ANY, "toolset_name": or_null(TEXT)},
    ),
    "thinking": ObjectShape("thinking", {"type": ANY, "thinking": TEXT, "signature": TEXT}),
    "redacted_thinking": ObjectShape("redacted_thinking", {"type": ANY, "data": FILLED}),
}
"""The blocks that any model may send. Blocks of Anthropic's server tools are not checked."""
DELTAS = {
    "text_delta": ("text", "text"),
    "input_json_delta": ("tool_use", "partial_json"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("thinking", "signature"),
}
"""For each type of delta: the type of the block that it extends, and the delta's key for the text."""
_TYPE = {"type": FILLED}
EVENTS = {
    "message_start": ObjectShape("message_start", {**_TYPE, "message": OBJECT}),
    "content_block_start": ObjectShape(
        "content_block_start", {**_TYPE, "index": COUNT, "content_block": OBJECT}
    ),
    "content_block_delta": ObjectShape("content_block_delta", {**_TYPE, "index": COUNT, "delta": OBJECT}),
    "content_block_stop": ObjectShape("content_block_stop", {**_TYPE, "index": COUNT}),
    "message_delta": ObjectShape(
        "message_delta", {**_TYPE, "delta": OBJECT, "usage": OBJECT}, {"context_management": ANY}
    ),
    "message_stop": ObjectShape("message_stop", _TYPE),
    "ping": ObjectShape("ping", _TYPE),
    "error": ObjectShape("error event", {**_TYPE, "error": OBJECT}, {"request_id": or_null(TEXT)}),
}
ENDED = ObjectShape(
    "message_delta.delta",
    {"stop_reason": only(*STOP_REASONS), "stop_sequence": or_null(TEXT)},
    {"stop_details": or_null(OBJECT), "container": or_null(OBJECT)},
)
ERROR_BODY = ObjectShape(
    "error body", {"type": only("error"), "error": OBJECT}, {"request_id": or_null(TEXT)}
)
ERROR = ObjectShape("error", {"type": FILLED, "message": FILLED}, {"details": or_null(OBJECT)})


class MessagesJudge:
    """Checks the parsed frames of one stream."""

    def __init__(self, options: Options, findings: Findings) -> None:
        self._options = options
        self._findings = findings
        self._add, self._check, self._fits = findings.add, findings.check, findings.fits
        self._started = self._ended = self._stopped = self._failed = False
        self._open: dict[str, Any] | None = None
        self._index = -1
        self._arguments = Growing()
        self._signed = False
        self._ids: set[str] = set()
        self._calls: list[tuple[str, Growing]] = []

    def feed(self, frame: dict[str, Any]) -> None:
        kind = str(frame.get("type"))
        if self._failed or self._stopped:
            last = "the error that ended the stream" if self._failed else "message_stop"
            self._add("after_error" if self._failed else "after_done", f"{kind} follows {last}")
        elif kind not in EVENTS:
            self._add("unknown_event", f"there is no event {kind[:80]!r}")
        elif self._fits(EVENTS[kind], frame) and kind != "ping":
            first = self._check(
                self._started or kind in ("message_start", "error"),
                "start_missing",
                f"{kind} comes before message_start",
            )
            if first:
                getattr(self, f"_{kind}")(frame)

    def done(self) -> None:
        self._add("done_unknown", "[DONE] does not belong to this API")

    def end(self) -> None:
        if not self._stopped and not self._failed:
            self._add("done_missing", "the stream ends without message_stop")
            self._check(self._ended, "finish_missing", "the stream has no message_delta")

    def _message_start(self, frame: dict[str, Any]) -> None:
        if not self._check(not self._started, "start_repeated", "there is a second message_start"):
            return
        self._started = True
        message = frame["message"]
        if self._fits(STARTED, message):
            self._fits(USAGE, message["usage"])
            self._check(not message["content"], "start_content", "message_start has content")

    def _content_block_start(self, frame: dict[str, Any]) -> None:
        index, block = frame["index"], frame["content_block"]
        self._check(
            self._open is None, "block_open", f"block {index} starts while block {self._index} is open"
        )
        self._check(not self._ended, "after_finish", f"block {index} starts after message_delta")
        self._check(
            index == self._index + 1, "block_index", f"block {index} starts, {self._index + 1} was expected"
        )
        self._open, self._index, self._signed = block, index, False
        kind = str(block.get("type"))
        if kind in BLOCKS and self._fits(BLOCKS[kind], block):
            self._begin(kind, block)

    def _begin(self, kind: str, block: dict[str, Any]) -> None:
        given = {"text": "text", "thinking": "thinking", "tool_use": "input"}.get(kind)
        if given is not None:
            early = f"a {kind} block starts with its {given}; clients read it from the deltas alone"
            self._check(not block[given], "block_content", early)
        if kind == "tool_use":
            self._check(
                block["id"] not in self._ids, "call_id_repeated", f"two calls have the id {block['id']!r}"
            )
            self._ids.add(block["id"])
            check_declared(self._findings, self._options, block["name"])
            self._arguments = Growing()
            self._calls.append((block["name"], self._arguments))

    def _content_block_delta(self, frame: dict[str, Any]) -> None:
        delta, index = frame["delta"], frame["index"]
        kind = str(delta.get("type"))
        if self._open is None or index != self._index:
            self._add("block_index", f"a delta for block {index}, which is not open")
            return
        block = str(self._open.get("type"))
        if block not in BLOCKS:  # blocks of Anthropic's server tools are not checked
            return
        of, member = DELTAS.get(kind, ("", ""))
        if not self._check(of == block, "delta_type", f"a {kind} in a {block} block"):
            return
        if not self._fits(ObjectShape(kind, {"type": ANY, member: TEXT}), delta):
            return
        self._check(not self._signed, "after_signature", "a thought continues after its signature")
        self._signed = kind == "signature_delta"
        if kind == "input_json_delta":
            self._arguments.add(delta[member])

    def _content_block_stop(self, frame: dict[str, Any]) -> None:
        index = frame["index"]
        self._check(
            self._open is not None and index == self._index, "block_index", f"block {index} is not open"
        )
        self._open = None

    def _message_delta(self, frame: dict[str, Any]) -> None:
        self._check(self._open is None, "block_open", f"block {self._index} is open at the end")
        self._check(not self._ended, "finish_repeated", "there is a second message_delta")
        self._ended = True
        self._fits(DELTA_USAGE, frame["usage"])
        if self._fits(ENDED, frame["delta"]):
            truthful_stop(self._findings, frame["delta"], calls=bool(self._calls))
        cut = frame["delta"].get("stop_reason") in CUT
        for name, arguments in self._calls:
            last = arguments is self._arguments
            _judge_arguments(self._findings, name, arguments, cut=cut and last)

    def _message_stop(self, frame: dict[str, Any]) -> None:
        self._check(self._ended, "finish_missing", "message_stop comes without message_delta")
        self._stopped = True

    def _error(self, frame: dict[str, Any]) -> None:
        self._failed = True
        self._fits(ERROR, frame["error"])
        self._check(not self._ended, "error_after_finish", "an error follows message_delta")


def truthful_stop(findings: Findings, ended: dict[str, Any], *, calls: bool) -> None:
    """Checks that `stop_reason` is tool_use exactly if there are calls, and checks `stop_sequence`.

    The reasons in `CUT`, for an interrupted answer, are always allowed. The key `stop_sequence` must be set
    exactly if the reason is "stop_sequence".
    """
    reason = ended["stop_reason"]
    right = "tool_use" if calls else "end_turn"
    allowed = (right, *CUT, *(() if calls else ("stop_sequence", "pause_turn", "compaction")))
    findings.check(
        reason in allowed, "untruthful_finish", f"stop_reason is {reason!r}, {right!r} was expected"
    )
    named = (ended["stop_sequence"] is not None) == (reason == "stop_sequence")
    findings.check(named, "stop_sequence", "stop_sequence must be set exactly if it ended the answer")


def _judge_arguments(findings: Findings, name: str, arguments: Growing, *, cut: bool) -> None:
    if not arguments.text:  # a call without arguments needs no delta
        return
    verdict = arguments.verdict(json_expected=True, cut=cut)
    if verdict is None and not cut and not isinstance(json.loads(arguments.text), dict):
        verdict = ("invalid_arguments", "the arguments are not a JSON object")
    check_arguments(findings, name, verdict)


# --- a message that is not streamed ---


def check_message(findings: Findings, options: Options, body: dict[str, Any]) -> None:
    if not findings.fits(MESSAGE, body):
        return
    findings.fits(USAGE, body["usage"])
    ids: set[str] = set()
    for block in body["content"]:
        kind = str(block.get("type")) if isinstance(block, dict) else ""
        if kind not in BLOCKS or not findings.fits(BLOCKS[kind], block):
            findings.check(bool(kind), "wrong_value", "a content block without a type")
        elif kind == "tool_use":
            findings.check(
                block["id"] not in ids, "call_id_repeated", f"two calls have the id {block['id']!r}"
            )
            ids.add(block["id"])
            check_declared(findings, options, block["name"])
    truthful_stop(findings, body, calls=bool(ids))


def fold_messages(frames: list[dict[str, Any]]) -> dict[str, Any]:
    """Assembles a message from its events, as the SDKs do. If there is an error, the key `error` has it."""
    body: dict[str, Any] = {}
    blocks: dict[Any, dict[str, Any]] = {}
    texts: dict[tuple[Any, str], str] = {}
    for frame in frames:
        kind, index = frame.get("type"), str(frame.get("index"))
        delta = frame["delta"] if isinstance(frame.get("delta"), dict) else {}
        if kind == "error" or (frame.get("error") is not None and kind is None):
            body = {**body, "error": frame.get("error")}
            break
        if kind == "message_start" and not body and isinstance(frame.get("message"), dict):
            body = dict(frame["message"])
        elif kind == "content_block_start" and isinstance(frame.get("content_block"), dict):
            blocks[index] = dict(frame["content_block"])
        elif kind == "content_block_delta" and index in blocks:
            _, member = DELTAS.get(str(delta.get("type")), ("", ""))
            texts[index, member] = texts.get((index, member), "") + str(delta.get(member, ""))
        elif kind == "message_delta":
            usage = frame["usage"] if isinstance(frame.get("usage"), dict) else {}
            before = body["usage"] if isinstance(body.get("usage"), dict) else {}
            body = {**body, **delta, "usage": {**before, **usage}}
    for (index, member), text in texts.items():
        block = blocks[index]
        if member != "partial_json":
            block[member] = str(block.get(member, "")) + text
        elif text:
            try:
                block["input"] = json.loads(text)
            except (ValueError, RecursionError):
                block["input"] = partial_object(text)
    return {**body, "content": list(blocks.values())} if body else body

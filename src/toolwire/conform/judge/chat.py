"""The order of a chat completions stream.

Every chunk has the same envelope: id, object, created and model. In each choice, the role comes first and
once. Text, refusal and calls grow by increments. Calls come one after the other. The first delta of a call
has index, id, type and name; later deltas repeat only the index. One chunk with an empty delta and the
correct finish_reason ends the choice. A usage chunk follows if and only if it was requested. `[DONE]` ends
the stream. If there is an error, an error object ends the stream instead.
"""

from __future__ import annotations

from typing import Any

from toolwire.conform.judge.channels import Growing
from toolwire.conform.judge.shape import (
    CALL_KINDS,
    CHAT_USAGE,
    CHUNK,
    CHUNK_CHOICE,
    COMPLETION,
    COMPLETION_CHOICE,
    DELTA,
    ERROR,
    ERROR_BODY,
    FUNCTION_CALL,
    FUNCTION_CALL_FRAGMENT,
    MESSAGE,
    Findings,
    Options,
    check_arguments,
    check_declared,
    check_usage,
)

CUT = ("length", "content_filter")
ENVELOPE = ("id", "object", "created", "model")
TEXTS = ("content", "refusal", "reasoning_content")


class StreamedCall:
    """A streamed call so far. `kind`: function, custom, or function_call (the legacy format)."""

    def __init__(self, kind: str, name: str, text: str) -> None:
        self.kind = kind
        self.name = name
        self.arguments = Growing(text)
        self.closed = False

    def judge(self, findings: Findings, *, cut: bool) -> None:
        verdict = self.arguments.verdict(json_expected=self.kind != "custom", cut=cut)
        check_arguments(findings, self.name, verdict)


class ChoiceJudge:
    """Checks the deltas of one choice of a stream."""

    def __init__(self, index: int, options: Options, findings: Findings) -> None:
        self._index = index
        self._options = options
        self._findings = findings
        self._add, self._check, self._fits = findings.add, findings.check, findings.fits
        self._role = False
        self._calls: list[StreamedCall] = []
        self._ids: set[str] = set()
        self.finish: str | None = None

    def feed(self, delta: dict[str, Any], finish: str | None) -> None:
        if self.finish is not None:
            self._add("after_finish", f"choice {self._index} continues after its finish_reason")
            return
        self._roles(delta)
        for key in TEXTS:
            if key in delta:
                self._text(key, delta[key], opening="role" in delta)
        if self._speaks(delta, "tool_calls", not self._options.legacy):
            for call in delta["tool_calls"]:
                self._call(call)
        if self._speaks(delta, "function_call", self._options.legacy):
            self._function_call(delta["function_call"])
        if finish is not None:
            self._finish(finish, delta)
        elif not delta:
            self._add("empty_delta", "a chunk has neither content nor finish_reason")

    def _speaks(self, delta: dict[str, Any], key: str, understood: bool) -> bool:
        sent = "functions" if self._options.legacy else "tools"
        return key in delta and self._check(
            understood, "wrong_dialect", f"{key} is sent to a client that sent {sent}"
        )

    def _roles(self, delta: dict[str, Any]) -> None:
        if "role" in delta:
            self._check(not self._role, "role_repeated", f"choice {self._index} names its role again")
        else:
            self._check(self._role, "role_missing", f"choice {self._index} does not begin with its role")
        self._role = True

    def _text(self, key: str, value: str | None, *, opening: bool) -> None:
        if value is None:
            self._check(opening, "null_delta", f"{key} is null in a delta that is not the first")
        elif value:
            self._close_call()  # a call must be complete before anything else follows it

    def _call(self, call: Any) -> None:
        index = call.get("index") if isinstance(call, dict) else None
        if not isinstance(index, int):
            self._add("call_index", f"a call delta without an index: {str(call)[:80]}")
        elif index == len(self._calls):
            self._open(call)
        elif self._calls and index == len(self._calls) - 1:
            self._extend(call, self._calls[-1])
        else:
            opened = len(self._calls)
            self._add("call_index", f"call index {index} is out of order after {opened} calls")

    def _open(self, call: dict[str, Any]) -> None:
        shapes = CALL_KINDS.get(str(call.get("type")), CALL_KINDS["function"])
        outer, inner = shapes.opener
        if not self._fits(outer, call) or not self._fits(inner, call[shapes.kind]):
            return
        self._check(call["id"] not in self._ids, "call_id_repeated", f"two calls have the id {call['id']!r}")
        self._ids.add(call["id"])
        inside = call[shapes.kind]
        self._begin(StreamedCall(shapes.kind, inside["name"], inside[shapes.text]))

    def _close_call(self, *, cut: bool = False) -> None:
        if self._calls and not self._calls[-1].closed:
            self._calls[-1].closed = True
            self._calls[-1].judge(self._findings, cut=cut)

    def _begin(self, call: StreamedCall) -> None:
        self._close_call()
        check_declared(self._findings, self._options, call.name)
        self._calls.append(call)

    def _extend(self, call: dict[str, Any], target: StreamedCall) -> None:
        shapes = CALL_KINDS[target.kind]
        outer, inner = shapes.fragment
        for holder, keys in ((call, ("id", "type")), (call.get(shapes.kind), ("name",))):
            again = [key for key in keys if isinstance(holder, dict) and key in holder]
            if again:
                self._add("call_repeated", f"{' and '.join(again)} of call {target.name!r} sent again")
                return
        if self._fits(outer, call) and self._fits(inner, call[shapes.kind]):
            late = f"arguments for {target.name!r} after something else followed it"
            self._check(not target.closed, "call_reopened", late)
            target.arguments.add(call[shapes.kind][shapes.text])

    def _function_call(self, call: dict[str, Any]) -> None:
        if not self._calls:
            if self._fits(FUNCTION_CALL, call):
                self._begin(StreamedCall("function_call", call["name"], call["arguments"]))
        elif "name" in call:
            self._add("call_repeated", "the name of the only call in a legacy turn is sent again")
        elif self._fits(FUNCTION_CALL_FRAGMENT, call):
            only = self._calls[0]
            self._check(not only.closed, "call_reopened", "arguments after something else followed the call")
            only.arguments.add(call["arguments"])

    def _finish(self, finish: str, delta: dict[str, Any]) -> None:
        self.finish = finish
        self._check(not delta, "finish_delta", "the delta of the chunk with finish_reason is not empty")
        self._check(self._role, "role_missing", f"choice {self._index} has no role")
        truthful_finish(self._findings, self._options, finish, calls=bool(self._calls))
        self._close_call(cut=finish in CUT)


def truthful_finish(findings: Findings, options: Options, finish: str, *, calls: bool) -> None:
    """Checks that `finish_reason` reports calls exactly if there are calls.

    Reasons in `CUT`, for an interrupted answer, are always allowed; `stop` is allowed if `options.may_stop`
    is set.
    """
    right = "stop" if not calls else "function_call" if options.legacy else "tool_calls"
    allowed = (right, *CUT, *(["stop"] if options.may_stop else ()))
    findings.check(
        finish in allowed, "untruthful_finish", f"finish_reason is {finish!r}, {right!r} was expected"
    )


class ChatJudge:
    """Checks the parsed frames of one stream."""

    def __init__(self, options: Options, findings: Findings) -> None:
        self._options = options
        self._findings = findings
        self._add, self._check, self._fits = findings.add, findings.check, findings.fits
        self._envelope: dict[str, Any] | None = None
        self._choices: dict[int, ChoiceJudge] = {}
        self._usage = False
        self._done = False
        self._failed = False

    def feed(self, frame: dict[str, Any]) -> None:
        if self._over():
            return
        if frame.get("error") is not None:
            self._error(frame)
        elif self._fits(CHUNK, frame):
            self._chunk(frame)

    def done(self) -> None:
        if not self._over():
            self._done = True
            self._complete()

    def end(self) -> None:
        if not self._done and not self._failed:
            self._add("done_missing", "the stream ends without [DONE]")
            self._complete()

    def _over(self) -> bool:
        if self._done:
            self._add("after_done", "something follows [DONE]")
        elif self._failed:
            self._add("after_error", "something follows the error that ended the stream")
        return self._done or self._failed

    def _error(self, frame: dict[str, Any]) -> None:
        self._failed = True
        if self._fits(ERROR_BODY, frame):
            self._fits(ERROR, frame["error"])
        late = "an error follows although every choice has its finish_reason"
        self._check(not self._all_finished(), "error_after_finish", late)

    def _all_finished(self) -> bool:
        return bool(self._choices) and all(choice.finish for choice in self._choices.values())

    def _chunk(self, chunk: dict[str, Any]) -> None:
        envelope = {key: chunk[key] for key in ENVELOPE}
        if self._envelope is None:
            self._envelope = envelope
        for key, first in self._envelope.items():
            changed = f"{key} changes from {first!r} to {envelope[key]!r}"
            self._check(envelope[key] == first, "envelope_changed", changed)
        self._check(not self._usage, "after_usage", "a chunk follows the usage chunk")
        if not chunk["choices"]:
            self._usage_chunk(chunk)
            return
        if self._options.include_usage:
            null = "usage" in chunk and chunk["usage"] is None
            self._check(null, "usage_null", "with include_usage, a chunk must have usage: null")
        else:
            self._check("usage" not in chunk, "usage_unasked", "usage was not requested")
        for choice in chunk["choices"]:
            if self._fits(CHUNK_CHOICE, choice) and self._fits(DELTA, choice["delta"]):
                self._choice(choice["index"]).feed(choice["delta"], choice["finish_reason"])

    def _choice(self, index: int) -> ChoiceJudge:
        if index not in self._choices:
            count = len(self._choices)
            self._check(
                index == count, "choice_index", f"choice {index} begins when there are {count} choices"
            )
            self._choices[index] = ChoiceJudge(index, self._options, self._findings)
        return self._choices[index]

    def _usage_chunk(self, chunk: dict[str, Any]) -> None:
        if not isinstance(chunk.get("usage"), dict):
            self._add("empty_choices", "a chunk has neither choices nor usage")
            return
        self._usage = True
        self._check(self._options.include_usage, "usage_unasked", "the usage chunk was not requested")
        self._check(self._all_finished(), "usage_early", "the usage chunk comes before the finish")
        check_usage(self._findings, CHAT_USAGE, chunk["usage"])

    def _complete(self) -> None:
        self._check(bool(self._choices), "no_choices", "the stream has no choice")
        for index, choice in self._choices.items():
            self._check(choice.finish is not None, "finish_missing", f"choice {index} has no finish_reason")
        if self._options.include_usage:
            self._check(self._usage, "usage_missing", "usage was requested but is missing")


# --- a completion that is not streamed ---


def check_completion(findings: Findings, options: Options, body: dict[str, Any]) -> None:
    if not findings.fits(COMPLETION, body):
        return
    if "usage" in body:
        check_usage(findings, CHAT_USAGE, body["usage"])
    for position, choice in enumerate(body["choices"]):
        if findings.fits(COMPLETION_CHOICE, choice) and findings.fits(MESSAGE, choice["message"]):
            index = choice["index"]
            findings.check(index == position, "choice_index", f"choice {index} is at position {position}")
            _message(findings, options, choice["message"], choice["finish_reason"])


def _message(findings: Findings, options: Options, message: dict[str, Any], finish: str) -> None:
    legacy = [message["function_call"]] if "function_call" in message else []
    calls = [*message.get("tool_calls", []), *legacy]
    wrong = "tool_calls" if options.legacy else "function_call"
    findings.check(wrong not in message, "wrong_dialect", f"the client cannot read {wrong}")
    truthful_finish(findings, options, finish, calls=bool(calls))
    silent = message["content"] is None and message["refusal"] is None and not calls and finish == "stop"
    findings.check(
        not silent, "null_content", "content is null although there is neither a call nor a refusal"
    )
    ids: set[str] = set()
    for call in calls:
        cut = finish in CUT and call is calls[-1]
        _call(findings, options, call, ids, legacy=call in legacy, cut=cut)


def _call(findings: Findings, options: Options, call: Any, ids: set[str], *, legacy: bool, cut: bool) -> None:
    if legacy:
        if not findings.fits(FUNCTION_CALL, call):
            return
        inner, text, json_expected = call, "arguments", True
    else:
        kind = str(call.get("type")) if isinstance(call, dict) else ""
        shapes = CALL_KINDS.get(kind, CALL_KINDS["function"])
        outer_shape, inner_shape = shapes.whole
        if not findings.fits(outer_shape, call) or not findings.fits(inner_shape, call[shapes.kind]):
            return
        findings.check(call["id"] not in ids, "call_id_repeated", f"two calls have the id {call['id']!r}")
        ids.add(call["id"])
        inner, text, json_expected = call[shapes.kind], shapes.text, shapes.kind == "function"
    check_declared(findings, options, inner["name"])
    verdict = Growing(inner[text]).verdict(json_expected=json_expected, cut=cut)
    check_arguments(findings, inner["name"], verdict)

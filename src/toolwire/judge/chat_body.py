"""What must hold for a chat completion that is not streamed."""

from __future__ import annotations

from typing import Any

from toolwire.judge.chat import CUT, truthful_finish
from toolwire.judge.growing import Growing
from toolwire.judge.problem import Findings, Options, check_usage, declared
from toolwire.judge.shape import CALL_KINDS, CHAT_USAGE_SHAPES, COMPLETION, COMPLETION_CHOICE, FUNCTION_CALL, MESSAGE


def check_completion(findings: Findings, options: Options, body: dict[str, Any]) -> None:
    if not findings.fits(COMPLETION, body):
        return
    if "usage" in body:
        check_usage(findings, CHAT_USAGE_SHAPES, body["usage"], ("prompt_tokens", "completion_tokens"))
    for position, choice in enumerate(body["choices"]):
        if findings.fits(COMPLETION_CHOICE, choice) and findings.fits(MESSAGE, choice["message"]):
            findings.check(choice["index"] == position, "choice_index", f"choice {choice['index']} stands at {position}")
            _message(findings, options, choice["message"], choice["finish_reason"])


def _message(findings: Findings, options: Options, message: dict[str, Any], finish: str) -> None:
    calls = [*message.get("tool_calls", []), *([message["function_call"]] if "function_call" in message else [])]
    wrong = "tool_calls" if options.legacy else "function_call"
    findings.check(wrong not in message, "wrong_dialect", f"{wrong} is not what the client can read")
    truthful_finish(findings, options, finish, calls=bool(calls))
    silent = message["content"] is None and message["refusal"] is None and not calls and finish == "stop"
    findings.check(not silent, "null_content", "content is null although there is neither a call nor a refusal")
    ids: set[str] = set()
    for call in calls:
        cut = finish in CUT and call is calls[-1]
        _call(findings, options, call, ids, legacy=call is message.get("function_call"), cut=cut)


def _call(findings: Findings, options: Options, call: Any, ids: set[str], *, legacy: bool, cut: bool) -> None:
    if legacy:
        if not findings.fits(FUNCTION_CALL, call):
            return
        inner, text, json_expected = call, "arguments", True
    else:
        shapes = CALL_KINDS.get(str(call.get("type")) if isinstance(call, dict) else "", CALL_KINDS["function"])
        outer_shape, inner_shape = shapes.whole
        if not findings.fits(outer_shape, call) or not findings.fits(inner_shape, call[shapes.kind]):
            return
        findings.check(call["id"] not in ids, "call_id_repeated", f"two calls have the id {call['id']!r}")
        ids.add(call["id"])
        inner, text, json_expected = call[shapes.kind], shapes.text, shapes.kind == "function"
    declared(findings, options, inner["name"])
    verdict = Growing(inner[text]).verdict(json_expected=json_expected, cut=cut)
    if verdict:
        findings.add(verdict[0], f"call {inner['name']!r}: {verdict[1]}")

"""The judges accept correct streams and report precisely what is wrong with others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.damage import Frames, parse, render, renumbered
from doubles.judges import Judge, ReplayJudge, SdkJudge, same
from toolwire.conform.judge import DONE, JudgeOptions, OrderJudge, fold, judge_body, judge_error, judge_sse
from toolwire.conform.judge.channels import EVENTS
from toolwire.core.turn import Api

GOLDEN = {path.stem: path.read_bytes() for path in sorted((Path(__file__).parent / "golden").glob("*.sse"))}
WHOLE = [name for name in GOLDEN if name != "chat_error"]


def api_of(golden: str) -> Api:
    return "chat" if golden.startswith("chat") else "responses"


def options_of(golden: str) -> JudgeOptions:
    return {"include_usage": "usage" in golden, "legacy": "legacy" in golden}


def codes(raw: bytes, api: Api, **options: Any) -> list[str]:
    return [problem.code for problem in judge_sse(raw, api, **options)]


# --- correct streams, written by hand ---


def chunk(delta: dict[str, Any], finish: str | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {
        "id": "chatcmpl-7",
        "object": "chat.completion.chunk",
        "created": 7,
        "model": "m",
        "choices": [choice],
        **more,
    }


def opener(index: int, name: str = "f", arguments: str = "") -> dict[str, Any]:
    return {
        "index": index,
        "id": f"call_{index}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def fragment(index: int, arguments: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}


ROLE: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None}
CUSTOM = {"index": 0, "id": "call_0", "type": "custom", "custom": {"name": "patch", "input": ""}}
ERROR = {
    "error": {"message": "the backend died", "type": "server_error", "param": None, "code": "backend_error"}
}
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
USAGE_CHUNK = {**chunk({}), "choices": [], "usage": USAGE}

GOOD_CHAT: dict[str, Frames] = {
    "an empty answer": [chunk(ROLE), chunk({}, "stop"), DONE],
    "two choices interleaved": [
        *(
            chunk(ROLE),
            chunk(ROLE, index=1),
            chunk({"content": "a"}, index=1),
            chunk({"content": "b"}),
            chunk({}, "stop"),
        ),
        *(
            chunk({"tool_calls": [opener(0)]}, index=1),
            chunk(fragment(0, "{}"), index=1),
            chunk({}, "tool_calls", index=1),
            DONE,
        ),
    ],
    "reasoning, then text": [
        chunk(ROLE),
        chunk({"reasoning_content": "hm"}),
        chunk({"content": "yes"}),
        chunk({}, "stop"),
        DONE,
    ],
    "text, a call, text": [
        *(chunk(ROLE), chunk({"content": "a"}), chunk({"tool_calls": [opener(0)]}), chunk(fragment(0, "{}"))),
        *(chunk({"content": "b"}), chunk({}, "tool_calls"), DONE),
    ],
    "two whole calls in one chunk": [
        chunk({**ROLE, "tool_calls": [opener(0, "f", "{}"), opener(1, "g", "[]")]}),
        chunk({}, "tool_calls"),
        DONE,
    ],
    "nested arguments that look repeated": [
        *(
            chunk({**ROLE, "tool_calls": [opener(0)]}),
            chunk(fragment(0, '{"a":')),
            chunk(fragment(0, '{"a":1}}')),
        ),
        *(chunk({}, "tool_calls"), DONE),
    ],
    "nested arguments that look repeated, cut": [
        *(
            chunk({**ROLE, "tool_calls": [opener(0)]}),
            chunk(fragment(0, '{"a":')),
            chunk(fragment(0, '{"a":1')),
            chunk({}, "length"),
            DONE,
        )
    ],
    "a call cut before its arguments": [
        chunk({**ROLE, "tool_calls": [opener(0)]}),
        chunk({}, "length"),
        DONE,
    ],
    "a custom tool's call": [
        *(
            chunk({**ROLE, "tool_calls": [CUSTOM]}),
            chunk({"tool_calls": [{"index": 0, "custom": {"input": "*** Begin"}}]}),
        ),
        *(chunk({}, "tool_calls"), DONE),
    ],
    "obfuscation, as OpenAI sends it": [
        chunk(ROLE, obfuscation="x9"),
        chunk({"content": "a"}, obfuscation="y"),
        chunk({}, "stop"),
        DONE,
    ],
    "an error before anything else": [ERROR],
    "an error within a call": [chunk({**ROLE, "tool_calls": [opener(0)]}), chunk(fragment(0, '{"a')), ERROR],
    "usage without details": [
        *(
            chunk(ROLE, usage=None),
            chunk({"content": "a"}, usage=None),
            chunk({}, "stop", usage=None),
            USAGE_CHUNK,
            DONE,
        )
    ],
}

RESPONSE: dict[str, Any] = parse(GOLDEN["resp_text"])[0]["response"]


def lifecycle(kind: str, output: list[Any], **more: Any) -> dict[str, Any]:
    return {
        "type": f"response.{kind}",
        "sequence_number": 0,
        "response": {**RESPONSE, "output": output, **more},
    }


def event(kind: str, index: int, **more: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", "sequence_number": 0, "output_index": index, **more}


def message(index: int, *texts: str) -> tuple[Frames, dict[str, Any]]:
    """A message in which every text is its own part, and the final item."""
    item = {
        "id": f"msg_{index}",
        "type": "message",
        "status": "in_progress",
        "role": "assistant",
        "content": [],
    }
    frames: Frames = [event("output_item.added", index, item=item)]
    parts = []
    for number, text in enumerate(texts):
        place = {"item_id": item["id"], "content_index": number}
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        frames += [
            event("content_part.added", index, **place, part={**part, "text": ""}),
            *(event("output_text.delta", index, **place, delta=letter, logprobs=[]) for letter in text),
            event("output_text.done", index, **place, text=text, logprobs=[]),
            event("content_part.done", index, **place, part=part),
        ]
        parts.append(part)
    done = {**item, "status": "completed", "content": parts}
    return [*frames, event("output_item.done", index, item=done)], done


def call(index: int, arguments: str = "{}") -> tuple[Frames, dict[str, Any]]:
    item = {
        "id": f"fc_{index}",
        "type": "function_call",
        "call_id": f"call_{index}",
        "name": "f",
        "status": "in_progress",
        "arguments": "",
    }
    done = {**item, "status": "completed", "arguments": arguments}
    return [
        event("output_item.added", index, item=item),
        *(
            event("function_call_arguments.delta", index, item_id=item["id"], delta=letter)
            for letter in arguments
        ),
        event("function_call_arguments.done", index, item_id=item["id"], name="f", arguments=arguments),
        event("output_item.done", index, item=done),
    ], done


def thoughts(index: int, text: str, *, framed: bool) -> tuple[Frames, dict[str, Any]]:
    """An open model's raw reasoning, with or without the events of its part."""
    item = {"id": f"rs_{index}", "type": "reasoning", "summary": []}
    place = {"item_id": item["id"], "content_index": 0}
    part = {"type": "reasoning_text", "text": text}
    done = {**item, "content": [part]}
    return [
        event("output_item.added", index, item=item),
        *([event("content_part.added", index, **place, part={**part, "text": ""})] if framed else []),
        event("reasoning_text.delta", index, **place, delta=text),
        event("reasoning_text.done", index, **place, text=text),
        *([event("content_part.done", index, **place, part=part)] if framed else []),
        event("output_item.done", index, item=done),
    ], done


def respond(*items: tuple[Frames, dict[str, Any]]) -> Frames:
    body = [frame for frames, _ in items for frame in frames]
    end = lifecycle("completed", [item for _, item in items], status="completed", completed_at=9)
    return renumbered([lifecycle("created", []), lifecycle("in_progress", []), *body, end])


FAILED = lifecycle("failed", [], status="failed", error={"code": "server_error", "message": "died"})
ERROR_EVENT = {"type": "error", "sequence_number": 0, "code": None, "message": "died", "param": None}

GOOD_RESPONSES: dict[str, Frames] = {
    "nothing to say": respond(),
    "text, a call, text": respond(message(0, "ab"), call(1), message(2, "c")),
    "two parts in one message": respond(message(0, "ab", "cd")),
    "an empty text": respond(message(0, "")),
    "raw thoughts, then text": respond(thoughts(0, "hm", framed=False), message(1, "yes")),
    "raw thoughts in a part, then a call": respond(thoughts(0, "hm", framed=True), call(1, '{"a":1}')),
    "failed at once": renumbered([lifecycle("created", []), lifecycle("in_progress", []), FAILED]),
    "an error event, then failed": renumbered(
        [lifecycle("created", []), lifecycle("in_progress", []), ERROR_EVENT, FAILED]
    ),
}


@pytest.mark.parametrize("golden", GOLDEN)
def test_every_judge_accepts_the_golden_streams(judge: Judge, golden: str) -> None:
    judge.stream(GOLDEN[golden], api_of(golden), fold(GOLDEN[golden]), **options_of(golden))


@pytest.mark.parametrize("golden", WHOLE)
def test_every_judge_accepts_the_bodies_that_golden_streams_fold_into(judge: Judge, golden: str) -> None:
    judge.body(fold(GOLDEN[golden]), api_of(golden), **options_of(golden))


@pytest.mark.parametrize("variant", GOOD_CHAT)
def test_every_judge_accepts_good_chat_streams(judge: Judge, variant: str) -> None:
    judge.stream(render(GOOD_CHAT[variant]), "chat", include_usage="usage" in variant)


@pytest.mark.parametrize("variant", GOOD_RESPONSES)
def test_every_judge_accepts_good_responses_streams(judge: Judge, variant: str) -> None:
    judge.stream(render(GOOD_RESPONSES[variant]), "responses")


@pytest.mark.parametrize("golden", GOLDEN)
def test_comments_between_events_and_other_line_ends_do_no_harm(judge: Judge, golden: str) -> None:
    raw = b": keepalive\n\n" + GOLDEN[golden].replace(b"\n\n", b"\n\n: keepalive\n\n")
    judge.stream(raw, api_of(golden), **options_of(golden))
    judge.stream(raw.replace(b"\n", b"\r\n"), api_of(golden), **options_of(golden))


def test_done_ends_a_responses_stream_only_where_the_profile_allows_it(judge: Judge) -> None:
    raw = GOLDEN["resp_text"] + b"data: [DONE]\n\n"
    judge.stream(raw, "responses", allow_done_on_responses=True)
    assert codes(raw, "responses") == ["done_marker"]
    assert codes(raw + b"data: [DONE]\n\n", "responses", allow_done_on_responses=True) == ["done_marker"]


@pytest.mark.parametrize(
    "golden", ["chat_two_tools", "chat_legacy_function", "resp_two_tools", "resp_custom_tool"]
)
def test_only_declared_tools_may_be_called(golden: str) -> None:
    options = options_of(golden)
    assert codes(GOLDEN[golden], api_of(golden), **{**options, "tools": ["f", "g", "apply_patch"]}) == []
    assert "undeclared_tool" in codes(GOLDEN[golden], api_of(golden), **{**options, "tools": ["h"]})


# --- problems, by code ---


@pytest.mark.parametrize(
    ("code", "frames"),
    {
        "role_missing": [chunk({"content": "a"}), chunk({}, "stop"), DONE],
        "role_repeated": [chunk(ROLE), chunk(ROLE), chunk({}, "stop"), DONE],
        "untruthful_finish": [chunk(ROLE), chunk({}, "tool_calls"), DONE],
        "after_finish": [chunk(ROLE), chunk({}, "stop"), chunk({"content": "a"}), DONE],
        "finish_missing": [chunk(ROLE), DONE],
        "done_missing": [chunk(ROLE), chunk({}, "stop")],
        "after_done": [chunk(ROLE), chunk({}, "stop"), DONE, DONE],
        "usage_unasked": [chunk(ROLE), chunk({}, "stop"), USAGE_CHUNK, DONE],
        "call_index": [chunk({**ROLE, "tool_calls": [opener(1)]}), chunk({}, "stop"), DONE],
        "empty_arguments": [chunk({**ROLE, "tool_calls": [opener(0)]}), chunk({}, "tool_calls"), DONE],
        "invalid_arguments": [
            chunk({**ROLE, "tool_calls": [opener(0, "f", "{a}")]}),
            chunk({}, "tool_calls"),
            DONE,
        ],
        "cumulative_arguments": [
            *(
                chunk({**ROLE, "tool_calls": [opener(0)]}),
                chunk(fragment(0, '{"a"')),
                chunk(fragment(0, '{"a":1}')),
            ),
            *(chunk({}, "tool_calls"), DONE),
        ],
        "call_reopened": [
            *(
                chunk({**ROLE, "tool_calls": [opener(0, "f", "{}")]}),
                chunk({"content": "a"}),
                chunk(fragment(0, " ")),
            ),
            *(chunk({}, "tool_calls"), DONE),
        ],
        "envelope_changed": [chunk(ROLE), {**chunk({}, "stop"), "id": "chatcmpl-8"}, DONE],
        "error_after_finish": [chunk(ROLE), chunk({}, "stop"), ERROR],
        "wrong_dialect": [
            chunk({**ROLE, "function_call": {"name": "f", "arguments": "{}"}}),
            chunk({}, "stop"),
            DONE,
        ],
        "unknown_key": [chunk({**ROLE, "text": "a"}), chunk({}, "stop"), DONE],
    }.items(),
)
def test_each_chat_problem_has_its_own_code(code: str, frames: Frames) -> None:
    assert codes(render(frames), "chat") == [code]


def test_a_problem_names_the_frame_where_it_was_seen() -> None:
    frames = [chunk(ROLE), chunk({"content": "a"}), chunk(ROLE), chunk({}, "stop"), DONE]
    (problem,) = judge_sse(render(frames), "chat")
    assert problem.position == 2
    assert str(problem).startswith("[role_repeated] frame 2:")


@pytest.mark.parametrize("extra", [b"retry: 3000\n\n", b"id: 1\n\n", b"\xef\xbb\xbf"])
def test_event_stream_syntax_that_openai_does_not_use_is_reported_unless_accepted(extra: bytes) -> None:
    raw = extra + render(GOOD_CHAT["an empty answer"])
    assert codes(raw, "chat") == ["sse_syntax"]
    assert codes(raw, "chat", whole_standard=True) == []
    assert fold(raw, "chat")["choices"] != []


def test_stop_with_calls_is_a_problem_unless_it_is_allowed() -> None:
    frames = [chunk(ROLE), chunk({"tool_calls": [opener(0, arguments="{}")]}), chunk({}, "stop"), DONE]
    assert codes(render(frames), "chat") == ["untruthful_finish"]
    assert codes(render(frames), "chat", may_stop=True) == []
    body = {**fold(render(frames)), "object": "chat.completion"}
    assert [problem.code for problem in judge_body(body, "chat")] == ["untruthful_finish"]
    assert judge_body(body, "chat", may_stop=True) == []


def test_an_unreadable_frame_is_reported_and_the_next_one_judged() -> None:
    deep = b"data: " + b'{"a":' * 200_000 + b"1" + b"}" * 200_000 + b"\n\n"
    raw = deep + render(GOOD_CHAT["an empty answer"])
    assert codes(raw, "chat") == ["not_json"]
    assert fold(raw, "chat")["choices"][0]["finish_reason"] == "stop"


def test_an_index_below_zero_is_out_of_order() -> None:
    frames = [chunk(ROLE), chunk({"tool_calls": [opener(-1)]}), chunk({}, "stop"), DONE]
    assert codes(render(frames), "chat") == ["call_index"]


@pytest.mark.parametrize(
    "frame",
    [
        {"type": "error", "message": "it broke", "code": None, "param": None},
        {"type": "error", "error": {"message": "it broke"}},
    ],
)
def test_the_fold_of_a_responses_stream_holds_the_error_that_ended_it(frame: dict[str, Any]) -> None:
    folded = fold(render([frame]), "responses")
    assert folded["error"]["message"] == "it broke" and folded["output"] == []


def test_an_error_that_is_null_ends_no_stream() -> None:
    frames = [
        {**frame, "error": None} if isinstance(frame, dict) else frame
        for frame in GOOD_CHAT["an empty answer"]
    ]
    assert set(codes(render(frames), "chat")) == {"unknown_key"}
    assert "error" not in fold(render(frames), "chat")


def test_frames_are_judged_one_by_one_as_objects_or_text() -> None:
    judge = OrderJudge("chat")
    assert judge.feed(chunk(ROLE)) == []
    assert [problem.code for problem in judge.feed(json.dumps(chunk(ROLE)))] == ["role_repeated"]
    assert [problem.code for problem in judge.feed("{")] == ["not_json"]
    assert [problem.code for problem in judge.feed(chunk({}, "stop"), event="message")] == ["event_name"]
    assert judge.feed(DONE) == []
    assert judge.finish() == []


# --- log probabilities ---

BRIEF: dict[str, Any] = {"token": "a", "logprob": -0.5, "top_logprobs": [{"token": "b", "logprob": -1}]}
TOKEN: dict[str, Any] = {
    **BRIEF,
    "bytes": [97],
    "top_logprobs": [{"token": "b", "logprob": -1, "bytes": None}],
}
WRONG_TOKENS: dict[str, Any] = {
    "no list": {},
    "no object": ["a"],
    "no token": [{**TOKEN, "token": None}],
    "no number": [{**TOKEN, "logprob": "-1"}],
    "a wrong alternative": [{**TOKEN, "top_logprobs": [{"token": "b"}]}],
    "an unknown key": [{**TOKEN, "id": 3}],
}


def chat_with_logprobs(logprobs: Any) -> bytes:
    text = chunk({"content": "a"})
    text["choices"][0]["logprobs"] = logprobs
    return render([chunk(ROLE), text, chunk({}, "stop"), DONE])


def response_with_logprobs(delta: Any, done: Any, part: Any) -> bytes:
    frames = json.loads(json.dumps(respond(message(0, "a"))))
    for frame in frames:
        if frame["type"].startswith("response.output_text."):
            frame["logprobs"] = delta if frame["type"].endswith("delta") else done
        if frame["type"] == "response.content_part.done":
            frame["part"]["logprobs"] = part
        for item in [frame.get("item", {}), *frame.get("response", {}).get("output", ())]:
            for one in item.get("content", ()):
                one["logprobs"] = part
    return render(frames)


def test_every_judge_accepts_log_probabilities(judge: Judge) -> None:
    for logprobs in ({"content": [TOKEN], "refusal": None}, {"content": None, "refusal": [TOKEN]}):
        raw = chat_with_logprobs(logprobs)
        body = fold(raw, "chat")
        assert body["choices"][0]["logprobs"] == logprobs
        judge.stream(raw, "chat", body)
        judge.body(body, "chat")
    exact = {**TOKEN, "top_logprobs": [{"token": "b", "logprob": -1, "bytes": [98]}]}
    raw = response_with_logprobs([BRIEF], [BRIEF], [exact])
    judge.stream(raw, "responses")
    judge.body(fold(raw, "responses"), "responses")


@pytest.mark.parametrize("wrong", WRONG_TOKENS)
def test_wrong_log_probabilities_are_a_problem(wrong: str) -> None:
    tokens = WRONG_TOKENS[wrong]
    raw = chat_with_logprobs({"content": tokens, "refusal": None})
    assert codes(raw, "chat") == ["wrong_value"]
    assert "wrong_value" in [problem.code for problem in judge_body(fold(raw, "chat"), "chat")] or wrong in (
        "no list",
        "no object",
    )
    assert "wrong_value" in codes(response_with_logprobs([BRIEF], [BRIEF], tokens), "responses")
    assert "wrong_value" in codes(response_with_logprobs(tokens, tokens, [TOKEN]), "responses")


def test_the_end_of_a_text_repeats_the_tokens_of_its_deltas() -> None:
    other = {**BRIEF, "token": "x"}
    assert codes(response_with_logprobs([BRIEF], [other], [TOKEN]), "responses") == ["text_differs"]
    assert codes(response_with_logprobs([BRIEF], [BRIEF], []), "responses") == ["text_differs"]


# --- bodies and errors ---


@pytest.mark.parametrize(
    ("golden", "path", "value"),
    [
        ("chat_text", "finish_reason", "tool_calls"),
        ("chat_text", "logprobs", "none"),
        ("chat_text", "index", 1),
        ("chat_text", "message", {"role": "assistant", "content": None, "refusal": None}),
        ("chat_text", "message", {"role": "assistant", "content": "a"}),
        ("chat_one_tool", "finish_reason", "stop"),
        (
            "chat_one_tool",
            "message",
            {"role": "assistant", "content": None, "refusal": None, "tool_calls": [opener(0, "f", "{}")]},
        ),
        (
            "chat_one_tool",
            "message",
            {"role": "assistant", "content": None, "refusal": None, "tool_calls": []},
        ),
        ("chat_legacy_function", "finish_reason", "tool_calls"),
    ],
)
def test_a_damaged_completion_is_rejected(judge: Judge, golden: str, path: str, value: Any) -> None:
    body = fold(GOLDEN[golden])
    body["choices"][0][path] = value
    assert judge_body(body, "chat", **options_of(golden)) != []
    assert judge.body_problems(body, "chat", **options_of(golden)) != []


@pytest.mark.parametrize(
    ("golden", "change"),
    [
        ("resp_text", {"status": "in_progress"}),
        ("resp_text", {"status": "incomplete"}),
        ("resp_text", {"error": {"code": "server_error", "message": "x"}}),
        ("resp_text", {"usage": {"input_tokens": 1}}),
        ("resp_text", {"output": [{}]}),
        ("resp_text", {"choices": []}),
        ("resp_failed", {"error": None}),
        ("resp_length", {"incomplete_details": None}),
        ("resp_tool_length", {"status": "completed", "incomplete_details": None}),
    ],
)
def test_a_damaged_response_is_rejected(golden: str, change: dict[str, Any]) -> None:
    assert judge_body({**fold(GOLDEN[golden]), **change}, "responses") != []


def test_call_ids_of_one_answer_differ() -> None:
    body = fold(GOLDEN["chat_two_tools"])
    body["choices"][0]["message"]["tool_calls"][1]["id"] = "call_a"
    assert [problem.code for problem in judge_body(body, "chat")] == ["call_id_repeated"]


@pytest.mark.parametrize("status", [400, 401, 404, 409, 429, 500, 503])
def test_every_judge_accepts_an_error_object(judge: Judge, status: int) -> None:
    judge.error(status, ERROR)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, ERROR),
        (400, {"detail": "no"}),
        (400, {"error": "no"}),
        (400, {"error": {"message": "no", "type": "x", "param": None}}),
        (400, {"error": {**ERROR["error"], "message": ""}}),
        (400, {"error": {**ERROR["error"], "status": 400}}),
    ],
)
def test_other_error_bodies_are_rejected(judge: Judge, status: int, body: dict[str, Any]) -> None:
    assert judge_error(status, body) != []
    with pytest.raises(AssertionError, match="problems on the wire"):
        judge.error(status, body)


# --- stream = body ---


@pytest.mark.parametrize("golden", WHOLE)
def test_ids_and_times_may_differ_between_stream_and_body(golden: str) -> None:
    text = json.dumps(fold(GOLDEN[golden]))
    for old, new in (
        ("chatcmpl-1", "chatcmpl-2"),
        ("resp_1", "resp_2"),
        ("call_a", "call_z"),
        ("msg_0", "msg_9"),
        ('"created": 1', '"created": 5'),
    ):
        text = text.replace(old, new)
    assert same(GOLDEN[golden], json.loads(text)) == []


def test_a_stream_with_less_content_than_the_body_is_reported() -> None:
    frames = parse(GOLDEN["chat_text"])
    (problem,) = same(render([*frames[:1], *frames[2:]]), fold(GOLDEN["chat_text"]))
    assert problem.code == "stream_differs"
    assert "choices[0].message.content" in problem.message


def test_a_failed_stream_matches_the_http_error_of_the_same_failure() -> None:
    body = {"error": {"message": "backend died", "type": "server_error", "param": None, "code": None}}
    assert same(GOLDEN["chat_error"], body, "chat") == []
    assert same(GOLDEN["resp_failed"], body, "responses") == []
    assert same(GOLDEN["chat_error"], {"error": {"message": "other"}}, "chat") != []


# --- single judges ---


def test_the_sdk_types_take_null_where_openai_sends_it() -> None:
    assert SdkJudge().stream([chunk(ROLE, usage=None)], "chat") == []
    assert SdkJudge().stream([chunk({}, None)], "chat") == []
    assert SdkJudge().stream([chunk(ROLE, usage="none")], "chat") != []


def test_the_sdk_types_demand_the_index_of_a_call() -> None:
    without_index = {key: value for key, value in opener(0).items() if key != "index"}
    assert [
        problem.code for problem in SdkJudge().stream([chunk({"tool_calls": [without_index]})], "chat")
    ] == ["sdk"]


def test_the_sdk_types_find_arguments_beside_function() -> None:
    (problem,) = SdkJudge().stream([chunk({"tool_calls": [{**opener(0), "arguments": "{}"}]})], "chat")
    assert "tool_calls[0].arguments" in problem.message


def test_the_sdk_types_know_reasoning_content_and_no_other_extension() -> None:
    assert SdkJudge().stream([chunk({"reasoning_content": "hm"})], "chat") == []
    assert SdkJudge().stream([chunk({"reasoning": "hm"})], "chat") != []


def test_the_replay_holds_what_the_fold_holds() -> None:
    final = ReplayJudge().final(GOLDEN["chat_two_tools"], "chat")
    held = [entry["function"] for entry in final["choices"][0]["message"]["tool_calls"]]
    assert held == [
        entry["function"] for entry in fold(GOLDEN["chat_two_tools"])["choices"][0]["message"]["tool_calls"]
    ]


def test_the_replay_reports_what_the_sdk_raises() -> None:
    unfinished = [
        frame for frame in parse(GOLDEN["resp_one_tool"]) if frame["type"] != "response.output_item.done"
    ]
    unfinished[-1]["response"]["output"] = []
    (problem,) = ReplayJudge().stream(render(unfinished), "responses")
    assert "unfinished output items" in problem.message


# --- robustness ---

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2),
    max_leaves=4,
)
KEYS = sorted(
    {key for shape in EVENTS.values() for key in shape.required}
    | {"choices", "error", "usage", "object", "created", "model", "id"}
)
ENTRIES = st.dictionaries(st.sampled_from(KEYS), JSON, max_size=8)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_no_frames_however_damaged_make_the_judge_or_the_fold_raise(data: st.DataObject) -> None:
    golden = data.draw(st.sampled_from(sorted(GOLDEN)))
    frames = parse(GOLDEN[golden])
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(frames) - 1))
        target = frames[position]
        holders = [holder for holder in walk(target) if isinstance(holder, dict) and holder]
        inside = data.draw(st.booleans())
        if holders and inside:
            holder = data.draw(st.sampled_from(holders))
            holder[data.draw(st.sampled_from(sorted(holder)))] = data.draw(JSON | ENTRIES)
        else:
            frames[position] = data.draw(ENTRIES)
    raw = render(frames)
    judge_sse(raw, api_of(golden), **options_of(golden))
    same(raw, fold(GOLDEN[golden]), api_of(golden))
    judge_body(fold(raw), api_of(golden), **options_of(golden))


def walk(value: Any) -> list[Any]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [value, *(found for entry in inner for found in walk(entry))]


@given(st.binary(max_size=60))
def test_no_bytes_make_the_judge_raise(raw: bytes) -> None:
    assert judge_sse(raw, "chat") != []
    assert judge_sse(raw, "responses") != []


def test_the_judge_needs_the_standard_library_only() -> None:
    script = (
        "import sys, toolwire.conform.judge; print([name for name in ('openai', 'pydantic', "
        "'jsonschema_rs', 'msgspec') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

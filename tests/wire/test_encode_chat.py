"""The chat encoder reproduces the golden streams, and handles the cases that they do not show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from toolwire.core.errors import ToolwireError
from toolwire.core.events import (
    CallArgs,
    CallBegin,
    CallEnd,
    Event,
    Failure,
    Finish,
    Refusal,
    Text,
    Thought,
    Usage,
)
from toolwire.core.ids import counting_ids
from toolwire.wire.chat.encode import ChatBody, ChatEncoder
from toolwire.wire.sse import EMPTY_LINE, SseReader

GOLDEN = Path(__file__).parents[1] / "conform" / "golden"


def encoder(**options: Any) -> ChatEncoder:
    return ChatEncoder("m", id="chatcmpl-1", created=1, ids=counting_ids(), **options)


def body(*events: Event, **options: Any) -> dict[str, Any]:
    fold = ChatBody("m", id="chatcmpl-1", created=1, ids=counting_ids(), **options)
    fold.feed(events)
    return fold.body()


def frames(stream: bytes) -> list[Any]:
    """The stream's data, parsed, except `[DONE]`."""
    reader = SseReader()
    return [
        data if data == b"[DONE]" else json.loads(data)
        for data in reader.feed(stream) + reader.feed(EMPTY_LINE)
        if isinstance(data, bytes)
    ]


def stream(*events: Event, **options: Any) -> list[Any]:
    chat = encoder(**options)
    return frames(chat.feed(events) + chat.finish())


def deltas(chunks: list[Any]) -> list[Any]:
    return [chunk["choices"][0]["delta"] for chunk in chunks if chunk != b"[DONE]" and chunk.get("choices")]


USAGE = Usage(9, 5)
ONE_CALL: list[Event] = [
    CallBegin(0, "f", "call_a"),
    CallArgs(0, '{"x"'),
    CallArgs(0, ":1}"),
    CallEnd(0),
    Finish(),
]
GOLDENS: dict[str, tuple[list[Event], dict[str, Any]]] = {
    "chat_text": ([Text("Hel"), Text("lo"), USAGE, Finish()], {}),
    "chat_text_usage": ([Text("Hi"), USAGE, Finish()], {"include_usage": True}),
    "chat_one_tool": (ONE_CALL, {}),
    "chat_two_tools": (
        [
            CallBegin(0, "f", "call_a"),
            CallArgs(0, '{"x":1}'),
            CallEnd(0),
            CallBegin(1, "g", "call_b"),
            CallArgs(1, '{"y":2}'),
            CallEnd(1),
            Finish(),
        ],
        {},
    ),
    "chat_text_then_tool": ([Text("Let me look."), CallBegin(0, "f", "call_a"), CallEnd(0), Finish()], {}),
    "chat_legacy_function": ([CallBegin(0, "f", "call_a"), CallEnd(0), Finish()], {"legacy": True}),
    "chat_refusal": ([Refusal("I can't "), Refusal("help."), Finish()], {}),
    "chat_length": ([Text("trunc"), Finish("length")], {}),
    "chat_tool_length": (
        [CallBegin(0, "f", "call_a"), CallArgs(0, '{"x":"tru'), CallEnd(0, "truncated"), Finish("length")],
        {},
    ),
    "chat_content_filter": ([Finish("content_filter")], {}),
    "chat_json_schema": ([Text('{"a":'), Text("1}"), Finish()], {}),
    "chat_error": ([Text("par"), Failure("server", "backend died")], {}),
}


def test_every_golden_stream_of_this_api_is_covered() -> None:
    assert {path.stem for path in GOLDEN.glob("chat_*.sse")} == set(GOLDENS)


@pytest.mark.parametrize("name", GOLDENS)
def test_golden_stream_is_reproduced_field_by_field(name: str) -> None:
    events, options = GOLDENS[name]
    expected = frames((GOLDEN / f"{name}.sse").read_bytes())
    sent = stream(*events, **options)
    assert sent == expected
    assert [list(frame) for frame in sent if isinstance(frame, dict)] == [
        list(frame) for frame in expected if isinstance(frame, dict)
    ]


@pytest.mark.parametrize("name", [name for name in GOLDENS if name != "chat_error"])
def test_golden_bodies_and_chunks_validate_as_the_sdks_types(name: str) -> None:
    events, options = GOLDENS[name]
    for chunk in stream(*events, **options)[:-1]:
        ChatCompletionChunk.model_validate(chunk)
    options = {"legacy": options.get("legacy", False)}
    ChatCompletion.model_validate(body(*events, **options))


def test_events_in_many_batches_give_the_same_bytes_as_in_one() -> None:
    one, many = encoder(), encoder()
    assert (
        b"".join([many.feed([event]) for event in ONE_CALL]) + many.finish()
        == one.feed(ONE_CALL) + one.finish()
    )


def test_a_batch_that_has_nothing_to_say_sends_nothing() -> None:
    assert encoder().feed([Text(""), Usage(1, 1)]) == b""


def test_the_comment_is_a_separate_block_before_usage_and_the_end() -> None:
    chat = encoder(include_usage=True)
    chat.feed([Text("a"), USAGE, Finish()])
    comment, usage, done, rest = chat.finish('{"n":\n1}').split(b"\n\n")
    assert (comment, done, rest) == (b': {"n": 1}', b"data: [DONE]", b"")
    assert json.loads(usage.removeprefix(b"data: "))["usage"]["total_tokens"] == 14


def test_a_failed_stream_ends_with_comment_and_error_and_without_done() -> None:
    chat = encoder(include_usage=True)
    chat.feed([Text("a"), Failure("timeout", "too slow")])
    comment, error, rest = chat.finish("c").split(b"\n\n")
    assert comment == b": c" and rest == b""
    assert json.loads(error.removeprefix(b"data: "))["error"] == {
        "message": "too slow",
        "type": "server_error",
        "param": None,
        "code": "timeout",
    }


def test_a_run_that_breaks_off_is_an_error_and_never_a_silent_end() -> None:
    *_, last = stream(Text("a"))
    assert last["error"]["code"] == "stream_interrupted"


def test_thoughts_are_reasoning_content_after_the_role() -> None:
    sent = deltas(stream(Thought("hm"), Thought("m", summary=True), Text("a"), Finish()))
    assert sent == [
        {"role": "assistant", "content": "", "refusal": None},
        {"reasoning_content": "hm"},
        {"reasoning_content": "m"},
        {"content": "a"},
        {},
    ]
    message = body(Thought("hm"), Thought("m", summary=True), Text("a"), Finish())["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hmm", "a")


def test_a_call_after_thoughts_opens_without_a_second_role() -> None:
    roles = [delta for delta in deltas(stream(Thought("hm"), *ONE_CALL)) if "role" in delta]
    assert roles == [{"role": "assistant", "content": "", "refusal": None}]


def test_a_custom_call_has_its_own_form_in_a_stream_and_in_a_body() -> None:
    """OpenAI streams it too, although the SDK's delta type lists `function` alone; its accumulator takes
    both.
    """
    events: list[Event] = [
        CallBegin(0, "patch", "call_a", "custom"),
        CallArgs(0, "*** Be"),
        CallArgs(0, "gin"),
        CallEnd(0),
        Finish(),
    ]
    sent = stream(*events)
    opener, first, second, _ = deltas(sent)
    assert opener["tool_calls"] == [
        {"index": 0, "id": "call_a", "type": "custom", "custom": {"name": "patch", "input": ""}}
    ]
    assert first == {"tool_calls": [{"index": 0, "custom": {"input": "*** Be"}}]}
    assert second == {"tool_calls": [{"index": 0, "custom": {"input": "gin"}}]}
    state = ChatCompletionStreamState()
    for chunk in sent[:-1]:
        state.handle_chunk(ChatCompletionChunk.construct(**chunk))
    [gathered] = state.current_completion_snapshot.choices[0].message.tool_calls or []
    assert (gathered.id, gathered.type) == ("call_a", "custom")
    assert gathered.to_dict()["custom"] == {"name": "patch", "input": "*** Begin"}
    completion = body(*events)
    ChatCompletion.model_validate(completion)
    assert completion["choices"][0]["message"]["tool_calls"] == [
        {"id": "call_a", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
    ]


def test_a_body_has_openais_shape() -> None:
    assert body(Text("Hel"), Text("lo"), USAGE, Finish()) == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": None, "annotations": []},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 9,
            "completion_tokens": 5,
            "total_tokens": 14,
            "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": 0,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        },
        "service_tier": "default",
    }


def test_a_body_with_a_call_alone_has_no_content_and_without_counts_no_usage() -> None:
    completion = body(*ONE_CALL)
    [choice] = completion["choices"]
    assert choice["message"]["content"] is None and choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"] == [
        {"id": "call_a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
    ]
    assert "usage" not in completion


def test_content_is_null_only_beside_a_call_or_a_refusal() -> None:
    def content(*events: Event) -> Any:
        return body(*events, Finish())["choices"][0]["message"]["content"]

    assert content() == "" and content(Thought("t")) == ""
    assert content(Refusal("no")) is None and content(CallBegin(0, "f")) is None


def test_a_legacy_body_has_one_function_call() -> None:
    [choice] = body(CallBegin(0, "f"), CallEnd(0), CallBegin(1, "g"), CallEnd(1), Finish(), legacy=True)[
        "choices"
    ]
    assert choice["message"]["function_call"] == {"name": "f", "arguments": "{}"}
    assert choice["finish_reason"] == "function_call" and "tool_calls" not in choice["message"]


def test_a_failed_run_has_no_body() -> None:
    with pytest.raises(ToolwireError) as caught:
        body(Text("a"), Failure("rate_limit", "slow down", retry_after_s=3))
    assert caught.value.failure == Failure("rate_limit", "slow down", retry_after_s=3)
    with pytest.raises(ToolwireError) as caught:
        body(Text("a"))
    assert caught.value.failure.kind == "backend_cut"


def test_several_choices_have_their_own_role_text_and_end() -> None:
    chat = encoder(choices=2, include_usage=True)
    written = (
        chat.feed([Text("a")], 0)
        + chat.feed([*ONE_CALL[:-1], Usage(9, 2), Finish()], 1)
        + chat.feed([Usage(9, 3), Finish()], 0)
    )
    sent = frames(written + chat.finish())
    by_choice: dict[int, list[Any]] = {0: [], 1: []}
    for chunk in sent[:-2]:
        [choice] = chunk["choices"]
        by_choice[choice["index"]].append(choice)
    for choices in by_choice.values():
        assert choices[0]["delta"]["role"] == "assistant"
        assert sum("role" in choice["delta"] for choice in choices) == 1
    assert [choices[-1]["finish_reason"] for choices in by_choice.values()] == ["stop", "tool_calls"]
    assert sent[-2]["usage"]["prompt_tokens"] == 9 and sent[-2]["usage"]["completion_tokens"] == 5


def test_a_failure_of_one_choice_ends_them_all() -> None:
    chat = encoder(choices=2)
    chat.feed([Text("a")], 0)
    chat.feed([Failure("backend", "x")], 1)
    assert chat.feed([Text("more"), Finish()], 0) == b""
    assert [list(frame) for frame in frames(chat.finish())] == [["error"]]
    assert chat.dropped == {"late": 5}


def test_a_choice_that_breaks_off_fails_the_answer() -> None:
    chat = encoder(choices=2)
    chat.feed([Finish()], 0)
    assert [list(frame) for frame in frames(chat.finish())] == [["error"]]


def test_lone_surrogates_become_replacement_characters_everywhere() -> None:
    events: list[Event] = [
        Text("a\ud800"),
        CallBegin(0, "f\ud800", "c\ud800"),
        CallArgs(0, "\udfff"),
        CallEnd(0),
        Finish(),
    ]
    chat = ChatEncoder("m\ud800", id="i", created=1, ids=counting_ids())
    sent = frames(chat.feed(events) + chat.finish())
    assert sent[0]["model"] == "m\ufffd"
    assert deltas(sent)[1] == {"content": "a\ufffd"}
    assert deltas(sent)[2]["tool_calls"][0]["function"]["name"] == "f\ufffd"
    assert deltas(sent)[3]["tool_calls"][0]["function"]["arguments"] == "\ufffd"
    fold = ChatBody("m", id="i", created=1, ids=counting_ids())
    fold.feed(events)
    assert json.loads(fold.finish())["choices"][0]["message"]["content"] == "a\ufffd"

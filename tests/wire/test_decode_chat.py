"""Chat completions requests in all shapes that clients send are decoded to the same kind of Turn."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from toolwire.core.turn import (
    Call,
    ImagePart,
    Message,
    OtherPart,
    OutputFormat,
    Reasoning,
    Result,
    Sampling,
    TextPart,
    ToolChoice,
    Turn,
)
from toolwire.wire.chat import decode as chat

USER: dict[str, Any] = {"role": "user", "content": "Hi"}
HI = Message("user", (TextPart("Hi"),))
LOOK = {
    "type": "function",
    "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}},
}


def decode(*messages: Any, **fields: Any) -> Turn:
    """Decodes a request and checks that decoding does not change it."""
    request = {"model": "m", "messages": list(messages) or [USER], **fields}
    before = copy.deepcopy(request)
    turn = chat.decode(request)
    assert request == before
    return turn


def call(id: str = "call_1", name: str = "look", arguments: str = "{}") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_plain_request_becomes_a_plain_turn() -> None:
    turn = decode()
    assert turn == Turn(api="chat", model="m", items=(HI,), sent=frozenset({"model", "messages"}))
    assert turn.tool_choice == ToolChoice("none")
    assert not turn.stream and not turn.store


def test_system_developer_and_user_messages_keep_role_order_and_name() -> None:
    turn = decode(
        {"role": "system", "content": "S"},
        {"role": "developer", "content": "D"},
        USER,
        {"role": "user", "content": "B", "name": "Bo"},
    )
    assert turn.items == (
        Message("system", (TextPart("S"),)),
        Message("developer", (TextPart("D"),)),
        HI,
        Message("user", (TextPart("B"),), name="Bo"),
    )


def test_null_means_absent_for_every_field() -> None:
    names = [
        *chat.FIELDS,
        "tools",
        "tool_choice",
        "toolChoice",
        "functions",
        "function_call",
        "response_format",
        "vendor",
    ]
    nulls = {name: None for name in names if name not in ("model", "messages")}
    assert decode(**nulls) == decode()


def test_unknown_fields_pass_and_are_named_as_sent() -> None:
    assert decode(vendor={"x": 1}, top_k=40).sent == {"model", "messages", "vendor", "top_k"}


@pytest.mark.parametrize("empty", [{"content": ""}, {"content": None}, {}, {"content": []}])
def test_empty_assistant_messages_are_kept_without_calls_and_vanish_beside_them(
    empty: dict[str, Any],
) -> None:
    alone = decode(USER, {"role": "assistant", **empty}, USER)
    assert alone.items == (HI, Message("assistant", ()), HI)
    beside = decode(
        USER,
        {"role": "assistant", "tool_calls": [call()], **empty},
        {"role": "tool", "tool_call_id": "call_1", "content": "x"},
    )
    assert beside.items == (HI, Call("call_1", "look", "{}"), Result("call_1", (TextPart("x"),)))


def test_text_next_to_calls_comes_before_them() -> None:
    turn = decode(USER, {"role": "assistant", "content": "Looking.", "tool_calls": [call()]})
    assert turn.items[1:] == (Message("assistant", (TextPart("Looking."),)), Call("call_1", "look", "{}"))


def test_arguments_are_kept_verbatim() -> None:
    odd = '{ "a" :1,}'
    assert decode(USER, {"role": "assistant", "tool_calls": [call(arguments=odd)]}).items[1] == Call(
        "call_1", "look", odd
    )


def test_empty_or_null_tool_calls_are_no_calls() -> None:
    nothing: list[Any] = [[], None]
    for calls in nothing:
        assert decode(USER, {"role": "assistant", "content": "A", "tool_calls": calls}).items[1] == Message(
            "assistant", (TextPart("A"),)
        )


def test_a_tool_message_may_carry_a_name_and_parts() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    turn = decode(
        USER,
        {"role": "assistant", "content": "", "tool_calls": [call()]},
        {"role": "tool", "tool_call_id": "call_1", "name": "look", "content": parts},
    )
    assert turn.items[-1] == Result("call_1", (TextPart("one"), TextPart("two")), name="look")


def test_custom_calls_and_their_results_are_of_kind_custom() -> None:
    custom = {"id": "call_1", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
    turn = decode(
        USER,
        {"role": "assistant", "tool_calls": [custom]},
        {"role": "tool", "tool_call_id": "call_1", "content": "ok"},
    )
    assert turn.items[1:] == (
        Call("call_1", "patch", "*** Begin", "custom"),
        Result("call_1", (TextPart("ok"),), "custom"),
    )


def test_replayed_reasoning_comes_before_what_it_led_to() -> None:
    turn = decode(
        USER, {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [call()]}
    )
    assert turn.items[1:] == (Reasoning(content=("Hm.",)), Call("call_1", "look", "{}"))


def test_a_refusal_is_kept_apart_from_the_text() -> None:
    as_field = decode(USER, {"role": "assistant", "content": None, "refusal": "No."}, USER)
    as_part = decode(USER, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, USER)
    assert as_field.items == as_part.items == (HI, Message("assistant", (), refusal="No."), HI)


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"type": "text", "text": "a"}, TextPart("a")),
        ({"type": "input_text", "text": "a"}, TextPart("a")),
        ({"type": "output_text", "text": "a", "annotations": []}, TextPart("a")),
        (
            {"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "low"}},
            ImagePart("https://x/y.png", "low"),
        ),
        (
            {"type": "image_url", "image_url": "data:image/png;base64,AA=="},
            ImagePart("data:image/png;base64,AA=="),
        ),
        (
            {"type": "input_image", "image_url": "HTTP://x/y.png", "detail": "high"},
            ImagePart("HTTP://x/y.png", "high"),
        ),
        ({"type": "input_image", "file_id": "file_1"}, ImagePart(None, None, "file_1")),
        ({"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}, None),
        ({"type": "file", "file": {"file_id": "file_1"}}, None),
        ({"type": "input_file", "file_id": "file_1"}, None),
        ({"type": "hologram", "beam": 1}, None),
    ],
)
def test_parts_of_every_kind_are_read_or_kept_as_they_came(part: dict[str, Any], expected: Any) -> None:
    turn = decode({"role": "user", "content": [part]})
    assert turn.items == (Message("user", (expected or OtherPart(part["type"], part),)),)


def test_the_fields_that_only_a_backend_honours_stand_in_the_sampling() -> None:
    turn = decode(
        temperature=0,
        top_p=0.5,
        max_tokens=10,
        max_completion_tokens=20,
        stop="END",
        seed=-7,
        presence_penalty=-2,
        frequency_penalty=2,
        logit_bias={"50256": -100},
        reasoning_effort="minimal",
        verbosity="low",
    )
    assert turn.sampling == Sampling(
        0, 0.5, 20, ("END",), -7, -2, 2, {"50256": -100}, effort="minimal", verbosity="low"
    ), "max_completion_tokens wins over max_tokens"
    assert decode(max_tokens=10).sampling.max_tokens == 10
    assert decode(stop=["a", "b"]).sampling.stop == ("a", "b")
    assert decode(stop=[]).sampling.stop == decode(stop="").sampling.stop == ()


def test_the_flags_of_the_request_are_read() -> None:
    turn = decode(
        stream=True, stream_options={"include_usage": True}, n=8, store=True, metadata={"a": "b"}, user="u"
    )
    assert (turn.stream, turn.include_usage, turn.n, turn.store, turn.metadata, turn.user) == (
        True,
        True,
        8,
        True,
        {"a": "b"},
        "u",
    )
    assert not decode(stream=True, stream_options={}).include_usage


def test_fields_that_are_only_passed_on_are_named_as_sent() -> None:
    fields: dict[str, Any] = {
        "logprobs": True,
        "top_logprobs": 3,
        "modalities": ["text"],
        "audio": {"voice": "a", "format": "wav"},
        "prediction": {"type": "content", "content": "x"},
        "web_search_options": {},
        "service_tier": "auto",
    }
    assert fields.keys() <= decode(**fields).sent


@pytest.mark.parametrize("value", [True, False])
def test_parallel_tool_calls_are_read_in_both_spellings(value: bool) -> None:
    for name in ("parallel_tool_calls", "parallelToolCalls"):
        turn = decode(tools=[LOOK], **{name: value})
        assert turn.parallel is value
        assert "parallel_tool_calls" in turn.sent and "parallelToolCalls" not in turn.sent


def test_the_answer_format_is_read_in_every_shape() -> None:
    def output(value: Any) -> OutputFormat:
        return decode(response_format=value).output

    schema = {"type": "object", "properties": {}}
    full = {"name": "answer", "schema": schema, "strict": True, "description": "d"}
    assert output({"type": "text"}) == OutputFormat()
    assert output({"type": "json_object"}) == OutputFormat("json_object")
    assert output({"type": "json_schema", "json_schema": full}) == OutputFormat(
        "json_schema", "answer", schema, True, "d"
    )
    assert output({"type": "json_schema", **full}) == OutputFormat("json_schema", "answer", schema, True, "d")
    assert output({"type": "json_schema", "json_schema": {"name": "answer", "strict": None}}) == OutputFormat(
        "json_schema", "answer"
    )


def test_legacy_functions_become_tools_of_which_one_is_called_at_a_time() -> None:
    turn = decode(
        functions=[{"name": "look", "parameters": {"type": "object"}}], function_call={"name": "look"}
    )
    assert turn.legacy_functions and not turn.parallel
    assert [tool.name for tool in turn.tools] == ["look"]
    assert turn.tool_choice == ToolChoice("required", "look")
    assert decode(functions=[{"name": "look"}]).tool_choice == ToolChoice("auto")
    assert decode(functions=[{"name": "look"}], function_call="none").tool_choice == ToolChoice("none")
    assert decode(functions=[{"name": "look"}], function_call="auto").tool_choice == ToolChoice("auto")


def test_tools_win_over_legacy_functions_and_the_report_says_so() -> None:
    turn = decode(tools=[LOOK], functions=[{"name": "other"}], function_call={"name": "other"})
    assert [tool.name for tool in turn.tools] == ["look"]
    assert not turn.legacy_functions
    assert turn.notes == (("functions", "ignored"), ("function_call", "ignored"))


def test_legacy_calls_get_ids_by_position_and_results_find_them_by_name() -> None:
    def called(name: str) -> dict[str, Any]:
        return {"role": "assistant", "content": None, "function_call": {"name": name, "arguments": "{}"}}

    def answered(name: str, text: str | None) -> dict[str, Any]:
        return {"role": "function", "name": name, "content": text}

    turn = decode(
        USER,
        called("a"),
        answered("a", "1"),
        called("b"),
        answered("b", None),
        called("a"),
        answered("a", "3"),
    )
    assert turn.items[1:] == (
        Call("call_legacy_0", "a", "{}"),
        Result("call_legacy_0", (TextPart("1"),), name="a"),
        Call("call_legacy_1", "b", "{}"),
        Result("call_legacy_1", (), name="b"),
        Call("call_legacy_2", "a", "{}"),
        Result("call_legacy_2", (TextPart("3"),), name="a"),
    )
    assert turn.notes == ()


def test_notes_of_history_and_tools_stand_together() -> None:
    turn = decode(
        USER, {"role": "assistant", "tool_calls": [call()]}, USER, tools=[LOOK, {"type": "web_search"}]
    )
    assert turn.notes == (("messages", "healed:missing_result"), ("tools.web_search", "ignored"))


def test_the_conversation_of_obsidian_copilot_decodes() -> None:
    replay = [
        {"role": "system", "content": "S"},
        USER,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [call("a", "localSearch", '{"query":"x"}'), call("b", "webSearch")],
        },
        {"role": "tool", "content": "one", "name": "localSearch", "tool_call_id": "a"},
        {"role": "tool", "content": "two", "name": "webSearch", "tool_call_id": "b"},
    ]
    turn = decode(*replay, temperature=0.1, stream=True, tools=[LOOK])
    assert [type(item).__name__ for item in turn.items] == [
        "Message",
        "Message",
        "Call",
        "Call",
        "Result",
        "Result",
    ]
    assert turn.notes == ()


def test_the_continuation_of_chatgpt_md_decodes() -> None:
    turn = decode(
        USER,
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "[vault_search result]"},
        USER,
        stream=True,
    )
    assert [item.role for item in turn.items if isinstance(item, Message)] == [
        "user",
        "assistant",
        "user",
        "user",
    ]

"""A Responses request in all the shapes that clients send becomes the same kind of Turn."""

from __future__ import annotations

import copy
import json
from typing import Any, Literal

import pytest

from doubles import obsidian
from toolwire.core.errors import ToolwireError
from toolwire.core.turn import (
    Call,
    ImagePart,
    Item,
    Message,
    OutputFormat,
    Reasoning,
    Result,
    Sampling,
    TextPart,
    ToolChoice,
    Turn,
)
from toolwire.wire import body
from toolwire.wire.chat import decode as chat
from toolwire.wire.responses import decode as responses

HI = Message("user", (TextPart("Hi"),))
LOOK = {"type": "function", "name": "look", "description": "Looks.", "parameters": {"type": "object"}}
CALL = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "x"}


def decode(input: Any = "Hi", previous: tuple[Item, ...] = (), **fields: Any) -> Turn:
    """Decodes a request and sees to it that decoding left it as it was."""
    request = {"model": "m", "input": input, **fields}
    before = copy.deepcopy(request)
    turn = responses.decode(request, previous)
    assert request == before
    return turn


def test_a_string_is_a_user_message_and_the_answer_is_stored() -> None:
    turn = decode()
    assert turn == Turn(
        api="responses", model="m", items=(HI,), store=True, sent=frozenset({"model", "input"})
    )
    assert not decode(store=False).store


def test_null_means_absent_for_every_field() -> None:
    names = [
        *responses.FIELDS,
        "tools",
        "tool_choice",
        "toolChoice",
        "instructions",
        "conversation",
        "prompt",
        "n",
        "messages",
        "vendor",
    ]
    nulls: dict[str, Any] = {name: None for name in names if name != "model"}
    assert decode(**nulls) == decode()


@pytest.mark.parametrize(
    "message",
    [{"role": "user", "content": "Hi"}, {"type": "message", "role": "user", "content": "Hi", "id": "msg_1"}],
)
def test_messages_come_with_or_without_their_type_as_text_or_parts(message: dict[str, Any]) -> None:
    assert decode([message]).items == (HI,)
    assert decode([{**message, "content": [{"type": "input_text", "text": "Hi"}]}]).items == (HI,)


def test_an_assistant_message_keeps_its_phase_and_refusal() -> None:
    said = {
        "type": "message",
        "role": "assistant",
        "phase": "commentary",
        "status": "completed",
        "id": "msg_1",
    }
    parts = [{"type": "output_text", "text": "A", "annotations": []}, {"type": "refusal", "refusal": "No."}]
    assert decode([{**said, "content": parts}]).items == (
        Message("assistant", (TextPart("A"),), refusal="No.", phase="commentary"),
    )


def test_calls_results_and_reasoning_keep_their_order() -> None:
    reasoning = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "S"}],
        "content": [{"type": "reasoning_text", "text": "C"}],
        "encrypted_content": "gAAA",
    }
    turn = decode(
        [
            {"role": "user", "content": "Hi"},
            reasoning,
            {**CALL, "id": "fc_1", "status": "completed"},
            {**OUTPUT, "id": "fco_1"},
        ]
    )
    assert turn.items == (
        HI,
        Reasoning(("S",), ("C",), "gAAA", "rs_1"),
        Call("call_1", "look", "{}"),
        Result("call_1", (TextPart("x"),)),
    )
    assert turn.notes == ()


def test_an_output_may_be_parts() -> None:
    parts = [
        {"type": "input_text", "text": "a"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA=="},
    ]
    turn = decode([CALL, {**OUTPUT, "output": parts}])
    assert turn.items[1] == Result("call_1", (TextPart("a"), ImagePart("data:image/png;base64,AA==")))


def test_custom_and_namespaced_calls_keep_kind_and_namespace() -> None:
    custom = {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "*** Begin"}
    turn = decode(
        [
            custom,
            {"type": "custom_tool_call_output", "call_id": "c", "output": "ok"},
            {**CALL, "namespace": "crm"},
            OUTPUT,
        ]
    )
    assert turn.items == (
        Call("c", "patch", "*** Begin", "custom"),
        Result("c", (TextPart("ok"),), "custom"),
        Call("call_1", "look", "{}", "function", "crm"),
        Result("call_1", (TextPart("x"),)),
    )


def test_an_empty_assistant_message_before_a_call_vanishes_as_on_chat() -> None:
    nothing: list[Any] = ["", None, []]
    for empty in nothing:
        assert decode([{"role": "assistant", "content": empty}, CALL, OUTPUT]).items[0] == Call(
            "call_1", "look", "{}"
        )
    assert decode([{"role": "assistant", "content": ""}]).items == (Message("assistant", ()),)


@pytest.mark.parametrize("kind", sorted(responses.SKIPPED))
def test_items_of_hosted_tools_are_skipped_and_noted_once(kind: str) -> None:
    turn = decode(
        [{"role": "user", "content": "Hi"}, {"type": kind, "id": "x_1"}, {"type": kind, "id": "x_2"}]
    )
    assert turn.items == (HI,)
    assert turn.notes == ((f"input.{kind}", "ignored"),)


def test_an_item_reference_may_lack_its_type() -> None:
    assert decode([{"role": "user", "content": "Hi"}, {"id": "msg_1"}]).notes == (
        ("input.item_reference", "ignored"),
    )


def test_stored_items_stand_before_the_request_and_its_results_find_their_calls() -> None:
    stored = (HI, Call("call_1", "look", "{}"))
    turn = decode([OUTPUT], stored, previous_response_id="resp_1")
    assert turn.items == (*stored, Result("call_1", (TextPart("x"),)))
    assert turn.previous_response_id == "resp_1"
    assert turn.notes == ()


def test_input_may_be_absent_when_a_chain_is_continued() -> None:
    nothing: list[Any] = [None, []]
    for input in nothing:
        assert decode(input, (HI,), previous_response_id="resp_1").items == (HI,)


def test_a_replayed_call_of_the_stored_chain_is_dropped() -> None:
    turn = decode(
        [{**CALL, "arguments": '{ "b":1, "a":2 }'}, OUTPUT],
        (Call("call_1", "look", '{"a": 2, "b": 1}'),),
        previous_response_id="resp_1",
    )
    assert turn.items == (Call("call_1", "look", '{"a": 2, "b": 1}'), Result("call_1", (TextPart("x"),)))
    assert turn.notes == (("input", "healed:duplicate_call"),)


def test_the_previous_id_can_be_read_before_decoding() -> None:
    assert responses.previous_id({"previous_response_id": "resp_1"}) == "resp_1"
    assert responses.previous_id({}) is responses.previous_id({"previous_response_id": None}) is None
    with pytest.raises(ToolwireError) as caught:
        responses.previous_id({"previous_response_id": 1})
    assert caught.value.failure.param == "previous_response_id"


def test_instructions_are_text_or_items() -> None:
    assert decode(instructions="Be brief.").instructions == "Be brief."
    turn = decode(previous=(HI,), instructions=[{"role": "developer", "content": "Be brief."}])
    assert turn.instructions is None
    assert turn.items == (Message("developer", (TextPart("Be brief."),)), HI, HI)


def test_a_body_with_messages_is_pointed_to_input() -> None:
    with pytest.raises(ToolwireError) as caught:
        responses.decode({"model": "m", "messages": [{"role": "user", "content": "Hi"}]})
    assert "moved to 'input'" in caught.value.failure.message


def test_an_n_other_than_one_is_noted_as_ignored() -> None:
    assert decode(n=1).notes == ()
    assert decode(n=3).notes == (("n", "ignored"),)


def test_background_false_is_fine() -> None:
    assert "background" in decode(background=False).sent


def test_the_sampling_and_flags_are_read() -> None:
    turn = decode(
        temperature=1,
        top_p=0.9,
        max_output_tokens=65000,
        reasoning={"effort": "xhigh", "summary": "auto"},
        text={"verbosity": "high"},
        stream=True,
        metadata={"a": "b"},
        user="u",
        parallel_tool_calls=False,
    )
    assert turn.sampling == Sampling(1, 0.9, 65000, effort="xhigh", summary="auto", verbosity="high")
    assert (turn.stream, turn.metadata, turn.user, turn.parallel) == (True, {"a": "b"}, "u", False)
    assert decode(reasoning={"generate_summary": "concise"}).sampling.summary == "concise"


@pytest.mark.parametrize("nested", [False, True])
def test_the_answer_format_is_flat_and_tolerated_nested(nested: bool) -> None:
    schema = {"name": "answer", "schema": {"type": "object"}, "strict": None, "description": None}
    turn = decode(text={"format": {"type": "json_schema", **({"json_schema": schema} if nested else schema)}})
    assert turn.output == OutputFormat("json_schema", "answer", {"type": "object"})
    assert turn.echo["text"] == {
        "format": {"type": "json_schema", "name": "answer", "schema": {"type": "object"}, "strict": False}
    }


def test_the_echo_holds_what_a_response_repeats_in_openais_own_form() -> None:
    nested = {"type": "function", "function": {"name": "other", "strict": False}}
    web = {"type": "web_search", "external_web_access": True}
    turn = decode(
        tools=[LOOK, nested, web],
        toolChoice={"type": "function", "function": {"name": "look"}},
        text={},
        reasoning={"effort": "low"},
        truncation="auto",
        max_output_tokens=9,
        max_tool_calls=2,
        temperature=0.5,
        top_p=0.5,
        top_logprobs=0,
        metadata={"a": "b"},
        parallelToolCalls=False,
        instructions="I",
        previous_response_id="resp_1",
        prompt_cache_key="k",
        safety_identifier="s",
        service_tier="auto",
        store=False,
        user="u",
        include=["reasoning.encrypted_content"],
    )
    assert turn.echo == {
        "tools": [
            {
                "type": "function",
                "name": "look",
                "description": "Looks.",
                "parameters": {"type": "object"},
                "strict": False,
            },
            {"type": "function", "name": "other", "description": None, "parameters": {}, "strict": False},
            web,
        ],
        "tool_choice": {"type": "function", "name": "look"},
        "text": {"format": {"type": "text"}},
        "reasoning": {"effort": "low", "summary": None},
        "truncation": "auto",
        "max_output_tokens": 9,
        "max_tool_calls": 2,
        "temperature": 0.5,
        "top_p": 0.5,
        "top_logprobs": 0,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "instructions": "I",
        "previous_response_id": "resp_1",
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "service_tier": "auto",
        "store": False,
        "user": "u",
    }
    assert {"tool_choice", "parallel_tool_calls", "include"} <= turn.sent
    assert not {"toolChoice", "parallelToolCalls"} & turn.sent


def test_nothing_is_echoed_that_was_not_sent() -> None:
    assert decode().echo == {}


# --- what Obsidian Copilot sends ---


def parsed(request: dict[str, Any]) -> dict[str, Any]:
    return body.parse(json.dumps(request).encode())


def test_a_finished_tool_loop_of_obsidian_copilot_decodes() -> None:
    turn = responses.decode(parsed(obsidian.RESULT))
    assert [type(item).__name__ for item in turn.items] == ["Message", "Message", "Call", "Result"]
    assert len(turn.tools) == len(obsidian.TOOLS) and turn.tool_choice == ToolChoice("auto")
    assert turn.stream and turn.sampling.max_tokens == 65000
    assert turn.notes == ()


@pytest.mark.parametrize("word", ["none", "auto", "required"])
def test_nested_tools_and_two_spellings_of_the_choice_decode(
    word: Literal["none", "auto", "required"],
) -> None:
    turn = responses.decode(parsed({**obsidian.QUESTION, "tool_choice": word, "toolChoice": word}))
    assert turn.tool_choice == ToolChoice(word)
    assert len(turn.tools) == len(obsidian.TOOLS)
    assert turn.notes == ()


def test_a_tool_choice_that_a_log_has_redacted_is_ignored_and_noted() -> None:
    choice = {"tool_choice": "<redacted>", "toolChoice": "<redacted>"}
    turn = responses.decode(parsed({**obsidian.QUESTION, **choice}))
    assert turn.tool_choice == ToolChoice("auto")
    assert turn.notes == (("tool_choice", "ignored:redacted"),)


def test_flat_and_nested_tools_are_the_same_on_both_endpoints() -> None:
    question = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    over_chat = chat.decode({**question, "tools": obsidian.TOOLS})
    assert over_chat.tools == decode(tools=obsidian.TOOLS).tools == decode(tools=obsidian.FLAT_TOOLS).tools
    assert [tool.name for tool in over_chat.tools] == [tool["name"] for tool in obsidian.FLAT_TOOLS]
    assert not any(tool.strict for tool in over_chat.tools)

"""The gateway with the embedded model, as clients of OpenAI's APIs use it."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest

from doubles.judges import Judge
from toolwire.backends.local import LocalBackend

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 40},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": "The weather of a city.", "parameters": WEATHER},
}
ASK: dict[str, Any] = {
    "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
    "tools": [TOOL],
    "seed": 1,
}


async def test_a_required_call_is_streamed_and_fits(table: Any, local: LocalBackend, judge: Judge) -> None:
    raw = await table.serve(local).stream("chat", {**ASK, "tool_choice": "required"})
    judge.stream(raw, "chat")
    chunks = [json.loads(line[6:]) for line in raw.decode().splitlines() if line.startswith("data: {")]
    pieces = [
        call["function"].get("arguments", "")
        for chunk in chunks
        for choice in chunk["choices"]
        for call in choice["delta"].get("tool_calls", ())
    ]
    assert len([piece for piece in pieces if piece]) > 2, "arguments come as they are decoded"
    assert jsonschema_rs.is_valid(WEATHER, json.loads("".join(pieces)))
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_a_named_call_then_its_result_makes_a_whole_loop(
    table: Any, local: LocalBackend, judge: Judge
) -> None:
    first = await table.serve(local).body(
        "chat", {**ASK, "tool_choice": {"type": "function", "function": {"name": "get_weather"}}}
    )
    judge.body(first, "chat")
    message = first["choices"][0]["message"]
    [call] = message["tool_calls"]
    assert call["function"]["name"] == "get_weather" and jsonschema_rs.is_valid(
        WEATHER, json.loads(call["function"]["arguments"])
    )
    result = {"role": "tool", "tool_call_id": call["id"], "content": "18 degrees and sunny"}
    second = await table.body(
        "chat",
        {
            **ASK,
            "messages": [*ASK["messages"], message, result],
            "tool_choice": "none",
            "max_completion_tokens": 40,
        },
    )
    judge.body(second, "chat")
    assert second["choices"][0]["message"]["content"]


@pytest.mark.parametrize("result_text", ["18 degrees and sunny", '{"temperature": 18, "sky": "sunny"}'])
async def test_an_answer_after_a_result_is_in_words_and_not_in_our_markup(
    table: Any, local: LocalBackend, judge: Judge, result_text: str
) -> None:
    """So small a model would copy the result or repeat its own call."""
    first = await table.serve(local).body(
        "chat", {**ASK, "tool_choice": "required", "parallel_tool_calls": False}
    )
    message = first["choices"][0]["message"]
    [call] = message["tool_calls"]
    result = {"role": "tool", "tool_call_id": call["id"], "content": result_text}
    second = await table.body(
        "chat",
        {
            **ASK,
            "messages": [*ASK["messages"], message, result],
            "temperature": 0,
            "max_completion_tokens": 40,
        },
    )
    judge.body(second, "chat")
    text = second["choices"][0]["message"]["content"]
    assert text and not text.startswith("<")
    assert "<tool_result" not in text and "</tool_" not in text


async def test_a_tool_whose_parameters_are_no_schema_is_called_as_well_as_it_can_be(
    table: Any, local: LocalBackend
) -> None:
    loose = {
        "type": "object",
        "properties": {"degrees": {"type": "float"}, "unit": {"enum": ["celsius"]}},
        "required": ["degrees", "unit"],
    }
    tool = {"type": "function", "function": {"name": "set_heating", "parameters": loose}}
    body = await table.serve(local).body(
        "chat", {**ASK, "tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    )
    [call] = body["choices"][0]["message"]["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    assert arguments["unit"] == "celsius" and set(arguments) == {"degrees", "unit"}


async def test_a_call_that_is_cut_is_length_and_never_a_completed_call(
    table: Any, local: LocalBackend
) -> None:
    body = await table.serve(local).body(
        "chat", {**ASK, "tool_choice": "required", "max_completion_tokens": 4}
    )
    assert body["choices"][0]["finish_reason"] == "length"
    for call in body["choices"][0]["message"].get("tool_calls") or ():
        with pytest.raises(ValueError):
            json.loads(call["function"]["arguments"])


async def test_responses_hold_an_answer_to_its_schema(table: Any, local: LocalBackend, judge: Judge) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    asked = {
        "input": "Is water wet?",
        "text": {"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}},
    }
    body = await table.serve(local).body("responses", asked)
    judge.body(body, "responses")
    assert jsonschema_rs.is_valid(schema, json.loads(body["output"][0]["content"][0]["text"]))


async def test_a_prompt_that_does_not_fit_is_a_400(table: Any, local: LocalBackend) -> None:
    from toolwire.core.errors import ToolwireError

    with pytest.raises(ToolwireError) as failed:
        await table.serve(local).body("chat", {"messages": [{"role": "user", "content": "word " * 3000}]})
    assert failed.value.failure.kind == "context_length"

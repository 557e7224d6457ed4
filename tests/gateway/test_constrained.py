"""Turns with a constrained decoder: the request to the backend, the answer, and refusals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest

from doubles.judges import Judge
from toolwire.backends.base import Batch
from toolwire.core.capabilities import Capabilities, Strategy
from toolwire.core.errors import ToolwireError
from toolwire.core.events import Failure
from toolwire.core.turn import Turn
from toolwire.testing import ScriptedBackend, ScriptedOptions

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": CITY}}
    for name in ("get_weather", "get_time")
]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
CALL = 'call get_weather {"city": "Paris"}'


def asks(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Weather?"}], "tools": TOOLS, **fields}


def calls(body: dict[str, Any]) -> list[tuple[str, str]]:
    message = body["choices"][0]["message"]
    return [
        (call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or []
    ]


def report(answer: Any) -> str:
    return str(dict(answer.headers)[b"x-toolwire-report"], "ascii")


# --- the request to the backend ---


@pytest.mark.parametrize("prefill", [False, True])
@pytest.mark.parametrize("choice", ["auto", "required", NAMED], ids=["auto", "required", "named"])
async def test_text_with_calls_is_constrained_if_the_decoder_can_do_it(
    table: Any, choice: Any, prefill: bool
) -> None:
    table.play(CALL, tools="constrained", prefill=prefill)
    assert calls(await table.body("chat", asks(tool_choice=choice))) == [("get_weather", '{"city": "Paris"}')]
    turn = table.backend.seen[-1]
    held = turn.constraint
    assert held.opening.startswith("<tool_call:") and held.closing.endswith(">") and turn.tools == ()
    assert held.required == (choice != "auto") and held.calls > 1
    assert [tool.name for tool in held.tools] == (
        ["get_weather"] if choice is NAMED else ["get_weather", "get_time"]
    )
    last = turn.items[-1].parts[-1].text
    expected = (
        held.opening + ('{"name": "get_weather", "arguments": ' if choice is NAMED else "")
        if prefill and choice != "auto"
        else ""
    )
    assert held.begun == expected and (not expected or last == expected)


async def test_the_whole_answer_is_one_call_if_the_decoder_can_constrain_only_that(table: Any) -> None:
    table.play(CALL, tools="constrained", holds=("call",))
    assert calls(await table.body("chat", asks(tool_choice="required"))) == [
        ("get_weather", '{"city": "Paris"}')
    ]
    turn = table.backend.seen[-1]
    assert (
        turn.constraint.opening == turn.constraint.closing == turn.constraint.begun == ""
        and turn.constraint.required
    )
    assert "this object" in turn.texts()[0] and "<tool_call" not in turn.texts()[0]


async def test_a_free_answer_is_emulated_if_the_decoder_can_constrain_only_whole_calls(table: Any) -> None:
    table.play("say Hello.", tools="constrained", holds=("call",))
    answer = await table.answer("chat", asks())
    assert table.backend.seen[-1].constraint is None and "tools=emulated" in report(answer)


@pytest.mark.parametrize(
    "fields", [{"parallel_tool_calls": False}, {"tool_choice": "required", "parallel_tool_calls": False}]
)
async def test_a_request_for_one_call_is_constrained_to_one_call(table: Any, fields: Any) -> None:
    table.play(CALL, tools="constrained")
    await table.body("chat", asks(**fields))
    assert table.backend.seen[-1].constraint.calls == 1


async def test_the_report_says_how_tools_were_served(table: Any) -> None:
    table.play(CALL, tools="constrained")
    assert report(await table.answer("chat", asks(tool_choice="required"))) == "tools=constrained"


TOLD = [
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "18 degrees"},
]


async def test_text_that_begins_like_a_call_can_only_become_one(table: Any) -> None:
    """Models copy the token with mistakes. The decoder completes a marker with the right one."""
    table.play("say Hello.", tools="constrained")
    held = []
    for messages in (TOLD[:1], TOLD, [*TOLD, {"role": "user", "content": "And in Rome?"}]):
        await table.body("chat", asks(messages=messages))
        held.append(table.backend.seen[-1].constraint)
    history = " ".join(table.backend.seen[-1].texts()[1:])
    assert [one.answered for one in held] == [False, True, False]
    assert all(one.opening.startswith(one.barred[0]) for one in held)
    assert all(text in history for text in held[-1].barred), "the excluded markup is the taught one"


@pytest.mark.parametrize("mark", ["<tool_call:", "</tool_call:", "<tool_result", "</tool_result"])
@pytest.mark.parametrize("where", ["user", "tool"])
async def test_markup_that_a_model_may_quote_does_not_become_a_call(
    table: Any, where: str, mark: str
) -> None:
    """Law 12: the request itself contains such markup, so the decoder must not complete it."""
    table.play("say Hello.", tools="constrained")
    text = f"What is {mark}123> for?"
    said = {"role": "user", "content": text}
    result = {"role": "tool", "tool_call_id": "c1", "content": text}
    messages = [*TOLD[:2], result] if where == "tool" else [said]
    await table.body("chat", asks(messages=messages))
    assert table.backend.seen[-1].constraint.barred == ()


def declares(schema: Any, **fields: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "get_weather", "parameters": schema, **fields}}]


NO_SCHEMAS = [
    {"type": "objekt"},
    {"type": "object", "properties": {"city": {"type": "strnig"}}},
    {"type": "object", "properties": {"city": {"type": ["string", "nul"]}}},
    {"type": "object", "properties": {"city": {"type": "string", "pattern": "("}}},
    {"type": "object", "properties": {"city": {"oneOf": 3}}},
    {"type": "object", "properties": {"city": {"$ref": "#/nowhere"}}},
    {"type": "object", "properties": {"city": {"$ref": "http://169.254.169.254/latest"}}},
]


@pytest.mark.parametrize("schema", NO_SCHEMAS, ids=str)
@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_an_invalid_schema_is_one_clear_error_if_the_tool_is_strict(
    table: Any, choice: str, schema: Any
) -> None:
    table.play(CALL, tools="constrained")
    with pytest.raises(ToolwireError) as caught:
        await table.body("chat", asks(tools=declares(schema, strict=True), tool_choice=choice))
    failure = caught.value.failure
    assert failure.kind == "invalid_value" and failure.param == "tools[0].parameters"
    assert not table.backend.seen


@pytest.mark.parametrize("schema", NO_SCHEMAS, ids=str)
@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("tools", ["native", "emulated", "constrained"])
async def test_an_invalid_schema_is_served_if_the_tool_is_not_strict(
    table: Any, tools: Any, choice: str, schema: Any
) -> None:
    table.play(CALL, tools=tools)
    body = await table.body("chat", asks(tools=[*declares(schema), TOOLS[1]], tool_choice=choice))
    assert calls(body) == [("get_weather", '{"city": "Paris"}')] and len(table.backend.seen) == 1


async def test_without_tools_nothing_is_constrained(table: Any) -> None:
    table.play("say Hello.", tools="constrained")
    await table.body("chat", {"messages": [{"role": "user", "content": "?"}]})
    assert table.backend.seen[-1].constraint is None


# --- reading the answer ---


@pytest.mark.parametrize("holds", [("text",), ("call",)])
@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_arguments_are_sent_while_they_are_decoded(
    table: Any, judge: Judge, api: Any, holds: Any
) -> None:
    table.play(f"chunk 3\n{CALL}", tools="constrained", holds=holds)
    flat = [{"type": "function", **tool["function"]} for tool in TOOLS]  # type: ignore[dict-item]
    request = (
        asks(tool_choice="required")
        if api == "chat"
        else {"input": "Weather?", "tools": flat, "tool_choice": "required", "store": False}
    )
    raw = await table.stream(api, request)
    judge.stream(raw, api)
    assert raw.count(b"arguments.delta" if api == "responses" else b'"arguments":') > 4


@pytest.mark.parametrize("holds", [("text",), ("call",)])
async def test_a_call_that_is_cut_is_never_complete(table: Any, holds: Any) -> None:
    table.play('call get_weather {"city": "Par\nfinish length', tools="constrained", holds=holds)
    body = await table.body("chat", asks(tool_choice="required"))
    assert body["choices"][0]["finish_reason"] == "length"
    assert all(arguments == '{"city": "Par' for _, arguments in calls(body))


async def test_a_schema_beyond_what_a_decoder_can_enforce_is_checked_on_the_complete_call(table: Any) -> None:
    unheld = {**CITY, "properties": {"city": {"type": "string", "not": {"const": "Paris"}}}}
    table.play(f'{CALL}\n---\ncall get_weather {{"city": "Rome"}}', tools="constrained")
    body = await table.body("chat", asks(tools=declares(unheld), tool_choice="required"))
    assert calls(body) == [("get_weather", '{"city": "Rome"}')] and len(table.backend.seen) == 2


async def test_unique_items_are_checked_on_the_complete_call(table: Any) -> None:
    cities = {"type": "array", "items": {"type": "string"}, "uniqueItems": True, "minItems": 2}
    schema = {
        "type": "object",
        "properties": {"cities": cities},
        "required": ["cities"],
        "additionalProperties": False,
    }
    table.play(
        'call get_weather {"cities": ["a", "a"]}\n---\ncall get_weather {"cities": ["a", "b"]}',
        tools="constrained",
    )
    body = await table.body("chat", asks(tools=declares(schema, strict=True), tool_choice="required"))
    assert calls(body) == [("get_weather", '{"cities": ["a", "b"]}')] and len(table.backend.seen) == 2


async def test_a_schema_too_large_for_the_decoder_is_checked_on_the_complete_call(table: Any) -> None:
    wide = {f"k{number}": CITY for number in range(2500)}
    tools = [
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "parameters": {"type": "object", "properties": wide, "required": list(wide)},
            },
        }
    ]
    table.play(CALL, tools="constrained")
    with pytest.raises(ToolwireError, match="does not fit"):
        await table.body("chat", asks(tools=tools, tool_choice="required"))


# --- a backend that refuses ---


class Refusing(ScriptedBackend):
    """A model that refuses each of its strategies except the last one."""

    def __init__(self, *strategies: str) -> None:
        super().__init__("m", ScriptedOptions(script=CALL))
        options = [replace(self.options, tools=one) for one in strategies]  # type: ignore[arg-type]
        self._strategies = [ScriptedBackend("m", one) for one in options]
        self.asked: list[str] = []

    @property
    def strategy(self) -> Strategy:
        return self._strategies[0].strategy

    @property
    def capabilities(self) -> Capabilities:
        return self._strategies[0].capabilities

    async def run(self, turn: Turn) -> AsyncGenerator[Batch, None]:
        current = self._strategies[0]
        self.asked.append(current.strategy)
        if len(self._strategies) > 1:
            self._strategies.pop(0)
            yield [Failure("tools_unsupported", "This model does not support tools.")]
            return
        async for batch in current.run(turn):
            yield batch


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "strategies", [("native", "emulated"), ("native", "constrained", "emulated"), ("native", "constrained")]
)
async def test_a_refusal_falls_back_to_another_strategy_within_the_request(
    table: Any, judge: Judge, strategies: tuple[str, ...], stream: bool
) -> None:
    backend = Refusing(*strategies)
    table.serve(backend)
    answer = await table.answer("chat", asks(stream=stream))
    assert f"tools={strategies[-1]}" in report(answer)
    if stream:
        raw = b"".join([block async for block in answer.stream])
        judge.stream(raw, "chat")
        assert b'\\"Paris\\"' in raw and raw.count(b'"role"') == 1
    else:
        assert calls(json.loads(answer.body)) == [("get_weather", '{"city": "Paris"}')]
        assert dict(answer.headers)[b"x-toolwire-tools"].startswith(b"count=1;")
    assert backend.asked == list(strategies)


async def test_an_invalid_schema_does_not_prevent_the_fallback(table: Any) -> None:
    table.serve(Refusing("native", "constrained"))
    assert calls(await table.body("chat", asks(tools=declares(NO_SCHEMAS[1])))) == [
        ("get_weather", '{"city": "Paris"}')
    ]


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_a_fallback_that_cannot_take_the_request_fails_in_the_stream_if_it_has_begun(
    table: Any, judge: Judge, api: Any
) -> None:
    class Slow(Refusing):
        async def run(self, turn: Turn) -> AsyncGenerator[Batch, None]:
            await asyncio.sleep(0.08)
            async for batch in super().run(turn):
                yield batch

    tools = declares(NO_SCHEMAS[0], strict=True)
    asked = (
        asks(tools=tools)
        if api == "chat"
        else {"input": "?", "tools": [{"type": "function", **tools[0]["function"]}], "store": False}
    )
    with pytest.raises(ToolwireError, match="Invalid schema"):
        await table.serve(Slow("native", "constrained")).stream(api, asked)
    settings = table.serve(Slow("native", "constrained")).gateway.settings
    table.gateway.settings = replace(settings, server=replace(settings.server, commit_after_s=0.01))
    raw = await table.stream(api, asked)
    judge.stream(raw, api)
    assert b"Invalid schema" in raw


async def test_the_next_request_uses_the_remembered_strategy_at_once(table: Any) -> None:
    backend = Refusing("native", "emulated")
    table.serve(backend)
    await table.body("chat", asks())
    await table.body("chat", asks())
    assert backend.asked == ["native", "emulated", "emulated"]


async def test_a_refusal_without_another_strategy_is_an_error(table: Any) -> None:
    table.play("fail tools_unsupported This model does not support tools.")
    with pytest.raises(ToolwireError, match="does not support tools"):
        await table.body("chat", asks())


class Deaf(ScriptedBackend):
    """A model with native tools that ignores tool_choice.

    Its decoder can be limited to one call.
    """

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, tool_choice=False, constrain=frozenset({"call"}))


@pytest.mark.parametrize(("choice", "held"), [("auto", False), ("required", True), (NAMED, True)])
async def test_a_choice_that_the_server_ignores_is_enforced_by_its_decoder(
    table: Any, choice: Any, held: bool
) -> None:
    backend = Deaf(
        "m",
        ScriptedOptions(
            script="say x" if not held else 'raw {"name": "get_weather", "arguments": {"city": "Paris"}}'
        ),
    )
    table.serve(backend)
    body = await table.body("chat", asks(tool_choice=choice))
    assert (backend.seen[-1].constraint is not None) == held
    assert calls(body) == ([("get_weather", '{"city": "Paris"}')] if held else [])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_breaks_off_is_not_complete_whatever_the_server_says(
    table: Any, stream: bool
) -> None:
    table.serve(Deaf("m", ScriptedOptions(script='raw {"name": "get_weather", "arguments": {"city": "Par')))
    asked = asks(tool_choice="required")
    said = (
        await table.stream("chat", asked)
        if stream
        else json.dumps(await table.body("chat", asked), separators=(",", ":")).encode()
    )
    assert b'"finish_reason":"length"' in said and b'"finish_reason":"tool_calls"' not in said


async def test_the_marker_that_the_gateway_adds_is_never_sent_as_text(table: Any) -> None:
    table.serve(Deaf("m", ScriptedOptions(script='raw {"na\nfinish length')))
    body = await table.body("chat", asks(tool_choice="required"))
    assert body["choices"][0]["message"]["content"].strip() == '{"na'


# --- dialects other than the sentinel ---


async def test_a_models_dialect_is_used_in_the_prompt_and_in_the_history(table: Any) -> None:
    table.play(f"{CALL}\n---\nsay It is sunny.", tools="emulated", writes="qwen_xml", dialects=("qwen_xml",))
    first = await table.body("chat", asks())
    assert calls(first) == [("get_weather", '{"city": "Paris"}')]
    assert (
        "<function=TOOL_NAME>" in table.backend.seen[-1].texts()[0]
        and "<tool_call:" not in table.backend.seen[-1].texts()[0]
    )
    message = first["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "sunny"}
    second = await table.body("chat", asks(messages=[*asks()["messages"], message, result]))
    assert second["choices"][0]["message"]["content"] == "It is sunny."
    assert any("<function=get_weather>" in text for text in table.backend.seen[-1].texts()[1:])

"""Every wire scenario on each API, streamed and not, native and emulated, checked by all judges."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from doubles.judges import Judge
from toolwire.conform.judge import fold
from toolwire.core.errors import ToolwireError
from toolwire.core.turn import Api

F = {
    "name": "f",
    "description": "A function.",
    "parameters": {"type": "object", "properties": {"x": {}}, "additionalProperties": True},
}
G = {"name": "g", "parameters": {"type": "object", "properties": {}}}
PATCH = {"name": "apply_patch", "description": "Edits files."}
CHAT_TOOLS = [{"type": "function", "function": F}, {"type": "function", "function": G}]
FLAT_TOOLS = [{"type": "function", **F}, {"type": "function", **G}]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Scenario:
    """What the model does, what the client adds to a plain request with two tools, and the result."""

    id: str
    script: str
    text: str | None = None
    calls: tuple[tuple[str, str], ...] = ()
    finish: str = "stop"
    chat: dict[str, Any] | None = field(default_factory=dict)
    responses: dict[str, Any] | None = field(default_factory=dict)
    refusal: str | None = None
    thought: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    tools: bool = True


SCENARIOS = [
    Scenario("text", "chunk 3\nsay Hello, you.", text="Hello, you."),
    Scenario("text without tools", "say Hello.", text="Hello.", tools=False),
    Scenario("empty answer", "finish stop", text=""),
    Scenario("one call", 'chunk 2\ncall f {"x": 1}', calls=(("f", '{"x": 1}'),), finish="tool_calls"),
    Scenario("call without arguments", "call g", calls=(("g", "{}"),), finish="tool_calls"),
    Scenario(
        "two calls", 'call f {"x": 1}\ncall g {}', calls=(("f", '{"x": 1}'), ("g", "{}")), finish="tool_calls"
    ),
    Scenario(
        "two calls of one tool",
        'call f {"x": 1}\ncall f {"x": 1}',
        calls=(("f", '{"x": 1}'), ("f", '{"x": 1}')),
        finish="tool_calls",
    ),
    Scenario(
        "text then call",
        'chunk 4\nsay Let me look.\ncall f {"x": "é😀"}',
        "Let me look.",
        (("f", '{"x": "é😀"}'),),
        finish="tool_calls",
    ),
    Scenario("refusal", "chunk 4\nrefuse I can't help.", refusal="I can't help."),
    Scenario("length", "say Trunca\nfinish length", text="Trunca", finish="length"),
    Scenario(
        "length inside a call",
        'call f {"x":"tru\nfinish length',
        calls=(("f", '{"x":"tru'),),
        finish="length",
    ),
    Scenario("content filter", "finish content_filter", text="", finish="content_filter"),
    Scenario(
        "usage",
        "say Hi\nusage 9 5",
        text="Hi",
        chat={"stream_options": {"include_usage": True}},
        options={"include_usage": True},
    ),
    Scenario(
        "tool_choice none",
        "say No tools.",
        text="No tools.",
        chat={"tool_choice": "none"},
        responses={"tool_choice": "none"},
    ),
    Scenario(
        "tool_choice auto",
        "say Fine.",
        text="Fine.",
        chat={"tool_choice": "auto"},
        responses={"tool_choice": "auto"},
    ),
    Scenario(
        "tool_choice required",
        "call g {}",
        calls=(("g", "{}"),),
        finish="tool_calls",
        chat={"tool_choice": "required"},
        responses={"tool_choice": "required"},
    ),
    Scenario(
        "tool_choice named",
        "call g {}",
        calls=(("g", "{}"),),
        finish="tool_calls",
        chat={"tool_choice": {"type": "function", "function": {"name": "g"}}},
        responses={"tool_choice": {"type": "function", "name": "g"}},
    ),
    Scenario(
        "tool_choice allowed_tools",
        "call g {}",
        calls=(("g", "{}"),),
        finish="tool_calls",
        chat={
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "g"}}],
                },
            }
        },
        responses={
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "g"}],
            }
        },
    ),
    Scenario(
        "parallel_tool_calls false",
        'call f {"x": 1}\ncall g {}',
        calls=(("f", '{"x": 1}'),),
        finish="tool_calls",
        chat={"parallel_tool_calls": False},
        responses={"parallel_tool_calls": False},
    ),
    Scenario(
        "json_schema",
        'chunk 2\nraw "{\\"a\\":1}"',
        text='{"a":1}',
        chat={
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": SCHEMA, "strict": True},
            }
        },
        responses={
            "text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True}}
        },
        tools=False,
    ),
    Scenario(
        "raw thoughts then call",
        'chunk 3\nthink Hmm, well.\ncall f {"x": 2}',
        None,
        (("f", '{"x": 2}'),),
        "tool_calls",
        thought="Hmm, well.",
    ),
    Scenario(
        "summary then text", "chunk 3\nsummarize Thinking.\nsay Done.", text="Done.", thought="Thinking."
    ),
    Scenario(
        "thought, text and call",
        "think Hm.\nsay Look:\ncall g",
        "Look:",
        (("g", "{}"),),
        "tool_calls",
        thought="Hm.",
    ),
    Scenario(
        "legacy functions",
        'chunk 3\ncall f {"x": 1}',
        calls=(("f", '{"x": 1}'),),
        finish="function_call",
        chat={"functions": [F, G], "function_call": "auto"},
        responses=None,
        options={"legacy": True},
        tools=False,
    ),
    Scenario(
        "legacy named function",
        'call f {"x": 1}\ncall g {}',
        calls=(("f", '{"x": 1}'),),
        finish="function_call",
        chat={"functions": [F, G], "function_call": {"name": "f"}},
        responses=None,
        options={"legacy": True},
        tools=False,
    ),
    Scenario(
        "custom tool",
        'chunk 5\ncustom apply_patch "*** Begin Patch\\n+\\"é\\""',
        calls=(("apply_patch", '*** Begin Patch\n+"é"'),),
        finish="tool_calls",
        chat=None,
        responses={"tools": [{"type": "custom", **PATCH}]},
        tools=False,
    ),
]


def _request(scenario: Scenario, api: Api) -> dict[str, Any] | None:
    extra = scenario.chat if api == "chat" else scenario.responses
    if extra is None:
        return None
    body: dict[str, Any] = {"messages" if api == "chat" else "input": [{"role": "user", "content": "Do it."}]}
    if scenario.tools:
        body["tools"] = CHAT_TOOLS if api == "chat" else FLAT_TOOLS
    return {**body, **extra}


CASES = [
    pytest.param(scenario, api, strategy, id=f"{scenario.id}-{api}-{strategy}")
    for scenario in SCENARIOS
    for api in ("chat", "responses")
    for strategy in ("native", "emulated")
    if _request(scenario, api) is not None
]


def _content(body: dict[str, Any], api: Api) -> tuple[str, str, str, list[tuple[str, str]], str]:
    """Text, refusal, thoughts, calls and finish of a body, as in `Scenario`."""
    if api == "chat":
        choice = body["choices"][0]
        message = choice["message"]
        calls = [
            (one["function"]["name"], one["function"]["arguments"]) for one in message.get("tool_calls") or []
        ]
        if message.get("function_call"):
            calls = [(message["function_call"]["name"], message["function_call"]["arguments"])]
        return (
            message["content"] or "",
            message["refusal"] or "",
            message.get("reasoning_content") or "",
            calls,
            choice["finish_reason"],
        )
    text, refusal, thought, calls = "", "", "", []
    for item in body["output"]:
        if item["type"] == "message":
            text += "".join(part.get("text", "") for part in item["content"])
            refusal += "".join(part.get("refusal", "") for part in item["content"])
        elif item["type"] == "reasoning":
            thought += "".join(part["text"] for part in (*item["summary"], *item.get("content", ())))
        else:
            calls.append((item["name"], item.get("arguments", item.get("input"))))
    reason = {"max_output_tokens": "length"}.get(*[(body["incomplete_details"] or {}).get("reason", "")] * 2)
    return text, refusal, thought, calls, reason or ("tool_calls" if calls else "stop")


@pytest.mark.check(
    "chat.answers",
    "chat.stream-is-body",
    "chat.parallel",
    "chat.text-and-call",
    "chat.choice.none",
    "chat.choice.auto",
    "chat.choice.required",
    "chat.choice.named",
    "chat.choice.allowed",
    "chat.parallel.off",
    "chat.structured",
    "chat.legacy",
    "chat.usage.asked",
    "responses.answers",
    "responses.stream-is-body",
    "responses.parallel",
    "responses.text-and-call",
    "responses.choice.required",
    "responses.choice.named",
    "responses.parallel.off",
    "responses.structured",
    "responses.custom",
)
@pytest.mark.parametrize(("scenario", "api", "strategy"), CASES)
async def test_scenario(table: Any, judge: Judge, scenario: Scenario, api: Api, strategy: str) -> None:
    request = _request(scenario, api)
    assert request is not None
    table.play(scenario.script, tools=strategy)
    body = await table.body(api, request)
    options = scenario.options if api == "chat" else {}
    body_options = {key: value for key, value in options.items() if key != "include_usage"}
    judge.body(body, api, **body_options)
    raw = await table.stream(api, request)
    judge.stream(raw, api, expected=body, **options)
    expected = (
        scenario.text or "",
        scenario.refusal or "",
        scenario.thought or "",
        list(scenario.calls),
        scenario.finish,
    )
    assert _content(body, api) == expected
    assert _content(fold(raw, api), api)[:4] == expected[:4]


@pytest.mark.check("chat.errors.in-stream", "responses.errors.in-stream")
@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("strategy", ["native", "emulated"])
async def test_a_failure_after_the_first_byte_is_reported_in_the_stream(
    table: Any, judge: Judge, api: Api, strategy: str
) -> None:
    table.play("say par\npause 1ms\nfail backend backend died", tools=strategy)
    request = {
        "messages" if api == "chat" else "input": [{"role": "user", "content": "?"}],
        "tools": CHAT_TOOLS,
    }
    raw = await table.stream(api, request)
    judge.stream(raw, api)
    assert b"backend died" in raw
    assert b'"finish_reason":"stop"' not in raw and b"response.completed" not in raw


@pytest.mark.check("chat.stream.finish", "responses.stream.final")
@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_a_failure_inside_a_call_never_finishes_as_a_call(table: Any, judge: Judge, api: Api) -> None:
    table.play('chunk 3\ncall f {"x": 1}\nfail backend gone')
    raw = await table.stream(
        api,
        {"messages" if api == "chat" else "input": [{"role": "user", "content": "?"}], "tools": CHAT_TOOLS},
    )
    judge.stream(raw, api)
    assert b'"finish_reason":"tool_calls"' not in raw and b"response.completed" not in raw


@pytest.mark.check("chat.errors.before-stream", "responses.errors.before-stream")
@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_before_the_first_byte_is_an_http_error(table: Any, api: Api, stream: bool) -> None:
    table.play("pause 1ms\nfail rate_limit Slow down.")
    with pytest.raises(ToolwireError, match="Slow down"):
        await table.answer(
            api,
            {"messages" if api == "chat" else "input": [{"role": "user", "content": "?"}], "stream": stream},
        )


@pytest.mark.check("chat.errors.in-stream", "responses.errors.in-stream")
@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_run_that_breaks_off_is_an_error_never_a_stop(
    table: Any, judge: Judge, api: Api, stream: bool
) -> None:
    table.play("say half a sen\npause 1ms\ncut")
    request = {"messages" if api == "chat" else "input": [{"role": "user", "content": "?"}], "stream": stream}
    if not stream:
        with pytest.raises(ToolwireError, match="broke off"):
            await table.answer(api, request)
        return
    raw = await table.stream(api, request)
    judge.stream(raw, api)
    assert b"broke off" in raw


@pytest.mark.check("chat.body.shape", "chat.stream.shape")
@pytest.mark.parametrize("strategy", ["native", "emulated"])
@pytest.mark.parametrize("stream", [False, True])
async def test_n_choices_are_n_runs(table: Any, judge: Judge, strategy: str, stream: bool) -> None:
    table.play('chunk 3\nsay Hello.\ncall f {"x": 1}', tools=strategy)
    request = {"messages": [{"role": "user", "content": "?"}], "tools": CHAT_TOOLS, "n": 3}
    body = await table.body("chat", request)
    judge.body(body, "chat")
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert {choice["message"]["tool_calls"][0]["function"]["name"] for choice in body["choices"]} == {"f"}
    assert len({choice["message"]["tool_calls"][0]["id"] for choice in body["choices"]}) == 3
    assert len(table.backend.seen) == 3
    if stream:
        judge.stream(await table.stream("chat", request), "chat", expected=body)


@pytest.mark.check("chat.body.calls", "chat.stream.opener")
async def test_a_custom_tool_on_chat_comes_back_as_a_custom_call(table: Any, judge: Judge) -> None:
    request = {"messages": [{"role": "user", "content": "?"}], "tools": [{"type": "custom", "custom": PATCH}]}
    for strategy in ("native", "emulated"):
        body = await table.play("custom apply_patch hello", tools=strategy).body("chat", request)
        judge.body(body, "chat")
        assert body["choices"][0]["message"]["tool_calls"][0]["custom"] == {
            "name": "apply_patch",
            "input": "hello",
        }


@pytest.mark.check("chat.stream.sse")
async def test_stream_comments_carry_the_telemetry_before_the_last_event(table: Any) -> None:
    raw = (
        await table.play("call f\ncall g").stream(
            "chat", {"messages": [{"role": "user", "content": "?"}], "tools": CHAT_TOOLS}
        )
    ).decode()
    blocks = [block for block in raw.split("\n\n") if block]
    assert json.loads(blocks[-2][2:]) == {
        "tool_call_count": 2,
        "tool_call_truncated": False,
        "stop_after_tools_mode": "off",
    }
    assert blocks[-1] == "data: [DONE]"

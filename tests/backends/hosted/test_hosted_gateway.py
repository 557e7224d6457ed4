"""The gateway with Claude and Gemini: whole tool loops on both APIs, checked by all judges."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from doubles import anthropic as a
from doubles import google as g
from doubles.judges import Judge
from toolwire.backends.hosted.thinking import CallMemory
from toolwire.conform.judge import fold
from toolwire.core.errors import ToolwireError, error_object, status_of
from toolwire.core.turn import Api
from toolwire.gateway.pipeline import Gateway
from toolwire.settings.types import Settings
from toolwire.store.store import Store

PROVIDERS = ["anthropic", "google"]
MODELS = {"anthropic": "claude-haiku-4-5", "google": "gemini-3-pro-preview"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
F = {"name": "weather", "description": "Tells the weather.", "parameters": SCHEMA}
G = {"name": "time", "description": "Tells the time.", "parameters": {"type": "object", "properties": {}}}
TOOLS: dict[Api, list[Any]] = {
    "chat": [{"type": "function", "function": F}, {"type": "function", "function": G}],
    "responses": [{"type": "function", **F}, {"type": "function", **G}],
}
PNG = "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n not really").decode()


def calling(provider: str) -> Any:
    """Thoughts, text and two calls."""
    if provider == "anthropic":
        calls = (a.Use("toolu_1", "weather", '{"city": "Paris"}'), a.Use("toolu_2", "time"))
        usage = {
            "input_tokens": 20,
            "cache_read_input_tokens": 5,
            "output_tokens": 30,
            "output_tokens_details": {"thinking_tokens": 10},
        }
        return a.Answer(
            a.Thinking("The person wants to know two things."), a.Said("Let me look."), *calls, usage=usage
        )
    parts = (
        g.Call("weather", {"city": "Paris"}, id="c1", signature=g.SIGNATURE),
        g.Call("time", {}, id="c2"),
    )
    usage = {
        "promptTokenCount": 25,
        "candidatesTokenCount": 20,
        "thoughtsTokenCount": 10,
        "cachedContentTokenCount": 5,
        "totalTokenCount": 55,
    }
    return g.Answer(
        g.Thought("The person wants to know two things."), g.Said("Let me look."), *parts, usage=usage
    )


def saying(provider: str, text: str) -> Any:
    return a.Answer(a.Said(text)) if provider == "anthropic" else g.Answer(g.Said(text))


def question(api: Api, **fields: Any) -> dict[str, Any]:
    effort: dict[str, Any] = (
        {"reasoning_effort": "low"} if api == "chat" else {"reasoning": {"effort": "low"}}
    )
    return {
        "messages" if api == "chat" else "input": [{"role": "user", "content": "Paris?"}],
        "tools": TOOLS[api],
        **effort,
        **fields,
    }


def calls_of(body: dict[str, Any], api: Api) -> list[tuple[str, str, Any]]:
    if api == "chat":
        calls = body["choices"][0]["message"]["tool_calls"]
        return [
            (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in calls
        ]
    return [
        (item["call_id"], item["name"], json.loads(item["arguments"]))
        for item in body["output"]
        if item["type"] == "function_call"
    ]


def text_of(body: dict[str, Any], api: Api) -> str:
    if api == "chat":
        return str(body["choices"][0]["message"]["content"])
    return "".join(
        part["text"] for item in body["output"] if item["type"] == "message" for part in item["content"]
    )


def thoughts_of(body: dict[str, Any], api: Api) -> str:
    if api == "chat":
        return str(body["choices"][0]["message"].get("reasoning_content"))
    return "".join(
        part["text"] for item in body["output"] if item["type"] == "reasoning" for part in item["summary"]
    )


def continued(
    asked: dict[str, Any], body: dict[str, Any], api: Api, results: dict[str, str]
) -> dict[str, Any]:
    """The next request as a client writes it: the answer unchanged, and the results."""
    if api == "chat":
        answered = [
            {"role": "tool", "tool_call_id": id, "content": results[name]}
            for id, name, _ in calls_of(body, api)
        ]
        return {**asked, "messages": [*asked["messages"], body["choices"][0]["message"], *answered]}
    outputs = [
        {"type": "function_call_output", "call_id": id, "output": results[name]}
        for id, name, _ in calls_of(body, api)
    ]
    return {**asked, "input": [*asked["input"], *body["output"], *outputs]}


async def ask(table: Any, judge: Judge, api: Api, request: dict[str, Any], stream: bool) -> dict[str, Any]:
    if not stream:
        body: dict[str, Any] = await table.body(api, request)
        judge.body(body, api)
        return body
    raw = await table.stream(api, request)
    judge.stream(raw, api)
    return fold(raw, api)


# --- loops ---


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_tool_loop_of_three_requests(
    table: Any, judge: Judge, serving: Any, provider: str, api: Api, stream: bool
) -> None:
    answers = (calling(provider), saying(provider, "Sunny, at noon."), saying(provider, "You are welcome."))
    async with serving(provider, *answers, model=MODELS[provider]) as (backend, server):
        table.serve(backend)
        asked = question(api)
        first = await ask(table, judge, api, asked, stream)
        assert [call[1:] for call in calls_of(first, api)] == [("weather", {"city": "Paris"}), ("time", {})]
        assert (
            text_of(first, api) == "Let me look."
            and thoughts_of(first, api) == "The person wants to know two things."
        )
        again = continued(asked, first, api, {"weather": "sunny", "time": "noon"})
        second = await ask(table, judge, api, again, stream)
        assert text_of(second, api) == "Sunny, at noon."
        key = "messages" if api == "chat" else "input"
        answer = [second["choices"][0]["message"]] if api == "chat" else second["output"]
        third = await ask(
            table,
            judge,
            api,
            {**again, key: [*again[key], *answer, {"role": "user", "content": "Thanks!"}]},
            stream,
        )
        assert text_of(third, api) == "You are welcome." and not server.refused
        assert [thinks(provider, request.body) for request in server.requests] == [True, True, True]
        assert signed(provider, server.requests[1].body)


def thinks(provider: str, body: dict[str, Any]) -> bool:
    if provider == "anthropic":
        return bool(body.get("thinking", {}).get("type") == "enabled")
    return "thinkingConfig" in g.camel(body)["generationConfig"]


def signed(provider: str, body: dict[str, Any]) -> bool:
    if provider == "anthropic":
        return bool(body["messages"][1]["content"][0].get("signature") == a.Thinking("").signature)
    parts = g.camel(body)["contents"][1]["parts"]
    return g.SIGNATURE in [part.get("thoughtSignature") for part in parts]


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_gateway_without_memory_of_the_loop_continues_it(
    table: Any, judge: Judge, serving: Any, provider: str, api: Api
) -> None:
    async with serving(provider, calling(provider), saying(provider, "Sunny."), model=MODELS[provider]) as (
        backend,
        server,
    ):
        table.serve(backend)
        asked = question(api)
        first = await ask(table, judge, api, asked, stream=False)
        backend.memory = CallMemory()  # as after a restart
        second = await ask(
            table, judge, api, continued(asked, first, api, {"weather": "sunny", "time": "noon"}), stream=True
        )
        assert text_of(second, api) == "Sunny." and not server.refused
        if provider == "anthropic":
            assert "thinking" not in server.requests[1].body
        else:
            call = next(
                part
                for part in g.camel(server.requests[1].body)["contents"][1]["parts"]
                if "functionCall" in part
            )
            assert base64.b64decode(call["thoughtSignature"]) == b"skip_thought_signature_validator"


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_stored_response_continues_by_its_id(
    table_with: Callable[..., Any], tmp_path: Path, judge: Judge, serving: Any, provider: str
) -> None:
    store = Store(f"sqlite:///{tmp_path / 'store.db'}")
    await store.open()
    async with serving(provider, calling(provider), saying(provider, "Sunny."), model=MODELS[provider]) as (
        backend,
        server,
    ):
        table = table_with(store=store).serve(backend)
        first = await ask(table, judge, "responses", question("responses", store=True), stream=False)
        outputs = [
            {"type": "function_call_output", "call_id": id, "output": "ok"}
            for id, _, _ in calls_of(first, "responses")
        ]
        again = {**question("responses"), "input": outputs, "previous_response_id": first["id"]}
        assert text_of(await ask(table, judge, "responses", again, stream=True), "responses") == "Sunny."
        assert signed(provider, server.requests[1].body) and not server.refused
    await store.close()


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("provider", PROVIDERS)
async def test_streamed_and_whole_answers_are_the_same(
    table: Any, judge: Judge, serving: Any, provider: str, api: Api
) -> None:
    async with serving(provider, calling(provider), model=MODELS[provider]) as (backend, _):
        table.serve(backend)
        body = await table.body(api, question(api))
        options: dict[str, Any] = {"include_usage": True} if api == "chat" else {}
        raw = await table.stream(
            api, question(api, **({"stream_options": {"include_usage": True}} if api == "chat" else {}))
        )
    judge.body(body, api)
    judge.stream(raw, api, expected=body, **options)
    used = body["usage"]
    if api == "chat":
        counts = (
            used["prompt_tokens"],
            used["completion_tokens"],
            used["prompt_tokens_details"],
            used["completion_tokens_details"],
        )
    else:
        counts = (
            used["input_tokens"],
            used["output_tokens"],
            used["input_tokens_details"],
            used["output_tokens_details"],
        )
    assert counts[:2] == (25, 30) and counts[2]["cached_tokens"] == 5 and counts[3]["reasoning_tokens"] == 10


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_one_call_at_a_time_is_kept_by_the_gateway_where_the_provider_does_not(
    table: Any, judge: Judge, serving: Any, provider: str
) -> None:
    async with serving(provider, calling(provider), model=MODELS[provider]) as (backend, _):
        body = await ask(
            table.serve(backend), judge, "chat", question("chat", parallel_tool_calls=False), stream=True
        )
    assert [call[1] for call in calls_of(body, "chat")] == ["weather"]


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_emulated_tools_work_where_someone_wants_them(
    table: Any, judge: Judge, serving: Any, provider: str
) -> None:
    words = 'Let me look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    async with serving(provider, saying(provider, words), saying(provider, "Sunny."), tools="emulated") as (
        backend,
        server,
    ):
        table.serve(backend)
        asked = {**question("chat"), "reasoning_effort": "none"}
        first = await ask(table, judge, "chat", asked, stream=True)
        assert [call[1:] for call in calls_of(first, "chat")] == [("weather", {"city": "Paris"})]
        second = await ask(
            table, judge, "chat", continued(asked, first, "chat", {"weather": "sunny"}), stream=False
        )
        assert (
            text_of(second, "chat") == "Sunny."
            and not server.refused
            and "tools" not in server.requests[0].body
        )


# --- the rest of a turn ---


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_custom_call_of_a_tool_that_is_no_longer_offered_becomes_a_function_call(
    table: Any, serving: Any, provider: str
) -> None:
    history = [
        {"role": "user", "content": "Patch it."},
        {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin Patch"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
        {"role": "user", "content": "Make a title."},
    ]
    async with serving(provider, saying(provider, "A title"), model=MODELS[provider]) as (backend, server):
        await table.serve(backend).body("responses", {"input": history, "store": False})
    sent = server.requests[-1].body["messages" if provider == "anthropic" else "contents"][1]
    assert "{'input': '*** Begin Patch'}" in str(sent)


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_images_come_through_both_endpoints(
    table: Any, judge: Judge, serving: Any, provider: str
) -> None:
    async with serving(provider, saying(provider, "A picture.")) as (backend, server):
        table.serve(backend)
        chat = [
            {
                "role": "user",
                "content": [{"type": "text", "text": "?"}, {"type": "image_url", "image_url": {"url": PNG}}],
            }
        ]
        flat = [
            {
                "role": "user",
                "content": [{"type": "input_text", "text": "?"}, {"type": "input_image", "image_url": PNG}],
            }
        ]
        await ask(table, judge, "chat", {"messages": chat}, stream=False)
        await ask(table, judge, "responses", {"input": flat}, stream=True)
        assert [PNG.partition(",")[2] in json.dumps(request.body) for request in server.requests] == [
            True,
            True,
        ]


async def test_the_report_names_what_claude_does_not_have(table: Any, serving: Any) -> None:
    async with serving("anthropic", saying("anthropic", "Hi")) as (backend, _):
        fields = {"seed": 1, "temperature": 0.5, "logit_bias": {"1": 2}, "stop": ["END"], "max_tokens": 50}
        answer = await table.serve(backend).answer(
            "chat", {"messages": [{"role": "user", "content": "?"}], **fields}
        )
    assert dict(answer.headers)[b"x-toolwire-report"] == b"logit_bias=ignored; seed=ignored"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize(
    ("provider", "reply", "status", "code"),
    [
        ("anthropic", a.error(529, "Overloaded"), 503, "overloaded"),
        ("anthropic", a.error(429, "slow down", headers={"retry-after": "3"}), 429, "rate_limit_exceeded"),
        (
            "anthropic",
            a.error(400, "prompt is too long: 9 tokens > 8 maximum"),
            400,
            "context_length_exceeded",
        ),
        ("google", g.error(503, "The model is overloaded."), 503, "overloaded"),
        ("google", g.error(404, "models/x is not found"), 404, "model_not_found"),
    ],
)
async def test_a_refused_turn_is_an_openai_error_before_the_first_byte(
    table: Any,
    judge: Judge,
    serving: Any,
    provider: str,
    reply: Any,
    status: int,
    code: str,
    api: Api,
    stream: bool,
) -> None:
    async with serving(provider, reply, model=MODELS[provider]) as (backend, _):
        with pytest.raises(ToolwireError) as caught:
            await table.serve(backend).answer(api, question(api, stream=stream))
    body = error_object(caught.value.failure)
    judge.error(status_of(caught.value.failure), body)
    assert (status_of(caught.value.failure), body["error"]["code"]) == (status, code)


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_failing_stream_reports_the_providers_error(
    table: Any, judge: Judge, serving: Any, provider: str, api: Api
) -> None:
    broken: Any = a.Answer(a.Said("Half"), error=("overloaded_error", "Overloaded"))
    if provider == "google":
        broken = g.Answer(g.Said("Half"), error=(503, "The model is overloaded."))
    async with serving(provider, broken, model=MODELS[provider]) as (backend, _):
        raw = await table.serve(backend).stream(api, question(api))
    judge.stream(raw, api)
    assert b"while streaming" in raw


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_client_that_disconnects_ends_the_run_at_the_provider(
    table: Any, serving: Any, provider: str
) -> None:
    hanging: Any = (
        a.Answer(a.Said("Half"), stop="", ending="hang")
        if provider == "anthropic"
        else g.Answer(g.Said("Half"), finish="", ending="hang")
    )
    async with serving(provider, hanging) as (backend, server):
        answer = await table.serve(backend).answer(
            "chat", {**question("chat"), "reasoning_effort": "none", "stream": True}
        )
        async with aclosing(answer.stream) as stream:
            await anext(stream)
        async with asyncio.timeout(5):
            await server.gone.wait()


async def test_a_model_of_the_settings_is_served_over_http(on_a_socket: Any, serving: Any) -> None:
    import aiohttp

    async with serving("anthropic", calling("anthropic")) as (backend, _):
        gateway = Gateway(Settings(), backends={"claude": backend})
        async with on_a_socket(gateway, Settings()) as url, aiohttp.ClientSession() as session:
            async with session.post(
                f"{url}/v1/chat/completions", json={"model": "claude", **question("chat")}
            ) as answer:
                body = await answer.json()
    assert answer.status == 200 and [call[1] for call in calls_of(body, "chat")] == ["weather", "time"]


async def test_two_callers_are_served_at_once(table: Any, serving: Any) -> None:
    async with serving("google", *[saying("google", f"{number}") for number in range(8)]) as (backend, _):
        table.serve(backend)
        bodies = await asyncio.gather(
            *(table.body("chat", {"messages": [{"role": "user", "content": "?"}]}) for _ in range(8))
        )
    assert sorted(text_of(body, "chat") for body in bodies) == [f"{number}" for number in range(8)]


# --- tool_choice ---


def one_call(provider: str, name: str) -> Any:
    return (
        a.Answer(a.Use("toolu_1", name, "{}"))
        if provider == "anthropic"
        else g.Answer(g.Call(name, {}, id="c1", signature=g.SIGNATURE))
    )


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("provider", PROVIDERS)
async def test_a_tool_choice_that_the_provider_does_not_obey_is_enforced(
    serving: Any, table: Any, provider: str, stream: bool
) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    for choice, first in (("required", saying(provider, "No.")), (named, one_call(provider, "time"))):
        async with serving(provider, first, one_call(provider, "weather"), model=MODELS[provider]) as (
            backend,
            server,
        ):
            said = await table.serve(backend).answer(
                "chat", question("chat", tool_choice=choice, stream=stream)
            )
            assert b"tool_choice=retried" in dict(said.headers)[b"x-toolwire-report"]
            raw = said.body if said.body is not None else b"".join([block async for block in said.stream])
            assert b'"weather"' in raw and b'"time"' not in raw and len(server.requests) == 2
        async with serving(provider, first, model=MODELS[provider]) as (backend, server):
            with pytest.raises(ToolwireError) as failed:
                await table.serve(backend).answer("chat", question("chat", tool_choice=choice, stream=stream))
            assert failed.value.failure.kind == "no_tool_call" and len(server.requests) == 2

"""Real agents through the gateway, with scripted models: OpenCode, Gemini CLI and Codex over ACP."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from doubles.google import DEFAULT_KEY, SIGNATURE, Answer, Call, FakeGoogle, Said
from toolwire.backends.acp import AcpBackend, AcpOptions, inspect
from toolwire.testing.upstream import FakeUpstream, Recorded, Reply, answer

Talks = Callable[..., Any]
LONG = "TOOLWIRE_ACP_PARK_S" in os.environ
"""`make evidence` sets it: the wait is long, and there is an agent for every way to ask."""
PARK_S = float(os.environ.get("TOOLWIRE_ACP_PARK_S", "8"))
pytestmark = pytest.mark.timeout(280 + PARK_S)
ONE_CALL = [("chat", True), ("responses", False)] + LONG * [("chat", False), ("responses", True)]
"""API, and whether the answer is streamed."""
TWO_CALLS = [False] + LONG * [True]
"""Whether the answer is streamed."""
USAGE = {
    "prompt_tokens": 21,
    "completion_tokens": 6,
    "total_tokens": 27,
    "prompt_tokens_details": {"cached_tokens": 5},
}


@pytest.fixture
def opencode(real_agent: Callable[[str, str], str], backends: list[AcpBackend]) -> Callable[..., AcpBackend]:
    """`opencode(upstream)`: the real agent, which its operator has allowed everything."""
    program = real_agent("opencode", "opencode")

    def make(upstream: FakeUpstream, **options: Any) -> AcpBackend:
        models = {"m": {"name": "m", "tool_call": True}}
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Scripted",
            "options": {"baseURL": upstream.base_url, "apiKey": "k"},
            "models": models,
        }
        config = {
            "model": "scripted/m",
            "provider": {"scripted": provider},
            "permission": {"bash": "allow", "edit": "allow", "*": "allow"},
            "tools": {"bash": True, "write": True},
            "agent": {"build": {"permission": {"bash": "allow"}, "tools": {"bash": True}}},
        }
        env = {"OPENCODE_CONFIG_CONTENT": json.dumps(config)}
        backends.append(
            AcpBackend("m", AcpOptions((program, "acp"), env=env, start_timeout_s=200, **options))
        )
        return backends[-1]

    return make


class Model:
    """A model that makes the client's calls and forbidden ones, and then reports the results."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __call__(self, recorded: Recorded) -> Reply:
        messages = recorded.body["messages"]
        asked = next(place for place in range(len(messages) - 1, -1, -1) if messages[place]["role"] == "user")
        results = [message["content"] for message in messages[asked:] if message["role"] == "tool"]
        if results:
            heard = [result for result in results if "unavailable tool" not in result]
            return Reply.stream(answer(text=f"I heard: {', '.join(heard)}.", usage=USAGE))
        touch = json.dumps({"command": f"touch {self.canary}", "description": "x"})
        write = json.dumps({"filePath": str(self.canary), "content": "x"})
        own = (
            [("o1", "bash", touch), ("o2", "write", write)]
            if "trick" in str(messages[asked]["content"])
            else []
        )
        cities = [
            word.strip(".?")
            for word in str(messages[asked]["content"]).split()
            if word.istitle() and word.strip(".?") in ("Oslo", "Rome")
        ]
        calls = [
            (f"c{place}", "client_get_weather", json.dumps({"city": city}))
            for place, city in enumerate(cities)
        ]
        return Reply.stream(
            answer(text="Let me look.", calls=[*calls, *own])
            if calls or own
            else answer(text="Nothing to do.", usage=USAGE)
        )


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return Model(tmp_path / "canary")


async def test_opencode_parks_calls_and_continues_on_every_api(
    opencode: Any, talk: Talks, model: Model
) -> None:
    """Several agents at once, as each takes seconds to start: both APIs, streamed and not, parallel calls."""

    async def one_call(backend: AcpBackend, api: str, stream: bool) -> None:
        client = talk(backend, api, stream, ("get_weather", "bash"))
        first = await client.say(f"The weather in Oslo? And a trick. {api} {stream}")
        assert (first.kind, first.text, first.calls) == (
            "new",
            "Let me look.",
            [("get_weather", {"city": "Oslo"})],
        )
        await asyncio.sleep(PARK_S)
        second = await client.answer("cold")
        assert (second.kind, second.text, second.calls) == ("resumed", "I heard: cold.", [])
        if not stream:
            usage = second.body["usage"]
            assert (usage["total_tokens"], usage.get("prompt_tokens", usage.get("input_tokens"))) == (27, 21)

    async def two_calls(backend: AcpBackend, stream: bool) -> None:
        client = talk(backend, "chat", stream, ("get_weather", "bash"))
        first = await client.say(f"The weather in Oslo and Rome? {stream}")
        assert (first.text, first.calls) == (
            "Let me look.",
            [("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Rome"})],
        )
        second = await client.answer("cold", "warm")
        assert (second.kind, second.text) == ("resumed", "I heard: cold, warm.")
        assert (await client.say("Thank you.")).text == "Nothing to do."

    async with FakeUpstream(model) as upstream:
        backend = opencode(
            upstream, settle_ms=9000
        )  # the agents share the machine, so two calls of one answer may be seconds apart
        talks = [one_call(backend, api, stream) for api, stream in ONE_CALL]
        await asyncio.gather(*talks, *(two_calls(backend, stream) for stream in TWO_CALLS))
        asked = [recorded.body for recorded in upstream.requests if recorded.body is not None]
        assert len(asked) == 2 * len(ONE_CALL) + 3 * len(TWO_CALLS)
        for body in asked:  # the model sees only the client's tools
            assert sorted(tool["function"]["name"] for tool in body["tools"]) == [
                "client_bash",
                "client_get_weather",
            ]
            assert body["messages"][0]["content"].startswith("You are a helpful assistant.")
        thanks = next(body["messages"] for body in asked if body["messages"][-1]["content"] == "Thank you.")
        assert [message["role"] for message in thanks] == [
            "system",
            "user",
            "assistant",
            "tool",
            "tool",
            "assistant",
            "user",
        ]
    assert not model.canary.exists()


async def test_opencode_reports_the_error_of_its_provider(opencode: Any, talk: Talks) -> None:
    async with FakeUpstream(
        Reply.error(401, "Incorrect API key provided: sk-abcdefghijklmn.", "invalid_api_key")
    ) as upstream:
        failure = await talk(opencode(upstream)).failure("Hello.")
    assert (
        failure.kind == "backend_auth"
        and "opencode auth login" in failure.message
        and "sk-abcdef" not in failure.message
    )


# --- Gemini CLI ---


async def test_gemini_without_a_key_reports_it(
    real_agent: Any, talk: Talks, backends: list[AcpBackend]
) -> None:
    options = AcpOptions((real_agent("gemini", "gemini"), "--acp"), start_timeout_s=120)
    backends.append(AcpBackend("m", options))
    failure = await talk(backends[0], tools=("get_weather",)).failure("Hello.")
    assert failure.kind == "backend_auth" and "GEMINI_API_KEY" in failure.message
    title, problem = await inspect(options)
    assert title == "Gemini CLI" and "GEMINI_API_KEY" in problem


async def test_gemini_calls_the_clients_tool_and_not_its_own_tools(
    real_agent: Any, talk: Talks, backends: list[AcpBackend], tmp_path: Path
) -> None:
    canary = tmp_path / "canary"
    calls = [
        Call("mcp_client_get_weather", {"city": "Oslo"}, signature=SIGNATURE),
        Call("run_shell_command", {"command": f"touch {canary}"}),
    ]
    async with FakeGoogle(Answer(Said("Let me look."), *calls), Answer(Said("It is cold."))) as google:
        env = {"GEMINI_API_KEY": DEFAULT_KEY, "GOOGLE_GEMINI_BASE_URL": google.base_url}
        options = AcpOptions(
            (real_agent("gemini", "gemini"), "--acp"), env=env, model="gemini-2.5-flash", start_timeout_s=120
        )
        backends.append(AcpBackend("m", options))
        client = talk(backends[0], tools=("get_weather",))
        first = await client.say("Weather?")
        assert (first.text, first.calls) == ("Let me look.", [("get_weather", {"city": "Oslo"})])
        second = await client.answer("cold")
        assert (second.kind, second.text) == ("resumed", "It is cold.")
        for recorded in google.requests:
            names = [
                one["name"] for tool in recorded.body["tools"] for one in tool.get("functionDeclarations", ())
            ]
            assert names == ["mcp_client_get_weather"]
    assert not canary.exists()


# --- Codex over ACP ---


async def test_codex_acp_without_a_login_reports_it(
    real_agent: Any, talk: Talks, backends: list[AcpBackend]
) -> None:
    backends.append(AcpBackend("m", AcpOptions((real_agent("codex-acp", "codex-acp"),), start_timeout_s=120)))
    failure = await talk(backends[0], tools=("get_weather",)).failure("Hello.")
    assert (
        failure.kind == "backend_auth"
        and "OPENAI_API_KEY" in failure.message
        and "Authentication required" in failure.message
    )


@asynccontextmanager
async def responses_provider(*answers: list[dict[str, Any]]) -> AsyncIterator[tuple[str, list[Any]]]:
    """A server of the Responses API that returns one list of items after another."""
    seen: list[Any] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        seen.append(await request.json())
        stream = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await stream.prepare(request)
        items = answers[min(len(seen), len(answers)) - 1]
        events: list[dict[str, Any]] = [{"type": "response.created", "response": {"id": "r"}}]
        events += [
            {"type": "response.output_item.done", "output_index": place, "item": item}
            for place, item in enumerate(items)
        ]
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        for event in [*events, {"type": "response.completed", "response": {"id": "r", "usage": usage}}]:
            await stream.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        return stream

    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/responses", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1", seen
    finally:
        await runner.cleanup()


async def test_codex_acp_calls_the_clients_tool_and_no_shell(
    real_agent: Any, talk: Talks, backends: list[AcpBackend], tmp_path: Path
) -> None:
    canary = tmp_path / "canary"
    touch = json.dumps({"cmd": f"touch {canary}", "command": ["touch", str(canary)]})
    patch = f"*** Begin Patch\n*** Add File: {canary}\n+x\n*** End Patch"
    calls: list[dict[str, Any]] = [
        {
            "type": "function_call",
            "id": "f1",
            "call_id": "c1",
            "name": "get_weather",
            "namespace": "mcp__client",
            "arguments": '{"city": "Oslo"}',
        },
        *(
            {
                "type": "function_call",
                "id": f"f{name}",
                "call_id": f"c{name}",
                "name": name,
                "arguments": touch,
            }
            for name in ("exec_command", "shell")
        ),
        {"type": "custom_tool_call", "id": "fp", "call_id": "cp", "name": "apply_patch", "input": patch},
    ]
    said = {
        "type": "message",
        "id": "m1",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "It is cold.", "annotations": []}],
    }
    async with responses_provider(calls, [said]) as (base_url, seen):
        provider = (
            f'model_providers.p={{name="p", base_url="{base_url}", wire_api="responses", '
            'env_key="PROVIDER_KEY", stream_max_retries=0}'
        )
        command = (real_agent("codex-acp", "codex-acp"), "-c", 'model_provider="p"', "-c", provider)
        env = {"PROVIDER_KEY": "key-0123456789", "OPENAI_API_KEY": "sk-0123456789"}
        backends.append(AcpBackend("m", AcpOptions(command, env=env, start_timeout_s=120)))
        client = talk(backends[0], tools=("get_weather",))
        assert (await client.say("Weather?")).calls == [("get_weather", {"city": "Oslo"})]
        second = await client.answer("cold")
        assert second.kind == "resumed" and second.text.endswith("It is cold.")
        names = {tool.get("name", tool["type"]) for body in seen for tool in body["tools"]}
        assert "mcp__client" in names and not names & {
            "shell",
            "exec_command",
            "write_stdin",
            "local_shell",
            "web_search",
        }
        outputs = {
            item["call_id"]: str(item["output"])
            for item in seen[-1]["input"]
            if item["type"] == "function_call_output"
        }
        assert "cold" in outputs["c1"] and all(
            "unsupported" in outputs[f"c{name}"] for name in ("exec_command", "shell")
        )
    assert not canary.exists()

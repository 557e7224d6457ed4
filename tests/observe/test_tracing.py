"""Spans of turns: they follow the conventions for generative AI, without contents by default."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest
from aiohttp import web
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from toolwire.core.errors import ToolwireError
from toolwire.gateway.pipeline import Caller, Gateway
from toolwire.observe.tracing import Tracing, tracing_of
from toolwire.settings.types import ConfigError, ModelSettings, Settings, TelemetrySettings
from toolwire.testing import ScriptedBackend, ScriptedOptions

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("get_weather", "get_time")
]
CALLS = 'call get_weather {"city":"Paris"}\ncall get_time {}\nusage 12 3'
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
MODELS = (
    ModelSettings(
        "m",
        "openai",
        {"profile": "ollama", "base_url": "http://10.0.0.9:11434/v1", "api_key": "the-upstream-key"},
    ),
)


class Watched:
    """A gateway whose spans are kept in memory."""

    def __init__(self, script: str, **telemetry: Any) -> None:
        settings = Settings(models=MODELS, telemetry=TelemetrySettings("http://127.0.0.1:4318", **telemetry))
        self.spans = InMemorySpanExporter()
        self.gateway = Gateway(
            settings, backends={"m": ScriptedBackend("m", ScriptedOptions(script=script, tools="native"))}
        )
        self.tracing = Tracing(settings, self.spans, at_once=True)
        self.gateway.observers.append(self.tracing.observe)

    async def ask(self, parent: str = "", request_id: str = "req_1", **body: Any) -> ReadableSpan:
        raw = json.dumps(
            {"model": "m", "messages": [{"role": "user", "content": "my key is the-upstream-key"}], **body}
        ).encode()
        try:
            answer = await self.gateway.respond(
                "chat", raw, Caller("key_1", request_id, key_name="laptop", trace_parent=parent)
            )
            if answer.stream is not None:
                assert b"".join([block async for block in answer.stream])
        except ToolwireError:
            pass
        await self.gateway.close()
        await self.tracing.close()
        (span,) = self.spans.get_finished_spans()
        return span


async def test_a_turn_is_a_span_with_the_conventions_names() -> None:
    span = await Watched(CALLS).ask(
        tools=TOOLS, stream=True, temperature=0.5, max_completion_tokens=100, stop=["END"], seed=4
    )
    told = dict(span.attributes or {})
    assert (
        span.name == "chat m" and span.kind is SpanKind.CLIENT and span.status.status_code is StatusCode.UNSET
    )
    for name, value in {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "ollama",
        "gen_ai.request.model": "m",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 100,
        "gen_ai.request.stop_sequences": ("END",),
        "gen_ai.request.seed": 4,
        "gen_ai.request.stream": True,
        "gen_ai.response.finish_reasons": ("tool_calls",),
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.output_tokens": 3,
        "server.address": "10.0.0.9",
        "server.port": 11434,
        "toolwire.strategy": "native",
        "toolwire.request.id": "req_1",
        "toolwire.key.id": "key_1",
        "toolwire.key.name": "laptop",
        "toolwire.tool_calls.count": 2,
    }.items():
        assert told[name] == value, name
    assert (
        str(told["gen_ai.response.id"]).startswith("chatcmpl-")
        and float(str(told["gen_ai.response.time_to_first_chunk"])) > 0
    )
    assert span.start_time is not None and span.end_time is not None and span.start_time < span.end_time
    assert span.resource.attributes["service.name"] == "toolwire"


async def test_each_tool_call_is_an_event_within_its_turn() -> None:
    span = await Watched(CALLS).ask(tools=TOOLS)
    events = [(event.name, dict(event.attributes or {})["gen_ai.tool.name"]) for event in span.events]
    assert events == [("gen_ai.tool.call", "get_weather"), ("gen_ai.tool.call", "get_time")]
    assert span.start_time is not None and span.end_time is not None
    assert all(span.start_time <= event.timestamp <= span.end_time for event in span.events)


async def test_a_span_contains_no_messages() -> None:
    span = await Watched("say the answer\n" + CALLS).ask(tools=TOOLS)
    whole = span.to_json()
    assert not any(word in whole for word in ("my key", "the answer", "Paris", "the-upstream-key"))


async def test_ids_and_names_that_a_client_chose_are_masked() -> None:
    name = "sk-proj-abcdefghijklmnopqrstuvwxyz012345"
    tool = {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    span = await Watched(f"call {name} {{}}").ask(
        request_id="the-upstream-key", tools=[tool], stop=["the-upstream-key"]
    )
    assert (
        dict(span.attributes or {})["toolwire.request.id"]
        == dict(span.events[0].attributes or {})["gen_ai.tool.name"]
        == "***"
    )
    assert name not in span.to_json() and "the-upstream-key" not in span.to_json()


async def test_contents_in_a_span_are_masked() -> None:
    span = await Watched("say it is the-upstream-key\n" + CALLS, with_contents=True).ask(tools=TOOLS)
    told = dict(span.attributes or {})
    assert json.loads(str(told["gen_ai.input.messages"])) == [
        {"role": "user", "parts": [{"type": "text", "content": "my key is ***"}]}
    ]
    (answer,) = json.loads(str(told["gen_ai.output.messages"]))
    assert answer["parts"][0] == {"type": "text", "content": "it is ***"}
    assert {**answer["parts"][1], "id": None} == {
        "type": "tool_call",
        "id": None,
        "name": "get_weather",
        "arguments": '{"city":"Paris"}',
    }


async def test_a_traceparent_is_the_parent_and_an_invalid_one_is_ignored() -> None:
    span = await Watched("say hi").ask(parent=PARENT)
    assert span.parent is not None and f"{span.parent.span_id:016x}" == "b7ad6b7169203331"
    assert span.context is not None and f"{span.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert (await Watched("say hi").ask(parent="00-nonsense")).parent is None


async def test_a_turn_that_fails_is_a_span_with_its_kind_of_error() -> None:
    span = await Watched("say hi").ask(model="nobody")
    assert (
        span.status.status_code is StatusCode.ERROR
        and dict(span.attributes or {})["error.type"] == "model_not_found"
    )
    assert span.name == "chat"  # a model name that a client invented is not used


async def test_spans_go_to_the_collector_by_otlp() -> None:
    got: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()

    async def take(request: web.Request) -> web.Response:
        got.put_nowait((request.path, await request.read()))
        return web.Response()

    app = web.Application()
    app.router.add_post("/{path:.*}", take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    settings = Settings(
        models=MODELS, telemetry=TelemetrySettings(f"http://127.0.0.1:{runner.addresses[0][1]}")
    )
    gateway = Gateway(settings, backends={"m": ScriptedBackend("m", ScriptedOptions(script="say hi"))})
    try:
        await gateway.start()
        await gateway.respond(
            "chat", b'{"model": "m", "messages": [{"role": "user", "content": "x"}]}', Caller()
        )
    finally:
        await gateway.close()  # sends the remaining spans
    path, body = await got.get()
    assert path == "/v1/traces" and b"gen_ai.request.model" in body
    await runner.cleanup()


async def test_an_unreachable_collector_fails_no_turn() -> None:
    settings = Settings(models=MODELS, telemetry=TelemetrySettings("http://127.0.0.1:9"))
    gateway = Gateway(settings, backends={"m": ScriptedBackend("m", ScriptedOptions(script="say hi"))})
    await gateway.start()
    answer = await gateway.respond(
        "chat", b'{"model": "m", "messages": [{"role": "user", "content": "x"}]}', Caller()
    )
    assert answer.body is not None
    await gateway.close()


@pytest.mark.process
def test_without_the_setting_the_sdk_is_not_imported() -> None:
    assert tracing_of(Settings()) is None
    program = (
        "import sys, toolwire.gateway.pipeline; sys.exit(any(name.startswith('opentelemetry') for name in "
        "sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("where", ["collector:4318", "ftp://collector", "http://"])
def test_an_invalid_collector_url_is_refused(where: str) -> None:
    with pytest.raises(ConfigError, match=r"telemetry\.otlp"):
        tracing_of(Settings(telemetry=TelemetrySettings(where)))

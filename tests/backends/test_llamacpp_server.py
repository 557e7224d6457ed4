"""A real llama.cpp HTTP server as an upstream: native, constrained and emulated tool loops.

The server is xllamacpp's, in its own process, with the smallest available model. That model has never seen a
tool, so the server gets a template that shows it two calls; the server's own grammar and parser do the rest.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from doubles.judges import Judge
from toolwire.backends.openai import OpenAIBackend
from toolwire.backends.openai import backend as backends
from toolwire.backends.openai.discover import ServerProbe, identify, list_models
from toolwire.backends.openai.profiles import PROFILES
from toolwire.settings.extras import add_extra

SERVER = """
import sys
import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.model_alias = {"smol"} if isinstance(params.model_alias, set) else "smol"
params.n_ctx, params.n_parallel, params.warmup = 4096, 1, False
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1  # two wait for each other on a busy machine
params.use_jinja = sys.argv[2] == "jinja"
params.chat_template = sys.argv[3]
params.port = 0
server = xllamacpp.Server(params)
print("listening", server.listening_address, flush=True)
sys.stdin.read()
"""

TEMPLATE = """
{%- if tools %}
{{- '<|im_start|>system\\nYou call tools. Tools:\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
{{- '\\n</tools>\\nEvery answer is\\n<tool_call>\\n' }}
{{- '{"name": ..., "arguments": ...}\\n</tool_call><|im_end|>\\n' }}
{{- '<|im_start|>user\\nWhat is the time in Rome?<|im_end|>\\n<|im_start|>assistant\\n<tool_call>\\n' }}
{{- '{"name": "clock", "arguments": {"place": "Rome"}}\\n</tool_call><|im_end|>\\n' }}
{{- '<|im_start|>user\\nFind the mayor of Oslo.<|im_end|>\\n<|im_start|>assistant\\n<tool_call>\\n' }}
{{- '{"name": "find", "arguments": {"what": "mayor of Oslo"}}\\n</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- elif message.tool_calls %}
{{- '<|im_start|>assistant\\n' }}{%- if message.content %}{{- message.content }}{%- endif %}
{%- for call in message.tool_calls %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def missing(what: str) -> None:
    pytest.skip(what)


def model() -> Path:
    """The GGUF file to serve."""
    named = os.environ.get("TOOLWIRE_TEST_GGUF")
    if named:
        return Path(named)
    if importlib.util.find_spec("toolwire.backends.local") is None:
        missing("no GGUF file: set TOOLWIRE_TEST_GGUF")
    pull = importlib.import_module("toolwire.backends.local.pull")
    return Path(pull.default_path())


@contextmanager
def llama_server(jinja: str) -> Iterator[str]:
    if importlib.util.find_spec("xllamacpp") is None:
        missing(f"xllamacpp is not installed: {add_extra('local')}")
    path = model()
    if not path.exists():
        missing(f"no GGUF file at {path}: run toolwire local pull")
    command = [sys.executable, "-c", SERVER, str(path), jinja, TEMPLATE]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            address = next((line.split()[1] for line in process.stdout if line.startswith("listening ")), "")
            assert address, f"the server did not start: exit status {process.wait(10)}"
            yield f"{address}/v1"
        finally:
            process.kill()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with llama_server("jinja") as address:
        yield address


@pytest.fixture(scope="module")
def refusing_server() -> Iterator[str]:
    """The same server without --jinja, which refuses tools."""
    with llama_server("plain") as address:
        yield address


def earlier(call_id: str, city: str, weather: str) -> list[dict[str, Any]]:
    """An earlier round of the conversation: so small a model imitates what it sees."""
    call = {
        "id": call_id,
        "type": "function",
        "function": {"name": "get_weather", "arguments": json.dumps({"city": city})},
    }
    return [
        {"role": "user", "content": f"What is the weather in {city}?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": f"{weather}."},
        {"role": "assistant", "content": f"The weather in {city} is {weather}."},
    ]


BEFORE = [*earlier("call_1", "Rome", "rainy"), *earlier("call_2", "Oslo", "snowy")]


def request(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    asked = {"role": "user", "content": "What is the weather in Paris?"}
    before = fields.pop("before", [])
    return {
        "messages": [*before, asked, *messages],
        "tools": [WEATHER],
        "temperature": 0,
        "max_tokens": 60,
        "parallel_tool_calls": False,
        **fields,
    }


def way(backend: OpenAIBackend) -> str:
    return backend.strategy


def check(choice: dict[str, Any]) -> dict[str, Any]:
    """The call of an answer, checked against its schema."""
    (call,) = choice["message"]["tool_calls"]
    assert (
        choice["finish_reason"] == "tool_calls" and call["function"]["name"] == "get_weather" and call["id"]
    )
    arguments = json.loads(call["function"]["arguments"])
    assert set(arguments) == {"city"} and isinstance(arguments["city"], str) and len(arguments["city"]) <= 20
    return dict(call)


async def constrained(server: str, monkeypatch: pytest.MonkeyPatch) -> OpenAIBackend:
    """A backend that knows how this server's decoder is constrained: a busy server is asked again."""
    monkeypatch.setattr(backends, "ASK_AGAIN_S", 0)
    backend = OpenAIBackend("m", {"base_url": server, "tools": "constrained"})
    async with asyncio.timeout(60):
        while backend.capabilities.constrain != {"text", "call"}:
            await backend.prepare()
            await asyncio.sleep(0.05)  # so that the time limit also holds without further requests
    return backend


async def test_the_server_is_recognised_and_says_what_it_has(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aiohttp.ClientSession() as session:
        assert await identify(ServerProbe(server, session)) is PROFILES["llamacpp"]
        (listed,) = await list_models(ServerProbe(server, session), PROFILES["llamacpp"])
        assert listed.id == "smol" and listed.tools is True and listed.context == 4096
    backend = await constrained(server, monkeypatch)
    assert backend.profile.name == "llamacpp"
    await backend.close()


@pytest.mark.parametrize("tools", ["native", "constrained", "emulated"])
async def test_a_tool_loop_of_two_requests_is_completed(
    server: str, table: Any, judge: Judge, tools: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tools == "constrained":
        backend = await constrained(server, monkeypatch)
    else:
        backend = OpenAIBackend("m", {"base_url": server, "tools": tools})
    table.serve(backend)
    before = [] if tools == "native" else BEFORE  # else it would call again instead of answering
    body = await table.body("chat", request(tool_choice="required", before=before))
    judge.body(body, "chat")
    call = check(body["choices"][0])

    raw = await table.stream("chat", request(tool_choice="required", before=before))
    judge.stream(raw, "chat")
    assert b'"get_weather"' in raw and b'"finish_reason":"tool_calls"' in raw

    result = {"role": "tool", "tool_call_id": call["id"], "content": "Sunny, 21 degrees."}
    body = await table.body(
        "chat",
        request(
            {"role": "assistant", "content": None, "tool_calls": [call]}, result, before=before, max_tokens=40
        ),
    )
    judge.body(body, "chat")
    choice = body["choices"][0]
    assert choice["finish_reason"] in ("stop", "length") and choice["message"]["content"].strip()
    await backend.close()


async def test_under_auto_an_answer_is_text_or_a_valid_call_where_the_decoder_is_held(
    server: str, table: Any, judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = await constrained(server, monkeypatch)
    body = await table.serve(backend).body("chat", request(before=BEFORE))
    judge.body(body, "chat")
    choice = body["choices"][0]
    if choice["finish_reason"] == "tool_calls":
        check(choice)
    else:
        assert choice["finish_reason"] == "length" or choice["message"]["content"]
    await backend.close()


async def test_a_server_that_refuses_tools_is_healed_within_one_request(
    refusing_server: str, table: Any, judge: Judge
) -> None:
    backend = OpenAIBackend("m", {"base_url": refusing_server})
    await backend.prepare()
    assert way(backend) == "native", "its template takes tools; only the answer shows that it does not"
    body = await table.serve(backend).body("chat", request(max_tokens=20))
    judge.body(body, "chat")
    assert way(backend) == "constrained" and body["usage"]["completion_tokens"] > 0
    body = await table.body("chat", request(tool_choice="required"))
    judge.body(body, "chat")
    call = check(body["choices"][0])
    result = {"role": "tool", "tool_call_id": call["id"], "content": "Sunny, 21 degrees."}
    body = await table.body(
        "chat", request({"role": "assistant", "content": None, "tool_calls": [call]}, result, max_tokens=40)
    )
    judge.body(body, "chat")
    await backend.close()

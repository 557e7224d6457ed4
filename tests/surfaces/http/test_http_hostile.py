"""The whole server against malformed requests, garbage and bad clients over a real socket."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import random
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from toolwire.backends.openai import OpenAIBackend, OpenAIOptions
from toolwire.gateway.pipeline import Gateway
from toolwire.settings.types import ModelSettings, ServerSettings, Settings
from toolwire.store.store import Store
from toolwire.testing import ScriptedBackend, ScriptedOptions
from toolwire.testing.upstream import FakeUpstream, Reply, answer

_spec = importlib.util.spec_from_file_location(
    "malformed_cases", Path(__file__).parents[2] / "wire" / "malformed_table.py"
)
assert _spec is not None and _spec.loader is not None
TABLE = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = TABLE
_spec.loader.exec_module(TABLE)


Served = Callable[..., AbstractAsyncContextManager[str]]


@pytest.fixture
def served(on_a_socket: Served) -> Served:
    """`async with served({id: backend}, **server settings) as url`."""

    def start(backends: dict[str, Any], **server: Any) -> AbstractAsyncContextManager[str]:
        settings = Settings(
            server=ServerSettings(**server), models=tuple(ModelSettings(id, "scripted") for id in backends)
        )
        store = Store("sqlite://")
        return on_a_socket(Gateway(settings, store=store, backends=backends), settings, store)

    return start


def demo() -> dict[str, Any]:
    return {TABLE.MODEL: ScriptedBackend(TABLE.MODEL)}


async def test_every_malformed_request_gets_its_error_over_http_and_the_server_lives(served: Served) -> None:
    wrong = []
    async with served(demo()) as url, aiohttp.ClientSession() as client:
        for case in TABLE.CASES:
            async with client.post(
                url + case.path, data=case.body, headers={"Content-Type": "application/json"}
            ) as response:
                error = (await response.json())["error"]
                got = (response.status, error["type"], error["param"], error["code"])
                if got != (case.status, case.type, case.param, case.code) or "Traceback" in error["message"]:
                    wrong.append((case.id, got))
        async with client.post(
            url + "/v1/chat/completions",
            json={"model": TABLE.MODEL, "messages": [{"role": "user", "content": "hi"}]},
        ) as response:
            assert response.status == 200
    assert wrong == []
    assert len(TABLE.CASES) >= 60


async def test_random_bytes_never_give_a_500(served: Served) -> None:
    chance = random.Random(7)
    valid = json.dumps(
        {
            "model": TABLE.MODEL,
            "messages": [{"role": "user", "content": "hi"}],
            "tools": [{"type": "function", "name": "f"}],
        }
    ).encode()
    statuses = set()
    async with served(demo()) as url, aiohttp.ClientSession() as client:
        for _ in range(300):
            body = bytearray(valid if chance.random() < 0.8 else chance.randbytes(chance.randrange(200)))
            for _ in range(chance.randrange(1, 6)):
                place = chance.randrange(len(body) + 1)
                body[place : place + chance.randrange(3)] = chance.choice(
                    [b"", b"\xff", b"\x00", b"{", b"]", b'"', b"\\ud800", b"1e999", b"null", b","]
                )
            path = chance.choice(["/v1/chat/completions", "/v1/responses"])
            async with client.post(
                url + path, data=bytes(body), headers={"Content-Type": "application/json"}
            ) as response:
                statuses.add(response.status)
                if response.status >= 400:
                    assert set((await response.json())["error"]) == {"message", "type", "param", "code"}
    assert statuses <= {200, 400, 404, 413} and 400 in statuses


async def test_no_field_can_write_into_the_headers(served: Served) -> None:
    evil = "x\r\nset-cookie: a=b"
    body = {
        "model": TABLE.MODEL,
        "messages": [{"role": "user", "content": evil, "name": evil}],
        "tools": [{"type": evil}],
        evil: evil,
        "metadata": {evil[:20]: evil},
        "user": evil,
    }
    async with served(demo()) as url, aiohttp.ClientSession() as client:
        async with client.post(
            url + "/v1/chat/completions", json=body, headers={"x-request-id": "a b"}
        ) as response:
            assert response.status == 200 and "set-cookie" not in response.headers
            assert response.headers["x-request-id"].startswith("req_")
        async with client.post(url + "/v1/chat/completions", json={**body, "model": evil}) as response:
            assert response.status == 404 and "set-cookie" not in response.headers


async def test_a_silent_stream_gets_signs_of_life(served: Served) -> None:
    slow = ScriptedBackend("slow", ScriptedOptions(script="say a\npause 250ms\nsay b"))
    request = {"model": "slow", "messages": [{"role": "user", "content": "?"}], "stream": True}
    async with served({"slow": slow}, keep_alive_s=0.05) as url, aiohttp.ClientSession() as client:
        began = asyncio.get_running_loop().time()
        async with client.post(url + "/v1/chat/completions", json=request) as response:
            text = (await response.read()).decode()
        took = asyncio.get_running_loop().time() - began
    blocks = text.split("\n\n")
    comments = [block for block in blocks if block.startswith(":") and "tool_call_count" not in block]
    assert 2 <= len(comments) <= took / 0.05 and blocks[-2] == "data: [DONE]"


async def test_signs_of_life_come_before_the_first_token_too(served: Served) -> None:
    slow = ScriptedBackend("slow", ScriptedOptions(script="pause 250ms\nsay b"))
    request = {"model": "slow", "messages": [{"role": "user", "content": "?"}], "stream": True}
    async with (
        served({"slow": slow}, keep_alive_s=0.05, commit_after_s=0.05) as url,
        aiohttp.ClientSession() as client,
    ):
        async with client.post(url + "/v1/chat/completions", json=request) as response:
            assert (await response.content.readline()).startswith(b":")
            assert (await response.read()).endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_disconnects_cancels_the_run_upstream(served: Served, stream: bool) -> None:
    hanging = Reply.stream(answer("a long answer", size=1)[:3], done=False, ending="hang")
    async with FakeUpstream(hanging) as upstream:
        backend = OpenAIBackend("m", OpenAIOptions(base_url=upstream.base_url))
        async with served({"m": backend}) as url, aiohttp.ClientSession() as client:
            request = {"model": "m", "messages": [{"role": "user", "content": "?"}], "stream": stream}
            waiting = asyncio.ensure_future(client.post(url + "/v1/chat/completions", json=request))
            await asyncio.wait_for(upstream.sending.wait(), 5)
            if stream:
                response = await waiting
                await response.content.readline()
                response.close()
            else:
                waiting.cancel()
            await asyncio.wait_for(upstream.gone.wait(), 5)


async def test_a_security_relevant_header_may_appear_only_once(served: Served) -> None:
    async with served(demo()) as url:
        host, port = url.removeprefix("http://").split(":")
        for twice in ("Host: localhost", "Origin: http://localhost", "Authorization: Bearer x"):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(
                f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n{twice}\r\n{twice}\r\n"
                "Connection: close\r\n\r\n".encode()
            )
            answer = await reader.read()
            writer.close()
            assert answer.startswith(b"HTTP/1.1 400"), answer


async def test_a_preflight_for_a_foreign_host_gives_no_permission(served: Served) -> None:
    headers = {
        "Host": "evil.example",
        "Origin": "http://evil.example",
        "Access-Control-Request-Private-Network": "true",
    }
    async with (
        served(demo()) as url,
        aiohttp.ClientSession() as client,
        client.options(url + "/v1/models", headers=headers) as response,
    ):
        assert response.status == 204 and not [
            name for name in response.headers if name.lower().startswith("access-control")
        ]


@pytest.mark.parametrize(
    "schema",
    [
        {"minLength": 300_000_000},
        {"minLength": "x"},
        {"minItems": 10**12, "type": "array"},
        {"pattern": "(a+)+$"},
    ],
)
async def test_the_demo_model_cannot_be_made_to_work_hard(served: Served, schema: dict[str, Any]) -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "string", **schema}}, "required": ["a"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    body = {
        "model": TABLE.MODEL,
        "messages": [{"role": "user", "content": "a" * 60}],
        "tools": [tool],
        "tool_choice": "required",
    }
    async with (
        served(demo()) as url,
        aiohttp.ClientSession() as client,
        client.post(url + "/v1/chat/completions", json=body) as response,
    ):
        assert response.status == 200 and len(await response.read()) < 20_000


async def test_a_long_history_of_reused_ids_is_read_in_linear_time(served: Served) -> None:
    call = {
        "role": "assistant",
        "tool_calls": [{"id": "call_0", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }
    pairs = [call, {"role": "tool", "tool_call_id": "call_0", "content": "x"}] * 4_000
    async with served(demo()) as url, aiohttp.ClientSession() as client:
        async with asyncio.timeout(10):
            async with client.post(
                url + "/v1/chat/completions", json={"model": TABLE.MODEL, "messages": pairs}
            ) as response:
                assert response.status == 200


async def test_references_expand_to_a_bounded_amount_of_text(served: Served) -> None:
    async with served(demo()) as url, aiohttp.ClientSession() as client:
        big = {"type": "message", "role": "user", "id": "msg_big", "content": "x" * 1_000_000}
        async with client.post(
            url + "/v1/responses", json={"model": TABLE.MODEL, "input": [big]}
        ) as response:
            assert response.status == 200
        many = [{"type": "item_reference", "id": "msg_big"}] * 200
        async with client.post(url + "/v1/responses", json={"model": TABLE.MODEL, "input": many}) as response:
            assert (
                response.status == 400
                and (await response.json())["error"]["code"] == "context_length_exceeded"
            )

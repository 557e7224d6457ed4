"""Keys, limits and usage over a real socket, with the real gateway and store."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from doubles.judges import Judge
from toolwire.access.keys import KeyRecords
from toolwire.gateway.pipeline import Gateway
from toolwire.settings.types import LimitSettings, ModelSettings, ServerSettings, Settings
from toolwire.store.store import Store

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
HI = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}


@dataclass
class Place:
    """A server with its own store, and a client for it."""

    url: str
    gateway: Gateway
    keys: KeyRecords
    client: aiohttp.ClientSession

    async def key(
        self,
        name: str = "laptop",
        *,
        models: tuple[str, ...] = ("*",),
        tools: bool = True,
        admin: bool = False,
        **limits: int,
    ) -> str:
        _, text = await self.keys.add(name, {"models": list(models), "tools": tools, "admin": admin}, limits)
        return text

    async def ask(
        self, key: str, body: Any = None, path: str = "/v1/chat/completions"
    ) -> tuple[int, dict[str, str], Any]:
        data = body if isinstance(body, bytes) else json.dumps(body or HI).encode()
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        async with self.client.post(self.url + path, data=io.BytesIO(data), headers=headers) as answer:
            raw = await answer.read()
            parsed = json.loads(raw) if "json" in answer.headers["content-type"] else raw
            return answer.status, {name.lower(): value for name, value in answer.headers.items()}, parsed

    async def get(self, bearer: str, path: str, **query: Any) -> tuple[int, Any]:
        async with self.client.get(
            self.url + path, params=query, headers={"authorization": f"Bearer {bearer}"}
        ) as answer:
            return answer.status, await answer.json()


Serve = Callable[..., AbstractAsyncContextManager[Place]]


@pytest.fixture
def place(on_a_socket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """`async with place(limits={…}, keys=(…), models={id: script}) as p`."""
    monkeypatch.setattr("toolwire.access.keyring.REREAD_S", 0.0)
    monkeypatch.setattr("toolwire.access.keyring.LOOK_AGAIN_S", 0.0)

    @asynccontextmanager
    async def start(
        limits: dict[str, Any] | None = None, models: dict[str, str] | None = None, **server: Any
    ) -> AsyncIterator[Place]:
        served = {"demo": "", "other": ""} if models is None else models
        options = [(id, {"script": script} if script else {}) for id, script in served.items()]
        settings = Settings(
            server=ServerSettings(**server),
            limits=LimitSettings(**(limits or {})),
            models=tuple(ModelSettings(id, "scripted", option) for id, option in options),
        )
        store = Store(f"sqlite:///{tmp_path}/toolwire.db")
        gateway = Gateway(settings, store=store)
        async with on_a_socket(gateway, settings, store) as url, aiohttp.ClientSession() as client:
            yield Place(url, gateway, KeyRecords(store), client)

    return start


# --- limits ---


@pytest.mark.parametrize("stream", [False, True])
async def test_a_limited_key_sees_what_is_left_and_is_then_refused_as_openai_does(
    place: Serve, judge: Judge, stream: bool
) -> None:
    async with place() as p:
        key = await p.key(requests_per_minute=2, tokens_per_minute=100_000)
        for left in ("1", "0"):
            status, headers, _ = await p.ask(key, {**HI, "stream": stream})
            assert status == 200
            assert (headers["x-ratelimit-limit-requests"], headers["x-ratelimit-remaining-requests"]) == (
                "2",
                left,
            )
            assert (
                headers["x-ratelimit-limit-tokens"] == "100000"
                and 99_000 < int(headers["x-ratelimit-remaining-tokens"]) <= 100_000
            )
            assert headers["x-ratelimit-reset-requests"].endswith("s") and headers[
                "x-ratelimit-reset-tokens"
            ].endswith("s")
            assert "retry-after" not in headers
        status, headers, body = await p.ask(key, {**HI, "stream": stream})
        judge.error(status, body)
        assert (status, body["error"]["type"], body["error"]["code"]) == (
            429,
            "requests",
            "rate_limit_exceeded",
        )
        assert 1 <= int(headers["retry-after"]) <= 30 and 0 < int(headers["retry-after-ms"]) <= 30_000
        assert headers["x-ratelimit-remaining-requests"] == "0"
        assert (await p.ask(await p.key("phone")))[0] == 200, "one noisy key does not starve the others"


async def test_tokens_are_charged_by_what_the_model_counted(place: Serve) -> None:
    async with place(models={"demo": "say hello\nusage 700 200"}) as p:
        key = await p.key(tokens_per_minute=1000)
        status, headers, body = await p.ask(key)
        assert status == 200 and body["usage"]["total_tokens"] == 900
        assert 100 <= int(headers["x-ratelimit-remaining-tokens"]) <= 110
        assert "x-ratelimit-limit-requests" not in headers
        status, headers, body = await p.ask(key)
        assert (status, body["error"]["type"], body["error"]["code"]) == (
            429,
            "tokens",
            "rate_limit_exceeded",
        )


async def test_several_choices_are_charged_together(place: Serve) -> None:
    async with place(models={"demo": "say hello\nusage 100 200"}) as p:
        _, headers, body = await p.ask(await p.key(tokens_per_minute=10_000), {**HI, "n": 3})
        assert (
            body["usage"]["total_tokens"] == 700
            and 9300 <= int(headers["x-ratelimit-remaining-tokens"]) <= 9400
        )


async def test_the_limits_of_the_settings_also_apply_without_keys(place: Serve) -> None:
    async with place(limits={"requests_per_minute": 1}) as p:
        assert [(await p.ask("whatever"))[0] for _ in range(2)] == [200, 429]


async def test_every_answer_to_a_limited_key_has_the_headers_errors_and_lists_too(place: Serve) -> None:
    async with place() as p:
        key = await p.key(requests_per_minute=50)
        for body in (b"{", {**HI, "model": "nowhere"}, {**HI, "messages": 5}):
            status, headers, _ = await p.ask(key, body)
            assert 400 <= status < 500 and headers["x-ratelimit-limit-requests"] == "50"
        assert headers["x-ratelimit-remaining-requests"] == "47", "nonsense costs a request"
        async with p.client.get(p.url + "/v1/models", headers={"authorization": f"Bearer {key}"}) as answer:
            assert answer.headers["x-ratelimit-limit-requests"] == "50"
        _, headers, _ = await p.ask(await p.key("free"))
        assert not any(name.startswith("x-ratelimit") for name in headers)


async def test_concurrent_streams_are_limited_and_a_disconnected_one_frees_its_slot(place: Serve) -> None:
    async with place(models={"demo": "say one\npause 30s\nsay two"}) as p:
        key = await p.key(concurrent=2)
        headers = {"authorization": f"Bearer {key}"}
        open_streams = [
            await p.client.post(p.url + "/v1/chat/completions", json={**HI, "stream": True}, headers=headers)
            for _ in range(2)
        ]
        for answer in open_streams:
            await answer.content.readany()
        status, headers, body = await p.ask(key)
        assert (
            status == 429
            and "2 requests at once" in body["error"]["message"]
            and headers["retry-after"] == "1"
        )
        open_streams[0].close()
        async with asyncio.timeout(10):
            while (
                again := await p.client.post(
                    p.url + "/v1/chat/completions", json={**HI, "stream": True}, headers=headers
                )
            ).status == 429:
                again.close()
                await asyncio.sleep(0.02)
        for answer in (again, open_streams[1]):
            answer.close()


async def test_openais_client_waits_as_long_as_requested_and_then_succeeds(place: Serve) -> None:
    async with place() as p:
        key = await p.key(requests_per_minute=60)
        p.gateway.limits._account(p_id := (await p.keys.all())[0].id, _limits(60)).meters.requests = (
            60 * 60_000_000
        )
        async with openai.AsyncOpenAI(base_url=p.url + "/v1", api_key=key, max_retries=3) as client:
            began = time.monotonic()
            assert (
                await client.chat.completions.create(
                    model="demo", messages=[{"role": "user", "content": "hi"}]
                )
            ).choices
            assert time.monotonic() - began >= 0.5
        assert p_id in p.gateway.limits._accounts


def _limits(requests_per_minute: int) -> Any:
    from toolwire.access.keys import KeyLimits

    return KeyLimits(requests_per_minute=requests_per_minute)


async def test_a_key_without_limits_leaves_no_trace_in_the_limits(place: Serve) -> None:
    async with place() as p:
        assert (await p.ask(await p.key()))[0] == 200
        assert p.gateway.limits._accounts == {}


# --- budgets ---


async def test_a_budget_that_is_used_up_is_a_quota_and_not_to_be_tried_again(
    place: Serve, judge: Judge
) -> None:
    async with place(models={"demo": "say hello\nusage 60 40"}) as p:
        tokens, requests = (
            await p.key("tokens", budget_tokens=150),
            await p.key("requests", budget_requests=1),
        )
        assert [(await p.ask(tokens))[0] for _ in range(3)] == [200, 200, 429]
        assert [(await p.ask(requests))[0] for _ in range(2)] == [200, 429]
        status, headers, body = await p.ask(tokens)
        judge.error(status, body)
        assert body["error"]["type"] == body["error"]["code"] == "insufficient_quota"
        assert headers["x-should-retry"] == "false" and int(headers["retry-after"]) > 0
        async with openai.AsyncOpenAI(base_url=p.url + "/v1", api_key=tokens, max_retries=5) as client:
            began = time.monotonic()
            with pytest.raises(openai.RateLimitError):
                await client.responses.create(model="demo", input="hi")
            assert time.monotonic() - began < 5
        await p.gateway.usage.flush()
        assert (await p.gateway.usage.month((await p.keys.all())[0].id)).tokens == 200


async def test_leaving_before_the_end_does_not_save_a_budget(place: Serve) -> None:
    async with place(models={"demo": 'say "' + "word " * 400 + '"\npause 30s\nsay end'}) as p:
        key = await p.key(budget_tokens=400)
        headers = {"authorization": f"Bearer {key}"}
        answer = await p.client.post(
            p.url + "/v1/chat/completions", json={**HI, "stream": True}, headers=headers
        )
        await answer.content.readany()
        answer.close()
        id = (await p.keys.all())[0].id
        async with asyncio.timeout(10):
            while (await p.gateway.usage.month(id)).tokens < 500:
                await asyncio.sleep(0.02)
        assert (await p.ask(key))[0] == 429


async def _over_a_socket(p: Place, key: str) -> int:
    """The status of one turn over its own WebSocket."""
    async with p.client.ws_connect(
        p.url + "/v1/responses", headers={"authorization": f"Bearer {key}"}
    ) as socket:
        await socket.send_json({"type": "response.create", "model": "demo", "input": "hi"})
        async for message in socket:
            event = message.json()
            if event["type"] == "error":
                return int(event["status"])
            if event["type"] == "response.completed":
                return 200
    raise AssertionError("the connection ended without an answer")


async def _streamed(p: Place, key: str, path: str, body: dict[str, Any]) -> int:
    status, _, answer = await p.ask(key, {**body, "stream": True}, path)
    assert status != 200 or b"[DONE]" in answer or b"response.completed" in answer
    return status


async def test_hundreds_of_turns_at_once_on_every_surface_get_exactly_the_budget(place: Serve) -> None:
    responses = {"model": "demo", "input": "hi"}
    async with (
        place(models={"demo": "say one\npause 200ms\nsay two"}) as p,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as many,
    ):
        p.client = many
        key = await p.key(budget_requests=3)
        turns: list[Any] = []
        for _ in range(40):
            turns += [
                _status(p.ask(key)),
                _status(p.ask(key, responses, "/v1/responses")),
                _streamed(p, key, "/v1/chat/completions", HI),
                _streamed(p, key, "/v1/responses", responses),
                _over_a_socket(p, key),
            ]
        statuses = await asyncio.gather(*turns)
        assert sorted(set(statuses)) == [200, 429] and statuses.count(200) == 3
        status, _, body = await p.ask(key)
        assert (status, body["error"]["code"]) == (429, "insufficient_quota")
        id = (await p.keys.all())[0].id
        assert p.gateway.usage.held(id) == (0, 0) and (await p.gateway.usage.month(id)).requests == 3


async def _status(work: Any) -> int:
    return int((await work)[0])


async def test_a_turn_that_never_ran_gives_its_part_of_the_budget_back(place: Serve) -> None:
    models = {"demo": "say one\npause 30s\nsay two", "broken": "fail backend no"}
    async with place(models=models, limits={"backend_concurrent": 1, "queue": 1}) as p:
        holder, key = await p.key("holder"), await p.key("budgeted", budget_requests=2)
        id = next(one.id for one in await p.keys.all() if one.name == "budgeted")
        headers = {"authorization": f"Bearer {holder}"}
        running = await p.client.post(
            p.url + "/v1/chat/completions", json={**HI, "stream": True}, headers=headers
        )
        waiting = asyncio.ensure_future(
            p.client.post(p.url + "/v1/chat/completions", json={**HI, "stream": True}, headers=headers)
        )
        async with asyncio.timeout(10):
            while not p.gateway.queues.waiting("demo"):
                await asyncio.sleep(0.01)
        for _ in range(3):
            assert (await p.ask(key))[0] == 503, "the queue is full"
            assert (await p.ask(key, {**HI, "model": "nowhere"}))[0] == 404
            assert (await p.ask(key, {**HI, "model": "broken"}))[0] >= 400
        assert p.gateway.usage.held(id) == (0, 0) and (await p.gateway.usage.month(id)).requests == 0
        waiting.cancel()
        running.close()
        await asyncio.gather(waiting, return_exceptions=True)


# --- scopes ---


async def test_a_key_sees_and_uses_its_own_models_alone(place: Serve, judge: Judge) -> None:
    async with place() as p:
        key = await p.key(models=("oth*",))
        status, listed = await p.get(key, "/v1/models")
        assert status == 200 and [model["id"] for model in listed["data"]] == ["other"]
        assert (await p.get(key, "/v1/models/other"))[0] == 200
        status, body = await p.get(key, "/v1/models/demo")
        assert (status, body["error"]["code"]) == (404, "model_not_found")
        assert (await p.ask(key, {**HI, "model": "other"}))[0] == 200
        status, _, body = await p.ask(key)
        judge.error(status, body)
        _, _, unknown = await p.ask(key, {**HI, "model": "nowhere"})
        assert (status, body["error"]["code"], body["error"]["param"]) == (404, "model_not_found", "model")
        assert body["error"]["message"].replace("demo", "") == unknown["error"]["message"].replace(
            "nowhere", ""
        ), "nothing tells that it is there"


async def test_a_key_without_tools_is_refused_in_words(place: Serve) -> None:
    async with place() as p:
        key = await p.key(tools=False)
        assert (await p.ask(key))[0] == 200
        for path, body in (
            ("/v1/chat/completions", {**HI, "tools": [TOOL]}),
            ("/v1/chat/completions", {**HI, "functions": [{"name": "look"}]}),
            (
                "/v1/responses",
                {"model": "demo", "input": "hi", "tools": [{"type": "function", "name": "look"}]},
            ),
        ):
            status, _, answer = await p.ask(key, body, path)
            assert (
                status == 403
                and "may not use tools" in answer["error"]["message"]
                and answer["error"]["param"] == "tools"
            )


async def test_a_key_can_be_revoked_and_rotated_without_a_restart(place: Serve) -> None:
    async with place() as p:
        old = await p.key()
        _, _, response = await p.ask(old, {"model": "demo", "input": "hi"}, "/v1/responses")
        (stored,) = await p.keys.all()
        _, new = await p.keys.rotate(stored.id, grace_s=3600)
        assert [(await p.ask(key))[0] for key in (old, new)] == [200, 200]
        assert (await p.get(new, f"/v1/responses/{response['id']}"))[0] == 200, (
            "what the key stored is still its own"
        )
        await p.keys.revoke(stored.id)
        async with asyncio.timeout(5):
            while (await p.ask(old))[0] != 401:
                await asyncio.sleep(0.02)
        assert (await p.ask(new))[0] == 200
        for key in await p.keys.all():
            await p.keys.revoke(key.id)
        async with asyncio.timeout(5):
            while (await p.ask(new))[0] != 401:
                await asyncio.sleep(0.02)
        assert (await p.ask(""))[0] == 401, "with its last key gone the server is not open"


async def test_an_admin_key_opens_the_pages_until_it_is_revoked(place: Serve) -> None:
    async with place() as p:
        chief, plain = await p.key("chief", admin=True), await p.key("plain")
        async with p.client.post(p.url + "/ui/api/session", json={"key": plain}) as answer:
            assert answer.status == 401
        async with p.client.post(p.url + "/ui/api/session", json={"key": chief}) as answer:
            assert answer.status == 200
            cookies = {name: morsel.value for name, morsel in answer.cookies.items()}
            page = {"x-toolwire-page": (await answer.json())["page"]}

        async def session() -> int:
            async with p.client.get(p.url + "/ui/api/session", cookies=cookies, headers=page) as answer:
                return answer.status

        assert await session() == 200
        await p.keys.revoke(next(key.id for key in await p.keys.all() if key.name == "chief"))
        async with asyncio.timeout(5):
            while await session() != 401:
                await asyncio.sleep(0.02)


# --- usage ---


async def test_usage_is_listed_by_hour_and_model_for_the_own_key_and_for_all_keys_to_an_admin(
    place: Serve,
) -> None:
    async with place(
        models={"demo": "say hi\nusage 7 3", "other": "say hi\nusage 1 1"},
        keys=("configured",),
        admin_keys=("chief",),
    ) as p:
        mine = await p.key()
        for key, model in ((mine, "demo"), (mine, "demo"), (mine, "other"), ("configured", "demo")):
            assert (await p.ask(key, {**HI, "model": model}))[0] == 200
        await p.ask(mine, {**HI, "messages": 5})
        status, page = await p.get(mine, "/v1/usage", bucket="hour", group_by="model")
        assert status == 200 and (page["object"], page["has_more"], page["next_page"]) == (
            "page",
            False,
            None,
        )
        assert len(page["data"]) == 24 and all(
            one["object"] == "bucket" and one["end_time"] - one["start_time"] == 3600 for one in page["data"]
        )
        shown: dict[str, list[int]] = {}
        for one in (one for bucket in page["data"] for one in bucket["results"]):
            counts = [
                one[name]
                for name in ("num_model_requests", "num_failed_requests", "input_tokens", "output_tokens")
            ]
            shown[one["model"]] = [
                a + b for a, b in zip(shown.get(one["model"], [0] * 4), counts, strict=True)
            ]
        assert shown == {"demo": [2, 0, 14, 6], "other": [1, 0, 1, 1], "unknown": [0, 1, 0, 0]}

        _, page = await p.get("chief", "/v1/usage", group_by="key")
        results = [one for bucket in page["data"] for one in bucket["results"]]
        assert len(page["data"]) == 7 and {one["api_key_id"] for one in results} == {
            (await p.keys.all())[0].id,
            id_of("configured"),
        }
        assert sum(one["num_model_requests"] for one in results) == 4
        _, page = await p.get("configured", "/v1/usage", key=(await p.keys.all())[0].id)
        assert not any(bucket["results"] for bucket in page["data"]), (
            "another key's usage is nobody's business"
        )
        _, page = await p.get("chief", "/v1/usage", model="other", group_by="model,key")
        assert {one["model"] for bucket in page["data"] for one in bucket["results"]} == {"other"}


def id_of(key: str) -> str:
    from toolwire.access.keys import key_id_of

    return key_id_of(key)


async def test_a_turn_that_a_limit_refuses_is_one_of_its_model(
    place: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """Log, metrics and usage then know the model; a missing model is counted for none."""
    async with place(models={"demo": "say hi\nusage 700 200"}) as p:
        key = await p.key(tokens_per_minute=900)
        with caplog.at_level("INFO", "toolwire.access"):
            assert [
                (await p.ask(key, {**HI, "model": model}))[0] for model in ("demo", "nobody", "demo")
            ] == [200, 404, 429]
        lines = [
            json.loads(record.getMessage()) for record in caplog.records if record.name == "toolwire.access"
        ]
        assert [(line["event"], line["model"], line["backend"], line["error"]) for line in lines] == [
            ("turn", "demo", "scripted", None),
            ("turn", "", "", "model_not_found"),
            ("turn", "demo", "scripted", "tokens_limit"),
        ]
        async with p.client.get(p.url + "/metrics", headers={"authorization": f"Bearer {key}"}) as answer:
            assert (
                'toolwire_requests_total{api="chat",model="demo",status="429",strategy="none"} 1.0'
                in await answer.text()
            )
        _, page = await p.get(key, "/v1/usage", group_by="model")
        (bucket,) = [bucket for bucket in page["data"] if bucket["results"]]
        counted = {
            row["model"]: (row["num_model_requests"], row["num_failed_requests"]) for row in bucket["results"]
        }
        assert counted == {"demo": (1, 1), "unknown": (0, 1)}


async def test_usage_is_paginated_and_refuses_unknown_parameters(place: Serve) -> None:
    async with place() as p:
        _, first = await p.get("", "/v1/usage", start="2026-01-01", end="2026-01-04T12:00", limit=3)
        assert [bucket["start_time"] for bucket in first["data"]] == [
            1767225600 + day * 86400 for day in range(3)
        ] and first["has_more"]
        _, last = await p.get(
            "",
            "/v1/usage",
            start_time=1767225600,
            end_time="2026-01-04T12:00:00+00:00",
            limit=3,
            page=first["next_page"],
        )
        assert len(last["data"]) == 1 and not last["has_more"]
        wrong = [
            ("bucket", "week"),
            ("start", "soon"),
            ("end", "1" * 13),
            ("group_by", "day"),
            ("limit", "0"),
            ("limit", "-1"),
            ("page", "x"),
        ]
        for name, value in [*wrong, ("start", "99999999999"), ("model", ",".join(map(str, range(200))))]:
            status, body = await p.get("", "/v1/usage", **{name: value})
            assert status == 400 and body["error"]["param"] == name, (name, value, body)
        assert (await p.get("", "/usage"))[0] == 200


# --- bodies ---


@pytest.mark.parametrize("unit", [b"[],", b"{},", b"0,", b'"",', b'{"a":[]},'])
async def test_a_hostile_body_of_tiny_values_is_refused_without_delaying_others(
    place: Serve, unit: bytes
) -> None:
    async with place() as p:
        hostile = b'{"model":"demo","messages":[' + unit * (30_000_000 // len(unit)) + b"0]}"
        longest, before = 0.0, time.monotonic()

        async def beat() -> None:
            nonlocal longest, before
            while True:
                await asyncio.sleep(0.005)
                now = time.monotonic()
                longest, before = max(longest, now - before), now

        beating = asyncio.ensure_future(beat())
        status, _, body = await p.ask("", hostile)
        beating.cancel()
        assert status == 413 and "limits.body_nodes" in body["error"]["message"]
        assert longest < 1.0, f"the loop stood still for {longest:.2f} s"


async def test_a_large_body_of_ordinary_text_is_served(place: Serve) -> None:
    async with place(max_body_mb=32) as p:
        prose = 'He said: "yes, [really], {sure}\\", and left.\n' * 100_000
        status, _, body = await p.ask("", {**HI, "messages": [{"role": "user", "content": prose}]})
        assert status == 200, body


async def test_messages_and_tools_are_counted(place: Serve) -> None:
    async with place(limits={"messages": 3, "tools": 2}) as p:
        message = HI["messages"][0]
        for body, path, param in (
            ({**HI, "messages": [message] * 4}, "/v1/chat/completions", "messages"),
            ({**HI, "tools": [TOOL] * 3}, "/v1/chat/completions", "tools"),
            ({**HI, "functions": [{"name": "a"}] * 3}, "/v1/chat/completions", "functions"),
            ({"model": "demo", "input": [message] * 4}, "/v1/responses", "input"),
        ):
            status, _, answer = await p.ask("", body, path)
            assert (status, answer["error"]["code"], answer["error"]["param"]) == (
                400,
                "array_above_max_length",
                param,
            )
        assert (await p.ask("", {**HI, "messages": [message] * 3, "tools": [TOOL] * 2}))[0] in (200, 400)

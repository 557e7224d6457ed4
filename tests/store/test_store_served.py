"""Stored responses over HTTP, on each engine, and the errors while the store's server is down."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import aiohttp
import pytest

from doubles.postgres import Postgres
from toolwire.gateway.pipeline import Gateway
from toolwire.settings.types import ServerSettings, Settings
from toolwire.store.store import Store
from toolwire.testing import ScriptedBackend, ScriptedOptions

Serve = Callable[..., AbstractAsyncContextManager[str]]


class Client:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def __call__(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> tuple[int, Any, Any]:
        async with self._session.request(method, self._url + path, json=body) as answer:
            text = await answer.text()
            return (
                answer.status,
                json.loads(text) if answer.content_type == "application/json" else text,
                answer.headers,
            )

    async def say(self, text: str, previous: str | None = None, **fields: Any) -> tuple[int, Any, Any]:
        return await self(
            "POST", "/v1/responses", {"model": "m", "input": text, "previous_response_id": previous, **fields}
        )


@pytest.fixture
def backend() -> ScriptedBackend:
    return ScriptedBackend("m", ScriptedOptions(script="say Hello."))


@pytest.fixture
async def client(store_url: str, on_a_socket: Serve, backend: ScriptedBackend) -> AsyncIterator[Client]:
    settings, store = Settings(server=ServerSettings()), Store(store_url)
    await store.open()
    async with (
        on_a_socket(Gateway(settings, backends={"m": backend}, store=store), settings, store) as url,
        aiohttp.ClientSession() as session,
    ):
        yield Client(session, url)


def heard(backend: ScriptedBackend) -> list[str]:
    """Returns the user's messages that the model received last."""
    return [
        part.text  # type: ignore[union-attr]
        for item in backend.seen[-1].items
        if getattr(item, "role", "") == "user"
        for part in item.parts  # type: ignore[union-attr]
    ]


async def test_a_conversation_forks_is_shown_listed_and_deleted(
    client: Client, backend: ScriptedBackend
) -> None:
    _, first, _ = await client.say("one")
    _, second, _ = await client.say("two", first["id"])
    _, left, _ = await client.say("left", second["id"])
    assert heard(backend) == ["one", "two", "left"]
    _, right, _ = await client.say("right", second["id"])
    assert heard(backend) == ["one", "two", "right"]
    assert left["previous_response_id"] == right["previous_response_id"] == second["id"]

    path = f"/v1/responses/{second['id']}"
    assert (await client("GET", path))[:2] == (200, second)
    status, page, _ = await client("GET", f"{path}/input_items")
    assert status == 200 and [item["content"][0]["text"] for item in page["data"]] == ["two"]
    status, body, _ = await client("POST", f"{path}/cancel")
    assert (status, body["error"]["message"]) == (400, "Cannot cancel a synchronous response.")

    assert (await client("DELETE", path))[:2] == (
        200,
        {"id": second["id"], "object": "response", "deleted": True},
    )
    for method, gone in (
        ("GET", path),
        ("DELETE", path),
        ("GET", f"{path}/input_items"),
        ("POST", f"{path}/cancel"),
        ("GET", "/v1/responses/a%00b"),
    ):
        assert (await client(method, gone))[0] == 404, (method, gone)
    status, body, _ = await client.say("more", left["id"])
    assert (status, body["error"]["code"]) == (400, "previous_response_not_found")
    assert (await client.say("again", first["id"]))[0] == 200


async def test_a_stored_item_may_be_referred_to(client: Client, backend: ScriptedBackend) -> None:
    _, first, _ = await client.say("one")
    _, page, _ = await client("GET", f"/v1/responses/{first['id']}/input_items")
    again = [{"type": "item_reference", "id": page["data"][0]["id"]}, {"role": "user", "content": "two"}]
    status, _, _ = await client("POST", "/v1/responses", {"model": "m", "input": again})
    assert status == 200 and heard(backend) == ["one", "two"]


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
async def test_while_postgresql_is_down_only_requests_that_need_it_get_a_503(
    client: Client, postgres: Postgres
) -> None:
    _, first, _ = await client.say("one")
    postgres.stop()
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    assert (await client("POST", "/v1/chat/completions", chat))[0] == 200
    status, answer, headers = await client.say("two")
    assert status == 200 and "store=failed" in headers["x-toolwire-report"]
    _, streamed, _ = await client.say("three", stream=True)
    assert '{"stored":false}' in streamed and "response.completed" in streamed
    for status, body, headers in (
        await client.say("four", first["id"]),
        await client("GET", f"/v1/responses/{first['id']}"),
    ):
        assert (status, body["error"]["code"], headers["retry-after"]) == (503, "overloaded", "1")
        assert body["error"]["message"] == "The gateway's store cannot be reached; try again in a moment."
    postgres.start()
    until = time.monotonic() + 15
    while (found := await client("GET", f"/v1/responses/{first['id']}"))[
        0
    ] == 503 and time.monotonic() < until:
        pass
    assert found[:2] == (200, first)
    assert (await client("GET", f"/v1/responses/{answer['id']}"))[0] == 404
    status, _, headers = await client.say("five", first["id"])
    assert status == 200 and "store=failed" not in headers.get("x-toolwire-report", "")

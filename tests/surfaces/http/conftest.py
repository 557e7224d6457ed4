"""A served gateway over a scripted model, and a WebSocket client for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import aiohttp
import pytest
from websockets.asyncio.client import ClientConnection, connect

from doubles.served import served
from toolwire.gateway.pipeline import Gateway
from toolwire.settings.types import LimitSettings, ServerSettings, Settings
from toolwire.store.store import Store
from toolwire.surfaces.http.app import App, create_app
from toolwire.surfaces.http.server import DrainingServer
from toolwire.testing import ScriptedBackend, ScriptedOptions

Body = dict[str, Any]
LAST = ("response.completed", "response.incomplete", "response.failed", "error")
WITHIN_S = 20


class Socket:
    """A connection. `turn` sends a request and returns all events of the answer."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def send(self, message: Any) -> None:
        await self.connection.send(message if isinstance(message, str | bytes) else json.dumps(message))

    async def event(self) -> Body:
        async with asyncio.timeout(WITHIN_S):
            return cast(Body, json.loads(await self.connection.recv()))

    async def answer(self) -> list[Body]:
        events = [await self.event()]
        while events[-1]["type"] not in LAST:
            events.append(await self.event())
        return events

    async def turn(self, input: Any = "Hello", **more: Any) -> list[Body]:
        await self.send({"type": "response.create", "model": "m", "input": input, **more})
        return await self.answer()

    async def closed(self) -> tuple[int | None, str | None]:
        """How the server closed the connection."""
        async with asyncio.timeout(WITHIN_S):
            await self.connection.wait_closed()
        return self.connection.close_code, self.connection.close_reason


def text_of(events: list[Body]) -> str:
    """The answer's text, after checking that deltas and response agree."""
    streamed = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    items = events[-1]["response"]["output"]
    assert streamed == "".join(
        part["text"] for item in items if item["type"] == "message" for part in item["content"]
    )
    return streamed


def as_stream(events: list[Body]) -> bytes:
    """The events as the HTTP route would send them, for the judges."""
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


@dataclass
class Place:
    """A running server."""

    backend: ScriptedBackend
    gateway: Gateway
    app: App
    server: DrainingServer
    store: Store
    port: int
    client: aiohttp.ClientSession

    @asynccontextmanager
    async def socket(self, path: str = "/v1/responses", **options: Any) -> AsyncIterator[Socket]:
        async with connect(
            f"ws://127.0.0.1:{self.port}{path}", proxy=None, max_size=None, **options
        ) as connection:
            yield Socket(connection)

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Body]:
        async with self.client.post(
            f"http://127.0.0.1:{self.port}{path}", json=body, headers=headers
        ) as response:
            return response.status, await response.json()


@asynccontextmanager
async def _place(script: str, options: Body, server: Body, limits: Body) -> AsyncIterator[Place]:
    backend = ScriptedBackend("m", ScriptedOptions(script=script, **options))
    settings = Settings(server=ServerSettings(**server), limits=LimitSettings(**limits))
    store = Store("sqlite://")
    gateway = Gateway(settings, store=store, backends={"m": backend})
    await gateway.start()
    app = create_app(gateway, settings, store)
    try:
        async with served(app) as (uvicorn, port), aiohttp.ClientSession() as client:
            yield Place(backend, gateway, app, uvicorn, store, port, client)
    finally:
        await app.close()
        await gateway.close()
        await store.close()


@pytest.fixture
def place() -> Callable[..., Any]:
    """`async with place("say Hi", tools="emulated", keys=("k",), slow_reader_s=1) as it`

    Takes options of the model, the server and the limits by name.
    """

    def start(script: str = "", **options: Any) -> Any:
        model: Body = {name: options.pop(name) for name in ("tools", "writes", "dialects") if name in options}
        limits: Body = {
            name: options.pop(name) for name in LimitSettings.__dataclass_fields__ if name in options
        }
        return _place(script, model, options, limits)

    return start

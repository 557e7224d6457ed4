"""A gateway that answers as a test says, behind the real HTTP surface on a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import aiohttp
import pytest

from doubles.served import served
from toolwire.access.limits import RateLimits
from toolwire.access.usage import UsageBook
from toolwire.gateway.catalog import Catalog
from toolwire.gateway.parked import Parking
from toolwire.gateway.pipeline import Answer, Caller, Gateway
from toolwire.gateway.queue import Queues
from toolwire.gateway.records import OnSlow
from toolwire.settings.types import LimitSettings, ModelSettings, ParkedSettings, ServerSettings, Settings
from toolwire.store.store import Store
from toolwire.surfaces.http.app import App, create_app
from toolwire.surfaces.http.server import DrainingServer


class FakeGateway:
    """Keeps the pipeline's interface.

    `answer` decides what a turn gives; `calls` remembers who asked for what.
    """

    def __init__(self, models: tuple[str, ...]) -> None:
        self.catalog = Catalog(ModelSettings(model, "scripted") for model in models)
        self.usage = UsageBook(None)
        self.limits = RateLimits(Settings(), self.usage)
        self.parking = Parking(ParkedSettings())
        self.queues = Queues(LimitSettings())
        self.store, self.journal, self.contents_wanted = None, None, False
        self.observers: list[Callable[[Any], None]] = []
        self.calls: list[tuple[str, bytes, Caller]] = []
        self.is_ready = True
        self.on_slow: OnSlow | None = None
        """Of the last turn."""
        self.answer: Callable[[str, bytes, Caller], Awaitable[Answer]] = self._echo

    async def respond(self, api: str, raw: bytes, caller: Caller, on_slow: OnSlow | None = None) -> Answer:
        self.calls.append((api, raw, caller))
        self.on_slow = on_slow
        return await self.answer(api, raw, caller)

    async def _echo(self, api: str, raw: bytes, caller: Caller) -> Answer:
        body = json.dumps({"api": api, "size": len(raw)}).encode()
        return Answer([(b"content-type", b"application/json"), (b"x-toolwire-turn", b"new")], body)

    async def ready(self) -> bool:
        return self.is_ready

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def drain(self) -> None: ...


@dataclass
class Site:
    """A running server and a client for it."""

    gateway: FakeGateway
    app: App
    server: DrainingServer
    port: int
    client: aiohttp.ClientSession
    store: Store

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    async def raw(self, data: bytes) -> bytes:
        """Sends bytes as they are and gives all that comes back until the server closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(data)
            return await reader.read()
        finally:
            writer.close()


@asynccontextmanager
async def running(server: ServerSettings, models: tuple[str, ...]) -> AsyncIterator[Site]:
    gateway = FakeGateway(models)
    store = Store("sqlite://")
    settings = Settings(server=server, models=tuple(ModelSettings(model, "scripted") for model in models))
    app = create_app(cast(Gateway, gateway), settings, store)
    try:
        async with served(app) as (uvicorn, port), aiohttp.ClientSession() as client:
            yield Site(gateway, app, uvicorn, port, client, store)
    finally:
        await store.close()


@pytest.fixture
def serving() -> Callable[..., Any]:
    """`async with serving(keys=("k",), models=("demo",)) as site`: any server setting by name."""

    def start(*, models: tuple[str, ...] = ("demo",), **server: Any) -> Any:
        return running(ServerSettings(**server), models)

    return start


@pytest.fixture
async def site(serving: Callable[..., Any]) -> AsyncIterator[Site]:
    """A server with the default settings: loopback, no keys."""
    async with serving() as running_site:
        yield running_site

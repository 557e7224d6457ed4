"""The web pages' API on a real socket: scripted models, a vault in a temporary folder, a session."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from doubles.served import served
from toolwire.gateway.pipeline import Gateway
from toolwire.settings.types import ModelSettings, ServerSettings, Settings, StoreSettings, VaultSettings
from toolwire.store.store import Store
from toolwire.surfaces.http.app import App, create_app
from toolwire.surfaces.web.routes import enter_path

ADMIN = "an-admin-key-of-some-length"


@dataclass
class House:
    """A running server, and one browser's worth of cookies."""

    url: str
    app: App
    client: aiohttp.ClientSession
    key: str = ""
    """The page key: what the browser keeps for this origin alone."""
    heard: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    @property
    def pages(self) -> Any:
        return self.app.pages

    async def enter(self) -> None:
        """By the one-time link, as a browser follows it."""
        async with self.client.get(
            self.url + enter_path(await self.pages.sessions.link()), allow_redirects=False
        ) as response:
            assert response.status == 303
            self.key = response.headers["location"].removeprefix("/#page=")

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        status: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> Any:
        """One request of the page's API; the answer's JSON. `status` None: any success."""
        sent = {"x-toolwire-page": self.key, **(headers or {})}
        async with self.client.request(
            method, f"{self.url}/ui/api{path}", json=body, headers=sent
        ) as response:
            text = await response.text()
            assert response.status == status if status is not None else response.status < 300, (
                response.status,
                text,
            )
            return (
                json.loads(text) if response.headers["content-type"].startswith("application/json") else text
            )

    async def until(self, look: Callable[[], Any], *, within_s: float = 20) -> Any:
        """What `look` gives once it gives something."""
        async with asyncio.timeout(within_s):
            while not (found := await look()):
                await asyncio.sleep(0.02)
        return found

    async def pending(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.call("GET", "/approvals"))["approvals"]
        return found

    async def ended(self, id: str) -> dict[str, Any]:
        """The conversation, once nothing of it runs."""

        async def look() -> Any:
            state = await self.call("GET", f"/conversations/{id}")
            return None if state["running"] else state

        found: dict[str, Any] = await self.until(look)
        return found

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[list[tuple[str, dict[str, Any]]]]:
        """The live stream, as a tab reads it."""
        heard: list[tuple[str, dict[str, Any]]] = []
        opened = asyncio.Event()

        async def listen() -> None:
            async with self.client.get(f"{self.url}/ui/api/events?page={self.key}") as response:
                assert response.status == 200
                kind = ""
                async for raw in response.content:
                    line = raw.decode().rstrip("\n")
                    if line.startswith("event: "):
                        kind = line[7:]
                    elif line.startswith("data: "):
                        heard.append((kind, json.loads(line[6:])))
                        opened.set()

        task = asyncio.ensure_future(listen())
        try:
            await asyncio.wait_for(opened.wait(), 10)
            yield heard
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def _house(settings: Settings, store: Store) -> AsyncIterator[House]:
    gateway = Gateway(settings, store=store)
    await gateway.start()
    app = create_app(gateway, settings, store)
    try:
        async with (
            served(app) as (_, port),
            aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as client,
        ):
            house = House(f"http://127.0.0.1:{port}", app, client)
            await house.enter()
            yield house
    finally:
        await app.close()
        await gateway.close()
        await store.close()


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    folder = tmp_path / "vault"
    folder.mkdir()
    (folder / "Tea.md").write_text("# Tea\n\nGreen tea wants 80 degrees.\n")
    (folder / "Coffee.md").write_text("# Coffee\n\nCoffee wants 94 degrees.\n")
    return folder


OpenHouse = Callable[..., AbstractAsyncContextManager[House]]


@pytest.fixture
def open_house(tmp_path: Path, vault: Path) -> OpenHouse:
    """`async with open_house(script=…, on=True) as house`: a scripted model `m`; `on`: tool calling is on."""

    @asynccontextmanager
    async def opened(
        script: str = "say Hello.",
        *,
        on: bool = False,
        url: str | None = None,
        proxies: tuple[str, ...] = (),
        **options: Any,
    ) -> AsyncIterator[House]:
        models = (
            ModelSettings("m", "scripted", {"script": script, **options}),
            ModelSettings("other", "scripted", {"script": "say Other."}),
        )
        path = url or f"sqlite:///{tmp_path}/store.db"
        server = ServerSettings(port=0, admin_keys=(), trusted_proxies=proxies)
        settings = Settings(
            server=server, vault=VaultSettings(root=str(vault)), store=StoreSettings(path), models=models
        )
        async with _house(settings, Store(path)) as house:
            if on:
                await house.call("PUT", "/settings", {"tool_calling": True})
            yield house

    return opened


@pytest.fixture
def keyed_house(tmp_path: Path, vault: Path) -> OpenHouse:
    """A server with an admin key, and no session yet."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[House]:
        models = (ModelSettings("m", "scripted", {"script": "say Hello."}),)
        server = ServerSettings(port=0, keys=("a-plain-key-of-some-length",), admin_keys=(ADMIN,))
        settings = Settings(
            server=server,
            vault=VaultSettings(root=str(vault)),
            store=StoreSettings("sqlite://"),
            models=models,
        )
        async with _house(replace(settings), Store("sqlite://")) as house:
            yield house

    return opened


@pytest.fixture
def house_of() -> OpenHouse:
    """`async with house_of(settings) as house`: a server with these settings."""

    @asynccontextmanager
    async def opened(settings: Settings) -> AsyncIterator[House]:
        async with _house(settings, Store(settings.store.url)) as house:
            yield house

    return opened

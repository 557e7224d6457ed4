"""The models that are served: those in the settings, and all models of servers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from toolwire.backends import registry
from toolwire.backends.base import Backend
from toolwire.core.errors import ToolwireError
from toolwire.gateway import catalog as catalog_module
from toolwire.gateway.catalog import Catalog
from toolwire.gateway.pipeline import Caller, Gateway
from toolwire.settings.types import ModelSettings, Settings
from toolwire.testing import ScriptedBackend, ScriptedOptions


class Shelf:
    """A server with scripted models."""

    def __init__(self, id: str, options: dict[str, Any]) -> None:
        self.id = id
        self.listed: Sequence[str] | Exception = ("tiny", "family/big")
        self.asked = 0
        self.closed: list[str] = []

    async def names(self) -> Sequence[str]:
        self.asked += 1
        if isinstance(self.listed, Exception):
            raise self.listed
        return self.listed

    def model(self, name: str) -> Backend:
        shelf = self

        class Book(ScriptedBackend):
            async def close(self) -> None:
                shelf.closed.append(name)

        return Book(f"{self.id}/{name}", ScriptedOptions(script=f"say I am {name}."))

    async def close(self) -> None:
        self.closed.append("server")


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Shelf:
    made = Shelf("shelf", {})
    monkeypatch.setattr(registry, "build_source", lambda id, backend, options: made)
    return made


SETTINGS = (
    ModelSettings("demo", "scripted"),
    ModelSettings("shelf", "openai", {"model": "*", "base_url": "http://127.0.0.1:9/v1"}),
)


async def test_a_servers_models_are_listed_after_the_configured_ones(shelf: Shelf) -> None:
    catalog = Catalog(SETTINGS)
    await catalog.start()
    assert catalog.listed() == ["demo", "shelf/tiny", "shelf/family/big"]
    assert "shelf/tiny" in catalog and "shelf/other" not in catalog and catalog.kind("shelf/tiny") == "openai"
    await catalog.close()


async def test_a_servers_model_answers_under_its_own_id(shelf: Shelf) -> None:
    gateway = Gateway(Settings(models=SETTINGS))
    await gateway.start()
    body = b'{"model": "shelf/family/big", "messages": [{"role": "user", "content": "?"}]}'
    answer = await gateway.respond("chat", body, Caller())
    assert b"I am family/big." in (answer.body or b"")
    with pytest.raises(ToolwireError, match="does not exist"):
        await gateway.respond("chat", body.replace(b"shelf/family/big", b"shelf/"), Caller())
    await gateway.close()
    assert shelf.closed == ["family/big", "server"]


async def test_a_server_that_is_briefly_down_keeps_its_models(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = Catalog(SETTINGS)
    await catalog.start()
    monkeypatch.setattr(catalog_module, "FRESH_S", 0.0)
    shelf.listed = ToolwireError("backend_unavailable", "gone")
    assert len(catalog.listed()) == 3
    await asyncio.sleep(0)
    shelf.listed = ("new",)
    while "shelf/new" not in catalog.listed():
        await asyncio.sleep(0.001)
    assert "shelf/tiny" not in catalog
    await catalog.close()


async def test_a_fresh_list_is_not_requested_again(shelf: Shelf) -> None:
    catalog = Catalog(SETTINGS)
    await catalog.start()
    for _ in range(5):
        catalog.listed()
    assert shelf.asked == 1
    await catalog.close()


async def test_a_limited_number_of_a_servers_models_stays_open(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_module, "OPENED", 2)
    catalog = Catalog(SETTINGS)
    first = catalog.find("shelf/a")
    assert catalog.find("shelf/a") is first
    for name in ("b", "a", "c"):
        catalog.find(f"shelf/{name}")
    await asyncio.sleep(0)
    assert shelf.closed == ["b"] and catalog.find("shelf/a") is first
    await catalog.close()


async def test_a_running_model_is_not_closed_to_make_room(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_module, "OPENED", 1)
    gateway = Gateway(Settings(models=SETTINGS))
    body = b'{"model": "shelf/a", "stream": true, "messages": [{"role": "user", "content": "?"}]}'
    answer = await gateway.respond("chat", body, Caller())
    assert answer.stream is not None
    for name in ("b", "c"):
        gateway.catalog.find(f"shelf/{name}")
    await asyncio.sleep(0)
    assert shelf.closed == ["b"], "the other one that does nothing"
    assert b"I am a." in b"".join([block async for block in answer.stream])
    gateway.catalog.find("shelf/d")
    await asyncio.sleep(0)
    assert shelf.closed == ["b", "a"]
    await gateway.close()


async def test_the_gateway_becomes_ready_when_a_server_that_was_down_at_the_start_answers(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.listed = ToolwireError("backend_unavailable", "gone")
    gateway = Gateway(Settings(models=SETTINGS[1:]))
    await gateway.start()
    assert not await gateway.ready()
    shelf.listed = ("new",)
    monkeypatch.setattr(catalog_module, "FRESH_S", 0.0)
    async with asyncio.timeout(5):
        while not await gateway.ready():
            await asyncio.sleep(0.001)
    await gateway.close()


# --- aliases ---


async def test_the_first_alias_that_matches_names_the_model(shelf: Shelf) -> None:
    catalog = Catalog(SETTINGS, aliases=[("fast", "demo"), ("claude-*", "shelf/tiny"), ("*", "demo")])
    found = catalog.find("claude-x")
    assert found is not None
    assert found.id == "shelf/tiny"
    assert catalog.serving("claude-x") == "shelf/tiny"
    assert catalog.find("anything") is catalog.models["demo"]
    assert catalog.listed() == ["demo", "fast"]
    assert "fast" in catalog
    await catalog.close()


async def test_a_claude_model_that_is_not_configured_is_served_by_the_first_model() -> None:
    """This holds only on the Messages API, because Claude Code requests Anthropic's models."""
    gateway = Gateway(Settings(models=(ModelSettings("demo", "scripted", {"script": "say hi"}),)))
    body = '{"model": "claude-opus-5-5", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}'
    answer = await gateway.respond("messages", body.encode(), Caller())
    assert dict(answer.headers)[b"x-toolwire-report"].startswith(b"max_tokens=ignored; model=ignored")
    assert b'"model":"claude-opus-5-5"' in (answer.body or b"")
    with pytest.raises(ToolwireError, match="does not exist"):
        await gateway.respond("chat", body.encode(), Caller())
    with pytest.raises(ToolwireError, match="does not exist"):
        await gateway.respond("messages", body.replace("claude-opus-5-5", "gpt-9").encode(), Caller())
    await gateway.close()

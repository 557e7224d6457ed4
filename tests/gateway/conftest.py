"""The store's two engines, a file and a real PostgreSQL; and a real Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from toolwire.gateway.store import Store
from toolwire.testing.nodes import RedisServer, missing

ENGINES = ("sqlite", "postgresql")


@pytest.fixture(params=ENGINES)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store's URL, on each engine in turn."""
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'data' / 'toolwire.db'}"


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    opened = Store(store_url)
    yield opened
    await opened.close()


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    if "redis-server" in missing():
        pytest.skip("redis-server is missing; make test installs it where it may")
    folder: Path = tmp_path_factory.mktemp("redis")
    server = RedisServer(folder).start()
    yield server
    server.end()


@pytest.fixture
def redis(redis_server: RedisServer) -> RedisServer:
    """Running, and empty."""
    redis_server.end()
    return redis_server.start()

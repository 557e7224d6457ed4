"""The store's two engines: a file, and a real PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from toolwire.gateway.store import Store
from toolwire.testing.postgres import Postgres, binaries, shared

ENGINES = ("sqlite", "postgresql")


def missing(what: str) -> None:
    """Skips, with what is missing; a failure where nothing may be missing."""
    pytest.skip(f"{what} is missing; make test installs it where it may")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    found = binaries()
    if found is None:
        missing("PostgreSQL")
    else:
        with shared(found) as server:
            yield server


@pytest.fixture
def postgres(postgres_server: Postgres) -> Iterator[Postgres]:
    """The server, running, also after the test."""
    postgres_server.start()
    yield postgres_server
    postgres_server.start()


@pytest.fixture
def postgres_url(postgres: Postgres) -> Iterator[str]:
    """A fresh, empty database."""
    url = postgres.create()
    yield url
    postgres.start()
    postgres.drop(url)


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

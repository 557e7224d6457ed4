"""Real services: PostgreSQL, started once and as a user that is not root. `postgres` can be ended and started again; who ends it starts it again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from toolwire.testing.postgres import Postgres, binaries, shared


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

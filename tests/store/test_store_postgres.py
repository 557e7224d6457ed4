"""PostgreSQL fails: each caller gets one clear error, and nothing is written twice."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import psycopg
import pytest

from doubles.postgres import Postgres
from toolwire.core.errors import ToolwireError
from toolwire.core.turn import Message, TextPart
from toolwire.store.engine import Connection
from toolwire.store.postgres import _MIGRATING, LOOK_AGAIN_S
from toolwire.store.store import Store, StoredResponse

T = TypeVar("T")
SOON_S = 15.0


def response(id: str) -> StoredResponse:
    return StoredResponse(
        id,
        "",
        1,
        "m",
        "completed",
        None,
        b'{"id": "x"}',
        [{"id": f"msg_{id}"}],
        (Message("user", (TextPart("hi"),)),),
    )


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[Store]:
    opened = Store(postgres_url)
    await opened.open()
    yield opened
    await opened.close()


async def soon(attempt: Callable[[], Awaitable[T]]) -> T:
    """Returns the result of the first attempt that does not fail."""
    until = time.monotonic() + SOON_S
    while True:
        try:
            return await attempt()
        except ToolwireError as error:
            assert error.failure.kind == "overloaded", error
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.02)


async def refused(attempt: Awaitable[Any]) -> ToolwireError:
    with pytest.raises(ToolwireError) as caught:
        await attempt
    assert caught.value.failure.kind == "overloaded" and caught.value.failure.retry_after_s == 1
    assert "\n" not in str(caught.value)
    return caught.value


# --- PostgreSQL is down and returns -------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_callers_get_an_error_at_once_while_the_server_is_down_and_nothing_is_lost(
    store: Store, postgres: Postgres, end: str
) -> None:
    await asyncio.gather(*(store.put(response(f"r{number}")) for number in range(20)))
    getattr(postgres, end)()
    began = time.monotonic()
    for attempt in (
        store.get("r1", ""),
        store.put(response("late")),
        store.chain("r1", ""),
        store.delete("r1", ""),
    ):
        error = await refused(attempt)
        assert "127.0.0.1" not in str(error), "who asks need not know where the store is"
    assert time.monotonic() - began < 5 and not store.reachable
    postgres.start()
    assert await soon(lambda: store.get("late", "")) is None
    assert store.reachable
    assert all([await store.get(f"r{number}", "") == response(f"r{number}") for number in range(20)])


async def test_a_restart_between_two_requests_is_not_noticed(store: Store, postgres: Postgres) -> None:
    await asyncio.gather(
        *(store.put(response(f"r{number}")) for number in range(50))
    )  # every connection of the pool is open
    postgres.stop()
    postgres.start()
    found = await asyncio.gather(*(store.get(f"r{number}", "") for number in range(50)))
    assert [one.id for one in found if one is not None] == [f"r{number}" for number in range(50)]
    await store.put(response("after"))


async def test_the_log_reports_once_that_the_server_is_down_and_once_that_it_is_back(
    store: Store, postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "toolwire.store")
    postgres.stop()
    for _ in range(5):
        await refused(store.get("r1", ""))
    postgres.start()
    await soon(lambda: store.get("r1", ""))
    said = [record.getMessage() for record in caplog.records]
    assert len([line for line in said if "cannot be reached" in line]) == 1
    assert len([line for line in said if "reached again" in line]) == 1
    assert not any(postgres.password in line for line in said)


async def test_a_server_that_does_not_answer_times_out_and_is_used_again_when_it_answers(
    store: Store, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.put(response("r1"))
    monkeypatch.setattr("toolwire.store.postgres.ANSWER_S", 0.5)
    with postgres.paused():
        began = time.monotonic()
        await asyncio.gather(*(refused(store.get("r1", "")) for _ in range(12)))
        assert time.monotonic() - began < 5
    monkeypatch.undo()
    assert await soon(lambda: store.get("r1", "")) == response("r1")


async def test_closing_does_not_wait_for_a_server_that_does_not_answer(
    postgres_url: str, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = Store(postgres_url)
    await stuck.open()
    monkeypatch.setattr("toolwire.store.postgres.ANSWER_S", 0.3)
    begun = threading.Event()

    def ask(connection: Connection) -> None:
        begun.set()
        connection.execute("SELECT 1")

    with postgres.paused():
        waiting = asyncio.ensure_future(stuck.run(ask, "read"))
        assert await asyncio.to_thread(begun.wait, 5)
        waiting.cancel()  # the caller stops, but the thread still waits
        await asyncio.wait_for(stuck.close(), 5)


async def test_closing_does_not_wait_for_another_node_that_migrates(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolwire.store.postgres.ANSWER_S", 0.3)
    with psycopg.connect(postgres_url, autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(%s)", (_MIGRATING,))
        late = Store(postgres_url)
        opening = asyncio.ensure_future(late.open())
        query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        while other.execute(query).fetchone() != (1,):
            await asyncio.sleep(0.01)
        opening.cancel()
        await asyncio.wait_for(late.close(), 5)


async def test_a_server_that_is_known_to_be_down_is_not_tried_by_every_caller(
    store: Store, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[float] = []
    connect = psycopg.Connection.connect

    def counted(*given: Any, **named: Any) -> Any:
        tried.append(time.monotonic())
        return connect(*given, **named)

    postgres.stop()
    await refused(store.get("r1", ""))
    await asyncio.sleep(LOOK_AGAIN_S)
    monkeypatch.setattr(psycopg.Connection, "connect", counted)
    for _ in range(20):
        await refused(store.get("r1", ""))
    assert 1 <= len(tried) <= 1 + (tried[-1] - tried[0]) / LOOK_AGAIN_S


async def test_a_read_whose_connection_is_lost_is_tried_again_and_a_write_is_not(store: Store) -> None:
    runs: list[int] = []

    def lose_the_first(connection: Connection) -> int:
        runs.append(1)
        if len(runs) == 1:
            connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return len(runs)

    assert await store.run(lose_the_first, "read") == 2
    runs.clear()
    await refused(store.run(lose_the_first, "write"))
    assert len(runs) == 1


async def test_a_statement_that_takes_too_long_is_ended(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolwire.store.postgres.STATEMENT_S", 0.2)
    store = Store(postgres_url)
    began = time.monotonic()
    await refused(store.run(lambda c: c.execute("SELECT pg_sleep(20)"), "read"))
    assert time.monotonic() - began < 10
    await store.put(response("r1"))
    await store.close()


async def test_work_that_leaves_a_transaction_open_does_not_spoil_the_connection_for_others(
    store: Store,
) -> None:
    await store.run(lambda c: c.execute("BEGIN"), "write")
    await store.put(response("r1"))
    assert await store.run(lambda c: c.execute("SELECT count(*) FROM responses").fetchone()[0], "read") == 1


async def test_many_callers_share_few_connections(store: Store) -> None:
    await asyncio.gather(*(store.put(response(f"r{number}")) for number in range(100)))
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'toolwire'"
    query += " AND datname = current_database()"
    assert 1 <= await store.run(lambda c: c.execute(query).fetchone()[0], "read") <= 4


async def test_a_server_that_allows_fewer_connections_serves_all(postgres_url: str, store: Store) -> None:
    def limited(connection: Connection) -> None:
        connection.execute("DROP ROLE IF EXISTS limited")
        connection.execute("CREATE ROLE limited LOGIN PASSWORD 'hush' CONNECTION LIMIT 2")
        connection.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO limited")

    await store.run(limited, "write")
    async with Store(postgres_url.replace(postgres_url.split("@")[0], "postgresql://limited:hush")) as few:
        await asyncio.gather(*(few.put(response(f"r{number}")) for number in range(100)))
        assert all(await asyncio.gather(*(few.get(f"r{number}", "") for number in range(100))))
        assert few.reachable
    await store.run(lambda c: c.execute("DROP OWNED BY limited"), "write")
    await store.run(lambda c: c.execute("DROP ROLE limited"), "write")


# --- the start ----------------------------------------------------------------------------------------------


async def opening(url: str) -> ToolwireError:
    store = Store(url)
    with pytest.raises(ToolwireError) as caught:
        await store.open()
    await store.close()
    assert "\n" not in str(caught.value)
    return caught.value


async def test_a_server_that_is_down_at_the_start_is_named_without_its_password(
    postgres_url: str, postgres: Postgres
) -> None:
    postgres.stop()
    error = await opening(postgres_url)
    assert f"postgresql://toolwire@127.0.0.1:{postgres.port}/fresh_" in str(error) and "refused" in str(error)
    assert postgres.password not in str(error) and "s3cr" not in str(error)
    postgres.start()


async def test_a_wrong_password_is_reported_and_not_shown(postgres: Postgres) -> None:
    error = await opening(f"postgresql://toolwire:hush@127.0.0.1:{postgres.port}/postgres")
    assert "password authentication failed" in str(error) and "hush" not in str(error)


async def test_a_database_in_another_encoding_is_refused(postgres: Postgres) -> None:
    url = postgres.create(encoding="LATIN1")
    try:
        assert "encoding is LATIN1, it must be UTF8" in str(await opening(url))
    finally:
        postgres.drop(url)


async def test_a_user_who_may_not_create_tables_gets_an_error(postgres_url: str) -> None:
    owner = Store(postgres_url)

    def reader(connection: Connection) -> None:
        connection.execute("DROP ROLE IF EXISTS reader")
        connection.execute("CREATE ROLE reader LOGIN PASSWORD 'hush'")

    await owner.run(reader, "write")
    await owner.run(lambda c: c.execute("DELETE FROM toolwire_schema"), "write")
    error = await opening(postgres_url.replace(postgres_url.split("@")[0], "postgresql://reader:hush"))
    assert error.failure.kind == "server" and "permission denied" in str(error)
    await owner.run(lambda c: c.execute("DROP ROLE reader"), "write")
    await owner.close()


async def test_a_running_node_continues_after_a_newer_one_has_migrated_the_schema(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    await store.put(response("r1"))
    await store.run(lambda c: c.execute("UPDATE toolwire_schema SET version = version + 1"), "write")
    others = "datname = current_database() AND pid <> pg_backend_pid()"
    query = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"
    await store.run(lambda c: c.execute(query), "write")
    await refused(store.run(lambda c: c.execute("SELECT pg_terminate_backend(pg_backend_pid())"), "write"))
    assert await soon(lambda: store.get("r1", "")) == response("r1")
    assert "a newer Toolwire has migrated the schema" in caplog.text

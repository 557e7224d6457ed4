"""The schema on each engine: an older store is migrated with all its rows, a newer one refused."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from toolwire.core.errors import ToolwireError
from toolwire.store import schema
from toolwire.store.engine import Connection
from toolwire.store.postgres import definition, translated
from toolwire.store.store import Store
from toolwire.surfaces.web.talk import Conversations
from toolwire.tools.contract import Decision
from toolwire.tools.records import Records

T = TypeVar("T")
ROWS = 3
Table = dict[str, str]
Rows = list[tuple[Any, ...]]

STEP = (
    "ALTER TABLE audit ADD COLUMN reason TEXT NOT NULL DEFAULT ''",
    "CREATE TABLE extra (id TEXT NOT NULL PRIMARY KEY, at REAL) WITHOUT ROWID",
)
"""A migration of a later version."""
NOW = schema.FIRST + len(schema.MIGRATIONS)


def test_the_first_version_never_changes() -> None:
    """Stores of this version exist. A later version adds a migration, and its hash here."""
    tables = hashlib.sha256("\n".join(schema.TABLES).encode()).hexdigest()[:12]
    steps = [hashlib.sha256("\n".join(step).encode()).hexdigest()[:12] for step in schema.MIGRATIONS]
    assert (schema.FIRST, tables, steps) == (8, "737f698aa19e", ["8789c6c3426b", "07aa0a79496c"])


# --- the contents of a store -------------------------------------------------------------------------------


def tables(connection: Connection, url: str) -> dict[str, Table]:
    """Returns the columns of each table with their types. `?` marks a nullable column."""
    if url.startswith("postgresql"):
        columns = "table_name, column_name, data_type, is_nullable"
        query = f"SELECT {columns} FROM information_schema.columns WHERE table_schema = 'public'"
        found: dict[str, Table] = {}
        for table, column, kind, empty in connection.execute(f"{query} ORDER BY ordinal_position").fetchall():
            if table != "toolwire_schema":
                found.setdefault(table, {})[column] = {
                    "bigint": "INTEGER",
                    "double precision": "REAL",
                    "bytea": "BLOB",
                    "text": "TEXT",
                }[kind] + ("?" if empty == "YES" else "")
        return found
    names = [
        row[0]
        for row in connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        )
    ]
    return {
        name: {
            row[1]: row[2] + ("" if row[3] or row[5] else "?")
            for row in connection.execute(f"PRAGMA table_info({name})").fetchall()
        }
        for name in names
    }


def cell(column: str, kind: str, row: int) -> Any:
    if kind.endswith("?") and row == 0:
        return None
    match kind.rstrip("?"):
        case "INTEGER":
            return 2**40 + row
        case "REAL":
            return 1_700_000_000.123456 + row
        case "BLOB":
            return bytes(range(256)) * (row + 1)
    return f"{'id' if column == 'response_id' else column} {row} 'é' \U0001f600"


def fill(connection: Connection, found: dict[str, Table]) -> None:
    for table, columns in sorted(
        found.items(), key=lambda each: each[0] == "items"
    ):  # after the responses that they belong to
        given = [column for column in columns if (table, column) != ("audit", "number")]
        rows = [tuple(cell(column, columns[column], row) for column in given) for row in range(ROWS)]
        connection.executemany(
            f"INSERT INTO {table} ({', '.join(given)}) VALUES ({', '.join('?' * len(given))})", rows
        )


def held(connection: Connection, found: dict[str, Table]) -> dict[str, Rows]:
    return {
        table: [
            tuple(row)
            for row in connection.execute(
                f"SELECT {', '.join(columns)} FROM {table} ORDER BY 1, 2"
            ).fetchall()
        ]
        for table, columns in found.items()
    }


# --- forward ------------------------------------------------------------------------------------------------


async def test_a_store_of_version_8_opens_with_every_row(tmp_path: Path) -> None:
    """Toolwire 0.1 created `version_8.sql` in eight steps.

    This version creates the same tables in one.
    """
    path = tmp_path / "toolwire.db"
    connection = sqlite3.connect(path)
    connection.executescript((Path(__file__).parent / "data" / "version_8.sql").read_text())
    connection.close()
    async with Store(f"sqlite:///{path}") as store:
        assert await store.run(lambda c: tables(c, "sqlite://"), "read") == await fresh(tables)
        assert await store.run(indexes, "read") == await fresh(lambda c, url: indexes(c))
        found = await store.get("resp_1", "key_1")
        assert found is not None and found.input_items == [{"id": "msg_1"}]
        assert len(await store.chain("resp_1", "key_1") or ()) == 1
        assert list(await store.referenced(["msg_1", "msg_2"], "key_1")) == ["msg_2", "msg_1"]
        records = Records(store)
        first, second = await records.get("appr_1"), await records.get("appr_2")
        assert first is not None and first.decision == Decision(True, remember="tool")
        assert second is not None and second.decision == Decision(False)
        assert [grant.source for grant in await records.grants()] == ["vault:/vault"]
        assert [entry["number"] for entry in await records.audit()] == [1]
        conversation = await Conversations(store).get("c1")
        assert conversation is not None and conversation.title == "Tea"


def indexes(connection: Connection) -> set[tuple[str, str]]:
    query = "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
    return {tuple(row) for row in connection.execute(query)}


async def fresh(look: Callable[[Connection, str], T]) -> T:
    async with Store("sqlite://") as memory:
        return await memory.run(lambda c: look(c, "sqlite://"), "read")


async def test_both_engines_create_the_same_tables(store: Store, store_url: str) -> None:
    assert await store.run(lambda c: tables(c, store_url), "read") == await fresh(tables)


async def test_an_older_version_is_migrated_and_keeps_every_row(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Store(store_url) as older:
        found = await older.run(lambda c: tables(c, store_url), "read")
        await older.run(lambda c: fill(c, found), "write")
        rows = await older.run(lambda c: held(c, found), "read")
    assert all(len(each) == ROWS for each in rows.values()) and "responses" in rows
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, STEP))
    for _ in range(2):  # the second time there is nothing to do
        async with Store(store_url) as newer:
            assert await newer.run(lambda c: held(c, found), "read") == rows
            columns = await newer.run(lambda c: tables(c, store_url), "read")
    assert columns == {
        **found,
        "audit": {**found["audit"], "reason": "TEXT"},
        "extra": {"id": "TEXT", "at": "REAL?"},
    }
    assert columns == await fresh(tables), "a new store has the same tables"


async def test_the_audit_log_continues_its_numbers_after_an_upgrade(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Store(store_url) as older:
        found = {"audit": (await older.run(lambda c: tables(c, store_url), "read"))["audit"]}
        await older.run(lambda c: fill(c, found), "write")
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, STEP))
    async with Store(store_url) as newer:
        await newer.run(lambda c: fill(c, found), "write")
        query = "SELECT number FROM audit ORDER BY number"
        numbers = await newer.run(lambda c: [row[0] for row in c.execute(query)], "read")
    assert numbers == list(range(1, 2 * ROWS + 1))


async def test_many_nodes_may_start_at_once_on_an_empty_store(store_url: str) -> None:
    nodes = [Store(store_url) for _ in range(8)]
    await asyncio.gather(*(node.open() for node in nodes))
    counts = await asyncio.gather(
        *(
            node.run(lambda c: c.execute("SELECT count(*) FROM responses").fetchone()[0], "read")
            for node in nodes
        )
    )
    assert counts == [0] * 8
    await asyncio.gather(*(node.close() for node in nodes))


async def test_a_step_that_fails_changes_nothing(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Store(store_url) as older:
        before = await older.run(lambda c: tables(c, store_url), "read")
    with monkeypatch.context() as then:
        then.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, STEP, ("NONSENSE",)))
        with pytest.raises(ToolwireError, match="NONSENSE"):
            await Store(store_url).__aenter__()
    async with Store(store_url) as again:
        assert await again.run(lambda c: tables(c, store_url), "read") == before


# --- refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (NOW + 1, rf"written by a newer Toolwire \(schema {NOW + 1}, this one knows {NOW}\)$"),
        (
            7,
            r"written by a Toolwire before 0\.1 \(schema 7, this one reads 8 and later\); use an empty "
            r"store$",
        ),
    ],
)
async def test_a_version_that_cannot_be_read_is_refused_in_one_line_and_left_as_it_is(
    store_url: str, version: int, reason: str
) -> None:
    async with Store(store_url) as other:
        found = await other.run(lambda c: tables(c, store_url), "read")
        await other.run(lambda c: fill(c, found), "write")
        rows = await other.run(lambda c: held(c, found), "read")
        await other.run(lambda c: set_version(c, store_url, version), "write")
    with pytest.raises(ToolwireError, match=reason) as caught:
        await Store(store_url).__aenter__()
    assert "\n" not in str(caught.value)
    if store_url.startswith("sqlite"):
        path = store_url.removeprefix("sqlite:///")
        connection = sqlite3.connect(path)
        assert connection.execute("PRAGMA user_version").fetchone() == (version,)
        connection.execute(f"PRAGMA user_version = {NOW}")
        connection.close()
    else:
        import psycopg

        with psycopg.connect(store_url) as server:
            assert server.execute("SELECT version FROM toolwire_schema").fetchone() == (version,)
            server.execute("UPDATE toolwire_schema SET version = %s", (NOW,))
    async with Store(store_url) as again:
        assert await again.run(lambda c: held(c, found), "read") == rows


def set_version(connection: Connection, url: str, version: int) -> None:
    statement = (
        "PRAGMA user_version =" if url.startswith("sqlite") else "UPDATE toolwire_schema SET version ="
    )
    connection.execute(f"{statement} {version}")


# --- the translation ----------------------------------------------------------------------------------------


def test_types_are_translated_and_names_and_quoted_texts_are_not() -> None:
    statement = "CREATE TABLE t (number INTEGER PRIMARY KEY AUTOINCREMENT, REALM REAL, b BLOB, "
    statement += "note TEXT DEFAULT 'a BLOB', \"TEXT\" TEXT) WITHOUT ROWID"
    assert definition(statement).rstrip() == (
        "CREATE TABLE t (number BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, "
        "REALM DOUBLE PRECISION, b BYTEA,"
        ' note TEXT COLLATE "C" DEFAULT \'a BLOB\', "TEXT" TEXT COLLATE "C")'
    )
    assert definition("UPDATE t SET note = TEXT") == "UPDATE t SET note = TEXT"


def test_marks_are_translated_outside_of_quotes_only() -> None:
    assert translated("SELECT '?', '50%', \"?\", 5 % 2 FROM t WHERE a = ? AND b LIKE ? ESCAPE '\\'") == (
        "SELECT '?', '50%%', \"?\", 5 %% 2 FROM t WHERE a = %s AND b LIKE %s ESCAPE '\\'"
    )

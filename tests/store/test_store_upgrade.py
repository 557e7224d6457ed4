"""The schema, on each engine: every version that ever was comes forward with all its rows, and none goes back."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest

from toolwire.core.errors import ToolwireError
from toolwire.store import schema
from toolwire.store.engine import Connection
from toolwire.store.postgres import definition, translated
from toolwire.store.store import Store

ROWS = 3
Table = dict[str, str]
Rows = list[tuple[Any, ...]]

WRITTEN = {
    1: "6ff6c382aee8",
    2: "6e58a4f6f1c3",
    3: "1c71cd26abd8",
    4: "0bbf024c3e34",
    5: "33c7ccdcbdbf",
    6: "abdba15d3b4e",
}
"""What brought stores to these versions, as hashes: somebody's store was made by it."""


def test_what_made_a_version_is_never_changed() -> None:
    made = {number: hashlib.sha256("\n".join(schema.MIGRATIONS[number - 1]).encode()).hexdigest()[:12] for number in WRITTEN}
    assert made == WRITTEN


# --- what a store holds ------------------------------------------------------------------------------------------------------------------------


def tables(connection: Connection, url: str) -> dict[str, Table]:
    """By table, its columns with their types; a column that may be empty has a `?` at its type."""
    if url.startswith("postgresql"):
        told = "SELECT table_name, column_name, data_type, is_nullable FROM information_schema.columns WHERE table_schema = 'public'"
        found: dict[str, Table] = {}
        for table, column, kind, empty in connection.execute(f"{told} ORDER BY ordinal_position").fetchall():
            if table != "toolwire_schema":
                found.setdefault(table, {})[column] = {"bigint": "INTEGER", "double precision": "REAL", "bytea": "BLOB", "text": "TEXT"}[kind] + (
                    "?" if empty == "YES" else ""
                )
        return found
    names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'")]
    return {
        name: {row[1]: row[2] + ("" if row[3] or row[5] else "?") for row in connection.execute(f"PRAGMA table_info({name})").fetchall()}
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
    for table, columns in sorted(found.items(), key=lambda each: each[0] == "items"):  # after the responses that they belong to
        given = [column for column in columns if (table, column) != ("audit", "number")]
        rows = [tuple(cell(column, columns[column], row) for column in given) for row in range(ROWS)]
        connection.executemany(f"INSERT INTO {table} ({', '.join(given)}) VALUES ({', '.join('?' * len(given))})", rows)


def held(connection: Connection, found: dict[str, Table]) -> dict[str, Rows]:
    return {
        table: [tuple(row) for row in connection.execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY 1, 2").fetchall()]
        for table, columns in found.items()
    }


def after(version: int, found: dict[str, Table], rows: dict[str, Rows]) -> dict[str, Rows]:
    """What must be there later: the same, but grants of version 3 are revoked, because they do not say for which vault they were given."""
    if version == 3:
        names = list(found["grants"])
        made, revoked = names.index("created_at"), names.index("revoked_at")
        rows["grants"] = [(*row[:revoked], row[made] if row[revoked] is None else row[revoked], *row[revoked + 1 :]) for row in rows["grants"]]
    return rows


# --- forward -----------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, len(schema.MIGRATIONS)))
async def test_every_older_version_comes_forward_and_keeps_every_row(store_url: str, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as then:
        then.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:version])
        older = Store(store_url)
        found = await older.run(lambda c: tables(c, store_url), "read")
        await older.run(lambda c: fill(c, found), "write")
        rows = await older.run(lambda c: held(c, found), "read")
        await older.close()
    assert all(len(each) == ROWS for each in rows.values()) and "responses" in rows
    newer = Store(store_url)
    await newer.open()
    assert await newer.run(lambda c: held(c, found), "read") == after(version, found, rows)
    columns = await newer.run(lambda c: tables(c, store_url), "read")
    await newer.close()
    assert all(set(found[table]) <= set(columns[table]) for table in found)
    assert columns == await fresh()


async def fresh() -> dict[str, Table]:
    memory = Store("sqlite://")
    columns = await memory.run(lambda c: tables(c, "sqlite://"), "read")
    await memory.close()
    return columns


async def test_the_audit_log_goes_on_counting_after_an_upgrade(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as then:
        then.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:3])
        older = Store(store_url)
        found = {"audit": (await older.run(lambda c: tables(c, store_url), "read"))["audit"]}
        await older.run(lambda c: fill(c, found), "write")
        await older.close()
    newer = Store(store_url)
    await newer.run(lambda c: fill(c, found), "write")
    assert await newer.run(lambda c: [row[0] for row in c.execute("SELECT number FROM audit ORDER BY number")], "read") == list(
        range(1, 2 * ROWS + 1)
    )
    await newer.close()


async def test_many_nodes_may_start_at_once_on_an_empty_store(store_url: str) -> None:
    nodes = [Store(store_url) for _ in range(8)]
    await asyncio.gather(*(node.open() for node in nodes))
    counts = await asyncio.gather(*(node.run(lambda c: c.execute("SELECT count(*) FROM responses").fetchone()[0], "read") for node in nodes))
    assert counts == [0] * 8
    await asyncio.gather(*(node.close() for node in nodes))


async def test_a_step_that_fails_changes_nothing(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as then:
        then.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:4])
        older = Store(store_url)
        before = await older.run(lambda c: tables(c, store_url), "read")
        await older.close()
        then.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, ("CREATE TABLE extra (id TEXT)", "NONSENSE")))
        broken = Store(store_url)
        with pytest.raises(ToolwireError, match="NONSENSE"):
            await broken.open()
        await broken.close()
        then.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:4])
        again = Store(store_url)
        assert await again.run(lambda c: tables(c, store_url), "read") == before
        await again.close()


# --- back --------------------------------------------------------------------------------------------------------------------------------------


async def test_an_older_toolwire_refuses_a_newer_store_in_one_line_and_changes_nothing(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = Store(store_url)
    found = await newer.run(lambda c: tables(c, store_url), "read")
    await newer.run(lambda c: fill(c, found), "write")
    rows = await newer.run(lambda c: held(c, found), "read")
    await newer.close()
    known = len(schema.MIGRATIONS)
    with monkeypatch.context() as then:
        then.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:-1])
        older = Store(store_url)
        with pytest.raises(ToolwireError, match=rf"written by a newer Toolwire \(schema {known}, this one knows {known - 1}\)$") as caught:
            await older.open()
        await older.close()
    assert "\n" not in str(caught.value)
    again = Store(store_url)
    assert await again.run(lambda c: held(c, found), "read") == rows
    await again.close()


# --- the translation ---------------------------------------------------------------------------------------------------------------------------


def test_types_are_translated_and_names_and_quoted_texts_are_not() -> None:
    statement = (
        "CREATE TABLE t (number INTEGER PRIMARY KEY AUTOINCREMENT, REALM REAL, b BLOB, note TEXT DEFAULT 'a BLOB', \"TEXT\" TEXT) WITHOUT ROWID"
    )
    assert definition(statement).rstrip() == (
        "CREATE TABLE t (number BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, REALM DOUBLE PRECISION, b BYTEA,"
        ' note TEXT COLLATE "C" DEFAULT \'a BLOB\', "TEXT" TEXT COLLATE "C")'
    )
    assert definition("UPDATE t SET note = TEXT") == "UPDATE t SET note = TEXT"


def test_marks_are_translated_outside_of_quotes_only() -> None:
    assert translated("SELECT '?', '50%', \"?\", 5 % 2 FROM t WHERE a = ? AND b LIKE ? ESCAPE '\\'") == (
        "SELECT '?', '50%%', \"?\", 5 %% 2 FROM t WHERE a = %s AND b LIKE %s ESCAPE '\\'"
    )

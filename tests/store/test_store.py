"""The store, on each engine: a key reads its own data, and a failed write is an error."""

from __future__ import annotations

import ast
import asyncio
import os
import re
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from toolwire.core.errors import ToolwireError
from toolwire.core.items import StoredItem, decode_items, encode_items
from toolwire.core.turn import Call, ImagePart, Item, Message, OtherPart, Reasoning, Result, TextPart
from toolwire.settings.extras import add_extra
from toolwire.store import schema
from toolwire.store import store as store_module
from toolwire.store.engine import Connection
from toolwire.store.store import Store, StoredResponse

EVERY_ITEM: tuple[Item, ...] = (
    Message("user", (TextPart("hi \n é \U0001f600"), ImagePart("data:image/png;base64,AA", "low"))),
    Message("user", (OtherPart("input_file", {"file_id": "f", "n": [1, None]}),)),
    Message("assistant", (), refusal="no", phase="final"),
    Message("system", (TextPart(""),), name="root"),
    Reasoning(("a", "b"), ("c",), "cipher", "rs_1"),
    Reasoning(),
    Call("call_1", "get_weather", '{"city": "Rome" }'),
    Call("call_2", "patch", "raw input", "custom", "tools"),
    Result("call_1", (TextPart("sunny"),)),
    Result("call_2", (), "custom", "patch"),
)


def said(text: str) -> Message:
    return Message("user", (TextPart(text),))


def response(
    id: str,
    previous: str | None = None,
    key_id: str = "",
    items: tuple[Item, ...] | None = None,
    **changes: Any,
) -> StoredResponse:
    held = items if items is not None else (said(f"in {id}"), said(f"out {id}"))
    fields = {
        "created_at": 1,
        "model": "demo",
        "status": "completed",
        "response": b'{"id": "%s"}' % id.encode(),
        "input_items": [{"id": "msg_1"}],
    }
    return StoredResponse(
        id=id, key_id=key_id, previous_response_id=previous, items=held, **{**fields, **changes}
    )


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.fixture
async def file_store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = Store(url_of(tmp_path / "data" / "toolwire.db"))
    yield opened
    await opened.close()


# --- rows ---------------------------------------------------------------------------------------------------


def test_every_kind_of_item_survives_the_bytes() -> None:
    assert decode_items(encode_items(EVERY_ITEM)) == EVERY_ITEM


def test_a_field_that_this_code_does_not_know_is_skipped() -> None:
    assert decode_items(
        b'[{"t": "call", "call_id": "c", "name": "n", "arguments": "{}", "from_the_future": 1}]'
    ) == (Call("c", "n", "{}"),)


async def test_a_cursor_never_leaves_the_thread_of_its_connection(store: Store) -> None:
    """Another thread that frees it would reset a statement that may be in use again."""
    assert await store.run(lambda c: c.execute("SELECT 1"), "read") is None


async def test_a_stored_response_is_read_back_whole_also_by_another_store(
    store: Store, store_url: str
) -> None:
    kept = response("resp_1", items=EVERY_ITEM)
    await store.put(kept)
    assert await store.get("resp_1", "") == kept
    await store.close()
    again = Store(store_url)
    assert await again.get("resp_1", "") == kept
    await again.close()


async def test_text_that_one_engine_cannot_store_is_still_found(store: Store) -> None:
    odd = {"id": "msg_\0\U0001f600", "type": "message", "content": "a\0b"}
    await store.put(response("resp_1", input_items=[odd]))
    assert await store.referenced([odd["id"]], "") == {odd["id"]: odd}
    assert await store.get("resp_\0", "") is None


async def test_items_are_found_by_id_until_their_response_is_deleted(store: Store) -> None:
    body = b'{"id": "resp_1", "output": [{"id": "fc_1", "type": "function_call"}, {"type": "odd"}]}'
    await store.put(
        response("resp_1", key_id="mine", response=body, input_items=[{"id": "msg_1"}, {"type": "no_id"}])
    )
    await store.put(response("resp_2", key_id="mine", input_items=[{"id": "msg_1"}]))
    found = {"fc_1": {"id": "fc_1", "type": "function_call"}, "msg_1": {"id": "msg_1"}}
    assert await store.referenced(["msg_1", "fc_1", "msg_9"], "mine") == found
    assert await store.referenced(["msg_1"], "theirs") == {}
    await store.delete("resp_1", "mine")
    assert await store.referenced(["fc_1", "msg_1"], "mine") == {"msg_1": {"id": "msg_1"}}, (
        "the later response holds it too"
    )


async def test_input_items_are_paged_in_both_orders(store: Store) -> None:
    await store.put(response("resp_1", input_items=[{"id": f"msg_{number}"} for number in range(5)]))
    newest = await store.input_items("resp_1", "", limit=2)
    assert newest is not None and ([item["id"] for item in newest.data], newest.has_more) == (
        ["msg_4", "msg_3"],
        True,
    )
    rest = await store.input_items("resp_1", "", limit=3, order="asc", after="msg_1")
    assert rest is not None and ([item["id"] for item in rest.data], rest.has_more) == (
        ["msg_2", "msg_3", "msg_4"],
        False,
    )
    with pytest.raises(ToolwireError) as caught:
        await store.input_items("resp_1", "", after="msg_9")
    assert caught.value.failure.param == "after"


async def test_a_store_in_memory_lasts_while_it_is_open() -> None:
    memory = Store("sqlite://")
    await memory.put(response("resp_1"))
    assert await memory.get("resp_1", "") == response("resp_1")
    await memory.close()


async def test_a_key_sees_and_deletes_only_its_own(store: Store) -> None:
    await store.put(response("resp_1", key_id="mine"))
    await store.put(response("resp_2", "resp_1", key_id="theirs"))
    assert await store.get("resp_1", "theirs") is None
    assert await store.delete("resp_1", "theirs") is False
    assert await store.chain("resp_1", "theirs") is None
    assert await store.chain("resp_2", "theirs") is None  # its first response has another key
    assert await store.input_items("resp_1", "theirs") is None
    assert await store.get("resp_1", "mine") is not None


async def test_another_key_cannot_overwrite(store: Store) -> None:
    await store.put(response("resp_1", key_id="mine"))
    with pytest.raises(ToolwireError):
        await store.put(response("resp_1", key_id="theirs", model="other"))
    assert await store.get("resp_1", "mine") == response("resp_1", key_id="mine")


async def test_putting_again_replaces(store: Store) -> None:
    await store.put(response("resp_1", status="in_progress"))
    await store.put(response("resp_1", status="completed"))
    found = await store.get("resp_1", "")
    assert found is not None and found.status == "completed"


async def test_a_deleted_response_is_not_found(store: Store) -> None:
    await store.put(response("resp_1"))
    assert await store.delete("resp_1", "") is True
    assert await store.delete("resp_1", "") is False
    assert await store.get("resp_1", "") is None


# --- chains -------------------------------------------------------------------------------------------------


def texts(items: tuple[StoredItem, ...] | None) -> list[str] | None:
    return (
        None
        if items is None
        else [
            part.text
            for item in items
            if isinstance(item, Message)
            for part in item.parts
            if isinstance(part, TextPart)
        ]
    )


async def test_a_chain_is_the_whole_conversation_in_order_and_may_fork(store: Store) -> None:
    await store.put(response("a"))
    await store.put(response("b", "a"))
    await store.put(response("left", "b"))
    await store.put(response("right", "b"))
    trunk = ["in a", "out a", "in b", "out b"]
    assert texts(await store.chain("left", "")) == [*trunk, "in left", "out left"]
    assert texts(await store.chain("right", "")) == [*trunk, "in right", "out right"]
    assert texts(await store.chain("a", "")) == ["in a", "out a"]


async def test_a_chain_with_a_missing_link_is_none(store: Store) -> None:
    await store.put(response("a"))
    await store.put(response("b", "a"))
    await store.delete("a", "")
    assert await store.chain("b", "") is None
    assert await store.chain("never", "") is None


async def test_a_chain_that_is_too_long_or_circular_is_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "MAX_CHAIN", 10)
    await store.put(response("ring", "ring"))
    with pytest.raises(ToolwireError) as caught:
        await store.chain("ring", "")
    assert caught.value.failure.param == "previous_response_id"
    previous = None
    for number in range(10):
        await store.put(response(f"r{number}", previous))
        previous = f"r{number}"
    assert len(await store.chain("r9", "") or ()) == 20
    await store.put(response("r10", "r9"))
    with pytest.raises(ToolwireError):
        await store.chain("r10", "")


async def test_many_callers_at_once_are_all_served(store: Store) -> None:
    await asyncio.gather(*(store.put(response(f"resp_{number}")) for number in range(200)))
    found = await asyncio.gather(*(store.get(f"resp_{number}", "") for number in range(200)))
    assert [each.id for each in found if each is not None] == [f"resp_{number}" for number in range(200)]


async def test_work_that_fails_in_a_transaction_is_rolled_back_and_the_next_succeeds(store: Store) -> None:
    def half(connection: Connection) -> None:
        with connection.transaction():
            connection.execute("INSERT INTO preferences (name, value) VALUES (?, ?)", ("half", "1"))
            raise KeyError("half")

    with pytest.raises(ToolwireError, match="half") as caught:
        await store.run(half, "write")
    assert caught.value.failure.kind == "server"
    with pytest.raises(ToolwireError, match="could not write"):
        await store.run(lambda c: c.execute("INSERT INTO nowhere VALUES (?)", (1,)), "write")
    assert await store.run(lambda c: c.execute("SELECT count(*) FROM preferences").fetchone()[0], "read") == 0


async def test_booleans_percent_signs_and_quoted_question_marks_mean_the_same_on_both_engines(
    store: Store,
) -> None:
    def work(connection: Connection) -> list[Any]:
        query = "INSERT INTO usage_batches (node, batch, written_at) VALUES (?, ?, ?)"
        connection.executemany(query, [("50% off?", True, 1), ("other", False, 2.5)])
        like = "SELECT node, batch, written_at, '?%s' FROM usage_batches "
        like += "WHERE node LIKE '50%' AND node LIKE ? AND batch = ?"
        return [tuple(row) for row in connection.execute(like, ("%?", True))]

    assert await store.run(work, "write") == [("50% off?", 1, 1.0, "?%s")]


async def test_texts_are_ordered_by_their_bytes(store: Store) -> None:
    names = ["b", "B", "é", "a", "_", "Z"]

    def work(connection: Connection) -> list[str]:
        connection.executemany(
            "INSERT INTO preferences (name, value) VALUES (?, ?)", [(name, "") for name in names]
        )
        return [row[0] for row in connection.execute("SELECT name FROM preferences ORDER BY name").fetchall()]

    assert await store.run(work, "write") == sorted(names, key=str.encode)


# --- the file -----------------------------------------------------------------------------------------------


async def test_the_file_and_its_folder_are_private(file_store: Store, tmp_path: Path) -> None:
    await file_store.put(response("resp_1"))
    folder = tmp_path / "data"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}
    assert "toolwire.db" in modes and set(modes.values()) == {0o600}


async def test_a_file_that_others_could_read_becomes_private(tmp_path: Path) -> None:
    path = tmp_path / "toolwire.db"
    path.touch(0o644)
    os.chmod(path, 0o644)
    opened = Store(url_of(path))
    await opened.open()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    await opened.close()


async def test_the_home_directory_may_be_written_as_a_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    opened = Store("sqlite:///~/deep/er/toolwire.db")
    await opened.open()
    await opened.close()
    assert (tmp_path / "deep" / "er" / "toolwire.db").exists()


async def test_creating_a_store_object_opens_nothing(tmp_path: Path) -> None:
    Store(url_of(tmp_path / "data" / "toolwire.db"))
    assert list(tmp_path.iterdir()) == []


async def test_a_new_file_has_the_newest_schema_and_writes_ahead(file_store: Store, tmp_path: Path) -> None:
    await file_store.open()
    with sqlite3.connect(tmp_path / "data" / "toolwire.db") as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (schema.newest(),)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


async def test_an_older_file_is_migrated_and_keeps_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "toolwire.db"
    older = Store(url_of(path))
    await older.put(response("resp_1"))
    await older.close()
    before = schema.newest()
    monkeypatch.setattr(
        schema,
        "MIGRATIONS",
        (*schema.MIGRATIONS, ("ALTER TABLE responses ADD COLUMN note TEXT", "CREATE TABLE extra (id TEXT)")),
    )
    newer = Store(url_of(path))
    assert await newer.get("resp_1", "") == response("resp_1")
    await newer.close()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (before + 1,)
    connection.close()


async def test_a_migration_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "toolwire.db"
    older = Store(url_of(path))
    await older.put(response("resp_1"))
    await older.close()
    with monkeypatch.context() as patched:
        patched.setattr(
            schema, "MIGRATIONS", (*schema.MIGRATIONS, ("CREATE TABLE extra (id TEXT)", "NONSENSE"))
        )
        broken = Store(url_of(path))
        with pytest.raises(ToolwireError):
            await broken.open()
        await broken.close()
    again = Store(url_of(path))
    assert await again.get("resp_1", "") == response("resp_1")
    await again.close()
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'extra'").fetchone() == (0,)
    connection.close()


async def test_a_file_of_a_newer_toolwire_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "toolwire.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 999")
    connection.close()
    before = path.read_bytes()
    opened = Store(url_of(path))
    with pytest.raises(ToolwireError, match="newer Toolwire"):
        await opened.get("resp_1", "")
    await opened.close()
    assert path.read_bytes() == before


async def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "toolwire.db"
    path.write_bytes(b"certainly not a database " * 200)
    opened = Store(url_of(path))
    with pytest.raises(ToolwireError, match=r"toolwire\.db.*damaged"):
        await opened.open()
    await opened.close()


async def test_a_folder_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    opened = Store(url_of(tmp_path / "file" / "toolwire.db"))
    with pytest.raises(ToolwireError, match=r"toolwire\.db.*cannot be opened"):
        await opened.open()
    await opened.close()


FULL = """
import asyncio, os, resource, sys
from toolwire.core.errors import ToolwireError
from toolwire.store.store import Store, StoredResponse

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

def response(number):
    body = b'{"pad": "' + b"x" * 20_000 + b'"}'
    items = [{"id": f"msg_{number}"}]
    return StoredResponse(f"resp_{number}", "", 1, "m", "completed", None, body, items, ())

async def main(path):
    store = Store(f"sqlite:///{path}")
    kept, refused = [], set()
    await store.put(response(0))
    limit(os.path.getsize(path + "-wal") + 200_000)
    for number in range(1, 30):
        try:
            await store.put(response(number))
            kept.append(number)
        except ToolwireError as error:
            refused.add((error.failure.kind, str(error)))
    assert kept and len(kept) < 29, kept
    assert await store.get("resp_0", "") == response(0), "what is stored is read while the disk is full"
    limit(resource.RLIM_INFINITY)
    await store.put(response(99))
    await store.close()
    again = Store(f"sqlite:///{path}")
    for number in (0, *kept, 99):
        assert await again.get(f"resp_{number}", "") == response(number), number
    await again.close()
    print(sorted(refused))

asyncio.run(main(sys.argv[1]))
"""


def test_a_full_disk_is_reported_loses_nothing_and_ends_when_there_is_room(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "toolwire.db")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    ((kind, message),) = ast.literal_eval(done.stdout)
    assert (kind, message) == (
        "overloaded",
        "The gateway's store could not write: the disk is full or cannot be written.",
    )


async def test_a_file_at_its_limit_is_reported_and_the_store_continues(file_store: Store) -> None:
    await file_store.put(response("small"))

    def fill(connection: Connection) -> None:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 2}")

    await file_store.run(fill, "limit")
    with pytest.raises(ToolwireError, match="full") as caught:
        await file_store.put(response("big", response=b"x" * 1_000_000))
    assert caught.value.failure.kind == "overloaded"
    assert await file_store.get("big", "") is None
    assert await file_store.get("small", "") == response("small")


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("mysql://h/db", "sqlite:///PATH"),
        ("sqlite:///", "sqlite:///PATH"),
        ("postgresql://u:hush%zz@h/db", "special characters as %XX"),
        ("postgresql://u:hush/x@h/db", "special characters as %XX"),
    ],
)
def test_an_invalid_url_is_refused_without_repeating_a_password(url: str, word: str) -> None:
    with pytest.raises(ToolwireError, match=word) as caught:
        Store(url)
    assert "hush" not in str(caught.value)


def test_postgresql_without_its_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "toolwire.store.postgres", raising=False)
    with pytest.raises(ToolwireError, match=re.escape(add_extra("service"))):
        Store("postgresql://h/db")


async def test_a_closed_store_says_so(store: Store) -> None:
    await store.close()
    with pytest.raises(ToolwireError, match="closed"):
        await store.get("resp_1", "")

"""The store: what goes in comes out, to its owner only, and what can not be kept is said."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from toolwire.errors import ToolwireError
from toolwire.gateway import store as store_module
from toolwire.gateway.items import decode_items, encode_items
from toolwire.gateway.schema import MIGRATIONS
from toolwire.gateway.store import Store, StoredResponse
from toolwire.turn import Call, ImagePart, Item, Message, OtherPart, Reasoning, Result, TextPart

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


def response(id: str, previous: str | None = None, key_id: str = "", items: tuple[Item, ...] | None = None, **changes: Any) -> StoredResponse:
    held = items if items is not None else (said(f"in {id}"), said(f"out {id}"))
    fields = {"created_at": 1, "model": "demo", "status": "completed", "response": b'{"id": "%s"}' % id.encode(), "input_items": [{"id": "msg_1"}]}
    return StoredResponse(id=id, key_id=key_id, previous_response_id=previous, items=held, **{**fields, **changes})


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = Store(url_of(tmp_path / "data" / "toolwire.db"))
    yield opened
    await opened.close()


# --- rows --------------------------------------------------------------------------------------------------------------------------------------


def test_every_kind_of_item_survives_the_bytes() -> None:
    assert decode_items(encode_items(EVERY_ITEM)) == EVERY_ITEM


def test_a_field_that_this_code_does_not_know_is_skipped() -> None:
    assert decode_items(b'[{"t": "call", "call_id": "c", "name": "n", "arguments": "{}", "from_the_future": 1}]') == (Call("c", "n", "{}"),)


async def test_what_is_put_is_got_whole_also_by_another_store_on_the_same_file(store: Store, tmp_path: Path) -> None:
    kept = response("resp_1", items=EVERY_ITEM)
    await store.put(kept)
    assert await store.get("resp_1", "") == kept
    await store.close()
    again = Store(url_of(tmp_path / "data" / "toolwire.db"))
    assert await again.get("resp_1", "") == kept
    await again.close()


async def test_memory_keeps_while_it_is_open() -> None:
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
    assert await store.chain("resp_2", "theirs") is None  # its first link is not theirs
    assert await store.input_items("resp_1", "theirs") is None
    assert await store.get("resp_1", "mine") is not None


async def test_another_key_can_not_overwrite(store: Store) -> None:
    await store.put(response("resp_1", key_id="mine"))
    with pytest.raises(ToolwireError):
        await store.put(response("resp_1", key_id="theirs", model="other"))
    assert await store.get("resp_1", "mine") == response("resp_1", key_id="mine")


async def test_putting_again_replaces(store: Store) -> None:
    await store.put(response("resp_1", status="in_progress"))
    await store.put(response("resp_1", status="completed"))
    found = await store.get("resp_1", "")
    assert found is not None and found.status == "completed"


async def test_what_is_deleted_is_gone(store: Store) -> None:
    await store.put(response("resp_1"))
    assert await store.delete("resp_1", "") is True
    assert await store.delete("resp_1", "") is False
    assert await store.get("resp_1", "") is None


# --- chains ------------------------------------------------------------------------------------------------------------------------------------


def texts(items: tuple[Item, ...] | None) -> list[str] | None:
    return None if items is None else [part.text for item in items if isinstance(item, Message) for part in item.parts if isinstance(part, TextPart)]


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


async def test_a_chain_that_is_too_long_or_bites_its_tail_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_many_callers_at_once_are_served_one_after_the_other(store: Store) -> None:
    await asyncio.gather(*(store.put(response(f"resp_{number}")) for number in range(200)))
    found = await asyncio.gather(*(store.get(f"resp_{number}", "") for number in range(200)))
    assert [each.id for each in found if each is not None] == [f"resp_{number}" for number in range(200)]


# --- the file ----------------------------------------------------------------------------------------------------------------------------------


async def test_the_file_and_its_folder_are_private(store: Store, tmp_path: Path) -> None:
    await store.put(response("resp_1"))
    folder = tmp_path / "data"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}
    assert "toolwire.db" in modes and set(modes.values()) == {0o600}


async def test_a_file_that_was_open_to_others_is_closed_to_them(tmp_path: Path) -> None:
    path = tmp_path / "toolwire.db"
    path.touch(0o644)
    os.chmod(path, 0o644)
    opened = Store(url_of(path))
    await opened.open()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    await opened.close()


async def test_the_home_directory_may_be_written_as_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    opened = Store("sqlite:///~/deep/er/toolwire.db")
    await opened.open()
    await opened.close()
    assert (tmp_path / "deep" / "er" / "toolwire.db").exists()


async def test_making_a_store_touches_nothing(tmp_path: Path) -> None:
    Store(url_of(tmp_path / "data" / "toolwire.db"))
    assert list(tmp_path.iterdir()) == []


async def test_a_new_file_has_the_newest_schema_and_writes_ahead(store: Store, tmp_path: Path) -> None:
    await store.open()
    with sqlite3.connect(tmp_path / "data" / "toolwire.db") as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


async def test_an_older_file_is_brought_forward_and_keeps_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "toolwire.db"
    older = Store(url_of(path))
    await older.put(response("resp_1"))
    await older.close()
    monkeypatch.setattr(store_module, "MIGRATIONS", (*MIGRATIONS, ("ALTER TABLE responses ADD COLUMN note TEXT", "CREATE TABLE extra (id TEXT)")))
    newer = Store(url_of(path))
    assert await newer.get("resp_1", "") == response("resp_1")
    await newer.close()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS) + 1,)
    connection.close()


async def test_a_migration_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "toolwire.db"
    older = Store(url_of(path))
    await older.put(response("resp_1"))
    await older.close()
    with monkeypatch.context() as patched:
        patched.setattr(store_module, "MIGRATIONS", (*MIGRATIONS, ("CREATE TABLE extra (id TEXT)", "NONSENSE")))
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


async def test_a_folder_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    opened = Store(url_of(tmp_path / "file" / "toolwire.db"))
    with pytest.raises(ToolwireError, match=r"toolwire\.db.*can not be opened"):
        await opened.open()
    await opened.close()


async def test_a_full_disk_is_said_and_the_store_goes_on(store: Store) -> None:
    await store.put(response("small"))

    def fill(connection: sqlite3.Connection) -> None:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 2}")

    await store._run(fill, "limit")
    with pytest.raises(ToolwireError, match="full") as caught:
        await store.put(response("big", response=b"x" * 1_000_000))
    assert caught.value.failure.kind == "server"
    assert await store.get("big", "") is None
    assert await store.get("small", "") == response("small")


@pytest.mark.parametrize(("url", "word"), [("postgresql://h/db", "postgresql"), ("mysql://h/db", "sqlite:///PATH"), ("sqlite:///", "sqlite:///PATH")])
def test_another_kind_of_store_is_refused_in_words(url: str, word: str) -> None:
    with pytest.raises(ToolwireError, match=word):
        Store(url)


async def test_a_closed_store_says_so(store: Store) -> None:
    await store.close()
    with pytest.raises(ToolwireError, match="closed"):
        await store.get("resp_1", "")

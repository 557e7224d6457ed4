"""Retention, on each engine: old data is deleted, unless a younger response continues it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from toolwire.store import store as retention
from toolwire.store.store import Store, StoredResponse
from toolwire.surfaces.web.talk import Conversations, StoredChat

DAY = 86400
NOW = 1_800_000_000


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    opened = Store(store_url, retention_days=30, clock=lambda: NOW)
    yield opened
    await opened.close()


async def put(store: Store, id: str, days_old: float, previous: str | None = None) -> None:
    item: dict[str, Any] = {"id": f"msg_{id}"}
    await store.put(
        StoredResponse(
            id, "k", int(NOW - days_old * DAY), "m", "completed", previous, b'{"id": "x"}', [item], ()
        )
    )


async def there(store: Store, *ids: str) -> list[str]:
    return [id for id in ids if await store.get(id, "k") is not None]


async def test_old_responses_are_deleted_with_their_items_and_young_ones_stay(store: Store) -> None:
    await put(store, "old", 31)
    await put(store, "young", 29)
    assert await store.sweep() == 1
    assert await there(store, "old", "young") == ["young"]
    assert await store.run(lambda c: [row[0] for row in c.execute("SELECT id FROM items")], "read") == [
        "msg_young"
    ]


async def test_a_conversation_in_use_stays_whole_and_its_old_branches_are_deleted(store: Store) -> None:
    await put(store, "root", 90)
    await put(store, "trunk", 80, "root")
    await put(store, "dead", 70, "trunk")
    await put(store, "dead_end", 60, "dead")
    await put(store, "alive", 50, "trunk")
    await put(store, "today", 0, "alive")
    await put(store, "other", 90)
    await put(store, "other_end", 45, "other")
    assert await store.sweep() == 4
    everything = ("root", "trunk", "dead", "dead_end", "alive", "today", "other", "other_end")
    assert await there(store, *everything) == ["root", "trunk", "alive", "today"]
    assert await store.chain("today", "k") == ()


async def test_many_responses_and_one_long_conversation_are_deleted_too(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "BATCH", 7)
    for number in range(20):
        await put(store, f"single_{number}", 40)
        await put(store, f"link_{number}", 60 - number, f"link_{number - 1}" if number else None)
    await put(store, "ring", 40, "ring")
    assert await store.sweep() == 41
    assert await store.run(lambda c: c.execute("SELECT count(*) FROM responses").fetchone()[0], "read") == 0


async def test_conversations_are_deleted_by_their_last_change(store: Store) -> None:
    rows = Conversations(store)
    await rows.put(StoredChat("untouched", "a", "m", NOW - 90 * DAY, NOW - 31 * DAY))
    await rows.put(StoredChat("touched", "b", "m", NOW - 90 * DAY, NOW - 1 * DAY))
    assert await store.sweep() == 1
    assert [one["id"] for one in await rows.listed("", 10)] == ["touched"]


async def test_without_a_retention_nothing_is_deleted(store_url: str) -> None:
    store = Store(store_url)
    await store.open()
    await put(store, "ancient", 20_000)
    assert await store.sweep() == 0 and await there(store, "ancient") == ["ancient"]
    await store.close()


async def test_an_open_store_deletes_old_rows_by_itself(store_url: str) -> None:
    first = Store(store_url)
    await put(first, "old", 31)
    await first.close()
    store = Store(store_url, retention_days=30, clock=lambda: NOW)
    await store.open()
    until = time.monotonic() + 10
    while await there(store, "old") and time.monotonic() < until:
        await asyncio.sleep(0.01)
    assert await there(store, "old") == []
    await store.close()


async def test_several_nodes_may_sweep_at_once(store_url: str) -> None:
    nodes = [Store(store_url, retention_days=30, clock=lambda: NOW) for _ in range(4)]
    for number in range(60):
        await put(nodes[0], f"link_{number}", 100 - number, f"link_{number - 1}" if number % 10 else None)
    removed = await asyncio.gather(*(node.sweep() for node in nodes))
    assert sum(removed) == 60
    await asyncio.gather(*(node.close() for node in nodes))

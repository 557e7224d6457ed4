"""Withheld tools are in the store, so that any process can show them and agree to exactly what it showed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from toolwire.store.store import Store
from toolwire.tools.mcp.pins import Pins, Withheld

SOURCE = "mcp:files"
CHANGED = Withheld("files", "read", "sha256:1", "changed", "old", "new")
NEW = Withheld("files", "move", "sha256:2", "new", "", "definition")


@pytest.fixture
async def pins(store_url: str) -> AsyncIterator[Pins]:
    async with Store(store_url) as store:
        yield Pins(store, clock=lambda: 1.0)


async def test_what_is_withheld_replaces_what_was_found_before(pins: Pins) -> None:
    await pins.withhold(SOURCE, [CHANGED, NEW])
    await pins.withhold("mcp:web@0a1b", [replace(NEW, server="web")])
    assert await pins.waiting() == {SOURCE: [NEW, CHANGED], "mcp:web@0a1b": [replace(NEW, server="web")]}
    await pins.withhold(SOURCE, [])
    assert list(await pins.waiting()) == ["mcp:web@0a1b"]


async def test_a_person_agrees_to_the_definition_that_was_shown_and_to_no_other(pins: Pins) -> None:
    await pins.withhold(SOURCE, [CHANGED, NEW])
    assert not await pins.agree_to(SOURCE, "read", "sha256:other")
    assert not await pins.agree_to("mcp:other", "read", CHANGED.pin)
    assert await pins.all() == {}
    assert await pins.agree_to(SOURCE, "read", CHANGED.pin)
    assert not await pins.agree_to(SOURCE, "read", CHANGED.pin)
    assert await pins.all() == {SOURCE: {"read": CHANGED.pin}}
    assert await pins.text(SOURCE, "read") == "new"
    assert await pins.waiting() == {SOURCE: [NEW]}


async def test_a_definition_that_is_kept_withheld_stays_so_until_it_changes_again(pins: Pins) -> None:
    await pins.withhold(SOURCE, [CHANGED])
    assert not await pins.keep(SOURCE, "read", "sha256:other")
    assert await pins.keep(SOURCE, "read", CHANGED.pin)
    await pins.withhold(SOURCE, [CHANGED, NEW])
    assert await pins.waiting() == {SOURCE: [NEW, replace(CHANGED, kept=True)]}
    await pins.withhold(SOURCE, [replace(CHANGED, pin="sha256:3")])
    assert [one.kept for one in (await pins.waiting())[SOURCE]] == [False]

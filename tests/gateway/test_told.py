"""What is told of a turn comes behind its answer, and whatever is wrong with one costs no other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from toolwire.gateway.told import Told


def saying(seen: list[Any], *words: Any) -> Iterator[None]:
    for word in words:
        seen.append(1 / word if word == 0 else word)
        yield


async def test_turns_that_end_in_one_turn_of_the_loop_are_told_together_and_in_order() -> None:
    told, seen = Told(), list[int]()
    for number in (1, 2, 3):
        told.soon(saying(seen, number))
    assert seen == []
    await asyncio.sleep(0)
    assert seen == [1, 2, 3]
    told.soon(saying(seen, 4))
    told.now()
    assert seen == [1, 2, 3, 4]
    await asyncio.sleep(0)
    assert seen == [1, 2, 3, 4]


async def test_each_way_to_tell_is_gone_for_all_of_them_before_the_next_one() -> None:
    told, seen = Told(), list[str]()
    told.soon(saying(seen, "journal a", "log a", "usage a"))
    told.soon(saying(seen, "journal b", "log b"))
    told.now()
    assert seen == ["journal a", "journal b", "log a", "log b", "usage a"]


async def test_one_that_can_not_be_told_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    told, seen = Told(), list[str]()
    told.soon(saying(seen, "first", 0, "never"))
    told.soon(saying(seen, "second", "third"))
    told.now()
    assert seen == ["first", "second", "third"] and "could not be told" in caplog.text


def test_outside_of_a_loop_it_is_told_at_once() -> None:
    told, seen = Told(), list[str]()
    told.soon(saying(seen, "now"))
    assert seen == ["now"]


async def test_an_answer_is_there_before_its_turn_is_told(table: Any) -> None:
    told: list[Any] = []
    table.play("say hi").gateway.observers.append(told.append)
    await table.body("chat", {"messages": [{"role": "user", "content": "?"}]})
    assert told == []
    await asyncio.sleep(0)
    assert [summary.status for summary in told] == [200]

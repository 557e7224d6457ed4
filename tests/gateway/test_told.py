"""What is told of a turn comes behind its answer, and whatever is wrong with one costs no other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from toolwire.gateway.told import Told


async def test_turns_that_end_in_one_turn_of_the_loop_are_told_together_and_in_order() -> None:
    told, seen = Told(), list[int]()
    for number in range(3):
        told.soon(lambda number=number: seen.append(number))  # type: ignore[misc]
    assert seen == []
    await asyncio.sleep(0)
    assert seen == [0, 1, 2]
    told.soon(lambda: seen.append(3))
    told.now()
    assert seen == [0, 1, 2, 3]
    await asyncio.sleep(0)
    assert seen == [0, 1, 2, 3]


async def test_one_that_can_not_be_told_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    told, seen = Told(), list[str]()
    told.soon(lambda: 1 / 0)  # type: ignore[arg-type]
    told.soon(lambda: seen.append("second"))
    told.now()
    assert seen == ["second"] and "could not be told" in caplog.text


def test_outside_of_a_loop_it_is_told_at_once() -> None:
    told, seen = Told(), list[str]()
    told.soon(lambda: seen.append("now"))
    assert seen == ["now"]


async def test_an_answer_is_there_before_its_turn_is_told(table: Any) -> None:
    told: list[Any] = []
    table.play("say hi").gateway.observers.append(told.append)
    await table.body("chat", {"messages": [{"role": "user", "content": "?"}]})
    assert told == []
    await asyncio.sleep(0)
    assert [summary.status for summary in told] == [200]

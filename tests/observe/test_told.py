"""What is told of a turn comes behind its answer, and whatever is wrong with one costs no other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from toolwire.gateway.records import TurnSummary
from toolwire.gateway.told import Told

Summary = Callable[[], TurnSummary]


def ended(word: Any) -> Summary:
    """Of a turn; one that can not be told of where the word is 0."""

    def summary() -> Any:
        return 1 / word if word == 0 else word

    return summary


async def test_turns_that_end_in_one_turn_of_the_loop_are_told_together_and_in_order() -> None:
    seen: list[Any] = []
    told = Told([seen.append])
    for number in (1, 2, 3):
        told.soon(ended(number))
    assert seen == []
    await asyncio.sleep(0)
    assert seen == [1, 2, 3]
    told.soon(ended(4))
    told.now()
    assert seen == [1, 2, 3, 4]
    await asyncio.sleep(0)
    assert seen == [1, 2, 3, 4]


async def test_each_observer_hears_of_all_of_them_before_the_next_one() -> None:
    seen: list[str] = []
    told = Told([lambda one: seen.append(f"journal {one}"), lambda one: seen.append(f"log {one}")])
    told.soon(ended("a"))
    told.soon(ended("b"))
    told.now()
    assert seen == ["journal a", "journal b", "log a", "log b"]


async def test_one_that_can_not_be_told_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Any] = []
    told = Told([seen.append])
    for word in ("first", 0, "second"):
        told.soon(ended(word))
    told.now()
    assert seen == ["first", "second"] and "could not be told" in caplog.text


async def test_an_observer_that_fails_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Any] = []

    def broken(summary: Any) -> None:
        raise RuntimeError("broken")

    told = Told([broken, seen.append])
    told.soon(ended("first"))
    told.soon(ended("second"))
    told.now()
    assert seen == ["first", "second"] and caplog.text.count("an observer of turns failed") == 2


def test_outside_of_a_loop_it_is_told_at_once() -> None:
    seen: list[Any] = []
    Told([seen.append]).soon(ended("now"))
    assert seen == ["now"]


async def test_an_answer_is_there_before_its_turn_is_told(table: Any) -> None:
    told: list[Any] = []
    table.play("say hi").gateway.observers.append(told.append)
    await table.body("chat", {"messages": [{"role": "user", "content": "?"}]})
    assert told == []
    await asyncio.sleep(0)
    assert [summary.status for summary in told] == [200]

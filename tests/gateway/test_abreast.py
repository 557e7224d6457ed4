"""Many turns that are under way at the same time take each step together; a few stop nowhere."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from toolwire.core.errors import ToolwireError
from toolwire.gateway.abreast import CROWD, Abreast
from toolwire.gateway.run import Run

ASKED = {"messages": [{"role": "user", "content": "?"}]}


async def goes(abreast: Abreast, name: str, seen: list[str], steps: int = 3) -> None:
    abreast.turns += 1
    try:
        for number in range(steps):
            await abreast.step()
            seen.append(f"{name}{number}")
    finally:
        abreast.turns -= 1


async def test_each_step_is_taken_by_all_before_the_next_one() -> None:
    abreast, seen = Abreast(), list[str]()
    abreast.turns += CROWD  # which wait for their models
    await asyncio.gather(*(goes(abreast, name, seen) for name in "abc"))
    assert seen == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2"] and abreast.turns == CROWD


async def test_one_with_few_others_goes_on_at_once() -> None:
    abreast, seen = Abreast(), list[str]()
    abreast.turns += CROWD - 2
    turned: list[Any] = []
    asyncio.get_running_loop().call_soon(turned.append, "the loop")
    await goes(abreast, "a", seen)
    assert seen == ["a0", "a1", "a2"] and not turned


@pytest.mark.parametrize("script", ["say hi", "fail quota no", "hang"], ids=["answers", "fails", "is left"])
async def test_a_whole_answer_is_on_its_way_until_it_is_there(table: Any, script: str) -> None:
    """Whatever becomes of it."""
    gateway = table.play(script).gateway
    with suppress(ToolwireError, TimeoutError):
        await asyncio.wait_for(table.body("chat", ASKED), 0.2)
    assert gateway.abreast.turns == 0


@pytest.mark.parametrize(("stream", "seen"), [(False, ["planned"] * 3 + ["asked"] * 3), (True, ["planned", "asked"] * 3)], ids=["whole", "streamed"])
async def test_whole_answers_are_all_planned_before_one_is_asked_for(
    table: Any, monkeypatch: pytest.MonkeyPatch, stream: bool, seen: list[str]
) -> None:
    """And streams stop nowhere."""
    gateway, found, planned, events = table.play("say hi").gateway, list[str](), Run.planned, Run._events
    gateway.abreast.turns += CROWD  # which wait for their models

    def planning(*given: Any) -> Any:
        found.append("planned")
        return planned(*given)

    def asking(*given: Any) -> Any:
        found.append("asked")
        return events(*given)

    monkeypatch.setattr(Run, "planned", planning)
    monkeypatch.setattr(Run, "_events", asking)
    ask = table.stream if stream else table.body
    await asyncio.gather(*(ask("chat", ASKED) for _ in range(3)))
    assert found == seen

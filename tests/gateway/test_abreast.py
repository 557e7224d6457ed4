"""Many turns that are under way at the same time take each step together; a few stop nowhere."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from toolwire.abreast import CROWD, Abreast
from toolwire.errors import ToolwireError
from toolwire.gateway.run import Run


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


@pytest.mark.parametrize("body", [{}, {"stream": True}, {"messages": []}, {"model": "unknown"}], ids=["body", "stream", "refused", "no such model"])
async def test_a_gateway_s_turns_are_on_their_way_until_their_first_byte(table: Any, body: dict[str, Any]) -> None:
    """Whatever becomes of them."""
    gateway = table.play("say hi").gateway
    asked = {"messages": [{"role": "user", "content": "?"}], **body}
    with suppress(ToolwireError):
        await (table.stream("chat", asked) if body.get("stream") else table.body("chat", asked))
    assert gateway.abreast.turns == 0


async def test_turns_that_come_together_are_all_decoded_before_one_is_planned(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway, seen = table.play("say hi").gateway, list[str]()
    gateway.abreast.turns += CROWD  # which wait for their models
    decoded, planned = Run.decoded, Run.planned

    def decoding(*given: Any) -> Any:
        seen.append("decoded")
        return decoded(*given)

    def planning(*given: Any) -> Any:
        seen.append("planned")
        return planned(*given)

    monkeypatch.setattr(Run, "decoded", decoding)
    monkeypatch.setattr(Run, "planned", planning)
    await asyncio.gather(*(table.body("chat", {"messages": [{"role": "user", "content": "?"}]}) for _ in range(3)))
    assert seen == ["decoded", "decoded", "decoded", "planned", "planned", "planned"]

"""Turns that are begun at the same time take each step together; one that is alone stops nowhere."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from toolwire.abreast import Abreast
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
    abreast.turns += 1  # one more, which waits for its model
    await asyncio.gather(*(goes(abreast, name, seen) for name in "abc"))
    assert seen == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2"] and abreast.turns == 1


async def test_one_that_is_alone_goes_on_at_once() -> None:
    abreast, seen = Abreast(), list[str]()
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
    gateway.abreast.turns += 1  # one more, which waits for its model
    decode, planned = type(gateway)._decode, Run.planned

    async def decoding(*given: Any) -> Any:
        seen.append("decoded")
        return await decode(*given)

    def planning(*given: Any) -> Any:
        seen.append("planned")
        return planned(*given)

    monkeypatch.setattr(type(gateway), "_decode", decoding)
    monkeypatch.setattr(Run, "planned", planning)
    await asyncio.gather(*(table.body("chat", {"messages": [{"role": "user", "content": "?"}]}) for _ in range(3)))
    assert seen == ["decoded", "decoded", "decoded", "planned", "planned", "planned"]

"""The memory for incoming requests: one key cannot take what the others need."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from doubles.clients import connected, read_answer
from toolwire.core.errors import ToolwireError
from toolwire.surfaces.http import exchange
from toolwire.surfaces.http.exchange import EVERYBODY, Room

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
MB = 1024 * 1024


def taken(room: Room, size: int, key: str) -> str:
    """The error of a refusal; None if there was room."""
    try:
        room.take(size, key)
    except ToolwireError as error:
        return error.failure.kind
    return ""


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "c", "?"]), st.integers(-300, 300) | st.integers(10**6, 10**9)),
        max_size=60,
    )
)
def test_whatever_some_keys_hold_another_key_finds_room(steps: list[tuple[str, int]]) -> None:
    room = Room(0)
    whole, held = room.left, dict.fromkeys("abc?", 0)
    for key, size in steps:
        if size < 0:
            given_back = min(held[key], -size * MB)
            room.give(given_back, key)
            held[key] -= given_back
        elif not taken(room, size, key):
            held[key] += size
        assert room.left == whole - sum(held.values())
        assert all(one <= whole / 2 for one in held.values())
        assert room.left >= whole / 2 ** sum(one > 0 for one in held.values())
        half = room.left // 2
        assert not taken(room, half, "another")
        room.give(half, "another")
    for key, size in held.items():
        room.give(size, key)
    assert room.left == whole and not room._held


def test_without_keys_the_one_caller_may_use_all_of_it() -> None:
    room = Room(0)
    assert not taken(room, room.left, EVERYBODY) and taken(room, 1, EVERYBODY) == "overloaded"


def test_a_key_over_its_share_gets_an_error_about_its_own_requests() -> None:
    room = Room(0)
    whole = room.left
    assert not taken(room, whole // 2, "a") and taken(room, 1, "a") == "rate_limit"
    assert taken(room, whole // 4 + 1, "b") == "overloaded", "the others' fault"
    assert not taken(room, whole // 4, "b")


# --- over a socket ---


def head(path: str, key: str, size: int) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {key}",
        "Content-Type: application/json",
        f"Content-Length: {size}",
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def body(path: str, size: int) -> bytes:
    asked = {"messages": [{"role": "user", "content": "x" * size}]} if path == CHAT else {"input": "x" * size}
    return json.dumps({"model": "m", **asked}).encode()


async def asked(port: int, path: str, key: str, size: int) -> int:
    """The status of a request that arrives in two chunks, so that it needs room."""
    raw = body(path, size)
    async with connected(port) as (reader, writer), asyncio.timeout(20):
        writer.write(head(path, key, len(raw)) + raw[:1000])
        await writer.drain()
        await asyncio.sleep(0.002)
        writer.write(raw[1000:])
        return (await read_answer(reader))[0]


@asynccontextmanager
async def holding(
    it: Any, key: str, size: int, count: int
) -> AsyncIterator[list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]:
    """Requests without their last byte: as many as the key has room for."""
    async with AsyncExitStack() as stack:
        held = []
        for _ in range(count):
            reader, writer = await stack.enter_async_context(connected(it.port))
            before = it.app.room.left
            writer.write(head(CHAT, key, size) + b" " * (size - 1000))
            async with asyncio.timeout(20):
                answer = asyncio.ensure_future(reader.read(12))
                while it.app.room.left > before - (size - 1000) and not answer.done():
                    await asyncio.sleep(0.002)
                if answer.done():
                    assert await answer == b"HTTP/1.1 429"
                    break
                answer.cancel()
                await asyncio.gather(answer, return_exceptions=True)
            held.append((reader, writer))
        yield held


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for four bodies of the maximum size."""
    monkeypatch.setattr(exchange, "MOST_ARRIVING", 0)


@pytest.mark.usefixtures("small")
async def test_a_key_that_uses_its_whole_share_blocks_no_other_key(place: Callable[..., Any]) -> None:
    async with place("say fine", keys=("alice", "bob"), max_body_mb=1) as it:
        before = it.app.room.left
        assert await asked(it.port, CHAT, "bob", 200_000) == 200
        async with holding(it, "alice", MB, 9) as held:
            assert len(held) == 2, "half of the room"
            statuses = await asyncio.gather(
                *(
                    asked(it.port, path, "bob", size)
                    for path in (CHAT, RESPONSES)
                    for size in (2000, 200_000)
                    for _ in range(3)
                )
            )
            assert set(statuses) == {200}
            assert await asked(it.port, CHAT, "bob", 900_000) == 200, "also a body of nearly the largest size"
            async with it.socket(additional_headers={"authorization": "Bearer bob"}) as bob:
                assert (await bob.turn("x" * 300_000))[-1]["type"] == "response.completed"
            assert await asked(it.port, CHAT, "alice", 300_000) == 429
        async with asyncio.timeout(20):
            while it.app.room.left != before:
                await asyncio.sleep(0.01)
        assert await asked(it.port, CHAT, "alice", 300_000) == 200


@pytest.mark.usefixtures("small")
async def test_messages_that_arrive_or_wait_in_line_take_their_key_s_share(place: Callable[..., Any]) -> None:
    async with (
        place("say fine\npause 30s", keys=("alice", "bob"), max_body_mb=1) as it,
        AsyncExitStack() as stack,
    ):
        before = it.app.room.left
        alice = {"additional_headers": {"authorization": "Bearer alice"}}
        message = json.dumps({"type": "response.create", "model": "m", "input": "x" * 600_000})
        in_line = await stack.enter_async_context(it.socket(**alice))
        await in_line.send({"type": "response.create", "model": "m", "input": "hi"})
        while (await in_line.event())["type"] != "response.created":
            pass
        await in_line.send(message)  # waits for the response in progress
        async with asyncio.timeout(20):
            while it.app.room.left > before - 600_000:
                await asyncio.sleep(0.01)
        half = Frame(Opcode.TEXT, b"x" * 1_000_000).serialize(mask=True)[:-10]
        arriving = await stack.enter_async_context(it.socket(**alice))
        arriving.connection.transport.write(half)
        async with asyncio.timeout(20):
            while it.app.room.left > before - 1_500_000:
                await asyncio.sleep(0.01)
        last = await stack.enter_async_context(it.socket(**alice))
        last.connection.transport.write(half)
        assert (await last.closed())[0] == 1013
        bob = await stack.enter_async_context(it.socket(additional_headers={"authorization": "Bearer bob"}))
        await bob.send({"type": "response.create", "model": "m", "input": "x" * 500_000})
        while (event := await bob.event())["type"] != "response.output_text.delta":
            assert event["type"] != "error", event
        for one in (in_line, arriving, bob):
            one.connection.transport.abort()
        async with asyncio.timeout(20):
            while it.app.room.left != before:
                await asyncio.sleep(0.01)


@pytest.mark.usefixtures("small")
def test_unauthenticated_clients_share_one_share() -> None:
    """Forms of the pages arrive before their sender is authenticated."""
    room = Room(MB)
    assert not taken(room, 2 * MB, exchange.NOBODY) and taken(room, 1, exchange.NOBODY) == "rate_limit"
    assert not taken(room, MB, "bob")


@pytest.mark.usefixtures("small")
async def test_others_are_as_fast_beside_a_key_that_holds_its_share(place: Callable[..., Any]) -> None:
    """An idle server and one under attack are measured in turns, so that both have the same machine."""
    options: dict[str, Any] = {"keys": ("alice", "bob"), "max_body_mb": 4}
    async with (
        place("say fine", **options) as calm,
        place("say fine", **options) as attacked,
        holding(attacked, "alice", 4 * MB, 9) as held,
    ):
        assert held
        times: dict[str, list[float]] = {"calm": [], "attacked": []}
        for number in range(150):
            for name, it in (("calm", calm), ("attacked", attacked)):
                began = time.perf_counter()
                assert await asked(it.port, (CHAT, RESPONSES)[number % 2], "bob", 200_000) == 200, (
                    "none is refused"
                )
                times[name].append(time.perf_counter() - began)
        p99 = {name: sorted(all_of)[int(len(all_of) * 0.99) - 1] for name, all_of in times.items()}
        assert p99["attacked"] <= 4 * p99["calm"], p99

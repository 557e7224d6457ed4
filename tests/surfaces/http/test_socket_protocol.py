"""WebSocket frames that flood, violate the protocol or come too early: bounded, without log noise."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from doubles.clients import connected
from toolwire.surfaces.http import socket_protocol
from toolwire.surfaces.http.socket_protocol import (
    EMPTY_RATE,
    FRAMES_A_TURN,
    MOST_EMPTY,
    TURN_S,
    _carries_nothing,
    _frame_size,
)

KEY = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
HANDSHAKE = (
    f"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{KEY}"
)
WITHIN_S = 20


def frame(opcode: Opcode, data: bytes = b"", fin: bool = True) -> bytes:
    return Frame(opcode, data, fin=fin).serialize(mask=True)


def create(text: str) -> bytes:
    return json.dumps({"type": "response.create", "model": "m", "input": text}).encode()


class Raw:
    """A connection on a raw socket, after its handshake."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def frames(self) -> list[Frame]:
        """Everything that the server sends until it closes."""
        found: list[Frame] = []
        async with asyncio.timeout(WITHIN_S):
            try:
                while True:
                    first, size = await self.reader.readexactly(2)
                    if size > 125:
                        size = int.from_bytes(await self.reader.readexactly(2 if size == 126 else 8), "big")
                    found.append(Frame(Opcode(first & 0x0F), await self.reader.readexactly(size)))
            except (asyncio.IncompleteReadError, ConnectionError):
                return found

    async def close_code(self) -> int:
        """The close code; 0 if there is none."""
        closes = [each for each in await self.frames() if each.opcode is Opcode.CLOSE]
        return int.from_bytes(closes[0].data[:2], "big") if closes else 0


@asynccontextmanager
async def handshake(port: int, more: str = "", after: bytes = b"") -> AsyncIterator[Raw]:
    """A connection after sending the handshake with these headers, directly followed by these bytes."""
    async with connected(port) as (reader, writer):
        writer.write(f"{HANDSHAKE}{more}\r\n".encode("latin-1") + after)
        yield Raw(reader, writer)


@asynccontextmanager
async def opened(port: int, more: str = "", after: bytes = b"") -> AsyncIterator[Raw]:
    """The same, after the handshake was accepted."""
    async with handshake(port, more, after) as client:
        head = await asyncio.wait_for(client.reader.readuntil(b"\r\n\r\n"), WITHIN_S)
        assert head.startswith(b"HTTP/1.1 101 "), head
        yield client


# --- floods ---

EMPTY = {
    "pings": frame(Opcode.PING),
    "pings with data": frame(Opcode.PING, b"x" * 125),
    "pongs": frame(Opcode.PONG),
    "empty fragments": frame(Opcode.CONT, fin=False),
}


def begun(kind: str) -> bytes:
    return frame(Opcode.TEXT, fin=False) if kind == "empty fragments" else b""


@pytest.mark.parametrize("kind", EMPTY)
async def test_a_flood_of_frames_that_carry_nothing_ends_the_connection(
    place: Callable[..., Any], kind: str
) -> None:
    async with place("say fine") as it, opened(it.port) as client:
        client.writer.write(begun(kind) + EMPTY[kind] * (2 * MOST_EMPTY))
        frames = await client.frames()
        assert int.from_bytes(frames[-1].data[:2], "big") == 1008 and b"too many" in frames[-1].data
        assert len(frames) <= MOST_EMPTY + EMPTY_RATE * WITHIN_S


@pytest.mark.parametrize("kind", EMPTY)
async def test_a_few_of_them_do_not(place: Callable[..., Any], kind: str) -> None:
    async with place("say fine") as it, opened(it.port) as client:
        client.writer.write(begun(kind) + EMPTY[kind] * (MOST_EMPTY // 2))
        last = Opcode.CONT if kind == "empty fragments" else Opcode.TEXT
        client.writer.write(frame(last, create("hello")) + frame(Opcode.CLOSE, b"\x03\xe8"))
        async with asyncio.timeout(WITHIN_S):
            pongs = [each for each in await client.frames() if each.opcode is Opcode.PONG]
        assert len(pongs) == (MOST_EMPTY // 2 if kind.startswith("pings") else 0)


async def test_frames_are_handled_a_few_at_a_time(
    place: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other clients are served in between. Pending data waits in the client's own buffers."""
    turns: list[tuple[float, int]] = []
    handle = socket_protocol.GuardedSocket._handle_frames

    def handled(self: socket_protocol.GuardedSocket) -> None:
        before = len(self._waiting)
        handle(self)
        turns.append((self.loop.time(), (before - len(self._waiting)) // 7))

    monkeypatch.setattr(socket_protocol.GuardedSocket, "_handle_frames", handled)
    count = 20 * FRAMES_A_TURN
    async with place("say fine") as it, opened(it.port) as client:
        message = create("x" * (count - len(create("")) + 1))
        pieces = [
            frame(Opcode.TEXT if not place else Opcode.CONT, message[place : place + 1], fin=False)
            for place in range(count)
        ]
        client.writer.write(b"".join(pieces) + frame(Opcode.CONT, message[count:], fin=True))
        async with asyncio.timeout(WITHIN_S):
            first = await client.reader.readexactly(1)
    assert first == b"\x81" and all(frames <= FRAMES_A_TURN + 1 for _, frames in turns)
    assert turns[-1][0] - turns[0][0] >= 15 * TURN_S


async def test_pings_are_not_answered_while_nothing_is_read_and_the_last_one_is_answered_then(
    place: Callable[..., Any],
) -> None:
    async with place("say fine") as it, opened(it.port) as client:
        connection = next(
            one
            for one in it.server.server_state.connections
            if isinstance(one, socket_protocol.GuardedSocket)
        )
        connection.pause_writing()
        for number in range(50):
            client.writer.write(frame(Opcode.PING, b"%d" % number))
        async with asyncio.timeout(WITHIN_S):
            while not connection._pong.endswith(b"49"):
                await asyncio.sleep(0.01)
        assert connection.transport.get_write_buffer_size() == 0
        connection.resume_writing()
        async with asyncio.timeout(WITHIN_S):
            assert await client.reader.readexactly(4) == b"\x8a\x0249"


# --- the handshake ---

UNREADABLE = {
    "a long header": (f"X-A: {'a' * 9000}\r\n", 431),
    "many headers": ("".join(f"X{number}: a\r\n" for number in range(130)), 431),
    "a body": ("Content-Length: 4\r\n", 405),
    "a chunked body": ("Transfer-Encoding: chunked\r\n", 405),
    "two keys": (KEY, 400),
    "eight bits": ("X: \xff\r\n", 401),
    "no key": ("", 401),
}


@pytest.mark.parametrize("name", UNREADABLE)
async def test_every_handshake_gets_an_answer(
    place: Callable[..., Any], caplog: pytest.LogCaptureFixture, name: str
) -> None:
    more, status = UNREADABLE[name]
    body = {"a body": b"{{}}", "a chunked body": b"0\r\n\r\n"}.get(name, b"")
    async with place("say fine", keys=("k",)) as it:
        async with handshake(it.port, more, body) as client, asyncio.timeout(WITHIN_S):
            head = await client.reader.readuntil(b"\r\n\r\n")
            assert int(head.split()[1]) == status
            if (
                status == 405 and b"connection: close" not in head
            ):  # an ordinary request, and its connection stays open
                client.writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                assert b"HTTP/1.1 200" in await client.reader.read()
            else:
                await client.reader.read()
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.WARNING] == []


async def test_frames_that_come_with_the_handshake_are_answered_after_it(place: Callable[..., Any]) -> None:
    early = frame(Opcode.TEXT, create("early")) + frame(Opcode.PING, b"p")
    async with (
        place("say {user}", keys=("k",)) as it,
        opened(it.port, "Authorization: Bearer k\r\n", early) as client,
    ):
        async with asyncio.timeout(WITHIN_S):
            assert b"response.created" in await client.reader.readuntil(b"}}")


async def test_frames_after_a_refused_handshake_are_ignored(
    place: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def handled(self: Any) -> None:
        raise AssertionError("a frame was handled")

    monkeypatch.setattr(socket_protocol.GuardedSocket, "handle_ping", handled)
    async with place("say fine", keys=("k",)) as it:
        async with handshake(it.port, "", frame(Opcode.PING) * 100) as client, asyncio.timeout(WITHIN_S):
            assert (await client.reader.readline()).startswith(b"HTTP/1.1 401")


# --- frames that violate the protocol ---

BROKEN = {
    "an unknown opcode": (b"\x83\x80\0\0\0\0", 1002),
    "no mask": (b"\x81\x01x", 1002),
    "a reserved bit": (b"\xc1\x81\0\0\0\0x", 1002),
    "a long ping": (b"\x89\xfe\x00\x80" + b"\0" * 132, 1002),
    "a fragment of nothing": (b"\x80\x80\0\0\0\0", 1002),
    "no utf-8": (b"\x81\x81\0\0\0\0\xff", 1007),
    "an invalid close": (b"\x88\x81\0\0\0\0x", 1002),
    "a close": (frame(Opcode.CLOSE, b"\x03\xe8"), 1000),
    "too large": (b"\x81\xff\x00\xff\xff\xff\xff\xff\xff\xff\0\0\0\0", 1009),
}


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("name", BROKEN)
async def test_a_frame_that_breaks_the_protocol_is_no_traceback(
    place: Callable[..., Any], caplog: pytest.LogCaptureFixture, name: str, cut: bool
) -> None:
    """Alone, after a message that is being answered, and in the middle of an answer."""
    broken, code = BROKEN[name]
    async with place("say one\npause 20ms\nsay two\npause 20ms\nsay three") as it:
        with caplog.at_level(logging.INFO):
            for message in (b"", frame(Opcode.TEXT, create("hello"))):
                async with opened(it.port) as client:
                    if not cut:
                        client.writer.write(message + broken)
                        assert await client.close_code() == code
                        continue
                    client.writer.write(message)
                    for at in range(len(broken)):
                        client.writer.write(broken[at : at + 1])
                        await asyncio.sleep(0.001)
                    assert await client.close_code() in (code, 0)
            async with asyncio.timeout(WITHIN_S):
                while it.server.server_state.tasks:
                    await asyncio.sleep(0.01)
    assert [record for record in caplog.records if record.exc_info or record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("name", ["an unknown opcode", "a close"])
async def test_a_frame_that_breaks_the_protocol_at_any_moment_of_an_answer_is_no_traceback(
    place: Callable[..., Any], caplog: pytest.LogCaptureFixture, name: str
) -> None:
    async with place("chunk 1\nsay " + "word " * 20) as it:
        for turns in range(0, 60, 3):
            async with opened(it.port) as client:
                client.writer.write(frame(Opcode.TEXT, create("hello")))
                for _ in range(turns):
                    await asyncio.sleep(0)
                client.writer.write(BROKEN[name][0])
                assert await client.close_code() in (BROKEN[name][1], 0)
    assert [record for record in caplog.records if record.exc_info or record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("kind", ["send", "close"])
async def test_a_connection_that_the_server_gave_up_is_a_client_that_left(
    place: Callable[..., Any], kind: str
) -> None:
    async with place("say fine") as it, opened(it.port):
        connection = next(
            one
            for one in it.server.server_state.connections
            if isinstance(one, socket_protocol.GuardedSocket)
        )
        connection._fail(1002, "broken")
        with pytest.raises(OSError):
            await connection.send({"type": f"websocket.{kind}", "text": "{}"})


# --- frame boundaries ---


@given(
    st.sampled_from(list(Opcode)),
    st.sampled_from([0, 1, 125, 126, 127, 65535, 65536, 70_000]),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=60)
def test_a_frames_size_is_known_with_its_header(opcode: Opcode, size: int, fin: bool, mask: bool) -> None:
    if opcode >= socket_protocol.FIRST_CONTROL:
        size, fin = min(size, 125), True
    whole = bytearray(Frame(opcode, b"x" * size, fin=fin).serialize(mask=mask))
    header = len(whole) - size - (4 if mask else 0)
    assert [_frame_size(whole[:length]) for length in range(header)] == [0] * header
    assert {_frame_size(whole[:length]) for length in (header, header + 1, len(whole))} == {len(whole)}
    assert _carries_nothing(whole) is (opcode >= socket_protocol.FIRST_CONTROL or (size == 0 and not fin))

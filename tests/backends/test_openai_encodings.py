"""Responses that are compressed although not requested, streamed and whole, by both code paths."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from toolwire.backends.openai import OpenAIBackend
from toolwire.backends.openai import transport as encodings
from toolwire.backends.openai.failures import CutOff
from toolwire.backends.openai.transport import decoded
from toolwire.core.errors import ToolwireError
from toolwire.core.events import Event, Failure, Finish, Text
from toolwire.core.turn import Message, TextPart, Turn
from toolwire.testing.upstream import FakeUpstream, Reply, answer, completion


def bare(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def two_members(data: bytes) -> bytes:
    return gzip.compress(data[:10]) + gzip.compress(data[10:])


PACKERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("X-Gzip", gzip.compress),
    "gzip of two members": ("gzip", two_members),
    "deflate": ("deflate", zlib.compress),
    "deflate without a frame": ("deflate", bare),
}


class Packed:
    """A reply whose bytes come in chunks of `size`."""

    status = 200
    ended = False

    def __init__(self, data: bytes, encoding: str, size: int) -> None:
        self.headers: Mapping[str, str] = {"content-encoding": encoding}
        self._pieces = [data[at : at + size] for at in range(0, len(data), size)]

    async def read(self) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""

    def release(self, whole: bool = False) -> None:
        pass


async def all_of(reply: Any) -> bytes:
    out = b""
    while block := await reply.read():
        out += block
    return out


@pytest.mark.parametrize("size", [1, 2, 7, 100_000])
@pytest.mark.parametrize("kind", PACKERS)
async def test_pieces_of_any_size_decode_to_the_same_bytes(kind: str, size: int) -> None:
    encoding, pack = PACKERS[kind]
    data = bytes(range(256)) * 20
    assert await all_of(decoded(Packed(pack(data), encoding, size))) == data


async def test_one_read_returns_a_bounded_block_and_nothing_is_lost() -> None:
    data = json.dumps(list(range(400_000))).encode()
    reply = decoded(Packed(gzip.compress(data), "gzip", 1 << 20))
    blocks = []
    while block := await reply.read():
        blocks.append(block)
    assert b"".join(blocks) == data and max(map(len, blocks)) <= encodings.BLOCK


async def test_a_bomb_is_refused_before_it_has_grown() -> None:
    reply = decoded(Packed(gzip.compress(b"\0" * 50_000_000), "gzip", 1 << 20))
    size = 0
    with pytest.raises(ToolwireError, match="grows more than"):
        while block := await reply.read():
            size += len(block)
    assert size < 15_000_000


@pytest.mark.parametrize("kind", PACKERS)
async def test_what_breaks_off_or_is_damaged_is_an_error(kind: str) -> None:
    encoding, pack = PACKERS[kind]
    packed = pack(json.dumps(list(range(500))).encode())
    with pytest.raises(CutOff):
        await all_of(decoded(Packed(packed[:-5], encoding, 50)))
    with pytest.raises(ToolwireError, match="damaged"):
        await all_of(decoded(Packed(packed[:4] + b"\xff" * 200, encoding, 50)))


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "rot13"])
def test_another_encoding_is_one_clear_error(encoding: str) -> None:
    with pytest.raises(ToolwireError, match="encoding"):
        decoded(Packed(b"", encoding, 1))


def test_an_answer_that_is_not_compressed_is_left_alone() -> None:
    plain = Packed(b"hi", " Identity ", 1)
    assert decoded(plain) is plain


# --- through the backend ---


async def asked(reply: Reply, stream: bool, proxied: bool) -> list[Event]:
    async with FakeUpstream(reply) as upstream:
        backend = OpenAIBackend(
            "m", {"base_url": upstream.base_url, "profile": "generic", "proxy_from_env": proxied}
        )
        turn = Turn("chat", "m", (Message("user", (TextPart("hi"),)),), stream=stream)
        try:
            return [event async for batch in backend.run(turn) for event in batch]
        finally:
            await backend.close()


@pytest.mark.parametrize("proxied", [False, True], ids=["direct", "aiohttp"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("kind", PACKERS)
async def test_a_compressed_answer_is_read(kind: str, stream: bool, proxied: bool) -> None:
    encoding, pack = PACKERS[kind]
    chunks = answer("Hello, world.")
    plain = b"".join(Reply.stream(chunks).frames) if stream else json.dumps(completion(chunks)).encode()
    media = "text/event-stream" if stream else "application/json"
    reply = Reply((pack(plain),), headers={"Content-Type": media, "Content-Encoding": encoding}, write_size=9)
    events = await asked(reply, stream, proxied)
    assert "".join(event.text for event in events if isinstance(event, Text)) == "Hello, world."
    assert events[-1] == Finish("stop")


async def test_a_compressed_stream_is_live() -> None:
    packer, gate = zlib.compressobj(wbits=31), asyncio.Event()
    frames = [
        packer.compress(frame) + packer.flush(zlib.Z_SYNC_FLUSH)
        for frame in Reply.stream(answer("Hello")).frames
    ]
    headers = {"Content-Type": "text/event-stream", "Content-Encoding": "gzip"}
    async with FakeUpstream(Reply((*frames, packer.flush()), headers=headers, gate=gate)) as upstream:
        backend = OpenAIBackend("m", {"base_url": upstream.base_url, "profile": "generic"})
        run = backend.run(Turn("chat", "m", (Message("user", (TextPart("hi"),)),), stream=True))
        said: list[Event] = []
        while Text("Hell") not in said:
            said += await asyncio.wait_for(anext(run), 5)
        gate.set()
        await run.aclose()
        await backend.close()


@pytest.mark.parametrize("proxied", [False, True], ids=["direct", "aiohttp"])
async def test_errors_are_read_too_and_an_unknown_encoding_has_a_message(proxied: bool) -> None:
    wrong = json.dumps({"error": {"message": "Too hot."}}).encode()
    packed = Reply(
        (gzip.compress(wrong),), 400, {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    )
    [failure] = await asked(packed, False, proxied)
    assert isinstance(failure, Failure) and failure.message == "Too hot."
    [failure] = await asked(
        Reply((b"??",), headers={"Content-Type": "application/json", "Content-Encoding": "br"}),
        False,
        proxied,
    )
    assert isinstance(failure, Failure) and failure.kind == "backend" and "'br'" in failure.message

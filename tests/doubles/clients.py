"""Clients on raw sockets for a server under load: one runs tool loops, others are hostile.

`ToolLoop.run` judges every answer and records its times. Each function in `HOSTILE` attacks the server until
it is cancelled, and does not check the answers. `SocketFlood` is a hostile WebSocket, and `holds_memory` a
client that keeps the server's memory for bodies busy.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

TOOL = {
    "name": "look",
    "description": "Looks.",
    "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
}
TOOLS: dict[str, Any] = {
    "chat": [{"type": "function", "function": TOOL}],
    "responses": [{"type": "function", **TOOL}],
}
ENDINGS = {"chat": b"data: [DONE]", "responses": b"event: response.completed"}
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses"}


def post(path: str, body: Any, key: str = "") -> bytes:
    """Returns the bytes of a whole request."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(raw)}",
    ]
    return "\r\n".join([*head, *([f"Authorization: Bearer {key}"] if key else []), "", ""]).encode() + raw


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Reads a response. Returns its status and body."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    status = int(head.split(b" ", 2)[1])
    if b"transfer-encoding: chunked" not in head:
        return status, await reader.readexactly(int(head.partition(b"content-length:")[2].split(b"\r\n")[0]))
    pieces = []
    while size := int((await reader.readline()).strip(), 16):
        pieces.append((await reader.readexactly(size + 2))[:-2])
    await reader.readline()
    return status, b"".join(pieces)


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


# --- a correct client ---


@dataclass
class ToolLoop:
    """A streamed conversation: a question, a call, its result, an answer.

    `models` must call `look` first and then answer with text. `leaves` is the share of loops, chosen at
    random, that disconnect in the middle of a stream.
    """

    port: int
    models: tuple[str, ...]
    key: str = ""
    leaves: float = 0.0
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    pause_s: float = 0.0
    """How long the client waits after each loop."""
    cpu_s: Callable[[], float] | None = None
    """Returns the CPU seconds of the server so far."""
    times: list[float] = field(default_factory=list)
    """The duration of each completed loop, in seconds."""
    cpu_times: list[float] = field(default_factory=list)
    """The server's CPU seconds during each completed loop, for all clients; empty if `cpu_s` is None."""
    left: int = 0
    wrong: list[str] = field(default_factory=list)

    async def run(self, until: float) -> None:
        """Runs loops one after the other on one connection, until `until` (of `time.monotonic`)."""
        while time.monotonic() < until:
            with suppress(OSError, asyncio.IncompleteReadError):
                async with connected(self.port) as (reader, writer):
                    while time.monotonic() < until:
                        if self.chance.random() < self.leaves:
                            await self._leave(reader, writer)
                            break
                        await self._loop(reader, writer)
                        if self.pause_s:
                            await asyncio.sleep(self.pause_s)

    async def _leave(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        api = self.chance.choice(["chat", "responses"])
        writer.write(post(PATHS[api], _first(api, self.chance.choice(self.models)), self.key))
        with suppress(TimeoutError):
            await asyncio.wait_for(reader.read(1), self.chance.random() * 0.05)
        self.left += 1

    async def _loop(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        api, model = self.chance.choice(["chat", "responses"]), self.chance.choice(self.models)
        request = _first(api, model)
        began, cpu = time.monotonic(), self.cpu_s() if self.cpu_s is not None else 0.0
        try:
            for wanted in ("call", "text"):
                writer.write(post(PATHS[api], request, self.key))
                status, body = await read_answer(reader)
                call, text = _understood(api, body)
                if (
                    status != 200
                    or ENDINGS[api] not in body
                    or (call is None if wanted == "call" else "42" not in text)
                ):
                    self.wrong.append(f"{api} {model}, {wanted}: {status} {body[-300:]!r}")
                    return
                if call is not None:
                    request = _second(api, request, call)
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            self.wrong.append(f"{api} {model}: {error!r}")
            raise
        self.times.append(time.monotonic() - began)
        if self.cpu_s is not None:
            self.cpu_times.append(self.cpu_s() - cpu)


def _first(api: str, model: str) -> dict[str, Any]:
    said = [{"role": "user", "content": "Look, please."}]
    return {
        "model": model,
        "stream": True,
        "tools": TOOLS[api],
        "messages" if api == "chat" else "input": said,
    }


def _second(api: str, request: dict[str, Any], call: dict[str, str]) -> dict[str, Any]:
    if api == "responses":
        made: list[dict[str, Any]] = [
            {"type": "function_call", **call},
            {"type": "function_call_output", "call_id": call["call_id"], "output": "42"},
        ]
        return {**request, "input": [*request["input"], *made]}
    function = {"name": call["name"], "arguments": call["arguments"]}
    asked = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call["call_id"], "type": "function", "function": function}],
    }
    return {
        **request,
        "messages": [
            *request["messages"],
            asked,
            {"role": "tool", "tool_call_id": call["call_id"], "content": "42"},
        ],
    }


def _understood(api: str, body: bytes) -> tuple[dict[str, str] | None, str]:
    """Returns the first call of a stream (None: there is no call), and its text."""
    call: dict[str, str] | None = None
    text = ""
    for line in body.split(b"\n"):
        if not line.startswith(b"data: {"):
            continue
        frame = json.loads(line[6:])
        if api == "chat":
            for choice in frame.get("choices", ()):
                delta = choice["delta"]
                text += delta.get("content") or ""
                for part in delta.get("tool_calls") or ():
                    if call is None:
                        call = {"call_id": part["id"], "name": part["function"]["name"], "arguments": ""}
                    call["arguments"] += part["function"].get("arguments") or ""
        elif frame["type"] == "response.output_text.delta":
            text += frame["delta"]
        elif frame["type"] == "response.output_item.done" and frame["item"]["type"] == "function_call":
            call = call or {name: frame["item"][name] for name in ("call_id", "name", "arguments")}
    return call, text


# --- hostile clients ---

Harm = Callable[[int, str], Awaitable[None]]
LONG, SHORT = "long", "loop"
"""The models that hostile clients use: one with a long answer and one with a short one."""
EVERY_S = 0.25
BACK_AFTER_S = 0.1


async def dribbles_head(port: int, key: str) -> None:
    """Sends a byte of the headers at intervals, and never completes them."""
    async with connected(port) as (_, writer):
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(EVERY_S)


async def dribbles_body(port: int, key: str) -> None:
    """Sends all headers, and then a byte of the body at intervals."""
    async with connected(port) as (_, writer):
        head, _, _ = post(PATHS["chat"], b"x" * 1_000_000, key).partition(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n")
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(EVERY_S)


async def says_nothing(port: int, key: str) -> None:
    """Connects and sends nothing."""
    async with connected(port) as (reader, _):
        await reader.read()


async def half_open(port: int, key: str) -> None:
    """Requests a stream and closes the sending side of the connection before the answer.

    Then requests another stream on a new connection, and resets this connection.
    """
    request = post(PATHS["chat"], {**_first("chat", LONG), "tools": []}, key)
    async with connected(port) as (reader, writer):
        writer.write(request)
        writer.write_eof()
        await reader.read()
    async with connected(port) as (reader, writer):
        writer.write(request)
        await reader.read(1)
        linger = writer.get_extra_info("socket")
        linger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")


async def never_reads(port: int, key: str) -> None:
    """Requests a long stream with a small receive buffer and reads none of it."""
    loop = asyncio.get_running_loop()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        await loop.sock_connect(connection, ("127.0.0.1", port))
        await loop.sock_sendall(connection, post(PATHS["chat"], {**_first("chat", LONG), "tools": []}, key))
        while True:
            await asyncio.sleep(EVERY_S)
            await loop.sock_sendall(connection, b"\r\n")  # raises when the server disconnects


async def floods(port: int, key: str) -> None:
    """Sends one request after the other, as fast as they are answered."""
    async with connected(port) as (reader, writer):
        request = post(
            PATHS["chat"], {"model": SHORT, "messages": [{"role": "user", "content": "flood"}]}, key
        )
        while True:
            writer.write(request)
            await read_answer(reader)


async def floods_streams(port: int, key: str) -> None:
    """Requests one stream after the other, with tools, as fast as they are sent."""
    async with connected(port) as (reader, writer):
        request = post(PATHS["responses"], _first("responses", SHORT), key)
        while True:
            writer.write(request)
            await read_answer(reader)


async def pipelines(port: int, key: str) -> None:
    """Sends thousands of requests at once on one connection and reads no answer."""
    async with connected(port) as (_, writer):
        while True:
            writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2000)
            await writer.drain()
            await asyncio.sleep(EVERY_S)


HOSTILE: dict[str, Harm] = {
    harm.__name__: harm
    for harm in (dribbles_head, dribbles_body, says_nothing, half_open, never_reads, floods, pipelines)
}


async def harass(harm: Harm, port: int, key: str = "") -> None:
    """Repeats an attack until cancelled, and reconnects when disconnected."""
    while True:
        with suppress(OSError, asyncio.IncompleteReadError, ValueError, IndexError):
            await harm(port, key)
        await asyncio.sleep(BACK_AFTER_S)


# --- one hostile client ---


def _frame(opcode: int, data: bytes = b"") -> bytes:
    return bytes([opcode, 0x80 | len(data)]) + b"\0\0\0\0" + data


SOCKET_FLOODS = {
    "pings": (b"", _frame(0x89)),
    "pongs": (b"", _frame(0x8A)),
    "empty fragments": (_frame(0x01), _frame(0x00)),
    "fragments of a byte": (_frame(0x01), _frame(0x00, b"x")),
    "messages of a byte": (b"", _frame(0x81, b"x")),
}
"""What a hostile WebSocket sends first, and what it repeats."""


class SocketFlood(threading.Thread):
    """A WebSocket client that sends as fast as it can and never reads.

    If the server disconnects it, it reconnects.
    """

    def __init__(self, port: int, kind: str, key: str) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._first, again = SOCKET_FLOODS[kind]
        self._blob = again * 20_000
        self._handshake = (
            f"GET {PATHS['responses']} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
            "Connection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        ).encode()
        self._over = threading.Event()
        self.running = threading.Event()

    def run(self) -> None:
        while not self._over.is_set():
            with (
                suppress(OSError),
                socket.create_connection(("127.0.0.1", self._port), timeout=1) as connection,
            ):
                connection.sendall(self._handshake)
                connection.recv(1000)
                connection.sendall(self._first)
                while not self._over.is_set():
                    self.running.set()
                    connection.sendall(self._blob)
            time.sleep(0.02)

    def stop(self) -> None:
        self._over.set()
        self.join()


HELD_BODY, HELD_PIECE = 24 * 1024 * 1024, b" " * 65536


async def holds_memory(port: int, key: str) -> None:
    """Sends most of a large body at once, and the rest just fast enough that the server does not give up."""
    async with connected(port) as (_, writer):
        head = post(PATHS["chat"], b"", key).replace(b"Content-Length: 0", b"Content-Length: %d" % HELD_BODY)
        writer.write(head)
        for _ in range(HELD_BODY // len(HELD_PIECE) - 1):
            writer.write(HELD_PIECE)
            await writer.drain()
        while True:
            writer.write(HELD_PIECE[:4096])
            await writer.drain()
            await asyncio.sleep(EVERY_S)

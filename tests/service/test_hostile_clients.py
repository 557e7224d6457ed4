"""Clients that send or read too slowly, disconnect or flood are cut off.

Other clients are not affected.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

import pytest
import uvloop

from doubles.clients import (
    HOSTILE,
    PATHS,
    SOCKET_FLOODS,
    SocketFlood,
    ToolLoop,
    connected,
    harass,
    post,
    read_answer,
)
from doubles.watched import Watched
from toolwire.backends.base import Batch
from toolwire.core.events import Finish, Text
from toolwire.core.turn import Turn
from toolwire.gateway.pipeline import Gateway
from toolwire.settings.types import LimitSettings, ServerSettings, Settings
from toolwire.surfaces.http import exchange, protocol
from toolwire.testing import ScriptedBackend

CHAT = PATHS["chat"]
BLOCK = "x" * 8192
Socket = Callable[..., AbstractAsyncContextManager[str]]


LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test on each event loop that the server supports, because their buffers differ."""

    def run(**fixtures: Any) -> None:
        with asyncio.Runner(loop_factory=LOOPS[fixtures.pop("loop")]) as runner:
            runner.run(test(**fixtures))

    taken = inspect.signature(test)
    named = inspect.Parameter("loop", inspect.Parameter.KEYWORD_ONLY)
    parameters = [*taken.parameters.values(), named]
    run.__signature__ = taken.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__name__ = test.__name__
    both: Callable[..., None] = pytest.mark.parametrize("loop", LOOPS)(run)
    return both


class Endless:
    """A model that writes until it is cancelled; then it sets `ended`."""

    def __init__(self) -> None:
        self.said = 0
        self.ended = asyncio.Event()

    async def __call__(self, turn: Turn) -> AsyncGenerator[Batch, None]:
        try:
            while True:
                self.said += len(BLOCK)
                yield [Text(BLOCK)]
                await asyncio.sleep(0)
        finally:
            self.ended.set()


class Server:
    def __init__(self, url: str, gateway: Gateway) -> None:
        self.port = int(url.rpartition(":")[2])
        self.gateway = gateway

    async def connection(self, request: bytes) -> socket.socket:
        """Connects with a small receive window and sends a request. The response is not read."""
        loop = asyncio.get_running_loop()
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        await loop.sock_connect(connection, ("127.0.0.1", self.port))
        await loop.sock_sendall(connection, request)
        return connection


Start = Callable[..., AbstractAsyncContextManager[Server]]


@pytest.fixture
def start(on_a_socket: Socket) -> Start:
    @asynccontextmanager
    async def serving(
        model: Callable[[Turn], AsyncGenerator[Batch, None]], keys: tuple[str, ...] = (), **limits: Any
    ) -> AsyncIterator[Server]:
        backend = ScriptedBackend("m")
        backend.run = model  # type: ignore[method-assign, assignment]
        settings = Settings(server=ServerSettings(keys=keys), limits=LimitSettings(**limits))
        gateway = Gateway(settings, backends={"m": backend})
        async with on_a_socket(gateway, settings) as url:
            yield Server(url, gateway)

    return serving


def asks(stream: bool = True, key: str = "") -> bytes:
    messages = [{"role": "user", "content": f"{key}?"}]
    return post(CHAT, {"model": "m", "messages": messages, "stream": stream}, key)


async def quiet(turn: Turn) -> AsyncGenerator[Batch, None]:
    yield [Text("fine"), Finish("stop")]


@contextmanager
def logged(words: str) -> Iterator[asyncio.Event]:
    """Yields an event that is set when the server logs this text."""
    found, log = asyncio.Event(), logging.getLogger("toolwire.http")

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if words in record.getMessage():
                found.set()

    watch, level = Watch(), log.level
    log.addHandler(watch)
    log.setLevel(logging.INFO)
    try:
        yield found
    finally:
        log.removeHandler(watch)
        log.setLevel(level)


async def long_answer(turn: Turn) -> AsyncGenerator[Batch, None]:
    yield [Text("x" * 20_000_000), Finish("stop")]


# --- slow readers ---


@both_loops
async def test_a_stream_waits_for_its_reader_with_bounded_memory(start: Start) -> None:
    model = Endless()
    async with start(model, slow_reader_s=0) as server:
        connection = await server.connection(asks())
        last, since = -1, time.monotonic()
        async with asyncio.timeout(20):
            while time.monotonic() - since < 0.3:
                await asyncio.sleep(0.02)
                if model.said != last:
                    last, since = model.said, time.monotonic()
        assert 0 < model.said < 2 * 1024 * 1024 and not model.ended.is_set()
        connection.close()
        await asyncio.wait_for(model.ended.wait(), 5)


@both_loops
async def test_a_client_that_reads_nothing_is_cut_off_and_its_run_cancelled(start: Start) -> None:
    model = Endless()
    async with start(model, slow_reader_s=0.4) as server:
        began = time.monotonic()
        with await server.connection(asks()):
            await asyncio.wait_for(model.ended.wait(), 10)
        assert time.monotonic() - began >= 0.3


@both_loops
async def test_a_client_that_keeps_reading_slowly_is_not_cut_off(start: Start) -> None:
    model = Endless()
    async with start(model, slow_reader_s=2) as server:  # long enough for delays of a busy machine
        loop, began, read = asyncio.get_running_loop(), time.monotonic(), 0
        with await server.connection(asks()) as connection:
            while time.monotonic() - began < 4:
                read += len(await loop.sock_recv(connection, 65536))
                await asyncio.sleep(0.02)
            assert not model.ended.is_set() and read > 0
        await asyncio.wait_for(model.ended.wait(), 5)


@both_loops
async def test_a_complete_answer_that_is_never_read_is_dropped(start: Start) -> None:
    """The turn has ended, but without a limit the connection would wait forever."""
    async with start(long_answer, slow_reader_s=0.4) as server:
        with logged("was cut off") as given_up, await server.connection(asks(stream=False)) as connection:
            received, loop = 0, asyncio.get_running_loop()
            await asyncio.wait_for(given_up.wait(), 20)
            with pytest.raises(OSError):
                async with asyncio.timeout(10):
                    while piece := await loop.sock_recv(connection, 1 << 20):
                        received += len(piece)
                raise ConnectionError("closed before the end")
            assert received < 20_000_000


@both_loops
async def test_a_client_that_the_kernel_drops_first_is_logged_too(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine, the kernel may end the connection before the server looks at it."""
    monkeypatch.setattr(protocol.GuardedProtocol, "_watch_reader", lambda self: None)
    async with start(long_answer, slow_reader_s=0.4) as server:
        with logged("was cut off") as given_up, await server.connection(asks(stream=False)):
            await asyncio.wait_for(given_up.wait(), 20)


# --- slow senders ---


@both_loops
async def test_a_body_that_never_arrives_ends_the_request(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "BODY_IDLE_S", 0.1)
    async with start(quiet) as server, connected(server.port) as (reader, writer):
        writer.write(asks().partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
        status, body = await asyncio.wait_for(read_answer(reader), 5)
        assert status == 400 and b"stopped arriving" in body
        assert await reader.read() == b""


@both_loops
async def test_a_body_that_arrives_too_slowly_ends_the_request(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "BODY_IDLE_S", 1.0)
    async with start(quiet) as server, connected(server.port) as (reader, writer):
        writer.write(post(CHAT, b"x" * 10_000).partition(b"\r\n\r\n")[0] + b"\r\n\r\n")

        async def dribble() -> None:
            while True:
                writer.write(b" ")
                await asyncio.sleep(0.02)

        dribbling = asyncio.ensure_future(dribble())
        status, body = await asyncio.wait_for(read_answer(reader), 5)
        dribbling.cancel()
        assert status == 400 and b"slower than" in body


@both_loops
async def test_a_large_body_that_arrives_steadily_is_accepted(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With each piece, the server computes anew when the next one is due.

    The next test checks that time.
    """
    waited_at: list[int] = []
    due = exchange.body_due

    def noted(now: float, began: float, arrived: int) -> float:
        waited_at.append(arrived)
        return due(now, began, arrived)

    monkeypatch.setattr(exchange, "body_due", noted)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 60_000}]}).encode()
    ends = [*range(6000, len(body), 6000), len(body)]
    async with start(quiet) as server, connected(server.port) as (reader, writer), asyncio.timeout(60):
        writer.write(post(CHAT, body).partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
        for begin, end in zip([0, *ends], ends, strict=False):
            while begin not in waited_at:  # until the server waits for this piece
                await asyncio.sleep(0.001)
            writer.write(body[begin:end])
        assert (await read_answer(reader))[0] == 200
    assert waited_at == [0, *ends[:-1]]


def test_a_body_that_keeps_up_has_the_whole_idle_time_and_a_slow_one_less() -> None:
    rate, idle = exchange.BODY_RATE, exchange.BODY_IDLE_S
    assert exchange.body_due(100.0, 100.0, 0) == 100 + idle
    assert exchange.body_due(160.0, 100.0, 60 * rate) == 160 + idle
    assert exchange.body_due(160.0, 100.0, 200 * rate) == 160 + idle  # a fast body gets no more time later
    assert exchange.body_due(160.0, 100.0, 40 * rate) == 140 + idle
    assert exchange.body_due(160.0, 100.0, 10) < 160  # already late: it was far too slow


@both_loops
async def test_bodies_that_arrive_together_have_bounded_memory(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "MOST_ARRIVING", 300_000)
    made = exchange.Room.__init__
    monkeypatch.setattr(exchange.Room, "__init__", lambda self, largest: made(self, 0))
    async with start(quiet) as server:
        async with connected(server.port) as (reader, writer), connected(server.port) as (other, second):
            halves = post(CHAT, b" " * 500_000)
            writer.write(halves[:250_000])
            await asyncio.sleep(0.1)
            second.write(halves[:250_000])
            status, body = await asyncio.wait_for(read_answer(other), 5)
            assert status == 503 and b"arrive at the same time" in body
        async with connected(server.port) as (reader, writer):  # the memory of the dropped requests was freed
            writer.write(asks(stream=False))
            assert (await read_answer(reader))[0] == 200


@both_loops
async def test_empty_lines_between_two_requests_do_not_keep_a_connection_open(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEAD_WITHIN_S", 0.2)
    async with start(quiet) as server, connected(server.port) as (reader, writer):
        writer.write(asks(stream=False))
        assert (await read_answer(reader))[0] == 200
        closed = asyncio.ensure_future(reader.read())
        async with asyncio.timeout(20):
            while not closed.done():
                writer.write(b"\r\n")
                await asyncio.wait({closed}, timeout=0.03)
        assert isinstance(closed.exception(), ConnectionError | None)


# --- senders of too much ---


@both_loops
async def test_a_few_pipelined_requests_are_answered_in_order(start: Start) -> None:
    async with start(quiet) as server, connected(server.port) as (reader, writer):
        writer.write(asks(stream=False) * 5)
        for _ in range(5):
            status, body = await read_answer(reader)
            assert status == 200 and b"fine" in body


@both_loops
async def test_too_many_pipelined_requests_are_cut_off(start: Start) -> None:
    model = Endless()
    async with start(model) as server, connected(server.port) as (_, writer):
        writer.write(asks() + b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n" * 500)
        await asyncio.wait_for(model.ended.wait(), 10)


@both_loops
async def test_a_key_with_many_connections_does_not_hold_up_a_request_of_another(start: Start) -> None:
    """All requests are there at the same time; without turns, the other key's request would begin last."""
    begun: list[str] = []

    async def model(turn: Turn) -> AsyncGenerator[Batch, None]:
        begun.append(str(turn.items))
        yield [Text("fine"), Finish("stop")]

    async with start(model, keys=("other", "many")) as server, AsyncExitStack() as connections:
        clients = [
            (key, *await connections.enter_async_context(connected(server.port)))
            for key in [*["many"] * 20, "other"]
        ]
        for key, reader, writer in (clients[-1], *clients):  # the first request shows that two keys are used
            writer.write(asks(False, key))
            if not begun:
                assert (await read_answer(reader))[0] == 200
        for _, reader, _ in clients:
            assert (await read_answer(reader))[0] == 200
    places = [place for place, asked in enumerate(begun[1:]) if "other?" in asked]
    assert len(begun) == 22 and places[0] <= 3


# --- all at once ---

SETTINGS = """
[server]
keys = ["honest", "hostile", "timed"]
[limits]
requests_per_minute = 6000
slow_reader_s = 1
[journal]
max_mb = 4
[store]
url = "sqlite://"
[models.loop]
backend = "scripted"
script = '''
call look {"at": "door"}
---
say It is {result}.
'''
[models.long]
backend = "scripted"
script = "LONG"
"""
GROWTH_MB = 150
MANY = 12


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    long = folder / "long.txt"
    long.write_text(f"raw {'x' * 4096}\n" * 2000)
    with Watched(folder / "server", SETTINGS.replace("LONG", str(long))) as server:
        yield server


async def test_all_hostile_clients_at_once_affect_neither_other_clients_nor_memory(watched: Watched) -> None:
    calm = ToolLoop(watched.port, ("loop",), "honest")
    await calm.run(time.monotonic() + 0.5)
    before, held = watched.rss_mb(), watched.held()
    harms = [
        asyncio.ensure_future(harass(harm, watched.port, "hostile"))
        for harm in HOSTILE.values()
        for _ in range(MANY)
    ]
    honest = [ToolLoop(watched.port, ("loop",), "honest") for _ in range(4)]
    most = before
    running = asyncio.gather(*(one.run(time.monotonic() + 4) for one in honest))
    while not running.done():
        most = max(most, watched.rss_mb())
        await asyncio.wait({running}, timeout=0.1)
    for harm in harms:
        harm.cancel()
    await asyncio.gather(*harms, return_exceptions=True)
    assert [wrong for one in honest for wrong in one.wrong] == []
    assert all(one.times for one in honest)
    assert most - before < GROWTH_MB
    async with asyncio.timeout(20):
        while (now := watched.held()).descriptors > held.descriptors + 2 or now.tasks > held.tasks:
            await asyncio.sleep(0.1)
    assert "Traceback" not in watched.logged()


# --- WebSocket floods ---

ROUNDS, EACH = 5, 70
TIMES_CALM = 4
NOISE_S = 0.001
"""Shorter times cannot be measured reliably."""


async def _work(server: Watched) -> float:
    """Returns the event loop's CPU time from a request to its answer (99th percentile).

    Work for other connections during that time counts. Other work of the machine does not count.
    """
    request = post(CHAT, {"model": "loop", "messages": [{"role": "user", "content": "?"}]}, "timed")
    spent = []
    async with connected(server.port) as (reader, writer):
        for _ in range(EACH):
            before = server.loop_cpu_s()
            writer.write(request)
            assert (await read_answer(reader))[0] == 200
            spent.append(server.loop_cpu_s() - before)
    return sorted(spent)[int(EACH * 0.99)]


@pytest.mark.parametrize("kind", SOCKET_FLOODS)
async def test_a_websocket_flood_affects_neither_other_clients_nor_memory(
    watched: Watched, kind: str
) -> None:
    """Rounds with and without a flood alternate. Other work of the machine only adds to a round: while this
    process does not run, the server goes on with the flood. So the quietest rounds are compared.
    """
    await _work(watched)
    before = watched.rss_mb()
    calm, flooded = [], []
    for _ in range(ROUNDS):
        calm.append(await _work(watched))
        flood = SocketFlood(watched.port, kind, "hostile")
        flood.start()
        try:
            await asyncio.to_thread(flood.running.wait, 10)
            flooded.append(await _work(watched))
        finally:
            await asyncio.to_thread(flood.stop)
    print(f"{kind}: {min(calm) * 1000:.2f} ms a request, flooded {min(flooded) * 1000:.2f} ms")
    assert min(flooded) <= TIMES_CALM * max(min(calm), NOISE_S)
    assert watched.rss_mb() - before < GROWTH_MB / 5
    assert "Traceback" not in watched.logged()

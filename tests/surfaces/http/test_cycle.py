"""How an answer is written to the socket, byte by byte, for any application."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from doubles.served import served
from toolwire.surfaces.http.cycle import Cycle
from toolwire.surfaces.http.exchange import CONNECTION, Connection
from toolwire.surfaces.http.protocol import HIGH_WATER, PROBE_AFTER_S, PROBE_EVERY_S, GuardedProtocol

Send = Callable[[dict[str, Any]], Awaitable[None]]
ASKED = b"POST /x HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n\r\n{}"


class App:
    """An application that sends the given messages in response to every request."""

    def __init__(self, answer: Callable[[Send], Awaitable[None]]) -> None:
        self._answer = answer

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        if scope["type"] == "http":
            await receive()
            await self._answer(send)

    async def leave(self) -> None: ...

    def drain(self) -> None: ...


async def written(answer: Callable[[Send], Awaitable[None]], times: int = 1) -> tuple[bytes, bool]:
    """What one connection receives for this many requests, and whether it is then still open."""

    async with served(App(answer)) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            got, block = b"", b"?"
            for _ in range(times):
                writer.write(ASKED)
                with suppress(TimeoutError):
                    while block:
                        block = await asyncio.wait_for(reader.read(65536), 0.3)
                        got += block
            return got, bool(block)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


def loaded(app: App, protocol: type[HttpToolsProtocol]) -> Config:
    """The configuration that the server gives uvicorn."""
    config = Config(
        app, http=protocol, ws="none", lifespan="off", interface="asgi3", log_config=None, access_log=False
    )
    config.load()
    return config


def start(status: int, *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body(data: bytes = b"", more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


def says(*messages: dict[str, Any]) -> Callable[[Send], Awaitable[None]]:
    async def answer(send: Send) -> None:
        for message in messages:
            await send(message)

    return answer


@pytest.mark.parametrize("name", [b"content-length", b"Content-Length"])
async def test_a_whole_answer_has_one_length_and_leaves_the_connection_open_for_the_next(name: bytes) -> None:
    got, is_open = await written(says(start(200, (name, b"5")), body(b"hello")), times=2)
    assert (
        is_open
        and got.count(b"HTTP/1.1 200") == 2
        and got.lower().count(b"content-length: 5\r\n") == 2
        and got.count(b"\r\n\r\nhello") == 2
    )
    assert b"transfer-encoding" not in got.lower()


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body_has_no_body_headers(status: int) -> None:
    got, is_open = await written(says(start(status), body()), times=2)
    assert is_open and got.count(b"HTTP/1.1 %d" % status) == 2 and got.endswith(b"\r\n\r\n")
    assert b"transfer-encoding" not in got and b"0\r\n" not in got


async def test_the_headers_of_a_stream_are_sent_before_its_first_chunk_exists() -> None:
    release = asyncio.Event()

    async def slowly(send: Send) -> None:
        await send(start(200))
        await release.wait()
        await says(body(b"one", more=True), body())(send)

    async with served(App(slowly)) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(ASKED)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        assert b"transfer-encoding: chunked\r\n" in head
        release.set()
        assert await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 5) == b"3\r\none\r\n0\r\n\r\n"
        writer.close()


async def test_a_body_in_chunks_follows_its_headers() -> None:
    got, is_open = await written(
        says(start(200, (b"content-length", b"6")), body(b"one", more=True), body(b"two"))
    )
    assert is_open and got.endswith(b"\r\n\r\nonetwo")


@pytest.mark.parametrize("value", [b"a\r\nx-evil: 1", b"a\rb", b"a\nb"])
async def test_a_header_value_cannot_contain_a_line_break(value: bytes) -> None:
    got, _ = await written(says(start(200, (b"x-told", value), (b"content-length", b"0")), body()))
    assert b"x-told" not in got and b"x-evil" not in got and b"200 OK" not in got


@pytest.mark.parametrize("name", [b"x-told\r\nx-evil", b"x-told\n"])
async def test_a_header_name_cannot_contain_a_line_break(name: bytes) -> None:
    got, _ = await written(says(start(200, (name, b"1"), (b"content-length", b"0")), body()))
    assert b"x-told" not in got and b"x-evil" not in got and b"200 OK" not in got


async def test_headers_go_out_as_they_are_also_with_signs_that_a_form_would_read() -> None:
    got, _ = await written(
        says(
            start(
                200, (b"x-%b-%d", b"100 %b"), (b"x-two", b"a"), (b"x-two", b"b"), (b"content-length", b"0")
            ),
            body(),
        )
    )
    assert b"\r\nx-%b-%d: 100 %b\r\nx-two: a\r\nx-two: b\r\ncontent-length: 0\r\n\r\n" in got


def test_an_answer_without_headers_is_left_to_uvicorn() -> None:
    cycle = object.__new__(Cycle)
    vars(cycle).update(
        response_started=False,
        disconnected=False,
        keep_alive=True,
        scope={"method": "POST"},
        default_headers=[],
    )
    assert cycle._head_of(200, []) is None


@pytest.mark.parametrize(
    ("url", "path", "query"),
    [
        (b"/v1/models", "/v1/models", b""),
        (b"/v1/models/a%2Fb%20c?x=%20&y", "/v1/models/a/b c", b"x=%20&y"),
        (b"/" + b"a" * 200, "/" + "a" * 200, b""),
        (b"http://host.example/v1/x?q", "/v1/x", b"q"),
    ],
)
async def test_a_path_is_read_as_uvicorn_reads_it(url: bytes, path: str, query: bytes) -> None:
    seen: list[dict[str, Any]] = []

    class Reporting(App):
        async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
            seen.append(scope)
            await super().__call__(scope, receive, send)

    for protocol in (GuardedProtocol, HttpToolsProtocol):
        config = loaded(Reporting(says(start(200), body())), protocol)
        made = protocol(config, ServerState(), {})
        made.connection_made(_Silent())
        made.data_received(ASKED.replace(b"/x", url))
        await asyncio.gather(*made.tasks)
        made.connection_lost(None)
    ours, theirs = seen
    assert (ours["path"], ours["query_string"]) == (path, query)
    assert {key: value for key, value in ours.items() if key != CONNECTION} == theirs


def test_a_connection_has_all_that_uvicorn_gives_it() -> None:
    """Our class sets its own attributes: an attribute that a later version adds must fail here."""
    config = loaded(App(says()), GuardedProtocol)
    loop = asyncio.new_event_loop()
    state = ServerState()
    ours, theirs = GuardedProtocol(config, state, {}, loop), HttpToolsProtocol(config, state, {}, loop)
    loop.close()
    later = {
        "transport",
        "flow",
        "server",
        "client",
        "scheme",
        "scope",
        "headers",
    }  # per connection or per request
    unused = {"limit_concurrency"}
    for name, value in vars(theirs).items():
        if name not in later | unused:
            assert (
                type(getattr(ours, name)) is type(value) if name == "parser" else getattr(ours, name) == value
            ), name


class _Silent(asyncio.Transport):
    """A connection whose bytes nobody reads."""

    def write(self, data: Any) -> None: ...

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def close(self) -> None: ...

    def resume_reading(self) -> None: ...


@pytest.mark.parametrize(
    "messages", [(body(b"short"),), (body(b"much too long"),), ()], ids=["short", "long", "none"]
)
async def test_a_body_that_is_not_as_long_as_said_ends_the_connection(
    messages: tuple[dict[str, Any], ...],
) -> None:
    _, is_open = await written(says(start(200, (b"content-length", b"9")), *messages))
    assert not is_open


STREAM = (b"content-type", b"text/event-stream")


@pytest.mark.parametrize("waits", [False, True])
async def test_the_headers_of_a_stream_are_sent_with_its_first_chunk_or_before_it(waits: bool) -> None:
    """Headers that wait for the first chunk must not wait long: the client has no other sign of life."""
    go_on = asyncio.Event()
    writes: list[bytes] = []

    class Streams(App):
        async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
            if scope["type"] != "http":
                return
            cycle = send.__self__  # type: ignore[attr-defined]
            transport = cycle.transport

            def write(data: bytes) -> None:
                writes.append(data)
                transport.write(data)

            cycle.transport = SimpleNamespace(
                write=write, is_closing=transport.is_closing, close=transport.close
            )
            await receive()
            await send(start(200, STREAM))
            if waits:
                await asyncio.wait_for(go_on.wait(), 5)
            connection: Connection = scope[CONNECTION]
            assert connection.write(b"one") and connection.write(b"two")
            await send(body())

    async def nothing(send: Send) -> None: ...

    async with served(Streams(nothing)) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(ASKED)
        if waits:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
            assert b"transfer-encoding: chunked" in head and writes == [head]
            go_on.set()
            assert await asyncio.wait_for(reader.readexactly(8), 5) == b"3\r\none\r\n"
        else:
            assert await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 5)
            assert (
                writes[0].startswith(b"HTTP/1.1 200")
                and writes[0].endswith(b"\r\n\r\n3\r\none\r\n")
                and writes[1] == b"3\r\ntwo\r\n"
            )
        writer.close()


async def test_a_stream_that_breaks_before_its_first_piece_ends_the_connection() -> None:
    async def breaks(send: Send) -> None:
        await send(start(200, STREAM))
        raise RuntimeError("nothing came")

    got, is_open = await written(breaks)
    assert not is_open and (not got or b"transfer-encoding: chunked" in got)


# --- shortcuts: a whole answer, and a body that is already there ---

HEADERS = [(b"content-type", b"text/plain"), (b"content-length", b"5")]


class Short(App):
    """Answers with the shortcut if it is available, else as any application does.

    `taken` records which one, `bodies` the request bodies.
    """

    def __init__(self, headers: list[tuple[bytes, bytes]], said: bytes = b"hello") -> None:
        self.taken: list[bool] = []
        self.bodies: list[bytes | None] = []
        self._headers, self._said = headers, said

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        if scope["type"] != "http":
            return
        wire = scope[CONNECTION]
        await asyncio.sleep(0.05)
        self.bodies.append(wire.take())
        self.taken.append(wire.answer(200, self._headers, self._said))
        if not self.taken[-1]:
            await send(start(200, *self._headers))
            await send(body(self._said))


async def exchanged(app: App, *asked: bytes) -> bytes:
    async with served(app) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        got = b""
        for piece in asked:
            writer.write(piece)
            with suppress(TimeoutError):
                while block := await asyncio.wait_for(reader.read(65536), 0.3):
                    got += block
        writer.close()
        return got


def without_date(answer: bytes) -> bytes:
    return b"\r\n".join(line for line in answer.split(b"\r\n") if not line.startswith(b"date:"))


async def test_a_whole_answer_by_one_call_is_what_two_messages_would_have_been() -> None:
    app = Short(HEADERS)
    short = await exchanged(app, ASKED, ASKED)
    assert app.taken == [True, True] and app.bodies == [b"{}", b"{}"]
    long = await exchanged(App(says(start(200, *HEADERS), body(b"hello"))), ASKED, ASKED)
    assert without_date(short) == without_date(long) and short.count(b"\r\n\r\nhello") == 2


@pytest.mark.parametrize(
    ("asked", "headers", "said"),
    [
        (ASKED.replace(b"host", b"connection: close\r\nhost"), HEADERS, b"hello"),
        (ASKED.replace(b"POST", b"PUT"), HEADERS, b"hello"),
        (ASKED, [(b"Content-Type", b"text/plain"), (b"content-length", b"5")], b"hello"),
        (ASKED, [*HEADERS, (b"connection", b"close")], b"hello"),
        (ASKED, [(b"content-type", b"text/plain")], b"hello"),
        (ASKED, HEADERS, b"longer than five"),
    ],
    ids=["closing", "method", "upper case", "header", "no length", "wrong length"],
)
async def test_anything_unusual_is_left_to_the_server(
    asked: bytes, headers: list[tuple[bytes, bytes]], said: bytes
) -> None:
    app = Short(headers, said)
    got = await exchanged(app, asked)
    assert app.taken == [False]
    assert (b"hello" in got) if said == b"hello" else (b"longer" not in got)


async def test_nothing_is_written_to_a_connection_that_was_answered() -> None:
    class Twice(Short):
        async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
            connection = scope.get(CONNECTION)
            await super().__call__(scope, receive, send)
            if connection is not None:
                self.taken += [
                    connection.answer(200, HEADERS, b"hello"),
                    connection.write(b"hello"),
                    connection.take() is not None,
                    CONNECTION in scope,
                ]

    app = Twice(HEADERS)
    assert (await exchanged(app, ASKED)).count(b"HTTP/1.1 200") == 1 and app.taken == [
        True,
        False,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    "asked",
    [ASKED[:-1], ASKED.replace(b"host", b"expect: 100-continue\r\nhost")],
    ids=["half", "waits for our word"],
)
async def test_a_missing_or_unrequested_body_is_not_taken(asked: bytes) -> None:
    app = Short(HEADERS)
    await exchanged(app, asked)
    assert app.bodies == [None]


# --- system calls ---


async def test_every_connection_has_what_the_kernel_is_to_do_for_it() -> None:
    class Patient(App):
        slow_reader_s = 7.0

    async def nothing(send: Send) -> None: ...

    async with served(Patient(nothing)) as (server, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        while not server.server_state.connections:
            await asyncio.sleep(0.01)
        (protocol,) = server.server_state.connections
        connection = protocol.transport.get_extra_info("socket")
        asked = {
            "TCP_KEEPIDLE": PROBE_AFTER_S,
            "TCP_KEEPINTVL": PROBE_EVERY_S,
            "TCP_NOTSENT_LOWAT": HIGH_WATER,
            "TCP_USER_TIMEOUT": 7000,
        }
        known = {name: value for name, value in asked.items() if hasattr(socket, name)}
        assert {
            name: connection.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in known
        } == known
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        writer.close()

"""The HTTP/1.1 client against raw socket servers with all kinds of behaviour."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from yarl import URL

from toolwire.backends.openai import http1, transport
from toolwire.backends.openai.failures import (
    CutOff,
    Disconnected,
    NameUnknown,
    NotHttp,
    TlsRefused,
    TooLate,
    TransportFault,
    Unreachable,
)
from toolwire.backends.openai.http1 import Http1Client, Request

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nhi"


class Server:
    """`answer` writes anything per request. `heads` are the requests, `connections` counts connections."""

    def __init__(self, answer: Callable[[Streams, int], Awaitable[None]]) -> None:
        self._answer = answer
        self.heads: list[bytes] = []
        self.connections = 0
        self.tasks: list[asyncio.Future[None]] = []
        self.port = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.tasks.append(asyncio.ensure_future(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]))
                self.heads.append(head)
                await self._answer((reader, writer), len(self.heads))
                await writer.drain()
                if writer.is_closing():
                    break
        writer.transport.abort()
        with suppress(OSError, asyncio.CancelledError):
            await writer.wait_closed()


@asynccontextmanager
async def serving(
    answer: Callable[[Streams, int], Awaitable[None]], tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Http1Client, Server]]:
    server, client = Server(answer), Http1Client()
    listener = await asyncio.start_server(server, "127.0.0.1", 0, ssl=tls)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield client, server
    finally:
        client.close()
        for task in server.tasks:
            task.cancel()
        await asyncio.gather(*server.tasks, return_exceptions=True)
        listener.close()
        await listener.wait_closed()


def to(
    port: int, *, scheme: str = "http", connect_s: float = 5, read_s: float = 5, **headers: str
) -> Request:
    return Request(URL(f"{scheme}://127.0.0.1:{port}/v1/chat?x=1"), headers, connect_s, read_s)


def writes(*blocks: bytes) -> Callable[[Streams, int], Awaitable[None]]:
    async def answer(streams: Streams, number: int) -> None:
        for block in blocks:
            streams[1].write(block)
            await asyncio.sleep(0.005)

    return answer


def then_closes(*blocks: bytes) -> Callable[[Streams, int], Awaitable[None]]:
    async def answer(streams: Streams, number: int) -> None:
        await writes(*blocks)(streams, number)
        streams[1].close()

    return answer


async def asked(client: Http1Client, request: Request, body: bytes = b"{}") -> tuple[int, bytes]:
    reply = await client.post(request, body)
    try:
        blocks = []
        while block := await reply.read():
            blocks.append(block)
        return reply.status, b"".join(blocks)
    finally:
        reply.release()


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
ANSWERS = {
    "of a length": (writes(WHOLE), 1),
    "in pieces": (writes(*(WHOLE[at : at + 1] for at in range(len(WHOLE)))), 1),
    "in chunks": (writes(CHUNKED, b"1\r\nh\r\n", b"1;x=y\r\ni\r\n", b"0\r\n\r\n"), 1),
    "in chunks, with a long extension": (
        writes(CHUNKED, b"1\r\nh\r\n", b"1;x=" + b"y" * 300_000, b"\r\ni\r\n0\r\n\r\n"),
        1,
    ),
    "in chunks, with trailers": (writes(CHUNKED + b"2\r\nhi\r\n0\r\nx-sum: 1\r\n\r\n"), 1),
    "after hints": (
        writes(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + WHOLE),
        1,
    ),
    "until the end": (then_closes(b"HTTP/1.1 200 OK\r\n\r\nh", b"i"), 2),
    "of an old server": (then_closes(b"HTTP/1.0 200 OK\r\n\r\nhi"), 2),
    "and no more after it": (writes(WHOLE.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")), 2),
}


@pytest.mark.parametrize("kind", ANSWERS)
async def test_an_answer_is_read_whole_and_its_connection_used_again_where_it_may_be(kind: str) -> None:
    answer, connections = ANSWERS[kind]
    async with serving(answer) as (client, server):
        assert await asked(client, to(server.port)) == (200, b"hi")
        assert await asked(client, to(server.port)) == (200, b"hi")
        assert server.connections == connections


async def test_the_request_contains_its_input_and_nothing_else() -> None:
    async with serving(writes(WHOLE)) as (client, server):
        await asked(client, to(server.port, Authorization="Bearer k"), b"{}")
        head = (
            b"POST /v1/chat?x=1 HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAuthorization: Bearer k\r\n"
            b"Content-Length: 2\r\n\r\n"
        )
        assert server.heads == [head % server.port]


def test_a_header_with_a_line_break_is_refused() -> None:
    with pytest.raises(ValueError, match="line break"):
        to(1, evil="a\r\nx: y")


FAULTS: dict[str, tuple[Callable[[Streams, int], Awaitable[None]], type[TransportFault]]] = {
    "closes without a word": (then_closes(), Disconnected),
    "closes within the head": (then_closes(b"HTTP/1.1 200 OK\r\nx:"), Disconnected),
    "closes within the body": (then_closes(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi"), CutOff),
    "closes within a chunk": (then_closes(CHUNKED + b"9\r\nhi"), CutOff),
    "closes before the last chunk": (then_closes(CHUNKED + b"2\r\nhi\r\n"), CutOff),
    "breaks a chunk": (writes(CHUNKED + b"2\r\nhi\r\n", b"nonsense\r\n"), CutOff),
    "does not speak HTTP": (writes(b"SSH-2.0-x\r\n"), NotHttp),
    "sends a head without end": (
        writes(b"HTTP/1.1 200 OK\r\n" + b"x-a: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n" * 4000),
        NotHttp,
    ),
    "changes the protocol": (
        writes(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"),
        NotHttp,
    ),
}


@pytest.mark.parametrize("kind", FAULTS)
async def test_every_failure_has_a_kind(kind: str) -> None:
    answer, fault = FAULTS[kind]
    async with serving(answer) as (client, server):
        with pytest.raises(fault):
            await asked(client, to(server.port))


async def test_what_came_before_a_break_is_read_first() -> None:
    async with serving(then_closes(CHUNKED + b"2\r\nhi\r\n")) as (client, server):
        reply = await client.post(to(server.port), b"{}")
        await asyncio.sleep(0.1)
        assert await reply.read() == b"hi"
        with pytest.raises(CutOff):
            await reply.read()
        reply.release()


async def test_a_refused_connection_and_an_unknown_host_are_reported() -> None:
    client = Http1Client()
    listener = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    listener.close()
    await listener.wait_closed()
    with pytest.raises(Unreachable):
        await client.post(to(port), b"{}")
    with pytest.raises(NameUnknown):
        await client.post(Request(URL("http://no-such-host.invalid/v1"), {}, 5, 5), b"{}")


async def test_a_server_that_stops_sending_is_dropped_even_in_the_middle() -> None:
    async def silent(streams: Streams, number: int) -> None:
        if number == 2:
            streams[1].write(CHUNKED + b"2\r\nhi\r\n")
        await asyncio.sleep(5)

    async with serving(silent) as (client, server):
        with pytest.raises(TooLate):
            await asked(client, to(server.port, read_s=0.1))
        with pytest.raises(TooLate):
            await asked(client, to(server.port, read_s=0.1))


async def test_an_answer_that_arrives_while_the_event_loop_is_busy_is_not_late() -> None:
    async def answers(streams: Streams, number: int) -> None:
        streams[1].write(CHUNKED + b"2\r\nhi\r\n")
        await asyncio.sleep(0.01)
        streams[1].write(b"1\r\n!\r\n")
        time.sleep(0.3)  # the loop then finds the chunk and the timer at once
        await asyncio.sleep(0.01)
        streams[1].write(b"0\r\n\r\n")

    async with serving(answers) as (client, server):
        assert await asked(client, to(server.port, read_s=0.1)) == (200, b"hi!")


async def test_a_slow_reader_is_not_the_servers_fault_and_makes_it_wait() -> None:
    written = 0

    async def floods(streams: Streams, number: int) -> None:
        nonlocal written
        streams[1].write(CHUNKED)
        for _ in range(1000):
            streams[1].write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
            await streams[1].drain()
            written += 0x10000
        streams[1].write(b"0\r\n\r\n")

    async with serving(floods) as (client, server):
        reply = await client.post(to(server.port, read_s=0.2), b"{}")
        size = len(await reply.read())
        await asyncio.sleep(0.5)  # longer than the server's time limit
        assert written < 20_000_000, "the server goes on writing to somebody who does not read"
        while block := await reply.read():
            size += len(block)
        reply.release()
        assert size == 0x10000 * 1000
        assert len(await asyncio.wait_for(_kept(client), 1)) == 1


async def _kept(client: Http1Client) -> list[object]:
    return [one for kept in client._waiting.values() for one in kept]


async def test_a_kept_connection_that_the_server_closed_is_replaced_and_the_request_sent_once_more() -> None:
    async def closes_later(streams: Streams, number: int) -> None:
        if number == 2:
            streams[1].transport.abort()
            return
        streams[1].write(WHOLE)

    async with serving(closes_later) as (client, server):
        assert await asked(client, to(server.port)) == (200, b"hi")
        assert await asked(client, to(server.port)) == (200, b"hi")
        assert (server.connections, len(server.heads)) == (2, 3)


async def test_a_request_whose_answer_had_begun_is_not_sent_again() -> None:
    async def begins(streams: Streams, number: int) -> None:
        if number == 1:
            streams[1].write(WHOLE)
        else:
            await then_closes(b"HTTP/1.1 2")(streams, number)

    async with serving(begins) as (client, server):
        await asked(client, to(server.port))
        with pytest.raises(Disconnected):
            await asked(client, to(server.port))
        assert len(server.heads) == 2


async def test_unrequested_bytes_end_the_connection() -> None:
    async def says_more(streams: Streams, number: int) -> None:
        streams[1].write(WHOLE)
        await asyncio.sleep(0.02)
        streams[1].write(WHOLE.replace(b"hi", b"no"))

    async with serving(says_more) as (client, server):
        assert await asked(client, to(server.port)) == (200, b"hi")
        await asyncio.sleep(0.1)
        assert await asked(client, to(server.port)) == (200, b"hi")
        assert server.connections == 2


LATE = WHOLE.replace(b"hi", b"no")


@pytest.mark.parametrize(
    "late",
    [LATE, LATE[:9], b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"],
)
@pytest.mark.parametrize("read", [True, False], ids=["read by the loop", "in the socket only"])
@pytest.mark.parametrize("proxied", [False, True], ids=["direct", "aiohttp"])
async def test_what_arrives_on_an_idle_connection_is_never_the_next_answer(
    late: bytes, read: bool, proxied: bool
) -> None:
    idle: list[asyncio.StreamWriter] = []

    async def answer(streams: Streams, number: int) -> None:
        streams[1].write(WHOLE)
        idle.append(streams[1])

    async with serving(answer) as (_, server):
        client = transport.Transport(proxy_from_env=proxied)
        try:
            for number in (1, 2, 3):
                reply = await client.post(to(server.port), b"{}")
                said = b""
                while block := await reply.read():
                    said += block
                reply.release()
                assert (reply.status, said, server.connections) == (200, b"hi", number)
                idle[-1].write(late)  # on loopback it has arrived at once, and the loop has not read it
                if read:
                    await asyncio.sleep(0.02)
        finally:
            await client.leave(None)


async def test_a_connection_is_not_reused_after_an_answer_to_a_partly_read_request() -> None:
    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\nno")

    connections: list[asyncio.StreamWriter] = []
    client, listener = Http1Client(), await asyncio.start_server(early, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    try:
        for number in (1, 2):
            assert await asyncio.wait_for(asked(client, to(port), b"x" * 32_000_000), 5) == (400, b"no")
            assert len(connections) == number
    finally:
        client.close()
        for writer in connections:
            writer.transport.abort()
        listener.close()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "behind",
    [b"HTTP/1.1 500 Oh\r\ncontent-length: 3\r\n\r\nabc", b"HTTP/1.1 200 OK\r\nContent-Le", b"nonsense"],
)
@pytest.mark.parametrize("whole", [WHOLE, CHUNKED + b"2\r\nhi\r\n0\r\n\r\n"], ids=["length", "chunks"])
async def test_bytes_after_a_whole_answer_are_ignored(whole: bytes, behind: bytes) -> None:
    async with serving(writes(whole + behind)) as (client, server):
        for number in (1, 2):
            assert await asked(client, to(server.port)) == (200, b"hi")
            assert server.connections == number


async def test_the_time_limit_of_an_earlier_request_does_not_hold_for_the_next() -> None:
    async def slower(streams: Streams, number: int) -> None:
        if number == 1:
            await asyncio.sleep(0.05)
            streams[1].write(WHOLE)
        else:
            await asyncio.sleep(30)

    async with serving(slower) as (client, server):
        await asked(client, to(server.port, read_s=30))
        began = asyncio.get_running_loop().time()
        with pytest.raises(TooLate):
            await asked(client, to(server.port, read_s=0.1))
        assert asyncio.get_running_loop().time() - began < 5


async def test_a_host_whose_first_address_leads_nowhere_is_reached_by_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(writes(WHOLE)) as (client, server):
        kind = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
        nowhere, here = (*kind, ("192.0.2.1", server.port)), (*kind, ("127.0.0.1", server.port))

        async def found(*_: object, **__: object) -> list[object]:
            return [nowhere, here]

        monkeypatch.setattr(client.loop, "getaddrinfo", found)
        assert await asyncio.wait_for(asked(client, to(server.port, connect_s=20)), 5) == (200, b"hi")


def test_faults_of_the_proxied_client_keep_nothing_of_earlier_requests() -> None:
    first, second = transport.fault(TimeoutError()), transport.fault(TimeoutError())
    assert isinstance(first, TooLate) and first is not second


async def test_a_reader_that_leaves_or_is_cancelled_closes_the_connection() -> None:
    left = asyncio.Event()

    async def endless(streams: Streams, number: int) -> None:
        streams[1].write(CHUNKED + b"2\r\nhi\r\n")
        await streams[0].read()
        left.set()

    async with serving(endless) as (client, server):
        reply = await client.post(to(server.port), b"{}")
        assert await reply.read() == b"hi"
        reply.release()
        await asyncio.wait_for(left.wait(), 2)
        left.clear()

        asking = asyncio.ensure_future(asked(client, to(server.port)))
        while len(server.heads) < 2:
            await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await asyncio.wait_for(left.wait(), 2)


@pytest.mark.parametrize(
    ("rest", "connections"),
    [
        (b"0\r\n\r\n", 1),
        (b"1\r\n!\r\n0\r\n\r\n", 1),
        (b"1\r\n!\r\n", 2),
        (b"0\r\n\r\nHTTP/1.1 200 OK\r\n", 2),
        (b"nonsense\r\n", 2),
        (b"", 2),
    ],
)
async def test_a_stream_whose_content_is_whole_keeps_its_connection_if_its_end_follows(
    rest: bytes, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolwire.backends.openai.http1.END_S", 0.1)
    may_end = asyncio.Event()

    async def answer(streams: Streams, number: int) -> None:
        streams[1].write(CHUNKED + b"2\r\nhi\r\n")
        await may_end.wait()
        streams[1].write(rest)

    async with serving(answer) as (client, server):
        reply = await client.post(to(server.port), b"{}")
        assert await reply.read() == b"hi"
        reply.release(whole=True)
        may_end.set()
        async with asyncio.timeout(5):
            while client.ending:
                await asyncio.sleep(0.01)
        again = await client.post(to(server.port), b"{}")
        assert ((await again.read())[:2], server.connections) == (b"hi", connections)
        again.release()


async def test_closing_the_client_closes_connections_that_wait_for_the_end_of_a_response() -> None:
    closed = asyncio.Event()

    async def answer(streams: Streams, number: int) -> None:
        streams[1].write(CHUNKED + b"2\r\nhi\r\n")
        await streams[0].read()
        closed.set()

    async with serving(answer) as (client, server):
        reply = await client.post(to(server.port), b"{}")
        assert await reply.read() == b"hi"
        reply.release(whole=True)
        client.close()
        async with asyncio.timeout(0.5):
            await closed.wait()


async def test_kept_connections_are_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "KEEP_ALIVE_S", 0.1)
    async with serving(writes(WHOLE)) as (client, server):
        await asyncio.gather(*(asked(client, to(server.port)) for _ in range(3)))
        assert len(await _kept(client)) == 3
        async with asyncio.timeout(3):
            while await _kept(client):
                await asyncio.sleep(0.02)
        assert await asked(client, to(server.port)) == (200, b"hi")


# --- TLS ---


async def test_tls_with_a_trusted_certificate_and_with_another(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*certificate)
    async with serving(writes(CHUNKED, b"2\r\nhi\r\n", b"0\r\n\r\n"), tls) as (client, server):
        with pytest.raises(TlsRefused):
            await asked(client, to(server.port, scheme="https"))
        monkeypatch.setattr(
            http1, "tls_context", lambda: ssl.create_default_context(cafile=str(certificate[0]))
        )
        for _ in range(2):
            assert await asked(client, to(server.port, scheme="https")) == (200, b"hi")
        assert len(server.heads) == 2 and server.connections == 1, "a handshake that failed reached nobody"
    async with serving(writes(WHOLE)) as (client, server):
        with pytest.raises((TlsRefused, Unreachable, TooLate)):  # it does not support TLS
            await asked(client, to(server.port, scheme="https", connect_s=2))

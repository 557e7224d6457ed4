"""Refused requests get an OpenAI error object, even while the client is still sending."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from toolwire.surfaces.http import exchange, protocol

CHAT = "/v1/chat/completions"


def parse(received: bytes) -> tuple[int, dict[str, str], Any]:
    head, _, body = received.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
    return int(lines[0].split()[1]), headers, json.loads(body)


@pytest.mark.parametrize(
    ("method", "path", "status", "code", "allow"),
    [
        ("GET", "/no/such/route", 404, "unknown_url", None),
        ("POST", "/v1/embeddings", 404, "unknown_url", None),
        ("GET", "/v1/chat/completions", 405, "method_not_supported", "HEAD, OPTIONS, POST"),
        ("DELETE", "/v1/chat/completions", 405, "method_not_supported", "HEAD, OPTIONS, POST"),
        ("GET", "/v1/responses", 405, "method_not_supported", "HEAD, OPTIONS, POST"),
        ("POST", "/v1/models", 405, "method_not_supported", "GET, HEAD, OPTIONS"),
        ("PUT", "/v1/responses/resp_1", 405, "method_not_supported", "DELETE, GET, HEAD, OPTIONS"),
        ("GET", "/v1/responses/resp_1/cancel", 405, "method_not_supported", "OPTIONS, POST"),
        ("POST", "/healthz", 405, "method_not_supported", "GET, HEAD, OPTIONS"),
    ],
)
async def test_unknown_routes_and_wrong_methods(
    site: Any, method: str, path: str, status: int, code: str, allow: str | None
) -> None:
    async with site.client.request(method, site.url(path)) as answer:
        assert answer.status == status
        assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
        assert answer.headers["x-request-id"].startswith("req_")
        error = (await answer.json())["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["code"] == code
        assert path in error["message"] and method in error["message"]
        assert answer.headers.get("Allow") == allow


async def test_an_unknown_route_is_a_404_also_without_a_key(serving: Callable[..., Any]) -> None:
    async with serving(keys=("k",)) as site, site.client.get(site.url("/nope")) as answer:
        assert answer.status == 404


@pytest.mark.parametrize(
    "path", [CHAT, "/v1/responses", "/v1/models", "/v1/models/demo", "/healthz", "/metrics", "/"]
)
async def test_head_is_answered_without_a_body(site: Any, path: str) -> None:
    async with site.client.head(site.url(path)) as answer:
        assert answer.status == 200
        assert await answer.read() == b""
    assert site.gateway.calls == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "application/json"}, 200),
        ({"Content-Type": "application/json; charset=utf-8"}, 200),
        ({"Content-Type": "Application/JSON"}, 200),
        ({"Content-Type": "application/vnd.api+json"}, 200),
        ({}, 200),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415),
        ({"Content-Type": "application/jsonp"}, 415),
        ({"Content-Encoding": "identity"}, 200),
        ({"Content-Encoding": "gzip"}, 415),
        ({"Content-Encoding": "zstd"}, 415),
    ],
)
async def test_only_json_that_comes_as_it_is_is_taken(
    site: Any, headers: dict[str, str], status: int
) -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    received = await site.raw(
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 2\r\n"
        f"{lines}\r\n{{}}".encode()
    )
    got, _, body = parse(received)
    assert got == status
    if status == 415:
        assert body["error"]["code"] == "unsupported_media_type"
    assert len(site.gateway.calls) == (status == 200)


async def test_a_body_at_the_limit_passes_and_one_byte_more_does_not(serving: Callable[..., Any]) -> None:
    async with serving(max_body_mb=0.5) as site:
        for size, status in ((512 * 1024, 200), (512 * 1024 + 1, 413)):
            async with site.client.post(
                site.url(CHAT), data=b"x" * size, headers={"Content-Type": "application/json"}
            ) as answer:
                assert answer.status == status
                if status == 413:
                    assert (await answer.json())["error"]["code"] == "request_too_large"
        assert [len(raw) for _, raw, _ in site.gateway.calls] == [512 * 1024]


async def test_a_chunked_body_over_the_limit_is_refused_while_it_arrives(serving: Callable[..., Any]) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b"x" * 65536

    async with serving(max_body_mb=1.0) as site:
        async with site.client.post(
            site.url(CHAT), data=pieces(), headers={"Content-Type": "application/json"}
        ) as answer:
            assert answer.status == 413
        assert site.gateway.calls == []


async def test_no_more_data_is_awaited_after_a_chunked_body_over_the_limit(
    serving: Callable[..., Any],
) -> None:
    async with serving(max_body_mb=0.01) as site:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (20_000, b"x" * 20_000)
        small = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{{}}".encode()
        writer.write(
            f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + chunks
        )
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        assert b" 413 " in head
        if b"connection: close" in head.lower():
            assert await asyncio.wait_for(reader.read(), 5)
        else:
            await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
            writer.write(small)
            assert b" 200 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        writer.close()


async def test_a_chunked_body_within_the_limit_arrives_whole(site: Any) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for number in range(50):
            yield b"%02d" % number * 1000

    async with site.client.post(
        site.url(CHAT), data=pieces(), headers={"Content-Type": "application/json"}
    ) as answer:
        assert answer.status == 200
    assert site.gateway.calls[0][1] == b"".join(b"%02d" % number * 1000 for number in range(50))


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
async def test_a_client_that_sends_100_mb_before_it_reads_still_gets_its_413(
    site: Any, connection: str
) -> None:
    size, piece = 100 * 1024 * 1024, b"x" * (1024 * 1024)
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nConnection: {connection}\r\n"
        f"Content-Length: {size}\r\n\r\n".encode()
    )
    for _ in range(100):
        writer.write(piece)
        await writer.drain()
    status, headers, body = parse(await reader.read())
    assert (status, headers["connection"]) == (413, "close")
    assert body["error"]["code"] == "request_too_large"
    writer.close()


async def test_a_refused_small_body_leaves_the_connection_usable(serving: Callable[..., Any]) -> None:
    async with serving(keys=("k",)) as site:
        for authorization, status in (
            ("Bearer wrong", 401),
            ("Bearer k", 200),
            ("Bearer wrong", 401),
            ("Bearer k", 200),
        ):
            async with site.client.post(
                site.url(CHAT), json={"a": "b" * 1000}, headers={"Authorization": authorization}
            ) as answer:
                assert answer.status == status
                await answer.read()
        assert len(site.server.server_state.connections) == 1


async def test_a_client_that_waits_for_100_continue_is_refused_at_once(site: Any) -> None:
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 999999999\r\n"
        "\r\n"
    )
    received = await site.raw(head.encode())
    assert b"100 Continue" not in received
    assert parse(received)[0] == 413


async def test_a_client_that_stops_sending_its_body_is_disconnected(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "BODY_IDLE_S", 0.05)
    monkeypatch.setattr(exchange, "BODY_RATE", 1 << 30)  # a further byte does not extend the time
    monkeypatch.setattr(exchange, "LINGER_S", 0.05)
    status, _, body = parse(
        await site.raw(
            f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 99\r\n"
            "\r\n{".encode()
        )
    )
    assert status == 400 and "stopped arriving" in body["error"]["message"]
    assert site.gateway.calls == []


async def test_a_client_with_a_slow_body_is_disconnected_with_an_error(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "BODY_IDLE_S", 1.0)
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 9999\r\n\r\n"
        "{".encode()
    )
    answer = asyncio.ensure_future(reader.read(65536))
    async with asyncio.timeout(10):
        while not answer.done():
            writer.write(b" ")
            await asyncio.sleep(0.01)
    writer.close()
    status, _, body = parse(await answer)
    assert status == 400 and "slower than 8 kB a second" in body["error"]["message"]
    assert site.gateway.calls == []


async def leave_mid_body(site: Any, media: str = "application/json") -> None:
    """Sends half a request, and disconnects once it is being served."""
    _, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {media}\r\nContent-Length: 99\r\n"
        "\r\n{".encode()
    )
    await writer.drain()
    while not site.server.server_state.tasks:
        await asyncio.sleep(0.005)
    writer.close()


async def test_a_client_that_leaves_while_it_is_refused_is_no_error_of_ours(
    site: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fail, refused = exchange.Exchange.fail, asyncio.Event()

    async def later(self: exchange.Exchange, *words: Any) -> int:
        connection: Any = self.connection
        async with asyncio.timeout(5):
            while not connection.disconnected:
                await asyncio.sleep(0.005)
        status = await fail(self, *words)
        refused.set()
        return status

    monkeypatch.setattr(exchange.Exchange, "fail", later)
    async with asyncio.timeout(5):
        await leave_mid_body(site, "text/plain")
        await refused.wait()
    assert "Exception in ASGI application" not in caplog.text


async def test_a_client_that_disconnects_mid_body_leaves_no_state(site: Any) -> None:
    async with asyncio.timeout(5):
        await leave_mid_body(site)
        while site.server.server_state.tasks:
            await asyncio.sleep(0.005)
    assert site.gateway.calls == []


@pytest.mark.parametrize(
    "head",
    [
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: abc\r\n\r\n{}",
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n{}",
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
        "Content-Length: 3\r\n\r\n{}",
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
        "Content-Length: 2\r\n\r\n{}",
        "GARBAGE\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_what_is_not_http_gets_a_json_400(site: Any, head: str) -> None:
    status, headers, body = parse(await site.raw(head.encode("latin-1")))
    assert status == 400 and headers["content-type"].startswith("application/json")
    assert body["error"]["type"] == "invalid_request_error"
    assert site.gateway.calls == []


async def test_an_endless_head_is_cut_off(site: Any) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
    sent = 0
    try:
        while sent < 64 * 1024 * 1024:
            writer.write(b"X-Padding: " + b"x" * 16384 + b"\r\n")
            sent += 16384
            await writer.drain()
    except ConnectionError:
        pass
    assert sent < 8 * 1024 * 1024
    writer.close()


async def test_a_head_that_comes_too_slowly_is_cut_off(
    serving: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEAD_WITHIN_S", 0.05)
    async with serving() as site:
        status, _, _ = parse(await site.raw(b"GET / HTTP/1.1\r\nHost: loc"))
        assert status == 408
        assert await site.raw(b"") == b""  # a silent connection is just closed
        first = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
        received = await site.raw(first + b"GET /livez HTTP/1.1\r\nHo")
        assert (
            received.startswith(b"HTTP/1.1 200") and b"HTTP/1.1 408" in received
        )  # also the second request of a connection


async def test_a_websocket_upgrade_is_answered_as_the_plain_request_it_is(site: Any) -> None:
    head = (
        "GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Key: eA==\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(head.encode())
    assert b" 405 " in await reader.readline()
    writer.close()

"""The two routes for turns: the gateway's input, the client's output, and disconnects of either."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from toolwire.core.errors import ToolwireError
from toolwire.gateway.pipeline import Answer, Caller
from toolwire.surfaces.http.exchange import Exchange

CHAT = "/v1/chat/completions"
STREAM_TYPE = (b"content-type", b"text/event-stream; charset=utf-8")


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


def streaming(site: Any, blocks: Callable[[], AsyncIterator[bytes]]) -> None:
    async def answer(api: str, raw: bytes, caller: Caller) -> Answer:
        return Answer([STREAM_TYPE, (b"x-toolwire-turn", b"new")], stream=blocks())

    site.gateway.answer = answer


@pytest.mark.parametrize(
    ("path", "api"),
    [
        ("/v1/chat/completions", "chat"),
        ("/chat/completions", "chat"),
        ("/v1/chat/completions/", "chat"),
        ("//v1//chat/completions", "chat"),
        ("/v1/responses", "responses"),
        ("/responses/", "responses"),
    ],
)
async def test_a_turn_reaches_the_gateway_with_and_without_v1(site: Any, path: str, api: str) -> None:
    async with site.client.post(
        site.url(path), data=b'{"model":"demo"}', headers={"Content-Type": "application/json"}
    ) as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "application/json"
        assert answer.headers["x-toolwire-turn"] == "new"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert await answer.json() == {"api": api, "size": 16}
    assert site.gateway.calls[0][:2] == (api, b'{"model":"demo"}')


@pytest.mark.parametrize(
    ("given", "kept"),
    [("abc.DEF_1-2", True), ("x" * 128, True), ("x" * 129, False), ("has space", False), ("ünï", False)],
)
async def test_a_client_s_request_id_is_echoed_if_it_is_plain(site: Any, given: str, kept: bool) -> None:
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Request-Id: {given}\r\n"
        "Content-Length: 2\r\n\r\n{}"
    )
    received = (await site.raw(head.encode())).decode("latin-1")
    sent_back = next(
        line.partition(": ")[2] for line in received.split("\r\n") if line.lower().startswith("x-request-id")
    )
    assert (sent_back == given) is kept
    assert kept or sent_back.startswith("req_")
    assert site.gateway.calls[0][2].request_id == sent_back


@pytest.mark.parametrize(
    ("header", "mode"), [(None, None), ("openai-json", "openai-json"), ("Obsidian-XML", "obsidian-xml")]
)
async def test_the_output_mode_of_the_header_is_passed_with_the_caller(
    site: Any, header: str | None, mode: str | None
) -> None:
    async with site.client.post(
        site.url(CHAT), json={}, headers={} if header is None else {"x-proxy-output-mode": header}
    ) as answer:
        assert answer.status == 200
    assert site.gateway.calls[0][2].output_mode == mode


async def test_an_unknown_output_mode_is_refused_by_name(site: Any) -> None:
    async with site.client.post(site.url(CHAT), json={}, headers={"x-proxy-output-mode": "yaml"}) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["param"] == "x-proxy-output-mode"


async def test_a_stream_is_sent_block_by_block_with_the_headers_that_proxies_need(site: Any) -> None:
    proceed = asyncio.Event()

    async def blocks() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"
        await proceed.wait()
        yield b"data: [DONE]\n\n"

    streaming(site, blocks)
    async with site.client.post(site.url(CHAT), json={}, headers={"Origin": "app://obsidian.md"}) as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["Cache-Control"] == "no-cache, no-transform"
        assert answer.headers["X-Accel-Buffering"] == "no"
        assert answer.headers["Access-Control-Allow-Origin"] == "app://obsidian.md"
        assert answer.headers["x-request-id"].startswith("req_")
        assert await answer.content.readany() == b"data: 1\n\n"  # before the second block exists
        proceed.set()
        assert await answer.content.read() == b"data: [DONE]\n\n"


async def test_a_connection_serves_again_after_a_stream(site: Any) -> None:
    async def blocks() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"

    streaming(site, blocks)
    for _ in range(3):
        async with site.client.post(site.url(CHAT), json={}) as answer:
            assert await answer.read() == b"data: 1\n\n"
    assert len(site.server.server_state.connections) == 1


async def test_a_client_that_leaves_mid_stream_cancels_the_run(site: Any) -> None:
    closed: list[str] = []

    async def blocks() -> AsyncIterator[bytes]:
        try:
            yield b"data: 1\n\n"
            await asyncio.Event().wait()
        except BaseException as error:
            closed.append(type(error).__name__)
            raise

    streaming(site, blocks)
    async with site.client.post(site.url(CHAT), json={}) as answer:
        await answer.content.readany()
        answer.close()
    await eventually(lambda: bool(closed) and not site.server.server_state.tasks)
    assert site.app.metrics.registry.get_sample_value("toolwire_streams_open") == 0


async def test_a_client_that_leaves_before_the_first_byte_cancels_the_run(site: Any) -> None:
    cancelled, begun = asyncio.Event(), asyncio.Event()

    async def answer(api: str, raw: bytes, caller: Caller) -> Answer:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        raise AssertionError

    site.gateway.answer = answer
    _, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{{}}".encode())
    await begun.wait()
    writer.close()
    async with asyncio.timeout(5):
        await cancelled.wait()
    await eventually(lambda: not site.server.server_state.tasks)


SLOW = (
    f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}".encode()
)


class Slow:
    """A model that is silent until released. Its stream starts without it."""

    def __init__(self, site: Any, then: Callable[[], AsyncIterator[bytes]]) -> None:
        self.site, self.then, self.go, self.ended = site, then, asyncio.Event(), asyncio.Event()
        site.gateway.answer = self.answer

    async def answer(self, api: str, raw: bytes, caller: Caller) -> Answer:
        assert self.site.gateway.on_slow is not None
        self.site.gateway.on_slow([STREAM_TYPE, (b"x-toolwire-turn", b"new")])
        try:
            await self.go.wait()
            return Answer([STREAM_TYPE, (b"x-toolwire-turn", b"new")], stream=self.then())
        finally:
            self.ended.set()

    def open(self) -> float | None:
        registry = self.site.app.metrics.registry
        return registry.get_sample_value("toolwire_streams_open")  # type: ignore[no-any-return]


async def one_block() -> AsyncIterator[bytes]:
    yield b"data: 1\n\n"


async def breaks() -> AsyncIterator[bytes]:
    raise RuntimeError("broken")
    yield b""


@pytest.mark.parametrize(("then", "whole"), [(one_block, True), (breaks, False)], ids=["answers", "breaks"])
async def test_the_stream_of_a_slow_model_is_begun_without_it(
    site: Any, then: Callable[[], AsyncIterator[bytes]], whole: bool
) -> None:
    """The stream continues with the model's output, and a failure then does not look complete."""
    slow = Slow(site, then)
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(SLOW)
    async with asyncio.timeout(5):
        head = await reader.readuntil(b"\r\n\r\n")
        assert (
            head.startswith(b"HTTP/1.1 200")
            and b"text/event-stream" in head
            and b"x-toolwire-turn: new" in head
            and slow.open() == 1
        )
        slow.go.set()
        rest = await reader.read()
    writer.close()
    assert rest == (b"9\r\ndata: 1\n\n\r\n0\r\n\r\n" if whole else b"")
    await eventually(lambda: slow.open() == 0 and not site.server.server_state.tasks)


@pytest.mark.parametrize("slow", [False, True])
async def test_a_stream_creates_no_reference_cycles(
    site: Any, monkeypatch: pytest.MonkeyPatch, slow: bool
) -> None:
    left: list[weakref.ref[Exchange]] = []
    begin = Exchange.begin

    async def begun(exchange: Exchange, *given: Any) -> None:
        left.append(weakref.ref(exchange))
        await begin(exchange, *given)

    monkeypatch.setattr(Exchange, "begin", begun)
    if slow:
        Slow(site, one_block).go.set()
    else:
        streaming(site, one_block)
    gc.disable()
    try:
        async with site.client.post(site.url(CHAT), json={}) as answer:
            assert await answer.read() == b"data: 1\n\n"
        site.gateway.on_slow = None
        await eventually(lambda: not site.server.server_state.tasks)
        await eventually(lambda: [exchange() for exchange in left] == [None])
    finally:
        gc.enable()


async def test_a_client_that_leaves_a_stream_that_was_begun_without_its_model_cancels_the_run(
    site: Any,
) -> None:
    slow = Slow(site, one_block)
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(SLOW)
    async with asyncio.timeout(5):
        await reader.readuntil(b"\r\n\r\n")
        writer.close()
        await slow.ended.wait()
    await eventually(lambda: slow.open() == 0 and not site.server.server_state.tasks)


async def test_a_client_that_does_not_read_holds_the_run_back(site: Any) -> None:
    made = 0

    async def blocks() -> AsyncIterator[bytes]:
        nonlocal made
        while True:
            made += 1
            yield b"x" * 65536

    streaming(site, blocks)
    _, writer = await asyncio.open_connection("127.0.0.1", site.port, limit=1024)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{{}}".encode())
    before = -1
    async with asyncio.timeout(10):
        while made != before or made == 0:  # until the kernel's buffers are full
            before = made
            await asyncio.sleep(0.1)
    assert made < 1000
    writer.close()
    await eventually(lambda: not site.server.server_state.tasks)


@pytest.mark.parametrize(
    ("error", "status", "expected"),
    [
        (
            ToolwireError("missing", "Missing messages.", param="messages"),
            400,
            {"param": "messages", "code": "missing_required_parameter"},
        ),
        (ToolwireError("model_not_found", "No such model.", param="model"), 404, {"code": "model_not_found"}),
        (ToolwireError("rate_limit", "Slow down.", retry_after_s=1.2), 429, {"type": "rate_limit_error"}),
        (ToolwireError("backend", "The backend broke."), 502, {"type": "server_error"}),
    ],
)
async def test_a_turn_that_fails_before_its_first_byte_is_an_http_error(
    site: Any, error: ToolwireError, status: int, expected: Any
) -> None:
    async def answer(api: str, raw: bytes, caller: Caller) -> Answer:
        raise error

    site.gateway.answer = answer
    async with site.client.post(site.url(CHAT), json={}) as reply:
        assert reply.status == status
        body = (await reply.json())["error"]
        assert set(body) == {"message", "type", "param", "code"}
        assert body["message"] == str(error) and body.items() >= expected.items()
        assert reply.headers.get("Retry-After") == ("2" if status == 429 else None)


async def test_an_unexpected_failure_is_a_500_without_its_inside(
    site: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(api: str, raw: bytes, caller: Caller) -> Answer:
        raise RuntimeError("the secret inside")

    site.gateway.answer = answer
    async with site.client.post(site.url(CHAT), json={}, headers={"x-request-id": "find-me"}) as reply:
        assert reply.status == 500
        text = await reply.text()
    assert json.loads(text)["error"]["type"] == "server_error"
    assert "secret inside" not in text and "Traceback" not in text and "find-me" in text
    record = next(record for record in caplog.records if record.name == "toolwire.http")
    assert "find-me" in record.getMessage() and record.exc_info is not None


async def test_a_stream_that_breaks_unexpectedly_does_not_look_complete(
    site: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def blocks() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"
        raise RuntimeError("broken")

    streaming(site, blocks)
    received = await site.raw(
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{{}}".encode()
    )
    assert b"data: 1" in received and not received.endswith(b"0\r\n\r\n")
    assert any(
        record.name == "toolwire.http" and record.levelno == logging.ERROR for record in caplog.records
    )


async def test_a_draining_server_takes_no_new_turns(site: Any) -> None:
    site.app.draining = True
    async with site.client.post(site.url(CHAT), json={}) as answer:
        assert answer.status == 503
        assert answer.headers["Retry-After"] == "1"
    async with site.client.get(site.url("/readyz")) as answer:
        assert answer.status == 503
    async with site.client.get(site.url("/livez")) as answer:
        assert answer.status == 200

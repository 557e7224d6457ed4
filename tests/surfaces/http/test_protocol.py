"""HTTP/1.1 framing: requests, headers and bodies are read the same however the bytes are split."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from uvicorn.config import Config
from uvicorn.server import ServerState

from toolwire.surfaces.http import protocol
from toolwire.surfaces.http.protocol import MAX_HEAD, GuardedProtocol

SMUGGLED = b"POST /smuggled HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"
Headers = tuple[tuple[bytes, bytes], ...]


class Recorder:
    """An application that records every request and answers with its number."""

    slow_reader_s = 0
    socket_paths = frozenset({b"/v1/responses"})

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, Headers, bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message["body"], message["more_body"]
        self.requests.append((scope["method"], scope["path"], tuple(scope["headers"]), body))
        answer = b"%d" % len(self.requests)
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-length", b"%d" % len(answer))],
            }
        )
        await send({"type": "http.response.body", "body": answer})


class Transport(asyncio.Transport):
    """The other end of the connection: records what was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closing = False

    def write(self, data: Any) -> None:
        if not self.closing:
            self.written += bytes(data)

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1234) if name in ("peername", "sockname") else default


@dataclass
class Seen:
    """The result of sending some bytes."""

    requests: list[tuple[str, str, Headers, bytes]]
    statuses: list[int]
    closed: bool
    written: bytes


async def _received(pieces: list[bytes], turns: int) -> Seen:
    app = Recorder()
    config = Config(
        cast(Any, app),
        http=GuardedProtocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
    )
    config.load()
    connection, transport = (
        GuardedProtocol(config, ServerState(), {}, asyncio.get_running_loop()),
        Transport(),
    )
    connection.connection_made(transport)
    for piece in pieces:
        if transport.is_closing():
            break
        connection.data_received(piece)
        for _ in range(turns):
            await asyncio.sleep(0)
    while connection.tasks:
        if (
            all(getattr(connection.cycle, "more_body", False) for _ in connection.tasks)
            and not connection.pipeline
        ):
            break  # waits for bytes that do not come
        await asyncio.sleep(0)
    seen = Seen(app.requests, _statuses(transport.written), transport.closing, transport.written)
    connection.connection_lost(None)
    while connection.tasks:
        await asyncio.sleep(0)
    return seen


def received(pieces: list[bytes], turns: int = 3) -> Seen:
    """Sends the server these chunks, with `turns` iterations of the loop between them."""
    return asyncio.run(_received(pieces, turns))


def _statuses(written: bytes) -> list[int]:
    found = []
    while written:
        head, _, rest = written.partition(b"\r\n\r\n")
        found.append(int(head.split()[1]))
        lengths = [
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length:")
        ]
        written = rest[lengths[0] if lengths else 0 :]
    return found


def cut(data: bytes, places: list[float]) -> list[bytes]:
    ends = [*sorted({int(place * len(data)) for place in places} - {0}), len(data)]
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False) if start < end]


def one_by_one(data: bytes) -> list[bytes]:
    return [data[place : place + 1] for place in range(len(data))]


# --- every request is read as its client framed it ---


@dataclass(frozen=True)
class Request:
    """A request of an honest or a hostile client. `body` None: it has none."""

    method: str = "POST"
    path: str = "/v1/chat/completions"
    upgrade: Headers = ()
    body: bytes | None = None
    chunks: int = 0
    """Above 0: the body has this many chunks."""
    trailers: Headers = ()
    expect: bool = False
    blank: bytes = b""
    """Empty lines before the request."""

    @property
    def head(self) -> Headers:
        framing: Headers = ()
        if self.chunks:
            framing = ((b"transfer-encoding", b"chunked"),)
        elif self.body is not None:
            framing = ((b"content-length", b"%d" % len(self.body)),)
        expect = ((b"expect", b"100-continue"),) if self.expect else ()
        return ((b"host", b"localhost"), (b"x-empty", b""), *self.upgrade, *framing, *expect)

    @property
    def wire(self) -> bytes:
        lines = [
            f"{self.method} {self.path} HTTP/1.1\r\n".encode(),
            *(b"%b: %b\r\n" % header for header in self.head),
            b"\r\n",
        ]
        body = self.body or b""
        if self.chunks:
            size = max(1, len(body) // self.chunks)
            for place in range(0, len(body), size):
                lines.append(
                    b"%x;x=y\r\n%b\r\n" % (len(body[place : place + size]), body[place : place + size])
                )
            lines += [b"0\r\n", *(b"%b: %b\r\n" % header for header in self.trailers), b"\r\n"]
        else:
            lines.append(body)
        return self.blank + b"".join(lines)

    @property
    def wanted(self) -> tuple[str, str, Headers, bytes]:
        offered = any(b"upgrade" in value.lower() for name, value in self.upgrade if name == b"connection")
        offered = offered and any(name == b"upgrade" and value for name, value in self.upgrade)
        head = tuple(header for header in self.head if header[0] != b"upgrade") if offered else self.head
        return self.method, self.path, head, self.body or b""


UPGRADES: list[Headers] = [
    (),
    ((b"connection", b"Upgrade, HTTP2-Settings"), (b"upgrade", b"h2c"), (b"http2-settings", b"AAMAAABk")),
    ((b"upgrade", b"websocket"), (b"connection", b"upgrade")),
    ((b"connection", b"keep-alive, Upgrade"), (b"upgrade", b"TLS/1.0, websocket")),
    ((b"connection", b"upgrade"), (b"upgrade", b"")),
    ((b"upgrade", b"h2c"),),
    (
        (b"connection", b"upgrade"),
        (b"upgrade", b"websocket"),
        (b"sec-websocket-key", b"dGhlIHNhbXBsZSBub25jZQ=="),
        (b"sec-websocket-version", b"13"),
    ),
]
TRAILERS: list[Headers] = [
    (),
    ((b"authorization", b"Bearer stolen"), (b"host", b"evil.example")),
    ((b"x-forwarded-for", b"::1"), (b"x-nothing", b""), (b"origin", b"http://localhost")),
    ((b"connection", b"upgrade"), (b"upgrade", b"h2c"), (b"expect", b"100-continue")),
]
bodies = st.one_of(
    st.none(),
    st.sampled_from([b"", SMUGGLED, b"\r\n" * 10 + SMUGGLED, b"0\r\n\r\n" + SMUGGLED]),
    st.binary(max_size=40),
)
requests = st.builds(
    Request,
    method=st.sampled_from(["POST", "GET", "OPTIONS", "DELETE"]),
    path=st.sampled_from(["/v1/chat/completions", "/v1/other"]),
    upgrade=st.sampled_from(UPGRADES),
    body=bodies,
    chunks=st.integers(0, 4),
    trailers=st.sampled_from(TRAILERS),
    expect=st.booleans(),
    blank=st.sampled_from([b"", b"\r\n", b"\r\n\r\n"]),
)


@given(st.lists(requests, min_size=1, max_size=4), st.lists(st.floats(0, 1), max_size=12), st.integers(0, 4))
@example([Request(upgrade=UPGRADES[1], body=SMUGGLED), Request(body=b"{}")], [], 0)
@example([Request(chunks=1, body=b"{}", trailers=TRAILERS[1]), Request(body=b"{}")], [], 0)
@settings(max_examples=200)
def test_upgrade_offers_bodies_and_trailers_frame_the_same_requests_however_they_are_cut(
    sent: list[Request], places: list[float], turns: int
) -> None:
    seen = received(cut(b"".join(one.wire for one in sent), places), turns)
    assert seen.requests == [one.wanted for one in sent]
    assert [status for status in seen.statuses if status != 100] == [200] * len(sent) and not seen.closed


@pytest.mark.parametrize("upgrade", UPGRADES[1:4])
@pytest.mark.parametrize("chunks", [0, 2])
def test_the_same_byte_by_byte(upgrade: Headers, chunks: int) -> None:
    sent = [
        Request(upgrade=upgrade, body=SMUGGLED, chunks=chunks, trailers=TRAILERS[1], expect=True),
        Request(path="/v1/next", body=b"next"),
    ]
    seen = received(one_by_one(b"".join(one.wire for one in sent)), 1)
    assert seen.requests == [one.wanted for one in sent]
    assert seen.statuses == [100, 200, 200] and not seen.closed


@pytest.mark.parametrize("turns", [0, 3])
@pytest.mark.parametrize("single", [False, True])
def test_nothing_after_a_connect_is_read_as_a_request(turns: int, single: bool) -> None:
    data = (
        b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com\r\nContent-Length: %d\r\n\r\n" % len(SMUGGLED)
        + SMUGGLED
    )
    seen = received(one_by_one(data) if single else [data], turns)
    assert seen.requests == [] and seen.statuses == [405] and seen.closed


@pytest.mark.parametrize("version", ["HTTP/1.0", "HTTP/1.1"])
def test_a_connection_that_is_to_close_is_closed_after_the_answer_also_where_an_upgrade_was_offered(
    version: str,
) -> None:
    for framing in ("Content-Length: 2\r\n\r\n{}", "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"):
        head = f"POST /v1/x {version}\r\nHost: localhost\r\nConnection: close, upgrade\r\nUpgrade: h2c\r\n"
        seen = received([(head + framing).encode() + SMUGGLED])
        assert (
            [request[1] for request in seen.requests] == ["/v1/x"] and seen.statuses == [200] and seen.closed
        )


def test_a_handshake_by_http_1_0_or_with_a_body_is_an_ordinary_request() -> None:
    lines = "Host: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    lines += "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    for data in (
        f"GET /v1/responses HTTP/1.0\r\n{lines}\r\n",
        f"GET /v1/responses HTTP/1.1\r\n{lines}Content-Length: 4\r\n\r\nabcd",
        f"GET /v1/responses HTTP/1.1\r\n{lines}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ):
        seen = received([data.encode()])
        assert [request[1] for request in seen.requests] == ["/v1/responses"] and seen.statuses == [200]


def test_a_response_that_is_out_is_not_followed_by_an_error_for_the_rest_of_its_body(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second answer could be taken for that of the next request."""

    async def early(self: Recorder, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    monkeypatch.setattr(Recorder, "__call__", early)
    seen = received(
        [b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", b"no chunk\r\n\r\n"]
    )
    assert seen.statuses == [200] and seen.closed


# --- limits on headers ---


def sized(size: int, before: bytes = b"", method: bytes = b"GET", more: bytes = b"") -> bytes:
    """Headers of exactly this many bytes."""
    head = before + method + b" /v1/x HTTP/1.1\r\nHost: localhost\r\n" + more + b"X-Pad: "
    return head + b"a" * (size - len(head) - 4) + b"\r\n\r\n"


FRONT = {
    "nothing": b"",
    "a body": Request(body=b"x" * 5000).wire,
    "chunks and trailers": Request(body=SMUGGLED, chunks=3, trailers=TRAILERS[1]).wire,
    "an upgrade": Request(body=SMUGGLED, upgrade=UPGRADES[1]).wire,
    "the largest head": sized(MAX_HEAD),
}


@pytest.mark.parametrize("front", FRONT)
@given(
    size=st.sampled_from([MAX_HEAD, MAX_HEAD + 1, MAX_HEAD + 300, 3 * MAX_HEAD]),
    places=st.lists(st.floats(0, 1), max_size=6),
    rest=st.booleans(),
)
@example(size=MAX_HEAD, places=[], rest=True)
@example(size=MAX_HEAD + 1, places=[], rest=True)
@settings(max_examples=25)
def test_a_head_has_64_kb_to_the_byte_however_it_is_cut(
    front: str, size: int, places: list[float], rest: bool
) -> None:
    body, before = SMUGGLED if rest else b"", FRONT[front]
    more = b"Content-Length: %d\r\n" % len(body) if rest else b""
    seen = received(cut(before + sized(size, b"\r\n", b"POST", more) + body, places), 6)
    if size <= MAX_HEAD:
        assert seen.statuses == [200] * (1 + bool(before)) == [200] * len(seen.requests) and not seen.closed
    else:  # While a request is being answered, there is no error answer, which could be taken for that one's.
        assert (
            seen.closed
            and seen.statuses in ([[200, 431], [200], []] if before else [[431]])
            and len(seen.requests) <= bool(before)
        )


@pytest.mark.parametrize("edge", range(6))
def test_a_head_that_is_cut_in_its_empty_line_is_counted_to_its_end(edge: int) -> None:
    head = sized(MAX_HEAD, b"", b"POST", b"Content-Length: 100000\r\n")
    data = head + b"\r\n" * 50_000
    seen = received([data[: len(head) - edge], data[len(head) - edge :]])
    assert seen.statuses == [200] and seen.requests[0][3] == b"\r\n" * 50_000


@pytest.mark.parametrize("edge", range(6))
def test_headers_after_chunks_split_in_their_last_line_are_counted_from_their_start(edge: int) -> None:
    first = Request(body=b"{}", chunks=1).wire
    for size, status in ((MAX_HEAD, 200), (MAX_HEAD + 1, 431)):
        data = first + sized(size)
        seen = received([data[: len(first) - edge], data[len(first) - edge :]], 6)
        assert seen.closed is (status == 431)
        assert seen.statuses == [200, 200] if status == 200 else len(seen.requests) == 1


@pytest.mark.parametrize("overhead", [b"X-Trailer: ", b"X: 1\r\n", b"1;extension="])
def test_trailers_and_other_overhead_of_chunks_are_bounded(overhead: bytes) -> None:
    head = b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"
    head += b"" if b"extension" in overhead else b"0\r\n"
    flood = overhead * (1 if overhead[-1:] != b"\n" else 2000) + b"a" * 8192
    seen = received([head, *([flood] * 9 if overhead[-1:] == b"\n" else [flood, *[b"a" * 8192] * 9])])
    assert seen.closed and seen.statuses == []


def test_a_body_in_one_byte_chunks_is_no_overhead() -> None:
    body = json.dumps({"text": "x" * 40_000}).encode()
    seen = received(cut(Request(body=body, chunks=len(body)).wire, [0.3, 0.7]))
    assert seen.requests[0][3] == body and seen.statuses == [200]


def test_a_line_of_upgrade_offers_is_bounded_like_any_other() -> None:
    offer = Request(upgrade=UPGRADES[1], body=b"{}").wire
    seen = received([offer * (protocol.MOST_PIPELINED + 2)], 0)
    assert seen.closed and seen.statuses == []


def test_a_body_full_of_empty_lines_is_not_dear_and_hides_no_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server splits its input at empty lines, to find where headers begin."""
    pieces = 0
    parse = GuardedProtocol._stops_at_upgrade

    def counted(self: GuardedProtocol, piece: bytes | memoryview) -> bool:
        nonlocal pieces
        pieces += 1
        return parse(self, piece)

    monkeypatch.setattr(GuardedProtocol, "_stops_at_upgrade", counted)
    body = b"\r\n" * 50_000
    seen = received([Request(body=body, chunks=1).wire])
    assert seen.requests[0][3] == body and pieces <= protocol.MOST_PIECES + 1
    pieces = 0
    seen = received([b"\r\n" * 30_000 + Request(body=b"{}").wire])
    assert seen.statuses == [200] and pieces <= 4
    assert received([b"\r\n" * 40_000]).statuses == [431]
    seen = received([Request(body=body, chunks=1).wire + sized(2 * MAX_HEAD)])
    assert seen.closed and seen.statuses == []

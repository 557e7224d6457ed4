"""Behind a real nginx or HAProxy, no trick with upgrades or bodies mixes up answers.

Both proxies share their connections to Toolwire among all clients.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from websockets.frames import Frame, Opcode

from doubles.clients import connected
from doubles.nodes import Server, _program, free_port, wait_for_port
from doubles.watched import Watched

CLIENTS, EACH = 25, 40
KEYS = ("sk-user-one-0001", "sk-user-two-0002")
OUTSIDE = "203.0.113.9"
MARK = re.compile(rb"mark-\d+-\d+")
MODELS = """
[store]
url = "sqlite://"
[models.echo]
backend = "scripted"
script = "say {user}"
"""
KEYED = f'[server]\nkeys = ["{KEYS[0]}", "{KEYS[1]}"]\ntrusted_proxies = ["127.0.0.1"]\n' + MODELS
KEYLESS = '[server]\ntrusted_proxies = ["127.0.0.1"]\n' + MODELS

NGINX = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log warn; {user}
events {{ worker_connections 512; }}
http {{
  access_log off; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  map $http_upgrade $connection_upgrade {{ default upgrade; '' ''; }}
  upstream keyed {{ server 127.0.0.1:{keyed}; keepalive 4; }}
  upstream keyless {{ server 127.0.0.1:{keyless}; keepalive 4; }}
  map $server_port $client {{ default $remote_addr; {outside} {address}; }}
  proxy_http_version 1.1; proxy_buffering off; client_body_buffer_size 256k;
  proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $connection_upgrade;
  proxy_set_header Host $http_host; proxy_set_header X-Forwarded-For $client;
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass http://keyed; }}
    location /unbuffered/ {{ proxy_request_buffering off; proxy_pass http://keyed/; }}
  }}
  server {{ listen 127.0.0.1:{outside}; location / {{ proxy_pass http://keyless; }} }}
}}
"""
HAPROXY = """
defaults
  mode http
  timeout connect 5s
  timeout client 30s
  timeout server 30s
  http-reuse always
frontend keyed
  bind 127.0.0.1:{port}
  option forwardfor
  http-request replace-path /unbuffered/(.*) /\\1
  default_backend keyed
frontend outside
  bind 127.0.0.1:{outside}
  http-request set-header X-Forwarded-For {address}
  default_backend keyless
backend keyed
  server one 127.0.0.1:{keyed} pool-max-conn 4
backend keyless
  server one 127.0.0.1:{keyless} pool-max-conn 4
"""


class Proxy(Server):
    """A running nginx or HAProxy.

    `port` leads to the server with keys. `outside` leads to the server without keys, and reports an external
    client.
    """

    def __init__(self, folder: Path, name: str, keyed: int, keyless: int) -> None:
        super().__init__()
        folder.mkdir()
        self.port, self.outside = free_port(), free_port()
        user = "user root;" if os.getuid() == 0 else ""
        text, flags = (
            (NGINX, ("-p", str(folder), "-e", f"{folder}/error.log", "-c"))
            if name == "nginx"
            else (HAPROXY, ("-db", "-f"))
        )
        filled = text.format(
            folder=folder,
            keyed=keyed,
            keyless=keyless,
            port=self.port,
            outside=self.outside,
            address=OUTSIDE,
            user=user,
        )
        (folder / "proxy.conf").write_text(filled)
        command = [str(_program(name)), *flags, str(folder / "proxy.conf")]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for_port(self.port, self.process)
        wait_for_port(self.outside, self.process)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Watched, Watched]]:
    folder = tmp_path_factory.mktemp("servers")
    with Watched(folder / "keyed", KEYED) as keyed, Watched(folder / "keyless", KEYLESS) as keyless:
        yield keyed, keyless


@pytest.fixture(params=["nginx", "haproxy"])
def proxy(
    request: pytest.FixtureRequest, tmp_path: Path, servers: tuple[Watched, Watched]
) -> Iterator[Proxy]:
    if _program(request.param) is None:
        pytest.skip(f"{request.param} is missing; make test installs it where it may")
    running = Proxy(tmp_path / "proxy", request.param, servers[0].port, servers[1].port)
    try:
        yield running
    finally:
        running.end()


# --- what clients send ---


@dataclass(frozen=True)
class Ask:
    """A request and its allowed statuses. Only a response with status 200 contains its mark."""

    wire: bytes
    statuses: tuple[int, ...]
    to_outside: bool = False


def body_of(mark: str) -> bytes:
    return json.dumps({"model": "echo", "messages": [{"role": "user", "content": mark}]}).encode()


def head_of(key: str, *more: str, method: str = "POST", path: str = "/v1/chat/completions") -> bytes:
    said = [
        f"{method} {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        *([f"Authorization: Bearer {key}"] if key else []),
    ]
    return "\r\n".join([*said, *more, "", ""]).encode()


def whole(
    key: str, body: bytes, *more: str, method: str = "POST", path: str = "/v1/chat/completions"
) -> bytes:
    return head_of(key, *more, f"Content-Length: {len(body)}", method=method, path=path) + body


def chunked(
    key: str, body: bytes, *more: str, trailers: tuple[str, ...] = (), path: str = "/v1/chat/completions"
) -> bytes:
    end = "".join(f"{line}\r\n" for line in trailers).encode()
    return head_of(key, *more, "Transfer-Encoding: chunked", path=path) + b"%x\r\n%b\r\n0\r\n%b\r\n" % (
        len(body),
        body,
        end,
    )


def offer(chance: random.Random) -> tuple[str, ...]:
    return chance.choice(
        [
            (
                "Connection: Upgrade, HTTP2-Settings",
                "Upgrade: h2c",
                "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA",
            ),
            (
                "Connection: upgrade",
                "Upgrade: websocket",
                "Sec-WebSocket-Version: 13",
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            ),
            ("Connection: Upgrade", "Upgrade: something/1"),
        ]
    )


def smuggled(mark: str, key: str) -> bytes:
    """Returns a complete hidden request. No client may get an answer with its mark."""
    return b"\r\n" * 3 + whole(key, body_of(mark.replace("mark-", "mark-9999")))


Make = Callable[[random.Random, str, str], Ask]
OTHER = {KEYS[0]: KEYS[1], KEYS[1]: KEYS[0]}
KINDS: dict[str, Make] = {
    "plain": lambda chance, key, mark: Ask(whole(key, body_of(mark)), (200,)),
    "chunked": lambda chance, key, mark: Ask(chunked(key, body_of(mark)), (200,)),
    "an offer": lambda chance, key, mark: Ask(whole(key, body_of(mark), *offer(chance)), (200,)),
    "an offer in chunks": lambda chance, key, mark: Ask(
        chunked(key, body_of(mark), *offer(chance), path="/unbuffered/v1/chat/completions"), (200,)
    ),
    "an offer that waits": lambda chance, key, mark: Ask(
        whole(key, body_of(mark), *offer(chance), "Expect: 100-continue"), (200,)
    ),
    "an offer with a request in it": lambda chance, key, mark: Ask(
        whole(key, smuggled(mark, key), *offer(chance)), (400,)
    ),
    "an offer with a request in chunks": lambda chance, key, mark: Ask(
        chunked(key, smuggled(mark, key), *offer(chance), path="/unbuffered/v1/chat/completions"), (400,)
    ),
    "an offer by GET with a request in it": lambda chance, key, mark: Ask(
        whole(key, smuggled(mark, key), *offer(chance), method="GET", path="/v1/responses"), (400, 405)
    ),
    "a key in a trailer": lambda chance, key, mark: Ask(
        chunked(
            "",
            body_of(mark),
            trailers=(f"Authorization: Bearer {key}",),
            path="/unbuffered/v1/chat/completions",
        ),
        (401,),
    ),
    "trailers that contradict": lambda chance, key, mark: Ask(
        chunked(
            key,
            body_of(mark),
            trailers=(
                f"Authorization: Bearer {OTHER[key]}",
                "Host: evil.example",
                "Origin: http://evil.example",
            ),
        ),
        (200,),
    ),
    "an offer with trailers": lambda chance, key, mark: Ask(
        chunked(
            "",
            body_of(mark),
            *offer(chance),
            trailers=(f"Authorization: Bearer {key}", "X-Forwarded-For: ::1"),
        ),
        (401,),
    ),
    "an address in a trailer": lambda chance, key, mark: Ask(
        chunked("", body_of(mark), trailers=("X-Forwarded-For: ::1", "Host: localhost")),
        (403,),
        to_outside=True,
    ),
}


async def read(reader: asyncio.StreamReader) -> tuple[int, bytes, bytes]:
    """Returns status, head and body of a response. Skips a 100 (Continue)."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    while b" 100 " in head.partition(b"\r\n")[0]:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
    body = b""
    if b"transfer-encoding: chunked" in head:
        while size := int((await reader.readline()).strip(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    elif b"content-length:" in head:
        body = await reader.readexactly(int(head.partition(b"content-length:")[2].split(b"\r\n")[0]))
    return int(head.split(b" ", 2)[1]), head, body


class Unanswered(Exception):
    """Raised if the connection is closed before the first byte of the response."""


class Client:
    """Sends many requests over a few connections.

    `wrong` collects responses that belong to another request or have an unexpected status.
    """

    def __init__(self, proxy: Proxy, number: int) -> None:
        self._proxy, self._number = proxy, number
        self._chance = random.Random(number)
        self._key = KEYS[number % 2]
        self.wrong: list[str] = []
        self.got: Counter[str] = Counter()

    async def run(self) -> None:
        asks = [
            (kind, f"mark-{self._number}-{place}")
            for place, kind in enumerate(self._chance.choices(list(KINDS), k=EACH))
        ]
        made = [(kind, mark, KINDS[kind](self._chance, self._key, mark)) for kind, mark in asks]
        for to_outside in (False, True):
            left = [one for one in made if one[2].to_outside is to_outside]
            while left:
                async with connected(self._proxy.outside if to_outside else self._proxy.port) as (
                    reader,
                    writer,
                ):
                    goes_on, used = True, False
                    while left and goes_on:
                        one = left.pop()
                        try:
                            goes_on = await self._ask(reader, writer, *one)
                        except Unanswered as error:
                            goes_on = False
                            # A proxy may close an idle connection at any time. nginx does so if it has
                            # responded before the whole body arrived.
                            if used:
                                left.append(one)
                            else:
                                self.wrong.append(f"{one[0]}: {error!r}")
                        used = True

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kind: str, mark: str, ask: Ask
    ) -> bool:
        """Sends a request and returns whether the connection stays open.

        Raises `Unanswered` if it is closed before the response.
        """
        places = sorted(self._chance.randrange(len(ask.wire)) for _ in range(self._chance.randrange(3)))
        for start, end in zip([0, *places], [*places, len(ask.wire)], strict=True):
            writer.write(ask.wire[start:end])
            await asyncio.sleep(0)
        try:
            status, head, body = await read(reader)
        except (OSError, asyncio.IncompleteReadError) as error:
            if not getattr(error, "partial", b""):
                raise Unanswered from error
            self.wrong.append(f"{kind}: {error!r}")
            return False
        self.got[f"{kind}: {status}"] += 1
        if status not in ask.statuses or set(MARK.findall(body)) != (
            {mark.encode()} if status == 200 else set()
        ):
            self.wrong.append(f"{kind} {mark}: {status} {body[:300]!r}")
        return b"connection: close" not in head


async def test_a_thousand_requests_with_tricks_mix_no_answers(
    proxy: Proxy, servers: tuple[Watched, Watched]
) -> None:
    clients = [Client(proxy, number) for number in range(CLIENTS)]
    async with asyncio.timeout(60):
        await asyncio.gather(*(client.run() for client in clients))
    assert [wrong for client in clients for wrong in client.wrong] == []
    got = sum((client.got for client in clients), Counter[str]())
    assert got.total() == CLIENTS * EACH == 1000 and {kind.partition(":")[0] for kind in got} == set(KINDS)
    assert "Traceback" not in servers[0].logged() + servers[1].logged()


async def test_a_real_websocket_passes_through(proxy: Proxy) -> None:
    async with connected(proxy.port) as (reader, writer), asyncio.timeout(20):
        key = base64.b64encode(os.urandom(16)).decode()
        lines = (
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            f"Sec-WebSocket-Key: {key}",
        )
        writer.write(head_of(KEYS[0], *lines, method="GET", path="/v1/responses"))
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        message = json.dumps({"type": "response.create", "model": "echo", "input": "mark-1-1"}).encode()
        writer.write(Frame(Opcode.TEXT, message).serialize(mask=True))
        assert b"mark-1-1" in await reader.readuntil(b"response.completed")

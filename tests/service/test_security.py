"""Security of the service: TLS, proxies, URLs, child processes, secrets, dependencies."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from email.message import Message as Headers
from pathlib import Path
from types import ModuleType
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from toolwire.access.gate import Gate, Proxies
from toolwire.backends.acp.process import launch
from toolwire.backends.acp.profiles import PROFILES, AcpOptions
from toolwire.backends.agents.processes import Child
from toolwire.backends.codex.home import environment as codex_environment
from toolwire.backends.codex.options import CodexOptions
from toolwire.backends.cursor.bridge import BridgeHome
from toolwire.core.errors import ToolwireError
from toolwire.core.turn import ImagePart, Message, OtherPart, Turn
from toolwire.gateway.images import ImageFetcher, ImageLimits, checked, is_public
from toolwire.gateway.pipeline import Gateway
from toolwire.observe.journal import Journal
from toolwire.observe.journal_files import Segments, TurnRecord
from toolwire.observe.masking import secrets_among, secrets_of
from toolwire.settings.types import (
    ConfigError,
    JournalSettings,
    ModelSettings,
    ServerSettings,
    Settings,
    StoreSettings,
    TelemetrySettings,
)
from toolwire.store.store import Store
from toolwire.surfaces.http.server import tls_files
from toolwire.testing import ScriptedBackend, ScriptedOptions

ROOT = Path(__file__).resolve().parents[2]
OnASocket = Callable[..., AbstractAsyncContextManager[str]]
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        yield session


@contextmanager
def serving(folder: Path, settings: str, *words: str, **environment: str) -> Iterator[tuple[str, Path]]:
    """Runs `toolwire serve` with these settings. Yields its address and its log file."""
    (folder / "toolwire.toml").write_text(settings)
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TOOLWIRE_", "PROXY_")) and name != "PORT"
    }
    log = folder / "log.txt"
    command = [sys.executable, "-m", "toolwire", "serve", "--config", "toolwire.toml", "--port", "0", *words]
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**inherited, "HOME": str(folder), **environment},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    assert process.stdout is not None
    try:
        said = process.stdout.readline()
        assert said.startswith("listening on"), log.read_text()
        yield said.split()[-1].removesuffix("/v1"), log
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        process.stdout.close()


def run_serve(folder: Path, settings: str, *words: str) -> tuple[int, str]:
    """Runs a `toolwire serve` that cannot start. Returns its exit status and its output."""
    (folder / "toolwire.toml").write_text(settings)
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TOOLWIRE_", "PROXY_")) and name != "PORT"
    }
    command = [sys.executable, "-m", "toolwire", "serve", "--config", "toolwire.toml", "--port", "0", *words]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**inherited, "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


# --- TLS ---


async def test_with_a_certificate_the_server_speaks_tls_and_cookies_are_secure(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    trusting = ssl.create_default_context(cafile=str(certificate[0]))
    settings = f'[server]\ntls_cert = "{certificate[0]}"\ntls_key = "{certificate[1]}"\n'
    settings += '[store]\nurl = "sqlite://"\n[models.m]\nbackend = "scripted"\n'
    with serving(tmp_path, settings) as (url, log):
        assert url.startswith("https://127.0.0.1:")
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting)) as client:
            async with client.post(f"{url}/v1/chat/completions", json={**CHAT, "stream": True}) as answer:
                assert answer.status == 200 and (await answer.read()).rstrip().endswith(b"data: [DONE]")
            link = next(word for word in log.read_text().split() if "/ui/enter?token=" in word)
            assert link.startswith("https://")
            async with client.get(link, allow_redirects=False) as answer:
                assert answer.status == 303 and "; Secure" in answer.headers["set-cookie"]
        async with aiohttp.ClientSession() as plain:
            with pytest.raises(aiohttp.ClientError):
                await plain.get(url.replace("https://", "http://"))
        old = ssl.create_default_context(cafile=str(certificate[0]))
        old.check_hostname = False
        with pytest.warns(DeprecationWarning):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with (
            socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 10) as bare,
            pytest.raises((ssl.SSLError, OSError)),
        ):
            old.wrap_socket(bare, server_hostname="localhost")


def test_invalid_certificate_files_prevent_the_start_with_a_one_line_error(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    cert, key = map(str, certificate)
    with pytest.raises(ConfigError, match="TLS needs both"):
        tls_files(ServerSettings(tls_cert=cert))
    with pytest.raises(ConfigError, match="cannot be read"):
        tls_files(ServerSettings(tls_cert=cert, tls_key="/nowhere"))
    with pytest.raises(ConfigError, match="are not a certificate and its key"):
        tls_files(ServerSettings(tls_cert=key, tls_key=cert))
    locked = tmp_path / "locked.pem"
    words = ["ec", "-aes128", "-passout", "pass:hidden", "-in", key, "-out", str(locked)]
    subprocess.run([str(shutil.which("openssl")), *words], check=True, capture_output=True)
    with pytest.raises(ConfigError, match="has a password"):
        tls_files(ServerSettings(tls_cert=cert, tls_key=str(locked)))
    assert tls_files(ServerSettings()) is None and tls_files(ServerSettings(tls_cert=cert, tls_key=key)) == (
        cert,
        key,
    )


# --- behind a proxy ---


def scope_of(peer: str, **headers: str) -> tuple[dict[str, Any], dict[bytes, bytes]]:
    pairs = [
        (name.replace("_", "-").encode(), value.encode())
        for name, value in {"host": "inside:8788", **headers}.items()
    ]
    return {"type": "http", "scheme": "http", "client": (peer, 1234), "headers": pairs}, dict(pairs)


SAID = {
    "x_forwarded_for": "203.0.113.9",
    "x_forwarded_proto": "https",
    "x_forwarded_host": "toolwire.example.com",
}


def test_only_a_trusted_proxy_is_believed() -> None:
    proxies = Proxies(("10.0.0.0/8", "::1"))
    for peer in ("10.1.2.3", "::1", "::ffff:10.1.2.3"):
        scope, headers = scope_of(peer, **SAID)
        seen = proxies.seen(scope, headers)
        assert (seen["client"], seen["scheme"], dict(seen["headers"])[b"host"]) == (
            ("203.0.113.9", 0),
            "https",
            b"toolwire.example.com",
        )
        assert headers[b"host"] == b"toolwire.example.com" and b"x-forwarded-for" not in headers
    for peer in ("11.0.0.1", "127.0.0.1", "::2"):
        scope, headers = scope_of(peer, **SAID)
        assert proxies.seen(scope, headers) is scope and headers[b"host"] == b"inside:8788"


@pytest.mark.parametrize(
    ("chain", "client"),
    [
        # The client itself may have written the first address; the proxy adds the last one.
        ("127.0.0.1, 203.0.113.9", "203.0.113.9"),
        ("203.0.113.9, 10.0.0.7", "203.0.113.9"),
        ("203.0.113.9:5555", "203.0.113.9"),
        ("[2001:db8::1]:5555", "2001:db8::1"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("127.0.0.1, unknown", ""),
        ("10.0.0.7", ""),
        ("", ""),
    ],
)
def test_the_last_address_of_a_chain_that_is_not_a_trusted_proxy_counts(chain: str, client: str) -> None:
    scope, headers = scope_of("10.0.0.1", x_forwarded_for=chain)
    assert Proxies(("10.0.0.0/8",)).seen(scope, headers)["client"][0] == client


@pytest.mark.parametrize(
    "said",
    [{"x_forwarded_proto": "javascript"}, {"x_forwarded_host": "evil/../x"}, {"x_forwarded_host": "a b"}],
)
def test_invalid_headers_of_a_proxy_are_ignored(said: dict[str, str]) -> None:
    scope, headers = scope_of("10.0.0.1", x_forwarded_for="203.0.113.9", **said)
    seen = Proxies(("10.0.0.1",)).seen(scope, headers)
    assert seen["scheme"] == "http" and headers[b"host"] == b"inside:8788"


def test_an_invalid_network_prevents_the_start() -> None:
    with pytest.raises(ConfigError, match=r"server\.trusted_proxies"):
        Proxies(("proxy.example.com",))


SIGNS = [
    *(
        b"x-forwarded-for",
        b"x-forwarded-proto",
        b"x-forwarded-host",
        b"x-forwarded-port",
        b"x-forwarded-prefix",
        b"x-forwarded-client-cert",
    ),
    *(
        b"forwarded",
        b"via",
        b"x-real-ip",
        b"x-client-ip",
        b"true-client-ip",
        b"cf-connecting-ip",
        b"cf-ray",
        b"x-original-forwarded-for",
    ),
    *(
        b"x-envoy-external-address",
        b"x-envoy-expected-rq-timeout-ms",
        b"x-cluster-client-ip",
        b"fastly-client-ip",
        b"x-azure-clientip",
    ),
]


def test_a_local_client_of_a_trusted_proxy_is_served_with_any_proxy_header() -> None:
    gate, proxies = Gate(ServerSettings()), Proxies(("127.0.0.1",))
    scope, headers = scope_of(
        "127.0.0.1", **{sign.decode(): "127.0.0.1" for sign in SIGNS}, x_forwarded_for="::1"
    )
    seen = proxies.seen(scope, headers)
    assert gate.identify(headers, seen["client"]).key_id == "" and not set(SIGNS) & set(headers)


def test_without_keys_requests_through_an_untrusted_proxy_are_refused() -> None:
    gate = Gate(ServerSettings())
    assert gate.identify({}, ("127.0.0.1", 1)).key_id == ""
    for sign in SIGNS:
        with pytest.raises(ToolwireError, match="proxy"):
            gate.identify({b"host": b"localhost", sign: b"127.0.0.1"}, ("127.0.0.1", 1))
    for own in (
        b"x-request-id",
        b"x-client-request-id",
        b"x-stainless-lang",
        b"x-proxy-output-mode",
        b"traceparent",
        b"connection",
        b"cookie",
    ):
        assert gate.identify({own: b"1"}, ("127.0.0.1", 1)).key_id == ""
    for real in ("203.0.113.9", ""):  # the client's address as a trusted proxy reports it, or none
        with pytest.raises(ToolwireError, match="only clients on the same machine"):
            gate.identify({}, (real, 0))


def scripted(settings: Settings) -> Gateway:
    return Gateway(settings, backends={"m": ScriptedBackend("m", ScriptedOptions(script="say hi"))})


@pytest.mark.parametrize("trusted", [True, False])
async def test_sessions_behind_a_trusted_proxy_have_secure_cookies(
    on_a_socket: OnASocket, client: aiohttp.ClientSession, trusted: bool
) -> None:
    server = ServerSettings(
        admin_keys=("admin",),
        hosts=("toolwire.example.com",),
        trusted_proxies=("127.0.0.1",) if trusted else (),
    )
    settings = Settings(server=server, models=(ModelSettings("m", "scripted"),))
    said = {name.replace("_", "-"): value for name, value in SAID.items()}
    async with on_a_socket(scripted(settings), settings, Store("sqlite://")) as url:
        async with client.post(f"{url}/ui/api/session", json={"key": "admin"}, headers=said) as answer:
            assert answer.status == 200
            cookie = answer.headers["set-cookie"]
        assert ("; Secure" in cookie) is trusted and cookie.startswith("toolwire_443=") is trusted
        origin = {"origin": "https://toolwire.example.com"}  # the address of the pages as the browser sees it
        async with client.post(
            f"{url}/ui/api/session", json={"key": "admin"}, headers={**said, **origin}
        ) as answer:
            assert answer.status == (200 if trusted else 403)


async def test_a_key_for_some_models_cannot_read_the_metrics_of_all(
    on_a_socket: OnASocket, client: aiohttp.ClientSession
) -> None:
    from toolwire.access.keys import KeyRecords

    store = Store("sqlite://")
    (_, some), (_, every) = [
        await KeyRecords(store).add(name, {"models": models}, {})
        for name, models in (("some", ["n*"]), ("every", ["*"]))
    ]
    settings = Settings(models=(ModelSettings("m", "scripted"),))
    async with on_a_socket(scripted(settings), settings, store) as url:
        for key, status in ((some, 403), (every, 200)):
            async with client.get(f"{url}/metrics", headers={"authorization": f"Bearer {key}"}) as answer:
                assert answer.status == status


async def test_names_that_a_client_invents_create_no_metric_series(
    on_a_socket: OnASocket, client: aiohttp.ClientSession
) -> None:
    settings = Settings(models=(ModelSettings("m", "scripted"),))
    async with on_a_socket(scripted(settings), settings, Store("sqlite://")) as url:

        async def series() -> list[str]:
            async with client.get(f"{url}/metrics") as answer:
                return sorted(
                    line.rpartition(" ")[0]
                    for line in (await answer.text()).splitlines()
                    if line and not line.startswith("#")
                )

        async def provoke(word: str) -> None:
            tools = [{"type": "function", "function": {"name": word, "parameters": {}}}]
            for body in ({**CHAT, "model": word}, {**CHAT, "tools": tools, "user": word}, {**CHAT, word: 1}):
                async with client.post(
                    f"{url}/v1/chat/completions",
                    json=body,
                    headers={"x-request-id": word, "user-agent": word},
                ):
                    pass
            async with client.get(f"{url}/{word}"):
                pass

        await provoke("first")
        before = await series()
        for number in range(20):
            await provoke(f"invented{number}")
        assert await series() == before and not any("invented" in line for line in before)


# --- URLs in requests ---


@pytest.mark.parametrize(
    "address",
    "169.254.169.254 fd00:ec2::254 100.100.100.200 168.63.129.16 192.0.0.192 ::ffff:169.254.169.254 "
    "64:ff9b::a9fe:a9fe ::127.0.0.1 2002:a9fe:a9fe:: "
    "::ffff:0:127.0.0.1 fec0::1 2001:db8::1".split(),
)
def test_metadata_and_tunnelled_addresses_are_not_public(address: str) -> None:
    assert not is_public(address)


INSIDE = (
    "http://127.0.0.1/x http://2130706433/x http://0177.0.0.1/x http://0x7f000001/x http://127.1/x "
    "http://[::1]/x http://[::ffff:127.0.0.1]/x "
    "http://[::ffff:7f00:1]/x http://localhost/x http://a.localhost/x http://LOCALHOST./x "
    "http://169.254.169.254/latest/meta-data "
    "http://metadata.google.internal/x http://redis/x http://printer.local/x http://10.0.0.1:6379/x "
    "http://\u2460\u2461\u2466.0.0.1/x"
).split()


@pytest.mark.parametrize("url", INSIDE)
async def test_an_internal_url_is_neither_fetched_nor_passed_on(url: str) -> None:
    with pytest.raises(ToolwireError, match=r"not a public address|only plain http"):
        await ImageFetcher().fetch(url)
    parts: tuple[Any, ...] = (
        ImagePart(url),
        OtherPart("input_file", {"type": "input_file", "file_url": url}),
    )
    parts += (OtherPart("video_url", {"type": "video_url", "video_url": {"url": url}}),)
    for part in parts:
        with pytest.raises(ToolwireError, match="not a public address"):
            checked(Turn("chat", "m", (Message("user", (part,)),)))


def test_public_urls_and_data_are_passed_on_unchanged() -> None:
    parts: tuple[Any, ...] = (
        ImagePart("https://example.com/a.png"),
        ImagePart("data:image/png;base64,AA"),
        ImagePart(None, None, "file-1"),
    )
    parts += (
        OtherPart("input_file", {"file_url": "https://93.184.216.34/a.pdf", "filename": "http://127.0.0.1/"}),
    )
    turn = Turn("chat", "m", (Message("user", parts),))
    assert checked(turn) is turn


@pytest.mark.parametrize(
    "trick",
    [
        "http://93.184.216.34\\@127.0.0.1:{port}/x",
        "http://93.184.216.34#@127.0.0.1:{port}/x",
        "http://127.0.0.1:{port}\\@a.com",
    ],
)
async def test_an_ambiguous_url_is_never_connected_to(trick: str) -> None:
    touched = []

    async def touch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        touched.append(1)
        writer.close()

    async with await asyncio.start_server(touch, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        with pytest.raises(ToolwireError):
            await ImageFetcher(ImageLimits(timeout_s=0.3)).fetch(trick.format(port=port))
    assert not touched


async def test_a_host_name_is_resolved_only_once_so_it_cannot_change_after_the_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, asked = asyncio.get_running_loop(), []

    async def rebinding(host: str, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        address = "192.0.2.1" if len(asked) == 1 else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0))]

    connected = []

    async def connect(sock: socket.socket, address: Any) -> None:
        connected.append(address[0])
        raise ConnectionRefusedError

    monkeypatch.setattr(loop, "getaddrinfo", rebinding)
    monkeypatch.setattr(loop, "sock_connect", connect)
    with pytest.raises(ToolwireError, match="cannot be reached"):
        await ImageFetcher(allowed=lambda address: address == "192.0.2.1").fetch(
            "http://rebinding.example/x.png"
        )
    assert asked == ["rebinding.example"] and connected == ["192.0.2.1"]


async def test_an_endless_or_compressed_response_is_an_error() -> None:
    import gzip

    async def serve(request: web.Request) -> web.StreamResponse:
        if request.path == "/bomb":
            return web.Response(
                body=gzip.compress(b"\x89PNG" + b"\0" * 10_000_000),
                headers={"content-encoding": "gzip"},
                content_type="image/png",
            )
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"\0")
            await asyncio.sleep(0.02)

    app = web.Application()
    app.router.add_get("/{name}", serve)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    fetcher = ImageFetcher(ImageLimits(timeout_s=0.2), allowed=lambda address: True)
    for name in ("endless", "bomb"):
        with pytest.raises(ToolwireError) as caught:
            await fetcher.inline(Turn("chat", "m", (Message("user", (ImagePart(f"{url}/{name}"),)),)))
        assert caught.value.failure.code == "invalid_image_url"
    await runner.cleanup()


async def test_servers_named_in_hosted_tools_are_never_contacted(
    on_a_socket: OnASocket, client: aiohttp.ClientSession
) -> None:
    touched = []

    async def touch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        touched.append(1)
        writer.close()

    settings = Settings(models=(ModelSettings("m", "scripted"),))
    async with (
        await asyncio.start_server(touch, "127.0.0.1", 0) as listener,
        on_a_socket(scripted(settings), settings) as url,
    ):
        tool = {
            "type": "mcp",
            "server_label": "x",
            "server_url": f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/mcp",
        }
        async with client.post(
            f"{url}/v1/responses", json={"model": "m", "input": "x", "tools": [tool]}
        ) as answer:
            assert answer.status == 200 and "mcp" in answer.headers["x-toolwire-report"]
    assert not touched


# --- child processes ---

OURS = {
    "TOOLWIRE_API_KEY": "canary-toolwire",
    "TOOLWIRE_NODE_SECRET": "canary-node",
    "TOOLWIRE_DATABASE": "postgresql://u:canary-store@db/x",
    "ANTHROPIC_API_KEY": "canary-anthropic",
    "OPENAI_API_KEY": "canary-openai",
    "CURSOR_API_KEY": "canary-cursor",
    "AWS_SECRET_ACCESS_KEY": "canary-aws",
    "PGPASSWORD": "canary-pg",
}


def test_child_processes_do_not_inherit_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in OURS.items():
        monkeypatch.setenv(name, value)
    cursor = BridgeHome()
    try:
        seen = {
            "codex": codex_environment(CodexOptions(), tmp_path),
            "cursor": cursor.environment(os.environ),
            **{
                f"acp:{name}": dict(
                    launch(AcpOptions(command=("agent",)), profile, "agent", "/h", "/t", os.environ).env
                )
                for name, profile in PROFILES.items()
            },
        }
    finally:
        cursor.remove()
    for child, environment in seen.items():
        assert "canary" not in json.dumps(environment), child
        assert environment["PATH"] == os.environ["PATH"], child


def test_codex_with_its_own_provider_inherits_only_that_providers_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in OURS.items():
        monkeypatch.setenv(name, value)
    seen = codex_environment(
        CodexOptions(provider={"name": "x", "base_url": "https://x/v1", "env_key": "OPENAI_API_KEY"}),
        tmp_path,
    )
    assert [value for value in seen.values() if "canary" in value] == ["canary-openai"]


async def test_a_child_process_inherits_only_the_given_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOOLWIRE_API_KEY", "canary")
    out = tmp_path / "seen"
    child = Child("sh")
    await child._spawn("/bin/sh", "-c", f"env > {out}", env={"ONLY": "this"})
    await asyncio.wait_for(child.gone.wait(), 10)
    await child.end()
    assert "ONLY=this" in out.read_text() and "canary" not in out.read_text()


# --- secrets ---


def test_the_mask_knows_every_secret_of_the_settings_and_of_the_environment() -> None:
    options = {
        "api_key": "in-api-key",
        "headers": {"x-team": "in-headers"},
        "env": {"SOME_API_KEY": "in-env-table", "PLAIN": "not secret"},
        "base_url": "http://u:in-base-url@upstream/v1",
        "note": "not secret",
    }
    settings = Settings(
        server=ServerSettings(keys=("in-keys",), admin_keys=("in-admin-keys",), node_secret="in-node-secret"),
        store=StoreSettings("postgresql://u:in%2Dstore@db/x?password=in-query", "redis://:in-redis@r/0"),
        telemetry=TelemetrySettings("http://u:in-otlp@c:4318"),
        models=(ModelSettings("m", "acp", options),),
    )
    known = set(secrets_of(settings))
    wanted = (
        "in-keys in-admin-keys in-node-secret in%2Dstore in-store in-query in-redis in-otlp in-api-key "
        "in-headers in-env-table in-base-url"
    )
    assert set(wanted.split()) == known
    environ = {
        "X_API_KEY": "long-enough",
        "Y_TOKEN": "true",
        "PGPASSWORD": "12345678",
        "PATH": "/bin",
        "DB": "redis://:password1@x",
    }
    assert set(secrets_among(environ)) == {"long-enough", "12345678", "password1"}


@pytest.mark.parametrize(
    "settings",
    [
        '[store]\nurl = "postgresql://u:canary-store@127.0.0.1:9/x"\n',
        '[store]\nurl = "postgresql://u:canary-store@[bad/x"\n',
        '[store]\nredis = "redis://:canary-redis@127.0.0.1:notaport/0"\n',
        '[store]\nredis = "ftp://:canary-redis@127.0.0.1/0"\n',
        '[server]\nhost = "0.0.0.0"\nkeys = "canary-key"\n',
        '[server]\nnode_secret = ["canary-secret"]\n',
        '[telemetry]\notlp = "ftp://u:canary-otlp@c"\n',
    ],
)
def test_errors_about_settings_do_not_show_secrets(tmp_path: Path, settings: str) -> None:
    quiet = "" if "[store]" in settings else '[store]\nurl = "sqlite://"\n'
    status, said = run_serve(tmp_path, quiet + settings)
    assert status != 0 and said.strip() and "canary" not in said, said


@pytest.mark.parametrize(
    "model",
    [
        'base_url = "http://127.0.0.1:9/v1"\napi_key = ["canary-api"]\n',
        'base_url = "http://u:canary-url@127.0.0.1:9/v1"\nbogus = 1\n',
    ],
)
async def test_the_reason_of_an_unavailable_model_does_not_show_secrets(tmp_path: Path, model: str) -> None:
    settings = '[store]\nurl = "sqlite://"\n[models.good]\nbackend = "scripted"\n'
    settings += f'[models.bad]\nbackend = "openai"\nmodel = "x"\n{model}'
    body = {"model": "bad", "messages": [{"role": "user", "content": "Hi"}]}
    with serving(tmp_path, settings) as (url, log):
        async with aiohttp.ClientSession() as client:
            async with client.post(f"{url}/v1/chat/completions", json=body) as answer:
                said = await answer.text()
                assert answer.status >= 400
            async with client.post(f"{url}/v1/chat/completions", json={**body, "model": "good"}) as answer:
                assert answer.status == 200
    assert "model bad is not available" in log.read_text()
    assert "canary" not in said + log.read_text()


CANARIES = {
    "keys": "canary-client-key-111111",
    "admin_keys": "canary-admin-key-222222",
    "node_secret": "canary-node-secret-333333",
    "redis": "canary-redis-password-444444",
    "otlp": "canary-otlp-password-555555",
    "api_key": "canary-upstream-key-666666",
    "header": "canary-upstream-header-777777",
    "stored": "",  # set by the test
    "environment": "canary-environment-888888",
}


async def echoing(request: web.Request) -> web.StreamResponse:
    """An upstream that repeats its request headers in errors and answers."""
    headers = json.dumps(dict(request.headers))
    asked = await request.json()
    if asked["model"] == "fails":
        return web.json_response(
            {"error": {"message": f"bad request: {headers}", "type": "invalid_request_error"}}, status=400
        )
    if asked["model"] == "breaks":
        return web.Response(status=500, text=headers)
    message = {"role": "assistant", "content": headers}
    return web.json_response(
        {
            "id": "x",
            "object": "chat.completion",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        }
    )


async def test_no_secret_of_any_setting_reaches_log_journal_errors_or_metrics(
    tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", echoing)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    upstream = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    store = Store(f"sqlite:///{tmp_path}/state/toolwire.db")
    from toolwire.access.keys import KeyRecords

    stored = (await KeyRecords(store).add("laptop", {"models": ["*"]}, {}))[1]
    await store.close()
    canaries = {**CANARIES, "stored": stored}
    models = "".join(
        f'[models.{name}]\nbackend = "openai"\nbase_url = "{upstream}"\nmodel = "{name}"\n'
        'profile = "generic"\napi_key = "env:UPSTREAM"\n'
        f'headers = {{ x-team = "{canaries["header"]}" }}\n'
        for name in ("fails", "breaks", "tells")
    )
    settings = f"""
[server]
keys = ["{canaries["keys"]}"]
admin_keys = ["{canaries["admin_keys"]}"]
node_secret = "{canaries["node_secret"]}"
[store]
url = "sqlite:///{tmp_path}/state/toolwire.db"
redis = "redis://:{canaries["redis"]}@127.0.0.1:9/0"
[journal]
contents = "disk"
[telemetry]
otlp = "http://u:{canaries["otlp"]}@127.0.0.1:9"
with_contents = true
{models}"""
    errors = []
    environment = {"UPSTREAM": canaries["api_key"], "SOME_API_KEY": canaries["environment"]}
    with serving(tmp_path, settings, "--log-level", "debug", "--log-format", "json", **environment) as (
        url,
        log,
    ):
        asked = f"my keys are {' and '.join(canaries.values())}"
        for key in (canaries["keys"], canaries["admin_keys"], stored, "canary-wrong-key-999999"):
            headers = {"authorization": f"Bearer {key}"}
            for model in ("fails", "breaks", "tells", "nobody"):
                for body in (
                    {"model": model, "messages": [{"role": "user", "content": asked}]},
                    {"model": model, "messages": [{"role": "user", "content": asked}], "stream": True},
                    {"model": model, "messages": asked},
                ):
                    async with client.post(
                        f"{url}/v1/chat/completions", json=body, headers=headers
                    ) as answer:
                        said = await answer.text()
                    if answer.status != 200 or model in ("fails", "breaks"):
                        errors.append(said)
        async with client.get(
            f"{url}/metrics", headers={"authorization": f"Bearer {canaries['keys']}"}
        ) as answer:
            errors.append(await answer.text())
        async with client.get(
            f"{url}/v1/responses/{stored}?key={stored}", headers={"authorization": f"Bearer {stored}"}
        ) as answer:
            assert answer.status == 404
    await runner.cleanup()
    lines = log.read_text()
    assert '"event":"turn"' in lines and '"event":"contents"' in lines  # the log was verbose
    fixtures = list((tmp_path / "state" / "journal").rglob("turn_*.jsonl"))
    assert len(fixtures) >= 12
    journal = "".join(path.read_text() for path in (tmp_path / "state" / "journal").rglob("*.jsonl"))
    database = b"".join(path.read_bytes() for path in (tmp_path / "state").glob("toolwire.db*"))
    for name, secret in {**canaries, "wrong": "canary-wrong-key-999999"}.items():
        for place, text in (("errors", "\n".join(errors)), ("log", lines), ("journal", journal)):
            if name == "wrong" and place == "journal":
                continue  # it is no known key, so the journal does not mask it, and no turn contains it
            assert secret not in text, (
                f"{name} is in the {place}: …{text[max(0, text.find(secret) - 300) : text.find(secret) + 60]}"
            )
        assert secret.encode() not in database or name not in ("keys", "admin_keys", "node_secret", "stored")


# --- age limits of the journal ---


def test_old_turns_are_deleted_from_the_journal_files(tmp_path: Path) -> None:
    now = time.time()
    moment = [now - 10 * 86400]
    segments = Segments(tmp_path, 10_000_000, max_days=3, clock=lambda: moment[0])
    for day in range(11):
        moment[0] = now - (10 - day) * 86400
        segments.append([TurnRecord(f"turn_{day:02x}", moment[0])])
        segments.keep(f"turn_{day:02x}", ["{}\n"])
        for path in tmp_path.rglob("*.jsonl"):
            if path.stat().st_mtime > now - 5:  # a new file: set its time to the simulated time
                os.utime(path, (moment[0], moment[0]))
    segments.sweep()
    assert [record.id for record in segments.load(100)] == [f"turn_{day:02x}" for day in (7, 8, 9, 10)]
    assert sorted(path.stem for path in (tmp_path / "turns").iterdir()) == [
        f"turn_{day:02x}" for day in (7, 8, 9, 10)
    ]
    # There is one segment per day, so that old lines are deleted even if few turns are made.
    assert len(list(tmp_path.glob("segment-*"))) == 4


async def test_old_turns_are_deleted_from_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(Settings(journal=JournalSettings(max_days=1)), None)
    gateway = Gateway(
        Settings(models=(ModelSettings("m", "scripted"),)),
        backends={"m": ScriptedBackend("m", ScriptedOptions(script="say hi"))},
    )
    gateway.journal = journal
    from toolwire.gateway.pipeline import Caller

    await gateway.respond("chat", json.dumps(CHAT).encode(), Caller())
    assert len(journal.records()) == 1 and journal.held_bytes > 0
    later = time.time() + 2 * 86400
    monkeypatch.setattr("toolwire.observe.journal.time.time", lambda: later)
    assert journal.records() == [] and journal.held_bytes == 0
    await gateway.close()


# --- dependencies ---


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", ROOT / "lint" / "audit.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_audit_finds_unbounded_ranges_and_loose_pins(audit: ModuleType) -> None:
    project = {
        "dependencies": ["a>=1,<2", "b>=1", "c<2", "d", "e~=1.4", "f[x]>=1,<2; sys_platform != 'win32'"],
        "optional-dependencies": {
            "extra": ["g"],
            "test": ["h>=1", "pytest==0.0.1", "not-installed-anywhere==1"],
        },
    }
    assert [line.split(" ")[1] for line in audit.ranges(project)] == ["b", "c", "d", "d", "g", "g"]
    loose, other = audit.pins(project)
    assert "h is not pinned" in loose and "pytest is pinned to 0.0.1" in other


def test_the_audit_finds_what_the_lock_lacks(audit: ModuleType) -> None:
    project = {"optional-dependencies": {"test": ["Some_Package[extra]==1.0", "other==2.0"], "lint": []}}
    whole = "other==2.0 \\\n    --hash=sha256:aa\n"
    whole += "some-package==1.0 ; sys_platform != 'win32' \\\n    --hash=sha256:bb\n"
    assert list(audit.locked(project, whole)) == []
    assert list(audit.locked(project, whole.replace("2.0", "2.1"))) == [
        "constraints.txt lacks other==2.0; run make lock"
    ]
    (line,) = audit.locked(project, whole.replace("--hash=sha256:bb", ""))
    assert line == "constraints.txt: no hash of some-package==1.0; run make lock"
    assert "constraints.txt names a registry" in audit.locked(project, "--index-url x\n" + whole)


def test_our_own_dependencies_have_bounds_and_pins(audit: ModuleType) -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert not [*audit.ranges(project), *audit.pins(project)]


VULNERABLE = json.dumps(
    {"vulnerabilities": [{"id": "PYSEC-1", "aliases": ["CVE-1"], "fixed_in": ["9.9"]}]}
).encode()
NOTHING_KNOWN = b'{"vulnerabilities": []}'


def _status(code: int) -> urllib.error.HTTPError:
    return urllib.error.HTTPError("https://example.com", code, "no", Headers(), None)


@pytest.mark.parametrize(
    ("canary", "package", "found", "said", "fails_in_ci"),
    [
        (VULNERABLE, NOTHING_KNOWN, 0, "", False),
        (VULNERABLE, VULNERABLE, 1, "", True),
        (OSError("no network"), NOTHING_KNOWN, 0, "cannot be reached", False),
        (_status(404), NOTHING_KNOWN, 0, "has no vulnerability data", False),
        (NOTHING_KNOWN, NOTHING_KNOWN, 0, "is empty", True),
        (b"<html>sign in</html>", NOTHING_KNOWN, 0, "cannot be read", True),
        (b"{}", NOTHING_KNOWN, 0, "cannot be read", True),
        (b'{"vulnerabilities": [1]}', NOTHING_KNOWN, 0, "cannot be read", True),
        (_status(500), NOTHING_KNOWN, 0, "cannot be read", True),
        (VULNERABLE, b"garbled", 0, "1 of 1 packages could not be read", True),
        (VULNERABLE, _status(503), 0, "1 of 1 packages could not be read", True),
    ],
    ids=str,
)
def test_the_audit_reports_what_it_did_not_check_and_fails_in_ci_on_wrong_data(
    audit: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    canary: Any,
    package: Any,
    found: int,
    said: str,
    fails_in_ci: bool,
) -> None:
    def fetch(name: str, release: str) -> bytes:
        answer = canary if (name, release) == audit.CANARY else package
        if isinstance(answer, Exception):
            raise answer
        return bytes(answer)

    lines, unchecked, _ = audit.checked([("aiohttp", "1.0")], fetch)
    assert len(lines) == found and said in unchecked and bool(unchecked) == bool(said)
    monkeypatch.setattr(audit, "fetched", fetch)
    monkeypatch.setattr(audit, "installed", lambda: [("aiohttp", "1.0")])
    for name in ("ranges", "pins", "locks"):
        monkeypatch.setattr(audit, name, lambda _: [])
    monkeypatch.setattr(audit, "fitting", list)
    for environment, fails in (
        ({}, bool(found)),
        ({"CI": "true"}, fails_in_ci),
        ({"AUDIT": "required"}, bool(found or said)),
    ):
        for name in ("CI", "AUDIT"):
            monkeypatch.setenv(name, environment.get(name, ""))
        assert audit.main() == int(fails), environment
        assert ("NOT CHECKED" in capsys.readouterr().err) == bool(said)


def test_lock_files_have_hashes_and_contain_no_registry_url(audit: ModuleType, tmp_path: Path) -> None:
    assert list(audit.locks(ROOT)) == []
    folder = tmp_path / "tests" / "x"
    folder.mkdir(parents=True)
    packages = {
        "": {"name": "x"},
        "node_modules/a": {"version": "1", "integrity": "sha512-x"},
        "node_modules/b": {"version": "1"},
        "node_modules/c": {
            "version": "1",
            "integrity": "sha512-x",
            "resolved": "https://registry.example/c.tgz",
        },
        "node_modules/d": {"resolved": "d", "link": True},
    }
    (folder / "package-lock.json").write_text(json.dumps({"packages": packages}))
    (folder / "requirements.txt").write_text(
        "# see https://example.com\na==1\n--index-url https://registry.example/simple\nb @ https://h/b.whl\n"
    )
    problems = list(audit.locks(tmp_path))
    assert [line.split(": ")[1].split(" ")[0] for line in problems] == [
        "node_modules/b",
        "node_modules/c",
        "names",
        "names",
    ]

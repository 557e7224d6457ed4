"""What a client can reach by `server_url`: only what the settings list, and only public addresses."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import httpcore2
import pytest

from toolwire.settings.types import ConfigError, McpServerSettings
from toolwire.tools.mcp.public import NOT_PUBLIC, PublicBackend, check_patterns, may_name, public_client

INTERNAL = [
    "http://127.0.0.1/mcp",
    "http://localhost/mcp",
    "http://localhost./mcp",
    "http://sub.localhost/mcp",
    "http://[::1]/mcp",
    "http://[::ffff:127.0.0.1]/mcp",
    "http://[::ffff:7f00:1]/mcp",
    "http://0.0.0.0/mcp",
    "http://0/mcp",
    "http://127.1/mcp",
    "http://2130706433/mcp",
    "http://0x7f.1/mcp",
    "http://0x7f000001/mcp",
    "http://0177.0.0.1/mcp",
    "http://10.1.2.3/mcp",
    "http://172.16.0.1/mcp",
    "http://192.168.1.1/mcp",
    "http://100.64.0.1/mcp",
    "http://169.254.169.254/latest/meta-data",
    "http://[fe80::1]/mcp",
    "http://[fd00::1]/mcp",
    "http://[64:ff9b::7f00:1]/mcp",
    "http://[2002:7f00:1::]/mcp",
    "http://224.0.0.1/mcp",
    "http://metadata.google.internal/mcp",
    "http://printer.local/mcp",
    "http://intranet/mcp",
    "https://user:password@mcp.example.com/mcp",
    "https://mcp.example.com@127.0.0.1/mcp",
    "https://mcp.example.com\\@127.0.0.1/mcp",
    "https://mcp.example.com#@127.0.0.1/mcp\n",
    "http://１２７.0.0.1/mcp",
    "file:///etc/passwd",
    "ftp://mcp.example.com/mcp",
    "data:text/plain,x",
    "https:/mcp.example.com/mcp",
    "https://mcp.example.com:99999/mcp",
    "javascript:alert(1)",
    "",
]


@pytest.mark.parametrize("url", INTERNAL)
def test_an_internal_or_unusual_url_is_refused_even_if_everything_is_allowed(url: str) -> None:
    assert not may_name(url, ("*",))


@pytest.mark.parametrize(
    ("url", "fits"),
    [
        ("https://mcp.example.com/mcp", True),
        ("https://mcp.example.com/mcp/sub", True),
        ("https://MCP.example.com:443/mcp", True),
        ("https://mcp.example.com:8443/mcp", False),
        ("http://mcp.example.com/mcp", False),
        ("https://evil.com/mcp", False),
        ("https://mcp.example.com.evil.com/mcp", False),
        ("https://evil.com/?https://mcp.example.com/", False),
        ("https://mcp.example.com/../admin", False),
        ("https://mcp.example.com/%2e%2e/admin", False),
    ],
)
def test_a_url_must_fit_a_pattern_by_scheme_host_port_and_path(url: str, fits: bool) -> None:
    assert may_name(url, ("https://mcp.example.com/**",)) is fits


def test_no_url_is_allowed_by_default() -> None:
    assert not may_name("https://mcp.example.com/mcp", ())


@pytest.mark.parametrize("bad", ["mcp.example.com", "/mcp", "https://", "5", "https://user@host/"])
def test_a_pattern_that_is_no_url_is_refused_in_one_line(bad: str) -> None:
    with pytest.raises(ConfigError, match=r"^mcp\.urls: .+"):
        check_patterns((bad,))


class Resolver:
    """A name service whose answers change, as in DNS rebinding."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def getaddrinfo(self, host: str, port: int, **_: Any) -> list[Any]:
        self.asked += 1
        found = self.answers[min(self.asked, len(self.answers)) - 1]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses to which a socket was opened."""
    opened: list[str] = []

    async def connect(self: Any, host: str, *_: Any, **__: Any) -> Any:
        opened.append(host)
        raise httpcore2.ConnectError("nobody listens")

    monkeypatch.setattr(httpcore2.AnyIOBackend, "connect_tcp", connect)
    return opened


@pytest.mark.parametrize(
    "found",
    [["127.0.0.1"], ["93.184.216.34", "10.0.0.1"], ["::1"], ["::ffff:10.0.0.1"], ["169.254.169.254"], []],
)
async def test_a_name_with_an_internal_address_opens_no_socket(
    monkeypatch: pytest.MonkeyPatch, connected: list[str], found: list[str]
) -> None:
    resolver = Resolver(found)
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolver.getaddrinfo)
    with pytest.raises(httpcore2.ConnectError, match=NOT_PUBLIC):
        await PublicBackend().connect_tcp("mcp.example.com", 443)
    assert connected == []


async def test_a_name_is_resolved_once_and_the_socket_goes_to_that_address(
    monkeypatch: pytest.MonkeyPatch, connected: list[str]
) -> None:
    resolver = Resolver(["93.184.216.34"], ["127.0.0.1"])
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolver.getaddrinfo)
    with pytest.raises(httpcore2.ConnectError):
        await PublicBackend().connect_tcp("mcp.example.com", 443)
    assert (resolver.asked, connected) == (1, ["93.184.216.34"])


async def test_the_client_uses_this_backend_no_proxy_and_no_redirect(
    monkeypatch: pytest.MonkeyPatch, connected: list[str]
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1/")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1/")
    settings = McpServerSettings("x", url="https://mcp.example.com/", headers={"X-Own": "yes"})
    async with public_client()(settings) as client:
        assert client.headers["x-own"] == "yes"
        assert not client.follow_redirects
        for url in ("http://127.0.0.1:1/", "http://localhost:1/", "http://[::1]:1/"):
            with pytest.raises(Exception, match=NOT_PUBLIC):
                await client.get(url)
    assert connected == []


async def test_an_unknown_host_and_an_internal_one_have_the_same_error(
    monkeypatch: pytest.MonkeyPatch, connected: list[str]
) -> None:
    async def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror("Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", unknown)
    with pytest.raises(httpcore2.ConnectError, match=NOT_PUBLIC):
        await PublicBackend().connect_tcp("nowhere.example", 443)

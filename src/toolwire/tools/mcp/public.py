"""An HTTP client for servers that API clients name (`server_url`).

This HTTP client reaches only public addresses. Otherwise an API client could make Toolwire send requests to
internal hosts. So a URL must fit `[mcp] urls`. In addition:

- the URL must be plain, so that every parser reads it in the same way: no user name, no unusual notation of
  an address;
- the host is resolved once, all of its addresses must be public, and the socket connects only to these;
- redirects are not followed, and no proxy, cookie or credential of Toolwire's is used;
- an error about a host does not reveal whether the host exists.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import httpcore2
import httpx2

from toolwire.gateway.images import is_public, problem
from toolwire.settings.types import ConfigError, McpServerSettings
from toolwire.tools.mcp.connection import LONGEST_CALL_S, HttpClient
from toolwire.tools.mcp.patterns import pattern

NOT_PUBLIC = "the host has no public address, or cannot be found"
CONNECT_S = 10.0
Allowed = Callable[[str], bool]


def may_name(url: str, patterns: Iterable[str], plain: Callable[[str], str] = problem) -> bool:
    """Whether API clients may name this URL. `patterns`: the setting `[mcp] urls`."""
    if not url.lower().startswith(("https://", "http://")) or plain(url):
        return False
    return any(pattern(one).surely(url) for one in patterns)


def check_patterns(patterns: Iterable[str]) -> None:
    """Raises `ConfigError` if a pattern in `[mcp] urls` is not a pattern for URLs."""
    for one in patterns:
        try:
            kind = pattern(one).kind
        except ConfigError as error:
            raise ConfigError(f"mcp.urls: {error}") from None
        if kind not in ("url", "any"):
            raise ConfigError(f"mcp.urls: {one}: expected a pattern such as https://mcp.example.com/**, or *")


class PublicBackend(httpcore2.AsyncNetworkBackend):
    """Opens sockets only to public addresses. `allowed` decides whether an address is public."""

    def __init__(self, allowed: Allowed = is_public) -> None:
        self._allowed = allowed
        self._inner = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        addresses = await self._resolved(host, port)
        failure: Exception = httpcore2.ConnectError(NOT_PUBLIC)
        for address in addresses:
            try:
                return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
        raise failure

    async def _resolved(self, host: str, port: int) -> Sequence[str]:
        """Returns the addresses of a host. Raises an error unless all of them are public."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                found: list[Any] = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError, TimeoutError):
            raise httpcore2.ConnectError(NOT_PUBLIC) from None
        addresses = list(dict.fromkeys(entry[4][0] for entry in found))
        if not addresses or not all(map(self._allowed, addresses)):
            raise httpcore2.ConnectError(NOT_PUBLIC)
        return addresses

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore2.AsyncNetworkStream:
        raise httpcore2.ConnectError("no local sockets")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class PublicTransport(httpx2.AsyncHTTPTransport):
    """An HTTP transport that opens its sockets with `PublicBackend`."""

    def __init__(self, allowed: Allowed = is_public) -> None:
        super().__init__(trust_env=False, retries=0)
        # httpx2 has no argument for the network backend, so its pool is replaced before it has a connection.
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=httpx2.create_ssl_context(trust_env=False), network_backend=PublicBackend(allowed)
        )


def public_client(allowed: Allowed = is_public) -> HttpClient:
    """Returns a function that creates the HTTP client for a server that an API client named."""

    def make(settings: McpServerSettings) -> httpx2.AsyncClient:
        headers = {"Accept-Encoding": "identity", **settings.headers}
        return httpx2.AsyncClient(
            transport=PublicTransport(allowed),
            headers=headers,
            timeout=httpx2.Timeout(30.0, connect=CONNECT_S, read=LONGEST_CALL_S),
            trust_env=False,
            follow_redirects=False,
        )

    return make

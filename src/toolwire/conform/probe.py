"""Sends requests to an endpoint over HTTP.

Every exchange has a time limit and a size limit. A failure is described in the exchange and never raised.
The API key is masked in every answer before a check reads the answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from urllib.parse import quote, urlsplit, urlunsplit

import aiohttp
from yarl import URL

from toolwire.backends.openai.failures import connection_error, retry_after
from toolwire.conform.exchange import ProbeExchange, ProbeRequest

LIMIT_S = 60.0
MOST_BYTES = 2 * 1024 * 1024
MOST_WAITS = 3
"""How often one request is repeated because the server is busy and says how long to wait."""
MOST_IN_VAIN = 2
"""How many requests may wait in vain for a busy server. After that, no request waits."""
MASK = "***"
SHORTEST_SECRET = 4


class AddressError(ValueError):
    """An address that cannot be used. The message says why in one line."""


def base_of(address: str) -> str:
    """Returns the API's base URL.

    The path of a route is removed: `…/v1/models` becomes `…/v1`. An address without a path gets `/v1`.
    """
    try:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        port = parts.port
    except ValueError as error:
        raise AddressError(f"{shown(address)}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise AddressError(f"{shown(address)}: expected an address such as http://127.0.0.1:8788/v1")
    path = parts.path.rstrip("/")
    for tail in ("/chat/completions", "/responses", "/messages", "/models"):
        path = path.removesuffix(tail)
    return urlunsplit((parts.scheme, parts.netloc, path or "/v1", "", ""))


def shown(address: str) -> str:
    """Returns the address without user, password and query, which may be secrets."""
    try:
        parts = urlsplit(address)
    except ValueError:  # an invalid address: cut off everything that may be a secret
        return address.rpartition("@")[2].partition("?")[0]
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")) or address


class Probe(AbstractAsyncContextManager["Probe"]):
    """Sends the requests of a run.

    `waiting` is called before each wait for a busy server, with the HTTP status and the seconds to wait.
    """

    def __init__(
        self,
        base: str,
        key: str = "",
        limit_s: float = LIMIT_S,
        most_bytes: int = MOST_BYTES,
        waiting: Callable[[int, float], None] | None = None,
    ) -> None:
        self.base, self.limit_s, self.most_bytes = base, limit_s, most_bytes
        self._waiting, self._in_vain = waiting, 0
        self._key = key
        secrets = (key, urlsplit(base).password or "")
        self._secrets = [secret for secret in secrets if len(secret) >= SHORTEST_SECRET]
        self._session: aiohttp.ClientSession | None = None
        self.requests = 0

    @property
    def has_key(self) -> bool:
        return bool(self._key)

    async def __aenter__(self) -> Probe:
        # A new connection for each request: if a server breaks one, the next check must not fail.
        connector = aiohttp.TCPConnector(force_close=True)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=min(self.limit_s, 10.0))
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=timeout, auto_decompress=True, trust_env=False
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(self, question: str, request: ProbeRequest) -> ProbeExchange:
        """Sends a request and returns the exchange.

        If the server is busy and says how long to wait, waits and sends the request again. Does not wait if
        this would take longer than the time limit.
        """
        exchange, waits = await self._once(question, request), 0
        while exchange.busy and waits < MOST_WAITS and self._in_vain < MOST_IN_VAIN:
            wait_s = retry_after(exchange.headers)
            if wait_s is None or wait_s > self.limit_s:
                break
            if self._waiting is not None:
                self._waiting(exchange.status, wait_s)
            await asyncio.sleep(wait_s)
            exchange, waits = await self._once(question, request), waits + 1
        self._in_vain += exchange.busy and waits > 0
        return exchange

    async def _once(self, question: str, request: ProbeRequest) -> ProbeExchange:
        self.requests += 1
        collected = _Collected()
        try:
            async with asyncio.timeout(self.limit_s):
                await self._collect(request, collected)
        except TimeoutError:
            collected.late = True
            what = "the answer did not end" if collected.status else "there was no answer"
            collected.trouble = f"{what} within {self.limit_s:g} s"
        except aiohttp.ClientConnectorError as error:
            collected.trouble = f"could not connect: {connection_error(error)}; is the server running?"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            collected.trouble = f"the connection broke: {connection_error(error)}"
        headers = {name: self.masked(value) for name, value in collected.headers.items()}
        text = bytes(collected.raw).decode("utf-8", "surrogateescape")
        raw = self.masked(text).encode("utf-8", "surrogateescape")
        trouble = self.masked(collected.trouble)
        return ProbeExchange(question, request, collected.status, headers, raw, trouble, late=collected.late)

    async def _collect(self, request: ProbeRequest, collected: _Collected) -> None:
        assert self._session is not None
        headers = dict(request.headers)
        if self._key and not request.bare:
            if request.x_api_key:
                headers["x-api-key"] = self._key
            else:
                headers["Authorization"] = f"Bearer {self._key}"
        data = None
        if request.body is not None:
            headers["Content-Type"] = "application/json"
            data = request.body if isinstance(request.body, bytes) else json.dumps(request.body).encode()
        query = f"?{request.query}" if request.query else ""
        url = URL(self.base + quote(request.path, safe="/:@") + query, encoded=True)
        async with self._session.request(
            request.method, url, data=data, headers=headers, allow_redirects=False
        ) as response:
            collected.status = response.status
            collected.headers = {name.lower(): value for name, value in response.headers.items()}
            async for block in response.content.iter_any():
                collected.raw += block
                if len(collected.raw) > self.most_bytes:
                    collected.trouble = f"the answer is larger than {self.most_bytes} bytes"
                    return
                if request.leave:
                    return

    def masked(self, text: str) -> str:
        """Returns the text with the secrets masked."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return text


class _Collected:
    """The part of an answer that has arrived. It stays readable if a limit is reached."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.raw = bytearray()
        self.trouble = ""
        self.late = False

"""Asks an endpoint over HTTP. Every exchange has a limit of time and of size; whatever goes wrong is said in one sentence, never raised.

The key goes into the request and nowhere else: what comes back and names it is masked before anything looks at it.
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

from toolwire.backends.openai.failures import retry_after
from toolwire.conform.exchange import Family, ProbeExchange, ProbeRequest

LIMIT_S = 60.0
MOST_BYTES = 2 * 1024 * 1024
MOST_WAITS, MOST_IN_VAIN = 3, 2
"""So often one request waits for a server that says when it has time, and so many requests may have done so for nothing until none does."""
MASK = "***"
SHORTEST_SECRET = 4


class AddressError(ValueError):
    """An address that can not be asked; one line that says why."""


def base_of(address: str) -> str:
    """The base of the API: an address without a path means `/v1` there."""
    try:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        port = parts.port
    except ValueError as error:
        raise AddressError(f"{shown(address)}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise AddressError(f"{shown(address)}: expected an address such as http://127.0.0.1:8788/v1")
    path = parts.path.rstrip("/")
    for tail in ("/chat/completions", "/responses", "/models"):
        path = path.removesuffix(tail)
    return urlunsplit((parts.scheme, parts.netloc, path or "/v1", "", ""))


def shown(address: str) -> str:
    """The address without user, password and query: those may be secrets."""
    try:
        parts = urlsplit(address)
    except ValueError:  # it can not be taken apart: what may be a secret is cut off by its marks
        return address.rpartition("@")[2].partition("?")[0]
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")) or address


class Probe(AbstractAsyncContextManager["Probe"]):
    """`waiting` is told when it waits for a server that has no time, and how many seconds."""

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
        self._secrets = [
            secret for secret in (key, urlsplit(base).password or "") if len(secret) >= SHORTEST_SECRET
        ]
        self._session: aiohttp.ClientSession | None = None
        self.requests = 0

    @property
    def has_key(self) -> bool:
        return bool(self._key)

    async def __aenter__(self) -> Probe:
        # a new connection for each request: a server that breaks one must not fail the next check
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

    async def ask(self, question: str, family: Family, request: ProbeRequest) -> ProbeExchange:
        """One exchange; a server that is busy is asked again after the time it names, if that is not more than an answer may take."""
        exchange, waits = await self._once(question, family, request), 0
        while exchange.busy and waits < MOST_WAITS and self._in_vain < MOST_IN_VAIN:
            wait_s = retry_after(exchange.headers)
            if wait_s is None or wait_s > self.limit_s:
                break
            if self._waiting is not None:
                self._waiting(exchange.status, wait_s)
            await asyncio.sleep(wait_s)
            exchange, waits = await self._once(question, family, request), waits + 1
        self._in_vain += exchange.busy and waits > 0
        return exchange

    async def _once(self, question: str, family: Family, request: ProbeRequest) -> ProbeExchange:
        self.requests += 1
        collected = _Collected()
        try:
            async with asyncio.timeout(self.limit_s):
                await self._collect(request, collected)
        except TimeoutError:
            collected.late = True
            collected.trouble = f"no {'end' if collected.status else 'answer'} after {self.limit_s:g} s"
        except aiohttp.ClientConnectorError as error:
            collected.trouble = f"could not connect: {error.os_error.strerror or error.os_error}"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            collected.trouble = (
                f"the connection broke: {type(error).__name__}{': ' if str(error) else ''}{str(error)[:120]}"
            )
        headers = {name: self.masked(value) for name, value in collected.headers.items()}
        raw = self.masked(bytes(collected.raw).decode("utf-8", "surrogateescape")).encode(
            "utf-8", "surrogateescape"
        )
        return ProbeExchange(
            question,
            family,
            request,
            collected.status,
            headers,
            raw,
            self.masked(collected.trouble),
            late=collected.late,
        )

    async def _collect(self, request: ProbeRequest, collected: _Collected) -> None:
        assert self._session is not None
        headers = dict(request.headers)
        if self._key and not request.bare:
            headers["Authorization"] = f"Bearer {self._key}"
        data = None
        if request.body is not None:
            headers["Content-Type"] = "application/json"
            data = request.body if isinstance(request.body, bytes) else json.dumps(request.body).encode()
        url = URL(self.base + quote(request.path, safe="/:@"), encoded=True)
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
        """Without the secrets. Also for what is put together from an answer: an endpoint may spell the key in another way, or send it in pieces."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return text


class _Collected:
    """What has come so far, so that a limit loses nothing of it."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.raw = bytearray()
        self.trouble = ""
        self.late = False

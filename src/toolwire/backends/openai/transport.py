"""Sends requests to model servers, directly (`http1.py`) or through a proxy (aiohttp).

All models of one event loop share the connections. The connections are closed when the last model closes.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Protocol

import aiohttp

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
from toolwire.core.errors import ToolwireError


class UpstreamReply(Protocol):
    """A response whose head has been read."""

    status: int

    @property
    def ended(self) -> bool:
        """Whether the whole body is known to have been read."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The response headers by name, in lower case."""
        ...

    def read(self) -> Awaitable[bytes]:
        """Returns the next bytes of the body, or no bytes at its end. Raises `TransportFault`."""
        ...

    def release(self, whole: bool = False) -> None:
        """Ends the response.

        If the response is not complete, its connection is closed, so that the server stops generating.
        `whole`: whether all content was read, so that the server has already stopped.
        """
        ...


class Transport:
    """The connections of one event loop.

    `session` is for requests other than turns, such as lists of models.
    """

    def __init__(self, proxy_from_env: bool) -> None:
        self.loop = asyncio.get_running_loop()
        self.users: set[object] = set()
        self._proxy_from_env = proxy_from_env
        # Every request of the session has a separate connection. On a connection that is kept, aiohttp would
        # read late bytes as the response to the next request, which may be another client's.
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=proxy_from_env,
        )
        self._client = None if proxy_from_env else Http1Client()
        self.post: Callable[[Request, bytes], Awaitable[UpstreamReply]] = (
            self._post_by_proxy if self._client is None else self._client.post
        )
        """Sends a request. Returns the response when its head is complete. Raises `TransportFault`."""

    async def leave(self, user: object) -> None:
        self.users.discard(user)
        if not self.users:
            _transports.pop((self.loop, self._proxy_from_env), None)
            if self._client is not None:
                self._client.close()
            await self.session.close()

    async def _post_by_proxy(self, request: Request, body: bytes) -> UpstreamReply:
        timeout = aiohttp.ClientTimeout(total=None, connect=request.connect_s, sock_read=request.read_s)
        try:
            response = await self.session.post(
                request.url,
                data=body,
                headers=request.headers,
                timeout=timeout,
                allow_redirects=False,
                auto_decompress=False,
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise fault(error) from error
        return _ProxiedReply(response)


_transports: dict[tuple[asyncio.AbstractEventLoop, bool], Transport] = {}


def shared_transport(proxy_from_env: bool, user: object) -> Transport:
    """Returns the running event loop's transport, which closes after its last `user` has called `leave`."""
    key = (asyncio.get_running_loop(), proxy_from_env)
    if key not in _transports:
        _transports[key] = Transport(proxy_from_env)
    _transports[key].users.add(user)
    return _transports[key]


# --- through a proxy ---


class _ProxiedReply:
    ended = False

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in response.headers.items()}

    async def read(self) -> bytes:
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise fault(error, started=True) from error

    def release(self, whole: bool = False) -> None:
        self._response.close()


FAULTS: tuple[tuple[type[BaseException], Callable[[], TransportFault]], ...] = (
    (aiohttp.ConnectionTimeoutError, partial(TooLate, connecting=True)),
    (TimeoutError, TooLate),
    (aiohttp.ClientConnectorCertificateError, TlsRefused),
    (aiohttp.ClientSSLError, TlsRefused),
    (aiohttp.ClientConnectorDNSError, NameUnknown),
    (aiohttp.ClientConnectorError, Unreachable),
    (aiohttp.ClientPayloadError, CutOff),
    (aiohttp.ClientConnectionError, Disconnected),
    (OSError, Disconnected),
)
"""For each error of aiohttp, a function that creates the fault. The first row that matches is used.

Each fault is a new object, because a shared exception would keep its first traceback.
"""


def fault(error: BaseException, *, started: bool = False) -> TransportFault:
    """Returns the fault for an error of aiohttp. `started`: whether the response had begun."""
    found = next((make for kind, make in FAULTS if isinstance(error, kind)), NotHttp)()
    return CutOff() if started and isinstance(found, Disconnected | NotHttp) else found


# --- compressed responses ---
#
# Some servers compress although the request says `Accept-Encoding: identity`. `gzip` and `deflate` are
# decoded as they arrive, in blocks of limited size. A response that grows to more than `EXPANSION` times its
# size raises an error, and so does any other encoding.

BLOCK = 256 * 1024
"""The maximum number of bytes that one read returns."""
EXPANSION = 256
ALWAYS_ALLOWED = 1024 * 1024
"""How many decoded bytes a compressed response may have in addition to `EXPANSION` times its size."""
GZIP, ZLIB, RAW_DEFLATE = 31, 15, -15
ENCODINGS = ("gzip", "x-gzip", "deflate")


def decoded(reply: UpstreamReply) -> UpstreamReply:
    """Returns the reply with its body decompressed, as its header `content-encoding` says.

    Raises `ToolwireError` if Toolwire does not support the encoding.
    """
    encoding = reply.headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return reply
    if encoding not in ENCODINGS:
        unasked = f"The upstream server's answer has the encoding {encoding[:40]!r}, which was not asked for"
        raise ToolwireError("backend", f"{unasked} and is not supported.")
    return _DecodedReply(reply, deflate=encoding == "deflate")


class _DecodedReply:
    ended = False

    def __init__(self, reply: UpstreamReply, deflate: bool) -> None:
        self._reply = reply
        self.status = reply.status
        self.headers: Mapping[str, str] = reply.headers
        self.release = reply.release
        self._deflate = deflate
        self._stream: Any = None if deflate else zlib.decompressobj(GZIP)
        self._waiting = b""  # compressed bytes that are not decoded yet
        self._more = False  # the last block was full, so the decoder may hold more
        self._bytes_in = self._bytes_out = 0
        self._ended = False

    async def read(self) -> bytes:
        while not self._ended:
            if not self._more:
                block = await self._reply.read()
                self._bytes_in += len(block)
                self._waiting += block
                if not block:
                    self._ended = True
                    if self._bytes_in and (self._stream is None or not self._stream.eof):
                        raise CutOff
                    return b""
            if block := self._decode():
                return block
        return b""

    def _decode(self) -> bytes:
        data = self._waiting
        if self._stream is None:
            if len(data) < 2:
                return b""
            # Some servers omit zlib's header.
            has_header = data[0] & 15 == 8 and (data[0] << 8 | data[1]) % 31 == 0
            self._stream = zlib.decompressobj(ZLIB if has_header else RAW_DEFLATE)
        elif self._stream.eof and not self._deflate:  # gzip allows several members in a row
            self._stream = zlib.decompressobj(GZIP)
        try:
            block: bytes = self._stream.decompress(data, BLOCK)
        except zlib.error:
            raise ToolwireError("backend", "The upstream server's compressed answer is damaged.") from None
        is_member_end = self._stream.eof and not self._deflate
        self._waiting = self._stream.unused_data if is_member_end else self._stream.unconsumed_tail
        self._more = bool(self._waiting) or len(block) == BLOCK
        self._bytes_out += len(block)
        if self._bytes_out > ALWAYS_ALLOWED + EXPANSION * self._bytes_in:
            grows = f"Decompressed, the upstream server's answer grows more than {EXPANSION} times."
            raise ToolwireError("backend", grows)
        return block

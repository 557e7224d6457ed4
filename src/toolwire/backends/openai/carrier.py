"""How requests travel to an upstream server: straight (`direct.Direct`), or through the proxies that the environment names (`Proxied`).

One pool of connections per event loop and way, made when first used, shared by all models, closed with the last model that uses it.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any, Protocol

import aiohttp
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from toolwire.backends.openai.direct import Direct, Request, has_unread
from toolwire.backends.openai.failures import CutOff, Disconnected, NameUnknown, NotHttp, TlsRefused, TooLate, TransportFault, Unreachable
from toolwire.core.errors import ToolwireError


class Reply(Protocol):
    """An answer whose head is there. `headers` have names in lower case."""

    status: int
    headers: Mapping[str, str]

    def rest(self) -> bytes | None:
        """What is left to be read, where all of it is there; None where it has to be awaited."""
        ...

    def read(self) -> Awaitable[bytes]:
        """What has come, at least a byte; nothing once the answer is over. Raises `TransportFault`."""
        ...

    def release(self) -> None:
        """Closes the connection, unless the answer was read to its end: then it is kept for the next request."""
        ...


class Carrier:
    """The connections of one event loop. `session` is for what is asked beside turns."""

    def __init__(self, proxy_from_env: bool) -> None:
        self.loop = asyncio.get_running_loop()
        self.users: set[object] = set()
        self._proxied_from_env = proxy_from_env
        self.session = aiohttp.ClientSession(
            connector=_Connector(limit=0, keepalive_timeout=60),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=proxy_from_env,
        )
        self._direct = None if proxy_from_env else Direct()

    def usable(self) -> bool:
        return not self.session.closed and self.loop is asyncio.get_running_loop()

    def post(self, url: URL, headers: Mapping[str, str], request: Request, body: bytes) -> Awaitable[Reply]:
        """The answer once its head is there; `request` is the same in one piece. Raises `TransportFault`."""
        return self._direct.post(request, body) if self._direct is not None else self._proxied(url, headers, request, body)

    async def leave(self, user: object) -> None:
        self.users.discard(user)
        if not self.users:
            _carriers.pop((self.loop, self._proxied_from_env), None)
            if self._direct is not None:
                self._direct.close()
            await self.session.close()

    async def _proxied(self, url: URL, headers: Mapping[str, str], request: Request, body: bytes) -> Reply:
        timeout = aiohttp.ClientTimeout(total=None, connect=request.connect_s, sock_read=request.read_s)
        _fresh.set(False)
        while True:
            try:
                asked = self.session.post(url, data=body, headers=headers, timeout=timeout, allow_redirects=False, auto_decompress=False)
                return _ProxiedReply(await asked)
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                if _fresh.get():
                    raise fault(error) from error
                _fresh.set(True)  # a kept connection was closed behind our back: once more, and not again
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise fault(error) from error


_carriers: dict[tuple[asyncio.AbstractEventLoop, bool], Carrier] = {}


def carrier(proxy_from_env: bool) -> Carrier:
    """This event loop's. It goes with its last user."""
    key = (asyncio.get_running_loop(), proxy_from_env)
    if key not in _carriers or not _carriers[key].usable():
        _carriers[key] = Carrier(proxy_from_env)
    return _carriers[key]


# --- through proxies ---------------------------------------------------------------------------------------------------------------------------


_fresh: ContextVar[bool] = ContextVar("_fresh", default=False)
"""Whether the running request's connection was made for it. Only a kept one may have been closed behind our back."""


class _Handler(ResponseHandler):
    """A connection that is closed when anything arrives on it while it is idle."""

    idle = False

    def data_received(self, data: bytes) -> None:
        if self.idle:
            self.close()
        else:
            super().data_received(data)


class _Connector(aiohttp.TCPConnector):
    """Knows whether a request's connection is new, and reuses only connections on which nothing has arrived since their last answer.

    aiohttp itself takes whatever arrived in the meantime for the answer to the next request, which may be another client's.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory: Any = partial(_Handler, loop=self._loop)

    def _release(self, key: Any, protocol: ResponseHandler, *, should_close: bool = False) -> None:
        super()._release(key, protocol, should_close=should_close)
        if isinstance(protocol, _Handler):
            protocol.idle = True

    async def _get(self, *given: Any, **named: Any) -> Any:
        while (found := await super()._get(*given, **named)) is not None:
            protocol, transport = found.protocol, found.transport
            if isinstance(protocol, _Handler) and transport is not None and not has_unread(transport):
                protocol.idle = False
                return found
            found.close()
        return None

    async def _create_connection(self, *given: Any, **named: Any) -> Any:
        _fresh.set(True)
        return await super()._create_connection(*given, **named)


class _ProxiedReply:
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in response.headers.items()}

    async def read(self) -> bytes:
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise fault(error, started=True) from error

    def rest(self) -> bytes | None:
        return b"" if self._response.content.at_eof() else None

    def release(self) -> None:
        self._response.release() if self._response.content.at_eof() else self._response.close()


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
"""The first that fits. A fault is made anew each time: one that is raised again would keep the frames of all earlier requests."""


def fault(error: BaseException, *, started: bool = False) -> TransportFault:
    """What an error of the proxied way means; `started`: the answer had begun."""
    found = next((make for kind, make in FAULTS if isinstance(error, kind)), NotHttp)()
    return CutOff() if started and isinstance(found, Disconnected | NotHttp) else found


# --- encodings ------------------------------------------------------------
#
# Answers of servers that compress although they were asked not to (`Accept-Encoding: identity`). `gzip`
# and `deflate` are decoded as they come, a bounded block at a time. An answer that grows more than
# `EXPANSION` times is refused, and so is any other encoding.

BLOCK = 256 * 1024
"""The most bytes that one read returns."""
EXPANSION = 256
FREE = 1024 * 1024
"""Bytes that an answer may have in any case."""
GZIP, ZLIB, BARE = 31, 15, -15
ENCODINGS = ("gzip", "x-gzip", "deflate")


def decoded(reply: Reply) -> Reply:
    """The reply, decoded where it is compressed. Raises `ToolwireError` for an encoding that is not supported."""
    encoding = reply.headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return reply
    if encoding not in ENCODINGS:
        told = f"The upstream server's answer has the encoding {encoding[:40]!r}, which was not asked for and is not supported."
        raise ToolwireError("backend", told)
    return _Decoded(reply, deflate=encoding == "deflate")


class _Decoded:
    def __init__(self, reply: Reply, deflate: bool) -> None:
        self._reply = reply
        self.status = reply.status
        self.headers: Mapping[str, str] = reply.headers
        self._deflate = deflate
        self._stream: Any = None if deflate else zlib.decompressobj(GZIP)
        self._waiting = b""  # compressed bytes that were read and not decoded yet
        self._more = False  # the last block was full: the decoder may hold more
        self._read = self._made = 0
        self._ended = False

    def rest(self) -> bytes | None:
        return b"" if self._ended else None

    async def read(self) -> bytes:
        while not self._ended:
            if not self._more:
                block = await self._reply.read()
                self._read += len(block)
                self._waiting += block
                if not block:
                    self._ended = True
                    if self._read and (self._stream is None or not self._stream.eof):
                        raise CutOff
                    return b""
            if block := self._decode():
                return block
        return b""

    def release(self) -> None:
        self._reply.release()

    def _decode(self) -> bytes:
        data = self._waiting
        if self._stream is None:
            if len(data) < 2:
                return b""
            framed = data[0] & 15 == 8 and (data[0] << 8 | data[1]) % 31 == 0  # some servers leave the frame of `deflate` out
            self._stream = zlib.decompressobj(ZLIB if framed else BARE)
        elif self._stream.eof and not self._deflate:  # gzip allows several members, one after another
            self._stream = zlib.decompressobj(GZIP)
        try:
            block: bytes = self._stream.decompress(data, BLOCK)
        except zlib.error:
            raise ToolwireError("backend", "The upstream server's compressed answer is damaged.") from None
        self._waiting = self._stream.unused_data if self._stream.eof and not self._deflate else self._stream.unconsumed_tail
        self._more = bool(self._waiting) or len(block) == BLOCK
        self._made += len(block)
        if self._made > FREE + EXPANSION * self._read:
            raise ToolwireError("backend", f"The upstream server's compressed answer grows more than {EXPANSION} times.")
        return block

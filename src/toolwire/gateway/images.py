"""Images that a client names by URL, fetched for backends that only take them inline.

A URL in a request is a request that a client can make in our name, so: http(s) only; the host is resolved once, every address it has must be
public, and the connection goes to one of exactly these addresses; a redirect is judged anew, and there are few of them; no cookies, no credentials,
no proxy; bytes and pixels are limited; what comes must be an image by its own first bytes, whatever its content type says.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urljoin, urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from toolwire.errors import ToolwireError
from toolwire.turn import ImagePart, Item, Message, Part, Result, Turn

REDIRECTS = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True)
class ImageLimits:
    bytes: int = 20 * 1024 * 1024
    pixels: int = 50_000_000
    images: int = 32
    redirects: int = 3
    timeout_s: float = 20.0


def is_public(address: str) -> bool:
    """Whether an address may be reached for a client: global unicast, also behind an IPv4-mapped or tunnelled form."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if inner is not None:
            return is_public(str(inner))
    return ip.is_global and not ip.is_multicast and not ip.is_reserved


def size_of(data: bytes) -> tuple[str, int, int] | None:
    """Media type, width and height of a PNG, GIF, JPEG or WebP, from its header; None for anything else."""
    if data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) >= 24:
        return ("image/png", *struct.unpack(">II", data[16:24]))
    if data[:6] in (b"GIF87a", b"GIF89a") and len(data) >= 10:
        return ("image/gif", *struct.unpack("<HH", data[6:10]))
    if data[:2] == b"\xff\xd8":
        return _jpeg(data)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _webp(data)
    return None


def _jpeg(data: bytes) -> tuple[str, int, int] | None:
    place = 2
    while place + 9 < len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if marker in (0xFF, 0x01) or 0xD0 <= marker <= 0xD8:
            place += 1 if marker == 0xFF else 2
            continue
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[place + 5 : place + 9])
            return "image/jpeg", width, height
        place += 2 + int.from_bytes(data[place + 2 : place + 4])
    return None


def _webp(data: bytes) -> tuple[str, int, int] | None:
    kind = data[12:16]
    if kind == b"VP8X" and len(data) >= 30:
        return "image/webp", int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    if kind == b"VP8 " and len(data) >= 30:
        width, height = struct.unpack("<HH", data[26:30])
        return "image/webp", width & 0x3FFF, height & 0x3FFF
    if kind == b"VP8L" and len(data) >= 25:
        bits = int.from_bytes(data[21:25], "little")
        return "image/webp", (bits & 0x3FFF) + 1, ((bits >> 14) & 0x3FFF) + 1
    return None


class _Pinned(AbstractResolver):
    """Gives the addresses that were judged, and no others."""

    def __init__(self, addresses: list[tuple[int, str]]) -> None:
        self._addresses = addresses

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> list[ResolveResult]:
        return [
            ResolveResult(hostname=host, host=address, port=port, family=kind, proto=0, flags=socket.AI_NUMERICHOST)
            for kind, address in self._addresses
        ]

    async def close(self) -> None:
        pass


class ImageFetcher:
    """`allowed` judges an address; it is handed in for tests only."""

    def __init__(self, limits: ImageLimits | None = None, allowed: Callable[[str], bool] = is_public) -> None:
        self._limits = limits or ImageLimits()
        self._allowed = allowed

    async def inline(self, turn: Turn) -> Turn:
        """The turn with every http(s) image as a data URL."""
        urls = {part.url for _, part in _images(turn) if part.url and not part.url.startswith("data:")}
        if not urls:
            return turn
        if len(urls) > self._limits.images:
            raise ToolwireError("invalid_value", f"More than {self._limits.images} images by URL.", param=_field(turn))
        async with asyncio.timeout(self._limits.timeout_s * 2):
            fetched = dict(zip(urls, await asyncio.gather(*(self.fetch(url, _field(turn)) for url in urls)), strict=True))
        return replace(turn, items=tuple(_replaced(item, fetched) for item in turn.items))

    async def fetch(self, url: str, param: str = "") -> str:
        """One image as a data URL."""
        for _ in range(self._limits.redirects + 1):
            target = await self._get(url, param)
            if isinstance(target, bytes):
                return self._as_data(target, param)
            url = urljoin(url, target)
        raise _refused("it redirects too often", param)

    async def _get(self, url: str, param: str) -> bytes | str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
            raise _refused("only plain http and https URLs are fetched", param)
        addresses = await self._resolve(parts.hostname, param)
        connector = aiohttp.TCPConnector(resolver=_Pinned(addresses), use_dns_cache=False, limit=1)
        timeout = aiohttp.ClientTimeout(total=self._limits.timeout_s)
        try:
            async with (
                aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), timeout=timeout) as session,
                session.get(url, allow_redirects=False, headers={"Accept": "image/*", "Accept-Encoding": "identity"}) as response,
            ):
                if response.status in REDIRECTS and "Location" in response.headers:
                    return response.headers["Location"]
                if response.status != 200:
                    raise _refused(f"its server answered {response.status}", param)
                return await self._read(response, param)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            raise _refused("its server can not be reached", param) from None

    async def _read(self, response: aiohttp.ClientResponse, param: str) -> bytes:
        blocks, size = [], 0
        async for block in response.content.iter_any():
            blocks.append(block)
            size += len(block)
            if size > self._limits.bytes:
                raise _refused(f"it is larger than {self._limits.bytes // 1048576} MB", param)
        return b"".join(blocks)

    async def _resolve(self, host: str, param: str) -> list[tuple[int, str]]:
        try:
            found: list[Any] = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            raise _refused("its host can not be found", param) from None
        addresses = [(entry[0], entry[4][0]) for entry in found]
        if not addresses or not all(self._allowed(address) for _, address in addresses):
            raise _refused("its host is not a public address", param)
        return addresses

    def _as_data(self, data: bytes, param: str) -> str:
        known = size_of(data)
        if known is None:
            raise _refused("it is not a PNG, JPEG, GIF or WebP image", param)
        media, width, height = known
        if not 0 < width * height <= self._limits.pixels:
            raise _refused(f"it has more than {self._limits.pixels // 1_000_000} million pixels, or none", param)
        return f"data:{media};base64,{base64.b64encode(data).decode()}"


def _refused(why: str, param: str) -> ToolwireError:
    return ToolwireError("invalid_value", f"An image could not be fetched: {why}.", param=param, code="invalid_image_url")


def _field(turn: Turn) -> str:
    return "messages" if turn.api == "chat" else "input"


def _images(turn: Turn) -> list[tuple[Item, ImagePart]]:
    return [(item, part) for item in turn.items if isinstance(item, Message | Result) for part in item.parts if isinstance(part, ImagePart)]


def _replaced(item: Item, fetched: Mapping[str, str]) -> Item:
    if not isinstance(item, Message | Result):
        return item
    parts: tuple[Part, ...] = tuple(
        replace(part, url=fetched.get(part.url or "", part.url)) if isinstance(part, ImagePart) else part for part in item.parts
    )
    return replace(item, parts=parts)

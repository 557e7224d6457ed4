"""Fetches images that a request names by URL, for backends that take only inline images.

With a URL, a client could make Toolwire send requests to internal hosts. So the rules are strict:

- Only http(s) URLs are fetched, without cookies, credentials or proxies.
- The host is resolved once. All of its addresses must be public, and the socket connects only to them.
- Redirects are limited, and each target is checked in the same way.
- Bytes and pixels are limited, per image and per turn.
- The first bytes must be those of an image, whatever the content type says.
- An error about an internal host does not reveal whether the host exists.

If the backend fetches the images itself, `checked` refuses the URLs that are not allowed.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import re
import socket
import struct
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from toolwire.core.errors import ToolwireError
from toolwire.core.turn import ImagePart, Item, Message, OtherPart, Part, Result, TextPart, Turn

# --- URLs that are passed on ---
#
# Finds the URLs in a part of a message, and decides which of them an upstream server may fetch. Only `data:`
# URLs and http(s) URLs with a public host are passed on. The upstream may read an unusual URL differently
# from this module. So a URL must be plain: no control characters, no backslash or credentials before the
# path, exactly two slashes, and a host that every parser reads in the same way. An IP address must be in its
# usual form. Pure.

NOT_PLAIN = "only data: URLs and plain http and https URLs are passed on"
URL_NOT_PUBLIC = "its host is not a public address"
NOT_FOR_CLIENTS = tuple(
    map(
        ipaddress.ip_network,
        (
            "168.63.129.16/32",
            "192.0.0.0/24",
            "192.88.99.0/24",
            "64:ff9b::/96",
            "64:ff9b:1::/48",
            "2001::/23",
            "2001:db8::/32",
            "3fff::/20",
        ),
    )
)
"""Networks that Python's `ipaddress` calls public, but that are not allowed here.

They are used by cloud services (Azure, Oracle), for IPv4 translation, by protocols and in examples.
"""
UNICAST = ipaddress.ip_network("2000::/3")
INSIDE = (".localhost", ".local", ".internal", ".intranet", ".lan", ".home.arpa", ".svc")

LONGEST_HOST = 253
LOOKED_AT = 8192
"""How many characters of a value are checked for a URL. A scheme and a host are far shorter."""
BLANKS = "".join(
    character for character in map(chr, range(0x3001)) if character <= " " or character.isspace()
)
"""Characters that the URL standard, or Python's `strip`, removes at both ends."""
_REMOVED = {ord(character): None for character in "\t\n\r"}
"""Characters that the URL standard removes everywhere."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SCHEMES = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,63}):(?:[A-Za-z][A-Za-z0-9+.-]{0,63}:)*")
_AUTHORITY = re.compile(r"https?://([^/\\?#@]+)(?:[/?#]|$)", re.IGNORECASE)
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:%]+)(?::([0-9]{0,5}))?")
_NAME = re.compile(r"(?:[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?\.?")
_NUMBER = re.compile(r"(?:[0-9]+|0x[0-9a-f]*)")
_BASE64 = re.compile(r"[A-Za-z0-9+/=_-]*")
URL_NAMES = ("url", "urls", "uri", "uris", "href", "src")
"""Endings of names of JSON members. A string in such a member counts as a URL, whatever it looks like."""
TEXT_NAMES = frozenset(
    {"type", "text", "title", "name", "filename", "caption", "description", "transcript", "refusal"}
)
"""Names of JSON members whose values are never fetched."""
FETCHED = frozenset(
    (
        "http",
        "https",
        "file",
        "ftp",
        "ftps",
        "sftp",
        "gopher",
        "dict",
        "ldap",
        "ldaps",
        "tftp",
        "smb",
        "jar",
        "netdoc",
        "php",
        "expect",
    )
)
"""Schemes of URLs that a server may fetch.

A value looks like a URL if it has one of these schemes, or any scheme followed by a slash.
"""


def is_public(address: str) -> bool:
    """Whether the gateway may contact this address for a client.

    Only global unicast addresses are allowed. If an IPv6 address contains an IPv4 address (mapped or
    tunnelled), the rule applies to the IPv4 address.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if inner is not None:
            return is_public(str(inner))
        if ip not in UNICAST:
            return False
    return (
        ip.is_global
        and not ip.is_multicast
        and not ip.is_reserved
        and not any(ip in network for network in NOT_FOR_CLIENTS)
    )


def problem(url: str) -> str:
    """Returns why a URL may not be passed on; "" if it may."""
    if _head(url)[:5].lower() == "data:":
        return "" if url[:5].lower() == "data:" else NOT_PLAIN
    match = _AUTHORITY.match(url[:LOOKED_AT])
    if match is None or _CONTROL.search(url) is not None or url != url.strip():
        return NOT_PLAIN
    host = _HOST.fullmatch(match[1])
    if host is None or int(host[2] or 0) > 65535:
        return NOT_PLAIN
    return _host_problem(host[1])


def _host_problem(host: str) -> str:
    if host.startswith("["):
        try:
            return "" if is_public(str(ipaddress.IPv6Address(host[1:-1]))) else URL_NOT_PUBLIC
        except ValueError:
            return NOT_PLAIN
    name = _ascii(host)
    if name is None or len(name) > LONGEST_HOST or _NAME.fullmatch(name) is None:
        return NOT_PLAIN
    labels = name.removesuffix(".").split(".")
    if _NUMBER.fullmatch(labels[-1]):  # an IPv4 address in any notation
        try:
            return "" if is_public(str(ipaddress.IPv4Address(".".join(labels)))) else URL_NOT_PUBLIC
        except ValueError:
            return URL_NOT_PUBLIC
    return URL_NOT_PUBLIC if len(labels) == 1 or f".{'.'.join(labels)}".endswith(INSIDE) else ""


def _ascii(host: str) -> str | None:
    """Returns a host as resolvers read it, in lower-case ASCII; None if it is invalid.

    Full-width digits and ideographic dots become plain digits and dots.
    """
    if host.isascii():
        return host.lower()
    try:
        return unicodedata.normalize("NFKC", host).encode("idna").decode("ascii").lower()
    except UnicodeError:
        return None


def _head(value: str) -> str:
    """Returns the beginning of a value without the characters that the URL standard ignores."""
    return value[:LOOKED_AT].lstrip(BLANKS).translate(_REMOVED)


def urls_in(part: Mapping[str, Any]) -> Iterator[str]:
    """Yields every string in a part, at any depth, that counts as a URL.

    A string counts as a URL if the name of its JSON member says so, or if it looks like a URL.
    """
    inside: list[tuple[str, Any]] = [("", part)]
    while inside:
        name, value = inside.pop()
        if isinstance(value, str):
            if value and (name.endswith(URL_NAMES) or (name not in TEXT_NAMES and _looks_like_url(value))):
                yield value
        elif isinstance(value, Mapping):
            inside += [(str(key).lower(), inner) for key, inner in value.items()]
        elif isinstance(value, list | tuple):
            inside += [(name, inner) for inner in value]


def _looks_like_url(value: str) -> bool:
    head = _head(value)
    schemes = _SCHEMES.match(head)
    if schemes is not None:
        return schemes[1].lower() in FETCHED or head[schemes.end() : schemes.end() + 1] in ("/", "\\")
    if len(head) < 64 and len(value) > LOOKED_AT:
        return True  # almost only white space: the rest is too long to check
    return head.startswith(("//", "\\\\", "/\\", "\\/")) and _BASE64.fullmatch(head) is None


REDIRECTS = frozenset({301, 302, 303, 307, 308})
NOT_PUBLIC = "its host is not a public address, or cannot be found"
_SAYING = (Message, Result)


@dataclass(frozen=True, slots=True)
class ImageLimits:
    bytes: int = 20 * 1024 * 1024
    all_bytes: int = 64 * 1024 * 1024
    pixels: int = 50_000_000
    images: int = 32
    redirects: int = 3
    timeout_s: float = 20.0


def checked(turn: Turn) -> Turn:
    """Returns the turn unchanged if the backend may fetch all URLs in it.

    Raises an error if a URL is not allowed.
    """
    for item in turn.items:
        if not isinstance(item, _SAYING):
            continue
        for part in item.parts:
            if isinstance(part, TextPart):
                continue
            named = urls_in(part.raw) if isinstance(part, OtherPart) else (part.url,) if part.url else ()
            for url in named:
                if why := problem(url):
                    code = "invalid_image_url" if isinstance(part, ImagePart) else None
                    message = (
                        f"A URL cannot be passed on: {why}. Use https:// with a public host, or a data: URL."
                    )
                    raise ToolwireError("invalid_value", message, param=_field(turn), code=code)
    return turn


def size_of(data: bytes) -> tuple[str, int, int] | None:
    """Returns media type, width and height of a PNG, GIF, JPEG or WebP image; None for other data."""
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
        return (
            "image/webp",
            int.from_bytes(data[24:27], "little") + 1,
            int.from_bytes(data[27:30], "little") + 1,
        )
    if kind == b"VP8 " and len(data) >= 30:
        width, height = struct.unpack("<HH", data[26:30])
        return "image/webp", width & 0x3FFF, height & 0x3FFF
    if kind == b"VP8L" and len(data) >= 25:
        bits = int.from_bytes(data[21:25], "little")
        return "image/webp", (bits & 0x3FFF) + 1, ((bits >> 14) & 0x3FFF) + 1
    return None


AT_ONCE = 4


class _Pinned(AbstractResolver):
    """A resolver that returns only those addresses of a host that were checked."""

    def __init__(self, addresses: list[tuple[int, str]]) -> None:
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host, host=address, port=port, family=kind, proto=0, flags=socket.AI_NUMERICHOST
            )
            for kind, address in self._addresses
        ]

    async def close(self) -> None:
        pass


class ImageFetcher:
    """Fetches images by URL.

    `allowed` decides whether an address may be contacted; tests replace it.
    """

    def __init__(self, limits: ImageLimits | None = None, allowed: Callable[[str], bool] = is_public) -> None:
        self._limits = limits or ImageLimits()
        self._allowed = allowed

    async def _all(self, urls: list[str], param: str) -> dict[str, str]:
        """Fetches the images, a few at a time.

        Returns a dict that maps each URL to the image's data URL. Raises an error if all images together are
        larger than the limit `all_bytes`.
        """
        found: dict[str, str] = {}
        for start in range(0, len(urls), AT_ONCE):
            some = urls[start : start + AT_ONCE]
            found.update(
                zip(some, await asyncio.gather(*(self.fetch(url, param) for url in some)), strict=True)
            )
            if sum(map(len, found.values())) * 3 // 4 > self._limits.all_bytes:
                raise _refused(
                    f"all images together are larger than {self._limits.all_bytes // 1048576} MB", param
                )
        return found

    async def inline(self, turn: Turn) -> Turn:
        """Returns the turn with every http(s) image replaced by a data URL."""
        urls = list(
            dict.fromkeys(
                part.url for _, part in _images(turn) if part.url and not part.url.startswith("data:")
            )
        )
        if not urls:
            return turn
        if len(urls) > self._limits.images:
            raise ToolwireError(
                "invalid_value",
                f"More than {self._limits.images} images are given by URL.",
                param=_field(turn),
            )
        try:
            async with asyncio.timeout(self._limits.timeout_s * 2):
                fetched = await self._all(urls, _field(turn))
        except TimeoutError:
            raise _refused("its server is too slow", _field(turn)) from None
        return replace(turn, items=tuple(_replaced(item, fetched) for item in turn.items))

    async def fetch(self, url: str, param: str = "") -> str:
        """Fetches one image and returns it as a data URL."""
        target = _read_url(url, param)
        for _ in range(self._limits.redirects + 1):
            found = await self._get(target, param)
            if isinstance(found, bytes):
                return self._as_data(found, param)
            target = _read_url(found, param, target)
        raise _refused("it redirects too often", param)

    async def _get(self, url: URL, param: str) -> bytes | str:
        addresses = await self._resolve(url.raw_host or "", param)
        judged = {address for _, address in addresses}

        def make_socket(info: Any) -> socket.socket:
            """Creates a socket. Raises an error if its address was not checked."""
            if info[4][0] not in judged:
                raise OSError("this address was not checked")
            return socket.socket(info[0], info[1], info[2])

        connector = aiohttp.TCPConnector(
            resolver=_Pinned(addresses), use_dns_cache=False, limit=1, socket_factory=make_socket
        )
        timeout = aiohttp.ClientTimeout(total=self._limits.timeout_s)
        try:
            async with (
                aiohttp.ClientSession(
                    connector=connector,
                    cookie_jar=aiohttp.DummyCookieJar(),
                    timeout=timeout,
                    auto_decompress=False,
                ) as session,
                session.get(
                    url, allow_redirects=False, headers={"Accept": "image/*", "Accept-Encoding": "identity"}
                ) as response,
            ):
                if response.status in REDIRECTS and "Location" in response.headers:
                    return response.headers["Location"]
                if response.status != 200:
                    raise _refused(f"its server answered {response.status}", param)
                return await self._read(response, param)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            raise _refused("its server cannot be reached", param) from None

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
            found: list[Any] = await asyncio.get_running_loop().getaddrinfo(
                host, None, type=socket.SOCK_STREAM
            )
        except (OSError, UnicodeError):
            raise _refused(NOT_PUBLIC, param) from None
        addresses = [(entry[0], entry[4][0]) for entry in found]
        if not addresses or not all(self._allowed(address) for _, address in addresses):
            raise _refused(NOT_PUBLIC, param)
        return addresses

    def _as_data(self, data: bytes, param: str) -> str:
        known = size_of(data)
        if known is None:
            raise _refused("it is not a PNG, JPEG, GIF or WebP image", param)
        media, width, height = known
        if not 0 < width * height <= self._limits.pixels:
            raise _refused(
                f"it has more than {self._limits.pixels // 1_000_000} million pixels, or none", param
            )
        return f"data:{media};base64,{base64.b64encode(data).decode()}"


def _read_url(text: str, param: str, base: URL | None = None) -> URL:
    try:
        url = URL(text) if base is None else base.join(URL(text))
        plain = (
            url.scheme in ("http", "https")
            and url.raw_host
            and not url.raw_user
            and not url.raw_password
            and url.port
        )
    except ValueError:
        plain = False
    if not plain:
        raise _refused("only plain http and https URLs are fetched", param)
    return url


def _refused(why: str, param: str) -> ToolwireError:
    return ToolwireError(
        "invalid_value", f"An image could not be fetched: {why}.", param=param, code="invalid_image_url"
    )


def _field(turn: Turn) -> str:
    return "input" if turn.api == "responses" else "messages"


def _images(turn: Turn) -> list[tuple[Item, ImagePart]]:
    return [
        (item, part)
        for item in turn.items
        if isinstance(item, _SAYING)
        for part in item.parts
        if isinstance(part, ImagePart)
    ]


def _replaced(item: Item, fetched: Mapping[str, str]) -> Item:
    if not isinstance(item, _SAYING):
        return item
    parts: tuple[Part, ...] = tuple(
        replace(part, url=fetched.get(part.url or "", part.url)) if isinstance(part, ImagePart) else part
        for part in item.parts
    )
    return replace(item, parts=parts)


def fetched_images(before: Turn, after: Turn) -> dict[str, str]:
    """Returns a dict that maps the URL of each fetched image to its data URL."""
    pairs = zip(_images(before), _images(after), strict=False)
    urls = ((old.url, new.url) for (_, old), (_, new) in pairs)
    return {old: new for old, new in urls if old and new and old != new}

"""URLs that are passed on for an upstream to fetch: which of them are allowed, and where they are in a part.

A URL in a request is a request that a client can make in the upstream's name. Only `data:` and http(s) with a
public host are passed on. Parsers disagree about oddly written URLs, and the upstream's parser is not ours, so
only the plain form is passed on: no control characters, no backslash or credentials before the path, exactly two
slashes, a host that every parser reads alike. An address must be written in its usual form. Pure.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

NOT_PLAIN = "only data: URLs and plain http and https URLs are passed on"
NOT_PUBLIC = "its host is not a public address"
NOT_FOR_CLIENTS = tuple(
    map(
        ipaddress.ip_network,
        ("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24", "64:ff9b::/96", "64:ff9b:1::/48", "2001::/23", "2001:db8::/32", "3fff::/20"),
    )
)
"""Besides what Python knows: clouds' own services that look public (Azure's, Oracle's), translators to IPv4, protocols, examples."""
UNICAST = ipaddress.ip_network("2000::/3")
INSIDE = (".localhost", ".local", ".internal", ".intranet", ".lan", ".home.arpa", ".svc")

LONGEST_HOST = 253
LOOKED_AT = 8192
"""Characters of a value that are looked at: a scheme and a host are far shorter."""
BLANKS = "".join(character for character in map(chr, range(0x3001)) if character <= " " or character.isspace())
"""What the URL standard strips at both ends (control characters and spaces), and what Python's `strip` does."""
_REMOVED = {ord(character): None for character in "\t\n\r"}
"""What the URL standard removes everywhere."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SCHEMES = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,63}):(?:[A-Za-z][A-Za-z0-9+.-]{0,63}:)*")
_AUTHORITY = re.compile(r"https?://([^/\\?#@]+)(?:[/?#]|$)", re.IGNORECASE)
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:%]+)(?::([0-9]{0,5}))?")
_NAME = re.compile(r"(?:[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?\.?")
_NUMBER = re.compile(r"(?:[0-9]+|0x[0-9a-f]*)")
_BASE64 = re.compile(r"[A-Za-z0-9+/=_-]*")
URL_NAMES = ("url", "urls", "uri", "uris", "href", "src")
"""A member whose name ends so holds a URL, whatever it looks like."""
TEXT_NAMES = frozenset({"type", "text", "title", "name", "filename", "caption", "description", "transcript", "refusal"})
"""Members that are only read."""
FETCHED = frozenset(
    ("http", "https", "file", "ftp", "ftps", "sftp", "gopher", "dict", "ldap", "ldaps", "tftp", "smb", "jar", "netdoc", "php", "expect")
)
"""Schemes that some fetcher knows; with these, and with any scheme before a slash, a value looks like a URL."""


def is_public(address: str) -> bool:
    """Whether an address may be reached for a client: global unicast, also behind an IPv4-mapped or tunnelled form."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if inner is not None:
            return is_public(str(inner))
        if ip not in UNICAST:
            return False
    return ip.is_global and not ip.is_multicast and not ip.is_reserved and not any(ip in network for network in NOT_FOR_CLIENTS)


def problem(url: str) -> str:
    """Why a URL may not be passed on; "" where it may."""
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
            return "" if is_public(str(ipaddress.IPv6Address(host[1:-1]))) else NOT_PUBLIC
        except ValueError:
            return NOT_PLAIN
    name = _ascii(host)
    if name is None or len(name) > LONGEST_HOST or _NAME.fullmatch(name) is None:
        return NOT_PLAIN
    labels = name.removesuffix(".").split(".")
    if _NUMBER.fullmatch(labels[-1]):  # an address, in whichever spelling
        try:
            return "" if is_public(str(ipaddress.IPv4Address(".".join(labels)))) else NOT_PUBLIC
        except ValueError:
            return NOT_PUBLIC
    return NOT_PUBLIC if len(labels) == 1 or f".{'.'.join(labels)}".endswith(INSIDE) else ""


def _ascii(host: str) -> str | None:
    """A host as resolvers get it: full-width digits and ideographic dots are digits and dots there."""
    if host.isascii():
        return host.lower()
    try:
        return unicodedata.normalize("NFKC", host).encode("idna").decode("ascii").lower()
    except UnicodeError:
        return None


def _head(value: str) -> str:
    """The beginning of a value as the URL standard reads it."""
    return value[:LOOKED_AT].lstrip(BLANKS).translate(_REMOVED)


def urls_in(part: Mapping[str, Any]) -> Iterator[str]:
    """Every value of a part that is a URL by its member's name, or looks like one, however deep it is."""
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
        return True  # nearly nothing but blanks: whatever follows them is not looked at
    return head.startswith(("//", "\\\\", "/\\", "\\/")) and _BASE64.fullmatch(head) is None

"""Requests that come through a proxy: who asked it, how, and for which host.

Rules: X-Forwarded-For, -Proto and -Host are believed only from the addresses of `server.trusted_proxies`; from anybody else they are nothing but
headers. Of a chain the last address that is no proxy of ours is the client; what stands before it anybody can have written. A trusted proxy that does
not say who asked it has asked for somebody unknown, who is nobody on this machine.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from starlette.types import Scope

from toolwire.config import ConfigError
from toolwire.surfaces.http.auth import Headers, proxy_signs

FOR, PROTO, HOST = b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"
UNKNOWN = ("", 0)
OWN = "toolwire.own"
"""Stands in every scope: the scheme and the address of this server's own socket, whatever a proxy says."""
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")
_PORT = re.compile(r"^(?:\[([^\]]*)\](?::\d+)?|([0-9.]+):\d+)$")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Proxies:
    """`trusted` are addresses, or networks such as 10.0.0.0/8."""

    def __init__(self, trusted: Iterable[str]) -> None:
        self._networks = [_network(text) for text in trusted]
        self._verdicts: dict[str, bool] = {}

    def __bool__(self) -> bool:
        return bool(self._networks)

    def trusts(self, address: str) -> bool:
        verdict = self._verdicts.get(address)
        if verdict is None:
            found = _address(address)
            verdict = found is not None and any(found in network for network in self._networks if network.version == found.version)
            if len(self._verdicts) < 1024:
                self._verdicts[address] = verdict
        return verdict

    def seen(self, scope: Scope, headers: Headers) -> Scope:
        """The scope as the proxy saw it, where the proxy is one of ours; `headers` are put right too."""
        client = scope.get("client")
        if client is None or not self.trusts(client[0]):
            return scope
        changed = {**scope, "client": self._client(headers.get(FOR, b""))}
        proto = _last(headers.get(PROTO, b"")).lower()
        if proto in (b"http", b"https"):
            changed["scheme"] = proto.decode()
        host = _last(headers.get(HOST, b""))
        if host and _HOST.fullmatch(host):
            headers[b"host"] = host
            changed["headers"] = [*((name, value) for name, value in scope["headers"] if name != b"host"), (b"host", host)]
        settled(headers)
        return changed

    def _client(self, chain: bytes) -> tuple[str, int]:
        for entry in reversed(chain.decode("latin-1").split(",")):
            address = _address(entry.strip())
            if address is None:
                return UNKNOWN
            if not self.trusts(str(address)):
                return str(address), 0
        return UNKNOWN


def settled(headers: Headers) -> None:
    """Removes a proxy's headers: a trusted proxy sent them and they have been read, by this node or by the one that passed the request on."""
    for name in proxy_signs(headers):
        del headers[name]


def _last(value: bytes) -> bytes:
    return value.rpartition(b",")[2].strip()


def _address(text: str) -> Address | None:
    match = _PORT.match(text)
    try:
        found = ipaddress.ip_address((match[1] or match[2]) if match is not None else text.partition("%")[0])
    except ValueError:
        return None
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        raise ConfigError(f'server.trusted_proxies: expected addresses or networks such as "10.0.0.0/8", got "{text}"') from None

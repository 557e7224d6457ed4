"""Access control: host names, origins, keys, and CORS headers.

- A server bound to loopback accepts only loopback host names, so that a foreign page cannot reach it by DNS
  rebinding.
- A foreign Origin is refused before anything runs.
- Keys are compared in constant time (`access/keyring.py`). If there are no keys, only loopback clients are
  served, and requests with headers of an untrusted proxy are refused.
- An allowed origin gets CORS headers on every response, including errors and streams. The preflight echoes
  the requested headers.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from starlette.types import Scope

from toolwire.access.keyring import KeyRing
from toolwire.access.keys import KeyHolder
from toolwire.access.limits import ANTHROPIC_HEADERS, RATE_LIMIT_HEADERS
from toolwire.core.errors import ToolwireError
from toolwire.settings.types import ConfigError, is_loopback

if TYPE_CHECKING:
    from toolwire.settings.types import ServerSettings

Headers = dict[bytes, bytes]
HeaderList = list[tuple[bytes, bytes]]

ALLOWED_ORIGINS = frozenset({"app://obsidian.md", "capacitor://localhost"})
METHODS = b"GET, POST, DELETE, HEAD, OPTIONS"
EXPOSED = b", ".join(
    (
        b"x-request-id",
        b"request-id",
        b"x-toolwire-model",
        b"x-toolwire-report",
        b"x-toolwire-turn",
        b"x-toolwire-tools",
        b"x-codex-tool-call-count",
        b"x-codex-tool-call-truncated",
        b"x-codex-stop-after-tools-mode",
        b"retry-after",
        b"retry-after-ms",
        *(name for names in RATE_LIMIT_HEADERS.values() for name in names),
        *(name for names in ANTHROPIC_HEADERS.values() for name in names),
    )
)
BY_PROXY = (
    "This request came through a proxy that server.trusted_proxies does not name. "
    "Set server.keys, or name the proxy."
)
PROXY_SIGNS = frozenset(
    {
        *(b"forwarded", b"forwarded-for", b"x-forwarded", b"via", b"cdn-loop", b"surrogate-capability"),
        *(
            b"client-ip",
            b"x-client-ip",
            b"true-client-ip",
            b"x-true-client-ip",
            b"x-cluster-client-ip",
            b"incap-client-ip",
        ),
        *(
            b"remote-addr",
            b"x-remote-addr",
            b"x-remote-ip",
            b"x-proxyuser-ip",
            b"proxy-client-ip",
            b"wl-proxy-client-ip",
        ),
        *(
            b"x-nf-client-connection-ip",
            b"do-connecting-ip",
            b"ali-cdn-real-ip",
            b"cdn-src-ip",
            b"x-amz-cf-id",
        ),
        *(b"x-arr-log-id", b"x-arr-ssl", b"x-nginx-proxy", b"x-scheme", b"x-varnish"),
    }
)
PROXY_PREFIXES = (
    *(b"x-forwarded-", b"x-real-", b"x-original-", b"x-envoy-", b"cf-", b"cloudfront-", b"fastly-", b"fly-"),
    *(b"x-azure-", b"x-appengine-", b"x-vercel-", b"tailscale-"),
)
"""Headers that proxies, load balancers and CDNs add to a request.

A proxy that adds none of these headers cannot be recognized.
"""
REMEMBERED = 256
"""How many Host and Origin values are cached. A full cache is cleared."""

_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://(\[[0-9a-f:.]+\]|[^\s:/?#@\[\]]+)(?::(\d{1,5}))?")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/?#@\[\]]+)(?::(\d{1,5}))?")
_HEADER_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{0,4096}")


SINGLE = frozenset({b"host", b"origin", b"authorization", b"x-api-key", b"content-length", b"content-type"})


_PROXY_SIGN = re.compile(
    b"|".join([*(re.escape(name) + rb"\Z" for name in PROXY_SIGNS), *map(re.escape, PROXY_PREFIXES)])
)


def proxy_signs(headers: Headers) -> list[bytes]:
    """Returns the names of those headers of a request that only a proxy adds."""
    return list(filter(_PROXY_SIGN.match, headers))


def check_single(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raises an error if a header that is used for a decision, such as Host, was sent twice.

    Otherwise a proxy could check one of the values while this server uses the other.
    """
    names = [name for name, _ in headers if name in SINGLE]
    if len(names) != len(set(names)):
        raise ToolwireError("invalid_request", "A header that may occur only once was sent twice.")


class Gate:
    """Checks a request's Host, Origin and key against the server's settings.

    Decisions about Host and Origin are cached.
    """

    def __init__(self, server: ServerSettings, ring: KeyRing | None = None) -> None:
        """`ring` has all valid keys; None: only the keys in the settings (`server`) are valid."""
        self.ring = ring or KeyRing(server.keys, server.admin_keys)
        self._check_hosts = is_loopback(server.host)
        self._hosts = frozenset(host.lower().rstrip(".") for host in server.hosts)
        self._any_origin = "*" in server.origins
        self._origins = ALLOWED_ORIGINS | {_plain_origin(origin) for origin in server.origins}
        self._host_verdicts: dict[bytes, bool] = {}
        self._origin_verdicts: dict[bytes, bool] = {}

    # --- Host and Origin ---

    def check_place(self, headers: Headers, scope: Scope) -> None:
        """Raises an error unless the Host and Origin headers are allowed.

        Also raises an error if a header that is used for a decision occurs more than once. `headers`: the
        headers of `scope`, by name.
        """
        if len(headers) != len(scope["headers"]):
            check_single(scope["headers"])
        host = headers.get(b"host")
        if self._check_hosts and not (
            self._host_verdicts.get(host) or self._host_allowed(host)
            if host is not None
            else scope.get("http_version", "1.1") == "1.0"
        ):
            raise ToolwireError(
                "forbidden_host",
                "This server answers only to loopback host names; add others to server.hosts.",
            )
        origin = headers.get(b"origin")
        if origin is not None and not self.origin_allowed(origin, host):
            raise ToolwireError(
                "forbidden_origin",
                "This web origin may not use this server; add it to server.origins to allow it.",
            )

    def _host_allowed(self, host: bytes) -> bool:
        verdict = self._host_verdicts.get(host)
        if verdict is None:
            match = _HOST.fullmatch(host.decode("latin-1").lower())
            verdict = match is not None and (
                is_loopback(match[1]) or match[1].rstrip(".") in self._hosts or match[0] in self._hosts
            )
            _remember(self._host_verdicts, host, verdict)
        return verdict

    def origin_allowed(self, origin: bytes, host: bytes | None) -> bool:
        """Returns whether the origin is in the settings, on loopback, or this server's own origin."""
        verdict = self._origin_verdicts.get(origin)
        if verdict is None:
            verdict = self._judge_origin(origin.decode("latin-1"))
            if verdict or not self._any_origin:  # with "*", the result changes when the first key is added
                _remember(self._origin_verdicts, origin, verdict)
        return verdict or (
            host is not None and origin.lower() in (b"http://" + host.lower(), b"https://" + host.lower())
        )

    def _judge_origin(self, origin: str) -> bool:
        plain = _plain_origin(origin)
        match = _ORIGIN.fullmatch(plain)
        if plain in self._origins or (
            self._any_origin and self.ring.needed and (match is not None or plain == "null")
        ):
            return True
        return match is not None and match[1] in ("http", "https") and is_loopback(match[2])

    # --- the caller ---

    async def caller(self, headers: Headers, client: tuple[str, int] | None) -> KeyHolder:
        """Returns the holder of the caller's key. Raises an error if the caller has no valid key.

        For a key in the settings, this does not wait until the stored keys have been read again.
        """
        ring = self.ring
        is_due = ring.due
        if ring.needed:
            found = self._found(headers)
            if found is not None and (not is_due or (found.lasting and ring.refresh_behind())):
                return found
        if is_due:
            await ring.refresh()
        try:
            return self.identify(headers, client)
        except ToolwireError as error:
            if error.failure.kind != "authentication":
                raise
        await ring.look_again()
        return self.identify(headers, client, looked=True)

    def check_caller(self, headers: Headers, client: tuple[str, int] | None) -> str:
        """Returns the id of the caller's key, or "" if the server has no keys.

        Raises an error if the caller has no valid key.
        """
        return self.identify(headers, client).key_id

    def identify(self, headers: Headers, client: tuple[str, int] | None, looked: bool = False) -> KeyHolder:
        """Returns the holder of the caller's key, looked up only among the keys that were already read.

        Raises an error if no holder is found. `looked`: whether the stored keys were just read again. If that
        read failed, the error says that the client may retry, because the key may be new.
        """
        if not self.ring.needed:
            self.ring.check_known()
            if client is not None and not is_loopback(client[0]):
                local = "Without API keys, this server serves only clients on the same machine"
                raise ToolwireError("permission", f"{local}; set server.keys, or run toolwire keys add.")
            # A proxy on this machine connects from loopback even for remote clients.
            if any(map(_PROXY_SIGN.match, headers)):
                raise ToolwireError("permission", BY_PROXY)
            return self.ring.anyone
        if not any(_tokens(headers)):
            raise ToolwireError(
                "authentication",
                "You didn't provide an API key. Provide it in a header: Authorization: Bearer YOUR_KEY",
            )
        found = self._found(headers)
        if found is None:
            self.ring.check_known(new=looked)
            raise ToolwireError("authentication", "Incorrect API key provided.")
        return found

    def _found(self, headers: Headers) -> KeyHolder | None:
        """Returns the holder of the first valid key that the caller sent; None if no key is valid.

        Claude Code may send two keys, of which only one is for Toolwire.
        """
        for token in _tokens(headers):
            if token and (found := self.ring.find(token)) is not None:
                return found
        return None

    # --- CORS ---

    def cors(self, headers: Headers) -> HeaderList:
        """Returns the CORS headers for the response: an empty list if the request has no Origin header."""
        origin = headers.get(b"origin")
        if origin is None:
            return []
        if not self.origin_allowed(origin, headers.get(b"host")):
            return [(b"vary", b"Origin")]
        return [
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", EXPOSED),
            (b"vary", b"Origin"),
        ]

    def preflight(self, headers: Headers) -> HeaderList:
        """Returns the headers of the 204 response to OPTIONS.

        A foreign origin gets the 204 too, but without the headers that would allow it to send requests.
        """
        vary = (b"vary", b"Origin, Access-Control-Request-Headers, Access-Control-Request-Private-Network")
        origin = headers.get(b"origin")
        host = headers.get(b"host")
        if self._check_hosts and host is not None and not self._host_allowed(host):
            return [vary]
        if origin is not None and not self.origin_allowed(origin, host):
            return [vary]
        asked = headers.get(b"access-control-request-headers", b"")
        out = [
            (b"access-control-allow-methods", METHODS),
            (
                b"access-control-allow-headers",
                asked if asked and _HEADER_NAMES.fullmatch(asked) else b"authorization, content-type",
            ),
            (b"access-control-max-age", b"600"),
            (b"allow", METHODS),
            vary,
        ]
        if origin is not None:
            out.append((b"access-control-allow-origin", origin))
            if headers.get(b"access-control-request-private-network", b"").lower() == b"true":
                out.append((b"access-control-allow-private-network", b"true"))
        return out


def _tokens(headers: Headers) -> tuple[bytes, bytes]:
    """Returns the keys in the headers `Authorization` and `x-api-key`; b"" for a header without a key."""
    scheme, _, token = headers.get(b"authorization", b"").strip().partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b"", headers.get(b"x-api-key", b"").strip()


def _plain_origin(origin: str) -> str:
    return origin.strip().lower().rstrip("/")


def _remember(verdicts: dict[bytes, bool], value: bytes, verdict: bool) -> None:
    if len(verdicts) >= REMEMBERED:
        verdicts.clear()
    if len(value) <= 512:
        verdicts[value] = verdict


# --- pacing of refusals ---
#
# A client that keeps sending requests after a 401 or 429 must not take time from others. Each requester (a
# key, or an address if the key is unknown) gets `AT_ONCE` refusals per second without delay. Each further
# refusal is sent `HELD_S` later. An SDK that waits for the time in `retry-after` is never delayed.

PACED = frozenset({401, 429})
AT_ONCE = 50
HELD_S = 0.25


class Pace:
    __slots__ = ("_clock", "_refused", "_until")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._refused: Counter[str] = Counter()
        self._until = 0.0

    def wait_s(self, requester: str) -> float:
        """Counts a refusal and returns for how many seconds its response must be delayed."""
        now = self._clock()
        if now >= self._until:
            self._refused, self._until = Counter(), now + 1.0
        self._refused[requester] += 1
        return HELD_S if self._refused[requester] > AT_ONCE else 0.0

    async def hold(self, status: int, requester: str) -> None:
        if status in PACED and (wait_s := self.wait_s(requester)):
            await asyncio.sleep(wait_s)


# --- trusted proxies ---
#
# X-Forwarded-For, -Proto and -Host are used only if they come from an address in `server.trusted_proxies`.
# The client is the last address of the chain that is not a trusted proxy, because the client itself may have
# written the addresses before it. If a trusted proxy does not name its client, the client is unknown and
# never counts as local.

FOR, PROTO, HOST = b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"
UNKNOWN = ("", 0)
OWN = "toolwire.own"
"""The key in the ASGI scope with the scheme and address of this server's own socket.

A proxy's headers can change `scheme` and `server` in the scope, but not this entry.
"""
_FORWARDED_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")
_PORT = re.compile(r"^(?:\[([^\]]*)\](?::\d+)?|([0-9.]+):\d+)$")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Proxies:
    """The trusted proxies. `trusted`: addresses, or networks such as 10.0.0.0/8."""

    def __init__(self, trusted: Iterable[str]) -> None:
        self._networks = [_network(text) for text in trusted]
        self._verdicts: dict[str, bool] = {}

    def trusts(self, address: str) -> bool:
        verdict = self._verdicts.get(address)
        if verdict is None:
            found = _address(address)
            verdict = found is not None and any(
                found in network for network in self._networks if network.version == found.version
            )
            if len(self._verdicts) < 1024:
                self._verdicts[address] = verdict
        return verdict

    def seen(self, scope: Scope, headers: Headers) -> Scope:
        """Returns the scope with the client, scheme and host that a trusted proxy reports.

        The host in `headers` is changed too. If the request is not from a trusted proxy, `scope` is returned
        unchanged.
        """
        client = scope.get("client")
        if client is None or not self.trusts(client[0]):
            return scope
        changed = {**scope, "client": self._client(headers.get(FOR, b""))}
        proto = _last(headers.get(PROTO, b"")).lower()
        if proto in (b"http", b"https"):
            changed["scheme"] = proto.decode()
        host = _last(headers.get(HOST, b""))
        if host and _FORWARDED_HOST.fullmatch(host):
            headers[b"host"] = host
            changed["headers"] = [
                *((name, value) for name, value in scope["headers"] if name != b"host"),
                (b"host", host),
            ]
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
    """Deletes a request's proxy headers after Toolwire has used them."""
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
        raise ConfigError(
            f'server.trusted_proxies: expected addresses or networks such as "10.0.0.0/8", got "{text}"'
        ) from None

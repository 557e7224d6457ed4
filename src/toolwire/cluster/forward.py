"""Forwards a request that continues a parked run to the node that owns the run.

A parked run is a run that waits for the client's tool results. It waits on one node, its owner.

- A request is forwarded at most once. The sending node signs it with a seal (the header `x-toolwire-hop`).
  The receiving node answers the request or refuses it. A request with an invalid seal is refused, so a client
  cannot pose as a node.
- If the owner of a run cannot be reached or refuses, the sending node replays the run from the request's
  history, as long as nothing has been sent to the client.
- If the owner is lost in the middle of a stream, the stream ends with an error in the format of its API.
- If the client disconnects, the connection to the owner is closed, and the owner cancels the run.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import socket
from collections.abc import Awaitable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import aiohttp
from prometheus_client import CollectorRegistry, Counter
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope
from yarl import URL

from toolwire.access.gate import HeaderList, Headers
from toolwire.cluster.nodes import Nodes, Peer, node_address
from toolwire.cluster.relay import NETWORK_ERRORS, Relay, reason
from toolwire.core.errors import ToolwireError
from toolwire.core.ids import random_id
from toolwire.core.turn import Api
from toolwire.gateway.parked import Parking
from toolwire.gateway.records import Answer
from toolwire.observe.logs import RequestLog

if TYPE_CHECKING:
    from toolwire.gateway.pipeline import Gateway
    from toolwire.observe.metrics import Metrics
    from toolwire.settings.types import Settings

HOP = b"x-toolwire-hop"
FORWARDED = "toolwire.hop"
"""A key in the ASGI scope of a forwarded request. Its value is the id of the sending node."""
CONNECT_S = 2.0
METRICS_S = 2.0
REFUSALS = frozenset({403, 421, 503, 529})
"""HTTP statuses with which a node refuses a forwarded request.

The reason is that the run no longer waits there, that the node shuts down, or that it does not accept the
seal.
"""
MAX_CALLS = 50_000
"""The maximum number of call ids in a body. If there are more, all are ignored, and this node answers."""
CONNECTION_HEADERS = frozenset(
    "connection content-length date expect keep-alive proxy-connection server te trailer transfer-encoding "
    "upgrade".split()
)
_SET_BY_SENDER = CONNECTION_HEADERS | {"x-request-id", HOP.decode()}
_SET_BY_RECEIVER = CONNECTION_HEADERS | {"x-request-id", "x-content-type-options"}
_ANSWER_HEADER = re.compile(
    r"content-type|retry-after(?:-ms)?|(?:x-toolwire|x-codex|x-ratelimit|anthropic-ratelimit|openai)-.+"
)
_CALL_ID = re.compile(rb'"(?:tool_call_id|call_id|tool_use_id)"\s*:\s*"([^"\\]{1,200})"')
_KEEPALIVE = (
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 10),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
)

log = logging.getLogger("toolwire.nodes")


def call_ids(raw: bytes) -> list[str]:
    """Returns the ids of calls and results in a body, in order, without parsing the JSON.

    In a JSON string every quote is escaped, so text inside a message is never taken for an id.
    """
    if raw.count(b'call_id"') + raw.count(b'use_id"') > MAX_CALLS:
        return []
    return list(dict.fromkeys(found.decode("utf-8", "replace") for found in _CALL_ID.findall(raw)))


class Forwardable(Protocol):
    """A request that another node may answer."""

    scope: Scope
    headers: Headers
    request_id: str

    async def begin(self, status: int, headers: HeaderList) -> None: ...

    def piece(self, block: bytes) -> Awaitable[None]: ...

    async def end(self) -> None: ...


# --- sealed requests ----------------------------------------------------------------------------------------


class NodeSeals:
    """Signs requests to other nodes, and checks the seals of requests from other nodes.

    `addresses`: further addresses under which other nodes reach this node.
    """

    def __init__(self, nodes: Nodes, addresses: Collection[str] = ()) -> None:
        self._nodes = nodes
        self._addresses = (nodes.address, *addresses)

    def headers(self, scope: Scope, request_id: str, address: str) -> list[tuple[str, str]]:
        """Returns the request's headers, plus a seal for the node at this address."""
        own = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"])
        kept = [(name, value) for name, value in own if name not in _SET_BY_SENDER]
        sender = (self._nodes.id, scope.get("scheme", "http"), (scope.get("client") or ("",))[0])
        seal = ";".join((*sender, self._nodes.sign(*_facts(sender, address, scope, request_id))))
        return [*kept, ("x-request-id", request_id), (HOP.decode(), seal)]

    def opened(self, exchange: Forwardable) -> Scope:
        """Returns the request's scope as it was on the sending node.

        Raises an error if the seal is invalid.
        """
        scope, id = exchange.scope, exchange.request_id
        *sender, signature = exchange.headers[HOP].decode("latin-1").split(";")
        facts = (_facts(tuple(sender), address, scope, id) for address in self._addresses)
        if len(sender) != 3 or not any(self._nodes.signed(signature, *each) for each in facts):
            log.warning(
                "a request has a seal that no node wrote; is server.node_secret the same on every node?"
            )
            message = f"The header {HOP.decode()} is only for the nodes of this server."
            raise ToolwireError("permission", message)
        node, scheme, client = sender
        return {**scope, "scheme": scheme, "client": (client, 0) if client else None, FORWARDED: node}


def _facts(sender: tuple[str, ...], address: str, scope: Scope, request_id: str) -> tuple[str, ...]:
    headers = dict(scope["headers"])
    keys = headers.get(b"authorization", b"") + b"\n" + headers.get(b"x-api-key", b"")
    key = hashlib.sha256(keys).hexdigest()
    return ("hop", *sender, address, scope["method"], _target(scope), request_id, key)


def _target(scope: Scope) -> str:
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope.get("query_string", b"")
    return path.split(b"?")[0].decode("latin-1") + ("?" + query.decode("latin-1") if query else "")


class NodeClient:
    """Sends requests with a seal. Each uses a new connection, so it fails at once if the node is down."""

    def __init__(self, seals: NodeSeals) -> None:
        self._seals = seals
        self._session: aiohttp.ClientSession | None = None

    async def send(
        self, address: str, scope: Scope, request_id: str, body: bytes = b""
    ) -> aiohttp.ClientResponse:
        """Sends the request and returns the response when its headers have arrived.

        The caller must close the response.
        """
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, force_close=True, socket_factory=_keepalive_socket),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                skip_auto_headers=("accept", "accept-encoding", "content-type", "user-agent"),
            )
        url = URL(address + _target(scope), encoded=True)
        headers = self._seals.headers(scope, request_id, address)
        return await self._session.request(
            scope["method"], url, data=body or None, headers=headers, allow_redirects=False
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


def _keepalive_socket(info: Any) -> socket.socket:
    """Returns a socket that notices within half a minute if the peer has disappeared."""
    made = socket.socket(info[0], info[1], info[2])
    for level, name, value in _KEEPALIVE:
        if hasattr(socket, name):
            with suppress(OSError):
                made.setsockopt(level, getattr(socket, name), value)
    return made


# --- turns --------------------------------------------------------------------------------------------------


class Forwarding:
    """Decides which node answers a turn."""

    def __init__(
        self,
        nodes: Nodes,
        parking: Parking,
        registry: CollectorRegistry,
        addresses: Collection[str] = (),
        log: RequestLog | None = None,
    ) -> None:
        self.nodes = nodes
        self.log = log or RequestLog()
        self.seals = NodeSeals(nodes, addresses)
        self.client = NodeClient(self.seals)
        self._parking = parking
        about = "Turns that this node forwarded to another node, by outcome."
        self._outcomes = Counter("toolwire_turns_passed_on", about, ("outcome",), registry=registry)

    async def close(self) -> None:
        await self.client.close()
        await self.nodes.close()

    async def answer(self, api: Api, exchange: Forwardable, raw: bytes, key_id: str) -> Answer | None:
        """Returns the answer of the node that owns the run, or None if this node must answer."""
        calls = call_ids(raw)
        here = self._parking.holds(calls)
        if FORWARDED in exchange.scope and not here:
            message = "The run that this request continues has ended on this node."
            raise ToolwireError("overloaded", message, code="park_gone", retry_after_s=1)
        if here or not calls:
            return None
        peer = await self.nodes.owner(calls, key_id)
        if peer is None:
            return None
        outcome, answer = await self._forward(peer, api, exchange, raw)
        self._outcomes.labels(outcome).inc()
        self.log.passed_on(exchange.request_id, key_id, api, peer.id, outcome)
        return answer

    async def _forward(
        self, peer: Peer, api: Api, exchange: Forwardable, raw: bytes
    ) -> tuple[str, Answer | None]:
        try:
            response = await self.client.send(peer.address, exchange.scope, exchange.request_id, raw)
        except NETWORK_ERRORS as error:
            self.nodes.shun(peer)
            problem = "node %s at %s cannot be reached (%s); its run is replayed here"
            log.warning(problem, peer.id, peer.address, reason(error))
            return "unreachable", None
        kept = False
        try:
            if response.status in REFUSALS:
                problem = "node %s refused to continue its run (HTTP %d); the run is replayed here"
                log.info(problem, peer.id, response.status)
                return "refused", None
            headers = _answer_headers(response.headers)
            if response.content_type != "text/event-stream":
                return "passed", Answer(headers, await response.read(), status=response.status)
            relay = Relay(response, api)
            kept = await relay.begun()
            return ("passed", Answer(headers, stream=relay)) if kept else ("cut", None)
        except NETWORK_ERRORS as error:
            problem = "node %s was lost before it answered (%s); its run is replayed here"
            log.warning(problem, peer.id, reason(error))
            return "cut", None
        finally:
            if not kept:
                response.close()


def _answer_headers(headers: Mapping[str, str]) -> HeaderList:
    """Returns those headers of the owner's response that the client gets. This node adds its own headers."""
    lower = ((name.lower(), value.encode("latin-1", "replace")) for name, value in headers.items())
    return [(name.encode(), value) for name, value in lower if _ANSWER_HEADER.fullmatch(name)]


# --- worker processes of one server -------------------------------------------------------------------------

PLAIN = "text/plain; version=0.0.4; charset=utf-8"
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (.*)")


class Siblings:
    """The other workers of this server.

    `number`: this worker's number. `addresses`: the addresses of all workers. Worker 0 serves the web pages,
    because the pages need all their state in one process. Every worker serves the metrics of all workers,
    labelled with the number of the worker.
    """

    def __init__(self, number: int, addresses: Sequence[str], client: NodeClient) -> None:
        self._number = number
        self._addresses = tuple(addresses)
        self._client = client

    @property
    def has_pages(self) -> bool:
        return self._number == 0

    async def page(self, exchange: Forwardable, raw: bytes) -> None:
        """Sends the client the response of worker 0."""
        try:
            response = await self._client.send(self._addresses[0], exchange.scope, exchange.request_id, raw)
        except NETWORK_ERRORS:
            message = "The worker that serves the pages is restarting."
            raise ToolwireError("overloaded", message, retry_after_s=1) from None
        try:
            await exchange.begin(response.status, list(_page_headers(response.headers)))
            async for piece in response.content.iter_any():
                await exchange.piece(piece)
            await exchange.end()
        finally:
            response.close()

    async def metrics(self, request: Request, own: Metrics) -> Response:
        """Returns the metrics of all workers. A worker that does not answer is left out."""
        page = own.page("text/plain")[0].decode()
        if FORWARDED not in request.scope:
            numbers = [number for number in range(len(self._addresses)) if number != self._number]
            others = await asyncio.gather(*(self._metrics_of(number, request) for number in numbers))
            pages = {self._number: page, **dict(zip(numbers, others, strict=True))}
            page = merged(dict(sorted(pages.items())))
        return Response(page, media_type=PLAIN)

    async def _metrics_of(self, number: int, request: Request) -> str:
        scope = {**request.scope, "method": "GET", "raw_path": b"/metrics", "query_string": b""}
        try:
            async with asyncio.timeout(METRICS_S):
                response = await self._client.send(self._addresses[number], scope, random_id("req_"))
                try:
                    return (await response.read()).decode() if response.status == 200 else ""
                finally:
                    response.close()
        except NETWORK_ERRORS as error:
            log.warning("the metrics of worker %d are missing: %s", number, reason(error))
            return ""


def _page_headers(headers: Mapping[str, str]) -> Iterator[tuple[bytes, bytes]]:
    for name, value in headers.items():
        if name.lower() not in _SET_BY_RECEIVER or name.lower() == "content-length":
            yield name.lower().encode(), value.encode("latin-1")


def merged(pages: dict[int, str]) -> str:
    """Merges the workers' pages of metrics. Each sample gets a label with the worker's number."""
    heads: dict[str, dict[str, str]] = {}  # HELP and TYPE lines by metric family
    samples: dict[str, list[str]] = {}
    for number, page in pages.items():
        family = ""
        for line in page.splitlines():
            if line.startswith("# "):
                _, kind, family = line.split(" ", 3)[:3]
                heads.setdefault(family, {}).setdefault(kind, line)
            elif (match := _SAMPLE.fullmatch(line)) is not None:
                labels = ",".join(filter(None, (match[2], f'worker="{number}"')))
                samples.setdefault(family, []).append(f"{match[1]}{{{labels}}} {match[3]}")
    families = {**heads, **samples}
    lines = (line for name in families for line in (*heads.get(name, {}).values(), *samples.get(name, ())))
    return "".join(f"{line}\n" for line in lines)


# --- joining the other nodes --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """The number, addresses and sockets of one worker.

    `siblings`: the addresses of all workers, including this one. `private`: two sockets on which only this
    worker accepts connections: one for other nodes, one for the other workers of this server. A connection to
    the shared sockets could reach any worker.
    """

    number: int = 0
    siblings: Sequence[str] = ()
    address: str = ""
    private: Sequence[socket.socket] = ()
    lifeline: int = -1
    """A pipe that closes when the parent process ends."""
    secret: str = ""
    """The secret in the server's record (`running.py`)."""


ALONE = WorkerContext()


class NodeApp(Protocol):
    """The attributes of the application that `join` needs."""

    log: RequestLog
    metrics: Metrics
    forwarding: Forwarding | None
    siblings: Siblings | None


def join(app: NodeApp, gateway: Gateway, settings: Settings, port: int, part: WorkerContext) -> Nodes | None:
    """Connects the application with the other nodes. Returns None if Redis is not configured.

    The caller must start the returned `Nodes`.
    """
    if not settings.store.redis:
        return None
    address = part.address or node_address(settings, port)
    nodes = Nodes(settings.store.redis, address, settings.server.node_secret, gateway.parking.waiting)
    gateway.parking.board = nodes
    own = part.siblings[part.number : part.number + 1]
    app.log.node = nodes.id
    app.forwarding = Forwarding(nodes, gateway.parking, app.metrics.registry, own, app.log)
    app.metrics.watch_nodes(nodes)
    if part.siblings:
        app.siblings = Siblings(part.number, part.siblings, app.forwarding.client)
    return nodes

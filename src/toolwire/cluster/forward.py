"""A request that landed on the wrong node is passed on to the right one, and what comes back goes through as it comes.

Rules:
- A request is passed on once: it carries a seal that only a node can write, and a node that finds the seal serves the request or refuses it. A seal
  that no node wrote is refused, so a client can not claim to be one.
- A request whose owner is gone, or refuses, is served here from its own history, as long as nothing has gone out to the client.
- A stream is passed on in whole blocks. When its owner dies in the middle, the client gets the error that the stream's kind has for that.
- A client that goes away closes the connection to the owner, who cancels the run.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import socket
from collections.abc import AsyncGenerator, Awaitable, Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any, Protocol

import aiohttp
import msgspec
from prometheus_client import CollectorRegistry, Counter
from starlette.types import Scope
from yarl import URL

from toolwire.access.gate import HeaderList, Headers
from toolwire.cluster.nodes import Nodes, Peer
from toolwire.core.errors import ToolwireError, error_object, response_error
from toolwire.core.events import Failure
from toolwire.core.turn import Api
from toolwire.gateway.parked import Parking
from toolwire.gateway.records import Answer
from toolwire.observe.logs import RequestLog
from toolwire.wire.responses.encode import SHAPES, ItemShape
from toolwire.wire.sse import encode, joined

# --- interrupted ------------------------------------------------------------
#
# A stream that passes by, written elsewhere by the encoders of this package, and its end when whoever
# wrote it is gone. Law 6 holds for the end too: what has passed is not contradicted. Of a Responses stream
# the open item closes as incomplete with the text that has passed, the numbers go on, and
# `response.failed` lists every item; a chat stream ends in an error object. A stream that has had its end
# gets no second one.

TERMINALS = frozenset({"response.completed", "response.incomplete", "response.failed"})
_SHAPES = {
    (shape.item["type"], shape.part.part["type"] if shape.part is not None else ""): shape
    for shape in SHAPES.values()
}
_PARTS = {
    f"{shape.part.events}.{verb}": verb
    for shape in SHAPES.values()
    if shape.part is not None
    for verb in ("added", "done")
}
_TEXTS = {f"{shape.events}.done" for shape in SHAPES.values()}


class _Frame(msgspec.Struct):
    """What has to be known of an event; all else passes unseen."""

    type: str
    sequence_number: int
    output_index: int = 0
    delta: str = ""
    item: dict[str, Any] | None = None
    part: dict[str, Any] | None = None
    response: dict[str, Any] | None = None


_decode = msgspec.json.Decoder(_Frame).decode


class Passing:
    """`feed` it whole blocks as they pass; `end` is what is still to be sent when no more will come."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._number = 0
        self._ended = False
        self._response: dict[str, Any] = {}
        self._output: list[dict[str, Any]] = []
        self._item: dict[str, Any] | None = None
        self._index = 0
        self._part: str | None = None
        """The type of the open item's part, once it is there."""
        self._closed: set[str] = set()
        """What of the open item is done: its text, its part."""
        self._pieces: list[str] = []

    def feed(self, block: bytes) -> None:
        if self._api == "chat":
            self._ended = self._ended or b"data: [DONE]" in block
            return
        for line in block.split(b"\n"):
            if line.startswith(b"data: "):
                try:
                    self._passed(_decode(line[len(b"data: ") :]))
                except msgspec.MsgspecError:
                    continue

    def _passed(self, frame: _Frame) -> None:
        self._number = frame.sequence_number + 1
        kind = frame.type
        if kind.endswith(".delta"):
            self._pieces.append(frame.delta)
        elif kind == "response.created":
            self._response = frame.response or {}
        elif kind == "response.output_item.added":
            self._item, self._index, self._part, self._closed, self._pieces = (
                frame.item,
                frame.output_index,
                None,
                set(),
                [],
            )
        elif kind == "response.output_item.done":
            self._output.append(frame.item or {})
            self._item = None
        elif kind in _TEXTS:
            self._closed.add("text")
        elif _PARTS.get(kind) == "added":
            self._part = str((frame.part or {}).get("type"))
        elif _PARTS.get(kind) == "done":
            self._closed.add("part")
        elif kind in TERMINALS:
            self._ended = True

    # --- the end -------------------------------------------------------------------------------------------------------------------------------

    def end(self, failure: Failure) -> bytes:
        if self._ended:
            return b""
        self._ended = True
        if self._api == "chat":
            return b"data: " + encode(error_object(failure)) + b"\n\n"
        return b"".join(self._ending(failure))

    def _ending(self, failure: Failure) -> Iterator[bytes]:
        if self._number == 1:
            yield self._frame("response.in_progress", response=self._response)
        if self._item is not None:
            yield from self._closing(self._item)
        response = {
            **self._response,
            "status": "failed",
            "error": response_error(failure),
            "output": self._output,
        }
        yield self._frame("response.failed", response=response)

    def _closing(self, item: dict[str, Any]) -> Iterator[bytes]:
        shape, text = self._shape(item), joined(self._pieces)
        where: dict[str, Any] = {"item_id": item.get("id"), "output_index": self._index}
        if shape.part is not None:
            where[shape.part.index] = 0
            if self._part is None:
                yield self._frame(f"{shape.part.events}.added", **where, part=shape.part.part)
        if "text" not in self._closed:
            name = {"name": item.get("name")} if shape.names_call else {}
            yield self._frame(
                f"{shape.events}.done", **where, **name, **{shape.text_field: text}, **(shape.also or {})
            )
        if shape.part is None:
            done = {**item, shape.text_field: text}
        else:
            part = {**shape.part.part, shape.part.field: text}
            done = {**item, shape.holder: [part]}
            if "part" not in self._closed:
                yield self._frame(f"{shape.part.events}.done", **where, part=part)
        done["status"] = "incomplete"
        yield self._frame("response.output_item.done", output_index=self._index, item=done)
        self._output.append(done)

    def _shape(self, item: dict[str, Any]) -> ItemShape:
        """By the item's part, or, where that has not passed yet, the one that the item was opened for."""
        kind = str(item.get("type"))
        opened = (
            shape
            for shape in SHAPES.values()
            if shape.item["type"] == kind and shape.item.keys() == shape.item.keys() & item.keys()
        )
        return _SHAPES.get((kind, self._part or "")) or next(opened, SHAPES["text"])

    def _frame(self, event: str, **body: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return (
            b"event: "
            + event.encode()
            + b"\ndata: "
            + encode({"type": event, "sequence_number": number, **body})
            + b"\n\n"
        )


HOP = b"x-toolwire-hop"
HOPPED = "toolwire.hop"
"""Stands in the scope of a request that another node has passed on, and so has counted already."""
CONNECT_S = 2.0
FIRST_S = 0.25
"""So long the first block of a stream is waited for, once its head is there: until then the turn can still be replayed here."""
REFUSALS = frozenset({403, 421, 503})
"""With these the owner says that it can not serve: not its park any more, draining, or no node of its own circle that asks."""
BETWEEN_TWO = frozenset(
    {
        "connection",
        "content-length",
        "date",
        "expect",
        "keep-alive",
        "proxy-connection",
        "server",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers of a connection, not of what is said on it."""
_OWN = frozenset({"x-request-id", HOP.decode()})
_TOLD = re.compile(r"content-type|retry-after(?:-ms)?|(?:x-toolwire|x-codex|x-ratelimit|openai)-.+")
MOST_CALLS = 50_000
"""A body with more calls than that is not looked through: it is served where it landed."""
_CALL_ID = re.compile(rb'"(?:tool_call_id|call_id)"\s*:\s*"([^"\\]{1,200})"')
_ALIVE = (
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 10),
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
)
_CUT = (aiohttp.ClientError, OSError, TimeoutError)
LOST = Failure("backend_cut", "The server that ran this turn was lost. Send the request again.")

log = logging.getLogger("toolwire.nodes")


def call_ids(raw: bytes) -> list[str]:
    """The ids that this body gives to calls and results, in order: those of the run that it may continue are among them.

    Inside a JSON string every quote has a backslash before it, so nothing that anybody said is taken for an id.
    """
    if raw.count(b'call_id"') > MOST_CALLS:
        return []
    return list(dict.fromkeys(found.decode("utf-8", "replace") for found in _CALL_ID.findall(raw)))


class Forwardable(Protocol):
    """A request that another node may answer: what identifies it, and how the response is sent."""

    scope: Scope
    headers: Headers
    request_id: str

    async def begin(self, status: int, headers: HeaderList) -> None: ...

    def piece(self, block: bytes) -> Awaitable[None]: ...

    async def end(self) -> None: ...


class Courier:
    """The connections to other nodes: one for each request, which shows at once whether the other side is there."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def send(
        self, address: str, scope: Scope, headers: list[tuple[str, str]], body: bytes = b""
    ) -> aiohttp.ClientResponse:
        """The head of the answer. Whoever gets it closes it."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, force_close=True, socket_factory=_lasting_socket),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                skip_auto_headers=("accept", "accept-encoding", "content-type", "user-agent"),
            )
        url = URL(address + _target(scope), encoded=True)
        return await self._session.request(
            scope["method"], url, data=body or None, headers=headers, allow_redirects=False
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


class NodeSeals:
    """How a node knows another one's requests. `addresses` are the ways by which this one is reached."""

    def __init__(self, nodes: Nodes, addresses: Collection[str] = ()) -> None:
        self._nodes = nodes
        self._addresses = (nodes.address, *addresses)

    def headers(self, scope: Scope, request_id: str, address: str) -> list[tuple[str, str]]:
        """The request's own headers, and the seal for the node at this address."""
        passed = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        passed = [(name, value) for name, value in passed if name not in BETWEEN_TWO and name not in _OWN]
        told = (self._nodes.id, scope.get("scheme", "http"), (scope.get("client") or ("",))[0])
        seal = ";".join((*told, self._nodes.sign(*_facts(told, address, scope, request_id))))
        return [*passed, ("x-request-id", request_id), (HOP.decode(), seal)]

    def opened(self, exchange: Forwardable) -> Scope:
        """The scope as the node that passed the request on had it. Raises where no node has sealed it."""
        scope = exchange.scope
        *told, signature = exchange.headers[HOP].decode("latin-1").split(";")
        sealed = any(
            self._nodes.signed(signature, *_facts(tuple(told), address, scope, exchange.request_id))
            for address in self._addresses
        )
        if len(told) != 3 or not sealed:
            log.warning(
                "a request claims to come from another node, and its seal is not one of ours: is server.node_secret the same everywhere?"
            )
            raise ToolwireError(
                "permission", f"The header {HOP.decode()} is for the nodes of this server among themselves."
            )
        return {**scope, "scheme": told[1], "client": (told[2], 0) if told[2] else None, HOPPED: told[0]}


def _facts(told: tuple[str, ...], address: str, scope: Scope, request_id: str) -> tuple[str, ...]:
    who = hashlib.sha256(dict(scope["headers"]).get(b"authorization", b"")).hexdigest()
    return ("hop", *told, address, scope["method"], _target(scope), request_id, who)


def _target(scope: Scope) -> str:
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope.get("query_string", b"")
    return path.split(b"?")[0].decode("latin-1") + ("?" + query.decode("latin-1") if query else "")


def _lasting_socket(info: Any) -> socket.socket:
    """A peer that vanishes without a word is noticed within half a minute."""
    made = socket.socket(info[0], info[1], info[2])
    for level, name, value in _ALIVE:
        if hasattr(socket, name):
            with suppress(OSError):
                made.setsockopt(level, getattr(socket, name), value)
    return made


# --- turns -----------------------------------------------------------------------------------------------------------------------------------------


class Forwarding:
    """Decides where a turn is served. `answer` is what another node said to it."""

    def __init__(
        self,
        nodes: Nodes,
        parking: Parking,
        registry: CollectorRegistry,
        addresses: Collection[str] = (),
        told: RequestLog | None = None,
    ) -> None:
        self.nodes = nodes
        self.log = told or RequestLog()
        self.seals = NodeSeals(nodes, addresses)
        self.courier = Courier()
        self._parking = parking
        self._outcomes = Counter(
            "toolwire_turns_passed_on",
            "Turns whose run another node held, by how it went.",
            ("outcome",),
            registry=registry,
        )

    async def close(self) -> None:
        await self.courier.close()
        await self.nodes.close()

    async def answer(self, api: Api, exchange: Forwardable, raw: bytes, key_id: str) -> Answer | None:
        """What the owner of the run says that this request continues. None: it is served here."""
        calls = call_ids(raw)
        here = self._parking.holds(calls)
        if HOPPED in exchange.scope:
            if not here:
                raise ToolwireError(
                    "overloaded",
                    "The run that this request continues is not here any more.",
                    code="park_gone",
                    retry_after_s=1,
                )
            return None
        peer = None if here else await self._owner(calls, key_id)
        if peer is None:
            return None
        outcome, answer = await self._pass_on(peer, api, exchange, raw)
        self._outcomes.labels(outcome).inc()
        self.log.passed_on(exchange.request_id, key_id, api, peer.id, outcome)
        return answer

    async def _owner(self, calls: Collection[str], key_id: str) -> Peer | None:
        return await self.nodes.owner(calls, key_id) if calls else None

    async def _pass_on(
        self, peer: Peer, api: Api, exchange: Forwardable, raw: bytes
    ) -> tuple[str, Answer | None]:
        try:
            response = await self.courier.send(
                peer.address,
                exchange.scope,
                self.seals.headers(exchange.scope, exchange.request_id, peer.address),
                raw,
            )
        except _CUT as error:
            self.nodes.shun(peer)
            log.warning(
                "node %s at %s can not be reached (%s): its run is replayed here",
                peer.id,
                peer.address,
                str(error) or type(error).__name__,
            )
            return "unreachable", None
        kept = False
        try:
            if response.status in REFUSALS:
                log.info(
                    "node %s refused a run that it held (%d): it is replayed here", peer.id, response.status
                )
                return "refused", None
            headers = _told(response.headers)
            if response.content_type != "text/event-stream":
                return "passed", Answer(headers, await response.read(), status=response.status)
            relay = Relay(response, api)
            kept = await relay.begun()
            return ("passed", Answer(headers, stream=relay)) if kept else ("cut", None)
        except _CUT as error:
            log.warning(
                "node %s was lost before it answered (%s): its run is replayed here",
                peer.id,
                str(error) or type(error).__name__,
            )
            return "cut", None
        finally:
            if not kept:
                response.close()


def _told(headers: Mapping[str, str]) -> HeaderList:
    """What the owner says about its answer; the rest is said by the node that the client asked."""
    return [
        (name.lower().encode(), value.encode("latin-1", "replace"))
        for name, value in headers.items()
        if _TOLD.fullmatch(name.lower())
    ]


class Relay:
    """Another node's stream: blocks as they come, whole ones only. Closing it closes the connection."""

    def __init__(self, response: aiohttp.ClientResponse, api: Api) -> None:
        self._response = response
        self._passing = Passing(api)
        self._blocks = self._read()
        self._first: asyncio.Future[bytes] | None = None

    async def begun(self) -> bool:
        """Whether the stream is there: it may be slow, but it has not been cut or ended before its first block."""
        self._first = asyncio.ensure_future(anext(self._blocks))
        try:
            await asyncio.wait({self._first}, timeout=FIRST_S)
        except BaseException:
            await self.aclose()
            raise
        return not self._first.done() or self._first.exception() is None

    def __aiter__(self) -> Relay:
        return self

    async def __anext__(self) -> bytes:
        first, self._first = self._first, None
        try:
            block = await (first if first is not None else anext(self._blocks))
        except _CUT as error:
            log.warning("another node's stream was cut (%s)", str(error) or type(error).__name__)
            await self.aclose()
            block = self._passing.end(LOST)
            if not block:
                raise StopAsyncIteration from None
            return block
        self._passing.feed(block)
        return block

    async def aclose(self) -> None:
        first, self._first = self._first, None
        if first is not None:
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
        self._response.close()
        await self._blocks.aclose()

    async def _read(self) -> AsyncGenerator[bytes, None]:
        waiting: list[bytes] = []  # a block that has not ended yet
        async for piece in self._response.content.iter_any():
            end = piece.rfind(b"\n\n") + 2
            if end == 1:
                end = 1 if waiting and waiting[-1].endswith(b"\n") and piece.startswith(b"\n") else 0
            if end:
                yield b"".join((*waiting, piece[:end]))
                waiting = []
            if piece[end:]:
                waiting.append(piece[end:])
        if waiting:
            yield b"".join(waiting)

"""The gateway's HTTP API, an ASGI application.

A turn is a request that a model answers. The routes of turns are found with one lookup in a table; Starlette
serves all other routes. OPTIONS requests are answered first. For all other requests, Host and Origin are
checked before anything runs. Every response has a request id. Errors are JSON error objects, never HTML or a
traceback. If a client disconnects, the model's run is cancelled. Streams are not buffered: each block waits
for the socket. `websocket.py` is imported with the first WebSocket.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Literal

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolwire.access.gate import OWN, Gate, HeaderList, Headers, Pace, Proxies, settled
from toolwire.access.keyring import KeyRing
from toolwire.access.keys import KeyHolder, KeyRecords
from toolwire.access.turns import KeyTurns
from toolwire.cluster.forward import HOP, Forwarding, Siblings
from toolwire.core.errors import ToolwireError, status_of
from toolwire.core.events import Failure
from toolwire.core.ids import random_id
from toolwire.core.turn import Api
from toolwire.gateway.pipeline import Caller
from toolwire.gateway.records import JSON
from toolwire.observe.logs import RequestLog, access
from toolwire.observe.metrics import Metrics
from toolwire.surfaces.http import resources as health
from toolwire.surfaces.http.exchange import ClientGone, Exchange, Room, Watch, api_headers
from toolwire.surfaces.http.resources import ModelRoutes, ResponseRoutes, UsageRoutes
from toolwire.surfaces.http.streaming import TurnResponse
from toolwire.surfaces.web.routes import Pages
from toolwire.tools.mcp import served_of, servers_of

if TYPE_CHECKING:
    from toolwire.gateway.pipeline import Answer, Gateway
    from toolwire.gateway.records import Memory, OnSlow
    from toolwire.settings.types import Settings
    from toolwire.store.store import Store
    from toolwire.surfaces.http.websocket import Sockets
    from toolwire.tools.mcp.served import ServedServers

EXCHANGE = "toolwire.exchange"
EVERY_MODEL = ("*",)
Turns = Literal["chat", "responses", "messages", "compact", "count", "count_messages"]
Keyed = Callable[[Request, str], Awaitable[Response]]
Held = Callable[[Request, KeyHolder], Awaitable[Response]]
Work = Awaitable[Awaitable[None] | None]
"""A coroutine that serves a request.

If a model must answer the request, the result is another coroutine, which sends the answer.
"""

_TURN_PATHS: dict[str, Turns] = {
    "chat/completions": "chat",
    "responses": "responses",
    "responses/compact": "compact",
    "responses/input_tokens": "count",
    "messages": "messages",
    "messages/count_tokens": "count_messages",
}
TURN_ROUTES: dict[str, Turns] = {
    f"{prefix}/{path}{slash}": api
    for path, api in _TURN_PATHS.items()
    for prefix in ("/v1", "")
    for slash in ("", "/")
}
SOCKET_PATHS = frozenset(path.encode() for path, api in TURN_ROUTES.items() if api == "responses")
OUTPUT_MODES = {b"openai-json": "openai-json", b"obsidian-xml": "obsidian-xml"}
REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")

log = logging.getLogger("toolwire.http")


def create_app(gateway: Gateway, settings: Settings, store: Store | None) -> App:
    """Creates the ASGI application.

    The application observes the gateway's turns for metrics and the access log.
    """
    return App(gateway, settings, store)


class App:
    def __init__(self, gateway: Gateway, settings: Settings, store: Store | None) -> None:
        self.draining = False
        self.metrics = Metrics(gateway.catalog)
        self.metrics.watch(gateway)
        self.log = RequestLog()
        proxies = settings.server.trusted_proxies
        self._proxies = Proxies(proxies) if proxies else None
        self._traced = bool(settings.telemetry.otlp)
        self._gateway = gateway
        server, records = settings.server, KeyRecords(store) if store is not None else None
        self.keys = KeyRing(server.keys, server.admin_keys, settings.limits, records)
        self.gate = Gate(server, self.keys)
        self._keep_alive_s = settings.server.keep_alive_s
        self.body_limit = int(settings.server.max_body_mb * 1024 * 1024)
        self.room = Room(self.body_limit)
        self._pace = Pace()
        self._turns = KeyTurns()
        self.socket_paths = SOCKET_PATHS
        self._sockets: Sockets | None = None
        self.slow_reader_s = settings.limits.slow_reader_s
        """How many seconds a client may read nothing; 0 means no limit.

        The HTTP protocol (`protocol.py`) uses this limit.
        """
        self._router = self._cold_routes(gateway, store)
        self.servers = servers_of(settings.mcp, store) if store is not None else None
        """The MCP servers of the settings; None if there are none, or without the extra `mcp`."""
        self.served: ServedServers | None = None
        """The MCP servers that API clients may use; None if there are none."""
        self.pages = None
        if store is not None:
            self.pages = Pages(gateway, settings, store, keys=self.keys, servers=self.servers)
            self.served = served_of(settings.mcp, store, self.servers, self.pages.web.approvals)
            gateway.served_tools = self.served
        self.forwarding: Forwarding | None = None
        """Forwards requests to the other nodes; None if there are none."""
        self.siblings: Siblings | None = None
        """The other worker processes of this server; None if there are none."""
        gateway.observers.append(self.metrics.observe)
        gateway.observers.append(self.log.turn)
        if access.isEnabledFor(logging.DEBUG):
            gateway.contents_wanted = True

    async def leave(self) -> None:
        """Removes this node from the cluster, so that other nodes stop forwarding to it.

        Call this before `drain`.
        """
        if self.forwarding is not None:
            await self.forwarding.nodes.leave()

    def drain(self) -> None:
        """Stops accepting turns. Running turns can finish."""
        self.draining = True
        if self.pages is not None:
            self.pages.drain()
        if self._sockets is not None:
            self._sockets.drain()
        self._gateway.drain()

    async def close(self) -> None:
        """Closes the web pages, the MCP servers and the forwarding, and ends the reading of stored keys.

        Call this before closing the gateway and the store.
        """
        if self.pages is not None:
            await self.pages.close()
        if self.served is not None:
            await self.served.close()
        if self.servers is not None:
            await self.servers.close()
        if self.forwarding is not None:
            await self.forwarding.close()
        await self.keys.close()

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http":
            exchange = self.exchange(scope, receive, send)
            if scope["method"] == "OPTIONS":
                return exchange.reply_nothing()
            return self.handled(exchange, partial(self._request, exchange, receive, send))
        if scope["type"] == "websocket" and scope["path"].encode() in self.socket_paths:
            return self._all_sockets().serve(scope, receive, send)
        return self._other_protocol(scope, receive, send)

    def exchange(self, scope: Scope, receive: Receive, send: Send) -> Exchange:
        """Creates the exchange of a request.

        If a trusted proxy reports the client's address, the exchange has that address.
        """
        headers: Headers = dict(scope["headers"])
        given_id = headers.get(b"x-request-id")
        request_id = (
            given_id.decode()
            if given_id is not None and REQUEST_ID.fullmatch(given_id)
            else random_id("req_")
        )
        scope[OWN] = (scope.get("scheme", "http"), scope.get("server"))
        if self._proxies is not None and not (HOP in headers and self.forwarding is not None):
            scope = self._proxies.seen(scope, headers)
        if scope["method"] == "OPTIONS":
            common = self.gate.preflight(headers)
        else:
            common = self.gate.cors(headers) if b"origin" in headers else []
        return Exchange(scope, receive, send, headers, request_id, common)

    def _request(self, exchange: Exchange, receive: Receive, send: Send) -> Work:
        """Returns the coroutine that serves a request.

        Raises an error if its Host or Origin is not allowed.
        """
        headers = exchange.headers
        self.gate.check_place(headers, exchange.scope)
        if HOP in headers and self.forwarding is not None:
            exchange.scope = self.forwarding.seals.opened(exchange)
            settled(headers)
        scope = exchange.scope
        api = TURN_ROUTES.get(scope["path"])
        if api is not None and scope["method"] == "POST":
            return self.turn(api, exchange, receive)
        return self._cold(exchange, scope, receive, send)

    async def handled(self, exchange: Exchange, work: Callable[[], Work]) -> None:
        """Runs `work`, which answers the request.

        An error becomes an error response. If a part of the response was already sent, the error is raised.
        """
        try:
            sending = await work()
            if sending is not None:
                await sending
        except ToolwireError as error:
            if exchange.started:
                raise  # a part of the response was sent, so the server must close the connection
            await self._refuse(exchange, error.failure)
        except HTTPException as error:
            await self._refuse_route(exchange, error)
        except (ClientGone, ClientDisconnect):
            pass
        except Exception:
            log.exception("request %s failed", exchange.request_id)
            if exchange.started:
                raise  # a part of the response was sent, so the server must close the connection
            message = (
                f"The server had an error while processing your request (request {exchange.request_id})."
            )
            await self._refuse(exchange, Failure("server", message))
        finally:
            if not exchange.reached_gateway:
                self._log(exchange)

    def _log(self, exchange: Exchange) -> None:
        """Logs a request that ran no turn."""
        scope = exchange.scope
        self.log.request(
            exchange.request_id,
            scope["method"],
            scope["path"],
            status=exchange.status,
            failure=exchange.failure,
            holder=exchange.holder,
            client=(scope.get("client") or ("",))[0],
            duration_s=time.perf_counter() - exchange.began,
        )

    def _all_sockets(self) -> Sockets:
        if self._sockets is None:
            from toolwire.surfaces.http.websocket import Sockets

            self._sockets = Sockets(self, self.body_limit)
        return self._sockets

    # --- turns ---

    async def turn(
        self,
        api: Turns,
        exchange: Exchange,
        receive: Receive,
        memory: Memory | None = None,
        here: bool = False,
    ) -> Awaitable[None]:
        """Reads a request that runs a turn, counts the tokens of an input, or compacts an input.

        Returns the coroutine that sends the answer. `memory`: what the gateway remembers for the client's
        WebSocket; None for other requests. `here`: only this node can serve the turn.
        """
        headers = exchange.headers
        holder = await self.caller(exchange)
        if self.keys.needed and (place := self._turns.wait(holder.key_id)) is not None:
            await place
        grant = holder.grant
        if grant is not None and grant.limited:
            self._gateway.limits.check(holder.key_id, grant.limits)
        if self.draining:
            raise ToolwireError("overloaded", "The server is shutting down.", retry_after_s=1)
        exchange.check_json()
        mode = headers.get(b"x-proxy-output-mode")
        if mode is not None and mode.strip().lower() not in OUTPUT_MODES:
            raise ToolwireError(
                "invalid_value", "Expected 'openai-json' or 'obsidian-xml'.", param="x-proxy-output-mode"
            )
        output_mode = None if mode is None else OUTPUT_MODES[mode.strip().lower()]
        raw = await exchange.read_body(self.body_limit, self.room)
        parent = headers.get(b"traceparent", b"")[:128].decode("latin-1") if self._traced else ""
        caller = Caller(
            holder.key_id,
            exchange.request_id,
            output_mode,
            grant,
            holder.name,
            parent,
            memory,
            api_headers(exchange.scope["headers"]) if api == "messages" else {},
        )
        response = TurnResponse(exchange, self._keep_alive_s, self.metrics.streams_open)
        if api == "compact":
            work = (await self._gateway.compaction(raw, caller)).answer()
        elif api == "count" or api == "count_messages":
            work = self._gateway.count("responses" if api == "count" else "messages", raw, caller)
        elif self.forwarding is None or here:
            work = self._gateway.respond(api, raw, caller, response.begin_early)
        else:
            work = self._passed_on(self.forwarding, api, exchange, raw, caller, response.begin_early)
        return response.send(work, receive, self._pace)

    async def _passed_on(
        self,
        forwarding: Forwarding,
        api: Api,
        exchange: Exchange,
        raw: bytes,
        caller: Caller,
        on_slow: OnSlow,
    ) -> Answer:
        """Returns the answer of the node that must serve the turn, which may be this one."""
        passed = await forwarding.answer(api, exchange, raw, caller.key_id)
        return passed or await self._gateway.respond(api, raw, caller, on_slow)

    # --- everything else ---

    def _cold_routes(self, gateway: Gateway, store: Store | None) -> Router:
        models, responses = ModelRoutes(gateway.catalog), ResponseRoutes(store)
        return Router(
            [
                Route("/", self._hello),
                *health.routes(gateway, lambda: self.draining),
                Route("/metrics", self._held(self._metrics)),
                Route("/models", self._held(models.all)),
                Route("/models/{id:path}", self._held(models.one)),
                Route("/usage", self._held(UsageRoutes(gateway.usage).page)),
                Route("/responses/{id}", self._keyed(responses.one), methods=["GET", "DELETE"]),
                Route("/responses/{id}/input_items", self._keyed(responses.input_items)),
                Route("/responses/{id}/cancel", self._keyed(responses.cancel), methods=["POST"]),
            ],
            redirect_slashes=False,
        )

    async def _cold(
        self, exchange: Exchange, scope: Scope, receive: Receive, send: Send
    ) -> Awaitable[None] | None:
        path = re.sub(r"/{2,}", "/", scope["path"])
        if self.pages is not None and self.pages.covers(path):
            exchange.for_own_pages()
            if self.siblings is not None and not self.siblings.has_pages:
                await self._elsewhere(self.siblings, exchange, receive)
                return None
            await self._route(
                self.pages,
                exchange,
                {**scope, "path": path.rstrip("/") or "/", "root_path": "", "app": self},
                send,
            )
            return None
        path = (
            path.removeprefix("/v1").rstrip("/")
            if path == "/v1" or path.startswith("/v1/")
            else path.rstrip("/")
        )
        api, method = TURN_ROUTES.get(path), scope["method"]
        if api is not None:
            if method == "POST":
                return await self.turn(api, exchange, receive)
            if method == "HEAD":
                await self.caller(exchange)
                await exchange.reply(200, [JSON], b"")
            else:
                raise HTTPException(405, headers={"Allow": "HEAD, POST"})
            return None
        await self._route(
            self._router, exchange, {**scope, "path": path or "/", "root_path": "", "app": self}, send
        )
        return None

    async def _elsewhere(self, siblings: Siblings, exchange: Exchange, receive: Receive) -> None:
        """Forwards a request for the web pages to the worker that serves all of them.

        Only one worker serves the web pages, so that it can notify every open tab.
        """
        raw = await exchange.read_body(self.body_limit, self.room)
        watch = Watch(exchange.scope, receive)
        try:
            await siblings.page(exchange, raw)
        except asyncio.CancelledError:
            if not watch.gone:
                raise
        finally:
            watch.stop()

    async def _route(self, to: ASGIApp, exchange: Exchange, scope: Scope, send: Send) -> None:
        async def send_with_common(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.started, exchange.status = True, message["status"]
                message = {**message, "headers": [*message["headers"], *exchange.shared([])]}
            await send(message)

        await to({**scope, EXCHANGE: exchange}, exchange.receive, send_with_common)

    async def caller(self, exchange: Exchange) -> KeyHolder:
        """Returns the holder of the request's key. Raises an error if the key is missing or invalid.

        After this, the response to this request reports what is left of the key's limits.
        """
        holder = await self.gate.caller(exchange.headers, exchange.scope["client"])
        exchange.holder = holder
        if holder.grant is not None and holder.grant.limited:
            exchange.late_headers = partial(
                self._gateway.limits.headers, holder.key_id, holder.grant.limits, exchange.api == "messages"
            )
        return holder

    def _keyed(self, endpoint: Keyed) -> Callable[[Request], Awaitable[Response]]:
        """Wraps an endpoint so that it requires a key and gets the key's id."""

        async def checked(request: Request) -> Response:
            return await endpoint(request, (await self.caller(request.scope[EXCHANGE])).key_id)

        return checked

    def _held(self, endpoint: Held) -> Callable[[Request], Awaitable[Response]]:
        """Wraps an endpoint so that it requires a key and gets the key's permissions."""

        async def checked(request: Request) -> Response:
            return await endpoint(request, await self.caller(request.scope[EXCHANGE]))

        return checked

    async def _hello(self, request: Request) -> Response:
        return JSONResponse({"name": "toolwire", "api": "/v1"})

    async def _metrics(self, request: Request, holder: KeyHolder) -> Response:
        if holder.grant is not None and not holder.grant.admin and holder.grant.models != EVERY_MODEL:
            raise ToolwireError(
                "permission", "This API key may use some models only, and metrics cover all models."
            )
        if self.siblings is not None:
            return await self.siblings.metrics(request, self.metrics)
        page, content_type = self.metrics.page(request.headers.get("accept", ""))
        return Response(page, media_type=content_type)

    async def _other_protocol(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles lifespan events, for servers that send them.

        Closes a WebSocket on any path where Toolwire serves none.
        """
        if scope["type"] != "lifespan":
            await send({"type": "websocket.close", "code": 1000})
            return
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self._gateway.start()
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.close()
                await self._gateway.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    # --- refusals ---

    async def _refuse(self, exchange: Exchange, failure: Failure, extra: HeaderList | None = None) -> None:
        exchange.failure = failure
        await self._pace.hold(status_of(failure, exchange.api), exchange.requester)
        status = await exchange.fail(failure, extra)
        if not exchange.reached_gateway:
            self.metrics.refused.labels(str(status)).inc()
            self.metrics.errors.labels(failure.kind).inc()

    async def _refuse_route(self, exchange: Exchange, error: HTTPException) -> None:
        method, path = exchange.scope["method"], exchange.scope["path"][:200]
        if error.status_code == 405:
            allow = {word.strip() for word in (error.headers or {}).get("Allow", "").split(",")} | {"OPTIONS"}
            failure = Failure("method", f"Not allowed to {method} on {path}.")
            await self._refuse(exchange, failure, [(b"allow", ", ".join(sorted(allow - {""})).encode())])
        else:
            await self._refuse(exchange, Failure("unknown_url", f"Invalid URL ({method} {path})"))

"""The HTTP surface: a raw ASGI callable. The two POST routes that carry turns are found by one lookup and touch no framework; Starlette has the rest.

Rules: OPTIONS is answered before anything else, Host and Origin are judged before anything runs. Every answer carries its request id. Errors are
OpenAI error objects, never HTML and never a traceback. A client that goes away cancels its run. Nothing is buffered: each block waits for the socket.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolwire.errors import ToolwireError
from toolwire.events import Failure
from toolwire.gateway.pipeline import Caller
from toolwire.ids import random_id
from toolwire.surfaces.http import health
from toolwire.surfaces.http.auth import Gate, HeaderList, Headers
from toolwire.surfaces.http.exchange import JSON, ClientGone, Exchange, encode_json
from toolwire.surfaces.http.keepalive import KeepAlive
from toolwire.surfaces.http.metrics import Metrics
from toolwire.surfaces.http.models import Models
from toolwire.surfaces.http.responses import Responses
from toolwire.surfaces.web.routes import Pages

if TYPE_CHECKING:
    from toolwire.config import Settings
    from toolwire.gateway.pipeline import Answer, Gateway, TurnSummary
    from toolwire.gateway.store import Store

Api = Literal["chat", "responses"]
Keyed = Callable[[Request, str], Awaitable[Response]]

_TURN_PATHS: dict[str, Api] = {"chat/completions": "chat", "responses": "responses"}
TURN_ROUTES: dict[str, Api] = {f"{prefix}/{path}{slash}": api for path, api in _TURN_PATHS.items() for prefix in ("/v1", "") for slash in ("", "/")}
STREAM_HEADERS: HeaderList = [(b"cache-control", b"no-cache, no-transform"), (b"x-accel-buffering", b"no")]
EVENT_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")
OUTPUT_MODES = {b"openai-json": "openai-json", b"obsidian-xml": "obsidian-xml"}
REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")

log = logging.getLogger("toolwire.http")
access = logging.getLogger("toolwire.access")


def create_app(gateway: Gateway, settings: Settings, store: Store | None) -> App:
    """The ASGI application. It watches the gateway's turns for metrics and the access log."""
    return App(gateway, settings, store)


class App:
    def __init__(self, gateway: Gateway, settings: Settings, store: Store | None) -> None:
        self.draining = False
        self.metrics = Metrics(gateway.catalog)
        self._gateway = gateway
        self._gate = Gate(settings.server)
        self._keep_alive_s = settings.server.keep_alive_s
        self._body_limit = int(settings.server.max_body_mb * 1024 * 1024)
        self._router = self._cold_routes(gateway, store)
        self.pages = Pages(gateway, settings, store) if store is not None else None
        gateway.observers.append(self.metrics.observe)
        gateway.observers.append(log_turn)

    def drain(self) -> None:
        """No new turns from here on; those that run may end."""
        self.draining = True
        if self.pages is not None:
            self.pages.drain()
        self._gateway.drain()

    async def close(self) -> None:
        """Before the gateway and the store are closed."""
        if self.pages is not None:
            await self.pages.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._other_protocol(scope, receive, send)
            return
        headers: Headers = dict(scope["headers"])
        given_id = headers.get(b"x-request-id")
        request_id = given_id.decode() if given_id is not None and REQUEST_ID.fullmatch(given_id) else random_id("req_")
        method = scope["method"]
        if method == "OPTIONS":
            await Exchange(scope, receive, send, headers, request_id, self._gate.preflight(headers)).reply_nothing()
            return
        exchange = Exchange(scope, receive, send, headers, request_id, self._gate.cors(headers))
        try:
            if len(headers) != len(scope["headers"]):
                _check_single(scope["headers"])
            self._gate.check_place(headers, scope.get("http_version", "1.1"))
            api = TURN_ROUTES.get(scope["path"])
            if api is not None and method == "POST":
                await self._turn(api, exchange, receive)
            else:
                await self._cold(exchange, scope, receive, send)
        except ToolwireError as error:
            if exchange.started:
                raise  # half an answer is out: the server cuts the connection
            await self._refuse(exchange, error.failure)
        except HTTPException as error:
            await self._refuse_route(exchange, error)
        except (ClientGone, ClientDisconnect):
            pass
        except Exception:
            log.exception("request %s failed", request_id)
            if exchange.started:
                raise  # the server cuts the connection: a client must not take half an answer for a whole one
            await self._refuse(exchange, Failure("server", f"The server had an error while processing your request (request {request_id})."))

    # --- turns -----------------------------------------------------------------------------------------------------------------------------

    async def _turn(self, api: Api, exchange: Exchange, receive: Receive) -> None:
        headers = exchange.headers
        key_id = self._gate.check_caller(headers, exchange.scope["client"])
        if self.draining:
            raise ToolwireError("overloaded", "The server is shutting down.", retry_after_s=1)
        exchange.check_json()
        mode = headers.get(b"x-proxy-output-mode")
        if mode is not None and mode.strip().lower() not in OUTPUT_MODES:
            raise ToolwireError("invalid_value", "Expected 'openai-json' or 'obsidian-xml'.", param="x-proxy-output-mode")
        output_mode = None if mode is None else OUTPUT_MODES[mode.strip().lower()]
        raw = await exchange.read_body(self._body_limit)
        exchange.reached_gateway = True
        watch = Watch(receive)
        try:
            answer = await self._gateway.respond(api, raw, Caller(key_id, exchange.request_id, output_mode))
            if answer.stream is not None:
                await self._stream(exchange, answer, answer.stream, watch)
            else:
                await exchange.reply(200, _typed(answer.headers, JSON), answer.body or b"")
        except asyncio.CancelledError:
            if not watch.gone:
                if exchange.started:
                    raise
                await exchange.fail(Failure("overloaded", "The server is shutting down.", retry_after_s=1))
        finally:
            watch.stop()

    async def _stream(self, exchange: Exchange, answer: Answer, stream: AsyncIterator[bytes], watch: Watch) -> None:
        self.metrics.streams_open.inc()
        try:
            await exchange.begin(200, [*_typed(answer.headers, EVENT_STREAM), *STREAM_HEADERS])
            alive = KeepAlive(exchange.piece, self._keep_alive_s)
            try:
                async for block in stream:
                    alive.sent()
                    await exchange.piece(block)
            finally:
                alive.stop()
            watch.stop()  # before the end is sent: the end wakes the watcher too
            await exchange.end()
        finally:
            self.metrics.streams_open.dec()
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()

    # --- everything else -------------------------------------------------------------------------------------------------------------------

    def _cold_routes(self, gateway: Gateway, store: Store | None) -> Router:
        models, responses = Models(gateway.catalog), Responses(store)
        return Router(
            [
                Route("/", self._hello),
                *health.routes(gateway, lambda: self.draining),
                Route("/metrics", self._keyed(self._metrics)),
                Route("/models", self._keyed(models.all)),
                Route("/models/{id:path}", self._keyed(models.one)),
                Route("/responses/{id}", self._keyed(responses.one), methods=["GET", "DELETE"]),
                Route("/responses/{id}/input_items", self._keyed(responses.input_items)),
                Route("/responses/{id}/cancel", self._keyed(responses.cancel), methods=["POST"]),
            ],
            redirect_slashes=False,
        )

    async def _cold(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        path = re.sub(r"/{2,}", "/", scope["path"])
        if self.pages is not None and self.pages.covers(path):
            exchange.for_own_pages()
            await self._route(self.pages, exchange, {**scope, "path": path.rstrip("/") or "/", "root_path": "", "app": self}, send)
            return
        path = path.removeprefix("/v1").rstrip("/") if path == "/v1" or path.startswith("/v1/") else path.rstrip("/")
        api, method = TURN_ROUTES.get(path), scope["method"]
        if api is not None:
            if method == "POST":
                await self._turn(api, exchange, receive)
            elif method == "HEAD":
                self._gate.check_caller(exchange.headers, scope["client"])
                await exchange.reply(200, [JSON], b"")
            else:
                raise HTTPException(405, headers={"Allow": "HEAD, POST"})
            return

        await self._route(self._router, exchange, {**scope, "path": path or "/", "root_path": "", "app": self}, send)

    async def _route(self, to: ASGIApp, exchange: Exchange, scope: Scope, send: Send) -> None:
        async def send_with_common(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.started = True
                message = {**message, "headers": [*message["headers"], *exchange.common]}
            await send(message)

        await to(scope, exchange.receive, send_with_common)

    def _keyed(self, endpoint: Keyed) -> Callable[[Request], Awaitable[Response]]:
        """An endpoint that is told whose request it is, and is only reached by those who may ask."""

        async def checked(request: Request) -> Response:
            key_id = self._gate.check_caller(dict(request.scope["headers"]), request.scope["client"])
            return await endpoint(request, key_id)

        return checked

    async def _hello(self, request: Request) -> Response:
        return JSONResponse({"name": "toolwire", "api": "/v1"})

    async def _metrics(self, request: Request, key_id: str) -> Response:
        page, content_type = self.metrics.page(request.headers.get("accept", ""))
        return Response(page, media_type=content_type)

    async def _other_protocol(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lifespan, for servers that start the application themselves; WebSockets are not spoken."""
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

    # --- refusals --------------------------------------------------------------------------------------------------------------------------

    async def _refuse(self, exchange: Exchange, failure: Failure, extra: HeaderList | None = None) -> None:
        status = await exchange.fail(failure, extra)
        if not exchange.reached_gateway:
            self.metrics.refused.labels(str(status)).inc()
            if access.isEnabledFor(logging.INFO):
                fields = {"request_id": exchange.request_id, "method": exchange.scope["method"], "path": exchange.scope["path"][:200]}
                access.info("%s", json.dumps({**fields, "status": status, "error": failure.kind}))

    async def _refuse_route(self, exchange: Exchange, error: HTTPException) -> None:
        method, path = exchange.scope["method"], exchange.scope["path"][:200]
        if error.status_code == 405:
            allow = {word.strip() for word in (error.headers or {}).get("Allow", "").split(",")} | {"OPTIONS"}
            failure = Failure("method", f"Not allowed to {method} on {path}.")
            await self._refuse(exchange, failure, [(b"allow", ", ".join(sorted(allow - {""})).encode())])
        else:
            await self._refuse(exchange, Failure("unknown_url", f"Invalid URL ({method} {path})"))


class Watch:
    """Cancels the task that made it when the client goes away. `gone` tells this cancellation from the server's own."""

    __slots__ = ("_task", "gone")

    def __init__(self, receive: Receive) -> None:
        self.gone = False
        self._task = asyncio.get_running_loop().create_task(self._run(receive, asyncio.current_task()))

    async def _run(self, receive: Receive, watched: asyncio.Task[Any] | None) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        if watched is not None:
            watched.cancel()

    def stop(self) -> None:
        self._task.cancel()


SINGLE = frozenset({b"host", b"origin", b"authorization", b"content-length", b"content-type"})


def _check_single(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raises when a header on which a decision rests was sent twice: two readers could see two different requests."""
    names = [name for name, _ in headers if name in SINGLE]
    if len(names) != len(set(names)):
        raise ToolwireError("invalid_request", "A header that may stand only once was sent twice.")


def _typed(headers: HeaderList, default: tuple[bytes, bytes]) -> HeaderList:
    return headers if any(name == b"content-type" for name, _ in headers) else [default, *headers]


def log_turn(summary: TurnSummary) -> None:
    """One JSON line a turn, at level info: no contents, no key, no client's words beyond the model's and the tools' names."""
    if not access.isEnabledFor(logging.INFO):
        return
    line = {
        "request_id": summary.request_id,
        "key": summary.key_id,
        "api": summary.api,
        "model": summary.model[:128],
        "backend": summary.backend,
        "strategy": summary.strategy,
        "stream": summary.stream,
        "status": summary.status,
        "finish": summary.finish,
        "error": summary.error_kind,
        "cancelled": summary.cancelled,
        "tool_call_count": summary.tool_call_count,
        "tool_call_names": [name[:64] for name in summary.tool_call_names],
        "tool_call_ids": list(summary.tool_call_ids),
        "tool_call_truncated": summary.tool_call_truncated,
        "output_mode": summary.output_mode,
        "input_tokens": summary.input_tokens,
        "output_tokens": summary.output_tokens,
        "first_byte_ms": None if summary.first_byte_s is None else round(summary.first_byte_s * 1000, 2),
        "duration_ms": round(summary.duration_s * 1000, 2),
        "dropped": dict(summary.dropped),
        "report": summary.report,
    }
    access.info(encode_json(line).decode())

"""The routes of the pages: one HTML file, its assets, and the API below /ui/api.

The API needs a session and serves only its own pages: it refuses requests from other origins, even from
another port of this machine, and sends no CORS headers. Every request must contain the session's page key in
addition to the cookie. The content security policy only allows scripts from the server's own files.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route, Router

from toolwire.access.keyring import KeyRing
from toolwire.cluster.running import ASK_PATH, proof
from toolwire.core.errors import ToolwireError, error_object, status_of
from toolwire.core.ids import random_id
from toolwire.gateway.pipeline import Gateway
from toolwire.settings.types import Settings
from toolwire.store.store import Store
from toolwire.surfaces.notices.notifier import notices_of
from toolwire.surfaces.web.chat import ChatApi
from toolwire.surfaces.web.code import CodeApi
from toolwire.surfaces.web.connect import ConnectApi
from toolwire.surfaces.web.context import Handler, Hub, Json, PageApi, Row, Web, body, field
from toolwire.surfaces.web.inbox import InboxApi
from toolwire.surfaces.web.inspector import WireApi
from toolwire.surfaces.web.link import LinkApi
from toolwire.surfaces.web.local import LocalApi
from toolwire.surfaces.web.models import ModelsApi
from toolwire.surfaces.web.servers import ServersApi
from toolwire.surfaces.web.sessions import LIFETIME_S, OPEN, Sessions
from toolwire.surfaces.web.tools import Preferences, SettingsApi, Source, WebTools, vault_tools
from toolwire.surfaces.web.tours import Tours
from toolwire.tools.approvals import Approvals
from toolwire.tools.consent import Proofs, server_key

if TYPE_CHECKING:
    from toolwire.tools.mcp.servers import McpServers

TOUR_PAGE = "/tour"
"""The address below /ui that starts a tour. A one-time link with the parameter `tour` leads to it."""
PAGES = ("", "/chat", "/chat/{id}", TOUR_PAGE, "/inbox", "/wire", "/wire/{id}", "/connect", "/settings")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
WRONG_KEY_S = 0.5
PAGE_KEY = "page"
"""The name of the page key in addresses.

A sign-in puts the page key into the fragment, which browsers never send to a server. Only downloads and the
live stream have it in the query.
"""
EVENTS_PATH = "/ui/api/events"
TYPES = {
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "svg": "image/svg+xml",
}


class Pages:
    """Handles every request for `/` and below `/ui`. The first request starts the pages' APIs."""

    def __init__(
        self,
        gateway: Gateway,
        settings: Settings,
        store: Store,
        source: Source = vault_tools,
        keys: KeyRing | None = None,
        servers: McpServers | None = None,
    ) -> None:
        preferences = Preferences(store)
        tools = WebTools(settings, preferences, source, servers)
        boot = random_id("boot_")
        key, is_open = server_key(settings.server), settings.approvals.command_line == "open"
        approvals = Approvals(store, proofs=Proofs(store, key, unproven=is_open))
        self._notices = approvals.notices = notices_of(settings.notices, store, approvals)
        parts = (approvals, Hub(), preferences, tools, Tours(gateway))
        self.web = Web(gateway, settings, store, *parts, boot)
        self.sessions = Sessions(store, settings.server.admin_keys, keys=keys, seal_key=key)
        self._code = CodeApi(self.sessions, approvals.proofs.code)
        self.secret = ""
        """The secret in the record of this server (`cluster/running.py`); "" without a record."""
        self._keys = keys
        apis: tuple[type[PageApi], ...] = (
            *(ChatApi, InboxApi, SettingsApi, ModelsApi, ServersApi, LocalApi, WireApi, ConnectApi),
        )
        self._apis = [api(self.web) for api in apis]
        inbox = next(api for api in self._apis if isinstance(api, InboxApi))
        self._links = LinkApi(self.web, inbox)
        self._files = _files()
        self._starting: asyncio.Task[None] | None = None
        self._router = self._routes()

    def covers(self, path: str) -> bool:
        return path == "/" or path == "/ui" or path.startswith("/ui/")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._started()
        await self._router(scope, receive, send)

    def drain(self) -> None:
        """Ends the live streams of the tabs, because a server that stops would wait for them."""
        self.web.hub.close()

    async def _started(self) -> None:
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start())
        try:
            await asyncio.shield(self._starting)
        except Exception:
            self._starting = None
            raise

    async def _start(self) -> None:
        await self.web.preferences.load()
        await self.web.tools.refresh()
        for api in self._apis:
            await api.start()

    async def close(self) -> None:
        self.web.hub.close()
        for api in self._apis:
            await api.close()
        await self.web.tools.close()
        await self.web.tours.close()
        if self._notices is not None:
            await self._notices.close()

    # --- routes

    def _routes(self) -> Router:
        rows: list[Row] = [
            *(row for api in self._apis for row in api.routes()),
            ("GET", "/session", self._session),
            ("DELETE", "/session", self._leave),
            ("POST", "/session/link", self._link),
            *self._code.routes(),
            ("GET", "/events", self._events),
        ]
        links = self._links.routes()
        routes = [Route(path, self._page) for path in ("/", *(f"/ui{page}" for page in PAGES))]
        routes += [
            Route("/ui/static/{name}", self._file),
            Route("/ui/enter", self._enter),
            Route("/ui/link/{id}", self._link_page),
            *(Route(f"/ui/api{path}", _public(handler), methods=[method]) for method, path, handler in links),
            Route("/ui/api/session", self._enter_by_key, methods=["POST"]),
            Route(ASK_PATH, self._ask, methods=["POST"]),
        ]
        for method, path, handler in rows:
            routes.append(Route(f"/ui/api{path}", self._checked(handler), methods=[method]))
        return Router(routes, redirect_slashes=False)

    def _checked(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """Returns a handler that requires a session and a request from the server's own pages."""

        async def checked(request: Request) -> Response:
            _check_origin(request)
            token, sessions = request.cookies.get(_cookie(request), ""), self.sessions
            fits = await sessions.valid(token) and await sessions.page_key_fits(token, _page_key(request))
            if not fits:
                how = "run toolwire open, open the link that toolwire serve printed, or use an admin key"
                raise ToolwireError("authentication", f"Sign in first: {how}.")
            request.state.token, request.state.authority = token, await sessions.authority(token)
            answer = await handler(request)
            response = answer if isinstance(answer, Response) else Json(answer)
            return _guarded(response, store=False)

        return checked

    # --- the HTML file and its assets

    async def _page(self, request: Request) -> Response:
        accepts = request.headers.get("accept", "")
        if request.url.path == "/" and "application/json" in accepts and "text/html" not in accepts:
            return JSONResponse({"name": "toolwire", "api": "/v1"})
        return self._static(request, "index.html")

    async def _file(self, request: Request) -> Response:
        return self._static(request, request.path_params["name"])

    async def _link_page(self, request: Request) -> Response:
        """Returns the HTML page for links, which is the same for all links.

        Opening the page decides nothing.
        """
        return _guarded(self._static(request, "link.html"), store=False)

    def _static(self, request: Request, name: str) -> Response:
        found = self._files.get(name)
        if found is None:
            raise ToolwireError("unknown_url", f"Invalid URL ({request.method} {request.url.path[:200]})")
        content, kind, tag = found
        headers = {"etag": tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return _guarded(Response(status_code=304, headers=headers))
        return _guarded(Response(content, headers={**headers, "content-type": kind}))

    # --- sessions

    async def _enter(self, request: Request) -> Response:
        """Handles the one-time link.

        An existing session stays valid. A browser that prefetches the link does not use it up.
        """
        purposes = (request.headers.get(name, "") for name in ("sec-purpose", "purpose"))
        if request.method == "HEAD":
            return _guarded(Response(status_code=204), store=False)
        if any("prefetch" in purpose for purpose in purposes):
            return _guarded(Response(status_code=503), store=False)
        page = f"/ui{TOUR_PAGE}" if TOUR_PAGE.strip("/") in request.query_params else "/"
        token = await self.sessions.enter(request.query_params.get("token", "")[:200])
        if token is None:
            known = await self.sessions.valid(request.cookies.get(_cookie(request), ""))
            return _guarded(RedirectResponse(page if known else "/?link=used", 303), store=False)
        key = await self.sessions.page_key(token)
        return _signed_in(RedirectResponse(f"{page}#{PAGE_KEY}={key}", 303), request, token)

    async def _enter_by_key(self, request: Request) -> Response:
        _check_origin(request)
        key = field(await body(request), "key", str, required=True)
        token = await self.sessions.enter_by_key(key)
        if token is None:
            await asyncio.sleep(WRONG_KEY_S)
            message = "This is not an admin key (server.admin_keys, or toolwire keys add --admin)."
            raise ToolwireError("authentication", message)
        return _signed_in(JSONResponse({PAGE_KEY: await self.sessions.page_key(token)}), request, token)

    async def _ask(self, request: Request) -> Response:
        """Answers a `toolwire` command on this machine that knows the secret in this server's record."""
        _check_origin(request)
        given = await body(request)
        nonce, sent = (field(given, name, str, required=True)[:200] for name in ("nonce", "proof"))
        known = proof(self.secret, "command", nonce).encode()
        if not hmac.compare_digest(known, sent.encode("utf-8", "replace")) or not self.secret:
            await asyncio.sleep(WRONG_KEY_S)
            raise ToolwireError("authentication", "The proof does not match the record of this server.")
        catalog = self.web.gateway.catalog
        answer: dict[str, Any] = {
            "proof": proof(self.secret, "server", nonce),
            "models": {id: catalog.kind(catalog.serving(id)) for id in catalog.listed()},
            "aliases": [pattern for pattern, _ in self.web.settings.aliases],
        }
        if field(given, "link", bool, False):
            answer["link"] = enter_path(await self.sessions.link(OPEN, decides=False))
        return _guarded(JSONResponse(answer), store=False)

    async def _session(self, request: Request) -> dict[str, Any]:
        tools, settings = self.web.tools, self.web.settings
        stored_keys = self._keys is not None and self._keys.needed
        vault_open = tools.toolbox is not None
        return {
            "boot": self.web.boot,
            "version": version("toolwire"),
            "base_url": self.web.base_url(request),
            "keys": bool(settings.server.keys or settings.server.admin_keys) or stored_keys,
            "vault": {"root": settings.vault.root, "name": tools.root.name, "open": vault_open},
            "tool_calling": tools.enabled,
            "approving": await self._code.state(request),
        }

    async def _leave(self, request: Request) -> Response:
        token = request.cookies[_cookie(request)]
        await self.sessions.end(token)
        self.web.hub.end(token)
        response = JSONResponse({})
        response.delete_cookie(_cookie(request), **_cookie_attributes(request))
        return response

    async def _link(self, request: Request) -> dict[str, Any]:
        origin = await self.sessions.origin(request.cookies[_cookie(request)])
        path = enter_path(await self.sessions.link(origin, request.state.authority.decides))
        return {"url": f"{request.url.scheme}://{request.url.netloc}{path}"}

    # --- the live stream

    async def _events(self, request: Request) -> Response:
        async def frames() -> Any:
            tab = self.web.hub.subscribe(request.cookies[_cookie(request)])
            try:
                async for frame in tab.frames({"boot": self.web.boot, "version": version("toolwire")}):
                    yield frame
            finally:
                self.web.hub.leave(tab)

        headers = {"x-accel-buffering": "no"}
        return StreamingResponse(frames(), media_type="text/event-stream", headers=headers)


def enter_path(token: str) -> str:
    return f"/ui/enter?token={token}"


def _cookie(request: Request) -> str:
    """Returns the cookie's name. It contains the port, because a host's ports share cookies."""
    port = request.headers.get("host", "").rpartition(":")[2]
    default = "443" if request.url.scheme == "https" else "80"
    return f"toolwire_{port if port.isascii() and port.isdigit() else default}"


def _page_key(request: Request) -> str:
    """Returns the page key from the header; for downloads and the live stream, from the query."""
    in_query = request.query_params.get(PAGE_KEY, "") if request.method == "GET" else ""
    return request.headers.get("x-toolwire-page", "") or in_query


def _signed_in(response: Response, request: Request, token: str) -> Response:
    attributes = _cookie_attributes(request)
    response.set_cookie(_cookie(request), token, max_age=int(LIFETIME_S), **attributes)
    return _guarded(response, store=False)


def _cookie_attributes(request: Request) -> dict[str, Any]:
    return {"path": "/", "secure": request.url.scheme == "https", "httponly": True, "samesite": "strict"}


def _check_origin(request: Request) -> None:
    """Raises an error if a request comes from another site, or another port of this machine."""
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    host = request.headers.get("host", "").lower()
    own = {f"http://{host}", f"https://{host}"}  # a proxy may terminate TLS
    if (origin is not None and origin.lower() not in own) or site not in (None, "same-origin", "none"):
        raise ToolwireError("forbidden_origin", "Only this server's own pages may send this request.")


def _public(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """Returns a handler that needs no session, because a secret in the request grants access."""

    async def guarded(request: Request) -> Response:
        try:
            answer = await handler(request)
        except ToolwireError as error:  # handled here, so that no cache stores this answer
            answer = Json(error_object(error.failure), status_of(error.failure))
        return _guarded(answer if isinstance(answer, Response) else Json(answer), store=False)

    return guarded


def _guarded(response: Response, store: bool = True) -> Response:
    response.headers.update(HEADERS)
    if not store:
        response.headers["cache-control"] = "no-store"
    return response


def _files() -> dict[str, tuple[bytes, str, str]]:
    """Returns the content, type and ETag of each static file, by name."""
    out = {}
    for entry in (files("toolwire.surfaces.web") / "static").iterdir():
        kind = TYPES.get(entry.name.rpartition(".")[2])
        if kind is not None:
            content = entry.read_bytes()
            out[entry.name] = (content, kind, f'"{hashlib.sha256(content).hexdigest()[:24]}"')
    return out

"""DamagingRelay: a relay in front of a real endpoint that damages responses.

async with DamagingRelay("http://127.0.0.1:8788") as relay:
    relay.damage = damage  # a function that may change the `Passing` it is given
    ...  # talk to relay.base_url
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web

KEPT_HEADERS = (
    "content-type",
    "access-control-allow-origin",
    "access-control-allow-headers",
    "access-control-allow-methods",
)


@dataclass
class Passing:
    """A response on its way to the client, with its request. `status`, `headers`, `raw` may be changed."""

    method: str
    path: str
    asked: dict[str, Any]
    sent_headers: frozenset[str]
    """The names of the request's headers, in lower case."""
    status: int
    headers: dict[str, str]
    raw: bytes

    @property
    def streamed(self) -> bool:
        return self.status == 200 and self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def json(self) -> Any:
        """The JSON body of a successful response, otherwise None."""
        if self.status != 200 or not self.headers.get("content-type", "").startswith("application/json"):
            return None
        return json.loads(self.raw)

    def answer(self, status: int, body: Any, content_type: str = "application/json") -> None:
        self.status, self.headers = status, {**self.headers, "content-type": content_type}
        self.raw = body if isinstance(body, bytes) else json.dumps(body).encode()


Damage = Callable[[Passing], None]


class DamagingRelay:
    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None
        self.damage: Damage = lambda passing: None
        self.base_url = ""

    async def __aenter__(self) -> DamagingRelay:
        self._session = aiohttp.ClientSession()
        app = web.Application(client_max_size=16 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._pass)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.base_url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()

    async def _pass(self, request: web.Request) -> web.Response:
        assert self._session is not None
        raw = await request.read()
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() not in ("host", "content-length")
        }
        async with self._session.request(
            request.method, self._origin + request.path_qs, data=raw or None, headers=headers
        ) as answer:
            kept = {
                name.lower(): value for name, value in answer.headers.items() if name.lower() in KEPT_HEADERS
            }
            passing = Passing(
                request.method,
                request.path.removeprefix("/v1"),
                _loaded(raw),
                frozenset(name.lower() for name in headers),
                answer.status,
                kept,
                await answer.read(),
            )
        self.damage(passing)
        return web.Response(status=passing.status, headers=passing.headers, body=passing.raw)


def _loaded(raw: bytes) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}

"""Health: live (the process answers), ready (a model could serve, and the server is not draining). No key needed: nothing is told but yes or no."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

if TYPE_CHECKING:
    from toolwire.gateway.pipeline import Gateway

READY_WITHIN_S = 3.0
log = logging.getLogger("toolwire.http")


def routes(gateway: Gateway, draining: Callable[[], bool]) -> list[Route]:
    async def live(request: Request) -> JSONResponse:
        return JSONResponse({"ok": True})

    async def ready(request: Request) -> JSONResponse:
        if draining():
            return JSONResponse({"ok": False, "reason": "draining"}, 503)
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                ok = await gateway.ready()
        except Exception as error:
            log.warning("readiness check failed: %r", error)
            ok = False
        return JSONResponse({"ok": True} if ok else {"ok": False, "reason": "no model can serve"}, 200 if ok else 503)

    return [Route("/healthz", live), Route("/livez", live), Route("/readyz", ready)]

"""The worker processes of one server, as each of them sees the others.

The pages live in the first worker, where their tabs, their conversations and their journal are: the others pass requests for them on. Metrics are
asked for at any worker and tell of all, each with a label that says whose they are.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import aiohttp
from starlette.requests import Request
from starlette.responses import Response

from toolwire.cluster.forward import BETWEEN_TWO, HOPPED, Courier, Forwardable, NodeSeals
from toolwire.core.errors import ToolwireError
from toolwire.core.ids import random_id

if TYPE_CHECKING:
    from toolwire.observe.metrics import Metrics

METRICS_WITHIN_S = 2.0
PLAIN = "text/plain; version=0.0.4; charset=utf-8"
_OWN = frozenset({"x-request-id", "x-content-type-options"})
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (.*)")
_FAILED = (aiohttp.ClientError, OSError, TimeoutError)

log = logging.getLogger("toolwire.nodes")


class Siblings:
    """`place` is this worker's number, `addresses` are where each of them is reached by the others."""

    def __init__(self, place: int, addresses: Sequence[str], seals: NodeSeals, courier: Courier) -> None:
        self._place = place
        self._addresses = tuple(addresses)
        self._seals = seals
        self._courier = courier

    @property
    def has_pages(self) -> bool:
        return self._place == 0

    async def page(self, exchange: Forwardable, raw: bytes) -> None:
        """Answers with what the pages' worker says."""
        address = self._addresses[0]
        try:
            response = await self._courier.send(
                address,
                exchange.scope,
                self._seals.headers(exchange.scope, exchange.request_id, address),
                raw,
            )
        except _FAILED:
            raise ToolwireError("overloaded", "The pages are being started again.", retry_after_s=1) from None
        try:
            headers = [(name.lower(), value) for name, value in response.headers.items()]
            passed = [
                (name.encode(), value.encode("latin-1"))
                for name, value in headers
                if name not in BETWEEN_TWO and name not in _OWN
            ]
            if "content-length" in response.headers:
                passed.append((b"content-length", response.headers["content-length"].encode()))
            await exchange.begin(response.status, passed)
            async for piece in response.content.iter_any():
                await exchange.piece(piece)
            await exchange.end()
        finally:
            response.close()

    async def metrics(self, request: Request, own: Metrics) -> Response:
        """Every worker's figures. One that does not answer is left out, and comes back with its own numbers."""
        if HOPPED in request.scope:
            page, _ = own.page("text/plain")
            return Response(page, media_type=PLAIN)
        places = [place for place in range(len(self._addresses)) if place != self._place]
        others = await asyncio.gather(*(self._metrics_of(place, request) for place in places))
        pages = {self._place: own.page("text/plain")[0].decode(), **dict(zip(places, others, strict=True))}
        return Response(merged({place: pages[place] for place in sorted(pages)}), media_type=PLAIN)

    async def _metrics_of(self, place: int, request: Request) -> str:
        scope = {**request.scope, "method": "GET", "raw_path": b"/metrics", "query_string": b""}
        address = self._addresses[place]
        try:
            async with asyncio.timeout(METRICS_WITHIN_S):
                response = await self._courier.send(
                    address, scope, self._seals.headers(scope, random_id("req_"), address)
                )
                try:
                    return (await response.read()).decode() if response.status == 200 else ""
                finally:
                    response.close()
        except _FAILED as error:
            log.warning("the metrics of worker %d are missing: %s", place, str(error) or type(error).__name__)
            return ""


def merged(pages: dict[int, str]) -> str:
    """Pages of metrics as one: each family once, each sample with the worker's number."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for place, page in pages.items():
        family = ""
        for line in page.splitlines():
            if line.startswith("# "):
                _, kind, name = line.split(" ", 3)[:3]
                family = name
                if not any(head.split(" ", 3)[1] == kind for head in heads.setdefault(name, [])):
                    heads[name].append(line)
            elif (match := _SAMPLE.fullmatch(line)) is not None:
                labels = ",".join(filter(None, (match[2], f'worker="{place}"')))
                samples.setdefault(family, []).append(f"{match[1]}{{{labels}}} {match[3]}")
    return "".join(
        f"{line}\n"
        for family in {**heads, **samples}
        for line in (*heads.get(family, ()), *samples.get(family, ()))
    )

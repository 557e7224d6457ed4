"""A browser's `fetch`: a page in real Chromium runs tool loops from another origin, with preflights.

Obsidian's origin is `app://obsidian.md`, a scheme that its Electron registers and plain Chromium does not
know. So the page has a loopback origin, and a relay between Chromium and the gateway replaces that origin
with `app://obsidian.md` in requests, and the reverse in the response headers that allow the origin. It
changes nothing else: Chromium itself decides which requests need a preflight, what is in it, and whether the
gateway's headers allow the request.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web
from playwright.sync_api import sync_playwright

OBSIDIAN = "app://obsidian.md"
PAGE = "<!doctype html><title>client</title><script src=browser.js></script>"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
HOP = {"host", "connection", "content-length", "transfer-encoding", "content-encoding", "date", "server"}


@dataclass(frozen=True)
class Preflight:
    path: str
    asked: dict[str, str]
    status: int
    answered: dict[str, str]


@dataclass
class Browsed:
    results: list[dict[str, Any]] = field(default_factory=list)
    preflights: list[Preflight] = field(default_factory=list)


@dataclass
class Relay:
    """The relay. `origin` is the origin that the gateway sees, `page` the page's real one."""

    upstream: str
    origin: str
    page: str
    seen: list[Preflight]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP}
        if headers.get("Origin") == self.page:
            headers["Origin"] = self.origin
        body = await request.read()
        async with aiohttp.ClientSession(auto_decompress=False) as session:
            sending = session.request(
                request.method, self.upstream + request.path_qs, headers=headers, data=body or None
            )
            async with sending as answer:
                if request.method == "OPTIONS":
                    asked, answered = (
                        {k.lower(): v for k, v in sent.items()} for sent in (headers, answer.headers)
                    )
                    self.seen.append(Preflight(request.path, asked, answer.status, answered))
                response = web.StreamResponse(status=answer.status)
                for name, value in answer.headers.items():
                    if name.lower() not in HOP:
                        admitted = name.lower() == "access-control-allow-origin" and value == OBSIDIAN
                        response.headers.add(name, self.page if admitted else value)
                await response.prepare(request)
                async for block in answer.content.iter_any():
                    await response.write(block)
        return response


@asynccontextmanager
async def _listening(handle: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    app = web.Application(client_max_size=1 << 24)
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _site(
    stack: AsyncExitStack, roots: list[str], origin: str, seen: list[Preflight]
) -> tuple[str, dict[str, str]]:
    """The page's origin, and the relay's address for each gateway."""

    async def page(request: web.Request) -> web.Response:
        if request.path.endswith(".js"):
            return web.Response(
                text=Path(__file__).with_name("browser.js").read_text("utf-8"), content_type="text/javascript"
            )
        return web.Response(text=PAGE, content_type="text/html")

    page_url = await stack.enter_async_context(_listening(page))
    relays = [Relay(root, origin, page_url, seen) for root in roots]
    return page_url, {
        relay.upstream: await stack.enter_async_context(_listening(relay.handle)) for relay in relays
    }


@contextmanager
def _in_a_thread(
    roots: list[str], origin: str, seen: list[Preflight]
) -> Iterator[tuple[str, dict[str, str]]]:
    """Playwright's synchronous API needs a thread without an event loop, so it gets its own."""
    loop, stack = asyncio.new_event_loop(), AsyncExitStack()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(_site(stack, roots, origin, seen), loop).result(10)
    finally:
        asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def run_browser(program: str, jobs: list[dict[str, Any]], origin: str = OBSIDIAN) -> Browsed:
    browsed = Browsed()
    roots = sorted({job["baseURL"].removesuffix(urlsplit(job["baseURL"]).path) for job in jobs})
    with (
        _in_a_thread(roots, origin, browsed.preflights) as (page_url, relays),
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        try:
            page = browser.new_page()
            page.goto(page_url)
            sent = []
            for job in jobs:
                path = urlsplit(job["baseURL"]).path
                sent.append({**job, "baseURL": relays[job["baseURL"].removesuffix(path)] + path})
            browsed.results = page.evaluate("jobs => runJobs(jobs)", sent)
        finally:
            browser.close()
    return browsed

"""The baseline: a relay that copies bytes and parses nothing.

Like Toolwire's own request path, it is a raw ASGI application, served by uvicorn, with an aiohttp client. Run
it as `uvicorn bench.relay:app`, with the environment variable UPSTREAM set to the base URL of the model
server.
"""

from __future__ import annotations

import os
from typing import Any

import aiohttp

UPSTREAM = os.environ.get("UPSTREAM", "http://127.0.0.1:9100")
HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
_session: aiohttp.ClientSession | None = None


def session() -> aiohttp.ClientSession:
    global _session
    if _session is None:
        timeout = aiohttp.ClientTimeout(total=None)
        _session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar(), timeout=timeout
        )
    return _session


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    blocks = []
    more = True
    while more:
        message = await receive()
        blocks.append(message.get("body", b""))
        more = message.get("more_body", False)
    async with session().request(
        scope["method"], UPSTREAM + scope["path"], data=b"".join(blocks), headers=HEADERS
    ) as response:
        headers = [(b"content-type", response.headers["Content-Type"].encode())]
        if response.content_length is not None:
            headers.append((b"content-length", str(response.content_length).encode()))
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        while block := await response.content.readany():
            await send({"type": "http.response.body", "body": block, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

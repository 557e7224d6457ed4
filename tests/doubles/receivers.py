"""Receivers of notices on loopback: a webhook, and an ntfy server with ntfy's format, limits and errors.

Use them as `async with served_receiver(Webhook(SECRET)) as url`, or with `FakeNtfy(tokens={…})`. Both collect
the messages in `got`. `script` is a list of behaviours for the next requests: a status, "slow", "redirect",
"huge" or "close".
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import aiohttp
from aiohttp import web

from toolwire.surfaces.notices.signature import HEADER, signature, wrong

Behaviour = int | Literal["slow", "redirect", "huge", "close"]
Access = Literal["rw", "ro", "wo"]
NTFY_ERRORS = {
    40009: (400, "invalid request: topic invalid"),
    40017: (400, "invalid request: request body must be message JSON"),
    40018: (400, "invalid request: actions invalid"),
    40101: (401, "unauthorized"),
    40301: (403, "forbidden"),
    41303: (413, "JSON body too large"),
    42901: (429, "limit reached: too many requests"),
}
MOST_MESSAGE = 4096
_TOPIC = re.compile(r"[-_A-Za-z0-9]{1,64}")
_FIELDS = {"topic", "message", "title", "tags", "priority", "actions", "click", "attach", "markdown", "icon"}


class Receiver:
    """The base of both receivers. Subclasses answer a request in `accept`."""

    def __init__(self) -> None:
        self.url = ""
        self.script: list[Behaviour] = []
        self.got: list[dict[str, Any]] = []
        """The messages that were accepted, as JSON."""
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        """Method, path, headers and body of every request, including refused requests."""
        self.retry_after = ""
        self._news = asyncio.Event()
        self._open = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.requests.append((request.method, request.path_qs, dict(request.headers), body))
        self._news.set()
        how = self.script.pop(0) if self.script and request.method == "POST" else None
        if how == "slow":
            await self._open.wait()
        elif how == "redirect":
            raise web.HTTPTemporaryRedirect(f"{self.url}/elsewhere")
        elif how == "close":
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        elif how == "huge":
            return await self._endless(request)
        elif how is not None:
            headers = {"retry-after": self.retry_after} if self.retry_after else {}
            return web.json_response({"error": "not \u001b[31mnow"}, status=how, headers=headers)
        return await self.accept(request, body)

    async def accept(self, request: web.Request, body: bytes) -> web.StreamResponse:
        raise NotImplementedError

    async def _endless(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=500)
        await response.prepare(request)
        try:
            while not self._open.is_set():
                await response.write(b"x" * 65536)
        except (ConnectionError, asyncio.CancelledError):
            pass
        return response

    def close(self) -> None:
        self._open.set()

    async def until(self, count: int, *, requests: bool = False, within_s: float = 20) -> None:
        """Waits until this many messages were accepted, or (`requests`) this many requests received."""
        async with asyncio.timeout(within_s):
            while len(self.requests if requests else self.got) < count:
                self._news.clear()
                await self._news.wait()

    def keep(self, message: dict[str, Any]) -> None:
        self.got.append(message)
        self._news.set()


class Webhook(Receiver):
    """A receiver that checks signatures, and can answer the questions in its messages."""

    def __init__(self, secret: str) -> None:
        super().__init__()
        self.secret = secret

    async def accept(self, request: web.Request, body: bytes) -> web.StreamResponse:
        if problem := wrong(self.secret, request.headers.get(HEADER, ""), body, time.time()):
            return web.json_response({"error": problem}, status=401)
        self.keep(json.loads(body))
        return web.Response(status=204)

    async def answer(
        self,
        message: dict[str, Any],
        approved: bool,
        *,
        at: float | None = None,
        secret: str | None = None,
        header: str | None = None,
        body: bytes | None = None,
        **more: Any,
    ) -> tuple[int, dict[str, Any]]:
        """Sends the answer to the question in `message`. Returns the status and body of the response."""
        answer = message["answer"]
        given = {"id": answer["id"], "token": answer["token"], "approved": approved, **more}
        signed = json.dumps(given).encode()
        when = int(time.time() if at is None else at)
        signs = signature(self.secret if secret is None else secret, when, signed)
        headers = {HEADER: signs if header is None else header}
        return await post(answer["url"], body or signed, headers)


class FakeNtfy(Receiver):
    """An ntfy server: publishing as JSON, polling, access tokens, and ntfy's errors.

    `tokens`: for each token, its rights for all topics. Without tokens, everybody may do everything.
    """

    def __init__(self, tokens: dict[str, Access] | None = None) -> None:
        super().__init__()
        self.tokens = tokens or {}

    def _may(self, request: web.Request, write: bool) -> int:
        """Returns 0 if the request may read or, with `write`, publish; otherwise the code of ntfy's error."""
        if not self.tokens:
            return 0
        given = request.headers.get("authorization", "")
        if not given:
            return 40301
        rights = self.tokens.get(given.removeprefix("Bearer "))
        if rights is None or not given.startswith("Bearer "):
            return 40101
        return 0 if rights == "rw" or rights == ("wo" if write else "ro") else 40301

    async def accept(self, request: web.Request, body: bytes) -> web.StreamResponse:
        topic, _, action = request.path.strip("/").partition("/")
        if request.method == "GET" and action in ("auth", "json"):
            if code := self._may(request, write=False):
                return self._error(code)
            if action == "auth":
                return web.json_response({"success": True})
            lines = [json.dumps(one) for one in self.got if one["topic"] == topic]
            return web.Response(text="\n".join(lines) + "\n", content_type="application/x-ndjson")
        if request.method not in ("POST", "PUT") or request.path != "/":
            return web.json_response({"code": 40401, "http": 404, "error": "page not found"}, status=404)
        return self._publish(request, body)

    def _publish(self, request: web.Request, body: bytes) -> web.Response:
        if len(body) > 2 * MOST_MESSAGE:
            return self._error(41303)
        try:
            given = json.loads(body)
        except ValueError:
            return self._error(40017)
        if not isinstance(given, dict) or set(given) - _FIELDS:
            return self._error(40017)
        if not _TOPIC.fullmatch(given.get("topic", "")):
            return self._error(40009)
        if code := self._may(request, write=True):
            return self._error(code)
        actions = given.get("actions", [])
        if len(actions) > 3 or any(not _is_action(one) for one in actions):
            return self._error(40018)
        now = int(time.time())
        message: dict[str, Any] = {
            "id": secrets.token_urlsafe(9)[:12],
            "time": now,
            "expires": now + 43200,
            "event": "message",
            **given,
            "message": given.get("message") or "triggered",
        }
        if len(message["message"].encode()) > MOST_MESSAGE:  # ntfy sends a long message as an attachment
            message["message"] = "You received a file: attachment.txt"
        if actions:
            message["actions"] = [{"id": secrets.token_hex(5), "clear": False, **one} for one in actions]
        self.keep(message)
        return web.json_response(message)

    def _error(self, code: int) -> web.Response:
        status, error = NTFY_ERRORS[code]
        link = "https://ntfy.sh/docs/publish/"
        return web.json_response({"code": code, "http": status, "error": error, "link": link}, status=status)


def _is_action(one: dict[str, Any]) -> bool:
    kind, method = one.get("action"), one.get("method", "POST")
    return (
        kind in ("view", "http", "broadcast")
        and bool(one.get("label"))
        and (kind == "broadcast" or bool(one.get("url")))
        and not (kind == "http" and method in ("GET", "HEAD") and one.get("body"))
    )


async def tap(message: dict[str, Any], label: str) -> tuple[int, dict[str, Any]]:
    """Presses a button of a message, as ntfy's app does. Returns the status and body of the response."""
    action = next(one for one in message["actions"] if one["label"] == label)
    assert (action["action"], action.get("method", "POST")) == ("http", "POST")
    return await post(action["url"], action["body"].encode(), action.get("headers", {}))


async def post(url: str, body: bytes, headers: dict[str, str]) -> tuple[int, dict[str, Any]]:
    async with aiohttp.ClientSession() as client, client.post(url, data=body, headers=headers) as response:
        return response.status, await response.json()


@asynccontextmanager
async def served_receiver(receiver: Receiver) -> AsyncIterator[str]:
    app = web.Application(client_max_size=2**24)
    app.router.add_route("*", "/{path:.*}", receiver.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield receiver.url
    finally:
        receiver.close()
        await runner.cleanup()

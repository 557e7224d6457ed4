"""The servers on 127.0.0.1 with which agents call the client's tools: `ToolServer` and its base class.

- `ToolServer` is an MCP server over streamable HTTP with one bearer token. It has only the methods that an
  agent needs to list and call tools. It refuses a foreign `Host` or `Origin` before it checks the token, so
  that no page in a browser can reach it.
- The response to a call is an event stream if the agent accepts one. Its headers are sent at once, then
  keep-alives (comments, or `notifications/progress` if the agent asked for them) until the client's result
  arrives. A call can therefore wait without a time limit.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from aiohttp import web

from toolwire.backends.agents.history import inline
from toolwire.core.errors import ToolwireError
from toolwire.core.turn import ImagePart, Part, Result, TextPart, ToolSpec

Json = Any
Call = Callable[[str, dict[str, Json]], Awaitable[Result]]
"""A function that calls a client's tool by its name.

If the function raises a `ToolwireError`, the agent sees a failed call.
"""

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
PATH = "/mcp"
BODY_LIMIT = 32 * 2**20
KEEP_ALIVE_S = 10.0
PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32700, -32600, -32601, -32602
UNSUPPORTED_VERSION = -32022


class LoopbackServer(ABC):
    """A web server on 127.0.0.1 with its own port and bearer token.

    A subclass handles all requests in `_serve`.
    """

    def __init__(self, body_limit: int, **runner: Any) -> None:
        self._body_limit = body_limit
        self._options = runner
        self._runner: web.AppRunner | None = None
        self._port = 0
        self.token = secrets.token_urlsafe(32)

    @abstractmethod
    async def _serve(self, request: web.Request) -> web.StreamResponse: ...

    def _accepts(self, request: web.Request) -> bool:
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        return hmac.compare_digest(given, f"Bearer {self.token}".encode())

    async def start(self) -> None:
        """Starts the server. If the start is cancelled, no socket stays open."""
        starting = asyncio.ensure_future(self._start())
        try:
            await asyncio.shield(starting)
        except BaseException:
            await asyncio.wait({starting})
            await self.close()
            raise

    async def _start(self) -> None:
        app = web.Application(client_max_size=self._body_limit)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, **self._options)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self._port = self._runner.addresses[0][1]

    async def close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()


def content(parts: Iterable[Part]) -> list[dict[str, Json]]:
    """Returns a tool's result as MCP content: texts and inline images.

    Any other image becomes a placeholder text. Any other part becomes its JSON, as text.
    """
    out: list[dict[str, Json]] = []
    for part in parts:
        if isinstance(part, ImagePart) and (image := inline(part)) is not None:
            out.append({"type": "image", "data": image[0], "mimeType": image[1]})
            continue
        if isinstance(part, TextPart):
            text = part.text
        elif isinstance(part, ImagePart):
            text = f"[image {part.url or part.file_id or ''}]"
        else:
            text = json.dumps(part.raw, ensure_ascii=False)
        out.append({"type": "text", "text": text})
    return out


def tool_result(result: Result) -> dict[str, Json]:
    return {"content": content(result.parts or (TextPart(""),)), "isError": result.is_error}


def error_result(message: str) -> dict[str, Json]:
    return {"content": [{"type": "text", "text": message}], "isError": True}


class JsonRpcError(Exception):
    def __init__(self, code: int, message: str, data: Json = None) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message} | ({} if data is None else {"data": data})


class ToolServer(LoopbackServer):
    """The MCP server of a session.

    Call `start`, pass `url` and `headers` to the agent, and `close` it together with the session.
    """

    def __init__(self, tools: Sequence[ToolSpec], call: Call, *, keep_alive_s: float = KEEP_ALIVE_S) -> None:
        super().__init__(BODY_LIMIT)
        self._tools = {tool.name: tool for tool in tools}
        self._call = call
        self._keep_alive_s = keep_alive_s
        self._calls: set[asyncio.Future[dict[str, Json]]] = set()
        self.listed = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}{PATH}"

    @property
    def headers(self) -> dict[str, str]:
        """The headers that the agent must send. They contain the token and must not be logged."""
        return {"Authorization": f"Bearer {self.token}"}

    async def close(self) -> None:
        for call in list(self._calls):
            call.cancel()
        await super().close()

    def _refusal(self, request: web.Request) -> web.Response | None:
        hosts = [f"127.0.0.1:{self._port}", f"localhost:{self._port}"]
        if request.headers.get("Host", "").lower() not in hosts:
            return web.Response(status=403, text="forbidden host")
        origin = request.headers.get("Origin")
        if origin is not None and origin.lower() not in [f"http://{host}" for host in hosts]:
            return web.Response(status=403, text="forbidden origin")
        if not self._accepts(request):
            headers = {"WWW-Authenticate": "Bearer"}
            return web.Response(status=401, text="a bearer token is needed", headers=headers)
        if request.path != PATH:
            return web.Response(status=404, text="not found")
        if request.method != "POST":
            return web.Response(status=405, text="only POST", headers={"Allow": "POST"})
        return None

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        id: Json = None
        try:
            message = await _message(request)
            id = message.get("id")
            if "method" not in message or id is None:  # a notification or a response, which gets no reply
                return web.Response(status=202)
            params = message.get("params")
            params = params if isinstance(params, dict) else {}
            if message["method"] == "tools/call":
                return await self._tool_call(request, id, params)
            return _reply(id, {"result": self._answer(str(message["method"]), params)})
        except JsonRpcError as fault:
            return _reply(id, {"error": fault.error}, 200 if id is not None else 400)

    def _answer(self, method: str, params: dict[str, Json]) -> dict[str, Json]:
        if method == "ping":
            return {}
        if method == "initialize":
            version = params.get("protocolVersion")
            return {
                "protocolVersion": version if version in VERSIONS else VERSIONS[-1],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "toolwire", "title": "The client's tools", "version": "1"},
            }
        if method != "tools/list":
            raise JsonRpcError(METHOD_NOT_FOUND, f"There is no method {method[:80]!r}.")
        self.listed.set()
        tools = [
            {
                "name": tool.name,
                "description": tool.description,
                "inputSchema": {"type": "object", **tool.parameters},
            }
            for tool in self._tools.values()
        ]
        return {"tools": tools}

    async def _tool_call(self, request: web.Request, id: Json, params: dict[str, Json]) -> web.StreamResponse:
        name, arguments, meta = params.get("name"), params.get("arguments"), params.get("_meta")
        if not isinstance(name, str) or name not in self._tools:
            raise JsonRpcError(INVALID_PARAMS, f"Unknown tool: {str(name)[:80]}")
        if arguments is not None and not isinstance(arguments, dict):
            raise JsonRpcError(INVALID_PARAMS, "The arguments are not an object.")
        call = asyncio.ensure_future(self._result(name, arguments or {}))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        if "text/event-stream" not in request.headers.get("Accept", ""):
            return _reply(id, {"result": await _settled(call)})
        return await self._streamed(
            request, id, call, meta.get("progressToken") if isinstance(meta, dict) else None
        )

    async def _result(self, name: str, arguments: dict[str, Json]) -> dict[str, Json]:
        try:
            return tool_result(await self._call(name, arguments))
        except ToolwireError as error:
            return error_result(f"error: {error.failure.message}")

    async def _streamed(
        self, request: web.Request, id: Json, call: asyncio.Future[dict[str, Json]], token: Json
    ) -> web.StreamResponse:
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        with suppress(ConnectionError):  # the agent has disconnected
            for number in itertools.count(1):
                if (await asyncio.wait({call}, timeout=self._keep_alive_s))[0]:
                    break
                progress = {
                    "progressToken": token,
                    "progress": number,
                    "message": "waiting for the client's result",
                }
                message = {"jsonrpc": "2.0", "method": "notifications/progress", "params": progress}
                await response.write(_event(message) if token is not None else b": waiting\n\n")
            await response.write(_event({"jsonrpc": "2.0", "id": id, "result": await _settled(call)}))
            await response.write_eof()
        return response


async def _settled(call: asyncio.Future[dict[str, Json]]) -> dict[str, Json]:
    """Returns the result of a call that has ended. A cancelled call has an error as its result."""
    await asyncio.wait({call})
    return error_result("error: the call was cancelled") if call.cancelled() else call.result()


async def _message(request: web.Request) -> dict[str, Json]:
    version = request.headers.get("MCP-Protocol-Version")
    try:
        message = json.loads(await request.read(), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise JsonRpcError(PARSE_ERROR, "The body is not JSON.") from None
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise JsonRpcError(INVALID_REQUEST, "The body is not a JSON-RPC message.")
    if version is not None and version not in VERSIONS and message.get("method") != "initialize":
        data = {"supported": list(VERSIONS), "requested": version[:40]}
        raise JsonRpcError(UNSUPPORTED_VERSION, "Unsupported protocol version", data)
    return message


def _no_constant(name: str) -> Json:
    # NaN is not JSON, but Python's parser accepts it, and the client would get it
    raise ValueError(f"{name} is not JSON")


def _reply(id: Json, body: dict[str, Json], status: int = 200) -> web.Response:
    return web.json_response({"jsonrpc": "2.0", "id": id, **body}, status=status)


def _event(message: dict[str, Json]) -> bytes:
    return b"event: message\ndata: " + json.dumps(message).encode() + b"\n\n"

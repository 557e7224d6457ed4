"""The client's tools of one session as an MCP server on loopback: streamable HTTP, just what an agent needs to list and call them.

- It listens on 127.0.0.1 at a port of its own, knows one bearer token, and is gone with the session. Foreign `Host` and `Origin` are refused before
  the token is looked at, so that no page in a browser reaches it.
- A call answers as an event stream where the agent takes one: its headers go out at once, then signs of life (a comment, and `notifications/progress`
  where the agent asked for them) until the client's result is there. So a call may wait for as long as it takes.
- There is nothing the server would say by itself: GET is answered by 405.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import json
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from aiohttp import web

from toolwire.backends.agents.loopback import LoopbackServer
from toolwire.core.errors import ToolwireError
from toolwire.core.turn import ImagePart, OtherPart, Part, TextPart, ToolSpec

Json = Any
Call = Callable[[str, dict[str, Json]], Awaitable[Sequence[Part]]]
"""Calls a client's tool by name. Raises `ToolwireError` for what the agent shall see as a failed call."""

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
PATH = "/mcp"
BODY_LIMIT = 32 * 1024 * 1024
SIGN_OF_LIFE_S = 10.0
PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, UNSUPPORTED_VERSION = (
    -32700,
    -32600,
    -32601,
    -32602,
    -32022,
)


class JsonRpcError(Exception):
    """A JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Json = None) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message} | ({} if data is None else {"data": data})


def described(tool: ToolSpec) -> dict[str, Json]:
    """A tool as MCP lists it. An input schema must be one of an object."""
    return {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": {"type": "object", **tool.parameters},
    }


def content(parts: Iterable[Part]) -> list[dict[str, Json]]:
    """A tool's result as MCP content: texts, images that came inline, and the names of the rest."""
    out: list[dict[str, Json]] = []
    for part in parts:
        if isinstance(part, TextPart):
            out.append({"type": "text", "text": part.text})
        elif (
            isinstance(part, ImagePart)
            and part.url is not None
            and part.url.startswith("data:")
            and ";base64," in part.url
        ):
            head, _, data = part.url.partition(";base64,")
            out.append(
                {"type": "image", "data": data, "mimeType": head.removeprefix("data:").partition(";")[0]}
            )
        elif isinstance(part, ImagePart):
            out.append({"type": "text", "text": f"[image {part.url or part.file_id or ''}]"})
        elif isinstance(part, OtherPart):
            out.append({"type": "text", "text": json.dumps(part.raw, ensure_ascii=False)})
    return out


class ToolServer(LoopbackServer):
    """`start` it, hand `url` and `headers` to the agent, `close` it with the session."""

    def __init__(
        self, tools: Sequence[ToolSpec], call: Call, *, sign_of_life_s: float = SIGN_OF_LIFE_S
    ) -> None:
        super().__init__(BODY_LIMIT)
        self._tools = {tool.name: tool for tool in tools}
        self._call = call
        self._sign_of_life_s = sign_of_life_s
        self._token = secrets.token_urlsafe(32)
        self._calls: set[asyncio.Future[dict[str, Json]]] = set()
        self._methods: Mapping[str, Callable[[dict[str, Json]], dict[str, Json]]] = {
            "initialize": self._initialize,
            "ping": lambda params: {},
            "tools/list": lambda params: {"tools": [described(tool) for tool in self._tools.values()]},
        }
        self.listed = asyncio.Event()
        """The agent has asked which tools there are."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}{PATH}"

    @property
    def headers(self) -> dict[str, str]:
        """What the agent must send. Never logged."""
        return {"Authorization": f"Bearer {self._token}"}

    async def close(self) -> None:
        """Calls that still wait are given up."""
        for call in list(self._calls):
            call.cancel()
        await super().close()

    # --- who may ask -----------------------------------------------------------------------------------------------------------------------------

    def _refusal(self, request: web.Request) -> web.Response | None:
        names = {f"127.0.0.1:{self._port}", f"localhost:{self._port}"}
        if request.headers.get("Host", "").lower() not in names:
            return web.Response(status=403, text="forbidden host")
        if "Origin" in request.headers and request.headers["Origin"].lower() not in {
            f"http://{name}" for name in names
        }:
            return web.Response(status=403, text="forbidden origin")
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, self.headers["Authorization"].encode()):
            return web.Response(
                status=401, text="a bearer token is needed", headers={"WWW-Authenticate": "Bearer"}
            )
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
            if (
                "method" not in message or id is None
            ):  # a notification, or the answer to something that was never asked
                return web.Response(status=202)
            if message["method"] == "tools/call":
                return await self._tool_call(request, id, _params(message))
            return _reply(id, {"result": self._answer(str(message["method"]), _params(message))})
        except JsonRpcError as fault:
            return _reply(id, {"error": fault.error}, 200 if id is not None else 400)

    # --- what may be asked -----------------------------------------------------------------------------------------------------------------------

    def _answer(self, method: str, params: dict[str, Json]) -> dict[str, Json]:
        if method not in self._methods:
            raise JsonRpcError(METHOD_NOT_FOUND, f"There is no method {method[:80]!r}.")
        if method == "tools/list":
            self.listed.set()
        return self._methods[method](params)

    def _initialize(self, params: dict[str, Json]) -> dict[str, Json]:
        asked = params.get("protocolVersion")
        return {
            "protocolVersion": asked if asked in VERSIONS else VERSIONS[-1],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "toolwire", "title": "The client's tools", "version": "1"},
        }

    async def _tool_call(self, request: web.Request, id: Json, params: dict[str, Json]) -> web.StreamResponse:
        name, arguments = params.get("name"), params.get("arguments")
        if not isinstance(name, str) or name not in self._tools:
            raise JsonRpcError(INVALID_PARAMS, f"Unknown tool: {str(name)[:80]}")
        if arguments is not None and not isinstance(arguments, dict):
            raise JsonRpcError(INVALID_PARAMS, "The arguments are not an object.")
        call = asyncio.ensure_future(self._result(name, arguments or {}))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        if "text/event-stream" not in request.headers.get("Accept", ""):
            return _reply(id, {"result": await _settled(call)})
        meta = params.get("_meta")
        return await self._streamed(
            request, id, call, meta.get("progressToken") if isinstance(meta, dict) else None
        )

    async def _result(self, name: str, arguments: dict[str, Json]) -> dict[str, Json]:
        try:
            return {"content": content(await self._call(name, arguments)), "isError": False}
        except ToolwireError as error:
            return {"content": [{"type": "text", "text": f"error: {error.failure.message}"}], "isError": True}

    async def _streamed(
        self, request: web.Request, id: Json, call: asyncio.Future[dict[str, Json]], token: Json
    ) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        )
        await response.prepare(request)
        try:
            for number in itertools.count(1):
                if (await asyncio.wait({call}, timeout=self._sign_of_life_s))[0]:
                    break
                progress = {
                    "progressToken": token,
                    "progress": number,
                    "message": "waiting for the client's result",
                }
                told = {"jsonrpc": "2.0", "method": "notifications/progress", "params": progress}
                await response.write(_event(told) if token is not None else b": waiting\n\n")
            await response.write(_event({"jsonrpc": "2.0", "id": id, "result": await _settled(call)}))
            await response.write_eof()
        except ConnectionError:  # the agent hung up: whatever comes of the call is not its business any more
            pass
        return response


async def _settled(call: asyncio.Future[dict[str, Json]]) -> dict[str, Json]:
    """The result of a call, also of one that was given up."""
    await asyncio.wait({call})
    if call.cancelled():
        return {"content": [{"type": "text", "text": "error: the call was given up"}], "isError": True}
    return call.result()


async def _message(request: web.Request) -> dict[str, Json]:
    version = request.headers.get("MCP-Protocol-Version")
    try:
        message = json.loads(await request.read(), parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise JsonRpcError(PARSE_ERROR, "The body is not JSON.") from None
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        raise JsonRpcError(INVALID_REQUEST, "The body is not a JSON-RPC message.")
    if version is not None and version not in VERSIONS and message.get("method") != "initialize":
        raise JsonRpcError(
            UNSUPPORTED_VERSION,
            "Unsupported protocol version",
            {"supported": list(VERSIONS), "requested": version[:40]},
        )
    return message


def _no_number(word: str) -> Json:
    raise ValueError(f"{word} is not JSON")  # Python would take it, and it would go out to the client


def _params(message: dict[str, Json]) -> dict[str, Json]:
    params = message.get("params")
    return params if isinstance(params, dict) else {}


def _reply(id: Json, body: dict[str, Json], status: int = 200) -> web.Response:
    return web.json_response({"jsonrpc": "2.0", "id": id, **body}, status=status)


def _event(message: dict[str, Json]) -> bytes:
    return b"event: message\ndata: " + json.dumps(message).encode() + b"\n\n"

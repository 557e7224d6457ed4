"""What the pages' handlers have in common: the gateway, the store, the approvals, and the tabs to tell."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from toolwire.config import Settings
from toolwire.errors import ToolwireError
from toolwire.gateway.pipeline import Gateway
from toolwire.gateway.store import Store
from toolwire.surfaces.web.hub import Hub
from toolwire.surfaces.web.preferences import Preferences
from toolwire.surfaces.web.toolroom import Toolroom
from toolwire.tools.approvals import Approvals

MOST_BODY = 4 * 1024 * 1024
Handler = Callable[[Request], Awaitable[Response | dict[str, Any] | list[Any]]]
Row = tuple[str, str, Handler]
"""Method, path below /ui/api, handler."""


@dataclass(slots=True)
class Web:
    gateway: Gateway
    settings: Settings
    store: Store
    approvals: Approvals
    hub: Hub
    preferences: Preferences
    toolroom: Toolroom
    boot: str
    """Tells this process from another one behind the same address."""

    def base_url(self, request: Request) -> str:
        """Where clients find the API, as this page was reached."""
        return f"{scheme(request)}://{request.url.netloc}/v1"


class Json(JSONResponse):
    """An answer that may hold what somebody else wrote: half a character goes out escaped, as JSON may have it."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def scheme(request: Request) -> str:
    """As the browser sees it: TLS may end at a proxy, which is believed where it is one of `server.trusted_proxies`."""
    return request.url.scheme


async def body(request: Request) -> dict[str, Any]:
    """The request's JSON object; nothing at all is an empty one. Raises when it is something else, or too large."""
    pieces, size = [], 0
    async for piece in request.stream():
        size += len(piece)
        if size > MOST_BODY:
            raise ToolwireError("body_too_large", f"The request's body is larger than {MOST_BODY // 1048576} MB.")
        pieces.append(piece)
    raw = b"".join(pieces)
    if not raw:
        return {}
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ToolwireError("invalid_json", "The request's body is not valid JSON.") from None
    if not isinstance(value, dict):
        raise ToolwireError("invalid_type", "The request's body is not a JSON object.")
    return value


def field(given: dict[str, Any], name: str, kind: type, default: Any = None, *, required: bool = False) -> Any:
    """A member of a request's object, of the type that is expected."""
    value = given.get(name)
    if value is None:
        if required:
            raise ToolwireError("missing", f"Missing required parameter: '{name}'.", param=name)
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ToolwireError("invalid_type", f"'{name}' is not of the expected type ({kind.__name__}).", param=name)
    return value


def number(request: Request, name: str, default: int, most: int) -> int:
    """A whole number of the query, between 0 and `most`."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise ToolwireError("invalid_value", f"'{name}' is not a whole number.", param=name)
    return min(int(text), most)

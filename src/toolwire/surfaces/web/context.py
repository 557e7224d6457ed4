"""What the pages' handlers have in common: the gateway, the store, the approvals, and the tabs to tell."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from toolwire.core.errors import ToolwireError
from toolwire.gateway.pipeline import Gateway
from toolwire.observe.trace import weight
from toolwire.settings.types import Settings
from toolwire.store.store import Store
from toolwire.surfaces.web.tools import Preferences, WebTools
from toolwire.tools.approvals import Approvals

# --- hub
#
# What happens, told to every open tab. Nobody waits for a tab: each has a bounded queue of its own. Pieces
# of one answer that wait together become one; a tab that falls too far behind is told that it lost
# something, and asks anew.

KEEP_ALIVE_S = 15.0
GATHER_S = 0.015
"""So long what happens is gathered before it is sent: fewer, larger frames."""
MOST_WAITING = 2000
MOST_CHARACTERS = 4_000_000
_MERGED = ("text", "thought")


class Hub:
    def __init__(self) -> None:
        self._tabs: set[Tab] = set()
        self.closed = False
        self.on_watched: Callable[[bool], None] = lambda watched: None
        """Is told when the first tab has come, and when the last one has left."""

    @property
    def watched(self) -> bool:
        return bool(self._tabs)

    def publish(self, type: str, data: dict[str, Any]) -> None:
        for tab in self._tabs:
            tab.put(type, data)

    def subscribe(self, session: str = "") -> Tab:
        """A tab's queue, from this moment on. It must be left by `leave`."""
        tab = Tab(session)
        tab.closed = self.closed
        self._tabs.add(tab)
        if len(self._tabs) == 1:
            self.on_watched(True)
        return tab

    def leave(self, tab: Tab) -> None:
        if tab in self._tabs:
            self._tabs.remove(tab)
            if not self._tabs:
                self.on_watched(False)

    def end(self, session: str) -> None:
        """Ends the streams of a session that is over: its tabs hear nothing more."""
        for tab in self._tabs:
            if tab.session == session:
                tab.close()

    def close(self) -> None:
        """Ends every tab's stream; it may come back to another process."""
        self.closed = True
        for tab in self._tabs:
            tab.close()


class Tab:
    def __init__(self, session: str = "") -> None:
        self.session = session
        self.closed = False
        self.woken = asyncio.Event()
        self._waiting: deque[tuple[str, dict[str, Any]]] = deque()
        self._characters = 0

    def close(self) -> None:
        self.closed = True
        self.woken.set()

    def put(self, type: str, data: dict[str, Any]) -> None:
        last = self._waiting[-1] if self._waiting else None
        words = type == "chat" and data["op"] in _MERGED
        if type == "chat":
            self._characters += len(data["text"]) if words else weight(data, 8)
        if (
            words
            and last is not None
            and last[0] == "chat"
            and all(last[1][name] == data[name] for name in ("conversation", "op"))
        ):
            self._waiting[-1] = (
                "chat",
                {**data, "prev": last[1]["prev"], "pieces": [*last[1].get("pieces", ()), last[1]["text"]]},
            )
            if len(self._waiting[-1][1]["pieces"]) > 64:
                self._waiting[-1] = ("chat", _joined(self._waiting[-1][1]))
        else:
            self._waiting.append((type, data))
        if len(self._waiting) > MOST_WAITING or self._characters > MOST_CHARACTERS:
            self._waiting.clear()
            self._characters = 0
            self._waiting.append(("lost", {}))
        self.woken.set()

    async def frames(self, hello: dict[str, Any]) -> AsyncIterator[bytes]:
        yield b"retry: 1000\n" + frame("hello", hello)
        while not self.closed:
            try:
                async with asyncio.timeout(KEEP_ALIVE_S):
                    await self.woken.wait()
            except TimeoutError:
                yield b": keep-alive\n\n"
                continue
            with suppress(TimeoutError):
                await asyncio.sleep(GATHER_S)
            self.woken.clear()
            waiting, self._waiting, self._characters = self._waiting, deque(), 0
            if waiting:
                yield b"".join(frame(type, _joined(data)) for type, data in waiting)


def _joined(data: dict[str, Any]) -> dict[str, Any]:
    pieces = data.get("pieces")
    if not pieces:
        return data
    return {
        **{name: value for name, value in data.items() if name != "pieces"},
        "text": "".join([*pieces, data["text"]]),
    }


def frame(type: str, data: dict[str, Any]) -> bytes:
    return f"event: {type}\ndata: {json.dumps(data, ensure_ascii=True)}\n\n".encode()


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
    tools: WebTools
    boot: str
    """Tells this process from another one behind the same address."""

    def base_url(self, request: Request) -> str:
        """Where clients find the API, as this page was reached."""
        return f"{scheme(request)}://{request.url.netloc}/v1"


class Json(JSONResponse):
    """JSON of foreign text: unpaired surrogates are sent escaped."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(
            "utf-8", "backslashreplace"
        )


def scheme(request: Request) -> str:
    """As the browser sees it: TLS may end at one of `server.trusted_proxies`."""
    return request.url.scheme


async def body(request: Request) -> dict[str, Any]:
    """The request's JSON object; an empty body is an empty object. Raises for anything else."""
    pieces, size = [], 0
    async for piece in request.stream():
        size += len(piece)
        if size > MOST_BODY:
            raise ToolwireError(
                "body_too_large", f"The request's body is larger than {MOST_BODY // 1048576} MB."
            )
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


def field(
    given: dict[str, Any], name: str, kind: type, default: Any = None, *, required: bool = False
) -> Any:
    """A member of a request's object, of the type that is expected."""
    value = given.get(name)
    if value is None:
        if required:
            raise ToolwireError("missing", f"Missing required parameter: '{name}'.", param=name)
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ToolwireError(
            "invalid_type", f"'{name}' is not of the expected type ({kind.__name__}).", param=name
        )
    return value


def number(request: Request, name: str, default: int, most: int) -> int:
    """A whole number of the query, between 0 and `most`."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise ToolwireError("invalid_value", f"'{name}' is not a whole number.", param=name)
    return min(int(text), most)

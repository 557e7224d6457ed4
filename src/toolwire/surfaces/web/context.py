"""What the handlers of the pages share: the gateway, the store, approvals, and open tabs."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from toolwire.backends.scripted.tour import LABEL
from toolwire.core.errors import ToolwireError
from toolwire.observe.trace import weight

if TYPE_CHECKING:
    from toolwire.gateway.pipeline import Gateway
    from toolwire.settings.types import Settings
    from toolwire.store.store import Store
    from toolwire.surfaces.web.tools import Preferences, WebTools
    from toolwire.surfaces.web.tours import Tours
    from toolwire.tools.approvals import Approvals

# --- the live stream

KEEP_ALIVE_S = 15.0
GATHER_S = 0.015
"""How long events are collected before they are sent together."""
MOST_WAITING = 2000
MOST_CHARACTERS = 4_000_000
PIECE_OVERHEAD = 50


class Hub:
    """Publishes events to every open tab.

    Each tab has a bounded queue, so a slow tab does not delay the other tabs.
    """

    def __init__(self) -> None:
        self._tabs: set[Tab] = set()
        self.closed = False
        self.on_watched: Callable[[bool], None] = lambda watched: None
        """Called with True when the first tab opens, and with False when the last one closes."""

    @property
    def watched(self) -> bool:
        return bool(self._tabs)

    def publish(self, type: str, data: dict[str, Any]) -> None:
        for tab in self._tabs:
            tab.put(type, data)

    def subscribe(self, session: str = "") -> Tab:
        """Returns the queue of a new tab. The caller must end it with `leave`."""
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
        """Ends the streams of a session that has ended."""
        for tab in self._tabs:
            if tab.session == session:
                tab.close()

    def close(self) -> None:
        """Ends every stream. The tabs may connect to another process."""
        self.closed = True
        for tab in self._tabs:
            tab.close()


@dataclass(slots=True)
class Waiting:
    """An event that waits to be sent.

    `pieces`: pieces of the text of an answer, which are sent as one text.
    """

    type: str
    data: dict[str, Any]
    pieces: list[str]

    def frame(self) -> bytes:
        return frame(self.type, {**self.data, "text": "".join(self.pieces)} if self.pieces else self.data)


class Tab:
    """The queue of one tab.

    If it overflows, the tab gets the event "lost" and loads everything again.
    """

    def __init__(self, session: str = "") -> None:
        self.session = session
        self.closed = False
        self._woken = asyncio.Event()
        self._waiting: deque[Waiting] = deque()
        self._characters = 0

    def close(self) -> None:
        self.closed = True
        self._woken.set()

    def put(self, type: str, data: dict[str, Any]) -> None:
        is_text = type == "chat" and data["op"] in ("text", "thought")
        if is_text:
            self._characters += len(data["text"]) + PIECE_OVERHEAD
        elif type == "chat":
            self._characters += weight(data, 8)
        last = self._waiting[-1] if self._waiting else None
        if is_text and last is not None and last.pieces and _same_answer(last.data, data):
            last.data = {**data, "prev": last.data["prev"]}
            last.pieces.append(data["text"])
        else:
            self._waiting.append(Waiting(type, data, [data["text"]] if is_text else []))
        if len(self._waiting) > MOST_WAITING or self._characters > MOST_CHARACTERS:
            self._waiting, self._characters = deque([Waiting("lost", {}, [])]), 0
        self._woken.set()

    async def frames(self, hello: dict[str, Any]) -> AsyncIterator[bytes]:
        yield b"retry: 1000\n" + frame("hello", hello)
        while not self.closed:
            try:
                async with asyncio.timeout(KEEP_ALIVE_S):
                    await self._woken.wait()
            except TimeoutError:
                yield b": keep-alive\n\n"
                continue
            await asyncio.sleep(GATHER_S)
            self._woken.clear()
            waiting, self._waiting, self._characters = self._waiting, deque(), 0
            if waiting:
                yield b"".join(event.frame() for event in waiting)


def _same_answer(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return (one["conversation"], one["op"]) == (other["conversation"], other["op"])


def frame(type: str, data: dict[str, Any]) -> bytes:
    return f"event: {type}\ndata: {json.dumps(data)}\n\n".encode()


# --- requests

MOST_BODY = 4 * 1024 * 1024
Handler = Callable[[Request], Awaitable[Response | dict[str, Any] | list[Any]]]
Row = tuple[str, str, Handler]
"""A route of the API: method, path below /ui/api, handler."""


@dataclass(slots=True)
class Web:
    gateway: Gateway
    settings: Settings
    store: Store
    approvals: Approvals
    hub: Hub
    preferences: Preferences
    tools: WebTools
    tours: Tours
    boot: str
    """Identifies this process, so that a tab notices a restart of the server."""
    changing: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)
    """Held while the file of the settings page is changed."""

    def scripted(self, model: str, conversation: str) -> str:
        """Returns the label of a model that follows a script; "" for any other model."""
        if self.tours.is_tour(conversation):
            return LABEL
        return "scripted" if self.gateway.catalog.kind(model) == "scripted" else ""

    def may_use_tools(self, model: str) -> bool:
        """Returns whether the chat offers tools to a model while the page's switch is on."""
        return self.tools.may_use_tools(model) and not self.gateway.catalog.about(model).no_tools

    def base_url(self, request: Request) -> str:
        """Returns the base URL of the API, at the address under which the page was opened."""
        return f"{request.url.scheme}://{request.url.netloc}/v1"


class PageApi:
    """The API of one page."""

    def __init__(self, web: Web) -> None:
        self._web = web

    def routes(self) -> list[Row]:
        raise NotImplementedError

    async def start(self) -> None:
        """Called once, before the first request."""

    async def close(self) -> None:
        """Called when the server shuts down."""


class Json(JSONResponse):
    """A JSON response that may contain unpaired surrogates, which are escaped."""

    def render(self, content: Any) -> bytes:
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", "backslashreplace")


def invalid(message: str, param: str) -> ToolwireError:
    return ToolwireError("invalid_value", message, param=param)


async def body(request: Request) -> dict[str, Any]:
    """Returns the JSON object in the body of the request; {} if the body is empty.

    Raises an error for any other body.
    """
    return as_object(await raw_body(request, MOST_BODY))


async def raw_body(request: Request, most: int) -> bytes:
    """Returns the bytes of the request's body. Raises an error if it is larger than `most`."""
    raw = bytearray()
    async for piece in request.stream():
        raw += piece
        if len(raw) > most:
            limit = f"{most // 1048576} MB" if most >= 1048576 else f"{most // 1024} kB"
            raise ToolwireError("body_too_large", f"The request's body is larger than {limit}.")
    return bytes(raw)


def as_object(raw: bytes) -> dict[str, Any]:
    """Returns the JSON object that is written in `raw`. Raises an error for anything else."""
    try:
        value = msgspec.json.decode(raw or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ToolwireError("invalid_json", "The request's body is not valid JSON.") from None
    if not isinstance(value, dict):
        raise ToolwireError("invalid_type", "The request's body is not a JSON object.")
    return value


def field(
    given: dict[str, Any], name: str, kind: type, default: Any = None, *, required: bool = False
) -> Any:
    """Returns a member of the request's object; `default` if it is missing or null.

    Raises an error if its type is wrong, or if it is `required` and missing.
    """
    value = given.get(name)
    if value is None:
        if required:
            raise ToolwireError("missing", f"Missing required parameter: '{name}'.", param=name)
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        message = f"'{name}' is not of the expected type ({kind.__name__})."
        raise ToolwireError("invalid_type", message, param=name)
    return value


def number(request: Request, name: str, default: int, most: int) -> int:
    """Returns an integer from the query, limited to `most`; `default` if the query has none."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise invalid(f"'{name}' is not a whole number.", name)
    return min(int(text), most)

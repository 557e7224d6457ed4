"""What happens, told to every open tab.

Nobody waits for a tab: each has a bounded queue of its own. Pieces of one answer that wait together become one; a tab that falls too far behind is
told that it lost something, and asks anew.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from toolwire.tape import weight

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
        if words and last is not None and last[0] == "chat" and all(last[1][name] == data[name] for name in ("conversation", "op")):
            self._waiting[-1] = ("chat", {**data, "prev": last[1]["prev"], "pieces": [*last[1].get("pieces", ()), last[1]["text"]]})
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
    return {**{name: value for name, value in data.items() if name != "pieces"}, "text": "".join([*pieces, data["text"]])}


def frame(type: str, data: dict[str, Any]) -> bytes:
    return f"event: {type}\ndata: {json.dumps(data, ensure_ascii=True)}\n\n".encode()

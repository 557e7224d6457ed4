"""Runs the real Claude Code with a gateway in this process, and records what both of them did."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.types import Receive, Scope, Send

from doubles.served import served
from matrix import installed
from programs import run_claude_code
from toolwire.backends.base import Backend
from toolwire.gateway.pipeline import Gateway
from toolwire.gateway.records import TurnSummary
from toolwire.settings.types import ServerSettings, Settings
from toolwire.surfaces.http.app import App


class WatchedApp(App):
    """The HTTP surface, with a list of the requests that arrived."""

    requests: list[str]

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Any:
        if scope["type"] == "http":
            self.requests.append(f"{scope['method']} {scope['path']}")
        return super().__call__(scope, receive, send)


@dataclass
class Session:
    """A run of Claude Code that has ended."""

    status: int
    events: list[dict[str, Any]]
    folder: Path

    @property
    def result(self) -> dict[str, Any]:
        """The event with which Claude Code reports how it ended."""
        assert self.events and self.events[-1]["type"] == "result", self.events[-1:]
        return self.events[-1]

    @property
    def answer(self) -> str:
        return str(self.result["result"])

    def blocks(self, role: str, kind: str) -> list[dict[str, Any]]:
        """Returns the content blocks of this type in the messages of this role."""
        return [
            block
            for event in self.events
            if event["type"] == role
            for block in event["message"]["content"]
            if block["type"] == kind
        ]

    def file(self, name: str) -> str:
        return (self.folder / name).read_text("utf-8")


@dataclass
class Desk:
    """A gateway in this process. `ask` runs Claude Code with it."""

    gateway: Gateway
    app: WatchedApp
    url: str
    folder: Path
    turns: list[TurnSummary]
    """The turns that the gateway received, oldest first."""
    sessions: int = 0

    async def ask(self, **job: Any) -> Session:
        """Runs Claude Code in a new folder with a.txt.

        `job` has the members of a job of `programs.run_claude_code`, in place of the standard ones.
        """
        standard = {"model": "m", "question": "Read a.txt.", "files": {"a.txt": "rain in Paris\n"}}
        self.sessions += 1
        (result,) = await asyncio.to_thread(
            run_claude_code,
            str(installed().claude_code),
            [{"baseURL": self.url, **standard, **job}],
            self.folder / str(self.sessions),
        )
        status = 0 if result["error"] is None else int(result["error"]["name"].removeprefix("exit "))
        return Session(status, result["events"], result["folder"])

    @property
    def parked(self) -> dict[str, int]:
        """The number of parked runs by outcome."""
        return self.gateway.parking.outcomes


@asynccontextmanager
async def desk_with(
    backend: Backend, models: Iterable[str], folder: Path, **server: Any
) -> AsyncIterator[Desk]:
    """Yields a gateway that serves `backend` as each of `models`. `server`: members of `ServerSettings`."""
    settings = Settings(server=ServerSettings(**server))
    gateway = Gateway(settings, backends=dict.fromkeys(models, backend))
    turns: list[TurnSummary] = []
    gateway.observers.append(turns.append)
    await gateway.start()
    app = WatchedApp(gateway, settings, None)
    app.requests = []
    try:
        async with served(app) as (_, port):
            yield Desk(gateway, app, f"http://127.0.0.1:{port}", folder / str(port), turns)
    finally:
        await app.close()
        await gateway.close()

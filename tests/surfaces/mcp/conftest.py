"""A vault, its MCP server (in this process, on a socket, as a process), and people who fill in forms."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from doubles.served import served
from toolwire.settings.types import ServerSettings
from toolwire.store.store import Store
from toolwire.surfaces.mcp.http import PATH, HttpApp
from toolwire.surfaces.mcp.server import ToolServer, Ways
from toolwire.tools.approvals import Approvals
from toolwire.tools.consent import Proofs
from toolwire.tools.contract import Approval, Decision
from toolwire.tools.vault_lookups import Library
from toolwire.tools.vault_tools import tools_of

NOTES = {
    "Programming/TypeScript Basics.md": "# TypeScript\n\nTypeScript is a typed superset of JavaScript.\n",
    "Programming/React.md": "# React\n\nReact is a JavaScript library.\n",
    "Diary.md": "Learned some JavaScript today. The launch code is Zulu-4711.\n",
}
MODES = ("legacy", "auto")
"""Before 2026-07-28 the server asks; since then a request ends with its question."""
BEARER = "a-bearer-for-the-tests"


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    folder = tmp_path / "vault"
    for path, text in NOTES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


@dataclass
class Form:
    """Answers the client's forms in order and records what was shown. Without an answer it cancels."""

    answers: list[dict[str, Any] | str]
    shown: list[types.ElicitRequestFormParams] = field(default_factory=list)

    async def __call__(
        self, context: Any, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        assert isinstance(params, types.ElicitRequestFormParams)
        self.shown.append(params)
        answer = self.answers.pop(0) if self.answers else "cancel"
        if answer == "hang":
            await asyncio.Event().wait()
        if answer == "error":
            return types.ErrorData(code=-32601, message="no forms here")
        if isinstance(answer, str):
            return types.ElicitResult(action=answer)  # type: ignore[arg-type]
        return types.ElicitResult(action="accept", content=dict(answer))

    def fields(self, number: int = -1) -> dict[str, Any]:
        return dict(self.shown[number].requested_schema["properties"])

    def field_for(self, path: str, number: int = -1) -> str:
        """The name of the form's field for a path."""
        return next(name for name, one in self.fields(number).items() if path in one["title"])


@dataclass
class Served:
    server: ToolServer
    approvals: Approvals
    store_url: str
    vault: Path
    told: list[str]

    @asynccontextmanager
    async def client(self, mode: str = "auto", form: Form | None = None) -> AsyncIterator[Client]:
        async with Client(
            self.server.server, mode=mode, elicitation_callback=form, client_info=_WHO
        ) as client:
            yield client


_WHO = types.Implementation(name="test-client", version="1.0")


@pytest.fixture
async def serve(tmp_path: Path, vault: Path) -> AsyncIterator[Callable[..., Served]]:
    """`serve(inbox=…, form=…, lifetime_s=…)`: the server over the vault, in this process."""
    url = f"sqlite:///{tmp_path}/state/toolwire.db"
    store = Store(url)
    library = Library(vault, cache=tmp_path / "cache")
    made: list[ToolServer] = []

    def make(*, inbox: bool = True, form: bool = True, lifetime_s: float = 60.0) -> Served:
        told: list[str] = []
        approvals = Approvals(store, lifetime_s=lifetime_s)
        made.append(ToolServer(approvals, tools_of(library), ways=Ways(form, inbox), notify=told.append))
        return Served(made[-1], approvals, url, vault, told)

    yield make
    for one in made:
        await one.close()
    library.close()
    await store.close()


@asynccontextmanager
async def _on_a_socket(vault: Served, **settings: Any) -> AsyncIterator[str]:
    app = HttpApp(vault.server, ServerSettings(**settings), BEARER)
    async with app.running(), served(app) as (_, port):
        yield f"http://127.0.0.1:{port}{PATH}"


@pytest.fixture
def on_http() -> Callable[..., Any]:
    return _on_a_socket


@asynccontextmanager
async def http_client(
    url: str, mode: str = "auto", form: Form | None = None, bearer: str = BEARER
) -> AsyncIterator[Client]:
    async with httpx2.AsyncClient(
        headers={"authorization": f"Bearer {bearer}"}, timeout=httpx2.Timeout(30)
    ) as http:
        async with Client(
            streamable_http_client(url, http_client=http),
            mode=mode,
            elicitation_callback=form,
            client_info=_WHO,
        ) as client:
            yield client


@pytest.fixture
def connect() -> Callable[..., Any]:
    return http_client


@dataclass
class Process:
    """`toolwire mcp` as a client starts it."""

    vault: Path
    tmp_path: Path

    @property
    def environment(self) -> dict[str, str]:
        home = self.tmp_path / "home"
        home.mkdir(exist_ok=True)
        own = {
            "HOME": str(home),
            "XDG_CACHE_HOME": str(self.tmp_path / "cache"),
            "TOOLWIRE_STORE__URL": self.store_url,
            "TOOLWIRE_APPROVALS__COMMAND_LINE": "open",  # who may decide: tests/tools/test_who_decides.py
        }
        return {**os.environ, **own}

    @property
    def store_url(self) -> str:
        return f"sqlite:///{self.tmp_path}/state/toolwire.db"

    def command(self, *more: str) -> list[str]:
        return [sys.executable, "-m", "toolwire", "mcp", "--vault", str(self.vault), *more]

    def parameters(self, *more: str) -> StdioServerParameters:
        command = self.command(*more)
        return StdioServerParameters(
            command=command[0], args=command[1:], env=self.environment, cwd=self.tmp_path
        )


@pytest.fixture
def process(vault: Path, tmp_path: Path) -> Process:
    return Process(vault, tmp_path)


@pytest.fixture
def form() -> Callable[..., Form]:
    return lambda *answers: Form(list(answers))


class Inbox:
    """A second handle on the store, as `toolwire approvals` has it."""

    def __init__(self, url: str) -> None:
        self.store = Store(url)
        self.approvals = Approvals(self.store, proofs=Proofs(self.store, unproven=True))

    async def next(self, seen: Sequence[str] = ()) -> Approval:
        """The next question that waits."""
        for _ in range(4000):
            waiting = [one for one in await self.approvals.pending() if one.id not in seen]
            if waiting:
                return waiting[0]
            await asyncio.sleep(0.02)
        raise AssertionError("nothing waits in the inbox")

    async def decide(self, approval: Approval, decision: Decision) -> None:
        await self.approvals.decide(approval, decision, by="shell")


@pytest.fixture
async def inbox(tmp_path: Path) -> AsyncIterator[Inbox]:
    one = Inbox(f"sqlite:///{tmp_path}/state/toolwire.db")
    yield one
    await one.store.close()


def text_of(result: types.CallToolResult) -> str:
    return "".join(block.text for block in result.content if isinstance(block, types.TextContent))


@pytest.fixture
def text() -> Callable[[types.CallToolResult], str]:
    return text_of


@pytest.fixture
def data() -> Callable[[types.CallToolResult], Any]:
    """The result for the model, read from between the marks; the structured content must be equal."""

    def read(result: types.CallToolResult) -> Any:
        value = json.loads(text_of(result).splitlines()[1])
        assert {key: one for key, one in result.structured_content.items() if key != "untrusted"} == value
        return value

    return read

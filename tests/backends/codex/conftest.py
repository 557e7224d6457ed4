"""The real Codex binaries, and a scripted provider on loopback that records Codex's requests."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from toolwire.backends.codex import CodexBackend, CodexOptions

PINNED = Path(__file__).resolve().parents[2] / "codex"
Answer = Callable[["Exchange"], Awaitable[web.StreamResponse]]


# --- the binaries ---


def _binary(age: str) -> str:
    named = os.environ.get(f"TOOLWIRE_TEST_CODEX_{age.upper()}", "")
    pinned = PINNED / age / "node_modules" / ".bin" / "codex"
    found = str(pinned) if pinned.exists() and shutil.which("node") else named
    if found and Path(found).exists():
        return found
    missing = (
        f"the {age} Codex is missing: npm ci --prefix tests/codex/{age}, or set "
        f"TOOLWIRE_TEST_CODEX_{age.upper()}"
    )
    pytest.skip(missing)


@pytest.fixture(scope="session")
def new_codex() -> str:
    """A Codex that supports the client's tools natively."""
    return _binary("new")


@pytest.fixture(scope="session")
def old_codex() -> str:
    """A Codex that does not."""
    return _binary("old")


# --- the provider ---


@dataclass
class Exchange:
    """One request of Codex. `gone` is set when Codex has disconnected."""

    request: web.Request
    body: dict[str, Any]
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def input(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.body["input"]
        return found

    def texts(self, role: str | None = None) -> list[str]:
        """The texts of the messages, by role."""
        messages = [
            item
            for item in self.input
            if item.get("type", "message") == "message" and (role is None or item["role"] == role)
        ]
        return [part["text"] for message in messages for part in message["content"] if "text" in part]

    def outputs(self) -> dict[str, Any]:
        return {
            item["call_id"]: item["output"]
            for item in self.input
            if item.get("type") == "function_call_output"
        }

    def tool_names(self) -> list[str]:
        return [tool.get("name", tool["type"]) for tool in self.body.get("tools", [])]


USAGE = {
    "input_tokens": 11,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 18,
}


def text(words: str, size: int = 4, id: str = "msg_1") -> list[dict[str, Any]]:
    item = {"type": "message", "id": id, "role": "assistant", "status": "in_progress", "content": []}
    whole = {
        **item,
        "status": "completed",
        "content": [{"type": "output_text", "text": words, "annotations": []}],
    }
    pieces = [words[at : at + size] for at in range(0, len(words), size)]
    return [
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        *(
            {
                "type": "response.output_text.delta",
                "item_id": id,
                "output_index": 0,
                "content_index": 0,
                "delta": piece,
            }
            for piece in pieces
        ),
        {"type": "response.output_item.done", "output_index": 0, "item": whole},
    ]


def call(name: str, arguments: str, id: str) -> list[dict[str, Any]]:
    item = {
        "type": "function_call",
        "id": "fc_" + id,
        "call_id": id,
        "name": name,
        "arguments": arguments,
        "status": "completed",
    }
    return [
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**item, "arguments": "", "status": "in_progress"},
        },
        {
            "type": "response.function_call_arguments.delta",
            "item_id": item["id"],
            "output_index": 0,
            "delta": arguments,
        },
        {"type": "response.output_item.done", "output_index": 0, "item": item},
    ]


def thought(summaries: Sequence[str], raw: str = "") -> list[dict[str, Any]]:
    item: dict[str, Any] = {"type": "reasoning", "id": "rs_1", "summary": [], "content": []}
    whole = {
        **item,
        "encrypted_content": "sealed",
        "summary": [{"type": "summary_text", "text": one} for one in summaries],
    }
    if raw:
        whole["content"] = [{"type": "reasoning_text", "text": raw}]
    events: list[dict[str, Any]] = [{"type": "response.output_item.added", "output_index": 0, "item": item}]
    for index, one in enumerate(summaries):
        part = {"item_id": "rs_1", "output_index": 0, "summary_index": index}
        events.append(
            {
                "type": "response.reasoning_summary_part.added",
                **part,
                "part": {"type": "summary_text", "text": ""},
            }
        )
        events.append({"type": "response.reasoning_summary_text.delta", **part, "delta": one})
    if raw:
        events.append(
            {
                "type": "response.reasoning_text.delta",
                "item_id": "rs_1",
                "output_index": 0,
                "content_index": 0,
                "delta": raw,
            }
        )
    return [*events, {"type": "response.output_item.done", "output_index": 0, "item": whole}]


def completed(usage: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "response.completed", "response": {"id": "resp_1", "usage": usage or USAGE}}


def failed(code: str, message: str = "as scripted") -> dict[str, Any]:
    return {
        "type": "response.failed",
        "response": {"id": "resp_1", "error": {"code": code, "message": message}},
    }


def incomplete(reason: str) -> dict[str, Any]:
    return {
        "type": "response.incomplete",
        "response": {"id": "resp_1", "incomplete_details": {"reason": reason}, "usage": USAGE},
    }


def status(code: int, body: dict[str, Any] | None = None) -> Answer:
    async def answer(exchange: Exchange) -> web.StreamResponse:
        return web.json_response(
            body or {"error": {"message": "as scripted", "type": "scripted", "code": None}}, status=code
        )

    return answer


class Provider:
    """Answers with the entries of `script` (events or a function) in order, and repeats the last one."""

    def __init__(self) -> None:
        self.script: list[Answer | list[dict[str, Any]]] = []
        self.seen: list[Exchange] = []
        self.base_url = ""

    # The parts of an answer, for tests to combine.
    text = staticmethod(text)
    call = staticmethod(call)
    thought = staticmethod(thought)
    completed = staticmethod(completed)
    failed = staticmethod(failed)
    incomplete = staticmethod(incomplete)
    status = staticmethod(status)

    def play(self, *script: Answer | list[dict[str, Any]]) -> None:
        """Each list of events is a whole answer. `response.completed` is added unless it ends otherwise."""
        self.script = list(script)
        self.seen.clear()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        exchange = Exchange(request, json.loads(await request.read()))
        self.seen.append(exchange)
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        try:
            return await (self.stream(exchange, step) if isinstance(step, list) else step(exchange))
        except (ConnectionError, asyncio.CancelledError):
            exchange.gone.set()
            raise

    async def stream(
        self, exchange: Exchange, events: list[dict[str, Any]], end: bool = True
    ) -> web.StreamResponse:
        """Sends the events. `end` False leaves the stream open."""
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(exchange.request)
        ends = ("response.completed", "response.failed", "response.incomplete", "cut")
        whole = [{"type": "response.created", "response": {"id": "resp_1"}}, *events]
        if end and not any(event["type"] in ends for event in events):
            whole.append(completed())
        for event in whole:
            if event["type"] != "cut":
                await response.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        return response

    def stalled(self, events: list[dict[str, Any]]) -> Answer:
        """Sends the events, then nothing until Codex disconnects."""

        async def answer(exchange: Exchange) -> web.StreamResponse:
            response = await self.stream(exchange, events, end=False)
            await asyncio.Event().wait()
            return response

        return answer

    def dripping(self, words: str) -> Answer:
        """Repeats the same text until Codex disconnects."""

        async def answer(exchange: Exchange) -> web.StreamResponse:
            first, delta, *_ = text(words, size=len(words))
            response = await self.stream(exchange, [first], end=False)
            while True:
                await response.write(f"event: {delta['type']}\ndata: {json.dumps(delta)}\n\n".encode())
                await asyncio.sleep(0.02)

        return answer


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    made = Provider()
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/responses", made.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield made
    await runner.cleanup()


# --- the backend ---


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Codex homes of this test session. The first test warms them, because a fresh one takes a second."""
    return tmp_path_factory.mktemp("codex-homes")


@pytest.fixture
async def make(
    provider: Provider, homes: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[..., CodexBackend]]:
    """`make(binary, **options)`: a backend whose Codex uses the test's provider.

    Closed at the end of the test.
    """
    monkeypatch.setenv("SCRIPTED_KEY", "sk-scripted")
    monkeypatch.setenv("TOOLWIRE_API_KEY", "a-secret-of-ours")
    made: list[CodexBackend] = []

    def build(binary: str, **options: Any) -> CodexBackend:
        home = homes / hashlib.sha256(binary.encode()).hexdigest()[:8]
        given = {
            "model": "gpt-5.5",
            "home": str(home),
            "provider": {"base_url": provider.base_url, "env_key": "SCRIPTED_KEY"},
            **options,
        }
        made.append(CodexBackend("codex", CodexOptions(bin=binary, **given)))
        return made[-1]

    yield build
    for backend in made:
        await backend.close()

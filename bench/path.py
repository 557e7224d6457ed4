"""`python -m bench path`: measures where the time of a request goes inside the gateway.

There are no sockets: the benchmark calls the application as a server would, and the model server is replaced
by a double that answers at once. To measure the cost of a part, the benchmark switches it off and takes the
difference. The figures are CPU times, each of the best of several rounds. They do not include the HTTP
server, the HTTP client of the model server, and system calls.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any

from bench.report import Row, figure
from toolwire.backends.openai.backend import OpenAIBackend
from toolwire.gateway.pipeline import Gateway
from toolwire.observe import logs
from toolwire.settings.types import JournalSettings, ServerSettings, Settings
from toolwire.surfaces.http.app import App, create_app
from toolwire.surfaces.http.exchange import CONNECTION, Connection
from toolwire.surfaces.http.server import lighten_generators, settle_memory

KEY = "sk-bench-0123456789"
CHUNKS = 500
WITHOUT = (("all", "memory", "info"), ("log", "memory", "warning"), ("journal", "off", "info"))
"""For each measurement: its name, the journal's `contents` setting, and the log level."""
PLAIN = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello there.", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 9, "completion_tokens": 7, "total_tokens": 16},
}


def _chunk(delta: dict[str, str], reason: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
    return (
        b"data: "
        + json.dumps(
            {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
        ).encode()
        + b"\n\n"
    )


PIECE, LAST = _chunk({"content": "word "}, None), _chunk({}, "stop") + b"data: [DONE]\n\n"
BODY = json.dumps(PLAIN).encode()
MESSAGES = [{"role": "system", "content": "You are helpful."}, {"role": "user", "content": "Say hi."}]
ASKED = {
    stream: json.dumps({"model": "m", "messages": MESSAGES, **({"stream": True} if stream else {})}).encode()
    for stream in (False, True)
}


class _Reply:
    """An upstream's answer, one block per read. The event loop runs once between two reads."""

    status = 200
    ended = False

    def __init__(self, stream: bool) -> None:
        self.headers = {"content-type": "text/event-stream" if stream else "application/json"}
        self._blocks: Iterator[bytes] = iter([PIECE] * CHUNKS + [LAST] if stream else [BODY])
        self._stream = stream

    async def read(self) -> bytes:
        if self._stream:
            turned = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(turned.set_result, None)
            await turned
        return next(self._blocks, b"")

    def release(self, whole: bool = False) -> None: ...


class _Client(Connection):
    """The connection to a client that has sent its whole request and reads at once."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def take(self) -> bytes:
        return self._raw

    def answer(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> bool:
        return True

    def write(self, block: bytes) -> bool:
        return True


class _Transport:
    async def post(self, request: Any, body: bytes) -> _Reply:
        return _Reply(b'"stream":true' in body)


class _Model(OpenAIBackend):
    async def prepare(self) -> None: ...

    def _connected(self) -> Any:
        return _Transport()


def _app(journal: str) -> App:
    model = _Model("m", {"base_url": "http://127.0.0.1:1/v1", "tools": "native", "profile": "openai"})
    kept = JournalSettings(contents=journal)  # type: ignore[arg-type]
    settings = Settings(server=ServerSettings(keys=(KEY,)), journal=kept)
    return create_app(Gateway(settings, store=None, backends={"m": model}), settings, None)


async def _ask(app: App, stream: bool) -> None:
    raw = ASKED[stream]
    headers = [
        (b"host", b"127.0.0.1:1"),
        (b"authorization", b"Bearer " + KEY.encode()),
        (b"content-type", b"application/json"),
    ]
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/v1/chat/completions",
    }
    scope |= {
        "headers": [*headers, (b"content-length", b"%d" % len(raw))],
        "client": ("127.0.0.1", 5),
        "server": ("127.0.0.1", 1),
    }
    scope[CONNECTION] = _Client(raw)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": raw, "more_body": False}

    async def send(message: Any) -> None: ...

    await app(scope, receive, send)


async def _took(app: App, stream: bool, times: int) -> float:
    """Returns the CPU microseconds of one request, as the average of `times` requests.

    They include the work after the response.
    """
    began = time.process_time()
    for _ in range(times):
        await _ask(app, stream)
        await asyncio.sleep(0)
    return 1e6 * (time.process_time() - began) / times


@contextmanager
def _logging(level: str) -> Iterator[None]:
    root = logging.getLogger()
    before, was = list(root.handlers), root.level
    with redirect_stderr(io.StringIO()):
        logs.configure(level)
        try:
            yield
        finally:
            root.handlers[:] = before
            root.setLevel(was)


async def _measure(rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """Returns the best round of each measurement: for plain requests, and for streamed chunks.

    The measurements take turns, so that a disturbance affects all of them.
    """
    lighten_generators()
    plain: dict[str, list[float]] = {}
    chunk: dict[str, list[float]] = {}
    apps = {journal: _app(journal) for journal in ("memory", "off")}
    for _ in range(rounds + 1):
        for name, journal, level in WITHOUT:
            with _logging(level):
                plain.setdefault(name, []).append(await _took(apps[journal], False, 300))
                chunk.setdefault(name, []).append(await _took(apps[journal], True, 4) / CHUNKS)
    return {name: min(found[1:]) for name, found in plain.items()}, {
        name: min(found[1:]) for name, found in chunk.items()
    }


def run(rounds: int = 8) -> list[Row]:
    import uvloop

    settle_memory()
    plain, chunk = uvloop.run(_measure(rounds))
    rows = []
    for what, found in (("a plain request", plain), ("a streamed chunk that arrives alone", chunk)):
        rows.append(Row(f"{what}: all work of the gateway", found["all"], unit="µs"))
        for part, words in (("journal", "the journal's contents"), ("log", "the log line")):
            cost = max(0.0, found["all"] - found[part])
            rows.append(
                Row(
                    f"{what}: of this, {words}",
                    cost,
                    f"{100 * cost / found['all']:.0f} %; {figure(found[part])} µs without it",
                    unit="µs",
                )
            )
    return rows


if __name__ == "__main__":
    for row in run():
        print(row.cells(), file=sys.stdout)

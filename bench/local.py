"""Compares the embedded model behind Toolwire with llama.cpp's own HTTP server, in turns.

Both servers use the same model file, settings and requests. Every request has a different prompt, so that no
server finds the prompt in its cache. Every answer ends at the token limit. Tokens per second are the tokens
of the answer, divided by the duration of the whole request as the client sees it.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from bench.report import Row
from toolwire.backends.local import LocalBackend, LocalOptions
from toolwire.backends.local.backend import grammar_of, render
from toolwire.backends.local.model import key_of, llama_cpp, parameters
from toolwire.backends.local.pull import available
from toolwire.core.events import Usage
from toolwire.core.turn import Constraint, Message, Sampling, TextPart, ToolSpec, Turn
from toolwire.gateway.pipeline import Gateway
from toolwire.settings.extras import add_extra, own_command
from toolwire.settings.types import ServerSettings, Settings
from toolwire.surfaces.http.app import create_app
from toolwire.surfaces.http.server import DrainingServer, bind

TARGET = 0.95
TOKENS = 160
KEY = "sk-bench-local"
NEVER_END = {"2": -100.0}
NOTE = ToolSpec(
    "write_note",
    "Writes a note.",
    {"type": "object", "properties": {"text": {"type": "string", "minLength": 2000}}, "required": ["text"]},
)
Ask = Callable[[int], Awaitable[int]]
"""Runs the request with this number. Returns the number of tokens in the answer."""


def run(rounds: int) -> tuple[list[Row], list[str]]:
    if not available():
        return [], [f"the embedded model is not here: {add_extra('local')}, then {own_command('local pull')}"]
    return asyncio.run(_run(rounds))


async def _run(rounds: int) -> tuple[list[Row], list[str]]:
    options = LocalOptions(context=2048, parallel=2)
    backend = LocalBackend("local", options)
    connector = aiohttp.TCPConnector(force_close=True)  # llama.cpp closes idle connections soon
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        _llama_server(options) as llama,
        _gateway(backend, session) as gateway,
    ):
        sides: dict[str, tuple[Ask, Ask]] = {
            "text, backend without gateway": (
                _by_backend(backend, False),
                _by_llama(session, llama, options, False),
            ),
            "a call constrained to its schema, backend without gateway": (
                _by_backend(backend, True),
                _by_llama(session, llama, options, True),
            ),
            "text, through the gateway": (
                _by_gateway(session, gateway),
                _by_llama(session, llama, options, False),
            ),
        }
        rows = [await _compare(name, ours, theirs, rounds) for name, (ours, theirs) in sides.items()]
    return rows, [f"Embedded model: {TOKENS} tokens per request; medians of {rounds} alternating rounds."]


async def _compare(name: str, ours: Ask, theirs: Ask, rounds: int) -> Row:
    await ours(-1)
    await theirs(-1)
    speeds: dict[Ask, list[float]] = {ours: [], theirs: []}
    costs: dict[Ask, list[float]] = {ours: [], theirs: []}
    ratios = []
    for number in range(rounds):
        for ask in (ours, theirs) if number % 2 else (theirs, ours):
            began, worked = time.perf_counter(), time.process_time()
            tokens = await ask(number)
            speeds[ask].append(tokens / (time.perf_counter() - began))
            costs[ask].append((time.process_time() - worked) / tokens * 1000)
        ratios.append(speeds[ours][-1] / speeds[theirs][-1])
    detail = (
        f"{statistics.median(speeds[ours]):.0f} against {statistics.median(speeds[theirs]):.0f} tokens/s, "
    )
    detail += (
        f"{statistics.median(costs[ours]):.1f} against {statistics.median(costs[theirs]):.1f} ms of CPU per "
        "token"
    )
    return Row(f"speed: {name}", statistics.median(ratios), detail, "at least", TARGET)


# --- the sides ---


def _turn(number: int, held: bool) -> Turn:
    asked = Message("user", (TextPart(f"Number {number}. Tell me a long story about the sea."),))
    sampling = Sampling(temperature=0.0, seed=1, max_tokens=TOKENS, logit_bias=NEVER_END)
    constraint = Constraint((NOTE,), "<tool_call:bench>\n", "\n</tool_call:bench>", True) if held else None
    return Turn("chat", "local", (asked,), sampling=sampling, constraint=constraint, stream=True)


def _by_backend(backend: LocalBackend, held: bool) -> Ask:
    async def ask(number: int) -> int:
        return sum(
            [
                event.output_tokens
                async for batch in backend.run(_turn(number, held))
                for event in batch
                if isinstance(event, Usage)
            ]
        )

    return ask


def _by_llama(session: aiohttp.ClientSession, url: str, options: LocalOptions, held: bool) -> Ask:
    limits = options.limits(0)

    async def ask(number: int) -> int:
        turn = _turn(number, held)
        return await _read(
            session, f"{url}/v1/chat/completions", render(turn, options, grammar_of(turn, limits))
        )

    return ask


def _by_gateway(session: aiohttp.ClientSession, url: str) -> Ask:
    async def ask(number: int) -> int:
        turn = _turn(number, False)
        body: dict[str, Any] = {
            "model": "local",
            "messages": [{"role": "user", "content": turn.texts()[0]}],
            "stream": True,
            "temperature": 0,
            "seed": 1,
        }
        body |= {
            "stream_options": {"include_usage": True},
            "max_completion_tokens": TOKENS,
            "logit_bias": NEVER_END,
        }
        return await _read(session, f"{url}/v1/chat/completions", json.dumps(body).encode())

    return ask


async def _read(session: aiohttp.ClientSession, url: str, body: bytes) -> int:
    """Reads a stream as a client does, parsing every chunk. Returns the number of tokens."""
    tokens = 0
    async with session.post(
        url, data=body, headers={"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    ) as response:
        response.raise_for_status()
        async for line in response.content:
            if line.startswith(b"data: {"):
                usage = json.loads(line[6:]).get("usage")
                tokens = usage["completion_tokens"] if usage else tokens
    return tokens


@asynccontextmanager
async def _llama_server(options: LocalOptions) -> AsyncIterator[str]:
    llama = llama_cpp()
    params = parameters(llama, key_of(options))
    params.api_keys, params.port = [KEY], 0
    server = llama.Server(params)
    yield server.listening_address
    del server


@asynccontextmanager
async def _gateway(backend: LocalBackend, session: aiohttp.ClientSession) -> AsyncIterator[str]:
    settings = Settings(server=ServerSettings(keys=(KEY,)))
    gateway = Gateway(settings, backends={"local": backend}, store=None)
    server = DrainingServer(create_app(gateway, settings, None), 5, lambda: None)
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    sockets = bind("127.0.0.1", 0)
    await server.startup(sockets)
    try:
        yield f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
    finally:
        await server.shutdown()
        await gateway.close()

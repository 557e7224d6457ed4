"""Random requests of the official SDK's types, and random bytes, cause no 500 and no leak.

`TOOLWIRE_FUZZ_REQUESTS` and `TOOLWIRE_FUZZ_INPUTS` make it longer. `make evidence` sends a thousand times as
many.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings

from doubles.sdk_requests import Request, Requests
from doubles.watched import Watched
from toolwire.core.errors import KINDS, ToolwireError
from toolwire.emulate.scanner import ToolCallParser
from toolwire.wire import body
from toolwire.wire.chat import decode as chat
from toolwire.wire.responses import decode as responses
from toolwire.wire.sse import SseReader

REQUESTS = int(os.environ.get("TOOLWIRE_FUZZ_REQUESTS", "10"))
INPUTS = int(os.environ.get("TOOLWIRE_FUZZ_INPUTS", "1000"))
GROWTH_MB = 24.0
MODELS = ("native", "emulated", "parked", "absent")
SETTINGS = """
[parked]
ttl_s = 1
[journal]
max_mb = 2
[store]
url = "sqlite://"
""" + "".join(f'[models.{name}]\nbackend = "scripted"\ntools = "{name}"\n' for name in MODELS[:3])
OF_THE_MODEL = {kind.code for kind in KINDS.values() if kind.status == 502}
"""Codes of errors that are the model's, such as a required call that it did not make."""


# --- requests ---


class Sender:
    """Sends requests on one connection and checks the responses."""

    def __init__(self, server: Watched) -> None:
        self._server = server
        self._connection = HTTPConnection("127.0.0.1", server.port, timeout=20)
        self.statuses: Counter[int] = Counter()
        self.warm_mb = 0.0

    def close(self) -> None:
        self._connection.close()

    def send(self, request: Request) -> None:
        headers = {"Content-Type": "application/json"} if request.body is not None else {}
        self._connection.request(request.method, request.path, request.body, headers)
        response = self._connection.getresponse()
        body = response.read()
        self.statuses[response.status] += 1
        if sum(self.statuses.values()) == max(1, REQUESTS // 5):
            self.warm_mb = self._server.rss_mb()
        if response.status >= 400:
            error = json.loads(body)["error"]
            assert set(error) == {"message", "type", "param", "code"} and "Traceback" not in error["message"]
            assert response.status < 500 or error["code"] in OF_THE_MODEL, (response.status, error)
        elif b"text/event-stream" not in response.headers["content-type"].encode():
            json.loads(body)


def test_no_request_of_the_schema_is_answered_with_500(tmp_path: Path) -> None:
    with Watched(tmp_path, SETTINGS) as server, closing(Sender(server)) as sender:
        phases = (Phase.explicit, Phase.generate, Phase.shrink)

        @settings(
            max_examples=REQUESTS,
            phases=phases,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(request=Requests().any(MODELS))
        def every(request: Request) -> None:
            sender.send(request)

        every()
        growth, log = server.rss_mb() - sender.warm_mb, server.logged()
    counted = ", ".join(f"{count:,} × HTTP {status}" for status, count in sorted(sender.statuses.items()))
    counted = f"{sum(sender.statuses.values()):,} requests: {counted}"
    print(f"outcomes: {counted}; memory {growth:+.1f} MB after the first fifth")
    assert 200 in sender.statuses or REQUESTS < 50
    assert "Traceback" not in log
    assert growth < GROWTH_MB


# --- bytes ---

CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "hi"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
            ],
        },
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "42"},
    ],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "f",
                "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
            },
        }
    ],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {}}},
}
RESPONSES: dict[str, Any] = {
    "model": "m",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "call_1",
            "output": [{"type": "input_text", "text": "42"}],
        },
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "so"}]},
    ],
    "tools": [
        {"type": "function", "name": "f", "parameters": {}},
        {"type": "custom", "name": "g", "format": {"type": "text"}},
    ],
    "text": {"format": {"type": "json_object"}},
}
STREAM = (
    b'event: m\ndata: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}}]}\n\n'
    b": alive\n\ndata: [DONE]\n\n"
)
WRITTEN = b'Let me.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n'
WRITTEN += b'```json\n{"name": "f"}\n```\n<function=f><parameter=a>1</parameter>'
SCRAPS = [
    b"",
    b"\xff",
    b"\x00",
    b"{",
    b"]",
    b'"',
    b"\\ud800",
    b"1e999",
    b"null",
    b",",
    b"\r\n",
    b"<tool_call>",
    b"data:",
    b'"type"',
    b"[[[[",
    b"-",
]


def spoiled(valid: bytes, chance: Random) -> bytes:
    if chance.random() < 0.2:
        return chance.randbytes(chance.randrange(200))
    out = bytearray(valid)
    for _ in range(chance.randrange(1, 6)):
        place = chance.randrange(len(out) + 1)
        out[place : place + chance.choice((0, 1, 2, 40))] = (
            chance.choice(SCRAPS) if chance.random() < 0.8 else chance.randbytes(4)
        )
    return bytes(out)


def pieces(data: bytes, chance: Random) -> list[bytes]:
    cut = chance.randrange(len(data) + 1)
    return [data[:cut], data[cut:]]


def read_chat(data: bytes, chance: Random) -> None:
    chat.decode(body.parse(data))


def read_responses(data: bytes, chance: Random) -> None:
    responses.decode(body.parse(data), ())


def read_stream(data: bytes, chance: Random) -> None:
    reader = SseReader()
    for piece in pieces(data, chance):
        list(reader.feed(piece))


def read_text(data: bytes, chance: Random) -> None:
    parser = ToolCallParser([CHAT["tools"][0]], arguments=chance.choice(("eager", "validated")))
    for piece in pieces(data, chance):
        parser.feed(piece.decode("utf-8", "replace"))
    parser.finish("stop")


DECODERS: tuple[tuple[Callable[[bytes, Random], None], bytes], ...] = (
    (read_chat, json.dumps(CHAT).encode()),
    (read_responses, json.dumps(RESPONSES).encode()),
    (read_stream, STREAM),
    (read_text, WRITTEN),
)


def own_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024 / 1024


def test_no_bytes_crash_a_decoder_or_leak_memory() -> None:
    outcomes: Counter[str] = Counter()
    warm_mb = 0.0
    for number in range(INPUTS):
        if number == INPUTS // 5:
            warm_mb = own_mb()
        chance = Random(f"bytes/{number}")
        decode, valid = DECODERS[number % len(DECODERS)]
        data = spoiled(valid, chance)
        try:
            decode(data, chance)
            outcomes["read"] += 1
        except ToolwireError as error:
            outcomes["refused"] += 1
            assert KINDS[error.failure.kind].status < 500, (decode.__name__, data)
        except Exception as error:
            raise AssertionError(f"{decode.__name__}, input {number}: {error!r}\n{data!r}") from error
    growth = own_mb() - warm_mb
    counted = f"{outcomes['read']:,} accepted, {outcomes['refused']:,} refused"
    print(
        f"outcomes: {INPUTS:,} inputs to {len(DECODERS)} decoders: {counted}; memory {growth:+.1f} MB after "
        "the first fifth"
    )
    assert min(outcomes["read"], outcomes["refused"]) > INPUTS // 20
    assert growth < GROWTH_MB

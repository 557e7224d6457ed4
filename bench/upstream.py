"""The simulated model server in Python, for machines without a C compiler. Answers like `upstream.c`.

The Python version takes more time of the core that it shares with the load generator.
"""

from __future__ import annotations

import asyncio
import json
import sys

PIECES = 200
STEP_S = 0.01
MARK = "Zz00"
"""A mark in the first piece of every streamed answer. The load generator looks for it."""
HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
OPENINGS = {
    "prose": MARK,
    "native": f'{{"city": "{MARK}',
    "written": f'<tool_call>{{"name": "get_weather", "arguments": {{"city": "{MARK}',
}
ENDINGS = {"prose": "end.", "native": '"}', "written": '"}}</tool_call>'}


def _chunked(text: str) -> bytes:
    raw = f"data: {text}\n\n".encode()
    return f"{len(raw):x}\r\n".encode() + raw + b"\r\n"


def _chunk(delta: dict[str, object], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    envelope = {
        "id": "chatcmpl-bench",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": "bench",
        "choices": [choice],
    }
    return _chunked(json.dumps(envelope, separators=(",", ":")))


def _delta(kind: str, word: str) -> dict[str, object]:
    return (
        {"tool_calls": [{"index": 0, "function": {"arguments": word}}]}
        if kind == "native"
        else {"content": word}
    )


def render_stream(kind: str) -> list[bytes]:
    """Returns the blocks of a streamed answer that are written one by one: one for each piece."""
    call = {
        "index": 0,
        "id": "call_bench",
        "type": "function",
        "function": {"name": "get_weather", "arguments": ""},
    }
    role: dict[str, object] = (
        {"role": "assistant", "content": None, "tool_calls": [call]}
        if kind == "native"
        else {"role": "assistant", "content": ""}
    )
    words = [f"{' ' if i % 5 == 4 else chr(97 + i % 26)}{i:03d}" for i in range(PIECES)]
    words[0], words[-1] = OPENINGS[kind], ENDINGS[kind]
    writes = [_chunk(_delta(kind, word)) for word in words]
    writes[0] = HEAD + _chunk(role) + writes[0]
    writes.append(
        _chunk({}, "tool_calls" if kind == "native" else "stop") + _chunked("[DONE]") + b"0\r\n\r\n"
    )
    return writes


def render_body(value: object) -> list[bytes]:
    raw = json.dumps(value, separators=(",", ":")).encode()
    return [
        f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n".encode()
        + raw
    ]


STREAMS = {kind: render_stream(kind) for kind in OPENINGS}
_MESSAGE = {"role": "assistant", "content": "Hello! How can I help you today?", "refusal": None}
BODY = render_body(
    {
        "id": "chatcmpl-bench",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "bench",
        "choices": [{"index": 0, "message": _MESSAGE, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 9, "total_tokens": 19},
    }
)
MODELS = render_body(
    {"object": "list", "data": [{"id": "bench", "object": "model", "created": 1, "owned_by": "bench"}]}
)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    loop = asyncio.get_running_loop()
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            size = int(head.partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
            if b"transfer-encoding: chunked" in head:
                sent = await reader.readuntil(b"0\r\n\r\n")
            else:
                sent = await reader.readexactly(size)
            model = sent.partition(b"bench-")[2].partition(b'"')[0]
            kind = "native" if b"native" in model else "written" if b"written" in model else "prose"
            streamed = b'"stream":true' in sent.replace(b" ", b"")
            writes = MODELS if head.startswith(b"get") else STREAMS[kind] if streamed else BODY
            if b"burst" in model:
                writes = [b"".join(writes)]
            due = loop.time()
            for write in writes:
                writer.write(write)
                if streamed and b"paced" in model:
                    due += STEP_S
                    await asyncio.sleep(max(0.0, due - loop.time()))
                else:
                    await writer.drain()
    except (OSError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def main(port: int) -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", port, backlog=1024, limit=1 << 20)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))

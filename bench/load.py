"""The load generator in Python, for machines without a C compiler. It has the same arguments as `load.c`."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

MARKS = (b"data: [DONE]", b"event: response.completed", b"event: message_stop")
TOKEN = b"Zz00"
KEEP = 31


class Tally:
    def __init__(self) -> None:
        self.started = self.requests = self.errors = self.broken = self.events = 0
        self.firsts: list[int] = []
        self.totals: list[int] = []


class Answer:
    """What has arrived of one response body, and when its first parts arrived."""

    def __init__(self) -> None:
        self.first = self.token = 0.0
        self.events = 0
        self.ended = False
        self._tail = b""

    def feed(self, block: bytes) -> None:
        joined = self._tail + block
        self.first = self.first or time.monotonic()
        if not self.token and TOKEN in joined:
            self.token = time.monotonic()
        self.ended = self.ended or any(mark in joined for mark in MARKS)
        self.events += block.count(b"data: ")
        self._tail = joined[-KEEP:]


async def read_answer(reader: asyncio.StreamReader, answer: Answer) -> int:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if b"transfer-encoding: chunked" in head:
        while size := int((await reader.readline()).strip(), 16):
            answer.feed((await reader.readexactly(size + 2))[:-2])
        await reader.readline()
    else:
        answer.feed(await reader.readexactly(int(head.partition(b"content-length:")[2].split(b"\r\n")[0])))
    return int(head.split(b" ", 2)[1])


async def connection(
    port: int, request: bytes, streaming: bool, deadline: float, most: int, tally: Tally
) -> None:
    writer: asyncio.StreamWriter | None = None
    while time.monotonic() < deadline and not (most and tally.started >= most) and tally.errors <= 100:
        tally.started += 1
        answer, began = Answer(), time.monotonic()
        try:
            if writer is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
            writer.write(request)
            status = await read_answer(reader, answer)
        except (OSError, ValueError, asyncio.IncompleteReadError):
            tally.errors += 1
            if writer is not None:
                writer.close()
            writer = None
            continue
        if status != 200:
            tally.errors += 1
        elif streaming and not answer.ended:
            tally.broken += 1
        else:
            tally.requests += 1
            tally.events += answer.events
            tally.firsts.append(int(1e6 * ((answer.token or answer.first) - began)))
            tally.totals.append(int(1e6 * (time.monotonic() - began)))
    if writer is not None:
        writer.close()


def share(values: list[int], part: float) -> int:
    return sorted(values)[int((len(values) - 1) * part)] if values else -1


async def main(words: list[str]) -> None:
    port, path, connections, seconds, most = (
        int(words[0]),
        words[1],
        int(words[2]),
        float(words[3]),
        int(words[4]),
    )
    body = Path(words[5]).read_bytes()
    head = [
        f"POST {path} HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *words[6:],
    ]
    request = "\r\n".join(head).encode() + b"\r\n\r\n" + body
    streaming = b'"stream":true' in body.replace(b" ", b"")
    tally, began = Tally(), time.monotonic()
    await asyncio.gather(
        *(connection(port, request, streaming, began + seconds, most, tally) for _ in range(connections))
    )
    report = {"requests": tally.requests, "errors": tally.errors, "broken": tally.broken, "unfinished": 0}
    took = round(time.monotonic() - began, 3)
    report |= {"seconds": took, "events": tally.events}  # type: ignore[dict-item]
    report |= {"first_p50": share(tally.firsts, 0.5), "first_p99": share(tally.firsts, 0.99)}
    report |= {"total_p50": share(tally.totals, 0.5), "total_p99": share(tally.totals, 0.99)}
    print(json.dumps(report))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))

"""The answers of all models in `bench.faults`, and a model server that sends these answers.

`python -m bench.fault_upstream PORT PAUSE_MS` starts the server. It sends one half of each answer, pauses,
and sends the other half. It does not pause in answers of the model `swift`.
"""

from __future__ import annotations

import asyncio
import sys
from itertools import count

from toolwire.testing.upstream import FakeUpstream, Recorded, Reply, answer

ARGUMENTS = '{"at": "the pond"}'
SWIFT = "swift"
"""A model that does not pause. Its answers show quickly whether something works."""


def answer_to(result: str) -> str:
    return f"I saw {result}, and that was all."


def script(pause_ms: int) -> str:
    """Returns the same answers as a script for a scripted model. The two answers have three pauses in all."""
    before, after = answer_to("{result}").split("{result}")
    first = ["chunk 6", f"pause {pause_ms}ms", f"call look {ARGUMENTS}"]
    second = [
        "chunk 6",
        f'say "{before}"',
        f"pause {pause_ms}ms",
        "say {result}",
        f"pause {pause_ms}ms",
        f'say "{after}"',
    ]
    return "\n".join([*first, "---", *second])


async def serve(port: int, pause_ms: int) -> None:
    numbers = count()

    def reply(asked: Recorded) -> Reply:
        last = asked.body["messages"][-1]
        chunks = (
            answer(answer_to(last["content"]))
            if last["role"] == "tool"
            else answer(calls=[(f"call_{next(numbers)}", "look", ARGUMENTS)])
        )
        whole = Reply.stream(chunks)
        if asked.body["model"] == SWIFT:
            return whole
        gate = asyncio.Event()
        asyncio.get_running_loop().call_later(pause_ms / 1000, gate.set)
        return whole.but(gate=gate, write_size=-(-sum(map(len, whole.frames)) // 2))

    async with FakeUpstream(reply, port=port):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2])))

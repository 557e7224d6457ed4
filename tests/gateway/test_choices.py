"""Requests with many choices: all are served, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from toolwire.backends.base import Batch
from toolwire.backends.scripted.backend import ScriptedBackend
from toolwire.core.events import Failure, Finish, Text
from toolwire.core.turn import Turn
from toolwire.gateway.source import MOST_AT_ONCE


class Counting(ScriptedBackend):
    """A model that counts how many of its runs are open at once."""

    running = most = runs = 0

    async def run(self, turn: Turn) -> AsyncGenerator[Batch, None]:
        self.runs += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(0)
            yield [Text("hi")]
            yield [Finish()]
        finally:
            self.running -= 1


@pytest.mark.parametrize("choices", [2, MOST_AT_ONCE + 1, 128])
async def test_every_choice_is_served_and_only_a_few_run_at_once(table: Any, choices: int) -> None:
    backend = Counting("m")
    asked = {"messages": [{"role": "user", "content": "?"}], "n": choices}
    body = await table.serve(backend).body("chat", asked)
    assert [(choice["index"], choice["message"]["content"]) for choice in body["choices"]] == [
        (n, "hi") for n in range(choices)
    ]
    assert (backend.runs, backend.most, backend.running) == (choices, min(choices, MOST_AT_ONCE), 0)
    stream = await table.stream("chat", asked)
    assert stream.count(b'"content":"hi"') == stream.count(b'"finish_reason":"stop"') == choices
    assert stream.endswith(b"data: [DONE]\n\n")


async def test_a_choice_that_fails_ends_the_stream_with_its_error_and_cancels_the_others(table: Any) -> None:
    class FailsOnce(Counting):
        async def run(self, turn: Turn) -> AsyncGenerator[Batch, None]:
            self.runs += 1
            first = self.runs == 1
            self.running += 1
            try:
                yield [Text("hi")]
                await asyncio.sleep(0.01 if first else 60)
                yield [Failure("backend", "The disk is full.")]
            finally:
                self.running -= 1

    backend = FailsOnce("m")
    asked = {"messages": [{"role": "user", "content": "?"}], "n": 3}
    stream = await table.serve(backend).stream("chat", asked)
    assert b"The disk is full." in stream.split(b"\n\n")[-2]
    assert (backend.runs, backend.running) == (3, 0)

"""Tests Toolwire and LiteLLM's proxy for six common faults of Messages gateways.

The upstream has only chat completions. It answers like Toolwire's demo model, but its streams deviate from
OpenAI's format as the streams of real servers do: in the `QUIRKS` of `toolwire.testing.upstream`, and in two
more. `bench.conform` writes the table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from bench.targets import KEY
from toolwire.backends.scripted.demo import demo
from toolwire.conform.engine import BY_ID, ConformOutcome, conform
from toolwire.conform.probe import Probe
from toolwire.core.display import one_line
from toolwire.testing.upstream import (
    QUIRKS,
    Chunk,
    FakeUpstream,
    Recorded,
    Reply,
    answer,
    chunk,
    completion,
    with_quirk,
)
from toolwire.wire.chat.decode import decode

BREAKAGES: Mapping[str, tuple[str, ...]] = {
    "the `stop_reason` after a tool call is `end_turn`": ("messages.body.stop", "messages.stream.stop"),
    "thoughts are in text blocks, are lost or have no signature": (
        "messages.thinking",
        "messages.stream.deltas",
    ),
    "a second `message_start`": ("messages.stream.start",),
    "the arguments of a call are replaced by `{}`": (
        "messages.call.arguments-fit",
        "messages.stream.content",
    ),
    "system messages after the first message are refused": ("messages.system.inline",),
    "prompt caching does not work": ("messages.cache", "messages.cache.counted"),
}
CHECKS = [BY_ID[id] for ids in BREAKAGES.values() for id in ids]
CORRECT = "correct"
SYSTEM_FIRST = "system_first_only"
USAGE = {
    **{"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25},
    "prompt_tokens_details": {"cached_tokens": 12},
}
SEEN = 60


def _think_tags(chunks: Sequence[Chunk]) -> list[Chunk]:
    """Moves the thoughts into the text, between the tags `<think>` and `</think>`."""
    said, rest = "", []
    for one in chunks:
        thought = one["choices"][0]["delta"].get("reasoning_content") if one["choices"] else None
        if thought is None:
            rest.append(one)
        else:
            said += thought
    return [rest[0], *([chunk({"content": f"<think>{said}</think>"})] if said else []), *rest[1:]]


STREAMS: Mapping[str, Callable[[Sequence[Chunk]], list[Chunk]]] = {
    CORRECT: list,
    **{name: partial(with_quirk, name) for name in QUIRKS},
    "think_tags": _think_tags,
    SYSTEM_FIRST: list,
}


class Upstream:
    """A server of the demo model with chat completions. `deviation` is a name in `STREAMS`."""

    def __init__(self) -> None:
        self.deviation = CORRECT
        self._ids = count()

    def reply(self, request: Recorded) -> Reply:
        messages = request.body["messages"]
        if self.deviation == SYSTEM_FIRST and any(one["role"] == "system" for one in messages[1:]):
            return Reply.error(400, "System message must be at the beginning.")
        steps = list(demo(decode(request.body)))
        text, thought = ("".join(one.text for one in steps if one.word == word) for word in ("raw", "think"))
        calls = [(f"call_{next(self._ids)}", one.name, one.text) for one in steps if one.word == "call"]
        chunks = answer(text, calls, thought=thought, usage=USAGE)
        if not request.body.get("stream"):
            return Reply.body({**completion(chunks), "id": f"chatcmpl-{next(self._ids)}"})
        return Reply.stream(STREAMS[self.deviation](chunks))


@dataclass(frozen=True, slots=True)
class Tried:
    """The results of a gateway, by the name of the upstream's deviation."""

    title: str
    outcomes: Mapping[str, ConformOutcome]


async def tried(gateways: Mapping[str, Callable[[int], tuple[Any, int]]]) -> list[Tried]:
    """Starts each gateway in front of the upstream, and checks the gateway with every deviation."""
    upstream, out = Upstream(), []
    async with FakeUpstream(upstream.reply) as served:
        port = int(served.base_url.rpartition(":")[2].partition("/")[0])
        for title, start in gateways.items():
            process, own = await asyncio.to_thread(start, port)
            try:
                outcomes = {}
                for upstream.deviation in STREAMS:
                    async with Probe(f"http://127.0.0.1:{own}/v1", KEY) as probe:
                        outcomes[upstream.deviation] = await conform(probe, "native", CHECKS)
            finally:
                process.stop()
            out.append(Tried(title, outcomes))
    return out


def table(results: Sequence[Tried]) -> list[str]:
    titles = " | ".join(one.title for one in results)
    lines = [f"| fault | checks | {titles} |", f"|---|---|{'---|' * len(results)}"]
    for name, ids in BREAKAGES.items():
        checks = ", ".join(f"`{id.removeprefix('messages.')}`" for id in ids)
        lines.append(f"| {name} | {checks} | {' | '.join(_cell(one, ids) for one in results)} |")
    return lines


def _cell(one: Tried, ids: Sequence[str]) -> str:
    wrong, errors, seen = [], [], ""
    for name, outcome in one.outcomes.items():
        verdicts = [finding.verdict for finding in outcome.findings if finding.check.id in ids]
        failures = [verdict for verdict in verdicts if verdict.result == "fail"]
        if failures:
            wrong.append(name)
            seen = seen or failures[0].seen
        elif any(verdict.result != "pass" for verdict in verdicts):
            errors.append(name)
    said = [f"wrong with {_listed(wrong)} ({one_line(seen, SEEN)})"] if wrong else []
    said += [f"an error with {_listed(errors)}"] if errors else []
    return "; ".join(said).replace("|", "\\|") or "right"


def _listed(names: Sequence[str]) -> str:
    return "every upstream" if len(names) == len(STREAMS) else ", ".join(f"`{name}`" for name in names)

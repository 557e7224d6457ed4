"""Clients that repeat tool loops whose answers are known in advance, and the checks of the answers.

In each loop, a client asks, gets a call, sends the call's result, and gets an answer that contains the
result. Every request ends with one of these outcomes:

- `right`
- the status and code of an HTTP error with OpenAI's error object, such as `503 overloaded`
- `in-band` and the code of an error that ended a stream, such as `in-band stream_interrupted`
- `cut`: the connection was lost
- `hung` or `wrong: …`: always a failure
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp

from bench.fault_upstream import ARGUMENTS, answer_to
from toolwire.conform.judge import fold, judge_body, judge_error, judge_sse

PATIENCE_S = 60.0
BREATH_S = 0.5
"""How long a client waits after an error before its next loop."""
PARAMETERS = {
    "type": "object",
    "properties": {"at": {"type": "string"}},
    "required": ["at"],
    "additionalProperties": False,
}
CHAT_TOOLS = [{"type": "function", "function": {"name": "look", "parameters": PARAMETERS}}]
RESPONSES_TOOLS = [{"type": "function", "name": "look", "parameters": PARAMETERS, "strict": False}]
Place = Literal["balanced", "alone"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of request.

    `store`: the responses are stored, and the next request continues them by `previous_response_id`.
    Otherwise, each request contains its whole history. `place`: the server that gets the requests: `balanced`
    is the cluster behind nginx, `alone` the single node.
    """

    api: Literal["chat", "responses"]
    model: str
    stream: bool = True
    store: bool = False
    place: Place = "balanced"

    @property
    def name(self) -> str:
        return " ".join(
            [
                self.api,
                self.model,
                *(["stored"] * self.store),
                *(["whole"] * (not self.stream)),
                *(["alone"] * (self.place == "alone")),
            ]
        )


KINDS: tuple[Kind, ...] = (
    Kind("chat", "parked"),
    Kind("responses", "parked", store=True),
    Kind("chat", "native"),
    Kind("chat", "upstream"),
    Kind("responses", "native", store=True),
    Kind("chat", "emulated"),
    Kind("responses", "native", store=True, place="alone"),
    Kind("chat", "parked", stream=False),
    Kind("responses", "emulated", stream=False, store=True),
    Kind("responses", "parked"),
    Kind("chat", "parked", place="alone"),
    Kind("responses", "upstream", store=True),
)


@dataclass(frozen=True, slots=True)
class Ended:
    """How one request ended. `turn` is the value of the header `x-toolwire-turn`."""

    kind: Kind
    request_id: str
    began: float
    ended: float
    how: str
    turn: str = ""

    @property
    def right(self) -> bool:
        return self.how == "right"


@dataclass(frozen=True, slots=True)
class Kept:
    """A response that was reported as completed and stored.

    The key that created it must be able to retrieve it.
    """

    id: str
    place: Place
    key: str
    output: Any


@dataclass
class Outcome:
    """An answer as a client receives it. `body` is None unless `how` is `right`."""

    how: str
    body: dict[str, Any] | None = None
    turn: str = ""
    stored: bool = True


async def ask(
    client: aiohttp.ClientSession, url: str, key: str, kind: Kind, body: dict[str, Any], request_id: str
) -> Outcome:
    """Sends one request and checks that its answer keeps the rules of the API.

    The caller checks the content of the answer.
    """
    path = "chat/completions" if kind.api == "chat" else "responses"
    headers = {"authorization": f"Bearer {key}", "x-request-id": request_id}
    try:
        async with client.post(f"{url}/v1/{path}", json=body, headers=headers) as response:
            raw, turn = await response.read(), response.headers.get("x-toolwire-turn", "")
            report = response.headers.get("x-toolwire-report", "")
    except TimeoutError:
        return Outcome("hung")
    except (aiohttp.ClientError, OSError):
        return Outcome("cut")
    try:
        whole: Any = None if response.status == 200 and kind.stream else json.loads(raw)
    except ValueError:
        return Outcome(f"wrong: {response.status} with {raw[:200]!r}")
    if response.status != 200:
        problems = judge_error(response.status, whole)
        return Outcome(
            f"wrong: {problems[0]}"
            if problems
            else f"{response.status} {whole['error']['code'] or whole['error']['type']}",
            turn=turn,
        )
    problems = (
        judge_sse(raw, kind.api, tools=["look"])
        if kind.stream
        else judge_body(whole, kind.api, tools=["look"])
    )
    if problems:
        return Outcome(f"wrong: {problems[0]} in {raw[-300:]!r}", turn=turn)
    outcome: dict[str, Any] = fold(raw, kind.api) if kind.stream else whole
    failed = outcome.get("error")
    if failed:
        return Outcome(f"in-band {failed.get('code')}", turn=turn)
    return Outcome(
        "right", outcome, turn, stored=b'{"stored":false}' not in raw and "store=failed" not in report
    )


def call_of(kind: Kind, outcome: dict[str, Any]) -> str | None:
    """Returns the id of the call in the first answer; None if the answer is not exactly the expected call."""
    if kind.api == "chat":
        (choice,) = outcome["choices"]
        calls = choice["message"].get("tool_calls") or []
        right = (
            choice["finish_reason"] == "tool_calls"
            and not choice["message"].get("content")
            and len(calls) == 1
        )
        right = (
            right
            and calls[0]["function"]["name"] == "look"
            and json.loads(calls[0]["function"]["arguments"]) == json.loads(ARGUMENTS)
        )
        return calls[0]["id"] if right else None
    items = outcome["output"]
    right = (
        outcome["status"] == "completed"
        and [item["type"] for item in items] == ["function_call"]
        and items[0]["name"] == "look"
    )
    return (
        items[0]["call_id"] if right and json.loads(items[0]["arguments"]) == json.loads(ARGUMENTS) else None
    )


def text_of(kind: Kind, outcome: dict[str, Any]) -> str | None:
    """Returns the text of the second answer, or None if it is not a plain text."""
    if kind.api == "chat":
        (choice,) = outcome["choices"]
        message = choice["message"]
        return (
            message["content"]
            if choice["finish_reason"] == "stop" and not message.get("tool_calls")
            else None
        )
    items = outcome["output"]
    right = outcome["status"] == "completed" and [item["type"] for item in items] == ["message"]
    return "".join(part["text"] for part in items[0]["content"]) if right else None


@dataclass
class Load:
    """A number of concurrent clients, and the records of their requests.

    `name` distinguishes these requests from the requests of other loads.
    """

    name: str
    client: aiohttp.ClientSession
    places: dict[Place, str]
    keys: Sequence[str]
    ends: list[Ended] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    unkept: int = 0
    under_way: int = 0
    most_under_way: int = 0
    _stopped: bool = False
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def start(self, streams: int) -> None:
        self._tasks = [
            asyncio.ensure_future(self._stream(KINDS[place % len(KINDS)], self.keys[place % len(self.keys)]))
            for place in range(streams)
        ]

    async def stop(self) -> None:
        """Starts no new loops, and waits until all running loops have ended."""
        self._stopped = True
        await asyncio.gather(*self._tasks)

    async def _stream(self, kind: Kind, key: str) -> None:
        while not self._stopped:
            if not await self.loop(kind, key, self.places[kind.place]):
                await asyncio.sleep(BREATH_S)

    async def loop(self, kind: Kind, key: str, url: str, second_url: str = "") -> bool:
        """Runs one loop of two requests. Returns True if both ended right.

        `second_url`: the server that gets the second request, with the call's result; if empty, `url`.
        """
        number = next(self._numbers)
        result = f"duck number {number}"
        body: dict[str, Any] = {
            "model": kind.model,
            "stream": kind.stream,
            "tools": CHAT_TOOLS if kind.api == "chat" else RESPONSES_TOOLS,
        }
        if kind.api == "responses":
            body["store"] = kind.store
        history: list[Any] = [{"role": "user", "content": "look"}]
        field_name = "messages" if kind.api == "chat" else "input"
        call_id = await self._step(
            kind,
            key,
            url,
            {**body, field_name: history},
            f"{self.name}-{number}-1",
            lambda outcome: call_of(kind, outcome),
        )
        if call_id is None:
            return False
        answer, id = call_id
        if kind.api == "chat":
            call = {"id": answer, "type": "function", "function": {"name": "look", "arguments": ARGUMENTS}}
            history += [
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": answer, "content": result},
            ]
        elif kind.store:
            body["previous_response_id"] = id
            history = [{"type": "function_call_output", "call_id": answer, "output": result}]
        else:
            call = {"type": "function_call", "call_id": answer, "name": "look", "arguments": ARGUMENTS}
            history += [call, {"type": "function_call_output", "call_id": answer, "output": result}]

        def judge(outcome: dict[str, Any]) -> str | None:
            return answer if text_of(kind, outcome) == answer_to(result) else None

        return (
            await self._step(
                kind, key, second_url or url, {**body, field_name: history}, f"{self.name}-{number}-2", judge
            )
            is not None
        )

    async def _step(
        self,
        kind: Kind,
        key: str,
        url: str,
        body: dict[str, Any],
        request_id: str,
        judge: Callable[[dict[str, Any]], str | None],
    ) -> tuple[str, str] | None:
        """Sends one request of a loop.

        Returns the result of `judge` for the answer, and the answer's id. Returns None if the request did not
        end right, or if `judge` returned None.
        """
        began = time.monotonic()
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            outcome = await ask(self.client, url, key, kind, body, request_id)
        finally:
            self.under_way -= 1
        found = judge(outcome.body) if outcome.body is not None else None
        how = (
            outcome.how
            if outcome.body is None or found is not None
            else f"wrong: {json.dumps(outcome.body)[:400]}"
        )
        self.ends.append(Ended(kind, request_id, began, time.monotonic(), how, outcome.turn))
        if found is None:
            return None
        assert outcome.body is not None
        if kind.store:
            if outcome.stored and outcome.body.get("store") is not False:
                self.kept.append(Kept(outcome.body["id"], kind.place, key, outcome.body["output"]))
            else:
                self.unkept += 1
        return found, outcome.body["id"]


async def lost(
    client: aiohttp.ClientSession, places: dict[Place, str], kept: Sequence[Kept], at_once: int = 8
) -> list[str]:
    """Returns a line for each stored response that is missing, or that differs from what was sent."""
    gone: list[str] = []
    left = iter(kept)

    async def look() -> None:
        for one in left:
            async with client.get(
                f"{places[one.place]}/v1/responses/{one.id}", headers={"authorization": f"Bearer {one.key}"}
            ) as response:
                found = await response.json()
            if response.status != 200 or found["status"] != "completed" or found["output"] != one.output:
                gone.append(f"{one.id} ({one.place}): {response.status} {json.dumps(found)[:200]}")

    await asyncio.gather(*(look() for _ in range(at_once)))
    return gone


# --- limits ---


@dataclass
class Limited:
    """A client that sends far more requests to every node than the limit of its key allows.

    In t minutes, the nodes together may allow at most rate × (t + 1) of these requests.
    """

    client: aiohttp.ClientSession
    nodes: Sequence[str]
    key: str
    rate: int
    each_s: float = 0.6
    at_once: int = 6
    allowed: int = 0
    refused: int = 0
    other: dict[str, int] = field(default_factory=dict)
    answered: dict[str, float] = field(default_factory=dict)
    """For each node, when the last request was sent that the node allowed or refused."""
    _began: float = 0.0
    _ended: float = 0.0
    _stopped: bool = False
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def start(self) -> None:
        """Uses up the allowance of a minute at once, then continues to send."""
        self._began = time.monotonic()
        await asyncio.gather(*(self._burst(node) for node in self.nodes for _ in range(self.at_once)))
        self._tasks = [
            asyncio.ensure_future(self._ask_on(node)) for node in self.nodes for _ in range(self.at_once)
        ]

    async def stop(self) -> None:
        self._stopped = True
        await asyncio.gather(*self._tasks)
        self._ended = time.monotonic()

    @property
    def due(self) -> float:
        return self.rate * (1 + (self._ended - self._began) / 60)

    async def _burst(self, node: str) -> None:
        while not self.refused and await self._ask(node) != "cut":
            pass

    async def _ask_on(self, node: str) -> None:
        while not self._stopped:
            due = time.monotonic() + self.each_s
            await self._ask(node)
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _ask(self, node: str) -> str:
        kind, sent = Kind("chat", "quick", stream=False), time.monotonic()
        outcome = await ask(
            self.client,
            node,
            self.key,
            kind,
            {"model": "quick", "messages": [{"role": "user", "content": "go"}]},
            "limited",
        )
        if outcome.how == "right":
            self.allowed += 1
        elif outcome.how == "429 rate_limit_exceeded":
            self.refused += 1
        else:
            self.other[outcome.how] = self.other.get(outcome.how, 0) + 1
            return outcome.how
        self.answered[node] = sent
        return outcome.how

    async def known_everywhere(self) -> None:
        """Waits until every node has allowed or refused a request that was sent after this call.

        A node that has just started does not know how much of its limit a key has used, until the node has
        asked Redis once. If Redis stops before that, the node allows its whole share again. That would be two
        faults at once, which this benchmark does not measure.
        """
        since = time.monotonic()
        while any(self.answered.get(node, 0.0) < since for node in self.nodes):
            await asyncio.sleep(0.05)

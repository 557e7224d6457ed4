"""Several nodes with a real PostgreSQL, Redis and nginx, while parts fail and recover.

If PostgreSQL is not installed, the nodes share an SQLite file.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import redis as redis_library

from doubles.nodes import Nginx, Node, RedisServer, missing
from doubles.postgres import binaries, shared
from toolwire.cli.main import build_parser
from toolwire.cluster.forward import HOP, call_ids
from toolwire.cluster.nodes import Nodes, Peer, check, node_address, worker_address
from toolwire.cluster.workers import MARGIN_S
from toolwire.conform.judge import fold, judge_sse
from toolwire.settings.load import load
from toolwire.settings.types import ConfigError, ServerSettings, Settings, StoreSettings, print_config

DEPLOY = Path(__file__).resolve().parents[2] / "docs" / "deploy"
KEYS = {name: {"authorization": f"Bearer {name}-key"} for name in ("one", "two")}
TOOLS = [
    {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
]
STEPS = "\n---\n".join(["call look {}"] * 4 + ["say all of it: {result}"])
MODELS = {
    "short": "call look {}\n---\nsay I saw {result}",
    "long": STEPS,
    "slow": 'call look {}\n---\nsay "it begins"\nhang',
    "late": "call look {}\n---\npause 3000ms\nsay I saw {result}",
    "worded": 'call look {}\n---\nsay "one "\npause 300ms\nsay "two "\npause 300ms\nsay three',
}


def settings(redis: RedisServer, store: str, **server: Any) -> str:
    lines = ["[server]", 'keys = ["one-key", "two-key"]', 'node_secret = "env:SECRET"']
    lines += [f"{name} = {json.dumps(value)}" for name, value in server.items()]
    lines += [
        "[store]",
        f"url = {json.dumps(store)}",
        f'redis = "{redis.url}"',
        "[journal]",
        'contents = "off"',
    ]
    for name, script in MODELS.items():
        lines += [
            f"[models.{name}]",
            'backend = "scripted"',
            'tools = "parked"',
            f"script = {json.dumps(script)}",
        ]
    return "\n".join(lines)


@dataclass
class Circle:
    """Two nodes that share a store and Redis."""

    redis: RedisServer
    nodes: list[Node]
    folder: Path
    store: str
    board: Any = field(init=False)

    def __post_init__(self) -> None:
        self.board = redis_library.Redis.from_url(self.redis.url)

    def waits(self, talk: Talk) -> bool:
        """Whether Redis has an entry for the run that waits for the last call of this conversation."""
        return bool(self.board.exists(f"toolwire:park:{talk.messages[-1]['tool_call_id']}"))

    def start(self) -> None:
        servers: list[RedisServer | Node] = [self.redis, *self.nodes]
        for server in servers:
            if server.process is None or server.process.poll() is not None:
                server.process = None
                server.start()

    def end(self) -> None:
        self.board.close()
        for server in (*self.nodes, self.redis):
            server.kill()


@pytest.fixture(scope="module")
def circle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Circle]:
    if lacking := missing():
        message = f"{', '.join(lacking)} is missing; make test installs it where it may"
        pytest.skip(message)
    folder, postgres = tmp_path_factory.mktemp("circle"), binaries()
    redis = RedisServer(folder)
    with ExitStack() as stack:
        store = (
            f"sqlite:///{folder / 'shared.db'}"
            if postgres is None
            else stack.enter_context(shared(postgres)).create()
        )
        text = settings(redis, store, drain_s=5)
        made = Circle(
            redis,
            [Node(folder / name, text, {"SECRET": "of the nodes"}) for name in ("first", "second")],
            folder,
            store,
        )
        try:
            made.start()
            yield made
        finally:
            made.end()


@pytest.fixture
def two(circle: Circle) -> Circle:
    """Both nodes and Redis, started again if the previous test stopped them."""
    circle.start()
    return circle


# --- a client ---


@dataclass
class Talk:
    """One chat completions conversation; each step may go to another node."""

    client: aiohttp.ClientSession
    model: str = "short"
    key: str = "one"
    stream: bool = True
    messages: list[dict[str, Any]] = field(default_factory=lambda: [{"role": "user", "content": "look"}])

    @asynccontextmanager
    async def sending(self, url: str) -> AsyncIterator[aiohttp.ClientResponse]:
        body = {"model": self.model, "messages": self.messages, "tools": TOOLS, "stream": self.stream}
        async with self.client.post(
            f"{url}/v1/chat/completions", json=body, headers=KEYS[self.key]
        ) as response:
            yield response

    async def step(self, url: str, result: str = "a duck") -> tuple[int, str, str]:
        """Sends the next request.

        Returns the status, the header `x-toolwire-turn`, and the text or error. If the answer is a call, the
        call and its result are added to the history, for the next step.
        """
        async with self.sending(url) as response:
            kind = response.headers.get("x-toolwire-turn", "")
            if response.status != 200:
                return response.status, kind, (await response.json())["error"]["message"]
            message = (
                folded(await response.text())
                if self.stream
                else (await response.json())["choices"][0]["message"]
            )
        if "error" in message:
            return 200, kind, "error: " + message["error"]
        if message.get("tool_calls"):
            self.messages += [
                message,
                *(
                    {"role": "tool", "tool_call_id": call["id"], "content": result}
                    for call in message["tool_calls"]
                ),
            ]
        return 200, kind, message.get("content") or ""


def folded(stream: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": []}
    done = False
    for line in stream.splitlines():
        if not line.startswith("data: "):
            continue
        done = done or line == "data: [DONE]"
        data = {} if done else json.loads(line.removeprefix("data: "))
        if "error" in data:
            return {"error": data["error"]["message"]}
        for choice in data.get("choices", ()):
            message["content"] += choice["delta"].get("content") or ""
            for call in choice["delta"].get("tool_calls") or ():
                if call.get("id"):
                    message["tool_calls"].append(
                        {
                            "id": call["id"],
                            "type": "function",
                            "function": {"name": call["function"]["name"], "arguments": ""},
                        }
                    )
                message["tool_calls"][-1]["function"]["arguments"] += call["function"].get("arguments") or ""
    return message if done else {"error": "the stream has no end"}


@asynccontextmanager
async def one_connection_per_request(**options: Any) -> AsyncIterator[aiohttp.ClientSession]:
    """Yields a client session. All of its sockets are closed when it ends.

    aiohttp does not wait until a connection is closed, and over TLS closing takes a round trip. The garbage
    collector would report the open socket during another test.
    """
    sockets: list[socket.socket] = []

    def make(address: Any) -> socket.socket:
        sockets.append(socket.socket(*address[:3]))
        return sockets[-1]

    connector = aiohttp.TCPConnector(force_close=True, ssl=False, socket_factory=make)
    async with aiohttp.ClientSession(connector=connector, **options) as session:
        yield session
    await until(lambda: all(one.fileno() == -1 for one in sockets), 60)


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with one_connection_per_request() as session:
        yield session


async def until(true: Callable[[], bool | Awaitable[bool]], within_s: float = 15.0) -> None:
    deadline = time.monotonic() + within_s
    while True:
        found = true()
        if found if isinstance(found, bool) else await found:
            return
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.05)


async def metric(client: aiohttp.ClientSession, node: Node, name: str) -> float:
    async with client.get(f"{node.url}/metrics", headers=KEYS["one"]) as response:
        lines = (await response.text()).splitlines()
    return sum(
        float(line.rpartition(" ")[2]) for line in lines if line.startswith(name) and not line.startswith("#")
    )


# --- forwarding ---


@pytest.mark.parametrize("stream", [True, False])
async def test_a_continuation_on_the_wrong_node_continues_the_run_of_its_owner(
    two: Circle, client: aiohttp.ClientSession, stream: bool
) -> None:
    first, second = two.nodes
    talk = Talk(client, stream=stream)
    before = await metric(client, second, 'toolwire_turns_passed_on_total{outcome="passed"}')
    assert await talk.step(first.url) == (200, "new", "")
    assert await talk.step(second.url) == (200, "resumed", "I saw a duck")
    assert await metric(client, second, 'toolwire_turns_passed_on_total{outcome="passed"}') == before + 1
    await until(lambda: not two.waits(talk))


async def test_every_step_of_a_loop_may_reach_any_node(two: Circle, client: aiohttp.ClientSession) -> None:
    talk, kinds = Talk(client, "long"), []
    for place in range(5):
        status, kind, text = await talk.step(two.nodes[place % 2].url, f"result {place}")
        kinds.append((status, kind))
    assert kinds == [(200, "new"), *[(200, "resumed")] * 4] and text == "all of it: result 3"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_responses_continuation_is_forwarded_by_its_call_id(
    two: Circle, client: aiohttp.ClientSession, stream: bool
) -> None:
    first, second = two.nodes
    tools = [
        {
            "type": "function",
            "name": "look",
            "parameters": {"type": "object", "properties": {}},
            "strict": False,
        }
    ]
    ask = {"model": "short", "tools": tools, "input": "look"}
    async with client.post(f"{first.url}/v1/responses", json=ask, headers=KEYS["one"]) as response:
        answer = await response.json()
    output = [
        {"type": "function_call_output", "call_id": answer["output"][-1]["call_id"], "output": "a heron"}
    ]
    more = {**ask, "previous_response_id": answer["id"], "input": output, "stream": stream}
    async with client.post(f"{second.url}/v1/responses", json=more, headers=KEYS["one"]) as response:
        assert (response.status, response.headers["x-toolwire-turn"]) == (200, "resumed")
        assert "I saw a heron" in await response.text()


async def test_a_stream_is_forwarded_as_it_is_written(two: Circle, client: aiohttp.ClientSession) -> None:
    first, second = two.nodes
    talk = Talk(client, "worded")
    await talk.step(first.url)
    came: dict[str, float] = {}
    async with talk.sending(second.url) as response:
        assert response.headers["x-toolwire-turn"] == "resumed"
        async for piece in response.content.iter_any():
            for word in ("one", "two", "three"):
                if f'"{word}'.encode() in piece:
                    came.setdefault(word, time.monotonic())
    assert came["two"] - came["one"] > 0.15 and came["three"] - came["two"] > 0.15


async def test_a_client_that_leaves_cancels_the_run_on_the_other_node(
    two: Circle, client: aiohttp.ClientSession
) -> None:
    first, second = two.nodes
    talk = Talk(client, "slow")
    await talk.step(first.url)
    before = await metric(client, first, "toolwire_requests_cancelled_total")
    async with talk.sending(second.url) as response:
        assert b"it begins" in await response.content.readuntil(b"it begins")

    async def cancelled() -> bool:
        return await metric(client, first, "toolwire_requests_cancelled_total") == before + 1

    await until(cancelled)
    assert (
        await metric(client, first, "toolwire_streams_open")
        == await metric(client, second, "toolwire_streams_open")
        == 0
    )


async def test_of_two_simultaneous_continuations_one_is_refused_whichever_nodes_they_reach(
    two: Circle, client: aiohttp.ClientSession
) -> None:
    first, second = two.nodes
    talk = Talk(client, "late", stream=False)
    await talk.step(first.url)
    again = Talk(client, "late", stream=False, messages=list(talk.messages))
    # Either request may be first.
    resumed, refused = sorted(await asyncio.gather(talk.step(first.url), again.step(second.url)))
    assert resumed == (200, "resumed", "I saw a duck")
    assert refused[0] == 409 and "is already continuing the run" in refused[2]


async def test_another_keys_run_is_not_found(two: Circle, client: aiohttp.ClientSession) -> None:
    first, second = two.nodes
    talk = Talk(client)
    await talk.step(first.url)
    thief = Talk(client, key="two", messages=list(talk.messages))
    assert await thief.step(second.url) == (200, "replayed", "I saw a duck")
    assert await talk.step(second.url) == (200, "resumed", "I saw a duck")


# --- who may forward ---


async def test_a_client_cannot_claim_to_be_a_node(two: Circle, client: aiohttp.ClientSession) -> None:
    talk = Talk(client)
    for seal in ("node_1;http;127.0.0.1;" + "0" * 64, "", ";;;", "ä"):
        body = {"model": "short", "messages": talk.messages}
        headers = {**KEYS["one"], HOP.decode(): seal}
        async with client.post(
            f"{two.nodes[0].url}/v1/chat/completions", json=body, headers=headers
        ) as response:
            assert response.status == 403 and (await response.json())["error"]["code"] == "permission_denied"


async def test_a_run_that_its_owner_no_longer_holds_is_replayed(
    two: Circle, client: aiohttp.ClientSession
) -> None:
    first, second = two.nodes
    talk = Talk(client)
    await talk.step(first.url)
    call = talk.messages[-1]["tool_call_id"]
    row = two.board.get(f"toolwire:park:{call}")
    assert await talk.step(first.url) == (200, "resumed", "I saw a duck")
    await until(lambda: not two.waits(talk))
    two.board.set(f"toolwire:park:{call}", row, ex=60)  # an outdated entry
    again = Talk(client, messages=talk.messages)
    before = await metric(client, second, 'toolwire_turns_passed_on_total{outcome="refused"}')
    assert await again.step(second.url) == (200, "replayed", "I saw a duck")
    assert await metric(client, second, 'toolwire_turns_passed_on_total{outcome="refused"}') == before + 1


async def test_entries_without_a_nodes_signature_are_ignored(
    two: Circle, client: aiohttp.ClientSession
) -> None:
    """An attacker who can write to Redis cannot redirect clients' requests, and their keys."""
    reached: list[bytes] = []

    async def trap(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append(await reader.read(1))
        writer.close()

    server = await asyncio.start_server(trap, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    talk = Talk(client)
    await talk.step(two.nodes[0].url)
    call, forged = talk.messages[-1]["tool_call_id"], "0" * 64
    true = json.loads(two.board.get(f"toolwire:park:{call}"))
    two.board.set("toolwire:node:evil", json.dumps([address, forged]))
    for row in (["evil", true[1], true[2]], ["evil", true[1], forged]):
        two.board.set(f"toolwire:park:{call}", json.dumps(row))
        assert (await Talk(client, messages=list(talk.messages)).step(two.nodes[1].url))[1] == "replayed"
    two.board.set(f"toolwire:park:{call}", json.dumps(true))
    two.board.set(f"toolwire:node:{true[0]}", json.dumps([address, forged]), ex=60)
    assert (await Talk(client, messages=list(talk.messages)).step(two.nodes[1].url))[1] == "replayed"
    server.close()
    two.board.delete("toolwire:node:evil", f"toolwire:park:{call}", f"toolwire:node:{true[0]}")
    assert reached == []


async def test_nodes_with_different_secrets_replay_each_others_runs(
    two: Circle, client: aiohttp.ClientSession
) -> None:
    stranger = Node(two.folder / "stranger", settings(two.redis, two.store), {"SECRET": "another one"})
    try:
        stranger.start()
        talk = Talk(client)
        await talk.step(two.nodes[0].url)
        assert await talk.step(stranger.url) == (200, "replayed", "I saw a duck")
    finally:
        stranger.kill()


# --- faults ---


async def test_a_killed_owners_run_is_replayed_at_once(two: Circle, client: aiohttp.ClientSession) -> None:
    first, second = two.nodes
    talks = [Talk(client, stream=stream) for stream in (True, False, True)]
    for talk in talks:
        await talk.step(first.url)
    first.kill()
    began = time.monotonic()
    assert [await talk.step(second.url) for talk in talks] == [(200, "replayed", "I saw a duck")] * 3
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_an_owner_that_dies_within_a_stream_leaves_one_clear_error(
    two: Circle, client: aiohttp.ClientSession, api: str
) -> None:
    first, second = two.nodes
    if api == "chat":
        talk = Talk(client, "slow")
        await talk.step(first.url)
        async with talk.sending(second.url) as response:
            await response.content.readuntil(b"it begins")
            first.kill()
            rest = (await response.content.read()).decode()
        last = rest.strip().split("\n\n")[-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "stream_interrupted"
        return
    tools = [
        {
            "type": "function",
            "name": "look",
            "parameters": {"type": "object", "properties": {}},
            "strict": False,
        }
    ]
    ask = {"model": "slow", "tools": tools, "input": "look"}
    async with client.post(f"{first.url}/v1/responses", json=ask, headers=KEYS["one"]) as response:
        answer = await response.json()
    output = [
        {"type": "function_call_output", "call_id": answer["output"][-1]["call_id"], "output": "a heron"}
    ]
    more = {**ask, "previous_response_id": answer["id"], "input": output, "stream": True}
    async with client.post(f"{second.url}/v1/responses", json=more, headers=KEYS["one"]) as response:
        begun = await response.content.readuntil(b"it begins")
        begun += await response.content.readuntil(b"\n\n")
        first.kill()
        whole = begun + await response.content.read()
    assert judge_sse(whole, "responses") == []
    folded = fold(whole, "responses")
    assert (
        folded["status"] == "failed"
        and folded["id"].startswith("resp_")
        and folded["output"][0]["content"][0]["text"] == "it begins"
    )


async def test_a_draining_node_first_removes_itself_and_its_parks_from_redis(
    two: Circle, client: aiohttp.ClientSession
) -> None:
    first, second = two.nodes
    talk = Talk(client)
    await talk.step(first.url)
    assert two.waits(talk)
    owner = json.loads(two.board.get(f"toolwire:park:{talk.messages[-1]['tool_call_id']}"))[0]
    assert two.board.exists(f"toolwire:node:{owner}")
    assert first.end() == 0
    assert not two.waits(talk) and not two.board.exists(f"toolwire:node:{owner}")
    assert await talk.step(second.url) == (200, "replayed", "I saw a duck")


async def test_without_redis_own_parks_continue_others_replay_and_nodes_reconnect(
    two: Circle, client: aiohttp.ClientSession
) -> None:
    first, second = two.nodes
    two.redis.kill()
    own, foreign, kept = Talk(client), Talk(client), Talk(client)
    for talk in (own, foreign, kept):
        assert await talk.step(first.url) == (200, "new", "")
    assert await own.step(first.url) == (200, "resumed", "I saw a duck")
    began = time.monotonic()
    assert await foreign.step(second.url) == (200, "replayed", "I saw a duck")
    assert time.monotonic() - began < 5
    two.redis.start()  # it has lost its data
    await until(lambda: two.waits(kept) and len(list(two.board.scan_iter("toolwire:node:*"))) == 2)
    assert await kept.step(second.url) == (200, "resumed", "I saw a duck")


async def test_a_redis_that_hangs_delays_one_request_only(two: Circle, client: aiohttp.ClientSession) -> None:
    first, second = two.nodes
    os.kill(two.redis.pid, signal.SIGSTOP)
    try:
        times = []
        for _ in range(4):
            began = time.monotonic()
            talk = Talk(client)
            await talk.step(first.url)
            assert (await talk.step(first.url))[1:] == ("resumed", "I saw a duck")
            times.append(time.monotonic() - began)
        assert times[0] < 5 and max(times[1:]) < 1.5, times
    finally:
        os.kill(two.redis.pid, signal.SIGCONT)

    async def passed_on() -> bool:
        talk = Talk(client)
        await talk.step(first.url)
        return (await talk.step(second.url))[1] == "resumed"

    await until(passed_on)


# --- behind nginx ---


@pytest.fixture
def balanced(two: Circle, tmp_path: Path) -> Iterator[Nginx]:
    nginx = Nginx(tmp_path / "nginx", DEPLOY / "nginx.conf", [node.port for node in two.nodes])
    try:
        yield nginx.start()
    finally:
        nginx.end()


async def converse(url: str, stream: bool, ends: list[str], kinds: list[str]) -> None:
    """Runs five steps of a conversation. Adds its end to `ends`: `right`, or what was wrong."""
    async with one_connection_per_request(timeout=aiohttp.ClientTimeout(total=60)) as client:
        talk = Talk(client, "long", stream=stream)
        for place in range(5):
            try:
                status, kind, text = await talk.step(url, f"result {place}")
            except (aiohttp.ClientError, ConnectionError, ssl.SSLError) as error:
                ends.append(f"cut: {type(error).__name__}")
                return
            if status != 200 or text.startswith("error: "):
                ends.append(f"error: {status} {text}")
                return
            kinds.append(kind)
        ends.append("right" if text == "all of it: result 3" else f"wrong: {text}")


async def test_loops_behind_nginx_succeed_while_parts_fail_and_recover(
    two: Circle, balanced: Nginx, client: aiohttp.ClientSession
) -> None:
    """The steps of a conversation may reach either node.

    Only streams of a killed node may be cut.
    """
    first, _ = two.nodes
    calm: list[str] = []
    kinds: list[str] = []
    await asyncio.gather(*(converse(balanced.url, bool(place % 2), calm, kinds) for place in range(12)))
    assert calm == ["right"] * 12 and kinds.count("resumed") == 48, (calm, kinds)
    passed = sum(
        [await metric(client, node, 'toolwire_turns_passed_on_total{outcome="passed"}') for node in two.nodes]
    )
    assert passed > 0

    ends: list[str] = []
    stop = asyncio.Event()

    async def keep_talking(place: int) -> None:
        while not stop.is_set():
            await converse(balanced.url, bool(place % 2), ends, kinds)

    async def more(count: int) -> None:
        target = len(ends) + count
        await until(lambda: len(ends) >= target, 60)

    talkers = [asyncio.ensure_future(keep_talking(place)) for place in range(8)]
    try:
        await more(8)
        balanced.reload()
        await more(8)
        first.kill()
        await more(8)
        await asyncio.to_thread(first.start)
        await more(8)
        two.redis.kill()
        await more(8)
        await asyncio.to_thread(two.redis.start)
        await more(8)
        ended = asyncio.ensure_future(asyncio.to_thread(first.end))  # drains and restarts
        await more(8)
        assert await ended == 0
        await asyncio.to_thread(first.start)
        await more(8)
    finally:
        stop.set()
        await asyncio.gather(*talkers)
    wrong = [end for end in ends if end != "right"]
    print(
        f"{len(ends)} loops while parts died and came back, {len(wrong)} of them cut: {wrong}; "
        f"{kinds.count('resumed')} turns resumed"
    )
    assert not [end for end in wrong if end.startswith("wrong")], wrong
    assert len(wrong) <= 8, wrong  # only streams of the killed node

    again: list[str] = []
    after: list[str] = []
    await asyncio.gather(*(converse(balanced.url, bool(place % 2), again, after) for place in range(12)))
    assert again == ["right"] * 12 and after.count("resumed") == 48, "it is as it was, without anybody's help"


async def test_nginx_answers_in_json_if_no_node_is_up(
    two: Circle, balanced: Nginx, client: aiohttp.ClientSession
) -> None:
    for node in two.nodes:
        node.kill()
    status, _, message = await Talk(client, stream=False).step(balanced.url)
    assert status == 503 and "Send the request again" in message
    async with client.get(f"{balanced.url}/metrics") as response:
        assert response.status == 404 and "error" in await response.json()


# --- the files in docs/deploy ---


def test_the_shipped_settings_load_and_work_for_several_nodes() -> None:
    environ = {
        name: f"{name}-value" for name in ("TOOLWIRE_API_KEY", "TOOLWIRE_ADMIN_KEY", "TOOLWIRE_NODE_SECRET")
    }
    environ |= {
        "TOOLWIRE_DATABASE": "postgresql://10.0.0.20/toolwire",
        "TOOLWIRE_REDIS": "redis://10.0.0.21:6379/0",
    }
    loaded = load(str(DEPLOY / "toolwire.toml"), environ, {})
    check(loaded)
    assert node_address(loaded, loaded.server.port) == "http://10.0.0.11:8788"
    assert "TOOLWIRE_NODE_SECRET-value" not in print_config(loaded)


def test_systemd_accepts_the_shipped_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "toolwire.service").read_text()
    words = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    defaults = ServerSettings()
    assert float(words["TimeoutStopSec"]) > defaults.drain_s + MARGIN_S, "it would be killed while it drains"
    assert (
        build_parser("serve").parse_args(words["ExecStart"].split()[1:]).config
        == "/etc/toolwire/toolwire.toml"
    )
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is missing: the unit was read, and not judged by systemd itself")
    unit = tmp_path / "toolwire.service"
    unit.write_text(
        text.replace("/opt/toolwire/bin/toolwire", sys.executable).replace(
            "User=toolwire\nGroup=toolwire\n", ""
        )
    )
    done = subprocess.run(
        [program, "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60
    )
    assert not [line for line in done.stderr.splitlines() if "toolwire.service" in line], done.stderr


# --- settings ---


def test_nodes_on_several_machines_need_a_secret_and_those_of_one_machine_create_one() -> None:
    store = StoreSettings(redis="redis://127.0.0.1:1/0")
    check(Settings(store=store))
    check(Settings(server=ServerSettings(host="10.0.0.1", node_secret="s"), store=store))
    for server in (
        ServerSettings(host="10.0.0.1"),
        ServerSettings(host="0.0.0.0"),
        ServerSettings(advertise="10.0.0.1:8788"),
    ):
        with pytest.raises(ConfigError, match=r"^server\.node_secret: [^\n]+$"):
            check(Settings(server=server, store=store))


async def test_nodes_without_a_secret_keep_one_in_redis_also_after_it_lost_its_data(two: Circle) -> None:
    two.board.delete("toolwire:secret")
    one, other = (Nodes(two.redis.url, f"http://127.0.0.1:{port}") for port in (1, 2))
    try:
        await one.start()
        await other.start()
        await one.announce(["call_1"], "key", 60)
        assert await other.owner(["call_0", "call_1"], "key") == Peer(one.id, "http://127.0.0.1:1")
        assert (
            await other.owner(["call_1"], "another key") is None
            and await one.owner(["call_1"], "key") is None
        )
        agreed = two.board.get("toolwire:secret")
        two.board.delete("toolwire:secret")
        await other._beat()
        assert two.board.get("toolwire:secret") == agreed
        other.shun(Peer(one.id, one.address))
        assert await other.owner(["call_1"], "key") is None
    finally:
        await one.close()
        await other.close()
        two.board.delete("toolwire:secret")


def test_a_nodes_address_is_the_advertised_one_or_the_one_it_listens_on() -> None:
    def address(**server: Any) -> str:
        return node_address(
            Settings(server=ServerSettings(**server), store=StoreSettings(redis="redis://127.0.0.1:6379/0")),
            9000,
        )

    assert address() == "http://127.0.0.1:9000"
    assert address(host="0.0.0.0") == "http://127.0.0.1:9000"  # the address that reaches Redis
    assert address(host="::1") == "http://[::1]:9000"
    assert address(advertise="node-1.local:80") == "http://node-1.local:80"
    assert address(advertise="https://node-1.local") == "https://node-1.local:443"
    assert worker_address(ServerSettings(workers=3), 2) == ("127.0.0.1", 0)
    assert worker_address(ServerSettings(host="0.0.0.0", advertise="10.0.0.1:8788", workers=3), 2) == (
        "0.0.0.0",
        8791,
    )


def test_call_ids_are_read_from_results_and_never_from_message_text() -> None:
    said = json.dumps({"tool_call_id": "call_said", "call_id": "fc_said"})
    chat = {
        "messages": [
            {"role": "user", "content": said},
            {"role": "tool", "tool_call_id": "call_1", "content": said},
        ]
    }
    assert call_ids(json.dumps(chat).encode()) == ["call_1"]
    responses = {
        "input": [{"type": "function_call_output", "call_id": "call_2", "output": said}, {"call_id": 'a"b'}]
    }
    assert call_ids(json.dumps(responses, indent=1).encode()) == ["call_2"]
    assert call_ids(b"\xff not JSON") == []

"""Several worker processes on one port act like several nodes.

A parent process restarts workers that have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from doubles.nodes import Node, RedisServer, missing
from toolwire.access.keys import KeyRecords
from toolwire.cluster.forward import merged
from toolwire.store.store import Store

TOOLS = [
    {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
]
KEY = {"authorization": "Bearer a-key"}
SETTINGS = """
[server]
workers = 3
keys = ["a-key"]
drain_s = 5
[store]
url = "sqlite:///{folder}/shared.db"
redis = "{redis}"
[models.m]
backend = "scripted"
tools = "parked"
script = '''
call look {{}}
---
say I saw {{result}}
'''
[models.slow]
backend = "scripted"
script = '''
say it begins
pause 1s
say it ends
'''
"""


class Workers(Node):
    """A node with workers. It is started once for all tests of this file that do not stop it."""

    def children(self) -> list[int]:
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    if lacking := missing():
        message = f"{', '.join(lacking)} is missing; make test installs it where it may"
        pytest.skip(message)
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    try:
        yield server.start()
    finally:
        server.kill()


@pytest.fixture(scope="module")
def workers(redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    folder = tmp_path_factory.mktemp("workers")
    node = Workers(folder, SETTINGS.format(folder=folder, redis=redis.url))
    node.start()
    try:
        yield node
    finally:
        node.end()


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    """Yields a session with a new connection for each request, so that any worker may answer."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(force_close=True), headers=KEY
    ) as session:
        yield session


async def until(true: Callable[[], bool], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.05)


async def loop(client: aiohttp.ClientSession, url: str) -> str:
    """Runs a call and its result and checks the answer.

    Returns the second turn's header `x-toolwire-turn`.
    """
    messages: list[dict[str, Any]] = [{"role": "user", "content": "look"}]
    body = {"model": "m", "messages": messages, "tools": TOOLS}
    async with client.post(f"{url}/v1/chat/completions", json=body) as response:
        said = (await response.json())["choices"][0]["message"]
    messages += [said, {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "a duck"}]
    async with client.post(f"{url}/v1/chat/completions", json=body) as response:
        assert (await response.json())["choices"][0]["message"]["content"] == "I saw a duck"
        return response.headers["x-toolwire-turn"]


async def workers_that_served(client: aiohttp.ClientSession, url: str) -> set[str]:
    async with client.get(f"{url}/metrics") as response:
        lines = (await response.text()).splitlines()
    served = (
        line for line in lines if line.startswith("toolwire_requests_total{") and not line.endswith(" 0.0")
    )
    return {match[1] for line in served if (match := re.search(r'worker="(\d+)"', line))}


async def test_a_loop_resumes_whichever_workers_its_requests_reach(
    workers: Workers, client: aiohttp.ClientSession
) -> None:
    kinds: list[str] = []
    while len(await workers_that_served(client, workers.url)) < 2 and len(kinds) < 400:
        kinds += await asyncio.gather(*(loop(client, workers.url) for _ in range(20)))
    assert set(kinds) == {"resumed"} and len(kinds) < 400, len(kinds)


async def test_workers_print_one_line_and_one_link_that_works_once(workers: Workers) -> None:
    assert re.fullmatch(rf"listening on http://127\.0\.0\.1:{workers.port}/v1\n", workers.said)
    links = re.findall(r"http://\S+/ui/enter\?token=\S+", workers.log.read_text())
    assert len(links) == 1
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.CookieJar(unsafe=True)
    ) as browser:
        async with browser.get(links[0], allow_redirects=False) as response:
            home, _, key = response.headers["location"].partition("#page=")
            assert (response.status, home) == (303, "/")
        browser.headers["x-toolwire-page"] = key
        for _ in range(12):  # every worker accepts the session and serves the same pages
            async with browser.get(f"{workers.url}/ui/api/session") as response:
                assert response.status == 200
                page = await response.json()
        boots = set()
        for _ in range(12):
            async with browser.get(f"{workers.url}/ui/api/session") as response:
                boots.add((await response.json())["boot"])
        assert boots == {page["boot"]}
        async with browser.get(f"{workers.url}/ui/api/events") as events:
            assert (await events.content.readline()).startswith(b"retry:")
    async with aiohttp.ClientSession() as stranger, stranger.get(links[0], allow_redirects=False) as response:
        assert response.headers["location"] == "/?link=used"


async def test_metrics_include_every_worker(workers: Workers, client: aiohttp.ClientSession) -> None:
    async with client.get(f"{workers.url}/metrics") as response:
        page = await response.text()
    assert {match[1] for match in re.finditer(r'process_resident_memory_bytes\{worker="(\d)"\}', page)} == {
        "0",
        "1",
        "2",
    }
    assert page.count("# TYPE process_resident_memory_bytes gauge") == 1
    async with aiohttp.ClientSession() as nobody, nobody.get(f"{workers.url}/metrics") as response:
        assert response.status == 401


async def test_workers_together_serve_exactly_a_key_s_budget(workers: Workers) -> None:
    store = Store(f"sqlite:///{workers._folder}/shared.db")
    try:
        _, key = await KeyRecords(store).add("budgeted", {}, {"budget_requests": 4})
    finally:
        await store.close()
    asks = {"model": "slow", "messages": [{"role": "user", "content": "hi"}]}
    headers = {"authorization": f"Bearer {key}"}

    async def status(session: aiohttp.ClientSession) -> tuple[int, str]:
        url = f"{workers.url}/v1/chat/completions"
        async with session.post(url, json=asks, headers=headers) as answer:
            code = (await answer.json()).get("error", {}).get("code", "")
        if answer.status == 503:  # this worker could not read the new key yet, and says: try again
            return await status(session)
        return answer.status, code

    async def knows(session: aiohttp.ClientSession) -> bool:
        async with session.get(f"{workers.url}/v1/models", headers=headers) as answer:
            return answer.status == 200

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as session:
        # Wait until every worker has read the new key. Requests are sent at the same time, because all
        # requests in a sequence could reach the same worker.
        async with asyncio.timeout(20):
            while not all(await asyncio.gather(*(knows(session) for _ in range(90)))):
                pass
        statuses = [status for status, _ in await asyncio.gather(*(status(session) for _ in range(90)))]
        assert sorted(set(statuses)) == [200, 429] and statuses.count(200) == 4
        async with asyncio.timeout(20):  # the last turn is charged shortly after its response
            while await status(session) == (429, "rate_limit_exceeded"):
                pass
        assert [await status(session) for _ in range(6)] == [(429, "insufficient_quota")] * 6


async def test_a_killed_worker_is_restarted(workers: Workers, client: aiohttp.ClientSession) -> None:
    before = workers.children()
    assert len(before) == 3
    os.kill(before[1], signal.SIGKILL)
    kinds = await asyncio.gather(*(loop(client, workers.url) for _ in range(10)))
    assert set(kinds) <= {"resumed", "replayed"}
    await until(lambda: len(now := workers.children()) == 3 and before[1] not in now)
    await until(lambda: "was ended by signal 9; it restarts" in workers.log.read_text())
    assert workers.log.read_text().count("works once") == 1


async def test_sigterm_drains_all_workers(
    redis: RedisServer, tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    node = Workers(tmp_path, SETTINGS.format(folder=tmp_path, redis=redis.url))
    node.start()
    try:
        children = node.children()
        body = {"model": "slow", "messages": [{"role": "user", "content": "go"}], "stream": True}
        async with contextlib.AsyncExitStack() as stack:
            streams = [
                await stack.enter_async_context(client.post(f"{node.url}/v1/chat/completions", json=body))
                for _ in range(6)
            ]
            ending = asyncio.ensure_future(asyncio.to_thread(node.end))
            whole = [(await stream.read()).decode() for stream in streams]
        assert all("it ends" in one and one.endswith("data: [DONE]\n\n") for one in whole)
        assert await ending == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in children)
    finally:
        node.kill()


async def test_workers_do_not_outlive_their_parent(redis: RedisServer, tmp_path: Path) -> None:
    node = Workers(tmp_path, SETTINGS.format(folder=tmp_path, redis=redis.url))
    node.start()
    children = node.children()
    node.kill()
    await until(lambda: not any(_alive(pid) for pid in children))


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"TOOLWIRE_STORE__REDIS": ""},
            r"toolwire: server\.workers: several workers find each other through Redis; set "
            r"store\.redis[^\n]+\n",
        ),
        (
            {"TOOLWIRE_STORE__URL": "sqlite://"},
            r"toolwire: server\.workers: several workers need a store that they share[^\n]+\n",
        ),
        (
            {"TOOLWIRE_STORE__URL": "sqlite:////dev/null/no.db"},
            r"toolwire: store /dev/null/no\.db: cannot be opened[^\n]+\n",
        ),
        (
            {"TOOLWIRE_SERVER__HOST": "0.0.0.0", "TOOLWIRE_SERVER__ADVERTISE": "10.0.0.1:80"},
            r"toolwire: server\.node_secret: [^\n]+\n",
        ),
    ],
)
def test_an_impossible_configuration_is_a_one_line_error(
    tmp_path: Path, changes: dict[str, str], said: str
) -> None:
    (tmp_path / "toolwire.toml").write_text(SETTINGS.format(folder=tmp_path, redis="redis://127.0.0.1:1/0"))
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("TOOLWIRE_", "PROXY_"))
    }
    command = [sys.executable, "-m", "toolwire", "serve", "--port", "0"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**inherited, **changes}, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "") and re.fullmatch(said, done.stderr), done.stderr


def test_metrics_pages_are_merged_with_each_family_once() -> None:
    page = (
        '# HELP a_total Things.\n# TYPE a_total counter\na_total{{model="x y"}} {n}\n# HELP b B.\n'
        "# TYPE b gauge\nb {n}\n"
    )
    lines = merged({0: page.format(n=1.0), 2: page.format(n=2.0)}).splitlines()
    assert lines == [
        "# HELP a_total Things.",
        "# TYPE a_total counter",
        'a_total{model="x y",worker="0"} 1.0',
        'a_total{model="x y",worker="2"} 2.0',
        "# HELP b B.",
        "# TYPE b gauge",
        'b{worker="0"} 1.0',
        'b{worker="2"} 2.0',
    ]

"""`toolwire open` against a server of its own process: new links, records, and servers that are gone."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import stat
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from doubles.home import DEMO, Home
from doubles.nodes import RedisServer
from toolwire.store.store import Store
from toolwire.surfaces.web.sessions import OPEN, Sessions

pytestmark = pytest.mark.process


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def busy_port() -> Iterator[int]:
    """A port on which another program listens and answers nothing that Toolwire would answer."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


def enter(link: str) -> tuple[str, str]:
    """Follows a one-time link. Returns where it leads, and the cookie."""
    try:
        urllib.request.build_opener(_Stay()).open(link, timeout=20)
    except urllib.error.HTTPError as answer:
        with answer:
            return answer.headers["location"], answer.headers.get("set-cookie", "")
    raise AssertionError("no redirect")


def test_open_prints_a_new_link_each_time_and_each_works_once(home: Home) -> None:
    with home.serving() as (url, _):
        links = [home.run("open", "--print").stdout.strip() for _ in range(2)]
        assert len(set(links)) == 2 and all(re.match(f"{url}/ui/enter\\?token=", link) for link in links)
        for link in links:
            assert enter(link)[0].startswith("/#page=")
            assert enter(link)[0] == "/?link=used"


def test_a_session_from_open_is_marked_and_passes_the_mark_on(home: Home) -> None:
    with home.serving() as (url, child):
        assert child.stderr is not None
        printed = re.search(r"http\S+token=\S+", child.stderr.readline())
        assert printed is not None
        tokens = {}
        for name, link in {"printed": printed[0], "open": home.run("open", "--print").stdout.strip()}.items():
            where, cookie = enter(link)
            tokens[name] = re.findall(r"=([^;]+)", cookie)[0]
            if name == "open":
                request = urllib.request.Request(
                    f"{url}/ui/api/session/link",
                    b"{}",
                    {"cookie": cookie.partition(";")[0], "x-toolwire-page": where.removeprefix("/#page=")},
                )
                with urllib.request.urlopen(request, timeout=20) as answer:
                    tokens["child"] = re.findall(r"=([^;]+)", enter(json.load(answer)["url"])[1])[0]

    async def origins() -> dict[str, str]:
        async with Store(f"sqlite:///{home.data}/toolwire.db") as store:
            sessions = Sessions(store)
            return {name: await sessions.origin(token) for name, token in tokens.items()}

    assert asyncio.run(origins()) == {"printed": "link", "open": OPEN, "child": OPEN}


def test_the_record_is_private_and_removed_at_the_end(home: Home) -> None:
    with home.serving() as (url, child):
        (record,) = home.records()
        assert stat.S_IMODE(record.stat().st_mode) == 0o600
        assert stat.S_IMODE(record.parent.stat().st_mode) == 0o700
        value = json.loads(record.read_text())
        assert (value["pid"], value["url"]) == (child.pid, url)
        assert time.time() - 120 < value["started"] < time.time() + 1 and len(value["secret"]) > 40
    assert home.records() == []


def test_workers_have_one_record_and_open_works(home: Home, redis: RedisServer) -> None:
    home.settings(f'[server]\nworkers = 2\n[store]\nredis = "{redis.url}"\n{DEMO}')
    with home.serving() as (_, child):
        (record,) = home.records()
        assert json.loads(record.read_text())["pid"] == child.pid
        for _ in range(4):  # each worker is reached
            assert enter(home.run("open", "--print").stdout.strip())[0].startswith("/#page=")
    assert home.records() == []


def test_of_several_servers_one_is_chosen_by_its_port(home: Home) -> None:
    with home.serving() as (first, _), home.serving() as (second, _):
        assert len(home.records()) == 2
        for url in (first, second):
            done = home.run("open", "--print", "--port", url.rpartition(":")[2])
            assert done.stdout.startswith(url)
        assert home.run("open", "--print").stdout.startswith(second)  # the newest


def test_without_a_server_one_line_says_how_to_start_one(home: Home) -> None:
    for arguments in ((), ("--port", "9")):
        done = home.run("open", *arguments)
        assert (done.returncode, done.stdout) == (2, "") and done.stderr.count("\n") == 1
        assert "toolwire serve" in done.stderr


def test_a_killed_server_leaves_a_record_that_is_ignored_and_replaced(home: Home) -> None:
    with home.serving() as (_, child):
        child.send_signal(signal.SIGKILL)
        child.wait(20)
    (left,) = home.records()
    assert home.run("open").returncode == 2
    with home.serving() as (url, _):
        assert left not in home.records()
        assert home.run("open", "--print").stdout.startswith(url)


def test_another_program_on_the_port_of_a_record_is_not_taken_for_the_server(
    home: Home, busy_port: int
) -> None:
    """The process of the record exists, and something accepts connections on its port."""
    url = f"http://127.0.0.1:{busy_port}"
    home.write_record("1.json", pid=os.getpid(), url=url, started=1.0, secret="x", temporary=False)
    done = home.run("open")
    assert done.returncode == 2 and "toolwire serve" in done.stderr


def test_another_server_on_the_port_of_a_record_is_not_taken_for_it(home: Home) -> None:
    with home.serving() as (url, child):
        (record,) = home.records()
        record.unlink()
        home.write_record("1.json", pid=child.pid, url=url, started=1.0, secret="x", temporary=False)
        assert home.run("open").returncode == 2


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, '{"pid": -1, "url": "x"}', '{"pid": "a"}'])
def test_a_damaged_record_is_ignored(home: Home, text: str) -> None:
    with home.serving() as (url, _):
        (home.data / "running/1.json").write_text(text)
        assert home.run("open", "--print").stdout.startswith(url)


def test_the_server_refuses_a_command_that_does_not_know_the_secret(home: Home) -> None:
    with home.serving() as (url, _):
        for body in (
            {"nonce": "n", "proof": "0" * 64, "link": True},
            {"nonce": "n", "proof": "", "link": True},
            {"nonce": "\ud800", "proof": "\ud800", "link": True},
            {"nonce": 1, "proof": "x"},
            {},
        ):
            request = urllib.request.Request(
                f"{url}/ui/api/session/open", json.dumps(body).encode(), {"content-type": "application/json"}
            )
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=20)
            with refused.value:
                assert refused.value.code in (400, 401) and b"token=" not in refused.value.read()


def test_a_server_that_cannot_write_its_record_still_serves(home: Home) -> None:
    (home.data).mkdir(parents=True)
    (home.data / "running").write_text("no folder")
    with home.serving() as (url, _):
        with urllib.request.urlopen(f"{url}/v1/models", timeout=20) as answer:
            assert json.load(answer)["data"][0]["id"] == "demo"


def test_open_starts_the_browser_and_prints_the_link_if_there_is_none(home: Home) -> None:
    seen = home.path / "seen"
    browser = home.path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {seen}\n')
    browser.chmod(0o755)
    with home.serving() as (url, _):
        assert home.run("open").stdout.startswith(f"{url}/ui/enter?token=")
        home.variables["BROWSER"] = f"{browser} %s"
        done = home.run("open")
        assert (done.returncode, done.stdout) == (0, "") and url in done.stderr and "token" not in done.stderr
        assert enter(seen.read_text())[0].startswith("/#page=")


# --- the port is in use ---


def test_a_port_of_another_toolwire_is_named_as_such(home: Home) -> None:
    with home.serving() as (url, child):
        port = url.rpartition(":")[2]
        done = home.run("serve", "--port", port)
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        assert f"another Toolwire (process {child.pid})" in done.stderr and "toolwire open" in done.stderr
        home.records()[0].unlink()  # as with a server of another user
        assert "in use by another Toolwire;" in home.run("serve", "--port", port).stderr


def test_a_port_of_another_program_is_named_as_such(home: Home, busy_port: int) -> None:
    done = home.run("serve", "--port", str(busy_port))
    assert done.returncode == 2 and "in use by another program" in done.stderr

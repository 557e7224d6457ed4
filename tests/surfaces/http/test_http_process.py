"""The serving process: its startup line, port, signals and exit status."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

SLOW_SERVER = """
import asyncio, sys
from toolwire.settings.types import ModelSettings, ServerSettings, Settings, StoreSettings
from toolwire.gateway.pipeline import Answer, Gateway
from toolwire.surfaces.http.server import serve

class Slow(Gateway):
    def __init__(self, settings, store): super().__init__(settings, store=store)
    async def close(self):
        await super().close()
        print("gateway closed", flush=True)
    async def respond(self, api, raw, caller, on_slow=None):
        async def blocks():
            yield b"data: first\\n\\n"
            await asyncio.sleep(float(sys.argv[2]))
            yield b"data: last\\n\\n"
        return Answer([(b"content-type", b"text/event-stream; charset=utf-8")], stream=blocks())

server = ServerSettings(port=0, drain_s=float(sys.argv[1]))
models = (ModelSettings("demo", "scripted"),)
sys.exit(serve(Settings(server=server, store=StoreSettings("sqlite://"), models=models), Slow))
"""


@contextlib.contextmanager
def process(*arguments: str, cwd: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TOOLWIRE_", "PROXY_")) and name != "PORT"
    }
    environment = {**inherited, "TOOLWIRE_STORE__URL": "sqlite://", "HOME": str(cwd), **environment}
    child = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=environment,
        bufsize=1,
    )
    try:
        yield child
    finally:
        if child.poll() is None:
            child.kill()
        child.communicate()


def ready_port(child: subprocess.Popen[str]) -> int:
    assert child.stdout is not None
    assert select.select([child.stdout], [], [], 20)[0], "the ready line did not come"
    line = child.stdout.readline()
    assert line.startswith("listening on http://127.0.0.1:") and line.endswith("/v1\n"), line
    return int(line.removeprefix("listening on http://127.0.0.1:").removesuffix("/v1\n"))


def open_stream(port: int) -> socket.socket:
    """Starts a turn and returns after its first block."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    connection.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"
    )
    received = b""
    while b"data: first" not in received:
        received += connection.recv(65536)
    return connection


def read_all(connection: socket.socket) -> bytes:
    received = b""
    while piece := connection.recv(65536):
        received += piece
    return received


def test_serve_prints_one_line_when_ready_and_exits_with_0_on_sigterm(tmp_path: Path) -> None:
    (tmp_path / "toolwire.toml").write_text('[models.demo]\nbackend = "scripted"\n')
    with process("-m", "toolwire", "serve", "--port", "0", cwd=tmp_path) as child:
        port = ready_port(child)
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert b'"id":"demo"' in read_all(connection)
        child.send_signal(signal.SIGTERM)
        rest, errors = child.communicate(timeout=20)
        assert (child.returncode, rest) == (0, "")
        assert re.fullmatch(
            r"web pages \(chat, approvals, request inspector\): "
            rf"http://127\.0\.0\.1:{port}/ui/enter\?token=\S+  \(works once\)\n",
            errors,
        )


@pytest.mark.parametrize(
    ("url", "journal", "why"),
    [("sqlite://", "", "the journal needs a store"), ("sqlite:///x.db", "max_mb = 0", "journal.max_mb is 0")],
)
def test_an_unwritable_journal_is_reported_once_at_startup(
    tmp_path: Path, url: str, journal: str, why: str
) -> None:
    (tmp_path / "toolwire.toml").write_text(
        f'[models.demo]\nbackend = "scripted"\n[journal]\ncontents = "disk"\n{journal}\n'
    )
    with process("-m", "toolwire", "serve", "--port", "0", cwd=tmp_path, TOOLWIRE_STORE__URL=url) as child:
        ready_port(child)
        child.send_signal(signal.SIGTERM)
        _, errors = child.communicate(timeout=20)
    warning, link = errors.splitlines()
    assert (
        f'WARNING toolwire.http: journal.contents = "disk": nothing is written, because {why}' in warning
        and "(works once)" in link
    )


def test_startup_in_json_logs_objects_without_the_link(tmp_path: Path) -> None:
    with process("-m", "toolwire", "serve", "--port", "0", "--log-format", "json", cwd=tmp_path) as child:
        port = ready_port(child)
        child.send_signal(signal.SIGTERM)
        _, errors = child.communicate(timeout=20)
    found, pages = map(json.loads, errors.splitlines())
    assert found["event"] == "models" and "demo" in {
        model["id"] for model in found["models"]
    }  # no configuration
    assert {**pages, "time": ""} == {"time": "", "event": "pages", "url": f"http://127.0.0.1:{port}/"}
    (tmp_path / "toolwire.toml").write_text("[server]\nports = 1\n")
    with process("-m", "toolwire", "serve", "--log-format", "json", cwd=tmp_path) as child:
        _, errors = child.communicate(timeout=20)
    complaint = json.loads(errors)
    assert child.returncode == 2 and complaint["level"] == "error" and "server.ports" in complaint["message"]


def test_a_running_stream_ends_whole_while_the_server_drains(tmp_path: Path) -> None:
    with process("-c", SLOW_SERVER, "20", "0.5", cwd=tmp_path) as child:
        port = ready_port(child)
        with open_stream(port) as stream:
            child.send_signal(signal.SIGTERM)
            received = read_all(stream)
        assert b"data: last" in received and received.endswith(b"0\r\n\r\n")
        output, _ = child.communicate(timeout=20)
        assert (child.returncode, output) == (0, "gateway closed\n")


def test_a_draining_server_takes_no_new_connections_and_closes_idle_ones(tmp_path: Path) -> None:
    with process("-c", SLOW_SERVER, "20", "2", cwd=tmp_path) as child:
        port = ready_port(child)
        with open_stream(port) as stream, socket.create_connection(("127.0.0.1", port), timeout=20) as idle:
            idle.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert idle.recv(65536).startswith(b"HTTP/1.1 200")
            child.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + 1.5
            while time.monotonic() < deadline:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                except OSError:
                    break
                time.sleep(0.01)
            else:
                pytest.fail("the port still accepts")
            assert read_all(idle) in (b"", b'{"ok":true}')  # at most the end of the answer, and nothing new
            assert b"data: last" in read_all(stream)
        assert child.wait(20) == 0


def test_a_stream_that_outlasts_the_drain_is_cut_and_the_exit_status_is_still_0(tmp_path: Path) -> None:
    with process("-c", SLOW_SERVER, "0.2", "600", cwd=tmp_path) as child:
        port = ready_port(child)
        with open_stream(port) as stream:
            child.send_signal(signal.SIGTERM)
            assert not read_all(stream).endswith(b"0\r\n\r\n")  # must not look complete
        output, _ = child.communicate(timeout=20)
        assert (child.returncode, output) == (0, "gateway closed\n")


def test_one_ctrl_c_drains_and_the_second_ends_at_once(tmp_path: Path) -> None:
    with process("-c", SLOW_SERVER, "600", "600", cwd=tmp_path) as child:
        port = ready_port(child)
        with open_stream(port) as stream:
            child.send_signal(signal.SIGINT)
            stream.settimeout(0.5)
            with pytest.raises(TimeoutError):
                stream.recv(1)  # the first signal lets the stream continue
            child.send_signal(signal.SIGINT)
            assert child.wait(10) == 130
        assert (
            child.stderr is not None
            and "waiting for 1 answer; Ctrl-C again stops now\n" in child.stderr.readlines()
        )


def test_an_idle_server_ends_with_0_on_ctrl_c(tmp_path: Path) -> None:
    with process("-m", "toolwire", "serve", "--port", "0", cwd=tmp_path) as child:
        ready_port(child)
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=20)
        assert child.returncode == 0 and "waiting" not in errors


def test_a_port_in_use_is_one_clear_line_and_status_2(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with process("-m", "toolwire", "serve", "--port", str(port), cwd=tmp_path) as child:
            output, errors = child.communicate(timeout=20)
    assert (child.returncode, output) == (2, "")
    assert errors.count("\n") == 1 and f"port {port}" in errors and "in use" in errors


def test_ipv6_is_shown_in_brackets(tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    with process("-m", "toolwire", "serve", "--host", "::1", "--port", "0", cwd=tmp_path) as child:
        assert child.stdout is not None
        assert child.stdout.readline().startswith("listening on http://[::1]:")


def test_a_store_that_cannot_be_opened_is_one_clear_line_and_status_2(tmp_path: Path) -> None:
    (tmp_path / "broken.db").write_bytes(b"this is not a database, whatever its name says" * 100)
    url = f"sqlite:///{tmp_path}/broken.db"
    with process("-m", "toolwire", "serve", "--port", "0", cwd=tmp_path, TOOLWIRE_STORE__URL=url) as child:
        output, errors = child.communicate(timeout=20)
    assert (child.returncode, output) == (2, "")
    assert errors.count("\n") == 1 and "broken.db" in errors


def test_more_than_one_worker_is_refused_for_now(tmp_path: Path) -> None:
    with process(
        "-m", "toolwire", "serve", "--port", "0", cwd=tmp_path, TOOLWIRE_SERVER__WORKERS="2"
    ) as child:
        _, errors = child.communicate(timeout=20)
    assert child.returncode == 2 and "server.workers" in errors

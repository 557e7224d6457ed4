"""Broken configurations: `doctor` explains each with a fix; `serve` says one line or serves the rest."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from toolwire.cli.main import main
from toolwire.settings import page_file
from toolwire.surfaces.http import server as http_server

DEMO = '[models.demo]\nbackend = "scripted"\n'
ANSWERS = {
    "/html/models": (200, "<!doctype html><title>Router</title>"),
    "/key/models": (401, '{"error": {"message": "bad key"}}'),
    "/path/models": (404, "404 page not found"),
    "/error/models": (500, "{}"),
    "/other/models": (200, '{"hello": 1}'),
    "/v1/models": (200, '{"object": "list", "data": [{"id": "qwen3:4b"}]}'),
}


class Answering(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, body = ANSWERS.get(self.path, (404, ""))
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: Any) -> None:
        pass


@dataclass
class Machine:
    """What a case may use: a folder, a server with several faults, and one that never answers."""

    folder: Path
    url: str
    silent: int
    stack: ExitStack

    def locked(self) -> str:
        path = self.folder / "locked.db"
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA user_version = 8")
        connection.execute("BEGIN EXCLUSIVE")
        self.stack.callback(connection.close)
        return str(path)

    def program(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with ExitStack() as stack:
        server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Answering))
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()  # polls for its end
        stack.callback(server.shutdown)
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = server.server_address[1]
        yield Machine(tmp_path, f"http://127.0.0.1:{port}", silent.getsockname()[1], stack)


@dataclass
class Case:
    """A broken configuration. `said`: words of the line that explains it, and of its fix.

    `serves`: `serve` starts, with the rest. `config`: the settings, or the path of what is no settings file.
    """

    name: str
    config: str | bytes | Callable[[Machine], str | bytes | Path]
    said: tuple[str, ...]
    serves: bool = True
    environ: dict[str, str] | None = None


def at(path: str, **more: str) -> Callable[[Machine], str]:
    """Returns the settings of a model at the server with faults."""
    keys = "".join(f'{key} = "{value}"\n' for key, value in more.items())
    return lambda machine: f'{DEMO}[models.x]\nbackend = "openai"\nbase_url = "{machine.url}{path}"\n{keys}'


def model(text: str) -> str:
    return f"{DEMO}[models.x]\n{text}\n"


CASES = [
    # the file
    Case("syntax", "[server\nport = 1\n", ("toolwire.toml", "not valid TOML", "line 1", "correct"), False),
    Case("twice", "[server]\n[server]\n", ("toolwire.toml", "not valid TOML", "line 2"), False),
    Case(
        "not utf-8", b'[vault]\nroot = "\xff"\n', ("toolwire.toml", "line 2", "save the file as UTF-8"), False
    ),
    Case(
        "a folder",
        lambda machine: machine.folder,
        ("--config", "is a folder", "name the settings file"),
        False,
    ),
    Case("no file", lambda machine: machine.folder / "none.toml", ("--config", "there is no file"), False),
    Case("nested", f"[server]\nkeys = {'[' * 5000}{']' * 5000}\n", ("toolwire.toml", "nested"), False),
    Case(
        "many digits",
        f"[server]\nport = {'9' * 5000}\n",
        ("toolwire.toml", "not valid TOML", "digits"),
        False,
    ),
    Case(
        "models in a list",
        '[[models]]\nbackend = "scripted"\n',
        ("models", "expected a table [models]"),
        False,
    ),
    Case("wrong type", '[server]\nport = "many"\n', ("server.port", "an integer", "correct"), False),
    Case("out of range", "[server]\nport = 99999\n", ("server.port", "65535"), False),
    Case("unknown key", "[server]\nprot = 1\n", ("server.prot", "did you mean server.port"), False),
    Case("empty host", '[server]\nhost = ""\n', ("server.host", "such as 127.0.0.1"), False),
    Case("NUL", '[server]\nhost = "a\\u0000b"\n', ("server.host", "NUL"), False),
    Case(
        "long path",
        lambda machine: Path("x" * 5000),
        ("--config", "there is no file", "name the settings"),
        False,
    ),
    Case("unknown section", "[servr]\nport = 1\n", ("servr", "did you mean server"), False),
    Case("key outside", "port = 1\n", ("port", "below [server]"), False),
    Case("wrong variable", DEMO, ("TOOLWIRE_SERVER__PORT", "unset"), False, {"TOOLWIRE_SERVER__PORT": "x"}),
    Case("server key unset", '[server]\nkeys = ["env:NO_KEY"]\n', ("server.keys", "NO_KEY", "set"), False),
    Case("unknown alias", f'{DEMO}[aliases]\na = "dmo"\n', ("aliases.a", "dmo", "demo"), False),
    # one model
    Case(
        "key unset", model('backend = "openai"\napi_key = "env:NO_KEY"'), ("model x", "NO_KEY", "set the var")
    ),
    Case(
        "no key file",
        model('backend = "openai"\napi_key = "file:/no/key"'),
        ("model x", "/no/key", "[models.x]"),
    ),
    Case(
        "misspelt backend",
        model('backend = "opnrouter"'),
        ("model x", "did you mean openrouter", "[models.x]"),
    ),
    Case("no backend", model('model = "m"'), ("model x", "backend is missing")),
    Case("unknown option", model('backend = "openai"\nbase_ulr = "x"'), ("model x", "base_ulr", "base_url")),
    Case("no table", "[models]\nx = 1\n", ("model x", "expected a table")),
    Case("bad address", model('backend = "openai"\nbase_url = "localhost:1"'), ("model x", "base_url")),
    Case("no provider key", model('backend = "anthropic"'), ("model x", "ANTHROPIC_API_KEY")),
    Case(
        "unknown fallback", model('backend = "scripted"\nfallback = ["dmo"]'), ("model x", "fallback", "demo")
    ),
    Case("fallback circle", model('backend = "scripted"\nfallback = ["x"]'), ("model x", "leads back to x")),
    Case(
        "dot in a name",
        '[models.gpt-4.1]\nbackend = "scripted"\n' + DEMO,
        ("gpt-4", '[models."gpt-4.1"]', "quotes"),
    ),
    Case(
        "NUL in an option",
        model('backend = "openai"\napi_key = "file:/a\\u0000b"'),
        ("model x", "api_key", "NUL"),
    ),
    Case("empty backend", model('backend = ""'), ("model x", 'unknown backend ""')),
    Case("empty fallback", model('backend = "scripted"\nfallback = [""]'), ("model x", 'no model ""')),
    # its server or program
    Case(
        "dead server",
        model('backend = "openai"\nbase_url = "http://127.0.0.1:9/v1"'),
        ("nothing listens", "start"),
    ),
    Case(
        "unknown host",
        model('backend = "openai"\nbase_url = "http://no.invalid/v1"'),
        ("model x", "base_url"),
    ),
    Case(
        "hanging server",
        lambda machine: model(f'backend = "openai"\nbase_url = "http://127.0.0.1:{machine.silent}/v1"'),
        ("model x", "does not answer within", "start"),
    ),
    Case("html", at("/html"), ("model x", "answers with HTML", "/v1")),
    Case("wrong path", at("/path"), ("model x", "HTTP 404", "/v1")),
    Case("other json", at("/other"), ("model x", "not with models", "base_url")),
    Case("refused key", at("/key", api_key="k"), ("model x", "refuses the key", "api_key")),
    Case("server error", at("/error"), ("model x", "HTTP 500", "log")),
    Case(
        "https to http",
        lambda m: model(f'backend = "openai"\nbase_url = "https{m.url[4:]}/v1"'),
        ("TLS", "base_url"),
    ),
    Case("no such model", at("/v1", profile="vllm", model="qwen3:8b"), ("no model qwen3:8b", "qwen3:4b")),
    Case("no codex", model('backend = "codex"\nbin = "no-codex"'), ("model x", "no-codex", "npm install")),
    Case(
        "codex that is none",
        lambda machine: model(f'backend = "codex"\nbin = "{machine.program("cdx", "#!/bin/sh")}"'),
        ("model x", "odex"),
    ),
    Case("no agent", model('backend = "acp"\ncommand = ["no-agent"]'), ("model x", "no-agent")),
    Case("no gguf", model('backend = "local"\ngguf = "/no.gguf"'), ("model x", "correct gguf|toolwire")),
    Case(
        "bad OLLAMA_HOST",
        model('backend = "ollama"'),
        ("model x", "base_url"),
        True,
        {"OLLAMA_HOST": "http://[bad"},
    ),
    Case(
        "a text as gguf",
        lambda machine: model(f'backend = "local"\ngguf = "{machine.program("x.gguf", "text")}"'),
        ("model x", "not a GGUF file|llama.cpp is not installed"),
    ),
    # the rest
    Case(
        "no vault",
        f'{DEMO}[vault]\nenabled = true\nroot = "/no/vault"\n',
        ("vault", "/no/vault", "vault.root"),
    ),
    Case(
        "locked store",
        lambda machine: f'{DEMO}[store]\nurl = "sqlite:///{machine.locked()}"\n',
        ("store", "locked", "store.url"),
        False,
    ),
    Case("corrupt store", lambda machine: _corrupt(machine), ("store", "not a database", "store.url"), False),
    Case(
        "store without folder",
        lambda m: f'{DEMO}[store]\nurl = "sqlite:///{m.program("file", "")}/x.db"\n',
        ("store", "is not a folder", "store.url"),
        False,
    ),
    Case(
        "store at a link to itself", lambda machine: _circular(machine), ("store", "cannot be opened"), False
    ),
    Case(
        "dead PostgreSQL",
        f'{DEMO}[store]\nurl = "postgresql://u:pw@127.0.0.1:9/x"\n',
        ("store", "refused", "start PostgreSQL"),
        False,
    ),
    Case(
        "dead Redis",
        f'{DEMO}[store]\nredis = "redis://:pw@127.0.0.1:9"\n',
        ("redis", "cannot be reached", "start Redis"),
    ),
    Case(
        "bad Redis", f'{DEMO}[store]\nredis = "127.0.0.1:6379"\n', ("redis", "store.redis", "redis://"), False
    ),
    Case(
        "damaged page file",
        lambda machine: _damaged_page(machine),
        ("settings page", "not valid TOML", "delete"),
    ),
    Case("unknown store", f'{DEMO}[store]\nurl = "mysql://x"\n', ("store", "sqlite:///PATH"), False),
    Case(
        "port in use",
        lambda machine: f"{DEMO}[server]\nport = {machine.url.rpartition(':')[2]}\n",
        ("address", "is in use by another program", "port"),
        False,
    ),
    Case("no keys", f'{DEMO}[server]\nhost = "0.0.0.0"\n', ("server.host", "needs at least one key"), False),
    Case(
        "no certificate", f'{DEMO}[server]\ntls_cert = "/no.pem"\n', ("server.tls_cert", "both files"), False
    ),
    Case("bad proxies", f'{DEMO}[server]\ntrusted_proxies = ["x"]\n', ("server", "trusted_proxies"), False),
    Case("no redis", f"{DEMO}[server]\nworkers = 2\n", ("server.workers", "store.redis"), False),
    Case(
        "bad collector",
        f'{DEMO}[telemetry]\notlp = "http://[bad"\n',
        ("tracing", "telemetry.otlp", "expected the URL", "correct"),
        False,
    ),
    Case("bad proxy", DEMO, ("HTTPS_PROXY", "unset"), True, {"HTTPS_PROXY": "http://[bad"}),
]


def _corrupt(machine: Machine) -> str:
    path = machine.folder / "corrupt.db"
    path.write_text("certainly not a database " * 200)
    return f'{DEMO}[store]\nurl = "sqlite:///{path}"\n'


def _circular(machine: Machine) -> str:
    path = machine.folder / "circle.db"
    path.symlink_to(path)
    return f'{DEMO}[store]\nurl = "sqlite:///{path}"\n'


def _damaged_page(machine: Machine) -> str:
    (machine.folder / page_file.FILE_NAME).write_text("[[[")
    return f'{DEMO}[store]\nurl = "sqlite:///{machine.folder}/x.db"\n'


@pytest.fixture
def broken(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Callable[[Case], str]:
    """Writes a case's settings and sets its environment. Returns the path for --config."""
    for name in [name for name in os.environ if name.endswith(("_API_KEY", "_PROXY", "_proxy"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(machine.folder))
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:9")
    monkeypatch.setenv("LMSTUDIO_HOST", "127.0.0.1:9")

    def write(case: Case) -> str:
        config = case.config(machine) if callable(case.config) else case.config
        for name, value in (case.environ or {}).items():
            monkeypatch.setenv(name, value)
        if isinstance(config, Path):
            return str(config)
        file = machine.folder / "toolwire.toml"
        file.write_bytes(config if isinstance(config, bytes) else config.encode())
        return str(file)

    return write


def test_there_are_thirty_and_more() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 30


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_doctor_explains_a_broken_configuration_in_one_line(
    case: Case, broken: Callable[[Case], str], capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["doctor", "--config", broken(case), "--json"])
    shown = capsys.readouterr()
    findings = json.loads(shown.out)
    lines = [
        f"{one['subject']}: {one['told']} → {one['fix']}" for one in findings if one["mark"] == "problem"
    ]
    assert status == 1 and "Traceback" not in shown.err
    fitting = [line for line in lines if all(any(w in line for w in word.split("|")) for word in case.said)]
    assert fitting and "\n" not in fitting[0] and not fitting[0].endswith("→ "), lines
    assert len(findings) > 10, "the other checks run too"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_serve_says_one_line_or_serves_the_rest(
    case: Case,
    broken: Callable[[Case], str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Everything is real up to the moment when the server would wait for requests."""
    served: list[list[str]] = []

    async def serve(self: Any, sockets: Any = None) -> None:
        served.append(self._app._gateway.catalog.listed())

    monkeypatch.setattr(http_server.DrainingServer, "serve", serve)
    monkeypatch.setattr(http_server, "settle_memory", lambda: None)
    port = [] if any("port" in word.lower() for word in case.said) else ["--port", "0"]
    status = main(["serve", "--config", broken(case), *port])
    error = capsys.readouterr().err
    assert "Traceback" not in error and "unexpected" not in error
    if case.serves:
        assert status == 0 and ("demo" in served[0] or case.name == "no table"), error
    else:
        assert status == 2 and served == [] and error.count("\n") == 1, error

"""The table of real clients and their jobs: client × API × streamed or not × backend.

Every cell is a two-step tool loop: the model calls, the client runs its tool and sends the result, and the
model's answer uses it. Each library client runs all its jobs in one process (a Python environment, Node, or a
Chromium tab); OpenCode, Codex and Claude Code run as users run them. All results have one format, documented
in jobs.mjs.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

CLIENTS = Path(__file__).resolve().parent
ROOT = CLIENTS.parents[1]
VERSIONS: dict[str, dict[str, str]] = tomllib.loads((CLIENTS / "versions.toml").read_text("utf-8"))

Backend = Literal["native", "emulated", "codex"]
BACKENDS: tuple[Backend, ...] = ("native", "emulated", "codex")
"""A scripted model that makes calls, one that only writes text, and the real Codex app-server."""

WHOLE, STREAMED = False, True
BOTH = (WHOLE, STREAMED)


@dataclass(frozen=True)
class Client:
    name: str
    kind: Literal["python", "semantic-kernel", "node", "opencode", "codex", "claude-code", "browser"]
    """How it runs, and its table in versions.toml.

    semantic-kernel has its own environment, because it conflicts with packages of the other Python clients.
    """
    packages: tuple[str, ...]
    """Its packages in that table of versions.toml."""
    apis: Mapping[str, tuple[bool, ...]]
    """For each API name of a job: whether it can be used whole, streamed, or both."""
    program: str = ""
    script: str = "weather"
    call: tuple[str, dict[str, Any]] = ("get_weather", {"city": "Paris"})
    """The call that the client must report."""
    form: str = ""
    """How its models make their calls: a key of FORMS in serve.py."""
    broad: bool = False
    """Also runs every scenario of test_clients.py."""
    words: dict[str, str] = field(default_factory=dict, hash=False)
    """The API that an `apis` name means, if the two differ."""
    wires: tuple[bool, ...] = BOTH
    """How it sends requests: some clients always stream."""


_MACHINE = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
CLAUDE_CODE = f"@anthropic-ai/claude-code-{sys.platform}-{_MACHINE}"
"""The package with Claude Code for this machine. It needs no Node."""

TWO = {"chat": BOTH, "responses": BOTH}
CLIENT_TABLE = (
    Client("openai-python", "python", ("openai",), {**TWO, "chained": BOTH}, "openai_python.py",
           words={"chained": "responses"}),
    Client("openai-node", "node", ("openai",), {**TWO, "rewritten": BOTH, "runner": BOTH, "chained": BOTH},
           "openai_node.mjs", broad=True,
           words={"rewritten": "chat", "runner": "chat", "chained": "responses"}),
    Client("ai-sdk", "node", ("ai", "@ai-sdk/openai-compatible", "@ai-sdk/openai"),
           {**TWO, "openai_chat": BOTH}, "ai_sdk.mjs", broad=True, words={"openai_chat": "chat"}),
    Client("langchain-node", "node", ("@langchain/openai",), TWO, "langchain.mjs", broad=True),
    Client("langchain-python", "python", ("langchain-openai",), TWO, "langchain_python.py", broad=True),
    Client("openai-agents", "python", ("openai-agents",), TWO, "agents_python.py", broad=True),
    Client("pydantic-ai", "python", ("pydantic-ai-slim",), TWO, "pydantic_ai_python.py", broad=True),
    Client("haystack", "python", ("haystack-ai",), TWO, "haystack_python.py", broad=True),
    Client("semantic-kernel", "semantic-kernel", ("semantic-kernel",), {**TWO, "stateless": BOTH},
           "semantic_kernel_python.py", form="tools_", broad=True, words={"stateless": "responses"}),
    Client("tanstack-ai", "node", ("@tanstack/ai", "@tanstack/ai-openai"),
           {**TWO, "openai_chat": (STREAMED,), "openai_responses": (STREAMED,)},
           "tanstack.mjs", form="strict_", broad=True,
           words={"openai_chat": "chat", "openai_responses": "responses"}, wires=(STREAMED,)),
    Client("anthropic-python", "python", ("anthropic",), {"messages": BOTH, "runner": BOTH},
           "anthropic_python.py", broad=True, words={"runner": "messages"}),
    Client("anthropic-node", "node", ("@anthropic-ai/sdk",), {"messages": BOTH, "runner": BOTH},
           "anthropic_node.mjs", broad=True, words={"runner": "messages"}),
    Client("browser", "browser", ("playwright",), TWO),
    Client("opencode", "opencode", ("opencode-ai",), {"chat": (STREAMED,), "responses": (STREAMED,)},
           script="opencode",
           call=("bash", {"command": "cat weather.txt", "description": "Reads the weather"})),
    Client("codex", "codex", ("@openai/codex",), {"responses": (STREAMED,)}, script="codex",
           call=("command_execution", {"command": "/bin/bash -lc 'cat weather.txt'"})),
    Client("claude-code", "claude-code", ("@anthropic-ai/claude-code",), {"messages": (STREAMED,)},
           script="claude_code",
           call=("Bash", {"command": "cat weather.txt", "description": "Reads the weather"})),
)  # fmt: skip
BY_NAME = {client.name: client for client in CLIENT_TABLE}

SCENARIOS: dict[str, dict[str, Any]] = {
    "parallel": {},
    "nothing": {},
    "spoken": {},
    "thoughtful": {},
    "twice": {},
    "unicode": {},
    "conversation": {"then": ["And now?"]},
    "short": {},
    "breaks": {},
    "breaks_after_call": {},
    "cut": {},
    "refuses": {},
    "missing": {},
    "simple_parallel": {},
    "simple_spoken_parallel": {},
    "simple_twice": {},
}
"""The other scenarios of the broad clients: names of scripts, or of plans in simple.py; `missing` is neither.
"""


@dataclass(frozen=True)
class Case:
    """A cell of the table."""

    client: str
    api: str
    stream: bool
    backend: Backend

    @property
    def wire(self) -> str:
        """The API on the wire."""
        return BY_NAME[self.client].words.get(self.api, self.api)

    def job(self, scenario: str = "") -> dict[str, Any]:
        client = BY_NAME[self.client]
        model = f"{client.form}{scenario or client.script}-{self.backend}"
        return {"api": self.api, "model": model, "stream": self.stream, **SCENARIOS.get(scenario, {})}

    def __str__(self) -> str:
        return f"{self.client}-{self.api}-{'stream' if self.stream else 'whole'}-{self.backend}"


def cases() -> Iterator[Case]:
    for client in CLIENT_TABLE:
        for api, ways in client.apis.items():
            for stream in ways:
                yield from (Case(client.name, api, stream, backend) for backend in BACKENDS)


CASES = tuple(cases())
BROAD = tuple(case for case in CASES if BY_NAME[case.client].broad and case.backend != "codex")


def jobs_of(client: Client) -> list[dict[str, Any]]:
    own = [case.job() for case in CASES if case.client == client.name]
    return own + [
        case.job(scenario) for case in BROAD if case.client == client.name for scenario in SCENARIOS
    ]


ENVIRONMENTS = {"python": "clients", "semantic-kernel": "semantic-kernel"}
"""The kinds of clients in Python, and the folder in .venv where each lives."""


# --- locations ---


@dataclass(frozen=True)
class Installed:
    """The folder of the clients: the checkout's, or that of `newest.py`, named in TOOLWIRE_CLIENTS."""

    pythons: Mapping[str, Path]
    """By kind."""
    node: Path
    opencode: Path
    codex: Path
    claude_code: Path

    def lacking(self, client: Client) -> str | None:
        """What must be installed before it can run, in one line."""
        if client.kind in self.pythons:
            return (
                None
                if self.pythons[client.kind].exists()
                else f"the environment of {client.name} is missing: make test makes it"
            )
        if client.kind == "browser":
            return None if chromium() else "Chromium is missing"
        if client.kind == "claude-code":
            missing = f"{CLAUDE_CODE} is missing: npm ci --prefix tests/claude-code"
            return None if self.claude_code.exists() else missing
        if shutil.which("node") is None:
            return "Node.js is missing (20 or newer is needed)"
        if client.kind == "node":
            absent = [
                name
                for name in client.packages
                if not (self.node / "node_modules" / name / "package.json").exists()
            ]
            return f"{', '.join(absent)} is missing: npm ci --prefix tests/clients" if absent else None
        folder = getattr(self, client.kind)
        return (
            None if folder.exists() else f"{client.kind} is missing: npm ci --prefix {folder.parents[2].name}"
        )


def installed() -> Installed:
    given = os.environ.get("TOOLWIRE_CLIENTS")
    if given:
        folder = Path(given)
        opencode, codex = (folder / name / "node_modules" / ".bin" / name for name in ("opencode", "codex"))
        pythons = {kind: folder / kind / "bin" / "python" for kind in ENVIRONMENTS}
        claude_code = folder / "claude-code" / "node_modules" / CLAUDE_CODE / "claude"
        return Installed(pythons, folder / "node", opencode, codex, claude_code)
    pythons = {kind: Path(sys.prefix) / name / "bin" / "python" for kind, name in ENVIRONMENTS.items()}
    opencode, codex = (
        ROOT / "tests" / folder / "node_modules" / ".bin" for folder in ("acp-agents/opencode", "codex/new")
    )
    claude_code = ROOT / "tests" / "claude-code" / "node_modules" / CLAUDE_CODE / "claude"
    return Installed(pythons, CLIENTS, opencode / "opencode", codex / "codex", claude_code)


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


# --- running ---


def run(
    client: Client, base_url: str, jobs: list[dict[str, Any]], where: Installed, folder: Path
) -> list[dict[str, Any]]:
    """The results, in the order of the jobs.

    A job's own `baseURL` takes precedence over `base_url`. `folder` is for files that programs write.
    """
    whole = [{"baseURL": base_url, **job} for job in jobs]
    if client.kind == "opencode":
        from programs import run_opencode

        return run_opencode(str(where.opencode), whole, folder)
    if client.kind == "codex":
        from programs import run_codex

        return run_codex(str(where.codex), whole, folder)
    if client.kind == "claude-code":
        from programs import run_claude_code

        return run_claude_code(str(where.claude_code), whole, folder)
    if client.kind == "browser":
        from browser import run_browser

        return run_browser(str(chromium()), whole).results
    python = where.pythons.get(client.kind)
    command = ["node", client.program] if python is None else [str(python), str(CLIENTS / client.program)]
    quiet = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ANTHROPIC_", "OPENAI_", "LANGCHAIN_", "LANGSMITH_", "PYTHON"))
    }
    done = subprocess.run(
        command,
        input=json.dumps({"baseURL": base_url, "jobs": jobs}),
        capture_output=True,
        text=True,
        cwd=where.node,
        env=quiet,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    results: list[dict[str, Any]] = json.loads(done.stdout)
    return results


# --- the table in the documentation ---


def markdown() -> str:
    """The table of docs/clients.md: each client with its versions and the loops that it runs on each API."""
    head = ["| client | version | chat completions | Responses | Messages |", "|---|---|---|---|---|"]
    return "\n".join([*head, *(_row(client) for client in CLIENT_TABLE)]) + "\n"


def _row(client: Client) -> str:
    packages = ", ".join(f"`{name}` {VERSIONS[client.kind][name]}" for name in client.packages)

    def ways(wire: str) -> str:
        spoken = {
            stream
            for api, streams in client.apis.items()
            if client.words.get(api, api) == wire
            for stream in streams
        }
        found = spoken & {*client.wires}
        return (
            " and ".join(
                word for stream, word in ((WHOLE, "whole"), (STREAMED, "streamed")) if stream in found
            )
            or "–"
        )

    return f"| {client.name} | {packages} | {ways('chat')} | {ways('responses')} | {ways('messages')} |"

"""Gateways in separate processes, and the real clients that use them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from matrix import BY_NAME, CLIENTS, installed, jobs_of, run


def missing(what: str) -> None:
    """Skips with what is missing, or fails where nothing may be missing."""
    pytest.skip(what)


@contextmanager
def serving(home: Path, *arguments: str) -> Iterator[str]:
    with (home / "log").open("w") as log:
        child = subprocess.Popen(
            [sys.executable, str(CLIENTS / "serve.py"), *arguments],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=home,
            env={**os.environ, "HOME": str(home)},
            start_new_session=True,
        )
    try:
        assert child.stdout is not None
        assert select.select([child.stdout], [], [], 30)[0], "the gateway did not say that it listens"
        line = child.stdout.readline()
        assert line.startswith("listening on "), (home / "log").read_text()
        yield line.removeprefix("listening on ").strip()
    finally:
        if child.poll() is None:  # a signal, so that it ends its own children
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of a gateway with scripted models."""
    with serving(tmp_path_factory.mktemp("home")) as url:
        yield url


@pytest.fixture(scope="session")
def codex_gateway(gateway: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of a gateway with the real Codex as its backend."""
    program = CLIENTS.parent / "codex" / "new" / "node_modules" / ".bin" / "codex"
    if not program.exists():
        missing("Codex is missing: npm ci --prefix tests/codex/new")
    with serving(tmp_path_factory.mktemp("codex-home"), str(program), gateway) as url:
        yield url


@pytest.fixture(scope="session")
def run_client(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[dict[str, Any]]]:
    """`run_client(name, base_url, jobs)`: the results, in order."""

    def go(name: str, base_url: str, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        lacking = installed().lacking(BY_NAME[name])
        if lacking is not None:
            missing(lacking)
        return run(BY_NAME[name], base_url, jobs, installed(), tmp_path_factory.mktemp(name))

    return go


@pytest.fixture(scope="session")
def ask(
    gateway: str, codex_gateway: str, run_client: Callable[..., list[dict[str, Any]]]
) -> Callable[..., dict[str, Any]]:
    """`ask(case, scenario)`: the client's result. The first question to a client runs all its jobs."""
    answers: dict[str, dict[str, dict[str, Any]]] = {}

    def result(case: Any, scenario: str = "") -> dict[str, Any]:
        if case.client not in answers:
            jobs = jobs_of(BY_NAME[case.client])
            sent = [
                {**job, "baseURL": codex_gateway if job["model"].endswith("-codex") else gateway}
                for job in jobs
            ]
            answers[case.client] = dict(
                zip(map(_key, jobs), run_client(case.client, gateway, sent), strict=True)
            )
        return answers[case.client][_key(case.job(scenario))]

    return result


def _key(job: dict[str, Any]) -> str:
    return json.dumps(job, sort_keys=True)

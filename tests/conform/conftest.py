"""A gateway process of its own, for real clients."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

CLIENTS = Path(__file__).parents[1] / "clients"


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of a gateway process of its own."""
    home = tmp_path_factory.mktemp("home")
    with (home / "log").open("w") as log:
        child = subprocess.Popen(
            [sys.executable, str(CLIENTS / "serve.py")],
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
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()

"""The scripted bridge, in the test's process and as its own process, and backends on it."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from doubles import cursor_bridge
from doubles.cursor_bridge import FakeCursorBridge
from toolwire.backends.cursor import CursorBackend, CursorOptions

KEY = "crsr_0123456789abcdef"


@pytest.fixture(autouse=True)
def no_cursor_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "CURSOR_API_KEY",
        "CURSOR_SDK_BRIDGE_URL",
        "CURSOR_SDK_BRIDGE_TOKEN",
        "CURSOR_SDK_BRIDGE_BIN",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TOOLWIRE_API_KEY", "a-secret-of-ours")


@pytest.fixture
async def bridge() -> AsyncIterator[FakeCursorBridge]:
    """A running bridge."""
    async with FakeCursorBridge(api_key=KEY, models=("auto", "composer-2", "gpt-4o")) as made:
        yield made


@pytest.fixture
async def make(bridge: FakeCursorBridge) -> AsyncIterator[Callable[..., CursorBackend]]:
    """`make(**options)`: a backend attached to `bridge`, unless the options say otherwise.

    Closed at the end of the test.
    """
    made: list[CursorBackend] = []

    def build(**options: Any) -> CursorBackend:
        given: dict[str, Any] = {"api_key": KEY, "settle_ms": 30, **options}
        if "bridge_bin" not in given:
            given = {"bridge_url": bridge.url, "bridge_token": bridge.token, **given}
        made.append(CursorBackend("m", CursorOptions(**given)))
        return made[-1]

    yield build
    for backend in made:
        await backend.close()


class Launcher:
    """A command that starts the scripted bridge. `seen` are the requests to its processes."""

    def __init__(self, folder: Path) -> None:
        self._script, self._log, self._file = (
            folder / "script.json",
            folder / "log.jsonl",
            folder / "cursor-sdk-bridge",
        )

    def __call__(self, *script: Any, flags: str = "") -> str:
        self._script.write_text(json.dumps(script))
        words = [
            sys.executable,
            str(Path(cursor_bridge.__file__).parent),
            "--log",
            str(self._log),
            *(["--script", str(self._script)] if script else []),
        ]
        self._file.write_text(
            f'#!/bin/sh\n{shlex.join(words)} {flags} "$@"\n'
        )  # like the real one, the launcher waits for the bridge
        self._file.chmod(0o755)
        return str(self._file)

    @property
    def seen(self) -> list[tuple[str, dict[str, Any]]]:
        return (
            [tuple(json.loads(line)) for line in self._log.read_text().splitlines()]
            if self._log.exists()
            else []
        )

    def bodies(self, method: str) -> list[dict[str, Any]]:
        return [body for name, body in self.seen if name == method]


@pytest.fixture
def launcher(tmp_path: Path) -> Launcher:
    return Launcher(tmp_path)

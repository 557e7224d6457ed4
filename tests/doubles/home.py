"""Runs the real `toolwire` command with a home folder of its own."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

DEMO = '[models.demo]\nbackend = "scripted"\n'


@dataclass
class Home:
    """A new home folder. Commands that it starts do not see the settings of the real user."""

    path: Path
    variables: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.work.mkdir(parents=True, exist_ok=True)
        self.settings(DEMO)

    @property
    def work(self) -> Path:
        return self.path / "work"

    @property
    def data(self) -> Path:
        return self.path / ".local/share/toolwire"

    def settings(self, text: str) -> None:
        folder = self.path / ".config/toolwire"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "toolwire.toml").write_text(text, "utf-8")

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        return {**kept, "HOME": str(self.path), **self.variables}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "toolwire", *arguments],
            cwd=self.work,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        child = self.start(*arguments)
        try:
            out, error = child.communicate(timeout=timeout_s)
        finally:
            if child.poll() is None:
                child.kill()
                child.communicate()
        return subprocess.CompletedProcess(arguments, child.returncode, out, error)

    @contextlib.contextmanager
    def serving(self, *arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
        """Runs `toolwire serve`. Yields its address without `/v1`, and its process."""
        child = self.start("serve", "--port", "0", *arguments)
        try:
            assert child.stdout is not None
            assert select.select([child.stdout], [], [], 40)[0], "the ready line did not come"
            line = child.stdout.readline()
            assert line.startswith("listening on "), (line, child.communicate(timeout=20))
            yield line.removeprefix("listening on ").strip().removesuffix("/v1"), child
        finally:
            if child.poll() is None:
                child.terminate()
                try:
                    child.communicate(timeout=20)
                except subprocess.TimeoutExpired:
                    child.kill()
            child.communicate()

    def records(self) -> list[Path]:
        folder = self.data / "running"
        return sorted(folder.glob("*.json")) if folder.is_dir() else []

    def write_record(self, name: str, **values: object) -> Path:
        path = self.data / "running" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values), "utf-8")
        return path

"""Real MCP servers from npm and PyPI, as settings. A test skips if its server is not installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from toolwire.settings.types import McpServerSettings

ROOT = Path(__file__).resolve().parents[2]
NPM = ROOT / "tests" / "mcp-servers" / "node_modules" / ".bin"
MODERN, LEGACY = ROOT / ".venv" / "mcp-servers" / "bin", ROOT / ".venv" / "mcp-servers-legacy" / "bin"


def everything(folder: Path, **rules: Any) -> McpServerSettings:
    return _server("everything", NPM / "mcp-server-everything", "stdio", folder=folder, **rules)


def filesystem(folder: Path, **rules: Any) -> McpServerSettings:
    return _server("files", NPM / "mcp-server-filesystem", str(folder), folder=folder, **rules)


def memory(folder: Path, **rules: Any) -> McpServerSettings:
    env = {"MEMORY_FILE_PATH": str(folder / "memory.jsonl")}
    return _server("memory", NPM / "mcp-server-memory", folder=folder, env=env, **rules)


def git(folder: Path, **rules: Any) -> McpServerSettings:
    """Returns a server of the repository in `folder`. A new one has a file that is not committed."""
    if not (folder / ".git").exists():
        subprocess.run(["git", "init", "-q", str(folder)], check=True)
        (folder / "new.txt").write_text("new\n")
    return _server("git", MODERN / "mcp-server-git", "--repository", str(folder), folder=folder, **rules)


def time(folder: Path, **rules: Any) -> McpServerSettings:
    return _server("time", MODERN / "mcp-server-time", folder=folder, **rules)


def sqlite(folder: Path, **rules: Any) -> McpServerSettings:
    database = str(folder / "data.db")
    return _server("sqlite", LEGACY / "mcp-server-sqlite", "--db-path", database, folder=folder, **rules)


def _server(name: str, program: Path, *words: str, folder: Path, **more: Any) -> McpServerSettings:
    if not program.exists() or (program.parent == NPM and shutil.which("node") is None):
        missing = f"{program.name} is missing: run make test, which installs it"
        pytest.skip(missing)
    return McpServerSettings(name, command=(str(program), *words), folder=str(folder), **more)


def every_server(folder: Path, **rules: Any) -> tuple[McpServerSettings, ...]:
    """All of them, over one folder."""
    return tuple(make(folder, **rules) for make in (everything, filesystem, memory, git, time, sqlite))


def calls_of_each(folder: Path) -> list[tuple[str, dict[str, Any], str]]:
    """One call for each of `every_server`, with words of its result."""
    return [
        ("everything__echo", {"message": "it is heard"}, "Echo: it is heard"),
        ("files__list_directory", {"path": str(folder)}, "[FILE] new.txt"),
        ("memory__read_graph", {}, "entities"),
        ("git__git_status", {"repo_path": str(folder)}, "Untracked files"),
        ("time__get_current_time", {"timezone": "Europe/Berlin"}, "is_dst"),
        ("sqlite__list_tables", {}, "[]"),
    ]

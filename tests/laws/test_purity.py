"""Law 1: the core is pure, and `import toolwire` loads the standard library only."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "toolwire"
PURE = [
    *(
        path
        for package in ("core", "wire", "emulate")
        for path in sorted((SOURCE / package).rglob("*.py"))
        if path.name != "ids.py"
    ),
    SOURCE / "gateway" / "plan.py",
    SOURCE / "gateway" / "interpret.py",
    SOURCE / "gateway" / "stages.py",
]
IMPURE = {
    "asyncio",
    "socket",
    "aiohttp",
    "time",
    "datetime",
    "random",
    "secrets",
    "uuid",
    "os",
    "subprocess",
    "sqlite3",
    "threading",
    "uvicorn",
}


def imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}


@pytest.mark.parametrize("path", PURE, ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_core_imports_nothing_that_does_io_or_reads_a_clock(path: Path) -> None:
    assert {name.split(".")[0] for name in imported(path)} & IMPURE == set()


@pytest.mark.parametrize(
    "path", sorted((SOURCE / "conform" / "judge").glob("*.py")), ids=lambda path: path.name
)
def test_the_judge_needs_the_standard_library_and_the_core_only(path: Path) -> None:
    others = {name for name in imported(path) if name.split(".")[0] not in sys.stdlib_module_names}
    assert {
        name for name in others if not name.startswith(("toolwire.core", "toolwire.conform.judge"))
    } == set()


def test_no_module_imports_what_only_tests_may_use() -> None:
    """`make lint` also checks indirect imports (the layers in pyproject.toml)."""
    for path in SOURCE.rglob("*.py"):
        assert {name.split(".")[0] for name in imported(path)} & {"tests", "doubles"} == set(), path


@pytest.mark.process
def test_importing_the_library_loads_the_standard_library_only() -> None:
    program = (
        "import sys; before = set(sys.modules); import toolwire; toolwire.ToolCallParser, "
        "toolwire.ToolCallAggregator, toolwire.OrderJudge\n"
        "print(*{name.split('.')[0] for name in set(sys.modules) - before})"
    )
    loaded = set(
        subprocess.run(
            [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True
        ).stdout.split()
    )
    assert loaded - set(sys.stdlib_module_names) == {"toolwire"}


WINDOWS = """
import os, sys

class Missing:
    NAMES = {"_curses", "_posixsubprocess", "crypt", "curses", "fcntl", "grp", "nis", "posix", "pty", "pwd",
             "readline", "resource", "spwd", "syslog", "termios", "tty"}

    def find_spec(self, name, path=None, target=None):
        if name in self.NAMES:
            raise ModuleNotFoundError(f"{name} does not exist on Windows", name=name)

for name in Missing.NAMES:
    sys.modules.pop(name, None)
for name in ("fork", "getuid", "killpg", "openpty", "setsid", "uname", "O_DIRECTORY", "O_NOFOLLOW"):
    delattr(os, name)
sys.meta_path.insert(0, Missing())
sys.platform = "win32"

from toolwire import OrderJudge, ToolCallAggregator, ToolCallParser

parser = ToolCallParser([{"type": "function", "function": {"name": "now"}}])
events = parser.feed('<tool_call>{"name": "now", "arguments": {}}</tool_call>') + parser.finish()
calls = ToolCallAggregator()
calls.ingest_delta({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "now", "arguments": "{}"}}]})
problem = OrderJudge("chat").feed({"choices": []})[0]
print(events[0].name, calls.snapshot()[0].arguments, problem.code)
"""
"""A program that uses the library on a Python without the modules and functions that Windows lacks."""


@pytest.mark.process
def test_the_library_needs_nothing_that_windows_lacks() -> None:
    done = subprocess.run([sys.executable, "-I", "-c", WINDOWS], capture_output=True, text=True)
    assert (done.stderr, done.stdout.split()[:2]) == ("", ["now", "{}"])


def test_no_module_is_too_long() -> None:
    long = {
        str(path.relative_to(SOURCE)): size
        for path in SOURCE.rglob("*.py")
        if (size := len(path.read_text().splitlines())) > 520
    }
    assert long == {}

"""The wheel serves from an empty environment, with pip, uv and pipx, and its install hints work."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import urllib.request
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(folder), str(ROOT)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    if built.returncode:
        message = f"the wheel could not be built (no package index?): {built.stderr.strip()[-300:]}"
        pytest.skip(message)
    return next(folder.glob("toolwire-*.whl"))


def test_the_wheel_holds_the_package_its_types_and_the_licence(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "toolwire/py.typed" in names and "toolwire/gateway/pipeline.py" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests", "bench", "fuzz", "docs"))]


@pytest.mark.timeout(400)
def test_the_wheel_serves_from_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "empty")
    into = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(tmp_path / "empty" / "bin" / "python"),
        "install",
        "-q",
        "--no-compile",
    ]
    installed = subprocess.run([*into, str(wheel)], capture_output=True, text=True, timeout=300)
    assert installed.returncode == 0, installed.stderr
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    server = subprocess.Popen(
        [tmp_path / "empty" / "bin" / "toolwire", "serve", "--port", "0"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        line = server.stdout.readline().strip()
        assert line.startswith("listening on http://127.0.0.1:"), line
        tool = {"type": "function", "function": {"name": "get_weather"}}
        body = {"model": "demo", "messages": [{"role": "user", "content": "weather?"}], "tools": [tool]}
        request = urllib.request.Request(
            line.removeprefix("listening on ") + "/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert json.load(answer)["choices"][0]["message"]["tool_calls"][0]["function"] == {
                "name": "get_weather",
                "arguments": "{}",
            }
        root = line.removeprefix("listening on ").removesuffix("/v1")
        with urllib.request.urlopen(
            root + "/", timeout=10
        ) as page:  # the pages need no build: the wheel has them
            shell = page.read().decode()
        own = re.findall(r'(?:src|href)="(/ui/static/[^"]+)"', shell)
        assert "/ui/static/app.js" in own and "/ui/static/style.css" in own
        for path in own:
            with urllib.request.urlopen(root + path, timeout=10) as file:
                assert file.read()
    finally:
        server.terminate()
        assert server.wait(10) == 0
        server.stdout.close() if server.stdout else None


# --- every tool that installs programs ---

TOOLS = ("uv==0.13.8", "pipx==1.18.4")
TEMPORARY = {"uvx": "uvx --from {wheel} toolwire", "pipx run": "pipx run --spec {wheel} toolwire"}
"""Tools that run a program without installing it."""
INSTALLED = {
    "pip": ("{python} -m venv env && env/bin/pip install -q --no-compile {wheel}", "env/bin/toolwire"),
    "uv pip": ("uv venv -q env && uv pip install -q --python env/bin/python {wheel}", "env/bin/toolwire"),
    "uv tool": ("uv tool install -q {wheel}", "$HOME/.local/bin/toolwire"),
    "pipx": ("pipx install {wheel}", "$HOME/.local/bin/toolwire"),
}
"""How to install the wheel, and the command that is then there."""
ANSWERS = "demo · "
"""What `toolwire chat` prints when it starts."""


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the commands uv, uvx and pipx."""
    folder = tmp_path_factory.mktemp("tools")
    venv.create(folder / "env", with_pip=True)
    pip = [str(folder / "env" / "bin" / "pip"), "install", "-q", *TOOLS]
    installed = subprocess.run(pip, capture_output=True, text=True, timeout=300)
    if installed.returncode:
        message = f"uv and pipx cannot be installed (no package index?): {installed.stderr.strip()[-300:]}"
        pytest.skip(message)
    return folder / "env" / "bin"


@pytest.fixture
def shell(tools: Path, tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Runs a line as a person types it, in an empty home."""
    others = ("PYTHON", "TOOLWIRE_", "UV_", "VIRTUAL_ENV", "XDG_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(others)} | {
        "HOME": str(tmp_path),
        "PATH": f"{tools}:/usr/bin:/bin",
        "PIPX_DEFAULT_PYTHON": sys.executable,
        "UV_CACHE_DIR": str(tools.parents[1] / "cache"),
        "UV_PYTHON": sys.executable,
    }

    def run(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", line],
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            timeout=200,
        )

    return run


def hint(done: subprocess.CompletedProcess[str]) -> str:
    """Returns the command that the last line of an error names."""
    assert done.returncode, done.stdout
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith("toolwire: toolwire chat needs prompt_toolkit and rich: "), done.stderr
    return line.split(": ", 2)[2]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("tool", TEMPORARY)
def test_the_hint_of_a_temporary_environment_runs_the_command_again(
    tool: str, wheel: Path, shell: Callable[[str], subprocess.CompletedProcess[str]]
) -> None:
    command = TEMPORARY[tool].format(wheel=shlex.quote(str(wheel)))
    assert shell(f"{command} --version").stdout.startswith("toolwire ")
    again = hint(shell(f"{command} chat"))
    assert again.startswith(tool) and again.endswith(" toolwire chat")
    done = shell(again)
    assert done.returncode == 0 and ANSWERS in done.stdout + done.stderr, done.stderr


@pytest.mark.timeout(400)
@pytest.mark.parametrize("tool", INSTALLED)
def test_the_hint_of_an_installation_adds_the_extra_to_it(
    tool: str, wheel: Path, shell: Callable[[str], subprocess.CompletedProcess[str]]
) -> None:
    install, toolwire = INSTALLED[tool]
    done = shell(install.format(wheel=shlex.quote(str(wheel)), python=shlex.quote(sys.executable)))
    assert done.returncode == 0, done.stderr
    added = shell(hint(shell(f"{toolwire} chat")))
    assert added.returncode == 0, added.stderr
    done = shell(f"{toolwire} chat")
    assert done.returncode == 0 and ANSWERS in done.stdout + done.stderr, done.stderr

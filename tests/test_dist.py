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


TOOLS = ("uv==0.13.8", "pipx==1.18.4")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Toolwire's wheel and all wheels that the tests install: fetched once, for all of them."""
    folder = tmp_path_factory.mktemp("wheels")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--wheel-dir", str(folder)]
    made = subprocess.run(
        [*command, f"{ROOT}[chat]", "pip", *TOOLS], capture_output=True, text=True, timeout=300
    )
    if made.returncode:
        message = f"the wheels could not be made (no package index?): {made.stderr.strip()[-300:]}"
        pytest.skip(message)
    return folder


@pytest.fixture(scope="module")
def wheel(wheels: Path) -> Path:
    return next(wheels.glob("toolwire-*.whl"))


def pip_install(environment: Path, wheels: Path, *packages: str) -> None:
    """Makes an environment without pip, with these packages."""
    venv.create(environment)
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "install", "-q"]
    local = ["--no-compile", "--no-index", "--find-links", str(wheels)]
    done = subprocess.run([*pip, *local, *packages], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_the_wheel_holds_the_package_its_types_and_the_licence(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "toolwire/py.typed" in names and "toolwire/gateway/pipeline.py" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests", "bench", "fuzz", "docs"))]


@pytest.mark.timeout(400)
def test_the_wheel_serves_from_an_empty_environment(wheel: Path, wheels: Path, tmp_path: Path) -> None:
    pip_install(tmp_path / "empty", wheels, str(wheel))
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

TEMPORARY = {"uvx": "uvx --from {wheel} toolwire", "pipx run": "pipx run --spec {wheel} toolwire"}
"""Tools that run a program without installing it."""
INSTALLED = {
    "pip": ("{python} -m venv env && env/bin/pip install -q {wheel}", "env/bin/toolwire"),
    "uv pip": ("uv venv -q env && uv pip install -q --python env/bin/python {wheel}", "env/bin/toolwire"),
    "uv tool": ("uv tool install -q {wheel}", "$HOME/.local/bin/toolwire"),
    "pipx": ("pipx install {wheel}", "$HOME/.local/bin/toolwire"),
}
"""How to install the wheel, and the command that is then there."""
ANSWERS = "demo · "
"""What `toolwire chat` prints when it starts."""


@pytest.fixture(scope="module")
def tools(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the commands uv, uvx and pipx."""
    folder = tmp_path_factory.mktemp("tools")
    pip_install(folder / "env", wheels, *TOOLS)
    return folder / "env" / "bin"


@pytest.fixture
def shell(tools: Path, wheels: Path, tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Runs a line as a person types it, in an empty home. All packages come from the folder of wheels."""
    others = ("PIP_", "PYTHON", "TOOLWIRE_", "UV_", "VIRTUAL_ENV", "XDG_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(others)} | {
        "HOME": str(tmp_path),
        "PATH": f"{tools}:/usr/bin:/bin",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_NO_COMPILE": "1",
        "PIP_NO_INDEX": "1",
        "PIPX_DEFAULT_PYTHON": sys.executable,
        "PIPX_SHARED_LIBS": str(tools.parents[1] / "shared"),
        "UV_CACHE_DIR": str(tools.parents[1] / "cache"),
        "UV_FIND_LINKS": str(wheels),
        "UV_OFFLINE": "1",
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

"""The wheel serves from an empty environment, so that `uvx toolwire serve` and `pipx run toolwire` would."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
import venv
import zipfile
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

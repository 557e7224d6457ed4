"""The first minute: `toolwire serve` without configuration, then the quick start's request."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from doubles.judges import Judge

PAGE = Path(__file__).resolve().parents[3] / "docs" / "quick-start.md"
pytestmark = pytest.mark.timeout(300)


def request() -> str:
    """The page's block, as it is pasted."""
    blocks = re.findall(r"(?s)```sh\n(.*?)```", PAGE.read_text("utf-8"))
    return str(next(block for block in blocks if '"model": "local"' in block))


@pytest.fixture
def home(gguf: Path, tmp_path: Path) -> Path:
    """A home that contains only the pulled model."""
    folder = tmp_path / "toolwire" / "models"
    folder.mkdir(parents=True)
    (folder / "SmolLM2-135M-Instruct.Q4_1.gguf").symlink_to(gguf)
    return tmp_path


def test_the_first_request_of_the_quick_start_gets_a_real_models_call_that_fits_its_schema(
    home: Path, judge: Judge
) -> None:
    block = request()
    found = re.search(r"(?s)-d '(\{.*\})'", block)
    assert found is not None
    body = json.loads(found[1])
    assert body["tool_choice"] == "required" and body["stream"] is True
    environ = {
        "HOME": str(home),
        "XDG_DATA_HOME": str(home),
        "PATH": os.environ["PATH"],
        "TOOLWIRE_STORE__URL": "sqlite://",
    }
    command = [sys.executable, "-m", "toolwire", "serve", "--port", "0"]
    with subprocess.Popen(
        command, env=environ, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            base = server.stdout.readline().removeprefix("listening on ").strip()
            asked = block.replace("http://127.0.0.1:8788/v1", base)
            answered = subprocess.run(
                ["sh", "-c", asked], capture_output=True, timeout=240, check=True
            ).stdout
        finally:
            server.terminate()
            _, logged = server.communicate(timeout=30)
    assert "local  local     constrained" in logged
    judge.stream(answered, "chat")
    chunks = [json.loads(line[6:]) for line in answered.splitlines() if line.startswith(b"data: {")]
    deltas = [
        call
        for chunk in chunks
        for choice in chunk["choices"]
        for call in choice["delta"].get("tool_calls") or ()
    ]
    pieces = [call["function"].get("arguments") or "" for call in deltas]
    assert deltas[0]["function"]["name"] == "get_weather" and len([piece for piece in pieces if piece]) > 1, (
        "streamed as it is decoded"
    )
    arguments = json.loads("".join(pieces))
    assert set(arguments) == {"city"} and isinstance(arguments["city"], str)

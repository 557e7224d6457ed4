"""The settings in docs/clients.md for Obsidian Copilot, OpenCode and Codex work as they are.

Only the port differs here.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from typing import Any

import pytest

from browser import OBSIDIAN, run_browser
from matrix import ROOT, chromium

pytestmark = pytest.mark.timeout(240)
GUIDE = (ROOT / "docs" / "clients.md").read_text("utf-8")
RunClient = Callable[..., list[dict[str, Any]]]


def section(heading: str) -> str:
    found = re.search(rf"(?ms)^## {heading}\n(.*?)(?=^## )", GUIDE)
    assert found, heading
    return found[1]


def pasted(heading: str, gateway: str) -> str:
    """The block of settings."""
    (block,) = re.findall(r"(?ms)^```(?:json|toml)\n(.*?)^```", section(heading))
    assert "127.0.0.1:8788" in block
    return str(block.replace("http://127.0.0.1:8788/v1", gateway))


def last_of(results: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    (result,) = results
    assert result["error"] is None, result["error"]
    return result["steps"][0], result["steps"][-1]


def test_opencode_runs_with_the_file_of_the_guide(gateway: str, run_client: RunClient) -> None:
    (model,) = re.findall(r"`opencode run --model toolwire/(\S+) ", section("OpenCode"))
    question = 'Call the tool bash with the arguments {"command": "cat weather.txt", "description": "Reads"}'
    job = {"api": "chat", "model": model, "settings": pasted("OpenCode", gateway), "question": question}
    first, last = last_of(run_client("opencode", gateway, [job]))
    assert [call["name"] for call in first["calls"]] == ["bash"]
    assert "rain in Paris" in last["text"]


def test_codex_runs_with_the_file_of_the_guide(gateway: str, run_client: RunClient) -> None:
    settings = pasted("Codex CLI", gateway)
    question = 'Call the tool exec_command with the arguments {"cmd": "cat weather.txt"}'
    job = {
        "api": "responses",
        "model": tomllib.loads(settings)["model"],
        "settings": settings,
        "question": question,
    }
    first, last = last_of(run_client("codex", gateway, [job]))
    assert [call["arguments"]["command"] for call in first["calls"]] == ["/bin/bash -lc 'cat weather.txt'"]
    assert "rain in Paris" in last["text"]


@pytest.fixture(scope="module")
def copilot(gateway: str) -> dict[str, str]:
    """Obsidian Copilot's fields, from the guide's table."""
    rows = dict(re.findall(r"(?m)^\| ([\w ]+?) \| (.*?) \|$", section("Obsidian Copilot")))
    values = {field: re.findall(r"`([^`]+)`", value) for field, value in rows.items()}
    assert rows["Provider"] == "*3rd party (openai format)*" and rows["Enable CORS"].startswith("off")
    base = values["Base URL"][0].replace("http://127.0.0.1:8788/v1", gateway)
    assert base == gateway, "with /v1"
    return {"model": values["Model name"][0], "apiKey": values["API key"][-1], "baseURL": base}


@pytest.mark.parametrize("stream", [True, False])
def test_obsidian_copilots_fields_lead_its_langchain_through_a_loop(
    copilot: dict[str, str], run_client: RunClient, stream: bool
) -> None:
    """Its quick chat is LangChain's ChatOpenAI with these fields."""
    first, last = last_of(run_client("langchain-node", "", [{"api": "chat", "stream": stream, **copilot}]))
    assert [call["name"] for call in first["calls"]] == ["get_weather"]
    assert "rain in" in last["text"]


def test_obsidian_copilots_fields_work_from_its_window_without_its_cors_mode(copilot: dict[str, str]) -> None:
    program = chromium()
    if program is None:
        pytest.skip("Chromium is missing")  # if clients must be installed, test_client_matrix.py fails
    browsed = run_browser(program, [{"api": api, "stream": True, **copilot} for api in ("chat", "responses")])
    for result in browsed.results:
        _, last = last_of([result])
        assert "rain in" in last["text"]
    assert {preflight.asked["origin"] for preflight in browsed.preflights} == {OBSIDIAN}


def test_the_files_of_the_guide_name_the_model_that_the_guide_runs() -> None:
    block = json.loads(pasted("OpenCode", "http://127.0.0.1:1/v1"))
    assert list(block["provider"]["toolwire"]["models"]) == ["demo"]
    assert "`opencode.json`" in section("OpenCode")

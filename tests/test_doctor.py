"""`toolwire doctor`: what works, what is missing, and how to fix it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolwire.__main__ import main


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def doctor(config: str, *arguments: str) -> tuple[int, str]:
        file = tmp_path / "toolwire.toml"
        file.write_text(config)
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.delenv("CODEX_HOME", raising=False)
        status = main(["doctor", "--config", str(file), *arguments])
        return status, capsys.readouterr().out

    return doctor


def test_a_model_that_works_and_a_codex_that_is_missing(run: Any) -> None:
    status, page = run('[models.demo]\nbackend = "scripted"\n[models.codex]\nbackend = "codex"\nbin = "no-such-codex"\n')
    assert status == 1
    assert "✓ model demo" in page and "scripted, tools native" in page
    assert "✗ model codex" in page and "no command 'no-such-codex'" in page and "→ npm install -g @openai/codex" in page


def test_an_upstream_that_does_not_answer_is_told_with_what_to_do(run: Any) -> None:
    status, page = run('[models.far]\nbackend = "openai"\nbase_url = "http://127.0.0.1:9/v1"\n', "--json")
    findings = json.loads(page)
    assert status == 1 and findings[0]["subject"] == "model far" and findings[0]["mark"] == "problem" and "start its server" in findings[0]["fix"]


def test_a_server_with_models_of_its_own_and_a_key_that_is_none_are_told(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-\nx")
    status, page = run('[models.all]\nbackend = "openai"\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "*"\n', "--json")
    findings = {finding["subject"]: finding for finding in json.loads(page)}
    assert status == 1 and findings["model all"]["mark"] == "problem" and "did not list any model" in findings["model all"]["told"]
    assert findings["openai"]["mark"] == "problem" and "OPENAI_API_KEY" in findings["openai"]["told"] and "sk-" not in page


def test_an_embedded_model_without_its_file_or_without_llamacpp_is_told_with_what_to_do(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from toolwire.backends.local import model

    config = '[models.b]\nbackend = "local"\ngguf = "/nope.gguf"\n[models.c]\nbackend = "local"\n'
    monkeypatch.setenv("TOOLWIRE_DATA", "/nowhere")
    monkeypatch.setattr(model, "importable", lambda: True)
    status, page = run(config, "--json")
    named, pulled = (finding for finding in json.loads(page) if finding["subject"] in ("model b", "model c"))
    assert status == 1 and named["mark"] == pulled["mark"] == "problem"
    assert named["told"] == "no file /nope.gguf" and "correct gguf of the model" in named["fix"]
    assert pulled["told"] == "no model was pulled" and pulled["fix"] == "toolwire local pull"
    monkeypatch.setattr(model, "importable", lambda: False)
    _, page = run(config)
    assert page.count("llama.cpp is not installed") == 2 and page.count("→ pip install 'toolwire[local]'") == 2
    _, page = run('[models.demo]\nbackend = "scripted"\n')
    assert "– embedded model" in page


def test_an_embedded_model_with_its_file_is_told_by_its_name(run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from toolwire.backends.local import model

    (tmp_path / "mine.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(model, "importable", lambda: True)
    _, page = run(f'[models.b]\nbackend = "local"\ngguf = "{tmp_path}/mine.gguf"\n')
    assert "✓ model b" in page and "mine.gguf, tools constrained" in page

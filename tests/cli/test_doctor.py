"""`toolwire doctor`: what works, what is missing, and how to fix it."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from toolwire.cli.main import main
from toolwire.settings.extras import add_extra, own_command
from toolwire.store.store import Store
from toolwire.tools.mcp.pins import Pinned, Pins


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
    status, page = run(
        '[models.demo]\nbackend = "scripted"\n[models.codex]\nbackend = "codex"\nbin = "no-such-codex"\n'
    )
    assert status == 1
    assert "✓ model demo" in page and "scripted, tools: native" in page
    assert (
        "✗ model codex" in page
        and "the command 'no-such-codex' was not found" in page
        and "→ npm install -g @openai/codex" in page
    )


def test_an_upstream_that_does_not_answer_is_a_problem_with_a_fix(run: Any) -> None:
    status, page = run('[models.far]\nbackend = "openai"\nbase_url = "http://127.0.0.1:9/v1"\n', "--json")
    findings = json.loads(page)
    assert (
        status == 1
        and findings[0]["subject"] == "model far"
        and findings[0]["mark"] == "problem"
        and "start the server" in findings[0]["fix"]
    )


def test_a_server_without_models_and_an_invalid_key_are_problems(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-\nx")
    status, page = run(
        '[models.all]\nbackend = "openai"\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "*"\n', "--json"
    )
    findings = {finding["subject"]: finding for finding in json.loads(page)}
    assert (
        status == 1
        and findings["model all"]["mark"] == "problem"
        and "nothing listens at http://127.0.0.1:9/v1" in findings["model all"]["told"]
    )
    assert (
        findings["openai"]["mark"] == "problem"
        and "OPENAI_API_KEY" in findings["openai"]["told"]
        and "sk-" not in page
    )


def test_an_embedded_model_without_its_file_or_without_llamacpp_is_a_problem_with_a_fix(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from toolwire.backends.local import model

    config = '[models.b]\nbackend = "local"\ngguf = "/nope.gguf"\n[models.c]\nbackend = "local"\n'
    monkeypatch.setenv("TOOLWIRE_DATA", "/nowhere")
    monkeypatch.setattr(model, "importable", lambda: True)
    status, page = run(config, "--json")
    named, pulled = (finding for finding in json.loads(page) if finding["subject"] in ("model b", "model c"))
    assert status == 1 and named["mark"] == pulled["mark"] == "problem"
    assert named["told"] == "no file /nope.gguf" and "correct the model's gguf" in named["fix"]
    assert pulled["told"] == "no model is downloaded" and pulled["fix"] == own_command("local pull")
    monkeypatch.setattr(model, "importable", lambda: False)
    _, page = run(config)
    assert page.count("llama.cpp is not installed") == 2 and page.count(f"→ {add_extra('local')}") == 2
    _, page = run('[models.demo]\nbackend = "scripted"\n')
    assert "– embedded model" in page


def test_an_embedded_model_is_shown_with_the_name_of_its_file(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from toolwire.backends.local import model

    (tmp_path / "mine.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(model, "importable", lambda: True)
    _, page = run(f'[models.b]\nbackend = "local"\ngguf = "{tmp_path}/mine.gguf"\n')
    assert "✓ model b" in page and "mine.gguf, tools: constrained" in page


def test_the_vault_and_the_store_are_checked_and_not_changed(run: Any, tmp_path: Path) -> None:
    demo = '[models.demo]\nbackend = "scripted"\n'
    store = tmp_path / "data" / "toolwire.db"
    config = f'{demo}[store]\nurl = "sqlite:///{store}"\n[vault]\nroot = "~/nope"\nenabled = true\n'
    status, page = run(config)
    assert (
        status == 1
        and f"{tmp_path}/nope cannot be read: No such file or directory" in page
        and "correct vault.root" in page
    )
    assert f"{store}, created at first use" in page and not store.parent.exists()
    (tmp_path / "nope").mkdir()
    status, page = run(config, "--json")
    findings = {finding["subject"]: finding for finding in json.loads(page)}
    assert findings["vault"]["mark"] == "ok"
    assert findings["vault"]["told"] == f"{tmp_path}/nope, for the models *"
    _, page = run(f'{demo}[store]\nurl = "sqlite://"\n')
    assert "– vault" in page and "no vault is enabled" in page and "in memory" in page


def test_a_store_that_cannot_be_used_is_a_problem_and_an_old_one_is_not_changed(
    run: Any, tmp_path: Path
) -> None:
    store = tmp_path / "toolwire.db"
    config = f'[models.demo]\nbackend = "scripted"\n[store]\nurl = "sqlite:///{store}"\n'
    store.write_text("certainly not a database " * 200)
    status, page = run(config)
    assert status == 1 and "✗ store" in page and f"{store}: cannot be opened: file is not a database" in page
    for version, shown in (
        (8, f"{store}\n"),
        (7, f"{store}: written by a Toolwire before 0.1"),
        (999, f"{store}: written by a newer Toolwire"),
    ):
        store.unlink()
        with closing(sqlite3.connect(store)) as connection:
            connection.execute(f"PRAGMA user_version = {version}")
        before = store.read_bytes()
        assert shown in run(config)[1] and store.read_bytes() == before


SERVERS = """
[models.demo]
backend = "scripted"
[mcp.files]
command = ["sh", "-c", "exit 1"]
allow = ["raed_file", "read_file path=/srv/**"]
[mcp.wrong]
command = ["sh"]
deny = ["read path"]
[mcp.gone]
command = ["/no/such/program"]
[mcp.secret]
url = "http://127.0.0.1:9/mcp"
headers = { Authorization = "env:NO_SUCH_SECRET" }
"""


async def test_mcp_servers_are_checked_without_starting_them(run: Any, tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/store.db")
    definition = {"name": "read_file", "inputSchema": {"type": "object", "properties": {"path": {}}}}
    async with store:
        await Pins(store).first("mcp:files", [Pinned("read_file", "sha256:1", json.dumps(definition))])
    config = f'[store]\nurl = "sqlite:///{tmp_path}/store.db"\n{SERVERS}'
    status, page = await asyncio.to_thread(run, config, "--json")
    found = [one for one in json.loads(page) if one["subject"].startswith("mcp ")]
    told = {f"{one['subject']}: {one['mark']}": one["told"] for one in found}
    assert status == 1
    assert told == {
        "mcp files: problem": (
            'a rule has no effect: allow "raed_file": the server has no tool raed_file; '
            "did you mean read_file?"
        ),
        "mcp files: ok": "1 known tool, not started here; toolwire mcp list starts it",
        "mcp wrong: problem": "deny: the rule 'read path': path is not a condition; write ARGUMENT=VALUE",
        "mcp gone: problem": "there is no program /no/such/program",
        "mcp secret: problem": told["mcp secret: problem"],
    }
    assert "NO_SUCH_SECRET" in told["mcp secret: problem"]
    assert all(one["fix"].startswith(("correct [mcp.", "install it")) for one in found if one["mark"] != "ok")

"""Models that are found on a machine without settings, and how they are listed."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from toolwire.backends.local.pull import BETTER, DEFAULT
from toolwire.cli.main import main
from toolwire.gateway.catalog import Catalog
from toolwire.gateway.pipeline import Gateway
from toolwire.settings import discover as first_run
from toolwire.settings.discover import address, beside, discover
from toolwire.settings.types import DEFAULT_MODELS, ModelSettings, ServerSettings, Settings
from toolwire.testing import FakeUpstream


@pytest.mark.parametrize(
    ("named", "meant"),
    [
        ("", "http://127.0.0.1:11434/v1"),
        ("10.0.0.5", "http://10.0.0.5:11434/v1"),
        ("10.0.0.5:8080", "http://10.0.0.5:8080/v1"),
        ("0.0.0.0:11434", "http://127.0.0.1:11434/v1"),
        ("https://ollama.example:443/", "https://ollama.example:443/v1"),
        ("http://box", "http://box:11434/v1"),
        ("[::1]:5000", "http://[::1]:5000/v1"),
        ("[::1]", "http://[::1]:11434/v1"),
    ],
)
def test_what_a_variable_such_as_ollama_host_means(named: str, meant: str) -> None:
    assert address(named, "http://127.0.0.1:11434/v1") == meant


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An empty environment: no server answers, and no model was downloaded."""
    monkeypatch.setattr("toolwire.backends.local.pull.available", lambda name: False)
    return {
        "HOME": str(tmp_path),
        "PATH": str(tmp_path),
        "OLLAMA_HOST": "127.0.0.1:9",
        "LMSTUDIO_HOST": "127.0.0.1:9",
    }


async def test_a_bare_machine_has_the_demo(empty: dict[str, str]) -> None:
    assert await discover(empty) == DEFAULT_MODELS


async def test_a_downloaded_model_comes_first_and_those_for_trials_last(
    empty: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled = {DEFAULT}
    monkeypatch.setattr("toolwire.backends.local.pull.available", lambda name: name in pulled)
    found = await discover({**empty, "OPENAI_API_KEY": "sk-x"})
    assert [model.id for model in found] == ["openai", "local", "demo"]
    pulled.add(BETTER)
    found = await discover({**empty, "OPENAI_API_KEY": "sk-x"})
    assert [model.id for model in found] == [BETTER, "openai", "local", "demo"]
    assert found[0] == ModelSettings(BETTER, "local", {"gguf": BETTER})
    catalog = Catalog(found)
    assert {id: catalog.about(id).is_trial for id in (BETTER, "local", "demo")} == {
        BETTER: False,
        "local": True,
        "demo": True,
    }
    assert (
        catalog.about("local").title == "SmolLM2 135M"
        and catalog.about("local").use == "for trying out the API"
    )
    assert catalog.about("local").no_tools and not catalog.about(BETTER).no_tools
    assert not catalog.about("no-such-model").is_trial


async def test_codex_is_offered_if_somebody_has_logged_in(empty: dict[str, str], tmp_path: Path) -> None:
    program = tmp_path / "codex"
    program.write_text("#!/bin/sh\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    assert await discover(empty) == DEFAULT_MODELS
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex" / "auth.json").write_text("{}")
    assert (await discover(empty))[0] == ModelSettings("codex", "codex")


async def test_a_key_offers_its_provider_and_is_never_shown(empty: dict[str, str]) -> None:
    found = await discover(
        {**empty, "ANTHROPIC_API_KEY": "sk-ant-x", "GOOGLE_API_KEY": "g", "OPENROUTER_API_KEY": "or"}
    )
    assert [model.id for model in found] == ["openrouter", "anthropic", "google", "demo"]
    assert all(model.secret == frozenset({"api_key"}) for model in found[:-1])
    assert found[1].options == {"model": "anthropic:*", "api_key": "sk-ant-x"}


async def test_blanks_around_a_key_are_removed_and_invalid_keys_are_ignored(empty: dict[str, str]) -> None:
    found = await discover(
        {
            **empty,
            "ANTHROPIC_API_KEY": " sk-ant-x\r\n",
            "OPENAI_API_KEY": "sk-\nx",
            "OPENROUTER_API_KEY": "  ",
        }
    )
    assert [(model.id, model.options.get("api_key")) for model in found[:-1]] == [("anthropic", "sk-ant-x")]


async def test_a_server_that_answers_is_offered_with_all_its_models(empty: dict[str, str]) -> None:
    async with FakeUpstream() as upstream:
        host = upstream.base_url.removeprefix("http://").removesuffix("/v1")
        found = await discover({**empty, "LMSTUDIO_HOST": host})
    assert [model.id for model in found] == ["lmstudio", "demo"]
    assert found[0].options == {"profile": "lmstudio", "base_url": upstream.base_url, "model": "*"}


async def test_a_server_that_never_answers_does_not_delay_the_start(
    empty: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_run, "LOOK_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert (
            await discover({**empty, "OLLAMA_HOST": f"127.0.0.1:{silent.getsockname()[1]}"}) == DEFAULT_MODELS
        )


async def test_another_kind_of_server_on_the_same_port_is_ignored(empty: dict[str, str]) -> None:
    async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")
        writer.close()

    server = await asyncio.start_server(hello, "127.0.0.1", 0)
    async with server:
        assert (
            await discover({**empty, "OLLAMA_HOST": f"127.0.0.1:{server.sockets[0].getsockname()[1]}"})
            == DEFAULT_MODELS
        )


def test_models_shows_what_was_found_with_its_dialect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "toolwire.toml"
    config.write_text(
        '[models.a]\nbackend = "scripted"\n[models.b]\nbackend = "scripted"\ntools = "emulated"\n'
        '[models.c]\nbackend = "scripted"\ntools = "emulated"\ndialects = ["qwen_xml", "hermes"]\n'
    )
    assert main(["models", "--config", str(config), "--json"]) == 0
    rows = {row["id"]: row for row in json.loads(capsys.readouterr().out)}
    assert (rows["a"]["dialect"], rows["b"]["dialect"], rows["c"]["dialect"]) == (
        "",
        "sentinel+hermes+use_tool",
        "qwen_xml+hermes",
    )
    assert main(["models", "--config", str(config)]) == 0
    assert "DIALECT" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "offered"),
    [
        ({}, True),
        ({"discover": "off"}, False),
        ({"keys": ("k",)}, False),
        ({"admin_keys": ("k",)}, False),
        ({"host": "0.0.0.0", "keys": ("k",)}, False),
        ({"trusted_proxies": ("10.0.0.1",)}, False),
        ({"host": "0.0.0.0", "keys": ("k",), "discover": "on"}, True),
    ],
)
def test_a_shared_server_does_not_offer_what_is_on_the_machine(
    settings: dict[str, Any], offered: bool
) -> None:
    models = (ModelSettings("mine", "scripted"),)
    assert (beside(Settings(server=ServerSettings(**settings), models=models)) is not None) is offered


async def test_models_on_the_machine_stay_beside_configured_ones_and_do_not_delay_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looking, found = asyncio.Event(), asyncio.Event()

    async def slow(environ: Any = None) -> tuple[ModelSettings, ...]:
        looking.set()
        await found.wait()
        same, other = ModelSettings("mine", "codex"), ModelSettings("copy", "scripted", {"script": "say a"})
        return same, other, ModelSettings("new", "scripted"), *DEFAULT_MODELS

    monkeypatch.setattr(first_run, "discover", slow)
    settings = Settings(models=(ModelSettings("mine", "scripted", {"script": "say a"}),))
    gateway = Gateway(settings, discover=beside(settings))
    async with asyncio.timeout(0.5):
        await gateway.start()
    await looking.wait()
    assert gateway.catalog.listed() == ["mine"]
    found.set()
    async with asyncio.timeout(5):
        while "new" not in gateway.catalog:
            await asyncio.sleep(0)
    assert gateway.catalog.listed() == ["mine", "new"] and gateway.catalog.kind("mine") == "scripted"
    await gateway.close()


def test_models_shows_every_configured_model_and_server_with_its_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "toolwire.toml"
    config.write_text(
        '[models.demo]\nbackend = "scripted"\n[models.keyless]\nbackend = "openai"\napi_key = "env:NOT_SET"\n'
        '[models.dead]\nbackend = "ollama"\nbase_url = "http://127.0.0.1:9/v1"\n'
        '[models.server]\nbackend = "vllm"\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "*"\n'
        '[models.agent]\nbackend = "codex"\nbin = "no-such-codex"\n'
    )
    assert main(["models", "--config", str(config), "--json"]) == 0
    rows = {row["id"]: row for row in json.loads(capsys.readouterr().out)}
    assert (rows["demo"]["state"], rows["demo"]["reason"]) == ("available", "")
    for id, said in (
        ("keyless", "NOT_SET is not set"),
        ("dead", "does not answer"),
        ("server/*", "did not list any model"),
        ("agent", "there is no command 'no-such-codex'"),
    ):
        assert rows[id]["state"] == "unavailable" and said in rows[id]["reason"], rows[id]
    assert main(["models", "--config", str(config)]) == 0
    assert "unavailable: api_key: the environment variable NOT_SET is not set" in capsys.readouterr().out


@pytest.mark.process
def test_the_first_run_prints_a_short_table_and_one_line(tmp_path: Path) -> None:
    """Runs a real process without settings. The models are on stderr, the address is on stdout."""
    environ: dict[str, Any] = {
        "HOME": str(tmp_path),
        "PATH": os.environ["PATH"],
        "OLLAMA_HOST": "127.0.0.1:9",
        "LMSTUDIO_HOST": "127.0.0.1:9",
    }
    command = [sys.executable, "-m", "toolwire", "serve", "--port", "0"]
    with subprocess.Popen(
        command, env=environ, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.terminate()
        out, err = process.communicate(timeout=20)
    assert line.startswith("listening on http://127.0.0.1:") and out == ""
    assert (
        "MODEL" in err
        and "demo   scripted  native" in err
        and "toolwire local pull" in err
        and "toolwire doctor" in err
    )

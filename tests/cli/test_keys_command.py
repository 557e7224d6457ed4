"""`toolwire keys`: adds, lists, rotates and revokes keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolwire.cli.main import main


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("TOOLWIRE_CONFIG", "XDG_CONFIG_HOME", "PORT", "PROXY_API_KEY", "PROXY_HOST"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "toolwire.toml").write_text(f'[store]\nurl = "sqlite:///{tmp_path}/data/toolwire.db"\n')
    return tmp_path


@pytest.fixture
def keys(capsys: pytest.CaptureFixture[str]) -> Any:
    """`keys("add", "laptop")` returns what the command prints; with `--json`, the parsed value."""

    def run(*arguments: str, status: int = 0) -> Any:
        assert main(["keys", *arguments]) == status
        shown = capsys.readouterr()
        if status:
            assert shown.err.count("\n") == 1 and "Traceback" not in shown.err
            return shown.err
        return json.loads(shown.out) if "--json" in arguments else shown.out

    return run


def test_a_key_is_shown_once_and_listed_without_it(keys: Any) -> None:
    shown = keys("add", "laptop")
    (text,) = [word for word in shown.split() if word.startswith("tw_")]
    assert len(text) == 43 and "once" in shown
    listed = keys("list")
    assert (
        "laptop" in listed
        and text[:8] in listed
        and text not in listed
        and "all models" in listed
        and "never" in listed
    )
    assert keys() == listed


def test_scopes_and_limits_are_stored(keys: Any) -> None:
    made = keys(
        *(
            "add",
            "robot",
            "--models",
            "qwen*,claude",
            "m",
            "--no-tools",
            "--admin",
            "--requests-per-minute",
            "5",
            "--tokens-per-minute",
            "600",
        ),
        *(
            "--concurrent",
            "2",
            "--parked",
            "1",
            "--budget-tokens",
            "7000",
            "--budget-requests",
            "0",
            "--json",
        ),
    )
    assert made["key"].startswith("tw_") and made["scopes"] == {
        "models": ["qwen*", "claude", "m"],
        "tools": False,
        "admin": True,
    }
    assert made["limits"] == {
        "requests_per_minute": 5,
        "tokens_per_minute": 600,
        "concurrent": 2,
        "parked": 1,
        "budget_tokens": 7000,
        "budget_requests": 0,
    }
    (listed,) = keys("list", "--json")
    assert listed == {name: value for name, value in made.items() if name != "key"} and "sha256" not in listed
    assert "qwen*, claude, m, no tools, admin" in keys("list") and "7,000 tok/month" in keys("list")


def test_a_rotated_key_has_two_texts_until_the_grace_period_ends(keys: Any) -> None:
    first = keys("add", "laptop", "--concurrent", "2", "--json")
    shown = keys("rotate", "laptop", "--grace", "30m")
    assert "works for 30m more" in shown
    old, new = keys("list", "--json")
    assert (
        old["id"] == first["id"] == new["rotated_from"]
        and new["limits"] == {"concurrent": 2}
        and new["revoked_at"] is None
    )
    assert 1790 < old["revoked_at"] - new["created_at"] <= 1800.5
    _, was, now = keys("list").splitlines()
    assert was.endswith("replaced, ends in 29 min") and now.endswith("active")
    keys("rotate", "laptop", "--grace", "0")
    assert [line.split()[-1] for line in keys("list", "--all").splitlines()[1:]] == [
        "min",
        "replaced",
        "active",
    ]
    assert [one["rotated_from"] for one in keys("list", "--json")] == ["", first["id"]]
    assert len(keys("revoke", "laptop", "--json")["revoked"]) == 2
    assert keys("list", "--json") == [] and len(keys("list", "--all", "--json")) == 3


def test_a_key_is_revoked_by_name_id_or_the_beginning_of_it(keys: Any) -> None:
    ids = [keys("add", name, "--json")["id"] for name in ("a", "b", "c")]
    keys("revoke", "a")
    assert "within 5 s" in keys("revoke", ids[1])
    assert keys("revoke", ids[2].removeprefix("key_")[:8], "--json") == {"revoked": [ids[2]]}
    assert keys("list") == "there are no keys; toolwire keys add NAME creates one\n"
    assert keys("list", "--all").count("revoked") == 3


def test_the_time_of_a_revocation_is_listed_whatever_this_machines_clock_says(
    keys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = keys("add", "laptop", "--json")
    keys("revoke", "laptop")
    (listed,) = keys("list", "--all", "--json")
    assert 0 <= listed["revoked_at"] - made["created_at"] < 60
    monkeypatch.setattr("toolwire.cli.keys.time.time", lambda: made["created_at"] - 3600)
    assert keys("list", "--json") == [] and keys("list", "--all").splitlines()[1].endswith(" revoked")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["add"], "name is missing"),
        (["revoke"], "name is missing"),
        (["revoke", "nobody"], "there is no active key"),
        (["rotate", "nobody"], "there is no active key to rotate"),
        (["rotate", "laptop", "--grace", "soon"], "--grace soon"),
        (["add", "laptop"], "laptop already"),
        (["add", "x", "--concurrent", "-1"], "--concurrent"),
        (["add", "x" * 90], "1 to 80"),
    ],
)
def test_an_error_is_one_line(keys: Any, arguments: list[str], word: str) -> None:
    keys("add", "laptop")
    assert word in keys(*arguments, status=2)


def test_an_exposed_server_may_start_once_there_is_a_key(
    keys: Any, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (home / "toolwire.toml").open("a") as file:
        file.write('[server]\nhost = "0.0.0.0"\n[models.demo]\nbackend = "scripted"\n')
    assert main(["serve", "--print-config"]) == 2
    assert "toolwire keys add" in capsys.readouterr().err
    keys("add", "laptop")
    assert main(["serve", "--print-config"]) == 0
    assert 'host = "0.0.0.0"' in capsys.readouterr().out

"""The file of the settings page is below every other layer, and never stops Toolwire."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from toolwire.settings import page_file
from toolwire.settings.load import load
from toolwire.settings.page_file import PageFileError, PageSettings
from toolwire.settings.types import Settings
from toolwire.tools.mcp.policy import Policy

OPENAI = {"backend": "openai", "base_url": "http://h/v1", "model": "m"}


def loaded(folder: Path, config: str = "", **environ: str) -> Settings:
    file = folder / "toolwire.toml"
    file.write_text(f'[store]\nurl = "sqlite:///{folder}/t.db"\n{config}')
    return load(str(file), {"HOME": str(folder), **environ}, {})


def test_what_is_written_is_read_again_by_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / page_file.FILE_NAME
    rules = {"files": ['read {"path": "/a\\n\\u007f ü"}', "list_*"], "a-b": ["x"]}
    kept = PageSettings('/notes "ü"', {"a.b": {"backend": "scripted"}, "q": OPENAI}, rules)
    page_file.write(path, kept)
    assert page_file.read(path) == kept
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in path.parent.iterdir()] == [page_file.FILE_NAME]


def test_file_and_environment_override_the_page(tmp_path: Path) -> None:
    page_file.write(tmp_path / page_file.FILE_NAME, PageSettings("/page", {"q": OPENAI, "p": OPENAI}))
    assert loaded(tmp_path).vault.root == "/page"
    own = loaded(tmp_path, '[vault]\nroot = "/own"\n[models.q]\nbackend = "scripted"\n')
    assert own.vault.root == "/own" and [(one.id, one.backend) for one in own.models] == [
        ("q", "scripted"),
        ("p", "openai"),
    ]
    assert own.origins["models.p"] == own.page_file and own.origins["models.q"].endswith("toolwire.toml")
    changed = loaded(tmp_path, "", TOOLWIRE_VAULT__ROOT="/env", TOOLWIRE_MODELS__P__MODEL="other")
    assert changed.vault.root == "/env"
    assert changed.origins["vault.root"] == "environment TOOLWIRE_VAULT__ROOT"
    assert {one.id: one.options["model"] for one in changed.models} == {"q": "m", "p": "other"}
    assert changed.origins["models.p"] == "environment TOOLWIRE_MODELS__P__MODEL"


@pytest.mark.parametrize(
    "text",
    [
        *("not toml [", "[server]\nport = 1\n", "[models]\nx = 1\n", "[vault]\nroot = 1\n", "\x00"),
        *("vault = 2\n", "mcp = 1\n", "[mcp]\nfiles = 1\n", "[mcp.files]\nallow = [1]\n"),
        *('[mcp.files]\ncommand = ["sh"]\n', '[mcp.files]\nallow = ["x"]\ndeny = []\n'),
    ],
)
def test_a_damaged_file_is_ignored_with_one_line_and_kept_when_the_page_writes(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / page_file.FILE_NAME
    path.write_text(text)
    settings = loaded(tmp_path, '[models.own]\nbackend = "scripted"\n[aliases]\nx = "of-the-page"\n')
    assert [model.id for model in settings.models] == ["own"] and settings.server.port == 8788
    assert page_file.FILE_NAME in settings.page_problem and "\n" not in settings.page_problem
    with pytest.raises(PageFileError):
        page_file.read(path)
    page_file.write(path, PageSettings("/notes"))
    assert path.with_name(path.name + ".damaged").read_text() == text
    assert loaded(tmp_path).vault.root == "/notes"


def test_a_wrong_model_of_the_page_does_not_stop_the_others(tmp_path: Path) -> None:
    models = {"bad": {"backend": "no-such"}, "good": {"backend": "scripted"}}
    page_file.write(tmp_path / page_file.FILE_NAME, PageSettings("", models))
    usable = [model.id for model in loaded(tmp_path).models if not getattr(model, "problem", "")]
    assert usable == ["good"]


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "postgresql://h/d"])
def test_without_a_store_file_there_is_no_page_file(url: str) -> None:
    assert page_file.path_beside(url, {"HOME": "/home/me"}) is None


def test_rules_of_the_page_add_to_those_of_a_configured_server(tmp_path: Path) -> None:
    rules = {"files": ["read {}", "move_file"], "other": ["*"]}
    page_file.write(tmp_path / page_file.FILE_NAME, PageSettings(rules=rules))
    config = (
        '[mcp.files]\ncommand = ["x"]\nallow = ["list_*"]\ndeny = ["read"]\n[mcp.web]\nurl = "http://h"\n'
    )
    files, web = loaded(tmp_path, config).mcp.servers
    assert (files.allow, files.page_allow) == (("list_*",), ("read {}", "move_file"))
    assert (web.name, web.page_allow) == ("web", ())  # the page cannot add a server
    policy = Policy.of(files)
    assert [policy.decide(tool, {}).action for tool in ("read", "move_file")] == ["deny", "allow"]

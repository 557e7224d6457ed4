"""Install hints fit how Toolwire was installed, and never name a stranger's package."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from importlib import metadata, util
from pathlib import Path
from typing import Any

import pytest

from toolwire.settings import extras

ROOT = Path(__file__).resolve().parents[2]
WHEEL = "toolwire-0.2.0-py3-none-any.whl"
REQUIRES = [
    "aiohttp<4,>=3.14",
    "xllamacpp<2027,>=2026.10; extra == 'local'",
    "psycopg[binary]<4,>=3.3; extra == 'service'",
    'redis<9,>=8.1; extra == "service"',
    "rich<16,>=14; extra == 'chat'",
    "pytest==9.2.0; extra == 'test'",
]


class Installed:
    """A Toolwire installed in a folder as a certain tool leaves it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, prefix: Path) -> None:
        self.monkeypatch, self.prefix = monkeypatch, prefix
        self.origin: dict[str, Any] = {}
        self.packages = {"toolwire"}
        (prefix / "bin").mkdir(parents=True)
        (prefix / "bin" / "toolwire").write_text("")
        monkeypatch.setattr(sys, "prefix", str(prefix))
        monkeypatch.setattr(sys, "executable", str(prefix / "bin" / "python"))
        monkeypatch.setattr(sys, "argv", ["toolwire", "serve", "--port", "0"])
        monkeypatch.setattr(
            extras, "__file__", str(prefix / "lib/python3/site-packages/toolwire/settings/extras.py")
        )
        monkeypatch.setattr(metadata, "distribution", lambda name: self)
        monkeypatch.setattr(metadata, "version", self._version)
        monkeypatch.setattr(util, "find_spec", lambda name: None if self.without_pip else object())
        monkeypatch.setenv("PATH", "/usr/bin")

    without_pip = False
    version = "0.2.0"
    requires = REQUIRES

    def read_text(self, name: str) -> str | None:
        return json.dumps(self.origin) if name == "direct_url.json" and self.origin else None

    def _version(self, name: str) -> str:
        if name not in self.packages:
            raise metadata.PackageNotFoundError(name)
        return "1"

    def from_wheel(self) -> str:
        file = self.prefix / WHEEL
        file.write_bytes(b"")
        self.origin = {"url": file.as_uri(), "archive_info": {}}
        return file.as_uri()


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.chdir(tmp_path)
    return lambda path="venv": Installed(monkeypatch, tmp_path / path)


def words(command: str) -> list[str]:
    return shlex.split(command)


def test_pip_is_the_one_of_the_running_environment_and_gets_the_packages(environment: Any) -> None:
    environment()
    assert words(extras.add_extra("local")) == [
        *("venv/bin/python", "-m", "pip", "install"),
        "xllamacpp<2027,>=2026.10",
    ]
    assert words(extras.add_extra("service"))[4:] == ["psycopg[binary]<4,>=3.3", "redis<9,>=8.1"]
    assert words(extras.add_packages("a[b]>1"))[4:] == ["a[b]>1"]


def test_an_environment_without_pip_uses_uv(environment: Any) -> None:
    environment().without_pip = True
    assert words(extras.add_extra("chat")) == [
        *("uv", "pip", "install", "--python", "venv/bin/python"),
        "rich<16,>=14",
    ]


def test_pipx_injects_into_its_environment(environment: Any) -> None:
    (environment("pipx/venvs/toolwire-beta").prefix / "pipx_metadata.json").write_text("{}")
    assert words(extras.add_extra("local")) == [
        *("pipx", "inject", "toolwire-beta"),
        "xllamacpp<2027,>=2026.10",
    ]


def test_a_temporary_pipx_environment_is_run_again_from_its_wheel(environment: Any) -> None:
    here = environment("cache/pipx/759b499be5d00c1")
    (here.prefix / "pipx_metadata.json").write_text("{}")
    url = here.from_wheel()
    assert words(extras.add_extra("local")) == [
        *("pipx", "run", "--spec", f"toolwire[local] @ {url}", "toolwire", "serve")
    ]


@pytest.mark.parametrize("cache", ["archive-v0", "environments-v2"])
def test_uvx_is_run_again_from_its_wheel_with_what_it_already_has(environment: Any, cache: str) -> None:
    here = environment(f"uv/{cache}/WkHRfXa51a0y")
    here.packages.add("rich")
    url = here.from_wheel()
    assert words(extras.add_extra("local")) == [
        *("uvx", "--from", f"toolwire[chat,local] @ {url}", "toolwire", "serve")
    ]
    assert extras.own_command("local pull").endswith(f"'toolwire[chat] @ {url}' toolwire local pull")
    assert words(extras.add_packages("a"))[3:] == ["--with", "a", "toolwire", "serve"]


def test_uvx_from_an_index_names_the_exact_version(environment: Any) -> None:
    environment("uv/archive-v0/WkHRfXa51a0y")
    assert words(extras.add_extra("local"))[2] == "toolwire[local]==0.2.0"


def test_a_uv_tool_is_installed_again_or_extended_where_its_wheel_is_gone(environment: Any) -> None:
    here = environment("uv/tools/toolwire")
    (here.prefix / "uv-receipt.toml").write_text("")
    url = here.from_wheel()
    assert words(extras.add_extra("local")) == [
        *("uv", "tool", "install", "--force", f"toolwire[local] @ {url}")
    ]
    (here.prefix / WHEEL).unlink()
    assert words(extras.add_extra("local"))[:4] == ["uv", "pip", "install", "--python"]


def test_an_image_is_built_again_with_the_extras_it_already_has(environment: Any) -> None:
    here = environment("opt/toolwire")
    here.packages.add("rich")
    (here.prefix / extras.IMAGE_MARK).write_text("")
    assert extras.add_extra("local") == "TOOLWIRE_EXTRAS=chat,local docker compose up --build --detach"


def test_a_repository_is_named_with_its_revision(environment: Any) -> None:
    here = environment("uv/archive-v0/x")
    here.origin = {
        "url": "https://git.example/toolwire",
        "vcs_info": {"vcs": "git", "commit_id": "abc", "requested_revision": "main"},
        "subdirectory": "python",
    }
    source = "git+https://git.example/toolwire@main#subdirectory=python"
    assert words(extras.add_extra("local"))[2] == f"toolwire[local] @ {source}"


def test_a_checkout_is_installed_in_place(environment: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    here = environment("checkout/.venv")
    folder = here.prefix.parent
    (folder / "pyproject.toml").write_text("")
    monkeypatch.setattr(extras, "__file__", str(folder / "src" / "toolwire" / "settings" / "extras.py"))
    monkeypatch.chdir(folder)
    assert extras.add_extra("local") == ".venv/bin/python -m pip install -e '.[local]'"
    assert extras.own_command("local pull") == ".venv/bin/toolwire local pull"
    monkeypatch.chdir(folder.parent)
    assert extras.add_extra("local") == "checkout/.venv/bin/python -m pip install -e 'checkout[local]'"


def test_the_python_of_the_system_needs_a_word_more(
    environment: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = environment("usr")
    monkeypatch.setattr(sys, "base_prefix", str(here.prefix))
    monkeypatch.setattr(os, "__file__", str(tmp_path / "os.py"))
    assert "--break-system-packages" not in extras.add_extra("local")
    (tmp_path / "EXTERNALLY-MANAGED").write_text("")
    assert words(extras.add_extra("local"))[2:5] == ["pip", "install", "--break-system-packages"]


def test_a_toolwire_on_the_path_is_called_by_name(environment: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    here = environment()
    (here.prefix / "bin" / "toolwire").chmod(0o755)
    assert extras.own_command("doctor") == "venv/bin/toolwire doctor"
    monkeypatch.setenv("PATH", str(here.prefix / "bin"))
    assert extras.own_command("doctor") == "toolwire doctor"


def test_without_records_the_hint_names_no_package_of_an_index(
    environment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(name: str) -> Any:
        raise metadata.PackageNotFoundError(name)

    environment()
    monkeypatch.setattr(metadata, "distribution", nothing)
    assert "pip install" not in extras.add_extra("local") and "'local'" in extras.add_extra("local")


@pytest.mark.parametrize("text", ["not json", "[]", "null"])
def test_damaged_records_count_as_none(environment: Any, text: str) -> None:
    here = environment("uv/archive-v0/x")
    here.read_text = lambda name: text
    assert words(extras.add_extra("local"))[2] == "toolwire[local]==0.2.0"


def test_no_message_of_the_program_names_toolwire_as_a_package_of_an_index() -> None:
    """The name is not registered: `pip install toolwire` would fetch whatever a stranger publishes."""
    named = re.compile(r"(?:pip|pipx|uvx|uv tool) (?:install |run )?['\"]?toolwire\b")
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in (ROOT / "src").rglob("*.py")
        for line in path.read_text().splitlines()
        if named.search(line)
    ]
    assert found == []

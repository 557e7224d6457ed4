"""tests/clients/versions.toml is the only list of client versions, and all installers agree with it."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from matrix import CLIENT_TABLE, CLIENTS, ENVIRONMENTS, ROOT, VERSIONS, markdown

PINNED = re.compile(r"([\w.-]+)(?:\[[\w,]+\])?==(\S+)")
FOLDERS = {
    "node": CLIENTS,
    "opencode": ROOT / "tests" / "acp-agents" / "opencode",
    "codex": ROOT / "tests" / "codex" / "new",
}


def pins(lines: list[str]) -> dict[str, str]:
    found = [PINNED.fullmatch(line.strip()) for line in lines if line.strip() and not line.startswith("#")]
    assert all(found), lines
    return {match[1].lower(): match[2] for match in found if match is not None}


def test_every_client_of_the_table_has_a_version() -> None:
    named = {(client.kind, package) for client in CLIENT_TABLE for package in client.packages}
    assert named <= {(kind, package) for kind, packages in VERSIONS.items() for package in packages}
    assert all(
        re.fullmatch(r"\d+\.\d+\.\d+", version)
        for packages in VERSIONS.values()
        for version in packages.values()
    )


@pytest.mark.parametrize(
    ("kind", "file"),
    [("python", "requirements.txt"), ("semantic-kernel", "requirements-semantic-kernel.txt")],
)
def test_an_environment_of_python_clients_is_pinned_whole_and_made_by_make(kind: str, file: str) -> None:
    locked = pins((CLIENTS / file).read_text("utf-8").splitlines())
    assert VERSIONS[kind].items() <= locked.items()
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert f"$(VENV)/{ENVIRONMENTS[kind]}/bin/python -m pip install -q -r tests/clients/{file}\n" in makefile
    (tests,) = [line for line in makefile.splitlines() if line.startswith("test: ")]
    assert f"$(VENV)/.{ENVIRONMENTS[kind]} " in tests
    assert len(locked) > 20


def test_what_the_tests_install_for_themselves_has_the_same_versions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    own = pins(project["optional-dependencies"]["test"])
    shared = {**VERSIONS["python"], **VERSIONS["browser"]}
    assert {"openai", "playwright", "pydantic-ai-slim"} <= own.keys() & shared.keys()
    assert {name: version for name, version in own.items() if name in shared} == {
        name: shared[name] for name in own.keys() & shared.keys()
    }


def test_the_tests_use_the_same_sdk_of_anthropic_as_its_program() -> None:
    locked = (ROOT / "constraints.txt").read_text("utf-8")
    assert f"\nanthropic=={VERSIONS['python']['anthropic']} " in locked


def test_claude_code_is_installed_for_each_machine_in_one_version() -> None:
    folder = ROOT / "tests" / "claude-code"
    wanted = json.loads((folder / "package.json").read_text("utf-8"))["optionalDependencies"]
    assert {*wanted.values()} == {*VERSIONS["claude-code"].values()}
    locked = json.loads((folder / "package-lock.json").read_text("utf-8"))["packages"]
    assert locked[""]["optionalDependencies"] == wanted
    for name, version in wanted.items():
        package = locked[f"node_modules/{name}"]
        system, machine = name.split("-")[-2:]
        assert (package["version"], package["os"], package["cpu"]) == (version, [system], [machine])
        assert "integrity" in package and "resolved" not in package


@pytest.mark.parametrize("kind", FOLDERS)
def test_the_packages_of_node_have_them_and_their_lock_file_names_no_registry(kind: str) -> None:
    folder: Path = FOLDERS[kind]
    assert json.loads((folder / "package.json").read_text("utf-8"))["dependencies"] == VERSIONS[kind]
    locked = json.loads((folder / "package-lock.json").read_text("utf-8"))["packages"]
    assert {name: locked[f"node_modules/{name}"]["version"] for name in VERSIONS[kind]} == VERSIONS[kind]
    assert [name for name, package in locked.items() if "resolved" in package] == []
    assert all(
        "integrity" in package for name, package in locked.items() if name and not package.get("optional")
    )


def test_the_page_about_clients_shows_the_table() -> None:
    assert markdown() in (ROOT / "docs" / "clients.md").read_text("utf-8")

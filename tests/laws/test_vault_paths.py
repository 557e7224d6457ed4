"""Any text used as a path is refused, or names a file inside the vault.

The file is never hidden or behind a symlink.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from toolwire.vault.edits import Edits
from toolwire.vault.paths import Vault
from toolwire.vault.policy import PathPolicy, PathRefused, extension

NAMES = [
    "a",
    "b.md",
    "C.md",
    "é.md",
    "e\u0301.md",
    "..",
    ".",
    "",
    ".git",
    ".obsidian",
    "link",
    "link.md",
    "pipe.md",
    "inner.md",
    "secret.md",
    "~",
]
NAMES += [
    "%2e%2e",
    "con.md",
    "x ",
    "x.",
    "\u200b",
    "\u202e",
    "\0",
    "\\",
    "C:",
    "a\\..\\..",
    "\uff0e\uff0e",
    "\u2024\u2024",
    "etc",
    "passwd",
    "\ud800",
    "\n",
]
NAMED = st.lists(st.one_of(st.sampled_from(NAMES), st.text(max_size=4)), min_size=1, max_size=6)
PATHS = st.one_of(
    st.text(max_size=40),
    NAMED.map("/".join),
    NAMED.map("\\".join),
    NAMED.map("".join),
    NAMED.map(lambda names: "/" + "/".join(names)),
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    outside = tmp_path_factory.mktemp("outside")
    root = outside / "vault"
    for folder in ("a/a", "a/b.md", ".git", ".obsidian", "x"):
        (root / folder).mkdir(parents=True)
    for file in (
        "b.md",
        "C.md",
        "e\u0301.md",
        "a/inner.md",
        "a/a/b.md",
        ".git/b.md",
        ".obsidian/b.md",
        "x/é.md",
        "%2e%2e.md",
        "~.md",
    ):
        (root / file).write_text("inside")
    (outside / "secret.md").write_text("outside")
    (outside / "etc").mkdir()
    (outside / "etc" / "b.md").write_text("outside")
    os.symlink(outside, root / "link")
    os.symlink(outside / "secret.md", root / "link.md")
    os.symlink(outside, root / "a" / "link")
    os.mkfifo(root / "pipe.md")
    return root


@pytest.fixture(scope="module")
def vault(root: Path) -> Iterator[Vault]:
    with Vault(root) as opened:
        yield opened


@given(PATHS)
@example("a/../../secret.md")
@example("link/secret.md")
@example("a/link/etc/b.md")
@example("\u00e9.md")
def test_any_text_is_refused_or_names_a_file_inside_the_vault(root: Path, vault: Vault, path: str) -> None:
    try:
        note = vault.read(path)
    except PathRefused as refused:
        assert "\n" not in str(refused) and refused.reason
        return
    assert note.text == "inside"
    real = Path(os.path.realpath(root / note.path))
    assert real == root / note.path, "no symlink on the path"
    assert real.is_relative_to(root)
    assert not any(name.startswith(".") for name in note.path.split("/"))
    assert extension(note.path) == ".md"


@given(PATHS)
def test_a_planned_write_is_refused_or_is_inside_the_vault(root: Path, vault: Vault, path: str) -> None:
    try:
        change = Edits(vault, clean=False).plan_write(path, "text")
    except PathRefused:
        return
    assert Path(os.path.realpath((root / change.path).parent)).is_relative_to(root)
    assert not any(name.startswith(".") for name in change.path.split("/"))


@given(PATHS, st.lists(st.text(max_size=8), max_size=3))
def test_an_excluded_folder_excludes_every_file_below_it(path: str, patterns: list[str]) -> None:
    """If a policy allows a path, it allows each folder above it."""
    policy = PathPolicy(exclude=patterns)
    if policy.allows(path):
        folders = path.split("/")[:-1]
        assert all(policy.open_to("/".join(folders[: depth + 1])) for depth in range(len(folders)))
        assert PathPolicy().allows(path)

"""The first build of a vault's index before a chat begins."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from toolwire.surfaces.terminal.indexing import first_build
from toolwire.vault.index import Index
from toolwire.vault.paths import Vault


@pytest.fixture
def vault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "vault"
    folder.mkdir()
    for number in range(250):
        (folder / f"{number}.md").write_text(f"note {number}")
    return folder


def count(folder: Path) -> int:
    with Vault(folder) as vault, Index(vault) as index:
        return index.count()


async def test_the_first_build_shows_its_progress_and_the_next_start_builds_nothing(
    vault: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    await first_build(vault, (), ())
    assert "250/250 notes" in capsys.readouterr().err and count(vault) == 250
    (vault / "another.md").write_text("new")
    await first_build(vault, (), ())
    assert capsys.readouterr().err == "" and count(vault) == 250


async def test_a_stopped_build_ends_soon_and_leaves_the_index_consistent(vault: Path) -> None:
    task = asyncio.ensure_future(first_build(vault, (), ()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with Vault(vault) as opened, Index(opened) as index:
        assert index.refresh().added + index.count() >= 250 and index.count() == 250

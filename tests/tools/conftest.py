"""A store, approvals, and a folder of notes with tools over it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from doubles.notes import Notes
from toolwire.store.store import Store
from toolwire.tools.approvals import Approvals


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    kept = Store(f"sqlite:///{tmp_path}/state/toolwire.db")
    yield kept
    await kept.close()


@pytest.fixture
def approvals(store: Store) -> Approvals:
    return Approvals(store)


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    folder = tmp_path / "vault"
    for path, text in {
        "Projects/Alpha.md": "The alpha plan.",
        "Projects/Beta.md": "Beta, after alpha.",
        "Diary.md": "alpha was hard",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return Notes(folder)

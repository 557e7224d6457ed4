"""The sample vault of `toolwire tour`, in a temporary folder, and the vault tools for it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from toolwire.backends.scripted.tour import HINTS, NOTES
from toolwire.settings.types import Settings
from toolwire.tools.contract import Approval
from toolwire.tools.executor import Toolbox
from toolwire.tools.vault_tools import opened

FOLDER = "toolwire-tour-"


@dataclass(frozen=True, slots=True)
class SampleVault:
    root: Path
    toolbox: Toolbox


@asynccontextmanager
async def sample_vault() -> AsyncIterator[SampleVault]:
    """Yields a new sample vault. Its folder, with the index, is deleted at the end."""
    folder = await asyncio.to_thread(tempfile.TemporaryDirectory, prefix=FOLDER, ignore_cleanup_errors=True)
    try:
        root = await asyncio.to_thread(write_notes, Path(folder.name).resolve() / "Sample vault")
        async with opened(Settings(), root, root.parent / "index") as tools:
            yield SampleVault(root, Toolbox(tools))
    finally:
        await asyncio.to_thread(folder.cleanup)


def write_notes(root: Path) -> Path:
    """Writes the notes of the sample vault below `root`, and returns `root`."""
    for path, text in NOTES.items():
        note = root / path
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(text, "utf-8")
    return root


def hint(approval: Approval) -> str:
    """Returns what the tour says about a question."""
    return HINTS.get((approval.tool, approval.stage), "")

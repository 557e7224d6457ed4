"""An open vault for its tools: paths, index, links and changes. Blocking work runs in threads."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from toolwire.tools.contract import ToolFailed
from toolwire.vault import Edits, Graph, Index, PathRefused, Vault
from toolwire.vault.policy import same

T = TypeVar("T")


class Library:
    """An open vault. `refresh` updates the index from the files; nothing else happens without a grant."""

    def __init__(
        self, root: Path, include: Sequence[str] = (), exclude: Sequence[str] = (), cache: Path | None = None
    ) -> None:
        self.vault = Vault(root, include, exclude)
        try:
            self.index = Index(self.vault, cache)
        except BaseException:
            self.vault.close()
            raise
        self.edits = Edits(self.vault)
        self.graph = Graph(self.index)

    async def refresh(self) -> None:
        await in_thread(self.index.refresh)

    def sizes(self, paths: Sequence[str]) -> dict[str, int]:
        """The sizes of the files that exist. Opens folders, but no files, and needs no index."""
        return {path: size for path in paths if (size := self._size(path)) is not None}

    def _size(self, path: str) -> int | None:
        try:
            names = self.vault.policy.segments(path)
            folder, _ = self.vault.open_folder(names[:-1], path)
        except PathRefused:
            return None
        try:
            status = _entry(folder, names[-1])
        except OSError:
            return None
        finally:
            os.close(folder)
        return status.st_size if status is not None and stat.S_ISREG(status.st_mode) else None

    def close(self) -> None:
        self.index.close()
        self.vault.close()


def _entry(folder: int, name: str) -> os.stat_result | None:
    """The status of an entry with this name, or one that differs only in the spelling of accents."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        if name.isascii():
            return None
    with os.scandir(folder) as entries:
        found = next((entry for entry in entries if same(entry.name) == same(name)), None)
        return found.stat(follow_symlinks=False) if found is not None else None


async def in_thread(do: Callable[[], T]) -> T:
    """Runs in a thread. A refused path becomes `ToolFailed`; only the person learns where the index is."""
    try:
        return await asyncio.to_thread(do)
    except PathRefused as refused:
        told = {"missing": f"File not found: {refused.path}", "index": refused.reason}.get(
            refused.kind, str(refused)
        )
        raise ToolFailed(told, str(refused) if refused.kind == "index" else "") from None

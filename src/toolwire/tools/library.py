"""An open vault, as its tools use it: paths, index, links and changes together. Blocking work runs in threads."""

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
    """An open vault. `refresh` brings the index up to the files: that is all that happens without a grant."""

    def __init__(self, root: Path, include: Sequence[str] = (), exclude: Sequence[str] = (), cache: Path | None = None) -> None:
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

    def known(self, paths: Sequence[str]) -> dict[str, int]:
        """Sizes of the files that are there. What the index does not hold (a canvas, a note too large for it) is looked for by name; nothing is
        opened but folders."""
        query = f"SELECT path, size FROM notes WHERE path IN ({', '.join('?' * len(paths))})"
        indexed = dict(self.index.ask(lambda connection: connection.execute(query, tuple(paths)).fetchall()) if paths else ())
        others = {path: self._size(path) for path in paths if path not in indexed}
        return {**indexed, **{path: size for path, size in others.items() if size is not None}}

    def _size(self, path: str) -> int | None:
        try:
            names = self.vault.policy.segments(path)
            folder, _ = self.vault.open_folder(names[:-1], path)
        except PathRefused:
            return None
        try:
            with os.scandir(folder) as entries:
                found = next((entry for entry in entries if same(entry.name) == same(names[-1])), None)
                status = found.stat(follow_symlinks=False) if found is not None else None
        except OSError:
            return None
        finally:
            os.close(folder)
        return status.st_size if status is not None and stat.S_ISREG(status.st_mode) else None

    def close(self) -> None:
        self.index.close()
        self.vault.close()


async def in_thread(do: Callable[[], T]) -> T:
    """In a thread; a path that is refused is a failure that the model is told. Where the index lies is the person's to know."""
    try:
        return await asyncio.to_thread(do)
    except PathRefused as refused:
        told = {"missing": f"File not found: {refused.path}", "index": refused.reason}.get(refused.kind, str(refused))
        raise ToolFailed(told, str(refused) if refused.kind == "index" else "") from None

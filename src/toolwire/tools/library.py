"""An open vault, as its tools use it: paths, index, links and changes together. Blocking work runs in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from toolwire.tools.contract import ToolFailed
from toolwire.vault import Edits, Graph, Index, PathRefused, Vault

T = TypeVar("T")


class Library:
    """An open vault. `refresh` brings the index up to the files: that is all that happens without a grant."""

    def __init__(self, root: Path, include: Sequence[str] = (), exclude: Sequence[str] = (), cache: Path | None = None) -> None:
        self.vault = Vault(root, include, exclude)
        self.index = Index(self.vault, cache)
        self.edits = Edits(self.vault)
        self.graph = Graph(self.index)

    async def refresh(self) -> None:
        await asyncio.to_thread(self.index.refresh)

    def known(self, paths: Sequence[str]) -> dict[str, int]:
        """Sizes of notes that the index knows."""
        query = f"SELECT path, size FROM notes WHERE path IN ({', '.join('?' * len(paths))})"
        return dict(self.index.ask(lambda connection: connection.execute(query, tuple(paths)).fetchall()) if paths else ())

    def close(self) -> None:
        self.index.close()
        self.vault.close()


async def in_thread(do: Callable[[], T]) -> T:
    """In a thread; a path that is refused is a failure that the model is told."""
    try:
        return await asyncio.to_thread(do)
    except PathRefused as refused:
        raise ToolFailed(f"File not found: {refused.path}" if refused.kind == "missing" else str(refused)) from None

"""Builds a vault's index with a progress bar on standard error."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from toolwire.vault.index import Index, stoppable
from toolwire.vault.paths import Vault
from toolwire.vault.refresh import Refresh

BAR = 30
PAINT_EVERY_S = 0.1


def refreshed(index: Index, cancelled: Callable[[], bool] = lambda: False) -> Refresh:
    """Updates the index. Shows a progress bar if standard error is a terminal."""
    bar = _Bar()
    try:
        return index.refresh(bar.show if sys.stderr.isatty() else None, cancelled)
    finally:
        bar.clear()


async def first_build(root: Path, include: Sequence[str], exclude: Sequence[str]) -> None:
    """Builds the index of a vault that has none yet. After a cancelled build, the next call continues it."""
    stop = threading.Event()

    def build() -> None:
        with Vault(root, include, exclude) as vault, Index(vault) as index:
            if index.location.current() is None:
                refreshed(index, stop.is_set)

    await stoppable(build, stop)


class _Bar:
    """A progress bar on one line of standard error."""

    _painted = 0.0

    def show(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._painted < PAINT_EVERY_S and done != total:
            return
        self._painted = now
        share = min(1.0, done / total) if total else 1.0
        filled = int(BAR * share)
        bar = "█" * filled + " " * (BAR - filled)
        print(f"\rindexing [{bar}] {done}/{max(done, total)} notes", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._painted:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

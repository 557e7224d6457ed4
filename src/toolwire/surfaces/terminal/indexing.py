"""Building a vault's index with a progress bar on standard error."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from toolwire.vault import Index, Refresh, Vault

BAR = 30
PAINT_EVERY_S = 0.1


def refreshed(index: Index, cancelled: Callable[[], bool] | None = None) -> Refresh:
    """Brings the index up to date; shows a progress bar if standard error is a terminal."""
    bar = _Bar() if sys.stderr.isatty() else None
    try:
        return index.refresh(bar.show if bar is not None else None, cancelled)
    finally:
        if bar is not None:
            bar.clear()


async def first_build(root: Path, include: Sequence[str], exclude: Sequence[str]) -> None:
    """Builds the index of a vault that has none yet. A build that is cancelled continues the next time."""
    stop = threading.Event()
    work = asyncio.ensure_future(asyncio.to_thread(_build, root, include, exclude, stop))
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait([work])
        raise


def _build(root: Path, include: Sequence[str], exclude: Sequence[str], stop: threading.Event) -> None:
    with Vault(root, include, exclude) as vault, Index(vault) as index:
        if index.location.current() is None:
            refreshed(index, stop.is_set)


class _Bar:
    """A progress bar: one line, painted again and again."""

    def __init__(self) -> None:
        self._painted = 0.0

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

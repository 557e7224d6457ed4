"""Keeps an index up with the files while something runs, by looking again and again. No system service, no dependency.

A look costs a walk over the folder's entries; the pause grows with what it took, so that watching never uses more than a small share of a processor.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable

from toolwire.vault.index import Index, Refresh
from toolwire.vault.policy import PathRefused

log = logging.getLogger("toolwire.vault")
INTERVAL_S = 2.0
SHARE = 0.05


async def watch(index: Index, changed: Callable[[Refresh], None] | None = None, interval_s: float = INTERVAL_S) -> None:
    """Refreshes until it is cancelled; `changed` is told, in the event loop, of each refresh that found something. Cancelled in the middle of a
    refresh it ends that soon and leaves the index whole."""
    stop = threading.Event()
    try:
        while True:
            pause = interval_s
            try:
                done = await _in_thread(index, stop)
                pause = max(interval_s, done.seconds / SHARE)
                if done.touched and changed is not None:
                    changed(done)
            except (OSError, sqlite3.Error, PathRefused) as error:
                known = isinstance(error, PathRefused) and error.kind == "index"  # whoever asks for something is told
                log.log(logging.INFO if known else logging.WARNING, "the vault could not be looked at: %s", error)
            await asyncio.sleep(pause)
    finally:
        stop.set()


async def _in_thread(index: Index, stop: threading.Event) -> Refresh:
    """The thread is waited for also when the caller is cancelled: it ends at the next note."""
    work = asyncio.ensure_future(asyncio.to_thread(index.refresh, None, stop.is_set, False))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait([work])
        raise

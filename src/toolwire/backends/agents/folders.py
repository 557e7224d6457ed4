"""Private folders of processes. A folder is named after its gateway's process id: so those of gateways that were killed are known, and swept away."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path


def in_memory() -> Path:
    """Where folders lie in memory, where the system has such a place."""
    return Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())


def private_folder(prefix: str, parent: Path) -> Path:
    """A fresh one, for its owner alone; what others have left is swept away."""
    sweep(prefix, parent)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=parent))


def sweep(prefix: str, parent: Path) -> None:
    """Removes the folders of gateways that were killed."""
    for left in parent.glob(f"{prefix}*"):
        owner = left.name.removeprefix(prefix).partition("-")[0]
        if owner.isdigit() and not _lives(int(owner)):
            shutil.rmtree(left, ignore_errors=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

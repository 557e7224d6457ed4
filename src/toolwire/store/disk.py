"""Readable messages for disk errors."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

FULL = "the disk is full"
_MESSAGES = {errno.ENOSPC: FULL, errno.EDQUOT: FULL, errno.EROFS: "the disk is read-only"}


def why(error: OSError) -> str:
    """The reason why a file could not be written."""
    return _MESSAGES.get(error.errno or 0) or error.strerror or str(error)


def hindrance(path: Path, room: int) -> str:
    """Why this file cannot be written: permissions, or less than `room` bytes free; "" if it can.

    For a file that does not exist yet, checks the nearest folder that does.
    """
    folder = next(one for one in path.absolute().parents if one.exists())
    if not folder.is_dir():
        return f"{folder} is not a folder"
    if path.exists() and not os.access(path, os.R_OK | os.W_OK):
        return "the file cannot be written"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"the folder {folder} cannot be written"
    return FULL if shutil.disk_usage(folder).free < room else ""

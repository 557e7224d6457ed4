"""Readable messages for disk errors."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

FULL = "the disk is full"
_WORDS = {errno.ENOSPC: FULL, errno.EDQUOT: FULL, errno.EROFS: "the disk is read-only"}


def why(error: OSError) -> str:
    """Why something could not be written."""
    return _WORDS.get(error.errno or 0) or error.strerror or str(error)


def hindrance(path: Path, room: int) -> str:
    """What keeps this file from being written: rights, a read-only disk, or one with fewer bytes free than `room`. "": nothing that can be seen.

    Of a file that is not there yet, its folder is asked; of a folder that is not there yet, the nearest that is.
    """
    folder = next(one for one in path.absolute().parents if one.exists())
    if not folder.is_dir():
        return f"{folder} is not a folder"
    if path.exists() and not os.access(path, os.R_OK | os.W_OK):
        return "the file can not be written"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"the folder {folder} can not be written"
    return FULL if shutil.disk_usage(folder).free < room else ""

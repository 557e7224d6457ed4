"""Lists folders of the server's machine, so that a person can choose the vault's folder.

Only names of folders are listed, never files, and a list is bounded in size and time.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from toolwire.core.errors import ToolwireError
from toolwire.surfaces.web.context import invalid

LONGEST_PATH = 1000
MOST_FOLDERS = 200
MOST_ENTRIES = 20_000
"""The most entries of a folder that are read."""
LIST_S = 3.0
MOST_LISTS = 2
"""The most requests to the disk at a time, so that a slow disk cannot occupy more threads."""
T = TypeVar("T")


class Folders:
    def __init__(self) -> None:
        self._running = 0

    async def listed(self, typed: str) -> dict[str, Any]:
        """Returns the folders whose path begins with what a person typed.

        If `typed` ends with "/", these are the folders inside. Hidden folders are listed only if the typed
        name begins with a dot.
        """
        return await self._bounded(lambda: _listed(checked(typed or "~/", for_list=True)))

    async def vault(self, typed: str) -> Path:
        """Returns the path of a folder that can be the vault. Raises an error if it cannot."""
        return await self._bounded(lambda: _vault(checked(typed)))

    async def _bounded(self, work: Callable[[], T]) -> T:
        if self._running >= MOST_LISTS:
            raise ToolwireError("overloaded", "The disk is slow. Try again in a moment.", retry_after_s=1)
        self._running += 1
        task = asyncio.ensure_future(asyncio.to_thread(work))
        task.add_done_callback(self._ended)
        try:
            return await asyncio.wait_for(asyncio.shield(task), LIST_S)
        except TimeoutError:
            raise ToolwireError("timeout", f"The disk did not answer within {LIST_S:g} s.") from None

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running -= 1
        if not task.cancelled():
            task.exception()  # a late error has no reader


def checked(typed: str, for_list: bool = False) -> str:
    """Returns the path that the person typed, with `~` expanded.

    Raises an error if the path is not absolute, too long or not printable. `for_list`: a `/` at the end
    stays, because it asks for the contents of the folder.
    """
    text = typed.strip()
    path = os.path.expanduser(text)
    if not text or len(text) > LONGEST_PATH or not text.isprintable():
        raise invalid(f"Type the path of a folder. It can have at most {LONGEST_PATH:,} characters.", "path")
    if not os.path.isabs(path):
        raise invalid("Type a whole path: it begins with / or ~/.", "path")
    ends = text.endswith("/") or text == "~"
    return os.path.normpath(path).rstrip("/") + ("/" if ends or not for_list else "")


def _listed(path: str) -> dict[str, Any]:
    folder, _, begun = path.rpartition("/")
    folder = folder or "/"
    found, more = [], False
    try:
        with os.scandir(folder) as entries:
            for number, entry in enumerate(entries):
                if number >= MOST_ENTRIES:
                    more = True
                    break
                name = entry.name
                if name.startswith(".") and not begun.startswith("."):
                    continue
                if name.lower().startswith(begun.lower()) and name.isprintable() and _is_folder(entry):
                    found.append(name)
    except OSError as error:
        raise invalid(f"{folder} cannot be listed: {error.strerror or error}.", "path") from None
    found.sort(key=lambda name: (name.lower(), name))
    parent = os.path.dirname(folder.rstrip("/")) or "/"
    return {
        "folder": folder,
        "parent": "" if folder == "/" else parent,
        "folders": [{"name": name, "path": os.path.join(folder, name)} for name in found[:MOST_FOLDERS]],
        "more": more or len(found) > MOST_FOLDERS,
    }


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _vault(path: str) -> Path:
    folder = Path(path)
    try:
        real = folder.resolve(strict=True)
        if not real.is_dir():
            raise invalid(f"{folder} is not a folder.", "path")
        with os.scandir(real) as entries:
            next(entries, None)
    except FileNotFoundError:
        raise invalid(f"{folder} does not exist. Create the folder first.", "path") from None
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or error
        raise invalid(f"{folder} cannot be opened: {why}.", "path") from None
    if real == Path("/") or real == Path.home():
        raise invalid(f"{folder} is too broad. Choose the folder with your notes.", "path")
    return real
